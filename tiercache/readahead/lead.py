"""How many files ahead of its reader a plan has to be: by Little's law, from its rate and the origin's latency.

What is sent for now is read ``lead / rate`` seconds later, so the lead must be at least rate × latency (Little 1961, "A
proof for the queuing formula L = λW"). Both are estimated while they go on: the rate by a count that fades, the latency
as a timeout is chosen for a network, mean + 4 × mean deviation (RFC 6298), so that slow answers are in time too. A
reader that has to wait reads no faster than we bring: the lead then doubles, whatever the rate seems to be.
"""

from __future__ import annotations

import math
from typing import Final

from tiercache.readahead.plan import Read

FADES_S: Final = 5.0
"""Reads count for the rate for about so long."""

SHORTEST_S: Final = 0.05
"""A rate is that of so much time at least."""

MARGIN: Final = 2.0
"""How many times the lead of Little's law."""

REMEMBERED: Final = 256
"""So many answers tell what the latency is. TCP's weights, made for a few segments, would forget one slow answer in
twenty before the next one."""

SHRINK: Final = 0.999
"""What a lead that was doubled keeps of itself with each read that had not to wait."""


class Lead:
    """Of one plan; times are seconds of any clock that goes on."""

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self._raised = float(self._least)
        self._waits = 0
        self._count = 0.0
        self._counted_s = 0.0
        self._began_s = math.inf
        self._fetched = 0
        self._latency_s = 0.0
        self._deviation_s = 0.0

    @property
    def files(self) -> int:
        """How many files ahead of the reader to be."""
        return max(math.ceil(self._raised), self._by_rate())

    def _by_rate(self) -> int:
        latency_s = self._latency_s + 4 * self._deviation_s
        return min(self._most, math.ceil(MARGIN * self._count / FADES_S * latency_s))

    def rate(self, at_s: float) -> float:
        """Files that were read per second of late, or since the beginning."""
        return self._count / min(FADES_S, max(SHORTEST_S, at_s - self._began_s))

    def read(self, how: Read, at_s: float) -> None:
        """The reader opened a planned file."""
        self._began_s = min(self._began_s, at_s)
        self._count = 1 + self._count * math.exp(-max(0.0, at_s - self._counted_s) / FADES_S)
        self._counted_s = at_s
        if how is Read.READY:
            self._raised = max(self._least, self._raised * SHRINK)
            return
        self._waits += 1
        if self._waits * 8 > self.files:  # the first few are on their way already when the lead is raised
            self._waits = 0
            self._raised = min(self._most, 2.0 * self.files)

    def fetched(self, took_s: float) -> None:
        """A file came from the origin."""
        self._fetched = min(self._fetched + 1, REMEMBERED)
        self._deviation_s += (abs(took_s - self._latency_s) - self._deviation_s) / self._fetched
        self._latency_s += (took_s - self._latency_s) / self._fetched
