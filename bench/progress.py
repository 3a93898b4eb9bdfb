"""How far a run is: a bar on a terminal, a line now and then elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tiercache.units import format_size

LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Told by the workloads."""

    def expect(self, epochs: int) -> None:
        """So many more epochs will come."""
        ...

    def advance(self) -> None:
        """One epoch is done."""
        ...

    def say(self, text: str) -> None:
        """What is done now."""
        ...

    def moving(self, text: str, total_bytes: int) -> Callable[[int], None]:
        """Preparation that moves bytes: the function to call with each further number of them."""
        ...


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Until the block ends."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting", total=None)
        expected = 0

        class _Bar:
            def expect(self, epochs: int) -> None:
                nonlocal expected
                expected += epochs
                bars.update(task, total=expected)

            def advance(self) -> None:
                bars.advance(task)

            def say(self, text: str) -> None:
                bars.update(task, description=text)

            def moving(self, text: str, total_bytes: int) -> Callable[[int], None]:
                done = 0

                def told(size_bytes: int) -> None:
                    nonlocal done
                    done += size_bytes
                    bars.update(task, description=f"{text} {format_size(done)} of {format_size(total_bytes)}")

                told(0)
                return told

        yield _Bar()


class _Lines:
    def __init__(self) -> None:
        self._done = 0
        self._expected = 0
        self._next_s = time.monotonic()

    def expect(self, epochs: int) -> None:
        self._expected += epochs

    def advance(self) -> None:
        self._done += 1

    def say(self, text: str) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + LINE_EVERY_S
            print(f"{self._done}/{self._expected} {text}", file=sys.stderr, flush=True)

    def moving(self, text: str, total_bytes: int) -> Callable[[int], None]:
        print(f"{text} {format_size(total_bytes)}", file=sys.stderr, flush=True)
        return lambda size_bytes: None
