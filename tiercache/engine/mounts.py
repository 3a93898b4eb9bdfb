"""The mounts that the engine hosts."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from tiercache.engine.namespace import Namespace
from tiercache.engine.promises import level_of
from tiercache.errors import InvalidArgument, MountError, TierCacheError
from tiercache.journal import StagedRecord
from tiercache.model import Key, OriginId, is_below

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine
    from tiercache.fuse.mounts import Legacy, Serving, Succession

log = logging.getLogger("tiercache.engine")


@dataclass(eq=False)
class Mount:
    """One mount point and what it shows."""

    mountpoint: str
    url: str
    namespace: Namespace
    root: Key
    read_only: bool
    settings: dict[str, Any] = field(default_factory=dict)
    """What it was asked for with: client, options (secrets too), profile, promise, mount_options."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The supervisor's name for it."""
    outlives: bool = False
    """The supervisor has it too: the next engine goes on with it."""
    serving: Serving | None = None
    """Set as soon as it answers."""
    elsewhere: bool = False
    """It was unmounted here, and goes on where it is mounted too, as in a container that copied the mounts."""
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def name(self) -> str:
        """What people are told: another one may have the mount point now."""
        return f"{self.mountpoint} (elsewhere)" if self.elsewhere else self.mountpoint

    @property
    def spellings(self) -> set[str]:
        """The mount point as it was given, and as the kernel spells it, which follows links on the way there."""
        return {self.mountpoint, self.serving.place.path if self.serving is not None else self.mountpoint}

    async def left_at(self) -> list[str] | None:
        """Where it goes on in this mount namespace although it was unmounted: nowhere when only others have it. None
        when it has ended."""
        if self.serving is None or self.serving.over.is_set():
            return None
        return await trio.to_thread.run_sync(self.serving.place.paths)


class Mounts:
    """Mounts and unmounts; each mount is a task in the engine's nursery."""

    def __init__(self, engine: Engine, nursery: trio.Nursery) -> None:
        self._engine = engine
        self._nursery = nursery
        self._mounts: dict[str, Mount] = {}
        """By id."""
        self._inherited: list[tuple[Mount, Legacy]] = []

    def __len__(self) -> int:
        return len(self._mounts)

    def __iter__(self) -> Iterator[Mount]:
        return iter(list(self._mounts.values()))

    async def mount(
        self,
        url: str,
        mountpoint: str,
        *,
        client: str = "",
        options: dict[str, Any] | None = None,
        profile: str = "",
        promise: dict[str, Any] | None = None,
        read_only: bool = False,
        mount_options: dict[str, Any] | None = None,
    ) -> Mount:
        """Attach the origin and mount it; returns when the mount answers. ``promise``: the ``ack`` and
        ``sync_on_close`` of this mount, where the profile's are not meant."""
        mountpoint = _absolute(mountpoint)
        earlier = self._at(mountpoint)
        if earlier is not None:
            await self._parted_by_others(earlier)
        if (there := self._at(mountpoint)) is not None:
            raise MountError(f"{mountpoint}: {there.url} is mounted there already")
        promise = _promise(**promise or {})
        namespace, root = await self._engine.attach(url, client, options, profile)
        if promise.get("ack") == "origin" and not namespace.profile.upload:
            raise InvalidArgument(f"the profile {namespace.profile.name} keeps files on this node: no ack = origin")
        namespace = self._engine.promising(namespace, promise)
        settings = {
            "client": client,
            "options": options or {},
            "profile": profile,
            "promise": promise,
            "mount_options": mount_options or {},
        }
        mount = Mount(mountpoint, url, namespace, root, read_only or namespace.read_only, settings)
        await self._start(mount, None)
        return mount

    async def _start(self, mount: Mount, legacy: Legacy | None) -> None:
        self._mounts[mount.id] = mount
        try:
            mount.serving = await self._nursery.start(self._serve, mount, legacy)
        except BaseException:
            self._mounts.pop(mount.id, None)
            raise

    async def _serve(
        self, mount: Mount, legacy: Legacy | None, *, task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED
    ) -> None:
        # The one import that points up: the engine hosts mounts, and it runs without FUSE all the same.
        from tiercache.fuse.mounts import serve_mount

        metrics = self._engine.metrics
        started = _Started(task_status)
        try:
            metrics.mounts.inc()
            await serve_mount(
                self._engine,
                mount.namespace,
                mount.root,
                mount.mountpoint,
                read_only=mount.read_only,
                options=mount.settings["mount_options"],
                on_started=started.started,
                succession=self._succession(mount),
                legacy=legacy,
            )
        except TierCacheError as error:
            if not started.reported:
                raise
            log.error("the mount at %s ended: %s", mount.mountpoint, error)
        finally:
            metrics.mounts.dec()
            self._mounts.pop(mount.id, None)
            mount.ended.set()

    # -- from one engine to the next ----------------------------------------------------------------

    def _succession(self, mount: Mount) -> Succession | None:
        """How the mount outlives this engine; None where it cannot."""
        keeper = self._engine.keeper
        if not keeper.keeps:
            return None
        from tiercache.fuse.mounts import Succession

        def keep(session: dict[str, Any], descriptors: tuple[int, ...]) -> None:
            asked = {"mountpoint": mount.mountpoint, "url": mount.url, "read_only": mount.read_only, **mount.settings}
            mount.outlives = keeper.hold(mount.id, {**asked, "session": session}, descriptors)

        async def release() -> None:
            if mount.outlives:
                await keeper.release(mount.id)

        return Succession(keep, release, lambda: mount.outlives and not self._engine.unmounts)

    async def inherit(self) -> None:
        """Look at what the engine before this one left; the origins are asked nothing. A mount that cannot be taken
        over is given up: whoever uses it gets errors, and it is taken away."""
        inherited, self._engine.keeper.inherited = self._engine.keeper.inherited, []
        for item in inherited:
            from tiercache.fuse.mounts import Legacy, give_up

            asked = item.description
            try:
                legacy = Legacy.of(asked["session"], item.descriptors)
                settings = {name: asked[name] for name in ("client", "options", "profile", "mount_options")}
                settings["promise"] = asked.get("promise", {})
                namespace, root = await self._engine.attach_again(
                    asked["url"], asked["client"], asked["options"], asked["profile"]
                )
                namespace = self._engine.promising(namespace, settings["promise"])
            except (TierCacheError, KeyError, ValueError) as error:
                log.error("%s: cannot be taken over, it is given up: %s", asked.get("mountpoint"), error)
                await self._engine.keeper.release(item.id)
                device = asked.get("session", {}).get("device", "")
                await trio.to_thread.run_sync(give_up, asked.get("mountpoint", ""), device, item.descriptors)
                continue
            mount = Mount(asked["mountpoint"], asked["url"], namespace, root, asked["read_only"], settings, item.id)
            mount.outlives = True
            mount.elsewhere = not await trio.to_thread.run_sync(legacy.is_mounted)
            self._inherited.append((mount, legacy))

    def inherited_inodes(self) -> set[int]:
        """Whatever programs have open in the mounts that are to be taken over."""
        return {slot.inode for _, legacy in self._inherited for slot in legacy.open_files}

    def inherited_for_writing(self, record: StagedRecord) -> bool:
        """Whether programs have a staged file open for writing in these mounts."""
        return (record.origin, record.inode) in {
            (mount.namespace.origin_id, slot.inode)
            for mount, legacy in self._inherited
            for slot in legacy.open_files
            if slot.writes
        }

    async def go_on(self) -> None:
        """Serve the mounts that the engine before this one left."""
        inherited, self._inherited = self._inherited, []
        for mount, legacy in inherited:
            await self._start(mount, legacy)

    async def leave(self) -> None:
        """Stop serving and leave every mount to the next engine."""
        for mount in self:
            if mount.serving is not None:
                mount.serving.leave()
        for mount in self:
            await mount.ended.wait()

    async def umount(self, mountpoint: str, *, lazy: bool = False) -> Mount:
        """Unmount; MountError when it is in use (unless ``lazy``) or not ours. One that is mounted elsewhere too is
        served there until it ends, unless ``lazy``."""
        mount = self._require(mountpoint)
        if mount.serving is None:
            raise MountError(f"{mount.mountpoint}: is being mounted just now")
        await (mount.serving.end() if lazy else mount.serving.unmount())
        await self._part(mount, mount.serving)
        return mount

    async def _part(self, mount: Mount, serving: Serving) -> None:
        """It was unmounted: wait until it has ended, or leave it to those who have it elsewhere."""
        with trio.move_on_after(self._engine.config.engine.umount_wait_s):
            await serving.over.wait()
        if serving.over.is_set():
            await mount.ended.wait()
        elif not mount.elsewhere:
            mount.elsewhere = True
            log.info("%s: is mounted elsewhere too, and served there until it ends", mount.mountpoint)

    async def _parted_by_others(self, mount: Mount) -> None:
        """Somebody else may have taken it away, and its task is about to notice."""
        serving = mount.serving
        if serving is not None and not await trio.to_thread.run_sync(serving.place.is_mounted):
            await self._part(mount, serving)

    def io_modes(self, origin: OriginId, inode: int) -> dict[str, str]:
        """How the kernel reads a file in each mount of its origin: ``passthrough``, ``cached`` or ``closed``."""
        return {
            mount.name: mount.serving.io_mode(inode)
            for mount in self
            if mount.serving is not None and mount.namespace.origin_id == origin
        }

    async def told(self) -> None:
        """Return when the kernel knows, in every mount, of the changes that were made before this call."""
        for mount in self:
            if mount.serving is not None:
                await mount.serving.told()

    async def settled(self) -> None:
        """Return when files that were closed in a mount before this call are closed for the engine too."""
        for mount in self:
            if mount.serving is not None:
                await mount.serving.settled()

    def namespace_of(self, origin: OriginId, key: Key) -> Namespace:
        """How the innermost mount that a key lies under sees its origin; the profile ``general`` where none does."""
        mount = self.over(origin, key)
        return self._engine.namespace(origin, "general") if mount is None else mount.namespace

    def over(self, origin: OriginId, key: Key) -> Mount | None:
        """The innermost mount that shows a key."""
        above = [m for m in self if m.namespace.origin_id == origin and is_below(key, m.root)]
        return max(above, key=lambda mount: len(mount.root), default=None)

    def holding(self, path: str) -> tuple[Mount, Key] | None:
        """The mount that a local path lies in, and the key that it names there."""
        path = _absolute(path)
        best: Mount | None = None
        found = ""
        for mount in self._mounts.values():
            if mount.elsewhere:
                continue
            for spelling in mount.spellings:
                inside = path == spelling or path.startswith(spelling.rstrip("/") + "/")
                if inside and len(spelling) > len(found):
                    best, found = mount, spelling
        if best is None:
            return None
        rest = os.fsencode(path[len(found) :].strip("/"))
        return best, b"/".join(part for part in (best.root, rest) if part)

    def staged_ids(self, mountpoint: str) -> list[int]:
        """The staged files under one mount."""
        mount = self._require(mountpoint)
        return [
            record.id
            for record in self._engine.journal.records()
            if record.origin == mount.namespace.origin_id and is_below(record.key, mount.root)
        ]

    def require_replaceable(self) -> None:
        """MountError when one of them would not outlive this engine."""
        for mount in self:
            if not mount.outlives:
                raise MountError(f"{mount.name}: this mount ends with its engine; unmount it first")

    async def close(self) -> None:
        """End all, in use or not, here and elsewhere: the engine ends."""
        for mount in self:
            if mount.serving is not None:  # else it is given up with the engine's nursery
                await mount.serving.end()
                await mount.ended.wait()

    def _at(self, mountpoint: str) -> Mount | None:
        """The one that has this mount point."""
        path = _absolute(mountpoint)
        return next((mount for mount in self if path in mount.spellings and not mount.elsewhere), None)

    def _require(self, mountpoint: str) -> Mount:
        mount = self._at(mountpoint)
        if mount is None:
            raise MountError(f"{mountpoint}: not a mount of this engine")
        return mount


class _Started:
    """Tells a mount that could not be made (the caller's error) from one that ended later (the log's)."""

    def __init__(self, task_status: trio.TaskStatus[Serving]) -> None:
        self._task_status = task_status
        self.reported = False

    def started(self, serving: Serving) -> None:
        self.reported = True
        self._task_status.started(serving)


def _promise(*, ack: str | None = None, sync_on_close: bool | None = None) -> dict[str, Any]:
    """What was asked for; InvalidArgument or Unsupported for a level that cannot be promised."""
    if ack is not None:
        level_of(ack)
    asked = {"ack": ack, "sync_on_close": sync_on_close}
    return {name: value for name, value in asked.items() if value is not None}


def _absolute(path: str) -> str:
    return os.path.abspath(path)
