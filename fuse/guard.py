"""The one guard around every request: whatever a handler raises becomes an errno, and the mount lives on."""

from __future__ import annotations

import errno
import logging

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

log = logging.getLogger(__name__)

_TROUBLE = (Broken, Busy, Changed, Conflict, Denied, EngineUnreachable, Lost, NoSpace, UploadFailed)
"""What an operator wants to read about. The rest (absent, exists, not empty …) is how programs talk to a filesystem."""

_ANSWERS = (errno.ENOSYS, errno.ENOTTY, errno.ENXIO, errno.EPERM, errno.ERANGE)
"""OSErrors that are an answer, not a failure."""


def errno_for(error: Exception, operation: str, subject: object) -> int:
    """The errno to answer with; logs the failure once, with its traceback if it is none of the domain's."""
    cause = _cause(error)
    code = errno_of(cause)
    match cause:
        case TierCacheError() if isinstance(cause, _TROUBLE):
            log.warning("%s of %s failed with %s: %s", operation, subject, errno.errorcode.get(code, code), cause)
        case TierCacheError():
            log.debug("%s of %s: %s", operation, subject, cause)
        case OSError() if cause.errno in _ANSWERS:
            log.debug("%s of %s: %s", operation, subject, cause)
        case _:
            log.error("%s of %s failed unexpectedly", operation, subject, exc_info=error)
    return code


def _cause(error: Exception) -> Exception:
    """The first single error inside an exception group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
