/* sim/: from a seed to a plan. The distribution is the suite's strength: most racks are small and quick, so
 * that many of them run, and the rare shapes (large windows, long messages, many ranks) come often enough. */
#include "sim_plan.h"

const char *const sim_trouble_name[SIM_TROUBLES] = {
    "loss",       "duplication",  "reordering",    "delay",          "late copies",
    "ghosts",     "corruption",   "truncation",    "congestion",     "no buffers",
    "tampering",  "black hole",   "kill",          "pause",          "freeze",
    "broken QP",  "early leave",  "mismatch",      "appliance kill", "appliance pause",
    "clock jump", "stalled port", "lagging queue", "ring overflow",  "restart"};

static uint32_t pick(struct sim_random *random, const uint32_t *choices, uint32_t count)
{
    return choices[sim_below(random, count)];
}
#define PICK(random, ...)                                                                                    \
    pick(random, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static uint64_t timer_ns(uint32_t exponent)
{
    return UINT64_C(4096) << exponent;
}

uint32_t sim_plan_round_packets(const struct sim_job_plan *job, uint32_t pool)
{
    uint32_t most = job->pools[pool].chunk_bytes / job->mtu_bytes;

    return (2 * most + 2) / 3;
}

static void draw_habits(struct sim_habits *habits, struct sim_random *random)
{
    *habits = (struct sim_habits){.max_unacked = PICK(random, 16, 64, 128, 129),
                                  .request_every = PICK(random, 4, 64, 64, 1000),
                                  .ack_every = PICK(random, 0, 0, 0, 1, 4),
                                  .retransmit_ns = timer_ns(PICK(random, 8, 9, 10, 12, 14)),
                                  .retries = 6,
                                  .ignores_repeated_nak = sim_chance(random, 700000),
                                  .repeats_nak = sim_chance(random, 200000),
                                  .timer_always = sim_chance(random, 500000),
                                  .mig_req = sim_chance(random, 500000),
                                  .limited_p_key = sim_chance(random, 100000)};
}

/* All ranks our own code, all the model, or a mixture. */
static void draw_workers(struct sim_job_plan *job, struct sim_random *random)
{
    uint64_t kind = sim_below(random, 3);

    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        job->model[rank] = kind == 2 ? sim_chance(random, 500000) : kind == 1;
        draw_habits(&job->habits[rank], random);
    }
}

static void draw_pool(struct sim_pool_plan *pool, const struct sim_job_plan *job, uint32_t chunk_packets,
                      struct sim_random *random)
{
    uint32_t ranks = job->ranks < 4 ? 4 : job->ranks; /* large racks do fewer rounds: time is for seeds */

    pool->window = chunk_packets < 30 ? PICK(random, 1, 2, 2, 2, 4, 4, 4, 8) : PICK(random, 1, 2, 4);
    pool->chunk_bytes = chunk_packets * job->mtu_bytes;
    uint32_t most = 1200 / ranks / (chunk_packets + 1) + 10;
    pool->rounds = (uint32_t)sim_between(random, 8, most < 100 ? most + 8 : 108);
}

static void draw_job(struct sim_job_plan *job, struct sim_random *random)
{
    job->ranks = PICK(random, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 8, 12);
    job->mtu_bytes = PICK(random, 256, 256, 256, 256, 256, 512, 1024, 4096);
    job->salt = sim_draw(random);
    job->lives = 1;
    job->coupled = sim_chance(random, 400000);
    job->wraps = sim_chance(random, 600000);
    job->think_ns = PICK(random, 0, 2000, 20000, 200000);
    uint32_t chunk_packets = sim_chance(random, 60000) ? (uint32_t)sim_between(random, 30, 70)
                                                       : PICK(random, 1, 2, 2, 3, 4, 4, 5, 8);
    draw_pool(&job->pools[0], job, chunk_packets, random);
    draw_pool(&job->pools[1], job, 1, random);
    draw_workers(job, random);
}

static uint32_t draw_rate_ppm(struct sim_random *random, enum sim_trouble trouble, bool mild)
{
    switch (trouble) {
    case SIM_LOSS: /* mild: with corruption and truncation no more than 1 % */
        return mild ? PICK(random, 500, 1000, 5000) : PICK(random, 1000, 10000, 30000, 100000);
    case SIM_CORRUPTION:
    case SIM_TRUNCATION:
        return mild ? 2500 : 20000;
    case SIM_GHOST:
        return PICK(random, 2000, 20000);
    case SIM_LATE:
        return PICK(random, 2000, 10000);
    case SIM_DELAY:
        return PICK(random, 1000, 10000, 50000);
    default:
        return PICK(random, 2000, 20000, 100000);
    }
}

static void draw_rates(struct sim_plan *plan, struct sim_random *random)
{
    /* Half of the mild runs keep to the four faults that the liveness rule names; the others add what RC must
     * mend as well. */
    uint32_t kinds = plan->mild && sim_chance(random, 500000) ? SIM_LATE : SIM_NO_MBUFS;
    uint32_t wanted = plan->mild ? (uint32_t)sim_between(random, 3, kinds == SIM_LATE ? 4 : 6)
                                 : (uint32_t)sim_between(random, 1, 5);

    for (uint32_t drawn = 0; drawn < wanted;) {
        enum sim_trouble trouble = (enum sim_trouble)sim_below(random, kinds);
        if (plan->rate_ppm[trouble] > 0)
            continue;
        plan->rate_ppm[trouble] = draw_rate_ppm(random, trouble, plan->mild);
        drawn++;
    }
    if (!plan->mild && sim_chance(random, 80000))
        plan->rate_ppm[SIM_TAMPER] = PICK(random, 300, 3000);
    if (!plan->mild && sim_chance(random, 150000))
        plan->rate_ppm[SIM_NO_MBUFS] = PICK(random, 1000, 30000);
}

/* About how many frames a run without faults sends. */
static uint64_t frames_expected(const struct sim_plan *plan)
{
    uint64_t frames = 0;

    for (uint32_t j = 0; j < plan->jobs; j++)
        for (uint32_t p = 0; p < SIM_POOLS; p++) {
            const struct sim_job_plan *job = &plan->job[j];
            frames += (uint64_t)job->ranks * job->pools[p].rounds * (2 * sim_plan_round_packets(job, p) + 2);
        }
    return frames;
}

static void draw_strike(struct sim_strike *strike, const struct sim_plan *plan, struct sim_random *random)
{
    static const uint64_t longest_ns[] = {2 * SIM_MS, 20 * SIM_MS, 300 * SIM_MS, 3 * SIM_SECOND};
    uint64_t expected = frames_expected(plan);

    strike->trouble = (enum sim_trouble)PICK(
        random, SIM_HOLE, SIM_HOLE, SIM_HOLE, SIM_KILL, SIM_KILL, SIM_PAUSE, SIM_PAUSE, SIM_FREEZE,
        SIM_FREEZE, SIM_BREAK, SIM_BREAK, SIM_BREAK, SIM_BREAK, SIM_BREAK, SIM_BREAK, SIM_BREAK, SIM_LEAVE,
        SIM_MISMATCH, SIM_APPLIANCE_KILL, SIM_APPLIANCE_PAUSE, SIM_CLOCK_JUMP, SIM_STALL, SIM_STALL, SIM_LAG,
        SIM_LAG, SIM_LAG, SIM_OVERFLOW);
    /* One in ten while the job is still being connected; one in three soon after another, while it ends the
     * epoch that the other has hit, or begins the next. */
    strike->at_frame =
        sim_chance(random, 100000) ? sim_below(random, 8 * plan->job[0].ranks) : sim_below(random, expected);
    if (strike > plan->strike && sim_chance(random, 333333))
        strike->at_frame = strike[-1].at_frame + sim_below(random, 10 * plan->job[0].ranks);
    strike->job = (uint32_t)sim_below(random, plan->jobs);
    strike->rank = (uint32_t)sim_below(random, plan->job[strike->job].ranks);
    strike->choice = (uint32_t)sim_below(random, 10);
    strike->duration_ns = sim_between(random, 1000, longest_ns[sim_below(random, 4)]);
    if (strike->trouble == SIM_LAG) /* short enough that workers try again */
        strike->duration_ns %= 10 * SIM_MS;
    if (strike->trouble == SIM_HOLE && sim_chance(random, 300000))
        strike->duration_ns = SIM_FOREVER;
}

static void draw_appliance(struct sim_plan *plan, struct sim_random *random)
{
    plan->retransmit_ns = timer_ns(PICK(random, 8, 9, 10));
    plan->progress_ns = PICK(random, 500, 2000) * SIM_MS;
    plan->waiting_ns = PICK(random, 200, 1000, 2000) * SIM_MS;
    plan->straggler_ns = sim_between(random, 2, 4) * SIM_SECOND;
    plan->hold_ns = PICK(random, 0, 0, 500, 5000);
    plan->event_ns = PICK(random, 0, 1000, 100000, 5 * SIM_MS);
    plan->max_unacked = PICK(random, 8, 32, 128, 128, 128);
    plan->burst = PICK(random, 1, 8, 32, 32);
    /* About 100 ns a frame at most: a lane that is slower than its workers is another problem than faults. */
    plan->poll_ns = plan->burst * PICK(random, 10, 30, 100);
    plan->rx_ring = 8192;
    plan->tx_ring = PICK(random, 64, 512, 2048);
}

void sim_plan_draw(struct sim_plan *plan, uint64_t seed)
{
    struct sim_random random = {.state = sim_mix(seed ^ UINT64_C(0x5053435f53494d31))};

    *plan = (struct sim_plan){.jobs = sim_chance(&random, 200000) ? 2 : 1};
    plan->mild = sim_chance(&random, 350000);
    for (uint32_t j = 0; j < plan->jobs; j++)
        draw_job(&plan->job[j], &random);
    draw_rates(plan, &random);
    draw_appliance(plan, &random);
    plan->latency_ns = PICK(&random, 1000, 5000, 20000);
    plan->jitter_ns = PICK(&random, 100, 2000, 10000);
    plan->frame_ns = PICK(&random, 30, 120, 400);
    plan->late_by_ns = plan->mild ? 50 * SIM_MS : 3 * SIM_SECOND;
    if (plan->mild)
        return;
    plan->strikes = PICK(&random, 1, 1, 2, 2, 3, 3, 4, 5, 6, SIM_STRIKES);
    for (uint32_t i = 0; i < plan->strikes; i++)
        draw_strike(&plan->strike[i], plan, &random);
    for (uint32_t j = 0; j < plan->jobs; j++)
        plan->job[j].lives = PICK(&random, 1, 1, 2, 2, 3);
}
