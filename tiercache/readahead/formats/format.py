"""What a format is to read-ahead, and the limits that every header must keep."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from tiercache.readahead.layout import Layout

HEADER_MAX_BYTES: Final = 8 * 1024 * 1024
"""A longer header (table, directory, footer) is not looked at."""

EXTENTS_MAX: Final = 16_384
"""A file of more pieces than this is read like any other."""

Parser = Generator[range, bytes, Layout | None]
"""Yields the ranges that it wants to see, gets exactly their bytes, and returns the layout; None when there is none to
know. Malformed for what is not of its format. It trusts nothing: every range lies inside the file and is short."""


class Malformed(ValueError):
    """The file is of another format than its name tells, damaged, or larger than the limits."""


class End(enum.Flag):
    """The ends of a file, of which a reader sees one block before all else."""

    HEAD = enum.auto()
    TAIL = enum.auto()


class Format(NamedTuple):
    """One format."""

    label: str
    suffixes: tuple[bytes, ...]
    """Of the names of such files, in small letters."""
    ends: End
    """Where its reader looks first."""
    parse: Callable[[int], Parser]
    """A parser for a file of so many bytes."""


def wanted(start: int, length: int, size_bytes: int) -> range:
    """A range to ask for; Malformed unless it is inside the file, has a byte, and is no longer than a header may be."""
    if not 0 <= start < start + length <= size_bytes or length > HEADER_MAX_BYTES:
        raise Malformed(f"{length} bytes at {start} of {size_bytes}")
    return range(start, start + length)


def require(condition: bool, what: str) -> None:
    """Malformed unless the condition holds."""
    if not condition:
        raise Malformed(what)
