"""Matrices of which ``make test`` runs a sample: the rest is marked ``exhaustive`` and runs beside the integrations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def sampled(cases: Sequence[Any], *, sample: Collection[str]) -> list[Any]:
    """The cases, made by ``pytest.param`` with an id each; all but those of the sample become exhaustive."""
    unknown = set(sample) - {case.id for case in cases}
    assert not unknown, f"the matrix has no {unknown}"
    return [case if case.id in sample else _exhaustive(case) for case in cases]


def _exhaustive(case: Any) -> Any:
    return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.exhaustive])
