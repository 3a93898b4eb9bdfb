"""What the tests of the write path work with: real journal, staging and POSIX origin, with switches in between."""

from __future__ import annotations

import functools
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing

from tiercache.cache import VersionRef
from tiercache.config import UploadConfig
from tiercache.journal import ConditionKind, Journal, OriginSource, StagedRecord
from tiercache.memory import SMALLEST_BYTES, Memory
from tiercache.metrics import Metrics
from tiercache.model import Attributes, Capability, Key, ObjectStat, OriginId, StagedState, origin_id
from tiercache.origins.base import Origin, Upload
from tiercache.origins.posix import PosixOrigin
from tiercache.staging import Disk, Staging
from tiercache.writeback import WriteBack

ATTRIBUTES = Attributes(0o640, os.getuid(), os.getgid(), 1_700_000_000_000_000_000)
LARGE_CAPACITY_BYTES = 1 << 40


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        trio.run(functools.partial(test, **fixtures))

    return run


def in_jumping_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on a clock that jumps to the next deadline whenever all tasks wait."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        trio.run(functools.partial(test, **fixtures), clock=trio.testing.MockClock(autojump_threshold=0))

    return run


class SwitchedOrigin:
    """A real origin behind switches: fail the next writes, hold writes before or after they land, hold deletes, log
    every call."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self.calls: list[tuple[str, Key]] = []
        self.write_errors: list[Exception] = []
        self.error_after_landing: Exception | None = None
        self.hold_writes = False
        self.hold_landed = False
        self.hold_deletes = False
        self.stoppable = True
        self.release = threading.Event()
        self.before_write: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self.most_at_once: dict[Key, int] = {}
        self._running: dict[Key, int] = {}
        self.held = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    def listen(self) -> None:
        """Called inside trio: ``held`` is set when a write reaches its hold."""
        self._token = trio.lowlevel.current_trio_token()
        self.held = trio.Event()
        self.release.clear()

    @property
    def identity(self) -> str:
        return self._origin.identity

    def require_key(self, key: Key) -> None:
        self._origin.require_key(key)

    @property
    def capabilities(self) -> Capability:
        return self._origin.capabilities

    def written(self) -> list[Key]:
        return [key for op, key in self.calls if op == "write"]

    def write(self, key: Key, upload: Upload) -> ObjectStat:
        self._enter(key)
        try:
            with self._lock:
                error = self.write_errors.pop(0) if self.write_errors else None
            if error is not None:
                raise error
            if self.hold_writes:
                self._hold()
                if upload.progress is not None and self.stoppable:
                    upload.progress(0)
            self.before_write()
            stat = self._origin.write(key, upload if self.stoppable else upload._replace(progress=None))
            if self.hold_landed:
                self._hold()
            if self.error_after_landing is not None:
                error, self.error_after_landing = self.error_after_landing, None
                raise error
            return stat
        finally:
            self._leave(key)

    def _hold(self) -> None:
        assert self._token is not None
        self._token.run_sync_soon(self.held.set)
        assert self.release.wait(30), "nobody released the write"

    def _enter(self, key: Key) -> None:
        with self._lock:
            self.calls.append(("write", key))
            self._running[key] = self._running.get(key, 0) + 1
            self.most_at_once[key] = max(self.most_at_once.get(key, 0), self._running[key])

    def _leave(self, key: Key) -> None:
        with self._lock:
            self._running[key] -= 1

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._origin, name)

        def call(key: Key, *arguments: Any, **options: Any) -> Any:
            with self._lock:
                self.calls.append((name, key))
            if name == "delete" and self.hold_deletes:
                self._hold()
            return method(key, *arguments, **options)

        return call


class Shelf:
    """The least that write-back needs of a cache: files renamed into a directory, by version."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(exist_ok=True)
        self.adopted: dict[bytes, bytes] = {}
        self.admits = True

    def adopt(self, version: VersionRef, path: str, checksums: bytes) -> bool:
        if not self.admits:
            return False
        os.rename(path, self.directory / version.id.hex())
        self.adopted[version.id] = checksums
        return True

    def data(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.directory.iterdir())]


class Desk:
    """One cache directory, one origin directory, and everything between them; ``again`` is the next run."""

    def __init__(
        self,
        root: Path,
        *,
        disk: Disk | None = None,
        capacity_bytes: int = LARGE_CAPACITY_BYTES,
        concurrency: int = 4,
        upload_delay_s: float = 0.0,
        is_open: Callable[[StagedRecord], bool] = lambda record: False,
        origin: Origin | None = None,
        prefix: Key | None = None,
        make_journal: Callable[..., Journal] = Journal,
        make_shelf: Callable[[Path], Any] = Shelf,
    ) -> None:
        self.root = root
        self.files = root / "origin"
        self.files.mkdir(exist_ok=True)
        self.prefix = os.fsencode(self.files).lstrip(b"/") + b"/" if prefix is None else prefix
        self.metrics = Metrics()
        self.origin = SwitchedOrigin(origin or PosixOrigin())
        self.origin_id: OriginId = origin_id(self.origin.identity)
        self.staging = Staging(root / "staging", capacity_bytes, self.metrics, disk=disk)
        self.journal = make_journal(
            root / "journal", staging_directory=root / "staging", metrics=self.metrics, map_size_bytes=1 << 20
        )
        self.shelf = make_shelf(root / "shelf")
        self.commits: list[tuple[StagedRecord, ObjectStat]] = []
        self.states: list[tuple[int, StagedState]] = []
        self.write_back = WriteBack(
            self.journal,
            self.staging,
            self.shelf,
            lambda record: self.origin,  # type: ignore[arg-type,return-value]
            upload=UploadConfig(concurrency=concurrency),
            memory=Memory(SMALLEST_BYTES, metrics=self.metrics),
            metrics=self.metrics,
            on_commit=lambda record, stat: self.commits.append((record, stat)),
            on_state=lambda record: self.states.append((record.id, record.state)),
            upload_delay_s=upload_delay_s,
            is_open=is_open,
            rng=random.Random(1),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.origin.listen()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.write_back.run)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()
                self.origin.release.set()

    def key(self, name: str) -> Key:
        return self.prefix + name.encode()

    def object(self, name: str) -> bytes | None:
        """What the origin directory has under this name."""
        path = self.files / name
        return path.read_bytes() if path.exists() else None

    def objects(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.files.iterdir())}

    def landed(self) -> list[str]:
        """The names that went up, in this order."""
        return [record.key.removeprefix(self.prefix).decode() for record, _ in self.commits]

    def etag(self, name: str) -> str:
        return self.origin.stat(self.key(name)).etag  # type: ignore[no-any-return]

    async def stage(
        self,
        name: str,
        data: bytes,
        *,
        inode: int = 0,
        base_etag: str = "",
        condition: ConditionKind = ConditionKind.ALWAYS,
        published: bool = True,
        profile: str = "general",
        in_place: bool = False,
    ) -> int:
        """A staged file with a durable record, still open for writing. The record comes after the bytes: a crash
        between them must not leave a published half."""
        file = self.staging.create()
        await self.staging.reserve(file.id, len(data))
        file.write(0, data)
        await self.journal.put(
            StagedRecord(
                file.id,
                inode or file.id,
                self.origin_id,
                OriginSource("file:///"),
                self.key(name),
                base_etag=base_etag,
                condition=condition,
                published=published,
                attributes=ATTRIBUTES,
                file_inode=file.inode,
                profile=profile,
                in_place=in_place,
            )
        )
        return file.id

    async def save(self, name: str, data: bytes, *, sync: bool = True, **fields: Any) -> int:
        """Write and close a file: staged, sealed and (with ``sync``) durable."""
        staged_id = await self.stage(name, data, **fields)
        await self.write_back.seal(staged_id, sync=sync)
        return staged_id

    def record(self, staged_id: int) -> StagedRecord:
        record = self.journal.get(staged_id)
        assert record is not None
        return record

    async def reaches(self, staged_id: int, state: StagedState) -> None:
        """Wait until the record is in this state."""
        while (record := self.journal.get(staged_id)) is None or record.state is not state:
            await self.write_back.changed()

    def staged_bytes(self, staged_id: int) -> bytes:
        return (self.root / "staging" / str(staged_id)).read_bytes()

    def shrink(self, staged_id: int, size_bytes: int) -> None:
        """Damage a staged file from outside."""
        os.truncate(self.staging.path(staged_id), size_bytes)

    def scribble(self, staged_id: int, offset: int) -> None:
        """A byte goes bad on the disk: nobody has written it."""
        path = Path(self.staging.path(staged_id))
        status = path.stat()
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"\xff")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def staged_names(self) -> set[str]:
        return {path.name for path in (self.root / "staging").iterdir() if path.is_file()}

    def close(self) -> None:
        self.journal.close()
        self.staging.close()

    def again(self, **options: Any) -> Desk:
        """Close this one properly and start anew on the same directories."""
        self.close()
        return Desk(self.root, **options)


def crash(desk: Desk) -> None:
    """Leave everything as a kill -9 would: nothing that only memory knows gets to the disk."""
    desk.journal._pending.close()
    desk.journal._env.close()
    desk.staging.close()
