"""Pins: what this node does not evict."""

from __future__ import annotations

from tiercache.filesystem.base import raising
from tiercache.filesystem.plans import PlansFileSystem


class PinsFileSystem(PlansFileSystem):
    """``tiercache pin`` and ``unpin`` for programs."""

    def pin(self, paths: str | list[str]) -> None:
        """Keep these files, and all that is below these directories, in the NVMe tier once they are there, also their
        later versions. This node remembers it until ``unpin``, and keeps ``nvme.pinned_share_max`` of the tier so."""
        for name, origin, key in self._targets(paths):
            with raising(name):
                origin.request("pin_key", key=key)

    def unpin(self, paths: str | list[str]) -> None:
        """Let them be evicted again. What was not pinned by this very name is left as it is."""
        for name, origin, key in self._targets(paths):
            with raising(name):
                origin.request("unpin_key", key=key)
