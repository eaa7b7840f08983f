/*
 * A bump in the wire: carries every frame between two interfaces and harms RoCE frames as it is told. It
 * stands between the bench's switch and the appliance, knows ranks by their address 10.77.0.(10 + rank), and
 * takes orders on a unix socket (see __init__.py): rates of loss, duplication and reordering per direction,
 * black holes, and a trap that freezes one rank's direction at an exact packet. It is seeded and counts what
 * it did.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    UP,
    DOWN,
    DIRECTIONS, /* to the appliance, to the workers */
    MAX_FRAME_BYTES = 9216,
    MAX_HELD = 8192, /* frames set aside at once; one more ends the injector: nothing is lost in secret */
    SOCKET_BYTES = 32 << 20, /* one window of every rank, and then some */
    BURST = 64,
    MAX_LAG_FRAMES = 8, /* a reordered frame lets so many others pass at most */
    MAX_LAG_US = 20000, /* and leaves after so long at the latest, should none come */
    MAX_ORDER_BYTES = 128,
    FIRST_RANK_OCTET = 10,
    ROCE_UDP_PORT = 4791,
    BTH_OFFSET = ETH_HLEN + 20 + 8,
    MILLION = 1000000,
};

struct frame {
    struct frame *next;
    uint32_t frames_to_pass; /* of its direction */
    uint64_t due_us;         /* but it leaves now at the latest */
    size_t length_bytes;
    uint8_t bytes[];
};

struct list {
    struct frame *head;
    struct frame **tail;
};

struct rates {
    uint32_t loss, duplicate, reorder; /* per million */
};

struct direction {
    int in, out;
    struct rates rates;
    uint64_t hole; /* bit r: nothing of rank r passes */
    struct list late;
    struct list frozen;
    uint64_t passed, lost, duplicated, reordered, swallowed;
};

struct trap {
    bool set, hit, seen;
    int direction, rank, opcode, freezes;
    uint32_t count;    /* of matching frames still to come */
    uint32_t last_psn; /* of the last one, if one was seen: the same again is a retransmission and does not
                          count */
};

static struct direction directions[DIRECTIONS];
static struct trap trap;
static uint64_t random_state = 1;
static size_t held;

static void die(const char *what)
{
    fprintf(stderr, "injector: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * MILLION + (uint64_t)now.tv_nsec / 1000;
}

/* splitmix64. */
static uint64_t draw(void)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static bool happens(uint32_t per_million)
{
    return per_million != 0 && draw() % MILLION < per_million;
}

/* ---- Frames ---- */

static void empty(struct list *list)
{
    list->head = NULL;
    list->tail = &list->head;
}

static void send_now(const struct direction *way, const uint8_t *bytes, size_t length_bytes)
{
    if (send(way->out, bytes, length_bytes, 0) < 0 && errno != ENETDOWN && errno != ENXIO)
        die("send");
}

static void set_aside(struct list *list, const uint8_t *bytes, size_t length_bytes)
{
    struct frame *frame = malloc(sizeof *frame + length_bytes);
    if (frame == NULL || ++held > MAX_HELD)
        die("too many frames are held");
    frame->next = NULL;
    frame->frames_to_pass = 1 + (uint32_t)(draw() % MAX_LAG_FRAMES);
    frame->due_us = now_us() + MAX_LAG_US;
    frame->length_bytes = length_bytes;
    memcpy(frame->bytes, bytes, length_bytes);
    *list->tail = frame;
    list->tail = &frame->next;
}

static void let_go(struct direction *way, struct frame *frame, bool keep)
{
    if (keep)
        send_now(way, frame->bytes, frame->length_bytes);
    free(frame);
    held--;
}

/* Late frames whose time has come; `passed` more frames have overtaken them. */
static void send_late(struct direction *way, uint32_t passed)
{
    struct list still;
    uint64_t now = now_us();
    struct frame *frame = way->late.head;
    empty(&still);
    while (frame != NULL) {
        struct frame *next = frame->next;
        frame->frames_to_pass -= passed < frame->frames_to_pass ? passed : frame->frames_to_pass;
        if (frame->frames_to_pass == 0 || frame->due_us <= now) {
            let_go(way, frame, true);
        } else {
            frame->next = NULL;
            *still.tail = frame;
            still.tail = &frame->next;
        }
        frame = next;
    }
    way->late = still;
    if (still.head == NULL)
        empty(&way->late);
}

static void pass(struct direction *way, const uint8_t *bytes, size_t length_bytes)
{
    way->passed++;
    if (happens(way->rates.loss)) {
        way->lost++;
        return;
    }
    if (happens(way->rates.duplicate)) {
        way->duplicated++;
        set_aside(&way->late, bytes, length_bytes);
    }
    if (happens(way->rates.reorder)) {
        way->reordered++;
        set_aside(&way->late, bytes, length_bytes);
        return;
    }
    send_now(way, bytes, length_bytes);
    send_late(way, 1);
}

/* ---- What a frame is ---- */

/* The rank that a RoCE v2 frame comes from or goes to; -1: not one of ours to harm. */
static int rank_of(const uint8_t *bytes, size_t length_bytes, int direction)
{
    if (length_bytes < BTH_OFFSET + 12 || bytes[12] != 0x08 || bytes[13] != 0x00 || bytes[14] != 0x45 ||
        bytes[23] != 17)
        return -1;
    if ((bytes[36] << 8 | bytes[37]) != ROCE_UDP_PORT)
        return -1;
    int rank = bytes[direction == UP ? 29 : 33] - FIRST_RANK_OCTET;
    return rank >= 0 && rank < 64 ? rank : -1;
}

/* Whether the trap closes behind this frame, which itself passes. */
static bool springs(int direction, int rank, const uint8_t *bytes)
{
    const uint8_t *bth = bytes + BTH_OFFSET;
    if (!trap.set || trap.hit || trap.direction != direction || trap.rank != rank || trap.opcode != bth[0])
        return false;
    uint32_t psn = (uint32_t)(bth[9] << 16 | bth[10] << 8 | bth[11]);
    bool repeated = trap.seen && ((psn - trap.last_psn - 1) & 0xFFFFFF) >= 0x800000;
    if (repeated)
        return false;
    trap.seen = true;
    trap.last_psn = psn;
    return --trap.count == 0;
}

static void judge(int direction, const uint8_t *bytes, size_t length_bytes)
{
    struct direction *way = &directions[direction];
    int rank = rank_of(bytes, length_bytes, direction);
    if (rank < 0) {
        send_now(way, bytes, length_bytes);
        return;
    }
    if (way->hole >> rank & 1) {
        way->swallowed++;
        return;
    }
    if (trap.hit && trap.freezes == direction && trap.rank == rank) {
        set_aside(&way->frozen, bytes, length_bytes);
        return;
    }
    bool closes = springs(direction, rank, bytes);
    pass(way, bytes, length_bytes);
    trap.hit = trap.hit || closes;
}

static void carry(int direction)
{
    static uint8_t buffers[BURST][MAX_FRAME_BYTES];
    static struct iovec parts[BURST];
    static struct mmsghdr messages[BURST];
    for (int i = 0; i < BURST; i++) {
        parts[i] = (struct iovec){.iov_base = buffers[i], .iov_len = MAX_FRAME_BYTES};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    int count = recvmmsg(directions[direction].in, messages, BURST, MSG_DONTWAIT, NULL);
    if (count < 0 && errno != EAGAIN && errno != ENETDOWN)
        die("receive");
    for (int i = 0; i < count; i++)
        judge(direction, buffers[i], messages[i].msg_len);
}

/* ---- Orders ---- */

/* Frames that the receiving socket had no room for: lost by us, and not on purpose. */
static unsigned overruns(void)
{
    static unsigned total;
    for (int i = 0; i < DIRECTIONS; i++) {
        struct tpacket_stats stats = {0};
        socklen_t length = sizeof stats;
        if (getsockopt(directions[i].in, SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0)
            total += stats.tp_drops;
    }
    return total;
}

static void thaw(bool keep)
{
    struct direction *way = &directions[trap.freezes];
    struct frame *frame = way->frozen.head;
    empty(&way->frozen);
    trap = (struct trap){0};
    while (frame != NULL) {
        struct frame *next = frame->next;
        let_go(way, frame, keep);
        frame = next;
    }
}

static bool set_trap(const struct trap *wanted)
{
    bool known = wanted->direction >= 0 && wanted->direction < DIRECTIONS && wanted->freezes >= 0 &&
                 wanted->freezes < DIRECTIONS && wanted->count > 0;
    if (known) {
        trap = *wanted;
        trap.set = true;
    }
    return known;
}

static bool obey(const char *order)
{
    int direction, keep;
    struct rates rates;
    struct trap wanted = {0};
    unsigned long long number;
    if (sscanf(order, "rates %d %u %u %u", &direction, &rates.loss, &rates.duplicate, &rates.reorder) == 4 &&
        direction >= 0 && direction < DIRECTIONS)
        directions[direction].rates = rates;
    else if (sscanf(order, "hole %d %llu", &direction, &number) == 2 && direction >= 0 &&
             direction < DIRECTIONS)
        directions[direction].hole = number;
    else if (sscanf(order, "seed %llu", &number) == 1)
        random_state = number;
    else if (sscanf(order, "trap %d %d %d %u %d", &wanted.direction, &wanted.rank, &wanted.opcode,
                    &wanted.count, &wanted.freezes) == 5)
        return set_trap(&wanted);
    else if (sscanf(order, "thaw %d", &keep) == 1)
        thaw(keep != 0);
    else
        return strcmp(order, "look") == 0;
    return true;
}

static void answer(int client)
{
    char order[MAX_ORDER_BYTES], reply[512];
    ssize_t length = recv(client, order, sizeof order - 1, 0);
    if (length <= 0)
        exit(0); /* whoever gave the orders is gone */
    order[length] = '\0';
    if (!obey(order)) {
        snprintf(reply, sizeof reply, "error %s", order);
    } else {
        const struct direction *u = &directions[UP], *d = &directions[DOWN];
        snprintf(
            reply, sizeof reply,
            "passed=%llu lost=%llu duplicated=%llu reordered=%llu swallowed=%llu held=%zu hit=%d overruns=%u",
            (unsigned long long)(u->passed + d->passed), (unsigned long long)(u->lost + d->lost),
            (unsigned long long)(u->duplicated + d->duplicated),
            (unsigned long long)(u->reordered + d->reordered),
            (unsigned long long)(u->swallowed + d->swallowed), held, trap.hit, overruns());
    }
    if (send(client, reply, strlen(reply), 0) < 0)
        die("reply");
}

/* ---- Sockets ---- */

static int open_port(const char *name)
{
    int on = 1, bytes = SOCKET_BYTES;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(name)};
    struct packet_mreq promiscuous = {.mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    int port = socket(AF_PACKET, SOCK_RAW, 0); /* protocol 0: nothing comes in before it is bound */
    if (port < 0 || setsockopt(port, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0 ||
        setsockopt(port, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) < 0 ||
        setsockopt(port, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) < 0 ||
        setsockopt(port, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on) < 0 ||
        setsockopt(port, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) < 0)
        die(name);
    address.sll_protocol = htons(ETH_P_ALL);
    if (bind(port, (struct sockaddr *)&address, sizeof address) < 0)
        die(name);
    return port;
}

static int accept_orders(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        die("the socket's path is too long");
    strcpy(address.sun_path, path);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(listener, 1) < 0)
        die(path);
    int client = accept(listener, NULL, NULL);
    if (client < 0)
        die(path);
    close(listener);
    return client;
}

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: injector SWITCH_INTERFACE APPLIANCE_INTERFACE ORDERS_SOCKET\n");
        return 2;
    }
    int to_switch = open_port(arguments[1]), to_appliance = open_port(arguments[2]);
    directions[UP].in = directions[DOWN].out = to_switch;
    directions[DOWN].in = directions[UP].out = to_appliance;
    for (int i = 0; i < DIRECTIONS; i++) {
        empty(&directions[i].late);
        empty(&directions[i].frozen);
    }
    struct pollfd polled[] = {{.fd = to_switch, .events = POLLIN},
                              {.fd = to_appliance, .events = POLLIN},
                              {.fd = accept_orders(arguments[3]), .events = POLLIN}};
    for (;;) {
        bool late = directions[UP].late.head != NULL || directions[DOWN].late.head != NULL;
        if (poll(polled, 3, late ? MAX_LAG_US / 1000 : -1) < 0 && errno != EINTR)
            die("poll");
        if (polled[2].revents != 0)
            answer(polled[2].fd);
        for (int i = 0; i < DIRECTIONS; i++) {
            if (polled[i].revents != 0)
                carry(i);
            send_late(&directions[i], 0);
        }
    }
}
