"""The ceiling of the engine's memory: what the process itself takes is measured, files get what is left.

Counted is anonymous memory. Pages of files (libraries, the maps of catalog and journal) are the kernel's to take back.
"""

from __future__ import annotations

import ctypes
import logging
import resource
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from tiercache.config import Config
from tiercache.errors import ConfigError
from tiercache.memory import SMALLEST_BYTES, Memory, Purpose
from tiercache.metrics import Metrics
from tiercache.units import MIB, format_size

LATER_BYTES: Final = 40 * MIB
"""What libraries take once they are used: 24 MiB for botocore, connections, the stacks of threads."""

HOSTED_BYTES: Final = 40 * MIB
"""What an engine takes by itself that is part of somebody else's process, where it cannot be measured."""

MARGIN_BYTES: Final = 16 * MIB
MARGIN_SHARE: Final = 1 / 16
MARGIN_MOST_BYTES: Final = 256 * MIB
"""Left free for what comes between two measurements: this much, and this part of the ceiling up to the last."""

INTERVAL_S: Final = 0.25
REMEMBERED: Final = 40
"""Measurements that count: the largest of the last ten seconds."""

_PAGE_BYTES: Final = resource.getpagesize()
_STATM: Final = Path("/proc/self/statm")

log = logging.getLogger("tiercache.engine")


def anonymous_bytes() -> int:
    """Resident memory of this process that no file stands behind."""
    _, resident, shared, *_ = _STATM.read_text().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def ceiling_bytes(config: Config, own_bytes: int) -> int:
    """The ceiling of an engine that takes ``own_bytes`` by itself. A share is never less than it needs to work;
    ConfigError for a size that is."""
    wanted_bytes, needed_bytes = config.memory_max_bytes(), needed(own_bytes)
    if wanted_bytes >= needed_bytes:
        return wanted_bytes
    if config.memory_max.fraction:
        log.warning("memory_max: %s is taken as %s", config.memory_max, format_size(needed_bytes))
        return needed_bytes
    raise ConfigError(
        f"memory_max: {format_size(wanted_bytes)} is too little to work with; "
        f"the engine needs at least {format_size(needed_bytes)}"
    )


def needed(own_bytes: int) -> int:
    """The least ceiling, in whole MiB."""
    least = (own_bytes + LATER_BYTES + MARGIN_BYTES + SMALLEST_BYTES) / (1 - MARGIN_SHARE)
    return -int(-least // MIB) * MIB


def left_bytes(maximum_bytes: int, own_bytes: int) -> int:
    """What a ceiling leaves for files; may be negative."""
    margin_bytes = MARGIN_BYTES + min(int(maximum_bytes * MARGIN_SHARE), MARGIN_MOST_BYTES)
    return maximum_bytes - own_bytes - margin_bytes


def open_memory(config: Config, metrics: Metrics, own_bytes: int) -> tuple[Memory, int]:
    """The account of a new engine, and its ceiling in bytes. ConfigError for a ceiling that is too low."""
    maximum_bytes = ceiling_bytes(config, own_bytes)
    limits = {
        Purpose.FETCH: config.fetch.buffer_bytes,
        Purpose.READAHEAD: config.readahead.budget_bytes,
        Purpose.UPLOAD: config.upload.buffer_bytes,
    }
    total_bytes = left_bytes(maximum_bytes, own_bytes + LATER_BYTES)
    metrics.memory_max_bytes.set(maximum_bytes)
    return Memory(total_bytes, limits=limits, metrics=metrics), maximum_bytes


class Ceiling:
    """Keeps the account as large as the process lets it be: what is not on it (names, libraries, what malloc keeps)
    grows with the work, and then files get less."""

    def __init__(
        self,
        maximum_bytes: int,
        memory: Memory,
        own_bytes: int,
        *,
        measure: Callable[[], int] = anonymous_bytes,
        trim: Callable[[], None] | None = None,
    ) -> None:
        self._maximum_bytes = maximum_bytes
        self._memory = memory
        self._least_bytes = own_bytes + LATER_BYTES
        self._measure = measure
        self._trim = trim or trim_malloc
        self._recent: deque[int] = deque(maxlen=REMEMBERED)
        self._told = False

    def adjust(self) -> None:
        """Measure, and give the account what is left."""
        self._recent.append(self._unaccounted())
        if self._recent[-1] > self._least_bytes and self._left() < self._memory.total_bytes:
            self._trim()  # perhaps it is only memory that was freed
            self._recent[-1] = self._unaccounted()
        left = self._left()
        self._memory.resize(max(SMALLEST_BYTES, left))
        if left < SMALLEST_BYTES and not self._told:
            self._told = True
            log.warning(
                "memory_max: the names of files and the libraries take so much of %s that little is left for files: "
                "raise it",
                format_size(self._maximum_bytes),
            )

    async def run(self) -> None:
        """A service that runs until it is cancelled."""
        while True:
            await trio.sleep(INTERVAL_S)
            self.adjust()

    def _left(self) -> int:
        return left_bytes(self._maximum_bytes, max(self._least_bytes, *self._recent))

    def _unaccounted(self) -> int:
        return max(0, self._measure() - self._memory.used_bytes())


# -- the allocator of the process that is ours alone ----------------------------------------------------------------

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_ARENAS: Final = 4
_MAPPED_FROM_BYTES: Final = 2 * MIB
"""A larger buffer is a mapping of its own and goes back to the kernel when it is freed. Below: answers to the kernel
(1 MiB), which are too many for that."""
_KEPT_BYTES: Final = 8 * MIB


def tune_malloc() -> None:
    """Keep glibc from holding on to freed memory: by default each thread gets a heap of its own, and buffers of up to
    32 MiB come from these and tear holes into them. Elsewhere (musl) there is nothing to do."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def trim_malloc() -> None:
    """Give what was freed back to the kernel."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
