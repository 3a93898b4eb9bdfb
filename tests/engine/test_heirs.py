"""A file that the origin has, written and renamed: at each moment until its upload the origin has it as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest
import trio.testing

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import interpose
from tiercache.engine.barriers import Barrier
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent
from tiercache.journal import StagedRecord
from tiercache.model import Durability, Keep, StagedState
from tiercache.origins import Origin

SETTINGS = {
    "staging": {"upload_delay_s": 60},
    "profiles": {"general": {"ttl_s": 0, "negative_ttl_s": 0}},
}
CHANGING = ("write", "delete", "copy", "rename", "symlink", "make_directory", "remove_directory")


class Watched:
    """An origin, and what was in it after each call that changes something."""

    def __init__(self, ground: Ground, names: Namespace) -> None:
        self._origin = names.tree.origin
        self._ground = ground
        self._lock = threading.Lock()
        self.states = [contents(ground)]
        names.tree.origin = cast(Origin, self)

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._origin, method)
        return self._watched(found) if method in CHANGING else found

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                try:
                    return call(*args, **kwargs)
                finally:
                    self.states.append(contents(self._ground))

        return watched

    def always(self, *there: bytes) -> bool:
        """Whether at each moment one of these was somewhere."""
        return all(set(there) & set(state.values()) for state in self.states)


def contents(ground: Ground) -> dict[str, bytes]:
    return {name: ground.get(name) for name in ground.names()}


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})


async def there(names: Namespace, ground: Ground) -> dict[str, bytes]:
    """What this node shows."""
    found = {}
    for name, entry in await names.list(ground.root):
        assert (await names.lookup(ground.key(name.decode()))).inode == entry.inode
        found[name.decode()] = await read_file(names, ground.key(name.decode()))
    return found


async def move(names: Namespace, ground: Ground, *places: str) -> None:
    for source, target in pairwise(places):
        await names.rename(ground.key(source), ground.key(target))


@pytest.mark.parametrize("places", [["a", "b"], ["a", "b", "c"], ["a", "b", "a"], ["a", "b", "a", "c"]], ids="-".join)
def test_the_origin_has_a_renamed_file_as_it_was_until_it_has_it_as_it_is(ground: Ground, places: list[str]) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            watched = Watched(ground, names)
            await move(names, ground, *places)
            assert await there(names, ground) == {places[-1]: b"new"}
            assert contents(ground) == {"a": b"old"}
            await drained(engine)
            assert await there(names, ground) == contents(ground) == {places[-1]: b"new"}
            assert watched.always(b"old", b"new")

    run(scenario)


def test_it_has_it_through_a_kill_of_the_engine_too(ground: Ground) -> None:
    ground.put("a", b"old")

    async def rename() -> None:
        async with ground.engine(**SETTINGS) as (_, names):
            await write_file(names, ground.key("a"), b"new")
            await move(names, ground, "a", "b")

    async def look() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            watched = Watched(ground, names)
            assert await there(names, ground) == {"b": b"new"}
            await drained(engine)
            assert contents(ground) == {"b": b"new"}
            assert watched.always(b"old", b"new")

    run(rename)
    assert contents(ground) == {"a": b"old"}
    run(look)


@pytest.mark.parametrize("modified", [False, True])
def test_so_it_does_when_the_directory_of_a_dirty_file_is_moved(ground: Ground, modified: bool) -> None:
    ground.put("d/a", b"old")
    ground.put("d/clean", b"clean")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            new = b"new" if not modified else b"old and new"
            if modified:
                handle = await names.open((await names.lookup(ground.key("d/a"))).inode, write=True)
                await handle.write(3, b" and new")
                await handle.flush()
                await handle.close()
            else:
                await write_file(names, ground.key("d/a"), new)
            watched = Watched(ground, names)
            await move(names, ground, "d", "e")
            assert await read_file(names, ground.key("e/a")) == new
            assert contents(ground) == {"e/a": b"old", "e/clean": b"clean"}
            await drained(engine)
            assert contents(ground) == {"e/a": new, "e/clean": b"clean"}
            assert watched.always(b"old", new)

    run(scenario)


def test_what_others_wrote_is_a_conflict_after_a_move_of_the_directory_too(ground: Ground) -> None:
    ground.put("d/a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            handle = await names.open((await names.lookup(ground.key("d/a"))).inode, write=True)
            await handle.write(3, b" and new")
            await handle.flush()
            await handle.close()
            ground.put("d/a", b"theirs")
            await move(names, ground, "d", "e")
            [left] = (await engine.drain(30)).left
            assert [(r.id, r.state) for r in engine.journal.records()] == [(left, StagedState.CONFLICT)]
            assert await read_file(names, ground.key("e/a")) == b"old and new"
            assert contents(ground) == {"e/a": b"theirs"}

    run(scenario)


@pytest.mark.parametrize("how", ["written", "clean", "copied", "dirty"])
def test_what_takes_the_old_name_goes_up_after_the_renamed_file(ground: Ground, how: str) -> None:
    ground.put("a", b"old")
    ground.put("c", b"another")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            if how == "dirty":
                await write_file(names, ground.key("c"), b"another one")
            watched = Watched(ground, names)
            await move(names, ground, "a", "b")
            match how:
                case "written":
                    await write_file(names, ground.key("a"), b"taker")
                case "copied":
                    await names.copy(ground.key("c"), ground.key("a"))
                case _:
                    await move(names, ground, "c", "a")
            wanted = {
                "written": {"a": b"taker", "b": b"new", "c": b"another"},
                "clean": {"a": b"another", "b": b"new"},
                "copied": {"a": b"another", "b": b"new", "c": b"another"},
                "dirty": {"a": b"another one", "b": b"new"},
            }[how]
            assert await there(names, ground) == wanted
            await drained(engine)
            assert await there(names, ground) == contents(ground) == wanted
            assert watched.always(b"old", b"new")
            assert watched.always(b"another", b"another one")

    run(scenario)


def test_what_takes_the_old_name_does_not_wait_for_a_file_that_is_open(ground: Ground) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            handle = await names.open((await names.lookup(ground.key("a"))).inode, write=True)
            await handle.write(0, b"new")
            await move(names, ground, "a", "b")
            result = await engine.drain(30)
            assert len(result.left) == 1
            assert contents(ground) == {"a": b"old"}
            await write_file(names, ground.key("a"), b"taker")
            result = await engine.drain(30)
            assert len(result.left) == 1
            assert contents(ground) == {"a": b"taker"}
            await handle.flush()
            await handle.close()
            await drained(engine)
            assert contents(ground) == {"a": b"taker", "b": b"new"}

    run(scenario)


def test_what_takes_the_old_name_and_is_removed_leaves_the_old_object(ground: Ground) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            watched = Watched(ground, names)
            await move(names, ground, "a", "b")
            await write_file(names, ground.key("a"), b"taker")
            await names.unlink(ground.key("a"), keep_directory=True)
            assert await there(names, ground) == {"b": b"new"}
            assert contents(ground) == {"a": b"old"}
            await drained(engine)
            assert contents(ground) == {"b": b"new"}
            assert watched.always(b"old", b"new")

    run(scenario)


def test_the_old_object_goes_with_the_renamed_file(ground: Ground) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            await move(names, ground, "a", "b")
            await names.unlink(ground.key("b"), keep_directory=True)
            await drained(engine)
            assert contents(ground) == {}
            assert await there(names, ground) == {}

    run(scenario)


@pytest.mark.parametrize("how", ["renamed", "published"])
def test_the_old_object_waits_for_the_file_that_replaces_the_renamed_one(ground: Ground, how: str) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            watched = Watched(ground, names)
            await move(names, ground, "a", "b")
            if how == "renamed":
                await write_file(names, ground.key("c"), b"successor")
                await move(names, ground, "c", "b")
            else:
                await names.copy(ground.key("b"), ground.key("c"))
                await names.copy(ground.key("c"), ground.key("b"))
            assert contents(ground) == {"a": b"old"}
            await drained(engine)
            assert watched.always(b"old", b"new", b"successor")
            assert "a" not in contents(ground)

    run(scenario)


def test_files_that_exchanged_their_names_arrive(ground: Ground) -> None:
    """One of the two is without its old object for a while: there is no order in which neither is."""
    ground.put("a", b"old a")
    ground.put("b", b"old b")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new a")
            await write_file(names, ground.key("b"), b"new b")
            watched = Watched(ground, names)
            await move(names, ground, "a", "c")
            await move(names, ground, "b", "a")
            await move(names, ground, "c", "b")
            await drained(engine)
            assert await there(names, ground) == contents(ground) == {"a": b"new b", "b": b"new a"}
            assert watched.always(b"old a", b"new a") or watched.always(b"old b", b"new b")

    run(scenario)


@pytest.mark.parametrize("directory", ["removed", "removed with all in it", "moved", "replaced"])
def test_an_old_object_that_nobody_sees_is_in_the_way_of_no_directory(ground: Ground, directory: str) -> None:
    ground.put("d/a", b"old")
    ground.put("e/f", b"below")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("d/a"), b"new")
            await move(names, ground, "d/a", "b")
            wanted = {"b": b"new", "e/f": b"below"}
            match directory:
                case "removed":
                    await names.rmdir(ground.key("d"))
                case "removed with all in it":
                    await names.remove_tree(ground.key("d"))
                case "moved":
                    await move(names, ground, "d", "c")
                    assert await names.list(ground.key("c")) == []
                    await names.rmdir(ground.key("c"))
                case "replaced":
                    await move(names, ground, "e", "d")
                    wanted = {"b": b"new", "d/f": b"below"}
            shown = {name.decode() for name, _ in await names.list(ground.root)}
            assert shown == {name.partition("/")[0] for name in wanted}
            await drained(engine)
            assert contents(ground) == wanted

    run(scenario)


def test_what_others_write_to_the_old_name_is_seen_and_stays(ground: Ground) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            await move(names, ground, "a", "b")
            ground.put("a", b"theirs")
            assert await there(names, ground) == {"a": b"theirs", "b": b"new"}
            await drained(engine)
            assert contents(ground) == {"a": b"theirs", "b": b"new"}

    run(scenario)


def test_the_old_object_of_a_file_that_is_lost_shows_itself_again(ground: Ground) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            await move(names, ground, "a", "b")
            [record] = engine.journal.records()
            await engine.writeback._uploader.lose(record, "its disk is broken")
            assert await read_file(names, ground.key("a")) == b"old"
            await engine.drain(30)
            assert contents(ground) == {"a": b"old"}

    run(scenario)


def test_so_does_that_of_a_file_whose_staged_bytes_are_gone_at_the_next_start(ground: Ground) -> None:
    ground.put("a", b"old")
    ids: list[int] = []

    async def rename() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            await move(names, ground, "a", "b")
            ids.extend(record.id for record in engine.journal.records())

    async def look() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            [record] = engine.journal.records()
            assert record.state is StagedState.LOST
            assert await read_file(names, ground.key("a")) == b"old"
            await engine.drain(30)
            await names.conflicts.resolve(ground.key("b"), Keep.THEIRS)
            await drained(engine)
            assert await there(names, ground) == contents(ground) == {"a": b"old"}

    run(rename)
    (ground.cache_dir / "staging" / str(ids[0])).unlink()
    run(look)


@pytest.mark.parametrize("keep", [Keep.OURS, Keep.THEIRS])
def test_a_conflict_keeps_the_old_object_until_it_is_ended(ground: Ground, keep: Keep) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            await move(names, ground, "a", "b")
            [record] = engine.journal.records()
            # As the recovery from a power cut leaves it.
            await engine.journal.put(record._replace(torn=True, attempts=1, last_error="torn"))
            assert (await engine.drain(30)).left == [record.id]
            assert [record.state for record in engine.journal.records()] == [StagedState.CONFLICT]
            assert await there(names, ground) == {"b": b"new"}
            assert contents(ground) == {"a": b"old"}
            await names.conflicts.resolve(ground.key("b"), keep)
            await drained(engine)
            wanted = {"b": b"new"} if keep is Keep.OURS else {"a": b"old"}
            assert await there(names, ground) == contents(ground) == wanted

    run(scenario)


def test_whoever_waits_for_the_origin_waits_until_the_old_object_is_gone(ground: Ground) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            await move(names, ground, "a", "b")
            stop = interpose(names).stop("delete")
            reached: list[int] = []

            def origin(record: StagedRecord) -> Durability:
                return Durability.ORIGIN

            async def wait() -> None:
                done = await Barrier(engine, [(names.origin_id, ground.key("b"))], origin).run(30)
                reached.append(done.done)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await stop.reached()
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert not reached
                stop.open()
            assert reached == [1]
            assert contents(ground) == {"b": b"new"}
            with pytest.raises(Absent):
                await names.lookup(ground.key("a"))

    run(scenario)
