"""What the control core says over an epoch's end, and rounds whose answers some ranks do not hear."""

from __future__ import annotations

from .rack import Rack
from .wire import Packet
from .worker import Worker


def halt(rack: Rack, rank: int = 0, job: int = 0) -> bool:
    """A worker says that its QP died."""
    return rack.apply("HALT", rack.jobs[job], rank=rank, fault=1)


def end(rack: Rack, *dead: int) -> bool:
    return rack.apply("END", rack.jobs[0], ranks=sum(1 << rank for rank in dead))


def leave(rack: Rack, rank: int, *received: int) -> bool:
    return rack.apply("LEAVE", rack.jobs[0], rank=rank, received=list(received))


def kinds(rack: Rack) -> list[tuple[str, int]]:
    return [(event.kind, event.rank) for event in rack.events()]


def contribute(rack: Rack, round: int, *values, skip: tuple[Worker, ...] = ()) -> list[Packet]:
    """Everybody's contribution to a round, `values` by rank; those in `skip` do not hear the answers."""
    packets = [p for w, x in zip(rack.workers(), values, strict=True) for p in w.write(round, x)]
    out = rack.poll(*packets)
    return rack.poll(*(reply for p in out if rack.owner(p) not in skip for reply in rack.owner(p).receive(p)))


def reconnect(rack: Rack) -> None:
    """RESUME, and new connections for all, with probes both ways."""
    rack.events()
    rack.resume()
    for worker in rack.workers():
        assert rack.connect(worker)
    rack.run(worker.probe() for worker in rack.workers())


def imm(round: int) -> int:
    return 0xABC00000 + round
