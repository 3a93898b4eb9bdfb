"""System calls on open files, as programs make them: every descriptor, mapping and lock means what POSIX says."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rig.mounts import Mounted, refused

RANDOM = random.Random(18)
PAGE_BYTES = mmap.PAGESIZE
FALLOC_KEEP_SIZE = 1
FALLOC_PUNCH_HOLE = 2

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def supported(descriptor: int, mode: int, offset: int, length: int) -> bool:
    """fallocate(2) with a mode: done, or refused as unsupported."""
    if _libc.fallocate(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0:
        return True
    assert ctypes.get_errno() == errno.EOPNOTSUPP
    return False


def test_dup_fork_and_shell_groups_lose_no_byte(mounted: Mounted, root: Path) -> None:
    """C18: a duplicate outlives its original, a child closes what its parent writes, a group shares an offset."""
    with opened(root / "dup") as descriptor:
        other = os.dup(descriptor)
        os.write(descriptor, b"one ")
    os.write(other, b"two")
    os.close(other)

    with opened(root / "forked") as descriptor:
        os.write(descriptor, b"before ")
        child = os.fork()
        if not child:
            os.write(descriptor, b"child ")
            os.close(descriptor)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        os.write(descriptor, b"parent")

    subprocess.run(["sh", "-c", "(echo a; echo b) > group; (echo c; sh -c 'echo d') >> group"], cwd=root, check=True)
    # The first writer ends and flushes while the second still has the file open.
    subprocess.run(["sh", "-c", "{ (echo 1; exec sleep 0) & wait; echo 2; } > chain"], cwd=root, check=True)
    mounted.drain()
    wanted = {"dup": b"one two", "forked": b"before child parent", "group": b"a\nb\nc\nd\n", "chain": b"1\n2\n"}
    assert {name: mounted.source.get(name) for name in wanted} == wanted
    mounted.cold()
    assert {name: (root / name).read_bytes() for name in wanted} == wanted


def test_allocating_ahead(mounted: Mounted, root: Path) -> None:
    """posix_fallocate makes room and never shrinks."""
    with opened(root / "file") as descriptor:
        os.posix_fallocate(descriptor, 0, 100_000)
        assert os.fstat(descriptor).st_size == 100_000
        assert os.pread(descriptor, 10, 99_990) == bytes(10)
        os.pwrite(descriptor, b"data", 50_000)
        os.posix_fallocate(descriptor, 0, 1000)
        assert os.fstat(descriptor).st_size == 100_000
        assert os.pread(descriptor, 4, 50_000) == b"data"
    mounted.drain()
    assert mounted.source.get("file") == bytes(50_000) + b"data" + bytes(49_996)


def test_holes_are_punched_or_refused(mounted: Mounted, root: Path) -> None:
    """fallocate's modes do what they say, or EOPNOTSUPP: never something else."""
    data = RANDOM.randbytes(PAGE_BYTES * 4)
    expected = data
    (root / "file").write_bytes(data)
    with opened(root / "file") as descriptor:
        if supported(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, PAGE_BYTES, PAGE_BYTES):
            expected = data[:PAGE_BYTES] + bytes(PAGE_BYTES) + data[2 * PAGE_BYTES :]
        supported(descriptor, FALLOC_KEEP_SIZE, 0, 10 * PAGE_BYTES)
        assert os.fstat(descriptor).st_size == len(data)
    assert (root / "file").read_bytes() == expected
    mounted.drain()
    assert mounted.source.get("file") == expected


def test_copies_inside_the_kernel(mounted: Mounted, root: Path, tmp_path: Path) -> None:
    """copy_file_range and sendfile, in, within and out."""
    data = RANDOM.randbytes(700_001)
    (root / "source").write_bytes(data)
    with opened(root / "source", os.O_RDONLY) as source, opened(root / "target") as target:
        copied = 0
        while moved := os.copy_file_range(source, target, len(data) - copied, copied, copied):
            copied += moved
        assert copied == len(data)
    mounted.drain()
    with opened(root / "target", os.O_RDONLY) as source, opened(tmp_path / "out") as target:
        while os.sendfile(target, source, None, 100_000):
            pass
        assert os.lseek(target, 0, os.SEEK_END) == len(data)
    with opened(tmp_path / "out", os.O_RDONLY) as source, opened(root / "back") as target:
        while os.sendfile(target, source, None, 1 << 20):
            pass
    assert (root / "target").read_bytes() == (tmp_path / "out").read_bytes() == (root / "back").read_bytes() == data


def test_shared_mappings_reach_the_origin(mounted: Mounted, root: Path) -> None:
    """What two processes write through one mapping is in the file, also without msync."""
    size = 3 * PAGE_BYTES + 5
    (root / "file").write_bytes(bytes(size))
    with opened(root / "file") as descriptor:
        view = mmap.mmap(descriptor, size)
    view[0:5] = b"first"
    script = "import mmap,sys; f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); m[-5:]=b'child'; m.close()"
    subprocess.run([sys.executable, "-c", script, root / "file"], check=True, timeout=30)
    assert view[-5:] == b"child"
    view.flush()
    assert (root / "file").read_bytes()[:5] == b"first"
    view[PAGE_BYTES : PAGE_BYTES + 4] = b"late"
    view.close()
    expected = b"first" + bytes(PAGE_BYTES - 5) + b"late"
    expected += bytes(size - 5 - len(expected)) + b"child"
    with opened(root / "file", os.O_RDONLY) as descriptor:
        os.fsync(descriptor)
    assert (root / "file").read_bytes() == expected
    mounted.drain()
    assert mounted.source.get("file") == expected


def test_a_private_mapping_changes_nothing_and_outlives_its_name(mounted: Mounted, root: Path) -> None:
    data = RANDOM.randbytes(5 * PAGE_BYTES)
    (root / "file").write_bytes(data)
    mounted.drain()
    with opened(root / "file", os.O_RDONLY) as descriptor:
        view = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    view[0:4] = b"mine"
    (root / "file").unlink()
    assert view[4:] == data[4:]
    view.close()
    mounted.drain()
    assert mounted.source.names() == set()


def test_an_array_of_numpy_is_mapped_written_and_read(mounted: Mounted, root: Path) -> None:
    array = np.memmap(root / "array", dtype=np.float32, mode="w+", shape=(300, 1000))
    array[:] = np.arange(300_000, dtype=np.float32).reshape(300, 1000)
    array[7, 7] = -1
    array.flush()
    del array
    mounted.drain()
    mounted.cold()
    again = np.memmap(root / "array", dtype=np.float32, mode="r", shape=(300, 1000))
    assert again[7, 7] == -1
    assert again.sum() == np.float32(np.arange(300_000, dtype=np.float32).sum() - 7008)
    np.save(root / "saved.npy", again)
    assert np.array_equal(np.load(root / "saved.npy", mmap_mode="r"), again)


def test_direct_io_and_the_page_cache_agree(mounted: Mounted, root: Path) -> None:
    """O_DIRECT beside buffered descriptors of one file, clean and dirty; an unaligned end is no trouble."""
    size = 4 * PAGE_BYTES
    page = mmap.mmap(-1, size)
    with opened(root / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as direct, opened(root / "file") as buffered:
        page[:] = b"d" * size
        assert os.pwrite(direct, page, 0) == size
        assert os.pread(buffered, size, 0) == b"d" * size
        os.pwrite(buffered, b"b" * PAGE_BYTES, PAGE_BYTES)
        assert os.preadv(direct, [page], 0) == size
        assert page[:] == b"d" * PAGE_BYTES + b"b" * PAGE_BYTES + b"d" * (2 * PAGE_BYTES)
        os.ftruncate(buffered, size - 100)
        assert os.preadv(direct, [page], 0) == size - 100
    mounted.drain()
    mounted.cold()
    with opened(root / "file", os.O_RDONLY | os.O_DIRECT) as direct:
        assert os.preadv(direct, [page], 0) == size - 100
        assert page[: size - 100] == mounted.source.get("file")
        assert os.preadv(direct, [page], size) == 0


def test_data_and_holes_are_found(mounted: Mounted, root: Path) -> None:
    """SEEK_DATA and SEEK_HOLE: no data is called a hole, and the end is one. Where holes are not known all is data."""
    (root / "file").write_bytes(b"x" * 1000)
    with opened(root / "file") as descriptor:
        os.ftruncate(descriptor, 100 * PAGE_BYTES)
        os.pwrite(descriptor, b"end", 100 * PAGE_BYTES - 3)
        check_holes(descriptor, 100 * PAGE_BYTES)
    mounted.drain()
    mounted.cold()
    with opened(root / "file", os.O_RDONLY) as descriptor:
        check_holes(descriptor, 100 * PAGE_BYTES)


def check_holes(descriptor: int, size: int) -> None:
    position, data = 0, set()
    while position < size:
        start = os.lseek(descriptor, position, os.SEEK_DATA)  # the last bytes are data
        position = os.lseek(descriptor, start, os.SEEK_HOLE)
        assert start < position <= size
        data.update(range(start // PAGE_BYTES, -(-position // PAGE_BYTES)))
    assert {0, size // PAGE_BYTES - 1} <= data
    with refused(errno.ENXIO):
        os.lseek(descriptor, size, os.SEEK_DATA)
    assert os.lseek(descriptor, 0, os.SEEK_END) == size


def test_locks_exclude_other_processes(root: Path) -> None:
    """flock and POSIX locks, of the whole file and of ranges."""
    path = root / "file"
    path.write_bytes(bytes(100))
    script = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
for attempt in (
    lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
    lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0),
    lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 50),
):
    try:
        attempt()
        print("got", end=" ")
    except BlockingIOError:
        print("held", end=" ")
"""

    def others() -> list[str]:
        return subprocess.check_output([sys.executable, "-c", script, path], text=True, timeout=30).split()

    with open(path, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 0)
        assert others() == ["held", "held", "got"]
        fcntl.flock(file, fcntl.LOCK_UN)
        fcntl.lockf(file, fcntl.LOCK_UN)
        assert others() == ["got", "got", "got"]
        fcntl.flock(file, fcntl.LOCK_SH)
        assert others() == ["held", "got", "got"]


def test_appenders_in_several_processes_lose_nothing(mounted: Mounted, root: Path) -> None:
    """O_APPEND: every line of four processes is there, whole."""
    script = "import os,sys; f=os.open(sys.argv[1],os.O_WRONLY|os.O_APPEND|os.O_CREAT)\n"
    script += "for n in range(100): os.write(f, b'%s %03d\\n' % (sys.argv[2].encode() * 20, n))"
    writers = [subprocess.Popen([sys.executable, "-c", script, root / "log", name]) for name in "abcd"]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    wanted = sorted(f"{name * 20} {number:03}" for name in "abcd" for number in range(100))
    assert sorted((root / "log").read_text().splitlines()) == wanted
    mounted.drain()
    assert sorted(mounted.source.get("log").decode().splitlines()) == wanted


def test_vectors_and_positions(root: Path) -> None:
    """readv, writev and the shared offset of duplicates."""
    with opened(root / "file") as descriptor:
        assert os.writev(descriptor, [b"abc", b"", b"defg"]) == 7
        other = os.dup(descriptor)
        os.lseek(other, 1, os.SEEK_SET)
        first, second = bytearray(2), bytearray(10)
        assert os.readv(descriptor, [first, second]) == 6
        assert bytes(first) + bytes(second[:4]) == b"bcdefg"
        os.close(other)
        assert os.read(descriptor, 1) == b""
        with refused(errno.EINVAL):
            os.lseek(descriptor, -1, os.SEEK_SET)


def test_descriptors_refuse_what_they_were_not_opened_for(root: Path) -> None:
    (root / "file").write_bytes(b"x")
    (root / "link").symlink_to("file")
    with opened(root / "file", os.O_RDONLY) as descriptor, refused(errno.EBADF):
        os.write(descriptor, b"y")
    with opened(root / "file", os.O_WRONLY) as descriptor, refused(errno.EBADF):
        os.read(descriptor, 1)
    with refused(errno.EISDIR):
        os.open(root, os.O_RDWR)
    with refused(errno.ENOTDIR):
        os.open(root / "file", os.O_RDONLY | os.O_DIRECTORY)
    with refused(errno.ELOOP):
        os.open(root / "link", os.O_RDONLY | os.O_NOFOLLOW)
    with refused(errno.EEXIST):
        os.open(root / "link", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


@pytest.mark.parametrize("size", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, 1_000_001])
def test_truncation_and_what_comes_after(mounted: Mounted, root: Path, size: int) -> None:
    """Bytes past a truncation do not come back when the file grows again."""
    data = RANDOM.randbytes(size + 2 * PAGE_BYTES)
    (root / "file").write_bytes(data)
    mounted.drain()
    os.truncate(root / "file", size)
    with opened(root / "file") as descriptor:
        os.pwrite(descriptor, b"end", size + PAGE_BYTES)
        expected = data[:size] + bytes(PAGE_BYTES) + b"end"
        assert os.pread(descriptor, len(data), 0) == expected
    mounted.drain()
    assert mounted.source.get("file") == expected == (root / "file").read_bytes()
