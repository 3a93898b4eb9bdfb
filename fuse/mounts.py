"""The life of one mount: checked, made, served until somebody unmounts it, and nothing left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, get_args

import trio

from tiercache.config import Profile
from tiercache.engine.names import show
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, MountError, TierCacheError
from tiercache.fuse import mountpoint as mountpoints
from tiercache.fuse.estate import Estate, OpenSlot
from tiercache.fuse.invalidation import Invalidator, NoticeSender
from tiercache.fuse.kernel.session import KernelDriver
from tiercache.fuse.options import DriverName, MountOptions
from tiercache.fuse.place import Place
from tiercache.fuse.pushing import Pusher
from tiercache.fuse.vfs import Vfs
from tiercache.model import Key, Kind

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine

log = logging.getLogger(__name__)

SETTINGS = frozenset({"driver", "allow_other", "read_ahead_kb", "no_open"})
"""What may be set for one mount; the rest follows from its profile."""


class Driver(NoticeSender, Protocol):
    """A way to speak with the kernel."""

    name: str
    gone: bool
    """The kernel has ended the session: somebody unmounted it."""

    def mount(self) -> None:
        """Make the mount, or raise MountError. Blocks for a moment."""
        ...

    async def run(self) -> None:
        """Serve until the filesystem is unmounted."""
        ...

    async def settled(self) -> None:
        """Return when all that the kernel has sent so far was taken and has begun."""
        ...

    def close(self) -> None:
        """Give up the descriptor. Not while ``run`` is under way."""
        ...


class Legacy(NamedTuple):
    """A mount that an earlier engine made and this one goes on with."""

    path: str
    root_inode: int
    flags: int
    """Features that it negotiated with the kernel."""
    device: str
    """See ``Place``."""
    descriptor: int
    estate: Estate

    @classmethod
    def of(cls, session: Mapping[str, Any], descriptors: tuple[int, ...]) -> Legacy:
        """What ``Succession.keep`` was told. ValueError or KeyError when an engine of another release told it
        otherwise."""
        descriptor, memory = descriptors
        device = session.get("device", "")  # an engine of an earlier release did not tell
        return cls(session["path"], session["root_inode"], session["flags"], device, descriptor, Estate(memory))

    def is_mounted(self) -> bool:
        """Whether it is mounted at its path; it may be left elsewhere only. Blocks for a moment."""
        here = [mount for mount in mountpoints.mounts() if mount.mountpoint == self.path]
        return any(self.device in ("", mount.device) for mount in here)

    @property
    def open_files(self) -> Sequence[OpenSlot]:
        """What programs have open."""
        return self.estate.inherited


class Succession(NamedTuple):
    """How a mount outlives its engine."""

    keep: Callable[[dict[str, Any], tuple[int, ...]], None]
    """Hand over what another engine needs to go on: a description and descriptors, of which these stay ours."""
    release: Callable[[], Awaitable[None]]
    """Take it back: the mount is gone."""
    is_left: Callable[[], bool]
    """Whether this engine, when it ends now, leaves the mount to the next one."""


class Serving(NamedTuple):
    """A mount that answers, for the engine that hosts it."""

    driver: Driver
    vfs: Vfs
    place: Place
    session: trio.CancelScope
    ending: trio.Event
    """It was told to ``end``: no engine goes on with it."""
    over: trio.Event
    """The session has ended: the kernel has this mount nowhere any more, or it was told to ``end``."""

    async def unmount(self) -> None:
        """Take it away from its place; MountError when it is in use. ``over`` follows at once, but where it is mounted
        elsewhere too (in another mount namespace, as a container is) only when it is gone there: it is served until
        then."""
        await trio.to_thread.run_sync(self.place.unmount)

    async def end(self) -> None:
        """End it wherever it is mounted, in use or not; programs that have files open in it get errors: drain first."""
        self.ending.set()
        await trio.to_thread.run_sync(self.place.leave_nothing)
        self.session.cancel()

    async def settled(self) -> None:
        """Return when files whose close(2) returned before this call are closed for the engine too."""
        await self.driver.settled()

    async def told(self) -> None:
        """Return when the kernel knows of all changes that were made before this call."""
        for told in self.vfs.notices.told:
            await told()

    def leave(self) -> None:
        """Stop serving, and leave the mount to the next engine."""
        if isinstance(self.driver, KernelDriver):
            self.driver.leave()

    def io_mode(self, inode: int) -> str:
        """How the kernel reads a file now: ``passthrough``, ``cached`` or ``closed``."""
        return self.vfs.files.io_mode(inode)


def options_for(profile: Profile, settings: Mapping[str, Any], *, read_only: bool) -> MountOptions:
    """What a profile and the settings of one mount mean together. Root lets other users in, an ordinary user cannot."""
    unknown = settings.keys() - SETTINGS
    if unknown:
        raise MountError(f"unknown mount option {min(unknown)!r}; there are: {', '.join(sorted(SETTINGS))}")
    drivers = get_args(DriverName)
    if settings.get("driver", "auto") not in drivers:
        raise MountError(f"unknown driver {settings['driver']!r}; there are: {', '.join(drivers)}")
    return MountOptions(
        ttl_s=profile.ttl_s,
        negative_ttl_s=profile.negative_ttl_s,
        read_only=read_only,
        posix_metadata=profile.posix_metadata,
        **{"allow_other": os.geteuid() == 0, "no_open": read_only and profile.name != "weights", **settings},
    )


async def serve_mount(
    engine: Engine,
    namespace: Namespace,
    root_key: Key,
    mountpoint: str,
    *,
    read_only: bool = False,
    options: Mapping[str, Any] | None = None,
    on_started: Callable[[Serving], None] = lambda serving: None,
    succession: Succession | None = None,
    legacy: Legacy | None = None,
) -> None:
    """Mount ``root_key`` at ``mountpoint`` and serve it until it is unmounted, by us or by anybody.

    ``on_started`` is called with what serves it once the mount is there; MountError if it cannot be made. A cancelled
    one is unmounted, by force if it is in use: drain first. With ``succession`` the next engine can go on with it; with
    ``legacy`` this one goes on with what an earlier one made.
    """
    chosen = options_for(namespace.profile, options or {}, read_only=read_only)
    chosen = chosen._replace(source=mountpoints.source_of(engine.config))
    if legacy is None:
        path = await trio.to_thread.run_sync(_prepare, engine, namespace, root_key, mountpoint)
        root_inode = await _root_inode(namespace, root_key)  # shown from now on
        estate = Estate.create() if succession is not None and chosen.driver != "pyfuse3" else None
    else:
        path, root_inode, estate = legacy.path, legacy.root_inode, legacy.estate
        namespace.tree.show(root_key, unasked=True)
    left = False
    vfs = Vfs(namespace, root_key, root_inode=root_inode, options=chosen, estate=estate)
    try:
        driver = await trio.to_thread.run_sync(_driver, vfs, path, engine)
        place = await _begin(vfs, driver, path, root_inode, succession, legacy)
        serving = Serving(driver, vfs, place, trio.CancelScope(shield=True), trio.Event(), trio.Event())
        try:
            async with _notices(namespace, vfs, driver), _pushing(engine, namespace, vfs, driver):
                await _serve(serving, lambda: on_started(serving), succession)
        finally:
            over_for_all = driver.gone or serving.ending.is_set()
            left = succession is not None and succession.is_left() and not over_for_all
            if left:
                driver.close()
            else:
                with trio.CancelScope(shield=True):
                    await _end(serving, succession)
            place.close()
    finally:
        if not left:
            namespace.tree.hide(root_key)
        if estate is not None:
            estate.close()


async def _begin(
    vfs: Vfs, driver: Driver, path: str, root_inode: int, succession: Succession | None, legacy: Legacy | None
) -> Place:
    """Make the mount, or take it over."""
    if legacy is not None:
        assert isinstance(driver, KernelDriver)
        vfs.files.take_over()
        driver.adopt(legacy.descriptor, legacy.flags)
        log.info("%s: taken over, with %d open files", path, len(legacy.open_files))
        return await trio.to_thread.run_sync(Place.of, path, legacy.device)
    await trio.to_thread.run_sync(driver.mount)
    place = await trio.to_thread.run_sync(Place.of, path)
    if succession is not None and vfs.estate is not None and isinstance(driver, KernelDriver):
        memory, keep = vfs.estate.descriptor, succession.keep

        def on_negotiated(descriptor: int, flags: int) -> None:
            session = {"path": path, "root_inode": root_inode, "flags": flags, "device": place.device}
            keep(session, (descriptor, memory))

        driver.on_negotiated = on_negotiated
    log.info("%s: mounted by the %s driver%s", path, driver.name, " (read-only)" if vfs.options.read_only else "")
    return place


async def _end(serving: Serving, succession: Succession | None) -> None:
    """The mount is gone, or goes now."""
    driver, vfs, place = serving.driver, serving.vfs, serving.place
    await trio.to_thread.run_sync(place.leave_nothing)
    if serving.session.cancelled_caught:
        await trio.to_thread.run_sync(place.abort)
    if succession is not None:
        # Before our own descriptor is closed: the last one to be closed ends what is still open in the mount.
        await succession.release()
    driver.close()
    await vfs.files.close()
    log.info("%s: unmounted", place.path)


def give_up(path: str, device: str, descriptors: tuple[int, ...]) -> None:
    """End a mount that cannot be taken over: its programs get errors, and nothing stays mounted."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    place = Place.of(path, device)
    place.leave_nothing()
    place.close()


async def _serve(serving: Serving, on_started: Callable[[], None], succession: Succession | None) -> None:
    """Run the session. Cancellation unmounts first, while the session still answers, and then ends it."""
    read_ahead_kb = serving.vfs.options.read_ahead_kb
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_when_cancelled, serving, succession)
        await trio.to_thread.run_sync(mountpoints.set_read_ahead, serving.place.device, read_ahead_kb)
        on_started()
        try:
            with serving.session:
                await serving.driver.run()
        finally:
            serving.over.set()
        nursery.cancel_scope.cancel()


async def _end_when_cancelled(serving: Serving, succession: Succession | None) -> None:
    try:
        await trio.sleep_forever()
    finally:
        if succession is None or not succession.is_left():
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(serving.place.leave_nothing)
        serving.session.cancel()


@contextlib.asynccontextmanager
async def _notices(namespace: Namespace, vfs: Vfs, driver: Driver) -> AsyncIterator[None]:
    """Tell the kernel of changes that others make, as long as the session lives."""
    invalidator = Invalidator(driver)
    vfs.notices.send = invalidator.post
    vfs.notices.told.append(invalidator.told)
    namespace.on_change.append(vfs.note_change)
    try:
        yield
    finally:
        namespace.on_change.remove(vfs.note_change)
        invalidator.disarm()


@contextlib.asynccontextmanager
async def _pushing(engine: Engine, namespace: Namespace, vfs: Vfs, driver: Driver) -> AsyncIterator[None]:
    """Put planned files into the kernel's pages, where these are kept from one open to the next."""
    if not (isinstance(driver, KernelDriver) and vfs.options.no_open and engine.config.plan.push_max_bytes):
        yield
        return
    pusher = Pusher(vfs.node, driver, engine.metrics, most_bytes=engine.config.plan.push_max_bytes)
    # Before the notice goes: whatever is pushed by then is dropped by the notice, and what follows by the pusher.
    namespace.on_change.insert(0, pusher.note_change)
    namespace.tree.pushers.append(pusher.push)
    vfs.notices.told.append(pusher.told)
    try:
        yield
    finally:
        namespace.tree.pushers.remove(pusher.push)
        namespace.on_change.remove(pusher.note_change)
        pusher.disarm()


async def _root_inode(namespace: Namespace, root_key: Key) -> int:
    try:
        root = await namespace.root(root_key)
    except Absent as error:
        raise MountError(f"nothing to mount: {error}") from None
    except TierCacheError as error:
        raise MountError(f"cannot be mounted: {error}") from error
    if root.kind is not Kind.DIRECTORY:
        namespace.tree.hide(root_key)
        raise MountError(f"{show(root_key)}: is a file, and only a directory can be mounted; mount the directory above")
    return root.inode


def _driver(vfs: Vfs, path: str, engine: Engine) -> Driver:
    if vfs.options.driver != "pyfuse3":
        stack_depth = 2 if mountpoints.is_stacked(str(engine.config.cache_dir)) else 1
        return KernelDriver(vfs, path, memory=engine.memory, metrics=engine.metrics, stack_depth=stack_depth)
    if importlib.util.find_spec("pyfuse3") is None:
        raise MountError("pyfuse3 is not installed: pip install 'tiercache-fs[pyfuse3]', or use the driver kernel")
    from tiercache.fuse.pyfuse3_driver import Pyfuse3Driver

    return Pyfuse3Driver(vfs, path, metrics=engine.metrics)


def _prepare(engine: Engine, namespace: Namespace, root_key: Key, mountpoint: str) -> str:
    private = [str(engine.config.cache_dir), str(engine.config.ram_directory)]
    shown = _origin_path(namespace, root_key)
    if shown is not None:
        private.append(shown)
    path = mountpoints.prepare(mountpoint, private_paths=tuple(private))
    if shown is not None and mountpoints.is_below(path, shown):
        raise MountError(f"{path}: lies inside {shown}, which it would show; choose a directory outside")
    return path


def _origin_path(namespace: Namespace, root_key: Key) -> str | None:
    """The directory behind a POSIX origin: reading it through the mount would make the engine wait for itself."""
    identity = namespace.tree.origin.identity
    return os.path.realpath("/" + os.fsdecode(root_key)) if identity.startswith("file:") else None
