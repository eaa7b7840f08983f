/* sim/: the independent model's frames. Offsets of an untagged IPv4 frame: IP 14, UDP 34, BTH 42. */
#include "sim_model_frame.h"

#include <string.h>

#define IP        14u
#define UDP       34u
#define BTH       42u
#define BTH_BYTES 12u
#define CRC_BYTES 4u

/* Slicing by 4, reflected 04C11DB7. */
static uint32_t table[4][256];

__attribute__((constructor)) static void fill_table(void)
{
    for (uint32_t v = 0; v < 256; v++) {
        uint32_t crc = v;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
        table[0][v] = crc;
    }
    for (uint32_t v = 0; v < 256; v++)
        for (int k = 1; k < 4; k++)
            table[k][v] = table[0][table[k - 1][v] & 255] ^ (table[k - 1][v] >> 8);
}

static uint32_t crc_over(uint32_t crc, const uint8_t *at, uint32_t bytes)
{
    for (; bytes >= 4; bytes -= 4, at += 4) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc =
            table[3][crc & 255] ^ table[2][crc >> 8 & 255] ^ table[1][crc >> 16 & 255] ^ table[0][crc >> 24];
    }
    for (; bytes > 0; bytes--, at++)
        crc = table[0][(crc ^ *at) & 255] ^ (crc >> 8);
    return crc;
}

/* Over eight bytes of ones, then IP .. pad with TOS, TTL, both checksums and BTH byte 4 as ones. */
static uint32_t icrc(const uint8_t *frame, uint32_t end)
{
    uint8_t head[8 + BTH + BTH_BYTES - IP];
    uint8_t *ip = head + 8;

    memset(head, 0xff, 8);
    memcpy(ip, frame + IP, BTH + BTH_BYTES - IP);
    ip[1] = ip[8] = ip[10] = ip[11] = 0xff;
    ip[UDP - IP + 6] = ip[UDP - IP + 7] = 0xff;
    ip[BTH - IP + 4] = 0xff;
    return ~crc_over(crc_over(0xffffffffu, head, sizeof head), frame + BTH + BTH_BYTES,
                     end - BTH - BTH_BYTES);
}

static void put(uint8_t *at, uint64_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

static uint64_t get(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;

    for (uint32_t i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static uint32_t ip_sum(const uint8_t *ip)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < 20; i += 2)
        sum += (uint32_t)get(ip + i, 2);
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

static bool has_reth(uint8_t opcode)
{
    return opcode == MODEL_FIRST || opcode == MODEL_ONLY_IMM;
}
static bool has_imm(uint8_t opcode)
{
    return opcode == MODEL_LAST_IMM || opcode == MODEL_ONLY_IMM;
}

static uint8_t *put_extensions(uint8_t *at, const struct model_packet *packet)
{
    if (packet->opcode == MODEL_ACK) {
        put(at, packet->syndrome, 1);
        put(at + 1, packet->msn, 3);
        return at + 4;
    }
    if (has_reth(packet->opcode)) {
        put(at, packet->va, 8);
        put(at + 8, packet->rkey, 4);
        put(at + 12, packet->dma_len, 4);
        at += 16;
    }
    if (has_imm(packet->opcode)) {
        put(at, packet->imm, 4);
        at += 4;
    }
    return at;
}

uint32_t model_write_frame(const struct model_path *path, const struct model_packet *packet, uint8_t *out)
{
    uint32_t pad = (4 - packet->payload_bytes % 4) % 4;
    uint8_t *bth = out + BTH;

    memset(out, 0, BTH + BTH_BYTES);
    bth[0] = packet->opcode;
    bth[1] = (uint8_t)(path->mig_req << 6 | pad << 4);
    put(bth + 2, path->p_key, 2);
    put(bth + 5, path->peer_qpn, 3);
    bth[8] = (uint8_t)(packet->ack_req << 7);
    put(bth + 9, packet->psn, 3);
    uint8_t *at = put_extensions(bth + BTH_BYTES, packet);
    if (packet->payload_bytes > 0)
        memcpy(at, packet->payload, packet->payload_bytes);
    at += packet->payload_bytes;
    memset(at, 0, pad);
    at += pad;

    uint32_t end = (uint32_t)(at - out);
    memcpy(out, path->peer_mac, 6);
    memcpy(out + 6, path->mac, 6);
    put(out + 12, 0x0800, 2);
    out[IP] = 0x45;
    out[IP + 1] = 106;
    put(out + IP + 2, end + CRC_BYTES - IP, 2);
    out[IP + 6] = 0x40;
    out[IP + 8] = 64;
    out[IP + 9] = 17;
    memcpy(out + IP + 12, path->ip, 4);
    memcpy(out + IP + 16, path->peer_ip, 4);
    put(out + IP + 10, ~ip_sum(out + IP) & 0xffff, 2);
    put(out + UDP, path->udp_port, 2);
    put(out + UDP + 2, 4791, 2);
    put(out + UDP + 4, end + CRC_BYTES - UDP, 2);
    uint32_t crc = icrc(out, end);
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(crc >> 8 * i);
    return end + CRC_BYTES;
}

static uint32_t header_bytes(uint8_t opcode)
{
    switch (opcode) {
    case MODEL_FIRST:
        return 28;
    case MODEL_MIDDLE:
        return 12;
    case MODEL_LAST_IMM:
    case MODEL_ACK:
        return 16;
    case MODEL_ONLY_IMM:
        return 32;
    default:
        return 0;
    }
}

static bool envelope_ok(const struct model_path *path, const uint8_t *frame, uint32_t bytes)
{
    const uint8_t *ip = frame + IP;

    if (bytes < BTH + BTH_BYTES + CRC_BYTES || memcmp(frame, path->mac, 6) != 0 ||
        get(frame + 12, 2) != 0x0800)
        return false;
    uint32_t ip_bytes = (uint32_t)get(ip + 2, 2);
    return ip[0] == 0x45 && ip_sum(ip) == 0xffff && !(get(ip + 6, 2) & 0x3fff) && ip[9] == 17 &&
           memcmp(ip + 12, path->peer_ip, 4) == 0 && memcmp(ip + 16, path->ip, 4) == 0 &&
           ip_bytes <= bytes - IP && ip_bytes >= BTH - IP + BTH_BYTES + CRC_BYTES &&
           get(frame + UDP + 2, 2) == 4791 && get(frame + UDP + 4, 2) == ip_bytes - 20;
}

static void get_extensions(const uint8_t *at, struct model_packet *packet)
{
    if (packet->opcode == MODEL_ACK) {
        packet->syndrome = at[0];
        packet->msn = (uint32_t)get(at + 1, 3);
        return;
    }
    if (has_reth(packet->opcode)) {
        packet->va = get(at, 8);
        packet->rkey = (uint32_t)get(at + 8, 4);
        packet->dma_len = (uint32_t)get(at + 12, 4);
        at += 16;
    }
    if (has_imm(packet->opcode))
        packet->imm = (uint32_t)get(at, 4);
}

bool model_read_frame(const struct model_path *path, const uint8_t *frame, uint32_t bytes,
                      struct model_packet *packet)
{
    const uint8_t *bth = frame + BTH;

    if (!envelope_ok(path, frame, bytes))
        return false;
    uint32_t end = IP + (uint32_t)get(frame + IP + 2, 2) - CRC_BYTES;
    uint32_t header = header_bytes(bth[0]);
    uint32_t pad = bth[1] >> 4 & 3;
    if (header == 0 || (bth[1] & 15) != 0 || end < BTH + header + pad || (get(bth + 2, 2) & 0x7fff) != 0x7fff)
        return false;
    uint32_t crc = icrc(frame, end);
    for (int i = 0; i < 4; i++)
        if (frame[end + (uint32_t)i] != (uint8_t)(crc >> 8 * i))
            return false;
    *packet = (struct model_packet){.opcode = bth[0],
                                    .ack_req = bth[8] >> 7,
                                    .qpn = (uint32_t)get(bth + 5, 3),
                                    .psn = (uint32_t)get(bth + 9, 3),
                                    .payload = bth + header,
                                    .payload_bytes = end - BTH - header - pad};
    get_extensions(bth + BTH_BYTES, packet);
    return true;
}
