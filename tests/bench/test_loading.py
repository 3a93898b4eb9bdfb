"""The data loader of the benchmark: its order, its waits, and that wrong bytes do not pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tiercache.bench.dataset import DataSet, Piece, generate
from tiercache.bench.loading import flood, load
from tiercache.bench.pool import WorkerPool
from tiercache.bench.targets import Call, Setup
from tiercache.bench.workloads import Order, Reading
from tiercache.errors import TierCacheError

WORKERS = 2
BATCH = 3
SESSION = "files"

FILES = Reading(
    name="loaded",
    title="a few files",
    files=10,
    median_bytes=2000,
    spread=0.5,
    order=Order.RANDOM,
    workers=WORKERS,
    requests=10,
    origin_requests=10,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return generate(FILES, tmp_path_factory.mktemp("loaded"), lambda size_bytes: None)


@pytest.fixture(scope="module")
def pool(dataset: DataSet) -> Iterator[WorkerPool]:
    with WorkerPool(WORKERS, None) as pool:
        pool.open(SESSION, Setup("plain", Call.OPEN, str(dataset.directory)), workers=WORKERS)
        yield pool


def batches_of(pieces: tuple[Piece, ...]) -> list[tuple[Piece, ...]]:
    return [pieces[at : at + BATCH] for at in range(0, len(pieces), BATCH)]


def test_every_batch_is_read_once_and_answered_in_its_order(pool: WorkerPool, dataset: DataSet) -> None:
    batches = batches_of(dataset.pieces)
    loaded = load(pool, SESSION, batches, workers=WORKERS, prefetch=2)
    assert [timed.moved_bytes for timed in loaded.timed] == [sum(piece.length for piece in batch) for batch in batches]
    assert len(loaded.batch_s) == len(loaded.wait_s) == len(batches)
    assert sum(loaded.wait_s) <= loaded.wall_s
    assert min(loaded.batch_s) > 0


def test_batches_are_drawn_no_further_ahead_than_workers_take_them(pool: WorkerPool, dataset: DataSet) -> None:
    drawn = 0
    seen: list[int] = []

    def draw() -> Iterator[tuple[Piece, ...]]:
        nonlocal drawn
        for number in range(20):
            drawn += 1
            seen.append(drawn - pool_answers)
            yield batches_of(dataset.pieces)[number % 4]

    pool_answers = 0
    answer = pool.answer

    def counted(worker: int, name: str) -> object:
        nonlocal pool_answers
        found = answer(worker, name)
        pool_answers += 1
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pool, "answer", counted)
        load(pool, SESSION, draw(), workers=WORKERS, prefetch=2)
    assert drawn == 20
    assert max(seen) == WORKERS * 2


def test_a_bare_loop_reads_every_file_once(pool: WorkerPool, dataset: DataSet) -> None:
    loaded = flood(pool, SESSION, dataset.pieces, in_flight=4, batch=BATCH)
    [timed] = loaded.timed
    assert timed.moved_bytes == dataset.total_bytes
    assert len(loaded.batch_s) == len(loaded.wait_s) == len(batches_of(dataset.pieces))
    assert sum(loaded.wait_s) == pytest.approx(loaded.wall_s)


def test_wrong_bytes_end_an_epoch(pool: WorkerPool, dataset: DataSet) -> None:
    wrong = (*dataset.pieces[:-1], dataset.pieces[-1]._replace(digest=b"other"))
    with pytest.raises(TierCacheError, match="are not those that were stored"):
        load(pool, SESSION, batches_of(wrong), workers=WORKERS, prefetch=2)


def test_wrong_bytes_end_a_bare_loop(tmp_path: Path) -> None:
    dataset = generate(FILES, tmp_path, lambda size_bytes: None)
    wrong = [dataset.pieces[0]._replace(digest=b"other")]
    with WorkerPool(1, None) as pool:
        pool.open(SESSION, Setup("plain", Call.OPEN, str(dataset.directory)), workers=1)
        with pytest.raises(TierCacheError, match="are not those that were stored"):
            flood(pool, SESSION, wrong, in_flight=4, batch=BATCH)
