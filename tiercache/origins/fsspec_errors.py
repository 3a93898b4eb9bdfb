"""What the exceptions of fsspec filesystems mean in the domain's words."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator

from tiercache import errors
from tiercache.origins.http_status import bucket_absent, error_of_status
from tiercache.origins.posix_calls import classify as classify_os_error
from tiercache.origins.wording import of_botocore

_BUSY = (TimeoutError, ConnectionError, EOFError)
_BUSY_ERRNOS = frozenset({errno.EBUSY, errno.EIO})
"""How s3fs and gcsfs spell a server that cannot answer now."""


@contextlib.contextmanager
def domain_errors(what: str) -> Iterator[None]:
    """Turn whatever a filesystem raises into the domain's error; ``what`` names the object in the message."""
    try:
        yield
    except errors.TierCacheError:
        raise
    except Exception as error:
        raise classify(error, what) from error


def classify(error: Exception, what: str) -> errors.TierCacheError:
    """By the HTTP status in the error or its causes, else by its builtin kind; what is unknown is Broken."""
    for cause in _causes(error):
        if (status := _status_of(cause)) is not None:
            return error_of_status(*status, what)
    told = f"{what}: {of_botocore(_innermost_of_botocore(error)) or type(error).__name__}"
    if isinstance(error, FileNotFoundError):
        if "bucket does not exist" in str(error).lower():
            return bucket_absent(what)
        return errors.Absent(f"{what} does not exist")
    if isinstance(error, _BUSY) or any(_is_connection_error(cause) for cause in _causes(error)):
        return errors.Busy(told)
    if isinstance(error, NotImplementedError):
        return errors.Unsupported(told)
    if isinstance(error, OSError) and error.errno:
        if error.errno in _BUSY_ERRNOS:
            return errors.Busy(told)
        return type(classify_os_error(error, b""))(told)
    for builtin, kind in _BUILTIN.items():
        if isinstance(error, builtin):
            return kind(told)
    return errors.Broken(told)


_BUILTIN: dict[type[Exception], type[errors.TierCacheError]] = {
    FileExistsError: errors.Exists,
    PermissionError: errors.Denied,
    IsADirectoryError: errors.IsDirectory,
    NotADirectoryError: errors.NotDirectory,
    UnicodeError: errors.InvalidName,
}


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _status_of(error: BaseException) -> tuple[int, str] | None:
    """Status and code of a botocore, gcsfs, aiohttp or requests error."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        code = str(response.get("Error", {}).get("Code", ""))
        return (int(status), "" if code.isdigit() else code) if status else None
    status = getattr(error, "status", None) or getattr(response, "status_code", None) or getattr(error, "code", None)
    return (status, "") if isinstance(status, int) and 400 <= status <= 599 else None


def _innermost_of_botocore(error: BaseException) -> BaseException:
    """The cause that botocore knows, whatever s3fs made of it; else the error itself."""
    return next((cause for cause in _causes(error) if isinstance(getattr(cause, "kwargs", None), dict)), error)


def _is_connection_error(error: BaseException) -> bool:
    """Whether it comes from a library's own tree of transport errors; none of them is imported for that."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    trees = (
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("botocore.exceptions", "HTTPClientError"),
        ("botocore.exceptions", "ConnectionError"),
        ("botocore.exceptions", "ResponseStreamingError"),
        ("requests.exceptions", "ConnectionError"),
        ("requests.exceptions", "Timeout"),
        ("paramiko.ssh_exception", "SSHException"),
    )
    return any(isinstance(error, getattr(sys.modules[module], name)) for module, name in trees if module in sys.modules)
