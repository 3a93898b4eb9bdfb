"""A change that a crash or a failing journal interrupts has happened or has not: never half of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import trio

from rig.engine_ground import Ground, read_file, run, write_file
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Busy, Denied, NoSpace
from tiercache.origins.base import Upload
from tiercache.origins.temporary import temporary_name

NO_TTL = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}
LATER = {"upload_delay_s": 60}
SLOW = {"retry_base_s": 60, "retry_cap_s": 60}


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})


@pytest.mark.parametrize("edit", ["replace", "append"])
@pytest.mark.parametrize("afterwards", [False, True])
def test_after_a_crash_the_bytes_of_a_file_that_was_renamed_over_do_not_go_up(
    posix_ground: Ground, edit: str, afterwards: bool
) -> None:
    ground = posix_ground
    ground.put("a", b"mover")
    ground.put("b", b"old")
    crashed = replace(ground, cache_dir=ground.scratch / "crashed")
    written = b"new" if edit == "replace" else b"old and new"

    async def rename() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (_, names):
            if edit == "replace":
                await write_file(names, ground.key("b"), b"new")
            else:
                handle = await names.open((await names.lookup(ground.key("b"))).inode, write=True, append=True)
                await handle.write(0, b" and new")
                await handle.flush()
                await handle.close()
            origin = names.tree.origin
            move = origin.rename

            def interrupted(*arguments: Any, **options: Any) -> None:
                if afterwards:
                    move(*arguments, **options)
                # What a crash would leave at this moment.
                shutil.copytree(ground.cache_dir, crashed.cache_dir, ignore=shutil.ignore_patterns("*.sock"))
                if not afterwards:
                    raise Busy("the engine is gone")

            origin.rename = interrupted  # type: ignore[method-assign]
            with nullcontext() if afterwards else pytest.raises(Busy):
                await names.rename(ground.key("a"), ground.key("b"))

    async def look() -> None:
        async with crashed.engine(profiles=NO_TTL) as (engine, names):
            await drained(engine)
            wanted = {"b": b"mover"} if afterwards else {"a": b"mover", "b": written}
            assert {name: ground.get(name) for name in ground.names()} == wanted
            for name, data in wanted.items():
                assert await read_file(names, ground.key(name)) == data
            assert list(engine.journal.records()) == []
            assert not names.tree.staged_names

    run(rename)
    run(look)


@pytest.mark.parametrize("afterwards", [False, True])
def test_after_a_crash_a_dirty_file_goes_up_where_the_origin_has_its_directory(
    posix_ground: Ground, afterwards: bool
) -> None:
    ground = posix_ground
    ground.put("old/clean", b"clean")
    crashed = replace(ground, cache_dir=ground.scratch / "crashed")

    async def rename() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (_, names):
            await dirty(ground, names, "old/sub/dirty")
            origin = names.tree.origin
            move = origin.rename

            def interrupted(*arguments: Any, **options: Any) -> None:
                if afterwards:
                    move(*arguments, **options)
                shutil.copytree(ground.cache_dir, crashed.cache_dir, ignore=shutil.ignore_patterns("*.sock"))
                if not afterwards:
                    raise Busy("the engine is gone")

            origin.rename = interrupted  # type: ignore[method-assign]
            with nullcontext() if afterwards else pytest.raises(Busy):
                await names.rename(ground.key("old"), ground.key("new"))

    async def look() -> None:
        async with crashed.engine(profiles=NO_TTL) as (engine, names):
            await drained(engine)
            there, gone = ("new", "old") if afterwards else ("old", "new")
            wanted = {f"{there}/clean": b"clean", f"{there}/sub/dirty": b"new old/sub/dirty"}
            assert {name: ground.get(name) for name in ground.names()} == wanted
            for name, data in wanted.items():
                assert await read_file(names, ground.key(name)) == data
            assert await names.names.find(ground.key(gone)) is None
            assert list(engine.journal.records()) == []
            assert not names.tree.staged_names

    os.mkdir(ground.path("old/sub"))
    run(rename)
    assert os.path.exists(ground.path("old")) is not afterwards
    run(look)
    assert os.path.exists(ground.path("old")) is not afterwards


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("afterwards", [False, True])
def test_after_a_crash_what_a_renamed_file_left_goes_where_the_origin_has_its_directory(
    posix_ground: Ground, afterwards: bool, sent: bool
) -> None:
    ground = posix_ground
    ground.put("old/clean", b"clean")
    ground.put("old/left", b"left")
    crashed = replace(ground, cache_dir=ground.scratch / "crashed")

    async def rename() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER, upload=SLOW) as (engine, names):
            await write_file(names, ground.key("old/left"), b"new")
            origin = names.tree.origin
            move, delete = origin.rename, origin.delete

            def refused(*arguments: Any, **options: Any) -> None:
                raise Denied("not now")

            def interrupted(*arguments: Any, **options: Any) -> None:
                if afterwards:
                    move(*arguments, **options)
                shutil.copytree(ground.cache_dir, crashed.cache_dir, ignore=shutil.ignore_patterns("*.sock"))
                if not afterwards:
                    raise Busy("the engine is gone")

            origin.delete = refused  # type: ignore[method-assign]
            await names.rename(ground.key("old/left"), ground.key("new-left"))
            if sent:
                await engine.drain(30)
                assert [record for record in engine.journal.retractions() if record.last_error]
            origin.delete = delete  # type: ignore[method-assign]
            origin.rename = interrupted  # type: ignore[method-assign]
            with nullcontext() if afterwards else pytest.raises(Busy):
                await names.rename(ground.key("old"), ground.key("new"))

    async def look() -> None:
        async with crashed.engine(profiles=NO_TTL) as (engine, names):
            await drained(engine)
            there = "new" if afterwards else "old"
            wanted = {f"{there}/clean": b"clean", "new-left": b"new"}
            assert {name: ground.get(name) for name in ground.names()} == wanted
            for name, data in wanted.items():
                assert await read_file(names, ground.key(name)) == data
            assert not engine.journal.retractions()

    run(rename)
    run(look)


def test_what_a_torn_upload_left_does_not_make_a_moved_directory_look_full(posix_ground: Ground) -> None:
    ground = posix_ground

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            torn = trio.Event()

            def tear(key: bytes, upload: Upload) -> None:
                # What a killed engine leaves, which has no time to tidy up.
                with open(os.path.join(ground.path("old"), temporary_name(b"f", upload.upload_id)), "w"):
                    trio.from_thread.run_sync(torn.set)
                raise Busy("torn")

            await names.mkdir(ground.key("old"), mode=0o755, uid=0, gid=0)
            write = names.tree.origin.write
            names.tree.origin.write = tear  # type: ignore[method-assign, assignment]
            await dirty(ground, names, "old/f")
            await torn.wait()
            names.tree.origin.write = write  # type: ignore[method-assign]
            await names.rename(ground.key("old"), ground.key("new"))
            await names.unlink(ground.key("new/f"))
            await names.rmdir(ground.key("new"))
            await drained(engine)
            assert os.listdir(ground.path("")) == []

    run(scenario)


Change = Callable[[Ground, Namespace], Awaitable[object]]


async def dirty(ground: Ground, names: Namespace, *files: str) -> None:
    for name in files:
        await write_file(names, ground.key(name), f"new {name}".encode())


async def publish(ground: Ground, names: Namespace) -> None:
    staged, path, _ = await names.stage(ground.key("b"), exclusive=False, keep=False)
    await trio.Path(path).write_bytes(b"published")
    await names.publish(staged)


CHANGES: dict[str, tuple[list[str], Change, dict[str, bytes | None]]] = {
    "rename": (["a"], lambda g, n: n.rename(g.key("a"), g.key("c")), {"a": None, "c": b"new a"}),
    "rename over dirty": (["a", "b"], lambda g, n: n.rename(g.key("a"), g.key("b")), {"a": None, "b": b"new a"}),
    "clean over dirty": (["b"], lambda g, n: n.rename(g.key("a"), g.key("b")), {"a": None, "b": b"a"}),
    "directory": (
        ["d/f"],
        lambda g, n: n.rename(g.key("d"), g.key("e")),
        {"d/f": None, "e/f": b"new d/f", "d/g": None, "e/g": b"d/g"},
    ),
    "unlink": (["a"], lambda g, n: n.unlink(g.key("a")), {"a": None}),
    "copy": (["a", "b"], lambda g, n: n.copy(g.key("a"), g.key("b")), {"b": b"new a"}),
    "publish": (["b"], publish, {"b": b"published"}),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5])
def test_a_journal_that_fails_leaves_journal_catalog_and_origin_at_one(
    ground: Ground, change: str, failing: int
) -> None:
    """C23, for the journal's disk: it is full at the n-th commit."""
    files = {name: name.encode() for name in ("a", "b", "d/f", "d/g")}
    for name, data in files.items():
        ground.put(name, data)
    written, act, outcome = CHANGES[change]
    before: dict[str, bytes | None] = {**files, **{name: f"new {name}".encode() for name in written}}
    names_in_play = sorted({*before, *outcome})
    after = {name: outcome.get(name, before.get(name)) for name in names_in_play}
    before = {name: before.get(name) for name in names_in_play}
    happened: list[dict[str, bytes | None]] = []

    async def see(names: Namespace) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        for name in names_in_play:
            try:
                found[name] = await read_file(names, ground.key(name))
            except Absent:
                found[name] = None
        return found

    async def fail() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await dirty(ground, names, *written)
            await engine.journal.flush()
            commits = 0
            commit = engine.journal._commit

            def full(*arguments: Any, **options: Any) -> None:
                nonlocal commits
                commits += 1
                if commits == failing:
                    raise NoSpace("the disk of the journal is full")
                commit(*arguments, **options)

            engine.journal._commit = full  # type: ignore[method-assign]
            try:
                await act(ground, names)
                refused = False
            except NoSpace:
                refused = True
            engine.journal._commit = commit  # type: ignore[method-assign]
            seen = await see(names)
            assert seen in ([before, after] if refused else [after])
            await drained(engine)
            assert await see(names) == seen
            assert {n: ground.get(n) for n in ground.names()} == {
                n: data for n, data in seen.items() if data is not None
            }
            happened.append(seen)

    async def look() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await drained(engine)
            assert [await see(names)] == happened

    run(fail)
    run(look)


def test_a_close_whose_seal_fails_keeps_no_descriptor(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file stays staged; the next close, or the next start, seals it."""
    ground.put("there", b"1")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            _, handle = await names.create(ground.key("a"), mode=0o644, uid=0, gid=0)
            await handle.write(0, b"bytes")
            live = names.tree.live.get(handle.inode)
            assert live is not None

            async def fail(*arguments: Any, **options: Any) -> None:
                raise NoSpace("the journal's disk is full")

            with monkeypatch.context() as patched:
                patched.setattr(names.writes.closes, "seal", fail)
                with pytest.raises(NoSpace):
                    await handle.close()
            staged = live.staged
            assert staged is not None
            assert staged.id in engine.staging._resting
            await engine.seal_flushed()
            await drained(engine)
            assert ground.get("a") == b"bytes"

    run(scenario)
