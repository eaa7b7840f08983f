"""Which codec, and its settings: what users write, before a job has a rank and a world size.

`resolve("thc")` is `Thc()`; `describe` says every parameter, so that ranks that differ in one are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from pascaline.codec.base import Codec
from pascaline.codec.dense import SUM_F32, Half
from pascaline.codec.fixed32 import Fixed32
from pascaline.codec.thc import table as tables
from pascaline.codec.thc.codec import ThcCodec
from pascaline.codec.thc.params import Norm, Params, Rounding, ScalePer
from pascaline.codec.topk import TopK
from pascaline.errors import ConfigurationError

PAPER_T = 2.1538746940614564
PAPER_TABLE = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)


@runtime_checkable
class Options(Protocol):
    """A codec and its settings."""

    @property
    def name(self) -> str:
        """As users say it."""
        ...

    @property
    def error_feedback(self) -> bool:
        """Whether it profits from error feedback: its own error is smaller than what it says."""
        ...

    def build(self, rank: int, world_size: int, seed: int) -> Codec:
        """The codec of one rank. Raises ConfigurationError for what cannot be."""
        ...


@dataclass(frozen=True)
class Plain:
    """A codec that has nothing to set."""

    name: str
    error_feedback: bool = field(default=False, init=False)

    def build(self, _rank: int, world_size: int, _seed: int) -> Codec:
        """Alike on every rank."""
        if self.name == "fixed32":
            return Fixed32(world_size)
        return SUM_F32 if self.name == "f32" else Half(self.name, f"sum_{self.name}")


@dataclass(frozen=True)
class Largest:
    """topk: the largest `share` of each chunk's values."""

    share: float = 1 / 8
    name: str = field(default="topk", init=False)
    error_feedback: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigurationError(f"topk sends a share of the values above 0 and up to 1, not {self.share}")

    def build(self, _rank: int, _world_size: int, _seed: int) -> Codec:
        """Alike on every rank."""
        return TopK(self.share)


@dataclass(frozen=True)
class Thc:
    """thc: `bits` per value up, 8 or 16 down (docs/thc.md has every parameter).

    The table is solved for granularity `g` and clipped share `p` unless `table` is given.
    """

    bits: int = 4
    g: int = 30
    p: float = 1 / 128
    norm: Norm = "l2"
    rotate: bool = True
    scale_per: ScalePer = "block"
    rounding: Rounding = "stratified"
    fresh_rotation: bool = True
    debias: float = 1.0
    table: tuple[int, ...] | None = None
    t: float | None = None
    """Half the range of a coordinate; by default Phi^-1(1 - p/2)."""
    name: str = "thc"
    error_feedback: bool = True

    def params(self, world_size: int, seed: int = 0) -> Params:
        """The numbers of a job. Raises ConfigurationError where sums could overflow."""
        return Params(
            bits=self.bits,
            table=self.table or tables.solve(self.bits, self.g, self.p).table,
            t=tables.half_range(self.p) if self.t is None else self.t,
            n=world_size,
            seed=seed,
            norm=self.norm,
            rotate=self.rotate,
            scale_per=self.scale_per,
            rounding=self.rounding,
            fresh_rotation=self.fresh_rotation,
            debias=self.debias,
        )

    def build(self, rank: int, world_size: int, seed: int) -> Codec:
        """One rank's."""
        return ThcCodec(self.name, self.params(world_size, seed), rank)


def _paper(name: str, rounding: Rounding) -> Thc:
    return Thc(
        p=1 / 32,
        t=PAPER_T,
        table=PAPER_TABLE,
        scale_per="tensor",
        rounding=rounding,
        name=name,
    )


def _uniform() -> Thc:
    return Thc(g=15, p=1 / 1024, table=tuple(range(16)), name="thc-uniform")


def _terngrad() -> Thc:
    return Thc(
        bits=2,
        g=2,
        table=(0, 1, 2, 2),
        t=1.0,
        rotate=False,
        norm="max",
        rounding="independent",
        name="terngrad",
        error_feedback=False,
    )


_BY_NAME: dict[str, Callable[[], Options]] = {
    "f32": lambda: Plain("f32"),
    "f16": lambda: Plain("f16"),
    "bf16": lambda: Plain("bf16"),
    "fixed32": lambda: Plain("fixed32"),
    "thc": Thc,
    "thc-paper": lambda: _paper("thc-paper", "independent"),
    "thc-release": lambda: _paper("thc-release", "shared"),
    "thc-uniform": _uniform,
    "terngrad": _terngrad,
    "topk": Largest,
}
NAMES = tuple(_BY_NAME)


def resolve(codec: str | Options) -> Options:
    """The options that a name stands for. Raises ConfigurationError with the list of names."""
    if isinstance(codec, str) and codec in _BY_NAME:
        return _BY_NAME[codec]()
    if isinstance(codec, str) or not isinstance(codec, Options):
        raise ConfigurationError(
            f"there is no codec {codec!r}: choose one of {', '.join(NAMES)}, or pass options such as "
            "pascaline.codec.Thc(bits=4)"
        )
    return codec


def describe(options: Options, seed: int) -> str:
    """A codec in a few words and a digest of every parameter; '' says nothing that a round would not."""
    settings: dict[str, Any] = {**asdict(options), "seed": seed}  # type: ignore[call-overload]
    text = " ".join(f"{key}={value!r}" for key, value in sorted(settings.items()))
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    shown = {key: settings[key] for key in ("bits", "g", "p", "share") if settings.get(key) is not None}
    words = " ".join(f"{key} {value:.4g}" for key, value in shown.items())
    return f"{options.name} {words} #{digest}" if words else options.name
