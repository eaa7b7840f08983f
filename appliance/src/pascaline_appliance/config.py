"""The configuration file: TOML, validated, every field with its unit in its name or its text. Knows nobody's state.

An unknown key or an impossible value is refused by its name, all of them in one sentence.
"""

from __future__ import annotations

import tomllib
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from pascaline_appliance.contract.control import DEFAULT_PORT
from pascaline_appliance.errors import ConfigError

Window = Literal[1, 2, 4, 8, 16, 32, 64, 128]


POINT_TO_POINT_BITS = 31
"""From this prefix length on, both addresses are hosts' (RFC 3021)."""

TELL_S = 0.5
"""For an outcome to be noticed, sent and raised."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Control(_Table):
    """Where workers find the appliance. Loopback is always listened on."""

    address: Annotated[IPv4Address, Field(strict=False)] = IPv4Address("127.0.0.1")
    """Address of the rack network to listen on beside loopback; a loopback address: loopback only."""
    port: Annotated[int, Field(ge=1, le=65535)] = DEFAULT_PORT
    """TCP port."""
    insecure_listen: bool = False
    """Must be true for an address that is not loopback, until connections are encrypted and authenticated."""
    ping_interval_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Seconds between heartbeats to a worker."""
    ping_timeout_s: Annotated[float, Field(gt=0, le=600)] = 60.0
    """Seconds without an answer to a heartbeat after which a connection is dead."""

    @model_validator(mode="after")
    def _insecure_is_said(self) -> Control:
        if not self.address.is_loopback and not self.insecure_listen:
            raise ValueError(
                f"address {self.address} is not loopback, and connections are not encrypted yet: set"
                " control.insecure_listen = true to listen there all the same, or use 127.0.0.1"
            )
        return self


def _interface(value: object) -> object:
    """An address with a prefix length; the standard library's sentence names one family and misleads."""
    try:
        return ip_interface(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(
            "is not an address with a prefix length, such as 10.77.0.1/24 or fd00:77::1/64"
        ) from error


def _address(value: object) -> object:
    try:
        return ip_address(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError("is not an IP address") from error


class Data(_Table):
    """The appliance as a RoCE host."""

    address: Annotated[IPv4Interface | IPv6Interface, BeforeValidator(_interface)]
    """Address and prefix length of the data port, such as 10.77.0.1/24 or fd00:77::1/64. RoCE is spoken over its family
    alone. No other host may have it."""
    gateway: Annotated[IPv4Address | IPv6Address, BeforeValidator(_address)] | None = None
    """Next hop towards workers outside the prefix, of the same family."""
    vlan: Annotated[int, Field(ge=0, le=4094)] = 0
    """VLAN ID of the data network; 0: untagged."""
    dscp: Annotated[int, Field(ge=0, le=63)] = 26
    """DSCP of all RoCE packets, both ways; the switches' lossless class must trust it."""
    mtu: Literal[256, 512, 1024, 2048, 4096] | None = None
    """RoCE path MTU in bytes of payload; the link's MTU must be 80 larger, over IPv6 84. Absent: the link's largest."""

    @field_validator("address")
    @classmethod
    def _can_be_a_host_s(cls, value: IPv4Interface | IPv6Interface) -> IPv4Interface | IPv6Interface:
        ip, network = value.ip, value.network
        local = isinstance(ip, IPv6Address) and (ip.ipv4_mapped is not None or ip.is_link_local)
        if ip.is_multicast or ip.is_loopback or ip.is_unspecified or ip.is_reserved or local:
            raise ValueError(f"{ip} cannot be the data port's: give it an address that workers can route to")
        outer = (network.network_address, network.broadcast_address)
        if ip.version == 4 and network.prefixlen < POINT_TO_POINT_BITS and ip in outer:
            raise ValueError(
                f"{ip} is the address of the network {network} itself, or its broadcast: use a host's"
            )
        return value

    @model_validator(mode="after")
    def _gateway_is_a_neighbour(self) -> Data:
        if self.gateway is None:
            return self
        if self.gateway.version != self.address.version:
            raise ValueError(
                f"gateway {self.gateway} is of IPv{self.gateway.version}, address {self.address} of"
                f" IPv{self.address.version}: both must be of one family"
            )
        if self.gateway == self.address.ip:
            raise ValueError(f"gateway {self.gateway} is the appliance's own address: name the router's")
        if self.gateway not in self.address.network and not self.gateway.is_link_local:
            raise ValueError(
                f"gateway {self.gateway} is outside {self.address.network} and cannot be reached: name the router's"
                " address in the data network"
            )
        return self


class Port(_Table):
    """One port of the data network."""

    device: Annotated[str, Field(max_length=255)]
    """The device by its EAL argument: "--vdev=net_af_packet0,iface=eth1" or "-a 0000:3b:00.0"."""
    rx_ring_packets: Annotated[int, Field(ge=64, le=16384)] = 512
    """Packets that the port holds before the lane looks (net_af_packet: its framecnt); all jobs share them."""
    tx_ring_packets: Annotated[int, Field(ge=64, le=16384)] = 512
    """Packet segments that the port takes before it has sent them."""

    @field_validator("device")
    @classmethod
    def _is_eal_argument(cls, value: str) -> str:
        kind, _, rest = value.replace("=", " ", 1).partition(" ")
        if kind not in ("--vdev", "-a", "--allow") or not rest.strip():
            raise ValueError(
                f"{value!r} is not an EAL device argument such as '--vdev=NAME,...' or '-a PCI-ADDRESS'"
            )
        return value

    @property
    def is_pci(self) -> bool:
        """Whether EAL finds the device on the PCI bus."""
        return not self.device.startswith("--vdev")

    @property
    def devargs(self) -> str:
        """The device without the option's name."""
        return (
            self.device.replace("=", " ", 1).partition(" ")[2].strip()
            if self.device[0] == "-"
            else self.device
        )


class Memory(_Table):
    """Memory of the data plane."""

    huge_pages: bool = True
    """false: ordinary pages, for trying things out; slower, and most NICs need huge pages."""
    memory_mib: Annotated[int, Field(ge=64, le=1048576)] = 256
    """MiB for packet buffers and slots."""


class Lanes(_Table):
    """The polling cores."""

    cores: Annotated[list[Annotated[int, Field(ge=0, le=1023)]], Field(min_length=1, max_length=1)] = [1]
    """CPU numbers, one per lane; one lane is supported."""
    idle_sleep_us: Annotated[int, Field(ge=0, le=10000)] = 0
    """Microseconds that an idle lane sleeps; 0: it polls without pause, as an appliance should."""


class Limits(_Table):
    """What one job may have, and how long things may take."""

    window: Window = 4
    """Rounds that may be under way in a job's data pool; a power of two."""
    chunk_bytes: Annotated[int, Field(ge=256, le=8388608)] = 65536
    """Bytes of one slot of the data pool; halved at join as often as a budget wants."""
    small_window: Window = 2
    """Rounds under way in a job's pool for small messages, whose slots are one path MTU."""
    max_jobs: Annotated[int, Field(ge=1, le=256)] = 16
    """Jobs at the same time."""
    slot_bytes: Annotated[int, Field(ge=65536)] = 8388608
    """Bytes of slots of all jobs of a lane. Fastest while it is at most half of the core's L2 cache."""
    straggler_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Seconds that a round may wait for a live rank that has not begun it."""
    deadline_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Seconds after a fault within which every reachable rank has the sum or an error; progress_s of them to see it."""
    join_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """Seconds that a rank waits for the others to join, and then for all to connect."""
    progress_s: Annotated[float, Field(ge=0.1, le=600)] = 2.0
    """Seconds without an acknowledgement, or within a begun message, that make a fault."""
    waiting_event_s: Annotated[float, Field(ge=0.1, le=600)] = 2.0
    """Seconds after which a round that waits for a live rank is told to all ranks."""
    retransmit_exponent: Annotated[int, Field(ge=1, le=24)] = 10
    """ACK timer of 4.096 us * 2^n: 8 to 10 towards NICs, 14 towards emulated soft-RoCE."""
    retries: Annotated[int, Field(ge=1, le=6)] = 6
    """Retransmissions without progress that make a fault."""
    max_unacked_packets: Annotated[int, Field(ge=2, le=1024)] = 128
    """Result packets in flight per queue pair."""

    @property
    def resume_s(self) -> float:
        """What is left of the deadline when a fault has been seen, for resuming before the outcome is told."""
        return self.deadline_s - self.progress_s - TELL_S

    @model_validator(mode="after")
    def _deadline_can_be_kept(self) -> Limits:
        if self.resume_s < TELL_S:
            raise ValueError(
                f"deadline_s = {self.deadline_s:g} cannot be kept when a fault is seen after progress_s ="
                f" {self.progress_s:g}: let it be at least {2 * TELL_S:g} s more"
            )
        return self


class Stats(_Table):
    """The statistics segment."""

    path: Annotated[str, Field(min_length=1, max_length=240)] = "/run/pascaline/stats"
    """File on a tmpfs; anyone may read it."""


class Status(_Table):
    """The socket behind `pascaline-appliance status`."""

    socket: Annotated[str, Field(min_length=1, max_length=100)] = "/run/pascaline/status.sock"
    """Unix socket."""


class Config(_Table):
    """The whole file."""

    control: Control = Control()
    data: Data
    port: Annotated[list[Port], Field(min_length=1, max_length=1)]
    """[[port]] tables; one port is supported."""
    memory: Memory = Memory()
    lanes: Lanes = Lanes()
    limits: Limits = Limits()
    stats: Stats = Stats()
    status: Status = Status()


def _say(error: ValidationError) -> str:
    """All complaints of pydantic as one clause each, by the keys' names."""
    clauses = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            clauses.append(f"{key} is not a known key")
        elif item["type"] == "missing":
            clauses.append(f"{key} is missing")
        else:
            text = item["msg"].removeprefix("Value error, ")
            given = "" if isinstance(item["input"], dict | list) else f" = {item['input']!r}"
            clauses.append(f"{key}{given}: {text}")
    return "; ".join(clauses)


def load_config(path: Path) -> Config:
    """Read and validate `path`; ConfigError names the file and every key that is wrong."""
    try:
        return Config.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {_say(error)}") from error
