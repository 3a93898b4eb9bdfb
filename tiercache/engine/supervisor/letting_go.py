"""The end of mounts whose engine will not come back: nobody may hang in them, and nothing stays mounted."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tiercache.engine.supervisor.channel import Message, close_all

HELPER_TIMEOUT_S: Final = 30.0

_MNT_DETACH: Final = 2


class LostMount(NamedTuple):
    """A mount that nobody serves any more."""

    mountpoint: str
    device: str
    """``major:minor``. Others may have something mounted at the same place by now, while this mount is left in
    another mount namespace only."""
    descriptors: tuple[int, ...]


def lost_mount(description: Message, descriptors: tuple[int, ...]) -> LostMount:
    """What the engine that made it told of it."""
    device = description.get("session", {}).get("device", "")
    return LostMount(description.get("mountpoint", ""), device, descriptors)


def let_go(mounts: Iterable[LostMount], say: Callable[[str], None]) -> None:
    """Abort each mount and take it away, in use or not.

    The descriptors are the last ones of their sessions: when they are closed, the kernel answers whoever waits in the
    mount with ECONNABORTED, and whoever comes later with ENOTCONN.
    """
    for mount in mounts:
        close_all(mount.descriptors)
        problem = _detach(mount.mountpoint) if _is_mounted(mount) else ""
        say(f"{mount.mountpoint}: given up; programs get errors from it" + (f" ({problem})" if problem else ""))


def _is_mounted(mount: LostMount) -> bool:
    """Whether it is what is on top at its place."""
    path = re.sub(rb"[\\ \t\n]", lambda found: b"\\%03o" % ord(found[0]), os.fsencode(mount.mountpoint))
    lines = [line.split(b" ", 5) for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]
    devices = [fields[2].decode() for fields in lines if fields[4] == path]
    return bool(devices) and mount.device in ("", devices[-1])


def _detach(mountpoint: str) -> str:
    """Unmount lazily; returns what went wrong."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(mountpoint), _MNT_DETACH) == 0:
        return ""
    reason = os.strerror(ctypes.get_errno())
    helper = shutil.which("fusermount3") or shutil.which("fusermount")
    if helper is None:
        return f"it cannot be unmounted: {reason}"
    try:
        done = subprocess.run(
            [helper, "-u", "-z", "--", mountpoint],
            capture_output=True,
            text=True,
            timeout=HELPER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"it cannot be unmounted: {error}"
    return "" if done.returncode == 0 else f"it cannot be unmounted: {done.stderr.strip() or reason}"
