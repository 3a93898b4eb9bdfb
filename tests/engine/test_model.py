"""Random changes by a mount and by clients, uploads, evictions, crashes and foreign writes, against a simple model.

``MODEL_EXAMPLES=200`` runs that many random examples instead of a few fixed ones.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from rig.engine_ground import read_file
from rig.memory_origin import StoreOrigin
from rig.trio_loop import Loop
from tiercache.config import Config
from tiercache.engine.engine import Engine
from tiercache.engine.handle import Handle
from tiercache.engine.namespace import Namespace
from tiercache.errors import (
    Absent,
    Changed,
    Exists,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotEmpty,
    TierCacheError,
)
from tiercache.model import Key, Kind
from tiercache.origins import Origin, Source, Upload
from tiercache.origins.posix import PosixOrigin

Errors = tuple[type[TierCacheError], ...]

DIRECTORIES = ["", "d", "e", "d/s"]
NAMES = [f"{d}/{n}".lstrip("/") for d in DIRECTORIES for n in ("a", "b")]
PATHS = st.sampled_from([*NAMES, "d", "e", "d/s", "e/s"])
FILES = st.sampled_from(NAMES)
DATA = st.binary(min_size=1, max_size=12)
CHOICE = st.integers(0, 99)


class Crashed(Exception):
    """The engine is dead."""


@dataclass(eq=False)
class File:
    """One inode of the model."""

    data: bytes = b""
    acked: bytes | None = None
    """What a crash must not take away; None while the file itself was never acknowledged."""
    changes: int = 0

    def change(self, data: bytes) -> None:
        self.data = data
        self.changes += 1


@dataclass(eq=False)
class Open:
    """A handle beside what it should see."""

    handle: Handle
    file: File
    writable: bool
    append: bool


@dataclass(eq=False)
class Written:
    """A client's file that is not published."""

    staged: int
    path: str
    staging_path: str
    data: bytes
    exclusive: bool
    base: tuple[File, int] | None = None


@dataclass
class Model:
    """Directories and files by path, as POSIX would have them."""

    files: dict[str, File] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {""})

    def children(self, directory: str) -> set[str]:
        return {p for p in (*self.files, *self.directories) if p and parent(p) == directory}

    def below(self, directory: str) -> list[str]:
        return [p for p in (*self.files, *self.directories) if p.startswith(directory + "/")]

    def bad_parent(self, path: str) -> bool:
        return parent(path) not in self.directories

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories


def parent(path: str) -> str:
    return path.rpartition("/")[0]


class FilesystemMachine(RuleBasedStateMachine):
    """The rules. Subclasses say over which origin, and for how long names are believed."""

    ttl_s: float = 0
    store = False

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        (self.base / "origin").mkdir()
        self.loop = Loop()
        self.model = Model()
        self.opens: list[Open] = []
        self.written: list[Written] = []
        self.origin: Origin = StoreOrigin() if self.store else PosixOrigin()
        self.root = b"root" if self.store else os.fsencode(self.base / "origin").lstrip(b"/")
        if self.store:
            self.origin.make_directory(self.root)
        self.engine: Engine
        self.names: Namespace
        self._running: trio.CancelScope
        self._ended: trio.Event

    # -- the engine ---------------------------------------------------------------------------------

    @initialize(files=st.dictionaries(FILES, DATA, min_size=3))
    def start(self, files: dict[str, bytes]) -> None:
        """Some files are at the origin before we are."""
        for directory in DIRECTORIES[1:]:
            self.origin.make_directory(self.key(directory))
        self.model.directories.update(DIRECTORIES)
        for path, data in files.items():
            self.put_at_origin(path, data)
        self.loop.run(self._start)

    async def _start(self) -> None:
        ttl = {"ttl_s": str(self.ttl_s), "negative_ttl_s": min(self.ttl_s, 5)}
        config = Config.model_validate(
            {
                "cache_dir": self.base / "cache",
                "ram": {"capacity": "1MiB", "directory": self.base / "ram"},
                "nvme": {"capacity": "64MiB", "free_space_floor": 0},
                "staging": {"capacity": "64MiB"},
                "engine": {"stop_drain_s": 0},
                "profiles": {"general": ttl},
            }
        )
        self.engine, self._running, self._ended = Engine(config), trio.CancelScope(), trio.Event()

        async def life(*, task_status: trio.TaskStatus[None]) -> None:
            try:
                with self._running:
                    await self.engine.run(task_status=task_status)
            except* Crashed:
                pass
            finally:
                self._ended.set()

        with mock.patch("tiercache.engine.trees.open_origin", return_value=(self.origin, self.root)):
            await self.loop.nursery.start(life)
            self.names, _ = await self.engine.attach("memory://model")
        await self.names.root(self.root)

    async def _crash(self) -> None:
        def crashed(*_: Any, **__: Any) -> None:
            raise Crashed  # what was not flushed yet never reaches the disk, nor does anything follow it

        self.engine.journal._commit = crashed  # type: ignore[method-assign]
        self._running.cancel()
        await self._ended.wait()

    async def _stop(self) -> None:
        for opened in self.opens:
            await opened.handle.flush()
            await opened.handle.close()
        self.engine.stop()
        await self._ended.wait()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.check_everything()
            self.loop.run(self._crash)
        self.loop.close()
        shutil.rmtree(self.base)

    # -- helpers ------------------------------------------------------------------------------------

    def a_file(self, choice: int) -> str:
        """The name of a file that there is."""
        files = sorted(self.model.files)
        return files[choice % len(files)]

    def key(self, path: str) -> Key:
        return self.root + b"/" + path.encode() if path else self.root

    def inode(self, path: str) -> int:
        return self.loop.run(self.names.lookup, self.key(path)).inode

    @contextmanager
    def expect(self, *errors: type[TierCacheError]) -> Iterator[None]:
        """The block fails with one of these errors; without any it succeeds."""
        if not errors:
            yield
            return
        with pytest.raises(errors):
            yield

    def place_errors(self, path: str) -> Errors:
        return (Absent, NotDirectory) if self.model.bad_parent(path) else ()

    def writers(self, file: File) -> int:
        return sum(1 for opened in self.opens if opened.file is file and opened.writable)

    def acknowledge(self, file: File) -> None:
        file.acked = file.data

    def open_as_kernel(self, path: str, *, write: bool, truncate: bool) -> Handle:
        """What is stale is looked up again, once: an upload may have given the object another etag just now."""

        def attempt() -> Handle:
            inode = self.inode(path)
            return self.loop.run(lambda: self.names.open(inode, write=write, truncate=truncate))

        try:
            return attempt()
        except Changed:
            return attempt()

    # -- a mount's files ----------------------------------------------------------------------------

    @rule(path=PATHS, exclusive=st.booleans(), truncate=st.booleans(), append=st.booleans())
    def create(self, path: str, exclusive: bool, truncate: bool, append: bool) -> None:
        model, errors = self.model, self.place_errors(path)
        if exclusive and model.exists(path):
            errors = (Exists,)
        elif path in model.directories:
            errors = (IsDirectory,)

        async def make() -> Handle:
            _, handle = await self.names.create(
                self.key(path), mode=0o644, uid=0, gid=0, exclusive=exclusive, truncate=truncate, append=append
            )
            return handle

        with self.expect(*errors):
            handle = self.loop.run(make)
        if not errors:
            file = model.files.setdefault(path, File())
            if truncate:
                file.change(b"")
            self.opens.append(Open(handle, file, True, append))

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, write=st.sampled_from([True, True, False]), truncate=st.booleans())
    def open(self, choice: int, write: bool, truncate: bool) -> None:
        path = self.a_file(choice)
        file = self.model.files[path]
        handle = self.open_as_kernel(path, write=write, truncate=write and truncate)
        if write and truncate:
            file.change(b"")
        self.opens.append(Open(handle, file, write, False))

    @precondition(lambda self: self.opens or self.model.files)
    @rule(choice=CHOICE, offset=st.integers(0, 20), data=DATA)
    def write(self, choice: int, offset: int, data: bytes) -> None:
        writable = [opened for opened in self.opens if opened.writable]
        if not writable:
            self.open(choice, write=True, truncate=False)
            writable = self.opens[-1:]
        opened = writable[choice % len(writable)]
        assert self.loop.run(opened.handle.write, offset, data) == len(data)
        old = opened.file.data
        if opened.append:
            opened.file.change(old + data)
        else:
            opened.file.change(old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :])
        assert bytes(self.loop.run(opened.handle.read, 0, 1000)) == opened.file.data

    @precondition(lambda self: self.opens)
    @rule(choice=CHOICE)
    def read(self, choice: int) -> None:
        opened = self.opens[choice % len(self.opens)]
        assert bytes(self.loop.run(opened.handle.read, 0, 1000)) == opened.file.data

    @precondition(lambda self: self.opens)
    @rule(choice=CHOICE)
    def fsync(self, choice: int) -> None:
        opened = self.opens[choice % len(self.opens)]
        self.loop.run(opened.handle.fsync)
        self.acknowledge(opened.file)

    @precondition(lambda self: self.opens)
    @rule(choice=CHOICE)
    def close(self, choice: int) -> None:
        opened = self.opens.pop(choice % len(self.opens))
        self.loop.run(opened.handle.flush)
        self.loop.run(opened.handle.close)
        if opened.writable and not self.writers(opened.file):
            self.acknowledge(opened.file)

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, size=st.integers(0, 15))
    def truncate(self, choice: int, size: int) -> None:
        path = self.a_file(choice)
        file, inode = self.model.files[path], self.inode(path)
        self.loop.run(lambda: self.names.setattr(inode, size=size))
        file.change(file.data[:size].ljust(size, b"\0"))
        if not self.writers(file):
            self.acknowledge(file)

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, mode=st.sampled_from([0o600, 0o644, 0o755]))
    def chmod(self, choice: int, mode: int) -> None:
        path = self.a_file(choice)
        inode = self.inode(path)
        assert self.loop.run(lambda: self.names.setattr(inode, mode=mode)).mode == mode
        assert self.loop.run(self.names.lookup, self.key(path)).mode == mode

    # -- names --------------------------------------------------------------------------------------

    @rule(path=PATHS)
    def unlink(self, path: str) -> None:
        errors: Errors = ()
        if path not in self.model.files:
            errors = (IsDirectory,) if path in self.model.directories else (Absent,)
        with self.expect(*errors):
            self.loop.run(self.names.unlink, self.key(path))
        self.model.files.pop(path, None)

    @rule(path=st.sampled_from(["d", "e", "d/s", "e/s"]))
    def mkdir(self, path: str) -> None:
        errors = (Exists,) if self.model.exists(path) else self.place_errors(path)
        with self.expect(*errors):
            self.loop.run(lambda: self.names.mkdir(self.key(path), mode=0o755, uid=0, gid=0))
        if not errors:
            self.model.directories.add(path)

    @rule(path=PATHS)
    def rmdir(self, path: str) -> None:
        model = self.model
        errors: Errors = ()
        if path in model.files:
            errors = (NotDirectory,)
        elif path not in model.directories:
            errors = (Absent,)
        elif model.children(path):
            errors = (NotEmpty,)
        with self.expect(*errors):
            self.loop.run(self.names.rmdir, self.key(path))
        if not errors:
            model.directories.discard(path)

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, destination=FILES)
    def move_file(self, choice: int, destination: str) -> None:
        self.rename(self.a_file(choice), destination, False)

    @precondition(lambda self: not self.store and self.model.files)
    @rule(choice=CHOICE, destination=FILES)
    def link(self, choice: int, destination: str) -> None:
        model, source = self.model, self.a_file(choice)
        errors = (Exists,) if model.exists(destination) else self.place_errors(destination)
        inode = self.inode(source)
        with self.expect(*errors):
            self.loop.run(self.names.link, inode, self.key(destination))
        if not errors:
            model.files[destination] = model.files[source]
            self.acknowledge(model.files[source])

    @rule(source=PATHS, destination=PATHS, no_replace=st.booleans())
    def move(self, source: str, destination: str, no_replace: bool) -> None:
        self.rename(source, destination, no_replace)

    def rename(self, source: str, destination: str, no_replace: bool) -> None:
        errors = self._rename_errors(source, destination, no_replace)
        with self.expect(*errors):
            self.loop.run(lambda: self.names.rename(self.key(source), self.key(destination), no_replace=no_replace))
        same = self.model.files.get(source) is self.model.files.get(destination)
        if errors or source == destination or (source in self.model.files and same):
            return
        if source in self.model.files:
            self.model.files[destination] = self.model.files.pop(source)
            return
        for path in [source, *self.model.below(source)]:
            moved = destination + path[len(source) :]
            if path in self.model.files:
                self.model.files[moved] = self.model.files.pop(path)
            else:
                self.model.directories.discard(path)
                self.model.directories.add(moved)
        for written in self.written:
            if written.path.startswith(source + "/"):
                written.path = destination + written.path[len(source) :]

    def _rename_errors(self, source: str, target: str, no_replace: bool) -> Errors:
        model, errors = self.model, set[type[TierCacheError]]()
        if not model.exists(source):
            return (Absent,)
        if source == target:
            return ()
        if source in model.directories and target.startswith(source + "/"):
            errors.add(InvalidArgument)
        errors.update(self.place_errors(target))
        if model.exists(target):
            if no_replace:
                errors.add(Exists)
            if model.files.get(source) is not None and model.files.get(source) is model.files.get(target):
                return tuple(errors)
            if source in model.files and target in model.directories:
                errors.add(IsDirectory)
            if source in model.directories and target in model.files:
                errors.add(NotDirectory)
            if source in model.directories and target in model.directories and model.children(target):
                errors.add(NotEmpty)
        return tuple(errors)

    @rule(path=st.sampled_from(["d", "e", "d/s", "e/s"]))
    def remove_tree(self, path: str) -> None:
        if path not in self.model.directories:
            return
        if any(opened.file is self.model.files.get(p) for p in self.model.below(path) for opened in self.opens):
            return
        self.loop.run(self.names.remove_tree, self.key(path))
        for below in [path, *self.model.below(path)]:
            self.model.files.pop(below, None)
            self.model.directories.discard(below)

    # -- clients ------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, destination=FILES)
    def copy(self, choice: int, destination: str) -> None:
        model, source = self.model, self.a_file(choice)
        if model.bad_parent(destination) or destination in model.directories:
            return
        self.loop.run(self.names.copy, self.key(source), self.key(destination))
        if source != destination:
            data = model.files[source].data
            model.files[destination] = File(data, acked=data)

    @rule(path=FILES, exclusive=st.booleans(), keep=st.booleans(), data=DATA)
    def stage(self, path: str, exclusive: bool, keep: bool, data: bytes) -> None:
        model, errors = self.model, self.place_errors(path)
        if errors:
            return
        old = model.files.get(path)
        if path in model.directories:
            errors = (IsDirectory,)
        elif old is not None and exclusive:
            errors = (Exists,)
        with self.expect(*errors):
            staged, staging_path, size = self.loop.run(
                lambda: self.names.stage(self.key(path), exclusive=exclusive, keep=keep)
            )
        if errors:
            return
        start = old.data if old is not None and keep else b""
        assert size == len(start)
        with open(staging_path, "ab") as file:
            file.write(data)
        base = (old, old.changes) if old is not None and keep else None
        self.written.append(Written(staged, path, staging_path, start + data, exclusive, base))

    @precondition(lambda self: self.written)
    @rule(choice=CHOICE)
    def publish(self, choice: int) -> None:
        written, model = self.written.pop(choice % len(self.written)), self.model
        old = model.files.get(written.path)
        based_on_another = written.base is not None and (old is None or (old, old.changes) != written.base)
        if based_on_another or model.bad_parent(written.path) or written.path in model.directories:
            self.loop.run(self.names.discard, written.staged)
            return
        errors = (Exists,) if written.exclusive and old is not None else ()
        with self.expect(*errors):
            self.loop.run(self.names.publish, written.staged)
        if errors:
            self.loop.run(self.names.discard, written.staged)
        else:
            model.files[written.path] = File(written.data, acked=written.data)

    @precondition(lambda self: self.written)
    @rule(choice=CHOICE)
    def discard(self, choice: int) -> None:
        self.loop.run(self.names.discard, self.written.pop(choice % len(self.written)).staged)

    # -- what happens to all ------------------------------------------------------------------------

    @rule(what=st.sampled_from(["drain", "evict_all", "crash", "stop", "check_everything"]))
    def event(self, what: str) -> None:
        getattr(self, what)()

    def drain(self) -> None:
        result = self.loop.run(self.engine.drain, 10)
        assert result.errors == {}
        written = {opened.file for opened in self.opens if opened.writable}
        open_ids = {record.id for record in self.engine.journal.records() if record.state.value == "staged"}
        assert set(result.left) <= open_ids
        found = self.at_origin()
        for path, file in self.model.files.items():
            if file not in written:
                assert found.get(path) == file.data, path
                self.acknowledge(file)
        if not written:
            assert found.keys() == self.model.files.keys()

    def at_origin(self) -> dict[str, bytes]:
        found = {}
        for stat in self.origin.walk(self.root):
            if stat.kind is Kind.FILE:
                data = self.origin.read(stat.key, 0, stat.size_bytes, stat.etag) if stat.size_bytes else b""
                found[os.fsdecode(stat.key[len(self.root) + 1 :])] = bytes(data)
        return found

    def evict_all(self) -> None:
        async def evict() -> None:
            for version, _ in list(self.engine.catalog.versions()):
                self.engine.cache.drop(version)

        self.loop.run(evict)

    @precondition(lambda self: not self.ttl_s)
    @rule(path=FILES, data=st.none() | DATA)
    def foreign_change(self, path: str, data: bytes | None) -> None:
        """Somebody else writes or deletes at the origin what nobody here has open or dirty."""
        model, file = self.model, self.model.files.get(path)
        if model.bad_parent(path) or path in model.directories or self.written:
            return
        if any(opened.writable for opened in self.opens) or any(opened.file is file for opened in self.opens):
            return
        self.drain()
        if data is None:
            if file is not None:
                self.origin.delete(self.key(path))
                del model.files[path]
                if self.store and not model.children(parent(path)):
                    self.forget_empty_directories()
            return
        self.put_at_origin(path, data)

    def put_at_origin(self, path: str, data: bytes) -> None:
        source = self.base / "foreign"
        source.write_bytes(data)
        self.origin.write(self.key(path), Upload(Source(str(source), len(data))))
        self.model.files[path] = File(data, acked=data)

    def crash(self) -> None:
        self.loop.run(self._crash)
        self.restarted()

    def stop(self) -> None:
        for opened in self.opens:
            self.acknowledge(opened.file)
        self.loop.run(self._stop)
        self.restarted()

    def restarted(self) -> None:
        self.opens.clear()
        self.written.clear()
        self.loop.run(self._start)
        self.forget_empty_directories()
        outcomes: dict[File, bytes | None] = {}
        for path, file in list(self.model.files.items()):
            try:
                data: bytes | None = self.loop.run(read_file, self.names, self.key(path))
            except Absent:
                data = None
            assert data == outcomes.setdefault(file, data), path
            assert data in (file.data, file.acked), path
            if data is None:
                del self.model.files[path]
            else:
                file.change(data)
                self.acknowledge(file)
        self.check_everything()

    def forget_empty_directories(self) -> None:
        """On a store an empty directory may have been a memory of the engine: it may go, and those above it."""
        for path in sorted(self.model.directories - {""}, reverse=True):
            if self.store and not self.model.children(path):
                try:
                    self.inode(path)
                except Absent:
                    self.model.directories.discard(path)

    def check_everything(self) -> None:
        model = self.model
        for directory in model.directories:
            listed = self.loop.run(self.names.list, self.key(directory))
            found = {f"{directory}/{os.fsdecode(name)}".lstrip("/"): entry for name, entry in listed}
            assert found.keys() == model.children(directory), directory
            for path, entry in found.items():
                assert (entry.kind is Kind.DIRECTORY) == (path in model.directories), path
        for path, file in model.files.items():
            assert self.loop.run(read_file, self.names, self.key(path)) == file.data, path
            assert self.loop.run(self.names.lookup, self.key(path)).size_bytes == len(file.data), path
        walked = self.loop.run(self.names.walk, self.root)
        files = {os.fsdecode(key[len(self.root) + 1 :]) for key, entry in walked if entry.kind is Kind.FILE}
        assert files == model.files.keys()


class PosixMachine(FilesystemMachine):
    pass


class StoreMachine(FilesystemMachine):
    store = True


class PosixBelievedMachine(FilesystemMachine):
    """Names are believed for ever: our own bookkeeping alone keeps them current."""

    ttl_s = float("inf")


class StoreBelievedMachine(FilesystemMachine):
    store = True
    ttl_s = float("inf")


@pytest.mark.parametrize("machine", [PosixMachine, StoreMachine, PosixBelievedMachine, StoreBelievedMachine])
def test_files_are_what_was_written(machine: type[FilesystemMachine]) -> None:
    budget = int(os.environ.get("MODEL_EXAMPLES", "8"))
    profile = settings(
        max_examples=budget,
        stateful_step_count=60,
        deadline=None,
        derandomize="MODEL_EXAMPLES" not in os.environ,
        database=None,
        phases=[Phase.generate],  # a failure is reproducible as it is; shrinking it takes minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=profile)
