"""Every state of a pool with three ranks and a window of two: no rule is broken, nothing gets stuck; and each rule is
needed, because without it the same search finds a violation.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from .explore import Broken, explore
from .rack import Rules


def test_every_state_keeps_the_promises():
    states = explore(Rules())
    print(f"{states} states")
    assert states > 10_000


def test_two_deaths_of_queue_pairs_and_two_of_ranks():
    assert explore(Rules(ranks=2, epochs=2, deaths=2)) > 1_000


@pytest.mark.parametrize(
    ("without", "violation"),
    [
        ({"slots": 3}, "2W slots do not suffice"),
        ({"begin_acknowledges": False}, "2W slots do not suffice"),
        ({"posts_after_drained": False}, "has not drained"),
        ({"waits_for_held": False}, "is sent from a slot"),
        ({"delivers_before_ending": False}, "is void for a live one"),
        ({"mends_while_ending": False}, "is void for a live one"),
        ({"voids_incomplete": False}, "counted twice"),
    ],
)
def test_each_rule_is_needed(without, violation):
    with pytest.raises(Broken, match=violation):
        explore(replace(Rules(ranks=2), **without))
