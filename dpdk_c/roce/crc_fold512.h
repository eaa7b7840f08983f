/* Vectors of four blocks, folded at once, for roce/ and for arith/, which folds sums as it makes them:
 * compiled where VPCLMULQDQ and AVX-512 are the instruction set. No header may be included from here. */

static inline __m512i xor_3(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

static inline __m512i crc_moved(uint32_t bits)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)psc_crc_fold_by(bits)));
}

/* What a vector comes to at the place where it meets the next one. */
static inline __m512i crc_fold(__m512i vector, __m512i by, __m512i next)
{
    return xor_3(_mm512_clmulepi64_epi128(vector, by, 0x00), _mm512_clmulepi64_epi128(vector, by, 0x11),
                 next);
}

/* To 128 bits: three blocks move onto the last one, each by its own distance. */
static inline __m128i crc_join(__m512i vector)
{
    const __m512i by = _mm512_loadu_si512((const void *)psc_crc_fold_by(384));
    __m512i last = _mm512_maskz_mov_epi64(0xc0, vector);
    __m512i blocks = crc_fold(vector, by, last);
    __m256i two = _mm256_xor_si256(_mm512_castsi512_si256(blocks), _mm512_extracti64x4_epi64(blocks, 1));

    return _mm_xor_si128(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}

/* Byte i of the result is byte (i + bytes) % 64 of the vector. */
static inline __m512i crc_turned(__m512i vector, size_t bytes)
{
    const __m512i counting =
        _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43,
                        42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22,
                        21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

    return _mm512_permutexvar_epi8(_mm512_add_epi8(counting, _mm512_set1_epi8((char)bytes)), vector);
}
