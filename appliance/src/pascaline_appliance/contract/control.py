"""Contract: worker <-> appliance, control plane. JSON messages over one long-lived WebSocket per worker and job.

A worker's sequence: Join -> Offer -> Connect -> Connected -> (probes over RDMA) -> Ready -> ... -> Leave -> Left.
Join carries the table of every op that looks up; Offer, the first and those after a fault, echoes their hashes.
After a fault: [Broken ->] Ended(resumable) -> Resume -> Offer -> ... -> Ready, and at any step another Ended may come.
The appliance may send Refused before Ready or when a message cannot be, and Event or Ended at any time after Offer;
after Refused, Left and an Ended that is not resumable it closes the connection. Pings, both ways, are the heartbeat.

Client and appliance each ship this file; neither imports the other. Numbers of 64 bits travel as hexadecimal strings
("0x..."), since a JSON number is only exact to 2^53. Unknown fields, unknown types and oversized messages are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

CONTROL_VERSION = 4
MAX_MESSAGE_BYTES = 65536
DEFAULT_PORT = 4790
MAX_POOLS = 32

U24 = Annotated[int, Field(ge=0, lt=1 << 24)]
U32 = Annotated[int, Field(ge=0, lt=1 << 32)]
U64 = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{1,16}$")]
Op = Literal[
    "sum_i32",
    "sum_f32",
    "max_f32",
    "sum_f16",
    "sum_bf16",
    "lut4_u8",
    "lut4_u16",
    "lut2_u8",
    "lut2_u16",
    "lut8_u16",
    "or_u32",
    "expand_sum_i32",
    "expand_sum_f32",
]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PoolClass = Literal["data", "small"]


def table_hash(table: Iterable[int]) -> str:
    """SHA-256, in hexadecimal, of a table's bytes, one per entry of at most 255."""
    return hashlib.sha256(bytes(table)).hexdigest()


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Join(_Message):
    """First message of a worker: who it is and what it is going to do."""

    type: Literal["join"] = "join"
    control_version: int
    wire_version: int
    """PSC_WIRE_VERSION of the client's header."""
    job: Annotated[str, Field(min_length=1, max_length=90, pattern=r"^[A-Za-z0-9._:/@-]+$")]
    """Name of the training job; under torchrun TORCHELASTIC_RUN_ID."""
    restart_count: U32
    """TORCHELASTIC_RESTART_COUNT, else 0. A higher one ends the job's older life at once."""
    rank: Annotated[int, Field(ge=0, lt=64)]
    world_size: Annotated[int, Field(ge=1, le=64)]
    ops: Annotated[list[Op], Field(min_length=1, max_length=15)]
    """Op window k (from 1) of remote addresses is ops[k-1]; all ranks send the same list."""
    tables: dict[Op, list[U32]] = {}
    """For every op of `ops` that looks up, and no other: as many entries as its indices have values (16 for lut4_*, 4
    for lut2_*, 256 for lut8_*), the first 0, not falling, the last 1 to 255; alike on all ranks. The last times the
    world size is at most what the op's sums hold."""
    plan: Annotated[str, Field(max_length=128)]
    """Fingerprint of whatever must be alike on all ranks (model, codec); compared as text, '' is a value too."""
    mtu: Literal[256, 512, 1024, 2048, 4096]
    """Largest path MTU of this worker's port, bytes. The job uses the minimum over ranks and appliance."""
    address: Annotated[str, Field(max_length=45)]
    """IP address of this worker's RoCE v2 GID."""
    address6: Annotated[str, Field(max_length=45)] | None = None
    """Where `address` is IPv4: the IPv6 address of the same port's GID, if it has one. The appliance takes the
    address of its data port's family."""
    host: Annotated[str, Field(max_length=255)] = ""
    """For messages that people read."""
    chunk_bytes: Annotated[int, Field(gt=0)] | None = None
    """Wished slot size of the data pool, bytes of a result; None: the appliance's choice."""
    window: Annotated[int, Field(gt=0)] | None = None
    lanes: Annotated[int, Field(gt=0)] | None = None
    """Over how many lanes of the appliance the data goes; None: all."""


class PoolOffer(_Message):
    """One pool of the job and this worker's QP in it, as the appliance has built them."""

    pool: Annotated[int, Field(ge=0, lt=MAX_POOLS)]
    pool_class: PoolClass
    """A job has one pool for data on each of its lanes, all of one size, and one pool for small messages."""
    lane: Annotated[int, Field(ge=0)]
    address: str
    """IP address of the appliance's data port for this pool's QP."""
    window: Annotated[int, Field(gt=0)]
    chunk_bytes: Annotated[int, Field(gt=0)]
    """Of a slot, which holds a result: a contribution has 1/expansion of it, by its op."""
    qpn: U24
    start_psn: U24
    """Of the appliance's requests."""
    rkey: U32
    va_base: U64


class Offer(_Message):
    """Answer to Join or Resume, once all ranks have sent theirs."""

    type: Literal["offer"] = "offer"
    epoch: U32
    mtu: int
    """Path MTU of the job, bytes."""
    traffic_class: int
    """For the worker's address handle: DSCP << 2 | ECT(0)."""
    pools: Annotated[list[PoolOffer], Field(min_length=1, max_length=MAX_POOLS)]
    """Chunk c of collective s goes over the data pool number (s + c) modulo their number, in the order of this list."""
    straggler_timeout_s: float
    deadline_s: float
    """After a fault every reachable rank has an error within this time."""
    complete: Annotated[list[U32], Field(max_length=MAX_POOLS)] = []
    """Per pool: rounds that are complete, [] at a job's start. A worker that resumes gets the results it lacks below
    this number again, and writes its stored contributions from this round on again, after Ready."""
    tables: dict[Op, Sha256] = {}
    """table_hash() of each table that the data plane looks up in."""


class PoolConnect(_Message):
    """The worker's end of one QP. Its QP is in RTR when it sends this, its W+1 receives are posted."""

    pool: Annotated[int, Field(ge=0, lt=MAX_POOLS)]
    qpn: U24
    start_psn: U24
    """Of the worker's requests."""
    result_rkey: U32
    result_va: U64
    """Of result slot 0; slots are chunk_bytes apart, `window` of them."""
    result_bytes: Annotated[int, Field(gt=0)]


class Connect(_Message):
    """The worker's ends of all its QPs."""

    type: Literal["connect"] = "connect"
    pools: Annotated[list[PoolConnect], Field(min_length=1, max_length=MAX_POOLS)]


class Connected(_Message):
    """The appliance's QPs to this worker are in RTS: post the probe."""

    type: Literal["connected"] = "connected"


class Ready(_Message):
    """Every rank's probes have passed in both directions: rounds may begin."""

    type: Literal["ready"] = "ready"
    epoch: U32


class Broken(_Message):
    """One of the worker's queue pairs has failed: end the epoch. Answered by Ended, as is whatever else ended it."""

    type: Literal["broken"] = "broken"
    message: Annotated[str, Field(max_length=1000)]


class Resume(_Message):
    """Answer to a resumable Ended: the worker's QPs are flushed, every result that had landed is drained.

    A worker that has said Leave does not answer.
    """

    type: Literal["resume"] = "resume"
    epoch: U32
    """The epoch that has ended."""
    received: Annotated[list[U32], Field(max_length=MAX_POOLS)]
    """Per pool: number of rounds whose result this worker has. Later ones that are complete are delivered again."""


class Leave(_Message):
    """The worker has drained everything it wanted and posts nothing more."""

    type: Literal["leave"] = "leave"
    received: Annotated[list[U32], Field(max_length=MAX_POOLS)]
    """Per pool: number of rounds whose result this worker has."""


class Left(_Message):
    """Every rank has every complete result; the QPs may be destroyed."""

    type: Literal["left"] = "left"


class Refused(_Message):
    """The join is refused; the sentence names the values that disagree and the way out."""

    type: Literal["refused"] = "refused"
    reason: Literal[
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
    message: str


class Event(_Message):
    """Something worth telling that is not an error: who is waited for."""

    type: Literal["event"] = "event"
    kind: Literal["waiting", "rank_joined", "rank_left"]
    ranks: list[int]
    message: str


class Ended(_Message):
    """The epoch is over by a fault. Rounds below `complete` keep their result; later ones are void unless resumed.

    Not resumable: every live rank whose queue pairs work has had the results of all complete rounds written before this
    is sent; the worker drains them first, then fails everything else with this error.
    """

    type: Literal["ended"] = "ended"
    fault: str
    """Name of an enum psc_fault without its prefix, in lower case."""
    message: str
    rank: int | None = None
    complete: list[int] = []
    """Per pool: rounds that were complete."""
    epoch: U32 = 0
    resumable: bool = False
    """True: flush, drain, and answer with Resume. The job goes on; or, when it cannot, whoever lacks a complete result
    gets it and another Ended follows, by deadline_s after the fault's beginning.
    """


FromWorker = Annotated[Join | Connect | Broken | Resume | Leave, Field(discriminator="type")]
FromAppliance = Annotated[
    Offer | Connected | Ready | Left | Refused | Event | Ended, Field(discriminator="type")
]
from_worker: TypeAdapter[Join | Connect | Broken | Resume | Leave] = TypeAdapter(FromWorker)
from_appliance: TypeAdapter[Offer | Connected | Ready | Left | Refused | Event | Ended] = TypeAdapter(
    FromAppliance
)
