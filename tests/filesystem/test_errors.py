"""Failures come as builtin exceptions, and only a 404 is "missing"."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rig.ground import Ground, make_ground
from tiercache.filesystem import TierCacheFileSystem


def test_a_missing_name_is_file_not_found(ground: Ground) -> None:
    path = f"{ground.path}/missing"
    assert not ground.fs.exists(path)
    assert not ground.fs.isfile(path)
    assert not ground.fs.isdir(path)
    for call in (ground.fs.info, ground.fs.open, ground.fs.cat_file, ground.fs.cat, ground.fs.rm, ground.fs.rm_file):
        with pytest.raises(FileNotFoundError) as caught:
            call(path)
        assert caught.value.errno in (errno.ENOENT, None)


def test_a_directory_is_no_file(ground: Ground) -> None:
    ground.write("d/f", b"1")
    path = f"{ground.path}/d"
    for mode in ("rb", "wb", "ab", "r+b"):
        with pytest.raises(IsADirectoryError):
            ground.fs.open(path, mode)
    with pytest.raises(IsADirectoryError):
        ground.fs.cat_file(path)


def test_a_name_below_a_file_is_missing(ground: Ground) -> None:
    ground.write("f", b"1")
    assert not ground.fs.exists(f"{ground.path}/f/g")
    with pytest.raises((FileNotFoundError, NotADirectoryError)):
        ground.fs.cat_file(f"{ground.path}/f/g")


def test_a_denied_name_is_never_missing(s3: Ground) -> None:
    """C11 in small: with keys that the server refuses every question raises PermissionError."""
    s3.write("f", b"1")
    denied = TierCacheFileSystem(
        target_protocol="s3",
        target_options={**s3.options, "secret": "wrong"},
        cache_dir=s3.storage_options["cache_dir"],
    )
    path = f"{s3.path}/f"
    for call in (denied.exists, denied.isfile, denied.isdir, denied.info, denied.open, denied.cat_file, denied.ls):
        with pytest.raises(PermissionError):
            call(path)
    with pytest.raises(PermissionError):
        denied.find(s3.path)
    assert s3.fs.cat_file(path) == b"1"


def test_the_path_is_told_once(ground: Ground) -> None:
    path = f"{ground.path}/missing"
    with pytest.raises(FileNotFoundError) as caught:
        ground.fs.info(path)
    assert str(caught.value) == f"[Errno {errno.ENOENT}] no such file or directory: {path!r}"


def test_an_unknown_bucket_is_told(s3: Ground) -> None:
    """A wrong bucket is a mistake to be told, and no absent file to be passed over."""
    for call in (s3.fs.ls, s3.fs.exists, s3.fs.cat_file, s3.fs.open):
        with pytest.raises(OSError, match=r"no-such-bucket.*does not exist"):
            call("no-such-bucket/f")


def test_a_read_only_profile_refuses_writes(request: pytest.FixtureRequest, cache_dir: Path, tmp_path: Path) -> None:
    ground = make_ground(request, "local", cache_dir, tmp_path, profile="dataset")
    ground.write("f", b"1")
    assert ground.fs.cat_file(f"{ground.path}/f") == b"1"
    with pytest.raises(OSError, match="read-only") as caught:
        ground.fs.open(f"{ground.path}/g", "wb")
    assert caught.value.errno == errno.EROFS
    with pytest.raises(OSError, match="read-only"):
        ground.fs.rm(f"{ground.path}/f")


def test_a_wrong_setting_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nvme"):
        TierCacheFileSystem("file", cache_dir=str(tmp_path), settings={"nvme.capacity": "much"})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"cachedir": "/c"}, "tiercache: unknown argument 'cachedir', did you mean 'cache_dir'?"),
        ({"target_protocl": "s3"}, "tiercache: unknown argument 'target_protocl', did you mean 'target_protocol'?"),
        ({"nvme": {"capacity": "1GiB"}}, "unknown argument 'nvme'; a setting is given as settings={'nvme': …}"),
        ({"anon": True}, "goes into target_options, or with a chained URL into s3={'anon': …}"),
    ],
)
def test_an_unknown_argument_is_refused(arguments: dict[str, Any], told: str) -> None:
    for make in (TierCacheFileSystem, lambda **given: fsspec.filesystem("tiercache", **given)):
        with pytest.raises(TypeError, match=re.escape(told)):
            make(**arguments)
    with pytest.raises(TypeError, match=re.escape(told)):
        fsspec.open("tiercache::s3://bucket/key", tiercache=arguments)


def test_arguments_that_fsspec_has_for_every_filesystem_are_taken(local: Ground) -> None:
    local.write("f", b"1")
    standard = {
        "asynchronous": False,
        "loop": None,
        "skip_instance_cache": True,
        "use_listings_cache": False,
        "listings_expiry_time": 1,
        "max_paths": 10,
    }
    fs = fsspec.filesystem("tiercache", **local.storage_options, **standard)
    assert fs.cat_file(f"{local.path}/f") == b"1"
    chained = f"tiercache::file://{local.path}/f"
    with fsspec.open(chained, cache_dir=local.storage_options["cache_dir"], file={"auto_mkdir": False}) as file:
        assert file.read() == b"1"


def test_a_setting_that_the_running_engine_has_not_is_told(local: Ground) -> None:
    local.write("f", b"1")
    assert local.fs.cat_file(f"{local.path}/f") == b"1"  # starts the engine
    options = {**local.storage_options, "settings": {"readahead": {"budget_bytes": "1MiB"}}}
    other = TierCacheFileSystem(**options)
    with pytest.raises(ValueError, match=r"runs with readahead.budget_bytes=[0-9]+, not 1048576: end it first"):
        other.cat_file(f"{local.path}/f")
    equal = {**local.storage_options, "settings": {"readahead": {"window_min_bytes": "4096KiB"}, "ram.policy": None}}
    assert TierCacheFileSystem(**equal).cat_file(f"{local.path}/f") == b"1"
