"""What the lane answers besides RoCE, and whom it believes."""

from __future__ import annotations

import pytest
from scapy.compat import raw
from scapy.layers.inet import ICMP
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from .hosts import asked_for, checksum_ok, is_at, ping, solicited_node, who_has
from .rack import Rack
from .wire import APPLIANCE_MAC, V4, V6

ASKER_MAC = "02:00:00:00:00:77"
ALL_NODES, ALL_NODES_MAC = "ff02::1", "33:33:00:00:00:01"


@pytest.fixture
def asker(family):
    return family.host(0x77)


def test_who_has_our_address_is_told(rack, family, asker):
    rack.feed(who_has(asker, ASKER_MAC))
    (frame,) = rack.other
    ether = Ether(frame)
    assert (ether.dst, ether.src) == (ASKER_MAC, APPLIANCE_MAC)
    if family is V4:
        arp = ether[ARP]
        assert (arp.op, arp.hwsrc, arp.psrc, arp.pdst) == (2, APPLIANCE_MAC, family.appliance, asker)
        assert len(frame) == 60
    else:
        ip, answer = ether[IPv6], ether[ICMPv6ND_NA]
        assert (ip.src, ip.dst, ip.hlim) == (family.appliance, asker, 255) and checksum_ok(ip)
        assert (answer.R, answer.S, answer.O, answer.tgt) == (0, 1, 1, family.appliance)
        assert ether[ICMPv6NDOptDstLLAddr].lladdr == APPLIANCE_MAC


def test_who_has_another_address_is_not(rack, family, asker):
    rack.feed(who_has(asker, ASKER_MAC, target=family.host(2)))
    assert rack.other == []


def test_an_answer_is_not_answered(rack, asker):
    rack.feed(is_at(asker, ASKER_MAC))
    assert rack.other == []


@pytest.mark.parametrize("length", [0, 1, 56, 1000, 8000])
def test_ping_is_answered_with_its_own_data(rack, family, asker, length):
    data = bytes(i % 251 for i in range(length))
    rack.feed(ping(asker, ASKER_MAC, data))
    (frame,) = rack.other
    ether = Ether(frame)
    ip = ether.payload
    assert (ether.dst, ip.src, ip.dst) == (ASKER_MAC, family.appliance, asker)
    if family is V4:
        assert (ip[ICMP].type, ip[ICMP].id, ip[ICMP].seq, ip.len) == (0, 7, 9, 28 + length)
        assert not length or bytes(ip[Raw].load)[:length] == data
    else:
        reply = ip[ICMPv6EchoReply]
        assert (reply.id, reply.seq, ip.hlim, ip.plen) == (7, 9, 64, 8 + length) and checksum_ok(ip)
        assert reply.data == data


def test_answers_in_the_port_s_hands_are_not_written_over(rack, asker):
    rack.held = []
    for _ in range(20):
        rack.feed(who_has(asker, ASKER_MAC))
    assert len(rack.other) == 16
    assert rack.drops() == {"no_buffer": 4}
    rack.release()
    rack.feed(who_has(asker, ASKER_MAC))
    assert len(rack.other) == 17


def test_what_needs_no_answer_lacks_no_buffer(rack, family, asker):
    """Neither where the port is full nor where every answer is in its hands."""
    for_another = (
        is_at(asker, ASKER_MAC) if family is V6 else who_has(asker, ASKER_MAC, target=family.host(2))
    )
    rack.feed(for_another, max_emits=0)
    rack.held = []
    rack.feed(*[who_has(asker, ASKER_MAC)] * 16)
    rack.feed(for_another, is_at(asker, ASKER_MAC))
    assert rack.drops() == {}
    rack.release()
    rack.feed(who_has(asker, ASKER_MAC), max_emits=0)
    assert rack.drops() == {"no_buffer": 1}


@pytest.mark.parametrize("frame", [b"", b"\x00", bytes(13), bytes(14), b"\xff" * 60, bytes(64)])
def test_rubbish_is_dropped(rack, frame):
    assert rack.feed(frame) == [] and rack.other == []
    assert sum(rack.drops().values()) == 1


# ---- Neighbour discovery: which messages are sound (RFC 4861 7.1). ----

OURS, ASKER = V6.appliance, V6.host(0x77)
GROUP, GROUP_MAC = solicited_node(OURS)
SLLA = ICMPv6NDOptSrcLLAddr(lladdr=ASKER_MAC)
TLLA = ICMPv6NDOptDstLLAddr(lladdr=ASKER_MAC)


def nd(*, mac=GROUP_MAC, src=ASKER, dst=GROUP, hops=255, message=None, options=SLLA):
    """A neighbour discovery frame, by default a sound question about our address."""
    message = message or ICMPv6ND_NS(tgt=OURS)
    return raw(Ether(src=ASKER_MAC, dst=mac) / IPv6(src=src, dst=dst, hlim=hops) / message / options)


def advertisement(**changes):
    """A sound answer of the asker to us."""
    sound = {
        "mac": APPLIANCE_MAC,
        "dst": OURS,
        "message": ICMPv6ND_NA(R=0, S=1, O=1, tgt=ASKER),
        "options": TLLA,
    }
    return nd(**sound | changes)


def corrupted(frame):
    return frame[:-1] + bytes([frame[-1] ^ 1])


NOT_ANSWERED = {
    "hop limit 254": nd(hops=254),
    "hop limit 0": nd(hops=0),
    "code 1": nd(message=ICMPv6ND_NS(tgt=OURS, code=1)),
    "wrong checksum": corrupted(nd()),
    "target is a group": nd(message=ICMPv6ND_NS(tgt=GROUP)),
    "another target": nd(message=ICMPv6ND_NS(tgt=V6.host(3))),
    "another target of our group": nd(message=ICMPv6ND_NS(tgt="fd00:78::1")),
    "option of length 0": nd(options=Raw(b"\x01\x00" + bytes(6))),
    "option longer than the message": nd(options=Raw(b"\x01\x02" + bytes(6))),
    "half an option": nd(options=Raw(b"\x01\x01" + bytes(5))),
    "message of 23 bytes": nd(message=Raw(b"\x87" + bytes(22)), options=Raw(b"")),
    "from a group": nd(src="ff02::5"),
    "from our own address": nd(src=OURS),
    "from loopback": nd(src="::1"),
    "the MAC of a group": nd(options=ICMPv6NDOptSrcLLAddr(lladdr=ALL_NODES_MAC)),
    "from nobody, naming a MAC": nd(src="::"),
    "from nobody, to our address": nd(src="::", mac=APPLIANCE_MAC, dst=OURS, options=Raw(b"")),
    "to all nodes": nd(mac=ALL_NODES_MAC, dst=ALL_NODES),
    "to our address at the group's MAC": nd(dst=OURS),
    "to the group of another address": nd(dst=solicited_node(V6.host(3))[0]),
}
ANSWERED = {
    "to our group": nd(),
    "to our address, as for a neighbour that is known": nd(mac=APPLIANCE_MAC, dst=OURS),
    "to our group at our own MAC": nd(mac=APPLIANCE_MAC),
    "without naming a MAC": nd(mac=APPLIANCE_MAC, dst=OURS, options=Raw(b"")),
    "with an option that nobody knows": nd(options=Raw(b"\xfd\x02" + bytes(14)) / SLLA),
}


@pytest.mark.parametrize("what", NOT_ANSWERED)
def test_an_unsound_solicitation_is_not_answered(what):
    rack = Rack(family=V6)
    rack.feed(NOT_ANSWERED[what])
    assert rack.other == []
    rack.feed(nd())
    assert len(rack.other) == 1, "a sound one that follows is"
    rack.close()


@pytest.mark.parametrize("what", ANSWERED)
def test_a_sound_solicitation_is_answered(what):
    rack = Rack(family=V6)
    rack.feed(ANSWERED[what])
    (frame,) = rack.other
    assert (Ether(frame).dst, Ether(frame)[IPv6].dst) == (ASKER_MAC, ASKER)
    rack.close()


def test_whoever_is_about_to_take_our_address_hears_that_it_is_taken():
    """RFC 4862 5.4: the question comes from nobody, so the answer goes to all nodes."""
    rack = Rack(family=V6)
    rack.feed(nd(src="::", options=Raw(b"")))
    (frame,) = rack.other
    ether = Ether(frame)
    assert (ether.dst, ether[IPv6].dst) == (ALL_NODES_MAC, ALL_NODES)
    assert (ether[ICMPv6ND_NA].S, ether[ICMPv6ND_NA].O, ether[ICMPv6ND_NA].tgt) == (0, 1, OURS)
    rack.close()


NOT_BELIEVED = {
    "hop limit 254": advertisement(hops=254),
    "code 1": advertisement(message=ICMPv6ND_NA(S=1, tgt=ASKER, code=1)),
    "wrong checksum": corrupted(advertisement()),
    "no MAC": advertisement(options=Raw(b"")),
    "the MAC of a group": advertisement(options=ICMPv6NDOptDstLLAddr(lladdr=ALL_NODES_MAC)),
    "option of length 0": advertisement(options=Raw(b"\x02\x00" + bytes(6))),
    "the source's MAC, not the target's": advertisement(options=SLLA),
    "about another address": advertisement(message=ICMPv6ND_NA(S=1, tgt=V6.host(0x78))),
    "a question that is not about us": nd(message=ICMPv6ND_NS(tgt=V6.host(3))),
    "a question without a MAC": nd(mac=APPLIANCE_MAC, dst=OURS, options=Raw(b"")),
    "an IPv4 answer": is_at(V4.host(0x77), ASKER_MAC),
}
BELIEVED = {
    "an answer": advertisement(),
    "a question": nd(),
    "a question to our MAC": nd(mac=APPLIANCE_MAC, dst=OURS),
}


@pytest.mark.parametrize("what", NOT_BELIEVED | BELIEVED)
def test_a_neighbour_s_mac_is_learned_from_sound_messages_alone(what):
    rack = Rack(family=V6, connected=False)
    worker = rack.workers()[0]
    worker.ip = ASKER
    assert rack.connect(worker)
    rack.poll()
    assert [asked_for(frame) for frame in rack.other] == [ASKER]
    rack.feed((NOT_BELIEVED | BELIEVED)[what])
    assert [event.kind for event in rack.events()] == ["connected"] * (what in BELIEVED)
    rack.feed(advertisement())
    assert [event.kind for event in rack.events()] == ["connected"] * (what in NOT_BELIEVED)
    rack.close()


@pytest.mark.parametrize("next_header", [0, 43, 44, 51, 60, 59, 6, 17])
def test_what_stands_before_a_message_is_not_skipped(next_header):
    """Extension headers are refused and counted."""
    frame = bytearray(ping(ASKER, ASKER_MAC, bytes(56)))
    frame[20] = next_header
    rack = Rack(family=V6)
    rack.feed(bytes(frame))
    reason = {44: "ip_fragment", 59: "not_roce", 6: "not_roce", 17: "not_roce"}.get(next_header, "ip_header")
    assert rack.other == [] and rack.drops() == {reason: 1}
    rack.close()
