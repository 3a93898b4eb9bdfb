"""What happened behind a target during an epoch: counters of its processes, of our engine and of the line."""

from __future__ import annotations

from typing import Any, NamedTuple

from tiercache.bench.processes import Usage
from tiercache.bench.proxy import Traffic

Counters = dict[str, float]
"""By name, with the labels in brackets."""


def grown(status: dict[str, Any], *, since: dict[str, Any]) -> Counters:
    """Which of the engine's counters grew between two answers of it, and by how much."""
    before = _counters(since)
    found = {name: value - before.get(name, 0.0) for name, value in _counters(status).items()}
    return {name: value for name, value in found.items() if value}


def _counters(status: dict[str, Any]) -> Counters:
    found: Counters = {}
    for name, value in status["metrics"].items():
        if not name.endswith(("_total", "_sum", "_count")):
            continue
        if isinstance(value, dict):
            found |= {f"{name}[{labels}]": each for labels, each in value.items()}
        else:
            found[name] = value
    return found


class TierUse(NamedTuple):
    """How the engine answered during some epochs: figures of its metrics, as a difference."""

    ram_hits: float = 0
    nvme_hits: float = 0
    misses: float = 0
    ram_bytes: float = 0
    nvme_bytes: float = 0
    origin_requests: float = 0
    origin_bytes: float = 0

    @classmethod
    def of(cls, status: dict[str, Any]) -> TierUse:
        """The figures so far."""
        figures = status["metrics"]
        hits, read_bytes = figures.get("hits_total", {}), figures.get("read_bytes_total", {})
        return cls(
            ram_hits=hits.get("ram", 0),
            nvme_hits=hits.get("nvme", 0),
            misses=figures.get("misses_total", 0),
            ram_bytes=read_bytes.get("ram", 0),
            nvme_bytes=read_bytes.get("nvme", 0),
            origin_requests=sum(figures.get("origin_requests_total", {}).values()),
            origin_bytes=figures.get("origin_bytes_total", {}).get("read", 0),
        )

    def plus(self, other: TierUse) -> TierUse:
        return TierUse(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: TierUse) -> TierUse:
        return TierUse(*(a - b for a, b in zip(self, other, strict=True)))


class Spent(NamedTuple):
    """What happened behind a target during an epoch; None where nobody counts."""

    server: Usage | None = None
    """Of the process that serves it: our engine's or a peer's."""
    use: TierUse | None = None
    counters: Counters | None = None
    traffic: Traffic | None = None
    """What went through the simulated line."""


NOTHING_TOLD = Spent()
