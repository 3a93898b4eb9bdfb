"""What is guessed from the order in which files are opened, where nobody told one. No engine, no clock."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable

import pytest

from tiercache.model import Key, VersionId
from tiercache.readahead import Guess, Read

FILE_BYTES = 100


class Directories:
    """Known directories by their names; counts the questions."""

    def __init__(self, **directories: list[bytes]) -> None:
        self.files = {name.encode(): sorted(files) for name, files in directories.items()}
        self.asked: list[Key] = []

    def files_after(self, directory: Key, name: bytes, most: int) -> list[bytes] | None:
        self.asked.append(directory)
        files = self.files.get(directory)
        return None if files is None else files[(start := bisect_right(files, name)) : start + most]

    def directory_after(self, directory: Key) -> Key | None:
        return min((other for other in self.files if other > directory), default=None)


class Reader:
    """Reads files; whatever is guessed is there at once."""

    def __init__(self, directories: Directories, *, files_max: int = 1000, bytes_max: int = 1 << 30) -> None:
        self.guess = Guess(directories, files_max=files_max, bytes_max=bytes_max)
        self.brought: list[Key] = []
        self.hits = 0
        self.missed = 0

    def read(self, key: Key) -> None:
        if self.guess.read(key) is Read.READY:
            self.hits += 1
        else:
            self.missed += 1
            self.guess.missed(key)
        self.bring()

    def bring(self) -> None:
        while (step := self.guess.take()) is not None:
            self.brought.append(step.key)
            self.guess.brought(step, VersionId(b"of" + step.key), FILE_BYTES)

    def read_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.read(key)

    @property
    def wasted(self) -> int:
        return len(self.brought) - self.hits


def names(files: int, *, ending: str = "jpg", first: int = 0) -> list[bytes]:
    return [b"%06d.%s" % (number, ending.encode()) for number in range(first, first + files)]


def keys(files: Iterable[bytes], directory: str = "d") -> list[Key]:
    return [directory.encode() + b"/" + name for name in files]


def test_a_scan_is_seen_by_its_third_file_and_all_others_are_there() -> None:
    files = names(2000)
    reader = Reader(Directories(d=files))
    reader.read_all(keys(files))
    assert (reader.missed, reader.hits, reader.wasted) == (3, 1997, 0)


def test_no_file_is_brought_twice_and_none_that_is_read_already() -> None:
    files = names(500)
    reader = Reader(Directories(d=files))
    reader.read_all(keys(files))
    assert len(set(reader.brought)) == len(reader.brought)
    assert not set(reader.brought) & set(keys(files[:3]))


@pytest.mark.parametrize("read", [10, 50, 200])
def test_what_is_wasted_at_the_end_is_less_than_what_was_of_use(read: int) -> None:
    files = names(2000)
    reader = Reader(Directories(d=files))
    reader.read_all(keys(files[:read]))
    assert reader.hits == read - 3
    assert reader.wasted <= reader.hits + 8


@pytest.mark.parametrize("step", [2, 4, 7, 64])
def test_every_nth_file(step: int) -> None:
    files = names(3000)
    reader = Reader(Directories(d=files))
    mine = keys(files[1::step])
    reader.read_all(mine)
    assert reader.missed == 3
    assert set(reader.brought) <= set(mine)


def test_some_of_the_ranks_of_a_job() -> None:
    """Two of eight run here, not in step."""
    files = names(8000)
    reader = Reader(Directories(d=files))
    ranks = [keys(files[1::8]), keys(files[4::8])]
    rng = random.Random(1)
    while all(ranks):
        reader.read(rng.choice(ranks).pop(0))
    assert reader.missed <= 40
    assert set(reader.brought) <= set(keys(files[1::8] + files[4::8]))


def test_workers_that_take_turns() -> None:
    """Each reads every fourth file, at a pace of its own."""
    files = keys(names(4000))
    reader = Reader(Directories(d=names(4000)))
    workers = [files[worker::4] for worker in range(4)]
    rng = random.Random(1)
    while any(workers):
        worker = rng.choice([worker for worker in workers if worker])
        reader.read(worker.pop(0))
    assert reader.missed <= 60
    assert reader.wasted == 0


def test_workers_that_have_parts_of_the_directory() -> None:
    files = names(4000)
    reader = Reader(Directories(d=files))
    parts = [keys(files[start : start + 1000]) for start in range(0, 4000, 1000)]
    for turn in zip(*parts, strict=True):
        reader.read_all(turn)
    assert reader.missed <= 40
    assert reader.wasted == 0


def test_workers_that_have_batches_in_turn() -> None:
    """As a DataLoader without shuffling. Its first files look like every 64th."""
    files = names(6400)
    reader = Reader(Directories(d=files))
    batches = [keys(files[start : start + 64]) for start in range(0, 6400, 64)]
    for start in range(0, 100, 4):
        for turn in zip(*batches[start : start + 4], strict=True):
            reader.read_all(turn)
    assert reader.missed <= 100
    assert reader.wasted == 0


def test_only_the_ending_that_is_read() -> None:
    files = sorted(names(1000) + names(1000, ending="json") + names(1000, ending="txt"))
    reader = Reader(Directories(d=files))
    mine = keys(names(1000))
    reader.read_all(mine)
    assert reader.missed == 3
    assert set(reader.brought) <= set(mine)


def test_an_ending_that_comes_later() -> None:
    files = sorted([*names(500)[:50], *names(450, ending="png", first=50)])
    reader = Reader(Directories(d=files))
    reader.read_all(keys(files))
    assert reader.missed <= 4


def test_random_order_in_a_large_directory_costs_next_to_nothing() -> None:
    files = names(20000)
    directories = Directories(d=files)
    reader = Reader(directories)
    order = keys(files)
    random.Random(1).shuffle(order)
    reader.read_all(order[:10000])
    assert reader.wasted <= 100
    assert len(directories.asked) <= 1000


def test_random_order_over_many_directories() -> None:
    directories = Directories(**{f"class{number:03}": names(100) for number in range(200)})
    reader = Reader(directories)
    order = [key for number in range(200) for key in keys(names(100), f"class{number:03}")]
    random.Random(1).shuffle(order)
    reader.read_all(order)
    assert reader.wasted <= 200
    assert len(directories.asked) <= 2000


def test_misses_of_random_order_count_as_no_faults_of_scans() -> None:
    files = names(2000)
    reader = Reader(Directories(d=files))
    order = keys(files)
    random.Random(1).shuffle(order)
    faults = 0
    for key in order[:500]:
        if reader.guess.read(key) is None:
            faults += reader.guess.missed(key)
        reader.bring()
    assert faults <= 10


def test_a_scan_after_random_reads_is_seen_though_later() -> None:
    files = names(20000)
    reader = Reader(Directories(d=files))
    order = keys(files[:10000])
    random.Random(1).shuffle(order)
    reader.read_all(order)
    missed = reader.missed
    reader.read_all(keys(files[10000:]))
    assert reader.missed - missed <= 200


def test_the_walk_goes_on_in_the_next_directory() -> None:
    directories = Directories(a=names(40), b=names(40), c=names(40))
    reader = Reader(directories)
    reader.read_all(key for directory in "abc" for key in keys(names(40), directory))
    assert reader.missed == 3
    assert reader.wasted == 0


def test_small_directories_are_brought_as_far_ahead_as_large_ones() -> None:
    directories = Directories(**{f"d{number:03}": names(5) for number in range(100)})
    reader = Reader(directories)
    reader.read_all(key for number in range(100) for key in keys(names(5), f"d{number:03}"))
    assert reader.missed <= 5
    assert reader.wasted == 0


def test_a_directory_that_is_not_known_is_asked_for_when_a_scan_is_likely() -> None:
    directories = Directories()
    reader = Reader(directories)
    files = names(100)
    reader.read_all(keys(files[:2]))
    assert directories.asked == []
    reader.read_all(keys(files[2:4]))
    assert directories.asked
    directories.files[b"d"] = files
    reader.read_all(keys(files[4:]))
    assert reader.missed == 5


def test_siblings_are_brought_once_they_were_read_with_some_samples() -> None:
    """In random order, and without a listing."""
    directories = Directories()
    reader = Reader(directories)
    samples = list(range(1000))
    random.Random(1).shuffle(samples)
    for number in samples:
        for ending in (b"jpg", b"json", b"seg.png"):
            reader.read(b"d/%06d.%s" % (number, ending))
    assert reader.missed <= 1000 + 20
    assert reader.wasted == 0


def test_siblings_that_are_read_no_more_are_brought_no_more() -> None:
    reader = Reader(Directories())
    for number in range(100):
        for ending in (b"jpg", b"json"):
            reader.read(b"d/%06d.%s" % (number, ending))
    for number in range(100, 1000):
        reader.read(b"d/%06d.jpg" % number)
    assert reader.wasted <= 64 + 10


def test_a_scan_brings_the_siblings_along() -> None:
    files = sorted(names(1000) + names(1000, ending="json") + names(1000, ending="txt"))
    reader = Reader(Directories(d=files))
    mine = [key for number in range(1000) for key in (b"d/%06d.jpg" % number, b"d/%06d.txt" % number)]
    reader.read_all(mine)
    assert reader.missed <= 20
    assert reader.wasted <= 2
    assert not any(key.endswith(b"json") for key in reader.brought)


def test_every_nth_sample_with_its_siblings() -> None:
    files = sorted(names(2000) + names(2000, ending="json"))
    reader = Reader(Directories(d=files))
    mine = [key for number in range(0, 2000, 4) for key in (b"d/%06d.jpg" % number, b"d/%06d.json" % number)]
    reader.read_all(mine)
    assert reader.missed <= 20
    assert set(reader.brought) <= set(mine)


def test_no_more_files_and_bytes_are_ahead_than_allowed() -> None:
    files = names(3000)
    reader = Reader(Directories(d=files), files_max=100)
    few = Reader(Directories(d=files), bytes_max=50 * FILE_BYTES)
    for key in keys(files[:2000]):
        reader.read(key)
        few.read(key)
        assert reader.guess.lead <= 100
        assert few.guess.held_bytes <= 50 * FILE_BYTES
    assert reader.missed == few.missed == 3
    assert len(reader.brought) == 3 + len(few.brought) + 47  # each has its own bound full


def test_removed_files_are_no_waste_and_end_nothing() -> None:
    files = names(1000)
    reader = Reader(Directories(d=files))
    left = [key for number, key in enumerate(keys(files)) if number % 3]
    reader.read_all(left[:10])
    for key in left[10:]:
        if reader.guess.read(key) is None:
            reader.missed += 1
            reader.guess.missed(key)
        while (step := reader.guess.take()) is not None:
            if step.key in left:
                reader.guess.brought(step, VersionId(step.key), FILE_BYTES)
            else:
                reader.guess.failed(step, again=False)
    assert reader.missed <= 5
    assert reader.guess.skipped == 0


def test_a_scan_that_reads_too_little_of_what_it_is_given_ends() -> None:
    """Irregularly, one of four."""
    files = names(20000)
    reader = Reader(Directories(d=files))
    rng = random.Random(1)
    mine = [files[number + rng.randrange(4)] for number in range(0, 20000, 4)]
    reader.read_all(keys(mine))
    assert reader.wasted <= 1500


def test_what_is_given_up_counts_as_skipped_and_holds_nothing() -> None:
    files = names(1000)
    reader = Reader(Directories(d=files))
    reader.read_all(keys(files[:100]))
    waits = reader.guess.lead
    assert waits > 0
    reader.guess.give_up()
    assert (reader.guess.lead, reader.guess.held_bytes, reader.guess.scans) == (0, 0, 0)
    assert reader.guess.skipped == waits
    missed = reader.missed
    reader.read_all(keys(files[500:]))
    assert reader.missed - missed == 3


def test_a_file_that_arrives_after_it_was_read_holds_nothing() -> None:
    files = names(100)
    reader = Reader(Directories(d=files))
    for key in keys(files[:3]):
        reader.guess.missed(key)
    step = reader.guess.take()
    assert step is not None
    assert step.key == keys(files)[3]
    assert reader.guess.read(step.key) is Read.LATE
    reader.guess.brought(step, VersionId(b"x"), FILE_BYTES)
    assert reader.guess.held_bytes == 0
    assert reader.guess.read_version(VersionId(b"x")) is None


def test_reads_of_copies_are_told_by_their_versions() -> None:
    files = names(100)
    reader = Reader(Directories(d=files))
    reader.read_all(keys(files[:3]))
    held = reader.guess.lead
    assert reader.guess.read_version(VersionId(b"of" + keys(files)[3])) is Read.READY
    assert reader.guess.read_version(VersionId(b"of" + keys(files)[3])) is None
    assert reader.guess.lead == held - 1
