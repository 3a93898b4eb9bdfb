"""Weights on a mount: PyTorch and safetensors map them, read them lazily and save them as they do on a local disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from rig.mount_fixtures import bucket_client, driver, engine, mounted, mountpoint, root, source
from rig.mounts import Mounted, wait_for
from tiercache.model import BLOCK_SIZE_BYTES

__all__ = ["bucket_client", "driver", "engine", "mounted", "mountpoint", "root", "source"]

ROWS = 600
COLUMNS = 4096
"""In float32 more than two blocks of the cache: a part of it is not the whole."""


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    weights = {f"layer{number}.weight": torch.randn(ROWS // 2, COLUMNS) for number in range(2)}
    assert sum(tensor.nbytes for tensor in weights.values()) > 2 * BLOCK_SIZE_BYTES
    return {**weights, "bias": torch.arange(10, dtype=torch.int64)}


def check(found: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor)


def test_torch_maps_a_checkpoint(mounted: Mounted, root: Path, state: dict[str, torch.Tensor]) -> None:
    """Saved over an older one, mapped while it is staged, when it is clean, and when nothing of it is here; a mapping
    outlives the name."""
    path = root / "last.pt"
    torch.save({"bias": torch.zeros(3)}, path)
    torch.save(state, root / "last.pt.new")
    (root / "last.pt.new").rename(path)
    check(torch.load(path, mmap=True, weights_only=True), state)
    mounted.drain()
    kept = torch.load(path, mmap=True, weights_only=True)
    mounted_again = torch.load(path, mmap=True, weights_only=True)
    check(mounted_again, state)
    path.unlink()
    check(kept, state)
    del kept, mounted_again
    torch.save(state, path)
    mounted.drain()
    mounted.cold()
    check(torch.load(path, mmap=True, weights_only=True), state)
    check(torch.load(path, weights_only=True), state)


def test_a_private_mapping_of_torch_changes_nothing(
    mounted: Mounted, root: Path, state: dict[str, torch.Tensor]
) -> None:
    torch.save(state, root / "weights.pt")
    mounted.drain()
    found = torch.load(root / "weights.pt", mmap=True, weights_only=True)
    found["layer0.weight"].zero_()
    del found
    check(torch.load(root / "weights.pt", weights_only=True), state)


def test_a_tensor_over_a_file_writes_it(mounted: Mounted, root: Path) -> None:
    """torch.from_file with a shared mapping: what is assigned is in the file and reaches the origin."""
    path = root / "shared.bin"
    tensor = torch.from_file(str(path), shared=True, size=10_000, dtype=torch.float32)
    tensor.copy_(torch.arange(10_000, dtype=torch.float32))
    del tensor
    with open(path, "rb") as file:
        assert np.array_equal(np.fromfile(file, dtype=np.float32), np.arange(10_000, dtype=np.float32))
    mounted.drain()
    assert mounted.source.get("shared.bin") == np.arange(10_000, dtype=np.float32).tobytes()


def test_safetensors_reads_parts_of_a_mapped_file(mounted: Mounted, root: Path, state: dict[str, torch.Tensor]) -> None:
    path = root / "model.safetensors"
    safetensors.torch.save_file(state, path, metadata={"step": "7"})
    mounted.drain()
    mounted.cold()
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"step": "7"}
        part = file.get_slice("layer1.weight")[100:200, 5:50]
        assert torch.equal(part, state["layer1.weight"][100:200, 5:50])
        assert torch.equal(file.get_tensor("bias"), state["bias"])
    check(safetensors.torch.load_file(path), state)


def test_safetensors_replaces_a_file_that_is_open(mounted: Mounted, root: Path, state: dict[str, torch.Tensor]) -> None:
    """The reader of the old weights keeps them, the next one has the new."""
    path = root / "model.safetensors"
    safetensors.torch.save_file(state, path)
    mounted.drain()
    with safetensors.safe_open(path, framework="pt") as file:
        safetensors.torch.save_file({"bias": torch.ones(4)}, root / "new")
        (root / "new").rename(path)
        assert torch.equal(file.get_tensor("layer0.weight"), state["layer0.weight"])
    check(safetensors.torch.load_file(path), {"bias": torch.ones(4)})


@pytest.mark.parametrize("format_", ["safetensors", "zip"])
def test_weights_are_loaded_by_what_their_header_tells(
    mounted: Mounted, root: Path, tmp_path: Path, format_: str
) -> None:
    """Nothing of them is here, and their order by number is another than that of their names."""
    state = {str(number): torch.full((BLOCK_SIZE_BYTES // 4,), number, dtype=torch.int16) for number in range(12)}
    name = "weights.pt" if format_ == "zip" else "weights.safetensors"
    save: Any = torch.save if format_ == "zip" else safetensors.torch.save_file
    save(state, tmp_path / name)
    mounted.source.put(name, (tmp_path / name).read_bytes())
    learned = headers_learned(mounted, format_)
    path = root / name
    check(torch.load(path, weights_only=True) if format_ == "zip" else safetensors.torch.load_file(path), state)
    wait_for(lambda: headers_learned(mounted, format_) == learned + 1)


def headers_learned(mounted: Mounted, format_: str) -> float:
    figures = mounted.engine.client.status()["metrics"].get("format_files_total", {})
    return float(figures.get(f"{format_}/learned", 0))
