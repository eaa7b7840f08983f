"""Frames of ARP, neighbour discovery and ping, by scapy; the address family follows from the addresses."""

from __future__ import annotations

from scapy.compat import raw
from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet
from scapy.utils6 import in6_getnsma, in6_getnsmac, inet_ntop, inet_pton

from .wire import APPLIANCE_MAC, V6, family_of

BROADCAST = "ff:ff:ff:ff:ff:ff"


def solicited_node(ip: str) -> tuple[str, str]:
    """Group of an IPv6 address and the group's MAC."""
    group = in6_getnsma(inet_pton(10, ip))
    return inet_ntop(10, group), in6_getnsmac(group)


def is_at(ip: str, mac: str) -> bytes:
    """`ip` is at `mac`, told to the appliance."""
    family = family_of(ip)
    if family is V6:
        return raw(
            Ether(src=mac, dst=APPLIANCE_MAC)
            / IPv6(src=ip, dst=family.appliance, hlim=255)
            / ICMPv6ND_NA(R=0, S=1, O=1, tgt=ip)
            / ICMPv6NDOptDstLLAddr(lladdr=mac)
        )
    return raw(
        Ether(src=mac, dst=APPLIANCE_MAC)
        / ARP(op="is-at", hwsrc=mac, psrc=ip, hwdst=APPLIANCE_MAC, pdst=family.appliance)
    )


def who_has(ip: str, mac: str, target: str | None = None) -> bytes:
    """Who has `target`, by default the appliance's address? Asks `ip`."""
    family = family_of(ip)
    target = target or family.appliance
    if family is V6:
        group, group_mac = solicited_node(target)
        return raw(
            Ether(src=mac, dst=group_mac)
            / IPv6(src=ip, dst=group, hlim=255)
            / ICMPv6ND_NS(tgt=target)
            / ICMPv6NDOptSrcLLAddr(lladdr=mac)
        )
    return raw(Ether(src=mac, dst=BROADCAST) / ARP(op="who-has", hwsrc=mac, psrc=ip, pdst=target))


def asked_for(frame: bytes) -> str:
    """The address that a question of the appliance asks for; everything about the question is checked."""
    ether = Ether(frame)
    if ARP in ether:
        arp = ether[ARP]
        assert (ether.dst, ether.src, len(frame)) == (BROADCAST, APPLIANCE_MAC, 60)
        assert (arp.op, arp.hwsrc, arp.psrc) == (1, APPLIANCE_MAC, family_of(arp.pdst).appliance)
        return str(arp.pdst)
    ip, question = ether[IPv6], ether[ICMPv6ND_NS]
    target = str(question.tgt)
    assert (ether.src, ip.src, ip.hlim, question.code) == (APPLIANCE_MAC, V6.appliance, 255, 0)
    assert (ip.dst, ether.dst) == solicited_node(target)
    assert ether[ICMPv6NDOptSrcLLAddr].lladdr == APPLIANCE_MAC
    assert checksum_ok(ip)
    return target


def checksum_ok(ip: Packet) -> bool:
    """Whether scapy computes the same ICMPv6 checksum."""
    again = ip.copy()
    del again.payload.cksum
    return bool(raw(again) == raw(ip))


def ping(ip: str, mac: str, data: bytes) -> bytes:
    """An echo request to the appliance."""
    family = family_of(ip)
    ether = Ether(src=mac, dst=APPLIANCE_MAC)
    if family is V6:
        return raw(ether / IPv6(src=ip, dst=family.appliance) / ICMPv6EchoRequest(id=7, seq=9, data=data))
    return raw(ether / IP(src=ip, dst=family.appliance) / ICMP(type=8, id=7, seq=9) / data)
