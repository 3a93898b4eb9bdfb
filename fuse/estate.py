"""What a mount leaves to the next engine when this one is killed: its open files and the renames under way.

It lies in memory that the supervisor holds too, in fixed slots. Each slot is written so that its last field makes it
valid: an engine that is killed in the middle leaves it free.
"""

from __future__ import annotations

import enum
import logging
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

OPEN_MAX = 65_536
"""Open files of one mount that outlive an engine; what is opened beyond them ends with it."""

CHANGES_MAX = 1024
"""Changes of names under way at once; the driver's limit on requests is lower."""

_MAGIC = 0x7463_6573_7461_7401
_HEADER = struct.Struct("<QQQ")
"""Magic number of the form, the last handle number that was given out, and how many places were ever used. The last two
are written by themselves, each at once: ``pack_into`` would clear the header first, and an engine that is killed then
would leave none."""
_LAST_NUMBER, _USED = 1, 2
_HEADER_BYTES = 64
_CHANGE = struct.Struct("<QQ")
_OPEN = struct.Struct("<QQ16sQQIIIIIIQQQ")

_NUMBER_BYTES = 8
_CHANGES_AT = _HEADER_BYTES
_OPEN_AT = _CHANGES_AT + CHANGES_MAX * _CHANGE.size
_SIZE_BYTES = _OPEN_AT + OPEN_MAX * _OPEN.size

log = logging.getLogger(__name__)


class OpenFlag(enum.IntFlag):
    """How a file was opened, and what the kernel was told."""

    WRITE = 1
    APPEND = 2
    DIRECT_IO = 4
    KEEP_CACHE = 8


class OpenSlot(NamedTuple):
    """One open file as the next engine needs it."""

    request: int
    """The kernel's number of the request that opened it: when that comes again, this is its answer."""
    inode: int
    version: bytes
    """Id of the version that it reads; empty for staged bytes."""
    size_bytes: int
    content: int
    """A digest of what the kernel's pages held when it was opened."""
    flags: int
    uid: int
    gid: int
    pid: int
    backing_id: int
    """The kernel's id of a local file that was lent to it; 0 for none."""
    reserved: int
    lent_device: int
    lent_inode: int
    number: int
    """The handle; 0 in a free slot."""

    @property
    def writes(self) -> bool:
        """Whether it was opened for writing."""
        return bool(self.flags & OpenFlag.WRITE)


class Estate:
    """Shared by a mount's driver and file system. Used from one thread."""

    def __init__(self, descriptor: int) -> None:
        """Map the memory behind ``descriptor``, which is ours from now on. ValueError when it has another form."""
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _SIZE_BYTES)
        self._header = memoryview(self._map)[: _HEADER.size].cast("Q")
        magic, self._last_number, self._used = self._header
        if magic != _MAGIC:
            raise ValueError("the open files of this mount were written in another form")
        self._places: dict[int, int] = {}
        self._free: list[int] = []
        self._told = False
        self.inherited: list[OpenSlot] = []
        """What an earlier engine had open."""
        self._changes: dict[int, int] = {}
        self._free_changes: list[int] = []
        self._load_open()
        self._load_changes()

    @classmethod
    def create(cls) -> Estate:
        """Memory of a new mount. It takes what is used of it, 96 bytes for each file that is open at once."""
        descriptor = os.memfd_create("tiercache-estate", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _SIZE_BYTES)
        os.pwrite(descriptor, _HEADER.pack(_MAGIC, 0, 0), 0)
        return cls(descriptor)

    def _load_open(self) -> None:
        for place in range(self._used):
            slot = OpenSlot._make(_OPEN.unpack_from(self._map, _OPEN_AT + place * _OPEN.size))
            if slot.number:
                self._places[slot.number] = place
                self.inherited.append(slot._replace(version=slot.version if any(slot.version) else b""))
            else:
                self._free.append(place)

    def _load_changes(self) -> None:
        for place in range(CHANGES_MAX):
            _, request = _CHANGE.unpack_from(self._map, _CHANGES_AT + place * _CHANGE.size)
            if request:
                self._changes[request] = place
            else:
                self._free_changes.append(place)

    # -- open files ---------------------------------------------------------------------------------

    def new_number(self) -> int:
        """A handle number that this mount never had."""
        self._last_number += 1
        self._header[_LAST_NUMBER] = self._last_number
        return self._last_number

    def opened(self, slot: OpenSlot) -> None:
        """Keep an open file."""
        if self._free:
            place = self._free.pop()
        elif self._used < OPEN_MAX:
            place, self._used = self._used, self._used + 1
        else:
            if not self._told:
                self._told = True
                log.warning("more than %d files are open: the rest would not outlive the engine", OPEN_MAX)
            return
        self._places[slot.number] = place
        _OPEN.pack_into(self._map, _OPEN_AT + place * _OPEN.size, *slot)
        self._header[_USED] = self._used

    def closed(self, number: int) -> None:
        """Forget an open file."""
        place = self._places.pop(number, None)
        if place is not None:
            end = _OPEN_AT + (place + 1) * _OPEN.size
            self._map[end - _NUMBER_BYTES : end] = bytes(_NUMBER_BYTES)
            self._free.append(place)

    # -- changes of names ---------------------------------------------------------------------------

    @contextmanager
    def changing(self, request: int, inode: int) -> Iterator[None]:
        """The name of this inode is about to change, by this request of the kernel: when an engine is killed in the
        block, or gives the request up, the next one can tell whether it was done."""
        place = self._changes.pop(request, -1)
        if place < 0 and self._free_changes:
            place = self._free_changes.pop()
        if place < 0:
            # The oldest that was left: by an engine that was killed just after its answer.
            place = self._changes.pop(next(iter(self._changes)))
        at = _CHANGES_AT + place * _CHANGE.size
        _CHANGE.pack_into(self._map, at, inode, request)
        try:
            yield
        except Exception:
            self._changed(place)
            raise
        except BaseException:
            self._changes[request] = place  # given up without an answer: the next engine is asked again
            raise
        self._changed(place)

    def _changed(self, place: int) -> None:
        _CHANGE.pack_into(self._map, _CHANGES_AT + place * _CHANGE.size, 0, 0)
        self._free_changes.append(place)

    def was_changing(self, request: int) -> int:
        """The inode whose name an earlier engine was changing by this request; 0 when it did not come to that."""
        place = self._changes.get(request, -1)
        return 0 if place < 0 else self._inode_at(place)

    def _inode_at(self, place: int) -> int:
        inode: int = _CHANGE.unpack_from(self._map, _CHANGES_AT + place * _CHANGE.size)[0]
        return inode

    def close(self) -> None:
        """Give the memory up; the supervisor's part of it stays as long as it wants."""
        self._header.release()
        self._map.close()
        os.close(self.descriptor)
