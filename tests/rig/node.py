"""A node in one process: a disk that can lose power, one engine after the other on it, and its two faces, the ``Vfs``
of a mount and the fsspec filesystem.

The kernel is played by the test: it asks the ``Vfs``, and keeps what it has open when an engine is killed. Where the
``Vfs`` lends it a file, it reads and writes that file by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import trio

from rig.lossy_disk import LossyDisk
from rig.power_cut import CHANGES, UPLOADS, Power, Stop, stopping_origin
from rig.trio_loop import Loop
from tiercache.catalog import Catalog
from tiercache.client import client as clients
from tiercache.config import Config
from tiercache.engine.engine import Engine
from tiercache.engine.keeper import Inherited, Keeper
from tiercache.engine.mounts import Mount, Mounts
from tiercache.engine.namespace import Namespace
from tiercache.engine.server import Server
from tiercache.filesystem import TierCacheFileSystem
from tiercache.fuse.estate import Estate, OpenSlot
from tiercache.fuse.options import MountOptions
from tiercache.fuse.vfs import Vfs
from tiercache.model import Key, Kind
from tiercache.origins import Origin
from tiercache.staging import Staging

T = TypeVar("T")

HELD_S = 0.2
"""What waits for an upload that is held goes on after this."""


class Gate:
    """Where uploads wait while it is held."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._free = 0

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def wait(self) -> None:
        if threading.get_ident() != self._free:
            self._open.wait()

    @contextlib.contextmanager
    def let_by(self) -> Iterator[None]:
        """What this thread writes in the block does not wait."""
        self._free = threading.get_ident()
        try:
            yield
        finally:
            self._free = 0

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """A block that may have to wait for what is held: then it is held no longer."""
        if self._open.is_set():
            yield
            return
        timer = threading.Timer(HELD_S, self.release)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


class Kernel:
    """Has the files that were lent to it, whatever becomes of the engine."""

    def __init__(self) -> None:
        self._lent: dict[int, int] = {}
        self._ids = itertools.count(1)

    def lend(self, fd: int) -> int:
        number = next(self._ids)
        self._lent[number] = os.dup(fd)
        return number

    def take_back(self, backing_id: int) -> None:
        os.close(self._lent.pop(backing_id))

    def descriptor(self, backing_id: int) -> int:
        return self._lent[backing_id]

    def may_write(self, backing_id: int) -> bool:
        """Whether whoever shares this file can write to it through a mapping."""
        return fcntl.fcntl(self._lent[backing_id], fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY

    def write(self, backing_id: int, offset: int, data: bytes) -> None:
        """As by a file of the kernel's own, opened as the program has opened it."""
        fd = os.open(f"/proc/self/fd/{self._lent[backing_id]}", os.O_WRONLY)
        os.pwrite(fd, data, offset)
        os.close(fd)

    def forget(self) -> None:
        """The machine was started anew."""
        for number in list(self._lent):
            self.take_back(number)


class _Legacy(NamedTuple):
    """What ``Mounts`` asks of a mount that it takes over."""

    open_files: list[OpenSlot]


class Node:
    """``start`` first; ``close`` at last."""

    def __init__(self, base: Path, origin: Origin, url: str, root: Key, *, ttl_s: float, lends: bool, **settings: Any):
        self.base = base
        self.cache_dir = base / "cache"
        self.root = root
        self.power = Power(0)
        self.gate = Gate()
        self.origin = origin
        self.url = url
        self.loop = Loop()
        self.kernel = Kernel()
        self.lends = lends
        self.disk = LossyDisk(self.cache_dir, power=self.power)
        self.engine: Engine
        self.names: Namespace
        self.vfs: Vfs
        self._ttl_s = ttl_s
        self._estate: Estate | None = None
        self._root_inode = 0
        self._ended = trio.Event()
        self._scope: trio.CancelScope
        self._failure: BaseException | None = None
        self._patches = contextlib.ExitStack()
        self._patch()
        ttl = {"ttl_s": str(ttl_s), "negative_ttl_s": min(ttl_s, 5)}
        self.config = Config.model_validate(
            {
                "cache_dir": self.cache_dir,
                "ram": {"capacity": "1MiB", "directory": base / "ram"},
                "nvme": {"capacity": "64MiB", "free_space_floor": 0},
                "staging": {"capacity": "64MiB"},
                "engine": {"stop_drain_s": 0},
                "profiles": {"general": ttl},
                **settings,
            }
        )
        self._begin_process()

    def _begin_process(self) -> None:
        """A process that uses fsspec, the first one or after the machine was started anew."""
        client = clients._clients.pop((self.config.cache_dir, "attach"), None)
        if client is not None:
            client.close()
        protocol = self.url.partition("://")[0]
        self.fs = TierCacheFileSystem(
            target_protocol=protocol, cache_dir=str(self.cache_dir), engine="attach", skip_instance_cache=True
        )

    def _patch(self) -> None:
        node, write, transact, close = self, self.origin.write, Catalog._transact, Catalog.close

        class OneMount(Mounts):
            async def inherit(self) -> None:
                await node._inherit(self)

            async def go_on(self) -> None:
                await node._go_on(self)

        def held(*arguments: Any, **options: Any) -> Any:
            node.gate.wait()
            return write(*arguments, **options)

        @contextlib.contextmanager
        def powered(catalog: Catalog) -> Iterator[Any]:
            node.power.tick("catalog transaction")
            with transact(catalog) as transaction:
                yield transaction

        def closed(catalog: Catalog) -> None:
            close(catalog, clean=not node.power.off)

        self.origin.write = held  # type: ignore[method-assign]
        stopping_origin(self.power, self.origin, (*UPLOADS, *CHANGES))
        for target, instead in {
            "tiercache.engine.engine.Mounts": OneMount,
            "tiercache.engine.engine.Staging": lambda *args, **kwargs: Staging(*args, disk=node.disk, **kwargs),
            "tiercache.engine.engine.Journal": lambda *args, **kwargs: node.disk.journal(*args, **kwargs),
            "tiercache.engine.trees.open_origin": lambda url, **options: (node.origin, node.root),
            "tiercache.catalog.state.current_boot_id": lambda: node.disk.boot_id.decode(),
            "tiercache.catalog.Catalog._transact": powered,
            "tiercache.catalog.Catalog.close": closed,
        }.items():
            self._patches.enter_context(mock.patch(target, instead))

    # -- the lives of the engine --------------------------------------------------------------------

    def start(self) -> None:
        self.loop.run(self._start)

    async def _start(self) -> None:
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        await self.loop.nursery.start(self._life)

    async def _life(self, *, task_status: trio.TaskStatus[None]) -> None:
        keeper = Keeper()
        if self._estate is not None:
            keeper.inherited = [Inherited("mount", {}, ())]
        self.engine = Engine(self.config, keeper)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.engine.run)
                    await self.engine.nursery.start(Server(self.engine).run)
                    task_status.started()
        except BaseException as error:
            if not self.power.off:
                self._failure = error
                raise
            _require_stops(error)
        finally:
            self._ended.set()

    async def _inherit(self, mounts: Mounts) -> None:
        mounts._engine.keeper.inherited = []
        self.names, _ = await mounts._engine.attach_again(self.url, "", {}, "general")
        if self._estate is not None:
            mount = Mount("/mount", self.url, self.names, self.root, read_only=False)
            mounts._inherited.append((mount, _Legacy(self._estate.inherited)))  # type: ignore[arg-type]

    async def _go_on(self, mounts: Mounts) -> None:
        mounts._inherited.clear()
        taken_over = self._estate is not None
        if self._estate is None:
            self._root_inode, self._estate = (await self.names.root(self.root)).inode, Estate.create()
        else:
            self.names.tree.show(self.root, unasked=True)
        options = MountOptions(ttl_s=self._ttl_s, negative_ttl_s=min(self._ttl_s, 5))
        self.vfs = Vfs(self.names, self.root, root_inode=self._root_inode, options=options, estate=self._estate)
        self.names.on_change.append(self.vfs.note_change)
        if self.lends:
            self.vfs.backings.lender = self.kernel
        if taken_over:
            self.vfs.files.take_over()

    def kill(self) -> None:
        """The engine is killed, the mount is left to the next one."""
        self.power.cut()
        self._wait_until_ended()

    def _wait_until_ended(self) -> None:
        self.gate.release()
        self.loop.run(self._end)
        for opened in self.vfs._handles.drain():
            opened.file._close_fd()
        assert self._estate is not None
        descriptor = os.dup(self._estate.descriptor)
        self._estate.close()
        self._estate = Estate(descriptor)
        self.power.restore()

    async def _end(self) -> None:
        self._scope.cancel()
        await self._ended.wait()
        await trio.to_thread.run_sync(self.power.wait_idle)

    def die_at(self, calls: int) -> None:
        """The engine is killed at so many calls of disk, journal, catalog or origin from now, or now where nothing is
        to be done any more."""
        self.power.arm(calls)
        self.loop.run(self._until_dead_or_idle)
        self.kill()

    async def _until_dead_or_idle(self) -> None:
        with contextlib.suppress(Stop), trio.move_on_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drained, nursery.cancel_scope)
                await self._ended.wait()
                nursery.cancel_scope.cancel()

    async def _drained(self, scope: trio.CancelScope) -> None:
        with contextlib.suppress(Stop):
            await self.engine.drain(5)
            scope.cancel()

    def lose_power(self, rng: random.Random) -> None:
        """Everything stops; what was not synced is kept, torn or gone."""
        self.kill()
        boot_id = self.disk.cut(rng)
        self._forget_mount()
        self._begin_process()
        self.disk = LossyDisk(self.cache_dir, power=self.power, boot_id=boot_id)

    def lose(self) -> None:
        """The node is gone, with its disk."""
        self.kill()
        self.disk.close()
        self._forget_mount()
        self._begin_process()
        shutil.rmtree(self.cache_dir)
        self.disk = LossyDisk(self.cache_dir, power=self.power, boot_id=self.disk.boot_id + b"'")

    def stop(self) -> None:
        """The mount is taken away and the engine ends in order."""
        self.gate.release()
        self.loop.run(self._stop)
        self._forget_mount()

    async def _stop(self) -> None:
        await self.vfs.files.close()
        self.engine.stop()
        await self._ended.wait()

    def _forget_mount(self) -> None:
        assert self._estate is not None
        self._estate.close()
        self._estate = None
        self.kernel.forget()

    def close(self) -> None:
        if hasattr(self, "vfs") and not self._ended.is_set():
            self.kill()
            self._forget_mount()
        self.loop.close()
        self.disk.close()
        self._patches.close()
        client = clients._clients.pop((self.config.cache_dir, "attach"), None)
        if client is not None:
            client.close()

    # -- what is asked of it ------------------------------------------------------------------------

    def run(self, function: Callable[..., Awaitable[T]], *arguments: Any, **options: Any) -> T:
        """A call of the engine's, or of the ``Vfs``."""
        with self.gate.patience():
            try:
                return self.loop.run(lambda: function(*arguments, **options))
            except BaseException as error:
                raise self._failure or error from None

    def evict(self) -> None:
        """Nothing is cached any more."""

        async def evict() -> None:
            for version, _ in list(self.engine.catalog.versions()):
                self.engine.cache.drop(version)

        self.run(evict)

    def drain(self) -> Any:
        self.gate.release()
        return self.run(self.engine.drain, 10)

    def at_origin(self) -> dict[str, bytes]:
        """All files, past the engine."""
        found = {}
        for stat in list(self.origin.walk(self.root)):
            if stat.kind is Kind.FILE:
                data = self.origin.read(stat.key, 0, stat.size_bytes, stat.etag) if stat.size_bytes else b""
                found[os.fsdecode(stat.key[len(self.root) + 1 :])] = bytes(data)
        return found


def _require_stops(error: BaseException) -> None:
    """Whoever had not heard of a kill may have met a descriptor that was closed meanwhile; nothing else may end one."""
    if isinstance(error, BaseExceptionGroup):
        _, rest = error.split((Stop, OSError, trio.Cancelled))
        if rest is not None:
            raise rest
    elif not isinstance(error, Stop | OSError | trio.Cancelled):
        raise error
