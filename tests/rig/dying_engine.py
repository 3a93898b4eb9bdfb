"""An engine process that is killed at a chosen step of a change: after the n-th call of a kind that changed something.

A step is a change of a name at the origin, a note for the journal, a transaction of the catalog, a line about a kept
directory. What goes up by itself is not part of a change: the steps of uploads are a kind of their own. ``Killer``
chooses the step from the test's process, through a file that every engine of the test looks at.

The upload of a file with one of the names ``HELD`` waits in the block of ``Killer.after`` until that ends, before or
after its bytes are at the origin: that of the engine which is to be killed, not those of the next ones.

The next engine takes the mount over only when all uploads that it found have ended or wait for something: what an
upload can spoil before the kernel has sent its request again, it spoils.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ORDERS = "RIG_KILL_AT"
"""Environment variable with the path of that file."""

_NAMES_AT_ORIGIN = (
    "make_directory",
    "remove_directory",
    "rename",
    "copy",
    "delete",
    "symlink",
    "link",
    "make_special",
    "set_attributes",
)

KINDS = ("origin", "journal", "catalog", "kept")

UPLOAD_KINDS = (*KINDS, "upload")

SENT, LANDED = HELD = ("sent", "landed")
"""Files whose upload waits: before it has landed, or afterwards."""

_SITE = """
import sys
if "tiercache.engine" in sys.orig_argv:
    class Finder:
        def find_spec(self, name, path, target=None):
            if name == "tiercache.engine.service":
                sys.meta_path.remove(self)
                from rig.dying_engine import arm
                arm()
    sys.meta_path.insert(0, Finder())
"""


class Killer:
    """Gives the orders. Make it before the engine is started."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._orders = directory / "kill-at"
        self._log = directory / "kill-at.log"
        os.mkfifo(f"{self._orders}.under-way")
        self._under_way = os.open(f"{self._orders}.under-way", os.O_RDWR)
        self._hold = os.open(f"{self._orders}.hold", os.O_RDWR | os.O_CREAT)
        site = directory / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE)
        patch.setenv(ORDERS, str(self._orders))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)

    @contextlib.contextmanager
    def after(self, steps: int, kind: str) -> Iterator[None]:
        """In the block the engine is killed after so many steps of a kind, if it comes to them; see ``fired``."""
        self._log.write_text("")
        while select.select([self._under_way], [], [], 0)[0]:
            os.read(self._under_way, 1)
        fcntl.flock(self._hold, fcntl.LOCK_EX)
        self._orders.write_text(f"{kind} {steps}")
        try:
            yield
        finally:
            self.fired = not self._orders.exists()
            self._orders.unlink(missing_ok=True)
            fcntl.flock(self._hold, fcntl.LOCK_UN)

    def wait_for_upload(self) -> None:
        """Return when the upload of a held file waits, or when the engine was killed and the next one is through with
        it."""
        os.read(self._under_way, 1)

    def close(self) -> None:
        os.close(self._under_way)
        os.close(self._hold)

    fired = False
    """Whether the last block killed the engine."""

    def steps(self) -> str:
        """What was done in the last block until the kill, for the message of a test that failed."""
        return self._log.read_text()


def arm() -> None:
    """Count steps in this process from now on."""
    from tiercache.catalog.writer import Catalog
    from tiercache.engine.mounts import Mounts
    from tiercache.engine.remembered_keys import RememberedKeys
    from tiercache.journal import Journal
    from tiercache.origins.posix import PosixOrigin
    from tiercache.origins.s3.origin import S3Origin

    for origin in (PosixOrigin, S3Origin):
        for name in _NAMES_AT_ORIGIN:
            _count(origin, name, f"origin {name}")
        _hold_uploads(origin)
    _count(Journal, "_note", "journal note")
    _count(RememberedKeys, "_note", "kept directory")
    _count_transactions(Catalog)
    _let_uploads_go_first(Mounts)


_lock = threading.Lock()


def _step(what: str) -> None:
    path = os.environ[ORDERS]
    with _lock:
        try:
            with open(path) as file:
                kind, left = file.read().split()
        except FileNotFoundError:
            return
        with open(path + ".log", "a") as file:
            file.write(what + "\n")
        if not what.startswith(kind):
            return
        if int(left) > 1:
            with open(path, "w") as file:
                file.write(f"{kind} {int(left) - 1}")
            return
        os.unlink(path)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _count(owner: Any, name: str, what: str) -> None:
    method = getattr(owner, name)

    @functools.wraps(method)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        _step(f"{what} {args[0].decode()}" if what.startswith("origin") else what)
        return result

    setattr(owner, name, counted)


def _hold_uploads(origin: Any) -> None:
    write = origin.write

    @functools.wraps(write)
    def held(self: Any, key: bytes, upload: Any) -> Any:
        name = key.rpartition(b"/")[2].decode()
        _step(f"upload begins {key.decode()}")
        if name == SENT:
            _wait()
        stat = write(self, key, upload)
        _step(f"upload landed {key.decode()}")
        if name == LANDED:
            _wait()
        return stat

    origin.write = held


def _wait() -> None:
    path = os.environ[ORDERS]
    _tell()
    if os.path.exists(path):
        with open(f"{path}.hold") as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def _tell() -> None:
    with open(f"{os.environ[ORDERS]}.under-way", "wb") as fifo:
        fifo.write(b".")


def _count_transactions(catalog: Any) -> None:
    transact = catalog._transact

    @contextlib.contextmanager
    def counted(self: Any) -> Iterator[Any]:
        with transact(self) as txn:
            yield txn
        _step("catalog transaction")

    catalog._transact = counted


def _let_uploads_go_first(mounts: Any) -> None:
    go_on = mounts.go_on

    async def patient(self: Any) -> None:
        uploader = self._engine.writeback._uploader
        while uploader.turns.busy_lanes or len(uploader.turns._queue):
            await uploader.changed.heard()
        _tell()
        await go_on(self)

    mounts.go_on = patient
