/* The check of four messages in one, for roce/ and for arith/, which adds their payloads in the same turns:
 * compiled where VPCLMULQDQ and AVX-512 are the instruction set. Behind crc_fold512.h and crc_reduce.h; no
 * header may be included from here.
 *
 * The vectors of the sum (XOR) of the messages are folded, so there is one multiplication where there were
 * four. Each message is moved by a vector against the one before it: the sum's vector i is made of vectors i,
 * i - 1, i - 2 and i - 3 of messages a, b, c and d. Vector 0 of a message is its headers, behind zeros. */

#define CRC_TURN_VECTORS 4

struct crc_check {
    __m512i p0, p1, p2, p3;         /* the sum's last vectors, folded */
    __m512i b3, c2, c3, d1, d2, d3; /* of the turn before, what is still to be added */
};

static inline __attribute__((always_inline)) __m512i crc_headers(uint32_t seed,
                                                                 const struct psc_crc_message *message)
{
    const __mmask64 there = ~(__mmask64)0 >> (64 - message->header_bytes);
    __m512i headers = _mm512_or_si512(_mm512_maskz_loadu_epi8(there, message->headers),
                                      _mm512_maskz_loadu_epi8(there, message->mask));

    headers = _mm512_xor_si512(headers, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)seed)));
    return crc_turned(headers, message->header_bytes);
}

static inline __attribute__((always_inline)) struct crc_check
crc_check_begin(uint32_t seed, const struct psc_crc_message messages[static PSC_CRC_TOGETHER])
{
    const __m512i zero = _mm512_setzero_si512();

    return (struct crc_check){.p0 = zero,
                              .p1 = zero,
                              .p2 = zero,
                              .p3 = crc_headers(seed, &messages[0]),
                              .b3 = crc_headers(seed, &messages[1]),
                              .c2 = zero,
                              .c3 = crc_headers(seed, &messages[2]),
                              .d1 = zero,
                              .d2 = zero,
                              .d3 = crc_headers(seed, &messages[3])};
}

/* Four vectors of a payload: names, not an array, which gcc would keep in memory. */
struct crc_turn {
    __m512i v0, v1, v2, v3;
};

static inline __attribute__((always_inline)) struct crc_turn crc_load_turn(const uint8_t *from)
{
    return (struct crc_turn){_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64),
                             _mm512_loadu_si512(from + 128), _mm512_loadu_si512(from + 192)};
}

static inline __attribute__((always_inline)) void crc_check_turn(struct crc_check *check, struct crc_turn a,
                                                                 struct crc_turn b, struct crc_turn c,
                                                                 struct crc_turn d)
{
    const __m512i by = crc_moved(512 * CRC_TURN_VECTORS);

    check->p0 = crc_fold(check->p0, by, _mm512_xor_si512(xor_3(a.v0, check->b3, check->c2), check->d1));
    check->p1 = crc_fold(check->p1, by, _mm512_xor_si512(xor_3(a.v1, b.v0, check->c3), check->d2));
    check->p2 = crc_fold(check->p2, by, _mm512_xor_si512(xor_3(a.v2, b.v1, c.v0), check->d3));
    check->p3 = crc_fold(check->p3, by, _mm512_xor_si512(xor_3(a.v3, b.v2, c.v1), d.v0));
    check->b3 = b.v3;
    check->c2 = c.v2;
    check->c3 = c.v3;
    check->d1 = d.v1;
    check->d2 = d.v2;
    check->d3 = d.v3;
}

/* A register at the place where its message has ended. */
static inline __attribute__((always_inline)) __m512i crc_claimed(const struct psc_crc_message *message)
{
    return _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)message->claimed));
}

/* 0: every message leaves what it claims. */
static inline __attribute__((always_inline)) uint32_t
crc_check_left(const struct crc_check *check, const struct psc_crc_message messages[static PSC_CRC_TOGETHER])
{
    const __m512i by = crc_moved(512 * CRC_TURN_VECTORS);
    __m512i next = crc_fold(
        check->p0, by, _mm512_xor_si512(xor_3(check->b3, check->c2, check->d1), crc_claimed(&messages[0])));
    __m512i after = crc_fold(check->p1, by, xor_3(check->c3, check->d2, crc_claimed(&messages[1])));
    __m512i last = crc_fold(check->p2, by, _mm512_xor_si512(check->d3, crc_claimed(&messages[2])));

    last = crc_fold(check->p3, crc_moved(1536),
                    crc_fold(next, crc_moved(1024), crc_fold(after, crc_moved(512), last)));
    return crc_reduce(crc_join(last)) ^ messages[3].claimed;
}
