"""Reads that are begun before they are asked for: by what the engine guesses, and that the disk really begins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rig.mounts import EngineProcess, Source, mounted_for, wait_for
from tiercache.bench.pagecache import resident_share
from tiercache.cache import VersionRef
from tiercache.fuse.expected import MOST_CREDIT, ExpectedReads
from tiercache.model import OriginId, VersionId
from tiercache.origins.posix import PosixOrigin

ORIGIN = PosixOrigin()


def version(number: int) -> VersionRef:
    return VersionRef(ORIGIN, OriginId(b"12345678"), b"key", "etag", number, VersionId(number.to_bytes(16, "big")))


def guesses(expected: ExpectedReads, number: int) -> bool:
    expected.looked_up(number, version(number))
    return expected.take() == version(number)


def test_a_lookup_is_expected_to_be_followed_by_a_read_once() -> None:
    expected = ExpectedReads()
    assert expected.take() is None
    expected.looked_up(1, version(1))
    assert expected.take() == version(1)
    assert expected.take() is None


def test_a_read_that_came_already_is_not_begun_again() -> None:
    expected = ExpectedReads()
    expected.looked_up(1, version(1))
    expected.came(1)
    assert expected.take() is None


def test_a_walk_that_reads_nothing_ends_the_guesses_and_reads_bring_them_back() -> None:
    expected = ExpectedReads()
    walk = [guesses(expected, number) for number in range(1, 200)]
    assert walk == [True] * (MOST_CREDIT - 1) + [False] * (200 - MOST_CREDIT)
    epoch = []
    for number in range(1000, 1010):
        epoch.append(guesses(expected, number))
        expected.came(number)
    assert epoch == [False] + [True] * 9


def test_a_read_of_what_was_not_looked_up_proves_nothing() -> None:
    expected = ExpectedReads()
    while guesses(expected, 1):
        pass
    for number in range(2, 50):
        expected.came(number)
    assert not guesses(expected, 60)


def test_reads_of_every_second_file_keep_the_guesses() -> None:
    expected = ExpectedReads()
    kept = []
    for number in range(1, 400):
        kept.append(guesses(expected, number))
        if number % 2:
            expected.came(number)
    assert all(kept)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    """Without a RAM tier: the disk has the only copy."""
    process = EngineProcess(tmp_path / "cache", **{"ram.capacity": "0"})
    yield process
    process.stop()


def begins(name: Path, copy: Path) -> bool:
    """Whether a stat of the name makes the disk read the copy."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    before = resident_share([copy])
    name.stat()
    began = resident_share([copy]) > 0.0
    name.read_bytes()  # what was guessed comes true, or soon there would be no more guesses
    return before == 0.0 and began


def test_the_disk_begins_to_read_a_file_that_was_looked_up(
    engine: EngineProcess, source: Source, mountpoint: Path
) -> None:
    data = os.urandom(200_000)
    source.put("file", data)
    for _ in mounted_for(engine, source, mountpoint, "kernel", profile="dataset", read_only=True):
        name = mountpoint / "file"
        assert name.read_bytes() == data
        (copy,) = [path for path in (engine.config.cache_dir / "nvme").rglob("*") if path.is_file()]
        os.sync()
        wait_for(partial(begins, name, copy))  # others on the machine may bring back what was dropped
        assert name.read_bytes() == data
        assert engine.client.status()["metrics"]["expected_reads_total"] >= 1
