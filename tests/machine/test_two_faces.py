"""A mount and an fsspec filesystem on one node, against a plain model, through kills, power losses, the loss of the
node, evictions, paused uploads and what others write at the origin.

``MACHINE_EXAMPLES=200`` runs that many random examples of each machine instead of a few fixed ones, and
``MACHINE_LOOK_EVERY=1`` looks at everything after each step.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rig.choices import CHOICE, FILES, SIZES
from rig.fsspec_rules import FsspecRules
from rig.inodes import Loss
from rig.mount_rules import MountRules
from rig.two_faces import Contest
from tiercache.model import Keep

LOOK_EVERY = int(os.environ.get("MACHINE_LOOK_EVERY", "10"))
"""Steps. Everything is looked at after each kill and loss as well."""


class Machine(MountRules, FsspecRules, RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.set_up()
        self.steps = 0

    @initialize(paths=st.sets(FILES, min_size=3, max_size=6), size=SIZES)
    def start(self, paths: set[str], size: int) -> None:
        self.begin(paths, size)

    def teardown(self) -> None:
        self.tear_down()

    @invariant()
    def as_the_model_says(self) -> None:
        self.model.give_up_old_names(lambda file: self.writers(file) > 0)
        self.steps += 1
        if self.steps % LOOK_EVERY == 0:
            self.look()

    # -- what happens to all --------------------------------------------------------------------------

    @rule(what=st.sampled_from(["hold", "hold", "release", "drain", "evict", "stop", "look"]))
    def event(self, what: str) -> None:
        match what:
            case "hold":
                self.node.gate.hold()
            case "release":
                self.node.gate.release()
            case "drain":
                self.drain()
            case "evict":
                self.node.evict()
            case "stop":
                self.settle("")
                self.stop()
                self.look()
            case "look":
                self.look()

    @rule(calls=st.sampled_from([0, 1, 2, 3, 5, 8, 13, 21]))
    def crash(self, calls: int) -> None:
        self.settle("")
        self.kill(calls)
        self.look()

    @rule(loss=st.sampled_from([Loss.POWER, Loss.POWER, Loss.NODE]), seed=CHOICE)
    def lose_it(self, loss: Loss, seed: int) -> None:
        self.lose(loss, seed)

    @precondition(lambda self: not self.ttl_s)
    @rule(path=FILES, size=st.one_of(st.none(), SIZES))
    def foreign_change(self, path: str, size: int | None) -> None:
        """Somebody else writes or deletes at the origin, whatever is dirty or open here."""
        self.settle(path)
        model = self.model
        if model.bad_parent(path) or path in model.directories:
            return
        old = model.files.get(path)
        if old is not None and model.count(old) > 1:
            return
        for writing in [w for w in self.writings if w.path == path]:
            self.writings.remove(writing)
            writing.writer.discard()
        data = None if size is None else self.content(size)
        if data is None and path not in self.node.at_origin():
            return
        model.make_room(path)
        if data is None:
            self.node.origin.delete(self.key(path))
        else:
            self.put_past_gate(path, data)
        if old is None and data is not None:
            self.adopt(path, data)
        elif old is not None:
            self.contests[path] = Contest(old, data)

    @precondition(lambda self: self.contests)
    @rule(choice=CHOICE, keep=st.sampled_from([Keep.OURS, Keep.THEIRS]))
    def end(self, choice: int, keep: Keep) -> None:
        self.end_contest(sorted(self.contests)[choice % len(self.contests)], keep)


class TreeMachine(Machine):
    pass


class StoreMachine(Machine):
    store = True


class LendingTreeMachine(Machine):
    """Names are believed for ever: our own bookkeeping alone keeps them current."""

    ttl_s = float("inf")
    lends = True


class LendingStoreMachine(Machine):
    store = True
    ttl_s = float("inf")
    lends = True


@pytest.mark.parametrize("machine", [TreeMachine, StoreMachine, LendingTreeMachine, LendingStoreMachine])
def test_both_faces_show_what_was_written_and_nothing_acknowledged_is_lost(machine: type[Machine]) -> None:
    budget = int(os.environ.get("MACHINE_EXAMPLES", "2"))
    profile = settings(
        max_examples=budget,
        stateful_step_count=40,
        deadline=None,
        derandomize="MACHINE_EXAMPLES" not in os.environ,
        database=None,
        phases=[Phase.generate],  # a failure is reproducible as it is; shrinking it takes minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=profile)
