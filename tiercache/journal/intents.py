"""What an engine is doing to a whole directory, object by object: one row, which is there before the first of them
changes and goes after the last. Whoever finds it after a crash knows what is left to do."""

from __future__ import annotations

import enum
from typing import NamedTuple

from tiercache.journal.records import (
    DamagedRow,
    OriginSource,
    StagedRecord,
    TreeChange,
    decode_fields,
    encode,
    frame,
    record_of,
)
from tiercache.model import Key, OriginId


class Phase(enum.IntEnum):
    """How far it has come. A later row of the same id replaces an earlier one."""

    REMOVING = 0
    """A directory is removed: what is listed is being deleted."""
    COPYING = 1
    """A directory is moved: nothing was deleted yet, so a crash has it taken back."""
    MOVED = 2
    """All copies are there and the old objects are being deleted: a crash has the rest of them deleted."""


class Member(NamedTuple):
    """One object of the directory, as it was when the work began."""

    path: bytes
    """What follows the directory in its key."""
    etag: str
    modified_ns: int
    copied: str | None = None
    """The etag of its copy, "" until that is known; None where nothing is to be copied."""


class Intent(NamedTuple):
    """The move or removal of a directory, which holds its names until it ends."""

    id: int
    """From the same sequence as those of staged files."""
    phase: Phase
    origin: OriginId
    source: OriginSource
    directory: Key
    target: Key = b""
    """Of a move."""
    members: tuple[Member, ...] = ()
    directories: tuple[bytes, ...] = ()
    """Paths of the directories in it and of itself, the deepest first: they go when they are empty."""
    target_stood: bool = False
    """An empty directory is moved over: it stays when the move is taken back."""

    @property
    def change(self) -> TreeChange:
        """What a crash now would leave to do."""
        return {
            Phase.REMOVING: TreeChange.REMOVAL,
            Phase.COPYING: TreeChange.RETURN,
            Phase.MOVED: TreeChange.MOVE,
        }[self.phase]


Row = StagedRecord | Intent


def encode_row(row: Row) -> bytes:
    """The row's bytes; that of an intent has one field, which tells them apart."""
    return encode_intent(row) if isinstance(row, Intent) else encode(row)


def encode_intent(intent: Intent) -> bytes:
    """The bytes of an intent's row."""
    source = intent.source._replace(options=dict(intent.source.options))
    return frame({"intent": list(intent._replace(source=source))})


def decode_row(row: bytes) -> Row:
    """Whichever it is. DamagedRow if the bytes changed or belong to a later format."""
    fields = decode_fields(row)
    if "intent" not in fields:
        return record_of(fields)
    try:
        intent = Intent(*fields["intent"])
        return intent._replace(
            phase=Phase(intent.phase),
            origin=OriginId(intent.origin),
            source=OriginSource(*intent.source),
            members=tuple(Member(*member) for member in intent.members),
            directories=tuple(intent.directories),
        )
    except (TypeError, ValueError) as error:
        raise DamagedRow(f"an intent of another format: {error}") from error
