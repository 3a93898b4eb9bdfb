"""A disk that takes no new block when a test says so: ext4 on a loop device over a file that cannot grow any more."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rig.small_disk import small_disk

_SPACE_MIB = 16
_IMAGE_MIB = 64


class RefusingDisk:
    """Mounted at ``path``. What it has can be read; programs learn by their fsync that it did not take the rest."""

    def __init__(self, path: Path, below: Path) -> None:
        self.path = path
        self._filler = below / "filler"

    def refuse(self) -> None:
        """From now on a block that was never written is EIO. Everything that was written before is on the disk."""
        _run("sync", "--file-system", str(self.path))
        with open(self._filler, "wb", buffering=0) as filler, contextlib.suppress(_Full):
            while True:
                _fill(filler.fileno())

    def heal(self) -> None:
        self._filler.unlink(missing_ok=True)


class _Full(Exception):
    pass


def _fill(fd: int) -> None:
    try:
        os.write(fd, bytes(4096))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _Full from error


@contextmanager
def refusing_disk(path: Path) -> Iterator[RefusingDisk]:
    """Make one and mount it; skips the test where that is not allowed."""
    with small_disk(path.with_name(f"{path.name}.below"), _SPACE_MIB) as below:
        image = below / "image"
        image.touch()
        os.truncate(image, _IMAGE_MIB << 20)
        path.mkdir(exist_ok=True)
        try:
            # Without a journal, whose end would make the disk read-only for good.
            _run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
            _run("mount", "-o", "loop,errors=continue", str(image), str(path))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a disk on a loop device needs CAP_SYS_ADMIN and mkfs.ext4: {error}")
        disk = RefusingDisk(path, below)
        try:
            yield disk
        finally:
            disk.heal()
            _run("umount", "-l", str(path))  # which lets go of the loop device too


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
