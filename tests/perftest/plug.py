"""A further port of the bench's switch, for as long as somebody needs it. See tests/softroce/bench/fabric.sh."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MTU = "9000"
SWITCH = "br0"


@contextmanager
def port(interface: str) -> Iterator[str]:
    """A new interface whose other end is plugged into the switch."""
    other = f"b{interface}"
    _ip("link", "add", interface, "mtu", MTU, "type", "veth", "peer", "name", other, "mtu", MTU)
    try:
        for end in (interface, other):  # every frame on the wire is one that somebody meant
            Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
        _ip("link", "set", other, "master", SWITCH, "up")
        _ip("link", "set", interface, "up")
        yield interface
    finally:
        _ip("link", "del", interface)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
