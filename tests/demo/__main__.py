"""The demonstration, seen from the host: visit the bench, draw the loss, judge.

Exit status 0: every claim holds; 1: one does not; 2: it could not be shown (no place to run, a process died).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.softroce import bench

from .verdict import CODECS, Facts, objections

NO_SHOW = 2


def main(command_line: list[str] | None = None) -> int:
    """Run the demonstration; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="folder for demo.json and loss.png"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--codec", choices=CODECS, default=CODECS[0], help="how gradients travel")
    parser.add_argument("--library-path", help="folder of another libpascaline for the appliance")
    parser.add_argument(
        "--expect-objections",
        action="store_true",
        help="turn the verdict round: for a data plane with a planted fault",
    )
    arguments = parser.parse_args(command_line)
    out = arguments.out.resolve()
    for stale in ("demo.json", "losses.json", "loss.png"):
        (out / stale).unlink(missing_ok=True)

    command = [sys.executable, "-m", "tests.demo.inside", "--share", str(out)]
    command += ["--workers", str(arguments.workers), "--steps", str(arguments.steps)]
    command += ["--codec", arguments.codec]
    if arguments.library_path:
        command += ["--library-path", arguments.library_path]
    task = bench.Task(command, share=out, workers=arguments.workers, memory_mb=2048, timeout_s=1800)
    try:
        outcome = bench.run(task)
    except bench.BenchError as error:
        print(f"demo: {error}", file=sys.stderr)
        return NO_SHOW
    print(outcome)
    if outcome.status != 0:
        print(f"demo: the trainings did not end; see {out / 'appliance.log'}", file=sys.stderr)
        return NO_SHOW

    facts = Facts(**json.loads((out / "demo.json").read_text()))
    draw(facts, json.loads((out / "losses.json").read_text()), out / "loss.png")
    return report(facts, out, arguments.expect_objections)


def report(facts: Facts, out: Path, expect_objections: bool = False) -> int:
    """Print the verdict; returns the exit status."""
    print(
        f"trained {facts.steps} steps on {facts.workers} workers, every gradient through the appliance "
        f"({facts.link}) in {facts.codec}"
    )
    print(f"  loss       {facts.loss_first:.4f} -> {facts.loss_last:.4f}")
    print(f"  accuracy   {facts.accuracy:.3f} on held-out images, Gloo {facts.accuracy_gloo:.3f}")
    print(
        f"  parameters {facts.max_abs_diff:g} from those over {facts.reference} at most; ranks bit-identical: "
        f"{facts.bit_identical}"
    )
    print(
        f"  bytes      {facts.bytes_added} added by the appliance and {facts.result_bytes} written back, "
        f"{facts.bytes_expected} and {facts.result_bytes_expected} expected"
    )
    print(f"  written    {out / 'demo.json'}, {out / 'loss.png'}")
    found = objections(facts)
    for sentence in found:
        print(f"demo: FAILED: {sentence}", file=sys.stderr)
    return int(bool(found) != expect_objections)


def draw(facts: Facts, losses: dict[str, list[float]], path: Path) -> None:
    """The loss of all trainings over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(losses["gloo"], linewidth=4, alpha=0.35, label="Gloo")
    axes.plot(losses["pascaline"], linewidth=1.2, label=f"Pascaline, {facts.codec} ({facts.link})")
    axes.set(xlabel="step", ylabel="loss, mean over workers", yscale="log")
    axes.set_title(
        f"load_digits, {facts.workers} workers, accuracy {facts.accuracy:.3f} (Gloo {facts.accuracy_gloo:.3f})"
    )
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
