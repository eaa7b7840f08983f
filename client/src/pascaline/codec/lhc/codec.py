"""lhc: an index of what is not 0, ORed, and a count sketch of fixed32's integers, summed (docs/lhc.md); one after the
other, or, in one phase, together.

Law: the result is fixed32's, bit for bit, on every rank, whatever the values are and wherever they stand.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from functools import partial
from typing import Literal, NamedTuple, Protocol

import numpy as np

from pascaline.codec import fixed32
from pascaline.codec.base import Array, Bytes, Carry, Codec, Floats, Outcome, Place, Round, Rounds
from pascaline.codec.lhc import kernels, reference
from pascaline.codec.lhc.kernels import Factors
from pascaline.codec.lhc.params import Params, blocks, buckets
from pascaline.codec.lhc.reference import Hash, Integers
from pascaline.codec.lhc.sizes import Memory
from pascaline.codec.sparse import kernels as sparse_kernels
from pascaline.codec.sparse import reference as sparse_reference
from pascaline.codec.sparse.reference import Words, count

Phases = Literal[1, 2]
_U32 = 0xFFFFFFFF
_TENSORS = 4096
"""That are remembered: who has not been reduced for the longest time is forgotten, in the order of the calls."""


class Machine(Protocol):
    """The steps of docs/lhc.md over one chunk of numpy arrays."""

    def mark(self, x: Floats, least: int, bitmap: Words) -> int:
        """As codec/sparse/reference.mark."""
        ...

    def sketch(
        self, hash_: Hash, values: Floats, factors: Factors, left_out: Words | None, table: Integers
    ) -> None:
        """Of round(values * factors), without those of a bitmap, into `table`."""
        ...

    def check(self, hash_: Hash, union: Words, elems: int, unpeeled: Words) -> int:
        """How many do not peel, and which."""
        ...

    def peel(
        self, hash_: Hash, union: Words, table: Integers, factors: Factors, values: Floats, unpeeled: Words
    ) -> int:
        """As `check`; and what peels, times the factors, into `values`. May use up the table."""
        ...


class Index(NamedTuple):
    """What a chunk's index has told, where the sketch did not wait for it."""

    own: int
    """How many of this rank's values are not 0."""
    union: Words
    unpeeled: Words
    left: int
    """How many do not peel."""


class LhcCodec(Codec):
    """One rank's. Scales, chunks and integers are those of fixed32, and so is the sum. Not thread-safe."""

    name, ops = "lhc", ("or_u32", "sum_i32")

    def __init__(
        self,
        world_size: int,
        params: Params,
        phases: Phases = 2,
        machine: Machine | None = None,
    ) -> None:
        self.params = params
        self.leads = phases == 1
        self._fixed = fixed32.Fixed32(world_size)
        self._machine = machine or fastest()
        self._last: dict[tuple[str, int], Memory] = {}
        """By a tensor's name and elements: of its last reduction that has begun."""
        self._open: dict[int, Memory] = {}
        """By sequence: of reductions that go on."""
        self._indexes: dict[tuple[int, int], Index] = {}
        """By sequence and chunk."""

    def chunk_elems(self, slot_bytes: int) -> int:
        """As many as fixed32 has: a chunk may travel dense."""
        return self._fixed.chunk_elems(slot_bytes)

    def scale_count(self, elems: int) -> int:
        """One for a chunk."""
        return self._fixed.scale_count(elems)

    def norms(self, values: Floats, carry: Carry, norms: Floats) -> None:
        """The chunk's largest |x|."""
        self._fixed.norms(values, carry, norms)

    def rounds(self, place: Place, values: Array, carry: Carry, scales: Floats) -> Rounds:
        """Two phases, or one where the tensor has been reduced before."""
        maximum = scales[0]
        if maximum == 0 or not np.isfinite(maximum):
            values[:] = maximum  # all ranks know that, so nothing needs to be sent
            self._learn(place, 0 if maximum == 0 else None)
            outcome = Outcome(0, "nothing")
        elif (rows := self._rows_ahead(place)) is None:
            outcome = yield from self._two_phases(place, values, scales)
        elif not self._leads(rows, values.size):
            own = int(np.count_nonzero(values))
            self._learn(place, (yield from self._dense(place, values, scales)))
            outcome = Outcome(own, "dense")
        else:
            outcome = yield from self._one_phase(self._hash(place, rows), values, scales)
        if self.leads and self._open[place.sequence].finished():
            del self._open[place.sequence]
        return outcome

    def _two_phases(self, place: Place, values: Array, scales: Floats) -> Rounds:
        """The sketch is made for the index's union, and what does not peel travels behind it."""
        own, union = yield from self._index(values, more=True)
        self._learn(place, count(union))
        hash_ = self._hash(place, self.params.rows(count(union)))
        unpeeled = np.empty(blocks(values.size), np.uint32)
        left = self._machine.check(hash_, union, values.size, unpeeled)
        size = buckets(hash_.rows) + left
        if size >= values.size:
            yield from self._dense(place, values, scales)
            return Outcome(own, "dense")
        k = self._exponent(scales)
        combined = yield _integers(size, partial(self._encode, hash_, values, k, unpeeled if left else None))
        sums = combined.view("<i4").copy()
        self._decode(hash_, union, sums[: size - left], k, values, unpeeled)
        self._repair(sums[size - left :], k, values, unpeeled)
        return Outcome(own, "sketch and repair" if left else "sketch")

    # One phase.

    def opens(self, place: Place, chunks: int) -> None:
        """What this tensor's next reduction will know is learnt from this one."""
        if self.leads:
            key = (place.name, place.elems)
            memory = Memory(chunks, self._last.pop(key, None))
            self._last[key] = self._open[place.sequence] = memory
            if len(self._last) > _TENSORS:
                del self._last[next(iter(self._last))]

    def ready(self, place: Place) -> bool:
        """Whether what this chunk's sketch is made for is known."""
        return not self.leads or self._open[place.sequence].ready(place.chunk)

    def lead(self, place: Place, values: Array, carry: Carry, scales: Floats) -> Rounds:
        """The index, and the check: while the sketch is on its way it is known what will not peel."""
        rows = self._rows_ahead(place)
        if scales[0] == 0 or not np.isfinite(scales[0]) or rows is None or not self._leads(rows, values.size):
            return Outcome(0)
        own, union = yield from self._index(values, more=False)
        self._learn(place, count(union))
        unpeeled = np.empty(blocks(values.size), np.uint32)
        left = self._machine.check(self._hash(place, rows), union, values.size, unpeeled)
        self._indexes[place.sequence, place.chunk] = Index(own, union, unpeeled, left)
        return Outcome(own)

    def _one_phase(self, hash_: Hash, values: Array, scales: Floats) -> Rounds:
        """The sketch right behind its index; what does not peel takes a third message."""
        k = self._exponent(scales)
        combined = yield _integers(hash_.size, partial(self._encode, hash_, values, k, None), more=True)
        sums = combined.view("<i4").copy()
        own, union, unpeeled, left = self._indexes.pop((hash_.sequence, hash_.chunk))
        if left:
            packed = fixed32.integers(values[reference.elements_of(unpeeled)], k)
            combined = yield _integers(left, partial(_copy, packed))
            self._decode(hash_, union, sums, k, values, unpeeled)
            self._repair(combined.view("<i4"), k, values, unpeeled)
            return Outcome(own, "sketch and repair")
        self._decode(hash_, union, sums, k, values, unpeeled)
        return Outcome(own, "sketch")

    def _rows_ahead(self, place: Place) -> int | None:
        """What the tensor's last reduction says; None: nothing, since there was none or each takes two phases."""
        expected = self._open[place.sequence].expected(place.chunk) if self.leads else None
        return None if expected is None else self.params.rows(expected.elems)

    @staticmethod
    def _leads(rows: int, elems: int) -> bool:
        """Whether index and sketch are shorter than the chunk."""
        return buckets(rows) + blocks(elems) < elems

    def _learn(self, place: Place, union: int | None) -> None:
        if self.leads:
            self._open[place.sequence].learn(place.chunk, union)

    # The messages, and what becomes of them.

    def _index(self, values: Array, more: bool) -> Generator[Round, Bytes, tuple[int, Words]]:
        """How many of this rank's values are not 0, and the bitmap of those that are not on some rank."""
        index = np.empty(blocks(values.size), np.uint32)
        own = self._machine.mark(values, 1, index)
        combined = yield Round("or_u32", index.nbytes, index.nbytes, partial(_copy, index), more)
        return own, combined.view("<u4").copy()

    def _dense(self, place: Place, values: Array, scales: Floats) -> Generator[Round, Bytes, int]:
        """Returns how many sums are not 0: of integers, which are alike on all ranks whatever their float units do."""
        nothing = Carry()
        combined = yield _integers(values.size, partial(self._fixed.encode, place, values, nothing, scales))
        left = int(np.count_nonzero(combined.view("<i4")))
        self._fixed.decode(place, combined, nothing, scales, values)
        return left

    def _encode(self, hash_: Hash, values: Array, k: int, left_out: Words | None, encoded: Bytes) -> None:
        """The sketch, and behind it the integers of what it leaves out."""
        integers, size = encoded.view("<i4"), buckets(hash_.rows)
        self._machine.sketch(hash_, values, fixed32.factors(k), left_out, integers[:size])
        if left_out is not None:
            integers[size:] = fixed32.integers(values[reference.elements_of(left_out)], k)

    def _decode(
        self, hash_: Hash, union: Words, sums: Integers, k: int, values: Array, unpeeled: Words
    ) -> None:
        self._machine.peel(hash_, union, sums, fixed32.factors(-k), values, unpeeled)

    def _repair(self, sums: Integers, k: int, values: Array, unpeeled: Words) -> None:
        repaired = sums.astype(np.float32)
        fixed32.scale(repaired, -k, repaired)
        values[reference.elements_of(unpeeled)] = repaired

    def _exponent(self, scales: Floats) -> int:
        return fixed32.exponent(float(scales[0]), self._fixed.world_size)

    def _hash(self, place: Place, rows: int) -> Hash:
        return Hash(self.params.seed, place.sequence & _U32, place.chunk, rows)


def _integers(count_: int, encode: partial[None], more: bool = False) -> Round:
    return Round("sum_i32", 4 * count_, 4 * count_, encode, more)


def _copy(encoding: Array, encoded: Bytes) -> None:
    encoded[:] = encoding.view(np.uint8)


class _Kernels:
    """The C kernels, with what they work in. Not thread-safe."""

    def __init__(self) -> None:
        self.mark = sparse_kernels.mark
        self._scratch = np.empty(0, np.uint32)

    def sketch(
        self, hash_: Hash, values: Floats, factors: Factors, left_out: Words | None, table: Integers
    ) -> None:
        kernels.sketch(hash_, values, factors, left_out, table)

    def check(self, hash_: Hash, union: Words, elems: int, unpeeled: Words) -> int:
        return kernels.check(hash_, union, elems, unpeeled, self._scratch_for(hash_, elems))

    def peel(
        self, hash_: Hash, union: Words, table: Integers, factors: Factors, values: Floats, unpeeled: Words
    ) -> int:
        scratch = self._scratch_for(hash_, values.size)
        return kernels.peel(hash_, union, table, factors, values, unpeeled, scratch)

    def _scratch_for(self, hash_: Hash, elems: int) -> Words:
        size = kernels.scratch_words(elems, hash_.rows)
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.uint32)
        return self._scratch[:size]


class _Reference:
    """The definition."""

    def __init__(self) -> None:
        self.mark = sparse_reference.mark

    def sketch(
        self, hash_: Hash, values: Floats, factors: Factors, left_out: Words | None, table: Integers
    ) -> None:
        table[:] = reference.sketch(hash_, reference.integers(values, factors), left_out)

    def check(self, hash_: Hash, union: Words, elems: int, unpeeled: Words) -> int:
        unpeeled[:] = reference.peel(hash_, union, elems)[1]
        return count(unpeeled)

    def peel(
        self, hash_: Hash, union: Words, table: Integers, factors: Factors, values: Floats, unpeeled: Words
    ) -> int:
        integers, unpeeled[:] = reference.peel(hash_, union, values.size, table)
        values[:] = reference.floats(integers, factors)
        return count(unpeeled)


def fastest() -> Machine:
    """The C kernels where they are built; else the reference, which computes the same bits, with a warning."""
    if kernels.available():
        return _Kernels()
    warnings.warn(f"lhc computes in numpy, many times slower: {kernels.remedy()}", stacklevel=2)
    return _Reference()


def by_reference() -> Machine:
    """The definition, in numpy."""
    return _Reference()
