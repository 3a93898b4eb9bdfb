"""Names: C20, listings, moves and removal, always as they are now."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.ground import Ground


def mutate_pipe(ground: Ground, base: str) -> None:
    ground.fs.pipe_file(f"{base}/d/new", b"12345")


def mutate_open(ground: Ground, base: str) -> None:
    with ground.fs.open(f"{base}/d/sub/deeper/new", "wb") as file:
        file.write(b"1")


def mutate_overwrite(ground: Ground, base: str) -> None:
    ground.fs.pipe_file(f"{base}/d/one", b"another length")


def mutate_append(ground: Ground, base: str) -> None:
    with ground.fs.open(f"{base}/d/one", "ab") as file:
        file.write(b"more")


def mutate_touch(ground: Ground, base: str) -> None:
    ground.fs.touch(f"{base}/d/touched")


def mutate_rm(ground: Ground, base: str) -> None:
    ground.fs.rm(f"{base}/d/one")


def mutate_rm_file(ground: Ground, base: str) -> None:
    ground.fs.rm_file(f"{base}/d/sub/two")


def mutate_rm_recursive(ground: Ground, base: str) -> None:
    ground.fs.rm(f"{base}/d/sub", recursive=True)


def mutate_mv(ground: Ground, base: str) -> None:
    ground.fs.mv(f"{base}/d/one", f"{base}/d/sub/moved")


def mutate_mv_directory(ground: Ground, base: str) -> None:
    ground.fs.mv(f"{base}/d/sub", f"{base}/d/renamed", recursive=True)


def mutate_cp(ground: Ground, base: str) -> None:
    ground.fs.cp_file(f"{base}/d/one", f"{base}/d/copy")


def mutate_put(ground: Ground, base: str) -> None:
    ground.fs.put_file(__file__, f"{base}/d/put.py")


def mutate_makedirs(ground: Ground, base: str) -> None:
    ground.fs.makedirs(f"{base}/d/made/deep", exist_ok=True)


def mutate_transaction(ground: Ground, base: str) -> None:
    with ground.fs.transaction:
        ground.fs.pipe_file(f"{base}/d/later", b"x")


MUTATORS = [value for name, value in list(globals().items()) if name.startswith("mutate_")]


def answers(ground: Ground, base: str) -> dict[str, object]:
    """Everything one can ask about the tree, each with and without a trailing slash."""
    fs = ground.fs
    names = ["d", "d/one", "d/new", "d/touched", "d/sub", "d/sub/two", "d/sub/moved", "d/renamed", "d/renamed/two"]
    names += ["d/copy", "d/put.py", "d/made", "d/made/deep", "d/later", "d/sub/deeper", "d/sub/deeper/new"]
    told: dict[str, object] = {}
    for name in names:
        for path in (f"{base}/{name}", f"{base}/{name}/"):
            told[f"exists {path}"] = fs.exists(path)
            told[f"isdir {path}"] = fs.isdir(path)
            told[f"isfile {path}"] = fs.isfile(path)
    for path in (f"{base}/d", f"{base}/d/"):
        told[f"ls {path}"] = sorted((info["name"], info["size"], info["type"]) for info in fs.ls(path))
        told[f"find {path}"] = {name: info["size"] for name, info in fs.find(path, detail=True).items()}
        told[f"du {path}"] = fs.du(path)
        told[f"walk {path}"] = sorted((top, sorted(dirs), sorted(files)) for top, dirs, files in fs.walk(path))
    told["sizes"] = {name: fs.info(name)["size"] for name in fs.find(f"{base}/d")}
    return told


def truth(ground: Ground, base: str) -> dict[str, object]:
    """The same, asked of a fresh filesystem after everything reached the origin and the cache was told to forget."""
    ground.drain()
    ground.fs.invalidate_cache()
    return answers(ground, base)


@pytest.mark.parametrize("mutator", MUTATORS, ids=lambda mutator: mutator.__name__)
def test_answers_are_current_after_every_mutator(ground: Ground, mutator: Callable[[Ground, str], None]) -> None:
    """C20: after warm answers and one change, every answer is what the origin will say; a glob changes nothing."""
    base = ground.path
    # With a second file, since SeaweedFS, unlike S3, goes on listing a directory that lost its last object.
    ground.fs.pipe({f"{base}/d/one": b"1", f"{base}/d/sub/two": b"22", f"{base}/d/sub/three": b"333"})
    before = answers(ground, base)
    mutator(ground, base)
    after = answers(ground, base)
    if ground.protocol == "file" or mutator is not mutate_makedirs:
        assert after != before
    ground.fs.glob(f"{base}/**")
    ground.fs.glob(f"{base}/**/")
    assert answers(ground, base) == after
    assert truth(ground, base) == after


def test_a_foreign_change_is_seen_once_the_cache_is_told(ground: Ground) -> None:
    ground.write("f", b"old")
    assert ground.fs.cat_file(f"{ground.path}/f") == b"old"
    ground.write("f", b"other")
    ground.fs.invalidate_cache(f"{ground.path}/f")
    assert ground.fs.cat_file(f"{ground.path}/f") == b"other"
    assert ground.fs.size(f"{ground.path}/f") == 5


def test_ls_of_a_file_and_of_nothing(ground: Ground) -> None:
    ground.write("f", b"1")
    assert ground.fs.ls(f"{ground.path}/f", detail=False) == [f"{ground.path}/f"]
    assert ground.fs.ls(f"{ground.path}/f")[0]["size"] == 1
    with pytest.raises(FileNotFoundError):
        ground.fs.ls(f"{ground.path}/missing")
    assert ground.fs.find(f"{ground.path}/f") == [f"{ground.path}/f"]
    assert ground.fs.find(f"{ground.path}/missing") == []


def test_glob_with_and_without_trailing_slash(ground: Ground) -> None:
    base = ground.path
    ground.fs.pipe({f"{base}/a/x.txt": b"", f"{base}/a/b/y.txt": b"", f"{base}/a/b/z.bin": b""})
    assert ground.fs.glob(f"{base}/a/*") == [f"{base}/a/b", f"{base}/a/x.txt"]
    assert ground.fs.glob(f"{base}/a/*/") == [f"{base}/a/b"]
    assert ground.fs.glob(f"{base}/a/**/*.txt") == [f"{base}/a/b/y.txt", f"{base}/a/x.txt"]
    assert ground.fs.glob(f"{base}/a/[x]*") == [f"{base}/a/x.txt"]
    assert ground.fs.find(f"{base}/a", withdirs=True) == [
        f"{base}/a", f"{base}/a/b", f"{base}/a/b/y.txt", f"{base}/a/b/z.bin", f"{base}/a/x.txt",
    ]  # fmt: skip
    assert ground.fs.find(f"{base}/a", maxdepth=1) == [f"{base}/a/x.txt"]


def test_names_are_taken_literally(ground: Ground) -> None:
    """Only glob reads patterns: brackets, stars, percent signs and spaces are characters of a name."""
    names = ["a[1].txt", "b*c", "100%25", "sp ace", "ü", "e\u0301", "q?x", "h#1", "new\nline"]
    for name in names:
        ground.fs.pipe_file(f"{ground.path}/{name}", name.encode())
    assert sorted(ground.fs.ls(ground.path, detail=False)) == sorted(f"{ground.path}/{name}" for name in names)
    for name in names:
        assert ground.fs.cat_file(f"{ground.path}/{name}") == name.encode()
    ground.drain()
    for name in names:
        assert ground.read(name) == name.encode()
        ground.fs.rm(f"{ground.path}/{name}")
    assert ground.fs.find(ground.path) == []


def test_mv_behaves_as_the_shell_does(ground: Ground) -> None:
    base, fs = ground.path, ground.fs
    fs.pipe({f"{base}/f": b"1", f"{base}/dir/g": b"2", f"{base}/h": b"3"})
    fs.mv(f"{base}/f", f"{base}/dir")
    assert fs.find(f"{base}/dir") == [f"{base}/dir/f", f"{base}/dir/g"]
    fs.mv(f"{base}/h", f"{base}/dir/g")
    assert fs.cat_file(f"{base}/dir/g") == b"3"
    fs.mv(f"{base}/dir/g", f"{base}/fresh/deep/g")
    assert fs.cat_file(f"{base}/fresh/deep/g") == b"3"
    fs.mv(f"{base}/dir", f"{base}/fresh", recursive=True)
    assert fs.find(f"{base}/fresh") == [f"{base}/fresh/deep/g", f"{base}/fresh/dir/f"]
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{base}/missing", f"{base}/x")
    ground.drain()
    assert ground.read("fresh/dir/f") == b"1"


def test_rm_refuses_a_directory_and_a_missing_name(ground: Ground) -> None:
    base, fs = ground.path, ground.fs
    fs.pipe({f"{base}/d/a": b"", f"{base}/d/b": b"", f"{base}/d/e/c": b""})
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{base}/d")
    with pytest.raises(FileNotFoundError):
        fs.rm([f"{base}/d/a", f"{base}/missing"])
    assert fs.exists(f"{base}/d/a")
    fs.rm(f"{base}/d/[ab]")
    assert fs.find(f"{base}/d") == [f"{base}/d/e/c"]
    fs.rm(f"{base}/d", recursive=True)
    assert not fs.exists(f"{base}/d")


def test_directories_of_a_file_tree_are_real(local: Ground) -> None:
    base, fs = local.path, local.fs
    fs.mkdir(f"{base}/a/b")
    assert Path(base, "a/b").is_dir()
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{base}/a/b")
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{base}/a/b")
    fs.makedirs(f"{base}/a/b", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{base}/x/y", create_parents=False)
    with pytest.raises(OSError, match=r"not empty|Directory"):
        fs.rmdir(f"{base}/a")
    fs.rmdir(f"{base}/a/b")
    assert not fs.exists(f"{base}/a/b")
    fs.touch(f"{base}/a/f")
    with pytest.raises(NotADirectoryError):
        fs.makedirs(f"{base}/a/f/g")


def test_directories_of_an_object_store_are_prefixes(s3: Ground) -> None:
    s3.fs.mkdir(f"{s3.path}/a/b")
    s3.fs.makedirs(f"{s3.path}/a/b", exist_ok=True)
    assert not s3.fs.exists(f"{s3.path}/a")
    s3.fs.touch(f"{s3.path}/a/b/f")
    assert s3.fs.isdir(f"{s3.path}/a")
    assert s3.fs.ls(f"{s3.path}/a", detail=False) == [f"{s3.path}/a/b"]


def test_touch_updates_the_time_or_empties(ground: Ground) -> None:
    path = f"{ground.path}/f"
    ground.fs.pipe_file(path, b"data")
    ground.drain()
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=2)
    ground.fs.touch(path, truncate=False)
    assert ground.fs.cat_file(path) == b"data"
    assert ground.fs.modified(path) >= before
    assert ground.fs.created(path) >= before
    ground.fs.touch(path)
    assert ground.fs.size(path) == 0
    ground.fs.touch(f"{ground.path}/g", truncate=False)
    assert ground.fs.size(f"{ground.path}/g") == 0


def test_ukey_and_checksum_change_with_the_content_only(ground: Ground) -> None:
    path = f"{ground.path}/f"
    ground.fs.pipe_file(path, b"one")
    ground.drain()
    first = ground.fs.ukey(path), ground.fs.checksum(path)
    assert (ground.fs.ukey(path), ground.fs.checksum(path)) == first
    ground.fs.pipe_file(path, b"two")
    staged = ground.fs.ukey(path), ground.fs.checksum(path)
    ground.drain()
    assert staged != first
    assert ground.fs.ukey(path) != first[0]


def test_symbolic_links_are_followed(local: Ground) -> None:
    base, fs = local.path, local.fs
    local.write("data/f", b"content")
    os.symlink("data/f", f"{base}/relative")
    os.symlink(f"{base}/relative", f"{base}/absolute")
    os.symlink("data", f"{base}/directory")
    os.symlink("nowhere", f"{base}/dangling")
    os.symlink("..", f"{base}/data/up")
    for name in ("relative", "absolute", "directory/f"):
        assert fs.cat_file(f"{base}/{name}") == b"content"
        assert fs.size(f"{base}/{name}") == 7
        with fs.open(f"{base}/{name}") as file:
            assert file.read() == b"content"
    fs.pipe_file(f"{base}/absolute", b"written")
    assert fs.cat_file(f"{base}/data/f") == b"written"
    assert fs.info(f"{base}/relative")["islink"]
    assert fs.islink(f"{base}/relative")
    assert fs.isdir(f"{base}/directory")
    assert fs.lexists(f"{base}/dangling")
    assert not fs.exists(f"{base}/dangling")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{base}/dangling")
    types = {info["name"].rpartition("/")[2]: info["type"] for info in fs.ls(base)}
    assert types == {
        "data": "directory", "relative": "file", "absolute": "file", "directory": "link", "dangling": "link",
    }  # fmt: skip
    assert f"{base}/data/f" in fs.find(base)


def test_a_copy_stays_inside_the_origin_or_passes_between_two(s3: Ground) -> None:
    other = f"other-{s3.path[-12:]}"
    s3.fs.mkdir(other)
    s3.write("f", b"content")
    s3.fs.cp_file(f"{s3.path}/f", f"{s3.path}/g")
    s3.fs.cp_file(f"{s3.path}/f", f"{other}/g")
    assert s3.fs.cat_file(f"{s3.path}/g") == s3.fs.cat_file(f"{other}/g") == b"content"
    s3.fs.mv(f"{s3.path}/f", f"{other}/moved")
    assert s3.fs.find(other) == [f"{other}/g", f"{other}/moved"]
    assert not s3.fs.exists(f"{s3.path}/f")
    assert other in s3.fs.ls("", detail=False)


def test_a_name_removed_during_its_upload_stays_away(local: Ground) -> None:
    """C20: right after a write its upload is under way; what lands late is ours to remove, and nobody sees it."""
    for number in range(60):
        path = f"{local.path}/{number}/deep/f"
        local.fs.pipe_file(path, b"short lived")
        local.fs.rm_file(path)
        assert local.fs.find(f"{local.path}/{number}") == []
        assert not local.fs.exists(path)
    local.drain()
    local.fs.invalidate_cache()
    assert local.fs.find(local.path) == []


def test_appends_in_a_row_build_on_each_other(local: Ground) -> None:
    """Each append starts from the one before, whether that is staged, on its way or at the origin."""
    for number in range(30):
        path = f"{local.path}/{number}"
        expected = b""
        for word in (b"one ", b"two ", b"three ", b"four"):
            with local.fs.open(path, "ab") as file:
                file.write(word)
            expected += word
            assert local.fs.cat_file(path) == expected
    local.drain()
    assert {local.read(str(number)) for number in range(30)} == {b"one two three four"}


def test_a_pipe_is_listed_and_never_opened(local: Ground) -> None:
    """Reading one would wait for a writer; it has no bytes of its own."""
    base, fs = local.path, local.fs
    os.mkfifo(Path(base, "pipe"))
    assert fs.info(f"{base}/pipe")["type"] == "other"
    assert fs.size(f"{base}/pipe") == 0
    assert fs.ls(base, detail=False) == [f"{base}/pipe"]
    for call in (fs.cat_file, lambda path: fs.cp_file(path, f"{base}/copy"), lambda path: fs.open(path, "ab")):
        with pytest.raises(OSError, match="pipe, socket or device"):
            call(f"{base}/pipe")
    fs.rm(base, recursive=True)
    assert not Path(base).exists()


def test_the_latest_complete_checkpoint_is_told(ground: Ground) -> None:
    for name in ("checkpoint-9/trainer_state.json", "checkpoint-10/__0_0.distcp", "notes.txt"):
        ground.fs.pipe_file(f"{ground.path}/{name}", b"12345")
    ground.drain()
    assert ground.fs.latest_complete(ground.path) == f"{ground.path}/checkpoint-9"
    newest, older = ground.fs.checkpoints(ground.path)
    assert (newest["name"], newest["complete"], newest["lacks"]) == (
        f"{ground.path}/checkpoint-10",
        False,
        ".metadata is missing",
    )
    assert (older["name"], older["complete"], older["lacks"]) == (f"{ground.path}/checkpoint-9", True, "")
    assert (older["files"], older["size"], older["level"]) == (1, 5, "origin")
    assert older["saved"] > 1.7e9
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        ground.fs.latest_complete(f"{ground.path}/checkpoint-9")
    with pytest.raises(FileNotFoundError):
        ground.fs.checkpoints(f"{ground.path}/none")
    with pytest.raises(NotADirectoryError):
        ground.fs.checkpoints(f"{ground.path}/notes.txt")
