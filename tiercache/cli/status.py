"""Show what the engine says of itself, or of one file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from tiercache.units import format_count, format_duration, format_size

DIRTY_SHOWN_MAX = 20

ENDED = ("conflict", "lost")
RESOLVE = "tiercache resolve PATH --keep ours|theirs|both"
"""What brings files in these states further."""

WIDTH_MAX = 10_000
"""A table is as wide as what is in it."""


def print_json(answer: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Plain JSON, for programs."""
    print(json.dumps(answer, indent=2, default=str))


def print_engine(status: dict[str, Any]) -> None:
    """Tables for people. Nothing is cut off, however narrow the terminal is: long lines go on below."""
    engine = status["engine"]
    console = Console(highlight=False, soft_wrap=True, width=WIDTH_MAX)
    console.print(
        f"engine  pid {engine['pid']}, up {format_duration(engine['uptime_s'])}, version {engine['version']}, "
        f"{escape(str(engine['cache_dir']))}"
    )
    if not engine["supervisor_pid"]:
        console.print("        no supervisor: the mounts would end with a crash of the engine")
    elif engine["restarts"]:
        console.print(f"        replaced {format_count(engine['restarts'], 'time')}, see its engine.log")
    parts: list[Any] = ["", _tiers(status), *_out_of_use(status), *_quotas(status), ""]
    if status["mounts"]:
        parts += [_mounts(status["mounts"]), ""]
    console.print(Group(*parts, _dirty_line(status), *_dirty(status["dirty"]), *_changes(status.get("changes", []))))


def _tiers(status: dict[str, Any]) -> Table:
    figures = status["metrics"]
    misses = float(figures.get("misses_total", 0))
    reads = misses + sum(tier["hits"] for tier in status["tiers"].values())
    table = headed("tier", *map(_right, ("used", "capacity", "files", "hits", "ratio", "filled", "evicted", "damaged")))
    for name, tier in status["tiers"].items():
        table.add_row(
            name,
            format_size(tier["used_bytes"]),
            format_size(tier["capacity_bytes"]),
            f"{tier['resident']:.0f}",
            f"{tier['hits']:.0f}",
            f"{tier['hits'] / reads:.1%}" if reads else "–",
            format_size(tier["fill_bytes"]),
            f"{tier['evictions']:.0f}",
            f"{tier['damaged']:.0f}",
        )
    table.add_row("origin", "", "", "", f"{misses:.0f}", f"{misses / reads:.1%}" if reads else "–", "", "", "")
    return table


def _out_of_use(status: dict[str, Any]) -> Iterator[Text]:
    for name, tier in status["tiers"].items():
        if tier.get("state") in ("out", "probing"):
            yield Text(f"out of use: the {name} tier, whose disk fails or is slow; see engine.log")


def _quotas(status: dict[str, Any]) -> Iterator[Text]:
    for quota in status.get("quotas", []):  # an engine of an earlier release does not tell
        used, capacity = format_size(quota["used_bytes"]), format_size(quota["capacity_bytes"])
        yield Text(f"quota   {used} of {capacity} for {quota['path']}")


def _mounts(mounts: list[dict[str, Any]]) -> Table:
    table = headed("mount point", "profile", "driver", "", "origin")
    for mount in mounts:
        access = "ro" if mount["read_only"] else "rw"
        where = f"{mount['mountpoint']} (elsewhere)" if mount.get("elsewhere") else mount["mountpoint"]
        table.add_row(*map(Text, (where, mount["profile"], mount["driver"], access, mount["url"])))
    return table


def _dirty_line(status: dict[str, Any]) -> Text:
    dirty, uploads = status["dirty"], status["uploads"]
    states = ", ".join(f"{number} {state}" for state, number in dirty["states"].items())
    files = format_count(dirty["files"], "file")
    what = f"{files}, {format_size(dirty['bytes'])} ({states})" if dirty["files"] else "nothing"
    bandwidth_max = uploads.get("bandwidth_max")
    limit = f", at most {format_size(bandwidth_max)}/s now" if bandwidth_max else ""
    return Text(
        f"dirty   {what}; uploads: {uploads['in_flight']:.0f} running, {uploads['committed']:.0f} done, "
        f"{uploads['failed']:.0f} failed{limit}"
    )


def _dirty(dirty: dict[str, Any]) -> Iterator[Text]:
    """No table: a path and an error are as long as they are, and would push the rest out of sight."""
    for file in dirty["list"][:DIRTY_SHOWN_MAX]:
        facts = [file["state"], format_size(file["size_bytes"])]
        if file["size_bytes"]:
            facts.append(f"{file['sent_bytes'] / file['size_bytes']:.0%} sent")
        if file["attempts"]:
            facts.append(format_count(file["attempts"], "attempt"))
        yield Text(file["path"])
        yield Text(f"        {', '.join(facts)}")
        if file.get("waits_for"):  # an engine of an earlier release does not tell
            yield Text(f"        {file['waits_for']}")
        if file["last_error"]:
            yield Text(f"        last error: {file['last_error']}")
    if dirty["files"] > DIRTY_SHOWN_MAX:
        yield Text(f"and {dirty['files'] - DIRTY_SHOWN_MAX} more")


_CHANGES = {
    "move": "is being moved to",
    "removal": "is being removed",
    "return": "stays: the copies of an unfinished move go from",
}


def _changes(changes: list[dict[str, Any]]) -> Iterator[Text]:
    for change in changes[:DIRTY_SHOWN_MAX]:
        yield Text(f"{change['path']} {_CHANGES[change['change']]} {change['target']}".rstrip())
        yield Text(f"        {change['state']}, {format_count(change['left'], 'name')} left, {change['failed']} failed")
        if change["last_error"]:
            yield Text(f"        last error: {change['last_error']}")
    if len(changes) > DIRTY_SHOWN_MAX:
        yield Text(f"and {len(changes) - DIRTY_SHOWN_MAX} more")


_LEVELS = {"memory": "this node's memory", "local": "this node's disk", "origin": "the origin"}

SILENT = "does not answer, and this is what the node knows"

_IO = {
    "passthrough": "by the kernel, from the local file (passthrough)",
    "cached": "through the engine and the page cache",
    "closed": "by nobody now",
}


def print_path(file: dict[str, Any]) -> None:
    """One fact a line."""
    console = Console(highlight=False, soft_wrap=True)
    rows = {
        "path": file["path"],
        "kind": file["kind"],
        "state": file["state"],
        "safe on": _LEVELS.get(file["durable"], file["durable"]),
        "size": format_size(file["size_bytes"]),
    }
    if "ack" in file:
        who = "fsync and close wait" if file["sync_on_close"] else "fsync waits"
        rows["promise"] = f"{who} for {_LEVELS.get(file['ack'], file['ack']) if file['ack'] != 'memory' else 'nothing'}"
    if "dirty_files" in file:
        rows["size"] = f"{format_size(file['size_bytes'])} in {format_count(file['dirty_files'], 'file')} to go up"
    if file["state"] in ENDED:
        rows["ends by"] = RESOLVE
    if file["state"] != "clean":
        rows["sent"] = format_size(file["sent_bytes"])
    if file["last_error"]:
        rows["last error"] = file["last_error"]
    if file.get("origin_error"):  # an engine of an earlier release does not tell
        rows["origin"] = f"{SILENT}: {file['origin_error']}"
    if resident := file.get("resident"):
        tiers = [name for name in ("ram", "nvme") if resident[name]]
        rows["cached"] = f"{format_size(resident['resident_bytes'])} in {' and '.join(tiers)}" if tiers else "nothing"
    for mountpoint, mode in file.get("io", {}).items():
        rows[f"read by {mountpoint}" if len(file["io"]) > 1 else "read"] = _IO.get(mode, mode)
    for name, value in rows.items():
        console.print(Text(f"{name:<11}{value}"))


def headed(*headers: Column | str) -> Table:
    """A table without lines, as wide as what is in it."""
    columns = [Column(header, no_wrap=True) if isinstance(header, str) else header for header in headers]
    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _right(header: str) -> Column:
    return Column(header, justify="right", no_wrap=True)
