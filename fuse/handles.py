"""Open files of a mount, by the number that the kernel hands back with each request."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from tiercache.engine.handle import Handle
from tiercache.errors import InvalidArgument
from tiercache.fuse.attributes import Caller
from tiercache.fuse.estate import Estate, OpenFlag, OpenSlot
from tiercache.fuse.pages import Content, PageVerdict


@dataclass(slots=True)
class OpenFile:
    """One open(2): the namespace's handle and who made it."""

    file: Handle
    caller: Caller
    verdict: PageVerdict | None
    """How the kernel reads it; None once its last descriptor is gone."""
    writer: int = 0
    """The process that wrote last, of a file that goes to the origin while it is written; 0 where that is unknown."""


class HandleTable:
    """Numbers are never used twice, so a late request for a released handle cannot hit another file. With an estate,
    what is open outlives this engine."""

    def __init__(self, estate: Estate | None = None) -> None:
        self._open: dict[int, OpenFile] = {}
        self._estate = estate
        self._new_number: Callable[[], int] = itertools.count(1).__next__ if estate is None else estate.new_number
        self._inherited: dict[int, int] = {}

    def add(self, file: Handle, caller: Caller, verdict: PageVerdict, content: Content) -> int:
        number = self._new_number()
        self._open[number] = OpenFile(file, caller, verdict)
        if self._estate is not None:
            self._estate.opened(_slot(number, file, caller, verdict, content))
        return number

    def reopen(self, slot: OpenSlot, file: Handle, verdict: PageVerdict) -> None:
        """Take over what an earlier engine had open."""
        self._open[slot.number] = OpenFile(file, Caller(slot.uid, slot.gid, slot.pid, slot.request), verdict)
        self._inherited[slot.request] = slot.number

    def of_request(self, request: int) -> int:
        """The handle that an earlier engine made for a request and had no time to tell of; 0 for none."""
        return self._inherited.get(request, 0)

    def get(self, number: int) -> OpenFile:
        opened = self._open.get(number)
        if opened is None:
            raise InvalidArgument(f"handle {number} is not open")
        return opened

    def is_open(self, number: int) -> bool:
        return number in self._open

    def pop(self, number: int) -> OpenFile:
        opened = self.get(number)
        del self._open[number]
        if self._estate is not None:
            self._estate.closed(number)
            self._inherited.pop(opened.caller.request, None)
        return opened

    def drain(self) -> list[OpenFile]:
        """Take all that are still open: the mount is gone and no release will come."""
        opened = list(self._open.values())
        self._open.clear()
        return opened

    def __len__(self) -> int:
        return len(self._open)


def _slot(number: int, file: Handle, caller: Caller, verdict: PageVerdict, content: Content) -> OpenSlot:
    version, backing = file.version, verdict.backing
    flags = (
        (OpenFlag.WRITE if file.writable else 0)
        | (OpenFlag.APPEND if file.append else 0)
        | (OpenFlag.DIRECT_IO if verdict.direct_io else 0)
        | (OpenFlag.KEEP_CACHE if verdict.keep_cache else 0)
    )
    return OpenSlot(
        request=caller.request,
        inode=file.inode,
        version=b"" if version is None else version.id,
        size_bytes=0 if version is None else version.size_bytes,
        content=content.fingerprint,
        flags=int(flags),
        uid=caller.uid,
        gid=caller.gid,
        pid=caller.pid,
        backing_id=0 if backing is None else backing.id,
        reserved=0,
        lent_device=0 if backing is None else backing.file.device,
        lent_inode=0 if backing is None else backing.file.inode,
        number=number,
    )
