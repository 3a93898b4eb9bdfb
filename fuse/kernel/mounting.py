"""Get a mounted /dev/fuse descriptor: mount(2) as root, else from the fusermount3 helper."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import os
import socket
import stat
import subprocess

from tiercache.errors import MountError
from tiercache.fuse.mountpoint import DEVICE, FILE_SYSTEM_TYPE, HELPER_TIMEOUT_S, helper
from tiercache.fuse.options import MountOptions

_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4

_libc = ctypes.CDLL(None, use_errno=True)


def mount(mountpoint: str, options: MountOptions) -> int:
    """Mount and return the descriptor that the session reads. MountError says why not."""
    return _mount_as_root(mountpoint, options) if os.geteuid() == 0 else _mount_by_helper(mountpoint, options)


def _mount_as_root(mountpoint: str, options: MountOptions) -> int:
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    data = [
        f"fd={descriptor}",
        f"rootmode={stat.S_IFDIR:o}",
        f"user_id={os.getuid()}",
        f"group_id={os.getgid()}",
        "default_permissions",
        *(["allow_other"] if options.allow_other else []),
    ]
    flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if options.read_only else 0)
    failed = _libc.mount(
        options.source.encode(), os.fsencode(mountpoint), FILE_SYSTEM_TYPE.encode(), flags, ",".join(data).encode()
    )
    if failed:
        code = ctypes.get_errno()
        os.close(descriptor)
        hint = "; the container lacks CAP_SYS_ADMIN" if code == errno.EPERM else ""
        raise MountError(f"{mountpoint}: cannot be mounted: {os.strerror(code)}{hint}")
    return descriptor


def _mount_by_helper(mountpoint: str, options: MountOptions) -> int:
    """fusermount3 mounts for us and passes the descriptor over a socket."""
    chosen = ["default_permissions", f"fsname={options.source}", "subtype=tiercache"]
    if options.read_only:
        chosen.append("ro")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        result = subprocess.run(
            [helper() or "fusermount3", "-o", ",".join(chosen), "--", mountpoint],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            timeout=HELPER_TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            reason = result.stderr.strip().splitlines()
            raise MountError(f"{mountpoint}: cannot be mounted: {reason[-1] if reason else 'fusermount3 failed'}")
        return _receive_descriptor(ours)


def _receive_descriptor(connection: socket.socket) -> int:
    received = array.array("i")
    with contextlib.suppress(BlockingIOError):
        _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(received.itemsize), socket.MSG_DONTWAIT)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(data[: received.itemsize])
    if not received:
        raise MountError("fusermount3 did not pass a descriptor")
    os.set_inheritable(received[0], False)
    return received[0]
