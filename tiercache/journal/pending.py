"""Changes of the journal that no commit covers yet, in the page cache of two small files: a killed engine loses none.

They are not synced, so a power cut may lose or tear them; what was promised to survive one waits for the commit. Two
files, because changes go on while a commit runs: it covers what the one holds, the rest goes to the other.

A file begins with the id of the boot in which it was written, without which it means nothing. Then one frame for the
changes that belong together: ``number (8) | length (4) | CRC of number and body (4) | body``; in the body, for each
``staged id (8) | length (4) | encoded record``, nothing for a removed one.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

FORMAT: Final = b"tiercache-pending-1\n"

_FRAME = struct.Struct("<QII")
_CHANGE = struct.Struct("<QI")
_NAMES: Final = ("pending.0", "pending.1")
_BOTH: Final = -1

log = logging.getLogger(__name__)


class Change(NamedTuple):
    """One record as it became; None when it went."""

    staged_id: int
    row: bytes | None


class Pending:
    """Appended to by the journal, emptied when its commits succeed."""

    def __init__(self, directory: Path, boot_id: bytes) -> None:
        self._begin = _beginning(boot_id)
        self._paths = [directory / name for name in _NAMES]
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._files = [os.open(path, flags, 0o600) for path in self._paths]
        self._empty = [False, False]
        self._current = 0
        self._number = 0
        self._failures = self._failures_covered = 0
        self.complete = True
        """Whether every change since the last commit is here. After a failed write what came before it is, and nothing
        more is added: what comes after it is told to nobody before a commit."""

    def load(self) -> list[Change]:
        """What an engine of this boot left, in order. A frame that it could not end is the last of its file, and was
        told to nobody."""
        older, newer = sorted(
            (_frames(path.read_bytes(), self._begin), which) for which, path in enumerate(self._paths)
        )
        self._current = newer[1]
        return [change for _, body in older[0] + newer[0] for change in _changes(body)]

    def append(self, changes: Iterable[Change]) -> None:
        """Note changes that belong together, before anybody is told of them. A full disk is no error here: the next
        commit tells of it."""
        if not self.complete:
            return
        body = b"".join(_CHANGE.pack(staged_id, len(row or b"")) + (row or b"") for staged_id, row in changes)
        if not body:
            return
        self._number += 1
        data = _FRAME.pack(self._number, len(body), _crc(self._number, body)) + body
        if self._empty[self._current]:
            data = self._begin + data
        file = self._files[self._current]
        try:
            _append(file, data)
            self._empty[self._current] = False
        except OSError as error:
            log.warning("what is closed from now on waits for the journal's next commit: %s", error)
            self.complete = False
            self._failures += 1

    def commit_begins(self) -> int:
        """All changes so far go into the commit that begins now; returns what to tell ``committed``."""
        self._failures_covered = self._failures
        if not self.complete:
            return _BOTH  # changes that are not here are later than what is
        covered, other = self._current, 1 - self._current
        if self._empty[other]:
            self._current = other
            return covered
        # An earlier commit failed: this one covers its changes, and the present file stays until the next one.
        return other

    def committed(self, covered: int) -> None:
        """The commit succeeded."""
        if covered == _BOTH:
            self._clear_both()
        else:
            self._clear(covered)
        self.complete = self._failures == self._failures_covered

    def clear(self) -> None:
        """Everything is durable."""
        self._clear_both()
        self.complete = True

    def _clear_both(self) -> None:
        # The older one first: if we are killed in between, the rest is still the end of what happened.
        self._clear(1 - self._current)
        self._clear(self._current)

    def _clear(self, which: int) -> None:
        os.ftruncate(self._files[which], 0)
        self._empty[which] = True

    def close(self) -> None:
        """Close the files; what is in them stays."""
        for file in self._files:
            os.close(file)


def read_pending(directory: Path, boot_id: bytes) -> tuple[list[Change], bool]:
    """``Pending.load`` without opening anything for writing, of whatever boot; and whether it is of ``boot_id``. A file
    that is missing or cannot be read holds nothing."""
    found: list[list[tuple[int, bytes]]] = []
    boots = set()
    for name in _NAMES:
        with suppress(OSError):
            data = (directory / name).read_bytes()
            boot, end, _ = data.removeprefix(FORMAT).partition(b"\n")
            frames = _frames(data, FORMAT + boot + end)
            if frames:
                found.append(frames)
                boots.add(boot)
    changes = [change for frames in sorted(found) for _, body in frames for change in _changes(body)]
    return changes, boots <= {boot_id}


def _beginning(boot_id: bytes) -> bytes:
    return FORMAT + boot_id + b"\n"


def _frames(data: bytes, begin: bytes) -> list[tuple[int, bytes]]:
    frames: list[tuple[int, bytes]] = []
    at = len(begin) if data.startswith(begin) else len(data)
    while len(data) >= at + _FRAME.size:
        number, length, crc = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        body = data[at : at + length]
        if len(body) != length or crc != _crc(number, body):
            break
        frames.append((number, body))
        at += length
    return frames


def _changes(body: bytes) -> Iterator[Change]:
    at = 0
    while at < len(body):
        staged_id, length = _CHANGE.unpack_from(body, at)
        at += _CHANGE.size
        yield Change(staged_id, body[at : at + length] or None)
        at += length


def _append(file: int, data: bytes) -> None:
    """All of it, or nothing: a torn frame would be the last of its file."""
    size_bytes = os.fstat(file).st_size
    try:
        if os.write(file, data) != len(data):
            raise OSError("only a part was written")
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, size_bytes)
        raise


def _crc(number: int, body: bytes) -> int:
    return zlib.crc32(body, number & 0xFFFFFFFF)
