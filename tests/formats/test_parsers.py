"""Headers become layouts; whatever else is in a file is Malformed, and nothing outside the file is asked for."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.readahead.formats import (
    EXTENTS_MAX,
    FORMATS,
    HEADER_MAX_BYTES,
    Malformed,
    Parser,
    format_of,
    parquet,
    safetensors,
    tar,
    zip_records,
)
from tiercache.readahead.layout import Layout

TENSOR_BYTES = 1000


def run(parse: Callable[[int], Parser], file: BinaryIO) -> Layout | None:
    """Feed a parser from a file, as the engine does."""
    size_bytes = file.seek(0, io.SEEK_END)
    parser = parse(size_bytes)
    data: bytes | None = None
    while True:
        try:
            wanted = next(parser) if data is None else parser.send(data)
        except StopIteration as end:
            found: Layout | None = end.value
            return found
        assert 0 <= wanted.start < wanted.stop <= size_bytes
        assert len(wanted) <= HEADER_MAX_BYTES
        file.seek(wanted.start)
        data = file.read(len(wanted))


def starts(layout: Layout | None) -> list[int]:
    assert layout is not None
    return list(layout.starts(range(len(layout))))


def safetensors_file(header: object, data_bytes: int = 3 * TENSOR_BYTES) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


TABLE = {
    "__metadata__": {"format": "pt"},
    "b": {"dtype": "U8", "shape": [TENSOR_BYTES], "data_offsets": [TENSOR_BYTES, 2 * TENSOR_BYTES]},
    "a": {"dtype": "U8", "shape": [TENSOR_BYTES], "data_offsets": [0, TENSOR_BYTES]},
    "c": {"dtype": "U8", "shape": [TENSOR_BYTES], "data_offsets": [2 * TENSOR_BYTES, 3 * TENSOR_BYTES]},
}


def torch_like(names: list[str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, bytes(TENSOR_BYTES))
    return file.getvalue()


def tar_file() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("000.jpg", "000.json"):
            member = tarfile.TarInfo(name)
            member.size = TENSOR_BYTES
            archive.addfile(member, io.BytesIO(bytes(TENSOR_BYTES)))
    return file.getvalue()


def parquet_file(footer_bytes: int, *, told_bytes: int | None = None) -> bytes:
    told = footer_bytes if told_bytes is None else told_bytes
    return b"PAR1" + bytes(5000 + footer_bytes) + struct.pack("<L4s", told, b"PAR1")


def test_tensors_are_read_in_the_order_of_their_offsets() -> None:
    data = safetensors_file(TABLE)
    begin = len(data) - 3 * TENSOR_BYTES
    layout = run(safetensors.parse, io.BytesIO(data))
    assert starts(layout) == [0, begin, begin + TENSOR_BYTES, begin + 2 * TENSOR_BYTES]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", HEADER_MAX_BYTES + 1) + bytes(HEADER_MAX_BYTES + 2),
        safetensors_file(b"{"),
        safetensors_file(b"[]"),
        safetensors_file(b"{" + b'"a":{' * 100_000),
        safetensors_file({"a": 1}),
        safetensors_file({"a": {"data_offsets": [0]}}),
        safetensors_file({"a": {"data_offsets": [0, 1e300]}}),
        safetensors_file({"a": {"data_offsets": ["0", "1"]}}),
        safetensors_file({"a": {"data_offsets": [-5, 10]}}),
        safetensors_file({"a": {"data_offsets": [20, 10]}}),
        safetensors_file({"a": {"data_offsets": [0, 1 << 70]}}),
        safetensors_file({str(number): {"data_offsets": [0, 1]} for number in range(EXTENTS_MAX + 1)}),
    ],
)
def test_a_header_that_lies_is_none(data: bytes) -> None:
    with pytest.raises(Malformed):
        run(safetensors.parse, io.BytesIO(data))


def test_overlapping_tensors_are_cut_where_the_next_one_begins() -> None:
    table = {"a": {"data_offsets": [0, 3000]}, "b": {"data_offsets": [0, 10]}, "c": {"data_offsets": [500, 600]}}
    data = safetensors_file(table)
    begin = len(data) - 3 * TENSOR_BYTES
    assert starts(run(safetensors.parse, io.BytesIO(data))) == [0, begin, begin + 500]


def test_the_records_of_torch_are_read_by_number() -> None:
    """They lie in the file in the order of their names as text, with the pickle before them."""
    names = ["m/data.pkl", "m/byteorder", "m/data/0", "m/data/1", "m/data/10", "m/data/2", "m/version"]
    data = torch_like(names)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        offsets = {record.filename: record.header_offset for record in archive.infolist()}
    order = ["m/data.pkl", "m/byteorder", "m/version", "m/data/0", "m/data/1", "m/data/2", "m/data/10"]
    assert starts(run(zip_records.parse, io.BytesIO(data))) == [offsets[name] for name in order]


def test_the_arrays_of_numpy_are_read_as_they_lie() -> None:
    data = torch_like(["x.npy", "a.npy", "m.npy"])
    layout = run(zip_records.parse, io.BytesIO(data))
    assert starts(layout) == sorted(starts(layout))
    assert len(starts(layout)) == 3


def test_records_beyond_four_gigabytes_are_found(tmp_path: Path) -> None:
    """zip64: what the directory has no room for is in its extra fields."""
    with (tmp_path / "large.pt").open("w+b") as file:  # sparse
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("m/data.pkl", b"pickle")
            file.seek(5 << 30)
            archive.start_dir = 5 << 30
            archive.writestr("m/data/0", bytes(TENSOR_BYTES))
        assert starts(run(zip_records.parse, file)) == [0, 5 << 30]


def test_a_comment_is_no_end_of_the_directory() -> None:
    file = io.BytesIO(torch_like(["x.npy"]))
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"c" * 60_000
    assert len(starts(run(zip_records.parse, file))) == 1


def test_a_zip_file_of_too_many_records_is_none() -> None:
    with pytest.raises(Malformed):
        run(zip_records.parse, io.BytesIO(torch_like([str(number) for number in range(EXTENTS_MAX + 1)])))


def test_a_tar_shard_is_one_extent_that_its_reader_wants_all_of() -> None:
    data = tar_file()
    layout = run(tar.parse, io.BytesIO(data))
    assert layout is not None
    assert len(layout) == 1
    assert layout.first_bytes == len(data)


def test_a_parquet_footer_is_looked_at_and_tells_no_layout() -> None:
    assert run(parquet.parse, io.BytesIO(parquet_file(600))) is None


@pytest.mark.parametrize("data", [b"PAR1", parquet_file(600, told_bytes=0), parquet_file(600, told_bytes=1 << 31)])
def test_a_parquet_footer_that_lies_is_none(data: bytes) -> None:
    with pytest.raises(Malformed):
        run(parquet.parse, io.BytesIO(data))


WHOLE = {
    "safetensors": safetensors_file(TABLE),
    "zip": torch_like(["m/data.pkl", "m/data/0", "m/data/1"]),
    "parquet": parquet_file(600),
    "tar": tar_file(),
}


@given(st.sampled_from(FORMATS), st.data())
def test_whatever_is_damaged_a_layout_or_nothing_comes_of_it(known: object, data: st.DataObject) -> None:
    """Cut, overwritten or random bytes raise nothing but Malformed, and a layout stays inside the file."""
    assert known in FORMATS
    whole = bytearray(WHOLE[known.label])  # type: ignore[attr-defined]
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        whole[at : at + len(patch)] = patch
    del whole[data.draw(st.integers(0, len(whole))) :]
    try:
        layout = run(known.parse, io.BytesIO(whole))  # type: ignore[attr-defined]
    except Malformed:
        return
    if layout is not None:
        assert all(0 <= start < len(whole) for start in starts(layout))


@pytest.mark.parametrize(
    ("key", "label"),
    [
        (b"a/model-00001-of-00002.safetensors", "safetensors"),
        (b"last.CKPT", "zip"),
        (b"x.npz", "zip"),
        (b"part-0.parquet", "parquet"),
        (b"shards/000.tar", "tar"),
        (b"a.tar/readme", ""),
        (b"weights.bin", ""),
        (b"safetensors", ""),
    ],
)
def test_a_format_is_known_by_the_end_of_a_name(key: bytes, label: str) -> None:
    found = format_of(key)
    assert (found.label if found is not None else "") == label
