"""What a port loses reaches the statistics. No software driver of DPDK 22.11 that sends chains counts its losses, so
the counters alone are put in the place of the driver's; everything from there to the segment is real.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tests.appliance.conftest import Start
from tests.appliance.rack import library, until

RX_MISSED = 64 + 8 * (16 + 32 + 2)
"""Byte in the segment: the header, 16 counters, the drops, two counters of congestion notifications."""
COUNTERS = """
#include <rte_ethdev.h>
int rte_eth_stats_get(uint16_t port_id, struct rte_eth_stats *stats)
{
    (void)port_id;
    *stats = (struct rte_eth_stats){.imissed = 70001, .rx_nombuf = 70002};
    return 0;
}
"""


def test_what_the_port_loses_is_counted(start: Start, tmp_path: Path) -> None:
    appliance = start(environment={"LD_PRELOAD": str(library(tmp_path, COUNTERS))})
    appliance.ready()
    stats = tmp_path / "stats"
    until(lambda: struct.unpack_from("<2Q", stats.read_bytes(), RX_MISSED) == (70001, 70002))
    assert appliance.stop() == 0
