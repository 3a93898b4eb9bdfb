"""The read-ahead windows of readers in other processes, bounded in number."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from tiercache.cache import VersionRef

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine
    from tiercache.readahead import Window

WINDOWS_MAX: Final = 4096
"""The window of the reader that was silent longest is given up first; it starts anew when it goes on."""


class Windows:
    """One window per reader that told where it reads."""

    def __init__(self) -> None:
        self._windows: OrderedDict[bytes, Window] = OrderedDict()

    def observe(self, engine: Engine, reader: bytes, version: VersionRef, offset: int, length: int) -> None:
        """Tell read-ahead of a read; the reader id ``b""`` stands for one that will not go on."""
        if not reader:
            return
        window = self._windows.get(reader)
        if window is None:
            window = self._windows[reader] = engine.readahead.window()
        self._windows.move_to_end(reader)
        if len(self._windows) > WINDOWS_MAX:
            _, oldest = self._windows.popitem(last=False)
            engine.readahead.forget(oldest)
        engine.readahead.observe(window, version, offset, length)

    def forget(self, engine: Engine, reader: bytes) -> None:
        """The reader is closed."""
        window = self._windows.pop(reader, None)
        if window is not None:
            engine.readahead.forget(window)
