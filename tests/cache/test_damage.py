"""Copies that others damaged: dropped, counted, fetched again; the reader never sees a wrong byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, bytes_of
from tiercache.model import Tier


def flip_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(BS + 5)
        byte = file.read(1)[0]
        file.seek(BS + 5)
        file.write(bytes([byte ^ 1]))


def flip_bit_and_hide(path: Path) -> None:
    before = path.stat()
    flip_bit(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(path: Path) -> None:
    os.truncate(path, BS + 1)


def replace(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


def overwrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def contents(path: Path) -> bytes:
    return path.read_bytes()


def remove(path: Path) -> None:
    path.unlink()


DAMAGES = [flip_bit, flip_bit_and_hide, truncate, replace, remove]
DATA = bytes_of("damage", 2 * BS + 100)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("verify", ["open", "read"])
@trio_test
async def test_a_copy_damaged_between_runs_is_fetched_again(
    rig: Rig, damage: Callable[[Path], None], verify: str
) -> None:
    """After a start every copy proves itself by its checksums before its first byte is read."""
    version = rig.put("f", DATA)
    async with rig.start() as run:
        await run.cache.read(version, 0, len(DATA))
        path = Path(run.nvme.path(version.id))
    damage(path)
    async with rig.start(verify=verify) as run:
        assert run.cache.locate(version) is None
        assert await run.cache.read(version, 0, len(DATA)) == DATA
        assert run.figure("damaged_total", "nvme") == 1
        assert contents(path) == DATA


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("verify", ["open", "read"])
@trio_test
async def test_a_copy_damaged_while_in_use_is_fetched_again(
    rig: Rig, damage: Callable[[Path], None], verify: str
) -> None:
    """A file that is not as we left it proves itself anew, even while its descriptor is open here."""
    version = rig.put("f", DATA)
    async with rig.start(verify=verify) as run:
        for _ in range(2):
            assert await run.cache.read(version, 0, len(DATA)) == DATA
        damage(Path(run.nvme.path(version.id)))
        assert await run.cache.read(version, 0, len(DATA)) == DATA
        assert run.figure("damaged_total", "nvme") == 1
        assert contents(Path(run.nvme.path(version.id))) == DATA


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("restart", [False, True])
@trio_test
async def test_an_incomplete_copy_that_was_damaged_is_fetched_again(
    rig: Rig, damage: Callable[[Path], None], restart: bool
) -> None:
    """Resident blocks of an incomplete version are checked too, in the same run and in the next."""
    data = bytes_of("partial", 3 * BS)
    version = rig.put("f", data)
    async with rig.start() as run:
        assert await run.cache.read(version, BS, 100) == data[BS : BS + 100]
        path = Path(run.nvme.path(version.id))
        if not restart:
            damage(path)
            assert await run.cache.read(version, BS, BS) == data[BS : 2 * BS]
            assert await run.cache.read(version, 0, len(data)) == data
            return
    damage(path)
    async with rig.start() as run:
        assert await run.cache.read(version, BS, BS) == data[BS : 2 * BS]
        assert await run.cache.read(version, 0, len(data)) == data


@trio_test
async def test_a_good_copy_is_verified_once_per_run_and_then_located(rig: Rig) -> None:
    """``locate`` does not name a copy of an earlier run; ``locate_verified`` checks it first, without the origin."""
    version = rig.put("f", DATA)
    async with rig.start() as run:
        await run.cache.read(version, 0, len(DATA))
        fetched = len(rig.origin.requests)
    async with rig.start() as run:
        assert run.cache.locate(version) is None
        location = await run.cache.locate_verified(version)
        assert location is not None
        assert run.cache.locate(version) == location
        record = run.catalog.version(version.id)
        assert record is not None
        assert record.copies[0].verified_run == run.catalog.run_id()
        assert await run.cache.read(version, 0, len(DATA)) == DATA
        assert len(rig.origin.requests) == fetched


@trio_test
async def test_reading_every_block_of_an_old_copy_verifies_it(rig: Rig) -> None:
    """A read checks the blocks it touches only; when all were checked the copy is located without another check."""
    version = rig.put("f", DATA)
    async with rig.start() as run:
        await run.cache.read(version, 0, len(DATA))
    async with rig.start() as run:
        await run.cache.read(version, 0, 100)
        assert run.cache.locate(version) is None
        await run.cache.read(version, 0, len(DATA))
        assert run.cache.locate(version) is not None
        assert run.figure("misses_total") == 0


@trio_test
async def test_a_touched_file_is_checked_and_kept(rig: Rig) -> None:
    """A backup or chmod changes the ctime and no byte: the checksums say so, and nothing is fetched again."""
    version = rig.put("f", DATA)
    async with rig.start() as run:
        await run.cache.read(version, 0, len(DATA))
        fetched = len(rig.origin.requests)
        os.chmod(run.nvme.path(version.id), 0o640)
        assert run.cache.locate(version) is None
        assert await run.cache.read(version, 0, len(DATA)) == DATA
        assert run.cache.locate(version) is not None
        assert len(rig.origin.requests) == fetched
        assert run.figure("damaged_total", "nvme") == 0


@trio_test
async def test_with_verify_read_no_file_is_handed_out(rig: Rig) -> None:
    """Nobody may read a file by himself, by the catalog's record either; reads through the cache still hit."""
    version = rig.put("f", DATA)
    async with rig.start(verify="read") as run:
        await run.cache.read(version, 0, len(DATA))
        assert run.cache.locate(version) is None
        assert await run.cache.locate_verified(version) is None
        assert await run.cache.ensure(version, 0, 1) is None
        record = run.catalog.version(version.id)
        assert record is not None
        assert [copy.verified_run for copy in record.copies] == [0]
        fetched = len(rig.origin.requests)
        assert await run.cache.read(version, BS - 5, 10) == DATA[BS - 5 : BS + 5]
        assert len(rig.origin.requests) == fetched
        assert run.figure("hits_total", Tier.NVME.label) == 1


@trio_test
async def test_a_damaged_ram_copy_falls_back_to_nvme(rig: Rig) -> None:
    """The fast copy is dropped and counted; the slow one answers without the origin."""
    version = rig.put("f", b"y" * 1000)
    async with rig.start(ram_bytes=16 * BS) as run:
        await run.cache.read(version, 0, 1000)
        location = run.cache.locate(version)
        assert location is not None
        assert location.tier is Tier.RAM
        overwrite(Path(location.path), b"z" * 1000)
        assert await run.cache.read(version, 0, 1000) == b"y" * 1000
        assert run.figure("damaged_total", "ram") == 1
        assert len(rig.origin.requests) == 1
