"""Operations on plans: a reader tells the order in which it will read files."""

from __future__ import annotations

from tiercache.engine.namespace import Namespace
from tiercache.engine.requests.registry import Call, Nature, operation
from tiercache.errors import MountError
from tiercache.model import Key


@operation(Nature.READ)
async def plan_directory(call: Call) -> str:
    """Where the client writes the keys of a plan, each ended by a zero byte, to a file ``NAME.keys``."""
    return call.engine.plans.directory


@operation(Nature.READ)
async def plan_root(call: Call, *, mountpoint: str) -> bytes:
    """The key that is mounted there."""
    _, key = _mounted(call, mountpoint)
    return key


@operation(Nature.READ)
async def plan_begin(call: Call, *, plan: str, reader: str, namespace: int | None = None, mountpoint: str = "") -> None:
    """Run the plan NAME of a namespace, or of what is mounted somewhere; it takes the place of the one that ``reader``
    had before."""
    space = _mounted(call, mountpoint)[0] if namespace is None else call.namespace(namespace)
    call.engine.plans.begin(plan, space, reader)


def _mounted(call: Call, mountpoint: str) -> tuple[Namespace, Key]:
    found = call.engine.mounts.holding(mountpoint)
    if found is None:
        raise MountError(f"{mountpoint}: is not mounted by this engine (any more)")
    mount, key = found
    return mount.namespace, key


@operation(Nature.READ)
async def plan_reached(call: Call, *, plan: str, position: int) -> None:
    """A notice: the reader has come to this entry."""
    call.engine.plans.reached(plan, position)


@operation(Nature.READ)
async def plan_end(call: Call, *, plan: str) -> None:
    """The reader reads no more of it."""
    call.engine.plans.end(plan)
