"""Epochs whose order a node is told before they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiercache.bench.dataset import Piece
from tiercache.bench.node import Node
from tiercache.bench.stage import our_options
from tiercache.filesystem import TierCacheFileSystem
from tiercache.torch import PlannedBatchSampler


def planned(batches: Sequence[Sequence[int]], pieces: Sequence[Piece], node: Node, *, mounted: bool) -> Any:
    """The same batches, whose order the node is told: by paths under its mount, or by those of its filesystem."""
    if mounted:
        return PlannedBatchSampler(batches, [f"{node.mountpoint}/{piece.name}" for piece in pieces])
    fs = TierCacheFileSystem(**our_options(node.place, node), skip_instance_cache=True)
    return PlannedBatchSampler(batches, [f"{node.place.root}/{piece.name}" for piece in pieces], fs=fs)
