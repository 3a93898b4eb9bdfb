"""The training process: PyTorch's own DataLoader, Pillow's decoder, a small convolutional network."""

from __future__ import annotations

import io
import os
import resource
import time
from array import array
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tiercache.bench.dataset import Piece
from tiercache.bench.measure import Timed, check
from tiercache.bench.sessions import Session, open_session
from tiercache.bench.targets import Setup
from tiercache.bench.training.images import CLASSES, class_of
from tiercache.filesystem import TierCacheFileSystem
from tiercache.torch import PlannedSampler

INPUT_PIXELS = 64
WARM_UP_STEPS = 3
LEARNING_RATE = 0.02


class Job(NamedTuple):
    """One epoch to train."""

    setup: Setup
    pieces: tuple[Piece, ...]
    """In the order in which they are drawn."""
    planned: bool
    """The order is told before."""
    workers: int
    prefetch: int
    batch: int
    seed: int


class Trained(NamedTuple):
    """What came of it."""

    timed: Timed
    wall_s: float
    compute_s: float
    """Of that, in forward, backward and step."""
    wait_s: tuple[float, ...]
    """For each batch."""
    losses: tuple[float, ...]
    """Of each batch."""


class ImageSet:
    """A map-style data set. Each worker opens a session of its own at its first item."""

    def __init__(self, setup: Setup, pieces: Sequence[Piece]) -> None:
        self._setup = setup
        self._pieces = pieces
        self._session: Session | None = None
        self._pid = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, place: int) -> tuple[Any, int, int, int]:
        """The image, its class, how long its bytes took in nanoseconds, and how many there were."""
        if self._session is None or self._pid != os.getpid():
            self._session, self._pid = open_session(self._setup, None), os.getpid()
            self._session.prepare()
        piece = self._pieces[place]
        begin_ns = time.perf_counter_ns()
        data = self._session.read(piece)
        spent_ns = time.perf_counter_ns() - begin_ns
        check(piece, data)
        return _decoded(data), class_of(piece.name), spent_ns, len(data)


def train(job: Job, answer: Connection) -> None:
    """Train one epoch in this process and send what came of it, or the error."""
    try:
        answer.send(_train(job))
    except Exception as error:
        answer.send(f"{type(error).__name__}: {error}")


def _train(job: Job) -> Trained:
    torch: Any = import_module("torch")
    torch.manual_seed(job.seed)
    torch.set_num_threads(1)
    step = _stepper(torch)
    for _ in range(WARM_UP_STEPS):
        step(torch.rand(job.batch, 3, INPUT_PIXELS, INPUT_PIXELS), torch.zeros(job.batch, dtype=torch.long))
    step = _stepper(torch)  # what was learned from nothing is forgotten
    loader = torch.utils.data.DataLoader(
        ImageSet(job.setup, job.pieces),
        batch_size=job.batch,
        sampler=_sampler(job),
        num_workers=job.workers,
        prefetch_factor=job.prefetch,
        multiprocessing_context="fork",
    )
    before_s = _cpu_s()
    begin_s = time.perf_counter()
    reads, moved_bytes, compute_s, waits, losses = array("q"), 0, 0.0, array("d"), []
    batches = iter(loader)
    while True:
        asked_s = time.perf_counter()
        found = next(batches, None)
        got_s = time.perf_counter()
        if found is None:
            break
        waits.append(got_s - asked_s)
        images, classes, spent_ns, sizes = found
        losses.append(step(images, classes))
        compute_s += time.perf_counter() - got_s
        reads.extend(spent_ns.tolist())
        moved_bytes += int(sizes.sum())
    wall_s = time.perf_counter() - begin_s
    del batches  # its workers end, and their processor time is known
    timed = Timed(reads.tobytes(), moved_bytes, int((_cpu_s() - before_s) * 1e9))
    return Trained(timed, wall_s, compute_s, tuple(waits), tuple(losses))


def _sampler(job: Job) -> Any:
    order = range(len(job.pieces))
    if not job.planned:
        return order
    paths = [f"{job.setup.root}/{piece.name}" for piece in job.pieces]
    fs = TierCacheFileSystem(**job.setup.options) if job.setup.kind == "fsspec" else None
    return PlannedSampler(order, paths, fs=fs)


def _stepper(torch: Any) -> Any:
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def step(images: Any, classes: Any) -> float:
        optimizer.zero_grad()
        loss = loss_of(model(images), classes)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def _decoded(data: Any) -> Any:
    torch: Any = import_module("torch")
    image: Any = import_module("PIL.Image")
    small = image.open(io.BytesIO(data)).convert("RGB").resize((INPUT_PIXELS, INPUT_PIXELS))
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return pixels.reshape(INPUT_PIXELS, INPUT_PIXELS, 3).permute(2, 0, 1).float() / 255 - 0.5


def _cpu_s() -> float:
    """Of this process and of the workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
