"""How the appliance sends results: what asks for an ACK, what a loss, a NAK, a silence does.

Below, `a` is the worker under test and `b` always answers.
"""

from __future__ import annotations

import numpy as np
import pytest

from . import wire
from .rack import PROGRESS_NS, RETRANSMIT_NS, Rack, ints, results
from .wire import PSN_MASK
from .worker import Worker

NAK_SEQUENCE = 0x60


def published(rack: Rack, packets: int = 4, rounds: int = 1) -> list[wire.Packet]:
    """Completes rounds in one burst; returns the result packets to a, unacknowledged; b has acknowledged its own."""
    a, b = rack.workers()
    contributions = [p for r in range(rounds) for w in (a, b) for p in w.write(r, ints(packets, seed=r))]
    out = results(rack.poll(*contributions))
    rack.poll(*(reply for p in results(out, b) for reply in b.receive(p)))
    return results(out, a)


def acknowledge(rack: Rack, worker: Worker, psn: int, syndrome: int = 0x1F) -> list[wire.Packet]:
    return results(rack.poll(worker.ack(psn, syndrome)))


def same_but_ack_req(packets: list[wire.Packet]) -> list[wire.Packet]:
    return [p.but(ack_req=False) for p in packets]


# ---- Sending. ----


def test_cut_through_sends_what_all_ranks_have_contributed(rack):
    a, b = rack.workers()
    x, y = ints(4, seed=1), ints(4, seed=2)
    rack.poll(*a.write(0, x))
    for i, packet in enumerate(b.write(0, y)):
        to_a, to_b = results(rack.poll(packet))
        assert (to_a.psn - a.appliance_psn) & PSN_MASK == i and to_a.ack_req and to_b.ack_req
        np.testing.assert_array_equal(np.frombuffer(to_a.payload, np.int32), (x + y)[64 * i : 64 * i + 64])
        assert (to_a.opcode == wire.LAST_IMM) == (i == 3)


def test_the_immediate_waits_for_all_n_contributions(make_rack):
    rack = make_rack(world=3)
    a, b, c = rack.workers()
    rack.poll(*a.write(0, ints(2)), *b.write(0, ints(2)))
    first, last = c.write(0, ints(2))
    assert [p.opcode for p in results(rack.poll(first), a)] == [wire.FIRST]
    assert results(rack.poll()) == []
    assert [(p.opcode, p.imm) for p in results(rack.poll(last), a)] == [(wire.LAST_IMM, 0xABC00000)]


def test_a_single_packet_message_is_sent_whole_or_not_at_all(rack):
    a, b = rack.workers()
    assert results(rack.poll(*a.write(0, ints(1)))) == []
    (to_a,) = results(rack.poll(*b.write(0, ints(1))), a)
    assert to_a.opcode == wire.ONLY_IMM and to_a.ack_req


def test_result_addresses_repeat_after_w_rounds(rack):
    a, b = rack.workers()
    places = []
    for round in range(5):
        (to_a, to_b) = results(rack.poll(*a.write(round, ints(1)), *b.write(round, ints(1))))
        places.append((to_a.va - a.result_va) // rack.jobs[0].chunk_bytes)
        rack.poll(*a.receive(to_a), *b.receive(to_b))
    assert places == [0, 1, 0, 1, 0]


def test_an_ack_is_asked_for_every_quarter_of_the_window(make_rack):
    rack = make_rack(packets=40, max_unacked=32)
    sent = published(rack, 40)
    assert [i for i, p in enumerate(sent) if p.ack_req] == [7, 15, 23, 31]
    assert len(sent) == 32, "no more than the window without an ACK"
    more = acknowledge(rack, rack.workers()[0], sent[7].psn)
    assert len(more) == 8 and more[-1].opcode == wire.LAST_IMM and more[-1].ack_req


def test_nothing_is_lost_when_a_turn_has_no_room(rack):
    a, b = rack.workers()
    x = ints(4)
    rack.poll(*a.write(0, x), *b.write(0, x), max_emits=3)
    for _ in range(8):
        for packet in rack.poll(max_emits=1):
            rack.owner(packet).receive(packet)
    rack.poll(after_ns=RETRANSMIT_NS)
    rack.run()
    assert rack.stats.tx_packets >= 10


def test_who_has_filled_a_turn_comes_last_in_the_next(rack):
    a, b = rack.workers()
    rack.poll(*a.write(0, ints(4)), *b.write(0, ints(4)), max_emits=2)  # the two ACKs
    assert [rack.owner(packet) for _ in range(8) for packet in rack.poll(max_emits=1)] == [a, b] * 4


def test_no_timer_runs_while_nothing_has_asked_for_an_ack(rack):
    a, b = rack.workers()
    rack.run([*a.write(0, ints(1)), *b.write(0, ints(1))])
    rack.poll(*a.write(1, ints(4)), *b.write(1, ints(4)), max_emits=4)  # two ACKs, two packets without AckReq
    for _ in range(3):
        rack.poll(after_ns=2 * RETRANSMIT_NS, max_emits=0)
    assert rack.stats.timeouts == 0
    rack.poll()
    rack.poll(after_ns=2 * RETRANSMIT_NS)
    assert rack.stats.timeouts == 2, "now each worker has been asked"


# ---- Loss. ----


def test_a_lost_result_is_sent_again_after_the_timer_and_only_ack_req_may_differ(rack):
    sent = published(rack)
    a, _ = rack.workers()
    assert rack.poll(after_ns=RETRANSMIT_NS - 1) == []
    again = results(rack.poll(after_ns=RETRANSMIT_NS // 4))
    assert same_but_ack_req(again) == same_but_ack_req(sent)
    assert rack.stats.timeouts == 1 and rack.stats.retransmitted_packets == 4
    acknowledge(rack, a, sent[-1].psn)
    assert rack.poll(after_ns=10 * RETRANSMIT_NS) == []


def test_the_timer_starts_again_with_progress(rack):
    sent = published(rack)
    a, _ = rack.workers()
    rack.poll(after_ns=RETRANSMIT_NS * 3 // 4)
    acknowledge(rack, a, sent[0].psn)
    assert rack.poll(after_ns=RETRANSMIT_NS * 3 // 4) == []
    again = results(rack.poll(after_ns=RETRANSMIT_NS // 2))
    assert [p.psn for p in again] == [p.psn for p in sent[1:]]


def test_retries_are_exhausted_after_six(rack):
    published(rack)
    for retry in range(6):
        assert len(rack.poll(after_ns=RETRANSMIT_NS * 5 // 4)) == 4, retry
    assert rack.poll(after_ns=RETRANSMIT_NS * 5 // 4) == []
    fault = rack.fault()
    assert (fault.fault, fault.rank, fault.round, fault.complete) == ("retry_exceeded", 0, 0, (1,))
    assert rack.poll(after_ns=RETRANSMIT_NS * 5 // 4) == []


def test_retries_are_restored_by_progress(rack):
    sent = published(rack)
    a, _ = rack.workers()
    for packet in sent[:3]:
        for _ in range(6):
            assert rack.poll(after_ns=RETRANSMIT_NS * 5 // 4)
        acknowledge(rack, a, packet.psn)
    assert not rack.events()


def test_two_seconds_without_progress_are_a_fault_whatever_the_retries(rack):
    sent = published(rack)
    a, _ = rack.workers()
    acknowledge(rack, a, sent[0].psn, 0x20)  # RNR, code 0: 655 ms
    rack.poll(after_ns=PROGRESS_NS)
    assert rack.fault().fault == "retry_exceeded"


def test_a_port_that_takes_nothing_for_two_seconds_is_a_fault(rack):
    a, b = rack.workers()
    rack.poll(*a.write(0, ints(1)), *b.write(0, ints(1)), max_emits=0)
    rack.poll(after_ns=PROGRESS_NS, max_emits=0)
    assert rack.fault().fault == "retry_exceeded"


def test_after_a_pause_what_was_received_is_read_before_timers_are_judged(rack):
    sent = published(rack)
    a, _ = rack.workers()
    other = a.packet(wire.CNP, 0)
    assert rack.poll(other, after_ns=RETRANSMIT_NS * 3) == [], "a first burst, and the ACK was behind it"
    assert rack.poll(a.ack(sent[3].psn)) == []
    assert rack.poll() == []
    assert rack.stats.timeouts == 0


def test_pause_after_pause_does_not_stop_the_clocks(rack):
    published(rack)
    for _ in range(PROGRESS_NS // RETRANSMIT_NS):
        rack.now_ns += 2 * RETRANSMIT_NS
        rack.feed(bytes(60))  # somebody else's
    assert rack.fault().fault == "retry_exceeded"


# ---- NAK 60. ----


def test_nak_60_rewinds_in_the_middle_of_a_message_without_a_reth(rack):
    sent = published(rack)
    a, _ = rack.workers()
    again = acknowledge(rack, a, sent[2].psn, NAK_SEQUENCE)
    assert same_but_ack_req(again) == same_but_ack_req(sent[2:])
    assert [p.opcode for p in again] == [wire.MIDDLE, wire.LAST_IMM] and again[0].va == 0


def test_nak_60_rewinds_once_until_there_is_progress(rack):
    sent = published(rack)
    a, _ = rack.workers()
    assert len(acknowledge(rack, a, sent[2].psn, NAK_SEQUENCE)) == 2
    assert acknowledge(rack, a, sent[2].psn, NAK_SEQUENCE) == []
    assert len(acknowledge(rack, a, sent[3].psn, NAK_SEQUENCE)) == 1
    assert len(rack.poll(after_ns=2 * RETRANSMIT_NS)) == 1, "a time-out"
    assert len(acknowledge(rack, a, sent[3].psn, NAK_SEQUENCE)) == 1, "and again after it"


def test_an_ack_beyond_the_cursor_moves_it_forward(rack):
    """After a rewind that could not send, the ACK for the lost one's successors arrives."""
    sent = published(rack)
    a, _ = rack.workers()
    rack.poll(a.ack(sent[1].psn, NAK_SEQUENCE), max_emits=0)
    assert [p.psn for p in acknowledge(rack, a, sent[2].psn)] == [sent[3].psn]


def test_a_ghost_ack_is_dropped(rack):
    sent = published(rack)
    a, _ = rack.workers()
    assert acknowledge(rack, a, (sent[-1].psn + 1) & PSN_MASK) == []
    assert acknowledge(rack, a, (sent[0].psn - 1) & PSN_MASK) == []
    assert acknowledge(rack, a, (sent[-1].psn + 1) & PSN_MASK, NAK_SEQUENCE) == []
    assert acknowledge(rack, a, (sent[0].psn - 1) & PSN_MASK, 0x61) == []
    assert rack.drops() == {"stale_ack": 4} and not rack.events()
    assert len(rack.poll(after_ns=2 * RETRANSMIT_NS)) == 4, "nothing was acknowledged"


# ---- Other syndromes. ----


@pytest.mark.parametrize("syndrome", [0x40, 0x5F, 0x64, 0x7F, 0x80, 0xFF])
def test_reserved_syndromes_are_ignored_and_counted(rack, syndrome):
    sent = published(rack)
    a, _ = rack.workers()
    assert acknowledge(rack, a, sent[-1].psn, syndrome) == []
    assert rack.drops() == {"reserved_syndrome": 1} and not rack.events()
    assert (rack.stats.acks_received, rack.stats.naks_received) == (1, 0), "b's ACK alone"
    assert len(rack.poll(after_ns=2 * RETRANSMIT_NS)) == 4


@pytest.mark.parametrize("credits", [0, 0x1E, 0x1F])
def test_credits_are_ignored(rack, credits):
    sent = published(rack)
    acknowledge(rack, rack.workers()[0], sent[-1].psn, credits)
    assert rack.poll(after_ns=2 * RETRANSMIT_NS) == [] and not rack.drops()


@pytest.mark.parametrize("syndrome", [0x61, 0x62, 0x63])
def test_a_fatal_nak_ends_the_job(rack, syndrome):
    sent = published(rack)
    acknowledge(rack, rack.workers()[0], sent[1].psn, syndrome)
    fault = rack.fault()
    assert (fault.fault, fault.rank, fault.got) == ("nak_received", 0, syndrome)
    assert rack.poll(after_ns=2 * RETRANSMIT_NS) == []


@pytest.mark.parametrize(
    ("code", "wait_ns"), [(1, 10_000), (14, 1_280_000), (31, 491_520_000), (0, 655_360_000)]
)
def test_rnr_waits_at_least_its_timer_and_suspends_the_ack_timer(rack, code, wait_ns):
    sent = published(rack)
    a, _ = rack.workers()
    assert acknowledge(rack, a, sent[1].psn, 0x20 | code) == []
    assert rack.poll(after_ns=wait_ns - 1) == []
    again = results(rack.poll(after_ns=RETRANSMIT_NS // 4))
    assert same_but_ack_req(again) == same_but_ack_req(sent[1:])
    assert rack.stats.timeouts == 0


def test_an_ack_that_advances_ends_the_rnr_wait(rack):
    """The receiver shows that it is ready; what it has acknowledged is not sent again."""
    sent = published(rack)
    a, _ = rack.workers()
    assert acknowledge(rack, a, sent[1].psn, 0x20 | 14) == []
    assert acknowledge(rack, a, sent[0].psn) == [], "stale: the RNR NAK has acknowledged it"
    assert rack.drops() == {"stale_ack": 1} and rack.poll() == [], "a ghost ends nothing"
    again = acknowledge(rack, a, sent[1].psn)
    assert same_but_ack_req(again) == same_but_ack_req(sent[2:])
    assert acknowledge(rack, a, sent[-1].psn) == []
    assert rack.poll(after_ns=PROGRESS_NS) == [] and rack.stats.timeouts == 0 and not rack.events()


def test_an_ack_of_everything_ends_the_rnr_wait_with_nothing_to_send(rack):
    sent = published(rack)
    a, b = rack.workers()
    assert acknowledge(rack, a, sent[1].psn, 0x20 | 14) == []
    assert acknowledge(rack, a, sent[-1].psn) == []
    out = results(rack.poll(*a.write(1, ints(1)), *b.write(1, ints(1))), a)
    assert [p.opcode for p in out] == [wire.ONLY_IMM], "the next result does not wait"


# ---- Rule 5: a contribution acknowledges a result. ----


def test_round_r_plus_w_acknowledges_result_r(rack):
    a, _ = rack.workers()
    sent = published(rack, packets=1, rounds=2)
    assert len(sent) == 2
    rack.poll(*a.write(2, ints(1)))
    rack.poll(after_ns=2 * RETRANSMIT_NS)
    rack.poll(*a.write(3, ints(1)))
    assert rack.poll(after_ns=2 * RETRANSMIT_NS) == [], "both are acknowledged"
    assert rack.stats.retransmitted_packets == 1, "result 1 was sent again before round 3 came"
    assert acknowledge(rack, a, sent[0].psn) == []
    assert rack.drops() == {"stale_ack": 1}, "the real ACK is late, and no error"


def unacknowledged(rack: Rack) -> Worker:
    """Two results of a whole window each for a, whose ACKs are all lost: the second cannot be sent. b has both."""
    a, b = rack.workers()
    out = rack.poll(*(p for r in range(2) for w in (a, b) for p in w.write(r, ints(4))))
    while results(out, b):
        out = rack.poll(*(reply for p in results(out, b) for reply in b.receive(p)))
    return a


def test_a_result_acknowledged_by_a_contribution_opens_the_window(make_rack):
    rack = make_rack(max_unacked=4)
    a = unacknowledged(rack)
    sent = results(rack.poll(a.write(2, ints(4))[0]), a)
    assert [(p.psn - a.appliance_psn) & PSN_MASK for p in sent] == [4, 5, 6, 7]
