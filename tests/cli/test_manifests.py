"""Manifests: a warm-up of the files that a column names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rig.command import Command
from tiercache.bench.s3server import S3Server, client
from tiercache.cli.listed import key_of
from tiercache.cli.manifest import Nameless, names_in
from tiercache.errors import ConfigError

ROWS = ["a.txt", "sub/b.txt"]


def read(path: Path, column: str) -> list[Any]:
    with path.open("rb") as file:
        return list(names_in(str(path), file, column))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "manifest.jsonl"


def test_json_lines(manifest: Path) -> None:
    rows = [
        {"image": "a", "sample": {"image": {"path": "b"}}},
        {"image": ["c", "d"], "sample.image": "x"},
        {"image": ""},
        {"image": 7},
        {"other": 1},
        ["no", "object"],
    ]
    manifest.write_text("\n".join(map(json.dumps, rows)) + "\n\n{broken\n")
    empty, unreadable = Nameless.EMPTY, Nameless.UNREADABLE
    assert read(manifest, "image") == ["a", "c", "d", empty, unreadable, empty, empty, unreadable]
    assert read(manifest, "sample.image.path")[0] == "b"
    with pytest.raises(ConfigError, match="no line has 'text'"):
        read(manifest, "text")


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_tables(tmp_path: Path, ending: str, delimiter: str) -> None:
    path = tmp_path / f"m.{ending}"
    lines = [("id", "image"), ("1", "a.jpg"), ("2", '"with ""quotes"", and a comma"'), ("3", ""), ("4",)]
    path.write_text("\ufeff" + "".join(delimiter.join(line) + "\r\n" for line in lines))
    assert read(path, "image") == ["a.jpg", 'with "quotes", and a comma', Nameless.EMPTY, Nameless.EMPTY]
    with pytest.raises(ConfigError, match=r"m\.[ct]sv: has no column 'picture'; there are: id, image$"):
        read(path, "picture")


def test_what_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_bytes(b"image\n\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"m\.csv: 'utf-8' codec"):
        read(tmp_path / "m.csv", "image")
    (tmp_path / "m.txt").touch()
    with pytest.raises(ConfigError, match=r"m\.txt: is no manifest; allowed: \.jsonl, "):
        read(tmp_path / "m.txt", "image")


@pytest.mark.integration
def test_parquet(tmp_path: Path) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    path = tmp_path / "m.parquet"
    rows = {
        "image": ["a", None, "b"],
        "sample": [{"image": "c"}, {"image": "d"}, None],
        "several": [["e", "f"], [], None],
    }
    parquet.write_table(arrow.table(rows), path)
    empty = Nameless.EMPTY
    assert read(path, "image") == ["a", empty, "b"]
    assert read(path, "sample.image") == ["c", "d", empty]
    assert read(path, "several") == ["e", "f", empty]
    for column in ("picture", "sample.picture"):
        with pytest.raises(ConfigError, match=r"m\.parquet: "):
            read(path, column)
    path.write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"m\.parquet: "):
        read(path, "image")


def test_parquet_without_pyarrow_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "m.parquet").touch()
    with pytest.raises(ConfigError, match=r"m\.parquet: Parquet is read by pyarrow, which is not installed here$"):
        read(tmp_path / "m.parquet", "image")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a.jpg", b"data/train/a.jpg"),
        ("./sub//a.jpg", b"data/train/sub/a.jpg"),
        ("../val/a.jpg", b"data/val/a.jpg"),
        ("/a.jpg", b"data/train/a.jpg"),
        ("s3://bucket/other/a.jpg", b"other/a.jpg"),
        ("s3://elsewhere/a.jpg", None),
        ("https://example.org/a.jpg", None),
        ("../../../a.jpg", None),
        ("..", b"data"),
        ("s3://bucket/", None),
    ],
)
def test_names_are_of_the_url_or_of_its_origin(name: str, key: bytes | None) -> None:
    assert key_of(name, b"data/train", "s3://bucket/data/train/") == key


def test_names_of_a_file_tree_may_be_absolute() -> None:
    for url in ("/data/train", "file:///data/train"):
        for name in ("/data/val/a.jpg", "file:///data/val/a.jpg"):
            assert key_of(name, b"data/train", url) == b"data/val/a.jpg"
    assert key_of("a.jpg", b"", "s3://bucket") == key_of("s3://bucket/a.jpg", b"", "s3://bucket/") == b"a.jpg"


def test_only_what_the_manifest_names_is_fetched(tiercache: Command, origin: Path, manifest: Path) -> None:
    (origin / "other.txt").write_bytes(b"not named")
    manifest.write_text("".join(json.dumps({"image": name}) + "\n" for name in ROWS))
    arguments = tiercache.here("warmup", origin, "--manifest", manifest, "--column", "image")
    assert tiercache.good(*arguments) == "2 of 2 files, 196 KiB of 196 KiB are cached\n"
    assert tiercache.good(*arguments, "--check").startswith("2 of 2 files, ")
    line = tiercache.failure(*tiercache.here("warmup", origin, "--check"))
    assert line.startswith("1 file is not in the cache")
    assert os.listdir(tiercache.cache_dir / "plans") == []


def test_what_cannot_be_fetched_is_counted_and_the_rest_goes_on(
    tiercache: Command, origin: Path, manifest: Path
) -> None:
    names = ["a.txt", "missing", "./a.txt", "", "s3://bucket/a.txt", "sub", "sub/b.txt"]
    manifest.write_text("".join(json.dumps({"image": name}) + "\n" for name in names) + "{broken\n")
    result = tiercache(*tiercache.here("warmup", origin, "--manifest", manifest, "--column", "image"))
    assert result.returncode == 1
    left_out, *told, summary = result.stdout.splitlines()
    assert left_out.startswith("left out of the manifest: ")
    for count in ("1 × duplicate", "1 × empty cell", "1 × name of no place in the origin", "1 × unreadable row"):
        assert count in left_out
    assert any("missing: no such file or directory" in line for line in told)
    assert any("sub: is a directory" in line for line in told)
    assert summary == "2 of 4 files, 196 KiB of 196 KiB are cached"
    assert "tiercache: 1 file failed" in result.stderr


def test_a_manifest_that_lies_in_the_origin(tiercache: Command, s3_server: S3Server, s3_bucket: Any) -> None:
    s3 = client(s3_server)
    for name in ("images/a.jpg", "images/b.jpg", "images/c.jpg"):
        s3.put_object(Bucket=s3_bucket.name, Key=name, Body=name.encode())
    rows = f"image\n../images/a.jpg\ns3://{s3_bucket.name}/images/b.jpg\n"
    s3.put_object(Bucket=s3_bucket.name, Key="lists/train.csv", Body=rows.encode())
    options = [word for name, value in s3_server.options().items() for word in ("--option", f"{name}={value}")]
    arguments = tiercache.here(
        "warmup", f"s3://{s3_bucket.name}/images", "--manifest", f"s3://{s3_bucket.name}/lists/train.csv"
    )
    text = tiercache.good(*arguments, "--column", "image", *options)
    assert text.splitlines()[-1].startswith("2 of 2 files, ")


@pytest.mark.parametrize(
    ("arguments", "line", "status"),
    [
        (["--manifest", "nowhere.jsonl", "--column", "image"], "nowhere.jsonl: No such file or directory", 1),
        (["--manifest", "empty.jsonl", "--column", "image"], "empty.jsonl: no line has 'image'", 1),
        (["--manifest", "m.jsonl"], "--manifest FILE and --column NAME go together", 2),
    ],
)
def test_a_manifest_that_cannot_be_read_is_one_line(
    tiercache: Command, origin: Path, arguments: list[str], line: str, status: int
) -> None:
    (tiercache.home / "empty.jsonl").touch()
    assert tiercache.failure(*tiercache.here("warmup", origin, *arguments), status=status) == line
