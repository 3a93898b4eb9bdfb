"""Files that the kernel reads and writes by itself: whatever is opened how and in which order, POSIX holds."""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import random
from pathlib import Path
from typing import Any

import pytest

from rig.mounts import EngineProcess, Mounted, Source, mounted_for, refused, umount_when_free, wait_for
from tiercache.model import BLOCK_SIZE_BYTES

RANDOM = random.Random(11)
DATA = RANDOM.randbytes(300_000)


@pytest.fixture
def driver() -> str:
    """Only our own session can lend files."""
    return "kernel"


def status(mounted: Mounted, name: str) -> dict[str, Any]:
    answer = mounted.engine.client.request("status_path", path=str(mounted.path / name))
    assert isinstance(answer, dict)
    return answer


def io(mounted: Mounted, name: str) -> str:
    """How the kernel reads a file now."""
    return str(status(mounted, name)["io"][str(mounted.path)])


def bring(mounted: Mounted, name: str) -> None:
    """Have a complete copy of a file in the cache, and nobody who reads it. Fill and release come after the read."""
    assert (mounted.path / name).read_bytes()
    wait_for(lambda: status(mounted, name)["resident"]["nvme"] and io(mounted, name) == "closed")


@pytest.fixture
def cached(mounted: Mounted) -> Mounted:
    """A mount with a complete copy of ``file``."""
    mounted.source.put("file", DATA)
    bring(mounted, "file")
    return mounted


def test_a_complete_copy_is_lent_as_long_as_it_is_open(cached: Mounted, root: Path) -> None:
    assert io(cached, "file") == "closed"
    with open(root / "file", "rb") as file:
        assert io(cached, "file") == "passthrough"
        assert file.read() == DATA
    wait_for(lambda: io(cached, "file") == "closed")


def test_a_file_that_becomes_complete_while_open_is_lent_to_the_next_who_opens_it_alone(
    mounted: Mounted, root: Path
) -> None:
    data = RANDOM.randbytes(2 * BLOCK_SIZE_BYTES + 5)
    mounted.source.put("big", data)
    with open(root / "big", "rb", buffering=0) as first:
        assert io(mounted, "big") == "cached"
        assert first.read(BLOCK_SIZE_BYTES) == data[:BLOCK_SIZE_BYTES]
        with open(root / "big", "rb") as second:  # one inode is read in one way
            assert second.read() == data
            assert io(mounted, "big") == "cached"
        assert first.read() == data[BLOCK_SIZE_BYTES:]
    wait_for(lambda: io(mounted, "big") == "closed")
    with open(root / "big", "rb") as file:
        assert io(mounted, "big") == "passthrough"
        assert file.read() == data


def test_a_new_file_is_written_by_the_kernel(mounted: Mounted, root: Path) -> None:
    with open(root / "file", "wb", buffering=0) as file:
        assert io(mounted, "file") == "passthrough"
        file.write(DATA)
        assert (root / "file").stat().st_size == len(DATA)
        file.write(b"more")
        os.fsync(file.fileno())
    assert (root / "file").read_bytes() == DATA + b"more"
    mounted.drain()
    assert mounted.source.get("file") == DATA + b"more"
    mounted.cold()
    assert (root / "file").read_bytes() == DATA + b"more"


def test_times_of_what_the_kernel_writes_move(mounted: Mounted, root: Path) -> None:
    with open(root / "file", "wb", buffering=0) as file:
        file.write(b"1")
        os.utime(root / "file", ns=(10**18, 10**18))
        assert (root / "file").stat().st_mtime_ns == 10**18
        file.write(b"2")
        written_ns = (root / "file").stat().st_mtime_ns
        assert written_ns > 10**18
    mounted.drain()
    assert abs((root / "file").stat().st_mtime_ns - written_ns) < 10**9


MODES = ("rb", "r+b", "ab", "wb")


@pytest.mark.parametrize(("first", "second"), list(itertools.product(MODES, MODES)))
def test_two_opens_in_any_modes_see_each_other(cached: Mounted, root: Path, first: str, second: str) -> None:
    """The kernel wants the same file for all opens of an inode, and answers EIO to programs otherwise."""
    expected = bytearray(DATA)
    with open(root / "file", first, buffering=0) as one:
        if first == "wb":
            expected.clear()
        with open(root / "file", second, buffering=0) as two:
            if second == "wb":
                expected.clear()
            for number, (mode, file) in enumerate(((first, one), (second, two), (first, one))):
                if mode == "rb":
                    continue
                piece = f"written {number}".encode()
                if mode == "ab":
                    file.write(piece)
                    expected += piece
                else:
                    os.pwrite(file.fileno(), piece, 5)
                    expected.extend(bytes(max(0, 5 - len(expected))))
                    expected[5 : 5 + len(piece)] = piece
            for mode, file in ((first, one), (second, two)):
                if mode in ("rb", "r+b"):
                    assert os.pread(file.fileno(), 400_000, 0) == expected
    assert (root / "file").read_bytes() == expected
    cached.drain()
    assert cached.source.get("file") == expected
    cached.cold()
    assert (root / "file").read_bytes() == expected


def test_a_reader_sees_a_write_that_came_after_its_open(cached: Mounted, root: Path) -> None:
    """``tail -f``: the cached copy itself becomes the staged file."""
    with open(root / "file", "rb", buffering=0) as reader:
        assert reader.read() == DATA
        with open(root / "file", "ab", buffering=0) as writer:
            writer.write(b"one line")
        assert reader.read() == b"one line"
        cached.drain()
        with open(root / "file", "ab", buffering=0) as writer:
            writer.write(b"another")
        assert reader.read() == b"another"
    cached.drain()
    assert cached.source.get("file") == DATA + b"one lineanother"


def test_a_file_opened_for_writing_beside_a_reader_and_not_written_is_not_uploaded(cached: Mounted, root: Path) -> None:
    before = cached.engine.client.status()["uploads"]["committed"]
    with open(root / "file", "rb") as reader:
        with open(root / "file", "r+b"):
            assert io(cached, "file") == "passthrough"
            assert cached.state("file") == "staged"
        wait_for(lambda: cached.state("file") == "clean")
        assert reader.read() == DATA
    assert cached.engine.client.status()["uploads"]["committed"] == before
    assert (root / "file").read_bytes() == DATA
    bring(cached, "file")
    with open(root / "file", "rb") as file:  # the copy is back in the cache
        assert io(cached, "file") == "passthrough"
        assert file.read() == DATA


def test_truncation_under_a_reader(cached: Mounted, root: Path) -> None:
    with open(root / "file", "rb", buffering=0) as reader:
        os.truncate(root / "file", 100)
        assert reader.read() == DATA[:100]
        os.truncate(root / "file", 200)
        assert reader.read() == bytes(100)
    cached.drain()
    assert cached.source.get("file") == DATA[:100] + bytes(100)


def test_a_lent_file_that_is_on_its_way_is_opened_again(posix: Source, tmp_path: Path, mountpoint: Path) -> None:
    """A truncation by name leaves nobody who may write it: it is sealed, and still the only file the kernel takes."""
    engine = EngineProcess(tmp_path / "slow", **{"staging.upload_delay_s": 3600})
    try:
        posix.put("file", DATA)
        engine.mount(posix, mountpoint, mount_options={"driver": "kernel"})
        path = mountpoint / "file"
        assert path.read_bytes() == DATA
        wait_for(lambda: bool(engine.client.request("status_path", path=str(path))["resident"]["nvme"]))
        with open(path, "rb", buffering=0) as reader:
            os.truncate(path, 100)
            assert os.getxattr(path, "user.tiercache.state") == b"sealed"
            assert path.read_bytes() == DATA[:100]
            with open(f"/proc/self/fd/{reader.fileno()}", "rb") as again:
                assert again.read() == DATA[:100]
        umount_when_free(engine, mountpoint)
    finally:
        engine.stop()


def test_a_file_that_the_kernel_writes_takes_no_second_name(on_posix: Mounted) -> None:
    root = on_posix.path
    with open(root / "file", "wb") as file:
        assert io(on_posix, "file") == "passthrough"
        file.write(DATA)
        with refused(errno.EBUSY):
            os.link(root / "file", root / "other")
    wait_for(lambda: io(on_posix, "file") == "closed")
    os.link(root / "file", root / "other")
    assert (root / "other").read_bytes() == DATA


def test_shared_mappings_of_reader_and_writer_are_one(cached: Mounted, root: Path) -> None:
    with open(root / "file", "rb") as reader, mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ) as seen:
        assert seen[:] == DATA
        with open(root / "file", "r+b") as writer, mmap.mmap(writer.fileno(), 0) as mapped:
            mapped[7:12] = b"+++++"
            assert seen[7:12] == b"+++++"
            mapped.flush()
    cached.drain()
    assert cached.source.get("file") == DATA[:7] + b"+++++" + DATA[12:]


def test_a_file_is_mapped_whatever_happened_to_it_while_it_is_open(cached: Mounted, root: Path, tmp_path: Path) -> None:
    """The kernel maps no file that is read round its pages (ENODEV), which is only for other bytes than they hold."""
    other = tmp_path / "other"
    other.mkdir()
    cached.engine.mount(cached.source, other, **cached.settings)
    try:
        with open(root / "file", "r+b") as first:
            assert io(cached, "file") == "cached"
            os.posix_fallocate(first.fileno(), 0, 10)
            with open(root / "file", "r+b") as second, mmap.mmap(second.fileno(), 0) as mapped:
                assert mapped[:] == DATA
            with open(other / "file", "r+b", buffering=0) as elsewhere:
                elsewhere.write(b"elsewhere")
            with open(root / "file", "r+b") as third, mmap.mmap(third.fileno(), 0) as mapped:
                assert mapped[:] == b"elsewhere" + DATA[9:]
                mapped[:4] = b"here"
            assert first.read() == b"herewhere" + DATA[9:]
    finally:
        umount_when_free(cached.engine, other)
    cached.drain()
    assert cached.source.get("file") == b"herewhere" + DATA[9:]


def test_what_a_mapping_changes_stays_at_its_place_beside_a_handle_that_appends(cached: Mounted, root: Path) -> None:
    expected = bytearray(DATA)
    fd = os.open(root / "file", os.O_RDWR | os.O_APPEND)
    try:
        assert io(cached, "file") == "cached"  # the kernel writes its pages back by this very handle
        with mmap.mmap(fd, 0) as mapped:
            mapped[5_000:20_000] = expected[5_000:20_000] = bytes(15_000)
            mapped.flush()
            assert os.fstat(fd).st_size == len(DATA)
        os.write(fd, b"appended")
    finally:
        os.close(fd)
    assert (root / "file").read_bytes() == bytes(expected) + b"appended"
    cached.drain()
    assert cached.source.get("file") == bytes(expected) + b"appended"


def test_a_file_is_not_sent_while_a_copy_of_its_descriptor_may_be_written(mounted: Mounted, root: Path) -> None:
    """C18: close of one descriptor says nothing about the others."""
    first = os.open(root / "file", os.O_WRONLY | os.O_CREAT)
    second = os.dup(first)
    os.write(first, b"one ")
    os.close(first)
    mounted.engine.client.drain(deadline_s=0.2)
    assert mounted.state("file") == "staged"
    os.write(second, b"two")
    os.close(second)
    mounted.drain()
    assert mounted.source.get("file") == b"one two"


def test_an_unlinked_file_lives_on_in_the_kernel(cached: Mounted, root: Path) -> None:
    with open(root / "file", "r+b", buffering=0) as file:
        os.unlink(root / "file")
        file.write(b"still")
        assert os.pread(file.fileno(), 9, 0) == b"still" + DATA[5:9]
        again = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)
        assert os.pread(again, 9, 0) == b"still" + DATA[5:9]
        os.close(again)
    cached.drain()
    assert cached.source.names() == set()


def test_o_direct_goes_to_the_disk(cached: Mounted, root: Path) -> None:
    descriptor = os.open(root / "file", os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 8192) as buffer:  # aligned
            assert os.preadv(descriptor, [buffer], 4096) == 8192
            assert buffer[:] == DATA[4096 : 4096 + 8192]
    finally:
        os.close(descriptor)


def test_locks_of_two_opens_exclude_each_other(cached: Mounted, root: Path) -> None:
    with open(root / "file", "r+b") as one, open(root / "file", "r+b") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_object_replaced_at_the_origin_is_another_file(cached: Mounted, root: Path) -> None:
    new = RANDOM.randbytes(200_000)
    with open(root / "file", "rb", buffering=0) as old:
        cached.source.put("file", new)
        wait_for(lambda: (root / "file").stat().st_size == len(new))
        assert (root / "file").read_bytes() == new
        assert old.read() == DATA


def test_a_writer_shares_what_a_reader_has_however_little_room_there_is(
    tmp_path: Path, posix: Source, mountpoint: Path
) -> None:
    """With less than a quarter of staging free nothing new is lent for writing; what is lent must still be shared."""
    engine = EngineProcess(tmp_path / "small", **{"staging.capacity": "1MiB", "staging.upload_delay_s": "1h"})
    posix.put("file", DATA)
    try:
        for mounted in mounted_for(engine, posix, mountpoint, "kernel"):
            bring(mounted, "file")
            (mountpoint / "filler").write_bytes(bytes(600_000))
            with open(mountpoint / "file", "rb", buffering=0) as reader:
                assert io(mounted, "file") == "passthrough"
                with open(mountpoint / "file", "r+b", buffering=0) as writer:
                    writer.write(b"changed")
                    assert os.pread(reader.fileno(), 7, 0) == b"changed"
                    with open(mountpoint / "file", "ab", buffering=0) as another:
                        another.write(b"more")
                assert os.pread(reader.fileno(), 400_000, 0) == b"changed" + DATA[7:] + b"more"
            mounted.drain()
            assert posix.get("file") == b"changed" + DATA[7:] + b"more"
    finally:
        engine.stop()


def test_nothing_is_lent_where_fsync_waits_for_the_origin(tmp_path: Path, posix: Source, mountpoint: Path) -> None:
    """What was sealed goes up while a program may still write to it."""
    engine = EngineProcess(tmp_path / "sure", profiles={"general": {"ack": "origin"}})
    posix.put("file", DATA)
    try:
        for mounted in mounted_for(engine, posix, mountpoint, "kernel"):
            bring(mounted, "file")
            with open(mountpoint / "file", "rb", buffering=0) as reader:
                assert io(mounted, "file") == "cached"
                with open(mountpoint / "file", "r+b", buffering=0) as writer:
                    writer.write(b"changed")
                    os.fsync(writer.fileno())
                    assert posix.get("file") == b"changed" + DATA[7:]
                    writer.write(b" again")
                assert os.pread(reader.fileno(), 13, 0) == b"changed again"
            mounted.drain()
            assert posix.get("file") == b"changed again" + DATA[13:]
    finally:
        engine.stop()
