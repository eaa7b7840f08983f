"""Which codec, and its settings: what users write, before a job has a rank and a world size.

`resolve("thc")` is `Thc()`; `describe` says what differs from it, so that ranks that differ in it are refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from pascaline.codec.base import Codec
from pascaline.codec.dense import SUM_F32, Half
from pascaline.codec.fixed32 import Fixed32
from pascaline.codec.lhc import PERMILLE
from pascaline.codec.lhc import Params as LhcParams
from pascaline.codec.lhc.codec import LhcCodec
from pascaline.codec.sparse import Share, SparseCodec
from pascaline.codec.sparse import Threshold as ByThreshold
from pascaline.codec.sparse.codec import Phases, Values
from pascaline.codec.thc import settings, table
from pascaline.codec.thc.codec import ThcCodec
from pascaline.codec.thc.params import Norm, Params, Rounding, ScalePer
from pascaline.errors import ConfigurationError

_BITS = 4
_SAID_LAST = ("bits", "g", "p", "correlation", "table", "t")


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

    def build(self, rank: int, world_size: int, seed: int) -> Codec:
        """Alike on every rank."""
        if self.name == "fixed32":
            return Fixed32(world_size)
        return SUM_F32 if self.name == "f32" else Half(self.name, f"sum_{self.name}")


@dataclass(frozen=True)
class Sparse:
    """sparse (docs/sparse.md): what is not zero on some rank; as float32, or as `values="fixed32"`.

    `phases=1`: each rank sends what it has without asking what others do; it needs a session that joins with it.
    """

    values: Values = "f32"
    phases: Phases = 2
    name: str = field(default="sparse", init=False)
    error_feedback: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _check_travel(self.name, self.values, self.phases)

    def build(self, rank: int, world_size: int, seed: int) -> Codec:
        """Alike on every rank."""
        return SparseCodec(self.name, self.values, world_size, phases=self.phases)


@dataclass(frozen=True)
class TopK:
    """topk: sparse, of the largest `share` of each chunk's values (Lin et al., arXiv 1712.01887); the rest waits in the
    residual. In two phases what other ranks have chosen is sent too, since its bytes travel anyway.
    """

    share: float = 1 / 8
    values: Values = "f32"
    phases: Phases = 2
    name: str = field(default="topk", init=False)
    error_feedback: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigurationError(
                f"topk sends a share of the values above 0 and up to 1, not {self.share}"
            )
        _check_travel(self.name, self.values, self.phases)

    def build(self, rank: int, world_size: int, seed: int) -> Codec:
        """Alike on every rank."""
        return SparseCodec(self.name, self.values, world_size, Share(self.share), phases=self.phases)


@dataclass(frozen=True)
class Threshold:
    """threshold: sparse, of the values whose size is `threshold` or more, with the loss's scale if it has one; the rest
    waits in the residual.
    """

    threshold: float
    values: Values = "f32"
    phases: Phases = 2
    name: str = field(default="threshold", init=False)
    error_feedback: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.threshold < float("inf"):
            raise ConfigurationError(f"threshold is a finite number above 0, not {self.threshold}")
        _check_travel(self.name, self.values, self.phases)

    def build(self, rank: int, world_size: int, seed: int) -> Codec:
        """Alike on every rank."""
        sparsifier = ByThreshold(self.threshold)
        return SparseCodec(self.name, self.values, world_size, sparsifier, phases=self.phases)


def _check_travel(name: str, values: str, phases: int) -> None:
    if values not in ("f32", "fixed32"):
        raise ConfigurationError(f"{name}'s values travel as 'f32' or 'fixed32', not {values!r}")
    _check_phases(name, phases)


def _check_phases(name: str, phases: int) -> None:
    if phases not in (1, 2):
        raise ConfigurationError(f"{name} takes 1 or 2 phases, not {phases!r}")


@dataclass(frozen=True)
class Thc:
    """thc and its kin (docs/thc.md): a setting by `name`, and what is to differ from it.

    `g` and `p` (clipped share) are chosen for the number of ranks and the `correlation` of their gradients, 0 to 1,
    unless both are given, or a `table` with its `t` is.
    """

    bits: int | None = None
    """Of an index: 2, 3, 4 or 8; by default the setting's."""
    g: int | None = None
    p: float | None = None
    correlation: float = 0.5
    table: tuple[int, ...] | None = None
    t: float | None = None
    norm: Norm | None = None
    rotate: bool | None = None
    scale_per: ScalePer | None = None
    rounding: Rounding | None = None
    fresh_rotation: bool | None = None
    debias: float | None = None
    name: str = "thc"

    def __post_init__(self) -> None:
        if self.bits not in (None, 2, 3, 4, 8):
            raise ConfigurationError(f"thc's bits is one of 2, 3, 4, 8, not {self.bits}")
        for one, other in (("g", "p"), ("table", "t")):
            values = getattr(self, one), getattr(self, other)
            if (values[0] is None) != (values[1] is None):
                raise ConfigurationError(
                    f"thc takes {one} and {other} together, or neither: {one} is {values[0]} and {other} {values[1]}"
                )
        if self.table is not None:
            object.__setattr__(
                self, "table", tuple(map(int, self.table))
            )  # hashable, whatever sequence it came as

    @property
    def error_feedback(self) -> bool:
        """Not for terngrad: its error is larger than what it says, and fed back it would grow from step to step."""
        return self.name != "terngrad"

    def params(self, world_size: int, seed: int = 0) -> Params:
        """The numbers of a job. Raises ConfigurationError where sums could overflow."""
        switched = ("norm", "rotate", "scale_per", "rounding", "fresh_rotation", "debias", "table", "t")
        given: dict[str, Any] = {
            key: getattr(self, key) for key in switched if getattr(self, key) is not None
        }
        bits = self.bits or _BITS
        if self.g is not None and self.p is not None:
            solution = table.solve(bits, self.g, self.p)
            given = {"table": solution.table, "t": solution.t, **given}
        if "table" in given and self.name == "thc":
            return Params(bits=bits, n=world_size, seed=seed, **given)
        return replace(settings.setting(self.name, world_size, seed, self.bits, self.correlation), **given)

    def build(self, rank: int, world_size: int, seed: int) -> Codec:
        """One rank's."""
        return ThcCodec(self.name, self.params(world_size, seed), rank)


@dataclass(frozen=True)
class Lhc:
    """lhc (docs/lhc.md): `permille` buckets for 1000 elements that are not 0 on some rank.

    `phases=1`: a sketch does not wait for its index but is made for as many elements as the tensor's last reductions
    tell; what does not fit travels in a further message.
    """

    permille: int = PERMILLE
    phases: Phases = 2
    name: str = field(default="lhc", init=False)
    error_feedback: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _check_phases(self.name, self.phases)

    def build(self, rank: int, world_size: int, seed: int) -> Codec:
        """Alike on every rank."""
        return LhcCodec(world_size, LhcParams(seed, self.permille), self.phases)


_BY_NAME: dict[str, Callable[[], Options]] = {
    "f32": lambda: Plain("f32"),
    "f16": lambda: Plain("f16"),
    "bf16": lambda: Plain("bf16"),
    "fixed32": lambda: Plain("fixed32"),
    **{name: partial(Thc, name=name) for name in settings.NAMES},
    "sparse": Sparse,
    "topk": TopK,
    "lhc": Lhc,
}
NAMES = tuple(_BY_NAME)


def resolve(codec: str | Options) -> Options:
    """The options that a name stands for. Raises ConfigurationError with the list of names."""
    if isinstance(codec, str) and codec in _BY_NAME:
        return _BY_NAME[codec]()
    if codec == "threshold":
        raise ConfigurationError(
            "codec 'threshold' needs a number, the smallest |x| that it sends: pass pascaline.codec.Threshold(x)"
        )
    if isinstance(codec, str) or not isinstance(codec, Options):
        raise ConfigurationError(
            f"there is no codec {codec!r}: choose one of {', '.join(NAMES)}, or pass options such as "
            "pascaline.codec.Thc(bits=4)"
        )
    return codec


def describe(options: Options, seed: int, room_chars: int = 128) -> str:
    """A codec in words: its name and every parameter that is not the default's, so that ranks that differ in one are
    refused by a sentence that says both values.
    """
    if isinstance(options, Plain):
        return options.name
    words = [f"{key} {value}" for key, value in _given(options).items()]
    if seed:
        words.append(f"seed {seed}")
    return in_words([options.name, *words], room_chars)


def in_words(words: Sequence[str], room_chars: int) -> str:
    """`words` one after the other; if that is longer than `room_chars`, as many as fit, and a digest of all."""
    text = " ".join(words)
    if len(text) <= room_chars:
        return text
    digest = "#" + hashlib.sha256(text.encode()).hexdigest()[:8]
    for kept in range(len(words) - 1, 0, -1):
        short = f"{' '.join(words[:kept])} and {len(words) - kept} more {digest}"
        if len(short) <= room_chars:
            return short
    return digest


def _given(options: Options) -> dict[str, object]:
    """What differs from the defaults, switches first: they are short. Values are exact; a table is its digest."""
    defaults = {one.name: one.default for one in fields(options) if one.init}  # type: ignore[arg-type]
    usual = settings.defaults(options.name) if isinstance(options, Thc) else {}
    found: dict[str, object] = {}
    for key in sorted((key for key in defaults if key != "name"), key=_SAID_LAST.__contains__):
        value = getattr(options, key)
        if value not in (defaults[key], usual.get(key, defaults[key])):
            found[key] = hashlib.sha256(repr(value).encode()).hexdigest()[:8] if key == "table" else value
    return found
