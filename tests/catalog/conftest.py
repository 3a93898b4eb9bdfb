"""A fresh catalog per test, and the names that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tiercache.catalog import Catalog
from tiercache.model import OriginId, origin_id


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "catalog"


@pytest.fixture
def catalog(directory: Path) -> Iterator[Catalog]:
    opened = Catalog(directory)
    yield opened
    opened.close()


@pytest.fixture
def origin() -> OriginId:
    return origin_id("s3://bucket")
