"""A plan's bookkeeping: what is sent for next, how a read was met, and what is held for the reader."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.model import Key, VersionId
from tiercache.readahead import Plan, Read
from tiercache.readahead.plan import BEHIND_ENTRIES, HORIZON_ENTRIES, LAG_ENTRIES


def key(number: int) -> Key:
    return b"%d" % number


def version(number: int) -> VersionId:
    return VersionId(b"v%d" % number)


def numbered(entries: int) -> Plan:
    return Plan(lambda first: map(key, range(first, entries)))


def bring(plan: Plan, size_bytes: int = 10) -> int:
    """Send for the next entry, which arrives; its number."""
    step = plan.take()
    assert step is not None
    plan.brought(step, version(step.position), size_bytes)
    return step.position


def test_entries_are_taken_in_their_order_and_held_until_they_are_read() -> None:
    plan = numbered(5)
    assert [bring(plan) for _ in range(3)] == [0, 1, 2]
    assert (plan.lead, plan.held_bytes) == (3, 30)
    assert plan.read(key(0)) is Read.READY
    assert (plan.lead, plan.held_bytes, plan.front) == (2, 20, 1)
    assert [bring(plan), bring(plan)] == [3, 4]
    assert plan.take() is None


def test_a_read_tells_whether_its_file_was_there_on_its_way_or_forgotten() -> None:
    plan = numbered(4)
    bring(plan)
    assert plan.take() is not None
    assert [plan.read(key(n)) for n in (0, 1, 2)] == [Read.READY, Read.LATE, Read.MISSED]
    assert plan.read(b"elsewhere") is None
    assert plan.read(key(1)) is None  # it comes only once
    # What was read before it was sent for is not sent for any more.
    assert bring(plan) == 3


def test_what_arrives_after_it_was_read_is_held_for_nobody() -> None:
    plan = numbered(2)
    step = plan.take()
    assert step is not None
    assert plan.read(key(0)) is Read.LATE
    plan.brought(step, version(0), 10)
    assert plan.held_bytes == 0


def test_a_file_may_come_more_than_once() -> None:
    plan = Plan(lambda first: iter([b"a", b"b", b"a"][first:]))
    for _ in range(3):
        bring(plan)
    assert [plan.read(b"a"), plan.read(b"b"), plan.read(b"a"), plan.read(b"a")] == [Read.READY] * 3 + [None]
    assert plan.finished


def test_a_file_is_known_by_its_version_too() -> None:
    plan = numbered(2)
    bring(plan)
    assert plan.read_version(version(0)) is Read.READY
    assert plan.read_version(version(0)) is None
    assert plan.read_version(version(1)) is None


def test_workers_may_overtake_each_other() -> None:
    plan = numbered(100)
    for _ in range(60):
        bring(plan)
    assert plan.read(key(50)) is Read.READY
    assert (plan.front, plan.lead) == (51, 9)
    assert plan.read(key(3)) is Read.READY
    assert (plan.front, plan.skipped, plan.held_bytes) == (51, 0, 580)


def test_what_is_left_far_behind_is_not_waited_for() -> None:
    """The kernel has it in its page cache, or the reader skipped it: its bytes do not count for ever."""
    plan = numbered(2 * LAG_ENTRIES)
    for _ in range(10):
        bring(plan)
    plan.reached(LAG_ENTRIES + 4)
    assert (plan.skipped, plan.held_bytes) == (4, 60)
    assert plan.read(key(3)) is None
    assert plan.read(key(4)) is Read.READY


def test_what_hindmost_workers_come_to_is_sent_for_before_what_lies_ahead() -> None:
    """The foremost worker has its batch, the others have not begun theirs."""
    plan = numbered(2 * BEHIND_ENTRIES)
    assert [bring(plan), bring(plan)] == [0, 1]
    plan.reached(BEHIND_ENTRIES)
    assert plan.read(key(3)) is Read.MISSED
    assert [bring(plan), bring(plan), bring(plan)] == [2, 4, 5]
    plan.reached(BEHIND_ENTRIES + 100)
    assert bring(plan) == 100, "what is too far behind was read, or is not going to be"
    assert plan.lead == 0


def test_a_reader_that_jumps_ahead_is_followed() -> None:
    plan = numbered(10 * HORIZON_ENTRIES)
    bring(plan)
    plan.reached(5 * HORIZON_ENTRIES)
    assert bring(plan) == 5 * HORIZON_ENTRIES
    plan.reached(3)  # an old notice
    assert plan.front == 5 * HORIZON_ENTRIES


def test_of_a_long_plan_only_what_is_near_is_in_memory() -> None:
    drawn = count()

    def endless(_: int) -> Iterator[Key]:
        for _ in count():
            yield key(next(drawn))

    plan = Plan(endless)
    for number in range(20_000):
        bring(plan)
        plan.read(key(number))
    assert next(drawn) == 20_000 + HORIZON_ENTRIES


def test_what_a_reader_leaps_over_is_not_drawn() -> None:
    """Ten million entries would keep the engine from everything else."""
    drawn: list[int] = []

    def keys_from(first: int) -> Iterator[Key]:
        for number in range(first, 20_000_000):
            drawn.append(number)
            yield key(number)

    plan = Plan(keys_from)
    plan.reached(10_000_000)
    assert plan.read(key(10_000_000 - LAG_ENTRIES)) is Read.MISSED
    assert bring(plan) == 10_000_000
    assert len(drawn) == 2 * HORIZON_ENTRIES + LAG_ENTRIES


def test_a_plan_that_is_given_up_holds_nothing() -> None:
    plan = numbered(10)
    bring(plan)
    under_way = plan.take()
    assert under_way is not None
    plan.give_up()
    assert (plan.held_bytes, plan.finished, plan.take()) == (0, True, None)
    plan.brought(under_way, version(1), 10)
    assert plan.held_bytes == 0


def test_what_is_not_there_is_left_to_its_reader() -> None:
    plan = numbered(2)
    step = plan.take()
    assert step is not None
    plan.failed(step, again=False)
    assert bring(plan) == 1
    assert plan.read(key(0)) is Read.MISSED


def test_what_failed_is_sent_for_again_as_long_as_its_reader_has_not_come() -> None:
    plan = numbered(3)
    for number in (0, 1):
        step = plan.take()
        assert step is not None
        plan.failed(step, again=True)
        assert bring(plan) == number
    step = plan.take()
    assert step is not None
    assert plan.read(key(2)) is Read.LATE
    plan.failed(step, again=True)
    assert plan.take() is None


CALLS = st.lists(
    st.one_of(
        st.just(("bring", 0)),
        st.tuples(st.just("read"), st.integers(0, 40)),
        st.tuples(st.just("reached"), st.integers(0, 50)),
    ),
    max_size=120,
)


@given(calls=CALLS)
@settings(max_examples=200, deadline=None)
def test_what_is_held_is_what_was_brought_and_neither_read_nor_left_behind(calls: list[tuple[str, int]]) -> None:
    plan, held = numbered(40), set[int]()
    for call, number in calls:
        match call:
            case "bring" if plan.can_take:
                held.add(bring(plan, size_bytes=1))
            case "read":
                plan.read(key(number))
                held.discard(number)
            case "reached":
                plan.reached(number)
        assert plan.held_bytes == len(held)
