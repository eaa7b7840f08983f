"""What counting costs a lane: the build that ships beside one that counts nothing, by time and by instructions.

By time: both run on one CPU, and take turns of a few milliseconds, so that what slows the machine for longer than that
slows both; the order of a pair changes from one to the next. Whatever stays with a process (the pages that it got) is
drawn again with every pair of processes. What remains is how the two builds happen to lie in memory, which a count of
instructions does not see and this one does.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.bench import report

if TYPE_CHECKING:
    from tests.bench.lane import Case, Runner

PAIRS = 40
"""Of turns of two processes."""
SLICE_MS = 4


class Turns:
    """A benchmark that runs one repetition whenever it is told to."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, text=False
        )
        assert self._process.stdin and self._process.stdout
        self._give, self._take = self._process.stdin, self._process.stdout

    def run(self) -> None:
        """One repetition; returns when it is over."""
        self._give.write(b".")
        if self._take.read(1) != b".":
            sys.exit(f"a benchmark ends with {self._process.wait()}")

    def end(self) -> bytes:
        """What it says in the end."""
        output = self._take.read()
        self._give.close()
        if self._process.wait():
            sys.exit(f"a benchmark ends with {self._process.returncode}")
        return output


def _ratios(runner: Runner, case: Case) -> list[float]:
    """The lane's time over that of one without counters, pair by pair of neighbours, from two new processes."""
    options = ("--in-turn", "--repetitions", str(PAIRS), "--slice-ms", str(SLICE_MS))
    both = [Turns(runner.command([case], *options, without=without)) for without in ("", "counters")]
    for pair in range(PAIRS):
        for which in both if pair % 2 else both[::-1]:
            which.run()
    with_ns, without_ns = (runner.rows(which.end().decode())[0]["lane_ns"] for which in both)
    return [a / b for a, b in zip(with_ns, without_ns, strict=True)]


def _instructions(runner: Runner, case: Case, without: str) -> float:
    """Instructions of the lane's turns for one contribution packet."""
    command = runner.command([case], "--stepped", without=without, under="psc_bench_steps")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"psc_bench_steps ends with {done.returncode}")
    return int(done.stderr.splitlines()[-1]) / int(done.stdout)


def cost(runner: Runner, case: Case, processes: int) -> dict[str, Any]:
    """`ratio`: of the times, over all pairs; `of_processes`: the median of each two; instructions per packet."""
    ratios = [_ratios(runner, case) for _ in range(processes)]
    return {
        "ratio": report.spread([ratio for part in ratios for ratio in part]),
        "of_processes": [round(statistics.median(part), 4) for part in ratios],
        "instructions": round(_instructions(runner, case, ""), 1),
        "instructions_without": round(_instructions(runner, case, "counters"), 1),
    }
