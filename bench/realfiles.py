"""Real images, sound and text that lie on this machine because packages ship them."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = {"scikit-image": "skimage/data/", "pygame-ce": "pygame/", "matplotlib": "matplotlib/mpl-data/"}
"""Distributions of the extra ``bench``, and where in them to look."""

DIRECTORIES = ("/usr/share/common-licenses", "/usr/share/sounds", "/usr/share/pixmaps", "/usr/share/backgrounds")
"""Of the system, where they exist."""

KINDS = {
    "images": {".png", ".jpg", ".jpeg", ".gif", ".tif", ".tiff", ".webp", ".bmp"},
    "sound": {".wav", ".ogg", ".oga", ".mp3", ".flac", ".mid"},
    "text": {".txt", ".rst", ".csv", ".md", ""},
}
LEAST_BYTES = 1024
MOST_BYTES = 4 * 1024 * 1024


class RealFile(NamedTuple):
    """One file and what it is."""

    path: Path
    kind: str
    source: str


def find_real_files() -> list[RealFile]:
    """Everything suitable, always in the same order."""
    found = {file.path.resolve(): file for file in [*_of_packages(), *_of_directories()]}
    return sorted(found.values(), key=lambda file: (file.kind, file.source, file.path))


def copy_real_files(files: list[RealFile], directory: Path, *, copies: int) -> None:
    """Store each file ``copies`` times, byte for byte, under different names."""
    for copy in range(copies):
        for file in files:
            target = directory / f"copy-{copy:02d}" / file.kind / file.source / file.path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.path, target)


def describe_real_files(files: list[RealFile], *, copies: int) -> str:
    """What the data set is, plainly."""
    kinds = Counter(file.kind for file in files)
    sources = ", ".join(sorted({file.source for file in files}))
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    return (
        f"The data are {len(files)} real files ({told}) out of {sources}. Each is stored under {copies} names, "
        "byte for byte the same: no target recognises equal bytes, so each name costs as much as a file of its own."
    )


def _of_packages() -> Iterator[RealFile]:
    for package, prefix in PACKAGES.items():
        try:
            listed = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for path in listed:
            if str(path).startswith(prefix):
                yield from _suitable(Path(str(path.locate())), package)


def _of_directories() -> Iterator[RealFile]:
    for directory in DIRECTORIES:
        for path in Path(directory).rglob("*"):
            yield from _suitable(path, Path(directory).name)


def _suitable(path: Path, source: str) -> Iterator[RealFile]:
    kind = next((kind for kind, suffixes in KINDS.items() if path.suffix.lower() in suffixes), "")
    if kind and path.is_file() and LEAST_BYTES <= path.stat().st_size <= MOST_BYTES:
        yield RealFile(path, kind, source)
