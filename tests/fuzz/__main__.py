"""Fuzzing for so many seconds in all: parser, lane, control plane. `python -m tests.fuzz --seconds 60`.

The C targets are built by meson beside everything else (clang). What they find that is new goes to build/fuzz, what
ends them to build/fuzz/findings, with the command that repeats it. Figures go into the summary of the fault suites.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from .. import summary

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "dpdk_c" / "fuzz" / "corpus"
OUT = ROOT / "build" / "fuzz"
MAX_BYTES = {"parse": 2048, "lane": 16384}
SHARES = {"parse": 0.2, "lane": 0.5, "messages": 0.3}
UNIT_S = 60
"""For one input, by the wall clock: they take milliseconds, and a busy machine may stand still for seconds."""
GRACE_S = 600
"""More than a target's seconds: reached in failure only."""


@dataclass(frozen=True)
class Outcome:
    """Of one target."""

    execs: int
    findings: list[str]
    """Each one line that says how to repeat it."""


def at_fixed_addresses() -> list[str]:
    """Before a command: libFuzzer keys what it has compared by addresses, so a seed alone does not repeat a run."""
    prefix = ["setarch", "-R"]
    return (
        prefix if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0 else []
    )


def run_target(binary: Path, seconds: float, seed: int) -> Outcome:
    """One libFuzzer target: it ends at its time, or at the first finding."""
    name = binary.name.removeprefix("fuzz_")
    found, findings = OUT / name, OUT / "findings"
    for folder in (found, findings):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(findings.iterdir())
    command = [*(at_fixed_addresses() if seed else []), str(binary)]
    command += [f"-max_total_time={max(int(seconds), 1)}", f"-max_len={MAX_BYTES[name]}"]
    command += ["-print_final_stats=1", "-entropic=0", f"-seed={seed}"]
    # A slow unit, too, is written where findings are.
    command += [f"-timeout={UNIT_S}", f"-report_slow_units={UNIT_S}"]
    command += [f"-artifact_prefix={findings}/{name}-", str(found), str(CORPUS / name)]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=seconds + GRACE_S, check=False
    )
    execs = re.findall(r"stat::number_of_executed_units: (\d+)", done.stderr)
    new = sorted(set(findings.iterdir()) - before)
    says = [f"{binary} {path}" for path in new]
    if done.returncode and not says:
        says = [f"{binary} ended with {done.returncode}"]
    if done.returncode:
        print(done.stderr[-6000:], file=sys.stderr)
    return Outcome(int(execs[-1]) if execs else 0, says)


def run_messages(seconds: float, seed: int) -> Outcome:
    """The control plane: hypothesis against the real process."""
    report = OUT / "messages.xml"
    test = "tests/appliance/test_messages.py::test_no_message_harms_it_for_so_long"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", test, f"--junitxml={report}"],
        cwd=ROOT,
        env=os.environ | {"PASCALINE_FUZZ_SECONDS": str(seconds), "PASCALINE_FUZZ_SEED": str(seed)},
        capture_output=True,
        text=True,
        timeout=seconds + GRACE_S,
        check=False,
    )
    if done.returncode:
        print(done.stdout[-6000:], file=sys.stderr)
    values = [int(p.get("value", "0")) for p in ElementTree.parse(report).iter("property")]
    return Outcome(max(values, default=0), [f"pytest {test}"] if done.returncode else [])


def main() -> int:
    """0: nothing was found, and every target has run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="in all, default 60")
    parser.add_argument("--binaries", type=Path, required=True, help="folder of fuzz_parse and fuzz_lane")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn; 0: anew")
    options = parser.parse_args()

    OUT.mkdir(parents=True, exist_ok=True)
    outcomes = {
        name: run_target(options.binaries / f"fuzz_{name}", options.seconds * SHARES[name], options.seed)
        for name in MAX_BYTES
    }
    outcomes["messages"] = run_messages(options.seconds * SHARES["messages"], options.seed)
    for name, outcome in outcomes.items():
        print(f"fuzz {name}: {outcome.execs} executions, {len(outcome.findings)} findings")
    findings = [line for outcome in outcomes.values() for line in outcome.findings]
    summary.merge(fuzz_execs=sum(outcome.execs for outcome in outcomes.values()), fuzz_findings=len(findings))
    for line in findings:
        print(f"repeat: {line}")
    return 1 if findings or not all(outcome.execs for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
