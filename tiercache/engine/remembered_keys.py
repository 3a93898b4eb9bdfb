"""Sets of keys that outlive a killed engine: each change is a line in a file's page cache, which it leaves behind."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from tiercache.model import Key

REWRITE_LINES = 10_000
"""A file with this many lines more than keys is written anew."""

log = logging.getLogger("tiercache.engine")


class RememberedKeys:
    """Keys of one origin."""

    def __init__(self, path: Path | None = None, *, inherit: bool = False) -> None:
        """``inherit``: go on with what the engine before this one remembered, else begin with none. Without a path
        nothing outlives this object."""
        self._path = path
        self._keys: set[Key] = set()
        self._lines = 0
        if path is not None:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if inherit and path.exists():
                self._load(path.read_bytes())
            self._rewrite()

    def _load(self, data: bytes) -> None:
        for line in data.split(b"\n")[:-1]:  # what follows the last line's end was not written to its end
            if line.startswith(b"+"):
                self._keys.add(bytes.fromhex(line[1:].decode()))
            else:
                self._keys.discard(bytes.fromhex(line[1:].decode()))

    def add(self, key: Key) -> None:
        if key not in self._keys:
            self._keys.add(key)
            self._note(b"+", key)

    def discard(self, key: Key) -> None:
        if key in self._keys:
            self._keys.discard(key)
            self._note(b"-", key)

    def replace(self, keys: set[Key]) -> None:
        """Remember these instead."""
        for key in self._keys - keys:
            self.discard(key)
        for key in keys:
            self.add(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._keys))

    def _note(self, sign: bytes, key: Key) -> None:
        if self._path is None:
            return
        self._lines += 1
        if self._lines > len(self._keys) + REWRITE_LINES:
            self._rewrite()
            return
        try:
            with open(self._path, "ab", buffering=0) as file:
                file.write(sign + key.hex().encode() + b"\n")
        except OSError as error:
            log.warning("%s: what it is to remember would not outlive the engine: %s", self._path, error)

    def _rewrite(self) -> None:
        assert self._path is not None
        new = self._path.with_name(self._path.name + ".new")
        try:
            new.write_bytes(b"".join(b"+" + key.hex().encode() + b"\n" for key in self._keys))
            os.replace(new, self._path)
        except OSError as error:
            log.warning("%s: what it is to remember would not outlive the engine: %s", self._path, error)
        self._lines = len(self._keys)
