"""ARP and ping frames, by scapy."""

from __future__ import annotations

from scapy.compat import raw
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether

from .wire import APPLIANCE_IP, APPLIANCE_MAC

BROADCAST = "ff:ff:ff:ff:ff:ff"


def arp_reply(ip: str, mac: str) -> bytes:
    """`ip` is at `mac`, told to the appliance."""
    return raw(
        Ether(src=mac, dst=APPLIANCE_MAC)
        / ARP(op="is-at", hwsrc=mac, psrc=ip, hwdst=APPLIANCE_MAC, pdst=APPLIANCE_IP)
    )


def arp_request(ip: str, mac: str, target: str = APPLIANCE_IP) -> bytes:
    """Who has `target`? Asks `ip`."""
    return raw(Ether(src=mac, dst=BROADCAST) / ARP(op="who-has", hwsrc=mac, psrc=ip, pdst=target))


def ping(ip: str, mac: str, data: bytes) -> bytes:
    """An ICMP echo request to the appliance."""
    return raw(
        Ether(src=mac, dst=APPLIANCE_MAC) / IP(src=ip, dst=APPLIANCE_IP) / ICMP(type=8, id=7, seq=9) / data
    )
