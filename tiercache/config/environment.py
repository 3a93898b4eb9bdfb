"""Settings from ``TIERCACHE_*`` variables, sections separated by two underscores."""

from __future__ import annotations

import json
import os
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from tiercache.config.schema import OTHER_VARIABLES, PREFIX, Config
from tiercache.errors import ConfigError


class _Environment(BaseSettings, Config):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)


class _Source(EnvSettingsSource):
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """JSON where it is meant (a whole section, options), else the text itself: ``80%`` is a size, not JSON."""
        if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
            try:
                return json.loads(value)
            except ValueError as error:
                raise ConfigError(f"environment:{PREFIX}{field_name.upper()}: is no JSON: {error}") from None
        return value


def read_environment() -> dict[str, Any]:
    """The settings named by variables, nested, not yet checked (``TIERCACHE_NVME__CAPACITY`` is ``nvme.capacity``)."""
    return _Source(_Environment)() | _unknown_variables()


def _unknown_variables() -> dict[str, str]:
    """What pydantic-settings overlooks: variables with our prefix whose first word is no section and no key."""
    unknown = {}
    for name, value in os.environ.items():
        section = name.removeprefix(PREFIX).partition("__")[0].lower()
        if name.startswith(PREFIX) and name not in OTHER_VARIABLES and section not in Config.model_fields:
            unknown[name.removeprefix(PREFIX).lower()] = value
    return unknown
