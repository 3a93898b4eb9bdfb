"""Arrays and weights: zarr, safetensors and webdataset."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import webdataset
import zarr
from PIL import Image

from rig.ground import Ground


def test_zarr_writes_and_reads_a_group(ground: Ground, image_files: list[Path]) -> None:
    picture = np.asarray(Image.open(image_files[0]))
    url = ground.fs.unstrip_protocol(f"{ground.path}/store.zarr")
    group = zarr.open_group(url, mode="w", storage_options=ground.storage_options)
    array = group.create_array("picture", shape=picture.shape, chunks=(64, 64, *picture.shape[2:]), dtype=picture.dtype)
    array[:] = picture
    array[:10, :10] = 0
    ground.drain()
    again = zarr.open_group(url, mode="r", storage_options=ground.storage_options)
    assert list(again.array_keys()) == ["picture"]
    expected = picture.copy()
    expected[:10, :10] = 0
    assert np.array_equal(again["picture"][:], expected)
    assert np.array_equal(again["picture"][50:70, 60:70], expected[50:70, 60:70])
    with pytest.raises(KeyError):
        again["missing"]


def test_zarr_deletes_and_overwrites(ground: Ground) -> None:
    url = ground.fs.unstrip_protocol(f"{ground.path}/store.zarr")
    for value in (1, 2):
        array = zarr.create_array(
            url, shape=(100,), chunks=(10,), dtype="i4", overwrite=True, storage_options=ground.storage_options
        )
        array[:] = value
    assert zarr.open_array(url, mode="r", storage_options=ground.storage_options)[:].tolist() == [2] * 100


def test_safetensors_saves_and_loads(ground: Ground) -> None:
    tensors = {"weight": torch.randn(300, 200), "bias": torch.arange(10, dtype=torch.int32)}
    path = f"{ground.path}/model.safetensors"
    ground.fs.pipe_file(path, safetensors.torch.save(tensors, metadata={"step": "1"}))
    ground.drain()
    loaded = safetensors.torch.load(ground.fs.cat_file(path))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_safetensors_maps_a_cached_file(ground: Ground, tmp_path: Path) -> None:
    """Loading from the cache file itself, by the descriptor of an open file: no copy of the weights."""
    tensors = {"weight": np.arange(100_000, dtype=np.float32)}
    path = f"{ground.path}/model.safetensors"
    ground.write("model.safetensors", safetensors.numpy.save(tensors))
    ground.fs.cat_file(path)
    with (
        ground.fs.open(path) as file,
        safetensors.safe_open(f"/proc/self/fd/{file.fileno()}", framework="np") as opened,
    ):
        assert np.array_equal(opened.get_tensor("weight"), tensors["weight"])
        assert opened.get_slice("weight")[5:8].tolist() == [5.0, 6.0, 7.0]


def test_webdataset_streams_shards(ground: Ground, image_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    shards = []
    for shard in range(2):
        path = f"{ground.path}/shards/{shard:02}.tar"
        with ground.fs.open(path, "wb") as file, webdataset.TarWriter(file) as sink:
            for number, image in list(enumerate(image_files))[shard::2]:
                sink.write({"__key__": f"{number:04}", "img": image.read_bytes(), "cls": str(number).encode()})
        shards.append(ground.fs.unstrip_protocol(path))
    # webdataset's own way to learn of another kind of URL.
    monkeypatch.setitem(webdataset.gopen_schemes, "tiercache", lambda url, mode, *_: ground.fs.open(url, mode))
    data = webdataset.WebDataset(shards, shardshuffle=False)
    samples = {int(sample["cls"]): sample["img"] for sample in data}
    assert samples == {number: path.read_bytes() for number, path in enumerate(image_files)}


def test_a_tar_is_read_at_random(ground: Ground, image_files: list[Path]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in image_files:
            archive.add(path, path.name)
    ground.write("images.tar", packed.getvalue())
    with ground.fs.open(f"{ground.path}/images.tar") as file, tarfile.open(fileobj=file) as archive:
        for path in reversed(image_files):
            member = archive.extractfile(path.name)
            assert member is not None
            assert member.read() == path.read_bytes()
