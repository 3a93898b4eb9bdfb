"""The access trace: which versions are read, a line for each read, for ``tiercache advise`` and ``bench policies``.

Of all versions a share is traced, with all of its reads, chosen by their ids: so the distances between the reads of a
version shrink by that share and no more, and a cache of that share of the bytes behaves as the whole one (Waldspurger
et al., "Efficient MRC construction with SHARDS", FAST 2015).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import trio

from tiercache.catalog import Catalog
from tiercache.config import Config
from tiercache.metrics import Metrics
from tiercache.model import VersionId

FLUSH_S: Final = 1.0
"""How long a read waits to be written."""

KEY_BYTES: Final = 8
"""So much of a version's id tells it from others, and nothing of its name."""

DIRECTORY: Final = "trace"
NAME: Final = "reads.csv"
OLDER: Final = "reads.1.csv"
"""What was written before the last rotation."""

HEADER: Final = "# tiercache "
"""Before the JSON of what a trace was made with; of several the last one counts."""

AT: Final = "# at "
"""Before the seconds since the epoch at which the reads above were written …"""

OF: Final = " of "
"""… and how many they are with those that the sample left out."""

log = logging.getLogger("tiercache.engine")


class Trace:
    """``read`` and ``touched`` are called for each read and cost next to nothing; the writing is that of ``run``. What
    goes wrong ends the trace with one warning, and harms no reader."""

    def __init__(self, config: Config, catalog: Catalog, metrics: Metrics) -> None:
        settings = config.trace
        about = {"capacity_bytes": config.nvme_capacity_bytes(), "policy": config.nvme.policy}
        self._file = TraceFile(config.cache_dir / DIRECTORY, settings.max_bytes, about | {"sample": settings.sample})
        self._buffer_reads = settings.buffer_reads
        self._catalog = catalog
        self._last = _last_of(settings.sample)
        self._lines: list[tuple[VersionId, int]] = []
        self._left_out = self._lost = 0
        self._count = {word: metrics.trace_reads.labels(outcome=word) for word in ("recorded", "left out", "lost")}
        metrics.trace_recording.set_function(lambda: float(self.recording))
        self.recording = settings.on
        self._writing = threading.Lock()

    @property
    def path(self) -> Path:
        """Where the newest reads are."""
        return self._file.path

    def start(self) -> None:
        """Record from now on, after what was recorded before."""
        self.recording = True

    def read(self, version: VersionId, size_bytes: int) -> None:
        """Somebody opens a version to read it."""
        if not self.recording:
            return
        if version > self._last:
            self._left_out += 1
        elif len(self._lines) < self._buffer_reads:
            self._lines.append((version, size_bytes))
        else:
            self._lost += 1

    def touched(self, versions: Iterable[VersionId]) -> None:
        """Clients opened local copies by themselves, in this order."""
        for version in versions if self.recording else ():
            size_bytes = 0 if version > self._last else self._size_of(version)
            if size_bytes is None:
                self._lost += 1  # evicted since
            else:
                self.read(version, size_bytes)

    def _size_of(self, version: VersionId) -> int | None:
        record = self._catalog.version(version)
        return None if record is None else record.size_bytes

    async def run(self) -> None:
        """Write what was read; until cancelled."""
        while True:
            await trio.sleep(FLUSH_S)
            await trio.to_thread.run_sync(self._write, *self._take())

    async def stop(self) -> None:
        """Record no more; what was recorded is in the file."""
        self.recording = False
        await trio.to_thread.run_sync(self._write, *self._take())

    def close(self) -> None:
        """The same at the engine's end. Blocking."""
        self._write(*self._take())
        self.recording = False

    def _take(self) -> tuple[list[tuple[VersionId, int]], int]:
        """What is to be written, and how many reads these are with those that were left out."""
        lines, self._lines = self._lines, []
        seen = len(lines) + self._left_out
        for word, number in (("recorded", len(lines)), ("left out", self._left_out), ("lost", self._lost)):
            self._count[word].inc(number)
        self._left_out = self._lost = 0
        return lines, seen

    def _write(self, lines: list[tuple[VersionId, int]], seen: int) -> None:
        if not seen:
            return
        text = "".join(f"{version[:KEY_BYTES].hex()},{size_bytes}\n" for version, size_bytes in lines)
        try:
            with self._writing:
                self._file.append(f"{text}{AT}{time.time():.0f}{OF}{seen}\n")
        except OSError as error:
            self.recording = False
            self._count["lost"].inc(len(lines))
            log.warning("the access trace ends here, and reads go on: %s: %s", self.path, error.strerror or error)


class TraceFile:
    """Two files of half of ``max_bytes`` each: the newer one is appended to, and takes the place of the older one when
    it is full. A trace that was made with another sample is begun anew. Blocking; OSError."""

    def __init__(self, directory: Path, max_bytes: int, about: dict[str, Any]) -> None:
        self.path = directory / NAME
        self._max_bytes = max_bytes // 2
        self._about = about
        self._begun = False

    def append(self, text: str) -> None:
        """Add whole lines."""
        if not self._begun:
            self._go_on()
            text = self._header() + text
        elif self.path.stat().st_size + len(text) > self._max_bytes:
            self.path.replace(self.path.with_name(OLDER))
            text = self._header() + text
        with self.path.open("a") as file:
            file.write(text)
        self._begun = True

    def _header(self) -> str:
        return f"{HEADER}{json.dumps({**self._about, 'began': round(time.time())})}\n"

    def _go_on(self) -> None:
        """After an earlier engine: that may have been killed in the middle of a line."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        if self.path.exists() and about_of(self.path).get("sample") != self._about["sample"]:
            self.path.unlink()
            self.path.with_name(OLDER).unlink(missing_ok=True)
        with self.path.open("ab+") as file:
            size_bytes = file.tell()
            tail_bytes = min(size_bytes, 4096)
            file.seek(size_bytes - tail_bytes)
            whole_bytes = file.read().rfind(b"\n") + 1
            os.truncate(file.fileno(), size_bytes - tail_bytes + whole_bytes)


def about_of(path: Path) -> dict[str, Any]:
    """What the first line of a trace tells; empty for one that no engine made."""
    with path.open(errors="replace") as file:
        line = file.readline()
    try:
        about = json.loads(line.removeprefix(HEADER)) if line.startswith(HEADER) else {}
    except ValueError:
        about = {}
    return about if isinstance(about, dict) else {}


def _last_of(sample: float) -> bytes:
    """What the ids of a share of all versions do not exceed; they are evenly spread."""
    last = min(2**64 - 1, int(sample * 2**64))
    return last.to_bytes(8, "big") + b"\xff" * 8
