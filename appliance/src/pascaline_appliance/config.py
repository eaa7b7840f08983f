"""The configuration file: TOML, validated, every field with its unit in its name or its text. Knows nobody's state.

An unknown key or an impossible value is refused by its name, all of them in one sentence.
"""

from __future__ import annotations

import tomllib
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
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
Steering = Literal["auto", "ib_bth", "address", "dispatcher"]
Interface = IPv4Interface | IPv6Interface
Address = IPv4Address | IPv6Address
MAX_PORTS = 4
MAX_LANES = 16
"""A lane is the low 4 bits of its queue pairs' numbers."""
Cpu = Annotated[int, Field(ge=0, le=1023)]


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


def _check_host(value: Interface) -> Interface:
    """An address that a port of ours can have."""
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


def _check_gateway(gateway: Address, address: Interface) -> None:
    """A next hop that the port of this address can reach."""
    if gateway.version != address.version:
        raise ValueError(
            f"gateway {gateway} is of IPv{gateway.version}, address {address} of"
            f" IPv{address.version}: both must be of one family"
        )
    if gateway == address.ip:
        raise ValueError(f"gateway {gateway} is the appliance's own address: name the router's")
    if gateway not in address.network and not gateway.is_link_local:
        raise ValueError(
            f"gateway {gateway} is outside {address.network} and cannot be reached: name the router's"
            " address in the data network"
        )


class Data(_Table):
    """The appliance as a RoCE host."""

    address: Annotated[Interface, BeforeValidator(_interface), AfterValidator(_check_host)]
    """Address and prefix length of the first data port, such as 10.77.0.1/24 or fd00:77::1/64. RoCE is spoken over its
    family alone. No other host may have it."""
    gateway: Annotated[Address, BeforeValidator(_address)] | None = None
    """Next hop towards workers outside the prefix, of the same family."""
    vlan: Annotated[int, Field(ge=0, le=4094)] = 0
    """VLAN ID of the data network; 0: untagged."""
    dscp: Annotated[int, Field(ge=0, le=63)] = 26
    """DSCP of all RoCE packets, both ways; the switches' lossless class must trust it."""
    mtu: Literal[256, 512, 1024, 2048, 4096] | None = None
    """RoCE path MTU in bytes of payload; the link's MTU must be 80 larger, over IPv6 84. Absent: the link's largest."""

    @model_validator(mode="after")
    def _gateway_is_a_neighbour(self) -> Data:
        if self.gateway is not None:
            _check_gateway(self.gateway, self.address)
        return self


class Port(_Table):
    """One port of the data network."""

    device: Annotated[str, Field(max_length=255)]
    """The device by its EAL argument: "--vdev=net_af_packet0,iface=eth1" or "-a 0000:3b:00.0"."""
    rx_ring_packets: Annotated[int, Field(ge=64, le=16384)] = 512
    """Packets that the port holds before the lane looks (net_af_packet: its framecnt); all jobs share them."""
    tx_ring_packets: Annotated[int, Field(ge=64, le=16384)] = 512
    """Packet segments that the port takes before it has sent them."""
    dispatcher_core: Cpu | None = None
    """CPU of the core that sorts the port's packets to its lanes where the port cannot."""
    address: Annotated[Interface, BeforeValidator(_interface), AfterValidator(_check_host)] | None = None
    """Of the second port and later ones: address and prefix length, of data.address's family; the first has that."""
    gateway: Annotated[Address, BeforeValidator(_address)] | None = None
    """Of the second port and later ones: next hop towards workers outside its prefix."""

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

    cores: Annotated[list[Cpu], Field(min_length=1, max_length=MAX_LANES)] = [1]
    """CPU numbers, one per lane. A job's data goes over all lanes."""
    ports: list[Annotated[int, Field(ge=0, lt=MAX_PORTS)]] | None = None
    """Each lane's port by its number, in the order of the [[port]] tables from 0; absent: in turn."""
    addresses: list[Annotated[Address, BeforeValidator(_address)]] | None = None
    """An IP address for each lane, in its port's network, by which the port can sort packets; absent: the port's."""
    steering: Steering = "auto"
    """How a port that lanes share sorts its packets; auto: the best that works."""
    idle_sleep_us: Annotated[int, Field(ge=0, le=10000)] = 0
    """Microseconds that an idle lane sleeps; 0: it polls without pause, as an appliance should."""


class Limits(_Table):
    """What one job may have, and how long things may take."""

    window: Window | None = None
    """Rounds that may be under way in a job's data pool; a power of two. Absent: sizes.py, from the cores' L2."""
    chunk_bytes: Annotated[int, Field(ge=256, le=8388608)] | None = None
    """Bytes of one slot of the data pool; halved at join as often as a budget wants. Absent: sizes.py, likewise."""
    small_window: Window = 2
    """Rounds under way in a job's pool for small messages, whose slots are one path MTU."""
    max_jobs: Annotated[int, Field(ge=1, le=256)] = 16
    """Jobs at the same time."""
    slot_bytes: Annotated[int, Field(ge=65536)] = 8388608
    """Bytes of slots of all jobs of a lane. Best within half of the core's L2, beside which `status` shows them."""
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
    def _slots_have_room(self) -> Limits:
        window, chunk_bytes = self.window or 1, self.chunk_bytes or 256
        if 2 * window * chunk_bytes > self.slot_bytes:
            raise ValueError(
                f"2 * window {window} * chunks of {chunk_bytes} bytes are {2 * window * chunk_bytes} bytes of slots for"
                f" one job, slot_bytes = {self.slot_bytes} for all of a lane: lower window or chunk_bytes, or raise"
                " slot_bytes"
            )
        return self

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
    port: Annotated[list[Port], Field(min_length=1, max_length=MAX_PORTS)]
    """[[port]] tables."""
    memory: Memory = Memory()
    lanes: Lanes = Lanes()
    limits: Limits = Limits()
    stats: Stats = Stats()
    status: Status = Status()

    @property
    def lane_ports(self) -> list[int]:
        """Port of each lane."""
        lanes = range(len(self.lanes.cores))
        return [i % len(self.port) for i in lanes] if self.lanes.ports is None else self.lanes.ports

    def port_address(self, port: int) -> Interface:
        """Of a port."""
        address = self.port[port].address
        return self.data.address if address is None else address

    def port_gateway(self, port: int) -> Address | None:
        """Of a port."""
        return self.port[port].gateway if port else self.data.gateway

    def lane_address(self, lane: int) -> Address:
        """Where workers write to a lane."""
        own = self.lanes.addresses
        return self.port_address(self.lane_ports[lane]).ip if own is None else own[lane]

    @property
    def own_addresses(self) -> set[Address]:
        """All that the appliance has."""
        return {self.lane_address(lane) for lane in range(len(self.lanes.cores))}

    @model_validator(mode="after")
    def _ports_have_addresses(self) -> Config:
        for number, port in enumerate(self.port):
            if number == 0 and (port.address or port.gateway):
                raise ValueError(
                    "port.0 has an address or a gateway of its own: the first port's are data.address and data.gateway"
                )
            if number and port.address is None:
                raise ValueError(
                    f"port.{number} has no address, and data.address {self.data.address} is the first port's: set"
                    " port.address"
                )
            if port.address and port.address.version != self.data.address.version:
                raise ValueError(
                    f"port.{number} has the address {port.address}, data.address is {self.data.address}: all ports are"
                    " of one family"
                )
            if port.address and port.gateway:
                _check_gateway(port.gateway, port.address)
        addresses = [self.port_address(number).ip for number in range(len(self.port))]
        for number, address in enumerate(addresses):
            if address in addresses[:number]:
                raise ValueError(
                    f"port.{number} has the address {address} of another port: give each its own"
                )
        return self

    @model_validator(mode="after")
    def _lanes_have_ports(self) -> Config:
        lanes, ports = len(self.lanes.cores), len(self.port)
        given = self.lanes.ports
        if given is not None and len(given) != lanes:
            raise ValueError(f"lanes.ports names {len(given)} ports, lanes.cores {lanes} lanes: one for each")
        unknown = [port for port in given or [] if port >= ports]
        if unknown:
            raise ValueError(f"lanes.ports names port {unknown[0]}, the last [[port]] is number {ports - 1}")
        idle = [str(port) for port in range(ports) if port not in self.lane_ports]
        if idle:
            raise ValueError(
                f"no lane reads port {', '.join(idle)}: {lanes} lanes are on ports {self.lane_ports}; give each port a"
                " lane (lanes.cores, lanes.ports) or remove its table"
            )
        return self

    @model_validator(mode="after")
    def _lane_addresses_are_the_port_s(self) -> Config:
        own, lanes = self.lanes.addresses, len(self.lanes.cores)
        if own is None:
            return self
        if len(own) != lanes:
            raise ValueError(
                f"lanes.addresses has {len(own)} addresses, lanes.cores {lanes} lanes: one for each"
            )
        for lane, address in enumerate(own):
            network = self.port_address(self.lane_ports[lane]).network
            if address not in network:
                raise ValueError(
                    f"lanes.addresses gives lane {lane} {address}, its port's network is {network}: choose one in it"
                )
            if address in own[:lane]:
                raise ValueError(f"lanes.addresses gives {address} to two lanes: each needs its own")
        return self


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
            clauses.append(f"{key}{given}: {text}" if key else text)
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
