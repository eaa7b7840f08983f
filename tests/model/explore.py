"""Visits every state of the model, breadth first, so that the trace to a violation is a shortest one."""

from __future__ import annotations

from collections import deque

from .rack import Rules, State, Violated, canonical, initial, may_stop, successors


class Broken(AssertionError):
    """A violation and the shortest way to it."""


def explore(rules: Rules) -> int:
    """Number of states, all of which keep the promises and none of which is stuck. Raises Broken."""
    start = initial(rules)
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        stuck = True
        try:
            for step, raw in successors(state, rules):
                stuck = False
                following = canonical(raw)
                if following not in came_from:
                    came_from[following] = (state, step)
                    queue.append(following)
        except Violated as violation:
            raise Broken(f"{violation}\n{_trace(came_from, state)}") from None
        if stuck and not may_stop(state, rules):
            raise Broken(f"stuck: {state}\n{_trace(came_from, state)}")
    return len(came_from)


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> str:
    """Steps from the start, one a line. Ranks are renumbered as they are sorted: a number is a place, not a name."""
    steps: list[str] = []
    while (link := came_from[state]) is not None:
        state, step = link
        steps.append(step)
    return "\n".join(reversed(steps))
