"""Reading names: lookup, listing and walk, merged from catalog, origin and staged files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from tiercache.config import Profile
from tiercache.engine.entries import absent_entry, child_name, directory_entry, entry_of, is_fresh, now_ns
from tiercache.engine.misses import Misses
from tiercache.engine.tree import Tree
from tiercache.errors import Absent, IsDirectory, NotDirectory, TierCacheError, Unsupported
from tiercache.model import (
    SPECIAL_KINDS,
    Capability,
    Entry,
    Key,
    Kind,
    ObjectStat,
    has_posix_spelling,
    is_below,
    join,
    parent_of,
)

LISTING_ATTEMPTS = 3
"""How often a listing that a local change overtook is asked again before it is used without being remembered."""

_Links = dict[tuple[int, str], int]
"""Inodes of files with several names, by the origin's number and etag of each, as far as one listing has told them: the
catalog has none of it before it has all."""


class Names:
    """Answers what a name is, as fresh as ``profile`` demands."""

    def __init__(self, tree: Tree, profile: Profile) -> None:
        self._tree = tree
        self._profile = profile
        self._misses = Misses(profile.ttl_s)

    # -- one name ---------------------------------------------------------------------------------

    def known(self, key: Key) -> Entry | None:
        """The entry if the catalog can answer alone (it may be an ABSENT one), else None. Never waits. NameTooLong and
        InvalidName for a key that the origin could not hold."""
        entry = self._tree.entry(key)
        at_ns = now_ns()
        if entry is not None:
            if self._lacks_attributes(entry):
                return None
            return entry if self._fresh(entry, at_ns) else None
        self._tree.origin.require_key(key)
        if key and self._listing_is_fresh(parent_of(key), at_ns):
            return absent_entry(at_ns)
        return None

    async def lookup(self, key: Key) -> Entry:
        """The entry of ``key``; Absent if there is none."""
        entry = self.known(key)
        if entry is None:
            entry = await self._listed(key) or await self._ask(key)
        if entry.kind is Kind.ABSENT:
            raise Absent(f"{show(key)}: no such file or directory")
        return entry

    async def find(self, key: Key) -> Entry | None:
        """Like ``lookup``, with None for an absent name."""
        try:
            return await self.lookup(key)
        except Absent:
            return None

    async def _listed(self, key: Key) -> Entry | None:
        """List the directory where its names are asked for one after the other, and know this one from that; None where
        a listing does not tell all of it."""
        directory, at_ns = parent_of(key), now_ns()
        if not key or self._listing_is_fresh(directory, at_ns):
            return None
        # Beside what a mount shows may lie, in a file tree, the mount: an engine that asks itself there and is killed
        # before it answers never ends.
        if key in self._tree.roots or not self._misses.asked(directory, at_ns):
            return None
        with suppress(TierCacheError):  # whatever it is, asking for the name tells it
            await self._refresh(directory, sure_of_directories=False)
        return self.known(key)

    async def _ask(self, key: Key) -> Entry:
        """Ask the origin and remember the answer, unless a local change overtook it."""
        tree = self._tree
        directory = parent_of(key)
        while True:
            generation = tree.generation(directory)
            retracted = tree.retracted(key)
            here = tree.made_here(key)
            try:
                stats = [await tree.call(tree.origin.stat, key)]
            except (Absent, NotDirectory):
                stats = []
            if not stats and here and not tree.made_here(key):
                continue  # what made it exist here has arrived there since the origin looked
            if tree.generation(directory) == generation:
                stats = tree.without_leftovers(stats, retracted | tree.retracted(key))
                return self.remember(key, stats[0] if stats else None)
            entry = self.known(key)
            if entry is not None:
                return entry

    def remember(self, key: Key, stat: ObjectStat | None) -> Entry:
        """Store what the origin said of ``key`` (None: it is absent) and return the merged entry."""
        tree = self._tree
        at_ns = now_ns()
        old = tree.entry(key)
        if old is not None and old.staged:
            return old
        if stat is None:
            return self._remember_absence(key, old, at_ns)
        tree.filled(key)
        entry = self._entry_of(stat, old, at_ns)
        tree.put(key, entry)
        if old is not None and old.kind is not Kind.ABSENT and _is_another(old, entry):
            tree.replaced(key, old)
            tree.changed(key, old.inode)
        return entry

    def _entry_of(self, stat: ObjectStat, old: Entry | None, at_ns: int, listed: _Links | None = None) -> Entry:
        tree = self._tree
        inode = self._inode_of(stat, old, {} if listed is None else listed)
        return tree.with_staged(entry_of(stat, origin=tree.origin_id, inode=inode, old=old, at_ns=at_ns))

    def _remember_absence(self, key: Key, old: Entry | None, at_ns: int) -> Entry:
        tree = self._tree
        if not key or tree.exists_here(key):
            kept = old if old is not None and old.kind is Kind.DIRECTORY else None
            inode = tree.inode_for(old, Kind.DIRECTORY)
            entry = kept._replace(checked_ns=at_ns) if kept else directory_entry(inode, at_ns, known=True)
            if key and not tree.made_here(key):
                return self._remember_mounted(key, entry)
            return tree.put(key, entry)
        entry = tree.put(key, absent_entry(at_ns))
        if old is not None and old.kind is not Kind.ABSENT:
            tree.replaced(key, old)
            tree.changed(key, old.inode)
        return entry

    def _remember_mounted(self, key: Key, entry: Entry) -> Entry:
        """Nobody but the mount is to know of it: the directories above it are not there, and no listing tells."""
        tree = self._tree
        tree.hollow.add(key)
        tree.catalog.forget_listing(tree.origin_id, parent_of(key))
        return tree.put(key, entry)

    def _inode_of(self, stat: ObjectStat, old: Entry | None, listed: _Links) -> int:
        tree = self._tree
        if stat.link_count > 1 and stat.kind is Kind.FILE:
            inode = listed[stat.file_id, stat.etag] = self._inode_of_linked(stat, old, listed)
            return inode
        replaced = old is not None and old.kind is Kind.FILE and stat.kind is Kind.FILE and old.etag != stat.etag
        if replaced:
            # Another version is another inode: the kernel has one size for each, and an open handle reads one version.
            return tree.catalog.new_inode()
        return tree.inode_for(old, stat.kind)

    def _inode_of_linked(self, stat: ObjectStat, old: Entry | None, listed: _Links) -> int:
        """Hard links share their inode id, whichever name was known first, or is told first in one listing."""
        tree = self._tree
        inode = listed.get((stat.file_id, stat.etag)) or tree.linked_inode(stat)
        if not inode:
            same = old is not None and (old.etag == stat.etag or old.inode == tree.linked.get(stat.file_id))
            inode = old.inode if same and old is not None and old.kind is Kind.FILE else tree.catalog.new_inode()
        tree.link_inode(stat, inode)
        return inode

    def _fresh(self, entry: Entry, at_ns: int) -> bool:
        return is_fresh(entry, self._profile.ttl_s, self._profile.negative_ttl_s, at_ns)

    def _lacks_attributes(self, entry: Entry) -> bool:
        return (
            self._profile.posix_metadata
            and not entry.attributes_known
            and not entry.staged
            and entry.kind in (Kind.FILE, Kind.SYMLINK)
        )

    # -- directories ------------------------------------------------------------------------------

    async def children(self, directory: Key, *, posix: bool = True) -> list[tuple[bytes, Entry]]:
        """The children by name; only those that a mount can spell when ``posix``."""
        if not self._listing_is_fresh(directory, now_ns()):
            children = await self._refresh(directory)
        else:
            children = self._tree.catalog.children(self._tree.origin_id, directory)
        return _spelled(children) if posix else children

    def known_children(self, directory: Key) -> list[tuple[bytes, Entry]] | None:
        """The children that a mount can spell, if a listing is remembered and fresh, else None. Never waits."""
        if not self._listing_is_fresh(directory, now_ns()):
            return None
        return _spelled(self._tree.catalog.children(self._tree.origin_id, directory))

    def _listing_is_fresh(self, directory: Key, at_ns: int) -> bool:
        listed_ns = self._tree.catalog.listed_ns(self._tree.origin_id, directory)
        return bool(listed_ns) and -1.0 < (at_ns - listed_ns) / 1e9 < self._profile.ttl_s

    async def _refresh(self, directory: Key, *, sure_of_directories: bool = True) -> list[tuple[bytes, Entry]]:
        """List the directory and remember it. A store may still list a directory whose last object is gone: whoever
        asks for single names must not take it for there without ``sure_of_directories``."""
        tree = self._tree
        for _ in range(LISTING_ATTEMPTS):
            generation, above = tree.generation(directory), tree.generation(parent_of(directory))
            stands, here = tree.exists_here(directory), self._directories_only_here(directory)
            listed_ns = now_ns()
            try:
                stats = await self._list_origin(directory)
            except Absent:
                if not directory:
                    raise
                if stands or tree.generation(parent_of(directory)) != above:
                    continue  # an upload has brought it since the origin looked, or it was made meanwhile
                self.remember(directory, None)
                raise
            # One that was only here is at the origin now, if an upload ended meanwhile: the listing may not tell yet.
            told_all = here <= self._directories_only_here(directory)
            if told_all and tree.generation(directory) == generation:
                return self._store_listing(directory, stats, listed_ns, sure_of_directories=sure_of_directories)
        # Changes keep coming faster than the origin lists: use an answer, let what we know of each name win, and
        # remember nothing.
        stats = await self._list_origin(directory)
        entries = self._entries(directory, stats, listed_ns)
        mounted = self._only_mounted(directory, entries)
        children = dict(entries) | dict(tree.catalog.children(tree.origin_id, directory))
        return sorted((name, entry) for name, entry in children.items() if name not in mounted)

    async def _list_origin(self, directory: Key) -> list[ObjectStat]:
        tree = self._tree
        retracted = tree.retracted(None)
        try:
            stats = await tree.call(lambda: list(tree.origin.list(directory)))
            return tree.without_leftovers(stats, retracted | tree.retracted(None))
        except Absent:
            # The root of a bucket is never absent: an unknown bucket must stay an error.
            if directory and tree.exists_here(directory):
                return []
            raise

    def _entries(self, directory: Key, stats: list[ObjectStat], at_ns: int) -> list[tuple[bytes, Entry]]:
        tree = self._tree
        known = dict(tree.catalog.children(tree.origin_id, directory))
        entries: dict[bytes, Entry] = {}
        links = _known_links((stat, known.get(child_name(stat.key, directory))) for stat in stats)
        for stat in stats:
            name = child_name(stat.key, directory)
            # A directory wins over an object of the same name, whichever the store lists first.
            if name in entries and entries[name].kind is Kind.DIRECTORY:
                continue
            old = known.get(name)
            entries[name] = self._entry_of(stat, old, at_ns, links)
        for name in self._directories_only_here(directory):
            if name not in entries:
                old = known.get(name)
                inode = tree.inode_for(old, Kind.DIRECTORY)
                is_directory = old is not None and old.kind is Kind.DIRECTORY
                entries[name] = old if old and is_directory else directory_entry(inode, at_ns, known=True)
        return list(entries.items())

    def _directories_only_here(self, directory: Key) -> set[bytes]:
        tree = self._tree
        names = set()
        made = [key for key in tree.mounted if key not in tree.hollow]  # the origin has it, or will have
        for key in (*tree.staged_below, *tree.kept_directories, *made):
            if key and key != directory and parent_of(key) == directory:
                names.add(child_name(key, directory))
        return names

    def _store_listing(
        self, directory: Key, stats: list[ObjectStat], listed_ns: int, *, sure_of_directories: bool
    ) -> list[tuple[bytes, Entry]]:
        tree = self._tree
        entries = self._entries(directory, stats, listed_ns)
        if not sure_of_directories:
            entries = [(n, e._replace(checked_ns=0) if e.kind is Kind.DIRECTORY else e) for n, e in entries]
        before = dict(tree.catalog.children(tree.origin_id, directory))
        self._misses.listed(directory, len(entries))
        stored = self._put_listing(directory, entries, listed_ns)
        after = dict(stored)
        mounted = self._only_mounted(directory, entries)
        for name, old in before.items():
            if name in mounted:
                continue
            new = after.get(name)
            if new is None or _is_another(old, new):
                tree.superseded(old)
                tree.replaced(join(directory, name), old)
                for listener in tree.listeners:
                    listener(join(directory, name), old.inode)
        return stored

    def _put_listing(
        self, directory: Key, entries: Sequence[tuple[bytes, Entry]], listed_ns: int
    ) -> list[tuple[bytes, Entry]]:
        """Remember a listing, unless a mount shows what is not in it: its entry stays, and the listing is asked for
        again each time."""
        tree = self._tree
        mounted = self._only_mounted(directory, entries)
        stored = tree.catalog.put_listing(tree.origin_id, directory, [*entries, *mounted.items()], listed_ns)
        if not mounted:
            return stored
        tree.catalog.forget_listing(tree.origin_id, directory)
        return [(name, entry) for name, entry in stored if name not in mounted]

    def _only_mounted(self, directory: Key, entries: Sequence[tuple[bytes, Entry]]) -> dict[bytes, Entry]:
        """Directories in it that stand for their mounts alone."""
        tree = self._tree
        found: dict[bytes, Entry] = {}
        for key in tree.hollow:
            if key and parent_of(key) == directory:
                entry = tree.entry(key)
                if entry is not None and entry.kind is Kind.DIRECTORY:
                    found[child_name(key, directory)] = entry
        if found:
            for name, _ in entries:
                found.pop(name, None)
        return found

    async def walk(self, directory: Key) -> list[tuple[Key, Entry]]:
        """Everything below ``directory``, newest bytes first of all: one flat listing where the origin has one."""
        tree = self._tree
        at_ns = now_ns()
        generation = tree.generations.total() + tree.trees_changed
        staged, retracted = self._staged_keys(directory), tree.retracted(None)
        try:
            stats = await tree.call(lambda: list(tree.origin.walk(directory)))
        except (Absent, NotDirectory):
            if not directory or not (staged or tree.exists_here(directory)):
                raise
            stats = []
        found = self._merge_walk(tree.without_leftovers(stats, retracted | tree.retracted(None)), at_ns)
        if tree.generations.total() + tree.trees_changed == generation:
            self._remember_listings(directory, found, at_ns)
        # Those too that were staged when the walk began: an upload may have ended after the origin passed its place.
        for key in staged | self._staged_keys(directory):
            newest = tree.entry(key)
            if newest is not None and newest.kind is not Kind.ABSENT:
                found[key] = newest
            else:
                found.pop(key, None)
        return sorted(found.items())

    def _staged_keys(self, directory: Key) -> set[Key]:
        return {
            live.key
            for live in self._tree.live
            if live.staged is not None and live.key is not None and is_below(live.key, directory)
        }

    def _merge_walk(self, stats: list[ObjectStat], at_ns: int) -> dict[Key, Entry]:
        tree = self._tree
        found: dict[Key, Entry] = {}
        links = _known_links((stat, tree.entry(stat.key)) for stat in stats if stat.link_count > 1)
        for stat in stats:
            old = tree.entry(stat.key)
            if old is not None and (old.staged or old.checked_ns > at_ns):
                # What we know is newer than the walk.
                if old.kind is not Kind.ABSENT:
                    found[stat.key] = old
                continue
            found[stat.key] = self._entry_of(stat, old, at_ns, links)
        return found

    def _remember_listings(self, directory: Key, found: dict[Key, Entry], listed_ns: int) -> None:
        """A flat listing has told the children of every directory in it: none of them must be listed again."""
        tree = self._tree
        children: dict[Key, dict[bytes, Entry]] = {directory: {}}

        def place(key: Key, entry: Entry) -> None:
            parent = parent_of(key)
            if parent not in children:
                # The directory exists by this key alone, unless it was told of itself.
                children[parent] = {}
                place(parent, found.get(parent) or self._implied(parent, listed_ns))
            children[parent].setdefault(child_name(key, parent), entry)

        for key, entry in found.items():
            if key != directory and has_posix_spelling(key):
                place(key, entry)
                if entry.kind is Kind.DIRECTORY:
                    children.setdefault(key, {})
        with tree.catalog.batch():
            for parent, entries in children.items():
                self._put_listing(parent, list(entries.items()), listed_ns)

    def _implied(self, directory: Key, at_ns: int) -> Entry:
        old = self._tree.entry(directory)
        if old is not None and old.kind is Kind.DIRECTORY:
            return old._replace(checked_ns=at_ns)
        return directory_entry(self._tree.catalog.new_inode(), at_ns, known=True)

    def lists_attributes(self) -> bool:
        """Whether a listing tells modes and owners."""
        return self._tree.can(Capability.LISTED_ATTRIBUTES)


def require_bytes(key: Key, entry: Entry) -> None:
    """Only files hold bytes: IsDirectory for a directory, Unsupported for what the kernel serves itself."""
    if entry.kind is Kind.DIRECTORY:
        raise IsDirectory(f"{show(key)}: is a directory")
    if entry.kind in SPECIAL_KINDS:
        raise Unsupported(f"{show(key)}: is a pipe, socket or device, which holds no bytes")


def _spelled(children: list[tuple[bytes, Entry]]) -> list[tuple[bytes, Entry]]:
    return [(name, entry) for name, entry in children if _is_posix_name(name)]


def _is_posix_name(name: bytes) -> bool:
    return b"/" not in name and bool(name) and has_posix_spelling(name)


def _known_links(told: Iterable[tuple[ObjectStat, Entry | None]]) -> _Links:
    """A name of the file that is known already gives the others its inode."""
    return {
        (stat.file_id, stat.etag): old.inode
        for stat, old in told
        if stat.link_count > 1 and old is not None and old.kind is stat.kind is Kind.FILE and old.etag == stat.etag
    }


def _is_another(old: Entry, new: Entry) -> bool:
    """Whether the name stands for another version, file or kind of thing than before."""
    return old.etag != new.etag or old.kind is not new.kind or old.inode != new.inode


def show(key: Key) -> str:
    """A key for a message."""
    return "/" + key.decode("utf-8", "backslashreplace")
