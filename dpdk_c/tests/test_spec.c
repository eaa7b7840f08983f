/* A job outside its limits is refused in words, and by ctl/ exactly when core/ refuses it too: else its
 * refusal would be taken for want of memory. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "psc_lane.h"
#include "psc_spec.h"

#define LANES 1u

static const struct psc_ctl_job good = {
    .name = "digits",
    .world_size = 4,
    .mtu = 1024,
    .ops = {PSC_OP_SUM_F32, PSC_OP_MAX_F32},
    .op_count = 2,
    .pools = {{PSC_POOL_DATA, 0, 16, 65536}, {PSC_POOL_SMALL, 0, 4, 1024}},
    .pool_count = 2,
};

static void *take(void *context, size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) & ~(size_t)63);

    (void)context;
    assert_non_null(memory);
    return memset(memory, 0, bytes);
}

static void give_back(void *context, void *memory)
{
    (void)context;
    free(memory);
}

/* Whether core/, which never lacks memory here, makes the job. */
static bool core_takes(const struct psc_ctl_job *spec)
{
    const struct psc_memory memory = {.alloc = take, .release = give_back};
    struct psc_job_spec job = {.world_size = spec->world_size,
                               .mtu = spec->mtu,
                               .op_count = spec->op_count,
                               .pool_count = spec->pool_count};
    struct psc_job *made;

    memcpy(job.ops, spec->ops, sizeof job.ops);
    memcpy(job.tables, spec->tables, sizeof job.tables);
    for (uint32_t i = 0; i < PSC_MAX_POOLS; i++)
        job.pools[i] = (struct psc_pool_spec){spec->pools[i].pool_class, spec->pools[i].window,
                                              spec->pools[i].chunk_bytes};
    made = psc_job_new(&job, &memory);
    psc_job_free(made);
    return made != NULL;
}

static void refused_by_both(const struct psc_ctl_job *spec, const char *sentence)
{
    char text[PSC_CTL_TEXT_BYTES] = "";

    assert_false(psc_ctl_spec_check(spec, LANES, text));
    assert_string_equal(text, sentence);
    assert_false(core_takes(spec));
}

static void what_is_within_the_limits_is_taken(void **state)
{
    char text[PSC_CTL_TEXT_BYTES] = "";
    struct psc_ctl_job spec = good;

    (void)state;
    assert_true(psc_ctl_spec_check(&spec, LANES, text));
    assert_true(core_takes(&spec));
    spec.world_size = PSC_MAX_RANKS;
    spec.mtu = 256;
    spec.pools[0] = (struct psc_ctl_pool){PSC_POOL_DATA, 0, 1, 256};
    assert_true(psc_ctl_spec_check(&spec, LANES, text));
    assert_true(core_takes(&spec));
}

/* One field of a good specification changed. */
#define REFUSED(sentence, ...)                                                                               \
    do {                                                                                                     \
        struct psc_ctl_job spec = good;                                                                      \
        __VA_ARGS__;                                                                                         \
        refused_by_both(&spec, sentence);                                                                    \
    } while (0)

/* All alike, on one lane. */
static void fill_pools(struct psc_ctl_job *spec, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        spec->pools[i] = spec->pools[0];
    spec->pool_count = count;
}

static void what_is_outside_is_named(void **state)
{
    (void)state;
    REFUSED("the job's number of ranks is 0, 1 to 64 can be", spec.world_size = 0);
    REFUSED("the job's number of ranks is 65, 1 to 64 can be", spec.world_size = 65);
    REFUSED("the job's number of ops is 0, 1 to 15 can be", spec.op_count = 0);
    REFUSED("the job's number of ops is 16, 1 to 15 can be", spec.op_count = 16);
    REFUSED("an op's number is 0, 1 to 13 can be", spec.ops[1] = PSC_OP_PROBE);
    REFUSED("an op's number is 14, 1 to 13 can be", spec.ops[0] = PSC_OP_COUNT);
    REFUSED("the job's number of pools is 0, 1 to 32 can be", spec.pool_count = 0);
    REFUSED("the job's number of pools on a lane is 9, 1 to 8 can be", fill_pools(&spec, 9));
    REFUSED("the job's MTU in bytes is 128, 256 to 4096 can be", spec.mtu = 128);
    REFUSED("the job's MTU in bytes is 8192, 256 to 4096 can be", spec.mtu = 8192);
    REFUSED("the job's MTU in bytes is 1500, only powers of two can be", spec.mtu = 1500);
    REFUSED("a pool's window is 0, 1 to 128 can be", spec.pools[1].window = 0);
    REFUSED("a pool's window is 256, 1 to 128 can be", spec.pools[1].window = 256);
    REFUSED("a pool's window is 12, only powers of two can be", spec.pools[0].window = 12);
    REFUSED("a pool's chunk size in bytes is 512, 1024 to 8388608 can be", spec.pools[1].chunk_bytes = 512);
    REFUSED("a pool's chunk size in bytes is 8389632, 1024 to 8388608 can be",
            spec.pools[1].chunk_bytes = PSC_MAX_CHUNK_BYTES + 1024);
    REFUSED("a pool's chunk size is 1536 bytes, only multiples of the MTU of 1024 bytes can be",
            spec.pools[1].chunk_bytes = 1536);
}

/* The op's table is {0, 0, ..., greatest}. */
static void put_table(struct psc_ctl_job *spec, enum psc_op op, uint8_t greatest)
{
    spec->ops[0] = op;
    spec->tables[op][psc_op_form(op)->table_entries - 1] = greatest;
}

/* Greatest entry and ranks on both sides of what an accumulator holds. */
static void a_table_that_could_overflow_is_refused_with_the_numbers(void **state)
{
    struct psc_ctl_job spec = good;
    char text[PSC_CTL_TEXT_BYTES];

    (void)state;
    put_table(&spec, PSC_OP_LUT4_U8, 63);
    assert_true(psc_ctl_spec_check(&spec, LANES, text));
    assert_true(core_takes(&spec));
    put_table(&spec, PSC_OP_LUT4_U8, 64);
    refused_by_both(&spec, "op 6 adds up to 64 * 4 ranks = 256, 255 can be");
    spec = good;
    put_table(&spec, PSC_OP_LUT2_U8, 255);
    refused_by_both(&spec, "op 8 adds up to 255 * 4 ranks = 1020, 255 can be");
    for (enum psc_op op = PSC_OP_LUT4_U16; op <= PSC_OP_LUT8_U16; op++) {
        if (op == PSC_OP_LUT2_U8)
            continue;
        spec = good;
        spec.world_size = PSC_MAX_RANKS;
        put_table(&spec, op, 255);
        assert_true(psc_ctl_spec_check(&spec, LANES, text));
        assert_true(core_takes(&spec));
    }
}

static void a_table_that_is_none_is_named(void **state)
{
    (void)state;
    REFUSED("the table of op 6 does not begin with 0 and rise to 1 or more", spec.ops[1] = PSC_OP_LUT4_U8);
    REFUSED("the table of op 7 does not begin with 0 and rise to 1 or more",
            put_table(&spec, PSC_OP_LUT4_U16, 9), spec.tables[PSC_OP_LUT4_U16][0] = 1);
    REFUSED("the table of op 10 does not begin with 0 and rise to 1 or more",
            put_table(&spec, PSC_OP_LUT8_U16, 9), spec.tables[PSC_OP_LUT8_U16][254] = 10);
}

/* core/ knows neither names nor the number of lanes. */
static void what_only_ctl_knows_is_named_too(void **state)
{
    char text[PSC_CTL_TEXT_BYTES];
    struct psc_ctl_job spec = good;

    (void)state;
    spec.pools[0].lane = 1;
    assert_false(psc_ctl_spec_check(&spec, LANES, text));
    assert_string_equal(text, "a pool's lane is 1, 0 to 0 can be");
    spec = good;
    spec.pool_count = PSC_CTL_MAX_POOLS + 1;
    assert_false(psc_ctl_spec_check(&spec, LANES, text));
    assert_string_equal(text, "the job's number of pools is 33, 1 to 32 can be");
    spec = good;
    memset(spec.name, 'x', sizeof spec.name);
    assert_false(psc_ctl_spec_check(&spec, LANES, text));
    assert_string_equal(text, "the job's name has no end within 96 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_within_the_limits_is_taken),
        cmocka_unit_test(what_is_outside_is_named),
        cmocka_unit_test(a_table_that_could_overflow_is_refused_with_the_numbers),
        cmocka_unit_test(a_table_that_is_none_is_named),
        cmocka_unit_test(what_only_ctl_knows_is_named_too),
    };
    return cmocka_run_group_tests_name("spec", tests, NULL, NULL);
}
