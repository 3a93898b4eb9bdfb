"""Plans: the order in which files will be read, so that the engine brings them just before."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiercache.filesystem.barriers import BarriersFileSystem
from tiercache.filesystem.base import raising
from tiercache.model import Key

if TYPE_CHECKING:
    from tiercache.client import Plan, Planner, RemoteOrigin


class PlansFileSystem(BarriersFileSystem):
    """What a reader that knows its order tells."""

    def plan(self, paths: Sequence[str]) -> Plan:
        """These files will be read, in this order, and are brought into the cache just before. Returns at once.

        ``reached(position)`` of the answer tells how far the reader is; without it the engine goes by what is opened.
        ``end()``, or leaving it as a context, gives the rest up. A file that does not exist, or that is read otherwise,
        does no harm: see ``plan_files`` and ``plan_reads`` in the metrics.
        """
        planner = self.planner(paths)
        with raising(""):
            return planner.begin()

    def planner(self, paths: Sequence[str]) -> Planner:
        """For readers that read these files again and again, in another order each time: ``begin(order)`` of the answer
        takes the order as places in ``paths``. All of them lie in one bucket (or host, or file tree)."""
        origin: RemoteOrigin | None = None
        keys: list[Key] = []
        for path in paths:
            other, key = self._locate(self._strip(path))
            if origin is not None and other is not origin:
                raise OSError(errno.EXDEV, "a plan is of one bucket", path)
            origin = other
            keys.append(key)
        if origin is None:
            raise ValueError("a plan without files")
        return origin.planner(keys)
