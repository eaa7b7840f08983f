/* Expanding and packing, every variant against the definition, element by element: all lengths around a
 * vector's width, all alignments of the values, arrays of exactly the size. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <unistd.h>

#include "variants.h"

#define MAX_WORDS 5u
#define MAX_ELEMS (32 * MAX_WORDS)

/* A copy whose end is that of the last page that may be touched: also a masked access beyond it, which
 * AddressSanitizer does not see, is one that the CPU refuses. Valid until so many copies later. */
#define COPIES     4u
#define COPY_BYTES 4096u
static uint8_t *walled_copy(const void *data, uint32_t bytes)
{
    static uint8_t *ends[COPIES];
    static uint32_t next;
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    uint32_t i = next++ % COPIES;

    assert_true(bytes <= COPY_BYTES && COPY_BYTES <= page_bytes);
    if (!ends[i]) {
        uint8_t *pages =
            mmap(NULL, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(pages != MAP_FAILED);
        ends[i] = pages + page_bytes;
        assert_int_equal(mprotect(ends[i], page_bytes, PROT_NONE), 0);
    }
    if (bytes > 0)
        memcpy(ends[i] - bytes, data, bytes);
    return ends[i] - bytes;
}

static bool bit(const uint32_t *bitmap, uint32_t i)
{
    return bitmap[i / 32] >> i % 32 & 1;
}

/* `elements` bits, about one in `sparsity`; the rest of the last word is 0. */
static void random_bitmap(uint32_t *bitmap, uint32_t elements, uint32_t sparsity, uint32_t *seed)
{
    memset(bitmap, 0, 4 * ((elements + 31) / 32));
    for (uint32_t i = 0; i < elements; i++)
        if (sparsity > 0 && next_random(seed) % sparsity == 0)
            bitmap[i / 32] |= 1u << i % 32;
}

static uint32_t count_bits(const uint32_t *bitmap, uint32_t elements)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < elements; i++)
        count += bit(bitmap, i);
    return count;
}

static uint32_t sum_of(uint32_t a, uint32_t b, bool floats)
{
    float x, y;

    if (!floats)
        return a + b;
    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    x += y;
    memcpy(&a, &x, 4);
    return a;
}

/* Bits of floats of every kind but NaN, whose sums IEEE 754 leaves open; as integers they wrap. */
static uint32_t random_value(uint32_t *seed)
{
    static const uint32_t corners[] = {0, 0x80000000, 1, 0x807fffff, 0x7f800000, 0x7f7fffff, 0xff7fffff};
    uint32_t draw = next_random(seed);

    if (draw % 4 == 0)
        return corners[draw / 4 % 7];
    return draw & 0x7f800000 && (draw & 0x7f800000) != 0x7f800000 ? draw : 0x3f800000;
}

static void check_expand(psc_expand_fn *expand, bool floats, uint32_t elements, uint32_t sparsity,
                         uint32_t shift_bytes, uint32_t *seed)
{
    uint32_t words = (elements + 31) / 32, bitmap[MAX_WORDS], united[MAX_WORDS], before[MAX_ELEMS];
    uint8_t packed[4 + 4 * MAX_ELEMS];

    random_bitmap(bitmap, elements, sparsity, seed);
    random_bitmap(united, elements, 2, seed);
    for (uint32_t i = 0; i < elements; i++)
        before[i] = random_value(seed);
    uint32_t count = count_bits(bitmap, elements), values[MAX_ELEMS];
    for (uint32_t k = 0; k < count; k++)
        values[k] = random_value(seed);
    memcpy(packed + shift_bytes, values, 4 * count);
    uint8_t *packet = walled_copy(packed, shift_bytes + 4 * count);
    uint32_t *sums = (void *)walled_copy(before, 4 * elements);
    uint32_t *bits = (void *)walled_copy(bitmap, 4 * words);
    uint32_t *now_united = (void *)walled_copy(united, 4 * words);

    expand(sums, now_united, bits, words, packet + shift_bytes);
    for (uint32_t i = 0, k = 0; i < elements; i++) {
        uint32_t expected = before[i];
        if (bit(bitmap, i)) {
            expected = bit(united, i) ? sum_of(before[i], values[k], floats) : values[k];
            k++;
        }
        float nan; /* Inf - Inf */
        memcpy(&nan, &expected, 4);
        if (sums[i] != expected && !(floats && nan != nan))
            fail_msg("element %u of %u: %08x, not %08x", i, elements, sums[i], expected);
    }
    for (uint32_t w = 0; w < words; w++)
        assert_int_equal(now_united[w], united[w] | bitmap[w]);
    assert_memory_equal(bits, bitmap, 4 * words);
}

/* Packed where the values stand, and up to some words before: never over what is still to be read. */
static void check_pack(psc_pack_fn *pack, psc_count_fn *count, uint32_t elements, uint32_t sparsity,
                       uint32_t ahead, uint32_t *seed)
{
    uint32_t words = (elements + 31) / 32, bitmap[MAX_WORDS], before[MAX_ELEMS + 40];

    random_bitmap(bitmap, elements, sparsity, seed);
    for (uint32_t i = 0; i < elements + ahead; i++)
        before[i] = next_random(seed);
    uint32_t *memory = (void *)walled_copy(before, 4 * (elements + ahead));
    uint32_t *bits = (void *)walled_copy(bitmap, 4 * words), k = 0;

    assert_int_equal(pack(memory, memory + ahead, bits, words), count_bits(bitmap, elements));
    for (uint32_t i = 0; i < elements; i++)
        if (bit(bitmap, i))
            assert_int_equal(memory[k++], before[ahead + i]);
    for (; k < elements + ahead; k++)
        assert_int_equal(memory[k], before[k]);
    assert_int_equal(count(bits, words), count_bits(bitmap, elements));
}

static void check_row(const struct psc_sparse_row *row)
{
    static const uint32_t sparsities[] = {0, 1, 2, 10, 50};
    uint32_t seed = 77;

    for (uint32_t elements = 1; elements <= MAX_ELEMS; elements++)
        for (uint32_t s = 0; s < sizeof sparsities / sizeof *sparsities; s++)
            for (uint32_t shift = 0; shift < 4; shift++) {
                check_expand(row->expand_i32, false, elements, sparsities[s], shift, &seed);
                check_expand(row->expand_f32, true, elements, sparsities[s], shift, &seed);
                check_pack(row->pack, row->count, elements, sparsities[s], 13 * shift, &seed);
            }
}

static void every_variant_is_as_specified(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < PSC_ARITH_VARIANTS; v++)
        if (psc_arith_variants[v].runs_here())
            check_row(psc_arith_variants[v].sparse);
        else
            print_message("this CPU has no %s\n", psc_arith_variants[v].name);
}

/* The first one is no addition: -0.0 and every bit of a NaN stay, and what lay there before does not count.
 */
static void check_first(const struct psc_sparse_row *row)
{
    const uint32_t values[3] = {0x80000000, 0x7f800001, 0xffc12345}, bitmap[1] = {0x00018002};
    uint32_t sums[32], united[1] = {0};

    memset(sums, 0xff, sizeof sums);
    row->expand_f32(sums, united, bitmap, 1, values);
    assert_int_equal(sums[1], 0x80000000);
    assert_int_equal(sums[15], 0x7f800001);
    assert_int_equal(sums[16], 0xffc12345);
    assert_int_equal(sums[0], 0xffffffff);
    row->expand_f32(sums, united, bitmap, 1, values);
    assert_int_equal(sums[1], 0x80000000);
}

static void the_first_value_of_an_element_is_stored(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < PSC_ARITH_VARIANTS; v++)
        if (psc_arith_variants[v].runs_here())
            check_first(psc_arith_variants[v].sparse);
}

static void the_variant_of_the_ops_is_that_of_expanding(void **state)
{
    (void)state;
    for (uint32_t v = PSC_ARITH_VARIANTS; v-- > 0;)
        if (psc_arith_choose(psc_arith_variants[v].name))
            assert_ptr_equal(psc_sparse_row(), psc_arith_variants[v].sparse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_is_as_specified),
        cmocka_unit_test(the_first_value_of_an_element_is_stored),
        cmocka_unit_test(the_variant_of_the_ops_is_that_of_expanding),
    };

    return cmocka_run_group_tests_name("sparse", tests, NULL, NULL);
}
