"""The data plane of object stores by obstore: GET, ranged GET, HEAD, small PUT; answers checked, errors classified."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import obstore
import obstore.exceptions

from tiercache.errors import Absent, Broken, Busy, Changed, Denied, InvalidName, TierCacheError, Unsupported
from tiercache.model import Key
from tiercache.origins import etags
from tiercache.origins.base import Condition
from tiercache.origins.http_status import error_of_status
from tiercache.origins.wording import of_obstore

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta, PutMode
    from obstore.store import ObjectStore

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_HEADER_ATTRIBUTES = frozenset(
    {"Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Cache-Control", "Storage-Class"}
)


class Found(NamedTuple):
    """What the headers of an answer say of an object."""

    size_bytes: int
    etag: str
    modified_ns: int
    metadata: Mapping[str, str]


def head(store: ObjectStore, key: Key, what: str) -> Found:
    """Describe an object by one HEAD."""
    with classified(what):
        result = obstore.get(store, path_of(key), options={"head": True})
        return _found(result)


def get_whole(store: ObjectStore, key: Key, limit_bytes: int, what: str) -> tuple[Found, memoryview | None]:
    """One GET; the body of an object over ``limit_bytes`` is not read."""
    with classified(what):
        result = obstore.get(store, path_of(key))
        found = _found(result)
        if found.size_bytes > limit_bytes:
            return found, None
        body = memoryview(result.bytes())
    if len(body) != found.size_bytes:
        raise Broken(f"{what}: {len(body)} bytes arrived, {found.size_bytes} were announced")
    return found, body


def get_range(store: ObjectStore, key: Key, offset: int, length: int, etag: str, what: str) -> memoryview:
    """One ranged GET with If-Match. Changed, or Broken if the answer is not exactly what was asked."""
    options: GetOptions = {"range": (offset, offset + length)}
    if (match := etags.header(etag)) is not None:
        options["if_match"] = match
    with classified(what):
        result = obstore.get(store, path_of(key), options=options)
        found = _found(result)
        if found.etag != etag:  # a store that ignores If-Match
            raise Changed(f"{what} is no longer the version that was asked for")
        if tuple(result.range) != (offset, offset + length):
            raise Broken(f"{what}: range {offset}+{length} wanted, {result.range} answered")
        body = memoryview(result.bytes())
    if len(body) != length:
        raise Broken(f"{what}: {length} bytes at {offset} wanted, {len(body)} arrived")
    return body


def put(store: ObjectStore, key: Key, data: bytes, attributes: dict[str, str], condition: Condition, what: str) -> str:
    """One PUT, conditional if asked; returns the new etag (``""`` if the store does not tell)."""
    with classified(what):
        result = obstore.put(
            store, path_of(key), data, attributes=attributes, mode=_mode(condition), use_multipart=False
        )
    return etags.plain(result["e_tag"])


def found_of_meta(meta: ObjectMeta, metadata: Mapping[str, str]) -> Found:
    """The same words for an entry of a listing."""
    modified_ns = nanoseconds(meta["last_modified"])
    etag = etags.plain_or_made_up(meta["e_tag"], modified_ns, meta["size"])
    return Found(meta["size"], etag, modified_ns, metadata)


def nanoseconds(moment: datetime.datetime) -> int:
    """Nanoseconds since the epoch, without the rounding of a float."""
    since = moment - datetime.datetime.fromtimestamp(0, datetime.UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000


def is_plain(key: Key) -> bool:
    """Whether obstore can spell the key: its paths have no empty, ``.`` or ``..`` part and no control character."""
    return all(part not in (b"", b".", b"..") for part in key.split(b"/")) and not any(
        byte < 0x20 or byte == 0x7F for byte in key
    )


def text_of(key: Key) -> str:
    """The key as text. InvalidName if it is not UTF-8, which no object store takes."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise InvalidName(f"{key!r} is not UTF-8, so an object store cannot hold it") from None


def path_of(key: Key) -> str:
    """The key as obstore's path. InvalidName for a key that it cannot spell."""
    if not is_plain(key):
        raise InvalidName(f"{key!r} cannot be spelled for this store")
    return text_of(key)


def _found(result: GetResult) -> Found:
    metadata = {name: value for name, value in result.attributes.items() if name not in _HEADER_ATTRIBUTES}
    return found_of_meta(result.meta, metadata)


def _mode(condition: Condition) -> PutMode:
    if condition.absent:
        return "create"
    if (match := etags.header(condition.etag)) is not None:
        return {"e_tag": match}
    return "overwrite"


@contextlib.contextmanager
def classified(what: str) -> Iterator[None]:
    """Turn obstore's exceptions into the domain's."""
    try:
        yield
    except TierCacheError:
        raise
    except (obstore.exceptions.BaseError, OSError, ValueError) as error:
        raise classify(error, what) from error


def classify(error: Exception, what: str) -> TierCacheError:
    """The domain's error: by the HTTP status where the message has one, else by obstore's class, else by its cause.

    obstore has no field for status or cause; both are in the text, of which the first line is the message and
    the rest a dump of object_store's error.
    """
    text = str(error)
    summary = text.split("\n\nDebug source", 1)[0]
    if (status := _STATUS.search(summary)) is not None:
        code, message = _CODE.search(summary), _MESSAGE.search(summary)
        detail = message.group(1) if message else ""
        return error_of_status(int(status.group(1)), code.group(1) if code else "", what, detail)
    return _by_class(error, text)(f"{what}: {of_obstore(text)}")


def _by_class(error: Exception, text: str) -> type[TierCacheError]:
    if isinstance(error, FileNotFoundError | obstore.exceptions.NotFoundError):
        return Absent
    if isinstance(error, obstore.exceptions.PermissionDeniedError | obstore.exceptions.UnauthenticatedError):
        return Denied
    if isinstance(
        error,
        obstore.exceptions.PreconditionError
        | obstore.exceptions.AlreadyExistsError
        | obstore.exceptions.NotModifiedError,
    ):
        return Changed
    if isinstance(error, obstore.exceptions.NotSupportedError | NotImplementedError):
        return Unsupported
    if isinstance(error, obstore.exceptions.InvalidPathError):
        return InvalidName
    return Busy if any(mark in text for mark in _TRANSPORT_MARKS) else Broken


_TRANSPORT_MARKS = ("HttpError {", "HTTP error", "reqwest::Error", "hyper::Error", "error decoding response body")
"""The connection failed (refused, reset, cut, timed out) rather than the answer: only in the dump of the cause."""
