"""The demonstration's part inside the bench: one appliance, the ranks, the same training over both links.

Everything heavy is imported once and the ranks are forked from here: under emulation importing torch takes half a
minute. Leaves measured.json and losses.json in the share.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import torch.distributed as dist

from pascaline_exporter import segment

from .verdict import Facts

REPOSITORY = Path(__file__).parents[2]
JOB = "demo"
CONTROL_PORT = 4790
START_TIMEOUT_S = 120
RANK_TIMEOUT_S = 900

CONFIG = """\
TO BE FILLED
"""


def load_example() -> ModuleType:
    """The training script, as a user would run it."""
    path = REPOSITORY / "client" / "examples" / "digits.py"
    spec = importlib.util.spec_from_file_location("digits", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["digits"] = module
    spec.loader.exec_module(module)
    return module


digits = load_example()


@contextmanager
def appliance(share: Path, library_path: str | None) -> Iterator[Path]:
    """A running pascaline-appliance; the path of its statistics segment."""
    stats = Path("/dev/shm/pascaline-demo-stats")
    config = share / "appliance.toml"
    config.write_text(CONFIG.format(stats=stats, port=CONTROL_PORT))
    environment = os.environ | ({"LD_LIBRARY_PATH": library_path} if library_path else {})
    command = [str(Path(sys.executable).with_name("pascaline-appliance")), "run", "--config", str(config)]
    with (share / "appliance.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until_live(process, stats, share / "appliance.log")
        yield stats
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def wait_until_live(process: subprocess.Popen[bytes], stats: Path, log: Path) -> None:
    """Return when the appliance's heartbeat can be seen."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            segment.read(stats)
            return
        except segment.SegmentError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the appliance did not start ({error}):\n{log.read_text()}") from None
        time.sleep(0.2)


def rank_main(link: str, rank: int, workers: int, port: int, options: object, share: Path) -> None:
    """One forked rank, with the environment that torchrun would give it."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(workers),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        TORCHELASTIC_RUN_ID=JOB,
        PASCALINE_APPLIANCE=f"127.0.0.1:{CONTROL_PORT}",
        PASCALINE_DEVICE=f"rxe{rank}",
    )
    dist.init_process_group("gloo")
    result = digits.train(link, options, on_step=lambda *step: print_step(link, *step))
    np.savez(
        share / f"{link}-{rank}.npz",
        losses=result.losses,
        gradient_bytes=result.gradient_bytes,
        accuracy=result.accuracy,
        parameters=result.parameters.numpy(),
    )
    dist.destroy_process_group()


def print_step(link: str, step: int, loss: float, step_bytes: int, seconds: float) -> None:
    """The live line; the rate is one worker's gradient bits over the time of its whole step."""
    emulated = "  emulated" if os.environ.get("PASCALINE_BENCH") == "rxe-vm" else ""
    rate = step_bytes * 8 / seconds / 1e9
    print(
        f"{link:9}  step {step:4}  loss {loss:.4f}  {step_bytes} bytes  {rate:.4f} Gbit/s{emulated}",
        flush=True,
    )


def train(link: str, workers: int, port: int, options: object, share: Path) -> list[dict[str, np.ndarray]]:
    """All ranks of one training, forked; what each found."""
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=rank_main, args=(link, rank, workers, port, options, share))
        for rank in range(workers)
    ]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + RANK_TIMEOUT_S
    while any(process.exitcode is None for process in ranks) and time.monotonic() < deadline:
        if any(process.exitcode for process in ranks):
            deadline = min(deadline, time.monotonic() + 30)  # the others notice, or are ended
        time.sleep(0.05)
    for process in ranks:
        process.kill()
        process.join()
    codes = [process.exitcode for process in ranks]
    if any(codes):
        raise SystemExit(f"training over {link} failed: the ranks' exit codes are {codes}")
    found = []
    for rank in range(workers):
        with np.load(share / f"{link}-{rank}.npz") as arrays:
            found.append(dict(arrays))
    return found


def main() -> None:
    """Run both trainings and leave what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--library-path")
    arguments = parser.parse_args()
    share, workers = arguments.share, arguments.workers
    link = os.environ["PASCALINE_BENCH"]
    # Emulation has time for 2.4 thousand parameters; a real kernel shows a model that needs several chunks.
    options = digits.Options(steps=arguments.steps, hidden=32 if link == "rxe-vm" else 8192)

    with appliance(share, arguments.library_path) as stats:
        ours = train("pascaline", workers, 29500, options, share)
        (job,) = (job for job in segment.read(stats).jobs if job.name == JOB)
    gloo = train("gloo", workers, 29501, options, share)

    facts = Facts(
        link=link,
        workers=workers,
        steps=len(ours[0]["losses"]),
        loss_first=float(ours[0]["losses"][0]),
        loss_last=float(ours[0]["losses"][-1]),
        accuracy=float(ours[0]["accuracy"]),
        accuracy_gloo=float(gloo[0]["accuracy"]),
        max_abs_diff=float(np.abs(ours[0]["parameters"] - gloo[0]["parameters"]).max()),
        bit_identical=len({rank["parameters"].tobytes() for rank in ours}) == 1,
        bytes_added=job.contribution_bytes,
        bytes_expected=sum(int(rank["gradient_bytes"]) for rank in ours),
    )
    (share / "demo.json").write_text(json.dumps(dataclasses.asdict(facts), indent=2) + "\n")
    losses = {"pascaline": ours[0]["losses"].tolist(), "gloo": gloo[0]["losses"].tolist()}
    (share / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
