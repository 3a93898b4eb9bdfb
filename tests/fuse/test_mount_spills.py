"""Files that are written through a mount and do not fit in staging: they go to the origin while they are written."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rig.cache_rig import bytes_of
from rig.faultproxy import FaultProxy
from rig.mounts import (
    EngineProcess,
    Mounted,
    Source,
    clean_up,
    make_source,
    mounted_for,
    refused,
    umount_when_free,
    wait_for,
    wait_until_gone,
)
from rig.s3_limits import ScaledLimits, ScaledStore
from tiercache.client import RemoteOrigin
from tiercache.errors import MountError, NoSpace
from tiercache.units import KIB, MIB

PART = 256 * KIB
CAPACITY = 4 * MIB
SIZE = 10 * MIB + 321
PIECE = 300_000
STORE = ScaledLimits(max_parts=1000, min_part_bytes=PART, single_put_bytes=4 * MIB, single_copy_bytes=16 * MIB)
LIMITS = {"max_parts": 1000, "min_part": PART, "max_part": "4MiB", "single_copy": "16MiB"}
SETTINGS = {
    "staging.capacity": CAPACITY,
    "staging.wait_max_s": 5,
    "upload.part_size": PART,
    "upload.retry_base_s": "10ms",
    "fetch.retry_base_s": "1ms",
}


class Ground:
    """A mount over an origin that can be looked at, with little staging under it."""

    def __init__(self, mount: Mounted, proxy: FaultProxy | None, store: ScaledStore | None) -> None:
        self.mount = mount
        self.root = mount.path
        self.source = mount.source
        self.engine = mount.engine
        self.proxy = proxy
        self._store = store

    @property
    def cache_dir(self) -> Path:
        return self.engine.config.cache_dir

    def client(self) -> RemoteOrigin:
        return self.engine.client.attach(self.source.url, options=self.source.options)

    def key(self, name: str) -> bytes:
        return self.client().root + b"/" + name.encode()

    def unfinished(self) -> list[Any]:
        """What the origin has of files that are not complete."""
        if self._store is not None:
            return list(self._store.unfinished)
        assert self.source.directory is not None
        return list(self.source.directory.rglob(".tiercache-*"))

    def left(self) -> list[Any]:
        staged = [name for name in os.listdir(self.cache_dir / "staging") if name.isdigit()]
        return [*staged, *self.unfinished()]

    def clean_up(self) -> None:
        """Wait until nothing is left of what was written but the files themselves."""
        while self.left():
            self.engine.drain()
        self.engine.drain()
        assert self.figure("spills_in_flight") == 0
        assert self.figure("staged_bytes") == 0

    def figure(self, name: str) -> float:
        found = self.engine.client.status()["metrics"][name]
        assert isinstance(found, int | float)
        return found

    def open(self, name: str, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> int:
        return os.open(self.root / name, flags, 0o640)

    def spill(self, name: str, flags: int = os.O_RDWR | os.O_CREAT | os.O_TRUNC) -> int:
        """A descriptor of a file that is written and does not fit."""
        descriptor = self.open(name, flags)
        write_in_pieces(descriptor, bytes_of(name, SIZE))
        assert self.unfinished()
        return descriptor


def write_in_pieces(descriptor: int, data: bytes, piece_bytes: int = PIECE) -> None:
    for offset in range(0, len(data), piece_bytes):
        piece = data[offset : offset + piece_bytes]
        assert os.write(descriptor, piece) == len(piece)


def read_directly(descriptor: int, offset: int) -> bytes:
    """A page, of a descriptor that goes past the kernel's own pages."""
    page = mmap.mmap(-1, 4096)
    return page[: os.preadv(descriptor, [page], offset)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine with little staging."""
    engine = EngineProcess(tmp_path_factory.mktemp("small"), **SETTINGS)
    yield engine
    engine.stop()


@pytest.fixture
def own_small(tmp_path: Path) -> Iterator[EngineProcess]:
    """One that the test may kill."""
    engine = EngineProcess(tmp_path / "own-small", **SETTINGS)
    yield engine
    engine.stop()


def ground_on(
    engine: EngineProcess, kind: Any, driver: str, mountpoint: Path, request: pytest.FixtureRequest
) -> Iterator[Ground]:
    source: Source = make_source(kind, request)
    proxy = store = None
    if kind == "s3":
        proxy = request.getfixturevalue("s3_proxy")
        store = proxy.limit(STORE)
        source = source._replace(options=proxy.options() | {"limits": LIMITS})
    # With this promise the kernel is lent nothing, so that what is written comes to us.
    for mount in mounted_for(
        engine, source, mountpoint, driver, **({"promise": {"ack": "origin"}} if driver == "kernel" else {})
    ):
        yield Ground(mount, proxy, store)


@pytest.fixture(params=["posix", "s3"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ground(
    small: EngineProcess, kind: str, driver: str, mountpoint: Path, request: pytest.FixtureRequest
) -> Iterator[Ground]:
    yield from ground_on(small, kind, driver, mountpoint, request)


def test_a_file_larger_than_staging_is_there_when_its_close_returns(ground: Ground) -> None:
    data = bytes_of("large", SIZE)
    before = ground.figure("spilled_bytes_total")
    descriptor = ground.open("large")
    for offset in range(0, SIZE, PIECE):
        os.write(descriptor, data[offset : offset + PIECE])
        assert os.stat(ground.root / "large").st_size == min(SIZE, offset + PIECE)
        assert ground.figure("staged_bytes") <= CAPACITY
    assert ground.source.names() - {"large"} == {str(path.name) for path in ground.unfinished() if ground.proxy is None}
    assert "large" not in ground.source.names()
    os.close(descriptor)
    assert ground.source.get("large") == data
    assert ground.figure("spilled_bytes_total") - before == SIZE
    assert ground.mount.state("large") == "clean"
    assert os.stat(ground.root / "large").st_size == SIZE
    assert (ground.root / "large").read_bytes() == data
    assert ground.client().cat(ground.key("large")) == data
    ground.clean_up()


@pytest.mark.parametrize(
    "command",
    [["cp", "{source}", "{target}"], ["dd", "if={source}", "of={target}", "bs=1M", "conv=fsync", "status=none"]],
    ids=["cp", "dd with fsync"],
)
def test_programs_copy_what_does_not_fit(ground: Ground, tmp_path: Path, command: list[str]) -> None:
    data = bytes_of("file", SIZE)
    (tmp_path / "file").write_bytes(data)
    place = {"source": tmp_path / "file", "target": ground.root / "file"}
    subprocess.run([word.format(**place) for word in command], check=True, timeout=60)
    assert ground.source.get("file") == data
    ground.clean_up()


def test_a_file_is_copied_within_the_mount(ground: Ground) -> None:
    data = bytes_of("file", SIZE)
    ground.source.put("file", data)
    assert (ground.root / "file").read_bytes() == data
    subprocess.run(["cp", ground.root / "file", ground.root / "copy"], check=True, timeout=60)
    assert ground.source.get("copy") == data
    ground.clean_up()


def test_an_archive_and_its_attributes_arrive(ground: Ground, tmp_path: Path) -> None:
    """What a program sets before the close is what the origin has after it."""
    data = bytes_of("file", SIZE)
    (tmp_path / "file").write_bytes(data)
    os.utime(tmp_path / "file", ns=(1, 1_600_000_000_123_456_789))
    os.chmod(tmp_path / "file", 0o604)
    subprocess.run(["cp", "-p", tmp_path / "file", ground.root / "file"], check=True, timeout=60)
    ground.mount.cold()
    found = os.stat(ground.root / "file")
    assert (found.st_mode & 0o777, found.st_mtime_ns) == (0o604, 1_600_000_000_123_456_789)
    assert ground.source.get("file") == data
    ground.clean_up()


def test_what_went_to_the_origin_is_neither_read_as_zeros_nor_changed(ground: Ground) -> None:
    data = bytes_of("a", SIZE)
    descriptor = ground.spill("a")
    second = os.open(ground.root / "a", os.O_RDWR | os.O_DIRECT)
    with refused(errno.ENOSPC):
        read_directly(second, 0)
    for change in (
        lambda: os.pwrite(descriptor, b"x", 0),
        lambda: os.pwrite(second, b"x", 5000),
        lambda: os.ftruncate(descriptor, 0),
        lambda: os.truncate(ground.root / "a", 1),
        lambda: os.open(ground.root / "a", os.O_WRONLY | os.O_TRUNC),
    ):
        with refused(errno.ENOSPC):
            change()
    with pytest.raises(NoSpace, match="does not fit in staging"):
        ground.client().cat(ground.key("a"))
    with refused(errno.EFBIG):
        os.ftruncate(descriptor, 2 * SIZE)
    assert "neither read nor changed before it is closed" in ground.engine.log()
    os.close(second)
    assert os.pread(descriptor, 1000, SIZE - 1000) == data[-1000:]
    os.write(descriptor, b"end")
    os.ftruncate(descriptor, SIZE + 2)
    os.close(descriptor)
    assert ground.source.get("a") == data + b"en"
    ground.clean_up()


def test_who_had_it_open_before_reads_what_was_there(ground: Ground) -> None:
    """A client has the staged file itself open: it must not see holes in it."""
    data = bytes_of("a", SIZE)
    descriptor = ground.open("a")
    os.write(descriptor, data[:PIECE])
    reader = ground.client().open_read(ground.key("a"))
    write_in_pieces(descriptor, data[PIECE:])
    assert ground.unfinished()
    assert reader.pread(0, PIECE) == data[:PIECE]
    reader.close()
    os.close(descriptor)
    assert ground.source.get("a") == data
    ground.clean_up()


def test_fsync_is_its_end_at_the_origin(ground: Ground) -> None:
    descriptor = ground.spill("a")
    os.fsync(descriptor)
    assert ground.source.get("a") == bytes_of("a", SIZE)
    assert ground.unfinished() == []
    with refused(errno.ENOSPC):  # more would have to be here than there is room for
        os.write(descriptor, b"more")
    os.fsync(descriptor)
    os.close(descriptor)
    assert ground.source.get("a") == bytes_of("a", SIZE)
    ground.clean_up()


def test_it_keeps_its_name_while_it_is_written(ground: Ground) -> None:
    (ground.root / "d").mkdir()
    descriptor = ground.spill("d/a")
    for change in (
        lambda: os.rename(ground.root / "d/a", ground.root / "d/b"),
        lambda: os.rename(ground.root / "d", ground.root / "e"),
    ):
        with refused(errno.EBUSY):
            change()
    if ground.source.kind == "posix":
        with refused(errno.EBUSY):
            os.link(ground.root / "d/a", ground.root / "d/b")
    os.write(descriptor, b"end")
    os.close(descriptor)
    assert ground.source.get("d/a") == bytes_of("d/a", SIZE) + b"end"
    os.rename(ground.root / "d", ground.root / "e")
    assert ground.source.get("e/a") == bytes_of("d/a", SIZE) + b"end"
    ground.clean_up()


def test_one_that_is_removed_leaves_nothing(ground: Ground) -> None:
    (ground.root / "d").mkdir()
    descriptor = ground.spill("d/a")
    os.unlink(ground.root / "d/a")
    os.rmdir(ground.root / "d")
    assert os.fstat(descriptor).st_size == SIZE
    assert os.pread(descriptor, 1000, SIZE - 1000) == bytes_of("d/a", SIZE)[-1000:]
    with refused(errno.ENOSPC):
        while True:
            os.write(descriptor, bytes(PIECE))
    os.close(descriptor)
    assert ground.source.names() == set()
    ground.clean_up()


def test_one_whose_name_another_takes_leaves_nothing(ground: Ground) -> None:
    descriptors = [ground.spill("a"), ground.spill("b")]
    (ground.root / "new").write_bytes(b"by rename")
    os.rename(ground.root / "new", ground.root / "a")
    with ground.client().create(ground.key("b")) as writer:
        writer.write(b"by a client")
    for descriptor in descriptors:
        os.close(descriptor)
    ground.clean_up()
    assert (ground.source.get("a"), ground.source.get("b")) == (b"by rename", b"by a client")
    assert (ground.root / "a").read_bytes() == b"by rename"
    assert (ground.root / "b").read_bytes() == b"by a client"


def test_the_close_tells_that_it_failed_and_the_name_is_what_the_origin_has(ground: Ground) -> None:
    descriptor = ground.spill("a", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    reader = os.open(ground.root / "a", os.O_RDONLY | os.O_DIRECT)
    ground.source.put("a", b"somebody else's")
    with refused(errno.ESTALE):
        os.close(descriptor)
    with refused(errno.ESTALE):
        read_directly(reader, SIZE // 4096 * 4096)
    with refused(errno.ESTALE):
        os.fstat(reader)
    os.close(reader)
    ground.clean_up()
    wait_for(lambda: (ground.root / "a").read_bytes() == b"somebody else's")
    assert ground.source.get("a") == b"somebody else's"


def test_an_append_goes_up_over_what_it_was_made_from(ground: Ground) -> None:
    base, more = bytes_of("base", MIB), bytes_of("more", SIZE)
    ground.source.put("a", base)
    descriptor = ground.open("a", os.O_WRONLY | os.O_APPEND)
    write_in_pieces(descriptor, more)
    os.close(descriptor)
    assert ground.source.get("a") == base + more
    ground.clean_up()


def test_two_that_are_written_together_share_the_room(ground: Ground) -> None:
    files = {name: (ground.open(name), bytes_of(name, SIZE)) for name in ("a", "b")}
    for offset in range(0, SIZE, PIECE):
        for descriptor, data in files.values():
            os.write(descriptor, data[offset : offset + PIECE])
    for name, (descriptor, data) in files.items():
        os.close(descriptor)
        assert ground.source.get(name) == data
    ground.clean_up()


def test_the_last_of_two_writers_ends_it(ground: Ground) -> None:
    first = ground.spill("a")
    second = ground.open("a", os.O_WRONLY | os.O_APPEND)
    os.close(first)
    os.write(second, b"end")
    assert ground.unfinished()
    os.close(second)
    assert ground.source.get("a") == bytes_of("a", SIZE) + b"end"
    ground.clean_up()


def test_a_child_that_ends_is_not_its_end(ground: Ground, driver: str) -> None:
    """Unless the driver is not told who closes a descriptor."""
    descriptor = ground.spill("a")
    subprocess.run(["true"], pass_fds=[descriptor], check=True)
    if driver == "kernel":
        os.write(descriptor, b"end")
        os.close(descriptor)
        assert ground.source.get("a") == bytes_of("a", SIZE) + b"end"
    else:
        with refused(errno.ENOSPC):
            os.write(descriptor, b"end")
        os.close(descriptor)
        assert ground.source.get("a") == bytes_of("a", SIZE)
    ground.clean_up()


def test_a_child_that_writes_by_its_parents_descriptor_ends_it(ground: Ground) -> None:
    descriptor = ground.open("a")
    subprocess.run(["head", "-c", str(SIZE), "/dev/zero"], stdout=descriptor, check=True)
    assert ground.source.get("a") == bytes(SIZE)
    os.close(descriptor)
    ground.clean_up()


def test_its_engine_is_not_replaced_meanwhile(ground: Ground, driver: str) -> None:
    descriptor = ground.spill("a")
    with pytest.raises(MountError, match="close it first" if driver == "kernel" else "ends with its engine"):
        ground.engine.client.request("restart")
    os.close(descriptor)
    assert ground.source.get("a") == bytes_of("a", SIZE)
    ground.clean_up()


def test_what_is_allocated_beforehand_is_too_large(ground: Ground) -> None:
    descriptor = ground.open("a")
    with refused(errno.EFBIG):
        os.ftruncate(descriptor, SIZE)
    os.close(descriptor)
    ground.clean_up()


def test_a_killed_engine_leaves_an_error_and_the_old_content(
    own_small: EngineProcess, kind: str, driver: str, mountpoint: Path, request: pytest.FixtureRequest
) -> None:
    for ground in ground_on(own_small, kind, driver, mountpoint, request):
        ground.source.put("old", b"old")
        descriptors = [ground.spill("old"), ground.spill("new")]
        readers = [os.open(ground.root / name, os.O_RDONLY | os.O_DIRECT) for name in ("old", "new")]
        old = own_small.pid
        os.kill(old, signal.SIGKILL)
        wait_until_gone(old)
        # Under the other driver the mount ends with its engine.
        expected = errno.ESTALE if driver == "kernel" else errno.ENOTCONN
        for descriptor, reader in zip(descriptors, readers, strict=True):
            with refused(expected):
                os.pwrite(descriptor, b"x", SIZE)
            for offset in (0, SIZE // 4096 * 4096):
                with refused(expected):
                    read_directly(reader, offset)
            with refused(expected):
                os.fstat(descriptor)
            for number in (descriptor, reader):
                with suppress(OSError):
                    os.close(number)
        if driver != "kernel":
            clean_up(mountpoint)
            ground.mount.mount()
        assert (ground.root / "old").read_bytes() == b"old"
        assert not (ground.root / "new").exists()
        ground.clean_up()
        assert ground.source.names() == {"old"}
        umount_when_free(own_small, mountpoint)


@pytest.fixture
def on_s3(small: EngineProcess, driver: str, mountpoint: Path, request: pytest.FixtureRequest) -> Iterator[Ground]:
    yield from ground_on(small, "s3", driver, mountpoint, request)


def test_an_origin_that_fails_for_a_while_is_waited_for(on_s3: Ground) -> None:
    assert on_s3.proxy is not None
    on_s3.proxy.script([500] * 20, operation="UploadPart")
    on_s3.proxy.lose_answer(operation="CompleteMultipartUpload", times=1)
    os.close(on_s3.spill("a"))
    assert on_s3.source.get("a") == bytes_of("a", SIZE)
    on_s3.clean_up()


def test_one_that_is_removed_while_its_parts_are_on_their_way_leaves_none(on_s3: Ground) -> None:
    assert on_s3.proxy is not None
    gate = on_s3.proxy.pause(operation="UploadPart")
    command = ["dd", "if=/dev/zero", f"of={on_s3.root / 'a'}", "bs=64k", "count=200", "status=none"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as writer:
        gate.wait_reached()
        on_s3.client().unlink(on_s3.key("a"))  # through the mount it waits for the write, in the kernel
        gate.open()
        assert b"No space left" in writer.communicate(timeout=60)[1]
    on_s3.clean_up()
    assert on_s3.source.names() == set()


def test_one_of_which_nothing_was_sent_is_like_any_other(ground: Ground) -> None:
    """Others have all the room, and what it has written is less than a part: there is nothing to send."""
    data = bytes_of("a", PART)
    descriptor = ground.open("a")
    with ground.client().create(ground.key("large")) as writer:
        writer.fileno()  # this one stays here, whatever comes
        writer.write(bytes(CAPACITY - PART // 2))
        writing = threading.Thread(target=write_in_pieces, args=[descriptor, data, 4096])
        writing.start()
        wait_for(lambda: ground.figure("spills_in_flight") == 1)
        writer.discard()
    writing.join(30)
    os.fsync(descriptor)
    assert ground.figure("spills_in_flight") == 0
    os.ftruncate(descriptor, 1000)
    os.close(descriptor)
    ground.clean_up()
    assert ground.source.get("a") == data[:1000]
