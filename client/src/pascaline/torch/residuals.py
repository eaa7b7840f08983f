"""Error feedback by parameter: DDP regroups parameters into buckets, so a residual belongs to a name, not to a bucket.

Each group of parameters that travels as one flat tensor has one residual; when the grouping changes, every parameter
takes its share along. Knows tensors and names, no session.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from pascaline.codec import ErrorFeedback
from pascaline.errors import ConfigurationError

WORLD_SIZE = "world_size"
ITERATION = "iteration"


class Home(NamedTuple):
    """Where a parameter's residual is: elements from `begin` to `end` of a group's."""

    group: ErrorFeedback
    begin: int
    end: int


class Residuals:
    """Of one rank of `world_size`: unscaled float32, one value for each element of a parameter that is compressed."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._groups: dict[tuple[str, ...], ErrorFeedback] = {}
        self._homes: dict[str, Home] = {}
        self._loaded: dict[str, torch.Tensor] = {}
        """Of parameters that have not travelled since."""

    def of(self, names: Sequence[str], sizes: Sequence[int]) -> ErrorFeedback:
        """The residual of a group of parameters of `sizes` elements, in their order."""
        key = tuple(names)
        if key not in self._groups:
            self._groups[key] = self._regroup(key, sizes)
        return self._groups[key]

    def _regroup(self, names: tuple[str, ...], sizes: Sequence[int]) -> ErrorFeedback:
        group = ErrorFeedback(sum(sizes), hold=True)
        begin = 0
        for name, size in zip(names, sizes, strict=True):
            if (old := self._get(name)) is not None:
                group.residual[begin : begin + size] = _checked(name, old, size).numpy()
            self._loaded.pop(name, None)
            self._homes[name] = Home(group, begin, begin + size)
            begin += size
        used = {id(home.group) for home in self._homes.values()}
        self._groups = {key: old for key, old in self._groups.items() if id(old) in used}
        return group

    def _get(self, name: str) -> torch.Tensor | None:
        """(elements,): a view of it."""
        if home := self._homes.get(name):
            return torch.from_numpy(home.group.residual[home.begin : home.end])
        return self._loaded.get(name)

    def commit(self) -> None:
        """A backward pass has been reduced: what it left out is for the next."""
        for group in self._groups.values():
            group.commit()

    def discard(self) -> None:
        """A backward pass is void: residuals stay as they were."""
        for group in self._groups.values():
            group.discard()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies by "name@rank", and the world size: keys of different ranks never meet in one checkpoint."""
        names = [*self._homes, *self._loaded]
        residuals = {f"{name}@{self._rank}": self._get(name) for name in names}
        saved = {key: value.clone() for key, value in residuals.items() if value is not None}
        return {WORLD_SIZE: torch.tensor(self._world_size), **saved}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Of the same world size: this rank's own. Of another: see PascalineState.load_state_dict."""
        old_size = int(state[WORLD_SIZE])
        by_name: dict[str, dict[int, torch.Tensor]] = {}
        for key, value in state.items():
            name, _, rank = key.rpartition("@")
            if name:
                by_name.setdefault(name, {})[int(rank)] = value.reshape(-1)
        for group in self._groups.values():
            group.residual[:] = 0
            group.memory.clear()
        self._loaded.clear()
        short = []
        for name, of_rank in by_name.items():
            if old_size == self._world_size and self._rank in of_rank:
                self._put(name, of_rank[self._rank])
            elif old_size != self._world_size and len(of_rank) == old_size:
                self._put(name, torch.stack([of_rank[rank] for rank in sorted(of_rank)]).mean(0))
            else:
                short.append(name)
        if short:
            lacks = (
                f"rank {self._rank}"
                if old_size == self._world_size
                else "some: merge those of all ranks first"
            )
            warnings.warn(
                f"error feedback of {len(short)} parameters starts at zero: the checkpoint is of {old_size} ranks, "
                f"this job has {self._world_size}, and of the residuals it lacks those of {lacks}",
                stacklevel=3,
            )

    def _put(self, name: str, value: torch.Tensor) -> None:
        if home := self._homes.get(name):
            home.group.residual[home.begin : home.end] = _checked(name, value, home.end - home.begin).numpy()
        else:
            self._loaded[name] = value.to(torch.float32)


def _checked(name: str, residual: torch.Tensor, size: int) -> torch.Tensor:
    if residual.numel() != size:
        raise ConfigurationError(
            f"the residual of parameter {name!r} has {residual.numel()} elements and the parameter {size}: "
            "this checkpoint is of another model"
        )
    return residual
