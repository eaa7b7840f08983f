"""Makes docs/capture.md: one all_reduce of two workers as tshark decodes it from the wire, each frame explained.

`python -m tests.softroce.document_capture` visits the bench, captures there (this module again, with --inside), and
decodes on the host. It touches docs/capture.md and build/capture.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from tests.softroce import bench, capture
from tests.softroce.appliance import DATA_ADDRESS, Appliance

DOCUMENT = bench.REPOSITORY / "docs" / "capture.md"
FOLDER = bench.REPOSITORY / "build" / "capture"
ELEMS = 2500
LENGTH_BYTES = ELEMS * 4
SUM_I32 = 1
IMMEDIATE = zlib.crc32(b"".join(n.to_bytes(4, "little") for n in (0, 0, SUM_I32, LENGTH_BYTES, ELEMS)))
WINDOW_SHIFT, ROUND_SHIFT = 56, 24  # contract/psc_wire.def.h
FIELDS = (
    *("frame.time_relative", "frame.len", "ip.src", "ip.dst", "arp.opcode", "arp.src.proto_ipv4"),
    *("arp.dst.proto_ipv4", "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn"),
    *(
        "infiniband.bth.a",
        "infiniband.reth.va",
        "infiniband.reth.dmalen",
        "infiniband.immdt",
        "infiniband.aeth.msn",
    ),
)
OPCODES = {6: "WRITE FIRST", 7: "WRITE MIDDLE", 8: "WRITE LAST", 9: "WRITE LAST IMM"}
OPCODES |= {10: "WRITE ONLY", 11: "WRITE ONLY IMM", 17: "ACK"}


def main() -> int:
    """Capture, decode, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.softroce.document_capture", description=__doc__)
    parser.add_argument("--inside", type=Path, help="capture into this folder, in the bench")
    folder: Path | None = parser.parse_args().inside
    if folder:
        record(folder)
        return 0
    command = [sys.executable, "-m", "tests.softroce.document_capture", "--inside", str(FOLDER)]
    outcome = bench.run(bench.Task(command, share=FOLDER, workers=2, memory_mb=1024))
    print(outcome)
    if outcome.status == 0:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(document(FOLDER / "all_reduce.pcap", outcome.place))
        print(f"wrote {DOCUMENT}")
    return outcome.status


def record(folder: Path) -> None:
    """In the bench: one job of two workers, one tensor, everything on the wire."""
    import numpy as np

    import pascaline
    from tests.softroce.ranks import Ranks

    def body(rank: int) -> bool:
        tensor = np.full(ELEMS, rank + 1, np.int32)
        with pascaline.Session(job="capture") as session:
            session.all_reduce(tensor)
        return bool(np.all(tensor == 3))

    scratch = Path("/dev/shm/pascaline-capture")
    scratch.mkdir(exist_ok=True)
    recording = capture.Capture(folder / "all_reduce.pcap")
    with Appliance(scratch) as appliance, recording, Ranks(2, body, appliance.address) as ranks:
        assert all(ranks.results())


@dataclass(frozen=True)
class Frame:
    """One line of tshark's answer; fields that a frame does not have are empty."""

    values: dict[str, str]

    def text(self, field: str) -> str:
        return self.values[field]

    def number(self, field: str) -> int:
        return int(self.values[field] or "0", 0)

    @property
    def opcode(self) -> int:
        return self.number("infiniband.bth.opcode")

    @property
    def to_appliance(self) -> bool:
        return self.text("ip.dst") == DATA_ADDRESS

    @property
    def is_probe(self) -> bool:
        return self.opcode == 11 and self.number("infiniband.reth.dmalen") == capture.PATH_MTU


def decode(path: Path) -> list[Frame]:
    """All frames of a capture."""
    fields = [option for field in FIELDS for option in ("-e", field)]
    command = ["tshark", "-r", str(path), "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f", *fields]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [Frame(dict(zip(FIELDS, line.split("\t"), strict=True))) for line in lines]


def party(address: str) -> str:
    """Who has an address in the bench."""
    return "appliance" if address == DATA_ADDRESS else f"rank {int(address.rsplit('.', 1)[1]) - 10}"


class Reader:
    """Explains frames in their order. A rank's first address on a QP is its probe's, so the VA base of that QP."""

    def __init__(self) -> None:
        self._va_base: dict[int, int] = {}

    def explain(self, frame: Frame) -> str:
        if frame.text("arp.opcode"):
            asker, target = party(frame.text("arp.src.proto_ipv4")), party(frame.text("arp.dst.proto_ipv4"))
            return (
                f"{asker} asks for {target}'s MAC" if frame.text("arp.opcode") == "1" else f"{asker} answers"
            )
        if frame.opcode == 17:
            return "acknowledges everything up to this PSN"
        if frame.is_probe:
            return self._explain_probe(frame)
        return self._explain_contribution(frame) if frame.to_appliance else self._explain_result(frame)

    def _explain_probe(self, frame: Frame) -> str:
        if frame.to_appliance:
            self._va_base[frame.number("infiniband.bth.destqp")] = frame.number("infiniband.reth.va")
            return "probe of one whole MTU to op window 0: adds nothing, shows that the path carries it"
        return "the appliance's own probe, into result slot 0"

    def _explain_contribution(self, frame: Frame) -> str:
        rank = party(frame.text("ip.src"))
        if frame.opcode in (6, 11, 10):
            offset = frame.number("infiniband.reth.va") - self._va_base[frame.number("infiniband.bth.destqp")]
            window, round_ = offset >> WINDOW_SHIFT, (offset >> ROUND_SHIFT) & 0xFFFFFFFF
            return (
                f"**{rank} contributes**: op window {window} (sum_i32), round {round_}, "
                f"{frame.number('infiniband.reth.dmalen')} bytes; checked before the first byte is added"
            )
        if frame.opcode == 7:
            return "the next range, added to the slot as it arrives"
        return f"{rank}'s contribution is whole; the immediate says which tensor it was"

    def _explain_result(self, frame: Frame) -> str:
        rank = party(frame.text("ip.dst"))
        if frame.opcode == 6:
            return f"**the sum goes to {rank}**: both ranks have contributed this range, so it may leave"
        if frame.opcode == 7:
            return "the next range"
        return "complete means committed: the immediate leaves last, when both contributions are whole"


def document(path: Path, place: str) -> str:
    """The page."""
    frames, raw, reader = decode(path), capture.roce_frames(path), Reader()
    wrong = [frame for frame in raw if capture.icrc_by_scapy(frame) != capture.icrc_on_wire(frame)]
    if wrong:
        raise SystemExit(f"{len(wrong)} of {len(raw)} frames have an ICRC that scapy does not confirm")
    rows = [row(number, frame, reader.explain(frame)) for number, frame in enumerate(frames, start=1)]
    return PAGE.format(
        elems=ELEMS,
        length_bytes=LENGTH_BYTES,
        place=place,
        immediate=f"{IMMEDIATE:#010x}",
        checked=len(raw),
        rows="\n".join(rows),
        first=full_decode(path, frames),
    )


def row(number: int, frame: Frame, meaning: str) -> str:
    """One line of the table."""
    milliseconds = float(frame.text("frame.time_relative")) * 1000
    if frame.text("arp.opcode"):
        source, target = frame.text("arp.src.proto_ipv4"), frame.text("arp.dst.proto_ipv4")
        packet = detail = ""
        name = "ARP"
    else:
        source, target, name = frame.text("ip.src"), frame.text("ip.dst"), OPCODES[frame.opcode]
        asks = ", AckReq" if frame.number("infiniband.bth.a") else ""
        packet = f"QP {frame.number('infiniband.bth.destqp'):#08x} PSN {frame.number('infiniband.bth.psn'):#08x}{asks}"
        detail = extension(frame)
    way, size = f"{party(source)} → {party(target)}", frame.text("frame.len")
    return f"| {number} | {milliseconds:.1f} | {way} | {name} | {size} | {packet} | {detail} | {meaning} |"


def extension(frame: Frame) -> str:
    """RETH, ImmDt and AETH in short."""
    parts = []
    if frame.text("infiniband.reth.va"):
        parts.append(
            f"VA {frame.number('infiniband.reth.va'):#x}, {frame.number('infiniband.reth.dmalen')} bytes"
        )
    if frame.text("infiniband.immdt"):
        parts.append(f"imm 0x{frame.text('infiniband.immdt').removeprefix('0x').zfill(8)}")
    if frame.text("infiniband.aeth.msn"):
        parts.append(f"MSN {frame.number('infiniband.aeth.msn')}")
    return ", ".join(parts)


def full_decode(path: Path, frames: list[Frame]) -> str:
    """tshark's whole text of the first result's first packet, without its payload."""
    number = next(n for n, f in enumerate(frames, start=1) if f.opcode == 6 and not f.to_appliance)
    command = ["tshark", "-r", str(path), "-Y", f"frame.number == {number}", "-O", "infiniband"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line.rstrip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith("Data (") and "Data: " not in line]
    return "\n".join(kept)


PAGE = """\
# One all_reduce on the wire

Two workers call `session.all_reduce` on {elems} int32 elements ({length_bytes} bytes: three packets at a path MTU of
4096). This is everything that RoCE and ARP put on the wire at the appliance's port from join to leave, captured in
the bench ({place}) and decoded by tshark. The control connection is not in it. All {checked} RoCE frames carry the
ICRC that scapy computes for them.

Made by `build/venv/bin/python -m tests.softroce.document_capture`; QPNs, PSNs and addresses are random in every run.

How to read it:

- A worker's remote address is `va_base + (op window << 56 | round << 24)`; its probe goes to window 0, round 0, and so
  shows `va_base`. Nothing is *written* there: writing to a window adds to the slot of the round.
- The immediate is the CRC-32 of (sequence 0, chunk 0, op sum_i32, {length_bytes} bytes, {elems} elements) =
  `{immediate}`. It is the same in both contributions and in the result: a rank that reduced another tensor would
  be refused.
- Each job has a QP per rank and pool: data, and small messages. Both are probed; this tensor needs only the first.

| # | ms | way | packet | bytes | to | says | meaning |
|--:|--:|---|---|--:|---|---|---|
{rows}

The first packet of the first result in full:

```
{first}
```
"""


if __name__ == "__main__":
    sys.exit(main())
