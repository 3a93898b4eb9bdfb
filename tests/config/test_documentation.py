"""docs/configuration.md names every setting with its default, every profile, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tiercache.config import PROFILES, Config
from tiercache.config.quotas import QuotaConfig
from tiercache.config.schema import ProfileConfig, RuleConfig
from tiercache.units import format_duration

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
ROWS = dict(re.findall(r"^\| `([a-z_.]+)` \| (.*?) \|", PAGE, flags=re.MULTILINE))
ELSEWHERE = {"cache_dir", "ram.directory"}
"""Whose default depends on the user."""


def settings_of(model: BaseModel, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            found |= settings_of(value, f"{prefix}{name}.")
        elif name not in ("origins", "profiles", "rules"):
            found[prefix + name] = value
    return found


SETTINGS = settings_of(Config())


def test_the_table_names_every_setting() -> None:
    assert set(ROWS) - set(PROFILES) == set(SETTINGS)


@pytest.mark.parametrize("key", sorted(set(SETTINGS) - ELSEWHERE))
def test_the_default_in_the_table_is_the_default(key: str) -> None:
    value = ast.literal_eval(ROWS[key].strip("`"))
    section, _, name = key.rpartition(".")
    overrides = {section: {name: value}} if section else {name: value}
    assert settings_of(Config.model_validate(overrides))[key] == SETTINGS[key]


def test_the_profiles_are_as_the_table_says() -> None:
    rows = {
        cells[0].strip("`"): cells[1:]
        for line in PAGE.splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0].strip("`") in PROFILES
    }
    assert set(rows) == set(PROFILES)
    for name, profile in PROFILES.items():
        ttl, negative, read_only, uploads, attributes, close = rows[name]
        assert ttl in (format_duration(profile.ttl_s).removeprefix("for "), f"{profile.ttl_s:g} s")
        assert negative == f"{profile.negative_ttl_s:g} s"
        assert (read_only == "yes") is profile.read_only
        assert (uploads == "never") is not profile.upload
        assert (attributes == "kept") is profile.posix_metadata
        assert bool(close) is profile.sync_on_close


def test_the_page_names_every_key_of_a_profile_a_rule_and_a_quota() -> None:
    keys = ProfileConfig.model_fields | RuleConfig.model_fields | QuotaConfig.model_fields
    assert all(f"`{key}`" in PAGE for key in keys)
