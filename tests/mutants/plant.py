"""Plants a mutant in a copy of dpdk_c and builds it there: the sources themselves are never touched, and nothing of the
copy is what `make build` builds, installs or ships.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .table import Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("dpdk_c", "tests/vectors")
"""What dpdk_c's build reads; the layout of the copy is the repository's."""


class RowError(Exception):
    """A row of the table that does not fit the sources, or does not compile: nothing is known about its rule."""


def mutated(mutant: Mutant, source: str) -> str:
    """The file's text with the fault in it."""
    found = source.count(mutant.text)
    if found != 1:
        raise RowError(f"{mutant.name}: its text is {found} times in {mutant.file}, not once: mend the row")
    return source.replace(mutant.text, mutant.becomes)


BUILDS = {
    "plain": ("-Ddpdk=disabled",),
    "threads": ("-Db_sanitize=thread", "-Db_lundef=false"),
}
"""By the name of its folder: options of meson."""


class Tree:
    """The copy, and the builds of it."""

    def __init__(self, place: Path) -> None:
        """Makes the copy, or brings it up to date; files that are the same keep their time, so ninja is quick."""
        self.source = place / "source"
        self._builds = place
        wanted = {path for part in COPIED for path in (ROOT / part).rglob("*") if path.is_file()}
        for path in wanted:
            copy = self.source / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists() or copy.read_bytes() != path.read_bytes():
                copy.write_bytes(path.read_bytes())
        for copy in [path for path in self.source.rglob("*") if path.is_file()]:
            if ROOT / copy.relative_to(self.source) not in wanted:
                copy.unlink()

    @contextlib.contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The fault is in the copy meanwhile."""
        path = self.source / "dpdk_c" / mutant.file
        sound = path.read_text()
        path.write_text(mutated(mutant, sound))
        try:
            yield
        finally:
            path.write_text(sound)

    def built(self, build: str, target: str) -> Path:
        """`target` of the copy as it is now."""
        folder = self._builds / build
        if not (folder / "build.ninja").exists():
            _run(["meson", "setup", str(folder), str(self.source / "dpdk_c"), *BUILDS[build]])
        _run(["ninja", "-C", str(folder), target])
        return folder / target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise RowError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
