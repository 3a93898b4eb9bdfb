"""Show what the engine says of itself, or of one file."""

from __future__ import annotations

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from tiercache.units import format_count, format_duration, format_size

DIRTY_SHOWN_MAX = 20


def print_json(answer: dict[str, Any]) -> None:
    """Plain JSON, for programs."""
    print(json.dumps(answer, indent=2, default=str))


def print_engine(status: dict[str, Any]) -> None:
    """Tables for people."""
    engine = status["engine"]
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"engine  pid {engine['pid']}, up {format_duration(engine['uptime_s'])}, version {engine['version']}, "
        f"{escape(str(engine['cache_dir']))}"
    )
    if not engine["supervisor_pid"]:
        console.print("        no supervisor: the mounts would end with a crash of the engine")
    elif engine["restarts"]:
        console.print(f"        replaced {format_count(engine['restarts'], 'time')}, see its engine.log")
    parts: list[Any] = [_tiers(status)]
    if status["mounts"]:
        parts.append(_mounts(status["mounts"]))
    parts.append(_dirty_line(status))
    if status["dirty"]["list"]:
        parts.append(_dirty(status["dirty"]))
    console.print(Group(*parts))


def _tiers(status: dict[str, Any]) -> Table:
    figures = status["metrics"]
    misses = float(figures.get("misses_total", 0))
    reads = misses + sum(tier["hits"] for tier in status["tiers"].values())
    table = _table("tier", *map(_right, ("used", "capacity", "files", "hits", "ratio", "filled", "evicted", "damaged")))
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


def _mounts(mounts: list[dict[str, Any]]) -> Table:
    table = _table("mount point", "origin", "profile", "driver", "")
    for mount in mounts:
        table.add_row(
            *map(Text, (mount["mountpoint"], mount["url"], mount["profile"], mount["driver"])),
            "ro" if mount["read_only"] else "",
        )
    return table


def _dirty_line(status: dict[str, Any]) -> Text:
    dirty, uploads = status["dirty"], status["uploads"]
    states = ", ".join(f"{number} {state}" for state, number in dirty["states"].items())
    files = format_count(dirty["files"], "file")
    what = f"{files}, {format_size(dirty['bytes'])} ({states})" if dirty["files"] else "nothing"
    return Text(
        f"dirty   {what}; uploads: {uploads['in_flight']:.0f} running, {uploads['committed']:.0f} done, "
        f"{uploads['failed']:.0f} failed"
    )


def _dirty(dirty: dict[str, Any]) -> Table:
    table = _table("dirty file", "state", _right("size"), _right("sent"), _right("attempts"), "last error")
    for file in dirty["list"][:DIRTY_SHOWN_MAX]:
        sent = f"{file['sent_bytes'] / file['size_bytes']:.0%}" if file["size_bytes"] else "–"
        table.add_row(
            Text(file["path"]),
            file["state"],
            format_size(file["size_bytes"]),
            sent,
            str(file["attempts"]),
            Text(file["last_error"]),
        )
    if dirty["files"] > DIRTY_SHOWN_MAX:
        table.add_row(f"and {dirty['files'] - DIRTY_SHOWN_MAX} more", "", "", "", "", "")
    return table


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
        "safe on": {"memory": "this node's memory", "local": "this node's disk", "origin": "the origin"}.get(
            file["durable"], file["durable"]
        ),
        "size": format_size(file["size_bytes"]),
    }
    if file["state"] != "clean":
        rows["sent"] = format_size(file["sent_bytes"])
    if file["last_error"]:
        rows["last error"] = file["last_error"]
    if resident := file.get("resident"):
        tiers = [name for name in ("ram", "nvme") if resident[name]]
        rows["cached"] = f"{format_size(resident['resident_bytes'])} in {' and '.join(tiers)}" if tiers else "nothing"
    for mountpoint, mode in file.get("io", {}).items():
        rows[f"read by {mountpoint}" if len(file["io"]) > 1 else "read"] = _IO.get(mode, mode)
    for name, value in rows.items():
        console.print(Text(f"{name:<11}{value}"))


def _table(*headers: Column | str) -> Table:
    columns = [Column(header, no_wrap=True) if isinstance(header, str) else header for header in headers]
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False)


def _right(header: str) -> Column:
    return Column(header, justify="right", no_wrap=True)
