/* roce/: bytes <-> parsed packet. Frames in, structs out, and the way back; opcode rows and the ICRC.
 * No state, no clock, no DPDK: every function here is pure and may be called from anywhere.
 * Steps of the story: "parsed" and "one header per worker". */
#ifndef PSC_ROCE_H
#define PSC_ROCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "psc_stats.h"

/* Big-endian integers are structs of their own, so a missing swap does not compile. */
struct psc_be16 {
    uint8_t b[2];
};
struct psc_be24 {
    uint8_t b[3];
};
struct psc_be32 {
    uint8_t b[4];
};
struct psc_be64 {
    uint8_t b[8];
};

/* An IP address; IPv4 is held as ::ffff:a.b.c.d, so that IPv6 needs no second type. */
struct psc_ip {
    uint8_t b[16];
};
struct psc_mac {
    uint8_t b[6];
};

#define PSC_ROCE_UDP_PORT 4791
#define PSC_QPN_MASK      0xffffffu
#define PSC_PSN_MASK      0xffffffu

/* The opcodes that we execute or send; BTH byte 0. */
enum psc_opcode {
    PSC_RC_WRITE_FIRST = 0x06,
    PSC_RC_WRITE_MIDDLE = 0x07,
    PSC_RC_WRITE_LAST = 0x08,
    PSC_RC_WRITE_LAST_IMM = 0x09,
    PSC_RC_WRITE_ONLY = 0x0a,
    PSC_RC_WRITE_ONLY_IMM = 0x0b,
    PSC_RC_ACK = 0x11,
    PSC_CNP = 0x81,
};

/* What an opcode is, one row per opcode. A row exists for every opcode that IBTA defines for RC (SEND, READ,
 * ATOMIC too: the responder must answer them with NAK 61, so the parser must know their header lengths). */
enum psc_opcode_flag {
    PSC_OPF_REQUEST = 1 << 0,
    PSC_OPF_RESPONSE = 1 << 1,
    PSC_OPF_WRITE = 1 << 2,
    PSC_OPF_FIRST = 1 << 3, /* begins a message: FIRST, ONLY */
    PSC_OPF_LAST = 1 << 4,  /* ends a message: LAST, ONLY */
    PSC_OPF_RETH = 1 << 5,
    PSC_OPF_IMM = 1 << 6,
    PSC_OPF_AETH = 1 << 7,
    PSC_OPF_PAYLOAD = 1 << 8, /* may carry payload */
    PSC_OPF_CNP = 1 << 9,
};
struct psc_opcode_row {
    uint16_t flags;       /* enum psc_opcode_flag; 0: no such opcode */
    uint8_t header_bytes; /* from BTH to payload */
};
extern const struct psc_opcode_row psc_opcode_rows[256];

/* AETH syndromes that we send or understand. */
enum psc_syndrome {
    PSC_SYNDROME_ACK = 0x1f, /* no credits advertised */
    PSC_SYNDROME_NAK_SEQUENCE = 0x60,
    PSC_SYNDROME_NAK_INVALID = 0x61,
    PSC_SYNDROME_NAK_ACCESS = 0x62,
    PSC_SYNDROME_NAK_OPERATION = 0x63,
};

/* The lane's own addresses; filled once by the control core. */
struct psc_local {
    struct psc_mac mac;
    struct psc_ip ip;
    uint16_t vlan; /* 0: untagged or VID 0 only */
};

/* A parsed frame. Pointers point into the frame. Host byte order. Only the fields that `row->flags` names are
 * set. */
struct psc_packet {
    const struct psc_opcode_row *row;
    const uint8_t *ip_header; /* where the ICRC begins */
    const uint8_t *payload;
    uint32_t icrc_bytes;    /* from the IP header to the last pad byte; the ICRC's four bytes follow */
    uint32_t payload_bytes; /* without pad */
    uint32_t dest_qpn;
    uint32_t psn;
    uint16_t p_key;
    uint8_t opcode;
    bool ack_req;
    bool congestion_experienced; /* ECN CE in the IP header */
    bool icrc_sound;             /* psc_icrc_check has found it so; false: not known */
    uint8_t syndrome;            /* AETH */
    uint32_t imm;                /* as a number: the first byte on the wire is the most significant */
    uint64_t va;                 /* RETH */
    uint32_t rkey;               /* RETH */
    uint32_t dma_len;            /* RETH */
    uint32_t msn;                /* AETH */
};

enum psc_frame_kind {
    PSC_FRAME_ROCE = 0,
    PSC_FRAME_NEIGHBOUR = 1, /* ARP or neighbour discovery */
    PSC_FRAME_PING = 2,      /* ICMP or ICMPv6 echo request */
    PSC_FRAME_DROP = 3,
};

/* Parse one contiguous Ethernet frame: steps 1 to 5 of the receive order. QP, peer, P_Key and ICRC are the
 * caller's, in that order. Returns ROCE (packet filled), NEIGHBOUR or PING (for psc_host_answer),
 * or DROP with *why. Never reads past `bytes`; lengths come from IP and UDP, never from the frame. */
enum psc_frame_kind psc_parse(const uint8_t *frame, uint32_t bytes, const struct psc_local *local,
                              struct psc_packet *packet, enum psc_drop *why);
/* Its IP source is `peer`. */
bool psc_packet_is_from(const struct psc_packet *packet, const struct psc_ip *peer);

/* ---- ICRC: reflected CRC-32 over 8 bytes of FF and the masked copy of IP header .. last pad byte. ---- */

/* CRC register (no final inversion) over `bytes`, continued from `seed`. */
uint32_t psc_crc32(uint32_t seed, const void *data, size_t bytes);
/* Which variant computes it: "slicing", "pclmul", "vpclmul" or "vpclmul_each", which checks no packets
 * together; the best that this CPU runs, or what PASCALINE_CRC names when the library is loaded. */
const char *psc_crc_variant(void);
/* Another one, for tests and measurements, before any lane runs. False if there is none of that name or this
 * CPU does not run it: nothing has changed then. */
bool psc_crc_choose(const char *name);
/* What PASCALINE_CRC named in vain, or NULL. */
const char *psc_crc_refused(void);
#define PSC_ICRC_SEED 0xdebb20e3u /* the register after the 8 bytes of FF */

/* Register after `a` (a register over some headers) and then `bytes` of data whose CRC register, seeded with
 * 0, is `b`: the payload's CRC is computed once and combined with each worker's header CRC. The operator for
 * one length is a 32x32 bit matrix; build it once per length with psc_crc32_shift_init. */
struct psc_crc32_shift {
    uint32_t table[4][256]; /* one look-up per byte of the register */
};
void psc_crc32_shift_init(struct psc_crc32_shift *shift, size_t bytes);
uint32_t psc_crc32_combine(const struct psc_crc32_shift *shift, uint32_t a, uint32_t b);

/* ICRC of a frame from its IP header on, as the number whose bytes go to the wire least significant first. */
uint32_t psc_icrc(const uint8_t *ip_header, uint32_t bytes);
bool psc_icrc_ok(const struct psc_packet *packet);
/* What the ICRC covers of a packet, and what the packet says that it comes to. */
struct psc_crc_message {
    const uint8_t *mask, *headers; /* of the headers, these bits read as ones */
    uint32_t header_bytes;         /* 4 to 64 */
    uint32_t claimed;              /* the register */
    const uint8_t *payload;        /* right behind the headers */
};
struct psc_crc_message psc_icrc_message(const struct psc_packet *packet);

/* Whether four packets are right, in the time of little more than one: psc_icrc_ok then knows. Says nothing
 * if one is wrong: psc_icrc_ok will look at each. What it may overlook that psc_icrc_ok would not: two wrong
 * packets of one call whose errors are the same, moved by 64 bytes for each place between them, modulo the
 * polynomial. */
#define PSC_CRC_TOGETHER 4
void psc_icrc_check(struct psc_packet *const packets[PSC_CRC_TOGETHER]);
/* What such a check leaves (psc_crc_message's claims, in arith/ too) says. */
void psc_icrc_checked(struct psc_packet *const packets[PSC_CRC_TOGETHER], uint32_t left);
/* Packets with payloads of one length can be checked together if one of them can: whole turns of 256 bytes,
 * behind headers of 64 bytes at most, on a CPU that does it. */
#define PSC_CRC_TURN_BYTES 256
bool psc_icrc_together(const struct psc_packet *packet);
/* What the ICRC costs, a benchmark finds out by a lane that neither checks nor makes it. */
#ifdef PSC_BENCH_NO_ICRC
#define PSC_ICRC_IS_MADE false
#else
#define PSC_ICRC_IS_MADE true
#endif

/* ---- Building. ---- */

#define PSC_HEADER_MAX                                                                                       \
    128 /* Ethernet 14 + 802.1Q 4 + IPv6 40 + UDP 8 + BTH 12 + RETH 16 + ImmDt 4, rounded up */

/* Everything about one QP's frames that does not change from packet to packet. */
struct psc_flow {
    struct psc_mac src_mac, dst_mac;
    struct psc_ip src, dst;
    uint16_t vlan;     /* 0: no tag */
    uint16_t udp_port; /* source port, 0xC000..0xFFFF */
    uint8_t dscp;      /* sent with ECT(0) */
    uint32_t dest_qpn;
};

/* What changes. Fields that the opcode's row does not carry are ignored. */
struct psc_header {
    uint8_t opcode;
    bool ack_req;
    uint32_t psn;
    uint64_t va;
    uint32_t rkey;
    uint32_t dma_len;
    uint32_t imm;
    uint8_t syndrome;
    uint32_t msn;
};

/* Write all headers of a packet with `payload_bytes` of payload to out[PSC_HEADER_MAX]; returns their length.
 * *crc is the register over the masked headers: finish it with psc_icrc_finish after the payload's CRC. */
uint32_t psc_build(const struct psc_flow *flow, const struct psc_header *header, uint32_t payload_bytes,
                   uint8_t *out, uint32_t *crc);
/* Headers of a WRITE MIDDLE, all but PSN and AckReq: most packets of a stream are such, and all of them carry
 * `payload_bytes`. */
struct psc_template {
    uint32_t header_bytes; /* 0: not made */
    uint32_t crc;          /* register over the headers, PSN 0 and no AckReq, moved past the payload */
    uint8_t header[PSC_HEADER_MAX];
};
/* `past_payload`: of payload_bytes. */
void psc_template_init(struct psc_template *made, const struct psc_flow *flow, uint32_t payload_bytes,
                       const struct psc_crc32_shift *past_payload);
/* What psc_build would write, and the register after headers and payload, whose own (seeded with 0) is
 * payload_crc. `past_psn`: of the PSN's word and the payload, PSC_PSN_WORD_BYTES + payload_bytes. */
#define PSC_PSN_WORD_BYTES 4
uint32_t psc_build_middle(const struct psc_template *made, uint32_t psn, bool ack_req,
                          const struct psc_crc32_shift *past_psn, uint32_t payload_crc, uint8_t *out,
                          uint32_t *crc);
/* The four wire bytes of the ICRC for a register that has seen headers, payload and pad. */
void psc_icrc_finish(uint32_t crc, uint8_t out[4]);

/* ---- What a host answers besides RoCE. ---- */

#define PSC_HOST_FRAME_MAX                                                                                   \
    96 /* of what is asked or answered, but for a ping's answer: as long as the ping                         \
        */

/* Answer an ARP request or a neighbour solicitation for, or an echo request to, our address. Returns the
 * reply's length, 0: no answer due. out holds at least `bytes` bytes, at least PSC_HOST_FRAME_MAX. */
uint32_t psc_host_answer(const uint8_t *frame, uint32_t bytes, const struct psc_local *local, uint8_t *out);
/* Asks for the MAC of `target`: an ARP request, or a neighbour solicitation. Returns its length; 0: the
 * target is not of our address's family. out holds at least PSC_HOST_FRAME_MAX bytes. */
uint32_t psc_neighbour_request(const struct psc_local *local, const struct psc_ip *target, uint8_t *out);
/* Who says in this frame that it has which MAC: sender of an ARP packet or of a solicitation for our address,
 * or target of an advertisement to us. False if the frame says no such thing, or is unsound. */
bool psc_neighbour_heard(const uint8_t *frame, uint32_t bytes, const struct psc_local *local,
                         struct psc_ip *ip, struct psc_mac *mac);

bool psc_ip_is_v4(const struct psc_ip *ip);
bool psc_ip_equal(const struct psc_ip *a, const struct psc_ip *b);

/* For which lane a frame is, without judging it. */
enum psc_peek_kind {
    PSC_PEEK_OTHER,     /* a ping, or nothing that we know */
    PSC_PEEK_NEIGHBOUR, /* ARP or neighbour discovery: every lane learns from it */
    PSC_PEEK_ROCE,      /* *dest_qpn says whose it is */
};
/* So many bytes of a frame suffice: Ethernet, a VLAN tag, IPv6, UDP, BTH. */
#define PSC_PEEK_BYTES 78
enum psc_peek_kind psc_peek(const uint8_t *frame, uint32_t bytes, uint32_t *dest_qpn);

#endif
