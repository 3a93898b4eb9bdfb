"""Operations on the engine itself: greet, status, drain, mounts, warm-up, restart, stop."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio

from tiercache.config.in_force import in_force
from tiercache.engine.checkpoints import told
from tiercache.engine.places import Asker
from tiercache.engine.requests.barriers import PROGRESS_S, reporting
from tiercache.engine.requests.registry import Call, Nature, operation
from tiercache.engine.warmup import Job
from tiercache.ipc import PROTOCOL_VERSION
from tiercache.model import Keep, is_below
from tiercache.writeback import DrainResult

LISTED_MAX: Final = 50
"""Dirty files named in one report."""


@operation(Nature.READ)
async def hello(call: Call, *, version: int) -> dict[str, Any]:
    """Who we are and where the local copies lie. A client of another release reads ``version`` and ``pid`` only."""
    engine = call.engine
    config = engine.config
    return {
        "version": PROTOCOL_VERSION,
        "pid": os.getpid(),
        "run_id": engine.catalog.run_id(),
        "catalog": str(config.cache_dir / "catalog"),
        "staging": str(config.cache_dir / "staging"),
        "tiers": [str(config.ram_directory), str(config.cache_dir / "nvme")],
        "verify": config.verify,
    }


@operation(Nature.READ)
async def status(call: Call) -> dict[str, Any]:
    """Figures of the whole engine, see ``engine.status``."""
    return call.engine.status()


@operation(Nature.READ)
async def settings(call: Call) -> dict[str, Any]:
    """What the engine has had since its start, see ``config.in_force``."""
    return in_force(call.engine.config)


@operation(Nature.READ)
async def status_path(call: Call, *, path: str, asker: list[Any] | None = None) -> dict[str, Any]:
    """How far one file has come, by local path under a mount or by URL; ``asker``: the fields of ``Asker``."""
    return await call.engine.status_of.path(path, Asker(*asker or ()))


@operation(Nature.READ)
async def why_path(call: Call, *, path: str, asker: list[Any] | None = None) -> dict[str, Any]:
    """Where one file is and why, by local path under a mount or by URL, see ``engine.why``."""
    return await call.engine.why.path(path, Asker(*asker or ()))


@operation(Nature.READ)
async def checkpoints_path(call: Call, *, path: str, asker: list[Any] | None = None) -> list[dict[str, Any]]:
    """The checkpoints in a directory, by local path under a mount or by URL, the latest first; before them the
    directory itself, or the file, if it is one."""
    place = await call.engine.places.look(path, Asker(*asker or ()))
    called = os.fsencode(os.path.basename(path.rstrip("/")))
    with place.named():
        return [told(checkpoint) for checkpoint in await place.namespace.checkpoints.at(place.key, called)]


@operation(Nature.CHANGE)
async def resolve(call: Call, *, path: str, keep: str, asker: list[Any] | None = None) -> str:
    """End the conflict of a file, by local path or by URL; the name that our bytes have now, empty if none."""
    place = await call.engine.places.find(path, Asker(*asker or ()))
    if not call.engine.journal.at(place.namespace.origin_id, place.key):
        place = await call.engine.places.follow(place)  # nothing is staged for this very name, be it a link
    with place.named():
        kept = await place.namespace.conflicts.resolve(place.key, Keep(keep))
    return call.engine.status_of.spell(place.namespace.origin_id, kept) if kept else ""


@operation(Nature.CHANGE)
async def trace(call: Call, *, on: bool) -> str:
    """Begin or end to record what is read; the file's path."""
    if on:
        call.engine.trace.start()
    else:
        await call.engine.trace.stop()
    return str(call.engine.trace.path)


@operation(Nature.READ)
async def metrics(call: Call) -> bytes:
    """The figures as Prometheus text."""
    return call.engine.metrics.text()


@operation(Nature.LONG)
async def drain(call: Call, *, deadline_s: float) -> dict[str, Any]:
    """Bring what is staged to the origins; answers with ``done``, ``left`` and ``errors``."""
    return await _drain(call, lambda: call.engine.drain(deadline_s))


@operation(Nature.CHANGE)
async def mount(call: Call, *, url: str, mountpoint: str, settings: dict[str, Any]) -> dict[str, Any]:
    """``settings``: client, options, profile, promise, read_only, mount_options."""
    made = await call.engine.mounts.mount(url, mountpoint, **settings)
    return {
        "mountpoint": made.mountpoint,
        "url": made.url,
        "profile": made.namespace.profile.name,
        "ack": made.namespace.profile.ack,
        "sync_on_close": made.namespace.profile.sync_on_close,
        "read_only": made.read_only,
    }


@operation(Nature.CHANGE)
async def umount(call: Call, *, mountpoint: str, deadline_s: float, lazy: bool) -> dict[str, Any]:
    """Unmount, so that nothing more is written here, and drain what was: the answer is that of ``drain``, and
    ``elsewhere``: None when the mount has ended, else where it goes on here ([]: in another mount namespace)."""
    engine = call.engine
    gone = await engine.mounts.umount(mountpoint, lazy=lazy)
    if gone.elsewhere and gone.serving is not None:
        await gone.serving.settled()
    # The end of the mount may have come before the end of a release.
    await engine.seal_flushed()
    ids = [
        record.id
        for record in engine.journal.records()
        if record.origin == gone.namespace.origin_id and is_below(record.key, gone.root)
    ]
    answer = await _drain(call, lambda: engine.writeback.drain(deadline_s, ids=ids))
    return {**answer, "elsewhere": await gone.left_at()}


async def _drain(call: Call, drain: Callable[[], Awaitable[DrainResult]]) -> dict[str, Any]:
    """Send how much is dirty while it drains."""

    def dirty() -> dict[str, Any]:
        dirty = call.engine.status()["dirty"]
        return {"files": dirty["files"], "bytes": dirty["bytes"], "list": dirty["list"][:LISTED_MAX]}

    return (await reporting(call, dirty, drain))._asdict()


@operation(Nature.LONG)
async def warmup(
    call: Call,
    *,
    url: str,
    check: bool,
    client: str,
    options: dict[str, Any],
    profile: str,
    names: str = "",
    files: int = 0,
) -> dict[str, Any]:
    """Fetch a prefix, or with ``check`` verify what of it is resident. ``names``: instead the so many ``files`` whose
    keys the client wrote to this file (see ``plan_directory``). Goes on when the client leaves."""
    listed = (names, files) if names else None
    job = await call.engine.warmups.start(
        url, check=check, client=client, options=options, profile=profile, listed=listed
    )
    return await _follow(call, job)


@operation(Nature.LONG)
async def warmup_path(call: Call, *, path: str, asker: list[Any] | None = None) -> dict[str, Any]:
    """The same by local path under a mount, or by URL."""
    place = await call.engine.places.look(path, Asker(*asker or ()))
    return await _follow(call, call.engine.warmups.begin(place.namespace, place.key))


async def _follow(call: Call, job: Job) -> dict[str, Any]:
    while not job.finished.is_set():
        await call.send("progress", job.report())
        with trio.move_on_after(PROGRESS_S):
            await job.finished.wait()
    return job.report()


@operation(Nature.READ)
async def restart(call: Call) -> None:
    """Answered before the engine gives its place to a new one, which takes the mounts over."""
    call.engine.require_replaceable()
    call.owner.afterwards.append(call.engine.replace)


@operation(Nature.READ)
async def stop_unused(call: Call) -> None:
    """Answered before the engine ends; nothing where somebody else is connected, something is mounted or staged."""
    if call.shared.clients() == 1 and not call.engine.holds_work():
        call.owner.afterwards.append(call.engine.stop)


@operation(Nature.READ)
async def stop(call: Call, *, drained: bool = False) -> None:
    """Answered before the engine ends; what is staged stays journalled."""
    call.owner.afterwards.append(partial(call.engine.stop, drained=drained))
