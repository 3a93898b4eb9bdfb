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
    _tell(_run(client, "warmup", checks=check, **_arguments(origin, check=check)), check=check)


def warmup_listed(client: Client, origin: OriginChoice, manifest: str, column: str, *, check: bool) -> None:
    """The same for the files that a manifest names. ConfigError when it cannot be read."""
    from tiercache.cli.listed import listed

    with listed(client, origin, manifest, column) as names:
        arguments = _arguments(origin, check=check)
        report = _run(client, "warmup", checks=check, names=names.name, files=names.files, **arguments)
    if names.left_out:
        print(f"left out of the manifest: {', '.join(f'{number} × {why}' for why, number in names.left_out.items())}")
    _tell(report, check=check)


def follow_warmup(engine: Client, op: str, **arguments: Any) -> None:
    """Show how far an operation is, and what came of it; Broken when some files are not in the cache."""
    _tell(_run(engine, op, checks=False, **arguments), check=False)


def _arguments(origin: OriginChoice, *, check: bool) -> dict[str, Any]:
    return {
        "check": check,
        "url": origin.url,
        "client": origin.client,
        "options": origin.options,
        "profile": origin.profile,
    }


def _run(engine: Client, op: str, *, checks: bool, **arguments: Any) -> dict[str, Any]:
    with progress("checking" if checks else "warming up") as shown:

        def show(report: dict[str, Any]) -> None:
            shown.update(report["done_bytes"], report["bytes"], f"{report['done_files']} of {_files(report['files'])}")

        report: dict[str, Any] = engine.request(op, on_progress=show, **arguments)
    return report


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
    if report.get("absent_files"):
        raise Broken(f"the manifest names {_files(report['absent_files'])} that the origin does not have")
    if missing := report["files"] - report["resident_files"]:
        verb = "is" if missing == 1 else "are"
        raise Broken(f"{_files(missing)} {verb} not in the cache" + ("; run it without --check" if check else ""))


def _files(number: int) -> str:
    return format_count(number, "file")
