"""A tensor's bytes are touched twice on the CPU: encoded into the memory that the NIC reads, and decoded out of the
memory that it writes. Everything that hands them on hands on views, and each byte is handed on once each way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.base import Bytes, Carry, Floats, Place
from pascaline.codec.dense import Dense
from pascaline.reduce import Collective
from tests.client.rack import Rack

SLOT, WINDOW, ELEMS = 4096, 4, 11 * 1024 + 7
Array = NDArray[Any]


@dataclass
class Spied:
    """What a codec has been given."""

    memories: list[tuple[str, Array, Array]] = field(default_factory=list)
    """(which way, values, encoding)"""


class Spy(Dense):
    """f32, and what it was handed."""

    def __init__(self, spied: Spied) -> None:
        super().__init__("f32", "sum_f32", "<f4")
        self._spied = spied

    def encode(self, place: Place, values: Array, carry: Carry, scales: Floats, encoded: Bytes) -> None:
        self._spied.memories.append(("encode", values, encoded))
        super().encode(place, values, carry, scales, encoded)

    def decode(self, place: Place, combined: Bytes, carry: Carry, scales: Floats, values: Array) -> None:
        self._spied.memories.append(("decode", values, combined))
        super().decode(place, combined, carry, scales, values)


def reduced(tensors: list[Array], spies: list[Spied]) -> Rack:
    """All ranks' tensors through a rack in memory, which stands where queue pairs and appliance do."""
    rack = Rack(len(tensors), (WINDOW, SLOT), (2, SLOT))
    lines = [rack.lines(rank) for rank in range(len(tensors))]
    for rank, (data, small) in enumerate(lines):
        done = Collective(tensors[rank], Spy(spies[rank]), 0, lambda: None)
        for line, stream in done.streams([data], small):
            line.enter(stream)
    while any(line.busy() for pair in lines for line in pair):
        for rank, pair in enumerate(lines):
            for result in rack.links[rank].completions():
                pair[result.pool].arrived(result)
            while any([line.advance() for line in pair]):
                pass
    return rack


def test_bytes_are_encoded_into_and_decoded_out_of_registered_memory_and_nothing_else() -> None:
    tensors = [np.arange(ELEMS, dtype=np.float32) + rank for rank in range(2)]
    spies = [Spied() for _ in tensors]
    rack = reduced(tensors, spies)
    assert np.array_equal(tensors[0], 2 * np.arange(ELEMS) + 1)
    for rank, spied in enumerate(spies):
        pool = rack.links[rank].pools[0]
        registered = {"encode": pool.contributions, "decode": pool.results}
        for way, slots in registered.items():
            handed = [(values, encoding) for kind, values, encoding in spied.memories if kind == way]
            assert sum(values.nbytes for values, _ in handed) == tensors[rank].nbytes
            assert all(np.shares_memory(values, tensors[rank]) for values, _ in handed)
            assert all(
                any(np.shares_memory(encoding, np.frombuffer(slot, np.uint8)) for slot in slots)
                for _, encoding in handed
            )
            starts = [values.ctypes.data - tensors[rank].ctypes.data for values, _ in handed]
            assert starts == list(range(0, tensors[rank].nbytes, SLOT)), "each byte once, in order"
