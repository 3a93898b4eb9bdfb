"""A memory of an upload in parts, as a test looks at it."""

from __future__ import annotations

from tiercache.model import PartedUpload


class RememberedParts:
    """Keeps what it is told."""

    def __init__(self, parted: PartedUpload | None = None) -> None:
        self.parted = parted

    def begun(self, parted: PartedUpload) -> None:
        self.parted = parted

    def confirmed(self, parted: PartedUpload) -> None:
        self.parted = parted

    def ended(self) -> None:
        self.parted = None
