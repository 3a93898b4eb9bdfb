"""What all users of one origin share: its names, live inodes, and the directories that only we know of."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple

import trio

from tiercache.cache import Location, VersionRef
from tiercache.catalog import Catalog
from tiercache.engine.entries import directory_entry, now_ns
from tiercache.engine.live import LiveInode, LiveTable, live_entry
from tiercache.engine.name_locks import NameLocks
from tiercache.engine.remembered_keys import RememberedKeys
from tiercache.journal import OriginSource
from tiercache.model import Capability, Entry, Key, Kind, ObjectStat, OriginId, VersionId, parent_of, version_id
from tiercache.origins.base import Origin
from tiercache.writeback import Leftover

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LINKED_LIMIT = 1_000_000
"""Files with several names whose inode is remembered apart from the catalog."""

ChangeListener = Callable[[Key, int], None]


@dataclass(eq=False)
class Tree:
    """State in one place; the operations are in ``names``, ``changes`` and ``files``."""

    origin: Origin
    origin_id: OriginId
    catalog: Catalog
    threads: trio.CapacityLimiter
    """Bounds the origin calls of this tree that are under way (``fetch.concurrency``)."""

    source: OriginSource
    """How to open the origin again, without secrets: each staged file's record carries it."""

    drop_version: Callable[[VersionId], None]
    """Gives the room of a version back."""

    is_staged: Callable[[int], bool]
    """Whether the journal still has the staged file of an id, and its bytes are sound."""

    retracted: Callable[[Key | None], set[Leftover]]
    """What cancelled uploads of ours may bring and renamed files have left, under all names or one. It is removed, by
    and by."""

    live: LiveTable = field(default_factory=LiveTable)

    names: NameLocks = field(default_factory=NameLocks)
    """Held by whoever changes a name; see ``hold``."""

    linked: dict[int, int] = field(default_factory=dict)
    """The inode of files that have several names, by the origin's own number for them."""

    staged_names: dict[int, Key] = field(default_factory=dict)
    """The name of each inode that has staged bytes; changed by ``place_staged`` alone."""

    staged_below: Counter[Key] = field(default_factory=Counter)
    """For each directory, how many staged names lie anywhere under it: such a directory exists even where the
    origin, whose directories are key prefixes, does not know it yet."""

    kept_directories: RememberedKeys = field(default_factory=RememberedKeys)
    """Directories on an object store that lost an object by our own unlink or rename: POSIX lets them stand, until
    ``rmdir``. What has no marker is remembered here until the end of the engine, or by the next one where a mount
    outlives it."""

    marked_directories: set[Key] = field(default_factory=set)
    """Directories that have a marker on an object store, which we made."""

    mounted: Counter[Key] = field(default_factory=Counter)
    """How many mounts show a directory of an object store: for them it stands, empty, when the origin has nothing in
    it. Nobody has made it then, and the listing of the directory above is not to tell of it; see ``Names``."""

    roots: Counter[Key] = field(default_factory=Counter)
    """What mounts show, on any origin. Nobody asks a mount for what lies beside it."""

    hollow: set[Key] = field(default_factory=set)
    """Those of them that the origin did not know when it was asked last, and in which nothing was made since."""

    generations: Counter[Key] = field(default_factory=Counter)
    """Bumped at each local change in a directory; see ``generation``."""

    trees_changed: int = 0
    """How many whole directories were moved or removed."""

    listeners: list[ChangeListener] = field(default_factory=list)

    pushers: list[Callable[[Entry, Location], bool]] = field(default_factory=list)
    """Mounts that can show the kernel a file before anybody reads it; each tells whether it will try."""

    async def call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking origin call in a worker thread. A cancelled caller leaves the thread to its timeout."""
        return await trio.to_thread.run_sync(function, *args, limiter=self.threads, abandon_on_cancel=True)

    @asynccontextmanager
    async def hold(self, *keys: Key) -> AsyncIterator[None]:
        """Hold names, until the block ends, and with one name of a hard-linked file all of its names."""
        while True:
            names = self._with_links(keys)
            async with self.names.hold(*names):
                if self._with_links(keys) <= names:
                    yield
                    return

    @asynccontextmanager
    async def name_of(self, live: LiveInode) -> AsyncIterator[Key | None]:
        """The inode's name, which nobody changes until the block ends; None if it has none any more."""
        while (key := live.key) is not None:
            async with self.hold(key):
                if live.key == key:
                    yield key
                    return
        yield None

    def are_free(self, *keys: Key) -> bool:
        """Whether ``hold`` would not have to wait."""
        return self.names.are_free(*self._with_links(keys))

    def _with_links(self, keys: tuple[Key, ...]) -> set[Key]:
        names = set(keys)
        for key in keys:
            entry = self.entry(key)
            if entry is not None and entry.link_count > 1:
                names.update(self.names_of(entry.inode))
        return names

    def can(self, capability: Capability) -> bool:
        return bool(self.origin.capabilities & capability)

    def entry(self, key: Key) -> Entry | None:
        """What the catalog has. Staged bytes that are lost, or that an earlier run brought to the origin without a
        word to the catalog, are no reason to believe an entry."""
        entry = self.catalog.entry(self.origin_id, key)
        if entry is not None and entry.staged and not self.is_staged(entry.staged):
            return entry._replace(staged=0, checked_ns=0, version=VersionId(b""), etag="")
        return entry

    def without_leftovers(self, stats: list[ObjectStat], retracted: set[Leftover]) -> list[ObjectStat]:
        """What the origin told, less what is to be removed under names that are gone: for us those are absent.
        ``retracted``: which there were when the origin was asked, and when it had answered."""
        if not retracted:
            return stats
        left: dict[Key, list[Leftover]] = {}
        for leftover in retracted:
            left.setdefault(leftover.key, []).append(leftover)
        return [
            stat
            for stat in stats
            if not any(leftover.is_this(stat) for leftover in left.get(stat.key, ())) or self._exists(stat.key)
        ]

    def _exists(self, key: Key) -> bool:
        known = self.entry(key)
        return known is not None and known.kind is not Kind.ABSENT

    def doubt(self, key: Key) -> None:
        """Ask the origin for this name at its next lookup, whatever was listed; staged bytes are not in doubt."""
        entry = self.entry(key)
        if entry is None:
            self.catalog.put_entry(self.origin_id, key, Entry(kind=Kind.ABSENT, inode=0, checked_ns=0))
        elif not entry.staged:
            self.put(key, entry._replace(checked_ns=0))

    def put(self, key: Key, entry: Entry) -> Entry:
        """Record a local change or a fresh answer. What exists has directories above it, whatever was known of them."""
        old = self.catalog.entry(self.origin_id, key)
        self.catalog.put_entry(self.origin_id, key, entry)
        if old is not None and old.version != entry.version:
            self.superseded(old)
        if entry.kind is not Kind.ABSENT and key not in self.hollow:
            self._put_missing_parents(key)
        return entry

    def put_names(self, key: Key, entry: Entry) -> Entry:
        """``put`` for a file and all its names (hard links): they differ in nothing but the ids of their versions."""
        if entry.link_count == 1:
            return self.put(key, entry)
        with self.catalog.batch():  # one commit, not one for each of what may be thousands
            for name in self.names_of(entry.inode):
                if name != key:
                    version = version_id(self.origin_id, name, entry.etag) if entry.version else entry.version
                    self.put(name, entry._replace(version=version))
            return self.put(key, entry)

    def with_staged(self, entry: Entry) -> Entry:
        """What the origin told of a name, with the bytes that were written here under another name of the file."""
        live = self.live.get(entry.inode)
        if live is None or live.staged is None or live.key is None or entry.kind is not Kind.FILE:
            return entry
        if not self.is_staged(live.staged.id):
            return entry
        live.entry = live.entry._replace(link_count=max(live.entry.link_count, entry.link_count))
        return live_entry(live)._replace(version=entry.version, checked_ns=entry.checked_ns)

    def link_inode(self, stat: ObjectStat, inode: int) -> None:
        """Remember the inode of a file that has several names at the origin."""
        if len(self.linked) >= LINKED_LIMIT:
            self.linked.clear()  # names that the catalog has keep their inode anyway
        self.linked[stat.file_id] = inode

    def linked_inode(self, stat: ObjectStat) -> int:
        """The inode under which another name of this very file is known, 0 if none is. The origin uses its numbers
        again, so that a name must agree."""
        inode = self.linked.get(stat.file_id, 0)
        names = self.names_of(inode) if inode else []
        entries = [self.entry(name) for name in names if name != stat.key]
        return inode if any(entry is not None and entry.etag == stat.etag for entry in entries) else 0

    def superseded(self, old: Entry) -> None:
        """Nobody will ask for the version of ``old`` again: under a policy that never evicts it would stay for ever.
        Who has its file open goes on reading it."""
        if old.version:
            self.drop_version(old.version)

    def replaced(self, key: Key, old: Entry) -> None:
        """Others changed or removed the object of a name: its inode lives on for the handles that have it open."""
        live = self.live.get(old.inode)
        now = self.catalog.entry(self.origin_id, key)
        if live is not None and live.key == key and (now is None or now.inode != old.inode):
            others = [name for name in self.names_of(old.inode) if name != key]
            if others:
                live.key = others[0]
                return
            live.key = None
            live.replaced = True
            live.entry = old._replace(link_count=0)
            self.live.release(live)

    def _put_missing_parents(self, key: Key) -> None:
        for directory in ancestors(key):
            known = self.catalog.entry(self.origin_id, directory)
            if known is not None and known.kind is not Kind.ABSENT:
                if directory not in self.mounted:
                    return
                self.filled(directory)
                continue  # its own parents may not be known
            # Unchecked, so that a lookup asks the origin; there at once for a listing that was made before.
            made = directory_entry(self.catalog.new_inode(), now_ns(), known=True)
            self.catalog.put_entry(self.origin_id, directory, made._replace(checked_ns=0))
            self.changed(directory)

    def filled(self, directory: Key) -> None:
        """Something is in it: who was told that there is no such directory must hear of it."""
        if directory in self.hollow:
            self.hollow.discard(directory)
            self.changed(directory)

    def doubt_parents(self, key: Key) -> None:
        """A name is gone and nobody keeps its directory: where directories are prefixes, those above may be gone."""
        if self.can(Capability.EMPTY_DIRECTORIES):
            return
        for directory in ancestors(key):
            known = self.catalog.entry(self.origin_id, directory)
            if known is not None and known.kind is Kind.DIRECTORY and not self.exists_here(directory):
                self.catalog.put_entry(self.origin_id, directory, known._replace(checked_ns=0))
                self.catalog.forget_listing(self.origin_id, parent_of(directory))

    def generation(self, directory: Key) -> int:
        """Another one after each local change in a directory, or of a directory above it: an answer that was asked for
        before the change is not to be stored after it."""
        return self.generations[directory] + self.trees_changed

    def changed(self, key: Key, inode: int = 0) -> None:
        """A name changed (here or at the origin): answers under way are void and the kernel's copy must go."""
        self.generations[parent_of(key)] += 1
        for listener in self.listeners:
            listener(key, inode)

    def touch_directory(self, directory: Key, directories: int = 0) -> None:
        """A child came or went: the directory's own times move. ``directories``: how many more directories it holds
        now, each of which links to it by its "..", where the origin counts that (elsewhere the count stays 1)."""
        entry = self.entry(directory)
        if entry is not None and entry.kind is Kind.DIRECTORY:
            at_ns = now_ns()
            links = entry.link_count + directories if entry.link_count > 1 else entry.link_count
            self.put(directory, entry._replace(mtime_ns=at_ns, ctime_ns=at_ns, link_count=links))

    def inode_for(self, old: Entry | None, kind: Kind) -> int:
        """A name keeps its inode as long as it stands for the same kind of thing."""
        if old is not None and old.inode and old.kind is kind:
            return old.inode
        return self.catalog.new_inode()

    def names_of(self, inode: int) -> list[Key]:
        """All names of an inode that we know of."""
        return self.catalog.names_of_inode(self.origin_id, inode)

    def version_ref(self, key: Key, entry: Entry) -> VersionRef:
        return VersionRef(self.origin, self.origin_id, key, entry.etag, entry.size_bytes, entry.version)

    def place_staged(self, inode: int, key: Key | None) -> None:
        """The staged bytes of an inode have this name now; None when they have no name, or the inode is clean."""
        old = self.staged_names.pop(inode, None)
        if key is not None:
            self.staged_names[inode] = key
            self.staged_below.update(ancestors(key))
        if old is not None:
            for directory in ancestors(old):
                self.staged_below[directory] -= 1
                if not self.staged_below[directory]:
                    del self.staged_below[directory]

    def exists_here(self, directory: Key) -> bool:
        """Whether we know of a directory that the origin may not know of."""
        return self.made_here(directory) or directory in self.mounted

    def made_here(self, directory: Key) -> bool:
        """Whether it is one that others should see."""
        return directory in self.kept_directories or directory in self.staged_below

    def show(self, directory: Key, *, unasked: bool = False) -> None:
        """A mount shows it from now on. ``unasked``: nobody will look at once whether the origin has it."""
        self.roots[directory] += 1
        if not self.can(Capability.EMPTY_DIRECTORIES):
            self.mounted[directory] += 1
            if unasked:
                self.hollow.add(directory)

    def hide(self, directory: Key) -> None:
        """The mount has ended: the origin is asked again whether the directory is there."""
        self.roots[directory] -= 1
        if not self.roots[directory]:
            del self.roots[directory]
        if directory not in self.mounted:
            return  # no need to: the origin keeps empty directories
        self.mounted[directory] -= 1
        if self.mounted[directory] <= 0:
            del self.mounted[directory]
            self.hollow.discard(directory)
            known = self.catalog.entry(self.origin_id, directory)
            if directory and known is not None and known.kind is Kind.DIRECTORY and not self.made_here(directory):
                self.catalog.put_entry(self.origin_id, directory, known._replace(checked_ns=0))
                self.catalog.forget_listing(self.origin_id, parent_of(directory))


def ancestors(key: Key) -> Iterator[Key]:
    """All directories above ``key``, nearest first, the root included."""
    while key:
        key = parent_of(key)
        yield key
