"""What can be said of one staged file at a moment."""

from __future__ import annotations

from typing import NamedTuple

from tiercache.journal import StagedRecord
from tiercache.model import Key, OriginId, StagedState


class FileStatus(NamedTuple):
    """One row of ``tiercache status``."""

    id: int
    inode: int
    origin: OriginId
    url: str
    key: Key
    state: StagedState
    published: bool
    size_bytes: int
    sent_bytes: int
    attempts: int
    last_error: str
    retry_in_s: float
    """Until the next try; 0 when it runs, may start, or is not to be tried."""
    created_ns: int
    sealed_ns: int


def status_of(record: StagedRecord, *, size_bytes: int, sent_bytes: int, retry_in_s: float) -> FileStatus:
    """The row of a record with what only memory knows."""
    return FileStatus(
        id=record.id,
        inode=record.inode,
        origin=record.origin,
        url=record.source.url,
        key=record.key,
        state=record.state,
        published=record.published,
        size_bytes=size_bytes,
        sent_bytes=sent_bytes,
        attempts=record.attempts,
        last_error=record.last_error,
        retry_in_s=retry_in_s,
        created_ns=record.created_ns,
        sealed_ns=record.sealed_ns,
    )
