"""The session loop: one read of /dev/fuse for each request, one write for each answer."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
from time import perf_counter

import trio

from tiercache.errors import Broken
from tiercache.fuse.guard import Guard
from tiercache.fuse.kernel import mounting, wire
from tiercache.fuse.kernel.inline import INLINE
from tiercache.fuse.kernel.requests import HANDLERS, Answer, forget
from tiercache.fuse.kernel.resent import RESENT
from tiercache.fuse.kernel.wire import InitFlag, Notice, Opcode, Request
from tiercache.fuse.vfs import Vfs
from tiercache.memory import Memory, Purpose
from tiercache.metrics import Metrics

log = logging.getLogger(__name__)

MAX_REQUESTS = 256
"""Requests under way at once; further ones wait in the kernel."""

MAX_READ_IN_A_ROW = 16
"""Requests that are taken before other tasks get a turn."""

LINGER_MS = 1
"""How long the loop waits for the next request by itself after it answered one: a program that reads file after file
asks again within microseconds, and a turn through trio's own loop would double its waiting."""

LONGEST_TURN_S = 0.002
"""After this long other tasks of the engine get a turn, however busy the mount is."""

SETTLED_AFTER = 1024
"""So many requests taken are more than the kernel had queued when it was asked, on a mount that is never quiet."""

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
    | InitFlag.INIT_EXT
    | InitFlag.PASSTHROUGH
    | InitFlag.NO_OPEN_SUPPORT
    | InitFlag.NO_OPENDIR_SUPPORT
    | InitFlag.HAS_RESEND
)

LEAVE_S = 5.0
"""How long requests under way may take when the engine gives its place to another; then they are sent again to it."""


class KernelDriver:
    """One mount that we serve ourselves. A process may have any number of them."""

    name = "kernel"

    def __init__(self, vfs: Vfs, mountpoint: str, *, memory: Memory, metrics: Metrics, stack_depth: int) -> None:
        """``stack_depth``: 1, or 2 where lent files lie on a stacked filesystem; with 2 nothing can be stacked on the
        mount in turn."""
        self._vfs = vfs
        self._memory = memory
        self._stack_depth = stack_depth
        self._mountpoint = mountpoint
        self._guard = Guard(metrics)
        self._count_inline = metrics.mount_requests.labels(how="inline").inc
        self._count_waiting = metrics.mount_requests.labels(how="waiting").inc
        self._descriptor = -1
        self._notices = threading.Lock()
        self._notifying = 0  # threads that send a notice now
        self._closing = False
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._in_a_row = 0  # requests taken since other tasks last had a turn, and when that was
        self._turn_began_s = 0.0
        self._lingers = False  # whether a request came less than LINGER_MS ago
        self._taken = 0  # requests taken ever
        self._under_way = 0  # requests that tasks work on
        self._idle = trio.Event()
        self._poll = select.poll()
        self._adopted = False
        self.gone = False
        self._reading = trio.CancelScope()
        self.on_negotiated: Callable[[int, int], None] = lambda descriptor, flags: None
        """Called when the session has begun, with what another engine needs to go on with it: see ``adopt``."""

    def mount(self) -> None:
        """Ask the kernel for the mount."""
        self._descriptor = mounting.mount(self._mountpoint, self._vfs.options)
        os.set_blocking(self._descriptor, False)
        self._poll.register(self._descriptor, select.POLLIN)

    def adopt(self, descriptor: int, flags: int) -> None:
        """Go on with a session that an earlier engine began, with the features that it negotiated."""
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        self._poll.register(descriptor, select.POLLIN)
        self._adopted = True
        self._begin(flags)

    async def run(self) -> None:
        """Serve requests until the filesystem is unmounted, or ``leave``."""
        slots = trio.Semaphore(MAX_REQUESTS)
        if self._adopted:
            self._ask_again()
        async with trio.open_nursery() as nursery:
            with self._reading:
                await self._take_requests(slots, nursery)
                self.gone = True
            if self._reading.cancelled_caught and self._under_way:
                with trio.move_on_after(LEAVE_S):
                    await self._idle.wait()
            nursery.cancel_scope.cancel()

    async def _take_requests(self, slots: trio.Semaphore, nursery: trio.Nursery) -> None:
        while (request := await self._next_request()) is not None:
            if request.opcode in _SILENT:
                if request.opcode in (Opcode.FORGET, Opcode.BATCH_FORGET):
                    forget(self._vfs, request)
            elif not self._answered_inline(request):
                await slots.acquire()
                # Written bytes are held until there is room for them on the disk. While they take all the memory there
                # is for it, further requests wait in the kernel.
                size_bytes = len(request.data) if request.opcode == Opcode.WRITE else 0
                charge = await self._memory.take(Purpose.WRITE, size_bytes)
                self._count_waiting()
                self._under_way += 1
                nursery.start_soon(self._serve, wire.kept(request), charge, slots)

    def leave(self) -> None:
        """Take no more requests; ``run`` returns when those under way are answered. The mount stays: what is not
        answered is sent to whoever adopts it."""
        self._reading.cancel()

    def _ask_again(self) -> None:
        """Have the kernel send what the earlier engine read and did not answer."""
        try:
            self._notify(Notice.RESEND, b"")
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ECONNABORTED):  # unmounted meanwhile: the loop finds out
                raise

    # -- requests -----------------------------------------------------------------------------------

    async def _next_request(self) -> Request | None:
        """The next message, None when the session is over."""
        while True:
            if self._in_a_row >= MAX_READ_IN_A_ROW:
                await trio.lowlevel.checkpoint()
                self._turn_begins()
            try:
                length = os.readv(self._descriptor, [self._buffer])
            except BlockingIOError:
                await self._wait()
                continue
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ECONNABORTED):
                    return None
                if error.errno in (errno.ENOENT, errno.EINTR):  # the request was taken back, or a signal came
                    continue
                raise
            self._in_a_row += 1
            self._lingers = True
            self._taken += 1
            return wire.request_of(self._view[:length])

    async def _wait(self) -> None:
        """Until there is something to read. Lingers first, unless a task has work of its own to do. A turn of others
        does not end that: each way through trio's wait costs a program more than what it asks for."""
        self._vfs.hits.begin_expected()
        if self._lingers and (self._under_way or perf_counter() >= self._turn_began_s + LONGEST_TURN_S):
            await trio.lowlevel.checkpoint()  # most tasks need no more than one step
            self._turn_begins()
        if self._lingers and not self._under_way and self._poll.poll(LINGER_MS):
            return
        self._lingers = False
        await trio.lowlevel.wait_readable(self._descriptor)
        self._turn_begins()

    def _turn_begins(self) -> None:
        self._in_a_row = 0
        self._turn_began_s = perf_counter()

    async def settled(self) -> None:
        """Return when every request that the kernel has sent so far was taken, and its task has begun: a file whose
        close(2) returned before this call is closed for us as well."""
        until = self._taken + SETTLED_AFTER
        while self._sends() and self._taken < until:
            await trio.lowlevel.checkpoint()
        # Tasks of the present batch run once more before this one does.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()

    def _sends(self) -> bool:
        """Whether the kernel has something for us; never when the session has ended, although poll(2) tells of that
        too."""
        return self._descriptor >= 0 and any(events & select.POLLIN for _, events in self._poll.poll(0))

    def _answered_inline(self, request: Request) -> bool:
        """Answer what needs no waiting."""
        answer_now = INLINE.get(request.opcode)
        if answer_now is None or wire.is_resent(request):
            return False
        try:
            body = answer_now(self._vfs, request)
        except Exception as error:
            self._reply(request.unique, self._errno_of(error, request), ())
            return True
        if body is None:
            return False
        self._reply(request.unique, 0, body)
        self._count_inline()
        return True

    async def _serve(self, request: Request, charge: int, slots: trio.Semaphore) -> None:
        try:
            code, body = await self._answer(request)
            self._reply(request.unique, code, body)
        finally:
            self._under_way -= 1
            self._memory.release(Purpose.WRITE, charge)
            if not self._under_way:
                self._idle.set()
            slots.release()

    async def _answer(self, request: Request) -> tuple[int, Answer]:
        if request.opcode == Opcode.INIT:
            return 0, (self._init(request),)
        handler = HANDLERS.get(request.opcode)
        if wire.is_resent(request):
            handler = RESENT.get(request.opcode, handler)
        if handler is None:
            # The kernel remembers this answer and does the best it can without.
            return errno.ENOSYS, ()
        try:
            return 0, await handler(self._vfs, request)
        except Exception as error:
            return self._errno_of(error, request), ()

    def _reply(self, unique: int, code: int, body: Sequence[bytes | memoryview]) -> None:
        length = wire.OUT_HEADER.size + sum(map(len, body))
        try:
            os.writev(self._descriptor, [wire.OUT_HEADER.pack(length, -code, unique), *body])
        except OSError as error:
            # ENOENT: the caller was killed and nobody waits. ENODEV: the mount is gone.
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ECONNABORTED):
                log.error("an answer was refused by the kernel: %s", error)

    # -- the session --------------------------------------------------------------------------------

    def _init(self, request: Request) -> bytes:
        major, minor, max_readahead_bytes, offered = wire.INIT_IN.unpack_from(request.body)
        if major != wire.MAJOR:
            raise Broken(f"the kernel speaks FUSE {major}.{minor}, not {wire.MAJOR}")
        if offered & InitFlag.INIT_EXT:
            offered |= wire.INIT_IN_FLAGS2.unpack_from(request.body, wire.INIT_IN.size)[0] << 32
        flags = int(WANTED) & offered
        self._begin(flags)
        if flags & InitFlag.HAS_RESEND:
            self.on_negotiated(self._descriptor, flags)
        return wire.INIT_OUT.pack(
            wire.MAJOR,
            wire.MINOR,
            # What it offers is its default, and it takes the lesser of our answer and what was set for the mount.
            max(max_readahead_bytes, self._vfs.options.read_ahead_kb * 1024),
            flags & 0xFFFFFFFF,
            MAX_BACKGROUND,
            MAX_BACKGROUND * 3 // 4,
            MAX_WRITE_BYTES,
            1,  # timestamps are exact to the nanosecond
            MAX_WRITE_BYTES // _PAGE_BYTES,
            0,
            flags >> 32,
            self._stack_depth,
        )

    def _errno_of(self, error: Exception, request: Request) -> int:
        return self._guard.errno_for(error, Opcode(request.opcode).name.lower(), f"node {request.node}")

    def _begin(self, flags: int) -> None:
        if flags & InitFlag.PASSTHROUGH:
            self._vfs.backings.lender = self

    def lend(self, fd: int) -> int:
        """Hand an open file to the kernel and return its backing id."""
        # A mutable buffer: with bytes, ioctl() gives the buffer back and not the result.
        backing = bytearray(wire.BACKING_MAP.pack(fd, 0))
        return int(fcntl.ioctl(self._descriptor, wire.IOC_BACKING_OPEN, backing, True))

    def take_back(self, backing_id: int) -> None:
        """Give up a backing id."""
        fcntl.ioctl(self._descriptor, wire.IOC_BACKING_CLOSE, bytearray(wire.BACKING_ID.pack(backing_id)), True)

    def invalidate_attributes(self, node: int) -> None:
        self._notify(Notice.INVAL_INODE, wire.INVAL_INODE_OUT.pack(node, -1, 0))

    def invalidate_name(self, parent: int, name: bytes) -> None:
        self._notify(Notice.INVAL_ENTRY, wire.INVAL_ENTRY_OUT.pack(parent, len(name), 0) + name + b"\0")

    def store(self, node: int, data: memoryview) -> None:
        """Put the whole of a file into its pages. FileNotFoundError when the kernel does not know the node."""
        self._notify(Notice.STORE, wire.STORE_OUT.pack(node, 0, len(data), 0), data)

    def _notify(self, notice: Notice, *body: bytes | memoryview) -> None:
        header = wire.OUT_HEADER.pack(wire.OUT_HEADER.size + sum(map(len, body)), notice, 0)
        with self._notices:
            if self._closing:
                raise OSError(errno.ENODEV, "the session is over")
            self._notifying += 1
        try:
            os.writev(self._descriptor, [header, *body])
        finally:
            with self._notices:
                self._notifying -= 1
                self._close_if_unused()

    def close(self) -> None:
        """Give up the session; the mount point must be unmounted before."""
        with self._notices:
            self._closing = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Other threads send notices: a descriptor that is closed under them may be that of any file a moment later."""
        if self._closing and not self._notifying and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
