"""The engine of one cache directory: opens the state, recovers it, runs the services and hosts mounts and origins."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import trio

from tiercache.cache import Cache
from tiercache.catalog import Catalog
from tiercache.config import PROFILES, Config, Profile, ProfileName
from tiercache.decisions import Decisions
from tiercache.engine.ceiling import HOSTED_BYTES, Ceiling, anonymous_bytes, open_memory
from tiercache.engine.commits import abandon, commit, rebase, restore, withdraw
from tiercache.engine.guesses import Guesses
from tiercache.engine.keeper import Keeper
from tiercache.engine.kept_checkpoints import KeptCheckpoints
from tiercache.engine.leaving import drain_and_tell
from tiercache.engine.lent import Lent
from tiercache.engine.mounts import Mounts
from tiercache.engine.namespace import Namespace
from tiercache.engine.orphans import Orphans
from tiercache.engine.parts import Parts
from tiercache.engine.pins import Pins
from tiercache.engine.places import Places
from tiercache.engine.plans import Plans
from tiercache.engine.promises import Promises
from tiercache.engine.status import Status
from tiercache.engine.tiers import make_tiers
from tiercache.engine.trace import Trace
from tiercache.engine.tree_intents import follow
from tiercache.engine.trees import Trees
from tiercache.engine.warmup import Warmups
from tiercache.engine.why import Why
from tiercache.errors import ConfigError, MountError, TierCacheError, Unsupported
from tiercache.journal import Journal, StagedRecord
from tiercache.memory import Memory, Purpose
from tiercache.metrics import Metrics
from tiercache.model import Key, ObjectStat, OriginId, StagedState, parent_of
from tiercache.readahead import Layouts, Planned, ReadAhead
from tiercache.staging import Staging
from tiercache.writeback import DrainResult, WriteBack
from tiercache.writeback.succession import sent_while_written

JOURNAL_FLUSH_S = 0.2
"""How long what is noted for the journal may wait to be durable: until the next sync of any file, or this long."""

DEMAND_REQUESTS = 8
"""Of the requests to origins that may run at a time so many are left to readers when plans have files brought."""

CATALOG_SYNC_S = 30.0
"""How often the catalog is flushed to disk, so that a clean shutdown has little left to write."""

log = logging.getLogger("tiercache.engine")


class Engine:
    """Composes everything; ``run`` is its life. All methods belong to the engine's trio thread."""

    def __init__(self, config: Config, keeper: Keeper | None = None, *, own_process: bool = False) -> None:
        self.config = config
        self._own_process = own_process
        self.keeper = keeper or Keeper()
        self.replacing = False
        """It ends to make room for a new one, which takes the mounts over."""
        self.unmounts = False
        """It ends in order, and takes its mounts away; else they are left to the next engine."""
        self.metrics = Metrics()
        self.metrics.restarts.set(self.keeper.restarts)
        self.started_s = time.time()
        self.decisions = Decisions(config.why.entries)
        self.metrics.why_entries.set_function(lambda: len(self.decisions))
        self._stopping = trio.Event()
        self._hurry = trio.Event()
        self.left = 0
        """Files that the origins lack at the end, once ``run`` has returned."""
        self._drained = False
        self.nursery: trio.Nursery
        """For services that use the engine's state: they have ended when it is closed, after a crash too."""
        self._namespaces: dict[tuple[OriginId, Profile], Namespace] = {}
        self.memory: Memory
        self.catalog: Catalog
        self.cache: Cache
        self.journal: Journal
        self.staging: Staging
        self.orphans: Orphans
        self.writeback: WriteBack
        self.readahead: ReadAhead
        self.trees: Trees
        self.mounts: Mounts
        self.warmups: Warmups
        self.lent: Lent
        self.places: Places
        self.status_of: Status
        self.why: Why

    # -- life -------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the state until ``stop``; reports started once recovery is through. On the way out it
        unmounts, and drains for ``engine.stop_drain_s``."""
        async with AsyncExitStack() as closing, trio.open_nursery() as nursery:
            self.nursery = nursery
            # First of all, and until the end: mounts are taken back through it.
            nursery.start_soon(self.keeper.run)
            await self._open(closing, nursery)
            await self._recover()
            await nursery.start(self.writeback.run)
            await self.mounts.go_on()
            await self.seal_flushed()
            nursery.start_soon(self._sync_catalog)
            nursery.start_soon(self._flush_journal)
            nursery.start_soon(self.lent.run)
            await self.plans.recall()
            nursery.start_soon(self.plans.run)
            nursery.start_soon(self.trace.run)
            nursery.start_soon(self.guesses.run)
            nursery.start_soon(self.cache.run_trimmer)
            if self._own_process:
                nursery.start_soon(self._ceiling.run)
            if self.config.metrics.listen:
                closing.callback(self.metrics.serve(self.config.metrics.listen))
            log.info("engine of %s is ready", self.config.cache_dir)
            task_status.started()
            await self._stopping.wait()
            await self._leave()
            nursery.cancel_scope.cancel()

    def stop(self, *, drained: bool = False) -> None:
        """End ``run``; what is still staged stays in the journal for the next engine, at once when it ``drained`` or
        is called for the second time."""
        if self._stopping.is_set():
            self._hurry.set()
        self._drained = drained
        self._stopping.set()

    def require_replaceable(self) -> None:
        """Unsupported without a supervisor; MountError when a mount cannot be handed over, or a file that is written
        through one, because what is here of it is not all."""
        if not self.keeper.keeps:
            raise Unsupported(
                f"the engine of {self.config.cache_dir} has no supervisor that could replace it: end it with "
                f"`tiercache stop --cache-dir {self.config.cache_dir}`; the next command starts another"
            )
        self.mounts.require_replaceable()
        for record in self.journal.records():
            if record.spilled:
                raise MountError(str(sent_while_written(record)))

    def replace(self) -> None:
        """End ``run`` without unmounting anything: the supervisor starts a new engine, of the code that is installed
        now, and it goes on with the mounts."""
        self.replacing = True
        self._stopping.set()

    async def _open(self, closing: AsyncExitStack, nursery: trio.Nursery) -> None:
        config, root = self.config, Path(self.config.cache_dir)
        own_bytes = anonymous_bytes() if self._own_process else HOSTED_BYTES
        self.memory, maximum_bytes = open_memory(config, self.metrics, own_bytes)
        self._ceiling = Ceiling(maximum_bytes, self.memory, own_bytes)
        self.catalog = Catalog(
            root / "catalog", map_size_bytes=config.catalog.map_size_bytes, check=not self.keeper.inherited
        )
        closing.callback(self.catalog.close)
        self.journal = Journal(root / "journal", staging_directory=root / "staging", metrics=self.metrics)
        closing.callback(self.journal.close)
        self.staging = Staging(
            root / "staging", config.staging_capacity_bytes(), self.metrics, wait_max_s=config.staging.wait_max_s
        )
        closing.callback(self.staging.close)
        # Nothing in it outlives the engine's end in order; after a crash the next start empties it.
        closing.callback(shutil.rmtree, config.ram_directory, ignore_errors=True)
        self.cache = Cache(
            self.catalog,
            make_tiers(config, root, self.metrics, self.decisions),
            fetch=config.fetch,
            memory=self.memory,
            metrics=self.metrics,
            nursery=nursery,
            run_id=self.catalog.run_id(),
            verify=config.verify,
            decisions=self.decisions,
        )
        closing.callback(self.cache.close)
        self.cache.reserve_for(lambda: self.staging.unused_bytes)
        self.staging.room.give = self.journal.give_room = self.cache.give_room
        self._kept_checkpoints = KeptCheckpoints(
            config.checkpoints, self.catalog, self.cache, root, config.nvme_capacity_bytes(), self.metrics
        )
        self.pins = Pins(
            self.catalog,
            root,
            bytes_max=int(config.nvme_capacity_bytes() * config.nvme.pinned_share_max),
            metrics=self.metrics,
        )
        self.cache.is_kept, self.cache.on_left = self.pins.holds, self.pins.left
        self.orphans = Orphans(root)
        layouts = Layouts(self.cache, self.metrics, nursery, extents_max=config.readahead.extents_max)
        self.readahead = ReadAhead(self.cache, config.readahead, self.metrics, self.decisions, layouts)
        self.planned = Planned(
            config.plan,
            self.metrics,
            nursery,
            at_once=max(1, config.fetch.concurrency - DEMAND_REQUESTS),
            spare_bytes=self.memory.piece_bytes(Purpose.OVERFLOW) // 2,
            decisions=self.decisions,
        )
        self.plans = Plans(self)
        self.trace = Trace(config, self.catalog, self.metrics)
        closing.callback(self.trace.close)
        self.guesses = Guesses(self)
        self.trees = Trees(
            config,
            self.catalog,
            self.cache,
            self.journal,
            memory=self.memory,
            metrics=self.metrics,
            inherit=bool(self.keeper.inherited),
        )
        closing.callback(self.trees.close)
        self.writeback = WriteBack(
            self.journal,
            self.staging,
            self.cache,
            self.trees.origin_of,
            upload=config.upload,
            memory=self.memory,
            metrics=self.metrics,
            on_commit=self._committed,
            on_replaced=self._replaced,
            on_moved=lambda record: nursery.start_soon(self._follow_move, record),
            on_kept=self._kept,
            upload_delay_s=config.staging.upload_delay_s,
            uploads=self.uploads,
            is_open=self._is_open,
            locate=self._locate,
        )
        self.mounts = Mounts(self, nursery)
        self.warmups = Warmups(self, nursery)
        self.lent = Lent(self)
        self.places = Places(self)
        self.status_of = Status(self)
        self.why = Why(self)

    async def _recover(self) -> None:
        """Bring journal, files and catalog together again. Origins are asked later, by the uploads themselves."""
        await self.mounts.inherit()
        intents = self.journal.intents()
        for origin, source in [
            *((record.origin, record.source) for record in [*self.journal.records(), *self.journal.retractions()]),
            *((intent.origin, intent.source) for intent in intents),
        ]:
            await self.trees.prepare(origin, source)
        self.pins.recall()
        self._kept_checkpoints.recall()  # before anything is evicted
        recovered = await self.cache.recover()
        for intent in intents:
            tree = self.trees.get(intent.origin)
            if tree is not None:
                follow(tree, self.cache, intent)
        self.orphans.sweep(self.mounts.inherited_inodes())
        report = await self.writeback.recover(self._is_written_still)
        log.info("recovered: %s, %d staged files to upload, %d lost", recovered, len(report.queued), len(report.lost))
        inherited = self.mounts.inherited_inodes()
        for record in report.discarded:
            tree = self.trees.get(record.origin)
            if tree is not None and record.spilled and record.inode in inherited:
                abandon(tree, record)
        for record in sorted(self.journal.records(), key=lambda record: record.rank):
            tree = self.trees.get(record.origin)
            if tree is not None and record.published and record.state is not StagedState.LOST:
                restore(tree, record, self.staging.open(record.id))

    async def _leave(self) -> None:
        """Unmount everything and bring to the origins what the deadline allows; or leave all to the next engine."""
        if self.replacing:
            await self.mounts.leave()
            return
        self.unmounts = True
        await self.mounts.close()
        self.lent.give_up()
        deadline_s = 0.0 if self._drained else self.config.engine.stop_drain_s
        self.left = await drain_and_tell(self, deadline_s, self._hurry)

    async def _flush_journal(self) -> None:
        while True:
            await trio.sleep(JOURNAL_FLUSH_S)
            try:
                await self.journal.flush()
            except TierCacheError as error:
                # Nobody waits for this one; whoever syncs or closes a file gets the error of their own commit.
                log.error("the journal could not be written: %s", error)

    async def _sync_catalog(self) -> None:
        while True:
            await trio.sleep(CATALOG_SYNC_S)
            try:
                await trio.to_thread.run_sync(self.catalog.sync)
            except TierCacheError as error:
                # It serves on, and can be rebuilt: no reason to end what is mounted.
                log.error("%s: the next start begins with an empty catalog", error)

    def _is_open(self, record: StagedRecord) -> bool:
        """Whether a program has a staged file open for writing. One that was closed, and that somebody may still have
        mapped, is not."""
        tree = self.trees.get(record.origin)
        live = tree.live.get(record.inode) if tree is not None else None
        return (live is not None and live.writers > 0) or self.mounts.inherited_for_writing(record)

    def _locate(self, origin: OriginId, path: bytes) -> Key | None:
        """What an absolute path stands for inside an origin, if it lies in a mount of it."""
        held = self.mounts.holding(os.fsdecode(path)) if path.startswith(b"/") else None
        return held[1] if held is not None and held[0].namespace.origin_id == origin else None

    def _is_written_still(self, record: StagedRecord) -> bool:
        """Of what an earlier engine left, in a mount that outlived it, or mapped from one that is gone."""
        return self.mounts.inherited_for_writing(record) or self.staging.is_written_elsewhere(record.id)

    def _committed(self, record: StagedRecord, stat: ObjectStat) -> None:
        tree = self.trees.get(record.origin)
        if tree is not None:
            commit(tree, record, stat)
            self._kept_checkpoints.committed(record.origin, record.key, tree.staged_below)
            rebase(tree, self.journal, record, stat)

    def _replaced(self, record: StagedRecord) -> None:
        tree = self.trees.get(record.origin)
        if tree is not None:
            withdraw(tree, record)

    async def _follow_move(self, record: StagedRecord) -> None:
        if record.moves is None or self.trees.get(record.origin) is None:
            return
        try:
            await self.namespace(record.origin, record.profile).resumption.follow(record.moves)
        except TierCacheError as error:
            self.writeback.try_again(record.id, error)

    def _kept(self, record: StagedRecord) -> None:
        """What a renamed file left shows itself again: the next look asks the origin."""
        tree = self.trees.get(record.origin)
        if tree is not None:
            tree.doubt(record.key)
            tree.catalog.forget_listing(tree.origin_id, parent_of(record.key))
            tree.changed(record.key)

    def holds_work(self) -> bool:
        """Whether something is mounted, staged bytes have to reach an origin, or a directory's change has to end."""
        if len(self.mounts) or self.writeback.trees.goes_on():
            return True
        settled = (StagedState.CONFLICT, StagedState.LOST)
        return any(
            record.published and self.uploads(record) and record.state not in settled
            for record in self.journal.records()
        )

    def uploads(self, record: StagedRecord) -> bool:
        """Whether the profile that wrote the file brings it to the origin."""
        return self.config.profile(profile_name(record.profile)).upload

    # -- what clients ask for ---------------------------------------------------------------------

    async def attach(
        self, url: str, client: str = "", options: Mapping[str, Any] | None = None, profile: str = ""
    ) -> tuple[Namespace, Key]:
        """The namespace of a URL (or of the name of an origin in the configuration) and the key in it."""
        url, client, options, profile = self._configured(url, client, options or {}, profile)
        tree, root = await self.trees.attach(url, client, options)
        if self._own_process:
            self._ceiling.adjust()  # a new kind of origin brings its library
        return self.namespace(tree.origin_id, profile), root

    async def attach_again(
        self, url: str, client: str, options: Mapping[str, Any], profile: str
    ) -> tuple[Namespace, Key]:
        """As ``attach`` for a mount that outlived its engine; the origin is asked nothing."""
        url, client, options, profile = self._configured(url, client, options, profile)
        tree, root = await self.trees.adopt(url, client, options)
        return self.namespace(tree.origin_id, profile), root

    def _configured(
        self, url: str, client: str, options: Mapping[str, Any], profile: str
    ) -> tuple[str, str, Mapping[str, Any], str]:
        """Settings of a configured origin, under those that the caller gives."""
        if url.startswith("tiercache://"):
            name, _, rest = url.removeprefix("tiercache://").partition("/")
            origin = self.config.origins.get(name)
            if origin is None:
                known = ", ".join(sorted(self.config.origins)) or "none"
                raise ConfigError(f"{url}: no origin named {name!r} in the configuration; there are: {known}")
            url = f"{origin.url.rstrip('/')}/{rest}" if rest else origin.url
            return url, client or origin.client, {**origin.options, **options}, profile or origin.profile
        for origin in self.config.origins.values():
            if url == origin.url or url.startswith(origin.url.rstrip("/") + "/"):
                return url, client or origin.client, {**origin.options, **options}, profile or origin.profile
        return url, client or "obstore", options, profile or "general"

    def namespace(self, origin: OriginId, profile: str) -> Namespace:
        """The view of an attached origin under a profile."""
        return self._namespace(origin, self.config.profile(profile_name(profile)))

    def promising(self, namespace: Namespace, promise: Mapping[str, Any]) -> Namespace:
        """The same view with another ``ack`` or ``sync_on_close``, where ``promise`` has one."""
        return self._namespace(namespace.origin_id, namespace.profile.model_copy(update=dict(promise)))

    def _namespace(self, origin: OriginId, settings: Profile) -> Namespace:
        found = self._namespaces.get((origin, settings))
        if found is None:
            tree = self.trees.get(origin)
            if tree is None:
                raise ConfigError("this origin is not attached to the engine (any more)")
            parts = Parts(
                self.cache,
                self.readahead,
                self.staging,
                self.journal,
                self.writeback,
                self.orphans,
                self.config.checkpoints,
                self.guesses.watch(origin, lambda: self._namespace(origin, settings)),
                self.trace.read,
            )
            promises = Promises(settings.ack, settings.sync_on_close, self.config.rules, uploads=settings.upload)
            found = self._namespaces[origin, settings] = Namespace(tree, settings, promises, parts)
        return found

    async def drain(self, deadline_s: float, *, mountpoint: str | None = None) -> DrainResult:
        """Bring everything that is staged (of one mount) to its origin; returns at the deadline with what is left."""
        ids = None
        until_s = trio.current_time() + deadline_s
        with trio.move_on_at(until_s):
            await self.mounts.settled()
            await self.seal_flushed()
        if mountpoint is not None:
            ids = self.mounts.staged_ids(mountpoint)
        return await self.writeback.drain(max(0.0, until_s - trio.current_time()), ids=ids)

    async def seal_flushed(self) -> None:
        """A file whose writers are all gone, but whose seal the kernel has not asked for yet, is drained too."""
        for record in list(self.journal.records()):
            if record.state is StagedState.STAGED and self.uploads(record):
                await self.seal_if_closed(record)

    async def seal_if_closed(self, record: StagedRecord) -> None:
        """Let a staged file go up that nobody has open for writing, or mapped."""
        tree = self.trees.get(record.origin)
        live = tree.live.get(record.inode) if tree is not None else None
        if live is None or live.staged is None or live.staged.id != record.id or live.writers:
            return
        with suppress(TierCacheError):  # one file's trouble, told by the drain's result and in status
            await self.namespace(record.origin, record.profile).writes.closes.seal(live)

    def status(self) -> dict[str, Any]:
        """Figures of the whole engine."""
        return self.status_of.engine()


def profile_name(name: str) -> ProfileName:
    """ConfigError for a profile that does not exist."""
    for known in PROFILES:
        if known == name:
            return known
    raise ConfigError(f"there is no profile {name!r}; there are: {', '.join(PROFILES)}")
