"""Peers: those that are there take part, the others are told of in a line, and nothing of them is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rig.seaweedfs import S3Server
from tiercache.bench.peers import choice
from tiercache.bench.peers.choice import KINDS, open_peers, parse_against
from tiercache.bench.peers.mount import PeerMount
from tiercache.bench.peers.peer import Launch
from tiercache.bench.peers.rclone import Rclone
from tiercache.bench.place import Place, make_place
from tiercache.bench.processes import usage_of
from tiercache.bench.terms import Terms
from tiercache.errors import ConfigError, MountError
from tiercache.fuse.mountpoint import mounted_at


class Unlucky(Rclone):
    """A program that ends before it mounts."""

    name = "unlucky"

    @classmethod
    def find(cls) -> str:
        return "/bin/sh"

    def launch(self, place: Place, mountpoint: Path, cache: Path, terms: Terms) -> Launch:
        return Launch([self.binary, "-c", "echo starting; echo $0: out of luck >&2; exit 3", self.name], {})


class Missing(Rclone):
    name = "no-such-program"
    install = "pip install it"


class Sleepy(Unlucky):
    """A program that neither mounts nor ends."""

    def launch(self, place: Place, mountpoint: Path, cache: Path, terms: Terms) -> Launch:
        return Launch(["sleep", "1000"], {})


@pytest.fixture
def place(s3_server: S3Server, bench_url: str, tmp_path: Path):  # type: ignore[no-untyped-def]
    with make_place(bench_url, s3_server.options(), slowness=None, work_directory=tmp_path) as made:
        yield made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for kind in (Unlucky, Missing):
        monkeypatch.setitem(choice.KINDS, kind.name, kind)
    return []


def test_names_of_peers_are_read_and_an_unknown_one_is_refused() -> None:
    assert parse_against("") == ()
    assert parse_against("rclone, juicefs,rclone") == ("rclone", "juicefs")
    with pytest.raises(ConfigError, match="'rclone2' is not known; there are: juicefs, rclone, s3fs"):
        parse_against("rclone2")


def test_a_peer_that_is_not_installed_is_left_out_with_a_line_that_says_how_to_get_it(
    place: Place, told: list[str], tmp_path: Path
) -> None:
    with open_peers([Missing.name], place, tmp_path, told.append) as peers:
        assert peers == ()
    assert told == ["--against no-such-program: it is not installed, so it is left out; to get it: pip install it"]


def test_a_peer_that_does_not_mount_is_left_out_with_its_last_words(
    place: Place, told: list[str], tmp_path: Path
) -> None:
    with open_peers([Unlucky.name], place, tmp_path, told.append) as peers:
        assert peers == ()
    [line] = told
    assert line == "--against unlucky: it is left out: unlucky did not mount: starting unlucky: out of luck"


def test_a_process_that_does_not_mount_in_time_is_ended(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercache.bench.peers.mount.START_DEADLINE_S", 0.0)
    monkeypatch.setattr("tiercache.bench.peers.mount.END_DEADLINE_S", 1.0)
    mount = PeerMount(Sleepy(place, tmp_path), place, tmp_path / "node", Terms("general"))
    with pytest.raises(MountError, match="did not mount: it said nothing"), mount:
        pass
    assert "sleep" not in _children()


def test_peers_need_an_s3_server_with_an_address_and_keys(tmp_path: Path) -> None:
    place = Place.of_directory(tmp_path)
    opened = open_peers(["rclone"], place, tmp_path, pytest.fail)
    with pytest.raises(ConfigError, match="--against needs an S3 origin"), opened:
        pass


@pytest.mark.parametrize("name", KINDS)
def test_a_mount_is_gone_with_its_block_in_use_or_killed(name: str, place: Place, tmp_path: Path) -> None:
    """In use: a file in it is open when the block ends. Killed: its process ended by itself before."""
    if not KINDS[name].find():
        pytest.skip(f"{name} is not installed")
    peer = KINDS[name](place, tmp_path / name)
    for number, killed in enumerate((False, True)):
        mount = PeerMount(peer, place, tmp_path / f"node-{number}", Terms("general"))
        with mount:
            assert mount.mountpoint is not None
            assert mounted_at(str(mount.mountpoint)) is not None
            usage = mount.usage()
            assert usage.rss_bytes > 2**20
            assert usage.read_calls > 0
            assert mount._process is not None
            pid = mount._process.pid
            directory = os.open(mount.mountpoint, os.O_RDONLY)
            if killed:
                os.killpg(pid, signal.SIGKILL)
        os.close(directory)
        assert mounted_at(str(mount.mountpoint)) is None
        assert not Path(f"/proc/{pid}").exists()
        mount.remove()
        assert not mount.directory.exists()
    peer.close()


def test_what_a_process_uses_holds_its_children_and_only_grows() -> None:
    first = usage_of(os.getpid())
    sum(number * number for number in range(2_000_000))
    second = usage_of(os.getpid())
    spent = second.since(first)
    assert spent.cpu_s > 0
    assert spent.read_calls > 0
    assert spent.rss_bytes == second.rss_bytes > spent.anonymous_bytes > 0
    assert usage_of(2**22 + 1) == (0.0, 0, 0, 0, 0)


def _children() -> str:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return " ".join(Path(f"/proc/{pid}/comm").read_text() for pid in children)
