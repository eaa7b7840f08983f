"""The command `pascaline-appliance`. Every failure is one sentence on stderr and an exit code of its own."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pascaline_appliance.config import Status, load_config
from pascaline_appliance.errors import ApplianceError, DataPlaneStartError
from pascaline_appliance.status_server import ask

DEFAULT_SOCKET = Path(Status().socket)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _about() -> None:
    """The aggregation appliance: adds gradient packets as they arrive and sends the sum back."""


@app.command()
def run(
    config: Annotated[Path, typer.Option(help="Configuration file (TOML).")],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log joins and leaves.")] = False,
) -> None:
    """Run the appliance until SIGTERM or SIGINT."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="pascaline-appliance: %(message)s",
        stream=sys.stderr,
    )
    # Connections that are no WebSocket are a scanner's business, not an operator's.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    settings = load_config(config)
    # Loads the data plane: a wrong configuration is told even where the library does not load.
    try:
        from pascaline_appliance import service
    except ImportError as error:
        raise DataPlaneStartError(
            f"the data plane does not load ({error}): build or install libpascaline, then reinstall pascaline-appliance"
        ) from error

    service.run(settings)


def _lane(lane: dict[str, Any], port: dict[str, Any]) -> str:
    own = "" if lane["address"] == port["address"].partition("/")[0] else f" with {lane['address']}"
    return f"{lane['lane']} on core {lane['core']}{own}"


def _steering(port: dict[str, Any]) -> str:
    """How a port's packets find their lane, and why not better."""
    said = f"steering {port['steering']}"
    if port["steering"] == "dispatcher":
        said += f" on core {port['dispatcher_core']}"
    return said + (f" (refused: {port['refused_steerings']})" if port["refused_steerings"] else "")


def _slots(lane: dict[str, Any]) -> str:
    """What slots take, beside what they are fastest within."""
    half = (
        f"half of core {lane['core']}'s L2 is {lane['l2_bytes'] // 2}" if lane["l2_bytes"] else "L2 unknown"
    )
    return f"slots   lane {lane['lane']}: {lane['slot_bytes']} of {lane['slot_bytes_limit']} bytes; {half}"


def data_pool_line(pool: dict[str, Any]) -> str:
    """What a job gets that asks for nothing, and why."""
    why = {
        "limits": "as [limits] says",
        "l2": f"by half of an L2 of {pool['l2_bytes']}",
        "assumed_l2": f"by half of an L2 of {pool['l2_bytes']}, assumed since no core says what it has",
    }[pool["source"]]
    return (
        f"chunks  of {pool['chunk_bytes']} bytes, window {pool['window']}, for a job that asks for nothing"
        f" ({pool['slot_bytes']} bytes of slots on each lane), {why}"
    )


def _table(status: dict[str, Any]) -> str:
    """The status for people."""
    usage = status["usage"]
    lines = [f"pascaline-appliance {status['version']}, pid {status['pid']}, up {status['uptime_s']} s"]
    for number, port in enumerate(status["ports"]):
        on_it = [lane for lane in status["lanes"] if lane["port"] == number]
        lines += [
            f"port {number}  {port['device']} ({port['driver']}, {port['mac']}), link"
            f" {'up' if port['link_up'] else 'down'}, RoCE MTU {port['roce_mtu_bytes']} bytes, payload"
            f" {port['payload']}, {port['address']}",
            f"        lanes {', '.join(_lane(lane, port) for lane in on_it)}: {_steering(port)}",
        ]
    lines += [
        f"lanes   {len(status['lanes'])}; {usage['qps']} QPs, {usage['mbufs_in_use']} mbufs in use",
        data_pool_line(status["data_pool"]),
        *(_slots(lane) for lane in status["lanes"]),
        f"control {status['control']}{' (insecure)' if status['insecure_listen'] else ''}",
        f"kernels {status['arith']} for ops, {status['crc']} for the ICRC",
        f"jobs    {len(status['jobs'])}",
    ]
    for job in status["jobs"]:
        lines.append(
            f"  {job['job']}: {job['state']}, epoch {job['epoch']}, {len(job['ranks'])} of {job['world_size']} ranks,"
            f" {job['rounds_completed']} rounds, {job['contribution_bytes']} bytes added"
        )
        lines += [
            f"    rank {rank['rank']} {rank['host']} {rank['address']} {rank['state']}"
            for rank in job["ranks"]
        ]
    return "\n".join(lines)


@app.command()
def status(
    socket: Annotated[Path, typer.Option(help="Status socket of the appliance.")] = DEFAULT_SOCKET,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Ask the running appliance what it does."""
    description = ask(socket)
    print(json.dumps(description, indent=2) if as_json else _table(description))


def main() -> None:
    """Entry point: exceptions become sentences and exit codes here and nowhere else."""
    try:
        app()
    except ApplianceError as error:
        print(f"pascaline-appliance: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
