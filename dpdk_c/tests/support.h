/* What the C unit tests share: cmocka in its required order, hex, heap buffers of exactly one frame's size
 * (so that AddressSanitizer sees a read of one byte too many), and whole frames made by the builder. */
#ifndef PSC_TESTS_SUPPORT_H
#define PSC_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "psc_roce.h"

#define FRAME_MAX_BYTES 9000

/* Our side is 10.0.0.2 or 2001:db8::2 at 02:00:00:00:00:02, the peer 10.0.0.1 or 2001:db8::1 at ...:01. */
extern const struct psc_local local_v4, local_v6, local_v4_vlan100;
extern const struct psc_flow flow_v4, flow_v6; /* from the peer to us */

/* Hex digits, blanks ignored, to bytes; returns how many. */
uint32_t unhex(const char *hex, uint8_t *out);
/* A copy on the heap that ends where the frame ends. The caller frees it. */
uint8_t *exact_copy(const void *data, uint32_t bytes);
/* Room that ends at a page which nobody may touch: also a masked access beyond the end, which
 * AddressSanitizer does not see, is one that the CPU refuses. The test's for its whole life. */
uint8_t *wall_after(size_t room_bytes); /* the end of the room */
/* Headers, payload, pad and ICRC; returns the frame's length. */
uint32_t whole_frame(const struct psc_flow *flow, const struct psc_header *header, const uint8_t *payload,
                     uint32_t payload_bytes, uint8_t *out);
/* A message whose claim is right. `mask` is of 64 bytes. */
struct psc_crc_message right_message(const uint8_t *mask, const uint8_t *headers, uint32_t header_bytes,
                                     const uint8_t *payload, size_t payload_bytes);
/* RFC 1071, written for itself: the tests must not lean on the code that they test. */
void put_checksum(uint8_t *data, uint32_t bytes, uint8_t *field);
bool checksum_ok(const uint8_t *data, uint32_t bytes);
/* Whether an upper half of a vector register is in use, so that SSE code is slow until somebody clears it:
 * the CPU's own account (XINUSE). Cleared by leave_no_upper_halves. Not a test where upper_halves_are_told is
 * false: there is no AVX here, or the CPU gives no account. */
bool upper_halves_in_use(void);
void leave_no_upper_halves(void);
bool upper_halves_are_told(void);
/* Deterministic numbers (xorshift32); *state is not 0. */
uint32_t next_random(uint32_t *state);

#endif
