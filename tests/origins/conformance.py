"""What every origin must do, whatever it is made of: the contract of ``origins.base`` as tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiercache.errors import (
    Absent,
    Changed,
    Exists,
    IsDirectory,
    NameTooLong,
    NotDirectory,
    NotEmpty,
    TierCacheError,
    Unsupported,
)
from tiercache.model import Attributes, Capability, Key, Kind, ObjectStat, join
from tiercache.origins import ALWAYS, Condition, Origin, Source, Upload

ATTRIBUTES = Attributes(0o640, os.getuid(), os.getgid(), 1_700_000_000_123_456_789)
LARGE_BYTES = 300_001
"""Several parts for the subjects whose limits are scaled down."""


class Subject:
    """An origin, the directory in it that is ours, and a short way to write."""

    def __init__(self, origin: Origin, root: Key, scratch: Path) -> None:
        self.origin = origin
        self.root = root
        self._scratch = scratch

    def key(self, name: bytes) -> Key:
        return join(self.root, name)

    def source(self, data: bytes) -> Source:
        path = self._scratch / f"source-{os.urandom(4).hex()}"
        path.write_bytes(data)
        return Source(str(path), len(data))

    def write(
        self,
        name: bytes,
        data: bytes,
        *,
        condition: Condition = ALWAYS,
        upload_id: str = "",
        attributes: Attributes | None = None,
        in_place: bool = False,
    ) -> ObjectStat:
        return self.origin.write(
            self.key(name),
            Upload(self.source(data), attributes, condition, upload_id, in_place=in_place),
        )

    def content(self, name: bytes) -> bytes:
        found, body = self.origin.read_whole(self.key(name), 1 << 30)
        assert body is not None
        assert len(body) == found.size_bytes
        return bytes(body)

    def listed(self, name: bytes = b"") -> dict[bytes, ObjectStat]:
        directory = self.key(name) if name else self.root
        entries = list(self.origin.list(directory))
        found = {entry.key[len(directory) + 1 if directory else 0 :]: entry for entry in entries}
        assert len(found) == len(entries), "a name is listed twice"
        return found

    def can(self, capability: Capability) -> bool:
        return capability in self.origin.capabilities


class OriginConformance:
    """Subclass it with a fixture ``subject``."""

    def test_identity_names_the_store_without_secrets(self, subject: Subject) -> None:
        assert "://" in subject.origin.identity
        assert "secret" not in subject.origin.identity

    def test_a_key_that_no_origin_holds_is_refused(self, subject: Subject) -> None:
        for key in (subject.root, subject.key(b"a b"), subject.key("ü/%41".encode())):
            subject.origin.require_key(key)
        with pytest.raises(NameTooLong):
            subject.origin.require_key(subject.key(b"x" * 70_000))

    @pytest.mark.parametrize("size_bytes", [0, 1, 4095, 4096, 4097, LARGE_BYTES])
    def test_what_is_written_is_read(self, subject: Subject, size_bytes: int) -> None:
        data = os.urandom(size_bytes)
        written = subject.write(b"file", data)
        assert (written.kind, written.size_bytes) == (Kind.FILE, size_bytes)
        assert subject.content(b"file") == data
        found = subject.origin.stat(subject.key(b"file"))
        assert (found.key, found.kind, found.size_bytes) == (subject.key(b"file"), Kind.FILE, size_bytes)
        assert found.etag == written.etag != ""

    def test_a_range_is_exactly_the_range(self, subject: Subject) -> None:
        data = os.urandom(10_000)
        etag = subject.write(b"file", data).etag
        for offset, length in [(0, 1), (0, 10_000), (9_999, 1), (4_000, 3_000), (5_000, 0)]:
            assert subject.origin.read(subject.key(b"file"), offset, length, etag) == data[offset : offset + length]

    def test_a_read_of_another_version_is_changed(self, subject: Subject) -> None:
        old = subject.write(b"file", b"old bytes").etag
        subject.write(b"file", b"new bytes!")
        with pytest.raises(Changed):
            subject.origin.read(subject.key(b"file"), 0, 3, old)

    def test_a_read_of_nothing_is_absent(self, subject: Subject) -> None:
        for call in (
            lambda: subject.origin.stat(subject.key(b"nothing")),
            lambda: subject.origin.read(subject.key(b"nothing"), 0, 1, "etag"),
            lambda: subject.origin.read_whole(subject.key(b"nothing"), 10),
            lambda: subject.origin.delete(subject.key(b"nothing")),
            lambda: list(subject.origin.list(subject.key(b"nothing"))),
            lambda: subject.origin.copy(subject.key(b"nothing"), subject.key(b"target")),
        ):
            with pytest.raises(Absent):
                call()

    def test_a_name_below_a_file_is_absent(self, subject: Subject) -> None:
        subject.write(b"file", b"1")
        with pytest.raises(Absent):
            subject.origin.stat(subject.key(b"file/below"))

    def test_read_whole_does_not_fetch_over_the_limit(self, subject: Subject) -> None:
        subject.write(b"file", b"12345")
        found, body = subject.origin.read_whole(subject.key(b"file"), 4)
        assert (found.size_bytes, body) == (5, None)
        found, body = subject.origin.read_whole(subject.key(b"file"), 5)
        assert body == b"12345"

    def test_parents_are_made_by_a_write(self, subject: Subject) -> None:
        subject.write(b"a/b/c", b"1")
        assert subject.origin.stat(subject.key(b"a/b")).kind is Kind.DIRECTORY
        assert subject.origin.stat(subject.key(b"a")).kind is Kind.DIRECTORY
        assert subject.content(b"a/b/c") == b"1"

    def test_list_tells_the_direct_children(self, subject: Subject) -> None:
        subject.write(b"top", b"123")
        subject.write(b"dir/one", b"1")
        subject.write(b"dir/two", b"22")
        subject.write(b"dir/deep/three", b"333")
        top = subject.listed()
        assert {name: entry.kind for name, entry in top.items()} == {b"top": Kind.FILE, b"dir": Kind.DIRECTORY}
        inner = subject.listed(b"dir")
        assert {name: entry.size_bytes for name, entry in inner.items()} == {b"one": 1, b"two": 2, b"deep": 0}
        assert inner[b"one"].etag == subject.origin.stat(subject.key(b"dir/one")).etag

    def test_list_of_a_file_says_so(self, subject: Subject) -> None:
        subject.write(b"file", b"1")
        with pytest.raises(NotDirectory):
            list(subject.origin.list(subject.key(b"file")))

    def test_a_directory_of_more_than_a_page(self, subject: Subject) -> None:
        names = {b"many/%02d" % number for number in range(25)}
        for name in names:
            subject.write(name, b"1")
        assert {b"many/" + name for name in subject.listed(b"many")} == names

    def test_walk_tells_all_that_is_below_parents_first(self, subject: Subject) -> None:
        for name in (b"w/one", b"w/deep/two", b"w/deep/deeper/three"):
            subject.write(name, b"1")
        entries = list(subject.origin.walk(subject.key(b"w")))
        files = {entry.key for entry in entries if entry.kind is Kind.FILE}
        assert files == {subject.key(name) for name in (b"w/one", b"w/deep/two", b"w/deep/deeper/three")}
        order = [entry.key for entry in entries]
        assert len(set(order)) == len(order)
        for entry in entries:
            parent = entry.key.rpartition(b"/")[0]
            assert parent not in order or order.index(parent) < order.index(entry.key)

    def test_if_absent_refuses_an_existing_name(self, subject: Subject) -> None:
        for data in (b"small", os.urandom(LARGE_BYTES)):
            subject.origin.abort_uploads(subject.key(b"new"), "x")
            subject.write(b"new", data, condition=Condition(absent=True))
            with pytest.raises(Changed):
                subject.write(b"new", data + b"!", condition=Condition(absent=True))
            assert subject.content(b"new") == data
            subject.origin.delete(subject.key(b"new"))

    def test_if_match_replaces_only_that_version(self, subject: Subject) -> None:
        for data in (b"small", os.urandom(LARGE_BYTES)):
            base = subject.write(b"file", b"base" + data[:1]).etag
            other = subject.write(b"file", b"other's" + data[:1]).etag
            with pytest.raises(Changed):
                subject.write(b"file", data, condition=Condition(etag=base))
            assert subject.content(b"file") == b"other's" + data[:1]
            subject.write(b"file", data, condition=Condition(etag=other))
            assert subject.content(b"file") == data

    def test_if_match_on_a_deleted_name_is_changed(self, subject: Subject) -> None:
        base = subject.write(b"file", b"base").etag
        subject.origin.delete(subject.key(b"file"))
        with pytest.raises(Changed):
            subject.write(b"file", b"mine", condition=Condition(etag=base))

    def test_progress_adds_up_and_can_cancel(self, subject: Subject) -> None:
        source = subject.source(os.urandom(LARGE_BYTES))
        sent: list[int] = []
        subject.origin.write(subject.key(b"file"), Upload(source, upload_id="one", progress=sent.append))
        assert sum(sent) == LARGE_BYTES

    def test_nothing_is_sent_faster_than_the_pace(self, subject: Subject) -> None:
        source = subject.source(os.urandom(LARGE_BYTES))
        paced: list[int] = []
        sent: list[int] = []

        def progress(further_bytes: int) -> None:
            sent.append(further_bytes)
            assert sum(sent) <= sum(paced)

        subject.origin.write(
            subject.key(b"file"), Upload(source, upload_id="one", pace=paced.append, progress=progress)
        )
        assert sum(paced) == LARGE_BYTES

    def test_a_cancelled_write_leaves_nothing(self, subject: Subject) -> None:
        class Cancelled(Exception):
            pass

        def cancel(_: int) -> None:
            raise Cancelled

        subject.write(b"dir/other", b"1")
        before = {entry.key for entry in subject.origin.walk(subject.root)}
        source = subject.source(os.urandom(LARGE_BYTES))
        with pytest.raises((Cancelled, TierCacheError)):
            subject.origin.write(subject.key(b"dir/file"), Upload(source, upload_id="two", progress=cancel))
        subject.origin.abort_uploads(subject.key(b"dir/file"), "two")
        after = {entry.key for entry in subject.origin.walk(subject.root)}
        assert after - before <= {subject.key(b"dir/file")}  # one PUT may have been complete before the cancel
        assert {entry.key for entry in subject.origin.walk(subject.root)} >= before

    def test_abort_of_nothing_is_fine(self, subject: Subject) -> None:
        subject.origin.abort_uploads(subject.key(b"never"), "no-such-id")

    def test_delete_removes_that_version(self, subject: Subject) -> None:
        old = subject.write(b"file", b"old").etag
        new = subject.write(b"file", b"newer").etag
        with pytest.raises(Changed):
            subject.origin.delete(subject.key(b"file"), old)
        subject.origin.delete(subject.key(b"file"), new)
        with pytest.raises(Absent):
            subject.origin.stat(subject.key(b"file"))

    def test_copy_makes_an_equal_file(self, subject: Subject) -> None:
        for data in (b"", b"small", os.urandom(LARGE_BYTES)):
            etag = subject.write(b"from", data, attributes=ATTRIBUTES).etag
            copied = subject.origin.copy(subject.key(b"from"), subject.key(b"sub/to"), etag)
            assert copied.size_bytes == len(data)
            assert subject.content(b"sub/to") == subject.content(b"from") == data
            if subject.can(Capability.STORED_ATTRIBUTES) and data:
                assert copied.attributes is not None
                assert copied.attributes.mode == ATTRIBUTES.mode
        with pytest.raises(Changed):
            subject.origin.copy(subject.key(b"from"), subject.key(b"sub/to"), "another")

    def test_attributes_stay_with_the_object(self, subject: Subject) -> None:
        if not subject.can(Capability.STORED_ATTRIBUTES):
            subject.write(b"file", b"kept all the same", attributes=ATTRIBUTES)
            assert subject.content(b"file") == b"kept all the same"
            return
        xattrs = ((b"user.colour", b"\0\xffblue"),)
        for data in (b"small", os.urandom(LARGE_BYTES)):
            subject.write(b"file", data, attributes=ATTRIBUTES._replace(xattrs=xattrs), upload_id="upload-7")
            found = subject.origin.stat(subject.key(b"file"))
            assert found.attributes is not None
            assert found.attributes._replace(atime_ns=0, ctime_ns=0) == ATTRIBUTES._replace(xattrs=xattrs)
            assert found.upload_id == "upload-7"

    def test_attributes_change_without_the_bytes(self, subject: Subject) -> None:
        if not subject.can(Capability.SET_ATTRIBUTES):
            with pytest.raises(Unsupported):
                subject.origin.set_attributes(subject.key(b"file"), ATTRIBUTES)
            return
        for data in (b"small", os.urandom(LARGE_BYTES)):
            subject.write(b"file", data, upload_id="upload-8")
            changed = subject.origin.set_attributes(subject.key(b"file"), ATTRIBUTES)
            assert changed.attributes is not None
            assert changed.attributes._replace(atime_ns=0, ctime_ns=0) == ATTRIBUTES
            assert changed == subject.origin.stat(subject.key(b"file"))
            assert changed.upload_id == "upload-8"
            assert subject.content(b"file") == data
        with pytest.raises(Changed):
            subject.origin.set_attributes(subject.key(b"file"), ATTRIBUTES, "another")
        with pytest.raises(Absent):
            subject.origin.set_attributes(subject.key(b"nothing"), ATTRIBUTES)

    def test_directories_are_made_and_removed(self, subject: Subject) -> None:
        subject.write(b"file", b"1")
        try:
            made = subject.origin.make_directory(subject.key(b"dir"))
        except Unsupported:
            assert not subject.can(Capability.EMPTY_DIRECTORIES)
            return
        assert made.kind is Kind.DIRECTORY
        assert subject.origin.stat(subject.key(b"dir")).kind is Kind.DIRECTORY
        assert subject.listed()[b"dir"].kind is Kind.DIRECTORY
        assert subject.listed(b"dir") == {}
        for name in (b"dir", b"file"):
            with pytest.raises(Exists):
                subject.origin.make_directory(subject.key(name))
        subject.write(b"dir/inside", b"1")
        with pytest.raises(NotEmpty):
            subject.origin.remove_directory(subject.key(b"dir"))
        with pytest.raises(NotDirectory):
            subject.origin.remove_directory(subject.key(b"file"))
        subject.origin.make_directory(subject.key(b"empty"))
        subject.origin.remove_directory(subject.key(b"empty"))
        with pytest.raises(Absent):
            subject.origin.stat(subject.key(b"empty"))
        with pytest.raises(Absent):
            subject.origin.remove_directory(subject.key(b"nothing"))

    def test_symlinks(self, subject: Subject) -> None:
        if not subject.can(Capability.SYMLINKS):
            with pytest.raises(Unsupported):
                subject.origin.symlink(subject.key(b"link"), b"target")
            return
        made = subject.origin.symlink(subject.key(b"link"), b"../some/target")
        found = subject.origin.stat(subject.key(b"link"))
        assert (made.kind, found.kind, found.link_target) == (Kind.SYMLINK, Kind.SYMLINK, b"../some/target")
        assert subject.origin.read_whole(subject.key(b"link"), 100)[1] is None
        with pytest.raises(Exists):
            subject.origin.symlink(subject.key(b"link"), b"other")
        replaced = subject.origin.symlink(subject.key(b"link"), b"another", replaces=made.etag)
        assert subject.origin.stat(subject.key(b"link")).link_target == replaced.link_target == b"another"
        with pytest.raises(Changed):
            subject.origin.symlink(subject.key(b"link"), b"late", replaces="other")
        assert [stat.key for stat in subject.origin.list(subject.key(b"").rstrip(b"/"))] == [subject.key(b"link")]
        subject.origin.delete(subject.key(b"link"))
        with pytest.raises(Absent):
            subject.origin.stat(subject.key(b"link"))

    def test_hard_links(self, subject: Subject) -> None:
        subject.write(b"one", b"1")
        if not subject.can(Capability.HARD_LINKS):
            with pytest.raises(Unsupported):
                subject.origin.link(subject.key(b"one"), subject.key(b"two"))
            return
        two = subject.origin.link(subject.key(b"one"), subject.key(b"two"))
        one = subject.origin.stat(subject.key(b"one"))
        assert (two.link_count, two.file_id, two.etag) == (2, one.file_id, one.etag)
        subject.write(b"two", b"new bytes for both", in_place=True)
        assert subject.content(b"one") == b"new bytes for both"
        subject.write(b"two", b"another file")
        assert subject.content(b"one") == b"new bytes for both"

    def test_rename(self, subject: Subject) -> None:
        subject.write(b"old/file", b"1")
        if not subject.can(Capability.RENAME):
            with pytest.raises(Unsupported):
                subject.origin.rename(subject.key(b"old"), subject.key(b"new"))
            return
        subject.origin.rename(subject.key(b"old"), subject.key(b"new"))
        assert set(subject.listed()) == {b"new"}
        subject.write(b"a", b"A")
        subject.write(b"b", b"B")
        with pytest.raises(Exists):
            subject.origin.rename(subject.key(b"a"), subject.key(b"b"), no_replace=True)
        subject.origin.rename(subject.key(b"a"), subject.key(b"b"))
        assert subject.content(b"b") == b"A"
        with pytest.raises(Absent):
            subject.origin.rename(subject.key(b"a"), subject.key(b"b"))

    def test_exchange(self, subject: Subject) -> None:
        subject.write(b"a", b"A")
        subject.write(b"b", b"B")
        if not subject.can(Capability.EXCHANGE):
            with pytest.raises(Unsupported):
                subject.origin.rename(subject.key(b"a"), subject.key(b"b"), exchange=True)
            return
        subject.origin.rename(subject.key(b"a"), subject.key(b"b"), exchange=True)
        assert (subject.content(b"a"), subject.content(b"b")) == (b"B", b"A")

    def test_a_directory_is_no_file(self, subject: Subject) -> None:
        subject.write(b"dir/file", b"1")
        with pytest.raises((IsDirectory, Absent)):
            subject.origin.read_whole(subject.key(b"dir"), 10)
        with pytest.raises((IsDirectory, Absent)):
            subject.origin.delete(subject.key(b"dir"))
        assert subject.content(b"dir/file") == b"1"

    @pytest.mark.parametrize(
        "name",
        [
            b"with space",
            b" leading and trailing ",
            b"%20",
            b"100%",
            b"#hash",
            b"quest?ion",
            b"plus+plus",
            b"am&per=sand",
            b'quo"te',
            b"[brack*et]",
            b"tilde~^`{}|<>",
            "grün-日本語-😀".encode(),
            "e\u0301".encode(),
            b"colon:comma,",
            b"...",
        ],
    )
    def test_odd_names_are_taken_literally(self, subject: Subject, name: bytes) -> None:
        subject.write(b"odd/" + name, b"content")
        assert set(subject.listed(b"odd")) == {name}
        assert subject.content(b"odd/" + name) == b"content"
        assert subject.origin.stat(subject.key(b"odd/" + name)).size_bytes == 7
        assert [entry.key for entry in subject.origin.walk(subject.key(b"odd"))] == [subject.key(b"odd/" + name)]
        subject.origin.delete(subject.key(b"odd/" + name))
        with pytest.raises(Absent):
            subject.origin.stat(subject.key(b"odd/" + name))

    def test_space_is_plausible(self, subject: Subject) -> None:
        space = subject.origin.space(subject.root)
        assert 0 <= space.free_bytes <= space.total_bytes < 1 << 62
