"""Where settings come from: a TOML file, ``TIERCACHE_*`` variables, options, in rising order."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tiercache.config.complaint import Layer, complaint
from tiercache.config.schema import OTHER_VARIABLES, PREFIX, Config
from tiercache.errors import ConfigError


def load_config(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read all sources and check the result. ConfigError is one line that names source, key and what is allowed.

    ``path`` stands above ``$TIERCACHE_CONFIG``, which stands above ``~/.config/tiercache/config.toml``; only the last
    may be missing. ``overrides`` is nested as the file is, or has dotted keys (``{"nvme.capacity": "1GiB"}``);
    values of None are left out.
    """
    layers = [_file_layer(path), _environment_layer(), _override_layer(overrides or {})]
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, layer.settings)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(complaint(error, layers, Config)) from None


def config_file(path: Path | None = None) -> Path | None:
    """The file that ``load_config(path)`` reads, None if there is none."""
    if path is not None:
        return path
    if named := os.environ.get("TIERCACHE_CONFIG"):
        return Path(named).expanduser()
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    usual = folder / "tiercache" / "config.toml"
    return usual if usual.exists() else None


def _file_layer(path: Path | None) -> Layer:
    file = config_file(path)
    if file is None:
        return Layer("", {})
    try:
        return Layer(str(file), tomllib.loads(file.read_text("utf-8")))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: is no TOML: {error}") from None


def _environment_layer() -> Layer:
    if not any(name.startswith(PREFIX) and name not in OTHER_VARIABLES for name in os.environ):
        return Layer("environment", {}, prefix=PREFIX)
    # Imported here: it costs 0.1 s, which every worker process would pay.
    from tiercache.config.environment import read_environment

    return Layer("environment", read_environment(), prefix=PREFIX)


def _override_layer(overrides: Mapping[str, Any]) -> Layer:
    settings: dict[str, Any] = {}
    for key, value in overrides.items():
        if value is None:
            continue
        *sections, name = key.split(".")
        inner = settings
        for section in sections:
            inner = inner.setdefault(section, {})
        if isinstance(value, Mapping):
            _merge(inner, {name: dict(value)})
        else:
            inner[name] = value
    return Layer("options", settings)


def _merge(base: dict[str, Any], upper: Mapping[str, Any]) -> None:
    for key, value in upper.items():
        current = base.get(key)
        if isinstance(value, Mapping):
            inner = dict(current) if isinstance(current, Mapping) else {}
            _merge(inner, value)
            base[key] = inner
        else:
            base[key] = value
