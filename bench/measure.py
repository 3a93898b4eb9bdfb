"""The timed loops. A worker's clock runs only while the target works: checking what came is never part of the time."""

from __future__ import annotations

import gc
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import xxhash

from tiercache.bench.dataset import Piece, digest_of
from tiercache.bench.sessions import Session
from tiercache.errors import TierCacheError


class Timed(NamedTuple):
    """What one worker measured."""

    latencies_ns: bytes
    """An ``array("q")``, one of each request."""
    moved_bytes: int
    cpu_ns: int
    """Processor time of the worker process (all its threads) during the requests."""


class Flood(NamedTuple):
    """What many threads of one worker measured together."""

    timed: Timed
    begins_ns: bytes
    """An ``array("q")`` in the order of the pieces, as is ``ends_ns``."""
    ends_ns: bytes


class Stopwatch:
    """Runs while a target works."""

    def __init__(self, *, collect: bool = True) -> None:
        if collect:
            gc.collect()  # not in the middle of somebody's turn
        self._latencies = array("q")
        self._cpu_ns = 0
        self.moved_bytes = 0

    def time(self, call: Callable[[Any], Any], argument: Any) -> Any:
        cpu_ns = time.process_time_ns()
        begin_ns = time.perf_counter_ns()
        answer = call(argument)
        self._latencies.append(time.perf_counter_ns() - begin_ns)
        self._cpu_ns += time.process_time_ns() - cpu_ns
        return answer

    def result(self) -> Timed:
        return Timed(self._latencies.tobytes(), self.moved_bytes, self._cpu_ns)


def read_pieces(session: Session, pieces: Iterable[Piece], *, collect: bool = True) -> Timed:
    """Read each piece and compare it with its digest. TierCacheError at the first wrong byte."""
    watch = Stopwatch(collect=collect)
    for piece in pieces:
        data = watch.time(session.read, piece)
        check(piece, data)
        watch.moved_bytes += len(data)
    return watch.result()


def check(piece: Piece, data: Any) -> None:
    """TierCacheError if these are not the bytes of the piece."""
    if digest_of(data) != piece.digest:
        raise TierCacheError(f"{piece.name}: {len(data)} bytes at {piece.offset} are not those that were stored")


def read_flood(session: Session, pieces: Sequence[Piece], in_flight: int) -> Flood:
    """The same with so many threads, each of which takes the next piece; its digest is taken inside the clock."""
    begins, ends = array("q", [0]) * len(pieces), array("q", [0]) * len(pieces)
    failures: list[BaseException] = []
    coming = iter(range(len(pieces)))

    def take() -> None:
        try:
            for at in coming:  # an iterator of C, which threads may share
                begins[at] = time.perf_counter_ns()
                check(pieces[at], session.read(pieces[at]))
                ends[at] = time.perf_counter_ns()
        except BaseException as error:
            failures.append(error)

    gc.collect()
    cpu_ns = time.process_time_ns()
    threads = [threading.Thread(target=take) for _ in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    latencies = array("q", (end - begin for begin, end in zip(begins, ends, strict=True)))
    moved_bytes = sum(piece.length for piece in pieces)
    timed = Timed(latencies.tobytes(), moved_bytes, time.process_time_ns() - cpu_ns)
    return Flood(timed, begins.tobytes(), ends.tobytes())


def save_parts(session: Session, name: str, parts: Sequence[memoryview], *, fsync: bool) -> Timed:
    """Write a file; one request from open to close."""
    watch = Stopwatch()
    watch.time(lambda name: session.save(name, parts, fsync=fsync), name)
    watch.moved_bytes = sum(map(len, parts))
    return watch.result()


def load_file(session: Session, name: str, size_bytes: int, digest: bytes, *, request_bytes: int) -> Timed:
    """Read a file from beginning to end as one request; its digest is taken while the clock stands."""
    watch = Stopwatch()
    hasher = xxhash.xxh3_64()
    for offset in range(0, size_bytes, request_bytes):
        length = min(request_bytes, size_bytes - offset)
        piece = Piece(name, offset, length, b"", whole=length == size_bytes)
        hasher.update(watch.time(session.read, piece))
        watch.moved_bytes += length
    session.close()
    if hasher.digest() != digest:
        raise TierCacheError(f"{name}: what was loaded is not what was saved")
    timed = watch.result()
    total_ns = sum(array("q", timed.latencies_ns))
    return timed._replace(latencies_ns=array("q", [total_ns]).tobytes())


def stat_files(session: Session, sizes: Sequence[tuple[str, int]]) -> Timed:
    """Ask for the size of each file."""
    watch = Stopwatch()
    for name, size_bytes in sizes:
        found = watch.time(session.size, name)
        if found != size_bytes:
            raise TierCacheError(f"{name}: size {found} instead of {size_bytes}")
    return watch.result()


def list_directories(session: Session, expected: Sequence[tuple[str, frozenset[str]]]) -> Timed:
    """List each directory."""
    watch = Stopwatch()
    for directory, names in expected:
        found = watch.time(session.children, directory)
        if set(found) != names:
            raise TierCacheError(f"{directory}: {len(found)} names instead of {len(names)}")
    return watch.result()


def walk_tree(session: Session, tree: Sequence[tuple[str, Mapping[str, int]]]) -> Timed:
    """List each directory and ask for the size of each file in it: one request each."""
    watch = Stopwatch()
    for directory, sizes in tree:
        found = watch.time(session.children, directory)
        if set(found) != sizes.keys():
            raise TierCacheError(f"{directory}: {len(found)} names instead of {len(sizes)}")
        for name, size_bytes in sizes.items():
            path = f"{directory}/{name}"
            told = watch.time(session.size, path)
            if told != size_bytes:
                raise TierCacheError(f"{path}: size {told} instead of {size_bytes}")
    return watch.result()


def create_files(session: Session, names: Sequence[str], data: bytes) -> Timed:
    """Create small files: open, write, close."""
    watch = Stopwatch()
    parts = [memoryview(data)]
    for name in names:
        watch.time(lambda name: session.save(name, parts, fsync=False), name)
        watch.moved_bytes += len(data)
    return watch.result()
