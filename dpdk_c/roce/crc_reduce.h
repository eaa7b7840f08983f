/* The end of a folded CRC, private to roce/: compiled into each folding variant for its instruction set. No
 * header may be included from here. */

/* The register that 128 bits leave: they times x^32, in two steps to 64 bits, and by Barrett to 32. */
static inline uint32_t reduce(__m128i block)
{
    const __m128i end = _mm_loadu_si128((const void *)psc_crc_end);
    const __m128i barrett = _mm_set_epi64x(PSC_CRC_P33, PSC_CRC_MU);
    const __m128i low_32 = _mm_cvtsi32_si128(-1);

    __m128i high_half = _mm_slli_si128(_mm_srli_si128(block, 8), 4);
    block = _mm_xor_si128(_mm_clmulepi64_si128(block, end, 0x00), high_half);
    block = _mm_xor_si128(_mm_clmulepi64_si128(block, end, 0x10), block);
    block = _mm_srli_si128(block, 8);
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(block, low_32), barrett, 0x00);
    __m128i multiple = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), barrett, 0x10);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(block, multiple), 1);
}
