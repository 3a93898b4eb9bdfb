"""What tests of real mounts are made of: an engine process, an origin under it, and a watchdog."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from rig.seaweedfs import S3Server
from tiercache.client import Client
from tiercache.config import load_config
from tiercache.errors import MountError, TierCacheError
from tiercache.fuse import mountpoint as mountpoints

BUCKET = "mounted"

WATCHDOG_S = 60.0
"""After this the test's mount is aborted: what hangs in it fails, and the test with it."""

OriginKind = Literal["posix", "s3"]


class Source(NamedTuple):
    """An empty place in an origin, and a way to see and change it behind the mount's back."""

    kind: OriginKind
    url: str
    options: dict[str, Any]
    directory: Path | None = None
    s3: Any = None
    prefix: str = ""

    def put(self, name: str, data: bytes) -> None:
        if self.directory is not None:
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(path.name + ".new")
            new.write_bytes(data)
            new.rename(path)
        else:
            self.s3.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=data)

    def get(self, name: str) -> bytes:
        if self.directory is not None:
            return (self.directory / name).read_bytes()
        return bytes(self.s3.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")["Body"].read())

    def delete(self, name: str) -> None:
        if self.directory is not None:
            (self.directory / name).unlink()
        else:
            self.s3.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")

    def names(self) -> set[str]:
        """All files, by path below the place; directories and their markers are left out."""
        if self.directory is not None:
            return {str(p.relative_to(self.directory)) for p in self.directory.rglob("*") if not p.is_dir()}
        return {key for key in self._keys() if not key.endswith("/")}

    def directories(self) -> set[str]:
        """All directories, or their markers."""
        if self.directory is not None:
            return {str(p.relative_to(self.directory)) for p in self.directory.rglob("*") if p.is_dir()}
        return {key.rstrip("/") for key in self._keys() if key.endswith("/")}

    def _keys(self) -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.prefix + "/")
        keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        return [key[len(self.prefix) + 1 :] for key in keys if key != self.prefix + "/"]


class EngineProcess:
    """The engine of one cache directory, started on demand."""

    def __init__(self, cache_dir: Path, **settings: Any) -> None:
        sizes = {
            "ram.capacity": "64MiB",
            "ram.directory": str(cache_dir) + "-ram",
            "nvme.capacity": "1GiB",
            "nvme.free_space_floor": "0",
            "staging.capacity": "512MiB",
            "fetch.retry_deadline_s": 2,
            "checkpoints.settle_s": 0,
            "scan.files_max": 0,  # what is fetched is counted
        }
        self.config = load_config(None, {"cache_dir": str(cache_dir), **sizes, **settings})
        self.client = Client(self.config)

    @property
    def pid(self) -> int:
        return int(self.client.status()["engine"]["pid"])

    def mount(self, source: Source, path: Path, **settings: Any) -> None:
        settings = {"options": source.options, "profile": "general", **settings}
        self.client.request("mount", url=source.url, mountpoint=str(path), settings=settings)

    def log(self) -> str:
        return (self.config.cache_dir / "engine.log").read_text()

    def umount(self, path: Path, *, deadline_s: float = 30, lazy: bool = False) -> dict[str, Any]:
        answer = self.client.request("umount", mountpoint=str(path), deadline_s=deadline_s, lazy=lazy)
        assert isinstance(answer, dict)
        return answer

    def drain(self) -> None:
        answer = self.client.drain(deadline_s=40)
        assert not answer["left"], answer

    def kill(self) -> None:
        """The engine, and before it whoever would replace it."""
        engine = self.client.status()["engine"]
        for pid in (engine["supervisor_pid"], engine["pid"]):
            os.kill(pid, signal.SIGKILL)
            wait_until_gone(pid)

    def stop(self) -> None:
        pid = self.pid
        with contextlib.suppress(TierCacheError):  # it may be gone before it has answered
            self.client.stop()
        self.client.close()
        wait_until_gone(pid)


def wait_until_gone(pid: int, deadline_s: float = 30.0) -> None:
    """Wait for a process that is no child of ours."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], deadline_s)[0], f"process {pid} does not end"
    finally:
        os.close(descriptor)


class Mounted:
    """A mount under test."""

    def __init__(self, engine: EngineProcess, source: Source, path: Path, settings: dict[str, Any]) -> None:
        self.engine = engine
        self.source = source
        self.path = path
        self.settings = settings

    def mount(self) -> None:
        self.engine.mount(self.source, self.path, **self.settings)

    def drain(self) -> None:
        self.engine.drain()

    def cold(self) -> None:
        """Everything at the origin, and nothing of it in the kernel."""
        self.engine.umount(self.path)
        Path("/proc/sys/vm/drop_caches").write_text("1")
        self.mount()

    def state(self, name: str) -> str:
        return os.getxattr(self.path / name, "user.tiercache.state").decode()


def is_mounted(path: Path) -> bool:
    return mountpoints.mounted_at(str(path)) is not None


def clean_up(path: Path) -> None:
    """Leave nothing behind, whatever a test did."""
    while is_mounted(path):
        mountpoints.unmount(str(path), detach=True)


class Watchdog:
    """Aborts mounts that are still there when the time is over."""

    def __init__(self, *paths: Path, limit_s: float = WATCHDOG_S) -> None:
        self.fired = False
        self._paths = paths
        self._timer = threading.Timer(limit_s, self._fire)
        self._timer.daemon = True

    def __enter__(self) -> Watchdog:
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def _fire(self) -> None:
        self.fired = True
        for path in self._paths:
            mountpoints.abort(str(path))


def make_source(kind: OriginKind, request: pytest.FixtureRequest) -> Source:
    if kind == "posix":
        directory = request.getfixturevalue("tmp_path") / f"origin-{uuid.uuid4().hex[:6]}"
        directory.mkdir()
        return Source("posix", directory.as_uri(), {}, directory=directory)
    server: S3Server = request.getfixturevalue("s3_server")
    s3 = request.getfixturevalue("bucket_client")
    prefix = uuid.uuid4().hex
    return Source("s3", f"s3://{BUCKET}/{prefix}", server.options(), s3=s3, prefix=prefix)


def umount_when_free(engine: EngineProcess, path: Path, deadline_s: float = 10.0) -> None:
    """A process that just ended may keep the mount busy for a moment."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            engine.umount(path)
            return
        except MountError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def mounted_for(engine: EngineProcess, source: Source, path: Path, driver: str, **settings: Any) -> Iterator[Mounted]:
    """The body of a fixture: mount, and unmount what the test left."""
    mount = Mounted(engine, source, path, {"mount_options": {"driver": driver}, **settings})
    mount.mount()
    yield mount
    if is_mounted(path):
        try:
            umount_when_free(engine, path)
        except MountError:
            # A test that failed left a file open: the next one shall not suffer for it.
            engine.umount(path, lazy=True)
            raise


def wait_for(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    """Poll until it comes about."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.02)


@contextlib.contextmanager
def refused(code: int) -> Iterator[None]:
    """The block must fail with this errno."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is compared below
        yield
    found = caught.value.errno or 0
    assert found == code, f"{errno.errorcode[found]} instead of {errno.errorcode[code]}: {caught.value}"


RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)


def renameat2(source: Path, target: Path, flags: int) -> None:
    """rename(2) with flags."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
