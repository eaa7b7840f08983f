/* What the dispatcher's turn costs: frames in the port's ring, sorted to two lanes' inboxes. Only the turn is
 * timed; the frames are taken out of the inboxes beside it, as lanes would on their cores. */
#include <rte_cycles.h>
#include <stdio.h>

#include "lanes_bench.h"

#define INBOX_ENTRIES   1024u
#define MAX_REPETITIONS 200u

static struct rte_ring *inbox(const char *name)
{
    struct rte_ring *ring = rte_ring_create(name, INBOX_ENTRIES, 0, RING_F_SP_ENQ | RING_F_SC_DEQ);

    if (ring == NULL)
        bench_fail("no memory for a ring");
    return ring;
}

/* A burst of the job's frames, every other one for the second lane. */
static uint32_t offer(struct bench_rig *rig, struct bench_workers *workers)
{
    struct rte_mbuf *burst[PSC_IO_BURST];

    for (uint32_t i = 0; i < PSC_IO_BURST; i++) {
        burst[i] = bench_lend(workers->ranks[i % workers->one.ranks].frames[i / workers->one.ranks].m);
        uint8_t *low_byte = rte_pktmbuf_mtod_offset(burst[i], uint8_t *, 49); /* of the QPN */
        *low_byte = (uint8_t)((*low_byte & (0xffu ^ (PSC_IO_MAX_LANES - 1u))) | i % 2);
    }
    return rte_ring_enqueue_burst(rig->to_lane, (void **)burst, PSC_IO_BURST, NULL);
}

void bench_dispatcher(struct bench_rig *rig, struct bench_workers *workers, uint32_t repetitions,
                      uint64_t ticks)
{
    struct psc_io_lane lanes[2] = {{.number = 0, .inbox = inbox("bench_inbox_0")},
                                   {.number = 1, .inbox = inbox("bench_inbox_1")}};
    struct psc_io_port port = rig->port;
    struct psc_io_dispatcher dispatcher = {.port = &port};
    double ns[MAX_REPETITIONS];

    port.lane_count = port.tx_queues = 2;
    port.lanes[0] = port.host = &lanes[0];
    port.lanes[1] = &lanes[1];
    for (uint32_t i = 0; i < repetitions; i++) {
        uint64_t begin = rte_rdtsc(), spent = 0, frames = 0;

        while (rte_rdtsc() - begin < ticks) {
            struct rte_mbuf *taken[PSC_IO_BURST];
            uint32_t offered = offer(rig, workers), got = 0;
            uint64_t start = rte_rdtsc();

            psc_io_dispatcher_turn(&dispatcher);
            spent += rte_rdtsc() - start;
            for (int lane = 0; lane < 2; lane++)
                got +=
                    rte_ring_dequeue_burst(lanes[lane].inbox, (void **)taken + got, PSC_IO_BURST - got, NULL);
            if (got != offered)
                bench_fail("%u of %u frames came through the dispatcher", got, offered);
            rte_pktmbuf_free_bulk(taken, got);
            frames += got;
        }
        ns[i] = bench_ns_of((double)spent / (double)frames);
    }
    printf(",\n");
    bench_print_list("dispatch_ns", ns, repetitions);
    for (int lane = 0; lane < 2; lane++)
        rte_ring_free(lanes[lane].inbox);
}
