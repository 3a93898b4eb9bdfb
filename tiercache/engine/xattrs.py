"""Extended attributes: the user's own, those that tell how far a file has come, and the one that says how far it
shall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiercache.engine.entries import attributes_of, now_ns
from tiercache.engine.names import show
from tiercache.engine.promises import ACK, level_of
from tiercache.errors import Exists, InUse, InvalidArgument, NoAttribute, NoSpace, Unsupported
from tiercache.model import Durability, Entry, Kind
from tiercache.origins.metadata import XATTRS_MAX_BYTES, stored_bytes

if TYPE_CHECKING:
    from tiercache.engine.namespace import Namespace

STATE = b"user.tiercache.state"
"""Read-only: clean, staged, sealed, uploading, conflict or lost."""

DURABLE = b"user.tiercache.durable"
"""Read-only: the level that the newest bytes have reached."""

OWN_PREFIX = b"user.tiercache."


class Xattrs:
    """The xattr operations of a namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    async def get(self, inode: int, name: bytes) -> bytes:
        return self.of(await self._namespace.getattr(inode), name)

    def of(self, entry: Entry, name: bytes) -> bytes:
        """An attribute of an entry; NoAttribute if it is not set."""
        if name == STATE and entry.kind is Kind.FILE:
            return self._namespace.writes.state(entry).encode()
        if name == DURABLE and entry.kind is Kind.FILE:
            return self._namespace.writes.durable(entry).label.encode()
        for known, value in entry.xattrs:
            if known == name:
                return value
        raise NoAttribute(f"{name.decode('utf-8', 'backslashreplace')}: not set")

    async def names(self, inode: int) -> list[bytes]:
        """What can be set, and is; the others are not listed, so that copying tools do not try to copy them."""
        return [name for name, _ in (await self._namespace.getattr(inode)).xattrs]

    async def set(self, inode: int, name: bytes, value: bytes, *, create: bool, replace: bool) -> None:
        self._require_settable(name)
        entry = await self._namespace.getattr(inode)
        if name == ACK:
            self._check_ack(entry, value)
        known = dict(entry.xattrs)
        if create and name in known:
            raise Exists(f"{name.decode('utf-8', 'backslashreplace')}: set already")
        if replace and name not in known:
            raise NoAttribute(f"{name.decode('utf-8', 'backslashreplace')}: not set")
        known[name] = value
        size_bytes = stored_bytes(known.items())
        if size_bytes > XATTRS_MAX_BYTES:
            told = "the extended attributes of one file would take"
            raise NoSpace(f"{told} {size_bytes} bytes as stored with an object; {XATTRS_MAX_BYTES} are the most")
        await self._store(inode, entry, known)

    async def remove(self, inode: int, name: bytes) -> None:
        self._require_settable(name)
        entry = await self._namespace.getattr(inode)
        known = dict(entry.xattrs)
        if name not in known:
            raise NoAttribute(f"{name.decode('utf-8', 'backslashreplace')}: not set")
        del known[name]
        await self._store(inode, entry, known)

    async def _store(self, inode: int, entry: Entry, xattrs: dict[bytes, bytes]) -> None:
        attributes = attributes_of(entry)._replace(xattrs=tuple(sorted(xattrs.items())), ctime_ns=now_ns())
        await self._namespace.set_attributes(inode, attributes)

    def _check_ack(self, entry: Entry, value: bytes) -> None:
        if entry.kind not in (Kind.FILE, Kind.DIRECTORY):
            raise InvalidArgument(f"{ACK.decode()} is of files and directories")
        level = level_of(value.decode("ascii", "replace"))
        live = self._namespace.tree.live.get(entry.inode)
        if level is Durability.ORIGIN and live is not None and self._namespace.writes.closes.kernel_may_write(live):
            # What is sealed must not change, and of what the kernel writes by itself nothing can be sealed.
            raise InUse(f"{show(live.key or b'')}: is being written through the kernel; close it first")

    def _require_settable(self, name: bytes) -> None:
        if not name.startswith(b"user."):
            raise Unsupported("only attributes of the user namespace are kept")
        if name.startswith(OWN_PREFIX) and name != ACK:
            raise Unsupported(f"{name.decode('utf-8', 'backslashreplace')} is told by tiercache and cannot be set")
