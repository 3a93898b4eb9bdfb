"""Print the settings in force as TOML that can be read back, secrets masked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiercache.config import Config

SECRET_WORDS = ("key", "secret", "token", "password", "credential", "sas")
MASK = "***"


def as_toml(config: Config, file: Path | None) -> str:
    """The whole configuration; the first line names the file it was read from."""
    settings = masked(config)
    lines = [f"# file: {file or 'none'}"]
    _emit(lines, "", settings)
    return "\n".join(lines)


def masked(config: Config) -> dict[str, Any]:
    """Plain values, as they are written in a file; options of origins that hold a secret are masked."""
    settings: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    for origin in settings["origins"].values():
        origin["options"] = _mask(origin["options"])
    return settings


def _mask(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _mask(value)
        if isinstance(value, Mapping)
        else MASK
        if any(word in name.lower() for word in SECRET_WORDS)
        else value
        for name, value in options.items()
    }


def _emit(lines: list[str], section: str, settings: Mapping[str, Any]) -> None:
    values = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    if section and (values or not settings):
        lines += ["", f"[{section}]"]
    lines += [f"{_name(name)} = {_value(value)}" for name, value in values.items()]
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            _emit(lines, f"{section}.{_name(name)}" if section else _name(name), value)


def _name(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_name(name)} = {_value(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    # TOML's basic strings, numbers and truth values are written as JSON's.
    return json.dumps(value)
