"""The oracle of the fault tests finds what it is there for: each of these outcomes breaks one of its promises."""

from __future__ import annotations

import pytest

from tests.softroce.faulty import LIMIT_S, Call, Report, expected, judge
from tests.softroce.ranks import Outcome

CALLS = [Call(5)] * 3
SUMS = expected(CALLS)
LOST = "error EpochEnded connection_lost"
GONE = "error ApplianceUnreachable"
FAULT_S = 100.0


def report(*outcomes: str, ended_s: float = FAULT_S + 1) -> Report:
    return Report(list(outcomes), ended_s=ended_s)


def ended(sums: int, error: str = LOST) -> list[str]:
    return SUMS[:sums] + [error] * (len(CALLS) - sums)


BROKEN = {
    "a wrong sum": ([report(*SUMS[:2], SUMS[0]), report(*SUMS)], "wrong sums"),
    "a round that only one rank has": ([report(*ended(2)), report(*ended(1))], "differ"),
    "two errors": ([report(*ended(2)), report(*ended(2, "error EpochEnded straggler"))], "differ"),
    "a sum after an error": ([report(SUMS[0], LOST, SUMS[2])], "not one error"),
    "an error that comes late": ([report(*ended(1), ended_s=FAULT_S + LIMIT_S + 1)], "told"),
    "a hang": ([report(*ended(1, "error Hang"))], "hung"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_promise_is_found(what: str) -> None:
    reports, objection = BROKEN[what]
    with pytest.raises(AssertionError, match=objection):
        judge(CALLS, {rank: Outcome(value=value) for rank, value in enumerate(reports)}, FAULT_S)


def test_a_rank_that_is_cut_off_may_have_less_but_not_more() -> None:
    cut_off = frozenset([1])
    less = [report(*ended(2)), report(*ended(1, GONE))]
    judge(CALLS, {rank: Outcome(value=value) for rank, value in enumerate(less)}, FAULT_S, cut_off=cut_off)
    more = [report(*ended(1)), report(*ended(2, GONE))]
    with pytest.raises(AssertionError, match="void on the others"):
        judge(
            CALLS, {rank: Outcome(value=value) for rank, value in enumerate(more)}, FAULT_S, cut_off=cut_off
        )


def test_a_rank_that_has_no_report_is_found() -> None:
    with pytest.raises(AssertionError, match="Died"):
        judge(CALLS, {0: Outcome(error="Died")}, FAULT_S)
