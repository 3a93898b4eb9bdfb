"""A file on a mount and one on the local disk go through the same random operations and stay the same."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.mounts import Mounted

LONGEST_BYTES = 300_000
OPERATIONS = 150


class Pair:
    """The file and its model; every operation is done to both, and what it returns must agree."""

    def __init__(self, path: Path, model: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self._paths = (path, model)
        self._files: list[int] = []
        self.open()

    def open(self) -> None:
        self.close()
        self._files = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for path in self._paths]

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []

    def both(self, call: Callable[[int], object]) -> None:
        found, wanted = (call(file) for file in self._files)
        assert found == wanted

    def span(self) -> tuple[int, int]:
        """An offset and a length, often at the ends of pages."""
        offset, length = self.random.randrange(LONGEST_BYTES), self.random.randrange(1, 60_000)
        if self.random.random() < 0.3:
            offset, length = offset // 4096 * 4096, length // 4096 * 4096 or 4096
        return offset, min(length, LONGEST_BYTES - offset) or 1

    def read(self) -> None:
        offset, length = self.span()
        self.both(lambda file: os.pread(file, length, offset))

    def write(self) -> None:
        offset, length = self.span()
        data = self.random.randbytes(length)
        self.both(lambda file: os.pwrite(file, data, offset))

    def truncate(self) -> None:
        length = self.random.randrange(LONGEST_BYTES)
        self.both(lambda file: os.ftruncate(file, length))

    def allocate(self) -> None:
        offset, length = self.span()
        self.both(lambda file: os.posix_fallocate(file, offset, length))

    def copy(self) -> None:
        source, length = self.span()
        size = os.fstat(self._files[0]).st_size
        length = min(length, size - source)
        if length > 0:
            target = (source + length) % LONGEST_BYTES
            if target >= source + length or target + length <= source:
                self.both(lambda file: copy_range(file, source, target, length))

    def map(self) -> None:
        """Change bytes through a shared mapping, and look at others."""
        size = os.fstat(self._files[0]).st_size
        if size:
            at, byte = self.random.randrange(size), self.random.randrange(256)
            self.both(lambda file: change_mapped(file, at, byte))

    def sync(self) -> None:
        self.both(os.fsync)

    def size(self) -> None:
        self.both(lambda file: (os.fstat(file).st_size, os.lseek(file, 0, os.SEEK_END)))

    def step(self) -> None:
        """One operation."""
        kinds = (
            self.read,
            self.write,
            self.truncate,
            self.allocate,
            self.copy,
            self.map,
            self.sync,
            self.size,
            self.open,
        )
        self.random.choices(kinds, (6, 6, 2, 1, 2, 3, 1, 2, 1))[0]()


def copy_range(file: int, source: int, target: int, length: int) -> int:
    copied = 0
    while copied < length:
        moved = os.copy_file_range(file, file, length - copied, source + copied, target + copied)
        if not moved:
            break
        copied += moved
    return copied


def change_mapped(file: int, at: int, byte: int) -> bytes:
    with mmap.mmap(file, 0) as view:
        view[at] = byte
        return view[max(0, at - 5000) : at + 5000]


@pytest.mark.parametrize("seed", [1, 2])
def test_random_operations_leave_what_they_leave_on_a_local_disk(
    mounted: Mounted, root: Path, tmp_path: Path, seed: int
) -> None:
    model = tmp_path / "model"
    with contextlib.closing(Pair(root / "file", model, seed)) as pair:
        for number in range(OPERATIONS):
            pair.step()
            if number % 50 == 49:
                pair.close()
                mounted.drain()  # the next write is the first to a clean file
                assert mounted.source.get("file") == model.read_bytes()
                pair.open()
    mounted.drain()
    mounted.cold()
    assert (root / "file").read_bytes() == model.read_bytes()
