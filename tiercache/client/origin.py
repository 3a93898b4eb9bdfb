"""One attached origin: names, bytes and changes, answered locally where possible and by the engine where not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiercache import ipc
from tiercache.client.connection import Connection
from tiercache.client.local import FOREVER_NS, Attachment, Copied
from tiercache.client.plan import Planner
from tiercache.client.reader import LocalFile, Reader, open_answered
from tiercache.client.writer import Writer
from tiercache.engine.promises import Promises
from tiercache.errors import Absent, Broken, Changed, EngineUnreachable
from tiercache.model import Capability, Durability, Entry, Key, Kind, VersionId, parent_of

if TYPE_CHECKING:
    from tiercache.client.client import Client

Names = list[tuple[bytes, Entry]]
Parts = list[Any]
Told = list[dict[str, Any]]

CAT_ATTEMPTS = 3
"""How often ``cat`` starts over when the object is replaced while it reads; then the error is told."""

LINKS_MAX = 40
"""Symbolic links followed before a chain counts as a loop, as in Linux."""


class RemoteOrigin:
    """A bucket, host or file tree as this process sees it. Thread-safe; usable in forked children.

    Keys are full keys of the origin. Errors are those of ``tiercache.errors``, with the origin's meaning.
    """

    def __init__(self, client: Client, request: Mapping[str, Any]) -> None:
        self._client = client
        self._request = request
        """The arguments of ``attach``, to repeat it at an engine that started since."""
        self._attachment = self._attach_now()

    # -- attaching --------------------------------------------------------------------------------

    def _attach_now(self) -> Attachment:
        return self._client.exchange(self._attach)

    def _attach(self, connection: Connection) -> Attachment:
        answer = connection.request("attach", dict(self._request))
        if "promises" not in answer:
            cache_dir = self._client.cache_dir
            raise EngineUnreachable(
                f"the engine of {cache_dir} (pid {connection.hello.pid}) is of an earlier release: replace it with "
                f"`tiercache restart --cache-dir {cache_dir}`"
            )
        self._promises = Promises.from_plain(answer["promises"])
        return Attachment(
            run_id=connection.hello.run_id,
            number=answer["namespace"],
            origin=answer["origin"],
            root=answer["root"],
            capabilities=answer["capabilities"],
            read_only=answer["read_only"],
            ttl_ns=min(answer["ttl_s"] * 1e9, FOREVER_NS),
            negative_ttl_ns=answer["negative_ttl_s"] * 1e9,
        )

    @property
    def root(self) -> Key:
        """The key that the attached URL names."""
        return self._attachment.root

    @property
    def capabilities(self) -> Capability:
        """What the origin can do natively."""
        return Capability(self._attachment.capabilities)

    @property
    def read_only(self) -> bool:
        """Whether profile or origin refuse changes."""
        return self._attachment.read_only

    def request(self, op: str, **arguments: Any) -> Any:
        """One idempotent request: repeated once when the engine is replaced by another in the middle."""
        return self._exchange(op, arguments, idempotent=True)

    def _change(self, op: str, **arguments: Any) -> Any:
        return self._exchange(op, arguments, idempotent=False)

    def _exchange(self, op: str, arguments: dict[str, Any], *, idempotent: bool, **listeners: Any) -> Any:
        def ask(connection: Connection) -> Any:
            number = self._number_at(connection)
            return connection.request(op, {"namespace": number, **arguments}, **listeners)

        return self._client.exchange(ask, idempotent=idempotent)

    def _number_at(self, connection: Connection) -> int:
        """Our namespace's number at this connection's engine, attached anew if it is another engine than before."""
        attachment = self._attachment
        if attachment.run_id != connection.hello.run_id:
            attachment = self._attachment = self._attach(connection)
        return attachment.number

    def notify(self, op: str, **arguments: Any) -> None:
        """Send a notice, if that is possible without waiting."""
        if op != "leave":
            arguments["namespace"] = self._attachment.number
        self._client.notify(op, arguments)

    # -- names ------------------------------------------------------------------------------------

    def info(self, key: Key) -> Entry:
        """The entry of a name, of any age that the profile's TTL allows; Absent if there is none."""
        entry = self._client.copies().entry(self._attachment, key)
        if entry is None:
            return ipc.entry_of(self.request("lookup", key=key))
        if entry.kind is Kind.ABSENT:
            raise Absent(f"/{key.decode('utf-8', 'backslashreplace')}: no such file or directory")
        return entry

    def follow(self, key: Key, entry: Entry) -> tuple[Key, Entry]:
        """Where a chain of symbolic links ends; the arguments themselves when they are no link. Absent if nowhere."""
        for _ in range(LINKS_MAX):
            if entry.kind is not Kind.SYMLINK:
                return key, entry
            key = link_key(key, entry.link_target)
            entry = self.info(key)
        raise Absent(f"/{key.decode('utf-8', 'backslashreplace')}: too many symbolic links")

    def exists(self, key: Key) -> bool:
        """Whether the name exists. An error is an error, never "no"."""
        try:
            self.info(key)
        except Absent:
            return False
        return True

    def list(self, directory: Key) -> Names:
        """The children by name, those without a POSIX spelling included. Absent, NotDirectory."""
        children = self._client.copies().children(self._attachment, directory)
        return self._listed("list", directory) if children is None else children

    def walk(self, directory: Key) -> Names:
        """Everything below ``directory`` by key; always asks the origin."""
        return self._listed("walk", directory)

    def _listed(self, op: str, directory: Key) -> Names:
        parts: Parts = []

        def ask(connection: Connection) -> Any:
            parts.clear()  # of an attempt that another engine's end cut short
            number = self._number_at(connection)
            return connection.request(op, {"namespace": number, "key": directory}, on_part=parts.append)

        total = self._client.exchange(ask, idempotent=True)
        entries = [(name, ipc.entry_of(fields)) for part in parts for name, fields in part]
        if len(entries) != total:
            raise Broken(f"the engine announced {total} names and sent {len(entries)}")
        return entries

    def state(self, key: Key) -> str:
        """What the newest bytes of a name have reached: ``clean``, ``staged``, ``sealed``, ``uploading``, …"""
        return str(self.request("state", key=key))

    def reached(self, key: Key, entry: Entry) -> dict[str, Any]:
        """How far the bytes of an entry have come (``state``, ``durable``, ``error``), and what is promised of the
        file (``ack``, ``sync_on_close``)."""
        told = (
            self.request("reached", key=key) if entry.staged else {"state": "clean", "durable": "origin", "error": ""}
        )
        promise = self._promises.of(key, entry.xattrs)
        return {**told, "ack": promise.fsync.label, "sync_on_close": promise.close is not Durability.MEMORY}

    def checkpoints(self, directory: Key) -> Told:
        """The checkpoints in a directory, the latest first: name, complete, lacks, level, files, size_bytes, saved."""
        found: Told = self.request("checkpoints", key=directory)
        return found

    def latest_checkpoint(self, directory: Key) -> bytes:
        """The name of the latest complete one; empty if there is none."""
        return bytes(self.request("latest_checkpoint", key=directory))

    def planner(self, keys: Sequence[Key]) -> Planner:
        """For readers of these files that can tell their order."""
        return Planner(self._client, keys, lambda plan, reader: self.request("plan_begin", plan=plan, reader=reader))

    def wait_durable(
        self,
        keys: Sequence[Key],
        level: str,
        deadline_s: float,
        *,
        must_exist: bool = True,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Wait until what is at or below the keys, or what links there lead to, has reached a level; ``""``: what fsync
        promises of each file. ``left`` tells of each file that has not why, ``in_time`` whether the deadline was the
        reason. Absent for a key that is not there, if it ``must_exist``."""
        arguments: dict[str, Any] = {"keys": list(keys), "level": level, "deadline_s": deadline_s}
        if not must_exist:  # an engine of an earlier release asks for no name
            arguments["must_exist"] = False
        answer: dict[str, Any] = self._exchange("wait_durable", arguments, idempotent=True, on_progress=on_progress)
        return answer

    def invalidate(self, key: Key) -> None:
        """Ask the origin again at the next use of any name at or below ``key``."""
        self.request("invalidate", key=key)

    # -- bytes ------------------------------------------------------------------------------------

    def cat(self, key: Key, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes ``[start:end]`` of a file with the meaning of a slice, all of one version."""
        found = self.open_local(key)
        if found is None:
            return self._cat_missed(key, start, end)
        descriptor, size_bytes, _, tier = found
        try:
            offset, stop = (0, size_bytes) if start is None and end is None else _slice(start, end, size_bytes)
            data = os.pread(descriptor, stop - offset, offset)
        except OSError:
            if tier is None:
                raise
            data = None  # a tier that fails is a tier that misses
        finally:
            os.close(descriptor)
        if data is None or len(data) != stop - offset:
            # Longer than one pread gives, or cut behind our back.
            return self._cat_missed(key, start, end)
        return data

    def _cat_missed(self, key: Key, start: int | None, end: int | None) -> bytes:
        for _ in range(CAT_ATTEMPTS - 1):
            try:
                return self._cat_once(key, start, end)
            except Changed:
                continue  # replaced while we read: the next attempt finds the newer one
        return self._cat_once(key, start, end)

    def _cat_once(self, key: Key, start: int | None, end: int | None) -> bytes:
        with self.open_read(key) as reader:
            offset, stop = _slice(start, end, reader.size)
            return reader.pread(offset, stop - offset)

    def open_local(self, key: Key) -> Copied | None:
        """A descriptor of a local file with all bytes of the newest version, or None: then ``open_read`` can tell. The
        shortest way to a warm file; the caller closes the descriptor."""
        client = self._client
        found = client.copies().open_copy(self._attachment, key)
        if found is not None and found[3] is not None:
            client.touch(found[2], found[3])
        return found

    def open_read(self, key: Key) -> Reader:
        """Open the newest version; a small one is brought in whole, a large one as it is read. Absent, IsDirectory."""
        client = self._client
        found = client.copies().open(self._attachment, key)
        if found is not None:
            if found.tier is not None:
                client.touch(found.entry.version, found.tier)
            inode = 0  # a whole file is never compared again
            file: LocalFile | None = LocalFile(found.descriptor, inode=inode, whole=True)
            return Reader(self, key, found.entry, size_bytes=found.size_bytes, file=file)
        answer = self.request("open", key=key)
        entry = ipc.entry_of(answer["entry"])
        if entry.kind is Kind.SYMLINK:
            return self.open_read(self.follow(key, entry)[0])
        file = open_answered(answer, whole=answer["complete"]) if "path" in answer else None
        size_bytes = entry.size_bytes
        if entry.staged and file is not None:
            size_bytes = os.fstat(file.descriptor).st_size
        elif entry.staged:
            return self._reopen(key)
        return Reader(self, key, entry, size_bytes=size_bytes, file=file, data=answer.get("data"))

    def _reopen(self, key: Key) -> Reader:
        """Its staged file went between the answer and our open: the upload was committed, now it is a version."""
        answer = self.request("open", key=key)
        entry = ipc.entry_of(answer["entry"])
        file = open_answered(answer, whole=answer["complete"]) if "path" in answer else None
        if entry.staged and file is None:
            raise Broken(f"/{key.decode('utf-8', 'backslashreplace')}: its staged file cannot be opened")
        size_bytes = os.fstat(file.descriptor).st_size if entry.staged and file else entry.size_bytes
        return Reader(self, key, entry, size_bytes=size_bytes, file=file, data=answer.get("data"))

    def prefetch(self, keys: Sequence[Key]) -> None:
        """Bring small files in, many at a time, so that reading them one by one does not wait for each.
        Says nothing of errors: the read of a file that fails tells its own."""
        missing = [key for key in keys if not self._client.copies().holds(self._attachment, key)]
        for start in range(0, len(missing), ipc.PREFETCH_KEYS_MAX):
            self.request("prefetch", keys=missing[start : start + ipc.PREFETCH_KEYS_MAX])

    def resident_blocks(self, version: VersionId, inode: int) -> bytes | None:
        """Bitmap of the resident blocks of a version's file; None for all of them."""
        return self._client.copies().resident(version, inode)

    # -- changes ----------------------------------------------------------------------------------

    def create(self, key: Key, *, exclusive: bool = False, keep: bool = False) -> Writer:
        """A file to write, which takes its name when the writer is closed. ``keep`` starts with the present bytes;
        ``exclusive``: Exists if the name is taken, now or at close."""
        connection, answer = self._client.lend(
            lambda lent: lent.request(
                "create", {"namespace": self._number_at(lent), "key": key, "exclusive": exclusive, "keep": keep}
            )
        )
        try:
            return Writer(
                self,
                key,
                connection,
                staged=answer["staged"],
                path=answer["path"],
                size_bytes=answer["size"],
            )
        except BaseException:
            connection.close()
            raise

    def give_back(self, connection: Connection) -> None:
        """A writer has ended and needs its connection no more."""
        self._client.give_back(connection)

    def mkdir(self, key: Key, *, mode: int = 0o755) -> Entry:
        """Make one directory. Exists, NotDirectory, Absent (its parent)."""
        return ipc.entry_of(self._change("mkdir", key=key, mode=mode))

    def rmdir(self, key: Key) -> None:
        """Remove an empty directory. NotEmpty, Absent, NotDirectory."""
        self._change("rmdir", key=key)

    def unlink(self, key: Key) -> None:
        """Remove a file. Absent, IsDirectory."""
        self._change("unlink", key=key)

    def remove_tree(self, key: Key) -> None:
        """Remove a directory and all below it."""
        self._change("remove_tree", key=key)

    def rename(self, source: Key, target: Key, *, no_replace: bool = False) -> None:
        """Move a file or directory inside the origin."""
        self._change("rename", source=source, target=target, no_replace=no_replace)

    def copy(self, source: Key, target: Key) -> Entry:
        """Copy a file inside the origin without moving its bytes through this process."""
        return ipc.entry_of(self._change("copy", source=source, target=target))

    def setattr(self, key: Key, **changes: int) -> Entry:
        """Set ``mode``, ``uid``, ``gid``, ``mtime_ns``, ``atime_ns`` or ``size``."""
        return ipc.entry_of(self.request("setattr", key=key, changes=changes))


def _slice(start: int | None, end: int | None, size_bytes: int) -> tuple[int, int]:
    offset, stop, _ = slice(start, end).indices(size_bytes)
    return offset, max(offset, stop)


def link_key(key: Key, target: bytes) -> Key:
    """The key that a symbolic link at ``key`` points to."""
    parts = [] if target.startswith(b"/") else [part for part in parent_of(key).split(b"/") if part]
    for part in target.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)
