"""A plain model of files: names that stand for inodes, and of each inode what a loss must leave of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tiercache.model import Durability


class Loss(enum.Enum):
    """What is taken away, and the level from which on a promise outlives it."""

    POWER = Durability.LOCAL
    NODE = Durability.ORIGIN


@dataclass
class Promise:
    """What was acknowledged of an inode at a level."""

    states: list[bytes]
    """That, and what it was since."""
    since: int
    """From which of its names on."""


@dataclass(eq=False)
class File:
    """One inode."""

    data: bytes = b""
    seen: list[bytes] = field(default_factory=lambda: [b""])
    """All states that it ever had."""
    names: list[str] = field(default_factory=list)
    """All names that it ever had."""
    promises: dict[Loss, Promise] = field(default_factory=dict)
    successor: tuple[File, int] | None = None
    """Which file took its last name from it, and which of that one's names this is."""
    removed: bool = False
    """It was removed, by its last name."""
    whole: bool = True
    """Nothing of what it was at the origin is in it: it may replace what others wrote there."""
    replaced: bool = False
    """Others have replaced it at the origin: who has it open reads the old bytes, or is told."""

    def __repr__(self) -> str:
        return f"<{self.names} {len(self.data)}:{self.data[:12]!r}>"

    def change(self, data: bytes) -> None:
        self.data = data
        self.seen.append(data)
        for promise in self.promises.values():
            promise.states.append(data)

    def acknowledge(self, level: Durability, present: Collection[str]) -> None:
        """What it is now outlives what the level promises, under its ``present`` names and those that it gets."""
        since = min(len(self.names) - 1 - self.names[::-1].index(name) for name in present)
        for loss in Loss:
            if level >= loss.value:
                self.promises[loss] = Promise([self.data], since)

    def survived(self, loss: Loss, found: Mapping[str, bytes], told: Collection[str]) -> bool:
        """Whether what was promised of it is kept: by the bytes of a name, by being told of, or by a file that took its
        name later and is there instead."""
        promise = self.promises.get(loss)
        if promise is None or self.removed:
            return True
        names = self.names[promise.since :]
        if any(found.get(name) in promise.states for name in names):
            return True
        if len(promise.states) > 1 and any(name in told for name in names):
            return True  # it was written on without a promise
        return self.successor is not None and self.successor[0].took_over(self.successor[1], found, told)

    def took_over(self, since: int, found: Mapping[str, bytes], told: Collection[str]) -> bool:
        """Whether it is there by one of its later names, or was removed, or another took over from it."""
        if self.removed or any(found.get(name) in self.seen for name in self.names[since:]):
            return True
        if self.promises and any(name in told for name in self.names[since:]):
            return True
        return self.successor is not None and self.successor[0].took_over(self.successor[1], found, told)


def is_in(path: str, place: str) -> bool:
    """Whether it is the place, or lies in it."""
    return path == place or path.startswith(place + "/")


def parent(path: str) -> str:
    return path.rpartition("/")[0]


@dataclass
class Model:
    """Directories and files by path, as POSIX would have them."""

    files: dict[str, File] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {""})
    ever: set[File] = field(default_factory=set)
    """All files that had a name, since the last time that everything was looked at."""
    losable: set[File] = field(default_factory=set)
    """Those of which something was promised."""

    def children(self, directory: str) -> set[str]:
        return {p for p in (*self.files, *self.directories) if p and parent(p) == directory}

    def below(self, directory: str) -> list[str]:
        return [p for p in (*self.files, *self.directories) if p.startswith(directory + "/")]

    def bad_parent(self, path: str) -> bool:
        return parent(path) not in self.directories

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def count(self, file: File) -> int:
        """How many names it has."""
        return sum(1 for other in self.files.values() if other is file)

    def put(self, path: str, file: File) -> None:
        """The file takes a name, from another one if there is one."""
        old = self.files.get(path)
        self.files[path] = file
        self.ever.add(file)
        file.names.append(path)
        if old is not None and old is not file and not self.count(old):
            old.successor = (file, len(file.names) - 1)

    def remove(self, path: str) -> File:
        file = self.files.pop(path)
        file.removed = not self.count(file)
        return file

    def move(self, source: str, target: str) -> None:
        """A file, or a directory with all in it."""
        if source in self.files:
            self.put(target, self.files.pop(source))
            return
        for file in self.losable:  # what renamed files left at the origin moves along
            file.names = [target + name[len(source) :] if is_in(name, source) else name for name in file.names]
        for path in [source, *self.below(source)]:
            moved = target + path[len(source) :]
            if path in self.files:
                self.put(moved, self.files.pop(path))
            else:
                self.directories.discard(path)
                self.directories.add(moved)

    def make_room(self, place: str) -> None:
        """What renamed files have left at the origin under this name, or in this directory, goes, whether they are
        there or not."""
        for file in self.losable:
            if any(is_in(name, place) for name in self._left(file)):
                file.promises.pop(Loss.NODE, None)

    def give_up_old_names(self, is_written: Callable[[File], bool]) -> None:
        """Another file has taken the old name of one that is not at the origin yet. It goes up after that one, unless
        that is open for writing, or they have exchanged their names."""
        for file in self.losable:
            heir = self.heir(file)
            takers = {self.files[name] for name in self._left(file) if name in self.files} - {heir}
            if takers and (is_written(heir) or any(self._waits_for(heir, taker) for taker in takers)):
                file.promises.pop(Loss.NODE, None)

    def heir(self, file: File) -> File:
        """Which file has taken its last name, in the end."""
        while not self.count(file) and file.successor is not None:
            file = file.successor[0]
        return file

    def _left(self, file: File) -> set[str]:
        """The names under which the origin may have what was promised of a file, and that it does not have any more."""
        promise = file.promises.get(Loss.NODE)
        names = file.names[promise.since :] if promise is not None else []
        return {name for name in names if self.files.get(name) is not file}

    def _waits_for(self, file: File, wanted: File) -> bool:
        """Whether ``file`` has an old name of ``wanted``, or of one that waits for it."""
        seen, left = {file}, [file]
        while left:
            current = left.pop()
            names = {name for name, other in self.files.items() if other is current}
            ahead = {self.heir(other) for other in self.ever if other is not current and names & set(other.names)}
            if wanted in ahead:
                return True
            left += ahead - seen
            seen |= ahead
        return False

    def acknowledge(self, file: File, level: Durability) -> None:
        file.acknowledge(level, {path for path, other in self.files.items() if other is file})
        if file.promises:
            self.losable.add(file)
