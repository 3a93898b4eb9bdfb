"""Field types of the configuration, with the text that tells a user what they allow."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from tiercache.units import Size, parse_duration, parse_share, parse_size


def _share(value: object) -> object:
    return value if isinstance(value, Size) else parse_share(value)  # type: ignore[arg-type]


Share = Annotated[Size, BeforeValidator(_share), PlainSerializer(str, return_type=str)]
Bytes = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Count = Annotated[int, Field(ge=1, le=65536)]
"""A bound on something that exists at least once."""
