"""Changes of names whose objects others have replaced since they were looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import interpose
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Changed, Exists, NotEmpty

LONG_TTL = {"general": {"ttl_s": 600, "negative_ttl_s": 5}}
LATER = {"upload_delay_s": 60}

Work = Callable[[Engine, Namespace], Awaitable[None]]


def on(ground: Ground, work: Work) -> None:
    async def scenario() -> None:
        async with ground.engine(profiles=LONG_TTL, staging=LATER) as (engine, names):
            await work(engine, names)
            assert (await engine.drain(30)).left == []

    run(scenario)


def test_what_others_wrote_is_not_removed_for_what_was_seen(ground: Ground) -> None:
    ground.put("a", b"seen")

    async def work(engine: Engine, names: Namespace) -> None:
        await names.lookup(ground.key("a"))
        ground.put("a", b"theirs")
        with pytest.raises(Changed):
            await names.unlink(ground.key("a"))
        assert await read_file(names, ground.key("a")) == b"theirs"
        await names.unlink(ground.key("a"))
        assert ground.names() == []

    on(ground, work)


def test_attributes_are_not_given_to_what_others_wrote(ground: Ground) -> None:
    ground.put("a", b"seen")

    async def work(engine: Engine, names: Namespace) -> None:
        entry = await names.lookup(ground.key("a"))
        ground.put("a", b"theirs")
        with pytest.raises(Changed):
            await names.setattr(entry.inode, mode=0o600)
        fresh = await names.lookup(ground.key("a"))
        assert (await names.setattr(fresh.inode, mode=0o600)).mode == 0o600
        assert ground.get("a") == b"theirs"

    on(ground, work)


@pytest.mark.parametrize("how", ["append", "exclusive"])
def test_what_others_wrote_stays_when_a_file_that_would_not_have_replaced_it_is_removed(
    ground: Ground, how: str
) -> None:
    ground.put("a" if how == "append" else "beside", b"seen")

    async def work(engine: Engine, names: Namespace) -> None:
        if how == "append":
            handle = await names.open((await names.lookup(ground.key("a"))).inode, write=True, append=True)
        else:
            _, handle = await names.create(ground.key("a"), mode=0o644, uid=0, gid=0, exclusive=True)
        await handle.write(4, b"ours")
        await handle.flush()
        await handle.close()
        ground.put("a", b"theirs")
        await names.unlink(ground.key("a"))
        assert await read_file(names, ground.key("a")) == b"theirs"

    on(ground, work)


def test_a_file_that_replaces_whatever_is_there_is_removed_with_whatever_is_there(ground: Ground) -> None:
    ground.put("a", b"seen")

    async def work(engine: Engine, names: Namespace) -> None:
        await write_file(names, ground.key("a"), b"ours")
        ground.put("a", b"theirs")
        await names.unlink(ground.key("a"))
        with pytest.raises(Absent):
            await names.lookup(ground.key("a"))
        assert ground.names() == []

    on(ground, work)


@pytest.mark.parametrize("how", ["copy", "rename"])
def test_what_takes_a_name_replaces_whatever_is_there(ground: Ground, how: str) -> None:
    ground.put("a", b"ours")
    ground.put("b", b"seen")

    async def work(engine: Engine, names: Namespace) -> None:
        await names.lookup(ground.key("b"))
        ground.put("b", b"theirs")
        change = names.copy if how == "copy" else names.rename
        await change(ground.key("a"), ground.key("b"))
        assert ground.get("b") == await read_file(names, ground.key("b")) == b"ours"

    on(ground, work)


def test_what_others_write_while_a_directory_is_removed_stays_and_is_told(ground: Ground) -> None:
    ground.put("d/a", b"seen")
    ground.put("d/b", b"seen")

    async def work(engine: Engine, names: Namespace) -> None:
        origin = interpose(names)
        remove = origin._origin.delete

        def delete(key: bytes, etag: str = "") -> None:
            if key == ground.key("d/a"):
                ground.put("d/a", b"theirs")
            remove(key, etag)

        origin._origin.delete = delete  # type: ignore[method-assign]
        with pytest.raises(NotEmpty):
            await names.remove_tree(ground.key("d"))
        assert ground.names() == ["d/a"]
        assert await read_file(names, ground.key("d/a")) == b"theirs"
        with pytest.raises(Absent):
            await names.lookup(ground.key("d/b"))
        assert engine.status()["changes"] == []

    on(ground, work)


def test_what_others_write_to_a_name_while_its_file_is_renamed_away_stays(s3_ground: Ground) -> None:
    ground = s3_ground
    ground.put("a", b"seen")

    async def work(engine: Engine, names: Namespace) -> None:
        await names.lookup(ground.key("a"))
        removing = interpose(names).stop("delete")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: names.rename(ground.key("a"), ground.key("b")))
            await removing.reached()
            ground.put("a", b"theirs")
            removing.open()
        assert (ground.get("a"), ground.get("b")) == (b"theirs", b"seen")
        assert await read_file(names, ground.key("a")) == b"theirs"
        assert await read_file(names, ground.key("b")) == b"seen"

    on(ground, work)


def test_a_rename_that_must_not_replace_leaves_what_others_made_where_nothing_was(ground: Ground) -> None:
    ground.put("a", b"ours")

    async def work(engine: Engine, names: Namespace) -> None:
        with pytest.raises(Absent):
            await names.lookup(ground.key("b"))
        ground.put("b", b"theirs")
        with pytest.raises(Exists):
            await names.rename(ground.key("a"), ground.key("b"), no_replace=True)
        assert (ground.get("a"), ground.get("b")) == (b"ours", b"theirs")

    on(ground, work)
