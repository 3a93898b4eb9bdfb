"""Headers over a real cache: what is fetched, when, and that help that goes wrong costs nothing but that."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import trio
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, Running, bytes_of, in_thread
from tiercache.cache import VersionRef
from tiercache.config import FetchConfig, ReadaheadConfig
from tiercache.readahead import Layouts, ReadAhead
from tiercache.units import KIB

TENSORS = 4
TENSOR_BYTES = 3 * BS
EACH_BLOCK = FetchConfig(part_size=BS)


def tensors(seed: str) -> bytes:
    """A safetensors file of a few large tensors."""
    table = {
        f"t{number}": {"data_offsets": [number * TENSOR_BYTES, (number + 1) * TENSOR_BYTES]}
        for number in range(TENSORS)
    }
    header = json.dumps(table).encode()
    return struct.pack("<Q", len(header)) + header + bytes_of(seed, TENSORS * TENSOR_BYTES)


def archive(names: list[str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as records:
        for name in names:
            records.writestr(name, bytes_of(name, TENSOR_BYTES))
    return file.getvalue()


def read_ahead(run: Running, *, extents_max: int = 1000) -> ReadAhead:
    config = ReadaheadConfig(budget_bytes=64 * BS, window_min_bytes=BS, window_max_bytes=8 * BS)
    layouts = Layouts(run.cache, run.metrics, run.nursery, extents_max=extents_max)
    return ReadAhead(run.cache, config, run.metrics, layouts=layouts)


async def looked_at(run: Running, outcome: str) -> None:
    """Until the header of a file was looked at, and this came of it."""
    while not run.figure("format_files_total", outcome):
        await trio.lowlevel.checkpoint()


def blocks_asked(rig: Rig) -> list[int]:
    return sorted(request.offset // BS for request in rig.origin.requests)


async def read(run: Running, ahead: ReadAhead, version: VersionRef, offset: int, length: int) -> bytes:
    """As a handle does."""
    window = ahead.window()
    ahead.observe(window, version, offset, length)
    data = bytes(await run.cache.read(version, offset, length))
    ahead.forget(window)
    return data


@trio_test
async def test_both_ends_of_an_archive_are_sent_for_at_the_first_read(rig: Rig) -> None:
    """Before anything has answered: its reader looks at the end, and then goes back to the beginning."""
    data = archive(["m/data.pkl", "m/data/0", "m/data/1"])
    version = rig.put("m.pt", data)
    async with rig.start(fetch=EACH_BLOCK) as run:
        ahead = read_ahead(run)
        rig.origin.hold()
        ahead.observe(ahead.window(), version, 0, 4)
        await in_thread(rig.origin.wait_for_requests, 3)
        end = (len(data) - 1) // BS
        assert blocks_asked(rig) == [0, end - 1, end], "the last block is short: the directory may begin before it"
        rig.origin.release()
        await looked_at(run, "zip/learned")
        assert len(rig.origin.requests) == 3, "the header needs no more"


@trio_test
async def test_one_tensor_of_many_is_one_step_and_nothing_else(rig: Rig) -> None:
    """Its blocks are under way at its first bytes; those of other tensors are never asked for."""
    data = tensors("one")
    version = rig.put("m.safetensors", data)
    start = len(data) - 2 * TENSOR_BYTES
    async with rig.start(fetch=EACH_BLOCK) as run:
        ahead = read_ahead(run)
        assert await read(run, ahead, version, 0, 8) == data[:8]
        await looked_at(run, "safetensors/learned")
        rig.origin.hold()
        window = ahead.window()
        ahead.observe(window, version, start, 4 * KIB)
        run.nursery.start_soon(run.cache.read, version, start, 4 * KIB)
        tensor = range(start // BS, (start + TENSOR_BYTES - 1) // BS + 1)
        await in_thread(rig.origin.wait_for_requests, len(tensor) + 1)
        assert blocks_asked(rig) == [0, *tensor]
        rig.origin.release()
        for offset in range(start, start + TENSOR_BYTES, 64 * KIB):
            length = min(64 * KIB, start + TENSOR_BYTES - offset)
            ahead.observe(window, version, offset, length)
            assert await run.cache.read(version, offset, length) == data[offset : offset + length]
        assert blocks_asked(rig) == [0, *tensor]
        assert run.figure("format_bytes_total", "used") > 0
        ahead.forget(window)
        assert ahead.held_bytes == 0


@trio_test
async def test_a_walk_over_the_records_is_run_ahead_of(rig: Rig) -> None:
    """torch.load(mmap=True) looks at the head of each record, one after the other."""
    data = archive([f"m/data/{number}" for number in range(10)])
    with zipfile.ZipFile(io.BytesIO(data)) as records:
        heads = [record.header_offset for record in records.infolist()]
    version = rig.put("m.pt", data)
    async with rig.start(fetch=EACH_BLOCK) as run:
        ahead = read_ahead(run)
        await read(run, ahead, version, 0, 4)
        await looked_at(run, "zip/learned")
        window = ahead.window()
        for head in heads[:4]:
            ahead.observe(window, version, head, 30)
            await run.cache.read(version, head, 30)
        while not {head // BS for head in heads[4:7]} <= set(blocks_asked(rig)):
            await trio.lowlevel.checkpoint()


@trio_test
async def test_a_damaged_header_costs_nothing_but_its_fetch(rig: Rig) -> None:
    """The name tells a format that the bytes are not of: read as any file, and not looked at again."""
    data = bytes_of("damaged", 5 * BS)
    versions = [rig.put(name, data) for name in ("a.safetensors", "b.pt", "c.parquet", "d.tar")]
    async with rig.start(fetch=EACH_BLOCK) as run:
        ahead = read_ahead(run)
        for version, label in zip(versions, ("safetensors", "zip", "parquet", "tar"), strict=True):
            await read(run, ahead, version, 0, 4)
            await looked_at(run, f"{label}/unknown")
            assert await read(run, ahead, version, 0, len(data)) == data
            assert run.figure("format_files_total", f"{label}/unknown") == 1


@trio_test
async def test_what_the_origin_refuses_is_its_readers_affair(rig: Rig) -> None:
    """The look at the header fails with it, is counted, and is made again for the next reader."""
    version = rig.put("m.safetensors", tensors("gone"))
    rig.put("m.safetensors", bytes(10))  # replaced: the version is not to be had any more
    async with rig.start(fetch=EACH_BLOCK) as run:
        ahead = read_ahead(run)
        ahead.observe(ahead.window(), version, 0, 8)
        await looked_at(run, "safetensors/failed")
        ahead.observe(ahead.window(), version, 0, 8)
        while run.figure("format_files_total", "safetensors/failed") < 2:
            await trio.lowlevel.checkpoint()


@trio_test
async def test_what_no_tier_keeps_is_not_looked_at(rig: Rig) -> None:
    data = tensors("streamed")
    version = rig.put("m.safetensors", data)
    async with rig.start(nvme_bytes=BS) as run:
        ahead = read_ahead(run)
        assert await read(run, ahead, version, 0, 8) == data[:8]
        await looked_at(run, "safetensors/unknown")


@trio_test
async def test_small_files_and_a_bound_of_nothing_leave_headers_alone(rig: Rig) -> None:
    small, large = rig.put("s.safetensors", bytes(BS)), rig.put("m.safetensors", tensors("off"))
    async with rig.start() as run:
        ahead = read_ahead(run, extents_max=0)
        for version in (small, large):
            ahead.observe(ahead.window(), version, 0, 8)
        assert not rig.origin.requests
        assert "format_files_total" not in run.metrics.snapshot() or not run.metrics.snapshot()["format_files_total"]


@trio_test
async def test_the_layout_that_was_asked_for_longest_ago_makes_way(rig: Rig) -> None:
    versions = [rig.put(f"{number}.safetensors", tensors(str(number))) for number in range(3)]
    async with rig.start() as run:
        ahead = read_ahead(run, extents_max=2 * (TENSORS + 1))
        for number, version in enumerate(versions, 1):
            await read(run, ahead, version, 0, 8)
            while run.figure("format_files_total", "safetensors/learned") < number:
                await trio.lowlevel.checkpoint()
        assert run.figure("format_extents") == 2 * (TENSORS + 1)
