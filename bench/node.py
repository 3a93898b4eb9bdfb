"""Our side of a run: a cache directory, its engine, and maybe a mount. A fresh one stands for a node that joins."""

from __future__ import annotations

import os
import select
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tiercache.bench.place import Place
from tiercache.bench.processes import Usage, usage_of
from tiercache.bench.terms import PUT_OFF_S, Terms
from tiercache.client import Client
from tiercache.config import Config, load_config
from tiercache.errors import TierCacheError
from tiercache.units import format_count

_END_DEADLINE_S = 60.0
_DRAIN_DEADLINE_S = 600.0
ROOMY: Mapping[str, Any] = {"nvme.free_space_floor": 0, "staging.capacity": "64MiB"}
"""For a data set that is only read: the disk's free room is for it, and nothing is kept free for what is written."""

FUSE_DEVICE = Path("/dev/fuse")


class Node:
    """Starts when entered; when left, it is unmounted and ended. Its cache directory stays until ``remove``."""

    def __init__(
        self,
        directory: Path,
        place: Place,
        *,
        terms: Terms,
        settings: Mapping[str, Any],
        mounted: bool = False,
        driver: str = "",
    ) -> None:
        """``settings`` as in the configuration file, for example ``{"ram.capacity": 0}``.

        ``driver`` speaks with the kernel for a mount; empty: the usual one.
        """
        self.directory = directory
        self.place = place
        self.terms = terms
        self.driver = driver
        self.settings: dict[str, Any] = {"engine.stop_drain_s": 0, **settings}
        if terms.put_off_uploads:
            self.settings["staging.upload_delay_s"] = PUT_OFF_S
        self.mountpoint: Path | None = directory / "mnt" if mounted else None
        self.config: Config = load_config(None, {"cache_dir": str(self.cache_dir), **self.settings})
        self._client = Client(self.config, mode="auto")
        self._pid = 0

    @property
    def cache_dir(self) -> Path:
        return self.directory / "cache"

    def __enter__(self) -> Node:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._pid = int(self._client.status()["engine"]["pid"])  # starts the engine
            if self.mountpoint is not None:
                self._mount(self.mountpoint)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """The engine's."""
        return self._pid

    def restart(self, settings: Mapping[str, Any]) -> Node:
        """Another node over the same cache directory with other settings. Leave this one before you enter it."""
        mounted = self.mountpoint is not None
        return Node(
            self.directory, self.place, terms=self.terms, settings=settings, mounted=mounted, driver=self.driver
        )

    def status(self) -> dict[str, Any]:
        """The engine's figures. TierCacheError if it is another process than at the start: it has ended in between."""
        answer = self._client.status()
        if answer["engine"]["pid"] != self._pid:
            raise TierCacheError("the engine ended in the middle of the run and was replaced")
        return answer

    def usage(self) -> Usage:
        """What the engine's process uses."""
        return usage_of(self._pid)

    def drain(self) -> None:
        """Wait until the origin has everything. TierCacheError if that takes too long."""
        answer = self._client.drain(_DRAIN_DEADLINE_S)
        if answer["left"]:
            left = format_count(len(answer["left"]), "file")
            raise TierCacheError(f"{left} did not reach the origin: {answer['errors']}")

    def cache_files(self) -> Iterator[Path]:
        """The files of the NVMe tier."""
        return (path for path in (self.cache_dir / "nvme").rglob("*") if path.is_file())

    def ram_files(self) -> Iterator[Path]:
        """The files of the RAM tier."""
        return (path for path in self.config.ram_directory.rglob("*") if path.is_file())

    def remove(self) -> None:
        """Remove the cache directory and the RAM tier, after the engine's end."""
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.config.ram_directory, ignore_errors=True)

    def _mount(self, mountpoint: Path) -> None:
        mountpoint.mkdir(exist_ok=True)
        settings = {
            "client": "",
            "options": self.place.engine_options,
            "profile": self.terms.profile,
            "read_only": self.terms.read_only,
            "mount_options": {"driver": self.driver} if self.driver else {},
        }
        self._client.request("mount", url=self.place.url, mountpoint=str(mountpoint), settings=settings)

    def _end(self) -> None:
        pids: list[int] = []
        with suppress(TierCacheError):
            engine = self._client.status()["engine"]
            # The engine first: its supervisor ends after it.
            pids = [pid for pid in (engine["pid"], engine["supervisor_pid"]) if pid]
            if self.mountpoint is not None:
                self._client.request("umount", mountpoint=str(self.mountpoint), deadline_s=0.0, lazy=True)
        with ExitStack() as stack:
            ends = [stack.enter_context(_ProcessEnd(pid)) for pid in pids]
            with suppress(TierCacheError):  # it may be gone before its answer is read
                self._client.stop()
            self._client.close()
            for end in ends:
                end.wait()


class _ProcessEnd:
    """Waits for the end of a process that is not our child."""

    def __init__(self, pid: int) -> None:
        self._descriptor = -1
        with suppress(ProcessLookupError):
            self._descriptor = os.pidfd_open(pid)

    def __enter__(self) -> _ProcessEnd:
        return self

    def wait(self) -> None:
        if self._descriptor >= 0 and not select.select([self._descriptor], [], [], _END_DEADLINE_S)[0]:
            raise TierCacheError("the engine does not end")

    def __exit__(self, *exc: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def why_no_mount() -> str:
    """Why mounts cannot be measured here; empty if they can."""
    from tiercache.fuse.mountpoint import helper

    try:
        os.close(os.open(FUSE_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"{FUSE_DEVICE} is missing"
    except OSError as error:
        return f"{FUSE_DEVICE} cannot be opened ({error.strerror})"
    if os.geteuid() != 0 and helper() is None:
        return "fusermount3 is missing"
    return ""
