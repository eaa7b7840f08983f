/* clang-format off */
/* bench/load: the program. Its arguments say how, the lines on its standard input say what, one JSON object
 * per line on its standard output answers. While it waits for a line it serves its port.
 *
 *   psc_load device=DEVARGS address=IP peer=IP [loss=PER-MILLION] [seed=N] [retransmit_exponent=N]
 *            [idle_sleep_us=N] [huge=0|1] [memory_mib=N] [ring=PACKETS] [icrc_every=N] [lane_core=CPU core=CPU]
 *
 *   peer                                          asks where the appliance is, again if it is known
 *   job RANKS MTU                                 forgets the job before
 *   table OP ENTRY ...
 *   shape POOL OP OP-WINDOW BYTES SEED
 *   qp RANK POOL QPN PSN PEER-QPN PEER-PSN RKEY RESULT-RKEY VA-BASE RESULT-VA WINDOW CHUNK-BYTES
 *   probe                                         answers when every probe has passed both ways
 *   run ROUNDS SMALL-ROUNDS SECONDS               that many at most, and to their end
 *   lane RANKS MTU WINDOW CHUNK-BYTES OP          instead of qp: a lane on lane_core, at the end of two rings
 *   blind SECONDS IN-FLIGHT                       sends contributions, counts what comes back
 *   rest                                          counters, and mbufs that are out
 *   quit
 */
/* clang-format on */
#include "load.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_NS  UINT64_C(60000000000) /* without a word: reached in failure only */
#define SECOND_NS    UINT64_C(1000000000)
#define LINE_BYTES   8192
#define TURNS_A_LOOK 256

static struct load load;
static struct load_port port;
static struct load_options options = {.core = LOAD_NO_CORE, .lane_core = LOAD_NO_CORE, .memory_mib = 192};
static const char *device = "";
static uint16_t ring_packets = 512;
static bool opened;

/* ---- Arguments ---- */

static bool parse_ip(const char *text, struct psc_ip *ip)
{
    memset(ip, 0, sizeof *ip);
    ip->b[10] = ip->b[11] = 0xff;
    return inet_pton(AF_INET, text, ip->b + 12) == 1 || inet_pton(AF_INET6, text, ip->b) == 1;
}

static bool take_number(const char *name, uint32_t number)
{
    if (strcmp(name, "loss") == 0)
        port.loss_per_million = number;
    else if (strcmp(name, "seed") == 0)
        port.dice = number;
    else if (strcmp(name, "retransmit_exponent") == 0)
        load.requester_config.retransmit_ns = UINT64_C(4096) << number;
    else if (strcmp(name, "idle_sleep_us") == 0)
        port.idle_sleep_us = number;
    else if (strcmp(name, "huge") == 0)
        options.huge_pages = number != 0;
    else if (strcmp(name, "memory_mib") == 0)
        options.memory_mib = number;
    else if (strcmp(name, "ring") == 0)
        ring_packets = (uint16_t)number;
    else if (strcmp(name, "icrc_every") == 0)
        load.check_icrc_every = number;
    else if (strcmp(name, "core") == 0)
        options.core = number;
    else if (strcmp(name, "lane_core") == 0)
        options.lane_core = number;
    else
        return false;
    return true;
}

static bool take_argument(char *argument)
{
    char *value = strchr(argument, '=');

    if (value == NULL)
        return false;
    *value++ = '\0';
    if (strcmp(argument, "device") == 0) {
        device = value;
        return true;
    }
    if (strcmp(argument, "address") == 0)
        return parse_ip(value, &load.local.ip);
    if (strcmp(argument, "peer") == 0)
        return parse_ip(value, &load.peer);
    return take_number(argument, (uint32_t)strtoul(value, NULL, 0));
}

/* ---- Commands ---- */

/* Serves the port until `true_now` holds; false: it did not in time, or a QP is lost. */
static bool serve_until(bool (*true_now)(const struct load *))
{
    uint64_t end_ns = load_now_ns() + PATIENCE_NS;

    while (!true_now(&load)) {
        if (load_now_ns() > end_ns || load_lost(&load) != NULL)
            return false;
        load_port_turn(&port, &load);
    }
    return true;
}

static bool peer_known(const struct load *it)
{
    return it->peer_known;
}

/* Asks again each 0.2 s: the link of a memif comes up when its other end does. */
static int command_peer(void)
{
    uint64_t end_ns = load_now_ns() + PATIENCE_NS, next_ns = 0;

    load.peer_known = false;
    while (!peer_known(&load) && load_now_ns() < end_ns) {
        if (load_now_ns() >= next_ns && load.answer_count == 0) {
            load.answer_bytes[0] = psc_neighbour_request(&load.local, &load.peer, load.answers[0]);
            load.answer_count = 1;
            next_ns = load_now_ns() + SECOND_NS / 5;
        }
        load_port_turn(&port, &load);
    }
    if (!peer_known(&load))
        return load_answer_error("the appliance does not answer ARP");
    printf("{\"peer\": true}\n");
    return 0;
}

static int command_job(char *rest)
{
    load_forget(&load);
    if (sscanf(rest, "%u %u", &load.ranks, &load.mtu) != 2 || load.ranks == 0 || load.ranks > PSC_MAX_RANKS ||
        load.mtu < 256 || load.mtu > LOAD_MTU_MAX)
        return load_answer_error("job RANKS MTU");
    psc_crc32_shift_init(&load.shift, load.mtu);
    return 0;
}

static int command_table(char *rest)
{
    uint32_t op = (uint32_t)strtoul(rest, &rest, 0);

    for (uint32_t i = 0; op < PSC_OP_COUNT && i < psc_op_form(op)->table_entries; i++)
        for (uint32_t pool = 0; pool < PSC_POOL_CLASS_COUNT; pool++) {
            char *at = rest;

            load.shapes[pool].tables[op][i] = (uint8_t)strtoul(at, &at, 0);
            if (pool == PSC_POOL_CLASS_COUNT - 1)
                rest = at;
        }
    return 0;
}

static int command_shape(char *rest)
{
    uint32_t pool, op, op_window, bytes, seed;

    if (sscanf(rest, "%u %u %u %u %u", &pool, &op, &op_window, &bytes, &seed) != 5 ||
        pool >= PSC_POOL_CLASS_COUNT || op == PSC_OP_PROBE || op >= PSC_OP_COUNT || bytes == 0 ||
        bytes % psc_op_form(op)->unit_bytes != 0)
        return load_answer_error("shape POOL OP OP-WINDOW BYTES SEED, whole units");
    if (!load_shape_add(&load.shapes[pool], op, op_window, bytes, load.ranks, load.mtu, seed))
        return load_answer_error("no memory for a shape of %u bytes, or more than %u", bytes,
                                 LOAD_MAX_SHAPES);
    return 0;
}

static int command_qp(char *rest)
{
    struct load_qp_spec s = {0};

    if (sscanf(rest, "%u %u %i %i %i %i %i %i %" SCNi64 " %" SCNi64 " %u %u", &s.rank, &s.pool, (int *)&s.qpn,
               (int *)&s.start_psn, (int *)&s.peer_qpn, (int *)&s.peer_start_psn, (int *)&s.rkey,
               (int *)&s.result_rkey, (int64_t *)&s.va_base, (int64_t *)&s.result_va, &s.window,
               &s.chunk_bytes) != 12 ||
        load.qp_count == LOAD_MAX_QPS)
        return load_answer_error("a qp has 12 numbers, and there are at most %u", LOAD_MAX_QPS);
    load_qp_add(&load, &s);
    return 0;
}

static int command_probe(void)
{
    load_probe(&load, load_now_ns());
    if (!serve_until(load_probed))
        return load_lost(&load) ? load_answer_lost(load_lost(&load))
                                : load_answer_error("the probes do not pass");
    printf("{\"probed\": true}\n");
    return 0;
}

static bool drained(const struct load *it)
{
    for (uint32_t i = 0; i < it->qp_count; i++) {
        const struct load_qp *qp = &it->qps[i];

        if (qp->received < it->round_limit[qp->spec.pool] || qp->requester.ring_count > 0)
            return false;
    }
    return true;
}

/* When the time is over, the furthest rank's round is the last of all. */
static int command_run(char *rest)
{
    double seconds;
    uint32_t data_rounds, small_rounds;
    uint64_t begin_ns = load_now_ns();

    if (sscanf(rest, "%u %u %lf", &data_rounds, &small_rounds, &seconds) != 3)
        return load_answer_error("run ROUNDS SMALL-ROUNDS SECONDS");
    load.round_limit[PSC_POOL_DATA] = data_rounds;
    load.round_limit[PSC_POOL_SMALL] = small_rounds;
    while (!drained(&load) && load_lost(&load) == NULL &&
           (double)(load_now_ns() - begin_ns) < seconds * (double)SECOND_NS)
        for (uint32_t i = 0; i < TURNS_A_LOOK; i++)
            load_port_turn(&port, &load);
    for (uint32_t pool = 0; pool < PSC_POOL_CLASS_COUNT; pool++)
        load.round_limit[pool] = load_posted(&load, pool);
    if (!serve_until(drained))
        return load_lost(&load) ? load_answer_lost(load_lost(&load))
                                : load_answer_error("the last rounds do not come");
    return load_answer_counters(&load, &port, (double)(load_now_ns() - begin_ns) / (double)SECOND_NS);
}

static int command_lane(char *rest)
{
    struct load_lane_options job;
    struct load_error error;

    if (sscanf(rest, "%u %u %u %u %u", &job.ranks, &job.mtu, &job.window, &job.chunk_bytes, &job.op) != 5)
        return load_answer_error("lane RANKS MTU WINDOW CHUNK-BYTES OP");
    opened = load_lane_open(&port, &load, &job, &error);
    if (!opened)
        return load_answer_error("%s", error.text);
    return command_probe();
}

static int command_blind(char *rest)
{
    double seconds;
    uint32_t in_flight;
    uint64_t begin_ns = load_now_ns(), end_ns;

    if (sscanf(rest, "%lf %u", &seconds, &in_flight) != 2 || load.qp_count == 0)
        return load_answer_error("blind SECONDS IN-FLIGHT, after qp");
    end_ns = begin_ns + (uint64_t)(seconds * (double)SECOND_NS);
    memset(&load.counters, 0, sizeof load.counters);
    while (load_now_ns() < end_ns)
        for (uint32_t i = 0; i < TURNS_A_LOOK; i++)
            load_port_blind_turn(&port, &load, in_flight);
    return load_answer_counters(&load, &port, (double)(load_now_ns() - begin_ns) / (double)SECOND_NS);
}

static int execute(char *line)
{
    static const struct {
        const char *name;
        int (*with_rest)(char *);
        int (*alone)(void);
    } commands[] = {
        {"peer", NULL, command_peer},   {"job", command_job, NULL},   {"table", command_table, NULL},
        {"shape", command_shape, NULL}, {"qp", command_qp, NULL},     {"probe", NULL, command_probe},
        {"run", command_run, NULL},     {"lane", command_lane, NULL}, {"blind", command_blind, NULL}};
    char *rest = strchr(line, ' ');

    if (rest != NULL)
        *rest++ = '\0';
    for (size_t i = 0; i < RTE_DIM(commands); i++)
        if (strcmp(line, commands[i].name) == 0)
            return commands[i].alone != NULL ? commands[i].alone()
                                             : commands[i].with_rest(rest ? rest : line);
    if (strcmp(line, "rest") == 0)
        return load_answer_counters(&load, &port, 0);
    return load_answer_error("no command %s", line);
}

/* Lines as they come, the port served meanwhile: gently, for nobody measures between two commands. */
static int serve(void)
{
    static char buffer[LINE_BYTES];
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    size_t used = 0;
    int rc = 0;

    while (rc == 0) {
        bool busy = false;

        for (uint32_t i = 0; opened && i < TURNS_A_LOOK; i++)
            busy = load_port_turn(&port, &load) || busy;
        if (poll(&input, 1, busy ? 0 : 1) <= 0)
            continue;
        ssize_t n = read(STDIN_FILENO, buffer + used, sizeof buffer - 1 - used);
        if (n <= 0)
            return 0; /* its driver is gone */
        used += (size_t)n;
        buffer[used] = '\0';
        for (char *end; rc == 0 && (end = strchr(buffer, '\n')) != NULL;) {
            *end = '\0';
            if (strcmp(buffer, "quit") == 0)
                return 0;
            rc = execute(buffer);
            fflush(stdout);
            used -= (size_t)(end + 1 - buffer);
            memmove(buffer, end + 1, used + 1);
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct load_error error;
    bool beside;

    load.check_icrc_every = 1;
    load.requester_config = (struct psc_requester_config){.max_unacked_packets = 128,
                                                          .retries = 6,
                                                          .retransmit_ns = UINT64_C(4096) << 14,
                                                          .progress_ns = UINT64_C(30000000000),
                                                          .immediates = true};
    for (int i = 1; i < argc; i++)
        if (!take_argument(argv[i])) {
            fprintf(stderr, "psc_load: %s is not an argument: see load_main.c\n", argv[i]);
            return 2;
        }
    beside = options.lane_core != LOAD_NO_CORE; /* a lane beside us opens the port */
    if (!load_eal_start(&options, &error) ||
        (!beside && !load_port_attach(&port, device, ring_packets, &load.local.mac, &error))) {
        fprintf(stderr, "psc_load: %s\n", error.text);
        return 1;
    }
    opened = !beside;
    printf("{\"ready\": true}\n");
    fflush(stdout);
    int rc = serve();
    if (opened && beside)
        load_lane_close();
    if (opened)
        load_port_close(&port);
    load_forget(&load);
    return rc;
}
