"""A node's two faces beside a plain model of files: how it is set up, looked at, and what must be left after a loss."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.inodes import File, Model, parent
from rig.memory_origin import StoreOrigin
from rig.node import Node
from tiercache.errors import Changed, TierCacheError, errno_of, os_error
from tiercache.filesystem import TierCacheFileSystem
from tiercache.fuse.attributes import Caller
from tiercache.fuse.nodes import ROOT_NODE
from tiercache.model import Durability, Key, StagedState
from tiercache.origins import Origin, Source, Upload
from tiercache.origins.posix import PosixOrigin

ACKS = {"a": "local", "b": "local", "m": "memory", "o": "origin", "c": "local", "oc": "origin"}
"""Names of files, and what fsync promises of them. Those with a ``c`` are synced by each close."""

RULES = [
    {"path": "m", "ack": "memory"},
    {"path": "o", "ack": "origin"},
    {"path": "c", "sync_on_close": True},
    {"path": "oc", "ack": "origin", "sync_on_close": True},
]
DIRECTORIES = ["", "d", "e", "d/s"]
NAMES = [f"{directory}/{name}".lstrip("/") for directory in DIRECTORIES for name in ACKS]
ME = Caller(0, 0, 1)
STALE = errno_of(Changed())
TOLD = (StagedState.CONFLICT, StagedState.LOST)


def fsync_level(path: str) -> Durability:
    return Durability[ACKS.get(path.rpartition("/")[2], "local").upper()]


def close_level(path: str) -> Durability:
    return fsync_level(path) if path.rpartition("/")[2] in ("c", "oc") else Durability.MEMORY


@dataclass(eq=False)
class Open:
    """A file that a program has open in the mount, beside what it should see."""

    number: int
    backing: int
    """Of the file that was lent for it."""
    file: File
    writable: bool
    append: bool


@dataclass(eq=False)
class Reading:
    """A file that is open for reading through fsspec."""

    reader: Any
    file: File
    first: int
    """Which of the file's states it was when it was opened; what is written through a mount it may see too."""
    size: int


@dataclass(eq=False)
class Writing:
    """One that is open for writing through fsspec, which nobody sees before it is closed."""

    writer: Any
    path: str
    data: bytes
    exclusive: bool
    base: tuple[File, int] | None
    """What it was made from, and how often that had changed."""


@dataclass
class Contest:
    """Others have written what may be dirty here: the name holds one or the other, and a conflict is told."""

    ours: File
    theirs: bytes | None


class Faces:
    """``store``: over an object store, else over a file tree. ``ttl_s``: how long names are believed; with 0 others may
    write at the origin. ``lends``: the kernel gets files to read and write by itself."""

    store = False
    ttl_s: float = 0
    lends = False

    def set_up(self) -> None:
        memory = Path("/dev/shm")
        self.base = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
        (self.base / "origin").mkdir()
        self.model = Model()
        self.opens: list[Open] = []
        self.readings: list[Reading] = []
        self.writings: list[Writing] = []
        self.contests: dict[str, Contest] = {}
        self.made = 0
        origin: Origin = StoreOrigin() if self.store else PosixOrigin()
        root = b"root" if self.store else os.fsencode(self.base / "origin").lstrip(b"/")
        if self.store:
            origin.make_directory(root)
        self.place = "bucket/" if self.store else "/"
        url = "s3://bucket" if self.store else "file:///"
        self.node = Node(self.base, origin, url, root, ttl_s=self.ttl_s, lends=self.lends, rules=RULES)

    def begin(self, paths: set[str], size: int) -> None:
        """Some files are at the origin before we are."""
        for directory in DIRECTORIES[1:]:
            self.node.origin.make_directory(self.key(directory))
        self.model.directories.update(DIRECTORIES)
        for path in sorted(paths):
            data = self.content(size)
            self.put_at_origin(path, data)
            self.adopt(path, data)
        self.node.start()

    @property
    def fs(self) -> TierCacheFileSystem:
        return self.node.fs

    # -- helpers ------------------------------------------------------------------------------------

    def content(self, size: int) -> bytes:
        """Bytes that were never written before."""
        self.made += 1
        return f"{self.made}.".encode().ljust(size, b"%d" % (self.made % 10))

    def key(self, path: str) -> Key:
        return self.node.root + b"/" + path.encode() if path else self.node.root

    def a_file(self, choice: int) -> str:
        """The name of a file that there is."""
        files = sorted(self.model.files)
        return files[choice % len(files)]

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """A call of the mount; errors are those that a program sees."""
        try:
            return self.node.run(function, *arguments, **options)
        except TierCacheError as error:
            raise os_error(error, "") from error

    def node_of(self, path: str) -> int:
        node = ROOT_NODE
        for name in path.split("/") if path else ():
            node = self.run(self.node.vfs.lookup, node, name.encode()).attr.node
        return node

    def at(self, path: str) -> tuple[int, bytes]:
        """A path as the kernel names it."""
        return self.node_of(parent(path)), path.rpartition("/")[2].encode()

    def writers(self, file: File) -> int:
        return sum(1 for opened in self.opens if opened.file is file and opened.writable)

    def keeps_back(self, opened: Open) -> bool:
        """Whether a file does not go up while a program has this open: it writes it, or opened it for reading while
        another one wrote it, and so shares what was lent for writing."""
        return opened.writable or (opened.backing != 0 and self.node.kernel.may_write(opened.backing))

    def names_of(self, file: File) -> set[str]:
        return {path for path, other in self.model.files.items() if other is file}

    def put_at_origin(self, path: str, data: bytes) -> None:
        source = self.base / "foreign"
        source.write_bytes(data)
        self.node.origin.write(self.key(path), Upload(Source(str(source), len(data))))

    def put_past_gate(self, path: str, data: bytes) -> None:
        """Others write while our own uploads wait."""
        with self.node.gate.let_by():
            self.put_at_origin(path, data)

    def adopt(self, path: str, data: bytes) -> None:
        """The origin has a file that is new to the model."""
        file = File()
        file.change(data)
        file.whole = False
        self.model.put(path, file)
        self.model.acknowledge(file, Durability.ORIGIN)

    def acknowledge_name(self, file: File, level_of: Callable[[str], Durability]) -> None:
        """fsync or close of a file: the weakest of what is promised of its names."""
        names = self.names_of(file)
        if names:
            self.model.acknowledge(file, min(level_of(name) for name in names))

    # -- looking ------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Through the mount."""
        opened = self.open_as_kernel(path, os.O_RDONLY)
        try:
            return self.read_open(opened.handle, opened.backing_id)
        finally:
            self.run(self.node.vfs.files.release, opened.handle)

    def open_as_kernel(self, path: str, flags: int) -> Any:
        """What is stale is looked up again, once."""
        try:
            return self.run(self.node.vfs.files.open, self.node_of(path), flags, ME)
        except OSError as error:
            if error.errno != STALE:
                raise
        return self.run(self.node.vfs.files.open, self.node_of(path), flags, ME)

    def read_open(self, number: int, backing: int) -> bytes:
        if backing:
            return os.pread(self.node.kernel.descriptor(backing), 1 << 20, 0)
        return bytes(self.run(self.node.vfs.files.read, number, 0, 1 << 20))

    def drain(self) -> None:
        """All that nobody writes is at the origin."""
        result = self.node.drain()
        written = {opened.file for opened in self.opens if self.keeps_back(opened)}
        contested = {contest.ours for contest in self.contests.values()}
        found = self.node.at_origin()
        states = {record.id: record.state for record in self.node.engine.journal.records()}
        assert {states[staged] for staged in result.left} <= {StagedState.STAGED, StagedState.CONFLICT}, result
        assert {states[staged] for staged in result.errors} <= {StagedState.CONFLICT}, result
        assert self.contests or StagedState.CONFLICT not in states.values(), result
        for path, file in self.model.files.items():
            if path not in self.contests and file not in written | contested:
                assert found.get(path) == file.data, (path, found.get(path, b"-")[:20], file.data[:20])
                file.whole = False
                self.model.acknowledge(file, Durability.ORIGIN)
        if not written and not self.contests:
            assert found.keys() == self.model.files.keys()

    def look(self) -> None:
        """Both faces show what the model says, and nothing that was open reads anything else."""
        model = self.model
        for directory in sorted(model.directories):
            self.look_at_directory(directory)
        for path, file in model.files.items():
            if path not in self.contests:
                self.look_at(path, file)
        for opened in self.opens:
            self.look_through(opened)
        for reading in self.readings:
            self.look_at_reading(reading)

    def look_at_reading(self, reading: Reading) -> None:
        """One version; of a file that is written through the mount meanwhile each byte as it is or was."""
        reading.reader.seek(0)
        found = reading.reader.read()
        states = [state[: reading.size].ljust(reading.size, b"\0") for state in reading.file.seen[reading.first :]]
        if len(states) == 1:
            assert found == states[0], reading.file.names
        assert all(byte in column for byte, column in zip(found, zip(*states, strict=True), strict=False)), found[:20]

    def look_at_directory(self, directory: str) -> None:
        contested = {path for path in self.contests if parent(path) == directory}
        expected = self.model.children(directory) - contested
        stream = self.run(self.node.vfs.opendir, self.node_of(directory))
        lines = self.run(self.node.vfs.readdirplus, stream, 0, 1000)
        self.run(self.node.vfs.releasedir, stream)
        listed = {f"{directory}/{line.name.decode()}".lstrip("/") for line in lines if line.name not in (b".", b"..")}
        assert listed - contested == expected, (directory, listed, expected)
        names = self.fs.ls(self.place + directory, detail=False)
        shown = {name.removeprefix(self.place) for name in names}
        assert shown - contested == expected, (directory, shown, expected)

    def look_at(self, path: str, file: File) -> None:
        assert self.read(path) == file.data, path
        assert self.run(self.node.vfs.getattr, self.node_of(path)).size_bytes == len(file.data), path
        assert self.fs.cat_file(self.place + path) == file.data, path
        assert self.fs.info(self.place + path)["size"] == len(file.data), path

    def look_through(self, opened: Open) -> None:
        try:
            found = self.read_open(opened.number, opened.backing)
        except OSError as error:
            if opened.file.replaced and error.errno == STALE:
                return
            raise
        assert found == opened.file.data, (opened.file.names, found[:20])
