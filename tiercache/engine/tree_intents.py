"""What a crash in the move or removal of a directory means for the catalog, before anybody looks at it again."""

from __future__ import annotations

from tiercache.cache import Cache
from tiercache.engine.directory_moves import copied_etags, follow_move
from tiercache.engine.entries import absent_entry, now_ns
from tiercache.engine.tree import Tree
from tiercache.journal import Intent, Phase
from tiercache.model import Entry, Key, Kind, is_below


def follow(tree: Tree, cache: Cache, intent: Intent) -> None:
    """Names that are gone for us, although the origin may have something there, are absent. Idempotent."""

    def rebind(old_key: Key, old: Entry, new_key: Key, new: Entry) -> None:
        if old.version and old.version != new.version and old.size_bytes == new.size_bytes:
            cache.rebind(old.version, tree.version_ref(new_key, new))

    match intent.phase:
        case Phase.REMOVING:
            _forget(tree, intent.directory)
        case Phase.COPYING:
            target = tree.entry(intent.target)
            _forget(tree, intent.target)
            if intent.target_stood and target is not None and target.kind is Kind.DIRECTORY:
                tree.put(intent.target, target)
        case Phase.MOVED:
            follow_move(tree, intent.directory, intent.target, copied_etags(intent), onto=True, rebind=rebind)


def _forget(tree: Tree, directory: Key) -> None:
    tree.kept_directories.replace({key for key in tree.kept_directories if not is_below(key, directory)})
    with tree.catalog.batch():
        tree.catalog.drop_tree(tree.origin_id, directory)
        tree.put(directory, absent_entry(now_ns()))
