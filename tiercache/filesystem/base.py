"""What the filesystem is made of: its options, its origins, its identity and its paths."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.utils import tokenize

from tiercache.client import RemoteOrigin, connect
from tiercache.config import load_config
from tiercache.errors import ConfigError, TierCacheError, os_error
from tiercache.filesystem.arguments import OF_FSSPEC, unknown_argument
from tiercache.filesystem.paths import BucketPlace, Place, as_text, place_of, to_key, to_name
from tiercache.model import Key

SECRETS = frozenset(
    {"key", "secret", "token", "password", "account_key", "sas_token", "connection_string", "credential"}
)
"""Options that do not tell one filesystem from another."""


class OriginFileSystem(ChainedFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Names of ``target_protocol``'s filesystem, or of the origins in the configuration when there is none.

    It owns no thread, event loop or connection: the client is shared by all instances of a process, and an
    instance works on after fork and pickle.
    """

    protocol = "tiercache"
    local_file = False
    _strip_tokenize_options = ("fo",)

    def __init__(
        self,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        engine: str | None = None,
        profile: str | None = None,
        client: str | None = None,
        fs: Any = None,
        fo: str | None = None,
        **options: Any,
    ) -> None:
        """Without ``target_protocol`` or ``fs``, paths begin with the name of an origin in the configuration.

        :param target_options: what the target filesystem would be made with (credentials, endpoint), for the engine.
        :param cache_dir: overrides the configuration's.
        :param settings: further overrides, nested as the file is or with dotted keys; an engine that runs already must
            have been started with them, else ValueError says what it has.
        :param config: the configuration file, else ``$TIERCACHE_CONFIG`` or the usual place.
        :param engine: ``auto``, ``attach`` or ``inprocess``.
        :param profile: ``dataset``, ``checkpoint``, ``weights``, ``scratch`` or ``general``.
        :param client: ``obstore`` or ``s3fs``: what the engine reads the origin with.
        :param options: what fsspec itself takes for any filesystem; TypeError for anything else.
        """
        if unknown := set(options) - OF_FSSPEC:
            own = inspect.signature(OriginFileSystem.__init__).parameters.keys() - {"self", "options"}
            raise unknown_argument(min(unknown), own, target_protocol)
        super().__init__(**options)
        if fs is not None:
            if target_protocol is not None:
                raise ValueError("give either target_protocol or fs")
            target_protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
            target_options = {**fs.storage_options, **(target_options or {})}
        self.target_protocol = target_protocol or ""
        self.target_options = dict(target_options or {})
        self._profile = profile
        self._client_kind = client
        self._settings = dict(settings or {})
        overrides = {"cache_dir": cache_dir, **self._settings}
        if engine is not None:
            overrides["engine.mode"] = engine
        with raising(""):
            self._config = load_config(None if config is None else Path(config), overrides)
        self._place: Place = (
            place_of(self.target_protocol, self.target_options) if target_protocol else BucketPlace("tiercache")
        )
        self._roots: dict[str, tuple[RemoteOrigin, Key]] = {}
        # An attribute, not a method: fsspec has it as a class method, but the spelling is the target's. Most calls
        # are with one text, for which this is the shortest way.
        self._strip_protocol = self._strip
        self.root_marker = self._place.root

    # -- identity ---------------------------------------------------------------------------------

    @property
    def cache_dir(self) -> Path:
        """The directory whose engine answers."""
        return self._config.cache_dir

    @property
    def fsid(self) -> str:
        """Equal for filesystems with the same files, whatever the credentials and the cache directory."""
        public = {name: value for name, value in self.target_options.items() if name not in SECRETS}
        return f"tiercache_{self.target_protocol}_{tokenize(public)}"

    def _target(self) -> Any:
        """The target filesystem itself, for what has nothing to do with files: buckets and signed URLs."""
        if not self.target_protocol:
            raise NotImplementedError("an origin of the configuration has no target filesystem")
        return fsspec.filesystem(self.target_protocol, **self.target_options)

    # -- paths ------------------------------------------------------------------------------------

    def _strip(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self._strip(item) for item in path]
        return self._place.strip(path if type(path) is str else as_text(path))

    def _parent(self, path: Any) -> str:
        path = self._strip(path)
        root = self._place.root
        return path.rpartition("/")[0] or root

    def _locate(self, path: str) -> tuple[RemoteOrigin, Key]:
        """The origin and the key of a stripped path."""
        head, rest = self._place.split(path)
        try:
            origin, root = self._roots[head]
        except KeyError:
            origin, root = self._attach(head, path)
        return origin, to_key(root, rest)

    def _attach(self, head: str, path: str) -> tuple[RemoteOrigin, Key]:
        with raising(path):
            if self.target_protocol:
                url, client, options = self._place.url(head), self._client_kind, self.target_options
                profile = self._profile
            else:
                url, client, options, profile = self._configured(head)
            engine = connect(self._config)
            engine.require(self._config, self._settings)
            origin = engine.attach(url, client=client or "obstore", options=options, profile=profile or "general")
        self._roots[head] = origin, origin.root
        return self._roots[head]

    def _configured(self, name: str) -> tuple[str, str | None, dict[str, Any], str | None]:
        found = self._config.origins.get(name)
        if found is None:
            known = ", ".join(sorted(self._config.origins)) or "none"
            raise ConfigError(f"there is no origin {name!r} in the configuration; known: {known}")
        return found.url, self._client_kind or found.client, found.options, self._profile or found.profile

    def _names(self, path: str, keys: Iterable[Key]) -> Iterator[str]:
        """The paths of keys in the origin of ``path``."""
        head, _ = self._place.split(path)
        root = self._roots[head][1]
        for key in keys:
            yield self._place.join(head, to_name(root, key))


@contextmanager
def raising(path: str) -> Iterator[None]:
    """Turn the domain's errors into the builtin ones that fsspec's users expect."""
    try:
        yield
    except TierCacheError as error:
        raise builtin_error(error, path) from error


def builtin_error(error: TierCacheError, path: str) -> Exception:
    """The builtin exception of the same meaning: an OSError with errno, or ValueError for a wrong setting."""
    return ValueError(str(error)) if isinstance(error, ConfigError) else os_error(error, path)
