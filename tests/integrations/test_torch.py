"""PyTorch: DataLoader workers, torch.save and load, and distributed checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

from rig.datasets import ImageFiles, digest
from rig.engines import attached_client, small_config
from rig.ground import Ground
from rig.power_loss import bring_home

LOADER_TIMEOUT_S = 60

Upload = Callable[[Ground, str, list[Path]], list[str]]


@pytest.mark.parametrize("by", ["instance", "options"])
def test_forked_data_loader_workers_read_every_image(
    ground: Ground, images: list[str], image_files: list[Path], by: str
) -> None:
    """C21: forked workers give every file's bytes, whether they inherit the filesystem or make their own."""
    check_data_loader(ground, images, image_files, method="fork", by=by)


@pytest.mark.parametrize(("method", "by"), [("forkserver", "instance"), ("spawn", "instance"), ("spawn", "options")])
def test_fresh_data_loader_workers_read_every_image(
    s3: Ground, image_files: list[Path], method: str, by: str, upload: Upload
) -> None:
    """C21: the same for workers that get the filesystem pickled, or as options."""
    check_data_loader(s3, upload(s3, "images", image_files), image_files, method=method, by=by)


def check_data_loader(ground: Ground, images: list[str], image_files: list[Path], *, method: str, by: str) -> None:
    ground.fs.ls(ground.path)
    source = ground.fs if by == "instance" else ground.storage_options
    loader = torch.utils.data.DataLoader(
        ImageFiles(source, images),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
        timeout=LOADER_TIMEOUT_S,
        collate_fn=list,
        generator=torch.Generator().manual_seed(1),
    )
    expected = sorted(digest(path.read_bytes()) for path in image_files)
    for _ in range(2):
        assert sorted(name for batch in loader for name, _ in batch) == expected
    assert digest(ground.fs.cat_file(images[0])) == digest(image_files[0].read_bytes())


def test_an_iterable_data_set_is_shared_out_among_workers(ground: Ground, texts: list[str]) -> None:
    from rig.datasets import Lines

    loader = torch.utils.data.DataLoader(
        Lines(ground.fs, texts),
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
        timeout=LOADER_TIMEOUT_S,
    )
    expected = [line for path in texts for line in ground.fs.cat_file(path).decode("utf-8", "replace").splitlines()]
    assert sorted(loader) == sorted(expected)


def model_state() -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 256)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7}


def assert_equal(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    match left:
        case torch.Tensor():
            assert torch.equal(left, right)
        case dict():
            assert left.keys() == right.keys()
            for key in left:
                assert_equal(left[key], right[key])
        case list() | tuple():
            assert len(left) == len(right)
            for one, other in zip(left, right, strict=True):
                assert_equal(one, other)
        case _:
            assert left == right


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_save_and_load(ground: Ground, zipped: bool) -> None:
    state = model_state()
    path = f"{ground.path}/checkpoints/epoch-7.pt"
    with ground.fs.open(path, "wb") as file:
        torch.save(state, file, _use_new_zipfile_serialization=zipped)
    with ground.fs.open(path, "rb") as file:
        assert_equal(torch.load(file, weights_only=True), state)
    ground.drain()
    ground.fs.invalidate_cache()
    with ground.fs.open(path, "rb") as file:
        assert_equal(torch.load(file, weights_only=True), state)


def test_a_checkpoint_that_fails_keeps_the_last_one(ground: Ground) -> None:
    """C16 with torch.save: what cannot be pickled leaves the old checkpoint as it was."""
    path = f"{ground.path}/last.pt"
    with ground.fs.open(path, "wb") as file:
        torch.save({"step": 1}, file)
    with pytest.raises((AttributeError, TypeError)), ground.fs.open(path, "wb") as file:
        torch.save({"data": torch.ones(1 << 20), "step": lambda: 2}, file)
    with ground.fs.open(path, "rb") as file:
        assert torch.load(file, weights_only=True) == {"step": 1}


@pytest.mark.parametrize("sync_files", [True, False])
def test_distributed_checkpoint_writes_and_reads_back(ground: Ground, sync_files: bool) -> None:
    """DCP's own fsspec writer and reader, with the fsync that it asks for."""
    url = f"tiercache::{ground.protocol}://{ground.path}/dcp"
    options: dict[str, Any] = {
        ground.protocol: ground.options,
        "tiercache": {"cache_dir": ground.storage_options["cache_dir"]},
    }
    state = dict(model_state()["model"])
    dcp.save(state, storage_writer=FsspecWriter(url, sync_files=sync_files, **options), no_dist=True)
    ground.drain()
    assert sorted(Path(name).name for name in ground.fs.find(f"{ground.path}/dcp")) == [".metadata", "__0_0.distcp"]
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(loaded, storage_reader=FsspecReader(url, **options), no_dist=True)
    assert_equal(loaded, state)


def test_a_distributed_checkpoint_that_was_synced_survives_a_power_loss(tmp_path: Path) -> None:
    """Its writer calls fsync for each file through the descriptor, before it closes it."""
    (tmp_path / "origin").mkdir()
    config = small_config(tmp_path, **{"staging.upload_delay_s": "1h"})
    options: dict[str, Any] = {"tiercache": {"cache_dir": str(config.cache_dir)}}
    url = f"tiercache::file://{tmp_path}/origin/dcp"
    state = dict(model_state()["model"])
    with attached_client(config) as client:
        client.status()  # starts it, with these settings
        dcp.save(state, storage_writer=FsspecWriter(url, **options), no_dist=True)
        assert not list((tmp_path / "origin" / "dcp").glob("*"))
        assert bring_home(client, tmp_path) == []
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(loaded, checkpoint_id=tmp_path / "origin" / "dcp", no_dist=True)
    assert_equal(loaded, state)


def test_distributed_checkpoint_overwrites(ground: Ground) -> None:
    url = ground.fs.unstrip_protocol(f"{ground.path}/dcp")
    for value in (1.0, 2.0):
        dcp.save(
            {"weight": torch.full((1000,), value)},
            storage_writer=FsspecWriter(url, **ground.storage_options),
            no_dist=True,
        )
    loaded = {"weight": torch.zeros(1000)}
    dcp.load(loaded, storage_reader=FsspecReader(url, **ground.storage_options), no_dist=True)
    assert torch.equal(loaded["weight"], torch.full((1000,), 2.0))


def test_numpy_maps_a_cached_file(ground: Ground, image_files: list[Path]) -> None:
    """A file that is here whole is mapped without a copy."""
    array = np.arange(200_000, dtype=np.float32)
    path = f"{ground.path}/array.bin"
    ground.write("array.bin", array.tobytes())
    ground.fs.cat_file(path)
    with ground.fs.open(path) as file:
        mapped = np.memmap(file, dtype=np.float32, mode="r")
        assert np.array_equal(mapped, array)
        file.seek(0)
        assert np.array_equal(np.fromfile(file, dtype=np.float32), array)
