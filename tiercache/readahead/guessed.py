"""A file that somebody probably reads soon, and what became of that."""

from __future__ import annotations

from tiercache.model import Key
from tiercache.readahead.plan import Step
from tiercache.readahead.scan import Scan


class Guessed(Step):
    """``scan``: whose reader is expected at it. ``sibling``: it belongs to the file at this position of the scan, or to
    one that was read."""

    __slots__ = ("scan", "sibling")

    def __init__(self, key: Key, scan: Scan | None = None, position: int = 0, *, sibling: bool = False) -> None:
        super().__init__(position, key)
        self.scan = scan
        self.sibling = sibling
