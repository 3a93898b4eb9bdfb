"""Pin what is not to be evicted, unpin it, and list what is pinned."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from tiercache.cli.place import Place
from tiercache.cli.status import WIDTH_MAX, headed, print_json
from tiercache.cli.warmup import follow_warmup
from tiercache.units import format_size


def pin(place: Place, *, recursive: bool, warm: bool) -> None:
    """With ``warm`` wait until all of it is in the cache; Broken when some is not."""
    print(f"{place.request('pin', recursive=recursive)} is pinned")
    if warm:
        follow_warmup(place.engine, "warmup_path", path=place.path, asker=place.asker)


def show(pins: list[dict[str, Any]], *, as_json: bool) -> None:
    """One a line: its files as far as this node knows them, and what of them is here."""
    if as_json:
        print_json(pins)
    elif not pins:
        print("nothing is pinned")
    else:
        rows = headed("pinned", "files", "size", "here")
        for each in pins:
            row = (str(each["files"]), format_size(each["bytes"]), format_size(each["resident_bytes"]))
            rows.add_row(each["name"], *row)
        Console(highlight=False, soft_wrap=True, width=WIDTH_MAX, markup=False).print(rows)
