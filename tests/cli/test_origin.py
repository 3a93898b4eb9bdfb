"""A command line names its origin by URL, by directory or by a name of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiercache.cli.failure import WrongUsage
from tiercache.cli.origin import OriginChoice, choose_origin
from tiercache.config import Config
from tiercache.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)


@pytest.fixture
def config() -> Config:
    origins = {
        "images": {"url": "s3://bucket/train/", "client": "s3fs", "options": {"anon": True}, "profile": "dataset"}
    }
    return Config.model_validate({"origins": origins})


def chosen(config: Config, url: str, **given: Any) -> OriginChoice:
    return choose_origin(config, url, **{"client": None, "options": None, "profile": None, **given})


def test_a_name_stands_for_its_url_and_settings(config: Config) -> None:
    expected = OriginChoice("s3://bucket/train/x/y", "s3fs", {"anon": True}, "dataset")
    assert chosen(config, "tiercache://images/x/y") == expected
    assert chosen(config, "tiercache://images") == expected._replace(url="s3://bucket/train/")


def test_a_url_inside_a_configured_origin_has_its_settings(config: Config) -> None:
    assert chosen(config, "s3://bucket/train/x") == OriginChoice(
        "s3://bucket/train/x", "s3fs", {"anon": True}, "dataset"
    )
    assert chosen(config, "s3://bucket/trainer") == OriginChoice("s3://bucket/trainer", "", {}, "")


def test_the_command_line_wins(config: Config) -> None:
    given = {"client": "obstore", "profile": "general", "options": ["anon=false", "endpoint_url=http://e"]}
    assert chosen(config, "tiercache://images", **given) == OriginChoice(
        "s3://bucket/train/", "obstore", {"anon": False, "endpoint_url": "http://e"}, "general"
    )


def test_an_unknown_name_is_told_with_those_that_are_known_now(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"tiercache://other/x: no origin named 'other' in the .*; there are: images"):
        chosen(config, "tiercache://other/x")


def test_a_directory_becomes_absolute(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert chosen(config, "data").url == str(tmp_path / "data")
    assert chosen(config, "~/data").url == "/home/me/data"
    assert chosen(config, "file:///data").url == "file:///data"


def test_the_callers_aws_variables_go_along(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://e")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert chosen(config, "s3://other").options == {"endpoint_url": "http://e", "profile": "lab"}
    assert chosen(config, "tiercache://images").options == {"endpoint_url": "http://e", "anon": True}


def test_wrong_words_are_told(config: Config) -> None:
    with pytest.raises(WrongUsage, match="--profile: 'x' is not known; allowed: dataset, "):
        chosen(config, "s3://b", profile="x")
    with pytest.raises(WrongUsage, match="--client: 'x' is not known; allowed: obstore, s3fs"):
        chosen(config, "s3://b", client="x")
