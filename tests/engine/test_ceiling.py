"""The ceiling of the engine's memory: what is refused, what is left for files, and how it follows the process."""

from __future__ import annotations

import logging
import mmap

import pytest

from tiercache.config import Config
from tiercache.engine.ceiling import Ceiling, anonymous_bytes, left_bytes, needed, open_memory
from tiercache.errors import ConfigError
from tiercache.memory import SMALLEST_BYTES, Memory, Purpose
from tiercache.metrics import Metrics
from tiercache.units import MIB

OWN = 30 * MIB


class Process:
    """A process as its ceiling sees it."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.own_bytes = OWN
        self.freed_bytes = 0
        self.trims = 0

    def measure(self) -> int:
        return self.own_bytes + self.freed_bytes + self.memory.used_bytes()

    def trim(self) -> None:
        self.trims += 1
        self.freed_bytes = 0


def started(maximum: str) -> tuple[Ceiling, Process, int]:
    memory, maximum_bytes = open_memory(Config(memory_max=maximum), Metrics(), OWN)  # type: ignore[arg-type]
    process = Process(memory)
    ceiling = Ceiling(maximum_bytes, memory, OWN, measure=process.measure, trim=process.trim)
    ceiling.adjust()
    return ceiling, process, maximum_bytes


def test_a_size_that_is_too_low_is_one_line_that_says_what_is_needed() -> None:
    least = needed(OWN)
    with pytest.raises(ConfigError) as caught:
        open_memory(Config(memory_max=str(least - MIB)), Metrics(), OWN)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"memory_max: {least // MIB - 1} MiB is too little to work with; the engine needs at least {least // MIB} MiB"
    )
    memory, maximum_bytes = open_memory(Config(memory_max=str(least)), Metrics(), OWN)  # type: ignore[arg-type]
    assert maximum_bytes == least
    assert SMALLEST_BYTES <= memory.total_bytes < SMALLEST_BYTES + 2 * MIB


def test_a_share_is_never_less_than_the_engine_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small machine the default must work."""
    monkeypatch.setattr("tiercache.config.schema.memory_limit_bytes", lambda: 200 * MIB)
    _, maximum_bytes = open_memory(Config(), Metrics(), OWN)
    assert maximum_bytes == needed(OWN) < 200 * MIB


def test_settings_of_single_purposes_stay_bounds() -> None:
    config = Config(memory_max="4GiB", fetch={"buffer_bytes": "3MiB"}, readahead={"budget_bytes": 0})  # type: ignore[arg-type]
    memory, _ = open_memory(config, Metrics(), OWN)
    assert memory.piece_bytes(Purpose.FETCH) == 3 * MIB
    assert not memory.try_take(Purpose.READAHEAD, 1)


def test_what_the_process_needs_for_itself_files_do_not_get() -> None:
    """Names and libraries grow: the account shrinks by as much, and grows again when they are gone for long."""
    ceiling, process, maximum_bytes = started("512MiB")
    before = process.memory.total_bytes
    process.own_bytes = 150 * MIB
    ceiling.adjust()
    assert process.memory.total_bytes == left_bytes(maximum_bytes, 150 * MIB) < before
    process.own_bytes = OWN
    ceiling.adjust()
    assert process.memory.total_bytes < before, "not at the first sight"
    for _ in range(100):
        ceiling.adjust()
    assert process.memory.total_bytes == before


def test_freed_memory_is_given_back_before_files_get_less() -> None:
    ceiling, process, _ = started("256MiB")
    before = process.memory.total_bytes
    process.freed_bytes = 100 * MIB
    ceiling.adjust()
    assert (process.trims, process.memory.total_bytes) == (1, before)


def test_bytes_on_the_account_are_not_taken_for_the_process() -> None:
    ceiling, process, _ = started("256MiB")
    before = process.memory.total_bytes
    assert process.memory.try_take(Purpose.READAHEAD, 16 * MIB)
    ceiling.adjust()
    assert (process.trims, process.memory.total_bytes) == (0, before)


def test_a_ceiling_that_names_outgrow_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The engine goes on with the least that it can work with."""
    ceiling, process, _ = started("256MiB")
    process.own_bytes = 400 * MIB
    with caplog.at_level(logging.WARNING):
        ceiling.adjust()
        ceiling.adjust()
    assert process.memory.total_bytes == SMALLEST_BYTES
    assert caplog.text.count("memory_max:") == 1


def test_only_anonymous_memory_is_measured() -> None:
    before = anonymous_bytes()
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"x" * (64 * MIB))
        assert anonymous_bytes() - before > 60 * MIB
    assert anonymous_bytes() - before < 10 * MIB
