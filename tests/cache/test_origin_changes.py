"""Objects that change, and answers that are cut, while they are read."""

from __future__ import annotations

import pytest
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, bytes_of
from tiercache.config import FetchConfig
from tiercache.errors import Broken, Changed


@trio_test
async def test_a_version_is_never_mixed_with_the_next(rig: Rig) -> None:
    """C05: after the object changed, what is missing of the old version is Changed; the new version reads right."""
    old_data, new_data = bytes_of("old", 8 * BS), bytes_of("new", 8 * BS)
    old = rig.put("f", old_data)
    async with rig.start() as run:
        assert await run.cache.read(old, 0, 2 * BS) == old_data[: 2 * BS]
        new = rig.put("f", new_data)
        with pytest.raises(Changed):
            await run.cache.read(old, BS, 3 * BS)
        assert await run.cache.read(new, 0, len(new_data)) == new_data
        with pytest.raises(Changed):
            await run.cache.read(old, 4 * BS, 1)


@trio_test
async def test_what_can_never_become_whole_gives_its_room_back(rig: Rig) -> None:
    """An incomplete version whose object changed is dropped, so that a tier that never evicts does not fill with it."""
    old = rig.put("f", bytes_of("old", 3 * BS))
    async with rig.start(policy="hold") as run:
        await run.cache.read(old, 0, 1)
        assert run.nvme.used_bytes == BS
        rig.put("f", b"new")
        with pytest.raises(Changed):
            await run.cache.read(old, 2 * BS, 1)
        assert run.nvme.used_bytes == 0
        assert run.catalog.version(old.id) is None


@trio_test
async def test_a_complete_version_outlives_its_object(rig: Rig) -> None:
    """Wholly cached bytes go on being read after the object changed at the origin."""
    data = bytes_of("kept", BS + 1)
    version = rig.put("f", data)
    async with rig.start() as run:
        await run.cache.read(version, 0, len(data))
        rig.put("f", b"new")
        assert await run.cache.read(version, 0, len(data)) == data


@pytest.mark.parametrize("keep_bytes", [0, 1, BS + BS // 2, 3 * BS - 1])
@trio_test
async def test_short_answers_are_errors_and_never_kept(rig: Rig, keep_bytes: int) -> None:
    """C10: an answer cut anywhere is Broken, nothing of it is recorded, and once mended the bytes are right."""
    data = bytes_of("cut", 3 * BS)
    version = rig.put("f", data)
    async with rig.start(fetch=FetchConfig(part_size=4 * BS)) as run:
        rig.origin.cut(keep_bytes)
        with pytest.raises(Broken):
            await run.cache.read(version, 0, len(data))
        assert run.nvme.used_bytes == 0
        assert run.catalog.version(version.id) is None
        rig.origin.cut(None)
        assert await run.cache.read(version, 0, len(data)) == data


@trio_test
async def test_a_short_whole_answer_is_never_kept(rig: Rig) -> None:
    """C10: the same for the opening of an unknown small file."""
    version = rig.put("f", b"x" * 100)
    async with rig.start() as run:
        rig.origin.cut(99)
        with pytest.raises(Broken):
            await run.cache.ensure_small(rig.origin, version.origin_id, b"f", BS)
        assert run.cache.locate(version) is None
