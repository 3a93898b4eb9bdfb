"""Whatever a handler raises becomes one errno and one log record."""

from __future__ import annotations

import errno
import inspect
import logging

import pytest

from tiercache.errors import Absent, Busy, Changed, NoSpace
from tiercache.fuse.guard import errno_for
from tiercache.fuse.pyfuse3_driver import Operations


@pytest.mark.parametrize(
    ("error", "code", "level"),
    [
        (Absent("x"), errno.ENOENT, None),
        (Changed("x"), errno.ESTALE, logging.WARNING),
        (Busy("x"), errno.EIO, logging.WARNING),
        (NoSpace("x"), errno.ENOSPC, logging.WARNING),
        (OSError(errno.ENOSPC, "x"), errno.ENOSPC, logging.ERROR),
        (OSError(errno.ENOSYS, "x"), errno.ENOSYS, None),
        (ValueError("a bug"), errno.EIO, logging.ERROR),
        (ExceptionGroup("tasks", [ExceptionGroup("more", [NoSpace("x")])]), errno.ENOSPC, logging.WARNING),
    ],
)
def test_an_error_is_answered_and_told_once(
    error: Exception, code: int, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert errno_for(error, "read", "node 5") == code
    assert [record.levelno for record in caplog.records] == ([level] if level else [])
    assert all("read of node 5" in record.getMessage() for record in caplog.records)


def test_every_handler_of_pyfuse3_is_guarded() -> None:
    own = [method for name, method in vars(Operations).items() if inspect.iscoroutinefunction(method)]
    assert len(own) > 25
    assert all(hasattr(method, "__wrapped__") for method in own)
