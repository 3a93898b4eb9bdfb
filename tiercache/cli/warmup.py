"""Bring a prefix into the cache ahead of its use, or check what of it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiercache.cli.origin import OriginChoice
from tiercache.cli.progress import progress
from tiercache.errors import Broken
from tiercache.units import format_count, format_size

if TYPE_CHECKING:
    from tiercache.client import Client

TOLD_MAX = 20
"""Failed files that are named."""


def warmup(client: Client, origin: OriginChoice, *, check: bool) -> None:
    """Wait until all is resident (or checked); Broken when some files are not."""
    follow_warmup(
        client,
        "warmup",
        checks=check,
        check=check,
        url=origin.url,
        client=origin.client,
        options=origin.options,
        profile=origin.profile,
    )


def follow_warmup(engine: Client, op: str, *, checks: bool = False, **arguments: Any) -> None:
    """Show how far an operation is, and what came of it; Broken when some files are not in the cache."""
    with progress("checking" if checks else "warming up") as shown:

        def show(report: dict[str, Any]) -> None:
            shown.update(report["done_bytes"], report["bytes"], f"{report['done_files']} of {_files(report['files'])}")

        report = engine.request(op, on_progress=show, **arguments)
    _tell(report, check=checks)


def _tell(report: dict[str, Any], *, check: bool) -> None:
    if not report["files"] and report["errors"]:
        # The listing failed: that is the whole story.
        raise Broken(report["errors"][0])
    for error in report["errors"][:TOLD_MAX]:
        print(error)
    print(
        f"{report['resident_files']} of {_files(report['files'])}, "
        f"{format_size(report['resident_bytes'])} of {format_size(report['bytes'])} are cached"
        + (f"; damaged copies dropped: {report['damaged']}" if report["damaged"] else "")
    )
    if report["failed_files"]:
        raise Broken(f"{_files(report['failed_files'])} failed")
    if missing := report["files"] - report["resident_files"]:
        verb = "is" if missing == 1 else "are"
        raise Broken(f"{_files(missing)} {verb} not in the cache" + ("; run it without --check" if check else ""))


def _files(number: int) -> str:
    return format_count(number, "file")
