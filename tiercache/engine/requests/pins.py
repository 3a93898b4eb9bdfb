"""Operations on pins: what is not to be evicted."""

from __future__ import annotations

from typing import Any

from tiercache.engine.pins import Pin
from tiercache.engine.places import Asker, Place
from tiercache.engine.requests.registry import Call, Nature, operation
from tiercache.errors import Absent, IsDirectory
from tiercache.model import Kind


@operation(Nature.CHANGE)
async def pin(call: Call, *, path: str, recursive: bool, asker: list[Any] | None = None) -> str:
    """Pin a file, or with ``recursive`` a directory, by local path under a mount or by URL; the name it has now."""
    place = await call.engine.places.look(path, Asker(*asker or ()))
    if place.entry is not None and place.entry.kind is Kind.DIRECTORY and not recursive:
        raise IsDirectory(f"{path}: is a directory; --recursive pins all that is below it")
    name = call.engine.status_of.spell(place.namespace.origin_id, place.key)
    await call.engine.pins.add(_pin_of(place), name)
    return name


@operation(Nature.CHANGE)
async def unpin(call: Call, *, path: str, asker: list[Any] | None = None) -> None:
    """End a pin by the path that it was made with. Absent when there is none; what it is below is not unpinned."""
    place = await call.engine.places.find(path, Asker(*asker or ()))
    if not await call.engine.pins.remove(_pin_of(place)):
        place = await call.engine.places.follow(place)
        if not await call.engine.pins.remove(_pin_of(place)):
            raise Absent(f"{path}: is not pinned itself; tiercache pins tells what is")


@operation(Nature.READ)
async def pins(call: Call) -> list[dict[str, Any]]:
    """All pins: ``name``, and what is known below it: ``files``, ``bytes``, ``resident_bytes``."""
    return await call.engine.pins.report()


@operation(Nature.CHANGE)
async def pin_key(call: Call, *, namespace: int, key: bytes) -> None:
    """Pin a name of a namespace, and all that is below it."""
    space = call.namespace(namespace)
    await call.engine.pins.add(Pin(space.origin_id, key), call.engine.status_of.spell(space.origin_id, key))


@operation(Nature.CHANGE)
async def unpin_key(call: Call, *, namespace: int, key: bytes) -> bool:
    """Whether it was pinned."""
    return await call.engine.pins.remove(Pin(call.namespace(namespace).origin_id, key))


def _pin_of(place: Place) -> Pin:
    return Pin(place.namespace.origin_id, place.key)
