"""Settings that an engine keeps from its start, and those that a caller asks of it in vain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tiercache.config.profiles import PROFILES
from tiercache.config.schema import Config

_OF_THE_CALLER = {"cache_dir": True, "origins": True, "engine": {"mode", "start_timeout_s"}}
"""Each command and filesystem has its own: which engine it asks, how it starts one, what its origins' names mean."""


def in_force(config: Config) -> dict[str, Any]:
    """Plain values by dotted key, defaults included; nothing secret."""
    settings = config.model_dump(mode="json", exclude={**_OF_THE_CALLER, "profiles": True})  # type: ignore[arg-type]
    settings["ram"]["directory"] = str(config.ram_directory)
    settings["profiles"] = {name: config.profile(name).model_dump(mode="json", exclude={"name"}) for name in PROFILES}
    return dict(dotted(settings))


def dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested settings; keys may be dotted already."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def differences(asked: Config, given: Iterable[str], has: Mapping[str, Any]) -> list[str]:
    """``key=value, not other`` for each of the ``given`` keys that an engine ``has`` otherwise than ``asked``. A key
    that the engine does not know is no difference: it belongs to the caller, or to another release."""
    wanted = in_force(asked)
    return [
        f"{key}={_shown(has[key])}, not {_shown(wanted[key])}"
        for key in given
        if key in wanted and key in has and has[key] != wanted[key]
    ]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
