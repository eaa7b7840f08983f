/* Lanes that share a port by flow rules, each with a queue: what the rules get wrong. Real lanes on a real
 * port, which takes no rules (steer_rig.h); the rules themselves are not verified on a NIC. */
#include "steer_rig.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#define FRAME_BYTES   74u /* Ethernet, IPv4, UDP, BTH, RETH, ICRC */
#define NOBODY        9u  /* low bits of a QPN that name no lane of this port */
#define THREAD_FRAMES 40000u

/* ---- What rules get wrong. ---- */

static void a_wrong_queue_s_frames_reach_their_lane_in_order(void **state)
{
    (void)state;
    for (uint32_t psn = 0; psn < 6; psn++)
        steer_roce_arrives(0, psn % 2, psn);
    for (uint32_t psn = 10; psn < 13; psn++)
        steer_roce_arrives(1, psn % 2, psn);
    steer_expect_burst(0, 3, (const uint32_t[]){0, 2, 4});
    steer_expect_burst(1, 4, (const uint32_t[]){1, 3, 5, 11});
    steer_expect_burst(0, 2, (const uint32_t[]){10, 12});
    steer_expect_burst(0, 0, NULL);
    steer_expect_burst(1, 0, NULL);
    for (uint32_t i = 0; i < STEER_LANES; i++)
        assert_int_equal(steer_rig.stats[i].drops[PSC_DROP_NO_BUFFER], 0);
}

/* More than a turn takes: none is left behind, none overtakes. */
static void a_whole_burst_for_the_other_lane(void **state)
{
    uint32_t psn = 0;

    (void)state;
    for (uint32_t i = 0; i < PSC_IO_BURST; i++)
        steer_roce_arrives(0, 1, i);
    while (rte_ring_count(steer_rig.to_port[0]) > 0)
        steer_expect_burst(0, 0, NULL);
    while (psn < PSC_IO_BURST - 1) { /* the inbox holds one less than the port's ring */
        struct rte_mbuf *mbufs[PSC_IO_BURST];
        uint32_t count = psc_io_receive_steered(&steer_rig.lanes[1], mbufs);

        assert_true(count > 0);
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(steer_psn_of(mbufs[i]), psn++);
        rte_pktmbuf_free_bulk(mbufs, count);
    }
    assert_int_equal(steer_rig.stats[0].drops[PSC_DROP_NO_BUFFER], 1);
}

/* The newest are dropped, freed, and counted by the lane that had them by mistake. */
static void a_full_inbox_is_a_counted_drop(void **state)
{
    const uint32_t room = rte_ring_get_capacity(steer_rig.lanes[1].inbox), more = 40;
    struct rte_mbuf *mbufs[PSC_IO_BURST];
    uint32_t psn = 0, count;

    (void)state;
    for (uint32_t i = 0; i < room + more; i++)
        steer_roce_arrives(0, 1, i);
    while (rte_ring_count(steer_rig.to_port[0]) > 0)
        steer_expect_burst(0, 0, NULL);
    assert_int_equal(steer_rig.stats[0].drops[PSC_DROP_NO_BUFFER], more);
    assert_int_equal(steer_rig.stats[1].drops[PSC_DROP_NO_BUFFER], 0);
    assert_int_equal(rte_mempool_in_use_count(steer_rig.frames), room);
    while ((count = psc_io_receive_steered(&steer_rig.lanes[1], mbufs)) > 0) {
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(steer_psn_of(mbufs[i]), psn++);
        rte_pktmbuf_free_bulk(mbufs, count);
    }
    assert_int_equal(psn, room);
}

/* Whose table is asked for a QPN: its lane's, whatever queue it came by; nobody's stays where it is. */
static void each_lane_judges_its_own(void **state)
{
    (void)state;
    steer_roce_arrives(0, 1, 1);
    steer_roce_arrives(1, 0, 2);
    steer_roce_arrives(1, 0, 3);
    steer_turn_all();
    assert_int_equal(steer_rig.stats[0].drops[PSC_DROP_UNKNOWN_QP], 2);
    assert_int_equal(steer_rig.stats[1].drops[PSC_DROP_UNKNOWN_QP], 1);
    steer_roce_arrives(1, NOBODY, 4);
    steer_turn_all();
    assert_int_equal(steer_rig.stats[0].drops[PSC_DROP_UNKNOWN_QP], 2);
    assert_int_equal(steer_rig.stats[1].drops[PSC_DROP_UNKNOWN_QP], 2);
    for (uint32_t i = 0; i < STEER_LANES; i++)
        assert_int_equal(steer_rig.stats[i].rx_packets, i < 2 ? 2 : 0);
}

/* ---- What is not RoCE: no rule of ours names it, so a NIC gives it to its first queue. ---- */

static void arp_arrives(uint8_t wanted)
{
    uint8_t frame[FRAME_MAX_BYTES];
    uint32_t bytes = unhex("ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 0a000001"
                           "000000000000 0a000000",
                           frame);

    frame[bytes - 1] = wanted;
    steer_arrive(0, steer_in_mbuf(frame, bytes));
}

static void ping_arrives(uint8_t wanted)
{
    uint8_t frame[FRAME_MAX_BYTES];
    uint32_t bytes = unhex("020000000002 020000000001 0800 4500 001c 1234 4000 40 01 0000 0a000001 0a000000"
                           "0800 0000 0102 0304",
                           frame);

    memcpy(frame, steer_rig.port.mac.b, sizeof steer_rig.port.mac.b);
    frame[33] = wanted;
    put_checksum(frame + 34, 8, frame + 36);
    put_checksum(frame + 14, 20, frame + 24);
    steer_arrive(0, steer_in_mbuf(frame, bytes));
}

static void expect_answers(uint32_t address_at, uint32_t lane, uint8_t sender)
{
    for (uint32_t i = 0; i < STEER_LANES; i++) {
        uint8_t got = 0;

        assert_int_equal(steer_answers(i, address_at, &got), i == lane);
        if (i == lane)
            assert_int_equal(got, sender);
    }
}

/* Each answers for its own address, by its own queue. */
static void a_lane_of_its_own_address_answers_for_it(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < STEER_LANES; i++) {
        uint8_t own = steer_config.lanes[i].ip.b[15];

        arp_arrives(own);
        steer_turn_all();
        expect_answers(28, i, own);
        ping_arrives(own);
        steer_turn_all();
        expect_answers(26, i, own);
    }
    for (uint32_t i = 0; i < STEER_LANES; i++)
        assert_int_equal(steer_rig.stats[i].rx_packets, 2 * STEER_LANES);
}

/* The first answers; the others hear who asks, since each keeps its own next hops. */
static void the_first_answers_for_an_address_that_is_shared(void **state)
{
    (void)state;
    arp_arrives(steer_config.lanes[0].ip.b[15]);
    steer_turn_all();
    expect_answers(28, 0, steer_config.lanes[0].ip.b[15]);
    assert_int_equal(steer_rig.stats[1].rx_packets, 1);
    ping_arrives(steer_config.lanes[0].ip.b[15]);
    steer_turn_all();
    expect_answers(26, 0, steer_config.lanes[0].ip.b[15]);
    assert_int_equal(steer_rig.stats[1].rx_packets, 1);
}

/* ---- All at once, on threads of their own. ---- */

static uint64_t settled; /* frames that a lane has received or has not been able to hand over */

struct receiver {
    struct psc_io_lane *lane;
    int64_t newest[STEER_LANES]; /* PSN, by the queue it came by */
    uint64_t received, overtaken, strays;
};

static void look_at(struct receiver *receiver, const struct rte_mbuf *m)
{
    const uint8_t *qpn = rte_pktmbuf_mtod_offset(m, const uint8_t *, STEER_BTH_AT + 5);
    int64_t psn = steer_psn_of(m), *newest = &receiver->newest[qpn[1] % STEER_LANES];

    receiver->received++;
    receiver->strays += (qpn[2] & (PSC_IO_MAX_LANES - 1u)) != receiver->lane->number;
    receiver->overtaken += psn <= *newest;
    *newest = psn;
}

static void *receive(void *argument)
{
    struct receiver *receiver = argument;
    uint64_t told = 0;

    while (__atomic_load_n(&settled, __ATOMIC_RELAXED) < THREAD_FRAMES) {
        struct rte_mbuf *mbufs[PSC_IO_BURST];
        uint32_t count = psc_io_receive_steered(receiver->lane, mbufs);
        uint64_t now;

        for (uint32_t i = 0; i < count; i++)
            look_at(receiver, mbufs[i]);
        rte_pktmbuf_free_bulk(mbufs, count);
        now = receiver->received + receiver->lane->stats->drops[PSC_DROP_NO_BUFFER];
        __atomic_fetch_add(&settled, now - told, __ATOMIC_RELAXED);
        if (now == told)
            sched_yield();
        told = now;
    }
    return NULL;
}

/* All but one in STEER_LANES of each queue's frames are another lane's. */
static void feed(void)
{
    uint8_t frames[STEER_LANES][STEER_LANES][FRAME_MAX_BYTES];
    uint32_t bytes = 0;

    for (uint32_t queue = 0; queue < STEER_LANES; queue++)
        for (uint32_t lane = 0; lane < STEER_LANES; lane++)
            bytes = steer_roce(lane, queue, 0, frames[queue][lane]);
    assert_int_equal(bytes, FRAME_BYTES);
    for (uint32_t i = 0; i < THREAD_FRAMES; i++) {
        uint32_t queue = i % STEER_LANES;
        uint8_t *frame = frames[queue][i / STEER_LANES % STEER_LANES];
        const uint8_t psn[] = {(uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};
        struct rte_mbuf *m;

        memcpy(frame + STEER_BTH_AT + 9, psn, sizeof psn);
        while ((m = rte_pktmbuf_alloc(steer_rig.frames)) == NULL)
            sched_yield();
        memcpy(rte_pktmbuf_append(m, (uint16_t)bytes), frame, bytes);
        while (rte_ring_enqueue(steer_rig.to_port[queue], m) != 0)
            sched_yield();
    }
}

static void lanes_hand_over_to_each_other_at_once(void **state)
{
    struct receiver receivers[STEER_LANES];
    pthread_t threads[STEER_LANES];
    uint64_t received = 0, dropped = 0;

    (void)state;
    settled = 0;
    for (uint32_t i = 0; i < STEER_LANES; i++) {
        receivers[i] = (struct receiver){.lane = &steer_rig.lanes[i], .newest = {-1, -1, -1}};
        assert_int_equal(pthread_create(&threads[i], NULL, receive, &receivers[i]), 0);
    }
    feed();
    for (uint32_t i = 0; i < STEER_LANES; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(receivers[i].strays, 0);
        assert_int_equal(receivers[i].overtaken, 0);
        received += receivers[i].received;
        dropped += steer_rig.stats[i].drops[PSC_DROP_NO_BUFFER];
    }
    assert_int_equal(received + dropped, THREAD_FRAMES);
    assert_true(received >= THREAD_FRAMES / STEER_LANES); /* what stays is never dropped */
}

/* ---- Rules that are refused. ---- */

static void a_driver_that_takes_no_rule_is_named_and_the_dispatcher_sorts(void **state)
{
    struct psc_io_error error = {.text = ""};

    (void)state;
    steer_open_port(true, &error);
    steer_config.steering = PSC_IO_STEER_AUTO;
    assert_true(psc_io_port_plan(&steer_rig.port, &steer_config, 0, &error));
    assert_int_equal(steer_rig.port.steering, PSC_IO_STEER_ADDRESS);
    assert_int_equal(steer_rig.port.rx_queues, STEER_LANES);
    steer_make_lanes(&error);
    assert_true(psc_io_port_start(&steer_rig.port, &steer_config, 0, &error));
    assert_int_equal(steer_rig.port.steering, PSC_IO_STEER_DISPATCHER);
    assert_int_equal(steer_rig.port.rx_queues, 1);
    assert_int_equal(steer_rig.port.rule_count, 0);
    assert_non_null(strstr(steer_rig.port.why, "address: the driver refuses the rule ("));
    for (uint32_t i = 0; i < STEER_LANES; i++)
        assert_true(psc_io_lane_init_tx(&steer_rig.lanes[i], i, &steer_config, &error));
    steer_close_all();
}

static void without_a_dispatcher_it_is_an_error(void **state)
{
    struct psc_io_error error = {.text = ""};

    (void)state;
    steer_open_port(true, &error);
    steer_config.steering = PSC_IO_STEER_ADDRESS;
    assert_true(psc_io_port_plan(&steer_rig.port, &steer_config, 0, &error));
    steer_make_lanes(&error);
    assert_false(psc_io_port_start(&steer_rig.port, &steer_config, 0, &error));
    assert_int_equal(error.status, PSC_IO_PORT_SETUP);
    assert_non_null(strstr(error.text, "cannot sort packets to its 3 lanes (address: the driver refuses"));
    for (uint32_t i = 0; i < STEER_LANES; i++)
        assert_true(psc_io_lane_init_tx(&steer_rig.lanes[i], i, &steer_config, &error));
    steer_close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_wrong_queue_s_frames_reach_their_lane_in_order, steer_by_qpn,
                                        steer_stop),
        cmocka_unit_test_setup_teardown(a_whole_burst_for_the_other_lane, steer_by_qpn, steer_stop),
        cmocka_unit_test_setup_teardown(a_full_inbox_is_a_counted_drop, steer_by_qpn, steer_stop),
        cmocka_unit_test_setup_teardown(each_lane_judges_its_own, steer_by_address, steer_stop),
        cmocka_unit_test_setup_teardown(each_lane_judges_its_own, steer_by_qpn, steer_stop),
        cmocka_unit_test_setup_teardown(a_lane_of_its_own_address_answers_for_it, steer_by_address,
                                        steer_stop),
        cmocka_unit_test_setup_teardown(the_first_answers_for_an_address_that_is_shared, steer_by_qpn,
                                        steer_stop),
        cmocka_unit_test_setup_teardown(lanes_hand_over_to_each_other_at_once, steer_by_qpn, steer_stop),
        cmocka_unit_test(a_driver_that_takes_no_rule_is_named_and_the_dispatcher_sorts),
        cmocka_unit_test(without_a_dispatcher_it_is_an_error),
    };

    return cmocka_run_group_tests_name("steer", tests, steer_start_eal, steer_stop_eal);
}
