"""An engine that was started on demand ends when nobody needs it, and not before."""

from __future__ import annotations

from collections.abc import Iterator

import trio
import trio.testing

from tiercache.engine.idle import stop_when_idle


class Visitors:
    """Clients that come and go at given times."""

    def __init__(self) -> None:
        self._present = False
        self._changed = trio.Event()

    def set(self, *, present: bool) -> None:
        self._present = present
        self._changed.set()
        self._changed = trio.Event()

    async def wait_deserted(self) -> None:
        while self._present:
            await self._changed.wait()

    async def wait_arrival(self) -> None:
        while not self._present:
            await self._changed.wait()


class Work:
    """Work that is done after some looks at it."""

    def __init__(self, looks: int) -> None:
        self._left: Iterator[bool] = iter([True] * looks)
        self.stopped_at: float | None = None

    def holds_work(self) -> bool:
        return next(self._left, False)

    def stop(self) -> None:
        self.stopped_at = trio.current_time()


def _run(work: Work, script: list[tuple[float, bool]]) -> float:
    async def main() -> float:
        clients = Visitors()
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_when_idle, work, clients, 10.0)
            for at_s, present in script:
                await trio.sleep_until(start + at_s)
                clients.set(present=present)
        assert work.stopped_at is not None
        return work.stopped_at - start

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_it_ends_after_the_timeout_without_clients() -> None:
    assert _run(Work(0), []) == 10.0


def test_the_timeout_starts_anew_when_the_last_client_leaves() -> None:
    assert _run(Work(0), [(9.0, True), (100.0, False)]) == 110.0


def test_a_short_visit_starts_the_timeout_anew() -> None:
    assert _run(Work(0), [(5.0, True), (5.5, False), (12.0, True), (12.5, False)]) == 22.5


def test_dirty_files_and_mounts_keep_it_alive() -> None:
    assert _run(Work(3), []) == 40.0
