"""The origins that the engine has open, one tree each, however many mounts and clients use it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import trio

from tiercache.cache import Cache
from tiercache.catalog import Catalog
from tiercache.config import Config
from tiercache.engine.remembered_keys import RememberedKeys
from tiercache.engine.tree import Tree
from tiercache.errors import Absent, Broken, TierCacheError
from tiercache.journal import Journal, OriginSource, StagedRecord
from tiercache.memory import Memory
from tiercache.metrics import Metrics
from tiercache.model import Key, OriginId, StagedState, origin_id
from tiercache.origins import Origin, RetryingOrigin, RetryPolicy, SimulatedOrigin, open_origin
from tiercache.writeback import Leftover

SECRET_OPTIONS = ("key", "secret", "token", "password", "passphrase", "credential", "account_key", "sas")
"""Option names that hold one of these words are never written to disk."""

KEPT_DIRECTORIES = "kept"
"""Below the cache directory: a file for each origin."""

CHECK_S = 10.0
"""How long an origin that is attached for the first time is asked again while it does not answer."""

log = logging.getLogger("tiercache.engine")


class Trees:
    """Opens origins on demand and keeps them until the engine ends."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        cache: Cache,
        journal: Journal,
        *,
        memory: Memory,
        metrics: Metrics,
        inherit: bool = False,
    ) -> None:
        """``inherit``: mounts of the engine before this one are still in use."""
        self._config = config
        self._memory = memory
        self._inherit = inherit
        self._catalog = catalog
        self._cache = cache
        self._journal = journal
        self._metrics = metrics
        self._trees: dict[OriginId, Tree] = {}
        self._options: dict[OriginId, tuple[str, Mapping[str, Any]]] = {}
        self._failures: dict[OriginId, TierCacheError] = {}

    def get(self, origin: OriginId) -> Tree | None:
        return self._trees.get(origin)

    def __iter__(self) -> Iterator[Tree]:
        return iter(list(self._trees.values()))

    async def attach(self, url: str, client: str, options: Mapping[str, Any]) -> tuple[Tree, Key]:
        """The tree of a URL and the key in it. A new origin, or one with other credentials, is asked once, so that an
        unknown bucket, a refused key or a dead endpoint is told here."""
        origin, root = await trio.to_thread.run_sync(lambda: self._open(url, client, options))
        identity = origin_id(origin.identity)
        known = self._trees.get(identity)
        if known is not None and (not options or self._options[identity] == (client, options)):
            origin.close()
            return known, root
        await trio.to_thread.run_sync(self._check, origin, root, abandon_on_cancel=True)
        source = OriginSource(url, client, public_options(options))
        if known is None:
            return self._add(identity, origin, source, client, options), root
        log.info("%s: further requests use the options of the newest client", origin.identity)
        known.origin.close()
        known.origin, known.source = origin, source
        self._options[identity] = (client, options)
        return known, root

    async def known_at(self, url: str, client: str, options: Mapping[str, Any]) -> list[tuple[Tree, Key]]:
        """What a URL names in the origins that are attached, whatever options they were opened with; of several the
        one that these options lead to, if it is among them."""
        found = await trio.to_thread.run_sync(self._known_at, url)
        if len(found) > 1:
            identity = await trio.to_thread.run_sync(self._identity, url, client or "obstore", options)
            found = [(tree, key) for tree, key in found if tree.origin_id == identity] or found
        return found

    def alike(self, tree: Tree) -> list[Tree]:
        """The origins that are attached under the URL of this one, it among them: with other options it may be the
        same store, spelled in another way."""
        place = _place(tree.source.url)
        return [other for other in self if _place(other.source.url) == place]

    def _identity(self, url: str, client: str, options: Mapping[str, Any]) -> OriginId:
        origin, _ = self._open(url, client, options)
        origin.close()
        return origin_id(origin.identity)

    def _known_at(self, url: str) -> list[tuple[Tree, Key]]:
        found = []
        for identity, tree in list(self._trees.items()):
            if _place(tree.source.url) != _place(url):
                continue
            client, options = self._options[identity]
            origin, root = self._open(url, client or tree.source.client, options or tree.source.options)
            origin.close()
            if origin_id(origin.identity) == identity:
                found.append((tree, root))
        return found

    async def adopt(self, url: str, client: str, options: Mapping[str, Any]) -> tuple[Tree, Key]:
        """As ``attach``, but nothing is asked: a mount that outlived its engine is served while its origin is down."""
        origin, root = await trio.to_thread.run_sync(lambda: self._open(url, client, options))
        identity = origin_id(origin.identity)
        known = self._trees.get(identity)
        if known is not None:
            origin.close()
            return known, root
        return self._add(identity, origin, OriginSource(url, client, public_options(options)), client, options), root

    def _check(self, origin: RetryingOrigin, root: Key) -> None:
        """Whether the origin answers. Not with the patience of a reader in mid-epoch: somebody waits at a prompt."""
        policy = RetryPolicy.of(self._config.fetch)
        asking = RetryingOrigin(
            origin.origin, policy._replace(deadline_s=min(policy.deadline_s, CHECK_S)), self._metrics
        )
        try:
            asking.stat(root)
        except Absent:
            # A prefix or file that is not there yet is no fault; an absent bucket raises at its root.
            asking.stat(b"")

    async def prepare(self, identity: OriginId, source: OriginSource) -> None:
        """Open the origin that a staged file belongs to, without asking it anything: it may be down just now.
        One that cannot be opened (its settings are gone) leaves the file staged, and the reason in its status."""
        if identity in self._trees:
            return
        try:
            origin, _ = await trio.to_thread.run_sync(lambda: self._open(source.url, source.client, source.options))
        except TierCacheError as error:
            log.error("%s: cannot be opened, its staged files wait: %s", source.url, error)
            self._failures[identity] = error
            return
        self._add(identity, origin, source, source.client, {})

    def origin_of(self, record: StagedRecord) -> Origin:
        """The origin that a staged file goes to; the error that keeps it from being opened if there is one."""
        tree = self._trees.get(record.origin)
        if tree is None:
            raise self._failures.get(record.origin) or Broken(f"{record.source.url}: not attached in this run")
        return tree.origin

    def _add(
        self, identity: OriginId, origin: Origin, source: OriginSource, client: str, options: Mapping[str, Any]
    ) -> Tree:
        threads = trio.CapacityLimiter(self._config.fetch.concurrency)
        tree = Tree(
            origin=origin,
            origin_id=identity,
            catalog=self._catalog,
            threads=threads,
            source=source,
            drop_version=self._cache.drop,
            is_staged=self._is_staged,
            retracted=lambda key: self._retracted(identity, key),
            kept_directories=RememberedKeys(
                self._config.cache_dir / KEPT_DIRECTORIES / identity.hex(), inherit=self._inherit
            ),
        )
        self._trees[identity] = tree
        self._options[identity] = (client, options)
        return tree

    def _retracted(self, identity: OriginId, key: Key | None) -> set[Leftover]:
        rows = self._journal.retractions() if key is None else self._journal.retractions(identity, key)
        return {Leftover.of(record) for record in rows if record.origin == identity and removes(record)}

    def _is_staged(self, staged_id: int) -> bool:
        record = self._journal.get(staged_id)
        return record is not None and record.state is not StagedState.LOST

    def _open(self, url: str, client: str, options: Mapping[str, Any]) -> tuple[RetryingOrigin, Key]:
        options = dict(options)
        simulate = options.pop("simulate", None)
        origin, root = open_origin(
            url,
            client=client,
            options=options,
            fetch=self._config.fetch,
            upload=self._config.upload,
            memory=self._memory,
        )
        if simulate:
            origin = SimulatedOrigin(origin, **simulate)
        policy = RetryPolicy.of(self._config.fetch)
        return RetryingOrigin(origin, policy, self._metrics), root

    def close(self) -> None:
        for tree in self._trees.values():
            tree.origin.close()


def _place(url: str) -> tuple[str, str]:
    """What all keys of one origin have in common."""
    parts = urlsplit(url)
    return parts.scheme or "file", parts.netloc


def removes(retraction: StagedRecord) -> bool:
    """Whether it is for an object that may be there, and not only for parts of one."""
    names_something = retraction.upload_id or retraction.base_etag or retraction.link_target
    return bool(names_something) or retraction.part_of is not None


def public_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that may be written to the journal: an engine that starts later takes secrets from the environment,
    a profile, or the next client."""
    public: dict[str, Any] = {}
    for name, value in options.items():
        if any(word in name.lower() for word in SECRET_OPTIONS):
            continue
        public[name] = public_options(value) if isinstance(value, Mapping) else value
    return public
