"""The rooms and who may know whom: the one table that the check, and a reviewer, read.

A room is a folder of dpdk_c or a module or package directly below a distribution's package. An edge that is not here is
a violation. Adding one is a design decision: say why in DESIGN.md.
"""

from __future__ import annotations

C_ROOMS: dict[str, set[str]] = {
    "contract": set(),
    "roce": {"contract"},
    "qp": {"contract", "roce"},
    "arith": {"contract", "roce"},  # roce: only the CRC, of sums as they are made
    "agg": {"contract", "arith"},
    "core": {"contract", "roce", "qp", "agg"},
    "memory": {"contract", "roce", "qp"},  # for tests alone: nobody includes it but they
    "stats": {"contract"},
    "io": {"contract", "roce", "core", "stats"},
    "ctl": {"contract", "roce", "core", "io", "stats", "arith"},  # arith: only to say which kernels run here
    # worker ends and lanes put together to be measured: nobody includes it
    "bench": {"contract", "roce", "qp", "arith", "agg", "core", "stats", "io"},
    "sim": {"contract", "roce", "qp", "agg", "core"},  # a rack around the core: nobody includes it
    "fuzz": {"contract", "roce", "qp", "arith", "agg", "core"},
    # every room; of ctl identity, spec and events alone, of io what builds frames in mbufs
    "tests": {"contract", "roce", "qp", "arith", "agg", "core", "memory", "stats", "ctl", "io"},
}
"""Whose headers a room's files may include, besides their own and the C library's. qp and agg never know each other."""

DPDK_HEADER_PREFIXES = ("rte_", "ethdev_", "bus_")
DPDK_ROOM = "io"
DPDK_ROOMS = {DPDK_ROOM, "bench", "tests"}
"""Who may include DPDK's headers. bench/ and tests/ are in neither library."""

PYTHON_ROOMS: dict[str, dict[str, set[str]]] = {
    "pascaline": {
        "contract": set(),
        "errors": set(),
        "plan": {"contract", "errors"},
        "codec": {"contract", "errors", "_kernels"},
        "link": {"contract", "errors"},
        "reduce": {"contract", "errors", "plan", "codec", "link"},
        "session": {"contract", "errors", "plan", "codec", "link", "reduce"},
        "torch": {"errors", "codec", "session", "reduce"},
    },
    "pascaline_exporter": {
        "contract": set(),
        "segment": {"contract"},
        "collector": {"segment"},
        "cli": {"collector"},
    },
}
"""Which rooms of its own distribution a room may import. The package's __init__ and __main__ may import any."""

FOREIGN: list[tuple[str, set[str], set[str]]] = [
    ("pyverbs", {"pascaline.link.verbs"}, {"pascaline", "pascaline_appliance", "pascaline_exporter"}),
    ("torch.nn.parallel", {"pascaline.torch"}, {"pascaline"}),
    ("torch.distributed", {"pascaline.torch", "pascaline.link.emulated.link"}, {"pascaline"}),
    ("torch", set(), {"pascaline_appliance", "pascaline_exporter"}),
    ("pascaline_appliance", set(), {"pascaline", "pascaline_exporter"}),
    ("pascaline_exporter", set(), {"pascaline", "pascaline_appliance"}),
    ("pascaline", set(), {"pascaline_appliance", "pascaline_exporter"}),
    ("pascaline_appliance._dataplane", {"pascaline_appliance.dataplane"}, {"pascaline_appliance"}),
    ("pascaline._kernels", {"pascaline.codec.thc.kernels"}, {"pascaline"}),
]
"""(module, the only modules that may import it, inside these distributions). Submodules are meant too."""

SOURCES = {
    "pascaline": "client/src",
    "pascaline_appliance": "appliance/src",
    "pascaline_exporter": "monitoring/src",
}
