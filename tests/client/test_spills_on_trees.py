"""Files that do not fit in staging, over a file tree: they grow beside their name, and take it at close."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.cache_rig import bytes_of
from rig.engines import PATIENCE_S, attached_client, small_config
from rig.spilling import CAPACITY, SETTINGS, SIZE, killed_in_the_middle, write_in_pieces
from tiercache.client import Client, RemoteOrigin
from tiercache.engine.lock import owner_pid
from tiercache.errors import Absent, Broken, Changed, NoSpace, TierCacheError


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An engine with little staging."""
    with attached_client(small_config(tmp_path_factory.mktemp("engine"), **SETTINGS)) as client:
        yield client


class Ground:
    """A directory that is an origin."""

    def __init__(self, client: Client, directory: Path) -> None:
        self.client = client
        self.directory = directory
        self.origin: RemoteOrigin = client.attach(str(directory))

    def key(self, name: str) -> bytes:
        return os.fsencode(self.directory / name)[1:]

    def create(self, name: str, **how: Any) -> Any:
        return self.origin.create(self.key(name), **how)

    def names(self) -> set[str]:
        """All that is there, temporary files too."""
        return {str(path.relative_to(self.directory)) for path in self.directory.rglob("*")}

    def staged(self) -> list[str]:
        return [name for name in os.listdir(self.client.cache_dir / "staging") if name.isdigit()]

    def clean_up(self, *left: str) -> None:
        """Wait until nothing is left of what was written, here or there."""
        while self.staged() or self.names() != set(left):
            self.client.drain(PATIENCE_S)
        assert not self.client.drain(PATIENCE_S)["left"]

    def figure(self, name: str) -> float:
        found = self.client.status()["metrics"][name]
        assert isinstance(found, int | float)
        return found


@pytest.fixture
def ground(client: Client, tmp_path: Path) -> Ground:
    directory = tmp_path / "tree"
    directory.mkdir()
    return Ground(client, directory)


@pytest.mark.parametrize("piece_bytes", [50_000, SIZE], ids=["pieces", "at once"])
def test_a_file_larger_than_staging_arrives_whole_and_shows_itself_at_close(ground: Ground, piece_bytes: int) -> None:
    data = bytes_of("large", SIZE)
    before = ground.figure("spilled_bytes_total")
    with ground.create("large") as writer:
        write_in_pieces(writer, data, piece_bytes)
        assert ground.figure("staged_bytes") <= CAPACITY
        assert os.stat(writer.path).st_blocks * 512 <= CAPACITY
        with pytest.raises(Absent):
            ground.origin.info(ground.key("large"))
        assert "large" not in ground.names()
        assert ground.origin.list(ground.origin.root) == []
    # It is there when close returns, and nothing else is.
    assert ground.names() == {"large"}
    assert (ground.directory / "large").read_bytes() == data
    assert ground.figure("spilled_bytes_total") - before == SIZE
    assert ground.figure("spills_in_flight") == 0
    assert ground.figure("staged_bytes") == 0
    assert ground.origin.cat(ground.key("large")) == data
    assert ground.staged() == []


def test_one_that_must_be_new_does_not_replace_what_came_meanwhile(ground: Ground) -> None:
    writer = ground.create("a", exclusive=True)
    write_in_pieces(writer, bytes_of("a", SIZE))
    (ground.directory / "a").write_bytes(b"somebody else's")
    with pytest.raises(TierCacheError):
        writer.close()
    ground.clean_up("a")
    assert (ground.directory / "a").read_bytes() == b"somebody else's"


def test_an_append_replaces_what_it_was_made_from_and_nothing_else(ground: Ground) -> None:
    base, more = bytes_of("base", 300 * 1024), bytes_of("more", SIZE)
    for name, foreign in (("a", b""), ("b", b"somebody else's")):
        (ground.directory / name).write_bytes(base)
        writer = ground.create(name, keep=True)
        writer.seek(0, os.SEEK_END)
        write_in_pieces(writer, more)
        if foreign:
            (ground.directory / name).write_bytes(foreign)
            with pytest.raises(Changed):
                writer.close()
        else:
            writer.close()
    ground.clean_up("a", "b")
    assert (ground.directory / "a").read_bytes() == base + more
    assert (ground.directory / "b").read_bytes() == b"somebody else's"


def test_a_discarded_one_leaves_nothing_and_the_old_content(ground: Ground) -> None:
    (ground.directory / "a").write_bytes(b"old")
    writer = ground.create("a")
    write_in_pieces(writer, bytes_of("a", SIZE))
    assert len(ground.names()) == 2
    with pytest.raises(NoSpace, match="went to the origin"):
        writer.truncate(0)
    writer.discard()
    ground.clean_up("a")
    assert ground.origin.cat(ground.key("a")) == b"old"


def test_a_writer_that_is_killed_leaves_nothing_and_the_old_content(ground: Ground) -> None:
    (ground.directory / "a").write_bytes(b"old")
    killed_in_the_middle(ground.origin, ground.key("a"))
    ground.clean_up("a")
    assert ground.origin.cat(ground.key("a")) == b"old"


def test_an_engine_that_is_killed_leaves_a_file_that_the_next_one_removes(tmp_path: Path) -> None:
    directory = tmp_path / "tree"
    directory.mkdir()
    (directory / "a").write_bytes(b"old")
    with attached_client(small_config(tmp_path, **SETTINGS)) as client:
        ground = Ground(client, directory)
        writer = ground.create("a")
        write_in_pieces(writer, bytes_of("a", SIZE))
        pid = owner_pid(client.cache_dir)
        assert pid
        os.kill(pid, signal.SIGKILL)
        assert len(ground.names()) == 2
        with pytest.raises(TierCacheError):
            writer.close()
        again = client.attach(str(directory))
        ground.clean_up("a")
        assert again.cat(ground.key("a")) == b"old"


def test_what_others_remove_is_told_as_an_error(ground: Ground) -> None:
    writer = ground.create("a")
    write_in_pieces(writer, bytes_of("a", SIZE))
    for name in ground.names():
        (ground.directory / name).unlink()
    with pytest.raises(Broken, match="removed the temporary file"):
        writer.close()
    ground.clean_up()


def test_one_whose_directory_is_moved_meanwhile_is_told_and_leaves_nothing(ground: Ground) -> None:
    (ground.directory / "old").mkdir()
    (ground.directory / "old/other").write_bytes(b"other")
    writer = ground.create("old/a")
    write_in_pieces(writer, bytes_of("a", SIZE))
    ground.origin.rename(ground.key("old"), ground.key("new"))
    with pytest.raises(Changed, match="renamed while it was written"):
        writer.close()
    ground.clean_up("new", "new/other")


def test_files_that_are_written_together_share_the_room(ground: Ground) -> None:
    names = ["a", "b", "c"]
    writers = [ground.create(name) for name in names]
    for offset in range(0, SIZE, 50_000):
        for name, writer in zip(names, writers, strict=True):
            writer.write(bytes_of(name, SIZE)[offset : offset + 50_000])
    for writer in writers:
        writer.close()
    for name in names:
        assert (ground.directory / name).read_bytes() == bytes_of(name, SIZE)
    assert ground.names() == set(names)
