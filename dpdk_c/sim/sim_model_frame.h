/* sim/: frames as the independent model reads and writes them: by offset, from the specification, with a CRC
 * of its own. Nothing of roce/ is used, so an error there cannot hide by being made twice. */
#ifndef SIM_MODEL_FRAME_H
#define SIM_MODEL_FRAME_H

#include <stdbool.h>
#include <stdint.h>

/* What is constant of a connection. */
struct model_path {
    uint8_t mac[6], peer_mac[6];
    uint8_t ip[4], peer_ip[4];
    uint16_t udp_port;
    uint16_t p_key;
    uint32_t peer_qpn;
    bool mig_req;
};

struct model_packet {
    uint8_t opcode;
    bool ack_req;
    uint32_t qpn, psn;
    uint64_t va;
    uint32_t rkey, dma_len, imm;
    uint8_t syndrome;
    uint32_t msn;
    const uint8_t *payload;
    uint32_t payload_bytes;
};

enum { MODEL_FIRST = 6, MODEL_MIDDLE = 7, MODEL_LAST_IMM = 9, MODEL_ONLY_IMM = 11, MODEL_ACK = 17 };

uint32_t model_write_frame(const struct model_path *path, const struct model_packet *packet, uint8_t *out);
/* False: not a sound frame from this path's peer. */
bool model_read_frame(const struct model_path *path, const uint8_t *frame, uint32_t bytes,
                      struct model_packet *packet);

#endif
