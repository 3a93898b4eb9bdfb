"""A cached copy that the kernel has becomes the staged file when it is opened for writing, and goes back unwritten."""

from __future__ import annotations

import os

import pytest

from rig.engine_ground import Ground, read_file, run
from tiercache.journal import Journal

DATA = b"as it was" * 1000


@pytest.fixture
def ground(posix_ground: Ground) -> Ground:
    posix_ground.put("file", DATA)
    return posix_ground


def test_a_file_that_is_given_back_is_the_same_file_at_every_moment(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup between the end of the journal's record and the end of the rest found a file without a state."""

    async def scenario() -> None:
        async with ground.engine() as (_, namespace):
            key = ground.key("file")
            inode = (await namespace.lookup(key)).inode
            await read_file(namespace, key)
            reader = await namespace.open(inode)
            lent = reader.lendable()
            assert lent is not None
            reader.lend(os.fstat(lent).st_ino)
            writer = await namespace.open(inode, write=True)
            await writer.write_in_place()
            assert (await namespace.lookup(key)).staged

            drop, found = Journal.drop, []

            async def drop_and_look(journal: Journal, staged_id: int) -> None:
                await drop(journal, staged_id)
                found.append(await namespace.lookup(key))

            monkeypatch.setattr(Journal, "drop", drop_and_look)
            await writer.flush()
            await writer.close()
            assert [entry.inode for entry in found] == [inode]
            assert not found[0].staged
            assert (await namespace.lookup(key)).inode == inode
            await reader.close()
            assert await read_file(namespace, key) == DATA

    run(scenario)


def test_the_new_place_of_a_copy_that_is_written_is_as_durable_as_its_bytes(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was renamed into staging: an fsync that left out the directory would let a power cut undo that."""

    async def scenario() -> None:
        async with ground.engine() as (engine, namespace):
            key = ground.key("file")
            inode = (await namespace.lookup(key)).inode
            await read_file(namespace, key)
            reader = await namespace.open(inode)
            lent = reader.lendable()
            assert lent is not None
            reader.lend(os.fstat(lent).st_ino)
            writer = await namespace.open(inode, write=True)
            await writer.write_in_place()
            synced: list[str] = []
            monkeypatch.setattr(engine.staging.disk, "sync_directory", synced.append)
            await writer.write(0, b"and now")
            await writer.fsync()
            assert synced == [str(engine.staging.directory)]
            await writer.fsync()
            assert synced == [str(engine.staging.directory)]
            await writer.close()
            await reader.close()

    run(scenario)
