"""The settings of thc by name: ours, the paper's, its release's, and the schemes that are settings of the same machine.

`setting` gives one; `dataclasses.replace` switches a part of it off (scale_per="tensor", rounding="independent",
fresh_rotation=False). The table of docs/thc.md, "Settings", in code.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from pascaline.codec.thc import table
from pascaline.codec.thc.params import Params
from pascaline.errors import ConfigurationError

NAMES = ("thc", "thc-paper", "thc-release", "thc-uniform", "thc-uniform-max", "terngrad")

PAPER = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
"""4 bits, g = 30, p = 1/32: the release's default, which table.solve finds too."""
PAPER_T = 2.1538746940614564
TERNARY = (0, 1, 2, 2)


def setting(name: str, n: int, seed: int, bits: int | None = None, correlation: float = 0.5) -> Params:
    """The Params called `name` for `n` ranks.

    `bits` of an index: 2, 3, 4 (the default) or 8 for `thc` and the uniform ones; the others have their own.
    `correlation` of two ranks' gradients, 0 to 1, is what (g, p) of `thc` and p of `thc-uniform` are chosen for.
    """
    if name not in NAMES:
        raise ConfigurationError(f"there is no setting {name!r} of thc: choose one of {', '.join(NAMES)}")
    if name in _FIXED:
        own, values = _FIXED[name]
        if bits not in (None, own):
            raise ConfigurationError(
                f"{name} has {own} bits, not {bits}: choose thc or thc-uniform for other widths"
            )
        return Params(own, n=n, seed=seed, **values)
    bits = 4 if bits is None else bits
    if bits not in (2, 3, 4, 8):
        raise ConfigurationError(f"thc's bits is one of 2, 3, 4, 8, not {bits}")
    if name == "thc-uniform-max":
        return Params(bits, tuple(range(2**bits)), 1.0, n, seed, **_UNIFORM_MAX)
    solution = table.choose(bits, n, correlation, uniform=name == "thc-uniform")
    return Params(bits, solution.table, solution.t, n, seed)


def defaults(name: str) -> dict[str, Any]:
    """What the setting called `name` is when nothing is said: bits, correlation and the switches."""
    own, values = _FIXED.get(name, (4, _UNIFORM_MAX if name == "thc-uniform-max" else {}))
    switches = {one.name: one.default for one in fields(Params) if one.default is not MISSING}
    return {"bits": own, "correlation": 0.5, **switches, **values}


_UNIFORM_MAX: dict[str, Any] = {"norm": "max", "rotate": False}
_FIXED: dict[str, tuple[int, dict[str, Any]]] = {
    "thc-paper": (4, {"table": PAPER, "t": PAPER_T, "scale_per": "tensor", "rounding": "independent"}),
    "thc-release": (4, {"table": PAPER, "t": PAPER_T, "scale_per": "tensor", "rounding": "shared"}),
    "terngrad": (2, {"table": TERNARY, "t": 1.0, "norm": "max", "rotate": False, "rounding": "independent"}),
}
