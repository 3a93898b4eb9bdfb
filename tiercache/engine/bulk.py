"""Many origin calls for one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

from tiercache.engine.tree import Tree
from tiercache.errors import Absent
from tiercache.model import Key, Kind, ObjectStat, is_below, parent_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALLS_AT_ONCE = 16
"""Objects of one directory's rename or removal that are copied or deleted at a time."""


def directories_by_depth(stats: list[ObjectStat], top: Key) -> list[list[Key]]:
    """All directories of a walked tree, ``top`` included, the deepest level first; those too that are only prefixes,
    since a store may go on listing them (SeaweedFS does)."""
    found = {top}
    for stat in stats:
        directory = stat.key if stat.kind is Kind.DIRECTORY else parent_of(stat.key)
        while directory not in found and is_below(directory, top):
            found.add(directory)
            directory = parent_of(directory)
    levels: dict[int, list[Key]] = {}
    for key in found:
        levels.setdefault(key.count(b"/"), []).append(key)
    return [levels[depth] for depth in sorted(levels, reverse=True)]


async def for_each(tree: Tree, items: list[T], function: Callable[[T], object]) -> None:
    """Call the origin for each item, some at a time. An absent object counts as done (somebody else was faster); any
    other error is raised when the calls under way have ended, and no further ones begin."""
    limiter = trio.CapacityLimiter(CALLS_AT_ONCE)
    errors: list[Exception] = []

    async def one(item: T) -> None:
        async with limiter:
            if errors:
                return
            try:
                await ignoring(Absent, tree, function, item)
            except Exception as error:
                errors.append(error)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(one, item)
    if errors:
        raise errors[0]


async def ignoring(kind: type[Exception], tree: Tree, function: Callable[[*Ts], object], *args: *Ts) -> None:
    """One origin call that may find its work done already."""
    try:
        await tree.call(function, *args)
    except kind:
        return
