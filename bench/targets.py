"""What is measured, and against what each is compared."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tiercache.bench.place import Place


class Role(enum.StrEnum):
    """What stands between the reader and the origin."""

    ORIGIN = "origin"
    """Nothing: each read goes to the origin."""
    CACHED = "tiercache"
    PEER = "peer"
    """Another program's mount."""
    LOCAL = "local"
    """No origin at all: a plain directory on the same disk as the cache, the limit."""


class Call(enum.StrEnum):
    """How a file is read."""

    OPEN = "open().read()"
    CAT = "cat_file()"
    GET = "get()"


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the tables. ``kind`` says which session does it."""

    name: str
    kind: str
    """``plain``, ``fsspec`` or ``obstore``."""
    role: Role
    call: Call
    mounted: bool = False
    origin_peer: str = ""
    """The uncached target with the same call."""
    local_peer: str = ""
    """The same call on the plain directory."""
    program: str = ""
    """Of a peer: which."""
    planned: bool = False
    """The order of its reads is told before."""


class Setup(NamedTuple):
    """All that a worker process needs to open a session."""

    kind: str
    call: Call
    root: str
    """Below it lie the names of the data set, spelled for this kind of session."""
    protocol: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default, never changed
    slow: bool = False
    """Reads wait for the simulated disk."""
    buffered: bool = True
    """Whole files are read through Python's buffer."""


PLAIN_OPEN = "local directory, open()"
LOCAL_OPEN = "local directory, fsspec open()"
LOCAL_CAT = "local directory, fsspec cat_file()"
S3FS_OPEN = "s3fs open()"
S3FS_CAT = "s3fs cat_file()"
OBSTORE = "obstore get()"
BARE_LOOP = "bare obstore loop"
DIRECTORY = "origin directory, open()"
MOUNT = "tiercache mount, open()"
OURS_OPEN = "tiercache fsspec open()"
OURS_CAT = "tiercache fsspec cat_file()"


def targets_for(
    place: Place,
    *,
    mount: bool,
    peers: Sequence[str] = (),
    calls: Sequence[Call] = tuple(Call),
    mounts_only: bool = False,
) -> list[Target]:
    """Every target of an origin of this kind; ``calls`` leaves out those that a workload does not need.

    ``mounts_only`` leaves the mounts and the plain directory.
    """
    s3 = place.protocol == "s3"
    open_peer, cat_peer = (S3FS_OPEN, S3FS_CAT) if s3 else (DIRECTORY, DIRECTORY)
    found = []
    if s3:
        found += [
            Target(S3FS_OPEN, "fsspec", Role.ORIGIN, Call.OPEN, local_peer=LOCAL_OPEN),
            Target(S3FS_CAT, "fsspec", Role.ORIGIN, Call.CAT, local_peer=LOCAL_CAT),
            Target(OBSTORE, "obstore", Role.ORIGIN, Call.GET, origin_peer=S3FS_CAT, local_peer=PLAIN_OPEN),
        ]
    else:
        found += [Target(DIRECTORY, "plain", Role.ORIGIN, Call.OPEN, local_peer=PLAIN_OPEN)]
    if mount:
        found += [
            Target(MOUNT, "plain", Role.CACHED, Call.OPEN, mounted=True, origin_peer=open_peer, local_peer=PLAIN_OPEN)
        ]
    found += [
        Target(f"{peer} mount, open()", "plain", Role.PEER, Call.OPEN, mounted=True, origin_peer=open_peer,
               local_peer=PLAIN_OPEN, program=peer)
        for peer in peers
    ]  # fmt: skip
    found += [
        Target(OURS_OPEN, "fsspec", Role.CACHED, Call.OPEN, origin_peer=open_peer, local_peer=LOCAL_OPEN),
        Target(OURS_CAT, "fsspec", Role.CACHED, Call.CAT, origin_peer=cat_peer, local_peer=LOCAL_CAT),
        Target(LOCAL_OPEN, "fsspec", Role.LOCAL, Call.OPEN, origin_peer=open_peer),
        Target(LOCAL_CAT, "fsspec", Role.LOCAL, Call.CAT, origin_peer=cat_peer),
        Target(PLAIN_OPEN, "plain", Role.LOCAL, Call.OPEN, origin_peer=open_peer),
    ]
    if mounts_only:
        found = [target for target in found if target.mounted or target.name == PLAIN_OPEN]
    return [target for target in found if target.call in calls]


def epoch_targets(*, blind: bool, mount: bool, peers: Sequence[str]) -> list[Target]:
    """Who reads epochs of an S3 origin. Each is held against the bare loop; where others have a chance, against them.

    ``blind``: in random order, without a word before, so that others can do the same.
    """
    found = [Target(BARE_LOOP, "obstore", Role.ORIGIN, Call.GET)]
    if mount:
        found += [Target(MOUNT, "plain", Role.CACHED, Call.OPEN, mounted=True)]
    found += [Target(OURS_CAT, "fsspec", Role.CACHED, Call.CAT)]
    if blind:
        found += [Target(S3FS_CAT, "fsspec", Role.ORIGIN, Call.CAT, program="plain s3fs")]
        found += [
            Target(f"{peer} mount, open()", "plain", Role.PEER, Call.OPEN, mounted=True, program=peer) for peer in peers
        ]
    found += [Target(PLAIN_OPEN, "plain", Role.LOCAL, Call.OPEN)]
    return [replace(target, origin_peer=BARE_LOOP, local_peer=PLAIN_OPEN) for target in found]


def training_targets(*, mount: bool) -> list[tuple[Target, ...]]:
    """Who trains from an S3 origin. Those of a group share a node, and read one after the other."""
    ours = [Target("tiercache fsspec", "fsspec", Role.CACHED, Call.CAT)]
    if mount:
        ours.insert(0, Target("tiercache mount", "plain", Role.CACHED, Call.OPEN, mounted=True))
    groups: list[tuple[Target, ...]] = [(Target(S3FS_CAT, "fsspec", Role.ORIGIN, Call.CAT),)]
    for target in ours:
        planned = replace(target, name=f"{target.name}, planned", planned=True)
        again = replace(target, name=f"{target.name}, second epoch")
        groups += [(replace(target, name=f"{target.name}, blind"),), (planned, again)]
    groups += [(Target(PLAIN_OPEN, "plain", Role.LOCAL, Call.OPEN),)]
    return [tuple(replace(target, origin_peer=S3FS_CAT, local_peer=PLAIN_OPEN) for target in group) for group in groups]
