"""`python -m tests.learning.sample`: takes what tests/softroce/gradients.npz has from the captured gradients, whole
layers of the middle of both trainings. Run it when the models change.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.numerics.gradients import CAPTURED

SAMPLE = Path(__file__).parents[1] / "softroce" / "gradients.npz"
LAYERS = {
    "cnn": ("0.*", "3.*", "7.bias", "9.*"),
    "gpt": ("blocks.0.norm1.*", "blocks.0.out.*", "blocks.1.qkv.bias", "norm.*"),
}
"""Model -> parameters, by pattern: all but the large matrices of the CNN, one small of each kind of the GPT."""


def chosen(path: Path, patterns: tuple[str, ...]) -> NDArray[np.float32]:
    """(ranks, elems) of the layers whose name matches, in DDP's order."""
    with np.load(path) as file:
        ends = np.cumsum(file["sizes"])[:-1]
        parts = np.split(file["gradients"], ends, axis=1)
        names = [str(name) for name in file["names"]]
    kept = [
        part for name, part in zip(names, parts, strict=True) if any(fnmatchcase(name, p) for p in patterns)
    ]
    return np.concatenate(kept, axis=1)


def sampled() -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(model, (ranks, elems)) as committed."""
    with np.load(SAMPLE) as file:
        yield from ((name, file[name]) for name in file.files)


if __name__ == "__main__":
    arrays = {model: chosen(CAPTURED / f"{model}-middle.npz", layers) for model, layers in LAYERS.items()}
    np.savez_compressed(SAMPLE, **arrays)
    print({model: array.shape for model, array in arrays.items()}, SAMPLE.stat().st_size, "bytes")
