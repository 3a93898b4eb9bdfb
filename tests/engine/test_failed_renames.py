"""C19: a directory of a store that cannot be moved whole is not moved at all, or all of it is."""

from __future__ import annotations

import pytest

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import interpose
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Busy, Denied
from tiercache.model import Key, Kind, ObjectStat

FILES = {f"d/{name}": name.encode() for name in ("a", "b", "sub/c", "sub/d", "e")}


@pytest.fixture
def ground(s3_ground: Ground) -> Ground:
    for name, data in FILES.items():
        s3_ground.put(name, data)
    return s3_ground


async def files(names: Namespace, ground: Ground) -> dict[str, bytes]:
    found = await names.walk(ground.root)
    start = len(ground.root) + 1
    return {k[start:].decode(): await read_file(names, k) for k, e in found if e.kind is Kind.FILE}


def moved() -> dict[str, bytes]:
    return {name.replace("d/", "m/", 1): data for name, data in FILES.items()}


@pytest.mark.parametrize("step", ["copy", "delete"])
@pytest.mark.parametrize("dirty", [False, True])
def test_a_move_that_is_refused_changes_nothing_and_can_be_repeated(ground: Ground, step: str, dirty: bool) -> None:
    async def scenario() -> None:
        async with ground.engine(staging={"upload_delay_s": 600}) as (engine, names):
            written = {"d/new": b"new"} if dirty else {}
            for name, data in written.items():
                await write_file(names, ground.key(name), data)
            origin = interpose(names)
            origin.fail(step, *[Denied("no")] * (1 if step == "copy" else len(FILES)))
            with pytest.raises(Denied):
                await names.rename(ground.key("d"), ground.key("m"))
            origin.clear(step)
            assert ground.names() == sorted(FILES)
            assert await files(names, ground) == FILES | written
            with pytest.raises(Absent):
                await names.lookup(ground.key("m"))
            await names.rename(ground.key("d"), ground.key("m"))
            assert (await engine.drain(30)).left == []
            everything = moved() | {name.replace("d/", "m/", 1): data for name, data in written.items()}
            assert ground.names() == sorted(everything)
            assert await files(names, ground) == everything

    run(scenario)


def test_a_copy_that_landed_although_it_failed_is_not_in_the_way_of_the_next_try(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with ground.engine() as (_, names):
            copy = names.tree.origin.copy

            def failing(source: Key, target: Key, etag: str = "") -> ObjectStat:
                copy(source, target, etag)
                raise Busy("the answer got lost")

            with monkeypatch.context() as patched:
                patched.setattr(names.tree.origin, "copy", failing, raising=False)
                with pytest.raises(Busy):
                    await names.rename(ground.key("d"), ground.key("m"))
            assert ground.names() == sorted(FILES)
            await names.rename(ground.key("d"), ground.key("m"))
            assert await files(names, ground) == moved()

    run(scenario)


def test_a_deletion_that_worked_although_it_failed_loses_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            delete = names.tree.origin.delete

            def failing(key: Key, etag: str = "") -> None:
                delete(key, etag)
                raise Busy("the answer got lost")

            with monkeypatch.context() as patched:
                patched.setattr(names.tree.origin, "delete", failing, raising=False)
                await names.rename(ground.key("d"), ground.key("m"))
            assert (await engine.drain(30)).left == []
            assert ground.names() == sorted(moved())
            assert await files(names, ground) == moved()

    run(scenario)


def test_what_cannot_be_deleted_at_once_is_absent_and_deleted_later(ground: Ground) -> None:
    async def scenario() -> None:
        profiles = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}
        async with ground.engine(profiles=profiles) as (engine, names):
            interpose(names).fail("delete", Busy("503"), Busy("503"))
            await names.rename(ground.key("d"), ground.key("m"))
            assert await files(names, ground) == moved()
            assert (await engine.drain(30)).left == []
            assert ground.names() == sorted(moved())

    run(scenario)


def test_what_somebody_wrote_meanwhile_under_an_old_name_stays(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        profiles = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}
        async with ground.engine(profiles=profiles) as (_, names):
            remove = names.tree.origin.delete

            def delete(key: Key, etag: str = "") -> None:
                if key == ground.key("d/a"):
                    ground.put("d/a", b"somebody's")
                remove(key, etag)

            monkeypatch.setattr(names.tree.origin, "delete", delete, raising=False)
            await names.rename(ground.key("d"), ground.key("m"))
            assert ground.get("d/a") == b"somebody's"
            assert await files(names, ground) == moved() | {"d/a": b"somebody's"}

    run(scenario)
