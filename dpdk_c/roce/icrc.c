/* The invariant CRC: CRC-32 over 8 bytes of FF and a copy of the packet in which everything that a router may
 * change reads as ones. psc_crc32 is the one door to the CRC, so a faster kernel changes one function here.
 */
#include <assert.h>
#include <string.h>

#include "frame.h"

#define POLYNOMIAL 0xedb88320u /* 04C11DB7, reflected: bit 31 is the coefficient of x^0 */
#define X_TO_THE_0 0x80000000u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "slicing loads 8 bytes as two little-endian words");

/* Slicing-by-8 (Kounavis and Berry, 2005): slices[k][v] is the register v after k + 1 zero bytes. Written
 * once before main, by the function below; 8 KiB, so it stays in L1 beside a packet. */
static uint32_t slices[8][256];

__attribute__((constructor)) static void fill_slices(void)
{
    for (uint32_t v = 0; v < 256; v++) {
        uint32_t crc = v;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        slices[0][v] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t v = 0; v < 256; v++)
            slices[k][v] = slices[k - 1][v] >> 8 ^ slices[0][slices[k - 1][v] & 0xff];
}

uint32_t psc_crc32(uint32_t seed, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint32_t crc = seed;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= crc;
        crc = slices[7][low & 0xff] ^ slices[6][low >> 8 & 0xff] ^ slices[5][low >> 16 & 0xff] ^
              slices[4][low >> 24] ^ slices[3][high & 0xff] ^ slices[2][high >> 8 & 0xff] ^
              slices[1][high >> 16 & 0xff] ^ slices[0][high >> 24];
    }
    for (; bytes > 0; bytes--, at++)
        crc = crc >> 8 ^ slices[0][(crc ^ *at) & 0xff];
    return crc;
}

/* a * b modulo the polynomial, both reflected. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = X_TO_THE_0; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

/* A zero byte multiplies the register by x^8, so `bytes` of them multiply it by x^(8 * bytes): square and
 * multiply gives that factor, and linearity fills the table from its products with the 32 single bits. */
void psc_crc32_shift_init(struct psc_crc32_shift *shift, size_t bytes)
{
    uint32_t factor = X_TO_THE_0;
    for (uint32_t power = X_TO_THE_0 >> 8; bytes != 0; bytes >>= 1) {
        if (bytes & 1)
            factor = multiply(factor, power);
        power = multiply(power, power);
    }
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t *table = shift->table[k];
        table[0] = 0;
        for (uint32_t v = 1; v < 256; v++) {
            uint32_t lowest_bit = v & (0 - v);
            table[v] =
                v == lowest_bit ? multiply(factor, v << 8 * k) : table[v ^ lowest_bit] ^ table[lowest_bit];
        }
    }
}

uint32_t psc_crc32_combine(const struct psc_crc32_shift *shift, uint32_t a, uint32_t b)
{
    return shift->table[0][a & 0xff] ^ shift->table[1][a >> 8 & 0xff] ^ shift->table[2][a >> 16 & 0xff] ^
           shift->table[3][a >> 24] ^ b;
}

/* The headers in which a router may change something; with IPv6, the longer ones. */
#define MASKED_MAX_BYTES (sizeof(struct psc_ipv6) + sizeof(struct psc_udp) + sizeof(struct psc_bth))

/* Copies IP header, UDP header and BTH, what a router may change as ones. Returns their length. */
static uint32_t mask_headers(const uint8_t *ip_header, uint8_t masked[static MASKED_MAX_BYTES])
{
    bool v4 = ip_header[0] >> 4 == 4;
    uint32_t ip_bytes = v4 ? sizeof(struct psc_ipv4) : sizeof(struct psc_ipv6);
    uint32_t header_bytes = ip_bytes + (uint32_t)(sizeof(struct psc_udp) + sizeof(struct psc_bth));
    memcpy(masked, ip_header, header_bytes);
    if (v4) {
        struct psc_ipv4 *ip = (void *)masked;
        ip->tos = 0xff;
        ip->ttl = 0xff;
        ip->checksum = psc_to_be16(0xffff);
    } else {
        struct psc_ipv6 *ip = (void *)masked;
        ip->version_class_flow = psc_to_be32(0x6fffffff);
        ip->hop_limit = 0xff;
    }
    struct psc_udp *udp = (void *)(masked + ip_bytes);
    udp->checksum = psc_to_be16(0xffff);
    struct psc_bth *bth = (void *)(udp + 1);
    bth->congestion = 0xff;
    return header_bytes;
}

uint32_t psc_icrc(const uint8_t *ip_header, uint32_t bytes)
{
    uint8_t masked[MASKED_MAX_BYTES];
    uint32_t header_bytes = mask_headers(ip_header, masked);
    assert(bytes >= header_bytes);
    uint32_t crc = psc_crc32(PSC_ICRC_SEED, masked, header_bytes);
    return ~psc_crc32(crc, ip_header + header_bytes, bytes - header_bytes);
}

void psc_icrc_finish(uint32_t crc, uint8_t out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(~crc >> 8 * i);
}

bool psc_icrc_ok(const struct psc_packet *packet)
{
    uint8_t expected[PSC_ICRC_BYTES];
    psc_icrc_finish(~psc_icrc(packet->ip_header, packet->icrc_bytes), expected);
    return memcmp(expected, packet->ip_header + packet->icrc_bytes, sizeof expected) == 0;
}
