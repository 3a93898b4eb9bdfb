"""What engine and clients say to each other: length-prefixed msgpack frames over a Unix socket, with named limits.

A request is ``{"id": n, "op": name, **arguments}``. It is answered by any number of ``{"id", "progress": {...}}`` and
``{"id", "part": [...]}`` frames and then one ``{"id", "ok": value}`` or ``{"id", "error": class name, "message"}``.
A request with id 0 is a notice: it is never answered.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgpack

from tiercache import errors
from tiercache.errors import Broken, TierCacheError
from tiercache.model import Entry, Kind, VersionId

PROTOCOL_VERSION: Final = 1

MAX_FRAME_BYTES: Final = 8 * 1024 * 1024
"""Longest frame of either direction; a longer one closes the connection."""

MAX_REQUEST_BYTES: Final = 2 * 1024 * 1024
"""Longest frame that a client may send: requests carry names, never the bytes of files."""

_JOINED_BYTES: Final = 64 * 1024
"""A longer frame is sent in two pieces rather than copied."""

DATA_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Most object bytes in one reply."""

FETCH_MAX_BYTES: Final = 64 * 1024 * 1024
"""Most bytes that one ``fetch`` makes resident; a client asks again for more."""

PREFETCH_KEYS_MAX: Final = 256
"""Most files in one ``prefetch``."""

PART_ENTRIES: Final = 4096
"""Most names in one ``part`` frame of a listing."""

IN_FLIGHT_MAX: Final = 8
"""Requests of one connection that are served at the same time; the next one is read when one is done."""

STAGING_GRANT_BYTES: Final = 64 * 1024 * 1024
"""Most staging budget that a writer gets at once."""

STAGING_GRANT_SHARE: Final = 64
"""A grant beyond what the writer needs is at most this part of the whole budget."""

HEARTBEAT_S: Final = 5.0
"""How often the engine says that a request is still being served."""

NOTICE: Final = 0
"""The id of a request that wants no answer."""

SOCKET_NAME: Final = "engine.sock"

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
HEADER_BYTES: Final = _LENGTH.size


class ProtocolError(Exception):
    """The peer sent what this protocol does not allow; the connection is of no more use."""


def pack(message: Message) -> bytes:
    """Encode one frame, length included; ValueError when it is over ``MAX_FRAME_BYTES``."""
    return b"".join(pieces(message))


def pieces(message: Message) -> list[bytes]:
    """The same as what is to be sent one after the other."""
    body: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors="surrogateescape")
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    header = _LENGTH.pack(len(body))
    return [header, body] if len(body) > _JOINED_BYTES else [header + body]


class FrameReader:
    """Cuts a byte stream into messages. Holds at most one frame and one received chunk."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> Message | None:
        """The next whole message, None while it is incomplete; ProtocolError for what is none."""
        if len(self._buffer) < HEADER_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self._max_bytes:
            raise ProtocolError(f"a frame of {length} bytes is over the limit of {self._max_bytes}")
        end = HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view, view[HEADER_BYTES:end] as body:
            message = _unpack(body)
        del self._buffer[:end]
        return message

    def pending_bytes(self) -> int:
        """How many further bytes the frame at the front needs, as far as is known; at least 1."""
        if len(self._buffer) < HEADER_BYTES:
            return HEADER_BYTES - len(self._buffer)
        (length,) = _LENGTH.unpack_from(self._buffer)
        return max(1, HEADER_BYTES + int(length) - len(self._buffer))


def _unpack(body: memoryview) -> Message:
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=False, unicode_errors="surrogateescape")
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a frame is not msgpack: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("id"), int):
        raise ProtocolError("a frame is not a map with an integer id")
    return message


def error_frame(request: int, error: TierCacheError) -> Message:
    """The reply that carries ``error`` across."""
    return {"id": request, "error": type(error).__name__, "message": str(error)}


def error_of(message: Message) -> TierCacheError:
    """The error that an error frame carries, of the same class; Broken for a class this side does not know."""
    kind = getattr(errors, str(message["error"]), None)
    text = str(message.get("message", ""))
    if isinstance(kind, type) and issubclass(kind, TierCacheError):
        return kind(text)
    return Broken(f"{message['error']}: {text}")


def entry_of(fields: list[Any]) -> Entry:
    """Rebuild an ``Entry`` from the list that msgpack makes of it."""
    entry = Entry(*fields)
    xattrs = tuple((name, value) for name, value in entry.xattrs)
    return entry._replace(kind=Kind(entry.kind), version=VersionId(entry.version), xattrs=xattrs)


@contextmanager
def socket_address(cache_dir: Path) -> Iterator[str]:
    """An address of the engine's socket that fits AF_UNIX's 108 bytes however long ``cache_dir`` is.

    Valid inside the ``with`` only: a long path goes through a descriptor of the directory. FileNotFoundError
    when there is no such directory.
    """
    direct = os.fspath(cache_dir / SOCKET_NAME)
    if len(os.fsencode(direct)) < 108:
        yield direct
        return
    directory = os.open(cache_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{SOCKET_NAME}"
    finally:
        os.close(directory)


def listening_socket(cache_dir: Path, backlog: int) -> socket.socket:
    """Bind the engine's socket, mode 0600, replacing a dead engine's. The caller holds the engine lock."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(cache_dir / SOCKET_NAME)
        with socket_address(cache_dir) as address:
            sock.bind(address)
        # Nobody can connect before listen(), so there is no moment at which others could.
        os.chmod(cache_dir / SOCKET_NAME, 0o600)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def connect(cache_dir: Path, timeout_s: float) -> socket.socket | None:
    """A connected blocking socket, or None when no engine listens. Other failures are OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        with socket_address(cache_dir) as address:
            sock.connect(address)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        sock.close()
        return None
    except BlockingIOError:
        # The backlog is full: the engine is there, but does not accept in time.
        sock.close()
        raise TimeoutError(errno.ETIMEDOUT, "the engine does not accept connections") from None
    except BaseException:
        sock.close()
        raise
    return sock
