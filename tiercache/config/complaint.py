"""One line for a user out of a validation error: ``source:key: what is wrong; allowed: …``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError


def complaint(error: ValidationError, layers: Sequence[Any]) -> str:
    """Describe the first of the errors."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
