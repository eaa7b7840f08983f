/* Every variant that this CPU runs, over heap buffers of exactly the size that the door asks for, for
 * AddressSanitizer and UndefinedBehaviorSanitizer (make sanitize). The bits are compared with the scalar
 * variant's; what is right is tests/client/test_thc_kernels.py's to say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "psc_kernels.h"

static const char *const names[] = {"scalar", "avx2", "avx512"};
static const uint64_t lengths[] = {1, 64, 65, 300, 1023, 1024, 1025, 2048, 3333, 17 * 1024 + 1};
static unsigned failures;

/* `bytes` that end where the allocation ends, at 4-byte alignment and no more. */
struct exact {
    unsigned char *room;
    void *at;
};

static struct exact exact_of(size_t bytes, size_t offset)
{
    struct exact buffer = {.room = malloc(bytes + offset)};
    if (!buffer.room)
        abort();
    buffer.at = buffer.room + offset;
    return buffer;
}

static float number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)((double)*state / 0x1p31 - 1);
}

static struct psc_thc_settings settings_of(uint32_t bits, uint32_t g, uint32_t n, uint32_t variety)
{
    struct psc_thc_settings s = {
        .seed = 0x0123456789abcdefu + variety, .bits = bits, .n = n, .t = 2.25f, .debias = 1.0f};
    s.norm = variety & 1 ? PSC_THC_MAX : PSC_THC_L2;
    s.rotate = (variety & 2) == 0;
    s.rounding = (enum psc_thc_rounding)(variety % 3);
    s.fresh_rotation = (variety & 4) == 0;
    s.scale_per_tensor = (variety & 8) != 0;
    uint32_t last = (1u << bits) - 1;
    for (uint32_t k = 0; k <= last; k++)
        s.table[k] = (uint8_t)(k * g / last);
    return s;
}

/* Everything of one chunk; the outputs, one after the other, in `result`. */
static void run(const struct psc_thc_job *job, const struct psc_thc_settings *s, uint64_t elems,
                size_t offset, unsigned char *result)
{
    uint64_t coordinates = psc_thc_coordinates(job, elems), blocks = (elems + 1023) / 1024;
    uint64_t packed_bytes = coordinates * (s->bits == 3 ? 4 : s->bits) / 8;
    struct exact grad = exact_of(4 * elems, offset), residual = exact_of(4 * elems, 4),
                 left = exact_of(4 * elems, offset);
    struct exact values = exact_of(4 * elems, offset), norms = exact_of(4 * blocks, 4),
                 packed = exact_of(packed_bytes, 1);
    struct exact u8 = exact_of(coordinates, 1), u16 = exact_of(2 * coordinates, 2);
    uint32_t state = (uint32_t)elems;
    for (uint64_t c = 0; c < elems; c++) {
        ((float *)grad.at)[c] = number(&state);
        ((float *)residual.at)[c] = number(&state) / 8;
    }
    for (uint64_t c = 0; c < coordinates; c++) {
        ((uint8_t *)u8.at)[c] = (uint8_t)(number(&state) * 100 + 110);
        ((uint16_t *)u16.at)[c] = (uint16_t)(number(&state) * 30000 + 30000);
    }
    const struct psc_thc_chunk chunk = {job, 7, 9, coordinates};
    psc_thc_norms(job, grad.at, residual.at, 2, elems, norms.at);
    float *scales = norms.at;
    scales[0] += psc_thc_tensor_norm(job, scales, (uint32_t)blocks);
    psc_thc_encode(&chunk, s->n - 1, grad.at, residual.at, left.at, 2, elems, scales, packed.at);
    memcpy(result, packed.at, packed_bytes);
    result += packed_bytes;
    memcpy(result, left.at, 4 * elems);
    result += 4 * elems;
    psc_thc_decode_u8(&chunk, s->n, u8.at, elems, scales, values.at);
    memcpy(result, values.at, 4 * elems);
    result += 4 * elems;
    psc_thc_decode_u16(&chunk, s->n, u16.at, elems, scales, values.at);
    memcpy(result, values.at, 4 * elems);
    struct exact *all[] = {&grad, &residual, &left, &values, &norms, &packed, &u8, &u16};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->room);
}

static void compare(const struct psc_thc_settings *s, uint64_t elems)
{
    struct psc_thc_job *job = psc_thc_job_new(s);
    if (!job)
        abort();
    size_t bytes = 13 * psc_thc_coordinates(job, elems);
    unsigned char *wanted = calloc(1, bytes), *got = calloc(1, bytes);
    if (!wanted || !got)
        abort();
    for (size_t v = 0; v < sizeof names / sizeof *names; v++) {
        if (!psc_kernels_choose(names[v]))
            continue;
        for (size_t offset = 0; offset <= 4; offset += 4) {
            run(job, s, elems, offset, v == 0 && offset == 0 ? wanted : got);
            if ((v > 0 || offset > 0) && memcmp(wanted, got, bytes) != 0) {
                failures++;
                printf("%s differs from scalar: %u bits, n %u, %llu elements\n", names[v], s->bits, s->n,
                       (unsigned long long)elems);
            }
        }
    }
    free(wanted);
    free(got);
    psc_thc_job_free(job);
}

/* Codec sparse: marks, packs and unpacks `elems` of which about one in `every` is not zero. */
static void run_sparse(uint64_t elems, uint32_t every, size_t offset, unsigned char *result)
{
    uint64_t words = (elems + 31) / 32;
    struct exact x = exact_of(4 * elems, offset), large = exact_of(4 * words, 4),
                 all = exact_of(4 * words, 4);
    uint32_t state = (uint32_t)elems * every;
    for (uint64_t i = 0; i < elems; i++) {
        float value = number(&state);
        ((float *)x.at)[i] = state >> 16 & 1 || i % every ? 0 : value;
    }
    psc_sparse_mark(x.at, elems, 0x3f000000, large.at);
    uint64_t count = psc_sparse_mark(x.at, elems, 1, all.at);
    struct exact packed = exact_of(4 * count, 4), values = exact_of(4 * elems, offset);
    psc_sparse_pack(x.at, all.at, elems, count, packed.at);
    memcpy(result, packed.at, 4 * count);
    psc_sparse_unpack(packed.at, count, all.at, elems, values.at);
    memcpy(result + 4 * elems, values.at, 4 * elems);
    memcpy(result + 8 * elems, all.at, 4 * words);
    memcpy(result + 8 * elems + 4 * words, large.at, 4 * words);
    struct exact *rooms[] = {&x, &large, &all, &packed, &values};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        free(rooms[i]->room);
}

/* The stream of what is not zero in `elems` words, written from both sources, checked and taken apart. */
static void run_stream(uint64_t elems, uint32_t every, size_t offset, unsigned char *result)
{
    uint64_t words = (elems + 31) / 32;
    struct exact x = exact_of(4 * elems, offset), all = exact_of(4 * words, 4);
    for (uint64_t i = 0; i < elems; i++)
        ((uint32_t *)x.at)[i] = i % every ? 0 : (uint32_t)i + 1;
    uint64_t count = psc_sparse_mark(x.at, elems, 1, all.at);
    uint64_t length = psc_sparse_stream_words(all.at, elems);
    struct exact packed = exact_of(4 * count, 4), values = exact_of(4 * elems, offset);
    struct exact stream = exact_of(4 * length, offset), twin = exact_of(4 * length, 4);
    psc_sparse_stream_write(x.at, NULL, all.at, elems, stream.at, length);
    struct psc_sparse_verdict verdict;
    for (uint64_t cut = 0; cut < length; cut += 1 + length / 50) {
        psc_sparse_stream_check((uint32_t *)stream.at + length - cut, cut, elems, &verdict);
        failures += verdict.fault == PSC_SPARSE_GOOD;
    }
    psc_sparse_stream_check(stream.at, length, elems, &verdict);
    failures += verdict.fault != PSC_SPARSE_GOOD || verdict.values != count;
    psc_sparse_stream_values(stream.at, elems, packed.at);
    psc_sparse_stream_write(NULL, packed.at, all.at, elems, twin.at, length);
    failures += memcmp(stream.at, twin.at, 4 * length) != 0;
    memcpy(result, stream.at, 4 * length);
    psc_sparse_stream_unpack(stream.at, length, every % 2 ? NULL : packed.at, count, elems, values.at);
    failures += memcmp(values.at, x.at, 4 * elems) != 0;
    struct exact *rooms[] = {&x, &all, &packed, &values, &stream, &twin};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        free(rooms[i]->room);
}

typedef void (*run_lossless)(uint64_t elems, uint32_t every, size_t offset, unsigned char *result);

static void compare_sparse(run_lossless run_one, uint64_t elems, uint32_t every)
{
    size_t bytes = 12 * elems + 8;
    unsigned char *wanted = calloc(1, bytes), *got = calloc(1, bytes);
    if (!wanted || !got)
        abort();
    for (size_t v = 0; v < sizeof names / sizeof *names; v++) {
        if (!psc_kernels_choose(names[v]))
            continue;
        for (size_t offset = 0; offset <= 4; offset += 4) {
            run_one(elems, every, offset, v == 0 && offset == 0 ? wanted : got);
            if ((v > 0 || offset > 0) && memcmp(wanted, got, bytes) != 0) {
                failures++;
                printf("%s differs from scalar: sparse, one in %u, %llu elements\n", names[v], every,
                       (unsigned long long)elems);
            }
        }
    }
    free(wanted);
    free(got);
}

int main(void)
{
    static const struct {
        uint32_t bits, g, n;
    } widths[] = {{2, 2, 8},  {3, 7, 3},   {4, 15, 8},    {4, 30, 8},
                  {4, 63, 4}, {4, 255, 1}, {8, 255, 200}, {4, 1, 40000}};
    unsigned runs = 0;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (uint32_t variety = 0; variety < 12; variety++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++, runs++) {
                struct psc_thc_settings s = settings_of(widths[w].bits, widths[w].g, widths[w].n, variety);
                compare(&s, lengths[i]);
            }
    for (uint32_t every = 1; every < 5000; every = 5 * every + 1)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++, runs++)
            for (size_t each = 0; each < 2; each++)
                compare_sparse(each ? run_stream : run_sparse, lengths[i], every);
    struct psc_thc_settings falling = settings_of(2, 2, 8, 0);
    falling.table[1] = 3;
    if (psc_thc_job_new(&falling))
        failures++;
    printf("%u chunks, %u failures\n", runs, failures);
    return failures > 0;
}
