/* The codec lhc in plain C: what a careful reader of docs/lhc.md would write, element by element, and what
 * the kernels' speed is measured against (tests/bench/lhc.py): the same hash, layout and bits, at -O3.
 * Sketches by the elements that are not 0; peels with a count and the xor of the element numbers in each
 * bucket, and a stack of buckets that hold one element, as invertible Bloom lookup tables are peeled
 * (Goodrich and Mitzenmacher, 2011). */
#include <math.h>
#include <stdint.h>
#include <string.h>

struct block {
    uint32_t row[3], rotation[3], sign[3];
};

struct hash {
    uint64_t seed;
    uint32_t sequence, chunk, rows;
};

static void philox(const struct hash *hash, uint32_t block, uint32_t stream, uint32_t words[4])
{
    uint32_t c0 = block, c1 = hash->chunk, c2 = hash->sequence, c3 = stream;
    uint32_t k0 = (uint32_t)hash->seed, k1 = (uint32_t)(hash->seed >> 32);
    for (int round = 0; round < 7; round++) {
        uint64_t product0 = (uint64_t)0xd2511f53u * c0, product1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

static void hash_block(const struct hash *hash, uint32_t block, struct block *to)
{
    uint32_t places[4], signs[4];
    philox(hash, block, 0x40000000, places);
    philox(hash, block, 0x40000001, signs);
    for (uint32_t j = 0; j < 3; j++) {
        to->row[j] = (uint32_t)((uint64_t)places[j] * hash->rows >> 32);
        to->rotation[j] = places[3] >> 5 * j & 31;
        to->sign[j] = signs[j];
    }
}

static uint32_t bucket(const struct hash *hash, const struct block *block, uint32_t j, uint32_t lane)
{
    return (j * hash->rows + block->row[j]) * 32 + ((lane + block->rotation[j]) & 31);
}

void plain_sketch(const struct hash *hash, const float *values, float first, float rest, uint64_t elems,
                  int32_t *table)
{
    memset(table, 0, (uint64_t)96 * hash->rows * sizeof *table);
    for (uint64_t begin = 0; begin < elems; begin += 32) {
        struct block block;
        int hashed = 0;
        for (uint32_t lane = 0; lane < 32 && begin + lane < elems; lane++) {
            float x = values[begin + lane];
            if (x == 0)
                continue;
            if (!hashed)
                hash_block(hash, (uint32_t)(begin / 32), &block);
            hashed = 1;
            int32_t v = (int32_t)lrintf(x * first * rest);
            for (uint32_t j = 0; j < 3; j++)
                table[bucket(hash, &block, j, lane)] += block.sign[j] >> lane & 1 ? -v : v;
        }
    }
}

uint64_t plain_scratch_bytes(uint64_t elems, uint32_t rows)
{
    return (elems + 31) / 32 * sizeof(struct block) + (uint64_t)96 * rows * 3 * sizeof(uint32_t);
}

uint64_t plain_peel(const struct hash *hash, const uint32_t *all, uint64_t elems, int32_t *table, float first,
                    float rest, float *values, void *scratch)
{
    uint64_t buckets = (uint64_t)96 * hash->rows, left = 0, stacked = 0;
    struct block *blocks = scratch;
    uint32_t *counts = (uint32_t *)(blocks + (elems + 31) / 32), *xors = counts + buckets,
             *stack = xors + buckets;
    memset(values, 0, elems * sizeof *values);
    memset(counts, 0, 2 * buckets * sizeof *counts);
    for (uint64_t b = 0; b < (elems + 31) / 32; b++) {
        if (!all[b])
            continue;
        hash_block(hash, (uint32_t)b, &blocks[b]);
        for (uint32_t lane = 0; lane < 32; lane++) {
            if (!(all[b] >> lane & 1))
                continue;
            left++;
            for (uint32_t j = 0; j < 3; j++) {
                uint32_t at = bucket(hash, &blocks[b], j, lane);
                counts[at]++;
                xors[at] ^= (uint32_t)b * 32 + lane;
            }
        }
    }
    for (uint64_t at = 0; at < buckets; at++)
        if (counts[at] == 1)
            stack[stacked++] = (uint32_t)at;
    while (stacked) {
        uint32_t alone = stack[--stacked];
        if (counts[alone] != 1)
            continue;
        uint32_t element = xors[alone], lane = element % 32, from = alone / (hash->rows * 32);
        const struct block *block = &blocks[element / 32];
        int32_t v = block->sign[from] >> lane & 1 ? -table[alone] : table[alone];
        values[element] = (float)v * first * rest;
        left--;
        for (uint32_t j = 0; j < 3; j++) {
            uint32_t at = bucket(hash, block, j, lane);
            xors[at] ^= element;
            table[at] -= block->sign[j] >> lane & 1 ? -v : v;
            if (--counts[at] == 1)
                stack[stacked++] = at;
        }
    }
    return left;
}
