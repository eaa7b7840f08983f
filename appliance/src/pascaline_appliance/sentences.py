"""What people read when an epoch ends or waits: ranks, hosts, rounds and both values. Pure text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pascaline_appliance.config import Limits
from pascaline_appliance.contract.control import Join
from pascaline_appliance.dataplane import OP_NAMES
from pascaline_appliance.records import Event


def _names(joins: Mapping[int, Join], ranks: Sequence[int]) -> str:
    """For one rank: rank 3 (host a); for more: ranks 3 (host a), 7 (host b)."""
    hosts = [f"{rank} (host {joins[rank].host or joins[rank].address})" for rank in ranks if rank in joins]
    return ("rank " if len(hosts) == 1 else "ranks ") + ", ".join(hosts)


def missing(joins: Mapping[int, Join], world_size: int) -> str:
    """The ranks that have not joined."""
    ranks = [str(rank) for rank in range(world_size) if rank not in joins]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(ranks)


def waiting(event: Event, joins: Mapping[int, Join], pools: Sequence[str]) -> str:
    """A round that waits for live ranks."""
    return f"round {event.round} of the {pools[event.pool]} pool waits for {_names(joins, event.ranks)}"


def straggler(what: str, limits: Limits) -> str:
    """`what` has waited too long."""
    return f"{what} for more than {limits.straggler_timeout_s:g} s (limits.straggler_timeout_s)"


def connection_lost(joins: Mapping[int, Join], rank: int) -> str:
    """A worker's control connection is gone."""
    return (
        f"the control connection of {_names(joins, [rank])} was closed without a leave: the process has ended or its"
        " host is unreachable; its own log says why"
    )


def broken(joins: Mapping[int, Join], rank: int, message: str) -> str:
    """A worker's own words about its queue pair."""
    return f"a queue pair of {_names(joins, [rank])} has failed: {message}"


def not_resumed(joins: Mapping[int, Join], ranks: Sequence[int], seconds: float, fault: str) -> str:
    """Ranks that a new epoch waits for in vain."""
    return f"{_names(joins, ranks)} did not resume within {seconds:g} s after a fault ({fault})"


def _op(value: int) -> str:
    return OP_NAMES.get(value, f"op {value}")


def fault(event: Event, joins: Mapping[int, Join], pools: Sequence[str], limits: Limits) -> str:
    """Why a lane ended the epoch."""
    rank = _names(joins, [event.rank])
    pool = f"the {pools[event.pool]} pool" if event.pool < len(pools) else f"pool {event.pool}"
    at = f"round {event.round} of {pool}"
    address = joins[event.rank].address if event.rank in joins else "?"
    sentences: dict[str, Callable[[], str]] = {
        "retry_exceeded": lambda: (
            f"{rank} does not acknowledge the results of {pool}: {limits.retries} retries or {limits.progress_s:g} s"
            " without progress; check its link, MTU and flow control"
        ),
        "stalled_message": lambda: f"{rank} began {at} and then sent nothing for {limits.progress_s:g} s",
        "invalid_request": lambda: (
            f"{rank} sent a request that is not taken in {at}: expected {event.expected}, got {event.got}"
        ),
        "remote_access": lambda: (
            f"{rank} wrote outside its slots or with a wrong rkey in {at}: expected {event.expected:#x}, got"
            f" {event.got:#x}"
        ),
        "round_mismatch": lambda: (
            f"{rank} contributed to round {event.got} of {pool}, its next round is {event.expected}"
        ),
        "op_mismatch": lambda: (
            f"{rank} contributed to {at} with {_op(event.got)}, the round's first contribution has"
            f" {_op(event.expected)}: all ranks must reduce the same tensors in the same order"
        ),
        "length_mismatch": lambda: (
            f"{rank} contributed {event.got} bytes to {at}, the round's first contribution has {event.expected}:"
            " all ranks must reduce the same tensors in the same order"
        ),
        "imm_mismatch": lambda: (
            f"{rank} contributed to {at} for another tensor: immediate {event.got:#010x}, the round's first"
            f" contribution has {event.expected:#010x}; all ranks must reduce the same tensors in the same order"
        ),
        "elements_mismatch": lambda: (
            f"{rank} contributed a stream of {event.got} elements to {at}, the round's first contribution has"
            f" {event.expected}: all ranks must reduce the same tensors in the same order"
        ),
        "elements_range": lambda: (
            f"{rank} contributed a stream of {event.got} elements to {at}, a slot takes 1 to {event.expected}: make"
            " chunks of fewer elements, or join with larger ones"
        ),
        "sub_block": lambda: (
            f"{rank} contributed a sub-block to {at} whose count and bitmap disagree or go beyond its elements:"
            f" expected {event.expected}, got {event.got}; what encodes it is broken"
        ),
        "stream_length": lambda: (
            f"{rank} contributed {event.got} bytes to {at} whose sub-blocks take {event.expected} or more; what encodes"
            " them is broken"
        ),
        "nak_received": lambda: f"the NIC of {rank} refused a result of {at} with NAK {event.got:#04x}",
        "unreachable": lambda: (
            f"{address} of {rank} does not answer {'neighbour discovery' if ':' in address else 'ARP'} on the data"
            " network: check the address, VLAN and cabling"
        ),
        "rank_left": lambda: f"{at} waits for {rank}, which has left the job",
    }
    sentence = sentences.get(event.fault)
    if sentence is None:
        return f"{rank} ended {at}: {event.fault}, expected {event.expected}, got {event.got}"
    return sentence()
