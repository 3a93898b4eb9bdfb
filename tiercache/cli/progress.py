"""Progress of long work: a bar on a terminal, a line every few seconds elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

LINE_EVERY_S = 5.0


class Progress(Protocol):
    """Where to tell how far something is."""

    def update(self, done_bytes: float, total_bytes: float, note: str) -> None: ...


class _Lines:
    def __init__(self, title: str) -> None:
        self._title = title
        self._next_s = time.monotonic() + LINE_EVERY_S

    def update(self, done_bytes: float, total_bytes: float, note: str) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + LINE_EVERY_S
            print(f"{self._title}: {note}", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """Show ``title`` and what is updated until the block ends."""
    if not sys.stderr.isatty():
        yield _Lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, note="")

        class _Bar:
            def update(self, done_bytes: float, total_bytes: float, note: str) -> None:
                bar.update(task, completed=done_bytes, total=total_bytes or None, note=note)

        yield _Bar()
