"""Bring a prefix into the cache ahead of its use, or what of it a list names; or check what of it is there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from tiercache.cache import VersionRef
from tiercache.engine.first_read import first_read
from tiercache.engine.names import require_bytes, show
from tiercache.engine.namespace import Namespace
from tiercache.engine.status import resident_bytes
from tiercache.errors import Absent, ConfigError, NoSpace, TierCacheError, Unsupported
from tiercache.model import Entry, Key, Kind

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine

FILES_AT_ONCE = 64
ERRORS_KEPT_MAX = 100
JOBS_KEPT_MAX = 64
"""Finished jobs that can still be asked for."""


@dataclass(eq=False)
class Job:
    """One warm-up and how far it is."""

    id: str
    check: bool
    files: int = 0
    done_files: int = 0
    bytes: int = 0
    done_bytes: int = 0
    resident_files: int = 0
    resident_bytes: int = 0
    damaged: int = 0
    errors: list[str] = field(default_factory=list)
    failed_files: int = 0
    absent_files: int = 0
    """Of those that a list names."""
    listed: bool = False
    finished: trio.Event = field(default_factory=trio.Event)

    def report(self) -> dict[str, Any]:
        return {
            "job": self.id,
            "files": self.files,
            "done_files": self.done_files,
            "bytes": self.bytes,
            "done_bytes": self.done_bytes,
            "resident_files": self.resident_files,
            "resident_bytes": self.resident_bytes,
            "damaged": self.damaged,
            "errors": self.errors,
            "failed_files": self.failed_files,
            "absent_files": self.absent_files,
            "finished": self.finished.is_set(),
        }

    def fail(self, key: Key, error: TierCacheError) -> None:
        self.failed_files += 1
        self._tell(key, error)

    def lacks(self, key: Key, error: Absent) -> None:
        """A name of the list stands for nothing."""
        self.absent_files += 1
        self._tell(key, error)

    def _tell(self, key: Key, error: TierCacheError) -> None:
        if len(self.errors) < ERRORS_KEPT_MAX:
            name, text = key.decode("utf-8", "backslashreplace"), str(error)
            self.errors.append(text if f"/{name}" in text else f"{name}: {text}")


class Warmups:
    """Starts jobs in the engine's nursery; they go on when the command that asked is gone."""

    def __init__(self, engine: Engine, nursery: trio.Nursery) -> None:
        self._engine = engine
        self._nursery = nursery
        self._jobs: dict[str, Job] = {}

    async def start(
        self,
        url: str,
        *,
        check: bool,
        client: str = "",
        options: dict[str, Any] | None = None,
        profile: str = "",
        listed: tuple[str, int] | None = None,
    ) -> Job:
        """Begin; the origin's errors about the prefix itself are raised here. ``listed``: name of a file of keys beside
        the plans, and how many there are. InvalidArgument if there is no such file."""
        namespace, root = await self._engine.attach(url, client, options, profile)
        if listed is None:
            return self.begin(namespace, root, check=check)
        keys = self._engine.plans.take_keys(listed[0])
        return self._begin(Job(secrets.token_hex(4), check, files=listed[1]), namespace, root, keys)

    def begin(self, namespace: Namespace, root: Key, *, check: bool = False) -> Job:
        """The same for what is attached already."""
        return self._begin(Job(secrets.token_hex(4), check), namespace, root)

    def _begin(self, job: Job, namespace: Namespace, root: Key, keys: Iterator[Key] | None = None) -> Job:
        self._forget_oldest()
        self._jobs[job.id] = job
        self._nursery.start_soon(self._run, job, namespace, root, keys)
        return job

    def get(self, job_id: str) -> Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise ConfigError(f"there is no warm-up {job_id}")
        return job

    def _forget_oldest(self) -> None:
        finished = [job_id for job_id, job in self._jobs.items() if job.finished.is_set()]
        for job_id in finished[: max(0, len(self._jobs) - JOBS_KEPT_MAX)]:
            del self._jobs[job_id]

    async def _run(self, job: Job, namespace: Namespace, root: Key, keys: Iterator[Key] | None) -> None:
        limiter = trio.CapacityLimiter(FILES_AT_ONCE)
        try:
            if keys is not None:
                async with trio.open_nursery() as nursery:
                    for key in keys:
                        await limiter.acquire_on_behalf_of(key)
                        nursery.start_soon(self._named, job, namespace, key, limiter)
                return
            files = await self._list(namespace, root)
            job.files = len(files)
            job.bytes = sum(entry.size_bytes for _, entry in files)
            job.listed = True
            async with trio.open_nursery() as nursery:
                for key, entry in files:
                    await limiter.acquire_on_behalf_of(key)
                    nursery.start_soon(self._one, job, namespace, key, entry, limiter)
        except TierCacheError as error:
            job.fail(root, error)
        finally:
            job.finished.set()

    async def _list(self, namespace: Namespace, root: Key) -> list[tuple[Key, Entry]]:
        entry = await namespace.names.find(root)
        if entry is not None and entry.kind is Kind.FILE:
            return [(root, entry)]
        found = await namespace.walk(root)
        files = [(key, entry) for key, entry in found if entry.kind is Kind.FILE and not entry.staged]
        if not files and entry is None:
            raise Absent(f"there is nothing under /{root.decode('utf-8', 'backslashreplace')}")
        return files

    async def _named(self, job: Job, namespace: Namespace, key: Key, limiter: trio.CapacityLimiter) -> None:
        """A file of which a list tells the name alone. Unless its directory was listed, one request describes it and
        fetches it."""
        try:
            entry = namespace.known(key)
            if entry is None and not job.check:
                entry = await first_read(namespace, self._engine.cache, key, ahead=True)
            elif entry is None or entry.kind is Kind.ABSENT:
                entry = await namespace.lookup(key)
            require_bytes(key, entry)
            if entry.kind is Kind.SYMLINK:
                raise Unsupported(f"{show(key)}: is a symbolic link; name what it leads to")
            job.bytes += entry.size_bytes
        except TierCacheError as error:
            job.done_files += 1
            if isinstance(error, Absent):
                job.lacks(key, error)
            else:
                job.fail(key, error)
            limiter.release_on_behalf_of(key)
        else:
            await self._one(job, namespace, key, entry, limiter)

    async def _one(self, job: Job, namespace: Namespace, key: Key, entry: Entry, limiter: trio.CapacityLimiter) -> None:
        cache = self._engine.cache
        version = namespace.tree.version_ref(key, entry)
        try:
            if entry.staged:  # its newest bytes are here, and nowhere else
                job.resident_files += 1
                job.resident_bytes += entry.size_bytes
                return
            if job.check:
                await self._check(job, version)
                return
            cache.welcome(version.id)
            if await cache.ensure(version, 0, entry.size_bytes) is None:
                raise NoSpace(
                    "does not fit into the cache, or was not admitted: "
                    "nvme.policy, include, exclude, quotas, daily_writes_max"
                )
            job.resident_files += 1
            job.resident_bytes += entry.size_bytes
        except TierCacheError as error:
            job.fail(key, error)
        finally:
            job.done_files += 1
            job.done_bytes += entry.size_bytes
            limiter.release_on_behalf_of(key)

    async def _check(self, job: Job, version: VersionRef) -> None:
        """Compare what is here with its checksums; a damaged copy is dropped, and counted."""
        before = self._engine.catalog.version(version.id)
        location = await self._engine.cache.locate_verified(version)
        after = self._engine.catalog.version(version.id)
        job.resident_files += location is not None
        job.resident_bytes += resident_bytes(after) if after is not None else 0
        job.damaged += before is not None and before.complete and location is None
