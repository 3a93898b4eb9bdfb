"""A peer's mount: its process from the start to the end, and nothing left of it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tiercache.bench.peers.peer import Peer, last_words
from tiercache.bench.place import Place
from tiercache.bench.processes import Usage, dying_with_us, usage_of
from tiercache.bench.terms import Terms
from tiercache.errors import MountError, TierCacheError
from tiercache.fuse import mountpoint as mountpoints

MOUNTINFO = "/proc/self/mountinfo"
START_DEADLINE_S = 60.0
END_DEADLINE_S = 30.0


class PeerMount:
    """Mounted when entered; when left, it is unmounted and its process has ended. The cache stays until ``remove``."""

    def __init__(self, peer: Peer, place: Place, directory: Path, terms: Terms) -> None:
        self.peer = peer
        self.directory = directory
        self.mountpoint: Path | None = directory / "mnt"
        self._path = mountpoints.absolute(str(self.mountpoint))
        self._cache = directory / "cache"
        self._log = directory / "log"
        self._place = place
        self._terms = terms
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PeerMount:
        for each in (Path(self._path), self._cache):
            each.mkdir(parents=True, exist_ok=True)
        launch = self.peer.launch(self._place, Path(self._path), self._cache, self._terms)
        try:
            with self._log.open("wb") as log:
                # A session of its own: Ctrl-C is for us, and we unmount before it ends.
                self._process = subprocess.Popen(
                    [*dying_with_us("TERM"), *launch.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=os.environ | launch.environment,
                )
            self._await_mount(self._process)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def status(self) -> dict[str, Any] | None:
        """No figures of its own that could be compared with ours."""
        return None

    def usage(self) -> Usage:
        """What its processes use."""
        return usage_of(self._process.pid) if self._process else Usage()

    def cache_files(self) -> Iterator[Path]:
        """The files that hold cached bytes."""
        return (path for path in self._cache.rglob("*") if path.is_file())

    def ram_files(self) -> Iterator[Path]:
        """None: it caches on the disk."""
        return iter(())

    def remove(self) -> None:
        """Remove the cache and the rest."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _await_mount(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        with open(MOUNTINFO, "rb") as mountinfo, closing(_Descriptor(os.pidfd_open(process.pid))) as end:
            poll = select.poll()
            poll.register(mountinfo, select.POLLPRI)  # the kernel tells when anything is mounted
            poll.register(end.number, select.POLLIN)
            while mountpoints.mounted_at(self._path) is None:
                left_s = deadline - time.monotonic()
                events = dict(poll.poll(max(left_s, 0) * 1000))
                if end.number in events or left_s <= 0:
                    raise MountError(f"{self.peer.name} did not mount: {last_words(self._said())}")
        try:
            os.listdir(self._path)
        except OSError as error:
            raise MountError(
                f"{self.peer.name}: its mount does not answer ({error.strerror}): {last_words(self._said())}"
            ) from None

    def _said(self) -> str:
        return self._log.read_text(errors="replace")

    def _end(self) -> None:
        process, self._process = self._process, None
        clean = self._unmount()
        if process is None:
            return
        # With its last mount a process ends by itself; one that was in use waits for its users.
        for number in (*([None] if clean else []), signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)  # its children too
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_DEADLINE_S)
                break
        else:
            raise TierCacheError(f"{self.peer.name} does not end (process {process.pid})")
        self._unmount()  # what a process that died has left

    def _unmount(self) -> bool:
        """False if it was taken away from those who use it."""
        if mountpoints.mounted_at(self._path) is None:
            return True
        try:
            mountpoints.unmount(self._path)
        except MountError:  # in use, or dead
            mountpoints.unmount(self._path, detach=True)
            return False
        return True


class _Descriptor:
    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        os.close(self.number)
