"""Bring staged bytes to the origins and tell what is left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiercache.cli.failure import Unfinished
from tiercache.cli.progress import Progress, progress
from tiercache.cli.status import ENDED, RESOLVE
from tiercache.units import format_count, format_size

if TYPE_CHECKING:
    from tiercache.client import Client
    from tiercache.config import Config

TOLD_MAX = 20
"""Files that are named one by one."""


def drain(client: Client, deadline_s: float) -> None:
    """Wait until everything is in the origins; Unfinished says what is left at the deadline."""
    with progress("draining") as shown:
        answer = client.drain(deadline_s, on_progress=DrainProgress(shown))
    tell(client, answer, f"{client.cache_dir}: everything is in the origin")


def drain_paths(config: Config, settings: list[str] | None, paths: list[str], level: str, deadline_s: float) -> None:
    """Wait until what lies in the paths, of whichever engines, or else everything, has reached a level."""
    from tiercache.cli.link import attach_or_recover
    from tiercache.cli.place import place_of

    until_s = time.monotonic() + deadline_s
    asked: dict[Path, tuple[Client, dict[str, list[Any] | None]]] = {}
    for path in paths:
        place = place_of(config, path, attach=lambda config: attach_or_recover(config, settings))
        asked.setdefault(place.engine.cache_dir, (place.engine, {}))[1][place.path] = place.asker
    if not paths:
        client = attach_or_recover(config, settings)
        asked[client.cache_dir] = client, {}
    left: list[dict[str, str]] = []
    for client, names in asked.values():
        with progress("draining") as shown:
            wait_s = max(0.0, until_s - time.monotonic())
            askers = {name: asker for name, asker in names.items() if asker is not None}
            progressed = DrainProgress(shown)
            left += client.wait_durable([*names], level, wait_s, askers=askers, on_progress=progressed)["left"]
    for file in left[:TOLD_MAX]:
        print(f"{file['path']}: {file['error']}")
    where = {"origin": "in the origin", "local": "on this node's disk"}.get(level, "in this node's memory")
    if left:
        verb = "is" if len(left) == 1 else "are"
        raise Unfinished(f"{format_count(len(left), 'file')} {verb} not {where}; see tiercache status")
    print(f"{', '.join(paths) or ', '.join(map(str, asked))}: everything is {where}")


def umount(client: Client, mountpoint: str, deadline_s: float, *, lazy: bool) -> None:
    """Unmount, then wait for the uploads of what was written there."""
    with progress("draining") as shown:
        answer = client.request(
            "umount", on_progress=DrainProgress(shown), mountpoint=mountpoint, deadline_s=deadline_s, lazy=lazy
        )
    where = answer.get("elsewhere")  # an engine of an earlier release does not tell
    if where is not None:
        there = " and ".join(where) or "in another mount namespace, such as a container's"
        print(f"{mountpoint}: still mounted {'at ' if where else ''}{there}; it is served there until it ends")
    tell(client, answer, f"{mountpoint} is unmounted, everything is in the origin")


def tell(client: Client, answer: dict[str, Any], good: str) -> None:
    """Name what is left, or say that all went well."""
    left = len(answer["left"])
    if not left:
        print(good)
        return
    for file in client.status()["dirty"]["list"][:TOLD_MAX]:
        why = file["last_error"] or file.get("waits_for", "")  # an engine of an earlier release does not tell
        reason = f": {why}" if why else ""
        reason += f"; it ends by {RESOLVE}" if file["state"] in ENDED else ""
        print(f"{file['path']}: {file['state']}, {format_size(file['size_bytes'])}{reason}")
    raise Unfinished(
        f"{format_count(left, 'file')} {'is' if left == 1 else 'are'} not in the origin, but kept in the journal; "
        f"tiercache drain --cache-dir {client.cache_dir} goes on with them"
    )


class DrainProgress:
    """Shows the progress reports of a drain: what was dirty at first is the whole."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._total_bytes = 0.0

    def __call__(self, report: dict[str, Any]) -> None:
        sent_bytes = sum(file["sent_bytes"] for file in report["list"])
        left_bytes = max(0, report["bytes"] - sent_bytes)
        self._total_bytes = max(self._total_bytes, left_bytes)
        note = f"{format_count(report['files'], 'file')}, {format_size(left_bytes)} left"
        if failing := [file["last_error"] for file in report["list"] if file["last_error"]]:
            note += f", {len(failing)} failing: {failing[0]}"
        self._shown.update(self._total_bytes - left_bytes, self._total_bytes, note)
