"""Copy staged bytes out of a cache directory whose engine or node is gone, without any origin."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import xxhash

from tiercache.errors import InvalidArgument
from tiercache.journal import StagedRecord
from tiercache.journal.rescue import read_journal
from tiercache.model import StagedState, has_posix_spelling
from tiercache.staging.disk import Disk, told
from tiercache.staging.staging import LOST_DIRECTORY

MANIFEST: Final = "manifest.jsonl"
COPY_BYTES: Final = 8 * 1024 * 1024
_GOES_UP = (StagedState.STAGED, StagedState.SEALED, StagedState.UPLOADING)


class Exported(NamedTuple):
    """What was copied, and what is not as it was written."""

    files: int
    size_bytes: int
    whole: int
    """Of the files those that are whole as far as the journal tells."""
    complaint: str
    """What of the journal could not be read."""


class _Found(NamedTuple):
    path: Path
    group: str
    record: StagedRecord | None


def export_staged(cache_dir: Path, target: Path, progress: Callable[[int, int], None]) -> Exported:
    """Copy every staged file below ``target``, an empty or new directory: ``files/SCHEME/HOST/KEY`` what was to go up,
    beside it ``conflict``, ``lost``, ``unpublished``, ``spilled`` (of which the beginning went up while it was written
    and is zeros here), ``superseded`` (older states of a name), ``unnamed`` and ``symlinks``: what was to become one is
    a file that holds its target, so that none leads out of here. The manifest has a line for each. ``progress`` is told
    the bytes done, and of how many. Reads only."""
    staging = cache_dir / "staging"
    if not staging.is_dir():
        raise InvalidArgument(f"{cache_dir}: no staged files are kept there; give a cache directory, or a copy of one")
    if target.exists() and any(target.iterdir()):
        raise InvalidArgument(f"{target}: is not empty; give a new directory")
    records, complaint = read_journal(cache_dir / "journal")
    found = list(_find(staging, records))
    total_bytes = sum(item.path.stat().st_size for item in found)
    done_bytes = whole = 0
    with told(f"copying to {target}"):
        target.mkdir(parents=True, exist_ok=True)
        with open(target / MANIFEST, "x", encoding="utf-8") as manifest:
            for item in found:
                line = _export(item, target)
                whole += bool(line["whole"])
                done_bytes += line["size_bytes"]
                manifest.write(json.dumps(line) + "\n")
                progress(done_bytes, total_bytes)
            manifest.flush()
            os.fsync(manifest.fileno())
        for directory in [target, *(path for path in target.rglob("*") if path.is_dir())]:
            Disk().sync_directory(str(directory))
    return Exported(len(found), done_bytes, whole, complaint)


def _find(staging: Path, records: list[StagedRecord]) -> Iterator[_Found]:
    """Each staged file once, with what the journal says of it."""
    by_id = {record.id: record for record in records if record.state is not StagedState.CANCELLED}
    newest: dict[tuple[bytes, bytes], int] = {}
    for record in by_id.values():
        if record.published and not record.spilled and record.state in _GOES_UP:
            other = by_id.get(newest.get(record.lane, 0))
            if other is None or other.rank < record.rank:
                newest[record.lane] = record.id
    for directory in (staging, staging / LOST_DIRECTORY):
        for path in sorted(directory.iterdir()) if directory.is_dir() else []:
            if path.is_file() and path.name.isdigit():
                known = by_id.get(int(path.name))
                yield _Found(path, _group(known, newest), known)


def _group(record: StagedRecord | None, newest: dict[tuple[bytes, bytes], int]) -> str:
    if record is None or not has_posix_spelling(record.key) or not record.key:
        return "unnamed"
    if record.link_target:
        return "symlinks"
    if record.spilled or (not record.published and record.parted is not None):
        return "spilled"
    if not record.published:
        return "unpublished"
    if record.state not in _GOES_UP:
        return str(record.state)
    return "files" if newest[record.lane] == record.id else "superseded"


def _export(item: _Found, target: Path) -> dict[str, Any]:
    """Copy one file; its line of the manifest."""
    record = item.record
    place = target / item.group / item.path.name
    if record is not None and item.group != "unnamed":
        place = target / item.group / _place(record)
        if place.exists() or place.parent.is_file():
            place = target / item.group / item.path.name  # the same name in two origins that differ in their options
    place.parent.mkdir(parents=True, exist_ok=True)
    digest = _copy(item.path, place)
    size_bytes = place.stat().st_size
    line: dict[str, Any] = {
        "path": os.fsdecode(place.relative_to(target)),
        "group": item.group,
        "size_bytes": size_bytes,
        "xxh3_64": digest,
        "whole": False,
    }
    if record is not None:
        line |= {
            "whole": _is_whole(record, size_bytes),
            "url": record.source.url,
            "key": record.key.decode("utf-8", "surrogateescape"),
            "state": str(record.state),
            "base_etag": record.base_etag,
            "last_error": record.last_error,
        }
        _set_attributes(place, record)
    return line


def _place(record: StagedRecord) -> str:
    url = urlsplit(record.source.url)
    host = url.netloc.rpartition("@")[2].replace("/", "_")
    return os.path.join(url.scheme or "file", host, os.fsdecode(record.key))


def _is_whole(record: StagedRecord, size_bytes: int) -> bool:
    """A file that was still being written is never known to be."""
    sealed = record.state is not StagedState.STAGED and record.published and not record.suspect
    return sealed and record.state is not StagedState.LOST and size_bytes == record.size_bytes


def _copy(source: Path, place: Path) -> str:
    hasher = xxhash.xxh3_64()
    with open(source, "rb", buffering=0) as reader, open(place, "xb", buffering=0) as writer:
        while data := reader.read(COPY_BYTES):
            hasher.update(data)
            view = memoryview(data)
            while view:
                view = view[writer.write(view) :]
        os.fsync(writer.fileno())
    return hasher.hexdigest()


def _set_attributes(place: Path, record: StagedRecord) -> None:
    attributes = record.attributes
    if attributes is None:
        return
    if os.geteuid() == 0:
        os.chown(place, attributes.uid, attributes.gid)
    os.chmod(place, attributes.mode & 0o777)
    os.utime(place, ns=(attributes.atime_ns or attributes.mtime_ns, attributes.mtime_ns))
