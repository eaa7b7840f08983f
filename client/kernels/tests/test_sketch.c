/* The kernels of lhc in every variant that this CPU runs, over heap buffers of exactly the size that the door
 * asks for, for AddressSanitizer and UndefinedBehaviorSanitizer (make sanitize). The bits are compared with
 * the scalar variant's; what is right is tests/client/test_lhc.py's to say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "psc_kernels.h"

static const char *const names[] = {"scalar", "avx2", "avx512"};
static const uint64_t lengths[] = {1, 31, 32, 33, 500, 511, 512, 513, 3333, 40001};
static unsigned failures;

static void *exact(size_t bytes)
{
    void *at = malloc(bytes ? bytes : 1);
    if (!at)
        abort();
    return at;
}

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* A chunk of which one element in `every` is not zero, by so many rows; outputs one after the other. */
static void run(uint64_t elems, uint32_t every, uint32_t rows, unsigned char *result)
{
    const struct psc_lhc_hash hash = {0x0123456789abcdefu, 7, 9, rows};
    uint64_t words = (elems + 31) / 32;
    float *x = exact(4 * elems), *values = exact(4 * elems);
    uint32_t *all = exact(4 * words), *unpeeled = exact(4 * words);
    int32_t *table = exact(4 * (size_t)96 * rows);
    void *scratch = exact(psc_lhc_scratch_bytes(elems, rows));
    uint32_t state = (uint32_t)elems * every;
    memset(all, 0, 4 * words);
    for (uint64_t i = 0; i < elems; i++) {
        x[i] = next(&state) % every ? 0 : (float)next(&state) - 0x1p23f;
        all[i / 32] |= (uint32_t)(x[i] != 0) << i % 32;
    }
    uint64_t left = psc_lhc_check(&hash, all, elems, unpeeled, scratch);
    psc_lhc_sketch(&hash, x, 64, 1, elems, unpeeled, table);
    memcpy(result, table, 4 * (size_t)96 * rows);
    result += 4 * (size_t)96 * rows;
    if (psc_lhc_peel(&hash, all, elems, table, 0x1p-6f, 1, values, unpeeled, scratch) != left)
        failures++;
    memcpy(result, values, 4 * elems);
    memcpy(result + 4 * elems, unpeeled, 4 * words);
    for (uint64_t i = 0; i < elems; i++)
        if (values[i] != (unpeeled[i / 32] >> i % 32 & 1 ? 0 : x[i]))
            failures++;
    void *rooms[] = {x, values, all, unpeeled, table, scratch};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        free(rooms[i]);
}

static void compare(uint64_t elems, uint32_t every, uint32_t rows)
{
    size_t bytes = 4 * (size_t)96 * rows + 8 * elems + 4;
    unsigned char *wanted = calloc(1, bytes), *got = calloc(1, bytes);
    if (!wanted || !got)
        abort();
    for (size_t v = 0; v < sizeof names / sizeof *names; v++) {
        if (!psc_kernels_choose(names[v]))
            continue;
        run(elems, every, rows, v == 0 ? wanted : got);
        if (v > 0 && memcmp(wanted, got, bytes) != 0) {
            failures++;
            printf("%s differs from scalar: one in %u, %llu elements, %u rows\n", names[v], every,
                   (unsigned long long)elems, rows);
        }
    }
    free(wanted);
    free(got);
}

int main(void)
{
    unsigned runs = 0;
    for (uint32_t every = 1; every < 100; every *= 7)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (uint64_t permille = 700; permille < 1400; permille += 600, runs++)
                compare(lengths[i], every, (uint32_t)(lengths[i] / every * permille / 96000) + 1);
    printf("%u chunks, %u failures\n", runs, failures);
    return failures > 0;
}
