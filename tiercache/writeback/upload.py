"""The blocking part of an upload: send a staged file, and tell what the origin has afterwards.

Before a second try, and after a failed condition, the origin is asked what it has: the upload id stored with the
object distinguishes "already there" from "again", and our own earlier bytes from somebody else's.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from tiercache.checksum import CHECKSUM_BYTES, block_checksum, file_checksums, joined_digest
from tiercache.errors import Absent, Broken, Changed, Exists
from tiercache.journal import ConditionKind, DirectoryMove, StagedRecord, is_earlier_seal
from tiercache.memory import Memory, Purpose
from tiercache.model import BLOCK_SIZE_BYTES, Key, Kind, ObjectStat
from tiercache.origins.base import ALWAYS, Condition, Origin, Source, Upload, unfinished
from tiercache.writeback.attempt import Attempt, digest_of
from tiercache.writeback.unwanted import Unwanted


class Sent(NamedTuple):
    """The origin has the bytes."""

    stat: ObjectStat
    checksums: bytes


class Clash(NamedTuple):
    """The origin has something that is neither ours nor what the bytes were made from; None: nothing at all."""

    found: ObjectStat | None


class Replaced(NamedTuple):
    """The file that was being renamed over the name when the engine ended has it now."""


class Moved(NamedTuple):
    """The directory that was being renamed when the engine ended has its new name: so has the file."""


class Torn(NamedTuple):
    """The staged file was written while it was read: what was sent may be a mix."""


class Damaged(NamedTuple):
    """The staged file is not what was sealed."""

    reason: str


class Unsent(NamedTuple):
    """A power cut may have torn the staged file, and the origin does not have it from before: it is not sent."""


Outcome = Sent | Clash | Replaced | Moved | Torn | Damaged | Unsent


class _Facts(NamedTuple):
    size_bytes: int
    mtime_ns: int
    inode: int


def upload(origin: Origin, path: str, attempt: Attempt, unwanted: Unwanted, memory: Memory) -> Outcome:
    """Send the file of ``attempt.record``; it replaces what is ``unwanted`` under the same key, and leaves nothing of
    it. Raises what the origin raises, UploadCancelled and Suspended."""
    outcome = _outcome(origin, path, attempt, unwanted, memory)
    if attempt.parted is not None:  # nothing is going to be added to them
        origin.abort_uploads(attempt.record.key, attempt.record.upload_id, attempt.parted.id)
        attempt.ended()
    return outcome


def _outcome(origin: Origin, path: str, attempt: Attempt, unwanted: Unwanted, memory: Memory) -> Outcome:
    record = attempt.record
    if record.moves is not None and was_moved(origin, record.moves):
        return Moved()
    if record.link_target:
        return _send_link(origin, record)
    if record.torn:
        return _sent_before(_Sender(origin, path, attempt, b"", unwanted, memory))
    try:
        before = _facts(path)
    except FileNotFoundError:
        return Damaged("the staged file is gone")
    if before.size_bytes != record.size_bytes:
        if before.size_bytes > record.size_bytes:
            return Torn()
        return Damaged(f"{before.size_bytes} of {record.size_bytes} bytes are left")
    checksums = _checksums(path, attempt)
    if record.digest and joined_digest(checksums) != record.digest:
        if _facts(path).mtime_ns != record.synced_ns:
            return Torn()
        return Damaged("its bytes are not those that were synced")
    outcome = _Sender(origin, path, attempt, checksums, unwanted, memory).send()
    if isinstance(outcome, Sent) and _facts(path) != before:
        return Torn()
    return outcome


def was_moved(origin: Origin, move: DirectoryMove) -> bool:
    """Whether the origin has renamed the directory."""
    return _is_at(origin, move.target, move.file_id) and not _is_at(origin, move.source, move.file_id)


def _is_at(origin: Origin, key: Key, file_id: int) -> bool:
    try:
        stat = origin.stat(key)
    except Absent:
        return False
    return stat.kind is Kind.DIRECTORY and stat.file_id == file_id


def _facts(path: str) -> _Facts:
    status = os.stat(path)
    return _Facts(status.st_size, status.st_mtime_ns, status.st_ino)


def _checksums(path: str, attempt: Attempt) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file_checksums(file.fileno(), attempt.record.size_bytes, check=attempt.check)


def _send_link(origin: Origin, record: StagedRecord) -> Outcome:
    """A symlink is made in one step, and tells by its target that it is ours."""
    try:
        found = origin.stat(record.key)
    except Absent:
        return Sent(origin.symlink(record.key, record.link_target, record.attributes), b"")
    if found.link_target == record.link_target:
        return Sent(found, b"")
    if record.yields_to and found.etag == record.yields_to:
        return Replaced()
    wanted = wanted_condition(record)
    if found.kind is Kind.DIRECTORY or wanted.absent or wanted.etag not in ("", found.etag):
        return Clash(found)
    return Sent(origin.symlink(record.key, record.link_target, record.attributes, replaces=found.etag), b"")


def _sent_before(sender: _Sender) -> Sent | Replaced | Unsent:
    """For a torn file: what is here is no base for checksums, nor a copy to be cached."""
    sender.origin.abort_uploads(sender.record.key, sender.record.upload_id)
    found = sender.look()
    return found if isinstance(found, (Sent, Replaced)) else Unsent()


def wanted_condition(record: StagedRecord) -> Condition:
    """What the record asks of the origin."""
    match record.condition:
        case ConditionKind.IF_MATCH:
            return Condition(etag=record.base_etag)
        case ConditionKind.IF_ABSENT:
            return Condition(absent=True)
        case ConditionKind.ALWAYS:
            return ALWAYS


class _Sender:
    def __init__(
        self,
        origin: Origin,
        path: str,
        attempt: Attempt,
        checksums: bytes,
        unwanted: Unwanted,
        memory: Memory,
    ) -> None:
        self.origin = origin
        self.path = path
        self.attempt = attempt
        self.record = attempt.record
        self.checksums = checksums
        self.unwanted = unwanted
        self.memory = memory

    def send(self) -> Outcome:
        condition = wanted_condition(self.record)
        self.unwanted.abort(self.origin, self.record.key)
        self.abort_stale_parts()
        if self.record.attempts > 1:
            self.origin.abort_uploads(self.record.key, self.record.upload_id)
            found = self.look()
            if not isinstance(found, Condition):
                return found
            condition = found
        try:
            return self.write(condition)
        except (Changed, Exists, Absent):
            found = self.look()
            if not isinstance(found, Condition):
                return found
            if found == condition:
                raise
            return self.write(found)

    def abort_stale_parts(self) -> None:
        """Parts of other bytes, or of another seal, are none of this upload."""
        attempt = self.attempt
        attempt.digest = digest_of(self.record, self.checksums)
        if attempt.parted is not None and attempt.parted_digest != attempt.digest:
            self.origin.abort_uploads(self.record.key, "", attempt.parted.id)
            attempt.ended()

    def write(self, condition: Condition) -> Sent:
        record = self.record
        self.attempt.check()
        stat = self.origin.write(
            record.key,
            Upload(
                Source(self.path, record.size_bytes, self.checksums),
                record.attributes,
                condition,
                record.upload_id,
                in_place=record.in_place,
                progress=self.attempt.progress,
                base=record.base if record.base is not None and record.base.etag == condition.etag else None,
                pace=self.attempt.pace,
                resume=self.attempt,
            ),
        )
        if stat.size_bytes != record.size_bytes:
            raise Broken(f"the origin has {stat.size_bytes} of {record.size_bytes} bytes of {record.key!r}")
        return Sent(stat, self.checksums)

    def look(self) -> Sent | Clash | Replaced | Condition:
        """What the origin has: our bytes, somebody else's, or something that may be replaced under a condition."""
        record = self.record
        try:
            stat = self.origin.stat(record.key)
        except Absent:
            based = record.condition is ConditionKind.IF_MATCH and record.base_etag
            return Clash(None) if based else wanted_condition(record)
        if stat.kind is Kind.DIRECTORY:
            return Clash(stat)
        if record.yields_to and stat.etag == record.yields_to:
            return Replaced()
        spoiled = stat.etag == record.spoiled
        if not spoiled and self.is_ours(stat):
            return Sent(stat, self.checksums)
        found = stat.upload_id.removesuffix(unfinished(""))
        torn = found != stat.upload_id and found == record.upload_id
        if spoiled or torn or is_earlier_seal(found, record.upload_id) or self.unwanted.includes(stat):
            return Condition(etag=stat.etag)
        wanted = wanted_condition(record)
        if wanted.absent or (wanted.etag and wanted.etag != stat.etag):
            return Clash(stat)
        return wanted

    def is_ours(self, stat: ObjectStat) -> bool:
        if stat.size_bytes != self.record.size_bytes or stat.kind is not Kind.FILE:
            return False
        if stat.upload_id:
            return stat.upload_id == self.record.upload_id
        # An origin that keeps no upload ids: the bytes themselves tell.
        return stat.etag != self.record.base_etag and self.has_our_bytes(stat)

    def has_our_bytes(self, stat: ObjectStat) -> bool:
        for number, offset in enumerate(range(0, stat.size_bytes, BLOCK_SIZE_BYTES)):
            self.attempt.check()
            length = min(BLOCK_SIZE_BYTES, stat.size_bytes - offset)
            expected = self.checksums[number * CHECKSUM_BYTES : (number + 1) * CHECKSUM_BYTES]
            try:
                with self.memory.held_in_thread(Purpose.UPLOAD, length):
                    found = block_checksum(self.origin.read(self.record.key, offset, length, stat.etag))
            except (Changed, Absent):
                return False
            if found != expected:
                return False
        return True
