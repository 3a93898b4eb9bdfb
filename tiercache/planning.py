"""Planners for files by their paths, wherever a program finds them: on a mount, or through the fsspec filesystem."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiercache.client import Planner, connect
from tiercache.config import load_config
from tiercache.errors import MountError
from tiercache.fuse import mountpoint as mountpoints

if TYPE_CHECKING:
    from tiercache.filesystem import TierCacheFileSystem


def planner_of(paths: Sequence[str], fs: TierCacheFileSystem | None = None) -> Planner:
    """For files by their paths in ``fs``, or by local paths under one mount. MountError if they lie under none."""
    return _mounted(paths) if fs is None else fs.planner(paths)


def _mounted(paths: Sequence[str]) -> Planner:
    if not len(paths):  # an array does not tell by itself
        raise MountError("a plan without files")
    first, spell = _absolute(paths[0]), _absolute
    mount = _mount_of(first)
    if mount is None:
        spell = _Resolved()
        mount = _mount_of(spell(paths[0]))
    if mount is None:
        raise MountError(f"{first}: lies under no mount of tiercache")
    cache_dir = mountpoints.cache_dir_of(mount)
    if cache_dir is None:
        raise MountError(f"{first}: its mount is of an earlier release")
    root = mount.mountpoint.rstrip("/")
    client = connect(load_config(None, {"cache_dir": str(cache_dir), "engine.mode": "attach"}))
    key = bytes(client.request("plan_root", idempotent=True, mountpoint=mount.mountpoint))
    prefix = key + b"/" if key else b""
    keys = [prefix + os.fsencode(_below(root, spell(path))) for path in paths]

    def begin(plan: str, reader: str) -> None:
        client.request("plan_begin", plan=plan, reader=reader, mountpoint=mount.mountpoint)

    return Planner(client, keys, begin)


def _mount_of(path: str) -> mountpoints.Mount | None:
    mount = mountpoints.holding(path)
    return mount if mount is not None and mount.type == mountpoints.FILE_SYSTEM_TYPE else None


def _absolute(path: str) -> str:
    return os.path.abspath(os.fsdecode(path))


class _Resolved:
    """Spells paths as the kernel does where symlinks lead into a mount. Each directory is looked at once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, path: str) -> str:
        directory, name = os.path.split(_absolute(path))
        real = self._known.get(directory)
        if real is None:
            real = self._known[directory] = os.path.realpath(directory)
        return os.path.join(real, name)


def _below(root: str, path: str) -> str:
    if not path.startswith(f"{root}/"):
        raise MountError(f"{path}: lies under another mount than the others, {root}")
    return path[len(root) + 1 :]
