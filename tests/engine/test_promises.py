"""What fsync and close promise of a file: which of its attribute, the rules, and its mount's profile tells it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rig.engine_ground import Ground, make_ground, run, write_file
from tiercache.config import RuleConfig
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.engine.promises import ACK, Promise, Promises, level_of
from tiercache.errors import InvalidArgument, Unsupported
from tiercache.model import Durability
from tiercache.staging.disk import Disk

MEMORY, LOCAL, ORIGIN = Durability.MEMORY, Durability.LOCAL, Durability.ORIGIN
LATER = {"staging": {"upload_delay_s": "1h", "capacity": "256MiB"}}


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return make_ground("posix", request, tmp_path)


@pytest.mark.parametrize(
    ("path", "matches", "others"),
    [
        ("*.pt", ["a.pt", "runs/1/a.pt", ".pt"], ["a.pth", "a.pt/b"]),
        ("checkpoint-*/", ["checkpoint-7/a", "x/checkpoint-/b/c"], ["checkpoint-7", "a-checkpoint-7/a"]),
        ("checkpoint-*/model.pt", ["checkpoint-7/model.pt", "x/checkpoint-8/model.pt"], ["checkpoint-7/x/model.pt"]),
        ("/runs/**", ["runs/a", "runs/a/b"], ["runs", "x/runs/a"]),
        ("/runs/**/last.pt", ["runs/last.pt", "runs/a/b/last.pt"], ["last.pt"]),
        ("/a?c", ["abc", "a.c"], ["ac", "a/c", "x/abc"]),
        ("/", ["a", "a/b"], []),
        ("**", ["a", "a/b"], []),
        ("/größe/*", ["größe/x"], ["große/x"]),
        ("a+(b)[c]", ["a+(b)[c]", "x/a+(b)[c]"], ["aab"]),
    ],
)
def test_a_rule_says_which_files_it_means(path: str, matches: list[str], others: list[str]) -> None:
    promises = Promises("local", False, [RuleConfig(path=path, ack="origin")])
    told = {name: promises.of(os.fsencode(name), ()).fsync for name in matches + others}
    assert told == dict.fromkeys(matches, ORIGIN) | dict.fromkeys(others, LOCAL)


def test_the_nearest_tells() -> None:
    """The file itself, the first rule that tells it, the profile."""
    rules = [
        RuleConfig(path="*.tmp", ack="memory"),
        RuleConfig(path="/runs/**", sync_on_close=True),
        RuleConfig(path="/runs/**", ack="origin", sync_on_close=False),
    ]
    promises = Promises("local", False, rules)
    assert promises.of(b"other", ()) == Promise(LOCAL, MEMORY)
    assert promises.of(b"runs/a", ()) == Promise(ORIGIN, ORIGIN)
    assert promises.of(b"runs/a.tmp", ()) == Promise(MEMORY, MEMORY)
    assert promises.of(b"runs/a.tmp", ((ACK, b"local"),)) == Promise(LOCAL, LOCAL)
    assert promises.of(b"runs/a", ((b"user.x", b"memory"),)) == Promise(ORIGIN, ORIGIN)
    assert promises.of(None, ((ACK, b"origin"),)) == Promise(ORIGIN, MEMORY)


def test_files_that_stay_on_this_node_promise_no_more_than_its_disk() -> None:
    """A rule for all files of a kind must not make each fsync of a temporary one fail."""
    rules = [RuleConfig(path="*.pt", ack="origin", sync_on_close=True)]
    promises = Promises.from_plain(Promises("memory", False, rules, uploads=False).plain())
    assert promises.of(b"x.pt", ()) == Promise(LOCAL, LOCAL)
    assert promises.of(b"x", ((ACK, b"origin"),)) == Promise(LOCAL, MEMORY)
    assert promises.of(b"x", ()) == Promise(MEMORY, MEMORY)


@pytest.mark.parametrize("stored", [b"replica", b"nonsense", b"\xff", b""])
def test_what_another_tool_stored_as_a_level_is_passed_over(stored: bytes) -> None:
    assert Promises("origin", False).of(b"x", ((ACK, stored),)) == Promise(ORIGIN, MEMORY)


def test_promises_go_to_another_process_and_back() -> None:
    promises = Promises(
        "memory", True, [RuleConfig(path="*.pt", ack="origin"), RuleConfig(path="x", sync_on_close=False)]
    )
    again = Promises.from_plain(promises.plain())
    assert [again.of(key, ()) for key in (b"a.pt", b"x", b"y")] == [
        promises.of(key, ()) for key in (b"a.pt", b"x", b"y")
    ]


def test_a_level_that_nothing_here_reaches_is_refused_in_one_line() -> None:
    assert level_of("origin") is ORIGIN
    with pytest.raises(Unsupported, match="replica comes with the shared cluster, which is not there yet"):
        level_of("replica")
    with pytest.raises(InvalidArgument, match="there is no level 'disk'; there are: memory, local, origin"):
        level_of("disk")


# -- in an engine ---------------------------------------------------------------------------------------------------


def on(ground: Ground, scenario: Callable[[Engine, Namespace], Awaitable[None]], **settings: Any) -> None:
    async def body() -> None:
        async with ground.engine(**settings) as (engine, names):
            await names.root(ground.root)
            await scenario(engine, names)

    run(body)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each time that the disk is asked to keep bytes of a file."""
    calls: list[int] = []
    sync = Disk.sync_data

    def noted(self: Disk, descriptor: int) -> None:
        calls.append(descriptor)
        sync(self, descriptor)

    monkeypatch.setattr(Disk, "sync_data", noted)
    return calls


@pytest.mark.parametrize("profile", ["scratch", "general"])
def test_fsync_with_ack_memory_waits_for_no_disk(ground: Ground, synced: list[int], profile: str) -> None:
    async def scenario(engine: Engine, names: Namespace) -> None:
        _, handle = await names.create(ground.key("f"), mode=0o600, uid=0, gid=0)
        await handle.write(0, b"bytes")
        await handle.fsync()
        await handle.flush()
        assert synced == []
        assert names.writes.durable(await names.lookup(ground.key("f"))) is MEMORY
        await handle.close()

    on(ground, scenario, profile=profile, profiles={"general": {"ack": "memory", "sync_on_close": True}}, **LATER)


def test_what_is_written_anew_after_a_sync_is_not_durable(ground: Ground) -> None:
    async def scenario(engine: Engine, names: Namespace) -> None:
        async def level() -> Durability:
            return names.writes.durable(await names.lookup(ground.key("f")))

        _, handle = await names.create(ground.key("f"), mode=0o600, uid=0, gid=0)
        await handle.write(0, b"bytes")
        assert await level() is MEMORY
        await handle.fsync()
        assert await level() is LOCAL
        await handle.write(1, b"x")
        assert await level() is MEMORY
        await handle.fsync()
        await handle.close()
        assert await level() is LOCAL
        assert not (await engine.drain(30)).left
        assert await level() is ORIGIN

    on(ground, scenario, **LATER)


@pytest.mark.parametrize("kind", ["posix", "s3"])
def test_the_level_of_a_file_is_set_by_an_attribute_and_kept(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """New files and directories have that of their directory; it outlives the engine and the upload."""
    ground = make_ground(kind, request, tmp_path)

    async def made(engine: Engine, names: Namespace) -> None:
        directory = await names.mkdir(ground.key("sure"), mode=0o755, uid=0, gid=0)
        await names.setxattr(directory.inode, ACK, b"origin")
        await names.mkdir(ground.key("sure/below"), mode=0o755, uid=0, gid=0)
        _, handle = await names.create(ground.key("sure/below/f"), mode=0o600, uid=0, gid=0)
        await handle.write(0, b"bytes")
        await handle.fsync()
        assert ground.get("sure/below/f") == b"bytes"
        await handle.close()
        staged, _, _ = await names.stage(ground.key("sure/client"), exclusive=False, keep=False)
        await names.publish(staged)
        await write_file(names, ground.key("other"), b"bytes")

    async def kept(engine: Engine, names: Namespace) -> None:
        async def own(name: str) -> list[bytes]:
            return [value for known, value in (await names.lookup(ground.key(name))).xattrs if known == ACK]

        assert [await own(name) for name in ("sure", "sure/below", "sure/below/f", "sure/client")] == [[b"origin"]] * 4
        assert await own("other") == []
        entry = await names.lookup(ground.key("sure/below/f"))
        assert await names.listxattr(entry.inode) == [ACK]
        await names.removexattr(entry.inode, ACK)
        assert await own("sure/below/f") == []

    on(ground, made, **LATER)
    on(ground, kept)


def test_an_attribute_that_cannot_be_kept_is_refused(ground: Ground) -> None:
    async def scenario(engine: Engine, names: Namespace) -> None:
        await write_file(names, ground.key("f"), b"bytes")
        inode = (await names.lookup(ground.key("f"))).inode
        with pytest.raises(InvalidArgument):
            await names.setxattr(inode, ACK, b"disk")
        with pytest.raises(Unsupported, match="replica"):
            await names.setxattr(inode, ACK, b"replica")
        with pytest.raises(Unsupported):
            await names.setxattr(inode, b"user.tiercache.durable", b"origin")
        assert await names.getxattr(inode, b"user.tiercache.durable") == b"memory"

    on(ground, scenario, **LATER)


def test_a_file_that_stays_here_is_synced_where_a_rule_says_origin(ground: Ground) -> None:
    async def scenario(engine: Engine, names: Namespace) -> None:
        await write_file(names, ground.key("a.pt"), b"bytes")
        assert names.writes.durable(await names.lookup(ground.key("a.pt"))) is LOCAL
        assert ground.names() == []

    on(ground, scenario, profile="scratch", rules=[{"path": "*.pt", "ack": "origin", "sync_on_close": True}])


def test_a_rule_of_the_configuration_holds_in_an_engine(ground: Ground) -> None:
    async def scenario(engine: Engine, names: Namespace) -> None:
        await write_file(names, ground.key("a.pt"), b"bytes")
        assert ground.get("a.pt") == b"bytes"
        staged, _, _ = await names.stage(ground.key("b.pt"), exclusive=False, keep=False)
        engine.staging.open(staged).write(0, b"client's")
        await names.publish(staged)
        assert ground.get("b.pt") == b"client's"
        await write_file(names, ground.key("a.txt"), b"bytes")
        assert ground.names() == ["a.pt", "b.pt"]

    on(ground, scenario, rules=[{"path": "*.pt", "ack": "origin", "sync_on_close": True}], **LATER)
