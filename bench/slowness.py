"""A slower origin than the one at hand, as ``--simulate-origin`` spells it."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.context import SpawnContext
from typing import Any, NamedTuple

from tiercache.errors import ConfigError
from tiercache.units import format_duration, format_size, parse_duration, parse_size

_HELP = "such as latency=10ms,bandwidth=100MB/s (and serial=yes for one disk head)"


class Slowness(NamedTuple):
    """Latency of each request, bandwidth that all requests share; ``serial``: one request at a time, as a disk head."""

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = 0.0
    """0: unlimited."""
    serial: bool = False

    def __str__(self) -> str:
        rate = f"{format_size(self.bandwidth_bytes_per_s)}/s" if self.bandwidth_bytes_per_s else "any bandwidth"
        return f"{format_duration(self.latency_s)} latency, {rate}{', one request at a time' if self.serial else ''}"

    def engine_options(self) -> dict[str, Any]:
        """The origin options that make the engine see a directory as slow."""
        return {"simulate": self._asdict()}


def parse_slowness(text: str) -> Slowness:
    """Read ``latency=10ms,bandwidth=100MB/s``; ConfigError says what is allowed."""
    found = Slowness()
    for item in text.split(","):
        name, separator, value = item.strip().partition("=")
        try:
            match name:
                case "latency" if separator:
                    found = found._replace(latency_s=parse_duration(value))
                case "bandwidth" if separator:
                    found = found._replace(bandwidth_bytes_per_s=float(parse_size(value.removesuffix("/s"))))
                case "serial" if value in ("yes", "no"):
                    found = found._replace(serial=value == "yes")
                case _:
                    raise ConfigError(f"--simulate-origin: {item.strip()!r} is not understood; allowed: {_HELP}")
        except ValueError as error:
            raise ConfigError(f"--simulate-origin: {error}") from None
    return found


class SlowDisk:
    """The same slowness for the plain reads of several worker processes: they share one bandwidth (and head)."""

    def __init__(self, slowness: Slowness) -> None:
        self._slowness = slowness
        context: SpawnContext = multiprocessing.get_context("spawn")
        self._free_at_s = context.Value("d", 0.0)

    def wait(self, size_bytes: int, *, request: bool) -> None:
        """As long as it takes to move so many bytes, with the latency of a request if it is the first part of one."""
        slow = self._slowness
        latency_s = slow.latency_s if request else 0.0
        transfer_s = size_bytes / slow.bandwidth_bytes_per_s if slow.bandwidth_bytes_per_s else 0.0
        with self._free_at_s.get_lock():
            now_s = time.monotonic()
            begin_s = max(self._free_at_s.value, now_s)
            self._free_at_s.value = begin_s + transfer_s + (latency_s if slow.serial else 0.0)
            ready_s = self._free_at_s.value + (0.0 if slow.serial else latency_s)
        time.sleep(max(0.0, ready_s - now_s))
