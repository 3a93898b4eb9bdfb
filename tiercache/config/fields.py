"""Field types of the configuration, with the text that tells a user what they allow."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from tiercache.config.windows import parse_rate, parse_window
from tiercache.units import Size, format_size, parse_duration, parse_share, parse_size


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
Patterns = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Glob patterns: a list, or one text with a comma between them."""
Rate = Annotated[float, BeforeValidator(parse_rate)]
"""Bytes per second; inf: as fast as it goes."""
Windows = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_windows)]
"""Hours with another rate: a list, or one text with a comma between them."""
Count = Annotated[int, Field(ge=1, le=65536)]
"""A bound on something that exists at least once."""


def at_least(minimum_bytes: int) -> AfterValidator:
    """A lower bound whose complaint is written as a size, not as a bare number."""

    def check(size_bytes: int) -> int:
        if size_bytes < minimum_bytes:
            raise ValueError(
                f"{format_size(size_bytes)} is out of range; allowed: at least {format_size(minimum_bytes)}"
            )
        return size_bytes

    return AfterValidator(check)
