"""A process that fills a cache and is killed at its n-th step: ``crashing_cache.py DIRECTORY N NAME...``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parent.parent))

from rig.cache_rig import BS, Rig
from tiercache.cache import fill, move
from tiercache.cache.records import Records
from tiercache.config import FetchConfig
from tiercache.origins.posix import PosixOrigin
from tiercache.tier import tier


class Killer:
    """Counts steps, and kills this process at one of them: odd ones before the step, even ones after it."""

    def __init__(self, last_step: int) -> None:
        self._left = last_step

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            self._count()
            result = function(*args, **kwargs)
            self._count()
            return result

        return step

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(directory: Path, last_step: int, names: list[str]) -> None:
    killer = Killer(last_step)
    fill.write_extent = killer.around(fill.write_extent)
    tier.unlink_quietly = killer.around(tier.unlink_quietly)
    move.os.rename = killer.around(os.rename)
    for name in ("put", "drop"):
        setattr(Records, name, killer.around(getattr(Records, name)))
    rig = Rig(directory)
    origin = PosixOrigin()
    async with rig.start(nvme_bytes=5 * BS, fetch=FetchConfig(part_size=BS, concurrency=1)) as run:
        for name in names:
            stat = origin.stat(os.fsencode(directory / name).lstrip(b"/"))
            await run.cache.read(rig.ref(origin, stat), 0, stat.size_bytes)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
