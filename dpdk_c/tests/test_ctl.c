/* The door to C, on real DPDK and a real lane with a port that nobody else is at (net_ring): what becomes of
 * a job's QP ends over an epoch's end, and in which order its life can be told. */
#include "support.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "psc_ctl.h"

#define RANKS     2u
#define POOLS     2u
#define QPS       (RANKS * POOLS)
#define WAIT_MS   10000
#define MTU_BYTES 1024u

static char stats_path[] = "/tmp/psc_test_ctl_XXXXXX";

static uint32_t last_cpu(void)
{
    cpu_set_t allowed;
    uint32_t last = 0;

    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            last = cpu;
    return last;
}

static int start(void **state)
{
    struct psc_ctl_config config = {
        .ports = {{.devargs = "net_ring0", .rx_ring_packets = 128, .tx_ring_packets = 128}},
        .port_count = 1,
        .lane_cores = {last_cpu()},
        .lane_count = 1,
        .memory_mib = 64,
        .idle_sleep_us = 500,
        .address = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1},
        .prefix_bits = 24,
        .roce_mtu = MTU_BYTES,
        .max_unacked_packets = 128,
        .retransmit_exponent = 14,
        .retries = 6,
        .progress_us = 2000000,
        .waiting_event_us = 2000000,
        .max_jobs = 2,
        .job_rows = 4};
    char text[PSC_CTL_TEXT_BYTES] = "";
    int fd = mkstemp(stats_path);

    (void)state;
    close(fd);
    snprintf(config.stats_path, sizeof config.stats_path, "%s", stats_path);
    if (psc_ctl_start(&config, text) == PSC_CTL_OK)
        return 0;
    print_error("%s\n", text);
    return -1;
}

static int stop(void **state)
{
    (void)state;
    psc_ctl_stop();
    return unlink(stats_path);
}

static uint32_t open_job(struct psc_ctl_qp *qps)
{
    struct psc_ctl_job spec = {.name = "job",
                               .world_size = RANKS,
                               .mtu = MTU_BYTES,
                               .epoch = 1,
                               .ops = {PSC_OP_SUM_I32},
                               .op_count = 1,
                               .pools = {{PSC_POOL_DATA, 2, 4096}, {PSC_POOL_SMALL, 2, 1024}},
                               .pool_count = POOLS};
    char text[PSC_CTL_TEXT_BYTES];
    uint32_t job;

    assert_int_equal(psc_ctl_job_open(&spec, &job, qps, text), PSC_CTL_OK);
    return job;
}

/* The next event, which is of this kind. */
static struct psc_ctl_event expect(uint32_t kind)
{
    struct pollfd readable = {.fd = psc_ctl_event_fd(), .events = POLLIN};
    struct psc_ctl_event event;
    uint64_t count;

    while (!psc_ctl_next_event(&event)) {
        assert_int_equal(poll(&readable, 1, WAIT_MS), 1);
        assert_int_equal(read(readable.fd, &count, sizeof count), sizeof count);
    }
    assert_int_equal(event.kind, kind);
    return event;
}

static struct psc_ctl_usage usage(void)
{
    struct psc_ctl_usage now;

    psc_ctl_usage(&now);
    return now;
}

static void close_job(uint32_t job)
{
    assert_int_equal(psc_ctl_job_close(job), PSC_CTL_OK);
    expect(PSC_CTL_EVENT_DETACHED);
    assert_int_equal(usage().jobs, 0);
    assert_int_equal(usage().qps, 0);
}

static void another_epoch_has_ends_that_share_nothing_with_the_last(void **state)
{
    struct psc_ctl_qp old[QPS], new[QPS];
    uint32_t job = open_job(old);

    (void)state;
    assert_int_equal(psc_ctl_job_halt(job, 1, PSC_FAULT_RETRY_EXCEEDED), PSC_CTL_OK);
    assert_int_equal(psc_ctl_job_resume(job, 2, new), PSC_CTL_STATE); /* FAULT has not been read */
    struct psc_ctl_event fault = expect(PSC_CTL_EVENT_FAULT);
    assert_int_equal(fault.rank, 1);
    assert_int_equal(fault.fault, PSC_FAULT_RETRY_EXCEEDED);
    assert_int_equal(psc_ctl_job_resume(job, 2, new), PSC_CTL_OK);
    assert_int_equal(psc_ctl_job_resume(job, 3, new), PSC_CTL_STATE);
    assert_int_equal(usage().qps, QPS);
    assert_int_equal(psc_ctl_job_stats(job)->epoch, 2);
    for (uint32_t i = 0; i < QPS; i++)
        for (uint32_t k = 0; k < QPS; k++) {
            assert_int_not_equal(new[i].qpn, old[k].qpn);
            assert_int_not_equal(new[i].va_base, old[k].va_base);
            assert_int_not_equal(new[i].rkey ^ new[i].start_psn, old[k].rkey ^ old[k].start_psn);
        }
    close_job(job);
}

static void what_a_rank_cannot_have_is_rejected(void **state)
{
    struct psc_ctl_qp qps[QPS];
    struct psc_ctl_peer peer = {.qpn = 17, .address = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 9}};
    uint32_t job = open_job(qps);

    (void)state;
    peer.received = 1; /* nothing is complete */
    assert_int_equal(psc_ctl_qp_connect(job, 1, 1, &peer), PSC_CTL_OK);
    struct psc_ctl_event rejected = expect(PSC_CTL_EVENT_REJECTED);
    assert_int_equal(rejected.got, PSC_CTL_COMMAND_CONNECT);
    assert_int_equal(rejected.pool, 1);
    assert_int_equal(rejected.rank, 1);
    assert_int_equal(psc_ctl_job_halt(job, RANKS, PSC_FAULT_RETRY_EXCEEDED), PSC_CTL_ARGUMENT);
    assert_int_equal(psc_ctl_job_halt(job, 0, PSC_FAULT_NONE), PSC_CTL_ARGUMENT);
    close_job(job);
}

static void a_job_that_has_halted_ends_when_it_has_been_resumed(void **state)
{
    struct psc_ctl_qp qps[QPS];
    uint32_t job = open_job(qps);

    (void)state;
    assert_int_equal(psc_ctl_job_halt(job, 0, PSC_FAULT_NAK_RECEIVED), PSC_CTL_OK);
    assert_int_equal(psc_ctl_job_end(job, 1), PSC_CTL_OK); /* nobody has read of the fault yet: it answers */
    expect(PSC_CTL_EVENT_FAULT);
    assert_int_equal(psc_ctl_job_end(job, 1), PSC_CTL_STATE);
    assert_int_equal(psc_ctl_job_resume(job, 2, qps), PSC_CTL_OK);
    assert_int_equal(psc_ctl_job_end(job, 1), PSC_CTL_OK);
    assert_int_equal(psc_ctl_job_resume(job, 3, qps), PSC_CTL_STATE);
    struct psc_ctl_event ended = expect(PSC_CTL_EVENT_ENDED);
    assert_int_equal(ended.complete[0], 0);
    close_job(job);
    assert_int_equal(psc_ctl_job_end(job, 1), PSC_CTL_NO_JOB);
    assert_int_equal(psc_ctl_job_halt(job, 0, PSC_FAULT_NAK_RECEIVED), PSC_CTL_NO_JOB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_epoch_has_ends_that_share_nothing_with_the_last),
        cmocka_unit_test(what_a_rank_cannot_have_is_rejected),
        cmocka_unit_test(a_job_that_has_halted_ends_when_it_has_been_resumed),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
