"""Settings from ``TIERCACHE_*`` variables, sections separated by two underscores."""

from __future__ import annotations

import json
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from tiercache.config.schema import Config
from tiercache.errors import ConfigError


class _Environment(BaseSettings, Config):
    model_config = SettingsConfigDict(env_prefix="TIERCACHE_", env_nested_delimiter="__", extra="forbid", frozen=True)


class _Source(EnvSettingsSource):
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """JSON where it is meant (a whole section, options), else the text itself: ``80%`` is a size, not JSON."""
        if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
            return json.loads(value)
        return value


def read_environment() -> dict[str, Any]:
    """The settings named by variables, nested, not yet checked (``TIERCACHE_NVME__CAPACITY`` is ``nvme.capacity``)."""
    try:
        return _Source(_Environment)()
    except SettingsError as error:
        raise ConfigError(f"environment: {error}") from None
