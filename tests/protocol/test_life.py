"""A job's life: connect, probe, leave, detach."""

from __future__ import annotations

import pytest

from . import wire
from .hosts import asked_for, is_at, who_has
from .rack import RETRANSMIT_NS, acks, ints, results
from .wire import V4, V6
from .worker import PROBE_IMM

SECOND_NS = 1_000_000_000


def leave(rack, rank, *received, job=0):
    assert rack.apply("LEAVE", rack.jobs[job], rank=rank, received=list(received))


# ---- Connect. ----


def test_connect_asks_for_the_worker_s_mac_and_tells_when_it_is_known(make_rack):
    rack = make_rack(connected=False)
    a, b = rack.workers()
    assert rack.connect(a) and rack.poll() == [] and len(rack.other) == 1
    assert asked_for(rack.other[0]) == a.ip
    assert rack.poll(*a.write(0, ints(1))) == [] and rack.drops() == {"qp_state": 1}
    rack.feed(is_at(b.ip, b.mac))
    assert rack.events() == [], "not the one that was asked for"
    rack.feed(is_at(a.ip, a.mac))
    assert [(e.kind, e.rank) for e in rack.events()] == [("connected", 0)]
    assert rack.connect(b)
    rack.feed(who_has(b.ip, b.mac))
    assert [(e.kind, e.rank) for e in rack.events()] == [("connected", 1)], (
        "a request tells its asker's MAC too"
    )


def test_a_known_mac_is_used_at_once_and_asked_for_again_when_it_is_old(make_rack):
    rack = make_rack()
    rack.detach(rack.jobs[0])
    rack.connected = False
    old = rack.workers()[0]
    again = rack.add_job()
    again.workers[0][0].ip, again.workers[0][0].mac = old.ip, old.mac
    assert rack.connect(again.workers[0][0])
    assert [e.kind for e in rack.events()] == ["connected"] and rack.other == []
    rack.now_ns += 61 * SECOND_NS
    again.workers[0][1].ip = old.ip
    assert rack.connect(again.workers[0][1])
    rack.poll()
    assert rack.events() == [] and len(rack.other) == 1


def test_a_worker_behind_a_router_is_reached_by_the_gateway(make_rack, family):
    rack = make_rack(connected=False, prefix=family.elsewhere)
    a, _ = rack.workers()
    rack.connect(a)
    rack.poll()
    assert asked_for(rack.other[0]) == family.gateway
    rack.feed(is_at(family.gateway, "02:00:00:00:00:fe"))
    assert [e.kind for e in rack.events()] == ["connected"]
    (answer,) = rack.poll(a.write(0, ints(1))[0])
    assert (answer.dst, answer.dst_mac) == (a.ip, "02:00:00:00:00:fe")


def test_no_answer_about_the_next_hop_is_a_fault(make_rack):
    rack = make_rack(connected=False)
    rack.connect(rack.workers()[1])
    for _ in range(11):
        rack.poll(after_ns=100_000_000)
    assert len(rack.other) == 10
    fault = rack.fault()
    assert (fault.fault, fault.rank) == ("unreachable", 1)
    rack.poll(after_ns=SECOND_NS)
    assert len(rack.other) == 10


def test_who_did_not_answer_once_is_asked_again_for_the_next_job(make_rack, family):
    """Both hosts stand behind the gateway; the first job, which is in RTS, keeps it in the table."""
    rack = make_rack(connected=False, prefix=family.elsewhere)
    rack.connect(rack.workers()[0])
    rack.feed(is_at(family.gateway, "02:00:00:00:00:fe"))
    rack.now_ns += 61 * SECOND_NS
    for job in (1, 2):
        rack.other.clear()
        rack.add_job(prefix=family.elsewhere)
        rack.connect(rack.workers(job)[0])
        rack.events()
        for _ in range(11):
            assert not rack.events(), "not given up before"
            rack.poll(after_ns=100_000_000)
        assert len(rack.other) == 10 and rack.fault().fault == "unreachable"


def test_a_worker_s_new_mac_is_followed(rack):
    a, _ = rack.workers()
    rack.feed(is_at(a.ip, "02:00:00:00:01:77"))
    (answer,) = rack.poll(a.write(0, ints(1))[0])
    assert answer.dst_mac == "02:00:00:00:01:77"


def test_every_packet_of_a_result_follows_a_new_mac(rack):
    a, b = rack.workers()
    for round, mac in enumerate([a.mac, "02:00:00:00:01:77"]):
        a.mac = mac
        rack.feed(is_at(a.ip, mac))
        sent = rack.poll(*a.write(round, ints(4)), *b.write(round, ints(4)))
        assert [packet.dst_mac for packet in results(sent, a)] == [mac] * 4
        rack.run(answer for packet in results(sent) for answer in rack.owner(packet).receive(packet))


@pytest.mark.parametrize(
    "changes",
    [{"qpn": 0x14}, {"pool": 1}, {"rank": 2}, {"qpn": 1 << 24 | 0x13}],
    ids=["lane", "pool", "rank", "qpn"],
)
def test_an_impossible_connect_changes_nothing(make_rack, changes):
    rack = make_rack(connected=False)
    assert not rack.connect(rack.workers()[0], **changes)
    assert rack.connect(rack.workers()[0])
    assert not rack.connect(rack.workers()[0]), "connected already"
    assert not rack.connect(rack.workers()[1], qpn=rack.workers()[0].appliance_qpn), "the QPN is taken"
    assert rack.stats.qps == 1


def test_a_peer_of_the_other_address_family_is_impossible(make_rack, family):
    rack = make_rack(connected=False)
    worker = rack.workers()[0]
    worker.ip = (V4 if family is V6 else V6).host(10)
    assert not rack.connect(worker) and rack.stats.qps == 0


# ---- Probe. ----


def test_a_probe_is_answered_by_ours_and_told_when_both_have_passed(rack):
    a, b = rack.workers()
    out = rack.poll(a.probe())
    (ours,) = results(out)
    assert (ours.opcode, ours.imm, ours.va, ours.rkey) == (
        wire.ONLY_IMM,
        PROBE_IMM,
        a.result_va,
        a.result_rkey,
    )
    assert ours.payload == bytes(rack.jobs[0].mtu) and ours.dma_len == rack.jobs[0].mtu and ours.ack_req
    assert rack.events() == []
    rack.poll(*a.receive(ours))
    assert [(e.kind, e.rank) for e in rack.events()] == [("probed", 0)]
    x = ints(2)
    rack.run([*a.write(0, x), *b.write(0, x)])
    assert (a.result(0, x) == x + x).all(), "a probe takes no round"
    assert rack.jobs[0].stats.contribution_bytes == 2 * x.nbytes
    assert rack.jobs[0].stats.result_bytes == 2 * x.nbytes


def test_a_second_probe_is_acknowledged_and_not_answered(rack):
    a, _ = rack.workers()
    rack.run([a.probe()])
    probe = a.probe()
    out = rack.poll(probe)
    assert acks(out) == [(probe.psn, 0x1F, 2)] and results(out) == []
    assert [e.kind for e in rack.events()] == ["probed"]


def test_a_lost_probe_is_sent_again(rack):
    a, _ = rack.workers()
    rack.poll(a.probe())
    (again,) = rack.poll(after_ns=2 * RETRANSMIT_NS)
    rack.poll(*a.receive(again))
    assert [e.kind for e in rack.events()] == ["probed"]


# ---- Leave. ----


def test_leave_is_answered_when_every_rank_has_every_result(rack):
    a, b = rack.workers()
    out = results(rack.poll(*a.write(0, ints(1)), *b.write(0, ints(1))))
    leave(rack, 0, 1)
    assert rack.events() == [], "b has not acknowledged"
    rack.poll(*(reply for p in results(out, b) for reply in b.receive(p)))
    assert [(e.kind, e.rank) for e in rack.events()] == [("left", 0)]
    leave(rack, 1, 1)
    assert [(e.kind, e.rank) for e in rack.events()] == [("left", 1)]
    assert rack.poll(after_ns=2 * RETRANSMIT_NS) == [], "leave has acknowledged a's result"


def test_leave_with_a_result_missing_is_answered_after_its_delivery(rack):
    a, b = rack.workers()
    lost = results(rack.poll(*a.write(0, ints(1)), *b.write(0, ints(1))))
    rack.poll(*b.receive(results(lost, b)[0]))
    leave(rack, 0, 0)
    assert rack.events() == []
    (again,) = rack.poll(after_ns=2 * RETRANSMIT_NS)
    rack.poll(*a.receive(again))
    assert [(e.kind, e.rank) for e in rack.events()] == [("left", 0)]


def test_what_a_leaving_rank_has_makes_room_for_what_it_lacks(make_rack):
    rack = make_rack(max_unacked=4)
    a, b = rack.workers()
    out = rack.poll(*(p for r in range(2) for w in (a, b) for p in w.write(r, ints(4))))
    while results(out, b):  # all of a's ACKs are lost
        out = rack.poll(*(reply for p in results(out, b) for reply in b.receive(p)))
    leave(rack, 0, 1)
    assert [p.opcode for p in results(rack.poll(), a)] == [
        wire.FIRST,
        wire.MIDDLE,
        wire.MIDDLE,
        wire.LAST_IMM,
    ]


def test_a_claim_to_have_what_was_never_sent_acknowledges_nothing(rack):
    a, b = rack.workers()
    rack.poll(*a.write(0, ints(1)), *b.write(0, ints(1)), max_emits=2)  # the two ACKs
    leave(rack, 0, 1)
    assert len(results(rack.poll())) == 2


def test_a_round_that_waits_for_a_rank_that_left_is_a_fault(rack):
    a, b = rack.workers()
    rack.run([*a.write(0, ints(1)), *b.write(0, ints(1))])
    leave(rack, 0, 1)
    assert rack.poll(*b.write(1, ints(1))) == []
    fault = [e for e in rack.events() if e.kind == "fault"]
    assert [(e.fault, e.rank, e.round, e.complete) for e in fault] == [("rank_left", 0, 1, (1,))]


def test_leaving_a_round_that_another_rank_has_begun_is_a_fault(rack):
    _, b = rack.workers()
    rack.poll(*b.write(0, ints(1)))
    leave(rack, 0, 0)
    assert rack.fault().fault == "rank_left"


def test_leaving_in_the_middle_of_a_message_is_a_fault_at_once(rack):
    a, _ = rack.workers()
    rack.poll(a.write(0, ints(2))[0])
    leave(rack, 0, 0)
    fault = rack.fault()
    assert (fault.fault, fault.rank, fault.round) == ("rank_left", 0, 0)
    rack.resume()
    assert [(e.kind, e.rank) for e in rack.events()] == [("left", 0)], "it was in no message in this epoch"


def test_the_fault_of_a_leave_is_told_before_any_left(make_rack):
    """Whoever reads LEFT first would take the rank's end for a good one."""
    rack = make_rack(world=3)
    workers = rack.workers()
    rack.run(p for w in workers for p in w.write(0, ints(1)))
    rack.poll(*workers[2].write(1, ints(1)))
    leave(rack, 0, 1)
    assert [e.kind for e in rack.events()] == ["fault"], "the leave is answered in a later epoch"
    rack.resume()
    assert [(e.kind, e.rank) for e in rack.events()] == [("left", 0)]


def test_a_fault_is_told_once(make_rack):
    rack = make_rack(pools=2)
    rack.poll(*rack.workers(pool=0)[1].write(0, ints(1)), *rack.workers(pool=1)[1].write(0, ints(1)))
    leave(rack, 0, 0, 0)
    assert rack.fault().fault == "rank_left", "both pools wait for the rank"
    assert rack.jobs[0].stats.faults == 1


def test_a_rank_that_left_is_still_acknowledged_but_not_executed(rack):
    a, b = rack.workers()
    (packet,) = a.write(0, ints(1))
    rack.run([packet, *b.write(0, ints(1))])
    leave(rack, 0, 1)
    assert acks(rack.poll(packet)) == [(packet.psn, 0x1F, 1)], "its NIC may have missed our ACK"
    assert rack.poll(*a.write(1, ints(1))) == [] and rack.drops() == {"duplicate": 1, "qp_state": 1}
    assert [e.kind for e in rack.events()] == ["left"]


def test_leave_covers_all_pools(make_rack):
    rack = make_rack(pools=2)
    small_a, small_b = rack.workers(pool=1)
    out = results(rack.poll(*small_a.write(0, ints(1)), *small_b.write(0, ints(1))))
    leave(rack, 0, 0, 1)
    assert rack.events() == []
    rack.poll(*small_b.receive(results(out, small_b)[0]))
    assert [e.kind for e in rack.events()] == ["left"]


def test_what_crosses_the_fault_on_its_way_is_not_refused(make_rack):
    rack = make_rack(connected=False)
    a, b = rack.workers()
    rack.connect(a)
    rack.feed(is_at(a.ip, a.mac))
    rack.poll(a.write(1, ints(1))[0])
    assert rack.fault().fault == "round_mismatch"
    leave(rack, 0, 0)
    assert rack.connect(b)
    assert rack.poll() == [] and rack.events() == [] and rack.stats.qps == 1


def test_an_impossible_leave_is_refused(rack):
    assert not rack.apply("LEAVE", rack.jobs[0], rank=2)
    leave(rack, 1, 0)
    assert not rack.apply("LEAVE", rack.jobs[0], rank=1)


# ---- Detach. ----


def test_detach_stops_at_once_and_is_answered_when_nothing_is_held(rack):
    a, b = rack.workers()
    rack.held = []
    rack.poll(*a.write(0, ints(1)), *b.write(0, ints(1)))
    assert rack.apply("DETACH", rack.jobs[0])
    assert rack.stats.qps == 0
    assert rack.poll(*a.write(1, ints(1)), after_ns=2 * RETRANSMIT_NS) == []
    rack.poll(after_ns=RETRANSMIT_NS)
    assert rack.drops() == {"unknown_qp": 1} and rack.events() == []
    rack.release()
    rack.poll(after_ns=RETRANSMIT_NS)
    assert [e.kind for e in rack.events()] == ["detached"]
    assert rack.stats.slots == 0
    assert not rack.apply("DETACH", rack.jobs[0])


def test_after_detach_nobody_is_asked_for(make_rack):
    rack = make_rack(connected=False)
    rack.connect(rack.workers()[0])
    rack.poll()
    assert len(rack.other) == 1
    rack.detach(rack.jobs[0])
    rack.poll(after_ns=SECOND_NS)
    assert len(rack.other) == 1


@pytest.mark.parametrize(("end", "faults"), [("left", 0), ("lost", 1), ("faulted", 1)])
def test_an_epoch_that_ends_before_everyone_has_left_counts_as_a_fault(rack, end, faults):
    a, _ = rack.workers()
    if end == "left":
        leave(rack, 0, 0)
        leave(rack, 1, 0)
    if end == "faulted":
        rack.poll(a.write(1, ints(1))[0])
    rack.detach(rack.jobs[0])
    assert rack.jobs[0].stats.faults == faults


def test_detach_with_everything_owed_and_unsent(rack):
    a, b = rack.workers()
    rack.poll(*a.write(0, ints(1)), *b.write(0, ints(1)), max_emits=0)
    rack.apply("DETACH", rack.jobs[0])
    assert rack.poll() == [] and [e.kind for e in rack.events()] == ["detached"]


def test_a_faulted_job_is_detached_and_its_qpns_can_be_another_s(rack):
    a, _ = rack.workers()
    rack.poll(a.packet(wire.MIDDLE, a.psn, payload=bytes(256)))
    assert rack.fault().fault == "invalid_request"
    rack.detach(rack.jobs[0])
    rack.connected = False
    job = rack.add_job()
    assert rack.connect(job.workers[0][0], qpn=a.appliance_qpn)


def test_fifty_lives_leave_nothing_behind(rack):
    for life in range(50):
        job = rack.jobs[life]
        (workers,) = job.workers
        rack.run(p for w in workers for p in [w.probe(), *w.write(0, ints(1))])
        leave(rack, 0, 1, job=life)
        leave(rack, 1, 1, job=life)
        assert [e.kind for e in rack.events()] == ["probed", "probed", "left", "left"]
        rack.detach(job)
        assert (rack.stats.qps, rack.stats.slots) == (0, 0)
        rack.add_job()


# ---- Specifications. ----


@pytest.mark.parametrize(
    "changes", [{"window": 3}, {"window": 256}, {"world": 0}, {"world": 65}, {"mtu": 300}]
)
def test_a_job_outside_the_limits_is_not_made(make_rack, changes):
    rack = make_rack()
    with pytest.raises(AssertionError):
        rack.add_job(**changes)
