"""Which peers take part: asked for, installed, and able to mount here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tiercache.bench.peers.juicefs import JuiceFS
from tiercache.bench.peers.mount import PeerMount
from tiercache.bench.peers.peer import Peer, Store
from tiercache.bench.peers.rclone import Rclone
from tiercache.bench.peers.s3fs import S3fs
from tiercache.bench.place import Place
from tiercache.bench.terms import Terms
from tiercache.errors import ConfigError, MountError

KINDS: dict[str, type[Peer]] = {kind.name: kind for kind in (JuiceFS, Rclone, S3fs)}


def parse_against(text: str) -> tuple[str, ...]:
    """The names in ``juicefs,rclone``; ConfigError says which there are."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in KINDS:
            raise ConfigError(f"--against: {name!r} is not known; there are: {', '.join(KINDS)}")
    return names


@contextmanager
def open_peers(
    names: Sequence[str], place: Place, directory: Path, complain: Callable[[str], None]
) -> Iterator[tuple[Peer, ...]]:
    """Those of the named peers that can be measured here; ``complain`` gets a line about each other one.

    ConfigError if the origin is none that they could mount. Nothing of them is left behind.
    """
    if names:
        Store.of(place)
    found = []
    with ExitStack() as stack:
        for name in names:
            kind = KINDS[name]
            if not kind.find():
                complain(f"--against {name}: it is not installed, so it is left out; to get it: {kind.install}")
                continue
            peer = kind(place, directory / name)
            if not place.passing:
                stack.callback(peer.close)
            try:
                _try(peer, place)
            except MountError as error:
                complain(f"--against {name}: it is left out: {error}")
            else:
                found.append(peer)
        yield tuple(found)


def _try(peer: Peer, place: Place) -> None:
    """Mount it once, before an hour of work rather than in the middle."""
    mount = PeerMount(peer, place, peer.directory / "trial", Terms("general"))
    try:
        with mount:
            pass
    finally:
        mount.remove()
