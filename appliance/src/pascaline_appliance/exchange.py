"""Swapping the two ends of queue pairs: what a worker is offered, and what it answers. Pure: messages in and out."""

from __future__ import annotations

from ipaddress import IPv4Address

from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import Connect, Join, Offer, PoolConnect, PoolOffer
from pascaline_appliance.dataplane import PeerEnd, PoolPlan
from pascaline_appliance.errors import Refusal
from pascaline_appliance.life import Life

ECT0 = 2
"""ECN codepoint ECT(0) in the low bits of a traffic class."""
LANE = 0
"""Every pool's lane, as long as there is one."""


def offer(config: Config, life: Life, rank: int) -> Offer:
    """The appliance's ends of one rank's QPs."""
    pools = [
        PoolOffer(
            pool=number,
            pool_class="data" if plan.pool_class == "data" else "small",
            lane=LANE,
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
        address=str(config.data.address.ip),
        mtu=life.mtu,
        traffic_class=config.data.dscp << 2 | ECT0,
        pools=pools,
        straggler_timeout_s=config.limits.straggler_timeout_s,
        deadline_s=config.limits.deadline_s,
    )


def peers(life: Life, join: Join, message: Connect) -> list[PeerEnd]:
    """The worker's ends, one per pool; Refusal if they do not fit what was offered."""
    if [pool.pool for pool in message.pools] != list(range(len(life.pools))):
        raise Refusal(
            "budget", f"rank {join.rank} connects {len(message.pools)} pools, {len(life.pools)} were offered"
        )
    return [_peer(join, pool, plan) for pool, plan in zip(message.pools, life.pools, strict=True)]


def _peer(join: Join, pool: PoolConnect, plan: PoolPlan) -> PeerEnd:
    needed = plan.window * plan.chunk_bytes
    if pool.result_bytes < needed:
        raise Refusal(
            "budget",
            f"the result buffer of rank {join.rank} for pool {pool.pool} has {pool.result_bytes} bytes, window"
            f" {plan.window} * chunk {plan.chunk_bytes} = {needed} are needed",
        )
    return PeerEnd(
        address=IPv4Address(join.address),
        qpn=pool.qpn,
        start_psn=pool.start_psn,
        result_rkey=pool.result_rkey,
        result_va=int(pool.result_va, 16),
    )
