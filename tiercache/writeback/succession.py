"""What one record's end means for another: the retraction it leaves, and what the next one of the name stands on."""

from __future__ import annotations

from collections.abc import Iterable

from tiercache.errors import InUse, Lost
from tiercache.journal import ConditionKind, StagedRecord
from tiercache.model import Kind, ObjectStat, StagedState


def committed_stat(record: StagedRecord) -> ObjectStat:
    """What the origin confirmed, from the journal alone."""
    return ObjectStat(
        record.key,
        Kind.SYMLINK if record.link_target else Kind.FILE,
        record.size_bytes,
        record.committed_etag,
        record.committed_ns,
        record.attributes,
        upload_id=record.upload_id,
        link_target=record.link_target,
    )


def is_newer(other: StagedRecord, record: StagedRecord) -> bool:
    """Whether ``other`` holds a later state of the name: the one that took the name later, whenever it was opened."""
    return other.published and other.rank > record.rank


def is_being_written_after(other: StagedRecord, record: StagedRecord) -> bool:
    """Whether a client that has not closed ``other`` yet opened it when ``record`` was there to build on."""
    return not other.published and other.id > record.id


def newest_sealed(others: Iterable[StagedRecord], record: StagedRecord) -> StagedRecord | None:
    """Of the staged files of a name the sealed one that makes ``record`` obsolete."""
    newer = [other for other in others if is_newer(other, record) and other.state is StagedState.SEALED]
    return max(newer, key=lambda other: other.rank, default=None)


def overtaken(others: Iterable[StagedRecord], record: StagedRecord) -> list[StagedRecord]:
    """Sealed files that had the name before ``record``, and whose turn came after it: they must never go up."""
    return [
        other for other in others if other.published and other.state is StagedState.SEALED and is_newer(record, other)
    ]


def retraction_of(record: StagedRecord, new_id: int, *, replaced_by: int = 0, left_etag: str = "") -> StagedRecord:
    """The duty that an unwanted upload of ``record`` leaves behind, and the version ``left_etag``, which is unwanted as
    well."""
    return record._replace(
        id=new_id,
        state=StagedState.CANCELLED,
        replaced_by=replaced_by,
        base_etag=left_etag,
        upload_id=record.upload_id if record.attempts else "",  # else the next upload has the same
        committed_etag="",
        last_error="",
        base=None,
        moves=None,
        spilled=False,
    )


def retraction_of_parts(record: StagedRecord, new_id: int) -> StagedRecord:
    """The duty to abort what the store has in parts of a lost file, and nothing else."""
    return retraction_of(record, new_id)._replace(upload_id="")


def taken_over(retractions: Iterable[StagedRecord], heir: StagedRecord) -> list[StagedRecord]:
    """What cancelled uploads may have left under a name needs no deletion: the heir's upload replaces it."""
    return [record._replace(replaced_by=heir.id) for record in retractions]


def inherited(retractions: Iterable[StagedRecord], heir: StagedRecord) -> list[StagedRecord]:
    """What a file left under its old names, once ``heir`` has taken its name or goes up instead of it."""
    return [record._replace(heir=heir.id) for record in retractions]


def inherit(newer: StagedRecord, older: StagedRecord) -> StagedRecord:
    """``older`` never goes up: ``newer``, where it was made from its bytes, stands on what those stood on."""
    newer = waited_for_as(newer, [older])
    if newer.condition is not ConditionKind.IF_MATCH:
        return newer
    return newer._replace(condition=older.condition, base_etag=older.base_etag)


def waited_for_as(heir: StagedRecord, replaced: Iterable[StagedRecord]) -> StagedRecord:
    """``heir`` goes up instead of the others of the name: what waits for one of them waits for it (see ``Order``)."""
    seals = [record.first_seal for record in (heir, *replaced) if record.first_seal]
    return heir._replace(first_seal=min(seals, default=0))


def based_on(newer: StagedRecord, committed: StagedRecord, stat: ObjectStat) -> StagedRecord:
    """``newer`` follows ``committed`` under the same name: what it must find at the origin is the new version."""
    if newer.inode == committed.inode:
        newer = newer._replace(in_place=True)
    if newer.condition is ConditionKind.IF_ABSENT and newer.inode == committed.inode:
        return newer._replace(condition=ConditionKind.IF_MATCH, base_etag=stat.etag)
    if newer.condition is ConditionKind.IF_ABSENT:
        return newer
    return newer._replace(base_etag=stat.etag)


def sent_while_written(record: StagedRecord) -> InUse:
    """Why a mount's file has to keep its name."""
    return InUse(
        f"{shown(record)}: is sent to the origin while it is written, for want of room in staging; close it first"
    )


def one_line(error: Exception) -> str:
    if isinstance(error, Lost):
        return str(error)
    text = " ".join(str(error).split())
    return text or type(error).__name__


def shown(record: StagedRecord) -> str:
    """The name of a staged file, for a message."""
    return repr(record.key.decode("utf-8", "backslashreplace"))
