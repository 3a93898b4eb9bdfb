"""Changing mode, owner, times and extended attributes, where the origin keeps them and where it does not."""

from __future__ import annotations

from tiercache.engine.entries import entry_of, now_ns, with_attributes
from tiercache.engine.files import Files
from tiercache.engine.names import Names
from tiercache.engine.tree import Tree
from tiercache.engine.writes import Writes
from tiercache.errors import Absent, Changed, Unsupported
from tiercache.model import Attributes, Capability, Entry, Key, Kind, parent_of


class AttributeChanges:
    """Stores new attributes of a name."""

    def __init__(self, tree: Tree, names: Names, files: Files, writes: Writes) -> None:
        self._tree = tree
        self._names = names
        self._files = files
        self._writes = writes

    async def set_attributes(self, key: Key, attributes: Attributes) -> Entry:
        """Store new attributes: in the journal for a dirty file, at the origin for a clean one."""
        tree = self._tree
        async with tree.hold(key):
            entry = await self._names.lookup(key)
            if not self._need_upload(entry):
                try:
                    return await self._set_held(key, entry, attributes)
                except Unsupported:
                    if entry.kind is not Kind.FILE:
                        return tree.put(key, with_attributes(entry, attributes))
        return await self._writes.set_attributes(key, entry, attributes)

    def _need_upload(self, entry: Entry) -> bool:
        """Staged bytes take them along; some stores keep them with the bytes alone."""
        tree = self._tree
        only_with_bytes = tree.can(Capability.STORED_ATTRIBUTES) and not tree.can(Capability.SET_ATTRIBUTES)
        return bool(entry.staged) or (only_with_bytes and entry.kind is Kind.FILE)

    async def _set_held(self, key: Key, entry: Entry, attributes: Attributes) -> Entry:
        tree = self._tree
        if not tree.can(Capability.SET_ATTRIBUTES):
            # The origin has no place for them: they last as long as the catalog knows this version.
            return tree.put_names(key, with_attributes(entry, attributes))
        try:
            stat = await tree.call(tree.origin.set_attributes, key, attributes, entry.etag)
        except Absent:
            if not tree.exists_here(key):
                raise
            return tree.put(key, with_attributes(entry, attributes))
        except Changed:
            tree.doubt(key)
            tree.changed(key, entry.inode)
            raise
        changed = entry_of(stat, origin=tree.origin_id, inode=entry.inode, old=entry, at_ns=now_ns())
        if stat.attributes is None:
            changed = with_attributes(changed, attributes)
        if entry.kind is Kind.FILE:
            changed = changed._replace(link_count=max(changed.link_count, entry.link_count))
            self._files.rebind(key, entry, key, changed)
        tree.put_names(key, changed)
        live = tree.live.get(entry.inode)
        if live is not None:
            live.entry = changed
        tree.generations[parent_of(key)] += 1
        return changed
