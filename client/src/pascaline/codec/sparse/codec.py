"""The codec sparse: an index is ORed over the ranks, then every rank knows the union, and its values are summed as a
plain dense array; or, in one phase, each rank sends a stream of its own and the aggregator finds the union.
docs/sparse.md is the specification.

Law: with f32 values the sum is one of plain float32 additions, in arrival order, of what the ranks said; with fixed32
values it is bit for bit fixed32's. A sparsifier decides what is said; without one that is all that is not zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from functools import cache, partial
from types import ModuleType
from typing import Literal

import numpy as np

from pascaline.codec.base import Array, Bytes, Carry, Codec, Floats, Outcome, Place, Round, Rounds
from pascaline.codec.fixed32 import Fixed32
from pascaline.codec.sparse import kernels, reference, stream, stream_kernels
from pascaline.codec.sparse.reference import Words, words_of
from pascaline.codec.sparse.select import Sparsifier

Values = Literal["f32", "fixed32"]
Phases = Literal[1, 2]
DIRECT_ELEMS = 1024
"""A chunk of up to so many, one packet of float32, is sent as it is: three rounds would not be shorter."""
_GROUP = 32
_HERE_DENSE, _RAGGED = np.uint32(1), np.uint32(2)
_ADVISE_AFTER_BYTES, _ADVISE_ABOVE, _ADVISE_ONE_PHASE_BELOW = 4 << 20, 0.95, 0.8


class SparseCodec(Codec):
    """One rank's. Not thread-safe."""

    def __init__(
        self,
        name: str,
        values: Values,
        world_size: int,
        sparsifier: Sparsifier | None = None,
        direct_elems: int = DIRECT_ELEMS,
        phases: Phases = 2,
    ) -> None:
        self.name, self.lossy = name, sparsifier is not None
        self._fixed = Fixed32(world_size) if values == "fixed32" else None
        of = "i32" if self._fixed else "f32"
        self.ops = ("or_u32" if phases == 2 else f"expand_sum_{of}", f"sum_{of}")
        self._phases = phases
        self._sparsifier, self._direct_elems = sparsifier, direct_elems
        self._machine = fastest()
        self._streams = stream_kernels if self._machine is kernels else stream
        self._sent_bytes = self._dense_bytes = 0
        self._two_phase_bytes = self._one_phase_bytes = 0

    def chunk_elems(self, slot_bytes: int) -> int:
        """So many that a chunk that is dense after all fits a slot: in two phases a dense codec's, and fixed32's scales
        are the same.
        """
        return slot_bytes // 4 if self._phases == 2 else stream.chunk_elems(slot_bytes)

    def scale_count(self, elems: int) -> int:
        """Those of the values."""
        return self._fixed.scale_count(elems) if self._fixed else 0

    def norms(self, values: Floats, carry: Carry, norms: Floats) -> None:
        """Largest |x|, which every sparsifier chooses."""
        if self._fixed:
            self._fixed.norms(carry.x(values), carry, norms)

    def rounds(self, place: Place, values: Array, carry: Carry, scales: Floats) -> Rounds:
        """Index, words of the index, values: as far as each is needed."""
        if self._fixed and (scales[0] == 0 or not np.isfinite(scales[0])):
            return self._says_nothing(values, carry, scales)
        x = carry.x(values)
        own = np.empty(words_of(x.size), np.uint32)
        kept = self._choose(place, x, own, carry)
        if x.size <= self._direct_elems:
            union, encoding, index_bytes = _all_of(x.size), "dense", 0
        elif self._phases == 1:
            self._leave_out(x, own, carry)
            outcome = yield from self._in_one_phase(x, own, kept, carry, scales, values)
            return outcome
        else:
            union, encoding, index_bytes = yield from self._agree(own, kept, x.size)
        self._leave_out(x, union, carry)
        count = self._machine.count(union)
        if count:
            encode = partial(self._encode, x, union, scales)
            combined = yield Round(self.ops[1], 4 * count, 4 * count, encode)
            self._decode(combined, union, carry, scales, values)
        else:
            values[:] = 0
        self._weigh(x.size, 4 * count + index_bytes)
        self._compare(x.size, 4 * count + index_bytes, own, union)
        return Outcome(kept, encoding)

    def _in_one_phase(
        self, x: Floats, own: Words, kept: int, carry: Carry, scales: Floats, values: Floats
    ) -> Rounds:
        """What this rank speaks of, with its own index; the union comes with the sums."""
        elems = x.size

        def encode(encoded: Bytes) -> None:
            if self._fixed is None:
                self._streams.write(x, None, own, elems, encoded)
                return
            packed = np.empty(kept, np.uint32)
            self._encode(x, own, scales, packed.view(np.uint8))
            self._streams.write(None, packed, own, elems, encoded)

        length_bytes, longest_bytes = self._streams.length_bytes(elems, own), stream.longest_bytes(elems)
        combined = yield Round(self.ops[0], length_bytes, longest_bytes, encode, stream_elems=elems)
        count = self._streams.check(elems, combined)
        sums = None
        if self._fixed:
            encoded = np.empty(4 * count, np.uint8)
            self._streams.values_of(elems, combined, encoded.view(np.uint32))
            sums = np.empty(count, np.float32)
            self._fixed.decode(_NOWHERE, encoded, Carry(), scales, sums)
        self._streams.unpack(elems, combined, None if sums is None else sums.view(np.uint32), values)
        self._void_what_is_no_number(values, carry)
        self._weigh(elems, combined.size)
        return Outcome(kept, "stream" if count else "nothing")

    def _choose(self, place: Place, x: Floats, own: Words, carry: Carry) -> int:
        """What this rank speaks of: all there is without a sparsifier, and where all of it travels anyway."""
        if self._sparsifier is None or x.size <= self._direct_elems:
            kept: int = self._machine.mark(x, 1, own)
            return kept
        return self._sparsifier.choose(self._machine, place, x, carry, own)

    def _leave_out(self, x: Floats, sent: Words, carry: Carry) -> None:
        """What a sparsifier leaves for later: x where it is not sent. In two phases the union's elements all are, also
        those that only other ranks have chosen: their bytes travel, with x or with zeros.
        """
        if self._sparsifier and carry.pending is not None:
            np.multiply(x, np.float32(1 / carry.loss_scale), out=carry.pending)
            np.copyto(carry.pending, 0, where=reference.bits_of(sent, x.size))

    def _agree(self, own: Words, kept: int, elems: int) -> Generator[Round, Bytes, tuple[Words, str, int]]:
        """Returns which elements are summed, a bitmap that is the same on all ranks, the encoding's name, and the bytes
        that it took to agree.
        """
        occupied = reference.bitmap_of(own != 0)
        index = np.concatenate([[self._flags(own, kept, elems)], occupied]).astype(np.uint32)
        combined = yield Round("or_u32", index.nbytes, index.nbytes, partial(_copy, index), more=True)
        flags, occupied = combined.view("<u4")[0], combined.view("<u4")[1:].astype(np.uint32)
        groups = self._machine.count(occupied)
        whole = np.empty(own.size, np.uint32)
        self._machine.unpack(np.full(groups, 0xFFFFFFFF, np.uint32), occupied, whole)
        _cut(whole, elems)
        of_groups = self._machine.count(whole)
        if not groups:
            return whole, "nothing", index.nbytes
        if (
            flags & _HERE_DENSE or not flags & _RAGGED
        ):  # 31/32 of them are the union: no index would be repaid
            return whole, "dense" if of_groups == elems else "rows", index.nbytes
        words = np.empty(groups, np.uint32)
        self._machine.pack(own, occupied, words)
        combined = yield Round("or_u32", words.nbytes, words.nbytes, partial(_copy, words), more=True)
        union = np.empty(own.size, np.uint32)
        self._machine.unpack(combined.view("<u4").astype(np.uint32, copy=False), occupied, union)
        return union, "bitmap", index.nbytes + words.nbytes

    def _flags(self, own: Words, kept: int, elems: int) -> np.uint32:
        """What this rank knows of how full the union will be."""
        flags = np.uint32(0)
        if 32 * kept >= 31 * elems:
            flags |= _HERE_DENSE
        left_out = ~own
        _cut(left_out, elems)
        ragged = (left_out & (left_out - np.uint32(1))) != 0  # of 32, one may be missing
        if elems % _GROUP:
            ragged[-1] = left_out[-1] != 0
        if (ragged & (own != 0)).any():
            flags |= _RAGGED
        return flags

    def _encode(self, x: Floats, union: Words, scales: Floats, encoded: Bytes) -> None:
        packed = encoded.view("<u4")
        self._machine.pack(x, union, packed)
        if self._fixed:
            self._fixed.encode(_NOWHERE, packed.view(np.float32).copy(), Carry(), scales, encoded)

    def _decode(self, combined: Bytes, union: Words, carry: Carry, scales: Floats, values: Floats) -> None:
        sums = combined.view("<f4")
        if self._fixed:
            sums = np.empty(combined.size // 4, np.float32)
            self._fixed.decode(_NOWHERE, combined, Carry(), scales, sums)
        self._machine.unpack(sums.view(np.uint32), union, values)
        self._void_what_is_no_number(sums, carry)

    @staticmethod
    def _void_what_is_no_number(sums: Floats, carry: Carry) -> None:
        if carry.pending is not None and not np.isfinite(sums).all():
            carry.void(np.ones(carry.pending.size, np.bool_))

    @staticmethod
    def _says_nothing(values: Floats, carry: Carry, scales: Floats) -> Outcome:
        """No rank has anything but zeros, or some rank something that is no number: nothing travels."""
        values[:] = scales[0]
        if carry.pending is not None:
            carry.pending[:] = 0
            if not np.isfinite(scales[0]):
                carry.void(np.ones(values.size, np.bool_))
        return Outcome(0, "nothing")

    def _weigh(self, elems: int, sum_bytes: int) -> None:
        """Whether this codec is worth its index; `sum_bytes` are the union's, with it."""
        if elems <= self._direct_elems:
            return
        self._dense_bytes += 4 * elems
        self._sent_bytes += sum_bytes
        share = self._sent_bytes / self._dense_bytes
        if self._dense_bytes > _ADVISE_AFTER_BYTES and share > _ADVISE_ABOVE:
            dense = "fixed32" if self._fixed else "f32"
            less = "a smaller share sends less" if self.lossy else "codec='topk' makes gradients sparse"
            self.advice = (
                f"codec {self.name} has sent {share:.0%} of what {dense} would have: most values are not zero on some "
                f"rank; codec={dense!r} is as small{' and needs fewer rounds' if self._phases == 2 else ''}, and {less}"
            )

    def _compare(self, elems: int, each_way_bytes: int, own: Words, union: Words) -> None:
        """Whether streams of what each rank has would have been shorter, up and down, byte for byte. Not behind a
        sparsifier, which makes use of all that two phases send.
        """
        if self._sparsifier or elems <= self._direct_elems:
            return
        length_bytes = self._streams.length_bytes
        self._two_phase_bytes += 2 * each_way_bytes
        self._one_phase_bytes += length_bytes(elems, own) + length_bytes(elems, union)
        share = self._one_phase_bytes / self._two_phase_bytes
        if self._dense_bytes > _ADVISE_AFTER_BYTES and share < _ADVISE_ONE_PHASE_BELOW and not self.advice:
            self.advice = (
                f"codec {self.name} in one phase would have sent and received {share:.0%} of its bytes: ranks have "
                "different elements, and in two phases each sends the union's; Sparse(phases=1) sends its own alone"
            )


_NOWHERE = Place(0, 0, 0)


def _copy(encoding: Words, encoded: Bytes) -> None:
    encoded.view("<u4")[:] = encoding


def _all_of(elems: int) -> Words:
    """All elements' bitmap."""
    bitmap = np.full(words_of(elems), 0xFFFFFFFF, np.uint32)
    _cut(bitmap, elems)
    return bitmap


def _cut(bitmap: Words, elems: int) -> None:
    """Nothing is beyond the last element."""
    if elems % _GROUP:
        bitmap[-1] &= np.uint32((1 << elems % _GROUP) - 1)


@cache
def fastest() -> ModuleType:
    """The C kernels where they are built; else the reference, which computes the same bits, with a warning."""
    if kernels.available():
        return kernels
    warnings.warn(f"sparse computes in numpy, many times slower: {kernels.remedy()}", stacklevel=2)
    return reference
