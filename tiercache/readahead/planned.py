"""Runs just ahead of readers whose order is known: brings the files of their plans before they are opened.

All plans share the requests and the bytes that may be under way; the one whose reader is nearest to what was not sent
for comes first, so that no rank of a training run starves another.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

import trio

from tiercache.config import PlanConfig
from tiercache.decisions import FORGETFUL, Decisions, Topic
from tiercache.errors import Absent, Broken, Busy, Changed, Denied, TierCacheError
from tiercache.metrics import Metrics
from tiercache.model import Key, OriginId, VersionId
from tiercache.readahead.guess import Guess
from tiercache.readahead.lead import Lead
from tiercache.readahead.plan import Plan, Read, Step

PASSING: Final = (Busy, Broken, Denied, Changed)
"""Errors that may be over soon: keys are brought by the next client, an object is replaced by another."""

PAUSE_S: Final = 0.5
"""A file that the origin does not give keeps its place among those under way for so long, and is asked for again then
(``TRIES_MAX``): a busy origin is not asked for the next thousand at once."""

PUSHED_PER_S: Final = 1000.0
"""A reader that is faster is not helped by files that are put where it reads them without asking: what that takes of
the processors, a quarter of a millisecond for 110 KB, it lacks for reading."""

FIRST_BYTES: Final = 256 * 1024
"""A file counts for so much while it is on its way, until the first ones have come: then for as much as these."""

Ahead = TypeVar("Ahead", bound=Plan | Guess)

log = logging.getLogger(__name__)


class Brought(NamedTuple):
    """A file that is here now."""

    version: VersionId
    size_bytes: int
    came: bool
    """From the origin; False: it was here."""
    kept: bool
    """In a tier; False: in memory alone, for a moment."""


class Figures:
    """What became of the files of plans, or of guesses."""

    def __init__(self, metrics: Metrics, *, guessed: bool) -> None:
        files = metrics.scan_files if guessed else metrics.plan_files
        reads = metrics.scan_reads if guessed else metrics.plan_reads
        self.files = {
            outcome: files.labels(outcome=outcome).inc
            for outcome in ("fetched", "resident", "absent", "failed", "skipped")
        }
        self.reads = {how: reads.labels(outcome=how.value) for how in Read}


class Running(Generic[Ahead]):
    """A plan that is run, or what is guessed where there is none."""

    def __init__(
        self,
        plan: Ahead,
        origin: OriginId,
        bring: Callable[[Key], Awaitable[Brought]],
        push: Callable[[Key], bool],
        lead: Lead,
        figures: Figures,
    ) -> None:
        self.plan: Ahead = plan
        self.guessed = isinstance(plan, Guess)
        self.figures = figures
        self.origin = origin
        self.bring = bring
        self.push = push
        self.lead = lead
        self.told = False
        """Whether its reader says where it is: what we do not see it read may lie ahead then."""
        self.active_s = 0.0
        """When its reader last gave a sign of life."""
        self.in_flight = 0

    @property
    def wants(self) -> float:
        """How much of its lead is missing, as a share; 0 if nothing is."""
        return max(0.0, 1.0 - self.plan.lead / self.lead.files)


class Planned:
    """``spare_bytes`` bounds what may lie ahead of the readers in memory alone, where no tier keeps it."""

    def __init__(
        self,
        config: PlanConfig,
        metrics: Metrics,
        nursery: trio.Nursery,
        *,
        at_once: int,
        spare_bytes: int,
        decisions: Decisions = FORGETFUL,
    ) -> None:
        self._config = config
        self._decisions = decisions
        self._nursery = nursery
        self._at_once = at_once
        self._spare_bytes = spare_bytes
        self._kept = True
        """Whether a tier took the last file that came."""
        self._in_flight = 0
        self._mean_bytes = float(FIRST_BYTES)
        self._running: list[Running[Any]] = []
        """Guesses come after the plans: what is planned was not guessed."""
        self._of_plans, self._of_guesses = Figures(metrics, guessed=False), Figures(metrics, guessed=True)
        metrics.plans.set_function(lambda: sum(not running.guessed for running in self._running))
        metrics.plan_in_flight.set_function(lambda: self._in_flight)
        metrics.plan_held_bytes.set_function(lambda: self.held_bytes)

    def __iter__(self) -> Iterator[Running[Any]]:
        return iter(self._running)

    @property
    def held_bytes(self) -> int:
        """Of what was brought for readers that have not come to it yet."""
        return sum(running.plan.held_bytes for running in self._running)

    def start(
        self,
        plan: Ahead,
        origin: OriginId,
        bring: Callable[[Key], Awaitable[Brought]],
        push: Callable[[Key], bool] = lambda key: False,
    ) -> Running[Ahead]:
        """Run a plan, beside the others, until ``end``. ``push`` puts a file that is here where it may be read without
        our knowing, and tells whether it will."""
        figures = self._of_guesses if isinstance(plan, Guess) else self._of_plans
        running = Running(plan, origin, bring, push, Lead(self._config.lead_min, self._config.lead_max), figures)
        running.active_s = trio.current_time()
        self._running.append(running)
        self._running.sort(key=lambda other: other.guessed)
        self._go_on()
        return running

    def end(self, running: Running[Any]) -> None:
        """Its reader is gone; what is under way arrives."""
        running.plan.give_up()
        self._told(running)
        self._running.remove(running)
        self._go_on()

    def give_up(self, running: Running[Any]) -> None:
        """Nobody reads what it has, though somebody may come back."""
        running.plan.give_up()
        self._told(running)
        self._go_on()

    def reached(self, running: Running[Any], position: int) -> None:
        """A reader tells where it is."""
        if not running.told:
            running.told = True
            for step in running.plan.waiting():
                self._push(running, step)
        for _ in range(running.plan.reached(position)):
            self._note_read(running, Read.READY)
        self._told(running)
        self._go_on()

    def opened(self, origin: OriginId, key: Key) -> bool:
        """Somebody opens a file: the plan that has it takes it as its reader's step. False if none has."""
        return self._observe(origin, lambda plan: plan.read(key))

    def missed(self, running: Running[Guess], key: Key) -> None:
        """Somebody opens a file that is not here, and that nobody had planned or guessed: it tells what comes next."""
        if running.plan.missed(key):
            self._note_read(running, Read.MISSED)
        self._told(running)
        self._go_on()

    def touched(self, version: VersionId) -> None:
        """Somebody opened the copy of a version without asking us."""
        self._observe(None, lambda plan: plan.read_version(version))

    def _observe(self, origin: OriginId | None, step: Callable[[Plan | Guess], Read | None]) -> bool:
        for running in self._running:
            if origin is not None and running.origin != origin:
                continue
            how = step(running.plan)
            if how is not None:
                self._note_read(running, how)
                self._told(running)
                self._go_on()
                return True
        return False

    def _note_read(self, running: Running[Any], how: Read) -> None:
        running.lead.read(how, trio.current_time())
        running.figures.reads[how].inc()

    def _told(self, running: Running[Any]) -> None:
        running.active_s = trio.current_time()
        skipped, running.plan.skipped = running.plan.skipped, 0
        running.figures.files["skipped"](skipped)

    def _go_on(self) -> None:
        """Send for what the readers come to next, as far as there is room."""
        while (following := self._next()) is not None:
            self._nursery.start_soon(self._bring_on, *following)

    def _next(self) -> tuple[Running[Any], Step] | None:
        """What to send for now; it counts as under way."""
        if self._in_flight >= self._at_once or not self._has_room():
            return None
        hungry = [running for running in self._running if running.wants and running.plan.can_take]
        if not hungry:
            return None
        running = max(hungry, key=lambda other: (not other.guessed, other.wants))
        step = running.plan.take()
        assert step is not None, "it said so"
        self._in_flight += 1
        running.in_flight += 1
        return running, step

    async def _bring_on(self, running: Running[Any], step: Step) -> None:
        """Bring one file, and further ones as long as there are some: a task for each costs more than it is worth."""
        following: tuple[Running[Any], Step] | None = running, step
        while following is not None:
            await self._bring(*following)
            following = self._next()
            self._go_on()

    def _has_room(self) -> bool:
        ahead_bytes = self.held_bytes + (self._in_flight + 1) * self._mean_bytes
        return ahead_bytes <= (self._config.budget_bytes if self._kept else self._spare_bytes)

    async def _bring(self, running: Running[Any], step: Step) -> None:
        began_s = trio.current_time()
        try:
            brought = await running.bring(step.key)
        except TierCacheError as error:
            running.figures.files["absent" if isinstance(error, Absent) else "failed"]()
            log.debug("a planned file did not come: %s", error)
            again = isinstance(error, PASSING)
            if again:
                await trio.sleep(PAUSE_S)
            running.plan.failed(step, again=again)
        else:
            running.plan.brought(step, brought.version, brought.size_bytes)
            if running.told and not step.read:
                self._push(running, step)
            self._note(running, brought, trio.current_time() - began_s)
        finally:
            self._in_flight -= 1
            running.in_flight -= 1

    @staticmethod
    def _push(running: Running[Any], step: Step) -> None:
        if running.lead.rate(trio.current_time()) <= PUSHED_PER_S:
            step.pushed = running.push(step.key)

    def _note(self, running: Running[Any], brought: Brought, took_s: float) -> None:
        running.figures.files["fetched" if brought.came else "resident"]()
        if brought.came:
            self._decisions.note(brought.version, Topic.AHEAD, why="guess" if running.guessed else "plan")
            self._kept = brought.kept
            running.lead.fetched(took_s)
        self._mean_bytes += (brought.size_bytes - self._mean_bytes) / 16
