"""Asking about names: info, listings, find and what is built on them. Always as current as the catalog."""

from __future__ import annotations

import datetime
from typing import Any

from fsspec.implementations.local import trailing_sep

from tiercache.client import RemoteOrigin
from tiercache.errors import Absent, NotDirectory, TierCacheError
from tiercache.filesystem.base import OriginFileSystem, builtin_error, raising
from tiercache.filesystem.describe import describe, fingerprint, implied
from tiercache.model import Entry, Key, Kind, join, parent_of

Info = dict[str, Any]


class NamesFileSystem(OriginFileSystem):
    """The reading half of the names. Only "there is none" makes a name missing; other failures are raised."""

    def info(self, path: Any, **kwargs: Any) -> Info:
        path = self._strip(path)
        if self._is_above_origins(path):
            return implied(path)
        origin, key = self._locate(path)
        with raising(path):
            entry = origin.info(key)
            if entry.kind is Kind.SYMLINK:
                return self._describe_link(path, entry, origin, *origin.follow(key, entry))
            return self._describe(path, entry, origin, key)

    def exists(self, path: Any, **kwargs: Any) -> bool:
        """False only if the origin says that there is no such name: a denied or failing request is raised."""
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def lexists(self, path: Any, **kwargs: Any) -> bool:
        """As ``exists``, and True for a symbolic link that points nowhere."""
        path = self._strip(path)
        if self._is_above_origins(path):
            return True
        origin, key = self._locate(path)
        try:
            origin.info(key)
        except (Absent, NotDirectory):
            return False
        except TierCacheError as error:
            raise builtin_error(error, path) from error
        return True

    def isdir(self, path: Any) -> bool:
        return self._type(path) == "directory"

    def isfile(self, path: Any) -> bool:
        return self._type(path) == "file"

    def islink(self, path: Any) -> bool:
        """Whether the name itself is a symbolic link."""
        path = self._strip(path)
        origin, key = self._locate(path)
        try:
            return origin.info(key).kind is Kind.SYMLINK
        except (Absent, NotDirectory):
            return False
        except TierCacheError as error:
            raise builtin_error(error, path) from error

    def _type(self, path: Any) -> str:
        try:
            return str(self.info(path)["type"])
        except (FileNotFoundError, NotADirectoryError):
            return ""

    # -- listings ---------------------------------------------------------------------------------

    def ls(self, path: Any, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip(path)
        if self._is_above_origins(path):
            return self._ls_origins(detail=detail)
        origin, key = self._locate(path)
        try:
            children = origin.list(key)
        except NotDirectory:
            return [self.info(path)] if detail else [path]
        except TierCacheError as error:
            raise builtin_error(error, path) from error
        names = [_below(path, name) for name, _ in children]
        if not detail:
            return names
        return [
            self._describe_listed(name, child, origin, join(key, base))
            for name, (base, child) in zip(names, children, strict=True)
        ]

    def _ls_origins(self, *, detail: bool) -> list[Any]:
        if self.target_protocol:
            return list(self._target().ls("", detail=detail))
        names = sorted(self._config.origins)
        return [implied(name) for name in names] if detail else names

    def find(
        self, path: Any, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """All files below ``path``: by one flat walk of the origin, or with ``maxdepth`` by a listing per directory."""
        path = self._strip(path)
        if maxdepth is not None or self._is_above_origins(path):
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        found = self._walked(path, withdirs=withdirs)
        return dict(sorted(found.items())) if detail else sorted(found)

    def _walked(self, path: str, *, withdirs: bool) -> dict[str, Info]:
        origin, top = self._locate(path)
        try:
            entries = origin.walk(top)
        except (Absent, NotDirectory):
            return {path: self.info(path)} if self.isfile(path) else {}
        except TierCacheError as error:
            raise builtin_error(error, path) from error
        found: dict[str, Info] = {}
        if withdirs and path != self._place.root:
            found[path] = self.info(path)
        names = self._names(path, (key for key, _ in entries))
        for name, (key, entry) in zip(names, entries, strict=True):
            if withdirs:
                self._add_parents(found, path, top, key)
            if entry.kind is not Kind.DIRECTORY or withdirs:
                found[name] = self._describe_listed(name, entry, origin, key)
        return found

    def _add_parents(self, found: dict[str, Info], path: str, top: Key, key: Key) -> None:
        # Directories of an object store that exist only as prefixes are in no walk.
        directory = parent_of(key)
        while len(directory) > len(top):
            (name,) = self._names(path, [directory])
            if name in found:
                return
            found[name] = implied(name)
            directory = parent_of(directory)

    def du(
        self, path: Any, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **kwargs)
        sizes = {name: (info or self.info(name))["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    # -- versions and times -----------------------------------------------------------------------

    def checkpoints(self, path: Any) -> list[Info]:
        """The checkpoints in a directory, the latest first: ``name``, ``complete``, ``lacks`` (why it is not),
        ``level`` (reached by all of its files), ``files``, ``size`` in bytes, ``saved`` in seconds since the epoch."""
        path = self._strip(path)
        origin, key = self._locate(path)
        with raising(path):
            found = origin.checkpoints(key)
        return [{**told, "name": _below(path, told.pop("name")), "size": told.pop("size_bytes")} for told in found]

    def latest_complete(self, path: Any) -> str:
        """The path of the latest complete checkpoint in a directory. FileNotFoundError if there is none."""
        path = self._strip(path)
        origin, key = self._locate(path)
        with raising(path):
            name = origin.latest_checkpoint(key)
            if not name:
                raise Absent(f"{path}: no complete checkpoint in it")
        return _below(path, name)

    def ukey(self, path: Any) -> str:
        """Changes whenever the content does: made of the version, or of the staged file while the origin lacks it."""
        path = self._strip(path)
        origin, key = self._locate(path)
        with raising(path):
            return fingerprint(origin.follow(key, origin.info(key))[1])

    def checksum(self, path: Any) -> int:
        return int(self.ukey(path), 16)

    def modified(self, path: Any) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.UTC)

    def created(self, path: Any) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)["created"], tz=datetime.UTC)

    def sign(self, path: Any, expiration: int = 100, **kwargs: Any) -> Any:
        """A signed URL of the origin's object, made by the target filesystem; of the last uploaded content."""
        return self._target().sign(self._strip(path), expiration=expiration, **kwargs)

    def invalidate_cache(self, path: Any = None) -> None:
        """Ask the origin again at the next use of a name below ``path`` (None: of any), whatever its TTL says."""
        super().invalidate_cache(path)
        if path is not None:
            path = self._strip(path)
            origin, key = self._locate(path)
            with raising(path):
                origin.invalidate(key)
            return
        for origin, root in self._roots.values():
            with raising(""):
                origin.invalidate(root)

    # -- entries ----------------------------------------------------------------------------------

    def _is_above_origins(self, path: str) -> bool:
        return not path

    def _describe(self, name: str, entry: Entry, origin: RemoteOrigin, key: Key) -> Info:
        return describe(name, entry, origin.reached(key, entry) if entry.kind is not Kind.DIRECTORY else {})

    def _describe_listed(self, name: str, entry: Entry, origin: RemoteOrigin, key: Key) -> Info:
        if entry.kind is not Kind.SYMLINK:
            return self._describe(name, entry, origin, key)
        try:
            target_key, target = origin.follow(key, entry)
        except TierCacheError:
            return describe(name, entry, origin.reached(key, entry))
        if target.kind is Kind.DIRECTORY:
            # Not as a directory: a walk would never end where a link points upwards.
            return describe(name, entry, origin.reached(key, entry))
        return self._describe_link(name, entry, origin, target_key, target)

    def _describe_link(self, name: str, link: Entry, origin: RemoteOrigin, key: Key, target: Entry) -> Info:
        info = self._describe(name, target, origin, key)
        return {**info, "islink": True, "destination": link.link_target.decode("utf-8", "surrogateescape")}


def ends_as_directory(path: Any) -> bool:
    """Whether the caller's spelling says that a directory is meant."""
    return isinstance(path, str) and bool(trailing_sep(path))


def _below(path: str, name: bytes) -> str:
    """The path of a name in a directory."""
    return (path if path.endswith("/") else path + "/") + name.decode("utf-8", "surrogateescape")
