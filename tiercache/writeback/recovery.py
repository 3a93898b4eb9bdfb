"""What a start makes of the journal and the files that an earlier run left: a pure plan, applied idempotently.

The plan goes into the journal in one transaction before any file is touched, and every step on files can be repeated;
so a crash inside recovery is repaired by the next one. The origin is not asked here: records that may have been sent
are marked so, and their next upload begins with the question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tiercache.journal import StagedRecord, next_upload_id
from tiercache.model import StagedState
from tiercache.staging import FoundFile


class RecoveryReport(NamedTuple):
    """What recovery found."""

    queued: list[StagedRecord]
    """Wait for their upload."""
    committed: list[StagedRecord]
    """Were at the origin already; ``on_commit`` has been called for them."""
    lost: list[StagedRecord]
    """Newly found to be gone or damaged; what is left of them is in ``staging/lost/``."""
    discarded: list[StagedRecord]
    """Never published: their writers died before close. Or published and not whole here, because they were sent while
    they were written."""
    removed_files: int
    """Files that no record named."""
    torn: list[StagedRecord]
    """Among the queued ones: a power cut came before all of the file was synced. It goes up only if the origin turns
    out to have it; else it is kept and told."""


@dataclass
class Plan:
    """Changes to the journal, then to the files."""

    put: list[StagedRecord] = field(default_factory=list)
    drop: list[int] = field(default_factory=list)
    set_aside: list[int] = field(default_factory=list)
    delete: list[int] = field(default_factory=list)
    queued: list[StagedRecord] = field(default_factory=list)
    committed: list[StagedRecord] = field(default_factory=list)
    lost: list[StagedRecord] = field(default_factory=list)
    discarded: list[StagedRecord] = field(default_factory=list)
    torn: list[StagedRecord] = field(default_factory=list)
    removed_files: int = 0


def make_plan(
    records: Iterable[StagedRecord],
    files: Mapping[int, FoundFile],
    *,
    rebooted: bool,
    uploads: Callable[[StagedRecord], bool],
    now_ns: int,
    is_written: Callable[[StagedRecord], bool] = lambda record: False,
) -> Plan:
    """Decide on every record and every file. ``rebooted``: unsynced bytes may be gone with the page cache.
    ``is_written``: programs still write the file, through a mount that outlived its engine or a mapping."""
    plan = Plan()
    known: set[int] = set()
    for record in records:
        known.add(record.id)
        _decide(
            plan,
            record,
            files.get(record.id),
            rebooted=rebooted,
            uploads=lambda record: uploads(record) and not (record.state is StagedState.STAGED and is_written(record)),
            now_ns=now_ns,
        )
    orphans = [staged_id for staged_id in files if staged_id not in known]
    plan.delete.extend(orphans)
    plan.removed_files = len(orphans)
    return plan


def _decide(
    plan: Plan,
    record: StagedRecord,
    file: FoundFile | None,
    *,
    rebooted: bool,
    uploads: Callable[[StagedRecord], bool],
    now_ns: int,
) -> None:
    if record.state is StagedState.LOST:
        if file is not None:
            plan.set_aside.append(record.id)
    elif record.committed_etag:
        plan.committed.append(record)
    elif not record.published or record.spilled:
        plan.drop.append(record.id)
        plan.delete.append(record.id)
        plan.discarded.append(record)
    elif reason := damage(record, file, rebooted=rebooted):
        lost = record._replace(state=StagedState.LOST, last_error=reason)
        plan.put.append(lost)
        plan.lost.append(lost)
        plan.set_aside.append(record.id)
    elif file is not None and record.state is not StagedState.CONFLICT and uploads(record):
        reason = _tear(record, file) if rebooted else ""
        if reason or record.torn:
            queued = _torn(record, reason or record.last_error)
            plan.torn.append(queued)
        else:
            queued = _sealed(record, file, rebooted=rebooted, now_ns=now_ns)
        if queued != record:
            plan.put.append(queued)
        plan.queued.append(queued)


def damage(record: StagedRecord, file: FoundFile | None, *, rebooted: bool) -> str:
    """Why the file cannot be what was written, or ``""``."""
    if file is None:
        return "the staged file is gone"
    if record.suspect:
        return "an fsync failed, so written bytes may be missing"
    if rebooted and record.synced_bytes < 0 and not _is_empty(record, file):
        return "it was not synced when the machine went down, so written bytes may be missing"
    if record.state is StagedState.STAGED or record.torn:
        return ""  # its writer was free to shrink it; a torn one is known not to be what was sealed
    expected_bytes = min(record.synced_bytes, record.size_bytes) if rebooted else record.size_bytes
    if file.size_bytes < expected_bytes:
        return f"{file.size_bytes} of {expected_bytes} bytes are left"
    return ""


def _is_empty(record: StagedRecord, file: FoundFile) -> bool:
    """Of a file that was closed without a byte in it nothing can be missing."""
    return record.state is not StagedState.STAGED and record.size_bytes == file.size_bytes == 0


def _tear(record: StagedRecord, file: FoundFile) -> str:
    """Why the file may be a mix of what was synced and what was not, after a power cut; or ``""``. A file that was open
    then counts as whole when it looks as its last sync left it: its time tells of later changes, though not of all."""
    if _is_empty(record, file):
        return ""
    as_synced = file.size_bytes == record.synced_bytes
    if record.state is StagedState.STAGED:
        whole = as_synced and (not record.synced_ns or file.mtime_ns <= record.synced_ns)
    else:
        whole = as_synced and file.size_bytes == record.size_bytes and not record.unsynced
    if whole:
        return ""
    return (
        f"the machine went down before all of it was synced ({record.synced_bytes} bytes were, {file.size_bytes} are "
        "here); write to it again, or use tiercache resolve, to send it"
    )


def _torn(record: StagedRecord, reason: str) -> StagedRecord:
    """The first thing its upload does is to ask the origin, which may have it from before."""
    if record.state is StagedState.STAGED:
        record = record._replace(upload_id=next_upload_id(record.upload_id))  # the one it has is an earlier seal's
    return record._replace(
        state=StagedState.SEALED, torn=True, last_error=reason, attempts=max(1, record.attempts), digest=b""
    )


def _sealed(record: StagedRecord, file: FoundFile, *, rebooted: bool, now_ns: int) -> StagedRecord:
    # Whether an upload was begun is not known: the first thing the next one does is to ask the origin.
    attempts = max(1, record.attempts)
    grown = file.size_bytes != record.size_bytes
    if record.state is StagedState.STAGED or grown:
        as_synced = (file.size_bytes, file.mtime_ns) == (record.synced_bytes, record.synced_ns)
        return record._replace(
            state=StagedState.SEALED,
            upload_id=next_upload_id(record.upload_id),
            size_bytes=file.size_bytes,
            sealed_ns=now_ns,
            attempts=attempts,
            file_inode=file.inode,
            # What a power cut left is on the disk; what a killed engine left may still wait to be written.
            unsynced=record.synced_bytes >= 0 and not rebooted and not as_synced,
            digest=b"",
        )
    return record._replace(state=StagedState.SEALED, attempts=attempts, file_inode=file.inode)
