"""The join barrier: lives that form until all ranks of a job have joined, agree, and fit the budgets. Called by the
registry alone; tells workers only why they are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pascaline_appliance import admission, sentences
from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import Join, Refused
from pascaline_appliance.errors import Refusal
from pascaline_appliance.life import Life, Member, Worker

log = logging.getLogger(__name__)


def outdated(join: Join, life: Life) -> Refusal:
    """A join of an earlier restart than the one that is there."""
    return Refusal(
        "replaced",
        f"{admission.who(join)} is of restart {join.restart_count} of job {join.job}, restart {life.restart_count} has"
        " already joined",
    )


class Barrier:
    """Forming lives by job name."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self._join_timeout_s = config.limits.join_timeout_s
        self._clock = clock
        self.lives: dict[str, Life] = {}

    def admit(self, worker: Worker, join: Join, plan: Callable[[Sequence[Join]], object]) -> Life | None:
        """Add a rank; returns the life when it is complete.

        A disagreement or an exceeded budget ends the barrier for all: nobody can know which rank is wrong.
        """
        life = self._life(join)
        older = life.members.pop(join.rank, None)
        if older is not None:
            older.worker.finish(Refused(reason="replaced", message=f"{admission.who(join)} has joined again"))
        joins = [member.join for member in life.members.values()]
        try:
            if joins:
                admission.check_agreement(joins[0], join)
            plan([*joins, join])
        except Refusal as refusal:
            self.refuse(life, refusal)
            raise
        life.world_size = join.world_size
        life.members[join.rank] = Member(worker, join)
        log.info(
            "job %s: %s has joined (%d of %d)", join.job, admission.who(join), len(joins) + 1, join.world_size
        )
        return life if life.all_here else None

    def _life(self, join: Join) -> Life:
        """The life that `join` belongs to; a later restart refuses the earlier one."""
        life = self.lives.get(join.job)
        if life is not None and join.restart_count < life.restart_count:
            raise outdated(join, life)
        if life is not None and join.restart_count > life.restart_count:
            message = (
                f"restart {join.restart_count} of job {join.job} has begun, this is {life.restart_count}"
            )
            self.refuse(life, Refusal("replaced", message))
            life = None
        if life is None:
            deadline = self._clock() + self._join_timeout_s
            life = self.lives[join.job] = Life(join.job, join.restart_count, join.world_size, deadline)
        return life

    def refuse(self, life: Life, refusal: Refusal) -> None:
        """One sentence to all who have joined, and the life is over."""
        self.lives.pop(life.name, None)
        log.warning("job %s is refused: %s", life.name, refusal)
        for member in life.members.values():
            member.worker.finish(Refused(reason=refusal.reason, message=str(refusal)))

    def forget(self, life: Life, rank: int) -> None:
        """A rank is gone before the barrier is complete; the others go on waiting."""
        del life.members[rank]
        if not life.members:
            self.lives.pop(life.name, None)

    def tick(self) -> None:
        """Whoever has waited too long is told for whom."""
        for life in list(self.lives.values()):
            if self._clock() > life.deadline and not life.all_here:
                missing = sentences.missing(life.joins, life.world_size)
                text = (
                    f"{missing} of job {life.name} did not join within {self._join_timeout_s:g} s: start them"
                )
                self.refuse(life, Refusal("timeout", text))
