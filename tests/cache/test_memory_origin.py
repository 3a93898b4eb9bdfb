"""The fake origin of these tests keeps the contract of all origins."""

from __future__ import annotations

from pathlib import Path

import pytest
from origins.conformance import OriginConformance, Subject

from rig.memory_origin import MemoryOrigin, UnrulyOrigin


class TestMemoryOrigin(OriginConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return Subject(MemoryOrigin(), b"", tmp_path)


class TestUnrulyOrigin(OriginConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return Subject(UnrulyOrigin(), b"", tmp_path)
