"""C19: a crash in the move or removal of a directory, which nobody asks for again, leaves neither half told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from rig.engine_ground import Ground, read_file, run, write_file
from rig.killed_at import killed_at
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Denied
from tiercache.model import Kind
from tiercache.origins.s3.origin import S3Origin

CLEAN = {"d/a": b"first", "d/sub/b": b"second", "d/model.index.json": b"manifest"}
DIRTY = {"d/new": b"new", "d/a": b"first, changed"}
BEFORE = CLEAN | DIRTY
BESIDE = {"e/keep": b"beside"}
AFTER = {name.replace("d/", "m/", 1): data for name, data in BEFORE.items()}
LATER = {"upload_delay_s": 60}
NO_TTL = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}
SLOW = {"retry_base_s": 60, "retry_cap_s": 60}
STEPS_MAX = 40


@pytest.fixture
def ground(s3_ground: Ground) -> Ground:
    return s3_ground


async def files(names: Namespace, ground: Ground) -> dict[str, bytes]:
    """As this engine sees them: by walking, and again by looking at each directory."""
    start = len(ground.root) + 1
    walked = {k[start:].decode() for k, e in await names.walk(ground.root) if e.kind is Kind.FILE}
    assert {name async for name in _below(names, ground, "")} == walked
    return {name: await read_file(names, ground.key(name)) for name in walked}


async def _below(names: Namespace, ground: Ground, directory: str):  # type: ignore[no-untyped-def]
    top = ground.key(directory.rstrip("/")) if directory else ground.root
    for name, entry in await names.list(top):
        if entry.kind is Kind.DIRECTORY:
            async for found in _below(names, ground, f"{directory}{name.decode()}/"):
                yield found
        else:
            yield directory + name.decode()


def at_origin(ground: Ground) -> dict[str, bytes]:
    return {name: ground.get(name) for name in ground.names()}


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})
    assert not engine.journal.retractions()
    assert not engine.journal.intents()
    assert not engine.status()["changes"]


def written(ground: Ground) -> Callable[[Namespace], Awaitable[None]]:
    async def write(names: Namespace) -> None:
        for name, data in DIRTY.items():
            await write_file(names, ground.key(name), data)
        await names.list(ground.key("d"))

    return write


def move(ground: Ground) -> Callable[[Namespace], Awaitable[None]]:
    return lambda names: names.rename(ground.key("d"), ground.key("m"), keep_directory=False)


def removal(ground: Ground) -> Callable[[Namespace], Awaitable[None]]:
    return lambda names: names.remove_tree(ground.key("d"))


async def every_stop(ground: Ground, work: Callable[[Namespace], Awaitable[None]], after: dict[str, bytes]) -> int:
    """How many engines were killed until one came to the end of ``work``."""
    for steps in range(1, STEPS_MAX):
        for name in ground.names():
            ground.direct.delete(ground.key(name))
        for name, data in (CLEAN | BESIDE).items():
            ground.put(name, data)
        left, killed = await killed_at(ground, steps, work, prepare=written(ground), staging=LATER)
        async with left.engine(staging=LATER) as (engine, names):
            seen = await files(names, ground)
            assert seen in (BEFORE | BESIDE, after | BESIDE), f"killed at {steps}"
            await drained(engine)
            assert at_origin(ground) == seen, f"killed at {steps}"
            assert await files(names, ground) == seen
        if not killed:
            assert seen == after | BESIDE
            return steps - 1
    raise AssertionError("it never came to its end")


def test_a_move_that_is_killed_at_any_request_has_happened_or_has_not(ground: Ground) -> None:
    async def scenario() -> None:
        assert await every_stop(ground, move(ground), AFTER) > len(CLEAN) + len(CLEAN)

    run(scenario, limit_s=240)


@pytest.mark.parametrize("kind", ["posix", "s3"])
def test_a_removal_that_is_killed_at_any_request_has_happened_or_has_not(
    kind: str, request: pytest.FixtureRequest
) -> None:
    ground: Ground = request.getfixturevalue(f"{kind}_ground")

    async def scenario() -> None:
        assert await every_stop(ground, removal(ground), {}) > len(CLEAN)

    run(scenario, limit_s=240)


def refused(self: S3Origin, key: bytes, etag: str = "") -> None:
    raise Denied("not now")


async def found_refused(left: Ground, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, bytes], change: str) -> None:
    """The next engine, to which the origin denies every deletion, shows ``wanted`` all the same, and tells of it."""

    with monkeypatch.context() as patched:
        patched.setattr(S3Origin, "delete", refused)
        async with left.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await engine.drain(30)
            assert await files(names, left) == wanted
            (told,) = engine.status()["changes"]
            assert (told["change"], told["state"], told["last_error"]) == (change, "failed", "not now")
            assert told["left"] >= told["failed"] > 0


@pytest.mark.parametrize(
    ("what", "steps", "change", "happened"),
    [("move", 2, "return", False), ("move", 4, "move", True), ("removal", 2, "removal", True)],
)
def test_what_cannot_be_ended_yet_looks_ended_is_told_and_ends_when_the_origin_lets_us(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, what: str, steps: int, change: str, happened: bool
) -> None:
    for name, data in (CLEAN | BESIDE).items():
        ground.put(name, data)
    work = move(ground) if what == "move" else removal(ground)
    wanted = ((AFTER if what == "move" else {}) if happened else BEFORE) | BESIDE

    async def scenario() -> None:
        left, killed = await killed_at(ground, steps, work, prepare=written(ground), staging=LATER)
        assert killed
        await found_refused(left, monkeypatch, wanted, change)
        assert at_origin(ground) != wanted
        async with left.engine(staging=LATER) as (engine, names):
            await drained(engine)
            assert at_origin(ground) == await files(names, ground) == wanted

    run(scenario)


async def half_moved(ground: Ground, steps: int) -> Ground:
    for name, data in (CLEAN | BESIDE).items():
        ground.put(name, data)
    left, killed = await killed_at(ground, steps, move(ground))
    assert killed
    return left


COPIED, DELETED = len(CLEAN), len(CLEAN) + 2
"""Killed when all was copied but the manifest, and after the first deletion."""


def clean(directory: str) -> dict[str, bytes]:
    return {name.replace("d/", f"{directory}/", 1): data for name, data in CLEAN.items()}


def others_remove(ground: Ground, directory: str) -> None:
    for name in clean(directory):
        with suppress(Absent):
            ground.direct.delete(ground.key(name))
    for name in (f"{directory}/sub", directory):  # SeaweedFS would go on listing them
        with suppress(Absent):
            ground.direct.remove_directory(ground.key(name))


async def ended(left: Ground) -> dict[str, bytes]:
    async with left.engine(profiles=NO_TTL) as (engine, names):
        await drained(engine)
        assert await files(names, left) == at_origin(left)
    return at_origin(left)


def test_a_copy_stays_when_others_have_removed_its_original_since(ground: Ground) -> None:
    """Somebody saw both directories, and kept the new one."""

    async def scenario() -> None:
        left = await half_moved(ground, COPIED)
        others_remove(ground, "d")
        copied = {name: data for name, data in clean("m").items() if "index" not in name}
        assert await ended(left) == copied | BESIDE

    run(scenario)


def test_what_others_wrote_among_the_copies_since_stays(ground: Ground) -> None:
    async def scenario() -> None:
        left = await half_moved(ground, COPIED)
        ground.put("m/a", b"other")  # as long as the copy
        ground.put("m/z", b"new")
        assert await ended(left) == CLEAN | BESIDE | {"m/a": b"other", "m/z": b"new"}

    run(scenario)


def test_an_old_directory_that_others_made_anew_stays(ground: Ground) -> None:
    async def scenario() -> None:
        left = await half_moved(ground, DELETED)
        ground.put("d/a", b"theirs")
        assert await ended(left) == clean("m") | BESIDE | {"d/a": b"theirs"}

    run(scenario)


def test_a_new_directory_that_others_removed_since_does_not_come_back_under_the_old_name(ground: Ground) -> None:
    async def scenario() -> None:
        left = await half_moved(ground, DELETED)
        others_remove(ground, "m")
        assert await ended(left) == BESIDE

    run(scenario)


@pytest.mark.parametrize("steps", [COPIED, DELETED])
def test_both_names_can_be_used_at_once_in_the_next_engine(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Whatever is left there is no reason to refuse it, and takes nothing of it away."""
    taken, free = ("m", "d") if steps == DELETED else ("d", "m")

    async def scenario() -> None:
        left = await half_moved(ground, steps)
        async with left.engine(profiles=NO_TTL, upload=SLOW) as (engine, names):
            with monkeypatch.context() as patched:
                patched.setattr(S3Origin, "delete", refused)
                await engine.drain(30)
                await names.mkdir(ground.key(free), mode=0o755, uid=0, gid=0)
                assert await names.list(ground.key(free)) == []
                await write_file(names, ground.key(f"{free}/a"), CLEAN["d/a"])
                await names.copy(ground.key("e/keep"), ground.key(f"{free}/model.index.json"))
                await names.mkdir(ground.key(f"{free}/sub"), mode=0o755, uid=0, gid=0)
                await names.copy(ground.key(f"{taken}/sub/b"), ground.key(f"{free}/sub/b"))
            await drained(engine)
            wanted = (
                clean(taken)
                | {f"{free}/a": CLEAN["d/a"], f"{free}/sub/b": CLEAN["d/sub/b"], f"{free}/model.index.json": b"beside"}
                | BESIDE
            )
            assert await files(names, ground) == at_origin(ground) == wanted
            assert (await names.lookup(ground.key(f"{free}/sub"))).kind is Kind.DIRECTORY

    run(scenario)


def test_a_manifest_is_copied_last_and_deleted_first(ground: Ground) -> None:
    """Whoever finds it at the origin finds what it tells of."""
    ground.put("d/sub/.metadata", b"")
    for name, data in CLEAN.items():
        ground.put(name, data)
    calls: list[tuple[str, str]] = []

    async def scenario() -> None:
        async with ground.engine() as (_, names):
            origin = names.tree.origin
            for method in ("copy", "delete"):
                listen(origin, method)
            await names.rename(ground.key("d"), ground.key("m"), keep_directory=False)
            await names.remove_tree(ground.key("m"))

    def listen(origin: Any, method: str) -> None:
        call = getattr(origin, method)

        def heard(key: bytes, *arguments: Any) -> Any:
            done = call(key, *arguments)
            calls.append((method, key[len(ground.root) + 1 :].decode()))
            return done

        setattr(origin, method, heard)

    run(scenario)
    announcing = [name.endswith((".index.json", ".metadata")) for _, name in calls]
    assert announcing == [False, False, True, True] + 2 * [True, True, False, False]
    assert [method for method, _ in calls] == ["copy"] * 4 + ["delete"] * 8


def test_a_removal_that_fails_in_the_middle_is_told_and_leaves_what_it_did_not_come_to(ground: Ground) -> None:
    for name, data in CLEAN.items():
        ground.put(name, data)

    async def scenario() -> None:
        async with ground.engine(staging=LATER) as (engine, names):
            await names.list(ground.key("d"))
            await written(ground)(names)
            remove = names.tree.origin.delete

            def delete(key: bytes, etag: str = "") -> None:
                if key == ground.key("d/sub/b"):
                    raise Denied("no")
                remove(key, etag)

            names.tree.origin.delete = delete  # type: ignore[method-assign]
            with pytest.raises(Denied):
                await names.remove_tree(ground.key("d"))
            seen = await files(names, ground)
            assert seen == at_origin(ground)
            assert seen["d/sub/b"] == CLEAN["d/sub/b"]
            assert "d/model.index.json" not in seen
            assert engine.status()["changes"] == []
            names.tree.origin.delete = remove  # type: ignore[method-assign]
            await names.remove_tree(ground.key("d"))
            assert ground.names() == []
            await drained(engine)

    run(scenario)
