"""The demonstration's part inside the bench: one appliance, the ranks, the same training over each link.

Everything heavy is imported once and the ranks are forked from here: under emulation importing torch takes half a
minute. Leaves demo.json and losses.json in the share.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import importlib.util
import json
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pascaline import codec as codecs
from pascaline_exporter import segment
from tests.softroce.appliance import ADDRESS, Appliance
from tests.softroce.bench import PLACE_VARIABLE, REPOSITORY
from tests.softroce.ranks import Ranks

from .payload import SLOT_BYTES, bytes_expected
from .verdict import CODECS, Facts

JOB = "demo"
TRAINING_TIMEOUT_S = 600


def load_example() -> ModuleType:
    """The training script, as a user would run it."""
    path = REPOSITORY / "client" / "examples" / "digits.py"
    spec = importlib.util.spec_from_file_location("digits", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["digits"] = module
    spec.loader.exec_module(module)
    return module


print("importing torch and scikit-learn, which takes a minute under emulation ...", flush=True)
digits = load_example()
importlib.import_module("torch._dynamo")  # DDP's constructor would, in every rank


def appliance(share: Path, library_path: str | None) -> Appliance:
    """A running appliance, whose log is left in the share."""
    folder = Path("/dev/shm/pascaline-demo")
    folder.mkdir(exist_ok=True)
    environment = {"LD_LIBRARY_PATH": library_path} if library_path else {}
    return Appliance(folder, environment, log_path=share / "appliance.log")


def train(link: str, workers: int, options: object, port: int) -> list[dict[str, Any]]:
    """All ranks of one training, forked; what each found."""
    with Ranks(workers, partial(one_rank, link, options, port), ADDRESS) as ranks:
        return ranks.results(TRAINING_TIMEOUT_S)


def one_rank(link: str, options: object, port: int, _rank: int) -> dict[str, Any]:
    """The example, in an environment as torchrun makes it."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", TORCHELASTIC_RUN_ID=JOB
    )
    digits.dist.init_process_group("gloo")
    result = digits.train(link, options, on_step=partial(print_step, link))
    # At the end of a script the session leaves by itself; a forked process has no such end.
    atexit._run_exitfuncs()
    digits.dist.destroy_process_group()
    return dataclasses.asdict(result) | {"parameters": result.parameters.numpy()}


def print_step(link: str, step: int, loss: float, step_bytes: int, seconds: float) -> None:
    """The live line; the rate is one worker's gradient bits over the time of its whole step."""
    emulated = "  emulated" if os.environ[PLACE_VARIABLE] == "rxe-vm" else ""
    rate = step_bytes * 8 / seconds / 1e9
    print(
        f"{link:9}  step {step:4}  loss {loss:.4f}  {step_bytes} bytes  {rate:.4f} Gbit/s{emulated}",
        flush=True,
    )


def facts_of(codec: str, trained: dict[str, list[dict[str, Any]]], counted: segment.JobCounters) -> Facts:
    """What the trainings show, by link; the last one is what the first must equal."""
    ours, gloo = trained["pascaline"], trained["gloo"]
    reference = list(trained)[-1]
    workers, steps = len(ours), len(ours[0]["losses"])
    one_pass = bytes_expected(codecs.for_array(np.dtype("f4"), codec, 0, workers), ours[0]["bucket_bytes"])
    apart = np.abs(ours[0]["parameters"] - trained[reference][0]["parameters"])
    return Facts(
        link=os.environ[PLACE_VARIABLE],
        codec=codec,
        workers=workers,
        steps=steps,
        loss_first=ours[0]["losses"][0],
        loss_last=ours[0]["losses"][-1],
        accuracy=ours[0]["accuracy"],
        accuracy_gloo=gloo[0]["accuracy"],
        reference=reference,
        max_abs_diff=float(apart.max()),
        bit_identical=len({rank["parameters"].tobytes() for rank in ours}) == 1,
        bytes_added=counted.contribution_bytes,
        bytes_expected=workers * steps * one_pass[0],
        result_bytes=counted.result_bytes,
        result_bytes_expected=workers * steps * one_pass[1],
    )


def main() -> None:
    """Run the trainings and leave what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--codec", choices=CODECS, required=True)
    parser.add_argument("--library-path")
    arguments = parser.parse_args()
    share, workers, codec = arguments.share, arguments.workers, arguments.codec
    # Emulation has time for 2.4 thousand parameters; a real kernel shows a model that needs several chunks.
    hidden = 32 if os.environ[PLACE_VARIABLE] == "rxe-vm" else 8192
    options = digits.Options(steps=arguments.steps, hidden=hidden, codec=codec, chunk_bytes=SLOT_BYTES)

    print("starting the appliance ...", flush=True)
    with appliance(share, arguments.library_path) as running:
        trained = {"pascaline": train("pascaline", workers, options, port=29500)}
        counted = running.job(JOB)
    trained["gloo"] = train("gloo", workers, options, port=29501)
    if codec != "f32":
        trained["emulated"] = train("emulated", workers, options, port=29502)

    facts = facts_of(codec, trained, counted)
    losses = {link: ranks[0]["losses"] for link, ranks in trained.items()}
    (share / "losses.json").write_text(json.dumps(losses))
    (share / "demo.json").write_text(json.dumps(dataclasses.asdict(facts), indent=2) + "\n")


if __name__ == "__main__":
    main()
