"""What a mount leaves to the next engine: slots that a kill at any moment leaves either whole or free."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tiercache.fuse import estate as estates
from tiercache.fuse.estate import CHANGES_MAX, Estate, OpenFlag, OpenSlot


def slot(number: int, **fields: int) -> OpenSlot:
    values = {
        "request": number * 2,
        "inode": number + 1000,
        "size_bytes": 7,
        "content": 2**64 - 1,
        "flags": int(OpenFlag.WRITE),
        "uid": 1,
        "gid": 2,
        "pid": 3,
        "backing_id": 4,
        "reserved": 0,
        "lent_device": 5,
        "lent_inode": 2**63,
    }
    return OpenSlot(version=b"v" * 16, number=number, **(values | fields))


@pytest.fixture
def estate() -> Iterator[Estate]:
    estate = Estate.create()
    yield estate
    estate.close()


def next_engine(estate: Estate) -> Estate:
    """It has a descriptor of its own for the same memory, and the engine before it did nothing more."""
    return Estate(os.dup(estate.descriptor))


def test_open_files_are_found_as_they_were(estate: Estate) -> None:
    for number in (1, 2, 3):
        estate.opened(slot(number))
    estate.closed(2)
    again = next_engine(estate)
    assert sorted(again.inherited, key=lambda found: found.number) == [slot(1), slot(3)]
    again.closed(3)
    again.opened(slot(4)._replace(version=bytes(16)))
    third = next_engine(again)
    assert {found.number: found.version for found in third.inherited} == {1: b"v" * 16, 4: b""}
    assert [found.writes for found in third.inherited] == [True, True]
    third.close()
    again.close()


def test_what_makes_it_an_estate_is_written_once(estate: Estate) -> None:
    """An engine that is killed while it writes it anew would leave none, and the mount would be given up."""
    os.pwrite(estate.descriptor, b"mark", 0)
    estate.opened(slot(estate.new_number()))
    estate.closed(1)
    assert os.pread(estate.descriptor, 4, 0) == b"mark"


def test_no_handle_number_is_given_out_twice(estate: Estate) -> None:
    numbers = [estate.new_number() for _ in range(3)]
    again = next_engine(estate)
    assert again.new_number() > max(numbers)
    again.close()


def test_a_slot_that_was_being_written_is_free(estate: Estate) -> None:
    """The number is written last, and is all that a release takes away."""
    estate.opened(slot(1))
    estate._map[estates._OPEN_AT : estates._OPEN_AT + 88] = b"\xff" * 88
    estate.closed(1)
    again = next_engine(estate)
    assert again.inherited == []
    again.close()


def test_what_is_open_beyond_the_limit_ends_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estates, "OPEN_MAX", 2)
    estate = Estate.create()
    for number in (1, 2, 3):
        estate.opened(slot(number))
    estate.closed(3)  # it has no slot, and that is no trouble
    again = next_engine(estate)
    assert [found.number for found in again.inherited] == [1, 2]
    again.close()
    estate.close()


def test_a_change_under_way_is_told_to_the_next_engine_until_it_is_done(estate: Estate) -> None:
    with estate.changing(40, 7):
        again = next_engine(estate)
        assert again.was_changing(40) == 7
        assert again.was_changing(42) == 0
        again.close()
    with pytest.raises(ValueError, match="refused"), estate.changing(44, 8):
        raise ValueError("refused")  # answered with an error: nothing is left to finish
    with pytest.raises(KeyboardInterrupt), estate.changing(46, 9):
        raise KeyboardInterrupt  # given up, and not answered
    again = next_engine(estate)
    assert [again.was_changing(request) for request in (40, 44, 46)] == [0, 0, 9]
    with again.changing(46, 9):  # the same request, once more
        pass
    assert again.was_changing(46) == 0
    again.close()


def test_changes_that_nobody_asks_for_again_do_not_fill_the_table(estate: Estate) -> None:
    for request in range(1, CHANGES_MAX + 10):
        with pytest.raises(KeyboardInterrupt), estate.changing(request, 1):
            raise KeyboardInterrupt
    last = next_engine(estate)
    assert last.was_changing(CHANGES_MAX + 9) == 1
    last.close()


def test_memory_of_another_form_is_refused() -> None:
    descriptor = os.memfd_create("other", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, estates._SIZE_BYTES)
    with pytest.raises(ValueError, match="another form"):
        Estate(descriptor)
    os.close(descriptor)
