"""Names: listings, renames, removal, and that the catalog is current after every change."""

from __future__ import annotations

import shutil

import pytest
import trio

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import Stop, interpose
from tiercache.engine.misses import ASKED_MAX
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, InvalidArgument, NoSpace, NotEmpty
from tiercache.model import Capability, Key, Kind, ObjectStat


async def listed(names: Namespace, key: Key) -> list[str]:
    return sorted(name.decode() for name, _ in await names.list(key))


def test_a_listing_is_current_after_each_change(ground: Ground) -> None:
    """C20: with a TTL that never ends, so that only our own bookkeeping keeps it current."""
    ground.put("a", b"1")
    ground.put("d/b", b"2")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}) as (_, names):
            assert await listed(names, ground.root) == ["a", "d"]
            await write_file(names, ground.key("c"), b"3")
            assert await listed(names, ground.root) == ["a", "c", "d"]
            await names.rename(ground.key("c"), ground.key("d/e"))
            assert await listed(names, ground.root) == ["a", "d"]
            assert await listed(names, ground.key("d")) == ["b", "e"]
            await names.unlink(ground.key("a"))
            assert await listed(names, ground.root) == ["d"]
            with pytest.raises(Absent):
                await names.lookup(ground.key("a"))
            await names.mkdir(ground.key("new"), mode=0o755, uid=0, gid=0)
            assert await listed(names, ground.root) == ["d", "new"]
            await names.rename(ground.key("d"), ground.key("new/d"))
            assert await listed(names, ground.root) == ["new"]
            assert await listed(names, ground.key("new/d")) == ["b", "e"]
            with pytest.raises(NotEmpty):
                await names.rmdir(ground.key("new"))
            await names.unlink(ground.key("new/d/b"))
            await names.unlink(ground.key("new/d/e"))
            await names.rmdir(ground.key("new/d"))
            await names.rmdir(ground.key("new"))
            assert await listed(names, ground.root) == []

    run(scenario)


def test_an_emptied_directory_stands(ground: Ground) -> None:
    ground.put("d/only", b"1")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": 0, "negative_ttl_s": 0}}) as (_, names):
            await names.unlink(ground.key("d/only"))
            assert (await names.lookup(ground.key("d"))).kind is Kind.DIRECTORY
            assert await listed(names, ground.root) == ["d"]
            await write_file(names, ground.key("d/again"), b"2")
            assert await listed(names, ground.key("d")) == ["again"]

    run(scenario)


@pytest.mark.parametrize(
    "how", ["unlink", "unlink dirty", "rename", "rename dirty", "rmdir", "move", "move an emptied one"]
)
def test_an_empty_directory_outlives_the_engine(ground: Ground, how: str) -> None:
    profiles = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}
    ground.put("other/f", b"1")
    if how not in ("rmdir", "move"):
        ground.put("d/only", b"1")

    async def empty() -> None:
        async with ground.engine(profiles=profiles, staging={"upload_delay_s": 60}) as (engine, names):
            if "dirty" in how:
                await write_file(names, ground.key("d/only"), b"new")
            match how.split()[0]:
                case "unlink":
                    await names.unlink(ground.key("d/only"))
                case "rename":
                    await names.rename(ground.key("d/only"), ground.key("other/only"))
                case "rmdir":
                    for name in ("d", "d/s"):
                        await names.mkdir(ground.key(name), mode=0o700, uid=0, gid=0)
                    await names.rmdir(ground.key("d/s"))
                case "move":
                    if how == "move":
                        await names.mkdir(ground.key("old"), mode=0o700, uid=0, gid=0)
                    else:
                        await names.rename(ground.key("d"), ground.key("old"))
                        await names.unlink(ground.key("old/only"))
                    await names.rename(ground.key("old"), ground.key("d"))
            assert (await engine.drain(30)).left == []

    async def look() -> None:
        async with ground.engine(profiles=profiles) as (_, names):
            entry = await names.lookup(ground.key("d"))
            assert entry.kind is Kind.DIRECTORY
            if how in ("rmdir", "move") and names.tree.can(Capability.RENAME):
                assert entry.mode == 0o700  # the test's store keeps no attributes of markers
            assert await listed(names, ground.key("d")) == []
            assert await listed(names, ground.root) == ["d", "other"]
            await names.rmdir(ground.key("d"))
            assert await listed(names, ground.root) == ["other"]

    run(empty)
    shutil.rmtree(ground.cache_dir / "catalog")
    run(look)


def test_a_file_that_is_removed_for_want_of_room_needs_none(s3_ground: Ground) -> None:
    """The store that takes no marker takes the deletion: the directory lasts as long as the engine."""
    ground = s3_ground
    ground.put("d/only", b"1")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": 0, "negative_ttl_s": 0}}) as (_, names):
            interpose(names).fail("make_directory", NoSpace("quota"))
            await names.unlink(ground.key("d/only"))
            assert ground.names() == []
            assert await listed(names, ground.root) == ["d"]

    run(scenario)


def test_a_mounted_prefix_without_objects_is_for_its_mount_alone(s3_ground: Ground) -> None:
    """With names that are believed for ever, so that only our own bookkeeping hides it."""
    ground = s3_ground
    ground.put("a", b"1")
    root = ground.key("no/such")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf", "negative_ttl_s": 5}}) as (_, names):
            assert await listed(names, ground.root) == ["a"]
            mounted = await names.root(root)
            for _ in range(2):
                assert await listed(names, ground.root) == ["a"]
                assert await listed(names, root) == []
                assert (await names.getattr(mounted.inode)).kind is Kind.DIRECTORY
                assert [key for key, _ in await names.walk(ground.root)] == [ground.key("a")]
            names.tree.hide(root)
            assert await listed(names, ground.root) == ["a"]
            with pytest.raises(Absent):
                await names.lookup(root)
            await names.root(root)
            await write_file(names, ground.key("no/such/new"), b"2")
            assert await listed(names, ground.root) == ["a", "no"]
            assert await listed(names, ground.key("no")) == ["such"]

    run(scenario)


@pytest.mark.parametrize("others", [["a"], []], ids=["among others", "alone"])
def test_a_listing_that_an_upload_overtakes_has_the_directory(
    s3_ground: Ground, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    """It was only here when the origin was asked, and only there when the answer came."""
    ground = s3_ground
    for name in others:
        ground.put(f"d/{name}", b"1")
    stop = Stop(afterwards=True)
    stops, seen = [stop], list[str]()

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}) as (engine, names):
            ask = names.tree.origin.list

            def listing(directory: Key) -> list[ObjectStat]:
                try:
                    return list(ask(directory))
                finally:
                    if stops:
                        stops.pop().wait()

            await names.root(ground.key("d/e"))
            upload = interpose(names).stop("write")
            await write_file(names, ground.key("d/e/f"), b"2")
            await upload.reached()
            names.tree.catalog.forget_listing(names.origin_id, ground.key("d"))
            monkeypatch.setattr(names.tree.origin, "list", listing, raising=False)
            async with trio.open_nursery() as nursery:

                async def look() -> None:
                    seen.extend(await listed(names, ground.key("d")))

                nursery.start_soon(look)
                await stop.reached()
                upload.open()
                assert (await engine.drain(30)).left == []
                stop.open()
            assert seen == [*others, "e"]

    run(scenario)


def test_a_prefix_that_was_mounted_empty_is_seen_as_soon_as_something_is_in_it(
    s3_ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the origin is asked for it before that and answers after the upload, and for who was told of none."""
    ground = s3_ground
    ground.put("d/a", b"1")
    root = ground.key("d/e")
    stop = Stop(afterwards=True)
    stops, told = [stop], list[Key]()

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}) as (engine, names):
            ask = names.tree.origin.stat

            def stat(key: Key) -> ObjectStat:
                try:
                    return ask(key)
                finally:
                    if key == root and stops:
                        stops.pop().wait()

            await names.root(root)
            assert await listed(names, ground.key("d")) == ["a"]
            names.doubt(root)
            monkeypatch.setattr(names.tree.origin, "stat", stat, raising=False)
            names.tree.listeners.append(lambda key, _: told.append(key))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(names.lookup, root)
                await stop.reached()
                await write_file(names, root + b"/f", b"2")
                assert root in told
                assert (await engine.drain(30)).left == []
                stop.open()
            assert await listed(names, ground.key("d")) == ["a", "e"]

    run(scenario)


def test_a_lookup_that_an_upload_overtakes_finds_the_directory(
    s3_ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin had looked before the upload brought the directory, and what is staged was looked at after it."""
    ground = s3_ground
    directory = ground.key("d/e")
    stop = Stop(afterwards=True)
    stops, seen = [stop], list[Kind]()

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}) as (engine, names):
            ask = names.tree.origin.stat

            def stat(key: Key) -> ObjectStat:
                try:
                    return ask(key)
                finally:
                    if key == directory and stops:
                        stops.pop().wait()

            await names.root(directory)
            upload = interpose(names).stop("write")
            await write_file(names, directory + b"/f", b"2")
            await upload.reached()
            names.tree.hide(directory)  # the mount that it was made in is gone
            names.doubt(directory)
            monkeypatch.setattr(names.tree.origin, "stat", stat, raising=False)
            async with trio.open_nursery() as nursery:

                async def look() -> None:
                    seen.append((await names.lookup(directory)).kind)

                nursery.start_soon(look)
                await stop.reached()
                upload.open()
                assert (await engine.drain(30)).left == []
                stop.open()
            assert seen == [Kind.DIRECTORY]
            assert await listed(names, ground.key("d")) == ["e"]

    run(scenario)


def test_a_directory_with_only_staged_files_exists(ground: Ground) -> None:
    async def scenario() -> None:
        profiles = {"general": {"ttl_s": 0, "negative_ttl_s": 0, "upload": False}}
        async with ground.engine(profiles=profiles) as (_, names):
            await names.root(ground.root)
            await names.mkdir(ground.key("x"), mode=0o755, uid=0, gid=0)
            await names.mkdir(ground.key("x/y"), mode=0o755, uid=0, gid=0)
            await write_file(names, ground.key("x/y/f"), b"1")
            assert await listed(names, ground.key("x")) == ["y"]
            assert await listed(names, ground.key("x/y")) == ["f"]
            assert [key for key, _ in await names.walk(ground.root) if key.endswith(b"/f")] == [ground.key("x/y/f")]

    run(scenario)


def test_changes_of_others_are_seen_after_the_ttl(ground: Ground) -> None:
    """C04, with a TTL of nothing."""
    ground.put("k", b"twelve bytes")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": 0, "negative_ttl_s": 0}}) as (_, names):
            inode = (await names.lookup(ground.key("k"))).inode
            for data in (b"fourteen bytes", b"3 b", b"twelve BYTES"):
                ground.put("k", data)
                assert await read_file(names, ground.key("k")) == data
                assert (await names.lookup(ground.key("k"))).size_bytes == len(data)
                changed = (await names.lookup(ground.key("k"))).inode
                assert changed != inode  # the kernel has one size for each inode
                inode = changed
            ground.direct.delete(ground.key("k"))
            with pytest.raises(Absent):
                await names.lookup(ground.key("k"))

    run(scenario)


@pytest.mark.parametrize("target_exists", [False, True])
def test_a_temporary_file_that_is_renamed_while_open_keeps_all_its_bytes(ground: Ground, target_exists: bool) -> None:
    """C01."""
    if target_exists:
        ground.put("t", b"old")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            _, handle = await names.create(ground.key("t.tmp"), mode=0o644, uid=0, gid=0)
            await handle.write(0, b"A" * 1000)
            await handle.fsync()
            await names.rename(ground.key("t.tmp"), ground.key("t"))
            await handle.write(1000, b"B" * 1000)
            await handle.flush()
            await handle.close()
            assert (await engine.drain(30)).left == []
            assert await read_file(names, ground.key("t")) == b"A" * 1000 + b"B" * 1000
            assert ground.get("t") == b"A" * 1000 + b"B" * 1000
            assert ground.names() == ["t"]

    run(scenario)


def test_a_dirty_tree_that_is_renamed_and_removed_leaves_nothing(ground: Ground) -> None:
    """C03."""

    async def scenario() -> None:
        async with ground.engine(staging={"capacity": "256MiB", "upload_delay_s": 3600}) as (engine, names):
            await names.root(ground.root)
            await names.mkdir(ground.key("old"), mode=0o755, uid=0, gid=0)
            await write_file(names, ground.key("old/f"), b"1")
            await names.rename(ground.key("old"), ground.key("new"))
            assert await read_file(names, ground.key("new/f")) == b"1"
            await names.remove_tree(ground.key("new"))
            assert (await engine.drain(30)).left == []
            assert ground.names() == []

    run(scenario)


def test_a_renamed_directory_takes_clean_and_dirty_files_along(ground: Ground) -> None:
    for number in range(25):
        ground.put(f"d/f{number:02}", b"%d" % number)
    ground.put("d/sub/deep", b"deep")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await read_file(names, ground.key("d/f07"))
            await write_file(names, ground.key("d/dirty"), b"new")
            await write_file(names, ground.key("d/f03"), b"changed")
            await names.rename(ground.key("d"), ground.key("e"))
            wanted = {f"f{number:02}": b"%d" % number for number in range(25)} | {"f03": b"changed", "dirty": b"new"}
            assert await listed(names, ground.key("e")) == sorted([*wanted, "sub"])
            for name, data in wanted.items():
                assert await read_file(names, ground.key(f"e/{name}")) == data
            assert (await engine.drain(30)).left == []
            assert ground.names() == sorted([*(f"e/{name}" for name in wanted), "e/sub/deep"])
            assert ground.get("e/f03") == b"changed"

    run(scenario)


def test_a_directory_cannot_be_moved_into_itself(ground: Ground) -> None:
    ground.put("d/f", b"1")

    async def scenario() -> None:
        async with ground.engine() as (_, names):
            with pytest.raises(InvalidArgument):
                await names.rename(ground.key("d"), ground.key("d/e"))
            assert await listed(names, ground.key("d")) == ["f"]

    run(scenario)


def test_the_cached_bytes_follow_a_rename(ground: Ground) -> None:
    ground.put("a", b"x" * 1000)
    ground.put("d/b", b"y" * 1000)

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await read_file(names, ground.key("a"))
            await read_file(names, ground.key("d/b"))
            before = engine.metrics.snapshot()["misses_total"]
            await names.rename(ground.key("a"), ground.key("c"))
            await names.rename(ground.key("d"), ground.key("e"))
            assert await read_file(names, ground.key("c")) == b"x" * 1000
            assert await read_file(names, ground.key("e/b")) == b"y" * 1000
            assert engine.metrics.snapshot()["misses_total"] == before

    run(scenario)


def test_many_new_names_in_a_directory_cost_one_listing(ground: Ground) -> None:
    ground.put("d/there", b"1")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": 60, "negative_ttl_s": 5}}) as (engine, names):

            def requests() -> float:
                figures = engine.metrics.snapshot()["origin_requests_total"]
                assert isinstance(figures, dict)
                return sum(number for what, number in figures.items() if what.split("/")[0] in ("stat", "list"))

            await names.lookup(ground.key("d"))
            before = requests()
            for number in range(50):
                with pytest.raises(Absent):
                    await names.lookup(ground.key(f"d/new{number}"))
            assert 0 < requests() - before <= 2 * ASKED_MAX
            assert (await names.lookup(ground.key("d/there"))).size_bytes == 1
            await names.mkdir(ground.key("made"), mode=0o755, uid=0, gid=0)
            before = requests()
            for number in range(50):
                with pytest.raises(Absent):
                    await names.lookup(ground.key(f"made/new{number}"))
            assert requests() == before  # nobody but us has been there

    run(scenario)


def test_what_lies_beside_the_root_of_a_mount_is_not_listed(ground: Ground) -> None:
    """It may be the mount: an engine that asks itself, and is killed before it answers, never ends."""

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": 60, "negative_ttl_s": 5}}) as (engine, names):
            await names.root(ground.root)

            def listings() -> float:
                figures = engine.metrics.snapshot()["origin_requests_total"]
                assert isinstance(figures, dict)
                return sum(number for what, number in figures.items() if what.split("/")[0] == "list")

            before = listings()
            for _ in range(50):
                names.doubt(ground.root)
                await names.lookup(ground.root)
            assert listings() == before

    run(scenario)


def test_a_directory_keeps_its_mode_and_owner_also_where_the_store_forgets_them(ground: Ground) -> None:
    """SeaweedFS takes the metadata of a directory's marker and does not keep it; others make markers without any."""

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": 0, "negative_ttl_s": 0}}) as (_, names):
            await names.root(ground.root)
            made = await names.mkdir(ground.key("dir"), mode=0o1777, uid=7, gid=8)
            for _ in range(2):
                found = await names.lookup(ground.key("dir"))
                assert (found.mode, found.uid, found.gid) == (0o1777, 7, 8)
                await names.list(ground.root)
            await names.setattr(made.inode, mode=0o750, uid=9)
            found = await names.lookup(ground.key("dir"))
            assert (found.mode, found.uid, found.gid) == (0o750, 9, 8)

    run(scenario)
