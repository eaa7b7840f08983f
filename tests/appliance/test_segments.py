"""Frames that a driver delivers in several segments (chained mbufs) are executed just as whole ones, wherever the cuts
are; one that does not fit into its first segment's buffer is dropped and counted.

No software driver of DPDK 22.11 chains what it receives at chosen places, so a receive callback of DPDK, in the real
process, cuts what net_af_packet has received; the mbufs, the chains and all that follows are real.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pascaline_exporter import segment
from tests.appliance.job import SUM_I32, at_rest, ints, join
from tests.appliance.rack import APPLIANCE_IP, Appliance, Rack, library, tables, until
from tests.appliance.worker import Wire

NOISE = {"not_roce", "stale_ack"}
"""The kernel says by ICMP that nobody listens at port 4791; a result that was sent twice on a busy machine is
acknowledged twice."""
SMALL_BYTES = 258
"""Room of a small first segment: a message of one packet with 180 bytes of payload."""
CUTTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <stdlib.h>
#include <sys/mman.h>

struct orders {
    int32_t cuts[2];  /* lengths at which a frame is cut; negative: from its end; 0: none */
    uint32_t small;   /* the first segment's buffer has SMALL_BYTES of room */
    uint32_t made;    /* frames that were cut */
    uint32_t in_use;  /* segments that have not been given back */
};

static volatile struct orders *orders;
static struct rte_mempool *ample, *small;

static struct rte_mbuf *piece(struct rte_mempool *from, const char *data, uint32_t bytes)
{
    struct rte_mbuf *m = rte_pktmbuf_alloc(from);

    if (m == NULL)
        abort(); /* segments have leaked */
    memcpy(rte_pktmbuf_append(m, (uint16_t)bytes), data, bytes);
    return m;
}

static struct rte_mbuf *cut(struct rte_mbuf *frame)
{
    const char *data = rte_pktmbuf_mtod(frame, const char *);
    int32_t bytes = frame->data_len, done = 0;
    struct rte_mbuf *first = NULL;

    for (int i = 0; i < 3; i++) {
        int32_t end = i < 2 ? orders->cuts[i] : bytes;

        end += end < 0 ? bytes : 0;
        if (end <= done || end > bytes)
            continue;
        struct rte_mbuf *m = piece(first == NULL && orders->small ? small : ample, data + done, end - done);
        if (first == NULL)
            first = m;
        else
            rte_pktmbuf_chain(first, m);
        done = end;
    }
    orders->made += first->nb_segs > 1;
    rte_pktmbuf_free(frame);
    return first;
}

static uint16_t cut_all(uint16_t port, uint16_t queue, struct rte_mbuf *frames[], uint16_t count, uint16_t room,
                        void *unused)
{
    (void)port, (void)queue, (void)room, (void)unused;
    for (uint16_t i = 0; i < count; i++)
        if (orders->cuts[0] != 0)
            frames[i] = cut(frames[i]);
    orders->in_use = rte_mempool_in_use_count(ample) + rte_mempool_in_use_count(small);
    return count;
}

int rte_eth_dev_start(uint16_t port)
{
    int (*start)(uint16_t) = (int (*)(uint16_t))dlsym(RTLD_NEXT, "rte_eth_dev_start");
    int file = open(getenv("CUTTER_ORDERS"), O_RDWR);

    orders = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ample = rte_pktmbuf_pool_create("ample", 1023, 0, 0, RTE_PKTMBUF_HEADROOM + 9216, SOCKET_ID_ANY);
    small = rte_pktmbuf_pool_create("small", 255, 0, 0, RTE_PKTMBUF_HEADROOM + SMALL_BYTES, SOCKET_ID_ANY);
    if (file < 0 || orders == MAP_FAILED || ample == NULL || small == NULL ||
        rte_eth_add_rx_callback(port, 0, cut_all, NULL) == NULL)
        abort();
    return start(port);
}
"""
ORDERS = struct.Struct("=iiIII")


class Cutter:
    """What the callback is told, and what it has done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(ORDERS.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def cut(self, *cuts: int, small: bool = False) -> None:
        """From the next frame on; no cuts: whole frames."""
        first, second, *_ = [*cuts, 0, 0]
        struct.pack_into("=iiI", self._memory, 0, first, second, small)

    @property
    def made(self) -> int:
        """Frames that were cut."""
        return int(ORDERS.unpack(self._memory)[3])

    @property
    def in_use(self) -> int:
        """Segments that the appliance has not given back."""
        return int(ORDERS.unpack(self._memory)[4])


@pytest.fixture(scope="module")
def cutter(tmp_path_factory: pytest.TempPathFactory) -> Cutter:
    return Cutter(tmp_path_factory.mktemp("cutter") / "orders")


@pytest.fixture(scope="module")
def appliance(rack: Rack, cutter: Cutter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """One whose port delivers what `cutter` says."""
    folder = tmp_path_factory.mktemp("appliance")
    preload = library(folder, CUTTER.replace("SMALL_BYTES", str(SMALL_BYTES)))
    environment = {"LD_PRELOAD": str(preload), "CUTTER_ORDERS": str(cutter.path)}
    appliance = Appliance(rack, folder, tables(folder), **environment)
    appliance.ready()
    yield appliance
    assert appliance.stop() == 0


class Job:
    """A job of one rank: every round gives back what was contributed."""

    def __init__(self, rack: Rack, wire: Wire, appliance: Appliance) -> None:
        self.wire, self.appliance = wire, appliance
        (self.worker,) = join(rack, wire, 1, "segments")
        self.pair = self.worker.pairs[0]
        self.round = 0

    def frames(self, data: bytes) -> list[bytes]:
        """The next round's contribution."""
        packets = self.worker.packets(self.pair, SUM_I32, self.round, data, self.round)
        return [self.wire.frame(packet) for packet in packets]

    def execute(self, frames: list[bytes], data: bytes) -> None:
        """Send them; their round must be whole and its result their data."""
        for frame in frames:
            self.wire.socket.send(frame)
        self.wire.pump(lambda: self.pair.completions[-1:] == [self.round])
        place = self.round % self.pair.offer["window"] * self.pair.offer["chunk_bytes"]
        assert self.pair.result[place : place + len(data)] == data
        self.round += 1

    def drops(self) -> dict[str, int]:
        """Frames not executed, by reason."""
        looks: list[dict[str, int]] = []

        def looked() -> bool:
            with contextlib.suppress(
                segment.SegmentError
            ):  # an old heartbeat, where the machine has stood still
                looks.append(segment.read(self.appliance.folder / "stats").lanes[0].drops)
            return bool(looks)

        until(looked)
        return {why: count for why, count in looks[0].items() if count and why not in NOISE}

    def dropped(self, frame: bytes, why: str) -> None:
        """Send a frame that must be counted so, once, and is not executed."""
        before = self.drops()
        self.wire.socket.send(frame)
        until(lambda: self.drops() != before)
        assert self.drops() == {**before, why: before.get(why, 0) + 1}


@pytest.fixture
def job(rack: Rack, wire: Wire, appliance: Appliance, cutter: Cutter) -> Iterator[Job]:
    """Ready; afterwards every mbuf has come back."""
    cutter.cut()
    before = at_rest(appliance)
    job = Job(rack, wire, appliance)
    yield job
    cutter.cut()
    job.worker.leave(job.round, 0)
    assert at_rest(appliance) == before
    until(lambda: cutter.in_use == 0)


def test_cut_at_every_byte(job: Job, cutter: Cutter) -> None:
    """One packet with every header that there is."""
    data = ints(*range(1, 6))
    before, made = job.drops(), cutter.made
    for place in range(1, len(job.wire.frame(bytes(32) + data))):  # BTH, RETH, immediate
        cutter.cut(place)
        job.execute(job.frames(data), data)
    assert cutter.made - made >= 97  # and acknowledgements
    assert job.drops() == before


# Ethernet 14, IP 20, UDP 8, BTH 12; then RETH 16 in the first packet, immediate 4 in the last, ICRC 4 at the end.
PLACES = [1, 6, 13, 14, 23, 34, 37, 42, 43, 51, 54, 57, 58, 62, 69, 70, 1000, 1001, -600, -5, -4, -3, -1]


def test_three_segments_of_every_packet_of_a_message(job: Job, cutter: Cutter) -> None:
    """FIRST, MIDDLE, LAST: each at two places, within and between all its parts."""
    data = bytes(ints(*range(2 * job.worker.mtu // 4 + 300)))
    before, made = job.drops(), cutter.made
    pairs = list(itertools.combinations(PLACES, 2))
    for places in pairs:
        cutter.cut(*places)
        job.execute(job.frames(data), data)
    assert cutter.made - made >= 3 * len(pairs)
    assert job.drops() == before


def spoiled(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


@pytest.mark.parametrize(
    "at, why",
    [
        (0, "foreign_mac"),
        (12, "ethertype"),
        (17, "runt"),
        (24, "ip_header"),
        (47, "unknown_qp"),
        (-1, "icrc"),
    ],
)
def test_a_wrong_frame_in_segments_is_dropped_for_the_same_reason(
    job: Job, cutter: Cutter, at: int, why: str
) -> None:
    data = ints(7)
    (frame,) = job.frames(data)
    wrong = spoiled(frame, at % len(frame))
    for cuts in [(), (at % len(frame),), (14, 42), (54, -4), (1, -1)]:
        cutter.cut(*cuts)
        job.dropped(wrong, why)
    job.execute([frame], data)


def test_padding_in_a_segment_of_its_own(job: Job, cutter: Cutter) -> None:
    """Lengths are those of the headers; what follows the ICRC is nothing."""
    data = ints(1, 2, 3)
    for padding in (1, 4, 46):
        for cuts in [(-padding,), (42, -padding), (-padding - 4, -padding)]:
            cutter.cut(*cuts)
            job.execute([job.frames(data)[0] + b"\xa5" * padding], data)


def test_a_frame_that_does_not_fit_into_its_first_buffer(job: Job, cutter: Cutter) -> None:
    """As long as the buffer: executed. A byte more: dropped and counted, and RC would bring it again."""
    data = ints(*range(45))
    for cuts in [(1,), (14,), (42, 70), (78, -4), (-1,)]:
        cutter.cut(*cuts, small=True)
        (frame,) = job.frames(data)
        assert len(frame) == SMALL_BYTES
        job.dropped(frame + b"\0", "no_buffer")
        job.execute([frame], data)


def test_ping_in_segments(rack: Rack, job: Job, cutter: Cutter) -> None:
    cutter.cut(14, 1000)
    ping = rack.run("ping", "-c1", "-W20", "-s", "4000", APPLIANCE_IP)
    assert ping.returncode == 0, ping.stdout
