"""Where a mount of ours lies, and its connection: what tells it from whatever others mount at the same path later."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

from tiercache.errors import MountError
from tiercache.fuse import mountpoint as mountpoints

CONNECTIONS = Path("/sys/fs/fuse/connections")
"""The kernel's control of all FUSE connections, one directory for each minor device number, where it is mounted."""

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """May block, as everything about mount points: call it from a worker thread."""

    path: str
    device: str
    """``major:minor``; the kernel gives it to another filesystem only when the mount has ended everywhere."""
    abort_file: int
    """Open file that ends the connection, -1 where the kernel's control of connections is not to be had. It is opened
    while the mount certainly is ours, and belongs to this connection whoever has the device number later."""

    @classmethod
    def of(cls, path: str, device: str = "") -> Place:
        """The mount that was just made on ``path``, or was taken over with its device number."""
        if not device:
            mount = mountpoints.mounted_at(path)
            device = mount.device if mount is not None and mount.type == mountpoints.FILE_SYSTEM_TYPE else ""
        return cls(path, device, _open_abort(device))

    def paths(self) -> list[str]:
        """Every place of this mount namespace where it is mounted, by ``mount --bind`` too."""
        return [mount.mountpoint for mount in mountpoints.mounts() if mount.device == self.device]

    def is_mounted(self) -> bool:
        """Whether it is mounted at its path still, be it under something else."""
        return self.path in self.paths()

    def unmount(self, *, detach: bool = False) -> None:
        """Take it away from its path. MountError when it is in use (unless ``detach``), covered or not mounted."""
        if not self.is_mounted():
            raise MountError(f"{self.path}: is not mounted")
        top = mountpoints.mounted_at(self.path)
        if top is not None and top.device != self.device:
            raise MountError(f"{self.path}: a {top.type} filesystem is mounted over it; unmount that one first")
        mountpoints.unmount(self.path, detach=detach)

    def leave_nothing(self) -> None:
        """Take it away even if it is in use. Once it is gone this does nothing."""
        if not self.is_mounted():
            return
        try:
            self.unmount()
        except MountError as error:
            log.warning("%s; it is taken away all the same, open files in it are lost to their programs", error)
            try:
                self.unmount(detach=True)
            except MountError as still:
                log.error("%s", still)

    def abort(self) -> None:
        """End the connection, wherever it is mounted still: whoever waits in it gets an error. A thread of ours that
        waits in a notice to the kernel is one of them, and until it returns, no close of a descriptor ends anything."""
        if self.abort_file >= 0:
            with contextlib.suppress(OSError):
                os.write(self.abort_file, b"1")

    def close(self) -> None:
        """Give up the control of the connection."""
        if self.abort_file >= 0:
            os.close(self.abort_file)


def _open_abort(device: str) -> int:
    try:
        return os.open(CONNECTIONS / device.partition(":")[2] / "abort", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return -1
