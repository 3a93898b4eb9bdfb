"""What worker processes of the tests do: in a module that a spawned process can import."""

from __future__ import annotations

from typing import Any

import fsspec

from tiercache.filesystem import TierCacheFileSystem


def work(fs: TierCacheFileSystem, path: str, name: str) -> int:
    """Everything a worker does; returns how many names it saw."""
    assert fs.cat_file(f"{path}/f") == b"content"
    with fs.open(f"{path}/f") as file:
        assert file.read() == b"content"
    fs.pipe_file(f"{path}/from-{name}", name.encode())
    assert fs.cat_file(f"{path}/from-{name}") == name.encode()
    assert not fs.exists(f"{path}/missing")
    return len(fs.ls(path))


def work_in_pool(arguments: tuple[dict[str, Any], str, str]) -> int:
    options, path, name = arguments
    return work(fsspec.filesystem("tiercache", **options), path, name)
