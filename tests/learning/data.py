"""What is learned: Fashion-MNIST, from its files, and the text of Python's standard library. Arrays in, tensors out."""

from __future__ import annotations

import gzip
import hashlib
import struct
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
VOCABULARY = 128
"""ASCII; other characters are left out of the text."""
TEXT_BYTES = 8 << 20


class Missing(Exception):
    """A data set is not there; the message says how it comes."""


def idx(path: Path) -> np.ndarray:
    """An array of uint8 in the format of MNIST's files: a magic number with the number of axes, their sizes, bytes."""
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise Missing(
            f"{path} is not there: apt-get install dataset-fashion-mnist, or --fashion-mnist FOLDER"
        ) from None
    kind, axes = content[2], content[3]
    shape = struct.unpack_from(f">{axes}I", content, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if kind != 8 or values.size != np.prod(shape):
        raise ValueError(f"{path} has {values.size} bytes of type {kind}, its head says {shape} of type 8")
    return values.reshape(shape)


def images(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """(n, 1, 28, 28) uint8 and (n,) int64 of part "train" or "t10k"."""
    pixels = idx(folder / f"{part}-images-idx3-ubyte.gz").copy()
    classes = idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64)
    return torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(classes)


def text() -> tuple[Tensor, Tensor]:
    """(n,) uint8 each: the library's modules in the order of their names; every tenth is for validation."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted([*folder.glob("*.py"), *folder.glob("[a-z]*/*.py")])
    files = [path for path in files if "-packages" not in path.parts[-2]]
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    size = 0
    for i, path in enumerate(files):
        content = path.read_bytes()
        size += len(content)
        if size > TEXT_BYTES:
            break
        parts[i % 10 == 9].append(content.translate(None, bytes(range(VOCABULARY, 256))))
    training, validation = (torch.from_numpy(np.frombuffer(b"".join(p), np.uint8).copy()) for p in parts)
    return training, validation


def digest(*tensors: Tensor) -> str:
    """Of what is learned: another release of Python has another library."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]
