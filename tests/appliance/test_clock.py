"""Times in the statistics are the wall clock's, however wrong the lane's idea of the TSC is."""

from __future__ import annotations

import struct
import time
from pathlib import Path

from tests.appliance.conftest import Start
from tests.appliance.job import SUM_I32, ints, join
from tests.appliance.rack import Rack, library
from tests.appliance.worker import Wire

LAST_ROUND_TIME = 64 + 512 + 152
"""Byte in the segment: the header, one lane, and what comes before it in the first job's row."""
ROUNDS = 3
"""A lane that is stopped between reading its clock and its ring tells an old time: not three times in a row."""
WRONG_TSC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
uint64_t rte_get_tsc_hz(void)
{
    void *eal = dlopen("librte_eal.so.23", RTLD_LAZY | RTLD_NOLOAD);
    uint64_t (*right)(void) = (uint64_t (*)(void))dlsym(eal, "rte_get_tsc_hz");
    return right() / 10 * 11;
}
"""


def test_the_time_of_a_round_does_not_drift(start: Start, rack: Rack, tmp_path: Path) -> None:
    before_tsc = library(tmp_path, WRONG_TSC)
    appliance = start(environment={"LD_PRELOAD": str(before_tsc)})
    appliance.ready()
    wire = Wire(rack)
    (worker,) = join(rack, wire, 1)
    time.sleep(2)  # a tenth of this is what the lane's clock would be late
    off = []
    for number in range(ROUNDS):
        earliest = time.time()
        worker.write(worker.pairs[0], SUM_I32, number, ints(1), number)
        wire.pump(lambda number=number: len(worker.pairs[0].completions) == number + 1)
        latest = time.time()
        (told_us,) = struct.unpack_from("<Q", (tmp_path / "stats").read_bytes(), LAST_ROUND_TIME)
        off.append(max(earliest - told_us / 1e6, told_us / 1e6 - latest))
    assert min(off) < 0.05, off
    worker.leave(ROUNDS, 0)
    assert appliance.stop() == 0
