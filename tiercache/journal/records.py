"""One row of the journal, its codec, and the upload ids it carries.

A row is ``format (1 byte) | xxh3_64 of the payload (8) | msgpack payload``; the payload is a map of the record's fields
by name, without those that have their default. So a field can be added without a new format: older rows lack it. A row
with a field that nobody here knows is of a later version, and damaged as far as we can tell.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgpack
import xxhash

from tiercache.model import Attributes, BaseVersion, Key, OriginId, PartedUpload, StagedState

RECORD_FORMAT = 2
_FORMAT_IN_ORDER = 1
"""The payload was the fields in order."""
_HEADER_BYTES = 9


class ConditionKind(enum.IntEnum):
    """When the upload may replace the name."""

    ALWAYS = 0
    """It replaces whatever is there (O_TRUNC, ``wb``)."""
    IF_MATCH = 1
    """Only the version it was made from (``base_etag``); without one it is ALWAYS."""
    IF_ABSENT = 2
    """Only where there is nothing (O_EXCL, ``xb``)."""


class OriginSource(NamedTuple):
    """How to open the origin again after a restart. ``options`` are the user's, without secrets."""

    url: str
    client: str = "obstore"
    options: Mapping[str, Any] = MappingProxyType({})


class DirectoryMove(NamedTuple):
    """A directory is being renamed at the origin."""

    source: Key
    target: Key
    file_id: int
    """The origin's own number of the directory: whoever finds it under ``target`` knows that it was renamed."""


class TreeChange(enum.IntEnum):
    """What an engine was doing to a directory, object by object, when it ended."""

    REMOVAL = 0
    MOVE = 1
    RETURN = 2
    """A move that had deleted nothing yet: its copies go again."""


class TreePart(NamedTuple):
    """Why a CANCELLED row is there: it is what is left to do with one name of such a directory."""

    change: TreeChange
    directory: Key
    target: Key
    step: int
    """It waits until all rows of the same change with lower steps are done."""
    is_directory: bool = False
    """A directory, which goes if it is empty."""
    modified_ns: int = 0
    """When the object was last changed: one that was written since stays, even if it has the same bytes."""

    @property
    def whole(self) -> tuple[TreeChange, Key, Key]:
        """What the parts of one change have in common."""
        return self.change, self.directory, self.target


class StagedRecord(NamedTuple):
    """One staged file and what is to become of it. Times are nanoseconds since the epoch."""

    id: int
    """Never used twice in a cache directory; also the name of the file in staging."""
    inode: int
    origin: OriginId
    source: OriginSource
    key: Key
    state: StagedState = StagedState.STAGED
    base_etag: str = ""
    """The version at the origin that the bytes were made from; ``""`` if none. In a CANCELLED row: the version that a
    renamed file left under its old name."""
    condition: ConditionKind = ConditionKind.ALWAYS
    published: bool = True
    """False while an fsspec writer has it open: invisible, and discarded when the writer dies or at recovery."""
    attributes: Attributes | None = None
    size_bytes: int = 0
    """At the last sync or seal."""
    synced_bytes: int = -1
    """Size of what fdatasync has confirmed, -1 if it never did: only so much survives a power loss for certain."""
    file_inode: int = 0
    upload_id: str = ""
    """``<lineage>.<seal number>``; stored with the object."""
    attempts: int = 0
    """Uploads begun with the present or an earlier upload id of this record."""
    last_error: str = ""
    suspect: bool = False
    """An fsync failed: the kernel may have dropped bytes, so nothing may ever call this file durable."""
    committed_etag: str = ""
    """Set between the origin's confirmation and the end of the row: the origin has these bytes under this etag."""
    committed_ns: int = 0
    replaced_by: int = 0
    """CANCELLED rows only: the staged file whose upload will replace what this one may have left at the origin."""
    created_ns: int = 0
    sealed_ns: int = 0
    profile: str = "general"
    taken: int = 0
    """Number of the seal or rename by which the file took its name; 0 before. From the same sequence as ``id``."""
    in_place: bool = False
    """The bytes are another state of the file that has the name at the origin, and so of all its names (hard links).
    Otherwise they are another file, which takes this one name."""
    yields_to: str = ""
    """While another file is being renamed over the name at the origin: that file's etag. Whoever finds it there after a
    crash knows that these bytes were replaced."""
    moves: DirectoryMove | None = None
    """While a directory above the name is being renamed at the origin, where that is one step: after a crash the name
    may be another one, and an upload to this one would make the old directory anew."""
    synced_ns: int = 0
    """The file's own time of its last change when the last sync began: what changed it later is not synced."""
    unsynced: bool = False
    """Sealed with changes in it that came after the last sync, so that a power cut may have torn them."""
    digest: bytes = b""
    """Of the sealed bytes (``checksum.joined_digest``), taken while the close synced them; b"" where none was taken."""
    torn: bool = False
    """A power cut came before all of it was synced: it is kept and told, and goes up when it has been written again."""

    parted: PartedUpload | None = None
    """What the store has of these bytes, or of an earlier state of them, when they go up in parts. In a CANCELLED row:
    to be aborted."""
    parted_digest: bytes = b""
    """Of the bytes and the upload id that ``parted`` is of."""

    spoiled: str = ""
    """The etag under which the origin has these bytes, but not as they were sent: to be replaced."""

    base: BaseVersion | None = None
    """What the bytes were made from: of use as long as ``base_etag`` is its etag."""

    link_target: bytes = b""
    """It is a symlink to this, which the staged file holds too; b"" for a file."""

    link_place: Key | None = None
    """What a symlink to an absolute path stood for inside the origin when it was made, if it lay in a mount of it."""

    first_seal: int = 0
    """Number of the first seal since the origin had all bytes of the name, be it of an earlier staged file of the name
    whose place this one took; 0 before."""

    spilled: bool = False
    """A mount's file that goes to the origin while it is written (``parted``): what is here is not all of it. When its
    engine is gone it never becomes whole."""

    part_of: TreePart | None = None
    """CANCELLED rows only: the unfinished change of a directory that this is left of."""

    heir: int = 0
    """CANCELLED rows only: the staged file that was renamed away from this name. What the origin has under it stays
    until the origin has that file; 0 where it may go at once."""

    keeps_directory: bool = False
    """CANCELLED rows only: the directory of the name, on an object store, outlives what goes from it."""

    @property
    def rank(self) -> int:
        """Of two staged files of one name the higher rank holds the newer bytes."""
        return self.taken or self.id

    @property
    def lane(self) -> tuple[OriginId, Key]:
        """Uploads of one lane never run at the same time."""
        return self.origin, self.key


class DamagedRow(ValueError):
    """A row's bytes are not what was written."""


_NONE: Final = object()
_DEFAULTS: Final = tuple(StagedRecord._field_defaults.get(name, _NONE) for name in StagedRecord._fields)


def encode(record: StagedRecord) -> bytes:
    """The row's bytes."""
    told = zip(StagedRecord._fields, record, _DEFAULTS, strict=True)
    fields = {name: value for name, value, default in told if value is not default and value != default}
    fields["source"] = record.source._replace(options=dict(record.source.options))
    if record.parted is not None:
        fields["parted"] = record.parted._replace(etags=dict(record.parted.etags))
    return frame(fields)


def frame(fields: Mapping[str, Any]) -> bytes:
    """A row of these fields."""
    payload: bytes = msgpack.packb(fields, unicode_errors="surrogateescape")
    return bytes([RECORD_FORMAT]) + xxhash.xxh3_64_digest(payload) + payload


def decode(row: bytes) -> StagedRecord:
    """Back from ``encode``. DamagedRow if the bytes changed or belong to a later format."""
    return record_of(decode_fields(row))


def decode_fields(row: bytes) -> dict[str, Any]:
    """Back from ``frame``. DamagedRow as in ``decode``."""
    if len(row) < _HEADER_BYTES or row[0] not in (RECORD_FORMAT, _FORMAT_IN_ORDER):
        raise DamagedRow(f"format {row[0] if row else 'none'} instead of {RECORD_FORMAT}")
    payload = row[_HEADER_BYTES:]
    if xxhash.xxh3_64_digest(payload) != row[1:_HEADER_BYTES]:
        raise DamagedRow("wrong checksum")
    fields = msgpack.unpackb(payload, unicode_errors="surrogateescape", strict_map_key=False)
    return dict(zip(StagedRecord._fields, fields, strict=False)) if row[0] == _FORMAT_IN_ORDER else dict(fields)


def record_of(fields: Mapping[str, Any]) -> StagedRecord:
    """The record with these fields. DamagedRow for one that nobody knows."""
    unknown = fields.keys() - set(StagedRecord._fields)
    if unknown:
        raise DamagedRow(f"unknown fields: {', '.join(sorted(map(str, unknown)))}")
    record = StagedRecord(**fields)
    return record._replace(
        origin=OriginId(record.origin),
        source=OriginSource(*record.source),
        state=StagedState(record.state),
        condition=ConditionKind(record.condition),
        attributes=_attributes(record.attributes),
        moves=None if record.moves is None else DirectoryMove(*record.moves),
        base=None if record.base is None else BaseVersion(*record.base),
        parted=None if record.parted is None else PartedUpload(*record.parted),
        part_of=None if record.part_of is None else _tree_part(record.part_of),
    )


def _tree_part(fields: Any) -> TreePart:
    part = TreePart(*fields)
    return part._replace(change=TreeChange(part.change))


def _attributes(fields: Any) -> Attributes | None:
    if fields is None:
        return None
    attributes = Attributes(*fields)
    return attributes._replace(xattrs=tuple((name, value) for name, value in attributes.xattrs))


def fresh_upload_id() -> str:
    """The id of a staged file's first seal; its lineage is random, so that no two machines make the same."""
    return f"{os.urandom(8).hex()}.1"


def next_upload_id(upload_id: str) -> str:
    """The id of the next seal of the same staged file."""
    if not upload_id:
        return fresh_upload_id()
    lineage, _, number = upload_id.partition(".")
    return f"{lineage}.{int(number) + 1}"


def is_earlier_seal(found: str, upload_id: str) -> bool:
    """Whether ``found`` names an earlier state of the staged file that ``upload_id`` names."""
    lineage, _, number = upload_id.partition(".")
    found_lineage, _, found_number = found.partition(".")
    return bool(found) and lineage == found_lineage and found_number.isdigit() and int(found_number) < int(number)
