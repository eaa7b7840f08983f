"""What the lane answers besides RoCE."""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from .hosts import arp_reply, arp_request, ping
from .wire import APPLIANCE_IP, APPLIANCE_MAC

ASKER_IP, ASKER_MAC = "10.0.0.77", "02:00:00:00:00:77"


def test_who_has_our_address_is_told(rack):
    rack.feed(arp_request(ASKER_IP, ASKER_MAC))
    (answer,) = rack.other
    arp = Ether(answer)[ARP]
    assert Ether(answer).dst == ASKER_MAC and len(answer) == 60
    assert (arp.op, arp.hwsrc, arp.psrc, arp.pdst) == (2, APPLIANCE_MAC, APPLIANCE_IP, ASKER_IP)


def test_who_has_another_address_is_not(rack):
    rack.feed(arp_request(ASKER_IP, ASKER_MAC, target="10.0.0.2"))
    assert rack.other == []


def test_an_arp_reply_is_not_answered(rack):
    rack.feed(arp_reply(ASKER_IP, ASKER_MAC))
    assert rack.other == []


@pytest.mark.parametrize("length", [0, 1, 56, 1000, 8000])
def test_ping_is_answered_with_its_own_data(rack, length):
    rack.feed(ping(ASKER_IP, ASKER_MAC, bytes(i % 251 for i in range(length))))
    (answer,) = rack.other
    packet = Ether(answer)
    assert (packet.dst, packet[IP].src, packet[IP].dst) == (ASKER_MAC, APPLIANCE_IP, ASKER_IP)
    assert (packet[ICMP].type, packet[ICMP].id, packet[ICMP].seq) == (0, 7, 9)
    assert packet[IP].len == 28 + length
    if length:
        assert bytes(packet[Raw].load)[:length] == bytes(i % 251 for i in range(length))


def test_answers_in_the_port_s_hands_are_not_written_over(rack):
    rack.held = []
    for _ in range(20):
        rack.feed(arp_request(ASKER_IP, ASKER_MAC))
    assert len(rack.other) == 16
    assert rack.drops() == {"no_buffer": 4}
    rack.release()
    rack.feed(arp_request(ASKER_IP, ASKER_MAC))
    assert len(rack.other) == 17


def test_what_needs_no_answer_lacks_no_buffer(rack):
    """Neither where the port is full nor where every answer is in its hands."""
    for_another = arp_request(ASKER_IP, ASKER_MAC, target="10.0.0.2")
    rack.feed(for_another, max_emits=0)
    rack.held = []
    rack.feed(*[arp_request(ASKER_IP, ASKER_MAC)] * 16)
    rack.feed(for_another, arp_reply(ASKER_IP, ASKER_MAC))
    assert rack.drops() == {}
    rack.release()
    rack.feed(arp_request(ASKER_IP, ASKER_MAC), max_emits=0)
    assert rack.drops() == {"no_buffer": 1}


@pytest.mark.parametrize("frame", [b"", b"\x00", bytes(13), bytes(14), b"\xff" * 60, bytes(64)])
def test_rubbish_is_dropped(rack, frame):
    assert rack.feed(frame) == [] and rack.other == []
    assert sum(rack.drops().values()) == 1
