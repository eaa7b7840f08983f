"""The one hierarchy of exceptions. A start failure carries its exit code and reads as one sentence."""

from __future__ import annotations

from typing import Literal

RefusalReason = Literal[
    "version",
    "world_size",
    "ops",
    "tables",
    "plan",
    "mtu",
    "rank",
    "budget",
    "address",
    "replaced",
    "timeout",
    "stopping",
]


class ApplianceError(Exception):
    """Anything that the appliance reports to a person. `exit_code` is the process's when it ends a start."""

    exit_code = 1


class ConfigError(ApplianceError):
    """The configuration file cannot be read, has an unknown key or an impossible value; or the environment has."""

    exit_code = 10


class HugePagesError(ApplianceError):
    """memory.huge_pages = true, and too few are free."""

    exit_code = 11


class PortAbsentError(ApplianceError):
    """The device is not there, or its driver refuses it."""

    exit_code = 12


class MtuTooSmallError(ApplianceError):
    """The link cannot carry one RoCE packet of the wanted path MTU."""

    exit_code = 13


class AddressInUseError(ApplianceError):
    """The control address or the status socket is another process's, or not on this machine."""

    exit_code = 14


class StatsFileError(ApplianceError):
    """The statistics segment cannot be made."""

    exit_code = 15


class LaneCoreError(ApplianceError):
    """lanes.cores names a CPU that this process may not use."""

    exit_code = 16


class DataPlaneStartError(ApplianceError):
    """EAL does not start, or the device cannot be set up, or memory.memory_mib is too little."""

    exit_code = 17


class NotRunningError(ApplianceError):
    """No appliance answers at the status socket."""

    exit_code = 18


class DataPlaneError(ApplianceError):
    """A running data plane refuses a call; `name` is the code's name without its prefix, in lower case."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Refusal(ApplianceError):
    """A worker's join is refused; the sentence names the values that disagree and the way out."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason: RefusalReason = reason
