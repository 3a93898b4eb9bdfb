"""Moves and removals of directories that an engine could not end: what is left of them, one row for each name.

Such a name is absent here from then on, and its object is deleted when the origin lets us, unless it is another one by
now. Of a move that is taken back a copy goes only while its original is there and has the same bytes, or where the copy
has the etag that the original had: an upload may have replaced that since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from tiercache.errors import Absent, Changed, NotDirectory, NotEmpty
from tiercache.journal import Intent, Member, StagedRecord, TreeChange, TreePart
from tiercache.memory import Memory, Purpose
from tiercache.model import Key, Kind, ObjectStat, OriginId, StagedState
from tiercache.origins.base import Origin

COMPARED_BYTES = 4 * 1024 * 1024
"""Read at a time of an object and its copy, where nothing cheaper tells that they are the same."""

_ANNOUNCERS, _OBJECTS, _DIRECTORIES = 0, 1, 2
"""Steps: what tells a reader that others are there goes before them. Each level of directories is one of its own."""


def parts_of(
    intent: Intent, new_id: Callable[[], int], announces: Callable[[Key], bool], members: Iterable[Member] | None = None
) -> list[StagedRecord]:
    """What is left to do of ``intent``, or of these of its members. ``announces``: whether a name tells of others."""
    change, top = intent.change, intent.target if intent.change is TreeChange.RETURN else intent.directory
    rows = []

    def add(key: Key, step: int, etag: str = "", *, is_directory: bool = False, modified_ns: int = 0) -> None:
        part = TreePart(change, intent.directory, intent.target, step, is_directory, modified_ns)
        rows.append(
            StagedRecord(
                new_id(),
                0,
                intent.origin,
                intent.source,
                key,
                StagedState.CANCELLED,
                base_etag=etag,
                part_of=part,
            )
        )

    for member in intent.members if members is None else members:
        key = top + member.path
        step = _ANNOUNCERS if announces(key) else _OBJECTS
        if change is not TreeChange.RETURN:
            add(key, step, member.etag, modified_ns=member.modified_ns)
        elif member.copied is not None:
            add(key, step, member.etag)
    depths = sorted({path.count(b"/") for path in intent.directories}, reverse=True)
    for path in intent.directories:
        if path or change is not TreeChange.RETURN or not intent.target_stood:
            add(top + path, _DIRECTORIES + depths.index(path.count(b"/")), is_directory=True)
    return rows


def finish_part(origin: Origin, record: StagedRecord, memory: Memory) -> None:
    """Remove what one row tells of, if it is still that."""
    part = record.part_of
    assert part is not None
    if part.is_directory:
        with suppress(Absent, NotEmpty, NotDirectory):  # others have put something there since: it stays
            origin.remove_directory(record.key)
        return
    found = _find(origin, record.key)
    if found is None:
        return
    if part.change is TreeChange.RETURN:
        original = _find(origin, _original(record))
        if original is None or not (found.etag == record.base_etag or _are_same(origin, original, found, memory)):
            return
    elif found.etag != record.base_etag or _second(found.modified_ns) != _second(part.modified_ns):
        return
    with suppress(Absent, Changed):
        origin.delete(record.key, found.etag)


def _find(origin: Origin, key: Key) -> ObjectStat | None:
    try:
        stat = origin.stat(key)
    except (Absent, NotDirectory):
        return None
    return stat if stat.kind is not Kind.DIRECTORY else None


def _second(time_ns: int) -> int:
    """A store tells parts of a second in some of its answers, and leaves them out of others."""
    return time_ns // 1_000_000_000


def _are_same(origin: Origin, original: ObjectStat, copy: ObjectStat, memory: Memory) -> bool:
    """Whether they have the same bytes, which is no matter of doubt: one of them goes."""
    if original.kind is not copy.kind or original.size_bytes != copy.size_bytes:
        return False
    if original.etag == copy.etag or (original.upload_id and original.upload_id == copy.upload_id):
        return True
    with memory.held_in_thread(Purpose.UPLOAD, 2 * COMPARED_BYTES):
        for offset in range(0, original.size_bytes, COMPARED_BYTES):
            length = min(COMPARED_BYTES, original.size_bytes - offset)
            pieces = [origin.read(stat.key, offset, length, stat.etag) for stat in (original, copy)]
            if pieces[0] != pieces[1]:
                return False
    return True


class Steps:
    """Of each unfinished change, the rows that others wait for."""

    def __init__(self, rows: Callable[[], Sequence[StagedRecord]], get: Callable[[int], StagedRecord | None]) -> None:
        """``rows``: all retractions; ``get``: one of them, None when it is done."""
        self._rows = rows
        self._get = get
        self._left: dict[tuple[object, ...], list[StagedRecord]] = {}
        self._copies: dict[tuple[OriginId, Key], int] | None = None
        """By the originals' names; None where that is to be found out."""

    def ahead_of(self, record: StagedRecord) -> StagedRecord | None:
        """A row that has to be done before this one. All are gone through once for each change."""
        part = record.part_of
        if part is None or not part.step:
            return None
        whole = (record.origin, *part.whole)
        left = self._left.get(whole)
        if left is None:
            rows = [row for row in self._rows() if row.part_of and (row.origin, *row.part_of.whole) == whole]
            left = self._left[whole] = sorted(rows, key=_step, reverse=True)
        while left and self._get(left[-1].id) is None:
            left.pop()
        if not left:
            del self._left[whole]
            return None
        return left[-1] if _step(left[-1]) < part.step else None

    def copy_of(self, record: StagedRecord) -> StagedRecord | None:
        """A copy that is to be removed again, which the original tells as one for as long as it is there unchanged."""
        if self._copies is None:
            rows = [row for row in self._rows() if row.part_of and row.part_of.change is TreeChange.RETURN]
            self._copies = {(row.origin, _original(row)): row.id for row in rows}
        row_id = self._copies.get(record.lane)
        return self._get(row_id) if row_id is not None else None

    def forget(self) -> None:
        """There are new rows."""
        self._left.clear()
        self._copies = None


def _original(row: StagedRecord) -> Key:
    """Of what a copy was made."""
    assert row.part_of is not None
    return row.part_of.directory + row.key[len(row.part_of.target) :]


def _step(row: StagedRecord) -> int:
    return row.part_of.step if row.part_of is not None else 0
