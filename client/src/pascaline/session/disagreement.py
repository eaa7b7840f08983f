"""Ranks that call alike with different tensors or codecs: which, as far as this rank can tell. Pure text.

A join compares the session's own codec; that of a single call, only the immediates of its messages can tell, which are
CRCs (reduce.Other). What another rank's may be made of is tried: the codecs that have a name, and their switches. How
long another rank's tensor is can be computed (wire.elems_apart).
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator, Sequence

from pascaline import codec as codecs
from pascaline.contract import wire
from pascaline.errors import EpochEnded, PascalineError
from pascaline.reduce import Other
from pascaline.session.work import Work

INT32 = "none: int32 is summed as it is"
EMPTY = "none: the tensor is empty"
_SHORT = 1 << 20
"""Elements; up to four times as many are believed of another rank's tensor, or of its own length."""
_FAULTS = ("op_mismatch", "length_mismatch", "imm_mismatch", "elements_mismatch")


def crc_of(words: str) -> int:
    """What stands for a codec in immediates."""
    return zlib.crc32(words.encode())


def explained(error: PascalineError, works: Sequence[Work]) -> PascalineError:
    """With the length or codec of the reduction that went wrong and the other rank's, as far as they can be told."""
    if not isinstance(error, EpochEnded) or error.fault not in _FAULTS or not works:
        return error
    seen = {int(digits, 16) for digits in re.findall(r"0x([0-9a-f]+)", str(error))}
    if lengths := _lengths(works, seen):
        return EpochEnded(
            f"{error}; here a tensor of {lengths[0]} elements is reduced, and elsewhere one of {lengths[1]}: its "
            "length must be the same on every rank",
            error.fault,
            error.rank,
        )
    work = _gone_wrong(works, seen)
    if work is None:
        return error
    others = [
        words for words in _likely(works) if words != work.codec and _note(work.sequence, words) in seen
    ]
    there = f", and elsewhere by {others[0]!r}" if others else ""
    return EpochEnded(
        f"{error}; here all_reduce {work.sequence} goes by codec {work.codec!r}{there}: a call's codec must be the "
        "same on every rank, too",
        error.fault,
        error.rank,
    )


def _lengths(works: Sequence[Work], seen: set[int]) -> tuple[int, int] | None:
    """Elements here and elsewhere, if two immediates tell them for one length that is pending here and no other.

    Immediates that differ by something else make a number of 32 bits that is as good as random: too large, nearly
    always.
    """
    pending = {work.elems for work in works}
    if len(seen) != 2 or len(pending) != 1 or _is_note(works, seen):
        return None
    [here] = pending
    there = here ^ wire.elems_apart(*seen)
    return (here, there) if 0 < there <= 4 * max(here, _SHORT) else None


def _is_note(works: Sequence[Work], seen: set[int]) -> bool:
    return any(
        _note(work.sequence, words) in seen for work in works for words in [work.codec, *_likely(works)]
    )


def _gone_wrong(works: Sequence[Work], seen: set[int]) -> Work | None:
    """Whose own note it was, or another rank's likely one; else the one that is pending alone."""
    likely = list(_likely(works))
    for words in ([], likely):
        for work in works:
            if seen & {_note(work.sequence, one) for one in [work.codec, *words]}:
                return work
    return works[0] if len(works) == 1 else None


def _note(sequence: int, words: str) -> int:
    return Other(crc_of(words), False).note(sequence)


def _likely(works: Sequence[Work]) -> Iterator[str]:
    """In words, without a seed and with those that are seen here."""
    plain = [codecs.resolve(name) for name in codecs.NAMES]
    values, phases = ("f32", "fixed32"), (1, 2)
    switched: list[codecs.Options] = [
        *itertools.starmap(codecs.Sparse, itertools.product(values, phases)),
        *(codecs.TopK(values=v, phases=p) for v, p in itertools.product(values, phases)),  # type: ignore[arg-type]
        codecs.Lhc(phases=1),
    ]
    seeds = {int(found[1]) for work in works if (found := re.search(r" seed (\d+)", work.codec))}
    for options, seed in itertools.product([*plain, *switched], [0, *seeds]):
        yield codecs.describe(options, seed)
    yield from (INT32, EMPTY)
    yield from (work.codec for work in works)
