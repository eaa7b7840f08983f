/* What the dispatcher's turn costs: frames in the port's ring, sorted to lanes' inboxes. Once on a core that
 * has all of it in its caches; then at full speed, with the other end of every ring on the other core, which
 * takes the frames out of the inboxes as lanes do and puts them back into the port's ring as a NIC does. */
#include <rte_cycles.h>
#include <rte_launch.h>
#include <stdio.h>

#include "lanes_bench.h"

#define LANES           8u
#define FRAMES          512u                   /* on their way round */
#define TAKEN           (PSC_IO_BURST / LANES) /* of an inbox at once: so bursts of the port are for all lanes */
#define INBOX_ENTRIES   1024u
#define MAX_REPETITIONS 200u
#define QPN_LOW_AT      49u /* Ethernet, IPv4, UDP, and the BTH's first eight bytes but one */
#define PSN_AT          50u

/* A dispatcher and what surrounds it. */
struct circle {
    struct psc_io_lane lanes[LANES];
    struct psc_io_port port;
    struct psc_io_dispatcher dispatcher;
    struct rte_ring *to_port;
    bool rewritten; /* the other core writes headers, as a NIC does */
    uint32_t stop;
};

/* One repetition. What turns cost is told by those that found a full burst: the port had not run dry. */
struct turns {
    uint64_t full_ticks, full, frames;
};

static void circle_make(struct circle *circle, struct bench_rig *rig)
{
    *circle = (struct circle){.port = rig->port, .to_port = rig->to_lane};
    circle->port.lane_count = circle->port.tx_queues = LANES;
    circle->dispatcher.port = &circle->port;
    for (uint32_t i = 0; i < LANES; i++) {
        char name[RTE_RING_NAMESIZE];

        snprintf(name, sizeof name, "bench_inbox_%u", i);
        circle->lanes[i].number = i;
        circle->lanes[i].inbox = rte_ring_create(name, INBOX_ENTRIES, 0, RING_F_SP_ENQ | RING_F_SC_DEQ);
        if (circle->lanes[i].inbox == NULL)
            bench_fail("no memory for a ring");
        circle->port.lanes[i] = &circle->lanes[i];
    }
    circle->port.host = &circle->lanes[0];
}

/* Copies of a job's frames, for one lane after the other. */
static void frames_make(const struct circle *circle, struct bench_rig *rig, struct bench_workers *workers)
{
    for (uint32_t i = 0; i < FRAMES; i++) {
        const struct bench_worker *worker = &workers->ranks[i % workers->one.ranks];
        struct rte_mbuf *m = rte_pktmbuf_copy(worker->frames[0].m, rig->frames, 0, UINT32_MAX);

        if (m == NULL || rte_ring_enqueue(circle->to_port, m) != 0)
            bench_fail("no room for %u frames", FRAMES);
        uint8_t *low_byte = rte_pktmbuf_mtod_offset(m, uint8_t *, QPN_LOW_AT);
        *low_byte = (uint8_t)((*low_byte & (0xffu ^ (PSC_IO_MAX_LANES - 1u))) | i % LANES);
    }
}

/* ---- The lanes' end. ---- */

static void rewrite(struct rte_mbuf **mbufs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        __builtin_prefetch(rte_pktmbuf_mtod(mbufs[i], uint8_t *), 1);
    for (uint32_t i = 0; i < count; i++)
        ++*rte_pktmbuf_mtod_offset(mbufs[i], uint8_t *, PSN_AT);
}

/* What is in the inboxes goes round; returns how many frames did. */
static uint32_t return_all(const struct circle *circle)
{
    uint32_t moved = 0;

    for (uint32_t i = 0; i < LANES; i++) {
        struct rte_mbuf *mbufs[TAKEN];
        uint32_t count = rte_ring_sc_dequeue_burst(circle->lanes[i].inbox, (void **)mbufs, TAKEN, NULL);

        if (circle->rewritten)
            rewrite(mbufs, count);
        rte_ring_sp_enqueue_bulk(circle->to_port, (void **)mbufs, count, NULL); /* room for all FRAMES */
        moved += count;
    }
    return moved;
}

static int lanes_main(void *argument)
{
    struct circle *circle = argument;

    bench_set_realtime(true);
    while (!__atomic_load_n(&circle->stop, __ATOMIC_ACQUIRE))
        return_all(circle);
    bench_set_realtime(false);
    return 0;
}

/* ---- The dispatcher's. ---- */

static void take_turn(struct circle *circle, struct turns *turns)
{
    uint64_t begin = rte_rdtsc();
    uint32_t moved = psc_io_dispatcher_turn(&circle->dispatcher);

    turns->frames += moved;
    if (moved < PSC_IO_BURST)
        return;
    turns->full_ticks += rte_rdtsc() - begin;
    turns->full++;
}

/* Everything on this core; only the dispatcher's turns count. */
static struct turns run_alone(struct circle *circle, uint64_t ticks)
{
    struct turns turns = {0};
    uint64_t begin = rte_rdtsc();

    while (rte_rdtsc() - begin < ticks) {
        take_turn(circle, &turns);
        return_all(circle);
    }
    return turns;
}

static struct turns run_beside(struct circle *circle, uint64_t ticks, bool rewritten)
{
    struct turns turns = {0};

    circle->rewritten = rewritten;
    circle->stop = 0;
    if (rte_eal_remote_launch(lanes_main, circle, PSC_IO_LANE_LCORE(1)) != 0)
        bench_fail("an lcore does not start");
    for (uint64_t begin = rte_rdtsc(); rte_rdtsc() - begin < ticks;)
        take_turn(circle, &turns);
    __atomic_store_n(&circle->stop, 1, __ATOMIC_RELEASE);
    rte_eal_wait_lcore(PSC_IO_LANE_LCORE(1));
    circle->rewritten = false;
    return turns;
}

/* Every frame is still there, and none was refused. */
static void circle_end(struct circle *circle)
{
    struct rte_mbuf *m;
    uint32_t frames = 0;

    while (return_all(circle) > 0)
        ;
    for (; rte_ring_dequeue(circle->to_port, (void **)&m) == 0; frames++)
        rte_pktmbuf_free(m);
    for (uint32_t i = 0; i < LANES; i++) {
        if (circle->dispatcher.refused[i] > 0)
            bench_fail("lane %u's ring had no room for a frame", i);
        rte_ring_free(circle->lanes[i].inbox);
    }
    if (frames != FRAMES)
        bench_fail("%u of %u frames are left", frames, FRAMES);
}

void bench_dispatcher(struct bench_rig *rig, struct bench_workers *workers, uint32_t repetitions,
                      uint64_t ticks)
{
    static const char *const keys[] = {"dispatch_ns", "dispatch_beside_ns", "dispatch_rewritten_ns"};
    double ns[3][MAX_REPETITIONS], per_us[MAX_REPETITIONS];
    struct circle circle;

    circle_make(&circle, rig);
    frames_make(&circle, rig, workers);
    for (uint32_t i = 0; i < repetitions; i++)
        for (uint32_t way = 0; way < 3; way++) {
            struct turns turns = way == 0 ? run_alone(&circle, ticks) : run_beside(&circle, ticks, way == 2);

            if (turns.full == 0)
                bench_fail("the dispatcher has not found one full burst");
            ns[way][i] = bench_ns_of((double)turns.full_ticks / (double)(turns.full * PSC_IO_BURST));
            per_us[i] = (double)turns.frames / (bench_ns_of((double)ticks) / 1000);
        }
    circle_end(&circle);
    for (uint32_t way = 0; way < 3; way++) {
        printf(",\n");
        bench_print_list(keys[way], ns[way], repetitions);
    }
    printf(",\n");
    bench_print_list("dispatch_frames_per_us", per_us, repetitions);
}
