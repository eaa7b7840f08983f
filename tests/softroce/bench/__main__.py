"""Command line of the bench: `run -- CMD` for a command, `shell` for a look around."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import BenchError, Task, run


def main() -> int:
    """Run one task; returns its exit status, 125 if there was no place to run it in."""
    parser = argparse.ArgumentParser(prog="python -m tests.softroce.bench", description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="rxe devices, default 4")
    parser.add_argument("--memory-mb", type=int, default=512, help="of the VM, default 512; torch needs 1536")
    parser.add_argument("--timeout-s", type=float, default=900.0, help="for the command, default 900")
    parser.add_argument("--share", type=Path, help="folder that the command may write to")
    commands = parser.add_subparsers(dest="action", required=True)
    commands.add_parser("shell", help="an interactive shell in the place")
    run_parser = commands.add_parser("run", help="run a command: run -- CMD...")
    run_parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    interactive = options.action == "shell"
    task = Task(
        command=["bash", "-i"] if interactive else options.command,
        share=options.share.resolve() if options.share else None,
        workers=options.workers,
        memory_mb=options.memory_mb,
        timeout_s=options.timeout_s,
        interactive=interactive,
    )
    try:
        outcome = run(task)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 125
    print(outcome, flush=True)
    return outcome.status


sys.exit(main())
