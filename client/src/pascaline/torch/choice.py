"""Which gradients are compressed, from when on, and what is said about it: the hook's own options, checked once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pascaline.codec import Options, in_words, resolve
from pascaline.errors import ConfigurationError

_LOSSLESS = ("f32", "fixed32")


@dataclass(frozen=True)
class Choice:
    """Alike on all ranks, but for the scaler, whose scale is."""

    scaler: Any = None
    """torch.amp.GradScaler: residuals are kept without its scale, and a step that it skips leaves them as they were."""
    use_error_feedback: bool | None = None
    """None: where the codec profits from it."""
    start_compress_iter: int = 0
    """Earlier backward passes travel uncompressed."""
    min_compress_elems: int = 0
    """Smaller parameters travel uncompressed."""
    exclude: Sequence[str] = ()
    """Parameters whose names match one of these patterns (fnmatch) travel uncompressed."""
    uncompressed_codec: str = "f32"
    """What is not compressed travels by: f32 or fixed32."""

    def __post_init__(self) -> None:
        for name in ("start_compress_iter", "min_compress_elems"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: it is 0 or more")
        if isinstance(self.exclude, str):
            raise ConfigurationError(f"exclude is a list of patterns: pass [{self.exclude!r}]")
        if self.uncompressed_codec not in _LOSSLESS:
            raise ConfigurationError(
                f"uncompressed_codec is {self.uncompressed_codec!r}: choose one of {', '.join(_LOSSLESS)}"
            )
        if self.scaler is not None and self.scaler.is_enabled():
            for factor in (self.scaler.get_growth_factor(), self.scaler.get_backoff_factor()):
                _check_power(f"the GradScaler multiplies its scale by {factor}", factor)

    def feeds_back(self, codec: Options) -> bool:
        """Whether what `codec` leaves out is fed back. Raises ConfigurationError where that is nothing."""
        if self.use_error_feedback and codec.name in _LOSSLESS:
            raise ConfigurationError(
                f"use_error_feedback is True and codec {codec.name} leaves nothing out: drop it, or choose a "
                "codec that compresses, such as thc"
            )
        return codec.error_feedback if self.use_error_feedback is None else self.use_error_feedback

    @property
    def plain(self) -> Options:
        """Of what is not compressed."""
        return resolve(self.uncompressed_codec)

    def loss_scale(self) -> float:
        """What the gradients of this pass are multiplied by."""
        if self.scaler is None or not self.scaler.is_enabled():
            return 1.0
        scale = float(self.scaler.get_scale())
        _check_power(f"the GradScaler's scale is {scale}", scale)
        return scale

    def compresses(self, name: str, elems: int) -> bool:
        """Whether a parameter is compressed at all."""
        return elems >= self.min_compress_elems and not any(fnmatchcase(name, p) for p in self.exclude)

    def described(self, room_chars: int) -> str:
        """What must be alike on all ranks beyond codec and model, where it is not the default; '' if nothing is."""
        names = ("start_compress_iter", "min_compress_elems", "uncompressed_codec")
        words = [
            f"{name} {value}" for name in names if (value := getattr(self, name)) != getattr(Choice, name)
        ]
        if self.exclude:
            words.append(f"exclude {','.join(self.exclude)}")
        return f", {in_words(words, room_chars - 2)}" if words else ""


def _check_power(what: str, value: float) -> None:
    if not value > 0 or math.frexp(value)[0] != 0.5:
        raise ConfigurationError(
            f"{what}, no power of two, so residuals could not be kept unscaled exactly: "
            "GradScaler(init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5)"
        )
