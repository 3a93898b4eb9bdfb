"""The session loop: one read of /dev/fuse for each request, one write for each answer."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence

import trio

from tiercache.errors import Broken
from tiercache.fuse.guard import errno_for
from tiercache.fuse.kernel import mounting, wire
from tiercache.fuse.kernel.requests import HANDLERS, forget
from tiercache.fuse.kernel.wire import InitFlag, Notice, Opcode, Request
from tiercache.fuse.vfs import Vfs

log = logging.getLogger(__name__)

MAX_REQUESTS = 256
"""Requests under way at once; further ones wait in the kernel."""

MAX_READ_IN_A_ROW = 16
"""Requests that are started before the tasks that serve them get a turn."""

MAX_WRITE_BYTES = 1024 * 1024
MAX_BACKGROUND = 64
_PAGE_BYTES = 4096
_BUFFER_BYTES = MAX_WRITE_BYTES + _PAGE_BYTES

_SILENT = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT, Opcode.NOTIFY_REPLY})

WANTED = (
    InitFlag.ASYNC_READ
    | InitFlag.ATOMIC_O_TRUNC
    | InitFlag.EXPORT_SUPPORT
    | InitFlag.BIG_WRITES
    | InitFlag.AUTO_INVAL_DATA
    | InitFlag.DO_READDIRPLUS
    | InitFlag.READDIRPLUS_AUTO
    | InitFlag.ASYNC_DIO
    | InitFlag.PARALLEL_DIROPS
    | InitFlag.MAX_PAGES
    # With it the kernel does not ask for security.capability before every write.
    | InitFlag.HANDLE_KILLPRIV_V2
)


class KernelDriver:
    """One mount that we serve ourselves. A process may have any number of them."""

    name = "kernel"

    def __init__(self, vfs: Vfs, mountpoint: str) -> None:
        self._vfs = vfs
        self._mountpoint = mountpoint
        self._descriptor = -1
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._unyielding = 0  # requests read since other tasks last had a turn

    def mount(self) -> None:
        """Ask the kernel for the mount."""
        self._descriptor = mounting.mount(self._mountpoint, self._vfs.options)
        os.set_blocking(self._descriptor, False)

    async def run(self) -> None:
        """Serve requests until the filesystem is unmounted."""
        slots = trio.Semaphore(MAX_REQUESTS)
        async with trio.open_nursery() as nursery:
            while True:
                if slots.value:
                    slots.acquire_nowait()
                else:
                    await slots.acquire()
                request = await self._next_request()
                if request is None:
                    nursery.cancel_scope.cancel()
                    return
                if request.opcode in _SILENT:
                    if request.opcode in (Opcode.FORGET, Opcode.BATCH_FORGET):
                        forget(self._vfs, request)
                    slots.release()
                else:
                    nursery.start_soon(self._serve, request, slots)

    async def _next_request(self) -> Request | None:
        """The next message, None when the session is over."""
        while True:
            if self._unyielding >= MAX_READ_IN_A_ROW:
                self._unyielding = 0
                await trio.lowlevel.checkpoint()
            try:
                length = os.readv(self._descriptor, [self._buffer])
            except BlockingIOError:
                self._unyielding = 0
                await trio.lowlevel.wait_readable(self._descriptor)
                continue
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ECONNABORTED):
                    return None
                if error.errno in (errno.ENOENT, errno.EINTR):  # the request was taken back, or a signal came
                    continue
                raise
            self._unyielding += 1
            return wire.request_of(bytes(self._view[:length]))

    async def _serve(self, request: Request, slots: trio.Semaphore) -> None:
        try:
            code, body = await self._answer(request)
            self._reply(request.unique, code, body)
        finally:
            slots.release()

    async def _answer(self, request: Request) -> tuple[int, Sequence[bytes | memoryview]]:
        if request.opcode == Opcode.INIT:
            return 0, (self._init(request),)
        handler = HANDLERS.get(request.opcode)
        if handler is None:
            # The kernel remembers this answer and does the best it can without.
            return errno.ENOSYS, ()
        try:
            return 0, await handler(self._vfs, request)
        except Exception as error:
            return errno_for(error, Opcode(request.opcode).name.lower(), f"node {request.node}"), ()

    def _reply(self, unique: int, code: int, body: Sequence[bytes | memoryview]) -> None:
        length = wire.OUT_HEADER.size + sum(len(piece) for piece in body)
        try:
            os.writev(self._descriptor, [wire.OUT_HEADER.pack(length, -code, unique), *body])
        except OSError as error:
            # ENOENT: the caller was killed and nobody waits. ENODEV: the mount is gone.
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ECONNABORTED):
                log.error("an answer was refused by the kernel: %s", error)

    def _init(self, request: Request) -> bytes:
        major, minor, max_readahead_bytes, offered = wire.INIT_IN.unpack_from(request.body)
        if major != wire.MAJOR:
            raise Broken(f"the kernel speaks FUSE {major}.{minor}, not {wire.MAJOR}")
        flags = WANTED & InitFlag(offered & int(WANTED))
        return wire.INIT_OUT.pack(
            wire.MAJOR,
            wire.MINOR,
            max_readahead_bytes,
            int(flags),
            MAX_BACKGROUND,
            MAX_BACKGROUND * 3 // 4,
            MAX_WRITE_BYTES,
            1,  # timestamps are exact to the nanosecond
            MAX_WRITE_BYTES // _PAGE_BYTES,
            0,
            0,
        )

    def invalidate_attributes(self, node: int) -> None:
        self._notify(Notice.INVAL_INODE, wire.INVAL_INODE_OUT.pack(node, -1, 0))

    def invalidate_name(self, parent: int, name: bytes) -> None:
        self._notify(Notice.INVAL_ENTRY, wire.INVAL_ENTRY_OUT.pack(parent, len(name), 0) + name + b"\0")

    def _notify(self, notice: Notice, body: bytes) -> None:
        header = wire.OUT_HEADER.pack(wire.OUT_HEADER.size + len(body), notice, 0)
        os.writev(self._descriptor, [header, body])

    def close(self) -> None:
        """Give up the session; the mount point must be unmounted before."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
