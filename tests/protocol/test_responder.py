"""What the appliance answers to one request: past, in order, future; accepted or refused, and with which NAK.

A refused request is answered once, ends the job's epoch, and is named in one FAULT event with both values.
"""

from __future__ import annotations

import numpy as np
import pytest

from . import wire
from .rack import MTU, acks, ints, results
from .wire import PSN_MASK
from .worker import PROBE_IMM, SUM_F32, SUM_I32

ACK, NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS = 0x1F, 0x60, 0x61, 0x62


def refuses(rack, packet, syndrome, fault, *, expected=None, got=None):
    """The packet is answered by this NAK with its own PSN, nothing is executed after it, and the event says why."""
    worker = rack.workers()[0]
    out = rack.poll(packet)
    assert [(psn, s) for psn, s, _ in acks(out)] == [(packet.psn, syndrome)]
    event = rack.fault()
    assert (event.fault, event.rank, event.pool) == (fault, worker.rank, worker.pool)
    if expected is not None:
        assert (event.expected, event.got) == (expected, got)
    assert rack.drops()["refused"] == 1
    assert rack.poll(packet) == [] and rack.drops()["qp_state"] == 1, "the NAK is sent once"
    return event


# ---- Past, in order, future. ----


def test_in_order_is_acknowledged_when_it_asks(rack):
    a, _ = rack.workers()
    first, second, third = a.write(0, ints(3))
    assert rack.poll(first) == []
    assert acks(rack.poll(second.but(ack_req=True))) == [(second.psn, ACK, 0)]
    assert acks(rack.poll(third)) == [(third.psn, ACK, 1)]


def test_a_burst_has_one_ack_for_all_of_it(rack):
    a, _ = rack.workers()
    packets = [*a.write(0, ints(2)), *a.write(1, ints(2))]
    assert acks(rack.poll(*(p.but(ack_req=True) for p in packets))) == [(packets[-1].psn, ACK, 2)]


@pytest.mark.parametrize("behind", [1, 2, 1000, 1 << 22, 1 << 23])
def test_past_is_acknowledged_again_and_never_executed(make_rack, behind):
    rack = make_rack(world=1)
    (a,) = rack.workers()
    x = ints(2)
    rack.run(a.write(0, x))
    expected_psn = a.psn
    again = a.packet(
        wire.ONLY_IMM, expected_psn - behind, va=a.address(1), rkey=a.rkey, dma_len=MTU, payload=bytes(MTU)
    )
    assert acks(rack.poll(again, again)) == [((expected_psn - 1) & PSN_MASK, ACK, 1)], "one per burst"
    assert rack.drops() == {"duplicate": 2}
    y = ints(2, seed=1)
    rack.run(a.write(1, y))
    np.testing.assert_array_equal(a.result(1, y), y)


@pytest.mark.parametrize("ahead", [1, 2, 1000, (1 << 23) - 1])
def test_future_is_one_nak_per_gap_and_then_silence(rack, ahead):
    a, b = rack.workers()
    x = ints(2)
    first, second = a.write(0, x)
    ghost = second.but(psn=(first.psn + ahead) & PSN_MASK)
    assert acks(rack.poll(ghost, ghost)) == [(first.psn, NAK_SEQUENCE, 0)]
    assert rack.poll(ghost) == []
    assert rack.drops() == {"gap": 3}
    rack.run([first, second, *b.write(0, x)])
    np.testing.assert_array_equal(a.result(0, x), x + x)
    lost, then = a.write(1, x)
    assert acks(rack.poll(then)) == [(lost.psn, NAK_SEQUENCE, 1)], "a new gap has a NAK of its own"


def test_a_gap_that_closes_in_the_same_burst_is_an_ack(rack):
    a, _ = rack.workers()
    first, second = a.write(0, ints(2))
    assert acks(rack.poll(second, first)) == [(first.psn, ACK, 0)]


def test_a_nak_that_found_no_room_is_sent_in_the_next_turn(rack):
    a, _ = rack.workers()
    first, second = a.write(0, ints(2))
    assert rack.poll(second, max_emits=0) == []
    assert acks(rack.poll()) == [(first.psn, NAK_SEQUENCE, 0)]
    assert rack.poll() == []


def test_a_fatal_nak_waits_for_room_until_the_job_is_detached(make_rack):
    for room_comes in (True, False):
        rack = make_rack()
        a, _ = rack.workers()
        packet = a.packet(wire.MIDDLE, a.psn, payload=bytes(MTU))
        assert rack.poll(packet, max_emits=0) == [] and rack.fault()
        if room_comes:
            assert acks(rack.poll()) == [(packet.psn, NAK_INVALID, 0)]
        rack.detach(rack.jobs[0])  # which sends nothing
        assert rack.stats.naks_sent == room_comes


# ---- Opcode sequence and operation. ----


def test_middle_outside_a_message(rack):
    a, _ = rack.workers()
    packet = a.packet(wire.MIDDLE, a.psn, payload=bytes(MTU))
    refuses(rack, packet, NAK_INVALID, "invalid_request", expected=wire.FIRST, got=wire.MIDDLE)


@pytest.mark.parametrize("opcode", [wire.FIRST, wire.ONLY_IMM])
def test_a_message_inside_a_message(rack, opcode):
    a, _ = rack.workers()
    first, second = a.write(0, ints(2))
    rack.poll(first)
    nested = first.but(opcode=opcode, psn=second.psn)
    refuses(rack, nested, NAK_INVALID, "invalid_request", expected=wire.MIDDLE, got=opcode)


# ---- Lengths. ----


def test_first_of_less_than_an_mtu(rack):
    first = rack.workers()[0].write(0, ints(2))[0]
    refuses(
        rack, first.but(payload=bytes(MTU - 4)), NAK_INVALID, "invalid_request", expected=MTU, got=MTU - 4
    )


def test_first_of_a_message_that_is_one_packet(rack):
    first = rack.workers()[0].write(0, ints(2))[0]
    refuses(rack, first.but(dma_len=MTU), NAK_INVALID, "invalid_request", expected=MTU, got=MTU)


def test_only_of_more_than_an_mtu(rack):
    (only,) = rack.workers()[0].write(0, ints(1))
    refuses(rack, only.but(dma_len=MTU + 4), NAK_INVALID, "invalid_request", expected=MTU, got=MTU + 4)


@pytest.mark.parametrize("payload", [8, 0])
def test_only_whose_payload_is_not_its_length(rack, payload):
    (only,) = rack.workers()[0].write(0, ints(0, tail_bytes=12))
    refuses(rack, only.but(payload=bytes(payload)), NAK_INVALID, "invalid_request", expected=12, got=payload)


@pytest.mark.parametrize("bytes_", [0, 1, 2, 3, 5])
def test_lengths_that_are_not_whole_elements(rack, bytes_):
    (only,) = rack.workers()[0].write(0, bytes(bytes_))
    refuses(rack, only, NAK_INVALID, "invalid_request")


def test_middle_where_the_last_is_due(rack):
    a, _ = rack.workers()
    first, second = a.write(0, ints(2))
    rack.poll(first)
    refuses(rack, second.but(opcode=wire.MIDDLE), NAK_INVALID, "invalid_request")


def test_last_before_it_is_due(rack):
    a, _ = rack.workers()
    first, second, _ = a.write(0, ints(3))
    rack.poll(first)
    refuses(rack, second.but(opcode=wire.LAST_IMM), NAK_INVALID, "invalid_request")


@pytest.mark.parametrize("wrong", [0, 8, 16, MTU])
def test_last_that_is_not_exactly_the_residual(rack, wrong):
    a, _ = rack.workers()
    first, last = a.write(0, ints(1, tail_bytes=12))
    rack.poll(first)
    refuses(rack, last.but(payload=bytes(wrong)), NAK_INVALID, "invalid_request", expected=12, got=wrong)


def test_a_message_that_ends_without_an_immediate(rack):
    a, _ = rack.workers()
    (only,) = a.write(0, ints(1))
    refuses(rack, only.but(opcode=wire.ONLY), NAK_INVALID, "invalid_request")


# ---- Access. ----


def test_wrong_rkey(rack):
    a, _ = rack.workers()
    (only,) = a.write(0, ints(1))
    wrong = a.rkey ^ 1
    refuses(rack, only.but(rkey=wrong), NAK_ACCESS, "remote_access", expected=a.rkey, got=wrong)


@pytest.mark.parametrize("window", [4, 63, 255])
def test_op_window_that_does_not_exist(rack, window):
    a, _ = rack.workers()
    (only,) = a.write(0, ints(1))
    va = (a.va_base + (window << 56)) & (1 << 64) - 1
    refuses(rack, only.but(va=va), NAK_ACCESS, "remote_access", expected=3, got=window)


def test_address_below_the_base(rack):
    a, _ = rack.workers()
    (only,) = a.write(0, ints(1))
    refuses(
        rack, only.but(va=a.va_base - 4 & (1 << 64) - 1), NAK_ACCESS, "remote_access", expected=3, got=255
    )


def test_address_inside_a_slot(rack):
    a, _ = rack.workers()
    (only,) = a.write(0, ints(1))
    refuses(rack, only.but(va=a.address(0, byte=4)), NAK_ACCESS, "remote_access", expected=0, got=4)


def test_message_longer_than_a_slot(rack):
    a, _ = rack.workers()
    first = a.write(0, ints(5))[0]
    refuses(rack, first, NAK_ACCESS, "remote_access", expected=4 * MTU, got=5 * MTU)


# ---- Round, op, length, immediate: what all ranks must agree on. ----


@pytest.mark.parametrize("round", [1, 2, 7, 0xFFFFFFFF])
def test_round_that_is_not_the_rank_s_next(rack, round):
    (only,) = rack.workers()[0].write(round, ints(1))
    event = refuses(rack, only, NAK_INVALID, "round_mismatch", expected=0, got=round)
    assert event.complete == (0,)


def test_a_round_a_second_time(rack):
    a, _ = rack.workers()
    rack.poll(*a.write(0, ints(1)))
    refuses(rack, a.write(0, ints(1))[0], NAK_INVALID, "round_mismatch", expected=1, got=0)


def test_round_outside_the_window(rack):
    a, _ = rack.workers()
    rack.poll(*a.write(0, ints(1)), *a.write(1, ints(1)))
    refuses(rack, a.write(2, ints(1))[0], NAK_INVALID, "round_mismatch", expected=1, got=2)


def test_round_whose_predecessor_s_result_was_never_sent(rack):
    """Round 0 is complete, but a has not been sent its result: it cannot have drained it."""
    a, b = rack.workers()
    rack.poll(*a.write(0, ints(1)), *a.write(1, ints(1)))
    rack.poll(*b.write(0, ints(1)), max_emits=0)
    packet = a.write(2, ints(1))[0]
    out = rack.poll(packet, max_emits=1)
    assert [(psn, s) for psn, s, _ in acks(out)] == [(packet.psn, NAK_INVALID)]
    event = rack.fault()
    assert (event.fault, event.got, event.complete) == ("round_mismatch", 2, (1,))


def test_op_differs(rack):
    a, b = rack.workers()
    rack.poll(*b.write(0, ints(1), op=SUM_I32))
    only = a.write(0, ints(1), op=SUM_F32)[0]
    refuses(rack, only, NAK_INVALID, "op_mismatch", expected=SUM_I32, got=SUM_F32)


def test_length_differs(rack):
    a, b = rack.workers()
    rack.poll(*b.write(0, ints(1)))
    first = a.write(0, ints(2))[0]
    refuses(rack, first, NAK_INVALID, "length_mismatch", expected=MTU, got=2 * MTU)


@pytest.mark.parametrize("packets", [1, 3])
def test_immediate_differs(rack, packets):
    a, b = rack.workers()
    rack.poll(*b.write(0, ints(packets), imm=111))
    *others, last = a.write(0, ints(packets), imm=222)
    out = rack.poll(*others)
    assert all(p.opcode != wire.LAST_IMM for p in out)
    refuses(rack, last, NAK_INVALID, "imm_mismatch", expected=111, got=222)
    assert results(rack.poll()) == [], "nothing of the round is published any more"


def test_a_refusal_stops_the_whole_job(rack):
    a, b = rack.workers()
    rack.poll(*b.write(0, ints(1)))
    rack.poll(a.packet(wire.MIDDLE, a.psn, payload=bytes(MTU)))
    assert rack.poll(*b.write(1, ints(1))) == []
    assert rack.drops() == {"refused": 1, "qp_state": 1}
    assert rack.jobs[0].stats.faults == 1


def test_a_refusal_that_found_no_room_is_sent_in_the_next_turn(rack):
    a, _ = rack.workers()
    packet = a.packet(wire.MIDDLE, a.psn, payload=bytes(MTU))
    assert rack.poll(packet, max_emits=0) == []
    assert acks(rack.poll()) == [(packet.psn, NAK_INVALID, 0)]
    assert rack.poll() == []


# ---- The probe. ----


@pytest.mark.parametrize(
    ("fields", "syndrome", "fault"),
    [
        ({"imm": PROBE_IMM + 1}, NAK_INVALID, "invalid_request"),
        ({"dma_len": MTU - 4, "payload": bytes(MTU - 4)}, NAK_INVALID, "invalid_request"),
    ],
)
def test_a_probe_that_is_not_one(rack, fields, syndrome, fault):
    refuses(rack, rack.workers()[0].probe().but(**fields), syndrome, fault)


def test_a_probe_of_another_round(rack):
    a, _ = rack.workers()
    packet = a.probe().but(va=a.address(1, window=0))
    refuses(rack, packet, NAK_ACCESS, "remote_access", expected=0, got=1)


def test_a_probe_after_the_first_round(rack):
    """Our own would be written over result 0."""
    a, _ = rack.workers()
    rack.poll(*a.write(0, ints(1)))
    refuses(rack, a.probe(), NAK_INVALID, "round_mismatch", expected=1, got=0)


# ---- Silent drops. ----


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"src": 99}, "foreign_peer"),
        ({"dst": 2}, "foreign_ip"),
        ({"dst_mac": "02:00:00:00:00:09"}, "foreign_mac"),
        ({"p_key": 0x8001}, "p_key"),
        ({"opcode": 0x1F}, "opcode"),
    ],
)
def test_what_is_not_for_us_is_dropped_without_a_word(rack, family, fields, reason):
    a, b = rack.workers()
    fields = {name: family.host(value) if name in ("src", "dst") else value for name, value in fields.items()}
    x = ints(1)
    (packet,) = a.write(0, x)
    assert rack.poll(packet.but(**fields)) == []
    assert rack.drops() == {reason: 1}
    rack.run([packet, *b.write(0, x)])
    np.testing.assert_array_equal(a.result(0, x), x + x)


@pytest.mark.parametrize("bit", [0, 1 << 14, 1 << 4, 1 << 23])
def test_an_unknown_qpn_is_dropped(rack, bit):
    a, _ = rack.workers()
    (packet,) = a.write(0, ints(1))
    qpn = packet.qpn ^ bit if bit else 0xFFFFFF
    assert rack.poll(packet.but(qpn=qpn)) == []
    assert set(rack.drops()) <= {"unknown_qp", "foreign_peer"} and sum(rack.drops().values()) == 1


@pytest.mark.parametrize("place", [-1, -5, 20, 26, 46, 86])
def test_a_bad_icrc_is_dropped_and_the_next_packet_executed(rack, family, place):
    """A bit at a place from the UDP header on, or from the end back."""
    a, b = rack.workers()
    x = ints(1)
    (packet,) = a.write(0, x)
    frame = bytearray(wire.build(packet))
    frame[place if place < 0 else wire.ETHERNET_BYTES + family.ip_bytes + place] ^= 0x10
    assert rack.feed(bytes(frame)) == []
    assert rack.drops() == {"icrc": 1}
    rack.run([packet, *b.write(0, x)])
    np.testing.assert_array_equal(a.result(0, x), x + x)


@pytest.mark.parametrize("same_place", [True, False])
@pytest.mark.parametrize("wrong", range(16))
def test_bad_icrcs_in_a_burst_are_found_each(make_rack, wrong, same_place):
    """One bit in some packets of a slot, or in all of them, the first contribution included, in one burst.

    A burst's packets may be checked together: those that are sound must pass all the same, and only those."""
    rack = make_rack(mtu=1024)
    a, b = rack.workers()
    x, y = ints(8, seed=1), ints(8, seed=2)
    packets = [p for pair in zip(a.write(0, x), b.write(0, y), strict=True) for p in pair]
    frames = [bytearray(wire.build(packet)) for packet in packets]
    for i, frame in enumerate(frames):
        if wrong >> i & 1:
            frame[-5 - (0 if same_place else 100 * i)] ^= 0x10
    rack.feed(*map(bytes, frames))
    assert rack.drops().get("icrc", 0) == wrong.bit_count()
    gaps = sum(wrong >> rank & 0b101 == 1 for rank in range(2))
    assert rack.drops().get("gap", 0) == gaps, "a sound packet behind a bad one of its own QP"
    if wrong:
        rack.run(packets)
        np.testing.assert_array_equal(a.result(0, x), x + y)
        np.testing.assert_array_equal(b.result(0, x), x + y)


# ---- Congestion. ----


def test_a_ce_mark_is_notified_at_most_once_in_50_us(rack):
    a, _ = rack.workers()
    first, second, third, fourth = (p.but(tos=wire.DSCP << 2 | 3) for p in a.write(0, ints(4)))
    (cnp,) = rack.poll(first, second)
    assert (cnp.opcode, cnp.qpn, cnp.psn) == (wire.CNP, a.qpn, 0)
    assert rack.poll(third, after_ns=49_999) == []
    assert [p.opcode for p in rack.poll(fourth, after_ns=1)] == [wire.ACK, wire.CNP]
    assert rack.stats.cnps_sent == 2


def test_a_notification_is_counted(rack):
    a, _ = rack.workers()
    assert rack.poll(a.packet(wire.CNP, 0)) == []
    assert rack.stats.cnps_received == 1 and not rack.drops()
