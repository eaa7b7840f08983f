"""The machine of docs/thc.md as a codec: arrays and chunks on this side, its three functions on the other.

Law: with l a block's scale, every decoded coordinate of an unclipped block is within n * (largest step of the table)
* l of the sum, and its expectation is the sum times `debias`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pascaline.codec.base import Array, Bytes, Carry, Floats, OneRound, Place
from pascaline.codec.thc import kernels
from pascaline.codec.thc.params import BLOCK, Params
from pascaline.errors import ConfigurationError

_U32 = 0xFFFFFFFF


class Machine(Protocol):
    """The functions of docs/thc.md over one chunk of numpy arrays; reference.py says what each argument is."""

    @property
    def norms(self) -> Callable[..., Floats]:
        """f32 (blocks,)."""
        ...

    @property
    def tensor_norm(self) -> Callable[..., Floats]:
        """f32 (1,)."""
        ...

    @property
    def encode(self) -> Callable[..., None]:
        """Into residual_out and the last argument."""
        ...

    @property
    def decode(self) -> Callable[..., None]:
        """Into the last argument."""
        ...


class ThcCodec(OneRound):
    """One setting of the machine on one rank."""

    lossy = True

    def __init__(self, name: str, params: Params, rank: int, machine: Machine | None = None) -> None:
        self.name, self.op, self.table = name, params.op, params.wire_table
        self.one_scale = params.scale_per == "tensor"
        self.params = params
        self._rank = rank
        self._machine = machine or fastest()

    def chunk_elems(self, slot_bytes: int) -> int:
        """Whole blocks, whose sums fill a slot."""
        elems = slot_bytes * 8 // self.params.sum_bits // BLOCK * BLOCK
        if not elems:
            raise ConfigurationError(
                f"{self.name} needs slots of {BLOCK * self.params.sum_bits // 8} bytes, a block's sums, and the job "
                f"has {slot_bytes}: join with a larger chunk_bytes"
            )
        return elems

    def contribution_bytes(self, elems: int) -> int:
        """Indices, in units of 64 bytes."""
        return self.params.packed_bytes(elems)

    def result_bytes(self, elems: int) -> int:
        """One sum for each coordinate."""
        return self.params.coordinates(elems) * self.params.sum_bits // 8

    def scale_count(self, elems: int) -> int:
        """One for each block."""
        return self.params.blocks(elems)

    def norms(self, values: Floats, carry: Carry, norms: Floats) -> None:
        """Each block's."""
        norms[:] = self._machine.norms(self.params, values, carry.residual, carry.loss_scale)

    def fold(self, norms: Floats) -> np.float32:
        """The tensor's."""
        norm: np.float32 = self._machine.tensor_norm(self.params, norms)[0]
        return norm

    def encode(self, place: Place, values: Array, carry: Carry, scales: Floats, encoded: Bytes) -> None:
        """Indices into the table."""
        self._machine.encode(
            self.params,
            self._rank,
            place.sequence & _U32,
            place.chunk,
            values,
            carry.residual,
            carry.pending,
            carry.loss_scale,
            self._each(scales, values.size),
            self.params.coordinates(place.elems),
            encoded,
        )

    def decode(self, place: Place, combined: Bytes, _carry: Carry, scales: Floats, values: Array) -> None:
        """Everybody contributes. A block whose scale is no number decodes to it; its pending residual is the old
        one.
        """
        self._machine.decode(
            self.params,
            place.sequence & _U32,
            place.chunk,
            self.params.n,
            combined.view("<u2") if self.params.sum_bits == 16 else combined,
            self._each(scales, values.size),
            self.params.coordinates(place.elems),
            values,
        )

    def _each(self, scales: Floats, elems: int) -> Floats:
        """One scale for each block of a chunk."""
        if not self.one_scale:
            return scales
        return np.full(self.params.blocks(elems), scales[0], np.float32)


class _Reference:
    """The machine in PyTorch: slow, and the definition."""

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._reference: Any = importlib.import_module("pascaline.codec.thc.reference")

    def _tensors(self, arguments: tuple[Any, ...]) -> list[Any]:
        """Arrays as tensors on the same memory."""
        return [self._torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments]

    def norms(self, *arguments: Any) -> Array:
        norms: Array = self._reference.norms(*self._tensors(arguments)).numpy()
        return norms

    def tensor_norm(self, *arguments: Any) -> Array:
        norm: Array = self._reference.tensor_norm(*self._tensors(arguments)).numpy()
        return norm

    def encode(self, *arguments: Any) -> None:
        self._reference.encode(*self._tensors(arguments))

    def decode(self, *arguments: Any) -> None:
        self._reference.decode(*self._tensors(arguments))


def fastest() -> Machine:
    """The C kernels where they are built; else the reference, which computes the same bits, with a warning."""
    if kernels.available():
        return kernels
    machine = reference()
    warnings.warn(f"thc computes in PyTorch, many times slower: {kernels.remedy()}", stacklevel=2)
    return machine


def reference() -> Machine:
    """The definition."""
    try:
        return _Reference()
    except ImportError as error:
        raise ConfigurationError(
            f"thc computes in its C kernels or in PyTorch, and PyTorch is not installed either: {kernels.remedy()}; or "
            "pip install 'pascaline[torch]'"
        ) from error
