"""docs/commands.md tells of every command and every state."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from tiercache.cli.app import app
from tiercache.model import StagedState

TEXT = (Path(__file__).parents[2] / "docs/commands.md").read_text()


def test_every_command_is_told() -> None:
    commands = {name for name, command in typer.main.get_command(app).commands.items() if not command.hidden}
    told = {name.split()[0] for name in re.findall(r"^\| `([^`]+)`", TEXT, re.MULTILINE)}
    assert commands - {"version"} <= told


def test_every_state_is_told() -> None:
    told = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    assert {"clean", *StagedState} - {StagedState.CANCELLED} <= told
