"""What an HTTP status, or the error code of a store, means in the domain's words."""

from __future__ import annotations

from tiercache.errors import Absent, Broken, Busy, Changed, Denied, NameTooLong, TierCacheError, Unsupported

_BUSY_CODES = frozenset(
    {
        "RequestTimeout",
        "RequestTimeTooSkewed",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "ServiceUnavailable",
        "InternalError",
        "OperationAborted",
        "BadDigest",
        "IncompleteBody",
        "XAmzContentSHA256Mismatch",
        "ConditionalRequestConflict",
    }
)
"""Codes that a repeated request may cure, whatever their status."""

_EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})

_BUSY_STATUSES = frozenset({408, 409, 425, 429})


class CredentialsExpired(Denied):
    """The credentials were right once; new ones may help. Handled inside the S3 origin."""


class UploadGone(Busy):
    """The store does not know the upload in parts: it was completed, or aborted from elsewhere. Handled inside the S3
    origin, where only a new upload helps."""


def error_of_status(status: int, code: str, what: str, detail: str = "") -> TierCacheError:
    """The error that a failed request stands for; ``what`` names the object, ``detail`` is the store's own message."""
    if code == "NoSuchBucket":
        return bucket_absent(what)
    told = f"{what}: {_told(status, code, detail)}".strip()
    if code == "KeyTooLongError":
        return NameTooLong(told)
    if code in _EXPIRED_CODES:
        return CredentialsExpired(told)
    if code == "NoSuchUpload":
        return UploadGone(told)
    if code in _BUSY_CODES:
        return Busy(told)
    return _kind_of_status(status)(told)


def bucket_absent(what: str) -> TierCacheError:
    """Not Absent: a bucket that is gone must never look like an empty or deleted directory."""
    scheme, separator, rest = what.partition("://")
    return Broken(f"{scheme}{separator}{rest.partition('/')[0]}: the bucket does not exist")


def _told(status: int, code: str, detail: str) -> str:
    number = " ".join(part for part in (str(status) if status else "", code) if part)
    if status in (401, 403):
        return f"access denied ({number}){': ' if detail else ''}{detail}"
    return " ".join(part for part in (number, detail) if part)


def _kind_of_status(status: int) -> type[TierCacheError]:
    if status == 404:
        return Absent
    if status in (401, 403):
        return Denied
    if status == 412:
        return Changed
    if status in (405, 501):
        return Unsupported
    if status in _BUSY_STATUSES or 500 <= status <= 599:
        return Busy
    return Broken
