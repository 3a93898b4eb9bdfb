"""Random changes against a dictionary: names, children, inodes and listings always agree with it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tiercache.catalog import Catalog, CatalogReader, state
from tiercache.catalog.names import split
from tiercache.errors import InvalidArgument
from tiercache.model import Entry, Key, Kind, is_below, join, origin_id

ORIGIN = origin_id("s3://bucket")
PARTS = st.sampled_from([b"a", b"b", b"a!", b"", b"\xff", b"n" * 255])
KEYS = st.lists(PARTS, min_size=1, max_size=4).map(b"/".join).filter(bool)
KINDS = st.sampled_from([Kind.ABSENT, Kind.FILE, Kind.DIRECTORY])


class CatalogMachine(RuleBasedStateMachine):
    """The catalog beside its model; now and then the engine crashes or stops and starts again."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.catalog = Catalog(self.root / "catalog", boot_id="boot")
        self.reader = CatalogReader(self.root / "catalog")
        self.names: dict[Key, Entry] = {}
        self.listed: dict[Key, int] = {}
        self.seen: set[Key] = set()

    def teardown(self) -> None:
        self.reader.close()
        self.catalog.close()
        shutil.rmtree(self.root)

    @rule(key=KEYS, kind=KINDS, staged=st.integers(0, 1))
    def put_entry(self, key: Key, kind: Kind, staged: int) -> None:
        inode = self.catalog.new_inode() if kind else 0
        entry = Entry(kind, inode, staged=staged if kind is Kind.FILE else 0)
        self.catalog.put_entry(ORIGIN, key, entry)
        self.names[key] = entry

    @rule(key=KEYS)
    def drop_entry(self, key: Key) -> None:
        self.catalog.drop_entry(ORIGIN, key)
        self.names.pop(key, None)

    @rule(key=KEYS)
    def drop_tree(self, key: Key) -> None:
        self.catalog.drop_tree(ORIGIN, key)
        self._forget_tree(key)

    @rule(source=KEYS, destination=KEYS)
    def move_tree(self, source: Key, destination: Key) -> None:
        target = destination  # hypothesis keeps the word for itself
        if source == target or is_below(source, target) or is_below(target, source):
            try:
                assert self.catalog.move_tree(ORIGIN, source, target) == []
            except InvalidArgument:
                assert source != target
            return
        self.catalog.move_tree(ORIGIN, source, target)
        self._forget_tree(target)
        self.names = {_moved(key, source, target): entry for key, entry in self.names.items()}
        self.listed = {_moved(key, source, target): when for key, when in self.listed.items()}

    @rule(directory=KEYS, names=st.dictionaries(PARTS.filter(bool), st.sampled_from([Kind.FILE, Kind.DIRECTORY])))
    def put_listing(self, directory: Key, names: dict[bytes, Kind]) -> None:
        result = self.catalog.put_listing(
            ORIGIN, directory, [(name, Entry(kind, 0)) for name, kind in names.items()], 9
        )
        returned = dict(result)
        assert len(returned) == len(result)
        assert all(entry.inode and entry.kind for entry in returned.values())
        for key in [key for key in self.names if split(key)[0] == directory]:
            name = split(key)[1]
            old = self.names[key]
            if old.staged:
                assert returned[name] == old
            elif name not in returned or (old.kind is Kind.DIRECTORY and returned[name].kind is not Kind.DIRECTORY):
                if old.kind is Kind.DIRECTORY:
                    assert not any(entry.staged and is_below(below, key) for below, entry in self.names.items())
                    self._forget_tree(key)
                self.names.pop(key, None)
            elif old.kind is returned[name].kind:
                assert returned[name].inode == old.inode
        assert set(names) <= set(returned)
        self.names.update({join(directory, name): entry for name, entry in returned.items()})
        self.listed[directory] = 9

    @rule(clean=st.booleans())
    @precondition(lambda self: len(self.names) > 2)
    def restart(self, clean: bool) -> None:
        self.catalog.close(clean=clean)
        if not clean:  # a crash, but for the walk through the file, which costs half a second
            state.mark_clean(self.root / "catalog", "boot")
        self.catalog = Catalog(self.root / "catalog", boot_id="boot")

    def _forget_tree(self, directory: Key) -> None:
        self.names = {key: entry for key, entry in self.names.items() if not is_below(key, directory)}
        self.listed = {key: when for key, when in self.listed.items() if not is_below(key, directory)}

    @invariant()
    def agrees(self) -> None:
        self.seen |= self.names.keys()
        for key, entry in self.names.items():
            # The engine answers from memory for what it asked or changed lately: twice the same as everybody else.
            assert self.reader.entry(ORIGIN, key) == self.catalog.entry(ORIGIN, key) == entry
            assert self.catalog.entry(ORIGIN, key) == entry
            if entry.inode:
                assert self.reader.name_of_inode(entry.inode) == (ORIGIN, key)
        for directory in {split(key)[0] for key in self.names} | {b"a", b"b"}:
            expected = {
                split(key)[1]: entry for key, entry in self.names.items() if split(key)[0] == directory and entry.kind
            }
            assert dict(self.reader.children(ORIGIN, directory)) == expected
            listed_ns = self.listed.get(directory, 0)
            assert self.reader.listed_ns(ORIGIN, directory) == self.catalog.listed_ns(ORIGIN, directory) == listed_ns
        for key in self.seen - self.names.keys():
            assert self.catalog.entry(ORIGIN, key) is None


def _moved(key: Key, source: Key, target: Key) -> Key:
    return target + key[len(source) :] if is_below(key, source) else key


TestCatalogMachine = CatalogMachine.TestCase
TestCatalogMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
