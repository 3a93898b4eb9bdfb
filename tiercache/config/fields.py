"""Field types of the configuration, with the text that tells a user what they allow."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from tiercache.config.windows import parse_rate, parse_window
from tiercache.units import MIB, Size, format_size, parse_duration, parse_share, parse_size


def _share(value: object) -> object:
    return value if isinstance(value, Size) else parse_share(value)  # type: ignore[arg-type]


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _windows(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        parse_window(text)
    return texts


Share = Annotated[Size, BeforeValidator(_share), PlainSerializer(str, return_type=str)]
Bytes = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Patterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_split)]
"""Glob patterns: a list, or one text with a comma between them."""
Rate = Annotated[float, BeforeValidator(parse_rate)]
"""Bytes per second; inf: as fast as it goes."""
Windows = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_windows)]
"""Hours with another rate: a list, or one text with a comma between them."""
Count = Annotated[int, Field(ge=1, le=65536)]
"""A bound on something that exists at least once."""


def _daily(value: object) -> float:
    text = str(value).strip().removesuffix("/day")
    if text.lower() == "inf":
        return math.inf
    try:
        budget_bytes = parse_size(text)
    except ValueError:
        budget_bytes = 0
    if budget_bytes < MIB:
        raise ValueError(f"{value!r} is not understood; allowed: bytes a day such as 500GB (at least 1MiB), or inf")
    return float(budget_bytes)


Daily = Annotated[float, BeforeValidator(_daily)]
"""Bytes a day; inf: as many as come."""


def at_least(minimum_bytes: int) -> AfterValidator:
    """A lower bound whose complaint is written as a size, not as a bare number."""

    def check(size_bytes: int) -> int:
        if size_bytes < minimum_bytes:
            raise ValueError(
                f"{format_size(size_bytes)} is out of range; allowed: at least {format_size(minimum_bytes)}"
            )
        return size_bytes

    return AfterValidator(check)
