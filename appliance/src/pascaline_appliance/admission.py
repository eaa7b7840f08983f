"""Admission: which pools a job gets, and why not. Pure: numbers in, a plan or a Refusal with the numbers out.

A job has a pool for data on every lane, or on as many as it wishes, those that have most slots free; and one for
small messages, on the first of them. Budgets, of each lane and shared by all jobs: N * W * chunk, in packets, within
the lane's share of what its port holds before anybody looks; slots within limits.slot_bytes. Ranks that wish a size get
it or a refusal; otherwise the appliance halves its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from pascaline_appliance import lookups
from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import CONTROL_VERSION, Join
from pascaline_appliance.dataplane import (
    MAX_CHUNK_BYTES,
    MAX_WINDOW,
    SUB_BLOCK_ELEMS,
    SUB_BLOCK_RANK_BYTES,
    WIRE_VERSION,
)
from pascaline_appliance.errors import Refusal
from pascaline_appliance.records import PoolPlan
from pascaline_appliance.sizes import Sizes


@dataclass(frozen=True)
class Usage:
    """What one job takes of one lane, or several together."""

    rx_packets: int = 0
    """Contributions that may be on their way at once: N * W * chunk, in packets."""
    slot_bytes: int = 0
    """All slots: 2W per pool; and what reads streams of sub-blocks, by rank and pool."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.rx_packets + other.rx_packets, self.slot_bytes + other.slot_bytes)


def usage_of(world_size: int, pools: Sequence[PoolPlan], mtu: int, lanes: int) -> list[Usage]:
    """What a job with these pools takes, by lane."""
    taken = [Usage()] * lanes
    for pool in pools:
        taken[pool.lane] += Usage(
            rx_packets=world_size * pool.window * -(-pool.chunk_bytes // mtu),
            slot_bytes=2 * pool.window * pool.chunk_bytes + pool.stream_bytes,
        )
    return taken


def who(join: Join) -> str:
    """How people know a rank."""
    return f"rank {join.rank} (host {join.host or join.address})"


def check_versions(control_version: object, wire_version: object) -> None:
    """Both versions of a joining worker against ours."""
    if control_version != CONTROL_VERSION:
        raise Refusal(
            "version",
            f"the worker speaks control version {control_version}, the appliance {CONTROL_VERSION}: install the"
            " client and the appliance from the same release",
        )
    if wire_version != WIRE_VERSION:
        raise Refusal(
            "version",
            f"the worker speaks wire version {wire_version}, the appliance {WIRE_VERSION}: install the client and"
            " the appliance from the same release",
        )


def check_join(join: Join, config: Config, jobs: Collection[str]) -> Join:
    """What can be judged by one rank's message and the names of the jobs that are there.

    Returns the message with the one address that counts: of the data port's family.
    """
    check_versions(join.control_version, join.wire_version)
    if join.rank >= join.world_size:
        raise Refusal("rank", f"rank {join.rank} is not below world size {join.world_size}")
    lookups.check(join, who(join))
    address = _worker_address(join, config)
    if join.job not in jobs and len(jobs) >= config.limits.max_jobs:
        raise Refusal("budget", f"{len(jobs)} jobs are open, limits.max_jobs is {config.limits.max_jobs}")
    return join.model_copy(update={"address": str(address), "address6": None})


def _worker_address(join: Join, config: Config) -> IPv4Address | IPv6Address:
    """Where a worker's RoCE traffic comes from: the one of its addresses that is of the data port's family."""
    ours = config.data.address
    for text in (join.address, join.address6):
        if text is None:
            continue
        try:
            address = ip_address(text)
        except ValueError as error:
            raise Refusal("address", f"{text!r} of rank {join.rank} is not an IP address: {error}") from error
        if address.version == ours.version:
            return _may_be_a_worker(join, address, config)
    raise Refusal(
        "address",
        f"rank {join.rank} (host {join.host or join.address}) has the address {join.address}, the appliance's data port"
        f" {ours.ip}: give the worker's RoCE interface an IPv{ours.version} address (`ip addr add`)",
    )


def _may_be_a_worker(
    join: Join, address: IPv4Address | IPv6Address, config: Config
) -> IPv4Address | IPv6Address:
    local = isinstance(address, IPv6Address) and (address.is_link_local or address.ipv4_mapped is not None)
    if address in config.own_addresses or address.is_multicast or address.is_unspecified or local:
        raise Refusal("address", f"rank {join.rank} cannot have the address {address}: it is not a worker's")
    return address


def check_agreement(first: Join, join: Join) -> None:
    """What must be alike on all ranks of a job."""
    if join.world_size != first.world_size:
        raise Refusal(
            "world_size",
            f"{who(join)} says world size {join.world_size}, {who(first)} says {first.world_size}: start all ranks"
            f" of job {join.job} with one world size",
        )
    if join.ops != first.ops:
        raise Refusal(
            "ops",
            f"{who(join)} wants the ops {', '.join(join.ops)}, {who(first)} {', '.join(first.ops)}: use one codec"
            " on all ranks",
        )
    lookups.check_agreement(first, join, who(first), who(join))
    if join.plan != first.plan:
        raise Refusal(
            "plan",
            f"the plan of {who(join)} is {join.plan!r}, that of {who(first)} {first.plan!r}: all ranks must run"
            " one model with one codec",
        )


def _complaint(
    config: Config,
    ring_packets: Sequence[int],
    in_use: Sequence[Usage],
    world_size: int,
    pools: Sequence[PoolPlan],
    mtu: int,
) -> str | None:
    """Which limit the pools exceed, with the numbers; None: they fit."""
    data = pools[0]
    if data.chunk_bytes > MAX_CHUNK_BYTES or data.window > MAX_WINDOW:
        return (
            f"window {data.window} and chunks of {data.chunk_bytes} bytes exceed what the protocol has room for: at"
            f" most {MAX_WINDOW} and {MAX_CHUNK_BYTES}"
        )
    slot_bytes = config.limits.slot_bytes
    for lane, wanted in enumerate(usage_of(world_size, pools, mtu, len(in_use))):
        used, ring = in_use[lane], ring_packets[lane]
        if wanted.rx_packets and used.rx_packets + wanted.rx_packets > ring:
            return (
                f"{world_size} ranks * window {data.window} * chunks of {data.chunk_bytes} bytes, and small messages,"
                f" are {wanted.rx_packets} packets of {mtu} bytes; the port's ring holds {ring} for lane {lane}, other"
                f" jobs have {used.rx_packets}: ask for a smaller window or chunk, or raise port.rx_ring_packets"
            )
        if wanted.slot_bytes and used.slot_bytes + wanted.slot_bytes > slot_bytes:
            streams = sum(pool.stream_bytes for pool in pools if pool.lane == lane)
            of_them = f" ({streams} of them for the streams of {world_size} ranks)" if streams else ""
            return (
                f"the job's slots take {wanted.slot_bytes} bytes{of_them}; lane {lane} has {slot_bytes} for slots,"
                f" other jobs have {used.slot_bytes}: ask for a smaller window or chunk, or raise limits.slot_bytes"
            )
    return None


def _check_wishes(joins: Sequence[Join], mtu: int) -> None:
    """A wish is met as it is or refused: ranks must not wish differently, nor what no pool can have."""
    for name in ("window", "chunk_bytes", "lanes"):
        wishes = [(getattr(join, name), join) for join in joins if getattr(join, name) is not None]
        for wish, join in wishes:
            if wish != wishes[0][0]:
                raise Refusal(
                    "budget",
                    f"{who(join)} wishes a {name} of {wish}, {who(wishes[0][1])} one of {wishes[0][0]}: wish the same"
                    " on all ranks, or nothing",
                )
        if wishes and name == "window" and wishes[0][0].bit_count() != 1:
            raise Refusal(
                "budget", f"{who(wishes[0][1])} wishes a window of {wishes[0][0]}: it is a power of two"
            )
        if wishes and name == "chunk_bytes" and wishes[0][0] % mtu:
            raise Refusal(
                "budget",
                f"{who(wishes[0][1])} wishes chunks of {wishes[0][0]} bytes: they are whole packets of {mtu} bytes, the"
                " job's path MTU",
            )


def _choose_lanes(in_use: Sequence[Usage], joins: Sequence[Join]) -> list[int]:
    """Lanes of a job: all, or as many as it wishes, of those that have least in use."""
    lanes = range(len(in_use))
    wished = joins[0].lanes or len(lanes)
    if wished > len(lanes):
        raise Refusal(
            "budget",
            f"{who(joins[0])} wishes {wished} lanes, the appliance has {len(lanes)}: wish so many at most, or nothing",
        )
    return sorted(sorted(lanes, key=lambda lane: in_use[lane].slot_bytes)[:wished])


def plan_pools(
    config: Config,
    sizes: Sizes,
    ring_packets: Sequence[int],
    others: Sequence[Sequence[Usage]],
    joins: Sequence[Join],
    mtu: int,
) -> list[PoolPlan]:
    """The pools of a job of these ranks beside other jobs; Refusal("budget") with the numbers if none fit.

    `sizes`: what the job gets if it fits; `ring_packets` are the lanes', `others` what each other job takes of them.
    Windows are powers of two, chunks multiples of the path MTU.
    """
    _check_wishes(joins, mtu)
    in_use = [sum((job[lane] for job in others), Usage()) for lane in range(len(ring_packets))]
    lanes = _choose_lanes(in_use, joins)
    world_size = joins[0].world_size
    streams = world_size * SUB_BLOCK_RANK_BYTES if SUB_BLOCK_ELEMS.keys() & joins[0].ops else 0
    chunk_wishes = [join.chunk_bytes for join in joins if join.chunk_bytes is not None]
    window_wishes = [join.window for join in joins if join.window is not None]
    chunk = min(chunk_wishes, default=sizes.chunk_bytes)
    window = min(window_wishes, default=sizes.window)
    while True:
        chunk = max(chunk // mtu, 1) * mtu
        pools = [PoolPlan("data", window, chunk, lane, streams) for lane in lanes]
        pools.append(PoolPlan("small", config.limits.small_window, mtu, lanes[0], streams))
        complaint = _complaint(config, ring_packets, in_use, world_size, pools, mtu)
        if complaint is None:
            return pools
        if chunk > mtu and not chunk_wishes:
            chunk //= 2
        elif window > 1 and not window_wishes:
            window //= 2
        else:
            raise Refusal("budget", complaint)
