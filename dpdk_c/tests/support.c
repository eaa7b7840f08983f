/* What the C unit tests share; see support.h. */
#include "support.h"

#include <cpuid.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define OUR_MAC                                                                                              \
    {                                                                                                        \
        {                                                                                                    \
            0x02, 0, 0, 0, 0, 0x02                                                                           \
        }                                                                                                    \
    }
#define PEER_MAC                                                                                             \
    {                                                                                                        \
        {                                                                                                    \
            0x02, 0, 0, 0, 0, 0x01                                                                           \
        }                                                                                                    \
    }
#define V4(last)                                                                                             \
    {                                                                                                        \
        {                                                                                                    \
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last                                         \
        }                                                                                                    \
    }
#define V6(last)                                                                                             \
    {                                                                                                        \
        {                                                                                                    \
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last                                    \
        }                                                                                                    \
    }

const struct psc_local local_v4 = {.mac = OUR_MAC, .ip = V4(2)};
const struct psc_local local_v4_vlan100 = {.mac = OUR_MAC, .ip = V4(2), .vlan = 100};
const struct psc_local local_v6 = {.mac = OUR_MAC, .ip = V6(2)};
const struct psc_flow flow_v4 = {.src_mac = PEER_MAC,
                                 .dst_mac = OUR_MAC,
                                 .src = V4(1),
                                 .dst = V4(2),
                                 .udp_port = 0xc123,
                                 .dscp = 26,
                                 .dest_qpn = 0x000123};
const struct psc_flow flow_v6 = {.src_mac = PEER_MAC,
                                 .dst_mac = OUR_MAC,
                                 .src = V6(1),
                                 .dst = V6(2),
                                 .udp_port = 0xc123,
                                 .dscp = 26,
                                 .dest_qpn = 0x000123};

uint32_t unhex(const char *hex, uint8_t *out)
{
    uint32_t bytes = 0;
    while (*hex != '\0') {
        if (isspace((unsigned char)*hex)) {
            hex++;
            continue;
        }
        char digits[3] = {hex[0], hex[1], '\0'};
        assert_true(isxdigit((unsigned char)hex[0]) && isxdigit((unsigned char)hex[1]));
        out[bytes++] = (uint8_t)strtoul(digits, NULL, 16);
        hex += 2;
    }
    return bytes;
}

uint8_t *exact_copy(const void *data, uint32_t bytes)
{
    uint8_t *copy = malloc(bytes);
    assert_true(copy != NULL || bytes == 0);
    if (bytes > 0)
        memcpy(copy, data, bytes);
    return copy;
}

uint8_t *wall_after(size_t room_bytes)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    size_t pages = (room_bytes + page_bytes - 1) / page_bytes;
    uint8_t *room =
        mmap(NULL, (pages + 1) * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(room != MAP_FAILED);
    assert_int_equal(mprotect(room + pages * page_bytes, page_bytes, PROT_NONE), 0);
    return room + pages * page_bytes;
}

struct psc_crc_message right_message(const uint8_t *mask, const uint8_t *headers, uint32_t header_bytes,
                                     const uint8_t *payload, size_t payload_bytes)
{
    uint8_t masked[64];

    for (uint32_t i = 0; i < header_bytes; i++)
        masked[i] = headers[i] | mask[i];
    uint32_t claimed = psc_crc32(psc_crc32(PSC_ICRC_SEED, masked, header_bytes), payload, payload_bytes);
    return (struct psc_crc_message){mask, headers, header_bytes, claimed, payload};
}

uint32_t whole_frame(const struct psc_flow *flow, const struct psc_header *header, const uint8_t *payload,
                     uint32_t payload_bytes, uint8_t *out)
{
    uint32_t crc;
    uint32_t bytes = psc_build(flow, header, payload_bytes, out, &crc);
    uint32_t padded_bytes = (payload_bytes + 3) / 4 * 4;
    memset(out + bytes, 0, padded_bytes);
    if (payload_bytes > 0)
        memcpy(out + bytes, payload, payload_bytes);
    psc_icrc_finish(psc_crc32(crc, out + bytes, padded_bytes), out + bytes + padded_bytes);
    return bytes + padded_bytes + 4;
}

bool checksum_ok(const uint8_t *data, uint32_t bytes)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < bytes; i++)
        sum += i % 2 == 0 ? (uint32_t)data[i] * 256 : data[i];
    return sum % 65535 == 0 && sum != 0;
}

void put_checksum(uint8_t *data, uint32_t bytes, uint8_t *field)
{
    uint32_t sum = 0;
    field[0] = field[1] = 0;
    for (uint32_t i = 0; i < bytes; i++)
        sum += i % 2 == 0 ? (uint32_t)data[i] * 256 : data[i];
    sum = 0xffff - sum % 0xffff;
    field[0] = (uint8_t)(sum >> 8);
    field[1] = (uint8_t)sum;
}

uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* XGETBV of 1 (Intel SDM, volume 1, 13.6): bit 2 stands for the upper halves of YMM. By its bytes, since not
 * every assembler's default takes its name. */
bool upper_halves_in_use(void)
{
    uint32_t eax, edx;

    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(eax), "=d"(edx) : "c"(1));
    return (eax & 1u << 2) != 0;
}

void leave_no_upper_halves(void)
{
    __asm__ volatile("vzeroupper" ::: "memory");
}

bool upper_halves_are_told(void)
{
    uint32_t eax, ebx, ecx, edx;

    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx") || !__get_cpuid_count(0xd, 1, &eax, &ebx, &ecx, &edx) ||
        !(eax & 1u << 2))
        return false;
    leave_no_upper_halves();
    bool clean = !upper_halves_in_use();
    __asm__ volatile("vpcmpeqb %%xmm0, %%xmm0, %%xmm0\n\tvinsertf128 $1, %%xmm0, %%ymm0, %%ymm0" ::: "xmm0");
    bool dirty = upper_halves_in_use();
    leave_no_upper_halves();
    return clean && dirty;
}
