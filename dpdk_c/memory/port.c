/* memory/: a target on a kernel interface, by a packet socket: frames of a burst with one system call each
 * way. io/'s ports carry lanes; a target is none, and its subject is the QP layer. The only file here with a
 * clock and I/O. */
#include "psc_target.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BURST 64
#define RECEIVE_BUFFER_BYTES                                                                                 \
    (32 << 20) /* eight QPs' windows of 129 packets of 4 KiB, as the kernel counts                           \
                */

uint64_t psc_port_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int psc_port_open(const char *interface)
{
    const int receive_buffer_bytes = RECEIVE_BUFFER_BYTES, on = 1;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    int port = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (port < 0)
        return -errno;
    address.sll_ifindex = (int)if_nametoindex(interface);
    if (address.sll_ifindex == 0 ||
        setsockopt(port, SOL_SOCKET, SO_RCVBUFFORCE, &receive_buffer_bytes, sizeof receive_buffer_bytes) !=
            0 ||
        setsockopt(port, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
        bind(port, (const struct sockaddr *)&address, sizeof address) != 0) {
        int error = errno;
        close(port);
        return -error;
    }
    return port;
}

/* Returns how many frames came; negative: -errno. */
static int receive_burst(int port, struct psc_target *target)
{
    static uint8_t buffers[BURST][PSC_TARGET_FRAME_BYTES];
    struct mmsghdr messages[BURST] = {0};
    struct iovec pieces[BURST];

    for (int i = 0; i < BURST; i++) {
        pieces[i] = (struct iovec){.iov_base = buffers[i], .iov_len = sizeof buffers[i]};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    }
    int received = recvmmsg(port, messages, BURST, MSG_DONTWAIT, NULL);
    if (received < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    uint64_t now_ns = psc_port_now_ns();
    for (int i = 0; i < received; i++)
        psc_target_receive(target, buffers[i], messages[i].msg_len, now_ns);
    return received;
}

/* Returns how many frames went; negative: -errno. A frame that the interface does not take is lost, and RC
 * mends it. */
static int send_burst(int port, struct psc_target *target)
{
    struct psc_target_frame frames[BURST];
    struct mmsghdr messages[BURST] = {0};
    struct iovec pieces[BURST][3];
    uint64_t now_ns = psc_port_now_ns();
    unsigned count = 0;

    while (count < BURST && psc_target_emit(target, now_ns, &frames[count])) {
        struct psc_target_frame *frame = &frames[count];
        pieces[count][0] = (struct iovec){.iov_base = frame->header, .iov_len = frame->header_bytes};
        pieces[count][1] =
            (struct iovec){.iov_base = (void *)(uintptr_t)frame->payload, .iov_len = frame->payload_bytes};
        pieces[count][2] = (struct iovec){.iov_base = frame->trailer, .iov_len = frame->trailer_bytes};
        messages[count].msg_hdr = (struct msghdr){.msg_iov = pieces[count], .msg_iovlen = 3};
        count++;
    }
    for (unsigned sent = 0; sent < count;) {
        int taken = sendmmsg(port, messages + sent, count - sent, 0);
        if (taken < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EINTR)
            return -errno;
        if (taken < 0)
            break;
        sent += (unsigned)taken;
    }
    return (int)count;
}

int psc_port_turn(int port, struct psc_target *target, int wake_fd, int wait_ms)
{
    struct pollfd fds[] = {{.fd = port, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};

    int received = receive_burst(port, target);
    if (received < 0)
        return received;
    psc_target_expire(target, psc_port_now_ns());
    int sent = send_burst(port, target);
    if (sent < 0)
        return sent;
    if (received > 0 || sent > 0)
        return 0;
    if (poll(fds, 2, wait_ms) < 0 && errno != EINTR)
        return -errno;
    return (fds[1].revents & (POLLIN | POLLHUP)) != 0;
}
