"""Files of a mount behave as POSIX says, over each origin and with each driver."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from rig.mounts import Mounted, refused
from tiercache.model import BLOCK_SIZE_BYTES

RANDOM = random.Random(7)
SPARSE_BYTES = 20_000_000


def test_what_is_written_is_read_and_reaches_the_origin(mounted: Mounted, root: Path) -> None:
    data = RANDOM.randbytes(300_000)
    (root / "file").write_bytes(data)
    assert (root / "file").read_bytes() == data
    assert (root / "file").stat().st_size == len(data)
    mounted.drain()
    assert mounted.source.get("file") == data
    assert mounted.state("file") == "clean"
    mounted.cold()
    assert (root / "file").read_bytes() == data


@pytest.mark.parametrize("size", [0, 1, BLOCK_SIZE_BYTES - 1, BLOCK_SIZE_BYTES, BLOCK_SIZE_BYTES + 1])
def test_reads_at_and_past_the_end_follow_slices(mounted: Mounted, root: Path, size: int) -> None:
    """C08."""
    data = RANDOM.randbytes(size)
    mounted.source.put("object", data)
    with open(root / "object", "rb", buffering=0) as file:
        assert os.fstat(file.fileno()).st_size == size
        for offset in (0, max(0, size - 1), size, size + 1, BLOCK_SIZE_BYTES, 3 * BLOCK_SIZE_BYTES):
            assert os.pread(file.fileno(), 100, offset) == data[offset : offset + 100]
        assert file.read() == data
        assert file.read() == b""
    assert (root / "object").exists()


def test_random_reads_of_a_big_object_are_exact(mounted: Mounted, root: Path) -> None:
    """C09."""
    size = int(7.3 * BLOCK_SIZE_BYTES)
    data = RANDOM.randbytes(size)
    mounted.source.put("big", data)
    with open(root / "big", "rb", buffering=0) as file:
        assert (
            os.pread(file.fileno(), BLOCK_SIZE_BYTES, size - BLOCK_SIZE_BYTES - 7) == data[-BLOCK_SIZE_BYTES - 7 : -7]
        )
        for _ in range(1000):
            offset = RANDOM.choice((RANDOM.randrange(size), size - RANDOM.randrange(1, 5000), size - BLOCK_SIZE_BYTES))
            length = RANDOM.choice((1, 100, 4096, 200_000))
            assert os.pread(file.fileno(), length, offset) == data[offset : offset + length]


def test_append_ignores_the_position(root: Path) -> None:
    path = root / "log"
    first = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    second = os.open(path, os.O_WRONLY | os.O_APPEND)
    for number in range(20):
        os.write(first if number % 2 else second, b"%02d\n" % number)
        os.lseek(first, 0, os.SEEK_SET)
    os.close(first)
    os.close(second)
    assert path.read_bytes() == b"".join(b"%02d\n" % number for number in range(20))


def test_truncating_opens_and_calls(mounted: Mounted, root: Path) -> None:
    path = root / "file"
    path.write_bytes(b"0123456789")
    with open(path, "r+b") as file:
        file.truncate(4)
        assert os.fstat(file.fileno()).st_size == 4
        file.truncate(8)
        assert os.pread(file.fileno(), 100, 0) == b"0123\0\0\0\0"
    os.truncate(path, 2)
    assert path.read_bytes() == b"01"
    os.truncate(path, BLOCK_SIZE_BYTES + 1)
    assert path.stat().st_size == BLOCK_SIZE_BYTES + 1
    assert path.read_bytes() == b"01" + bytes(BLOCK_SIZE_BYTES - 1)
    path.write_bytes(b"")
    assert path.stat().st_size == 0
    mounted.drain()
    assert mounted.source.get("file") == b""


def test_a_change_in_the_middle_of_an_object_keeps_the_rest(mounted: Mounted, root: Path) -> None:
    data = bytearray(RANDOM.randbytes(BLOCK_SIZE_BYTES + 5000))
    mounted.source.put("object", bytes(data))
    with open(root / "object", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"changed", BLOCK_SIZE_BYTES - 3)
        data[BLOCK_SIZE_BYTES - 3 : BLOCK_SIZE_BYTES + 4] = b"changed"
        assert os.pread(file.fileno(), 10_000, BLOCK_SIZE_BYTES - 5000) == data[BLOCK_SIZE_BYTES - 5000 :][:10_000]
    assert (root / "object").read_bytes() == data
    mounted.drain()
    assert mounted.source.get("object") == data


def test_dup_fork_and_shell_groups_lose_no_byte(mounted: Mounted, root: Path) -> None:
    """C18."""
    descriptor = os.open(root / "dup", os.O_WRONLY | os.O_CREAT)
    other = os.dup(descriptor)
    os.write(descriptor, b"one ")
    os.close(descriptor)
    os.write(other, b"two")
    os.close(other)
    assert (root / "dup").read_bytes() == b"one two"

    subprocess.run(["sh", "-c", f"(echo a; echo b) > '{root}/group'"], check=True, timeout=30)
    assert (root / "group").read_bytes() == b"a\nb\n"

    descriptor = os.open(root / "forked", os.O_WRONLY | os.O_CREAT)
    os.set_inheritable(descriptor, True)
    subprocess.run(["true"], close_fds=False, check=True, timeout=30)  # a child closes it
    os.write(descriptor, b"parent")
    os.close(descriptor)
    mounted.drain()
    assert {name: mounted.source.get(name) for name in ("dup", "group", "forked")} == {
        "dup": b"one two",
        "group": b"a\nb\n",
        "forked": b"parent",
    }


def test_shared_and_private_mappings(root: Path) -> None:
    path = root / "mapped"
    path.write_bytes(b"x" * 10_000)
    with open(path, "r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            assert view[9_990:] == b"x" * 10
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
            view[0:4] = b"copy"
        with mmap.mmap(file.fileno(), 0) as view:
            view[5_000:5_004] = b"mmap"
            view.flush()
    data = path.read_bytes()
    assert data[:4] == b"xxxx"
    assert data[5_000:5_004] == b"mmap"
    assert len(data) == 10_000


def test_a_file_renamed_over_an_open_one_leaves_it_readable(mounted: Mounted, root: Path) -> None:
    (root / "target").write_bytes(b"old")
    (root / "source").write_bytes(b"new bytes")
    mounted.drain()
    with open(root / "target", "rb") as file:
        (root / "source").rename(root / "target")
        assert file.read() == b"old"
    assert (root / "target").read_bytes() == b"new bytes"
    assert sorted(os.listdir(root)) == ["target"]
    mounted.drain()
    assert mounted.source.names() == {"target"}
    assert mounted.source.get("target") == b"new bytes"


def test_an_unlinked_open_file_lives_on_and_then_is_gone(mounted: Mounted, root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as file:
        file.write(b"before ")
        (root / "file").unlink()
        file.write(b"after")
        assert os.pread(file.fileno(), 100, 0) == b"before after"
        assert os.fstat(file.fileno()).st_nlink == 0
        os.fchmod(file.fileno(), 0o600)
        assert not (root / "file").exists()
    mounted.drain()
    assert mounted.source.names() == set()


def test_a_dirty_file_keeps_its_bytes_through_rename_and_more_writes(mounted: Mounted, root: Path) -> None:
    """The mount's part of C01: state follows the inode."""
    (root / "t").write_bytes(b"older")
    with open(root / "t.tmp", "wb", buffering=0) as file:
        file.write(b"A" * 1000)
        os.fsync(file.fileno())
        (root / "t.tmp").rename(root / "t")
        file.write(b"B" * 1000)
    mounted.drain()
    assert (root / "t").read_bytes() == mounted.source.get("t") == b"A" * 1000 + b"B" * 1000
    assert mounted.source.names() == {"t"}


def test_exclusive_creation(root: Path) -> None:
    (root / "file").touch()
    with pytest.raises(FileExistsError):
        os.open(root / "file", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def test_direct_io(root: Path) -> None:
    page = mmap.mmap(-1, 8192)
    page.write(b"d" * 8192)
    descriptor = os.open(root / "direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    try:
        assert os.pwrite(descriptor, page, 0) == 8192
        assert os.preadv(descriptor, [page], 4096) == 4096
    finally:
        os.close(descriptor)
    assert (root / "direct").read_bytes() == b"d" * 8192


def test_modes_owners_and_times_survive_a_remount(mounted: Mounted, root: Path) -> None:
    (root / "file").write_bytes(b"x")
    (root / "dir").mkdir(mode=0o750)
    os.chmod(root / "file", 0o4711)
    os.chown(root / "file", 1234, 2345)
    os.chmod(root / "file", 0o4711)
    os.utime(root / "file", ns=(1_000_000_000_000_000_000, 1_234_567_890_123_456_789))
    mounted.drain()
    mounted.cold()
    found = (root / "file").stat()
    assert stat.S_IMODE(found.st_mode) == 0o4711
    assert (found.st_uid, found.st_gid) == (1234, 2345)
    assert found.st_mtime_ns == 1_234_567_890_123_456_789
    assert (root / "file").read_bytes() == b"x"
    assert stat.S_IMODE((root / "dir").stat().st_mode) == 0o750


def test_a_change_of_owner_clears_the_set_user_id_bit(root: Path) -> None:
    (root / "program").write_bytes(b"x")
    os.chmod(root / "program", 0o6755)
    os.chown(root / "program", 1000, -1)
    assert stat.S_IMODE((root / "program").stat().st_mode) == 0o755


def test_a_write_by_an_ordinary_user_clears_the_set_user_id_bit(root: Path) -> None:
    program = root / "program"
    program.write_bytes(b"x")
    os.chown(program, 1000, 1000)
    os.chmod(program, 0o6755)
    as_user(root, "printf y >> program")
    assert stat.S_IMODE(program.stat().st_mode) == 0o755


def test_permissions_hold_for_other_users(root: Path) -> None:
    (root / "secret").write_bytes(b"x")
    os.chmod(root / "secret", 0o600)
    (root / "open").mkdir()
    os.chmod(root / "open", 0o777)
    assert as_user(root, "cat secret", check=False) != 0
    as_user(root, "umask 027; echo hi > open/theirs")
    found = (root / "open" / "theirs").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (1000, 0o640)


def as_user(root: Path, script: str, *, check: bool = True) -> int:
    # Pytest's temporary directories are closed to others, so paths are relative to where root brings them.
    uid = 1000
    result = subprocess.run(
        ["sh", "-c", script],
        cwd=root,
        user=uid,
        group=uid,
        extra_groups=[],
        timeout=30,
        capture_output=True,
        check=False,
    )
    assert not check or result.returncode == 0, result.stderr
    return result.returncode


def test_a_set_group_id_directory_hands_its_group_down(root: Path) -> None:
    (root / "shared").mkdir()
    os.chown(root / "shared", -1, 4321)
    os.chmod(root / "shared", 0o2775)
    (root / "shared" / "file").touch()
    (root / "shared" / "dir").mkdir()
    assert (root / "shared" / "file").stat().st_gid == 4321
    found = (root / "shared" / "dir").stat()
    assert (found.st_gid, bool(found.st_mode & stat.S_ISGID)) == (4321, True)


def test_extended_attributes(mounted: Mounted, root: Path) -> None:
    path = root / "file"
    path.write_bytes(b"x")
    mounted.drain()
    os.setxattr(path, "user.note", b"\0binary\xff")
    os.setxattr(path, "user.note", b"second", os.XATTR_REPLACE)
    with pytest.raises(FileExistsError):
        os.setxattr(path, "user.note", b"third", os.XATTR_CREATE)
    assert os.getxattr(path, "user.note") == b"second"
    assert os.listxattr(path) == ["user.note"]
    mounted.drain()
    mounted.cold()
    assert os.getxattr(path, "user.note") == b"second"
    os.removexattr(path, "user.note")
    for name in ("user.note", "security.capability", "trusted.x"):
        with refused(errno.ENODATA):
            os.getxattr(path, name)
    with refused(errno.ENOTSUP):
        os.setxattr(path, "trusted.x", b"y")


@pytest.mark.parametrize("length", [0, 200], ids=["many", "large"])
def test_extended_attributes_that_no_object_could_hold_are_refused(mounted: Mounted, root: Path, length: int) -> None:
    """At once, by what they take with an object: base64 and what stands between them included."""
    path = root / "file"
    path.write_bytes(b"x")
    kept = {}
    with refused(errno.ENOSPC):
        for number in range(300):
            kept[f"user.{number}"] = b"\xff" * length
            os.setxattr(path, f"user.{number}", b"\xff" * length)
    kept.popitem()
    assert kept
    mounted.drain()
    mounted.cold()
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == kept


def test_what_is_refused_in_a_loop_is_told_once(mounted: Mounted, root: Path) -> None:
    def told_and_counted() -> tuple[int, int]:
        counted = mounted.engine.client.status()["metrics"].get("mount_failures_total", {})
        return mounted.engine.log().count("setxattr of "), counted.get("setxattr/ENOSPC", 0)

    path = root / "file"
    path.write_bytes(b"x")
    told, counted = told_and_counted()
    for _ in range(50):
        with refused(errno.ENOSPC):
            os.setxattr(path, "user.large", b"x" * 3000)
    assert told_and_counted() == (told + 1, counted + 50)


def test_the_state_of_a_file_can_be_read(mounted: Mounted, root: Path) -> None:
    with open(root / "file", "wb") as file:
        file.write(b"x")
        file.flush()
        assert mounted.state("file") == "staged"
    mounted.drain()
    assert mounted.state("file") == "clean"
    with pytest.raises(OSError, match="not supported"):
        os.setxattr(root / "file", "user.tiercache.state", b"lost")


def test_an_object_store_holds_no_pipes_sockets_or_devices(on_s3: Mounted) -> None:
    for kind in (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK):
        with refused(errno.EPERM):
            os.mknod(on_s3.path / "special", kind | 0o600, os.makedev(1, 3))
    assert os.listdir(on_s3.path) == []


@pytest.mark.parametrize("kind", [0, stat.S_IFREG])
def test_mknod_makes_empty_files(root: Path, kind: int) -> None:
    os.mknod(root / "plain", 0o640 | kind)
    found = (root / "plain").stat()
    assert (found.st_size, stat.filemode(found.st_mode)) == (0, "-rw-r-----")


def test_pipes_sockets_and_devices_live_on_a_file_tree(on_posix: Mounted) -> None:
    path = on_posix.path
    os.mkfifo(path / "pipe", 0o600)
    os.mknod(path / "null", 0o640 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(path / "disk", 0o600 | stat.S_IFBLK, os.makedev(259, 1000))
    with contextlib.chdir(path), socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        listener.bind("socket")
        listener.listen()
        caller.connect("socket")
    with subprocess.Popen(["sh", "-c", f"echo through > '{path}/pipe'"]):
        assert (path / "pipe").read_bytes() == b"through\n"
    os.chmod(path / "pipe", 0o6755)
    os.chown(path / "pipe", 1000, 1000)
    assert stat.filemode((path / "pipe").stat().st_mode) == "prwxr-xr-x"
    os.chmod(path / "pipe", 0o644)
    os.utime(path / "pipe", ns=(10**18, 10**18))
    os.rename(path / "pipe", path / "moved")
    os.link(path / "null", path / "zero")
    assert (path / "null").stat().st_nlink == 2
    on_posix.cold()
    found = {name: (path / name).stat() for name in os.listdir(path)}
    assert {name: stat.filemode(status.st_mode) for name, status in found.items()} == {
        "moved": "prw-r--r--",
        "null": "crw-r-----",
        "zero": "crw-r-----",
        "disk": "brw-------",
        "socket": "srwxr-xr-x",
    }
    assert {found["null"].st_rdev, found["zero"].st_rdev} == {os.makedev(1, 3)}
    assert found["disk"].st_rdev == os.makedev(259, 1000)
    assert found["moved"].st_mtime_ns == 10**18
    with refused(errno.EACCES):
        (path / "null").read_bytes()  # the mount is nodev
    for name in found:
        (path / name).unlink()
    assert os.listdir(path) == []
    assert on_posix.source.directory is not None
    assert os.listdir(on_posix.source.directory) == []


def test_space_is_plausible(mounted: Mounted, root: Path) -> None:
    """C28."""
    space = os.statvfs(root)
    assert space.f_blocks > 0
    assert space.f_bavail <= space.f_blocks < 2**31
    assert space.f_files < 2**31
    assert space.f_namemax == 255
    df = subprocess.run(["df", "-k", root], capture_output=True, text=True, check=True, timeout=30).stdout
    assert "tiercache" in df
    for options in ("-k", "-i", "-PT"):
        line = subprocess.check_output(["df", options, root], text=True, timeout=30).splitlines()[-1]
        assert all(0 <= int(word) < 2**63 for word in line.split() if word.isdecimal())
    with open(root / "sparse", "wb") as file:
        file.truncate(SPARSE_BYTES)
        file.seek(SPARSE_BYTES // 2)
        file.write(b"x")
        check_disk_usage(root)
    check_disk_usage(root)
    mounted.drain()
    check_disk_usage(root)


def check_disk_usage(root: Path) -> None:
    """A sparse file takes at most its length, and what it takes is not nothing."""
    used = int(subprocess.check_output(["du", "-s", "-B1", "sparse"], cwd=root, text=True, timeout=30).split()[0])
    length = subprocess.check_output(["du", "-s", "-b", "sparse"], cwd=root, text=True, timeout=30).split()[0]
    assert int(length) == SPARSE_BYTES
    assert 0 < used <= SPARSE_BYTES + 4096
