"""The protocol of one pool as a transition system, small enough to visit every state: window, slot reuse, epoch end,
rank death and leave, as DESIGN.md states the rules. Written from the rules, not from the code; touches nothing else.

What is abstracted: a contribution arrives in two halves (begun, whole); a result lands whole, in order, any time after
it was sent; an ACK may be late for ever; at most one result frame is held by a port at a time, and it reads the slot
when it leaves. Ranks are interchangeable, so a state is stored with its ranks sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Violated(Exception):
    """A rule is broken; the text says which."""


class Rank(NamedTuple):
    """One worker, and what the appliance's ledger says about it."""

    begun: int = 0
    """Rounds whose contribution has begun to arrive: the ledger's next round."""
    whole: int = 0
    """Of them, wholly arrived."""
    landed: int = 0
    """Results in the worker's memory, their completion in its queue."""
    drained: int = 0
    """Results copied out and returned to the caller, their receive posted again."""
    acked: int = 0
    """Results that the appliance knows to have landed."""
    status: str = "live"
    """live, flushed (has said Resume), dead, leaving (has said Leave), left; cut (off, where a rule is broken)."""


class Held(NamedTuple):
    """A result frame that a port has not sent yet: it still points into a slot."""

    round: int
    epoch: int


class State(NamedTuple):
    """Everything. `slots[s]` is the round that slot s holds and the contributions in it, one count per rank in order of
    `ranks`; the counts travel with the ranks when these are sorted.
    """

    ranks: tuple[Rank, ...]
    slots: tuple[tuple[int, tuple[int, ...]], ...]
    held: Held | None = None
    phase: str = "running"
    """running, halted (a QP died), ending (a rank died: deliver what is complete), ended."""
    epoch: int = 0
    completed: int = 0


@dataclass(frozen=True)
class Rules:
    """Sizes, and the rules that a negative control may switch off."""

    ranks: int = 3
    window: int = 2
    slots: int = 4
    """2W."""
    rounds: int = 5
    """2W + 1: the last one writes the first one's slot again."""
    epochs: int = 1
    """How many times a QP may die."""
    deaths: int = 1
    posts_after_drained: bool = True
    """Rule 5; else a worker posts r + W as soon as r has landed."""
    begin_acknowledges: bool = True
    """Rule 5's other half: the first packet of r + W acknowledges r."""
    waits_for_held: bool = True
    """Rule 6: no slot is written while a frame outside points into it."""
    delivers_before_ending: bool = True
    """Rule 7: what is complete is delivered to the live ranks before they are told."""
    mends_while_ending: bool = True
    """Rule 7: a QP that dies while the job ends is made anew like any other; else its rank is cut off."""
    voids_incomplete: bool = True
    """A resume frees the slots of incomplete rounds, so that a replay is not added twice."""


def initial(rules: Rules) -> State:
    """Nothing has happened."""
    return State((Rank(),) * rules.ranks, ((-1, (0,) * rules.ranks),) * rules.slots)


def canonical(state: State) -> State:
    """The same state with its ranks in a fixed order."""
    keys = [(rank, tuple(slot[1][i] for slot in state.slots), i) for i, rank in enumerate(state.ranks)]
    order = [key[2] for key in sorted(keys)]
    if order == sorted(order):
        return state
    slots = tuple((round_, tuple(counts[i] for i in order)) for round_, counts in state.slots)
    return state._replace(ranks=tuple(state.ranks[i] for i in order), slots=slots)


def successors(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Every step that may be next, by name. Raises Violated when a step breaks a promise."""
    for i in range(rules.ranks):
        yield from _contribute(state, i, rules)
        yield from _deliver(state, i, rules)
        yield from _leave(state, i, rules)
        yield from _end(state, i, rules)
    yield from _transmit_held(state)
    yield from _resume(state, rules)
    yield from _finish(state, rules)


def _with(state: State, i: int, **changes: int | str) -> State:
    rank = state.ranks[i]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(ranks=(*state.ranks[:i], rank, *state.ranks[i + 1 :]))


# ---- A contribution arrives ----


def _contribute(state: State, i: int, rules: Rules) -> Iterator[tuple[str, State]]:
    rank = state.ranks[i]
    if state.phase != "running" or rank.status != "live":
        return
    if rank.begun > rank.whole:
        yield f"rank {i} whole {rank.whole}", _whole(state, i)
        return
    base = rank.drained if rules.posts_after_drained else rank.landed
    if rank.begun < min(rules.rounds, base + rules.window):
        begun = _begin(state, i, rules)
        if begun is not None:
            yield f"rank {i} begins {rank.begun}", begun


def _begin(state: State, i: int, rules: Rules) -> State | None:
    """The first packet. None: a frame outside still points into the slot, the packet comes again later."""
    round_ = state.ranks[i].begun
    if rules.begin_acknowledges and round_ >= rules.window:
        state = _with(state, i, acked=max(state.ranks[i].acked, round_ - rules.window + 1))
    s = round_ % rules.slots
    holds, counts = state.slots[s]
    if holds != round_:
        if holds >= 0 and any(r.acked <= holds for r in state.ranks):
            raise Violated(
                f"2W slots do not suffice: round {round_} meets round {holds}, which a rank may lack"
            )
        if rules.waits_for_held and state.held is not None and state.held.round % rules.slots == s:
            return None
        counts = (0,) * rules.ranks
    counts = (*counts[:i], counts[i] + 1, *counts[i + 1 :])
    slots = (*state.slots[:s], (round_, counts), *state.slots[s + 1 :])
    return _with(state._replace(slots=slots), i, begun=round_ + 1)


def _whole(state: State, i: int) -> State:
    state = _with(state, i, whole=state.ranks[i].begun)
    completed = min(rank.whole for rank in state.ranks)
    if completed > state.completed:
        _, counts = state.slots[(completed - 1) % len(state.slots)]
        if any(count != 1 for count in counts):
            raise Violated(
                f"round {completed - 1} is complete with contributions {counts}: counted twice or not at all"
            )
    return state._replace(completed=completed)


# ---- A result goes out ----


def _deliver(state: State, i: int, rules: Rules) -> Iterator[tuple[str, State]]:
    rank = state.ranks[i]
    here = rank.status in ("live", "leaving")
    if here and rank.landed < state.completed and state.phase in ("running", "ending"):
        _reads(state, rank.landed)
        if rank.drained + rules.window <= rank.landed:
            raise Violated(f"result {rank.landed} lands in a result slot that rank {i} has not drained")
        yield f"result {rank.landed} lands at rank {i}", _with(state, i, landed=rank.landed + 1)
        if state.held is None:
            yield f"a port holds result {rank.landed}", state._replace(held=Held(rank.landed, state.epoch))
    if rank.status not in ("dead", "left") and rank.drained < rank.landed:
        yield f"rank {i} drains {rank.drained}", _with(state, i, drained=rank.drained + 1)
    if here and rank.acked < rank.landed and state.phase in ("running", "ending"):
        yield f"rank {i} acknowledges", _with(state, i, acked=rank.acked + 1)


def _reads(state: State, round_: int) -> None:
    holds, _ = state.slots[round_ % len(state.slots)]
    if holds != round_:
        raise Violated(f"result {round_} is sent from a slot that holds round {holds}")


def _transmit_held(state: State) -> Iterator[tuple[str, State]]:
    if state.held is not None:
        _reads(state, state.held.round)
        yield f"the port sends result {state.held.round}", state._replace(held=None)


# ---- Ends ----


def _leave(state: State, i: int, rules: Rules) -> Iterator[tuple[str, State]]:
    rank = state.ranks[i]
    if state.phase == "running" and rank.status == "live" and rank.drained == rules.rounds:
        yield f"rank {i} leaves", _with(state, i, status="leaving", acked=rank.drained)
    if rank.status == "leaving" and all(r.acked >= state.completed for r in state.ranks):
        yield f"rank {i} has left", _with(state, i, status="left")


def _end(state: State, i: int, rules: Rules) -> Iterator[tuple[str, State]]:
    """A QP dies, or a rank does."""
    live = state.ranks[i].status in ("live", "flushed")
    if (
        state.phase in ("running", "ending")
        and state.ranks[i].status == "live"
        and state.epoch < rules.epochs
    ):
        mended = state.phase == "running" or rules.mends_while_ending
        yield (
            f"a QP of rank {i} dies",
            state._replace(phase="halted") if mended else _with(state, i, status="cut"),
        )
    dead = sum(rank.status == "dead" for rank in state.ranks)
    if live and dead < rules.deaths and state.phase == "running":
        yield f"rank {i} dies", _with(state, i, status="dead")._replace(phase="ending")
    if live and dead < rules.deaths and state.phase == "halted":
        yield f"rank {i} dies", _with(state, i, status="dead")


def _resume(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    if state.phase != "halted":
        return
    for i, rank in enumerate(state.ranks):
        if rank.status == "live":
            yield f"rank {i} says resume", _with(state, i, status="flushed")
    if not any(rank.status == "live" for rank in state.ranks):
        yield "the job resumes", _resumed(state, rules)


def _resumed(state: State, rules: Rules) -> State:
    """Rewound to what is complete; a rank that died meanwhile makes it a delivery only."""

    def again(rank: Rank) -> Rank:
        if rank.status != "flushed":
            return rank
        received = rank.drained  # whatever else had landed is delivered again
        return rank._replace(
            begun=state.completed, whole=state.completed, landed=received, acked=received, status="live"
        )

    nothing = (0,) * rules.ranks
    slots = tuple(
        (-1, nothing) if rules.voids_incomplete and holds >= state.completed else (holds, counts)
        for holds, counts in state.slots
    )
    phase = "ending" if any(rank.status == "dead" for rank in state.ranks) else "running"
    ranks = tuple(again(rank) for rank in state.ranks)
    return state._replace(ranks=ranks, slots=slots, phase=phase, epoch=state.epoch + 1)


def _finish(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """After a death: everyone that lives has drained what is complete, and is told."""
    if state.phase != "ending":
        return
    live = [rank for rank in state.ranks if rank.status in ("live", "leaving")]
    delivered = all(rank.landed == state.completed and rank.drained == rank.landed for rank in live)
    if delivered or not rules.delivers_before_ending:
        returned = max(rank.drained for rank in state.ranks)
        if any(rank.drained < returned for rank in state.ranks if rank in live or rank.status == "cut"):
            raise Violated(f"round {returned - 1} was returned by one rank and is void for a live one")
        yield "the job has ended", state._replace(phase="ended")


def may_stop(state: State, rules: Rules) -> bool:
    """Whether nothing more has to happen."""
    if state.phase == "ended":
        return True
    return all(rank.status == "left" and rank.drained == rules.rounds for rank in state.ranks)
