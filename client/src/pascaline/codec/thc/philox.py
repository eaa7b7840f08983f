"""Philox4x32: the one source of random bits of the codec thc (docs/thc.md, "Random numbers").

Counter-based: every word is a pure function of (seed, stream, sequence, chunk, coordinate), so ranks agree on shared
draws without talking, a GPU draws the same bits as a CPU, and nothing has to be kept between steps.
Source: J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC'11), section 3.3; 7 rounds pass BigCrush.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDS = 7
SIGNS, STRATA, PRIVATE = 0, 1, 2
"""Streams; rank r draws its own bits from PRIVATE + r."""
GROUP = 128
"""Coordinates that one draw of signs (one state) and one of 16-bit numbers (16 states) make."""

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_INCREMENTS = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox4x32(
    counter: tuple[Any, Any, Any, Any], key: tuple[int, int], rounds: int = ROUNDS
) -> NDArray[np.uint32]:
    """Four words for each counter, (4, ...). A counter's words are integers or arrays whose shapes broadcast."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    k0, k1 = key
    for _ in range(rounds):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1 = (product1 >> _32) ^ c1 ^ np.uint64(k0), product1 & _LOW
        c2, c3 = (product0 >> _32) ^ c3 ^ np.uint64(k1), product0 & _LOW
        k0, k1 = (k0 + _KEY_INCREMENTS[0]) & 0xFFFFFFFF, (k1 + _KEY_INCREMENTS[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def key_of(seed: int) -> tuple[int, int]:
    """Low and high word of a 64-bit seed."""
    return seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF


def signs(seed: int, sequence: int, chunk: int, first: int, count: int) -> NDArray[np.bool_]:
    """Whether each of the coordinates `first` .. `first + count - 1` is negated, (count,); `first` divides by 128."""
    q = np.arange(first // GROUP, -(-(first + count) // GROUP))
    words = philox4x32((q, chunk, sequence, SIGNS), key_of(seed)).T  # (q, word)
    bits = words[:, :, None] >> np.arange(32, dtype=np.uint32) & np.uint32(
        1
    )  # (q, word, bit): ascending coordinates
    return bits.reshape(-1)[:count].astype(np.bool_)


def halves(seed: int, sequence: int, chunk: int, stream: int, first: int, count: int) -> NDArray[np.int64]:
    """16 random bits for each of the coordinates `first` .. `first + count - 1`, (count,); `first` divides by 128."""
    groups = np.arange(first // GROUP, -(-(first + count) // GROUP))
    q = 16 * groups[:, None] + np.arange(16)
    words = philox4x32((q, chunk, sequence, stream), key_of(seed)).transpose(1, 0, 2)  # (group, word, state)
    low, high = words & np.uint32(0xFFFF), words >> np.uint32(16)
    return np.stack([low, high], axis=1).reshape(-1)[:count].astype(np.int64)  # (group, half, word, state)
