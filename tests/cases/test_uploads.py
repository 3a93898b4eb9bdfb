"""Cases of uploads in parts, through fsspec and real mounts: S3's limits are scaled down by the proxy, and told to the
engine by the origin's option ``limits``."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.engines import small_config, stop_engine
from rig.faultproxy import FaultProxy
from rig.mounts import EngineProcess, Mounted, Source, mounted_for
from rig.s3_limits import ScaledLimits, ScaledStore
from tiercache.client import connect
from tiercache.errors import InvalidArgument
from tiercache.filesystem import TierCacheFileSystem
from tiercache.origins import Limits
from tiercache.origins.limits import plan_parts

KIB = 1024
MIB = 1024**2
TIB = 1024**4
PART = 5 * KIB
STORE = ScaledLimits(max_parts=40, min_part_bytes=PART, single_put_bytes=50 * KIB, single_copy_bytes=50 * KIB)
LIMITS = {"max_parts": 40, "min_part": PART, "max_part": "50KiB", "single_copy": "50KiB", "list_page": 10}
SETTINGS = {"upload.part_size": "5KiB", "upload.retry_base_s": "10ms", "fetch.retry_base_s": "1ms"}

SIZES = {
    "nothing": 0,
    "one part": PART,
    "an exact multiple": 8 * PART,
    "one byte more": 8 * PART + 1,
    "40 parts": 40 * PART,
    "longer parts": 40 * PART + 1,
    "12 times the limit of one request": 12 * 50 * KIB,
}


@pytest.fixture
def store(s3_proxy: FaultProxy) -> ScaledStore:
    return s3_proxy.limit(STORE)


@pytest.fixture
def scaled(s3: Source, s3_proxy: FaultProxy, store: ScaledStore) -> Source:
    return s3._replace(options=s3_proxy.options() | {"limits": LIMITS})


class Through(ABC):
    """One way to the files of a source."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Make or replace a file."""

    @abstractmethod
    def rewrite(self, name: str, offset: int, data: bytes) -> None:
        """Change a stretch of a file."""

    @abstractmethod
    def rename(self, name: str, new: str) -> None: ...

    @abstractmethod
    def drain(self) -> dict[str, Any]: ...


class Mount(Through):
    def __init__(self, mounted: Mounted) -> None:
        super().__init__(mounted.source)
        self.mounted = mounted

    def write(self, name: str, data: bytes) -> None:
        (self.mounted.path / name).write_bytes(data)

    def rewrite(self, name: str, offset: int, data: bytes) -> None:
        with (self.mounted.path / name).open("r+b") as file:
            file.seek(offset)
            file.write(data)
            os.fsync(file.fileno())

    def rename(self, name: str, new: str) -> None:
        (self.mounted.path / name).rename(self.mounted.path / new)

    def drain(self) -> dict[str, Any]:
        return self.mounted.engine.client.drain(deadline_s=40)


class Fsspec(Through):
    def __init__(self, source: Source, directory: Path) -> None:
        super().__init__(source)
        self.config = small_config(directory, **SETTINGS)
        settings = {"ram.directory": str(directory / "ram"), **SETTINGS}
        self.fs = TierCacheFileSystem(
            target_protocol="s3",
            target_options=source.options,
            cache_dir=str(self.config.cache_dir),
            settings=settings,
            skip_instance_cache=True,
        )
        self.path = source.url.removeprefix("s3://")

    def write(self, name: str, data: bytes) -> None:
        self.fs.pipe_file(f"{self.path}/{name}", data)

    def rewrite(self, name: str, offset: int, data: bytes) -> None:
        with self.fs.open(f"{self.path}/{name}", "r+b") as file:
            file.seek(offset)
            file.write(data)

    def rename(self, name: str, new: str) -> None:
        self.fs.mv(f"{self.path}/{name}", f"{self.path}/{new}")

    def drain(self) -> dict[str, Any]:
        return connect(self.fs._config).drain(deadline_s=40)


@pytest.fixture(params=["fsspec", "mount"])
def through(request: pytest.FixtureRequest, scaled: Source, tmp_path: Path) -> Iterator[Through]:
    if request.param == "fsspec":
        way = Fsspec(scaled, tmp_path / "fsspec")
        yield way
        stop_engine(way.config)
        return
    engine = EngineProcess(tmp_path / "cache", **SETTINGS)
    for mounted in mounted_for(engine, scaled, request.getfixturevalue("mountpoint"), "kernel"):
        yield Mount(mounted)
    engine.stop()


def test_c22_every_size_is_cut_within_the_limits(through: Through, store: ScaledStore, s3_proxy: FaultProxy) -> None:
    """C22. The proxy refuses what S3 refuses, and an empty part."""
    contents = {name: os.urandom(size_bytes) for name, size_bytes in SIZES.items()}
    for name, data in contents.items():
        through.write(name, data)
    answer = through.drain()
    assert (answer["left"], answer["errors"]) == ([], {})
    assert {name: through.source.get(name) for name in contents} == contents
    for name in contents:
        through.rename(name, f"{name} renamed")  # a copy, of parts where it is over the limit
    assert {name: through.source.get(f"{name} renamed") for name in contents} == contents
    assert s3_proxy.count("UploadPart") == 8 + 9 + 3 * 40
    assert s3_proxy.count("UploadPartCopy") == 4 + 5 + 12
    assert store.unfinished == []


@pytest.mark.parametrize("lasting", [False, True])
def test_c12_a_rewrite_whose_parts_fail_is_there_or_told_and_staged(
    through: Through, store: ScaledStore, s3_proxy: FaultProxy, lasting: bool
) -> None:
    """C12. Never old bytes with success."""
    data = bytearray(os.urandom(20 * PART))
    through.source.put("file", bytes(data))
    s3_proxy.answer(500, times=None if lasting else 1, operation="UploadPart")
    new = os.urandom(3 * PART)
    through.rewrite("file", 7 * PART + 3, new)
    data[7 * PART + 3 : 10 * PART + 3] = new
    if lasting:
        answer = connect(_config_of(through)).drain(deadline_s=3)
        assert answer["left"] or answer["errors"], answer
        [dirty] = connect(_config_of(through)).status()["dirty"]["list"]
        assert dirty["path"].endswith("/file")
        s3_proxy.clear()
        s3_proxy.add(store.act)
    answer = through.drain()
    assert (answer["left"], answer["errors"]) == ([], {})
    assert through.source.get("file") == data
    assert store.unfinished == []


def _config_of(through: Through) -> Any:
    return through.fs._config if isinstance(through, Fsspec) else through.mounted.engine.config  # type: ignore[attr-defined]


def test_an_append_to_a_large_file_copies_the_rest_inside_the_store(
    s3: Source, s3_proxy: FaultProxy, tmp_path: Path, mountpoint: Path
) -> None:
    settings = {"upload.part_size": "8MiB"}
    source = s3._replace(options=s3_proxy.options())
    data = os.urandom(16 * MIB)
    engine = EngineProcess(tmp_path / "cache", **settings)
    for mounted in mounted_for(engine, source, mountpoint, "kernel"):
        for name in ("mount", "fsspec"):
            (mountpoint / name).write_bytes(data)
        mounted.drain()
        fs = TierCacheFileSystem(
            target_protocol="s3",
            target_options=source.options,
            cache_dir=str(engine.config.cache_dir),
            skip_instance_cache=True,
        )
        for name in ("mount", "fsspec"):
            s3_proxy.forget()
            path = source.url.removeprefix("s3://") + "/" + name
            with (mountpoint / name).open("ab") if name == "mount" else fs.open(path, "ab") as file:
                file.write(b"!")
            mounted.drain()
            assert source.get(name) == data + b"!"
            assert (s3_proxy.count("UploadPartCopy"), s3_proxy.count("UploadPart")) == (2, 1), name
    engine.stop()


@pytest.mark.parametrize("size_bytes", [1, 16 * KIB * KIB + 1, 160_000 * KIB * KIB, TIB, 5 * TIB - 1, 5 * TIB])
def test_c22_the_plan_of_a_file_of_any_size_stays_within_the_limits_of_s3(size_bytes: int) -> None:
    """C22, as a plan: up to 5 TiB, the most that an object may have."""
    limits = Limits()
    parts = plan_parts(size_bytes, limits, multiple_of=4 * KIB * KIB)
    assert len(parts) <= limits.max_parts
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert parts[0].offset == 0
    assert all(part.offset + part.length == after.offset for part, after in itertools.pairwise(parts))
    assert parts[-1].offset + parts[-1].length == size_bytes
    assert all(part.offset % (4 * KIB * KIB) == 0 for part in parts)
    assert all(limits.min_part_bytes <= part.length <= limits.max_part_bytes for part in parts[:-1])
    assert 0 < parts[-1].length <= limits.max_part_bytes
    assert len({part.length for part in parts[:-1]}) <= 1


def test_c22_what_no_plan_can_hold_is_refused() -> None:
    """C22: over 10,000 parts of 5 GiB."""
    limits = Limits()
    most_bytes = limits.max_parts * limits.max_part_bytes
    assert len(plan_parts(most_bytes, limits, multiple_of=4 * KIB * KIB)) == limits.max_parts
    with pytest.raises(InvalidArgument):
        plan_parts(most_bytes + 1, limits, multiple_of=4 * KIB * KIB)
