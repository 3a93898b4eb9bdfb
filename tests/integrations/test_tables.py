"""Tables: pyarrow, pandas and Hugging Face datasets."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from rig.ground import Ground


@pytest.fixture
def table(text_files: list[Path]) -> pa.Table:
    """One row per line of the licences."""
    rows = [
        {"package": path.parent.name, "number": number, "line": line}
        for path in text_files[:20]
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines())
    ]
    return pa.Table.from_pylist(rows)


def test_pyarrow_writes_and_reads_parquet(ground: Ground, table: pa.Table) -> None:
    path = f"{ground.path}/table.parquet"
    pq.write_table(table, path, filesystem=ground.fs, row_group_size=200)
    assert pq.read_table(path, filesystem=ground.fs).equals(table)
    ground.drain()
    ground.fs.invalidate_cache()
    part = pq.read_table(path, filesystem=ground.fs, columns=["line"], filters=[("number", "<", 3)])
    assert part.num_rows == sum(1 for number in table["number"].to_pylist() if number < 3)
    with ground.fs.open(path) as file:
        assert pq.ParquetFile(file).metadata.num_rows == table.num_rows


def test_pyarrow_data_set_with_partitions(ground: Ground, table: pa.Table) -> None:
    root = f"{ground.path}/partitioned"
    filesystem = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(ground.fs))
    pyarrow.dataset.write_dataset(
        table, root, format="parquet", partitioning=["package"], partitioning_flavor="hive", filesystem=filesystem
    )
    data = pyarrow.dataset.dataset(root, partitioning="hive", filesystem=filesystem)
    assert data.count_rows() == table.num_rows
    package = table["package"][0].as_py()
    assert data.to_table(filter=pa.compute.field("package") == package).num_rows > 0
    pyarrow.dataset.write_dataset(
        table.slice(0, 10),
        root,
        format="parquet",
        partitioning=["package"],
        partitioning_flavor="hive",
        filesystem=filesystem,
        existing_data_behavior="delete_matching",
    )


def test_pyarrow_sees_files_as_they_are(ground: Ground) -> None:
    ground.write("d/f", b"12345")
    filesystem = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(ground.fs))
    info = filesystem.get_file_info(f"{ground.path}/d/f")
    assert (info.type, info.size) == (pyarrow.fs.FileType.File, 5)
    assert info.mtime is not None
    assert filesystem.get_file_info(f"{ground.path}/missing").type == pyarrow.fs.FileType.NotFound
    selector = pyarrow.fs.FileSelector(f"{ground.path}/d", recursive=True)
    assert [entry.path for entry in filesystem.get_file_info(selector)] == [f"{ground.path}/d/f"]
    with filesystem.open_input_file(f"{ground.path}/d/f") as file:
        assert file.read_at(3, 1) == b"234"


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "json", "pkl"])
def test_pandas_by_url(ground: Ground, table: pa.Table, suffix: str) -> None:
    frame = table.to_pandas()
    frame["line"] = frame["line"].str.strip().replace("", "empty").str.replace('"', "'")
    url = ground.fs.unstrip_protocol(f"{ground.path}/frame.{suffix}")
    kind = {"csv.gz": "csv", "pkl": "pickle"}.get(suffix, suffix)
    keywords = {"index": False} if kind == "csv" else {}
    getattr(frame, f"to_{kind}")(url, storage_options=ground.storage_options, **keywords)
    ground.drain()
    reading = {"keep_default_na": False} if kind == "csv" else {}
    again = getattr(pd, f"read_{kind}")(url, storage_options=ground.storage_options, **reading)
    pd.testing.assert_frame_equal(again, frame, check_dtype=False)


def test_pandas_by_chained_url(s3: Ground, table: pa.Table) -> None:
    frame = table.to_pandas()
    url = f"tiercache::s3://{s3.path}/frame.parquet"
    options = {"s3": s3.options, "tiercache": {"cache_dir": s3.storage_options["cache_dir"]}}
    frame.to_parquet(url, storage_options=options)
    pd.testing.assert_frame_equal(pd.read_parquet(url, storage_options=options), frame)


def test_hugging_face_saves_and_loads_a_data_set(ground: Ground, table: pa.Table) -> None:
    data = datasets.Dataset(table)
    url = ground.fs.unstrip_protocol(f"{ground.path}/saved")
    data.save_to_disk(url, storage_options=ground.storage_options, num_shards=3)
    loaded = datasets.load_from_disk(url, storage_options=ground.storage_options)
    assert loaded.to_list() == data.to_list()


def test_hugging_face_loads_data_files(ground: Ground, table: pa.Table, tmp_path: Path) -> None:
    check_data_files(ground, table, tmp_path, streaming=False)


def test_hugging_face_streams_data_files(s3: Ground, table: pa.Table, tmp_path: Path) -> None:
    """Over S3: streaming makes two slashes of the three in ``tiercache:///path``, so no file tree can be streamed."""
    check_data_files(s3, table, tmp_path, streaming=True)


def check_data_files(ground: Ground, table: pa.Table, tmp_path: Path, *, streaming: bool) -> None:
    for shard in range(3):
        pq.write_table(table.slice(shard * 50, 50), f"{ground.path}/data/{shard}.parquet", filesystem=ground.fs)
    url = ground.fs.unstrip_protocol(f"{ground.path}/data/*.parquet")
    loaded = datasets.load_dataset(
        "parquet",
        data_files=url,
        split="train",
        streaming=streaming,
        storage_options=ground.storage_options,
        cache_dir=str(tmp_path),
    )
    assert list(loaded) == table.slice(0, 150).to_pylist()


def test_hugging_face_streams_json_lines(s3: Ground) -> None:
    rows = [{"number": number, "square": number**2} for number in range(1000)]
    s3.write("rows.jsonl", "\n".join(map(json.dumps, rows)).encode())
    url = s3.fs.unstrip_protocol(f"{s3.path}/rows.jsonl")
    loaded = datasets.load_dataset(
        "json", data_files=url, split="train", streaming=True, storage_options=s3.storage_options
    )
    assert list(loaded) == rows
