"""Requests that can be answered at once, by the session loop itself: no task is started for them.

Each function returns None where somebody has to wait; the request then goes to its handler in ``requests``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from tiercache.errors import Absent
from tiercache.fuse.hits import reads_only
from tiercache.fuse.kernel import wire
from tiercache.fuse.kernel.requests import (
    NO_BODY,
    Answer,
    caller_of,
    create_fields,
    directory_lines,
    lines_that_fit,
    open_out,
    sized,
    write_fields,
)
from tiercache.fuse.kernel.wire import Opcode, Request
from tiercache.fuse.vfs import Vfs

Inline = Callable[[Vfs, Request], Answer | None]


def _lookup(vfs: Vfs, request: Request) -> Answer | None:
    try:
        entry = vfs.hits.lookup(request.node, wire.c_string(request.body))
    except Absent:
        return (wire.pack_negative_entry(vfs.options.negative_timeout_s),)
    return None if entry is None else (wire.pack_entry_out(entry),)


def _getattr(vfs: Vfs, request: Request) -> Answer | None:
    attr = vfs.hits.getattr(request.node)
    return None if attr is None else (wire.pack_attr_out(attr),)


def _getxattr(vfs: Vfs, request: Request) -> Answer | None:
    size_bytes, _ = wire.GETXATTR_IN.unpack_from(request.body)
    value = vfs.hits.getxattr(request.node, wire.c_string(request.body, wire.GETXATTR_IN.size))
    return None if value is None else sized(value, size_bytes)


def _open(vfs: Vfs, request: Request) -> Answer | None:
    flags, _ = wire.OPEN_IN.unpack_from(request.body)
    if vfs.options.no_open:
        # Asked once: from now on the kernel opens and closes files by itself.
        raise OSError(errno.ENOSYS, "no open")
    if not reads_only(flags):
        return None
    opened = vfs.files.open_now(request.node, caller_of(request))
    return None if opened is None else (open_out(opened),)


def _create(vfs: Vfs, request: Request) -> Answer | None:
    flags, mode, name = create_fields(request)
    created = vfs.files.create_now(request.node, name, mode, flags, caller_of(request))
    return None if created is None else (wire.pack_entry_out(created[0]), open_out(created[1]))


def _read(vfs: Vfs, request: Request) -> Answer | None:
    handle, offset, size_bytes, *_ = wire.READ_IN.unpack_from(request.body)
    hits = vfs.hits
    data = hits.read(handle, offset, size_bytes) if handle else hits.read_unopened(request.node, offset, size_bytes)
    return None if data is None else (data,)


def _write(vfs: Vfs, request: Request) -> Answer | None:
    handle, offset, data, flags = write_fields(request)
    written = vfs.hits.write(
        handle,
        offset,
        data,
        kill_privileges=bool(flags & wire.WRITE_KILL_SUIDGID),
        from_pages=bool(flags & wire.WRITE_FROM_PAGES),
    )
    return None if written is None else (wire.WRITE_OUT.pack(written, 0),)


def _flush(vfs: Vfs, request: Request) -> Answer | None:
    if vfs.options.read_only:
        # Asked once as well: no close has anything to wait for.
        raise OSError(errno.ENOSYS, "no flush")
    return NO_BODY if vfs.hits.flush(wire.FLUSH_IN.unpack_from(request.body)[0]) else None


def _release(vfs: Vfs, request: Request) -> Answer | None:
    return NO_BODY if vfs.files.release_now(wire.RELEASE_IN.unpack_from(request.body)[0]) else None


def _opendir(vfs: Vfs, request: Request) -> Answer | None:
    """Where names may be believed for ever, the kernel keeps listings too, and asks no more."""
    if vfs.options.no_opendir:
        raise OSError(errno.ENOSYS, "no opendir")
    return (wire.OPEN_OUT.pack(vfs.opendir_now(request.node), 0, 0),)


def _readdir(vfs: Vfs, request: Request) -> Answer | None:
    return _directory(vfs, request, plus=False)


def _readdirplus(vfs: Vfs, request: Request) -> Answer | None:
    return _directory(vfs, request, plus=True)


def _directory(vfs: Vfs, request: Request, *, plus: bool) -> Answer | None:
    handle, offset, size_bytes, *_ = wire.READ_IN.unpack_from(request.body)
    stream = vfs.hits.stream(request.node, handle)
    lines = vfs.hits.readdirplus(stream, offset, lines_that_fit(size_bytes, plus=plus))
    return None if lines is None else directory_lines(lines, size_bytes, plus=plus)


def _ioctl(vfs: Vfs, request: Request) -> Answer | None:
    """Python's ``open()`` asks every file whether it is a terminal, until 3.14. The kernel asks us each time."""
    raise OSError(errno.ENOTTY, "no ioctl")


INLINE: dict[int, Inline] = {
    Opcode.LOOKUP: _lookup,
    Opcode.GETATTR: _getattr,
    Opcode.GETXATTR: _getxattr,
    Opcode.OPEN: _open,
    Opcode.CREATE: _create,
    Opcode.READ: _read,
    Opcode.WRITE: _write,
    Opcode.FLUSH: _flush,
    Opcode.RELEASE: _release,
    Opcode.OPENDIR: _opendir,
    Opcode.IOCTL: _ioctl,
    Opcode.READDIR: _readdir,
    Opcode.READDIRPLUS: _readdirplus,
}
