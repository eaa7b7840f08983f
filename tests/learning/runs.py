"""Which runs there are, in which order, and their records on disk: what lets `make learning` go on where it was
interrupted. No tensors.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MEASURED = (
    "client/src",
    "client/kernels",
    "tests/learning/data.py",
    "tests/learning/tasks.py",
    "tests/learning/train.py",
)
"""What a run depends on: a record holds while none of these has changed."""
EXACT = {"sparse": "f32", "lhc": "fixed32"}
"""Codecs that lose nothing, and the dense ones whose bits they must have."""
LOSSLESS = ("fixed32", *EXACT)
"""But for fixed32's own rounding: a few seeds are enough."""
CODECS = ("f32", "thc", "thc-paper", "thc-release", "thc-uniform", "terngrad", "topk", "bf16", *LOSSLESS)
LEAST_SEEDS = 5
LOSSLESS_SEEDS = 2


@dataclass(frozen=True)
class Run:
    """One training."""

    model: str
    codec: str
    seed: int

    @property
    def captures(self) -> bool:
        """Whether its gradients are kept, as the numerics suite wants them."""
        return self.codec == "f32" and self.seed == 0


@dataclass(frozen=True)
class Setting:
    """What is alike in all runs that are compared."""

    sources: str
    """Last commit that changed what is measured, and a digest of what is not committed."""
    workers: int
    steps: int | None
    """None: each task's own."""


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def head() -> str:
    """The commit that is checked out."""
    return _git("rev-parse", "HEAD").strip()


def resolved(commit: str) -> str:
    """A commit's full name."""
    return _git("rev-parse", commit).strip() or commit


def sources() -> str:
    """The commit of what is measured."""
    commit = _git("log", "-1", "--format=%H", "--", *MEASURED).strip() or "unknown"
    changed = _git("diff", "HEAD", "--", *MEASURED) + _git("status", "--porcelain", "--", *MEASURED)
    return commit + ("+" + hashlib.sha256(changed.encode()).hexdigest()[:12] if changed else "")


def order(seeds: int) -> Iterator[Run]:
    """Five seeds at a time; of these first the pair that the bound is about, then thc-paper, then the others; of
    lossless codecs two alone.
    """
    for first in range(0, seeds, LEAST_SEEDS):
        some = range(first, min(first + LEAST_SEEDS, seeds))
        for group in (CODECS[:2], CODECS[2:3], CODECS[3:]):
            for seed in some:
                codecs = [codec for codec in group if codec not in LOSSLESS or seed < LOSSLESS_SEEDS]
                yield from (Run(model, codec, seed) for codec in codecs for model in ("cnn", "gpt"))


@dataclass(frozen=True)
class Kept:
    """Runs of earlier sources that count where there are none of the present ones: of codecs that have not changed
    since, which is for the user to know.
    """

    sources: str = ""
    codecs: tuple[str, ...] = ()


NONE_KEPT = Kept()


class Records:
    """Files of build/learning: runs/*.json and gradients/*.npz."""

    def __init__(self, folder: Path, setting: Setting, kept: Kept = NONE_KEPT) -> None:
        self.folder, self.setting, self.kept = folder, setting, kept
        for name in ("runs", "gradients"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def _path(self, run: Run, sources: str) -> Path:
        commit, _, changed = sources.partition("+")
        key = commit[:12] + ("+" + changed if changed else "")
        return self.folder / "runs" / f"{key}-{run.model}-{run.codec}-{run.seed}.json"

    def gradients(self, model: str, point: str) -> Path:
        """Of the run that captures."""
        return self.folder / "gradients" / f"{model}-{point}.npz"

    def read(self, run: Run) -> dict[str, Any] | None:
        """A run that was done in this setting; else, if its codec's are kept, with the earlier sources."""
        record = self._read(run, self.setting)
        if record is None and run.codec in self.kept.codecs:
            record = self._read(run, replace(self.setting, sources=self.kept.sources))
        return record

    def _read(self, run: Run, setting: Setting) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = json.loads(self._path(run, setting.sources).read_text())
        except FileNotFoundError:
            return None
        return record if record["setting"] == asdict(setting) else None

    def write(self, run: Run, record: dict[str, Any]) -> None:
        """All of it or nothing."""
        path = self._path(run, self.setting.sources)
        content = {**asdict(run), "setting": asdict(self.setting), "commit": head(), **record}
        path.with_suffix(".part").write_text(json.dumps(content, indent=1) + "\n")
        path.with_suffix(".part").rename(path)

    def done(self, run: Run, digest: str, points: tuple[str, ...]) -> bool:
        """Whether nothing is left to do: `digest` is of the data, `points` where gradients are captured."""
        record = self.read(run)
        complete = not run.captures or all(self.gradients(run.model, point).exists() for point in points)
        return record is not None and record["data"] == digest and complete
