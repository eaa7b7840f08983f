/* The door to C, on real DPDK and a real lane with a port that nobody else is at (net_ring): what becomes of
 * a job's QP ends over an epoch's end, and in which order its life can be told. */
#include "support.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "psc_ctl.h"
#include "psc_stats.h"

#define RANKS     2u
#define POOLS     2u
#define QPS       (RANKS * POOLS)
#define WAIT_MS   120000
#define MTU_BYTES 1024u
#define OWN_ADDRESS                                                                                          \
    {                                                                                                        \
        [10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1                                                        \
    }

static uint32_t lanes; /* of this run: its argument */
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
        .lane_count = lanes,
        .memory_mib = 64 * lanes,
        .idle_sleep_us = 500,
        .roce_mtu = MTU_BYTES,
        .max_unacked_packets = 128,
        .retransmit_exponent = 14,
        .retries = 6,
        .progress_us = 2000000,
        .waiting_event_us = 2000000,
        .max_jobs = 2,
        .job_rows = 4 * lanes};
    char text[PSC_CTL_TEXT_BYTES] = "";
    int fd = mkstemp(stats_path);

    (void)state;
    close(fd);
    config.ports[0].dispatcher_core = lanes > 1 ? last_cpu() : PSC_CTL_NO_CORE;
    for (uint32_t i = 0; i < lanes; i++) {
        config.lanes[i] =
            (struct psc_ctl_lane_config){.core = last_cpu(), .address = OWN_ADDRESS, .prefix_bits = 24};
        config.lanes[i].address[15] = (uint8_t)(1 + i);
    }
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

static uint32_t open_named_job(const char *name, uint32_t epoch, struct psc_ctl_qp *qps)
{
    struct psc_ctl_job spec = {.world_size = RANKS,
                               .mtu = MTU_BYTES,
                               .epoch = epoch,
                               .ops = {PSC_OP_SUM_I32},
                               .op_count = 1,
                               .pools = {{PSC_POOL_DATA, 0, 2, 4096}, {PSC_POOL_SMALL, lanes - 1, 2, 1024}},
                               .pool_count = POOLS};
    char text[PSC_CTL_TEXT_BYTES];
    uint32_t job;

    snprintf(spec.name, sizeof spec.name, "%s", name);
    assert_int_equal(psc_ctl_job_open(&spec, &job, qps, text), PSC_CTL_OK);
    return job;
}

static uint32_t open_job(struct psc_ctl_qp *qps)
{
    return open_named_job("job", 1, qps);
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
    for (uint32_t lane = 0; lane < lanes; lane++)
        assert_int_equal(psc_ctl_job_stats(job, lane)->epoch, 2);
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

/* The port is a loop: the second lane asks for the first one's address, hears itself, and the first answers.
 * So what every lane must hear reaches each. */
static void lanes_of_a_port_hear_of_each_other(void **state)
{
    const struct psc_ctl_peer peer = {.qpn = 17, .address = OWN_ADDRESS};
    struct psc_ctl_qp qps[QPS];
    uint32_t job = open_job(qps);

    (void)state;
    assert_int_equal(qps[1 * RANKS + 1].qpn % PSC_CTL_MAX_LANES, lanes - 1);
    assert_int_equal(psc_ctl_qp_connect(job, 1, 1, &peer), PSC_CTL_OK);
    /* One lane alone does not learn of its own address, and nobody else has it. */
    struct psc_ctl_event answer = expect(lanes > 1 ? PSC_CTL_EVENT_CONNECTED : PSC_CTL_EVENT_FAULT);
    assert_int_equal(answer.pool, 1);
    assert_int_equal(answer.rank, 1);
    close_job(job);
}

static void steering_is_told_with_its_reason(void **state)
{
    struct psc_ctl_port_status port;

    (void)state;
    assert_int_equal(psc_ctl_port_status(0, &port), PSC_CTL_OK);
    assert_int_equal(port.steering, lanes > 1 ? PSC_CTL_STEER_DISPATCHER : PSC_CTL_STEER_PORT);
    assert_int_equal(strstr(port.why, "ib_bth: ") != NULL, lanes > 1);
    assert_int_equal(strstr(port.why, "; address: ") != NULL, lanes > 1);
    assert_int_equal(port.rx_queues, 1);
    assert_int_equal(port.dispatched_frames > 0, lanes > 1);
}

/* ---- Jobs come and go, whole lives of them, while the lane polls and others read what it counts. ---- */

#define LIVES 40u

/* Like the exporter, it maps the file and takes a row only if its generation was even and stayed so. Until it
 * is told to stop the words of a row belong together, and what the lane counts only grows. */
struct reader {
    const struct psc_stats_header *header;
    bool stop;
    uint64_t rows, torn, shrunk; /* how many it has taken; what was wrong */
};

static uint64_t polls_of(const struct psc_stats_header *header)
{
    const struct psc_lane_stats *lane = (const void *)((const char *)header + header->lane_offset_bytes);

    return __atomic_load_n(&lane->polls, __ATOMIC_RELAXED);
}

static bool read_row(const struct psc_job_stats *row, struct psc_job_stats *copy)
{
    uint64_t before = __atomic_load_n(&row->generation, __ATOMIC_ACQUIRE);

    memcpy(copy, row, sizeof *copy);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return before % 2 == 0 && __atomic_load_n(&row->generation, __ATOMIC_RELAXED) == before;
}

static void *read_statistics(void *argument)
{
    struct reader *reader = argument;
    const struct psc_job_stats *rows =
        (const void *)((const char *)reader->header + reader->header->job_offset_bytes);
    uint64_t polls = 0;

    while (!__atomic_load_n(&reader->stop, __ATOMIC_ACQUIRE)) {
        uint64_t now = polls_of(reader->header);
        struct psc_job_stats row;

        reader->shrunk += now < polls;
        polls = now;
        for (uint32_t i = 0; i < reader->header->job_rows; i++) {
            if (!read_row(&rows[i], &row) || strncmp(row.name, "life", 4) != 0)
                continue;
            /* open_life: a name and its epochs have the same parity */
            reader->torn += row.world_size != RANKS || row.name[4] != (char)('0' + row.epoch % 2);
            __atomic_fetch_add(&reader->rows, 1, __ATOMIC_RELEASE);
        }
        sched_yield();
    }
    return NULL;
}

static const struct psc_stats_header *map_statistics(void)
{
    struct stat file;
    int fd = open(stats_path, O_RDONLY);
    const struct psc_stats_header *header;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &file), 0);
    header = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(header != MAP_FAILED);
    close(fd);
    return header;
}

/* Opened, connected, halted, resumed with an epoch of the same parity. Nobody answers the lane's question for
 * the peers: if this takes a second the FAULT is UNREACHABLE, and the halt finds nothing left to do. */
static uint32_t open_life(uint32_t life)
{
    const struct psc_ctl_peer peer = {.qpn = 17, .address = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 9}};
    struct psc_ctl_qp qps[QPS];
    char name[] = "life0";
    uint32_t job;

    name[4] = (char)('0' + life % 2);
    job = open_named_job(name, 2 + life % 2, qps);
    for (uint32_t pool = 0; pool < POOLS; pool++)
        for (uint32_t rank = 0; rank < RANKS; rank++)
            assert_int_equal(psc_ctl_qp_connect(job, pool, rank, &peer), PSC_CTL_OK);
    assert_int_equal(psc_ctl_job_ready(job), PSC_CTL_OK);
    assert_int_equal(psc_ctl_job_halt(job, life % RANKS, PSC_FAULT_RETRY_EXCEEDED), PSC_CTL_OK);
    expect(PSC_CTL_EVENT_FAULT);
    assert_int_equal(psc_ctl_job_resume(job, 4 + life % 2, qps), PSC_CTL_OK);
    return job;
}

static void end_life(uint32_t job, uint32_t life)
{
    static const uint32_t received[POOLS] = {0};

    if (life % 3 == 0) {
        assert_int_equal(psc_ctl_job_end(job, 0), PSC_CTL_OK);
        expect(PSC_CTL_EVENT_ENDED);
    } else if (life % 3 == 1) {
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            assert_int_equal(psc_ctl_rank_leave(job, rank, received), PSC_CTL_OK);
            expect(PSC_CTL_EVENT_LEFT);
        }
    }
    close_job(job);
}

static void many_lives_beside_a_lane_that_polls(void **state)
{
    struct reader reader = {.header = map_statistics()};
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, read_statistics, &reader), 0);
    for (uint32_t life = 0; life < LIVES; life++) {
        uint32_t job = open_life(life);
        uint64_t polls = polls_of(reader.header);

        psc_ctl_heartbeat();
        end_life(job, life);
        assert_true(polls_of(reader.header) > polls);
    }
    while (__atomic_load_n(&reader.rows, __ATOMIC_ACQUIRE) == 0)
        sched_yield();
    __atomic_store_n(&reader.stop, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    assert_int_equal(reader.torn, 0);
    assert_int_equal(reader.shrunk, 0);
    assert_int_equal(usage().qps, 0);
}

/* The number of lanes of this run: EAL starts once per process. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_epoch_has_ends_that_share_nothing_with_the_last),
        cmocka_unit_test(lanes_of_a_port_hear_of_each_other),
        cmocka_unit_test(steering_is_told_with_its_reason),
        cmocka_unit_test(many_lives_beside_a_lane_that_polls),
        cmocka_unit_test(what_a_rank_cannot_have_is_rejected),
        cmocka_unit_test(a_job_that_has_halted_ends_when_it_has_been_resumed),
    };

    lanes = argc > 1 ? (uint32_t)atoi(argv[1]) : 1;
    return cmocka_run_group_tests(tests, start, stop);
}
