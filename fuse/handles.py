"""Open files of a mount, by the number that the kernel hands back with each request."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tiercache.engine.handle import Handle
from tiercache.errors import InvalidArgument
from tiercache.fuse.attributes import Caller
from tiercache.fuse.pages import PageVerdict


@dataclass(frozen=True, slots=True)
class OpenFile:
    """One open(2): the namespace's handle and who made it."""

    file: Handle
    caller: Caller
    verdict: PageVerdict
    """How the kernel reads it."""


class HandleTable:
    """Numbers are never used twice, so a late request for a released handle cannot hit another file."""

    def __init__(self) -> None:
        self._open: dict[int, OpenFile] = {}
        self._numbers = itertools.count(1)

    def add(self, file: Handle, caller: Caller, verdict: PageVerdict) -> int:
        number = next(self._numbers)
        self._open[number] = OpenFile(file, caller, verdict)
        return number

    def get(self, number: int) -> OpenFile:
        opened = self._open.get(number)
        if opened is None:
            raise InvalidArgument(f"handle {number} is not open")
        return opened

    def pop(self, number: int) -> OpenFile:
        opened = self.get(number)
        del self._open[number]
        return opened

    def drain(self) -> list[OpenFile]:
        """Take all that are still open: the mount is gone and no release will come."""
        opened = list(self._open.values())
        self._open.clear()
        return opened

    def __len__(self) -> int:
        return len(self._open)
