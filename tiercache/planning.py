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
    first = os.path.abspath(paths[0]) if paths else ""
    mount = mountpoints.holding(first)
    if mount is None or mount.type != mountpoints.FILE_SYSTEM_TYPE:
        raise MountError(f"{first}: lies under no mount of tiercache")
    cache_dir = mountpoints.cache_dir_of(mount)
    if cache_dir is None:
        raise MountError(f"{first}: its mount is of an earlier release")
    root = mount.mountpoint.rstrip("/")
    client = connect(load_config(None, {"cache_dir": str(cache_dir), "engine.mode": "attach"}))
    key = bytes(client.request("plan_root", idempotent=True, mountpoint=mount.mountpoint))
    prefix = key + b"/" if key else b""
    keys = [prefix + os.fsencode(_below(root, path)) for path in paths]

    def begin(plan: str, reader: str) -> None:
        client.request("plan_begin", plan=plan, reader=reader, mountpoint=mount.mountpoint)

    return Planner(client, keys, begin)


def _below(root: str, path: str) -> str:
    path = os.path.abspath(path)
    if not path.startswith(f"{root}/"):
        raise MountError(f"{path}: lies under another mount than the others, {root}")
    return path[len(root) + 1 :]
