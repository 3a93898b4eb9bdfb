"""What a manifest lists, as a file of keys for the engine: each once, and none of another origin."""

from __future__ import annotations

import io
import os
import posixpath
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import IO, TYPE_CHECKING

import xxhash

from tiercache.cli.manifest import Nameless, Names, names_in
from tiercache.errors import ConfigError
from tiercache.model import Key

if TYPE_CHECKING:
    from tiercache.cli.origin import OriginChoice
    from tiercache.client import Client, RemoteOrigin
    from tiercache.client.reader import Reader


class Listed:
    """The file's name, and what was met on the way. ``path`` is where it lies until the engine has read it."""

    def __init__(self, directory: str) -> None:
        self.name = secrets.token_hex(16)
        self.path = os.path.join(directory, f"{self.name}.keys")
        self.files = 0
        self.left_out: Counter[str] = Counter()
        """What was not taken, by why."""

    def write(self, names: Names, root: Key, url: str) -> None:
        """Put the keys of the names into the file. OSError."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb", buffering=1 << 20) as file, closing(_Seen()) as seen:
            for name in names:
                if isinstance(name, Nameless):
                    self.left_out[name.value] += 1
                    continue
                key = key_of(name, root, url)
                if key is None:
                    self.left_out["name of no place in the origin"] += 1
                elif not seen.add(key):
                    self.left_out["duplicate"] += 1
                else:
                    self.files += 1
                    file.write(key + b"\0")


class _Seen:
    """Keys by their digests, in a temporary database: millions of them cost disk and little memory."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def add(self, key: Key) -> bool:
        """False for one that was there."""
        digest = xxhash.xxh3_128_digest(key)
        return self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 1

    def close(self) -> None:
        self._database.close()


def key_of(name: str, root: Key, url: str) -> Key | None:
    """The key of a name below ``url``, whose key is ``root``, or of a URL of the same origin. None for anything
    else."""
    url, prefix = url.rstrip("/"), os.fsdecode(root)
    origin = url.removesuffix(prefix) if prefix else f"{url}/"
    if name.startswith(origin):
        path = name.removeprefix(origin)
    elif origin == "file:///" and name.startswith("/"):
        path = name
    elif origin == "/" and name.startswith("file:///"):
        path = name.removeprefix("file://")
    elif "://" in name:
        return None
    else:
        path = posixpath.join(prefix, name.lstrip("/"))
    path = posixpath.normpath(path).lstrip("/")
    return None if not path or path.startswith("..") or path == "." or "\0" in path else os.fsencode(path)


@contextmanager
def listed(client: Client, origin: OriginChoice, manifest: str, column: str) -> Iterator[Listed]:
    """Read the manifest, a local file or one at a URL with the options of ``origin``. ConfigError when it cannot be."""
    found = Listed(client.request("plan_directory", idempotent=True))
    try:
        root = _attached(client, origin, origin.url).root
        with _opened(client, origin, manifest) as file:
            found.write(names_in(manifest, file, column), root, origin.url)
        if not found.files:
            raise ConfigError(f"{manifest}: {column!r} names no file of {origin.url}")
        yield found
    except OSError as error:
        raise ConfigError(f"{error.filename or manifest}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            os.unlink(found.path)


def _attached(client: Client, origin: OriginChoice, url: str) -> RemoteOrigin:
    profile = origin.profile or "general"
    return client.attach(url, client=origin.client or "obstore", options=origin.options, profile=profile)


def _opened(client: Client, origin: OriginChoice, manifest: str) -> IO[bytes]:
    if "://" not in manifest:
        return open(manifest, "rb")
    remote = _attached(client, origin, manifest)
    return io.BufferedReader(_Remote(remote.open_read(remote.root)), 1 << 20)


class _Remote(io.RawIOBase):
    """A file of the engine as Python's library and pyarrow read one."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._reader.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._reader.pread(self._at, min(len(view), max(0, self._reader.size - self._at)))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._reader.close()
        super().close()
