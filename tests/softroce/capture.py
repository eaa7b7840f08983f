"""What was on the wire: tcpdump at the appliance's port of the switch, and scapy's opinion of each ICRC.

Touches one capture file. The port is `bapp`: app0 itself shows nothing of what DPDK sends, since PACKET_QDISC_BYPASS
bypasses the kernel's taps too.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

PORT = "bapp"
ROCE_UDP_PORT = 4791
ETHERNET_BYTES = 14
PATH_MTU = 4096
ICRC_BYTES = 4
START_TIMEOUT_S = 60.0


class Capture:
    """Context manager: RoCE and ARP frames between its begin and its end, in `path`."""

    def __init__(self, path: Path, expression: str = f"udp port {ROCE_UDP_PORT} or arp") -> None:
        self.path = path
        self._messages = path.with_suffix(".log")
        # A buffer of 64 MB, since a lost frame would be a false alarm; root, since the folder may be anybody's.
        options = ["-i", PORT, "-w", str(path), "-Z", "root", "-B", "65536", "--immediate-mode", "-s", "0"]
        with self._messages.open("wb") as log:
            self._tcpdump = subprocess.Popen(["tcpdump", *options, expression], stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while "listening on" not in self._messages.read_text():
            assert time.monotonic() < deadline, f"tcpdump does not start: {self._messages.read_text()}"
            time.sleep(0.05)

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        time.sleep(0.2)  # for what is on its way
        self._tcpdump.send_signal(signal.SIGINT)
        self._tcpdump.wait(timeout=60)
        lost = re.search(r"(\d+) packets? dropped by kernel", self._messages.read_text())
        assert lost and lost[1] == "0", f"an incomplete capture proves nothing: {self._messages.read_text()}"


def roce_frames(path: Path) -> list[bytes]:
    """Frames of the capture that are RoCEv2 over IPv4, whole."""
    from scapy.utils import RawPcapReader

    frames = [frame for frame, _ in RawPcapReader(str(path))]
    return [frame for frame in frames if _is_roce(frame)]


def _is_roce(frame: bytes) -> bool:
    ethertype, protocol, port = frame[12:14], frame[23], frame[36:38]
    return (ethertype, protocol, port) == (b"\x08\x00", 17, ROCE_UDP_PORT.to_bytes(2, "big"))


def icrc_by_scapy(frame: bytes) -> bytes:
    """The four ICRC bytes that scapy computes for a frame."""
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP

    packet = IP(_datagram(frame))
    return bytes(packet[BTH].compute_icrc(b""))


def icrc_on_wire(frame: bytes) -> bytes:
    """The last four bytes of the frame's IP datagram."""
    return _datagram(frame)[-ICRC_BYTES:]


def _datagram(frame: bytes) -> bytes:
    """The frame from the IP header on, without Ethernet padding."""
    total = int.from_bytes(frame[16:18], "big")
    return frame[ETHERNET_BYTES : ETHERNET_BYTES + total]
