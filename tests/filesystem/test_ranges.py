"""C08 and C09: every slice of every size is what Python's own slice would be."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from rig.ground import Ground
from tiercache.model import BLOCK_SIZE_BYTES as BS

SIZES = [0, 1, BS - 1, BS, BS + 1]


def content(size: int, seed: int = 7) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_reads_past_the_end_are_slices(ground: Ground, size: int) -> None:
    """C08: a read at or past the end gives what is there, and never an error."""
    data = content(size)
    ground.write("f", data)
    path = f"{ground.path}/f"
    assert ground.fs.exists(path)
    assert ground.fs.info(path)["size"] == ground.fs.size(path) == size
    with ground.fs.open(path) as file:
        for position in (0, 1, size - 1, size, size + 1, BS, 2 * BS):
            file.seek(max(position, 0))
            assert file.read(10) == data[max(position, 0) :][:10]
        file.seek(0)
        assert file.read(size + BS) == data
        assert file.read() == b""
    assert ground.fs.cat_file(path) == ground.fs.cat(path) == data


@pytest.mark.parametrize("size", SIZES)
def test_cat_file_has_slice_semantics(ground: Ground, size: int) -> None:
    """C08: start and end, negative ones too, mean what they mean for bytes."""
    data = content(size)
    ground.write("f", data)
    path = f"{ground.path}/f"
    bounds = [None, 0, 1, size - 1, size, size + 1, BS, -1, -size - 3, -size]
    for start in bounds:
        for end in bounds:
            assert ground.fs.cat_file(path, start, end) == data[start:end], (start, end)


def test_cat_ranges_answers_each_range_and_returns_errors_in_place(ground: Ground) -> None:
    data = content(BS + 100)
    ground.write("f", data)
    path, missing = f"{ground.path}/f", f"{ground.path}/missing"
    answers = ground.fs.cat_ranges([path, missing, path], [0, 0, BS - 10], [10, 10, BS + 10])
    assert answers[0] == data[:10]
    assert isinstance(answers[1], FileNotFoundError)
    assert answers[2] == data[BS - 10 : BS + 10]
    with pytest.raises(FileNotFoundError):
        ground.fs.cat_ranges([missing], 0, 10, on_error="raise")


def test_random_reads_of_a_large_file(ground: Ground) -> None:
    """C09: a thousand seeks and reads, near the end and after a large read's end too, give the file's bytes."""
    size = int(7.3 * BS)
    data = content(size)
    ground.write("f", data)
    rng = random.Random(9)
    with ground.fs.open(f"{ground.path}/f") as file:
        for step in range(1000):
            length = rng.choice([0, 1, 100, 4096, 70_000, BS + 1 if step % 50 == 0 else 10])
            position = rng.choice([rng.randrange(size), size - rng.randrange(1, 200), file.tell()])
            file.seek(position)
            assert file.read(length) == data[position : position + length]


def test_a_local_file_is_behind_a_cached_one(ground: Ground) -> None:
    """``fileno`` and mmap work once the bytes are here."""
    import mmap

    data = content(300_000)
    ground.write("f", data)
    path = f"{ground.path}/f"
    ground.fs.cat_file(path)
    with ground.fs.open(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert os.fstat(file.fileno()).st_size == len(data)
        assert view[:] == data


def test_a_read_file_keeps_its_version(ground: Ground) -> None:
    """What is open and cached stays as it was when the name gets another content."""
    old, new = content(200_000, 1), content(100_000, 2)
    path = f"{ground.path}/f"
    ground.fs.pipe_file(path, old)
    with ground.fs.open(path) as file:
        assert file.read(10) == old[:10]
        ground.fs.pipe_file(path, new)
        assert file.read() == old[10:]
    assert ground.fs.cat_file(path) == new


def test_head_tail_and_read_block(ground: Ground) -> None:
    ground.write("f", b"one\ntwo\nthree\nfour\n")
    path = f"{ground.path}/f"
    assert ground.fs.head(path, 3) == b"one"
    assert ground.fs.tail(path, 5) == b"four\n"
    assert ground.fs.read_block(path, 2, 5, b"\n") == b"two\n"
    with ground.fs.open(path) as file:
        assert file.readuntil(b"w") == b"one\ntw"
        assert file.readline() == b"o\n"
        assert list(file) == [b"three\n", b"four\n"]


def test_get_writes_a_local_copy(ground: Ground, tmp_path: Path) -> None:
    data = content(BS + 5)
    ground.write("f", data)
    ground.fs.get(f"{ground.path}/f", str(tmp_path / "deep" / "copy"))
    assert (tmp_path / "deep" / "copy").read_bytes() == data
