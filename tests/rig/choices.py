"""What the rules of state machines over a node's two faces choose from."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import strategies as st

from rig.two_faces import NAMES

PLACES = st.sampled_from(["d", "e", "d/s", "e/s"])
FILES = st.one_of(st.sampled_from(["a", "b", "d/a", "d/b"]), st.sampled_from(NAMES))  # the first ones meet
PATHS = st.one_of(FILES, PLACES)
SIZES = st.sampled_from([1, 7, 30, 5000, 9000])
OFFSETS = st.sampled_from([0, 0, 3, 20, 4096, 6000])
CHOICE = st.integers(0, 999)

NOWHERE = (FileNotFoundError, NotADirectoryError)


def refused(*errors: type[BaseException]) -> Any:
    """A block that fails with one of these, and succeeds where there is none."""
    return pytest.raises(errors) if errors else nullcontext()
