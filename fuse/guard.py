"""The guard around every request: whatever a handler raises becomes an errno, and the mount lives on."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from tiercache.errors import (
    Broken,
    Busy,
    Changed,
    Conflict,
    Denied,
    EngineUnreachable,
    Lost,
    NoSpace,
    TierCacheError,
    UploadFailed,
    errno_of,
)
from tiercache.metrics import Metrics
from tiercache.units import format_count

TOLD_EVERY_S = 60.0
"""A failure of one kind (operation and exception) that comes again sooner is counted, and told with the next one."""

log = logging.getLogger(__name__)

_TROUBLE = (Broken, Busy, Changed, Conflict, Denied, EngineUnreachable, Lost, NoSpace, UploadFailed)
"""What an operator wants to read about. The rest (absent, exists, not empty …) is how programs talk to a filesystem."""

_ANSWERS = (errno.ENOSYS, errno.ENOTTY, errno.ENXIO, errno.EPERM, errno.ERANGE)
"""OSErrors that are an answer, not a failure."""


@dataclass(slots=True)
class _Told:
    """What the log has of one kind of failure."""

    at_s: float
    untold: int = 0


class Guard:
    """Of one mount. A program that does in a loop what is refused must not flood the log: of each kind of failure the
    first one is told, and then how many more there were. All count in ``tiercache_mount_failures_total``."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = metrics.mount_failures
        self._clock = clock
        # As many as there are operations and kinds of exceptions.
        self._told: dict[tuple[str, type[Exception]], _Told] = {}

    def errno_for(self, error: Exception, operation: str, subject: object) -> int:
        """The errno to answer with."""
        cause = _cause(error)
        code = errno_of(cause)
        if not _is_failure(cause):
            log.debug("%s of %s: %s", operation, subject, cause)
            return code
        self._failures.labels(operation=operation, error=_name(code)).inc()
        more = self._more(operation, type(cause))
        if more is not None:
            _tell(error, operation, subject, more)
        return code

    def _more(self, operation: str, kind: type[Exception]) -> str | None:
        """What is to be added of those that were not told; None when this one is not told either."""
        now_s = self._clock()
        told = self._told.get((operation, kind))
        if told is not None and now_s - told.at_s < TOLD_EVERY_S:
            told.untold += 1
            return None
        self._told[operation, kind] = _Told(now_s)
        return f" (and {format_count(told.untold, 'time')} more before)" if told is not None and told.untold else ""


def errno_for(error: Exception, operation: str, subject: object) -> int:
    """The same where each failure is to be told: the errno, after one line in the log."""
    cause = _cause(error)
    if _is_failure(cause):
        _tell(error, operation, subject, "")
    return errno_of(cause)


def _tell(error: Exception, operation: str, subject: object, more: str) -> None:
    """With its traceback if it is none of the domain's."""
    cause = _cause(error)
    if isinstance(cause, TierCacheError):
        log.warning("%s of %s failed with %s: %s%s", operation, subject, _name(errno_of(cause)), cause, more)
    else:
        log.error("%s of %s failed unexpectedly%s", operation, subject, more, exc_info=error)


def _is_failure(cause: Exception) -> bool:
    match cause:
        case TierCacheError():
            return isinstance(cause, _TROUBLE)
        case OSError():
            return cause.errno not in _ANSWERS
        case _:
            return True


def _name(code: int) -> str:
    return errno.errorcode.get(code, str(code))


def _cause(error: Exception) -> Exception:
    """The first single error inside an exception group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
