"""What a catalog directory says of itself before LMDB touches it: format, boot, and whether it was closed in order.

Commits are not synced, so after a crash of the machine the file may be torn: a catalog that was open at another boot
is started anew. After a crash of the engine alone the kernel still has every page, and the catalog is kept. A file of
another format, or one that does not stand a walk through its records, is set aside. No case is an error: a catalog
can be rebuilt.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger(__name__)

FORMAT = 2
"""Counted up with every change of a stored form."""
_CHECK_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class State:
    """The side file ``state.json``."""

    format: int
    boot_id: str
    clean: bool
    size_bytes: int = 0
    """Of the data file at the clean close; with ``mtime_ns`` it tells whether anybody changed it since."""
    mtime_ns: int = 0


def current_boot_id() -> str:
    """The kernel's id of this boot; empty where it tells none, which counts as another boot each time."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_state(directory: Path) -> State | None:
    """The state of the catalog in ``directory``; None if there is none that makes sense."""
    try:
        return State(**json.loads((directory / "state.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_state(directory: Path, state: State) -> None:
    """Replace the state, durably: an unclean mark must reach the disk before any torn page can."""
    temporary = directory / "state.json.new"
    with open(temporary, "w") as file:
        json.dump(asdict(state), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / "state.json")
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mark_open(directory: Path, boot_id: str) -> None:
    """Record that an engine of this boot has the catalog open."""
    write_state(directory, State(FORMAT, boot_id, clean=False))


def mark_clean(directory: Path, boot_id: str) -> None:
    """Record an orderly close; the data file is synced already."""
    status = os.stat(directory / "data.mdb")
    write_state(directory, State(FORMAT, boot_id, True, status.st_size, status.st_mtime_ns))


def mark_damaged(directory: Path) -> None:
    """Record that LMDB met damage, so that the next start begins anew."""
    write_state(directory, State(FORMAT, "damaged", clean=False))


def set_unusable_aside(directory: Path, boot_id: str, *, check: bool = True) -> None:
    """Leave in ``directory`` either a catalog that can be opened or nothing. ``check``: one that was not closed in
    order is walked through before."""
    if not os.path.lexists(directory):
        return
    reason = _unusable(directory, boot_id, check=check)
    if not reason:
        return
    aside = directory.with_name(directory.name + ".aside")
    _remove(aside)
    os.rename(directory, aside)
    log.warning("the catalog starts empty: %s; the old one is kept as %s until the next time", reason, aside)


def _unusable(directory: Path, boot_id: str, *, check: bool) -> str:
    """Why the catalog cannot be used; empty if it can."""
    if not (directory / "data.mdb").is_file():
        return "it has no data file"
    state = read_state(directory)
    if state is None:
        return "it does not say what it is"
    if state.format != FORMAT:
        return f"its format is {state.format}, this version writes {FORMAT}"
    if not state.clean and (state.boot_id != boot_id or not boot_id):
        return "the machine stopped while it was open"
    status = os.stat(directory / "data.mdb")
    if state.clean and (status.st_size, status.st_mtime_ns) == (state.size_bytes, state.mtime_ns):
        return ""
    return _damage(directory) if check else ""


def _damage(directory: Path) -> str:
    """Walk through the file in a process of its own, which a truncated map may kill (SIGBUS) without harm."""
    if not sys.executable:
        return ""
    command = [sys.executable, "-P", "-m", "tiercache.catalog.check", os.fspath(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=_CHECK_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "checking it did not end"
    except OSError as error:
        log.warning("the catalog is used unchecked: %s", error)
        return ""
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"the check ended with {done.returncode}"]
    return f"it is damaged ({lines[-1]})"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
