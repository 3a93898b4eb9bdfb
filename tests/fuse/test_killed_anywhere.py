"""A change of names in a mount while its engine is killed, after each step of the change in turn: it is done once, and
nothing else is left of it, in the mount and at the origin.

``KILL_EVERY=1`` kills after every step; otherwise after every second one, of half the changes the odd ones.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rig.dying_engine import KINDS, LANDED, SENT, UPLOAD_KINDS, Killer
from rig.matrix import sampled
from rig.mounts import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    EngineProcess,
    Source,
    Watchdog,
    clean_up,
    is_mounted,
    renameat2,
    umount_when_free,
)

PATIENCE_S = 600.0
"""Only how long a broken test takes to fail."""

STEPS_MAX = 60
EVERY = int(os.environ.get("KILL_EVERY", "2"))


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Killer]:
    before = os.umask(0)
    killer = Killer(tmp_path, monkeypatch)
    yield killer
    killer.close()
    os.umask(before)


@pytest.fixture
def engine(killer: Killer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EngineProcess]:
    """Its catalog is believed, and what was written stays here, for so many seconds."""
    ttl_s, upload_delay_s = request.param
    ttl = {"general": {"ttl_s": ttl_s, "negative_ttl_s": min(5, ttl_s)}}
    settings = {"engine.restart_limit": 1000, "engine.restart_backoff_s": 0.01}
    settings["staging.upload_delay_s"] = upload_delay_s
    process = EngineProcess(tmp_path / "cache", **settings, profiles=ttl)
    yield process
    process.stop()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mount"
    path.mkdir()
    with Watchdog(path, limit_s=PATIENCE_S) as watchdog:
        yield path
    clean_up(path)
    assert not watchdog.fired, "the mount hung and was aborted"


Tree = dict[str, bytes | str | None]
"""Path to the bytes of a file, the target of a symlink, None for a directory."""


def tree_of(top: Path) -> Tree:
    found: Tree = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


def objects_of(source: Source, below: str) -> Tree:
    """What the origin has, past the mount."""
    if source.directory is not None:
        return tree_of(source.directory / below)
    return {name.removeprefix(below + "/"): source.get(name) for name in source.names() if name.startswith(below + "/")}


class Change(NamedTuple):
    """What there is before (files whose bytes say ``dirty`` are on their way, those that say ``gone`` were removed from
    the origin, the others are there), what a program does, what there is afterwards, and what else must be true then.
    """

    name: str
    before: Tree
    act: Callable[[Path], object]
    after: Tree
    look: Callable[[Path], bool] = lambda top: True
    on_s3: bool = True


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def create(path: Path) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "wb", buffering=0) as file:
        file.write(b"written")


def moves(name: str, *, dirty: bool, over: bytes = b"", flags: int = 0) -> Change:
    data = b"dirty" if dirty else b"clean"
    before: Tree = {"a": None, "b": None, "a/old": data}
    return Change(
        name,
        {**before, "b/new": over} if over else before,
        lambda top: renameat2(top / "a" / "old", top / "b" / "new", flags),
        {"a": None, "b": None, "b/new": data},
    )


FULL: Tree = {
    "old": None,
    "old/clean": b"clean",
    "old/empty": None,
    "old/emptied": None,
    "old/emptied/gone": b"gone",
    "old/sub": None,
    "old/sub/dirty": b"dirty",
}
MOVED: Tree = {name.replace("old", "new"): data for name, data in FULL.items() if data != b"gone"}

CHANGES = [
    Change("mkdir", {}, lambda top: os.mkdir(top / "d", 0o751), {"d": None}, lambda top: mode_of(top / "d") == 0o751),
    Change("rmdir", {"gone": None, "other": b"1"}, lambda top: os.rmdir(top / "gone"), {"other": b"1"}),
    Change("move directory", FULL, lambda top: os.rename(top / "old", top / "new"), MOVED),
    Change("move over empty", {**FULL, "new": None}, lambda top: os.rename(top / "old", top / "new"), MOVED),
    Change("move empty", {"old": None}, lambda top: os.rename(top / "old", top / "new"), {"new": None}),
    Change("unlink", {"d": None, "d/f": b"clean"}, lambda top: os.unlink(top / "d" / "f"), {"d": None}),
    Change("unlink dirty", {"d": None, "d/f": b"dirty"}, lambda top: os.unlink(top / "d" / "f"), {"d": None}),
    moves("move", dirty=False),
    moves("move dirty", dirty=True),
    moves("move over dirty", dirty=False, over=b"dirty too"),
    moves("move dirty over", dirty=True, over=b"clean too"),
    moves("move to a new name", dirty=False, flags=RENAME_NOREPLACE),
    Change(
        "exchange",
        {"a": b"clean", "b": b"clean too"},
        lambda top: renameat2(top / "a", top / "b", RENAME_EXCHANGE),
        {"a": b"clean too", "b": b"clean"},
        on_s3=False,
    ),
    Change("symlink", {}, lambda top: os.symlink("somewhere", top / "link"), {"link": "somewhere"}),
    Change(
        "link",
        {"a": b"clean"},
        lambda top: os.link(top / "a", top / "b"),
        {"a": b"clean", "b": b"clean"},
        lambda top: os.stat(top / "a").st_ino == os.stat(top / "b").st_ino and os.stat(top / "b").st_nlink == 2,
        on_s3=False,
    ),
    Change(
        "create",
        {},
        lambda top: create(top / "file"),
        {"file": b"written"},
        lambda top: mode_of(top / "file") == 0o640,
    ),
]


ASKED_TOO = ("mkdir-posix", "mkdir-s3", "move to a new name-posix")
"""Also with an engine that asks the origin for each name."""

CASES = sampled(
    [
        pytest.param(change, kind, (ttl_s, 60), id=f"{change.name}-{kind}{'' if ttl_s else '-asked'}")
        for change in CHANGES
        for kind in ("posix", "s3")
        for ttl_s in (60, 0)
        if (change.on_s3 or kind == "posix") and (ttl_s or f"{change.name}-{kind}" in ASKED_TOO)
    ],
    sample=("mkdir-posix-asked", "move directory-s3", "unlink dirty-s3", "move dirty over-posix", "exchange-posix"),
)


def prepare(engine: EngineProcess, top: Path, before: Tree) -> None:
    top.mkdir()
    for name, data in before.items():
        if data is None:
            (top / name).mkdir()
    for dirty in (False, True):
        for name, data in before.items():
            if isinstance(data, bytes) and data.startswith(b"dirty") == dirty:
                (top / name).write_bytes(data)
        if not dirty:
            engine.drain()
    for name, data in before.items():
        if data == b"gone":
            (top / name).unlink()
    tree_of(top)  # what a program may have seen before


def check(engine: EngineProcess, source: Source, top: Path, change: Change) -> None:
    assert tree_of(top) == change.after
    assert change.look(top)
    engine.drain()
    assert tree_of(top) == change.after
    # An object store has a symlink as an object of its target.
    objects = {name: os.fsencode(data) for name, data in change.after.items() if data is not None}
    assert objects_of(source, top.name) == (change.after if source.kind == "posix" else objects)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize(("change", "source", "engine"), CASES, indirect=["source", "engine"])
def test_a_change_that_a_kill_meets_is_done_once(
    killer: Killer, engine: EngineProcess, source: Source, place: Path, change: Change
) -> None:
    engine.mount(source, place, mount_options={"driver": "kernel"})
    kill_at_all_steps(killer, engine, source, place, change, KINDS)
    umount_when_free(engine, place)
    assert not is_mounted(place)


def kill_at_all_steps(
    killer: Killer, engine: EngineProcess, source: Source, place: Path, change: Change, kinds: Iterable[str]
) -> None:
    problems, kills = [], 0
    for kind, steps in all_steps(killer, kinds, shift=zlib.crc32(f"{change.name} {source.kind}".encode())):
        top = place / f"{kind}-{steps}"
        prepare(engine, top, change.before)
        try:
            with killer.after(steps, kind):
                change.act(top)
            check(engine, source, top, change)
        except (AssertionError, OSError) as error:
            problems.append(f"killed after {killer.steps()}: {error}")
        kills += killer.fired
    assert not problems, "\n".join(problems)
    assert kills


def all_steps(killer: Killer, kinds: Iterable[str], *, shift: int) -> Iterator[tuple[str, int]]:
    """Kinds and numbers of steps, until the change is through before it comes to one."""
    for number, kind in enumerate(kinds):
        for steps in range(1 + (number + shift) % EVERY, STEPS_MAX, EVERY):
            yield kind, steps
            if not killer.fired:
                break
        else:
            raise AssertionError(f"more than {STEPS_MAX} steps")


class Sent(NamedTuple):
    """What a program does while the bytes of a file in ``a`` are on their way, and what there is afterwards where the
    file has ``BYTES``."""

    name: str
    act: Callable[[Path, str], object]
    after: Callable[[str, bytes], Tree]


def append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b" more")


def append_and_move(top: Path, name: str) -> None:
    append(top / "a" / name)
    os.rename(top / "a" / name, top / "b" / "new")


def move_and_append(top: Path, name: str) -> None:
    os.rename(top / "a" / name, top / "b" / "new")
    append(top / "b" / "new")


def move_twice(top: Path, name: str) -> None:
    os.rename(top / "a" / name, top / "b" / "passing")
    os.rename(top / "b" / "passing", top / "b" / "new")


def append_and_unlink(top: Path, name: str) -> None:
    append(top / "a" / name)
    os.unlink(top / "a" / name)


def move_over(top: Path, name: str) -> None:
    (top / "b" / "new").write_bytes(b"newer")
    os.rename(top / "b" / "new", top / "a" / name)


def moved(name: str, data: bytes) -> Tree:
    return {"a": None, "b": None, "b/new": data}


MOVE = Sent("move", lambda top, name: os.rename(top / "a" / name, top / "b" / "new"), moved)
MOVE_TWICE = Sent("move twice", move_twice, moved)
APPEND_AND_MOVE = Sent("append and move", append_and_move, lambda name, data: moved(name, data + b" more"))
MOVE_AND_APPEND = Sent("move and append", move_and_append, lambda name, data: moved(name, data + b" more"))
MOVE_OVER = Sent("move over", move_over, lambda name, data: {"a": None, f"a/{name}": b"newer", "b": None})
UNLINK = Sent("unlink", lambda top, name: os.unlink(top / "a" / name), lambda name, data: {"a": None, "b": None})
APPEND_AND_UNLINK = Sent("append and unlink", append_and_unlink, lambda name, data: {"a": None, "b": None})

WHILE_SENT = sampled(
    [
        pytest.param(sent, name, known, id=f"{sent.name}-{name}-{'known' if known else 'new'}")
        for sent, name, known in (
            (MOVE, SENT, False),
            (MOVE_TWICE, LANDED, True),
            (APPEND_AND_MOVE, SENT, False),
            (APPEND_AND_MOVE, LANDED, True),
            (MOVE_AND_APPEND, LANDED, False),
            (MOVE_OVER, SENT, True),
            (UNLINK, LANDED, True),
            (APPEND_AND_UNLINK, SENT, False),
        )
    ],
    sample=("append and move-sent-new", "unlink-landed-known"),
)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize(("sent", "name", "known"), WHILE_SENT)
@pytest.mark.parametrize(("source", "engine"), [("posix", (60, 0))], indirect=True)
def test_a_change_that_a_kill_meets_while_the_file_goes_up_is_done_once(
    killer: Killer, engine: EngineProcess, source: Source, place: Path, sent: Sent, name: str, known: bool
) -> None:
    """``known``: the origin has an earlier version of the file."""

    def act(top: Path) -> None:
        append(top / "a" / name)
        killer.wait_for_upload()
        sent.act(top, name)

    before: Tree = {"a": None, "b": None}
    data = b" more"
    if known:
        before[f"a/{name}"] = b"old"
        data = b"old more"
    engine.mount(source, place, mount_options={"driver": "kernel"})
    change = Change(sent.name, before, act, sent.after(name, data))
    kill_at_all_steps(killer, engine, source, place, change, UPLOAD_KINDS)
    umount_when_free(engine, place)
    assert not is_mounted(place)
