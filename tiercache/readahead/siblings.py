"""Files of one sample: ``000123.jpg``, ``000123.json``. Which endings are read together is learned from what is read.
No I/O, no clock."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tiercache.model import Key

SAMPLES: Final = 64
"""A sample is complete when so many others were begun after it."""

ENDINGS_MAX: Final = 16
"""Endings that are learned about."""

WEIGHT: Final = 1 / 8
"""What one sample tells of an ending."""

ENOUGH: Final = 0.5
"""An ending that is read with so large a share of the samples is fetched along."""


class Siblings:
    """Of one origin."""

    def __init__(self) -> None:
        self._samples: OrderedDict[Key, set[bytes]] = OrderedDict()
        """Endings that were read, by what comes before them."""
        self._shares: dict[bytes, float] = {}
        """How often an ending is read where others are."""

    def read(self, key: Key) -> bool:
        """A file is read. Whether it is the first one of its sample."""
        stem, ending = split(key)
        endings = self._samples.get(stem)
        if endings is None:
            self._samples[stem] = {ending}
            if len(self._samples) > SAMPLES:
                self._complete(self._samples.popitem(last=False)[1])
            return True
        if ending not in endings:
            endings.add(ending)
            for other in endings if len(endings) == 2 else (ending,):
                self._learn(other, 1.0)
        return False

    def of(self, key: Key) -> list[Key]:
        """The files that are probably read with this one."""
        if not self._shares:
            return []
        stem, ending = split(key)
        return [stem + other for other, share in self._shares.items() if share >= ENOUGH and other != ending]

    def _complete(self, endings: set[bytes]) -> None:
        for ending in list(self._shares):
            if ending not in endings:
                self._learn(ending, 0.0)

    def _learn(self, ending: bytes, share: float) -> None:
        before = self._shares.get(ending)
        if before is None:
            if len(self._shares) >= ENDINGS_MAX:
                del self._shares[min(self._shares, key=self._shares.__getitem__)]
            before = 0.0
        self._shares[ending] = before + (share - before) * WEIGHT


def split(key: Key) -> tuple[Key, bytes]:
    """What all files of a sample begin with, and the rest with its dot. The name ends at its first dot, as in
    WebDataset; one that begins with it has no ending."""
    start = key.rfind(b"/") + 1
    dot = key.find(b".", start + 1)
    return (key, b"") if dot < 0 else (key[:dot], key[dot:])
