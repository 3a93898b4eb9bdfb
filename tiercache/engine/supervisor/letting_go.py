"""The end of mounts whose engine will not come back: nobody may hang in them, and nothing stays mounted."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from typing import Final

from tiercache.engine.supervisor.channel import close_all

HELPER_TIMEOUT_S: Final = 30.0

_MNT_DETACH: Final = 2


def let_go(mounts: Iterable[tuple[str, tuple[int, ...]]], say: Callable[[str], None]) -> None:
    """Abort each mount and take it away, in use or not.

    The descriptors are the last ones of their sessions: when they are closed, the kernel answers whoever waits in the
    mount with ECONNABORTED, and whoever comes later with ENOTCONN.
    """
    for mountpoint, descriptors in mounts:
        close_all(descriptors)
        problem = _detach(mountpoint)
        say(f"{mountpoint}: given up; programs get errors from it" + (f" ({problem})" if problem else ""))


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
