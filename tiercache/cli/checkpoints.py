"""Show the checkpoints in a directory: which are complete, and how far the others have come."""

from __future__ import annotations

import os
import time
from typing import Any

from rich.console import Console

from tiercache.cli.status import WIDTH_MAX, headed, print_json
from tiercache.units import format_duration, format_size


def show(path: str, found: list[dict[str, Any]], *, as_json: bool) -> None:
    """The latest first."""
    for checkpoint in found:
        checkpoint["name"] = os.fsdecode(checkpoint["name"])
    if as_json:
        print_json(found)
    elif not found:
        print(f"{path}: no checkpoint; what is one is told by checkpoints.patterns")
    else:
        Console(highlight=False, soft_wrap=True, width=WIDTH_MAX).print(_rows(found))


def _rows(found: list[dict[str, Any]]) -> Any:
    rows = headed("checkpoint", "age", "files", "size", "has reached", "")
    for checkpoint in found:
        rows.add_row(
            checkpoint["name"],
            format_duration(max(0.0, time.time() - checkpoint["saved"])),
            str(checkpoint["files"]),
            format_size(checkpoint["size_bytes"]),
            checkpoint["level"],
            "complete" if checkpoint["complete"] else checkpoint["lacks"],
        )
    return rows
