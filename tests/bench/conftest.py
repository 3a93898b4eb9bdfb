"""Fixtures of the benchmark's tests: sessions of every kind over the same small data set."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from rig.seaweedfs import S3Server, client, make_bucket
from tiercache.bench.dataset import DataSet, generate
from tiercache.bench.node import Node
from tiercache.bench.peers.choice import KINDS, open_peers
from tiercache.bench.peers.mount import PeerMount
from tiercache.bench.place import Place, make_place
from tiercache.bench.served import Behind, Served
from tiercache.bench.sessions import Session, open_session
from tiercache.bench.stage import setup_of
from tiercache.bench.targets import Target, targets_for
from tiercache.bench.terms import Terms
from tiercache.bench.workloads import Order, Reading

BUCKET = "benched"

SMALL = Reading(
    name="small",
    title="a few small files",
    files=5,
    median_bytes=3000,
    spread=0.5,
    order=Order.RANDOM,
    workers=1,
    requests=5,
    origin_requests=5,
)

TERMS = Terms("weights")

CACHE = {
    "ram.capacity": "32MiB",
    "nvme.capacity": "128MiB",
    "nvme.free_space_floor": "0",
    "staging.capacity": "64MiB",
}


@pytest.fixture(scope="session")
def bench_url(s3_server: S3Server) -> str:
    """A bucket for the benchmark."""
    make_bucket(s3_server, BUCKET)
    return f"s3://{BUCKET}/measured"


@pytest.fixture(scope="session")
def bench_keys(s3_server: S3Server, bench_url: str) -> Callable[[], list[str]]:
    """What is in that bucket now."""

    def keys() -> list[str]:
        pages = client(s3_server).get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    return keys


class Laid(NamedTuple):
    """A data set in an origin, a mounted node in front of it, and a session of each target."""

    dataset: DataSet
    place: Place
    node: Node
    sessions: dict[str, Session]
    targets: dict[str, Target]
    """The peers that are installed are among them."""


@pytest.fixture(scope="module")
def laid(s3_server: S3Server, bench_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laid]:
    directory = tmp_path_factory.mktemp("laid")
    dataset = generate(SMALL, directory / "local", lambda size_bytes: None)
    with make_place(bench_url, s3_server.options(), slowness=None, work_directory=directory) as made:
        place = made.below(uuid.uuid4().hex)
        place.upload(dataset, lambda size_bytes: None)
        settings = {**CACHE, "ram.directory": str(directory / "ram")}
        node = Node(directory / "node", place, terms=TERMS, settings=settings, mounted=True)
        installed = [name for name, kind in KINDS.items() if kind.find()]
        with node, ExitStack() as stack:
            peers = stack.enter_context(open_peers(installed, made, directory / "peers", pytest.fail))
            mounts: dict[str, Served] = {}
            for peer in peers:
                peer.adopt(place, dataset, lambda size_bytes: None)
                mounts[peer.name] = stack.enter_context(PeerMount(peer, place, directory / f"{peer.name}-node", TERMS))
            targets = {target.name: target for target in targets_for(place, mount=True, peers=installed)}
            behind = Behind(node, mounts)
            sessions = {
                name: open_session(setup_of(target, place, dataset.directory, behind.of(target)), None)
                for name, target in targets.items()
            }
            for session in sessions.values():
                stack.callback(session.close)
            yield Laid(dataset, place, node, sessions, targets)


@pytest.fixture
def quick_arguments(s3_server: S3Server, bench_url: str, tmp_path: Path) -> list[str]:
    """Options of a small run against the test's server, with a work directory that must be empty afterwards."""
    work = tmp_path / "work"
    work.mkdir()
    options = [f"--option={name}={value}" for name, value in s3_server.options().items()]
    settings = [f"--set={name}={value}" for name, value in CACHE.items()]
    return ["--quick", "--rounds=1", "--scale=0.1", f"--origin={bench_url}", f"--work-dir={work}", *options, *settings]
