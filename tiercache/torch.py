"""Samplers that tell the engine the order of an epoch. Plain Python: nothing of PyTorch is imported.

    sampler = PlannedSampler(DistributedSampler(dataset), dataset.paths)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=4)

``paths`` are those of the data set's items by index: local paths under a mount, or paths of ``fs``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tiercache.planning import planner_of

if TYPE_CHECKING:
    from tiercache.client import Plan, Planner
    from tiercache.filesystem import TierCacheFileSystem

DRAWN: Final = 65_536
"""Of a sampler without a length so many samples are drawn, and planned, at a time."""

log = logging.getLogger(__name__)


class PlannedSampler:
    """Yields what ``sampler`` yields, and tells the engine before. Whatever becomes of the plan, training goes on."""

    def __init__(self, sampler: Iterable[int], paths: Sequence[str], *, fs: TierCacheFileSystem | None = None) -> None:
        self.sampler = sampler
        self._order = _Order(paths, fs)

    def __iter__(self) -> Iterator[int]:
        drawn = iter(self.sampler)
        while order := list(islice(drawn, _length_of(self.sampler))):
            with self._order.told(order) as told:
                for position, place in enumerate(order):
                    told.reached(position)
                    yield place

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]  # it has one where somebody asks for it

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler's."""
        self.sampler.set_epoch(epoch)  # type: ignore[attr-defined]


class PlannedBatchSampler:
    """The same for a sampler that yields batches."""

    def __init__(
        self, batch_sampler: Iterable[Sequence[int]], paths: Sequence[str], *, fs: TierCacheFileSystem | None = None
    ) -> None:
        self.batch_sampler = batch_sampler
        self._order = _Order(paths, fs)

    def __iter__(self) -> Iterator[Sequence[int]]:
        drawn = iter(self.batch_sampler)
        while batches := list(islice(drawn, _length_of(self.batch_sampler))):
            with self._order.told([place for batch in batches for place in batch]) as told:
                position = 0
                for batch in batches:
                    told.reached(position, count=len(batch))
                    position += len(batch)
                    yield batch

    def __len__(self) -> int:
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler's, of the sampler below."""
        below: Any = getattr(self.batch_sampler, "sampler", self.batch_sampler)
        below.set_epoch(epoch)


class _Order:
    """Tells orders of one data set, one after the other."""

    def __init__(self, paths: Sequence[str], fs: TierCacheFileSystem | None) -> None:
        self._paths = paths
        self._fs = fs
        self._planner: Planner | None = None

    def told(self, order: Sequence[int]) -> _Told:
        try:
            if self._planner is None:
                self._planner = planner_of(self._paths, self._fs)
            return _Told(self._planner.begin(order))
        except Exception as error:  # a sampler may yield, and paths may be, whatever its training makes sense of
            log.warning("the order of this epoch is not planned: %s", error)
            return _Told(None)

    def __getstate__(self) -> dict[str, Any]:
        """A copy, in whatever process, finds its engine by itself."""
        return {**self.__dict__, "_planner": None}


class _Told:
    """The plan of one epoch, if there is one. Its end is not the reader's: workers still read the last samples, so the
    next epoch's plan takes its place; one that is left early is given up."""

    def __init__(self, plan: Plan | None) -> None:
        self._plan = plan

    def reached(self, position: int, *, count: int = 1) -> None:
        if self._plan is not None:
            self._plan.reached(position, count=count)

    def __enter__(self) -> _Told:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None and self._plan is not None:
            self._plan.end()


def _length_of(sampler: Any) -> int:
    try:
        return max(1, len(sampler))
    except TypeError:
        return DRAWN
