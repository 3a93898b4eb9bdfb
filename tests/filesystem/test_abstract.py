"""fsspec's own tests of a filesystem, over a file tree and over S3."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from rig.ground import Ground
from tiercache.filesystem import TierCacheFileSystem


class Fixtures(AbstractFixtures):
    """What fsspec's tests need to know of a filesystem."""

    @pytest.fixture
    def fs(self, ground: Ground) -> TierCacheFileSystem:
        return ground.fs

    @pytest.fixture
    def fs_path(self, ground: Ground) -> str:
        return ground.path

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return posixpath.join

    @pytest.fixture
    def supports_empty_directories(self, ground: Ground) -> bool:
        return ground.protocol == "file"


class TestCopy(Fixtures, AbstractCopyTests): ...


class TestGet(Fixtures, AbstractGetTests): ...


class TestPut(Fixtures, AbstractPutTests): ...


class TestOpen(Fixtures, AbstractOpenTests): ...


class TestPipe(Fixtures, AbstractPipeTests): ...
