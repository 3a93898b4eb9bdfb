"""The suites: which workloads a name on the command line stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tiercache.bench.phases import Phase
from tiercache.bench.workloads import Epochs, HitRatio, Naming, Order, Reading, Saving, Training, Workload
from tiercache.errors import ConfigError
from tiercache.units import GIB, KIB, MIB

_IMAGES = Reading(
    name="smallfiles",
    title="images of about 110 KB in random order, one worker",
    files=1000,
    median_bytes=105 * KIB,
    spread=0.35,
    order=Order.RANDOM,
    workers=1,
    requests=600,
    origin_requests=60,
)

_FILES = Reading(
    name="mount-files",
    title="files of 100 KB, one reader, read-only mount, read without Python's buffer",
    files=1000,
    median_bytes=100_000,
    order=Order.RANDOM,
    workers=1,
    requests=1000,
    origin_requests=1000,
    phases=(Phase.WARM, Phase.DISK_WARM),
    mounts_only=True,
    buffered=False,
)

_LARGE = Reading(
    name="mount-large",
    title="one large file, 1 MiB a read, read-write mount",
    files=1,
    median_bytes=GIB,
    order=Order.SEQUENTIAL,
    workers=1,
    request_bytes=MIB,
    requests=1024,
    origin_requests=1024,
    phases=(Phase.DISK_WARM,),
    profile="general",
    read_only=False,
    mounts_only=True,
)

_MOUNT: Final[tuple[Workload, ...]] = (
    _FILES,
    replace(
        _FILES,
        name="mount-files-buffered",
        title="files of 100 KB, one reader, read-only mount, read as Python does by itself",
        buffered=True,
    ),
    _LARGE,
    replace(
        _LARGE,
        name="mount-large-weights",
        title="one large file, 1 MiB a read, read-only mount with the profile weights",
        profile="weights",
        read_only=True,
    ),
    Saving(
        name="mount-checkpoint",
        title="a checkpoint, buffered write to close",
        size_bytes=GIB,
        write_bytes=16 * MIB,
        fsync=False,
        phases=(Phase.SAVE,),
        mounts_only=True,
    ),
    Saving(
        name="mount-checkpoint-fsync",
        title="a checkpoint, written with fsync",
        size_bytes=GIB,
        write_bytes=16 * MIB,
        fsync=True,
        phases=(Phase.SAVE,),
        mounts_only=True,
    ),
    Naming(
        name="mount-tree",
        title="a warm tree, read-only mount",
        directories=100,
        files=100,
        size_bytes=200,
        created=0,
        origin_requests=0,
        phases=(Phase.WALK_WARM,),
        profile="dataset",
        mounts_only=True,
    ),
    Naming(
        name="mount-create",
        title="new small files",
        directories=1,
        files=10,
        size_bytes=4 * KIB,
        created=1000,
        origin_requests=0,
        phases=(Phase.CREATE,),
        profile="general",
        mounts_only=True,
        seed=4,
    ),
    Reading(
        name="mount-memory",
        title="a tree of many small files read once: the memory of the process behind the mount",
        files=100_000,
        median_bytes=200,
        order=Order.SEQUENTIAL,
        workers=1,
        requests=100_000,
        origin_requests=100_000,
        phases=(Phase.COLD,),
        mounts_only=True,
        in_directory=True,
        most_rounds=1,
    ),
)
"""What a mount is promised to be, beside a plain directory and beside other mounts."""

_EPOCHS = Epochs(
    name="epochs",
    title="epochs of a data loader over images of about 110 KB",
    files=3000,
    median_bytes=105 * KIB,
    spread=0.35,
    latency_s=0.0,
)

SUITES: Final[Mapping[str, tuple[Workload, ...]]] = {
    "smallfiles": (
        _IMAGES,
        replace(
            _IMAGES,
            name="smallfiles-4",
            title="images of about 110 KB in random order, four workers",
            workers=4,
            requests=1200,
            origin_requests=160,
        ),
    ),
    "largefile": (
        Reading(
            name="largefile",
            title="one large file from beginning to end, 8 MiB a read",
            files=1,
            median_bytes=2 * GIB,
            order=Order.SEQUENTIAL,
            workers=1,
            request_bytes=8 * MIB,
            requests=256,
            origin_requests=32,
        ),
    ),
    "checkpoint": (
        Saving(
            name="checkpoint",
            title="a checkpoint, written without fsync",
            size_bytes=256 * MIB,
            write_bytes=16 * MIB,
            fsync=False,
        ),
        Saving(
            name="checkpoint-fsync",
            title="a checkpoint, written with fsync",
            size_bytes=256 * MIB,
            write_bytes=16 * MIB,
            fsync=True,
        ),
    ),
    "metadata": (
        Naming(
            name="metadata",
            title="names of a tree",
            directories=20,
            files=50,
            size_bytes=4 * KIB,
            created=100,
            origin_requests=100,
        ),
    ),
    "mount": _MOUNT,
    "epochs": (
        *(replace(_EPOCHS, name=f"epochs-{latency_ms}ms", latency_s=latency_ms / 1000) for latency_ms in (0, 10, 30)),
        replace(
            _EPOCHS,
            name="epochs-nvme",
            title="the second epoch of a data loader over twice the memory",
            files=10_000,
            phases=(),
            memory_share=0.5,
        ),
    ),
    "hitratio": (
        HitRatio(
            name="hitratio",
            title="what a cache hits that holds a part of the data set",
            files=2000,
            median_bytes=112 * KIB,
            policies=("hold", "auto", "s3fifo"),
            shares=(0.2, 0.5, 0.8),
        ),
    ),
    "training": (
        Training(name="training", title="a model learns from images of about 110 KB", images=1024, latency_s=0.01),
    ),
}
"""By the name that the command line gives them."""

APART: Final = frozenset({"epochs", "hitratio", "training"})
"""Not among ``all``: they take long, and two of them read through a line that would slow the others down."""


def find_workloads(name: str) -> list[Workload]:
    """A suite, all of them, or a single workload of one. ConfigError says which there are."""
    everything = [workload for suite in SUITES.values() for workload in suite]
    if name == "all":
        return [workload for suite, workloads in SUITES.items() if suite not in APART for workload in workloads]
    found = list(SUITES.get(name, ())) or [workload for workload in everything if workload.name == name]
    if not found:
        parts = [workload.name for workload in everything if workload.name not in SUITES]
        raise ConfigError(f"there is no workload {name!r}; there are: {', '.join([*SUITES, 'all', *parts])}")
    return found
