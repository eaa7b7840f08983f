"""Who this worker is and whom it joins: arguments first, then the environment that torchrun and the operator set.

Reads the environment only. Errors name the argument and the variable.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from pascaline.contract.control import DEFAULT_PORT
from pascaline.contract.wire import MAX_RANKS
from pascaline.errors import ConfigurationError

_JOB_FORBIDDEN = re.compile(r"[^A-Za-z0-9._:/@-]")
_JOB_MAX_CHARS = 90
_MAX_RESTARTS = 2**32 - 1


@dataclass(frozen=True)
class Identity:
    """One worker of one job."""

    job: str
    rank: int
    world_size: int
    restart_count: int
    host: str
    """Of the appliance's control plane."""
    port: int
    device: str | None

    @property
    def appliance(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"


def resolve(
    *,
    rank: int | None,
    world_size: int | None,
    appliance: str | None,
    device: str | None,
    job: str | None,
    restart_count: int | None,
    env: Mapping[str, str] = os.environ,
) -> Identity:
    """Fill in from the environment what was not given, and refuse what cannot be."""
    rank = _integer(rank, "rank", "RANK", env)
    world_size = _integer(world_size, "world_size", "WORLD_SIZE", env)
    if not 1 <= world_size <= MAX_RANKS:
        raise ConfigurationError(f"world_size is {world_size}: an appliance adds 1 to {MAX_RANKS} workers")
    if not 0 <= rank < world_size:
        raise ConfigurationError(f"rank is {rank}: with world_size {world_size} it is 0 to {world_size - 1}")
    restarts = _integer(restart_count, "restart_count", "TORCHELASTIC_RESTART_COUNT", env, default=0)
    if not 0 <= restarts <= _MAX_RESTARTS:
        raise ConfigurationError(f"restart_count is {restarts}: it is 0 to {_MAX_RESTARTS}")
    host, port = parse_address(appliance or env.get("PASCALINE_APPLIANCE", ""))
    device = device or env.get("PASCALINE_DEVICE") or None
    return Identity(job_name(job, env), rank, world_size, restarts, host, port, device)


def _integer(
    value: int | None, argument: str, variable: str, env: Mapping[str, str], default: int | None = None
) -> int:
    if value is not None:
        return int(value)
    text = env.get(variable)
    if text is None:
        if default is not None:
            return default
        raise ConfigurationError(
            f"{argument} is unknown: pass {argument}=..., or start the script by torchrun ({variable})"
        )
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{variable} is {text!r}: it must be an integer") from None


def job_name(job: str | None = None, env: Mapping[str, str] = os.environ, suffix: str = "") -> str:
    """`job`, else the run id of torchrun, and `suffix`.

    The default run id "none" is shared by all runs: the rendezvous address tells them apart, and where that is a
    loopback address, which every host has, the host's name.
    """
    if job is not None:
        if not job or _JOB_FORBIDDEN.search(job) or len(job + suffix) > _JOB_MAX_CHARS:
            raise ConfigurationError(
                f"job is {job!r}: it takes 1 to {_JOB_MAX_CHARS - len(suffix)} letters, digits and any of . _ : / @ -"
            )
        return job + suffix
    run = env.get("TORCHELASTIC_RUN_ID", "none")
    if run == "none":
        master = env.get("MASTER_ADDR", "localhost")
        run = f"{master}:{env.get('MASTER_PORT', '0')}"
        if _is_loopback(master):
            run += f"@{socket.gethostname()}"
    return _JOB_FORBIDDEN.sub("-", run)[: _JOB_MAX_CHARS - len(suffix)] + suffix


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "host", "host:port" or "[v6]:port"."""
    if not text:
        raise ConfigurationError(
            "the appliance's address is unknown: pass appliance='host:port' or set PASCALINE_APPLIANCE"
        )
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:]+))(?::(\d{1,5}))?", text)
    if not match or int(match[3] or DEFAULT_PORT) > 65535:
        raise ConfigurationError(
            f"the appliance's address {text!r} is not host:port, such as 'rack7-sum:{DEFAULT_PORT}'"
        )
    return match[1] or match[2], int(match[3] or DEFAULT_PORT)
