"""PyTorch data sets of the tests: in a module that a spawned worker can import."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any

import fsspec
import torch
from PIL import Image

from tiercache.filesystem import TierCacheFileSystem


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class ImageFiles(torch.utils.data.Dataset[tuple[str, tuple[int, int]]]):
    """Reads and decodes one image a sample; gives the digest of the bytes and the size of the picture."""

    def __init__(self, source: TierCacheFileSystem | dict[str, Any], paths: list[str]) -> None:
        self._source = source
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[str, tuple[int, int]]:
        source = self._source
        fs = fsspec.filesystem("tiercache", **source) if isinstance(source, dict) else source
        with fs.open(self._paths[number]) as file:
            data = file.read()
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            return digest(data), image.size


class Lines(torch.utils.data.IterableDataset[str]):
    """The lines of text files, each file read by one worker."""

    def __init__(self, fs: TierCacheFileSystem, paths: list[str]) -> None:
        self._fs = fs
        self._paths = paths

    def __iter__(self) -> Iterator[str]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        for path in self._paths[worker.id :: worker.num_workers]:
            with self._fs.open(path, "r", encoding="utf-8", errors="replace") as file:
                yield from file.read().splitlines()
