"""What a worker process does with a target: one class per kind of target, all with the same calls."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from tiercache.bench.dataset import Piece
from tiercache.bench.slowness import SlowDisk
from tiercache.bench.targets import Call, Setup


class Session(Protocol):
    """Names are relative to the target's root. Each call is what a careful user of that target would write."""

    def read(self, piece: Piece) -> Any:
        """The bytes of a piece: a whole file, or a part of one that stays open until another is read."""
        ...

    def save(self, name: str, parts: Sequence[memoryview], *, fsync: bool) -> None:
        """Write a file in several calls and close it."""
        ...

    def remove(self, name: str) -> None: ...

    def size(self, name: str) -> int:
        """What stat tells."""
        ...

    def children(self, directory: str) -> list[str]:
        """The names in a directory."""
        ...

    def forget(self) -> None:
        """Drop what the client itself remembers of names."""
        ...

    def prepare(self) -> None:
        """List all names once, as a data loader does before its first epoch."""
        ...

    def settle(self) -> None:
        """An epoch is over: close what is open, and tell what a client tells in batches, so that the engine's figures
        are complete."""
        ...

    def close(self) -> None: ...


def open_session(setup: Setup, disk: SlowDisk | None) -> Session:
    """The session of a target, in this process."""
    match setup.kind:
        case "plain":
            return PlainSession(setup, disk if setup.slow else None)
        case "fsspec":
            return FsspecSession(setup)
        case "obstore":
            return ObstoreSession(setup)
    raise ValueError(setup.kind)


class PlainSession:
    """Files of a directory: the local one, a mount, or an origin that is a directory."""

    def __init__(self, setup: Setup, disk: SlowDisk | None) -> None:
        self._root = setup.root + "/"
        self._buffering = -1 if setup.buffered else 0
        self._disk = disk
        self._file: Any = None
        self._name = ""

    def read(self, piece: Piece) -> bytes:
        if piece.whole:
            with open(self._root + piece.name, "rb", buffering=self._buffering) as file:
                data: bytes = file.read()
            self._wait(len(data))
            return data
        if piece.name != self._name:
            self._leave()
            self._file, self._name = open(self._root + piece.name, "rb"), piece.name  # noqa: SIM115 - kept open
        if self._file.tell() != piece.offset:
            self._file.seek(piece.offset)
        part: bytes = self._file.read(piece.length)
        self._wait(len(part))
        return part

    def save(self, name: str, parts: Sequence[memoryview], *, fsync: bool) -> None:
        self._wait(sum(map(len, parts)))
        with open(self._root + name, "wb") as file:
            file.writelines(parts)
            if fsync:
                file.flush()
                os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        os.unlink(self._root + name)

    def size(self, name: str) -> int:
        self._wait(0)
        return os.stat(self._root + name).st_size

    def children(self, directory: str) -> list[str]:
        self._wait(0)
        return os.listdir(self._root + directory)

    def forget(self) -> None:
        """The kernel's memory is dropped with the page cache."""

    def prepare(self) -> None:
        for _ in os.walk(self._root):
            pass

    def settle(self) -> None:
        self._leave()

    def close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._name = None, ""

    def _wait(self, size_bytes: int) -> None:
        if self._disk is not None:
            self._disk.wait(size_bytes, request=True)


class FsspecSession:
    """Any fsspec filesystem: s3fs, LocalFileSystem and ours."""

    def __init__(self, setup: Setup) -> None:
        import fsspec

        self._fs = fsspec.filesystem(setup.protocol, **setup.options, skip_instance_cache=True)
        self._root = setup.root + "/"
        self._cat = setup.call is Call.CAT
        self._file: Any = None
        self._name = ""

    def read(self, piece: Piece) -> Any:
        if self._cat:
            if piece.whole:
                return self._fs.cat_file(self._root + piece.name)
            return self._fs.cat_file(self._root + piece.name, start=piece.offset, end=piece.offset + piece.length)
        if piece.whole:
            with self._fs.open(self._root + piece.name, "rb") as file:
                return file.read()
        if piece.name != self._name:
            self._leave()
            self._file, self._name = self._fs.open(self._root + piece.name, "rb"), piece.name
        if self._file.tell() != piece.offset:
            self._file.seek(piece.offset)
        return self._file.read(piece.length)

    def save(self, name: str, parts: Sequence[memoryview], *, fsync: bool) -> None:
        with self._fs.open(self._root + name, "wb") as file:
            for part in parts:
                file.write(part)
            if fsync:
                file.flush()
                # s3fs has no descriptor: there the close is durable in any case.
                with suppress(AttributeError, OSError):
                    os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        self._fs.rm_file(self._root + name)

    def size(self, name: str) -> int:
        return int(self._fs.info(self._root + name)["size"])

    def children(self, directory: str) -> list[str]:
        found = self._fs.ls(self._root + directory, detail=False)
        return [str(path).rpartition("/")[2] for path in found]

    def forget(self) -> None:
        self._fs.invalidate_cache()

    def prepare(self) -> None:
        self._fs.find(self._root)

    def settle(self) -> None:
        # s3fs keeps 50 MB of an open file: the next epoch would find them.
        self._leave()
        if self._fs.protocol == "tiercache":
            from tiercache.client import connect
            from tiercache.config import load_config

            client = connect(load_config(None, {"cache_dir": self._fs.cache_dir, "engine.mode": "attach"}))
            client.tell_touches()
            client.status()  # a notice is not answered; what follows it on the same connection is

    def close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._name = None, ""


class ObstoreSession:
    """A bare loop over obstore: the fastest client of an object store that Python has."""

    def __init__(self, setup: Setup) -> None:
        import obstore.store

        bucket, _, prefix = setup.root.partition("/")
        config = _obstore_config(setup.options)
        plain_http = config.get("endpoint", "").startswith("http://")
        self._store: Any = obstore.store.S3Store(
            bucket,
            prefix=prefix,
            config=config,  # type: ignore[arg-type]  # the keys are right, as the tests show
            client_options={"allow_http": plain_http},
        )

    def read(self, piece: Piece) -> Any:
        import obstore

        if piece.whole:
            return obstore.get(self._store, piece.name).bytes()
        return obstore.get_range(self._store, piece.name, start=piece.offset, length=piece.length)

    def save(self, name: str, parts: Sequence[memoryview], *, fsync: bool) -> None:
        import obstore

        with obstore.open_writer(self._store, name) as file:
            for part in parts:
                file.write(part)

    def remove(self, name: str) -> None:
        import obstore

        obstore.delete(self._store, name)

    def size(self, name: str) -> int:
        import obstore

        return int(obstore.head(self._store, name)["size"])

    def children(self, directory: str) -> list[str]:
        import obstore

        found = obstore.list_with_delimiter(self._store, directory)
        prefixes = [str(path) for path in found["common_prefixes"]]
        return [path.rstrip("/").rpartition("/")[2] for path in [*prefixes, *(o["path"] for o in found["objects"])]]

    def forget(self) -> None:
        """It remembers nothing."""

    def prepare(self) -> None:
        """It needs no listing."""

    def settle(self) -> None:
        """It tells nobody."""

    def close(self) -> None:
        """It holds nothing open."""


def _obstore_config(options: dict[str, Any]) -> dict[str, str]:
    """s3fs-style options under obstore's names."""
    client = options.get("client_kwargs") or {}
    key, secret, token = (options.get(name) for name in ("key", "secret", "token"))
    if options.get("profile"):
        import botocore.session

        found = botocore.session.Session(profile=options["profile"]).get_credentials()
        key, secret, token = found.access_key, found.secret_key, found.token
    named = {
        "access_key_id": key,
        "secret_access_key": secret,
        "session_token": token,
        "endpoint": options.get("endpoint_url") or client.get("endpoint_url"),
        "region": client.get("region_name") or "us-east-1",
    }
    return {name: value for name, value in named.items() if value}
