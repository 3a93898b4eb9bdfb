"""What becomes of a name when the origin has its bytes, and how a name comes back after a restart."""

from __future__ import annotations

from tiercache.engine.entries import absent_entry, entry_of, now_ns, staged_entry, with_attributes
from tiercache.engine.live import LiveInode
from tiercache.engine.tree import Tree
from tiercache.journal import Journal, StagedRecord
from tiercache.model import Attributes, Entry, Kind, ObjectStat, StagedState, parent_of
from tiercache.staging import StagedFile
from tiercache.writeback.succession import based_on, is_being_written_after


def commit(tree: Tree, record: StagedRecord, stat: ObjectStat) -> Entry | None:
    """The upload of ``record`` is at the origin: the name is clean, unless something newer is staged under it.
    Called by the write-back, whatever profile wrote the file."""
    live = tree.live.get(record.inode)
    old = tree.entry(record.key)
    if old is not None and old.staged not in (0, record.id):
        # A newer file has the name already, though the older one's inode is still about to be told.
        return None
    if live is not None and live.key is None:
        return None
    # The inode knows best: while a directory is moved, the journal has its new name before the catalog has.
    staged = live.staged.id if live is not None and live.staged is not None else old.staged if old is not None else 0
    if staged != record.id:
        return None
    entry = entry_of(stat, origin=tree.origin_id, inode=record.inode, old=None, at_ns=now_ns())
    if stat.attributes is None and record.attributes is not None:
        entry = with_attributes(entry, record.attributes)
    names = tree.names_of(record.inode)
    entry = entry._replace(link_count=max(1, len(names), old.link_count if old is not None else 0))
    tree.put_names(record.key, entry)
    tree.place_staged(record.inode, None)
    tree.generations[parent_of(record.key)] += 1
    if live is not None:
        live.staged = None
        live.entry = entry
        version = tree.version_ref(record.key, entry)
        for handle in live.handles:
            handle.use_version(version)
        tree.live.release(live)
    return entry


def rebase(tree: Tree, journal: Journal, record: StagedRecord, stat: ObjectStat) -> None:
    """What clients write at the other names of a hard-linked file stands on the committed bytes too. The write-back
    sees to ``record``'s own name."""
    names = [name for name in tree.names_of(record.inode) if name != record.key]
    written = [other for name in names for other in journal.at(record.origin, name)]
    journal.put_later(put=[based_on(r, record, stat) for r in written if is_being_written_after(r, record)])


def withdraw(tree: Tree, record: StagedRecord) -> None:
    """The staged file of ``record`` was replaced at the origin just before a crash: its name is the other file's."""
    live = tree.live.get(record.inode)
    tree.place_staged(record.inode, None)
    for name in {record.key, *tree.names_of(record.inode)}:
        tree.put(name, absent_entry(0))  # in doubt: the next lookup asks the origin
        tree.catalog.forget_listing(tree.origin_id, parent_of(name))
        tree.changed(name, record.inode)
    if live is not None and live.staged is not None and live.staged.id == record.id:
        live.key = live.staged = None
        live.replaced = True
        tree.live.release(live)


def abandon(tree: Tree, record: StagedRecord) -> None:
    """The file of ``record`` was not whole when the engine before this one ended: the name is what the origin has, and
    whoever has the file open is told."""
    withdraw(tree, record)
    tree.live.add_nameless(record.inode, Entry(Kind.FILE, record.inode)).lost = True


def restore(tree: Tree, record: StagedRecord, staged: StagedFile) -> LiveInode:
    """Bring back the name and inode of a staged file that an earlier engine left in the journal, in the order in which
    the files took their names."""
    attributes = record.attributes or Attributes(0o644, 0, 0, record.created_ns)
    entry = staged_entry(attributes, record.inode, staged=record.id, size_bytes=staged.size_bytes)
    entry = entry._replace(etag=record.base_etag)
    if record.link_target:
        entry = entry._replace(kind=Kind.SYMLINK, link_target=record.link_target)
    _unlink_older(tree, record)
    _part_from_old_names(tree, record)
    names = {record.key, *tree.names_of(record.inode)}
    tree.place_staged(record.inode, record.key)
    entry = tree.put_names(record.key, entry._replace(link_count=len(names)))
    live = tree.live.obtain(record.inode, record.key, entry)
    live.staged = staged
    live.may_be_mapped = record.state is StagedState.STAGED
    if record.state is StagedState.STAGED and staged.mtime_ns > attributes.ctime_ns:
        live.mtime_ns = staged.mtime_ns  # it was written after its attributes were last set
    return live


def _part_from_old_names(tree: Tree, record: StagedRecord) -> None:
    """The file was renamed in the journal, and the crash came before the catalog followed."""
    for name in tree.names_of(record.inode):
        known = tree.entry(name)
        linked = record.in_place and known is not None and known.link_count > 1
        if name != record.key and not linked:
            tree.put(name, absent_entry(0))


def _unlink_older(tree: Tree, record: StagedRecord) -> None:
    """A file that had the name before, and whose upload gives way to this one, is an unlinked inode."""
    named = tree.entry(record.key)
    older = tree.live.get(named.inode) if named is not None and named.inode != record.inode else None
    if older is not None:
        older.key = older.staged = None
        tree.place_staged(older.inode, None)
        tree.live.release(older)
