"""Every error of the domain, and the one table that turns them into errno."""

from __future__ import annotations

import errno


class TierCacheError(Exception):
    """Base of all errors. ``str(error)`` is one line for a user: what happened to what, and what to do."""


class ConfigError(TierCacheError):
    """A setting is unknown, malformed or out of range."""


class Absent(TierCacheError):
    """The name does not exist. Only ever raised when the origin said so (404) or we deleted it."""


class Exists(TierCacheError):
    """The name exists already, and the caller asked that it should not."""


class NotDirectory(TierCacheError):
    """A directory was needed."""


class IsDirectory(TierCacheError):
    """A file was needed."""


class NotEmpty(TierCacheError):
    """A directory still has entries."""


class InvalidName(TierCacheError):
    """The origin cannot spell this name."""


class NameTooLong(TierCacheError):
    """A component over 255 bytes or a key over the origin's limit."""


class Denied(TierCacheError):
    """The origin or the local system refused permission (401, 403)."""


class ReadOnly(TierCacheError):
    """A write on a read-only mount, origin or profile."""


class Changed(TierCacheError):
    """The object is no longer the version that was asked for (412)."""


class Busy(TierCacheError):
    """The origin did not answer in time or asked to slow down (timeout, reset, 408, 429, 5xx). Worth a retry."""


class InUse(TierCacheError):
    """Not while a program has the file open in a way that does not go with it."""


class Broken(TierCacheError):
    """The origin answered with something that cannot be right, or failed for good."""


class Unsupported(TierCacheError):
    """This origin cannot do that."""


class InvalidArgument(TierCacheError):
    """The request makes no sense (a negative size, a directory moved into itself)."""


class CrossOrigin(TierCacheError):
    """A rename or link between two origins."""


class NoSpace(TierCacheError):
    """A disk or a budget is full, and nothing can be freed."""


class DiskFull(NoSpace):
    """The disk is full, whatever the budget says."""


class TooLarge(NoSpace):
    """The file would be larger than any file can be here."""


class NoAttribute(TierCacheError):
    """The extended attribute is not set."""


class Conflict(TierCacheError):
    """The origin's copy changed under a staged file; both are kept."""


class Lost(TierCacheError):
    """Staged bytes are gone or damaged. Told, never silent."""


class JournalDamaged(TierCacheError):
    """The journal cannot be trusted; the message tells where the staged bytes are."""


class UploadFailed(TierCacheError):
    """The last upload of this file failed; its bytes are still staged."""


class EngineRunning(TierCacheError):
    """Another engine owns this cache directory."""


class EngineUnreachable(TierCacheError):
    """No engine answers for this cache directory."""


class MountError(TierCacheError):
    """The mount could not be made or unmade."""


ERRNO: dict[type[TierCacheError], int] = {
    Absent: errno.ENOENT,
    Exists: errno.EEXIST,
    NotDirectory: errno.ENOTDIR,
    IsDirectory: errno.EISDIR,
    NotEmpty: errno.ENOTEMPTY,
    InvalidName: errno.EILSEQ,
    NameTooLong: errno.ENAMETOOLONG,
    Denied: errno.EACCES,
    ReadOnly: errno.EROFS,
    Changed: errno.ESTALE,
    Busy: errno.EIO,
    InUse: errno.EBUSY,
    Broken: errno.EIO,
    Unsupported: errno.ENOTSUP,
    InvalidArgument: errno.EINVAL,
    CrossOrigin: errno.EXDEV,
    NoSpace: errno.ENOSPC,
    TooLarge: errno.EFBIG,
    NoAttribute: errno.ENODATA,
    Conflict: errno.EIO,
    Lost: errno.EIO,
    UploadFailed: errno.EIO,
    JournalDamaged: errno.EIO,
    EngineUnreachable: errno.EIO,
}


def errno_of(error: BaseException) -> int:
    """The errno that stands for ``error``; an OSError keeps its own, everything unknown is EIO."""
    for kind in type(error).__mro__:
        if kind in ERRNO:
            return ERRNO[kind]
    if isinstance(error, OSError) and error.errno:
        return error.errno
    return errno.EIO


def os_error(error: TierCacheError, path: str) -> OSError:
    """The builtin exception of the same meaning (FileNotFoundError, PermissionError, …) for Python users."""
    return OSError(errno_of(error), _without_name(str(error), path), path)


def _without_name(text: str, path: str) -> str:
    """What is wrong, without the name that it begins with, if that is the path's: Python adds the path."""
    name, separator, rest = text.partition(": ")
    same = f"/{path.strip('/')}".endswith(name) if name.startswith("/") else name.endswith(f"/{path}")
    return rest if separator and path.strip("/") and same else text
