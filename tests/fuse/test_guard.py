"""Whatever a handler raises becomes one errno and one log record."""

from __future__ import annotations

import errno
import inspect
import logging

import pytest

from tiercache.errors import Absent, Busy, Changed, NoSpace
from tiercache.fuse.guard import TOLD_EVERY_S, Guard, errno_for
from tiercache.fuse.pyfuse3_driver import Operations
from tiercache.metrics import Metrics


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
    for answer in (errno_for, Guard(Metrics()).errno_for):
        caplog.clear()
        assert answer(error, "read", "node 5") == code
        assert [record.levelno for record in caplog.records] == ([level] if level else [])
        assert all("read of node 5" in record.getMessage() for record in caplog.records)


def test_of_a_failure_that_comes_again_and_again_the_first_is_told_and_then_how_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s, metrics = 1000.0, Metrics()
    guard = Guard(metrics, clock=lambda: now_s)
    for _ in range(2):
        for node in range(500):
            assert guard.errno_for(NoSpace("full"), "fallocate", f"node {node}") == errno.ENOSPC
        guard.errno_for(NoSpace("full"), "setxattr", "node 7")
        guard.errno_for(ValueError("a bug"), "fallocate", "node 7")
        now_s += TOLD_EVERY_S
    assert [record.getMessage() for record in caplog.records] == [
        "fallocate of node 0 failed with ENOSPC: full",
        "setxattr of node 7 failed with ENOSPC: full",
        "fallocate of node 7 failed unexpectedly",
        "fallocate of node 0 failed with ENOSPC: full (and 499 times more before)",
        "setxattr of node 7 failed with ENOSPC: full",
        "fallocate of node 7 failed unexpectedly",
    ]
    assert metrics.snapshot()["mount_failures_total"] == {
        "fallocate/ENOSPC": 1000,
        "setxattr/ENOSPC": 2,
        "fallocate/EIO": 2,
    }


def test_every_handler_of_pyfuse3_is_guarded() -> None:
    own = [method for name, method in vars(Operations).items() if inspect.iscoroutinefunction(method)]
    assert len(own) > 25
    assert all(hasattr(method, "__wrapped__") for method in own)
