"""Real users of fsspec on real files: what they are, and the fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import skimage

from rig.ground import Ground, bucket, cache_dir, ground, local, s3

__all__ = ["bucket", "cache_dir", "ground", "images", "local", "s3", "texts"]

pytestmark = pytest.mark.integration


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
            # The warnings of other people's packages are not ours to mend.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def image_files() -> list[Path]:
    """The photographs that scikit-image ships."""
    directory = Path(skimage.__file__).parent / "data"
    found = sorted(path for path in directory.iterdir() if path.suffix in (".png", ".jpg"))
    assert len(found) >= 10
    return found


@pytest.fixture(scope="session")
def text_files() -> list[Path]:
    """The licences of the packages that are installed."""
    packages = Path(skimage.__file__).parent.parent
    licences = [path for path in packages.glob("*.dist-info/**/LICENSE*") if path.is_file()]
    found = sorted({path.stat().st_size: path for path in sorted(licences)}.values())
    assert len(found) >= 5
    return found[:25]


@pytest.fixture
def images(ground: Ground, image_files: list[Path]) -> list[str]:
    """The photographs in the origin, put there past our filesystem; their paths."""
    return _upload(ground, "images", image_files)


@pytest.fixture
def texts(ground: Ground, text_files: list[Path]) -> list[str]:
    """The licences in the origin; their paths."""
    return _upload(ground, "texts", text_files)


@pytest.fixture
def upload() -> Callable[[Ground, str, list[Path]], list[str]]:
    """Puts files into a directory of an origin, past our filesystem, and returns their paths."""
    return _upload


def _upload(ground: Ground, directory: str, files: list[Path]) -> list[str]:
    names = [f"{directory}/{number:04}{path.suffix or '.txt'}" for number, path in enumerate(files)]
    for name, path in zip(names, files, strict=True):
        ground.write(name, path.read_bytes())
    return [f"{ground.path}/{name}" for name in names]
