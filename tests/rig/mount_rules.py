"""Rules of a state machine: what programs do in a mount."""

from __future__ import annotations

import os

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from rig.choices import CHOICE, FILES, NOWHERE, OFFSETS, PATHS, PLACES, SIZES, refused
from rig.inodes import File
from rig.two_faces import ME, Open, fsync_level
from rig.two_faces_ends import Ends
from tiercache.fuse.vfs import RENAME_NOREPLACE
from tiercache.model import Durability


class MountRules(Ends):
    """Of the ``Vfs``, by the numbers and names that a kernel has."""

    # -- files of the mount ---------------------------------------------------------------------------

    @rule(path=PATHS, flags=st.sampled_from([0, os.O_EXCL, os.O_TRUNC, os.O_APPEND]))
    def create(self, path: str, flags: int) -> None:
        self.settle(path)
        model = self.model
        errors: tuple[type[BaseException], ...] = ()
        if model.bad_parent(path):
            errors = NOWHERE
        elif flags & os.O_EXCL and model.exists(path):
            errors = (FileExistsError,)
        elif path in model.directories:
            errors = (IsADirectoryError,)
        with refused(*errors):
            node, name = self.at(path)
            _, opened = self.run(self.node.vfs.files.create, node, name, 0o644, flags | os.O_CREAT | os.O_RDWR, ME)
        if errors:
            return
        if path not in model.files:
            model.put(path, File())
        file = model.files[path]
        if flags & os.O_TRUNC:
            file.change(b"")
            file.whole = True
        self.opens.append(Open(opened.handle, opened.backing_id, file, True, bool(flags & os.O_APPEND)))

    @precondition(lambda self: self.model.files)
    @rule(
        choice=CHOICE, flags=st.sampled_from([os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC, os.O_RDWR | os.O_APPEND])
    )
    def open(self, choice: int, flags: int) -> None:
        path = self.a_file(choice)
        self.settle(path)
        if path not in self.model.files:
            return
        file = self.model.files[path]
        opened = self.open_as_kernel(path, flags)
        if flags & os.O_TRUNC:
            file.change(b"")
            file.whole = True
        writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.opens.append(Open(opened.handle, opened.backing_id, file, writable, bool(flags & os.O_APPEND)))

    @precondition(lambda self: self.opens or self.model.files)
    @rule(choice=CHOICE, offset=OFFSETS, size=SIZES)
    def write(self, choice: int, offset: int, size: int) -> None:
        writable = [opened for opened in self.opens if opened.writable and not opened.file.replaced]
        if not writable:
            if not self.model.files:
                return
            self.open(choice, os.O_RDWR)
            writable = self.opens[-1:]
        opened = writable[choice % len(writable)]
        file, data = opened.file, self.content(size)
        at = len(file.data) if opened.append else offset
        if opened.backing:
            self.node.kernel.write(opened.backing, at, data)
        else:
            assert self.run(self.node.vfs.files.write, opened.number, offset, data) == len(data)
        file.change(file.data[:at].ljust(at, b"\0") + data + file.data[at + len(data) :])
        self.look_through(opened)

    @precondition(lambda self: self.opens)
    @rule(choice=CHOICE)
    def fsync(self, choice: int) -> None:
        opened = self.opens[choice % len(self.opens)]
        names = self.names_of(opened.file)
        if names & self.contests.keys() or opened.file.replaced:
            return
        level = min((fsync_level(name) for name in names), default=Durability.MEMORY)
        if self.lends and level is Durability.ORIGIN:
            return  # the kernel writes it by itself: it cannot be kept, and is told
        self.run(self.node.vfs.files.fsync, opened.number, data_only=False)
        if level is Durability.ORIGIN:
            found = self.node.at_origin()
            assert any(found.get(name) == opened.file.data for name in names), names
        self.acknowledge_name(opened.file, fsync_level)

    @precondition(lambda self: self.opens)
    @rule(choice=CHOICE)
    def close_one(self, choice: int) -> None:
        opened = self.opens[choice % len(self.opens)]
        if self.lends and "oc" in {name.rpartition("/")[2] for name in self.names_of(opened.file)}:
            return
        self.settle_file(opened.file)
        if opened in self.opens:
            self.opens.remove(opened)
            self.close(opened)

    def settle_file(self, file: File) -> None:
        for path in self.names_of(file):
            self.settle(path)

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, size=st.sampled_from([0, 5, 4096, 5000]))
    def truncate(self, choice: int, size: int) -> None:
        path = self.a_file(choice)
        self.settle(path)
        if path not in self.model.files or (self.lends and self.opens):
            return  # a file that the kernel writes by itself may not be able to wait for the origin, and says so
        file = self.model.files[path]
        self.run(self.node.vfs.setattr, self.node_of(path), size=size)
        file.change(file.data[:size].ljust(size, b"\0"))
        file.whole = file.whole or not size

    # -- names through the mount ----------------------------------------------------------------------

    @rule(path=PATHS)
    def unlink(self, path: str) -> None:
        self.settle(path)
        if self.model.bad_parent(path):
            return
        errors: tuple[type[BaseException], ...] = ()
        if path not in self.model.files:
            errors = (IsADirectoryError,) if path in self.model.directories else (FileNotFoundError,)
        node, name = self.at(path)
        with refused(*errors):
            self.run(self.node.vfs.unlink, node, name)
        if not errors:
            self.model.remove(path)

    @rule(path=PLACES)
    def mkdir(self, path: str) -> None:
        self.settle(path)
        if self.model.bad_parent(path):
            return
        node, name = self.at(path)
        errors = (FileExistsError,) if self.model.exists(path) else ()
        with refused(*errors):
            self.run(self.node.vfs.mkdir, node, name, 0o755, ME)
        if not errors:
            self.model.make_room(path)
            self.model.directories.add(path)

    @rule(path=PATHS)
    def rmdir(self, path: str) -> None:
        self.settle(path)
        model = self.model
        if model.bad_parent(path):
            return
        errors: tuple[type[BaseException], ...] = ()
        if path in model.files:
            errors = (NotADirectoryError,)
        elif path not in model.directories:
            errors = (FileNotFoundError,)
        elif model.children(path):
            errors = (OSError,)
        node, name = self.at(path)
        with refused(*errors):
            self.run(self.node.vfs.rmdir, node, name)
        if not errors:
            model.make_room(path)
            model.directories.discard(path)

    @precondition(lambda self: self.model.files)
    @rule(choice=CHOICE, destination=FILES, flags=st.sampled_from([0, 0, 0, RENAME_NOREPLACE]))
    def rename_file(self, choice: int, destination: str, flags: int) -> None:
        self.rename(self.a_file(choice), destination, flags)

    @rule(source=PLACES, destination=PLACES)
    def rename_directory(self, source: str, destination: str) -> None:
        self.rename(source, destination, 0)

    def rename(self, source: str, destination: str, flags: int) -> None:
        self.settle(source)
        self.settle(destination)
        model = self.model
        if not model.exists(source) or model.bad_parent(destination):
            return
        errors = self.rename_errors(source, destination, flags)
        (node, name), (new_node, new_name) = self.at(source), self.at(destination)
        with refused(*errors):
            self.run(self.node.vfs.rename, node, name, new_node, new_name, flags)
        same = source in model.files and model.files[source] is model.files.get(destination)
        if not errors and source != destination and not same:
            if source in model.directories:
                model.make_room(destination)
                if self.store:
                    model.make_room(source)
            model.move(source, destination)
            for writing in self.writings:
                if writing.path.startswith(source + "/"):
                    writing.path = destination + writing.path[len(source) :]

    def rename_errors(self, source: str, destination: str, flags: int) -> tuple[type[BaseException], ...]:
        model = self.model
        if source == destination or (source in model.files and model.files[source] is model.files.get(destination)):
            return (FileExistsError,) if flags and source != destination else ()
        if source in model.directories and destination.startswith(source + "/"):
            return (OSError,)
        if not model.exists(destination):
            return ()
        if flags:
            return (FileExistsError,)
        if source in model.files:
            return (IsADirectoryError,) if destination in model.directories else ()
        if destination in model.files:
            return (NotADirectoryError,)
        return (OSError,) if model.children(destination) else ()

    @precondition(lambda self: not self.store and self.model.files)
    @rule(choice=CHOICE, destination=FILES)
    def link(self, choice: int, destination: str) -> None:
        source, model = self.a_file(choice), self.model
        self.settle(source)
        self.settle(destination)
        if source not in model.files or model.bad_parent(destination):
            return
        if self.lends and self.writers(model.files[source]):
            return  # refused
        errors = (FileExistsError,) if model.exists(destination) else ()
        node, (parent_node, name) = self.node_of(source), self.at(destination)
        with refused(*errors):
            self.run(self.node.vfs.link, node, parent_node, name)
        if not errors:
            model.make_room(destination)
            model.put(destination, model.files[source])
