"""Requests that an earlier engine read and did not answer, and may have carried out: wholly, in part or not at all.

The kernel sends them again. Programs must see each done once, with the outcome of the first time. Requests that are
missing here can simply be done again: they read, or set what they set before.
"""

from __future__ import annotations

import os

from tiercache.errors import Absent, NoAttribute
from tiercache.fuse.kernel import wire
from tiercache.fuse.kernel.requests import (
    HANDLERS,
    NO_BODY,
    Answer,
    Handler,
    caller_of,
    link,
    mkdir,
    mknod,
    open_out,
    symlink,
    write,
    write_fields,
)
from tiercache.fuse.kernel.wire import Opcode, Request
from tiercache.fuse.vfs import Vfs


async def _open(vfs: Vfs, request: Request) -> Answer:
    """A handle that was made is the answer: the kernel would never release it if a second one was told."""
    made = await vfs.files.answered(wire.number_of(request))
    return await HANDLERS[Opcode.OPEN](vfs, request) if made is None else (open_out(made[1]),)


async def _create(vfs: Vfs, request: Request) -> Answer:
    """The same. A file that is there already is the one that was made: the kernel had asked before, and holds the
    directory against all others on this machine until the answer."""
    made = await vfs.files.answered(wire.number_of(request))
    if made is not None:
        return (wire.pack_entry_out(made[0]), open_out(made[1]))
    flags, mode, _, _ = wire.CREATE_IN.unpack_from(request.body)
    name = wire.c_string(request.body, wire.CREATE_IN.size)
    entry, opened = await vfs.files.create(request.node, name, mode, flags & ~os.O_EXCL, caller_of(request))
    return (wire.pack_entry_out(entry), open_out(opened))


# A new name that is there already is the one that was made, for the same reason, if it is of the right kind.


async def _mknod(vfs: Vfs, request: Request) -> Answer:
    return await mknod(vfs, request, resumed=True)


async def _mkdir(vfs: Vfs, request: Request) -> Answer:
    return await mkdir(vfs, request, resumed=True)


async def _symlink(vfs: Vfs, request: Request) -> Answer:
    return await symlink(vfs, request, resumed=True)


async def _link(vfs: Vfs, request: Request) -> Answer:
    return await link(vfs, request, resumed=True)


async def _remove(vfs: Vfs, request: Request) -> Answer:
    """A name that is gone was removed by the first try."""
    name = wire.c_string(request.body)
    vfs.doubt(request.node, name)
    try:
        return await HANDLERS[request.opcode](vfs, request)
    except Absent:
        await vfs.was_removed(request.node, name)
        return NO_BODY


async def _rename(vfs: Vfs, request: Request) -> Answer:
    (new_parent,) = wire.RENAME_IN.unpack_from(request.body)
    name, new_name = wire.two_strings(request.body, wire.RENAME_IN.size)
    await vfs.resume_rename(request.node, name, new_parent, new_name, 0, request=wire.number_of(request))
    return NO_BODY


async def _rename2(vfs: Vfs, request: Request) -> Answer:
    new_parent, flags, _ = wire.RENAME2_IN.unpack_from(request.body)
    name, new_name = wire.two_strings(request.body, wire.RENAME2_IN.size)
    await vfs.resume_rename(request.node, name, new_parent, new_name, flags, request=wire.number_of(request))
    return NO_BODY


async def _write(vfs: Vfs, request: Request) -> Answer:
    """At its offset a write is the same twice; an appended one would be there twice, wholly or as far as it came."""
    handle, offset, data, flags = write_fields(request)
    done = 0 if flags & wire.WRITE_FROM_PAGES else vfs.files.appended(handle, offset, data)
    if done == len(data):
        return (wire.WRITE_OUT.pack(done, 0),)
    return await write(vfs, request, done=done)


async def _release(vfs: Vfs, request: Request) -> Answer:
    """A handle that is gone was released by the first try."""
    handle = wire.RELEASE_IN.unpack_from(request.body)[0]
    return await HANDLERS[Opcode.RELEASE](vfs, request) if vfs.files.is_open(handle) else NO_BODY


async def _setxattr(vfs: Vfs, request: Request) -> Answer:
    """Whether it had to be there before, or not, was judged by the first try if that one set it."""
    size_bytes, flags = wire.SETXATTR_IN.unpack_from(request.body)
    name = wire.c_string(request.body, wire.SETXATTR_IN.size)
    start = wire.SETXATTR_IN.size + len(name) + 1
    value = request.body[start : start + size_bytes]
    try:
        done = flags & os.XATTR_CREATE and await vfs.getxattr(request.node, name) == value
    except NoAttribute:
        done = False
    return NO_BODY if done else await HANDLERS[Opcode.SETXATTR](vfs, request)


async def _removexattr(vfs: Vfs, request: Request) -> Answer:
    """An attribute that is gone was removed by the first try."""
    try:
        return await HANDLERS[Opcode.REMOVEXATTR](vfs, request)
    except NoAttribute:
        return NO_BODY


RESENT: dict[int, Handler] = {
    Opcode.OPEN: _open,
    Opcode.CREATE: _create,
    Opcode.MKNOD: _mknod,
    Opcode.MKDIR: _mkdir,
    Opcode.SYMLINK: _symlink,
    Opcode.LINK: _link,
    Opcode.UNLINK: _remove,
    Opcode.RMDIR: _remove,
    Opcode.RENAME: _rename,
    Opcode.RENAME2: _rename2,
    Opcode.WRITE: _write,
    Opcode.RELEASE: _release,
    Opcode.SETXATTR: _setxattr,
    Opcode.REMOVEXATTR: _removexattr,
}
