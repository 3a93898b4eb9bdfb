"""Mount points: what may become one, what is mounted there now, and how it is taken away again.

Everything here may block on a dead or busy filesystem: call it from a worker thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from tiercache.errors import MountError

if TYPE_CHECKING:
    from tiercache.config import Config

log = logging.getLogger(__name__)

FILE_SYSTEM_TYPE = "fuse.tiercache"
DEVICE = "/dev/fuse"

HELPER_TIMEOUT_S = 30.0

_MNT_FORCE = 1
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def source_of(config: Config) -> str:
    """What an engine mounts by this name: whoever looks at a mount knows which engine serves it, without asking, and
    where its cache directory is when nobody is left to be asked."""
    # Quoted: a helper that mounts for ordinary users takes commas and backslashes for its own.
    return f"{_id_of(config)}:{quote(os.fsencode(config.cache_dir))}"


def is_of(config: Config, mount: Mount) -> bool:
    """Whether the engine of a cache directory made a mount."""
    return mount.source.partition(":")[0] == _id_of(config)


def cache_dir_of(mount: Mount) -> Path | None:
    """The cache directory of the engine that made a mount; None where an earlier release did not tell."""
    _, told, quoted = mount.source.partition(":")
    return Path(os.fsdecode(unquote_to_bytes(quoted))) if told else None


def _id_of(config: Config) -> str:
    return f"tiercache-{config.cache_id}"


class Mount(NamedTuple):
    """One line of ``/proc/self/mountinfo``."""

    mountpoint: str
    device: str
    """``major:minor``."""
    type: str
    source: str


def mounts() -> list[Mount]:
    """What is mounted in this namespace; the last line of a mount point is the one on top."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, after = os.fsdecode(line).partition(" - ")
        fields = before.split(" ")
        kind, source, _ = after.split(" ", 2)
        found.append(Mount(_unescape(fields[4]), fields[2], kind, _unescape(source)))
    return found


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of blank, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def mounted_at(mountpoint: str) -> Mount | None:
    """The topmost mount at exactly this path."""
    return next((mount for mount in reversed(mounts()) if mount.mountpoint == mountpoint), None)


def holding(path: str) -> Mount | None:
    """The mount that a path lies in, by its spelling alone: nothing there is touched."""
    over = [mount for mount in mounts() if is_below(path, mount.mountpoint)]
    longest = max((len(mount.mountpoint) for mount in over), default=0)
    return next((mount for mount in reversed(over) if len(mount.mountpoint) == longest), None)


def is_stacked(directory: str) -> bool:
    """Whether a directory lies on a filesystem that is itself made of another one, as a container's root is."""
    mount = holding(os.path.realpath(directory))
    return mount is not None and mount.type in ("overlay", "ecryptfs")


def absolute(mountpoint: str) -> str:
    """The path as the kernel will name it, without touching what is mounted there: only the parent is resolved."""
    path = os.path.abspath(mountpoint)
    return path if path == "/" else os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def prepare(mountpoint: str, *, private_paths: tuple[str, ...] = ()) -> str:
    """Check that a filesystem can be mounted there and return the absolute path; MountError says why not.

    A dead mount of an earlier engine is taken away. ``private_paths`` are the engine's own: a mount over them
    would make it wait for itself.
    """
    path = _resolved(absolute(mountpoint))
    _clear_dead_mount(path)
    _check_nesting(path, private_paths)
    _check_directory(path)
    _check_device()
    return path


def _resolved(path: str) -> str:
    """Follow a symbolic link at the mount point itself."""
    try:
        return os.path.realpath(path) if os.path.islink(path) else path
    except OSError:
        return path


def _clear_dead_mount(path: str) -> None:
    while (mount := mounted_at(path)) is not None:
        if not is_dead(path):
            hint = f"tiercache umount {path}" if mount.type == FILE_SYSTEM_TYPE else "choose another directory"
            raise MountError(f"{path}: a {mount.type} filesystem is mounted there already; {hint}")
        log.warning("%s: taking away the mount that a dead process left", path)
        unmount(path, detach=True)


def is_dead(path: str) -> bool:
    """Whether a FUSE mount's process is gone."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _check_nesting(path: str, private_paths: tuple[str, ...]) -> None:
    for mount in mounts():
        if mount.type == FILE_SYSTEM_TYPE and is_below(path, mount.mountpoint):
            raise MountError(f"{path}: lies inside the tiercache mount {mount.mountpoint}; choose a directory outside")
    for private in private_paths:
        if is_below(os.path.realpath(private), path):
            raise MountError(f"{path}: holds {private}, which the engine itself reads; mount somewhere else")


def is_below(path: str, directory: str) -> bool:
    """Whether ``path`` is ``directory`` or lies anywhere under it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _check_directory(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise MountError(f"{path}: no such directory; make it first: mkdir -p {path}") from None
    except OSError as error:
        raise MountError(f"{path}: cannot be used as a mount point: {error.strerror}") from None
    if not stat.S_ISDIR(mode):
        raise MountError(f"{path}: is not a directory; a mount point must be one")
    if os.geteuid() != 0 and not os.access(path, os.W_OK):
        raise MountError(f"{path}: no permission to mount there; use a directory that you can write to, or be root")
    with contextlib.suppress(PermissionError), os.scandir(path) as entries:
        if next(entries, None) is not None:
            log.warning("%s: is not empty; its files are hidden while the mount stands", path)


def _check_device() -> None:
    if not os.path.exists(DEVICE):
        raise MountError(f"{DEVICE}: missing; load the module (modprobe fuse) or pass the device to the container")
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise MountError(f"{DEVICE}: cannot be opened: {error.strerror}; be root or a member of its group") from None
    if os.geteuid() != 0 and helper() is None:
        raise MountError("fusermount3: not found; install the package fuse3, or be root")


def helper() -> str | None:
    """The setuid program that mounts for ordinary users."""
    return shutil.which("fusermount3") or shutil.which("fusermount")


def unmount(path: str, *, detach: bool = False) -> None:
    """Unmount what is on top at ``path``. MountError when it is in use; ``detach`` takes it away even then."""
    if _libc.umount2(os.fsencode(path), _MNT_DETACH if detach else 0) == 0:
        return
    code = ctypes.get_errno()
    if code == errno.EPERM and helper() is not None:
        _unmount_by_helper(path, detach=detach)
    elif code == errno.EBUSY:
        raise MountError(f"{path}: is in use; close its files and leave its directories (see: fuser -vm {path})")
    elif code == errno.EINVAL:
        raise MountError(f"{path}: is not mounted")
    else:
        raise MountError(f"{path}: cannot be unmounted: {os.strerror(code)}")


def _unmount_by_helper(path: str, *, detach: bool) -> None:
    command = [helper() or "fusermount3", "-u", *(["-z"] if detach else []), "--", path]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HELPER_TIMEOUT_S, check=False)
    if result.returncode:
        reason = result.stderr.strip().splitlines()
        raise MountError(f"{path}: cannot be unmounted: {reason[-1] if reason else 'fusermount3 failed'}")


def set_read_ahead(device: str, size_kb: int) -> None:
    """Widen the kernel's read-ahead on a mount. Needs root; without it the default of 128 KiB stays."""
    try:
        Path(f"/sys/class/bdi/{device}/read_ahead_kb").write_text(f"{size_kb}\n")
    except OSError as error:
        log.info("device %s: read-ahead stays at the kernel's default: %s", device, error.strerror)


def abort(path: str) -> None:
    """End a mount whose process hangs: all waiting requests fail, and it goes as soon as nobody uses it. Needs root."""
    _libc.umount2(os.fsencode(path), _MNT_FORCE)
