"""Every request of the protocol as a call of the Vfs: parse the body, call, pack the answer."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from tiercache.errors import Absent
from tiercache.fuse.attributes import Caller, DirEntry, OpenOut
from tiercache.fuse.kernel import wire
from tiercache.fuse.kernel.wire import Opcode, Request, SetattrField
from tiercache.fuse.vfs import Vfs

Answer = Sequence[bytes | memoryview]
"""Pieces of a reply's body, written in one go."""

Handler = Callable[[Vfs, Request], Awaitable[Answer]]

NO_BODY: Answer = ()


async def _lookup(vfs: Vfs, request: Request) -> Answer:
    try:
        return (wire.pack_entry_out(await vfs.lookup(request.node, wire.c_string(request.body))),)
    except Absent:
        return (wire.pack_negative_entry(vfs.options.negative_timeout_s),)


async def _getattr(vfs: Vfs, request: Request) -> Answer:
    return (wire.pack_attr_out(await vfs.getattr(request.node)),)


async def _setattr(vfs: Vfs, request: Request) -> Answer:
    fields = wire.SETATTR_IN.unpack_from(request.body)
    wanted = SetattrField(fields[0])
    attr = await vfs.setattr(
        request.node,
        mode=fields[11] if wanted & SetattrField.MODE else None,
        uid=fields[13] if wanted & SetattrField.UID else None,
        gid=fields[14] if wanted & SetattrField.GID else None,
        size=fields[3] if wanted & SetattrField.SIZE else None,
        atime_ns=_time(wanted, SetattrField.ATIME, SetattrField.ATIME_NOW, fields[5], fields[8]),
        mtime_ns=_time(wanted, SetattrField.MTIME, SetattrField.MTIME_NOW, fields[6], fields[9]),
        kill_privileges=bool(wanted & SetattrField.KILL_SUIDGID),
    )
    return (wire.pack_attr_out(attr),)


def _time(wanted: SetattrField, given: SetattrField, now: SetattrField, seconds: int, nanoseconds: int) -> int | None:
    if wanted & now:
        return time.time_ns()
    if not wanted & given:
        return None
    if seconds >= 1 << 63:
        seconds -= 1 << 64
    return seconds * 1_000_000_000 + nanoseconds


async def _readlink(vfs: Vfs, request: Request) -> Answer:
    return (await vfs.readlink(request.node),)


# These four: ``resumed`` when an earlier engine may have made the name.


async def symlink(vfs: Vfs, request: Request, *, resumed: bool = False) -> Answer:
    name, target = wire.two_strings(request.body)
    return (wire.pack_entry_out(await vfs.symlink(request.node, name, target, caller_of(request), resumed=resumed)),)


async def mknod(vfs: Vfs, request: Request, *, resumed: bool = False) -> Answer:
    mode, device, _, _ = wire.MKNOD_IN.unpack_from(request.body)
    name = wire.c_string(request.body, wire.MKNOD_IN.size)
    made = await vfs.mknod(request.node, name, mode, device, caller_of(request), resumed=resumed)
    return (wire.pack_entry_out(made),)


async def mkdir(vfs: Vfs, request: Request, *, resumed: bool = False) -> Answer:
    mode = wire.MKDIR_IN.unpack_from(request.body)[0]
    name = wire.c_string(request.body, wire.MKDIR_IN.size)
    return (wire.pack_entry_out(await vfs.mkdir(request.node, name, mode, caller_of(request), resumed=resumed)),)


async def _unlink(vfs: Vfs, request: Request) -> Answer:
    await vfs.unlink(request.node, wire.c_string(request.body))
    return NO_BODY


async def _rmdir(vfs: Vfs, request: Request) -> Answer:
    await vfs.rmdir(request.node, wire.c_string(request.body))
    return NO_BODY


async def _rename(vfs: Vfs, request: Request) -> Answer:
    (new_parent,) = wire.RENAME_IN.unpack_from(request.body)
    name, new_name = wire.two_strings(request.body, wire.RENAME_IN.size)
    await vfs.rename(request.node, name, new_parent, new_name, request=wire.number_of(request))
    return NO_BODY


async def _rename2(vfs: Vfs, request: Request) -> Answer:
    new_parent, flags, _ = wire.RENAME2_IN.unpack_from(request.body)
    name, new_name = wire.two_strings(request.body, wire.RENAME2_IN.size)
    await vfs.rename(request.node, name, new_parent, new_name, flags, request=wire.number_of(request))
    return NO_BODY


async def link(vfs: Vfs, request: Request, *, resumed: bool = False) -> Answer:
    (node,) = wire.LINK_IN.unpack_from(request.body)
    name = wire.c_string(request.body, wire.LINK_IN.size)
    return (wire.pack_entry_out(await vfs.link(node, request.node, name, resumed=resumed)),)


async def _open(vfs: Vfs, request: Request) -> Answer:
    flags, open_flags = wire.OPEN_IN.unpack_from(request.body)
    if flags & os.O_TRUNC and open_flags & wire.OPEN_KILL_SUIDGID:
        await vfs.files.drop_privileges(request.node)
    return (open_out(await vfs.files.open(request.node, flags, caller_of(request))),)


async def _create(vfs: Vfs, request: Request) -> Answer:
    flags, mode, name = create_fields(request)
    entry, opened = await vfs.files.create(request.node, name, mode, flags, caller_of(request))
    return (wire.pack_entry_out(entry), open_out(opened))


def create_fields(request: Request) -> tuple[int, int, bytes]:
    """Flags, mode and name."""
    flags, mode, _, _ = wire.CREATE_IN.unpack_from(request.body)
    return flags, mode, wire.c_string(request.body, wire.CREATE_IN.size)


def open_out(opened: OpenOut) -> bytes:
    """``struct fuse_open_out``."""
    flags = wire.FOPEN_NOFLUSH if opened.no_flush else 0
    if opened.backing_id:
        return wire.OPEN_OUT.pack(opened.handle, flags | wire.FOPEN_PASSTHROUGH, opened.backing_id)
    if opened.keep_cache:
        flags |= wire.FOPEN_KEEP_CACHE
    if opened.direct_io:
        flags |= wire.FOPEN_DIRECT_IO
    return wire.OPEN_OUT.pack(opened.handle, flags, 0)


async def _read(vfs: Vfs, request: Request) -> Answer:
    handle, offset, size_bytes, *_ = wire.READ_IN.unpack_from(request.body)
    if not handle:
        return (await vfs.files.read_unopened(request.node, offset, size_bytes),)
    return (await vfs.files.read(handle, offset, size_bytes),)


async def write(vfs: Vfs, request: Request, *, done: int = 0) -> Answer:
    """``done``: so many of its bytes were written before."""
    handle, offset, data, flags = write_fields(request)
    written = await vfs.files.write(
        handle,
        offset + done,
        data[done:],
        kill_privileges=bool(flags & wire.WRITE_KILL_SUIDGID),
        from_pages=bool(flags & wire.WRITE_FROM_PAGES),
        task=request.pid,
    )
    return (wire.WRITE_OUT.pack(done + written, 0),)


def write_fields(request: Request) -> tuple[int, int, memoryview, int]:
    """Handle, offset, data and flags."""
    handle, offset, size_bytes, flags, *_ = wire.WRITE_IN.unpack_from(request.body)
    return handle, offset, request.data[:size_bytes], flags


async def _fallocate(vfs: Vfs, request: Request) -> Answer:
    handle, offset, length, mode, _ = wire.FALLOCATE_IN.unpack_from(request.body)
    await vfs.files.fallocate(handle, mode, offset, length)
    return NO_BODY


async def _lseek(vfs: Vfs, request: Request) -> Answer:
    handle, offset, whence, _ = wire.LSEEK_IN.unpack_from(request.body)
    if not handle:
        # A mount without open: the kernel then takes the whole file for data.
        raise OSError(errno.ENOSYS, "no lseek")
    return (wire.LSEEK_OUT.pack(await vfs.files.lseek(handle, offset, whence)),)


async def _copy_file_range(vfs: Vfs, request: Request) -> Answer:
    source, source_offset, _, handle, offset, length, _ = wire.COPY_FILE_RANGE_IN.unpack_from(request.body)
    copied = await vfs.files.copy_file_range(source, source_offset, handle, offset, length, task=request.pid)
    return (wire.WRITE_OUT.pack(copied, 0),)


async def _flush(vfs: Vfs, request: Request) -> Answer:
    await vfs.files.flush(wire.FLUSH_IN.unpack_from(request.body)[0], task=request.pid)
    return NO_BODY


async def _fsync(vfs: Vfs, request: Request) -> Answer:
    handle, flags, _ = wire.FSYNC_IN.unpack_from(request.body)
    await vfs.files.fsync(handle, data_only=bool(flags & wire.FSYNC_DATA_ONLY))
    return NO_BODY


async def _release(vfs: Vfs, request: Request) -> Answer:
    await vfs.files.release(wire.RELEASE_IN.unpack_from(request.body)[0])
    return NO_BODY


async def _opendir(vfs: Vfs, request: Request) -> Answer:
    return (wire.OPEN_OUT.pack(await vfs.opendir(request.node), 0, 0),)


async def _readdir(vfs: Vfs, request: Request) -> Answer:
    return await _directory(vfs, request, plus=False)


async def _readdirplus(vfs: Vfs, request: Request) -> Answer:
    return await _directory(vfs, request, plus=True)


async def _directory(vfs: Vfs, request: Request, *, plus: bool) -> Answer:
    handle, offset, size_bytes, *_ = wire.READ_IN.unpack_from(request.body)
    lines = await vfs.readdirplus(handle, offset, lines_that_fit(size_bytes, plus=plus), node=request.node)
    return directory_lines(lines, size_bytes, plus=plus)


def lines_that_fit(size_bytes: int, *, plus: bool) -> int:
    """How many lines a reply of this size holds at most."""
    return max(1, size_bytes // (wire.DIRENT.size + 8 + (wire.ENTRY_OUT.size + wire.ATTR.size if plus else 0)))


def directory_lines(lines: Sequence[DirEntry], size_bytes: int, *, plus: bool) -> Answer:
    """As many lines as fit."""
    records: list[bytes] = []
    for line in lines:
        attr = line.entry.attr
        record = wire.pack_dirent(line.name, node=attr.node, mode=attr.mode, cookie=line.cookie)
        if plus:
            record = wire.pack_entry_out(line.entry) + record
        size_bytes -= len(record)
        if size_bytes < 0:
            break
        records.append(record)
    return (b"".join(records),)


async def _releasedir(vfs: Vfs, request: Request) -> Answer:
    await vfs.releasedir(wire.RELEASE_IN.unpack_from(request.body)[0])
    return NO_BODY


async def _fsyncdir(vfs: Vfs, request: Request) -> Answer:
    await vfs.fsyncdir(wire.FSYNC_IN.unpack_from(request.body)[0])
    return NO_BODY


async def _statfs(vfs: Vfs, request: Request) -> Answer:
    return (wire.pack_statfs(await vfs.statfs()),)


async def _getxattr(vfs: Vfs, request: Request) -> Answer:
    size_bytes, _ = wire.GETXATTR_IN.unpack_from(request.body)
    name = wire.c_string(request.body, wire.GETXATTR_IN.size)
    return sized(await vfs.getxattr(request.node, name), size_bytes)


async def _listxattr(vfs: Vfs, request: Request) -> Answer:
    size_bytes, _ = wire.GETXATTR_IN.unpack_from(request.body)
    return sized(b"".join(name + b"\0" for name in await vfs.listxattr(request.node)), size_bytes)


def sized(value: bytes, room_bytes: int) -> Answer:
    """The value, or its size when the caller only asks for that."""
    if room_bytes == 0:
        return (wire.GETXATTR_OUT.pack(len(value), 0),)
    if len(value) > room_bytes:
        raise OSError(errno.ERANGE, "the attribute is larger than the buffer")
    return (value,)


async def _setxattr(vfs: Vfs, request: Request) -> Answer:
    size_bytes, flags = wire.SETXATTR_IN.unpack_from(request.body)
    name = wire.c_string(request.body, wire.SETXATTR_IN.size)
    start = wire.SETXATTR_IN.size + len(name) + 1
    value = request.body[start : start + size_bytes]
    await vfs.setxattr(
        request.node, name, value, create=bool(flags & os.XATTR_CREATE), replace=bool(flags & os.XATTR_REPLACE)
    )
    return NO_BODY


async def _removexattr(vfs: Vfs, request: Request) -> Answer:
    await vfs.removexattr(request.node, wire.c_string(request.body))
    return NO_BODY


def forget(vfs: Vfs, request: Request) -> None:
    """FORGET and BATCH_FORGET, which have no answer."""
    if request.opcode == Opcode.FORGET:
        vfs.forget(request.node)
        return
    (number, _) = wire.BATCH_FORGET_IN.unpack_from(request.body)
    end = wire.BATCH_FORGET_IN.size + number * wire.FORGET_ONE.size
    for node, _ in wire.FORGET_ONE.iter_unpack(request.body[wire.BATCH_FORGET_IN.size : end]):
        vfs.forget(node)


def caller_of(request: Request) -> Caller:
    """Who made the request."""
    return Caller(request.uid, request.gid, request.pid, wire.number_of(request))


HANDLERS: dict[int, Handler] = {
    Opcode.LOOKUP: _lookup,
    Opcode.GETATTR: _getattr,
    Opcode.SETATTR: _setattr,
    Opcode.READLINK: _readlink,
    Opcode.SYMLINK: symlink,
    Opcode.MKNOD: mknod,
    Opcode.MKDIR: mkdir,
    Opcode.UNLINK: _unlink,
    Opcode.RMDIR: _rmdir,
    Opcode.RENAME: _rename,
    Opcode.RENAME2: _rename2,
    Opcode.LINK: link,
    Opcode.OPEN: _open,
    Opcode.CREATE: _create,
    Opcode.READ: _read,
    Opcode.WRITE: write,
    Opcode.FALLOCATE: _fallocate,
    Opcode.LSEEK: _lseek,
    Opcode.COPY_FILE_RANGE: _copy_file_range,
    Opcode.FLUSH: _flush,
    Opcode.FSYNC: _fsync,
    Opcode.RELEASE: _release,
    Opcode.OPENDIR: _opendir,
    Opcode.READDIR: _readdir,
    Opcode.READDIRPLUS: _readdirplus,
    Opcode.RELEASEDIR: _releasedir,
    Opcode.FSYNCDIR: _fsyncdir,
    Opcode.STATFS: _statfs,
    Opcode.GETXATTR: _getxattr,
    Opcode.LISTXATTR: _listxattr,
    Opcode.SETXATTR: _setxattr,
    Opcode.REMOVEXATTR: _removexattr,
}
