"""One S3 bucket as an origin."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import mimetypes
import os
from collections.abc import Iterator, Mapping
from typing import Any

from tiercache.config import FetchConfig
from tiercache.errors import Absent, Broken, Busy, Changed, Exists, NotDirectory, NotEmpty, Unsupported
from tiercache.memory import Memory, Purpose
from tiercache.model import Attributes, Capability, Key, Kind, ObjectStat, Space
from tiercache.origins import etags, metadata, obstore_calls
from tiercache.origins.base import OBJECT_KEY_LIMIT_BYTES, Condition, Repeating, Stream, Upload, require_length
from tiercache.origins.base import directly as at_once
from tiercache.origins.http_status import UploadGone
from tiercache.origins.limits import Limits, Part
from tiercache.origins.local_file import read_part
from tiercache.origins.obstore_calls import Found, is_plain, text_of
from tiercache.origins.s3 import listing
from tiercache.origins.s3.control import Control, kept_headers
from tiercache.origins.s3.listing import Caller, Page, directly
from tiercache.origins.s3.multipart import Multipart
from tiercache.origins.s3.options import S3Options
from tiercache.origins.s3.proof import Proof
from tiercache.origins.s3.session import Session
from tiercache.origins.s3.stream import S3Stream

_CAPABILITIES = (
    Capability.SYMLINKS | Capability.SET_ATTRIBUTES | Capability.CONDITIONAL_WRITE | Capability.STORED_ATTRIBUTES
)

_SPACE = Space(1 << 50, 1 << 50, 1 << 31, 1 << 31)
"""Large, round, and small enough for tools that count blocks in 32 bits of 1 MiB."""

_LINK_LIMIT_BYTES = 4096


class S3Origin:
    """A bucket. Directories are prefixes or marker objects (``dir/``); attributes are object metadata."""

    def __init__(self, bucket: str, options: S3Options, *, fetch: FetchConfig, limits: Limits, memory: Memory) -> None:
        self._limits = limits
        self._session = Session(bucket, options, fetch)
        self._control = Control(self._session)
        self._multipart = Multipart(self._control, limits, memory)
        self._memory = memory
        self._proof = Proof(memory, self._head, self.read)
        self._pool = concurrent.futures.ThreadPoolExecutor(fetch.concurrency, "tiercache-stat")
        self._identity = options.identity(bucket)

    @property
    def identity(self) -> str:
        return self._identity

    def require_key(self, key: Key) -> None:
        require_length(key, OBJECT_KEY_LIMIT_BYTES)
        text_of(key)

    @property
    def capabilities(self) -> Capability:
        return _CAPABILITIES

    def stat(self, key: Key) -> ObjectStat:
        if not key:
            next(listing.pages(self._control, b"", 1))  # a bucket that is missing or closed is told
            return ObjectStat(b"", Kind.DIRECTORY, 0, "", 0)
        as_directory = self._pool.submit(self._stat_directory, key)  # both at once: one round trip of waiting
        try:
            found: Found | None = self._head(key)
        except Absent:
            found = None
        directory = as_directory.result()
        if directory is not None:
            return directory
        if found is None:
            raise Absent(f"{self._control.name(key)} does not exist")
        return self._described(key, found)

    def _stat_directory(self, key: Key) -> ObjectStat | None:
        page = next(listing.pages(self._control, key + b"/", 1))
        if not page.objects and not page.prefixes:
            return None
        if not any(found.key == key + b"/" for found in page.objects):
            return ObjectStat(key, Kind.DIRECTORY, 0, "", 0)
        try:
            return self._described_marker(key, self._control.head(key + b"/")[0])
        except Absent:
            # SeaweedFS lists a directory that it keeps, for a while, after its last object is gone
            return ObjectStat(key, Kind.DIRECTORY, 0, "", page.objects[0].modified_ns)

    def _head(self, key: Key) -> Found:
        if not is_plain(key):
            return self._control.head(key)[0]
        return self._control.renewing(lambda clients: obstore_calls.head(clients.store, key, self._control.name(key)))

    def _described(self, key: Key, found: Found) -> ObjectStat:
        kind, attributes = metadata.decode(found.metadata, Kind.FILE, found.modified_ns)
        target = b""
        if kind is Kind.SYMLINK and found.size_bytes <= _LINK_LIMIT_BYTES:
            target = bytes(self.read(key, 0, found.size_bytes, found.etag))
        upload_id = metadata.upload_id_of(found.metadata)
        return ObjectStat(
            key, kind, found.size_bytes, found.etag, found.modified_ns, attributes, target, upload_id=upload_id
        )

    def _described_marker(self, key: Key, found: Found) -> ObjectStat:
        # A marker of another tool tells nothing, nor does one of SeaweedFS, which takes metadata and does not keep it.
        known = metadata.tells_mode(found.metadata)
        attributes = metadata.decode(found.metadata, Kind.DIRECTORY, found.modified_ns)[1] if known else None
        return ObjectStat(key, Kind.DIRECTORY, 0, "", found.modified_ns, attributes)

    def list(self, directory: Key) -> Iterator[ObjectStat]:
        return self.list_with(directly, directory)

    def walk(self, directory: Key) -> Iterator[ObjectStat]:
        return self.walk_with(directly, directory)

    def list_with(self, call: Caller, directory: Key) -> Iterator[ObjectStat]:
        """``list``, each page requested through ``call``."""
        yield from listing.children(self._control, directory, self._limits.list_page, self._checking(call, directory))

    def walk_with(self, call: Caller, directory: Key) -> Iterator[ObjectStat]:
        """``walk``, each page requested through ``call``."""
        yield from listing.below(self._control, directory, self._limits.list_page, self._checking(call, directory))

    def _checking(self, call: Caller, directory: Key) -> Caller:
        """Refuse an empty first page: a directory of an object store is there only if something is under it."""
        first = True

        def checked(request: Any) -> Page:
            nonlocal first
            page = call(request)
            if first and directory and not page.objects and not page.prefixes and not page.next_token:
                if self._control.exists(directory):
                    raise NotDirectory(f"{self._control.name(directory)} is a file")
                raise Absent(f"{self._control.name(directory)} does not exist")
            first = False
            return page

        return checked

    def read(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        if not length:
            return memoryview(b"")
        if not is_plain(key):
            return self._control.get(key, offset, length, etag)
        what = self._control.name(key)
        return self._control.renewing(
            lambda clients: obstore_calls.get_range(clients.store, key, offset, length, etag, what)
        )

    def read_whole(self, key: Key, limit_bytes: int) -> tuple[ObjectStat, memoryview | None]:
        if is_plain(key):
            what = self._control.name(key)
            found, body = self._control.renewing(
                lambda clients: obstore_calls.get_whole(clients.store, key, limit_bytes, what)
            )
        else:
            found, body = self._control.get_whole(key, limit_bytes)
        kind, attributes = metadata.decode(found.metadata, Kind.FILE, found.modified_ns)
        target = bytes(body) if kind is Kind.SYMLINK and body is not None else b""
        upload_id = metadata.upload_id_of(found.metadata)
        described = ObjectStat(
            key, kind, found.size_bytes, found.etag, found.modified_ns, attributes, target, upload_id=upload_id
        )
        return described, None if kind is Kind.SYMLINK else body

    def write(self, key: Key, upload: Upload) -> ObjectStat:
        source = upload.source
        stored = metadata.encode(upload.attributes, Kind.FILE, upload_id=upload.upload_id)
        try:
            if source.size_bytes <= self._limits.within(self._memory.piece_bytes(Purpose.UPLOAD)).single_put_bytes:
                etag = self._put_file(key, upload, stored)
            else:
                headers = {"Metadata": stored} | _content_type(key)
                try:
                    sent = self._multipart.upload(key, upload, headers)
                    etag = self._proof.of(key, upload, sent.etag, sent.expected) if sent.expected else sent.etag
                except (UploadGone, Changed) as error:
                    return self._completed(key, upload, error)
        except Absent as error:
            if upload.condition.etag:  # If-Match on an object that is gone
                raise Changed(f"{self._control.name(key)} is gone") from error
            raise Broken(str(error)) from error  # a write cannot miss anything: never "not found"
        return self._confirmed(key, etag, source.size_bytes)

    def stream(self, key: Key, upload: Upload, *, part_max_bytes: int) -> Stream:
        """``StreamingOrigin.stream``: an upload in parts."""
        stored = metadata.encode(upload.attributes, Kind.FILE, upload_id=upload.upload_id)
        limits = self._limits.within(self._memory.piece_bytes(Purpose.UPLOAD)).with_parts_up_to(part_max_bytes)
        sending = self._multipart.begin_stream(key, upload, {"Metadata": stored} | _content_type(key))

        def settle(upload: Upload, etag: str, error: UploadGone | Changed | None) -> ObjectStat:
            if error is not None:
                return self._completed(key, upload, error)
            return self._confirmed(key, etag, upload.source.size_bytes)

        return S3Stream(self._multipart, self._proof, limits, sending, settle)

    def _completed(self, key: Key, upload: Upload, error: UploadGone | Changed) -> ObjectStat:
        """What we wrote, if the error is what a repeated completion meets when the answer to the first one was lost."""
        with contextlib.suppress(Absent):
            found = self._head(key)
            if upload.upload_id and metadata.upload_id_of(found.metadata) == upload.upload_id:
                return self._confirmed(key, found.etag, upload.source.size_bytes)
        if isinstance(error, UploadGone):
            raise Busy(f"{self._control.name(key)}: somebody aborted the upload of its parts") from error
        raise error

    def _put_file(self, key: Key, upload: Upload, stored: Mapping[str, str]) -> str:
        source = upload.source
        upload.pace(source.size_bytes)
        with self._memory.held_in_thread(Purpose.UPLOAD, source.size_bytes):
            fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = read_part(fd, source, Part(1, 0, source.size_bytes))
            finally:
                os.close(fd)
            md5 = hashlib.md5(data, usedforsecurity=False)
            etag = self._put(key, data, md5.digest(), stored, upload.condition)
            del data
        if upload.progress is not None:
            upload.progress(source.size_bytes)
        return etag if self._control.write_arguments else self._proof.of(key, upload, etag, md5.hexdigest())

    def _put(self, key: Key, data: bytes, md5: bytes, stored: Mapping[str, str], condition: Condition) -> str:
        content_type = _content_type(key).get("ContentType", "")
        # obstore is quicker but cannot send the MD5: it has to be seen in the answer.
        if not is_plain(key) or self._control.write_arguments or not self._proof.by_etag:
            return self._control.put(key, data, stored, condition, content_type, md5)
        what = self._control.name(key)
        attributes = dict(stored) | ({"Content-Type": content_type} if content_type else {})
        return self._control.renewing(
            lambda clients: obstore_calls.put(clients.store, key, data, attributes, condition, what)
        )

    def _confirmed(self, key: Key, etag: str, size_bytes: int) -> ObjectStat:
        """What the origin has now; if that is our version its size must be right."""
        found = self._head(key)
        if etag and found.etag != etag:  # replaced by another since; ours was stored all the same
            return ObjectStat(key, Kind.FILE, size_bytes, etag, found.modified_ns)
        if found.size_bytes != size_bytes:
            raise Broken(f"{self._control.name(key)}: {found.size_bytes} of {size_bytes} bytes arrived")
        return self._described(key, found)

    def abort_uploads(self, key: Key, upload_id: str, parted_id: str = "") -> None:
        if parted_id:
            self._multipart.abort(key, parted_id)

    def delete(self, key: Key, etag: str = "") -> None:
        found = self._head(key)
        if etag and found.etag != etag:
            raise Changed(f"{self._control.name(key)} is no longer the version that was to be deleted")
        self._control.delete(key, etag)

    def copy(self, source: Key, target: Key, etag: str = "") -> ObjectStat:
        return self.copy_with(at_once, source, target, etag)

    def copy_with(self, repeating: Repeating, source: Key, target: Key, etag: str = "") -> ObjectStat:
        """``copy``, each request of a large one made through ``repeating``."""
        found, answer = self._control.head(source)
        if etag and found.etag != etag:
            raise Changed(f"{self._control.name(source)} is no longer the version that was asked for")
        if found.size_bytes > self._limits.single_copy_bytes:
            headers = {"Metadata": dict(found.metadata)} | kept_headers(answer)
            copied = self._multipart.copy(source, target, found, headers, repeating)
        else:
            copied = self._copy_at_once(source, target, found.etag, {})
        return self._confirmed(target, copied, found.size_bytes)

    def _copy_at_once(self, source: Key, target: Key, etag: str, arguments: Mapping[str, Any]) -> str:
        match = etags.header(etag)
        answer = self._control.call(
            "copy_object",
            source,
            Key=text_of(target),
            CopySource={"Bucket": self._control.bucket, "Key": text_of(source)},
            **({"CopySourceIfMatch": match} if match is not None else {}),
            **arguments,
            **self._control.write_arguments,
        )
        return etags.plain(answer.get("CopyObjectResult", {}).get("ETag"))

    def set_attributes(self, key: Key, attributes: Attributes, etag: str = "") -> ObjectStat:
        return self.set_attributes_with(at_once, key, attributes, etag)

    def set_attributes_with(self, repeating: Repeating, key: Key, attributes: Attributes, etag: str = "") -> ObjectStat:
        """``set_attributes``, each request of a large copy made through ``repeating``."""
        try:
            found, answer = self._control.head(key)
        except Absent:
            return self._set_directory_attributes(key, attributes)
        if etag and found.etag != etag:
            raise Changed(f"{self._control.name(key)} is no longer the version that was asked for")
        kind, _ = metadata.decode(found.metadata, Kind.FILE, found.modified_ns)
        arguments = {"Metadata": metadata.replace(found.metadata, attributes, kind)} | kept_headers(answer)
        if found.size_bytes > self._limits.single_copy_bytes:
            self._multipart.copy(key, key, found, arguments, repeating)
        else:
            self._copy_at_once(key, key, found.etag, arguments | {"MetadataDirective": "REPLACE"})
        return self._described(key, self._head(key))

    def _set_directory_attributes(self, key: Key, attributes: Attributes) -> ObjectStat:
        if self._stat_directory(key) is None:
            raise Absent(f"{self._control.name(key)} does not exist")
        return self._put_marker(key, attributes)

    def _put_marker(self, key: Key, attributes: Attributes | None) -> ObjectStat:
        stored = metadata.encode(attributes, Kind.DIRECTORY)
        self._control.put(key + b"/", b"", stored, Condition(), "application/x-directory")
        described = self._described_marker(key, self._control.head(key + b"/")[0])
        return described if attributes is None else described._replace(attributes=attributes)

    def rename(self, source: Key, target: Key, *, no_replace: bool = False, exchange: bool = False) -> None:
        raise Unsupported("an object store has no rename")

    def make_directory(self, key: Key, attributes: Attributes | None = None) -> ObjectStat:
        try:
            self.stat(key)
        except Absent:
            return self._put_marker(key, attributes)
        raise Exists(f"{self._control.name(key)} exists already")

    def remove_directory(self, key: Key) -> None:
        page = next(listing.pages(self._control, key + b"/", 2))
        if page.next_token or any(found.key != key + b"/" for found in page.objects):
            raise NotEmpty(f"{self._control.name(key)} is not empty")
        if not page.objects:
            if self._control.exists(key):
                raise NotDirectory(f"{self._control.name(key)} is a file")
            # SeaweedFS goes on naming an emptied directory in its parent's listing until it is deleted itself
            self._control.delete(key + b"/")
            raise Absent(f"{self._control.name(key)} does not exist")
        self._control.delete(key + b"/")

    def symlink(
        self, key: Key, target: bytes, attributes: Attributes | None = None, *, replaces: str = ""
    ) -> ObjectStat:
        stored = metadata.encode(attributes, Kind.SYMLINK)
        try:
            self._control.put(key, target, stored, Condition(etag=replaces, absent=not replaces), "")
        except Changed:
            if replaces:
                raise
            raise Exists(f"{self._control.name(key)} exists already") from None
        return self._described(key, self._head(key))

    def make_special(self, key: Key, kind: Kind, device: int, attributes: Attributes | None = None) -> ObjectStat:
        raise Unsupported("an object store holds no pipes, sockets or devices")

    def link(self, source: Key, target: Key) -> ObjectStat:
        raise Unsupported("an object store has no hard links")

    def space(self, key: Key) -> Space:
        return _SPACE

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._multipart.close()
        self._session.close()


def _content_type(key: Key) -> dict[str, str]:
    """By the name, for those who read the bucket with a browser; none for a compressed file of some type."""
    guessed, encoding = mimetypes.guess_type(key.rpartition(b"/")[2].decode("utf-8", "replace"))
    return {"ContentType": guessed} if guessed and not encoding else {}
