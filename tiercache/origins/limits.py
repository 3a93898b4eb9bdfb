"""How an object store wants large objects cut up: its own limits and our choices, all of them parameters."""

from __future__ import annotations

from typing import NamedTuple

from tiercache.errors import InvalidArgument, NoSpace
from tiercache.origins.base import Part

__all__ = ["Limits", "Part", "growing_part_bytes", "plan_parts"]

_MIB = 1024 * 1024


class Limits(NamedTuple):
    """Defaults are S3's documented limits; tests scale them down."""

    part_size_bytes: int = 16 * _MIB
    """Length of a part, unless the object needs longer ones to stay under ``max_parts``."""
    single_put_bytes: int = 16 * _MIB
    """Up to this size an object is one PUT."""
    max_parts: int = 10_000
    min_part_bytes: int = 5 * _MIB
    max_part_bytes: int = 5 * 1024 * _MIB
    single_copy_bytes: int = 5 * 1024 * _MIB
    """Over this size a copy is made part by part."""
    list_page: int = 1000
    part_concurrency: int = 8
    """Parts in flight at a time, over all uploads to one origin."""
    buffer_bytes: int = 256 * _MIB
    """Bound on the bytes of all parts in memory (one part is always allowed)."""

    def within(self, piece_bytes: int) -> Limits:
        """The same with smaller parts, so that one fits in ``piece_bytes`` of memory, if the store allows it."""
        return self._replace(
            part_size_bytes=min(self.part_size_bytes, max(piece_bytes, self.min_part_bytes)),
            single_put_bytes=min(self.single_put_bytes, piece_bytes),
        )

    def with_parts_up_to(self, most_bytes: int) -> Limits:
        """The same with no part longer than that, if the store allows it."""
        most_bytes = max(most_bytes, self.min_part_bytes)
        return self._replace(
            part_size_bytes=min(self.part_size_bytes, most_bytes),
            max_part_bytes=min(self.max_part_bytes, most_bytes),
        )


def plan_parts(size_bytes: int, limits: Limits, *, part_size_bytes: int = 0, multiple_of: int = 1) -> list[Part]:
    """Cut ``size_bytes`` into equal parts within the limits; the last is shorter, never empty. At least one part.
    Parts that are longer than ``multiple_of`` begin and end at multiples of it."""
    length = max(part_size_bytes or limits.part_size_bytes, limits.min_part_bytes, -(-size_bytes // limits.max_parts))
    if length > multiple_of:
        length = -(-length // multiple_of) * multiple_of
    if length > limits.max_part_bytes:
        raise InvalidArgument(f"{size_bytes} bytes do not fit in {limits.max_parts} parts of {limits.max_part_bytes}")
    offsets = range(0, max(size_bytes, 1), length)
    return [Part(number, at, min(length, size_bytes - at)) for number, at in enumerate(offsets, 1)]


def growing_part_bytes(number: int, limits: Limits) -> int:
    """Length of the part of this number, of an object whose size is not known yet: all the same at first, and twice as
    long after each tenth of the parts, so that any size can be reached. NoSpace after the last part."""
    if number > limits.max_parts:
        raise NoSpace(f"the store takes {limits.max_parts} parts, and the file goes on")
    doublings = 10 * (number - 1) // limits.max_parts
    return min(max(limits.part_size_bytes, limits.min_part_bytes) << doublings, limits.max_part_bytes)
