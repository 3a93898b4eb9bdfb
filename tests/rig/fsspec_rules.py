"""Rules of a state machine: what programs do through fsspec."""

from __future__ import annotations

from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from rig.choices import CHOICE, FILES, OFFSETS, PLACES, SIZES, refused
from rig.inodes import File
from rig.two_faces import Reading, Writing, close_level, fsync_level
from rig.two_faces_ends import Ends
from tiercache.model import Durability


class FsspecRules(Ends):
    """Of ``TierCacheFileSystem``."""

    @rule(path=FILES, mode=st.sampled_from(["wb", "wb", "xb", "ab", "r+b"]), size=SIZES, offset=OFFSETS)
    def write_fs(self, path: str, mode: str, size: int, offset: int) -> None:
        self.settle(path)
        model = self.model
        if model.bad_parent(path):
            return
        old = model.files.get(path)
        errors: tuple[type[BaseException], ...] = ()
        if path in model.directories:
            errors = (IsADirectoryError,)
        elif old is not None and mode == "xb":
            errors = (FileExistsError,)
        elif old is None and mode == "r+b":
            errors = (FileNotFoundError,)
        with self.node.gate.patience(), refused(*errors):
            writer = self.fs.open(self.place + path, mode)
        if errors:
            return
        kept = mode in ("ab", "r+b") and old is not None
        start = old.data if old is not None and kept else b""
        at = len(start) if mode == "ab" else offset
        data = self.content(size)
        writer.seek(at)
        writer.write(data)
        whole = start[:at].ljust(at, b"\0") + data + start[at + len(data) :]
        base = (old, len(old.seen)) if old is not None and kept else None
        self.writings.append(Writing(writer, path, whole, mode == "xb", base))

    @precondition(lambda self: self.writings)
    @rule(choice=CHOICE, sync=st.booleans())
    def close_fs(self, choice: int, sync: bool) -> None:
        writing, model = self.writings.pop(choice % len(self.writings)), self.model
        path, old = writing.path, model.files.get(writing.path)
        self.settle(path)
        other_base = writing.base is not None and (old is None or (old, len(old.seen)) != writing.base)
        if other_base or model.bad_parent(path) or path in model.directories:
            writing.writer.discard()
            return
        if sync:
            writing.writer.fileno()
        errors = (FileExistsError,) if writing.exclusive and old is not None else ()
        # What a disk in memory tells of its pages says nothing of an fsync.
        synced = mock.patch("tiercache.client.writer.may_be_synced", return_value=True)
        with self.node.gate.patience(), synced, refused(*errors):
            writing.writer.close()
        if errors:
            return
        file = File(whole=writing.base is None)
        file.change(writing.data)
        model.put(path, file)
        level = max(close_level(path), fsync_level(path)) if sync else close_level(path)
        model.acknowledge(file, level)
        if level is Durability.ORIGIN:
            assert self.node.at_origin().get(path) == writing.data

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE)
    def open_fs(self, choice: int) -> None:
        path = self.a_file(choice)
        self.settle(path)
        file = self.model.files.get(path)
        if file is not None:
            reader = self.fs.open(self.place + path, "rb")
            self.readings.append(Reading(reader, file, len(file.seen) - 1, reader.size))

    @precondition(lambda self: self.readings)
    @rule(choice=CHOICE)
    def close_reading(self, choice: int) -> None:
        self.readings.pop(choice % len(self.readings)).reader.close()

    @rule(path=FILES)
    def remove_fs(self, path: str) -> None:
        self.settle(path)
        errors = () if path in self.model.files else (OSError,)
        with self.node.gate.patience(), refused(*errors):
            self.fs.rm_file(self.place + path)
        if not errors:
            self.model.remove(path)
            self.forget_empty_directories()

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, destination=FILES)
    def move_fs(self, choice: int, destination: str) -> None:
        source, model = self.a_file(choice), self.model
        self.settle(source)
        self.settle(destination)
        if source not in model.files or model.bad_parent(destination) or destination in model.directories:
            return
        with self.node.gate.patience():
            self.fs.mv(self.place + source, self.place + destination)
        if model.files[source] is not model.files.get(destination):
            model.move(source, destination)
            self.forget_empty_directories()

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, destination=FILES)
    def copy_fs(self, choice: int, destination: str) -> None:
        source, model = self.a_file(choice), self.model
        self.settle(source)
        self.settle(destination)
        if (
            source not in model.files
            or model.bad_parent(destination)
            or destination in model.directories
            or source == destination
        ):
            return
        with self.node.gate.patience():
            self.fs.cp_file(self.place + source, self.place + destination)
        file = File()
        file.change(model.files[source].data)
        model.put(destination, file)

    @rule(path=PLACES)
    def remove_tree_fs(self, path: str) -> None:
        self.settle(path)
        model = self.model
        if path not in model.directories:
            return
        with self.node.gate.patience():
            self.fs.rm(self.place + path, recursive=True)
        model.make_room(path)
        for below in [*model.below(path), path]:
            if below in model.files:
                model.remove(below)
            model.directories.discard(below)
        self.forget_empty_directories()

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, level=st.sampled_from(["local", "origin", ""]))
    def wait_durable(self, choice: int, level: str) -> None:
        path = self.a_file(choice)
        self.settle(path)
        file = self.model.files.get(path)
        if file is None or (self.writers(file) and level != "local"):
            return
        with self.node.gate.patience():
            if level:
                self.fs.wait_durable([self.place + path], level=level, deadline=10)
            else:
                self.fs.flush(self.place + path)
        self.model.acknowledge(file, Durability[level.upper()] if level else fsync_level(path))
