"""The planted mutants: each breaks one rule of the data plane by one edit, and names the suite that must notice.

An edit is found by its text, which must be in its file exactly once: lines may move, but a row whose text is gone is an
error and never a mutant that is "caught" by nothing. Files are relative to dpdk_c/.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One wrong data plane."""

    name: str
    rule: str
    """What it breaks, in a sentence of DESIGN.md's or of the IBTA specification's words."""
    file: str
    text: str
    becomes: str
    suite: str
    """That must catch it, and therefore runs first: a key of suites.SUITES."""


MUTANTS = (
    # ---- Rule 1: one lane, one core; what others may touch goes over rings. ----
    Mutant(
        "stop flag is a plain word",
        "what two threads share is atomic",
        "io/lane.c",
        "while (!__atomic_load_n(&lane->stop, __ATOMIC_ACQUIRE)) {\n",
        "while (!*(volatile uint32_t *)&lane->stop) {\n",
        "threads",
    ),
    Mutant(
        "hand over without a barrier",
        "what a lane has written is handed over when it ends",
        "io/lane.c",
        "__atomic_store_n(&lane->ended, 1, __ATOMIC_RELEASE);",
        "__atomic_store_n(&lane->ended, 1, __ATOMIC_RELAXED);",
        "threads",
    ),
    Mutant(
        "free a job before its lane lets go",
        "a job is its lane's from ATTACH to DETACHED",
        "ctl/job.c",
        "    entry->closing = code == PSC_CTL_OK;\n",
        "    entry->closing = code == PSC_CTL_OK;\n    psc_job_free(entry->shards[0].job);\n",
        "threads",
    ),
    # ---- Rules 2 and 3: checked before the first byte, executed once, counted once. ----
    Mutant(
        "drop the ledger check",
        "a rank's contribution is begun only if its round is the rank's next",
        "agg/psc_pool.c",
        "    if (round != next_round)\n",
        "    if (false && round != next_round)\n",
        "sim",
    ),
    Mutant(
        "execute a duplicate",
        "a packet is executed only at PSN = expected PSN",
        "qp/psc_responder.c",
        "        return PSC_PLACE_PAST;\n",
        "        return PSC_PLACE_IN_ORDER;\n",
        "sim",
    ),
    Mutant(
        "PSN compare unsigned",
        "PSNs are compared on a circle of 2^24",
        "qp/psc_psn.h",
        "    return (int32_t)((a - b) << 8) / 256;\n",
        "    return (int32_t)a - (int32_t)b;\n",
        "sim",
    ),
    Mutant(
        "half the circle is the future",
        "a PSN that could be past or future is past",
        "qp/psc_psn.h",
        "    return (int32_t)((a - b) << 8) / 256;\n",
        "    return -((int32_t)((b - a) << 8) / 256);\n",
        "protocol",
    ),
    Mutant(
        "skip the residual check",
        "LAST carries exactly what is left of its message",
        "qp/psc_responder.c",
        "    if (last != last_due || packet->payload_bytes != due_bytes)\n",
        "    if (!last && (last_due || packet->payload_bytes != due_bytes))\n",
        "malformed",
    ),
    Mutant(
        "accept a straddling VA",
        "an address names the beginning of a slot",
        "core/psc_request.c",
        "    if (psc_va_byte(offset) != 0)\n",
        "    if (psc_va_byte(offset) >= qp->pool->pool.shape.chunk_bytes)\n",
        "malformed",
    ),
    Mutant(
        "accept a message longer than its slot",
        "a message lies within one slot",
        "core/psc_request.c",
        "    if (packet->dma_len > range_bytes)\n",
        "    if (packet->dma_len > 2 * range_bytes)\n",
        "malformed",
    ),
    Mutant(
        "skip the rkey",
        "the rkey is the queue pair's",
        "core/psc_request.c",
        "    if (packet->rkey != qp->spec.rkey)\n",
        "    if (false)\n",
        "malformed",
    ),
    Mutant(
        "skip the ICRC",
        "a packet with a wrong ICRC is dropped",
        "core/psc_receive.c",
        "    if (!psc_icrc_ok(packet))\n",
        "    if (false)\n",
        "sim",
    ),
    # ---- Rule 4: complete means committed. ----
    Mutant(
        "publish before all are whole",
        "a packet leaves only when all N ranks are in it",
        "agg/psc_pool.c",
        "    if (++slot->arrived[packet] == pool->shape.world_size) {\n",
        "    if (++slot->arrived[packet] == pool->shape.world_size - 1) {\n",
        "sim",
    ),
    Mutant(
        "say summed before it is added",
        "a range is summed when all N ranks are in the accumulator, not when they have come",
        "agg/psc_pool.c",
        "        add_waiting(pool, addition);\n        slot->summed_packets",
        "        slot->summed_packets",
        "units",
    ),
    Mutant(
        "forget what waits",
        "a burst's payloads are in their slots before its frames are given back",
        "core/psc_lane.c",
        "    psc_add_contributions(lane); ",
        "    (void)psc_add_contributions; ",
        "sim",
    ),
    Mutant(
        "immediates not compared",
        "the immediates of a round agree before its result leaves",
        "agg/psc_pool.c",
        "    if (!slot || slot->whole_ranks == 0 || slot->imm == imm)\n",
        "    if (!slot || slot->whole_ranks == 0 || slot->imm != imm || imm == slot->imm)\n",
        "sim",
    ),
    Mutant(
        "byte-swapped immediate",
        "the immediate goes out as it came in",
        "roce/build.c",
        "psc_to_be32(header->imm);",
        "psc_to_be32(__builtin_bswap32(header->imm));",
        "sim",
    ),
    Mutant(
        "ACK before the add",
        "an ACK names the last packet that is in the sum",
        "qp/psc_responder.c",
        "        header->psn = psc_psn_add(expected_psn, PSC_PSN_MASK); /* expected - 1 */\n",
        "        header->psn = expected_psn;\n",
        "sim",
    ),
    Mutant(
        "ACK what is postponed",
        "what was not added is not acknowledged",
        "core/psc_request.c",
        "        psc_responder_postponed(&qp->responder);\n        return PSC_DROP_NO_BUFFER;\n",
        "        psc_responder_executed(&qp->responder, packet);\n        return PSC_DROP_NO_BUFFER;\n",
        "sim",
    ),
    # ---- Streams of sub-blocks: what is checked as it is read. ----
    Mutant(
        "publish a sub-block that a rank lacks",
        "a sub-block is packed when all N ranks have passed it",
        "agg/psc_expand.c",
        "    if (++slot->arrived[sub_block] == slot->world_size)\n",
        "    if (++slot->arrived[sub_block] == slot->world_size - 1)\n",
        "sim",
    ),
    Mutant(
        "streams of other tensors",
        "all ranks' streams of a round have one number of elements",
        "agg/psc_expand.c",
        "    if (sum->elements != elements)\n",
        "    if (false)\n",
        "units",
    ),
    Mutant(
        "more elements than a slot",
        "a stream has no more elements than its slot takes",
        "agg/psc_expand.c",
        "    if (elements == 0 || elements > slot->elements_max)\n",
        "    if (elements == 0 || elements > slot->elements_max + 1)\n",
        "units",
    ),
    Mutant(
        "believe a count",
        "a bitmap has as many bits as its count says",
        "agg/psc_expand.c",
        "    if (bits != reader->values)\n",
        "    if (bits < reader->values)\n",
        "units",
    ),
    Mutant(
        "a bit beyond the elements",
        "a bitmap has bits of elements alone",
        "agg/psc_expand.c",
        "    if (beyond)\n",
        "    if (false && beyond)\n",
        "units",
    ),
    Mutant(
        "a stream that breaks off",
        "a stream ends with its message",
        "agg/psc_expand.c",
        "    if (end_bytes < reader->length_bytes || reader->due == PSC_DUE_NOTHING)\n",
        "    if (end_bytes <= reader->length_bytes)\n",
        "units",
    ),
    Mutant(
        "a stream that ends before its message",
        "a message ends with its stream",
        "agg/psc_expand.c",
        "        if (reader->read_bytes != reader->length_bytes)\n",
        "        if (reader->read_bytes > reader->length_bytes)\n",
        "units",
    ),
    Mutant(
        "what a slot held before counts",
        "the first value of an element is stored",
        "agg/psc_expand.c",
        "        memset(united_of(slot, reader->sub_block), 0, 4 * bitmap_words(elements));\n",
        "",
        "sim",
    ),
    # ---- Rules 5 and 6: window, and when a slot is written again. ----
    Mutant(
        "post before drained",
        "a rank is at r+W only if it was sent result r",
        "core/psc_request.c",
        "    if (!has_result(qp, target->round - pool->shape.window))\n",
        "    if (false)\n",
        "protocol",
    ),
    Mutant(  # agg/ alone: with rule 5 above kept, core/ never asks for such a round
        "drop the window check",
        "a round is within the window",
        "agg/psc_pool.c",
        "    if (psc_round_distance(round, newest_round) > 0)\n",
        "    if (false && newest_round)\n",
        "units",
    ),
    Mutant(  # likewise: nobody is at r+2W before all have r
        "reuse a slot whose round is complete",
        "a slot is written again when all have acknowledged it, not when all contributions have come",
        "agg/psc_pool.c",
        "all_acknowledged(pool, slot->round + 1);",
        "psc_round_distance(pool->completed_rounds, slot->round) > 0;",
        "units",
    ),
    Mutant(
        "reuse a slot on received",
        "that a rank posts r+W says that it has r, not all that it was sent",
        "core/psc_request.c",
        "target->round - pool->pool.shape.window, lane->now_ns);",
        "target->round - 1, lane->now_ns);",
        "sim",
    ),
    Mutant(
        "what was sent counts as had",
        "a result is kept until it is acknowledged",
        "qp/psc_requester.c",
        "    if (psc_psn_distance(end_psn(oldest), requester->unacked_psn) > 0)\n",
        "    if (psc_psn_distance(end_psn(oldest), requester->fresh_psn) > 0)\n",
        "sim",
    ),
    Mutant(
        "write a slot that is lent",
        "a slot is not written while a frame outside points into it",
        "core/psc_request.c",
        "            pool->results[psc_pool_slot_index(&pool->pool, round)].hold.count == 0);",
        "            pool->results[psc_pool_slot_index(&pool->pool, round)].hold.count < UINT32_MAX);",
        "sim",
    ),
    Mutant(
        "free a slot that is lent",
        "a job is given back when no frame outside points into it",
        "core/psc_command.c",
        "        if (job->state != PSC_JOB_DETACHING || held(job)) {\n",
        "        if (job->state != PSC_JOB_DETACHING || (held(job) && false)) {\n",
        "sim",
    ),
    # ---- Rule 7: from one epoch to the next, and the end. ----
    Mutant(
        "forget the epoch",
        "a QPN of an earlier epoch is unknown",
        "core/psc_receive.c",
        "    return qp && qp->spec.qpn == qpn ? qp : NULL;\n",
        "    (void)qpn;\n    return qp;\n",
        "sim",
    ),
    Mutant(
        "reuse a QPN at once",
        "a QPN rests for its quarantine",
        "ctl/identity.c",
        "        if (resting && index->retired_qpn[i] == qpn)\n",
        "        if (false && qpn)\n",
        "units",
    ),
    Mutant(
        "void rounds keep their slots",
        "an incomplete round is void for everybody",
        "agg/psc_pool.c",
        "            pool->slots[i].used = false;\n",
        "            pool->slots[i].used = true;\n",
        "protocol",
    ),
    Mutant(
        "send after a fault",
        "a halted job sends nothing but the NAK",
        "core/psc_reply.c",
        "        if (qp->state != PSC_QP_RTS)\n",
        "        if (qp->state == PSC_QP_RESET)\n",
        "sim",
    ),
    Mutant(
        "an ending job has one try",
        "a live rank that is cut off while a job ends is given its results by another queue pair",
        "core/psc_epoch.c",
        "    if (job->state == PSC_JOB_ENDING && !owed(job, qp)) {\n",
        "    if (job->state == PSC_JOB_ENDING && (!owed(job, qp) || true)) {\n",
        "sim",
    ),
    Mutant(
        "leave early",
        "LEFT comes when every rank has every result",
        "core/psc_command.c",
        "        if (!psc_pool_delivered(&job->pools[i].pool))\n",
        "        if (!psc_pool_delivered(&job->pools[i].pool) && job->leaving_ranks == 0)\n",
        "sim",
    ),
    Mutant(
        "keep the old next hop",
        "what is prepared for a queue pair is made anew with its next hop's MAC",
        "core/psc_neighbour.c",
        "        qp->middle.header_bytes = 0; /* made of another MAC, if any */\n        if (qp",
        "        if (qp",
        "protocol",
    ),
    # ---- The RC endpoint: what acknowledges, and what is repeated. ----
    Mutant(
        "the CRC of a contribution's packet for each that it makes",
        "a result's ICRC is that of its bytes",
        "agg/psc_pool.c",
        "slot->packet_crc[packet] =",
        "slot->packet_crc[addition->packet] =",
        "units",
    ),
    Mutant(
        "serve senders in a fixed order",
        "who always has something to send starves nobody",
        "core/psc_publish.c",
        "        if (qp->sending && served)\n",
        "        if (false && served)\n",
        "protocol",
    ),
    Mutant(
        "accept ghost ACKs",
        "an ACK beyond what was sent is stale",
        "qp/psc_requester.c",
        "requester->unacked_psn) < 0 || psc_psn_distance(psn, requester->fresh_psn) >= 0)\n",
        "requester->unacked_psn) < 0)\n",
        "sim",
    ),
    Mutant(
        "NAK twice",
        "a gap is NAKed once",
        "qp/psc_responder.c",
        "        if (!responder->nak_sent)\n",
        "        if (responder->owed != PSC_REPLY_NAK_SEQUENCE)\n",
        "sim",
    ),
    Mutant(
        "rewind for every NAK",
        "a NAK that is repeated for one loss rewinds once",
        "qp/psc_requester.c",
        "    if (requester->rewound && requester->rewound_psn == psn)\n",
        "    if (false)\n",
        "protocol",
    ),
)
