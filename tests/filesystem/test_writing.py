"""Writing: every mode, and C16: only an orderly close publishes."""

from __future__ import annotations

import gc
import gzip
import os
from pathlib import Path

import fsspec
import pytest

from rig.ground import Ground
from tiercache.model import BLOCK_SIZE_BYTES as BS


class Interrupted(Exception):
    """What a test's block of ``with`` raises."""


def test_a_written_file_is_read_back_at_once_and_reaches_the_origin(ground: Ground) -> None:
    path = f"{ground.path}/new/f"
    with ground.fs.open(path, "wb") as file:
        assert file.write(b"a" * 10) == 10
        file.write(b"b" * BS)
    assert ground.fs.cat_file(path) == b"a" * 10 + b"b" * BS
    ground.drain()
    assert ground.read("new/f") == b"a" * 10 + b"b" * BS
    assert ground.fs.info(path)["tiercache"]["state"] == "clean"


def test_nothing_is_visible_before_close(ground: Ground) -> None:
    path = f"{ground.path}/f"
    with ground.fs.open(path, "wb") as file:
        file.write(b"x" * BS)
        file.flush()
        os.fsync(file.fileno())
        assert not ground.fs.exists(path)
    assert ground.fs.size(path) == BS


def test_append_continues_the_present_content(ground: Ground) -> None:
    path = f"{ground.path}/f"
    ground.write("f", b"one")
    with ground.fs.open(path, "ab") as file:
        assert file.tell() == 3
        file.write(b" two")
    with ground.fs.open(path, "ab") as file:
        file.write(b" three")
    assert ground.fs.cat_file(path) == b"one two three"
    with ground.fs.open(f"{ground.path}/fresh", "ab") as file:
        file.write(b"new")
    ground.drain()
    assert ground.read("f") == b"one two three"
    assert ground.read("fresh") == b"new"


def test_update_changes_the_present_content(ground: Ground) -> None:
    path = f"{ground.path}/f"
    ground.write("f", b"0123456789")
    with ground.fs.open(path, "r+b") as file:
        assert file.read(2) == b"01"
        file.seek(4)
        file.write(b"XY")
        file.seek(0)
        assert file.read() == b"0123XY6789"
        file.truncate(8)
    assert ground.fs.cat_file(path) == b"0123XY67"
    with pytest.raises(FileNotFoundError):
        ground.fs.open(f"{ground.path}/missing", "r+b")


def test_exclusive_creation_fails_in_open_itself(ground: Ground) -> None:
    path = f"{ground.path}/f"
    with ground.fs.open(path, "xb") as file:
        file.write(b"1")
    with pytest.raises(FileExistsError):
        ground.fs.open(path, "xb")
    with pytest.raises(FileExistsError):
        ground.fs.pipe_file(path, b"2", mode="create")
    assert ground.fs.cat_file(path) == b"1"


@pytest.mark.parametrize("mode", ["q", "rwb", "wab", "++wb", ""])
def test_a_wrong_mode_is_refused(ground: Ground, mode: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        ground.fs.open(f"{ground.path}/f", mode)


@pytest.mark.parametrize("mode", ["wb", "ab", "r+b", "w"])
def test_an_exception_in_the_block_keeps_the_old_content(ground: Ground, mode: str) -> None:
    """C16: the original exception comes out, and the name has its old content, here and at the origin."""
    path = f"{ground.path}/f"
    ground.write("f", b"v1")
    with pytest.raises(Interrupted), ground.fs.open(path, mode) as file:  # noqa: PT012
        file.write("x" * (BS + BS // 2) if mode == "w" else b"x" * (BS + BS // 2))
        raise Interrupted
    assert ground.fs.cat_file(path) == b"v1"
    ground.drain()
    assert ground.read("f") == b"v1"


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_an_exception_keeps_the_old_content_through_fsspec_open(s3: Ground, mode: str) -> None:
    """C16, where fsspec's OpenFile closes the file and drops the exception."""
    url = f"tiercache::s3://{s3.path}/f"
    s3.write("f", b"v1")
    chained = {"s3": s3.options, "tiercache": {"cache_dir": s3.storage_options["cache_dir"]}}
    with pytest.raises(Interrupted), fsspec.open(url, mode, **chained) as file:  # noqa: PT012
        file.write("text" if mode == "w" else b"bytes")
        raise Interrupted
    assert s3.fs.cat_file(f"{s3.path}/f") == b"v1"
    try:
        raise Interrupted
    except Interrupted:
        with fsspec.open(url, mode, **chained) as file:
            file.write("v2" if mode == "w" else b"v2")
    assert s3.fs.cat_file(f"{s3.path}/f") == b"v2"


def test_an_exception_keeps_the_old_content_below_a_codec(ground: Ground) -> None:
    path = f"{ground.path}/f.gz"
    ground.write("f.gz", b"v1")
    with pytest.raises(Interrupted), ground.fs.open(path, "wb", compression="gzip") as file:  # noqa: PT012
        file.write(b"x" * BS)
        raise Interrupted
    assert ground.fs.cat_file(path) == b"v1"


@pytest.mark.parametrize("mode", ["wb", "w"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_file_that_is_never_closed_is_discarded(ground: Ground, mode: str) -> None:
    """C16: garbage collection is no close."""
    path = f"{ground.path}/f"
    ground.write("f", b"v1")
    file = ground.fs.open(path, mode)
    file.write("x" * BS if mode == "w" else b"x" * BS)
    file.flush()
    del file
    gc.collect()
    assert ground.fs.cat_file(path) == b"v1"
    ground.drain()
    assert ground.read("f") == b"v1"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_file_that_is_never_closed_warns(local: Ground) -> None:
    file = local.fs.open(f"{local.path}/f", "wb")
    with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
        del file
        gc.collect()


def test_closing_twice_and_discarding_after_close_change_nothing(ground: Ground) -> None:
    path = f"{ground.path}/f"
    file = ground.fs.open(path, "wb")
    file.write(b"data")
    file.close()
    file.close()
    file.discard()
    assert file.closed
    assert ground.fs.cat_file(path) == b"data"
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")


def test_a_transaction_publishes_all_at_its_end(ground: Ground) -> None:
    one, two = f"{ground.path}/one", f"{ground.path}/two"
    with ground.fs.transaction:
        ground.fs.pipe_file(one, b"1")
        with ground.fs.open(two, "wb") as file:
            file.write(b"2")
        assert not ground.fs.exists(one)
        assert not ground.fs.exists(two)
    assert ground.fs.cat([one, two]) == {one: b"1", two: b"2"}


def test_a_transaction_that_fails_publishes_nothing(ground: Ground) -> None:
    path = f"{ground.path}/f"
    ground.fs.pipe_file(path, b"v1")
    with pytest.raises(Interrupted), ground.fs.transaction:  # noqa: PT012
        ground.fs.pipe_file(path, b"v2")
        raise Interrupted
    assert ground.fs.cat_file(path) == b"v1"
    ground.fs.pipe_file(path, b"v3")
    assert ground.fs.cat_file(path) == b"v3"


def test_text_has_encoding_errors_and_newline(ground: Ground) -> None:
    path = f"{ground.path}/t"
    with ground.fs.open(path, "w", encoding="utf-16", newline="\r\n") as file:
        file.write("ä\nb\n")
    assert ground.fs.cat_file(path).decode("utf-16") == "ä\r\nb\r\n"
    with ground.fs.open(path, "r", encoding="utf-16", newline="") as file:
        assert file.read() == "ä\r\nb\r\n"
    with ground.fs.open(path, "rt", encoding="utf-16") as file:
        assert list(file) == ["ä\n", "b\n"]
    ground.fs.write_text(path, "ü", encoding="latin-1")
    assert ground.fs.read_text(path, encoding="ascii", errors="replace") == "�"
    with ground.fs.open(path, "a", encoding="latin-1") as file:
        file.write("!")
    assert ground.fs.cat_file(path) == "ü!".encode("latin-1")


@pytest.mark.parametrize(
    ("suffix", "compression"), [("gz", "infer"), ("bz2", "infer"), ("xz", "infer"), ("bin", "gzip")]
)
def test_compression_works_in_both_directions(ground: Ground, suffix: str, compression: str) -> None:
    path = f"{ground.path}/f.{suffix}"
    text = "some text\n" * 5000
    with ground.fs.open(path, "wt", compression=compression) as file:
        file.write(text)
    assert ground.fs.size(path) < len(text)
    with ground.fs.open(path, "rt", compression=compression) as file:
        assert file.read() == text
    with ground.fs.open(path, "rb", compression=compression) as file:
        assert file.readline() == b"some text\n"
        assert b"".join(file) == text.encode()[10:]


def test_gzip_of_a_foreign_writer_is_plain_bytes_without_compression(ground: Ground) -> None:
    packed = gzip.compress(b"text" * 1000)
    ground.write("f.gz", packed)
    assert ground.fs.cat_file(f"{ground.path}/f.gz") == packed
    assert ground.fs.size(f"{ground.path}/f.gz") == len(packed)


def test_put_reads_a_local_tree(ground: Ground, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "a").write_bytes(b"a" * (BS + 1))
    (source / "sub" / "b").write_bytes(b"")
    ground.fs.put(str(source), f"{ground.path}/target", recursive=True)
    assert ground.fs.find(f"{ground.path}/target") == [f"{ground.path}/target/a", f"{ground.path}/target/sub/b"]
    assert ground.fs.cat_file(f"{ground.path}/target/a") == b"a" * (BS + 1)
    with pytest.raises(FileExistsError):
        ground.fs.put_file(str(source / "a"), f"{ground.path}/target/a", mode="create")


def test_a_forked_copy_neither_publishes_nor_discards(ground: Ground) -> None:
    """The file belongs to the process that opened it: a child that closes its copy, or ends, changes nothing."""
    path = f"{ground.path}/f"
    with ground.fs.open(path, "wb") as file:
        file.write(b"before ")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                file.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        file.write(b"after")
    assert ground.fs.cat_file(path) == b"before after"
