"""Any store that obstore speaks (GCS, Azure, HTTP, memory) as an origin. S3 has its own, which can do more."""

from __future__ import annotations

import stat as stat_module
from collections.abc import Iterator, Mapping

import obstore
from obstore.store import ObjectStore

from tiercache.errors import (
    Absent,
    Broken,
    Changed,
    Exists,
    IsDirectory,
    NotDirectory,
    NotEmpty,
    ReadOnly,
    Unsupported,
)
from tiercache.memory import Memory, Purpose
from tiercache.model import Attributes, Capability, Key, Kind, ObjectStat, Space
from tiercache.origins import etags, metadata, obstore_calls
from tiercache.origins.base import OBJECT_KEY_LIMIT_BYTES, Condition, Upload, require_length
from tiercache.origins.limits import Limits, Part, plan_parts
from tiercache.origins.local_file import read_part
from tiercache.origins.obstore_calls import Found, path_of

_SPACE = Space(1 << 50, 1 << 50, 1 << 31, 1 << 31)
_PAGE = 1000


class ObjectStoreOrigin:
    """One bucket, container or host. A directory is a prefix, or an empty object whose metadata says so.

    obstore cannot spell ``dir/``, hence no markers of that form: the metadata is s3fs-fuse's ``mode`` or Azure's
    ``hdi_isfolder``. The condition on an object over ``Limits.single_put_bytes`` is checked before the upload.
    """

    def __init__(
        self,
        store: ObjectStore,
        identity: str,
        *,
        limits: Limits,
        memory: Memory,
        read_only: bool = False,
        dashes: str = "-",
    ) -> None:
        self._store = store
        self._identity = identity
        self._limits = limits
        self._memory = memory
        self._read_only = read_only
        self._dashes = dashes  # Azure allows no dash in a metadata name

    @property
    def identity(self) -> str:
        return self._identity

    def require_key(self, key: Key) -> None:
        require_length(key, OBJECT_KEY_LIMIT_BYTES)
        if key:
            path_of(key)

    @property
    def capabilities(self) -> Capability:
        if self._read_only:
            return Capability.READ_ONLY
        return Capability.SYMLINKS | Capability.STORED_ATTRIBUTES

    def _name(self, key: Key) -> str:
        return f"{self._identity}/{key.decode('utf-8', 'backslashreplace')}"

    def stat(self, key: Key) -> ObjectStat:
        if not key:
            return ObjectStat(b"", Kind.DIRECTORY, 0, "", 0)
        found: ObjectStat | None
        try:
            found = self._described(key, obstore_calls.head(self._store, key, self._name(key)))
        except Absent:
            found = None
        if self._has_children(key):
            attributes = found.attributes if found is not None and found.kind is Kind.DIRECTORY else None
            return ObjectStat(key, Kind.DIRECTORY, 0, "", 0, attributes)
        if found is None:
            raise Absent(f"{self._name(key)} does not exist")
        return found

    def _described(self, key: Key, found: Found, body: memoryview | None = None) -> ObjectStat:
        stored = {name.replace("_", "-"): value for name, value in found.metadata.items()}
        kind = _stored_kind(stored, found.size_bytes)
        kind, attributes = metadata.decode(stored, kind, found.modified_ns)
        if kind is Kind.DIRECTORY:
            return ObjectStat(key, kind, 0, "", found.modified_ns, attributes)
        target = b""
        if kind is Kind.SYMLINK:
            target = bytes(self.read(key, 0, found.size_bytes, found.etag) if body is None else body)
        upload_id = metadata.upload_id_of(stored)
        return ObjectStat(
            key, kind, found.size_bytes, found.etag, found.modified_ns, attributes, target, upload_id=upload_id
        )

    def _has_children(self, key: Key) -> bool:
        if self._read_only:  # plain HTTP servers have no listings
            return False
        with obstore_calls.classified(self._name(key)):
            for page in obstore.list(self._store, path_of(key), chunk_size=1):
                if any(meta["path"].encode() != key for meta in page):
                    return True
        return False

    def list(self, directory: Key) -> Iterator[ObjectStat]:
        with obstore_calls.classified(self._name(directory)):
            answer = obstore.list_with_delimiter(self._store, path_of(directory) if directory else None)
        directories = {prefix.rstrip("/").encode() for prefix in answer["common_prefixes"]}
        objects = [meta for meta in answer["objects"] if meta["path"].encode() not in directories | {directory}]
        if directory and not directories and not objects:
            self._require_directory(directory)
        for key in directories:
            yield ObjectStat(key, Kind.DIRECTORY, 0, "", 0)
        for meta in objects:
            yield self._listed(meta["path"].encode(), obstore_calls.found_of_meta(meta, {}))

    def _require_directory(self, key: Key) -> None:
        if self.stat(key).kind is not Kind.DIRECTORY:
            raise NotDirectory(f"{self._name(key)} is a file")

    def _listed(self, key: Key, found: Found) -> ObjectStat:
        if not found.size_bytes:  # perhaps a directory's marker: only its metadata tells
            try:
                return self._described(key, obstore_calls.head(self._store, key, self._name(key)))
            except Absent:  # `key/`, whose slash obstore has dropped, or removed meanwhile
                return ObjectStat(key, Kind.DIRECTORY, 0, "", found.modified_ns)
        return ObjectStat(key, Kind.FILE, found.size_bytes, found.etag, found.modified_ns)

    def walk(self, directory: Key) -> Iterator[ObjectStat]:
        pages = obstore.list(self._store, path_of(directory) if directory else None, chunk_size=_PAGE)
        empty = True
        while True:
            with obstore_calls.classified(self._name(directory)):
                page = next(pages, None)
            if page is None:
                break
            for meta in page:
                key = meta["path"].encode()
                if key != directory:
                    empty = False
                    yield self._listed(key, obstore_calls.found_of_meta(meta, {}))
        if empty and directory:
            self._require_directory(directory)

    def read(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        if not length:
            return memoryview(b"")
        return obstore_calls.get_range(self._store, key, offset, length, etag, self._name(key))

    def read_whole(self, key: Key, limit_bytes: int) -> tuple[ObjectStat, memoryview | None]:
        found, body = obstore_calls.get_whole(self._store, key, limit_bytes, self._name(key))
        described = self._described(key, found, body)
        if described.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{self._name(key)} is a directory")
        return described, None if described.kind is Kind.SYMLINK else body

    def write(self, key: Key, upload: Upload) -> ObjectStat:
        source, progress, condition = upload.source, upload.progress, upload.condition
        stored = metadata.encode(upload.attributes, Kind.FILE, upload_id=upload.upload_id)
        if source.size_bytes <= self._within_memory.single_put_bytes:
            upload.pace(source.size_bytes)
            with self._memory.held_in_thread(Purpose.UPLOAD, source.size_bytes), open(source.path, "rb") as file:
                data = read_part(file.fileno(), source, Part(1, 0, source.size_bytes))
                etag = self._put(key, data, stored, condition)
            if progress is not None:
                progress(source.size_bytes)
        else:
            self._check(key, condition)
            etag = self._put_parts(key, upload, stored)
        return self._confirmed(key, etag, source.size_bytes)

    def _put(self, key: Key, data: bytes, stored: Mapping[str, str], condition: Condition) -> str:
        self._writable()
        try:
            return obstore_calls.put(self._store, key, data, self._spelled(stored), condition, self._name(key))
        except Absent as error:
            raise Changed(f"{self._name(key)} is gone") if condition.etag else Broken(str(error)) from error

    def _put_parts(self, key: Key, upload: Upload, stored: Mapping[str, str]) -> str:
        self._writable()
        source = upload.source
        parts = plan_parts(source.size_bytes, self._within_memory)
        part_bytes = parts[0].length
        # One part is being read and one handed over, besides those that are being sent.
        sent_at_once = max(
            1, min(self._limits.part_concurrency, self._memory.piece_bytes(Purpose.UPLOAD) // part_bytes - 2)
        )
        held = self._memory.held_in_thread(Purpose.UPLOAD, (sent_at_once + 2) * part_bytes)
        with held, obstore_calls.classified(self._name(key)), open(source.path, "rb") as file:

            def chunks() -> Iterator[bytes]:
                for part in parts:
                    upload.pace(part.length)
                    yield read_part(file.fileno(), source, part)
                    if upload.progress is not None:
                        upload.progress(part.length)

            result = obstore.put(
                self._store,
                path_of(key),
                chunks(),
                attributes=self._spelled(stored),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=sent_at_once,
            )
        return etags.plain(result["e_tag"])

    @property
    def _within_memory(self) -> Limits:
        # Three parts of a large object are in memory at least.
        return self._limits.within(self._memory.piece_bytes(Purpose.UPLOAD) // 3)

    def _spelled(self, stored: Mapping[str, str]) -> dict[str, str]:
        return {name.replace("-", self._dashes): value for name, value in stored.items()}

    def _check(self, key: Key, condition: Condition) -> None:
        if not condition.absent and not condition.etag:
            return
        try:
            current = obstore_calls.head(self._store, key, self._name(key)).etag
        except Absent:
            current = ""
        if condition.absent and current:
            raise Changed(f"{self._name(key)} exists already")
        if condition.etag and current != condition.etag:
            raise Changed(f"{self._name(key)} is no longer the version that was to be replaced")

    def _confirmed(self, key: Key, etag: str, size_bytes: int) -> ObjectStat:
        found = obstore_calls.head(self._store, key, self._name(key))
        if etag and found.etag != etag:  # replaced by another since; ours was stored all the same
            return ObjectStat(key, Kind.FILE, size_bytes, etag, found.modified_ns)
        if found.size_bytes != size_bytes:
            raise Broken(f"{self._name(key)}: {found.size_bytes} of {size_bytes} bytes arrived")
        return self._described(key, found)

    def abort_uploads(self, key: Key, upload_id: str, parted_id: str = "") -> None:
        """Nothing to do: obstore does not list unfinished uploads; GCS and Azure drop them after a week."""

    def delete(self, key: Key, etag: str = "") -> None:
        self._writable()
        found = obstore_calls.head(self._store, key, self._name(key))
        if etag and found.etag != etag:
            raise Changed(f"{self._name(key)} is no longer the version that was to be deleted")
        with obstore_calls.classified(self._name(key)):
            obstore.delete(self._store, path_of(key))

    def copy(self, source: Key, target: Key, etag: str = "") -> ObjectStat:
        self._writable()
        before = obstore_calls.head(self._store, source, self._name(source))
        if etag and before.etag != etag:
            raise Changed(f"{self._name(source)} is no longer the version that was asked for")
        with obstore_calls.classified(self._name(source)):
            obstore.copy(self._store, path_of(source), path_of(target), overwrite=True)
        after = obstore_calls.head(self._store, source, self._name(source))
        if after.etag != before.etag:
            raise Changed(f"{self._name(source)} changed while it was copied")
        return self._confirmed(target, "", before.size_bytes)

    def rename(self, source: Key, target: Key, *, no_replace: bool = False, exchange: bool = False) -> None:
        raise Unsupported("an object store has no rename")

    def make_directory(self, key: Key, attributes: Attributes | None = None) -> ObjectStat:
        try:
            self.stat(key)
        except Absent:
            self._put(key, b"", metadata.encode(attributes, Kind.DIRECTORY), Condition(absent=True))
            return self.stat(key)
        raise Exists(f"{self._name(key)} exists already")

    def remove_directory(self, key: Key) -> None:
        if self._has_children(key):
            raise NotEmpty(f"{self._name(key)} is not empty")
        self._require_directory(key)
        self.delete(key)

    def symlink(
        self, key: Key, target: bytes, attributes: Attributes | None = None, *, replaces: str = ""
    ) -> ObjectStat:
        condition = Condition(etag=replaces, absent=not replaces)
        try:
            self._put(key, target, metadata.encode(attributes, Kind.SYMLINK), condition)
        except Changed:
            if replaces:
                raise
            raise Exists(f"{self._name(key)} exists already") from None
        return self.stat(key)

    def make_special(self, key: Key, kind: Kind, device: int, attributes: Attributes | None = None) -> ObjectStat:
        raise Unsupported("an object store holds no pipes, sockets or devices")

    def link(self, source: Key, target: Key) -> ObjectStat:
        raise Unsupported("an object store has no hard links")

    def set_attributes(self, key: Key, attributes: Attributes, etag: str = "") -> ObjectStat:
        raise Unsupported("this store cannot change the attributes of an object without a new upload")

    def space(self, key: Key) -> Space:
        return _SPACE

    def close(self) -> None:
        return None

    def _writable(self) -> None:
        if self._read_only:
            raise ReadOnly(f"{self._identity} can only be read")


def _stored_kind(stored: Mapping[str, str], size_bytes: int) -> Kind:
    """Whether an empty object stands for a directory."""
    mode = stored.get("mode", "")
    says_directory = mode.isdigit() and stat_module.S_ISDIR(int(mode))
    if not size_bytes and (says_directory or stored.get("hdi-isfolder", "").lower() == "true"):
        return Kind.DIRECTORY
    return Kind.FILE
