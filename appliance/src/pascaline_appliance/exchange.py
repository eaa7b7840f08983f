"""Swapping the two ends of queue pairs: what a worker is offered, and what it answers. Pure: messages in and out."""

from __future__ import annotations

from ipaddress import ip_address

from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import (
    Connect,
    Join,
    Offer,
    PoolConnect,
    PoolOffer,
    Resume,
    table_hash,
)
from pascaline_appliance.errors import Refusal
from pascaline_appliance.life import Life, Member
from pascaline_appliance.records import PeerEnd, PoolPlan

ROUNDS = 1 << 32
"""Round numbers are counted modulo this."""
ECT0 = 2
"""ECN codepoint ECT(0) in the low bits of a traffic class."""


def offer(config: Config, life: Life, rank: int) -> Offer:
    """The appliance's ends of one rank's QPs, in the epoch that begins."""
    pools = [
        PoolOffer(
            pool=number,
            pool_class="data" if plan.pool_class == "data" else "small",
            lane=plan.lane,
            address=str(config.lane_address(plan.lane)),
            window=plan.window,
            chunk_bytes=plan.chunk_bytes,
            qpn=life.ends[number][rank].qpn,
            start_psn=life.ends[number][rank].start_psn,
            rkey=life.ends[number][rank].rkey,
            va_base=hex(life.ends[number][rank].va_base),
        )
        for number, plan in enumerate(life.pools)
    ]
    return Offer(
        epoch=life.epoch,
        mtu=life.mtu,
        traffic_class=config.data.dscp << 2 | ECT0,
        pools=pools,
        straggler_timeout_s=config.limits.straggler_timeout_s,
        deadline_s=config.limits.deadline_s,
        complete=list(life.complete),
        tables={op: table_hash(table) for op, table in life.members[rank].join.tables.items()},
    )


def peers(life: Life, member: Member, message: Connect) -> list[PeerEnd]:
    """The worker's ends, one per pool; Refusal if they do not fit what was offered."""
    rank = member.join.rank
    if [pool.pool for pool in message.pools] != list(range(len(life.pools))):
        raise Refusal(
            "budget", f"rank {rank} connects {len(message.pools)} pools, {len(life.pools)} were offered"
        )
    received = member.received or [0] * len(life.pools)
    return [_peer(member.join, *ends) for ends in zip(message.pools, life.pools, received, strict=True)]


def _peer(join: Join, pool: PoolConnect, plan: PoolPlan, received: int) -> PeerEnd:
    needed = plan.window * plan.chunk_bytes
    if pool.result_bytes < needed:
        raise Refusal(
            "budget",
            f"the result buffer of rank {join.rank} for pool {pool.pool} has {pool.result_bytes} bytes, window"
            f" {plan.window} * chunk {plan.chunk_bytes} = {needed} are needed",
        )
    return PeerEnd(
        address=ip_address(join.address),
        qpn=pool.qpn,
        start_psn=pool.start_psn,
        result_rkey=pool.result_rkey,
        result_va=int(pool.result_va, 16),
        received=received,
    )


def received(life: Life, member: Member, message: Resume) -> list[int]:
    """What a worker has when it resumes; Refusal if that cannot be."""
    rank = member.join.rank
    if message.epoch != life.epoch:
        raise Refusal(
            "rank", f"rank {rank} resumes epoch {message.epoch}, it is epoch {life.epoch} that has ended"
        )
    lacks = [(c - r) % ROUNDS for c, r in zip(life.complete, message.received, strict=False)]
    if len(message.received) != len(life.pools) or any(
        lack > plan.window for lack, plan in zip(lacks, life.pools, strict=False)
    ):
        raise Refusal(
            "rank",
            f"rank {rank} has the results of {message.received} rounds, {list(life.complete)} are complete and it may"
            f" lack a window of {[plan.window for plan in life.pools]}",
        )
    return message.received
