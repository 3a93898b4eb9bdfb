"""How a filesystem is named: URLs, instances, pickles and JSON."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import fsspec
import pytest
from fsspec.core import url_to_fs

from rig.ground import Ground
from tiercache.filesystem import TierCacheFileSystem


def test_it_is_registered_as_tiercache() -> None:
    assert fsspec.get_filesystem_class("tiercache") is TierCacheFileSystem


def test_a_chained_url_opens(s3: Ground) -> None:
    s3.write("f", b"content")
    cache_dir = s3.storage_options["cache_dir"]
    url = f"tiercache::s3://{s3.path}/f"
    with fsspec.open(url, s3=s3.options, tiercache={"cache_dir": cache_dir}) as file:
        assert file.read() == b"content"
    fs, path = url_to_fs(url, s3=s3.options, tiercache={"cache_dir": cache_dir})
    assert path == f"{s3.path}/f"
    assert (type(fs), fs.fsid, fs.cache_dir) == (type(s3.fs), s3.fs.fsid, s3.fs.cache_dir)
    files = fsspec.open_files(f"tiercache::s3://{s3.path}/*", s3=s3.options, tiercache={"cache_dir": cache_dir})
    assert [file.path for file in files] == [f"{s3.path}/f"]


def test_a_chained_local_url_opens(local: Ground) -> None:
    local.write("f", b"content")
    options = {"tiercache": {"cache_dir": local.storage_options["cache_dir"]}}
    for url in (
        f"tiercache::file://{local.path}/f",
        f"tiercache::{local.path}/f",
        f"tiercache::local://{local.path}/f",
    ):
        with fsspec.open(url, **options) as file:
            assert file.read() == b"content"


def test_a_path_may_carry_the_protocols(s3: Ground) -> None:
    s3.write("f", b"content")
    path = f"{s3.path}/f"
    for spelling in (
        path,
        f"/{path}",
        f"s3://{path}",
        f"s3a://{path}",
        f"tiercache://{path}",
        f"tiercache::s3://{path}",
    ):
        assert s3.fs._strip_protocol(spelling) == path
        assert s3.fs.cat(spelling) == b"content"
    assert s3.fs._strip_protocol(Path(path)) == path
    assert s3.fs._strip_protocol([path + "/", f"s3://{path}"]) == [path, path]


def test_the_full_name_leads_back(ground: Ground) -> None:
    ground.write("f", b"content")
    path = f"{ground.path}/f"
    url = ground.fs.unstrip_protocol(path)
    fs, again = url_to_fs(url, **ground.storage_options)
    assert (fs, again) == (ground.fs, path)
    with fsspec.open(url, **ground.storage_options) as file:
        assert file.read() == b"content"
        assert file.full_name == url


def test_a_named_origin_opens(s3: Ground, tmp_path: Path) -> None:
    """``tiercache://NAME/key`` finds the origin, its prefix and its options in the configuration."""
    s3.write("deep/f", b"content")
    options = "\n".join(f"{name} = {json.dumps(value)}" for name, value in s3.options.items())
    config = tmp_path / "config.toml"
    config.write_text(f"[origins.data]\nurl = 's3://{s3.path}'\n[origins.data.options]\n{options}\n")
    arguments = {"config": str(config), "cache_dir": s3.storage_options["cache_dir"]}
    with fsspec.open("tiercache://data/deep/f", **arguments) as file:
        assert file.read() == b"content"
    fs = fsspec.filesystem("tiercache", **arguments)
    assert fs.ls("", detail=False) == ["data"]
    assert fs.ls("data", detail=False) == ["data/deep"]
    assert fs.find("data") == ["data/deep/f"]
    assert fs.find("data", withdirs=True) == ["data", "data/deep", "data/deep/f"]
    fs.pipe_file("data/other", b"1")
    assert s3.fs.cat_file(f"{s3.path}/other") == b"1"
    with pytest.raises(ValueError, match=r"no origin 'unknown' .* known: data"):
        fs.ls("unknown")


def test_an_instance_is_shared_by_equal_arguments(s3: Ground) -> None:
    same = TierCacheFileSystem(**s3.storage_options)
    other = TierCacheFileSystem(**{**s3.storage_options, "profile": "dataset"})
    assert same is s3.fs
    assert other is not s3.fs
    assert other.fsid == s3.fs.fsid


def test_the_file_system_id_tells_no_secret_and_survives(s3: Ground, tmp_path: Path) -> None:
    elsewhere = TierCacheFileSystem(
        target_protocol="s3", target_options={**s3.options, "key": "x", "secret": "y"}, cache_dir=str(tmp_path)
    )
    assert elsewhere.fsid == s3.fs.fsid
    endpoint = {**s3.options, "endpoint_url": "http://elsewhere:1"}
    foreign = TierCacheFileSystem(target_protocol="s3", target_options=endpoint, cache_dir=str(tmp_path))
    assert foreign.fsid != s3.fs.fsid


def test_filesystem_and_read_file_survive_pickle_and_json(ground: Ground) -> None:
    ground.write("f", b"0123456789")
    path = f"{ground.path}/f"
    assert pickle.loads(pickle.dumps(ground.fs)) is ground.fs
    assert fsspec.AbstractFileSystem.from_json(ground.fs.to_json()) is ground.fs
    assert fsspec.AbstractFileSystem.from_dict(ground.fs.to_dict()) is ground.fs
    with ground.fs.open(path) as file:
        file.seek(3)
        with pickle.loads(pickle.dumps(file)) as copy:
            assert copy.read() == b"3456789"
    with ground.fs.open(f"{ground.path}/g", "wb") as file, pytest.raises(TypeError, match="pickle"):
        pickle.dumps(file)
    opened = fsspec.core.OpenFile(ground.fs, path, mode="rt")
    with pickle.loads(pickle.dumps(opened)) as text:
        assert text.read() == "0123456789"


def test_it_is_made_from_an_instance(s3: Ground) -> None:
    s3.write("f", b"content")
    target = fsspec.filesystem("s3", **s3.options)
    fs = TierCacheFileSystem(fs=target, cache_dir=s3.storage_options["cache_dir"])
    assert fs.cat_file(f"{s3.path}/f") == b"content"
    with pytest.raises(ValueError, match="either"):
        TierCacheFileSystem("s3", fs=target)


def test_other_filesystems_stand_on_it(ground: Ground, tmp_path: Path) -> None:
    """An archive, a directory and a mapping over ours."""
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("member", b"inside")
    ground.fs.put_file(str(archive), f"{ground.path}/archive.zip")
    options = {"tiercache": {"cache_dir": ground.storage_options["cache_dir"]}, ground.protocol: ground.options}
    url = f"zip://member::tiercache::{ground.protocol}://{ground.path}/archive.zip"
    with fsspec.open(url, **options) as file:
        assert file.read() == b"inside"
    directory = fsspec.filesystem("dir", path=ground.path, fs=ground.fs)
    directory.pipe_file("x/y", b"1")
    assert directory.find("x") == ["x/y"]
    mapping = ground.fs.get_mapper(f"{ground.path}/map")
    mapping["a/b"] = b"2"
    assert dict(mapping.items()) == {"a/b": b"2"}
    del mapping["a/b"]
    assert list(mapping) == []


def test_a_signed_url_comes_from_the_target(s3: Ground) -> None:
    import urllib.request

    s3.fs.pipe_file(f"{s3.path}/f", b"content")
    s3.drain()
    with urllib.request.urlopen(s3.fs.sign(f"{s3.path}/f")) as answer:
        assert answer.read() == b"content"
