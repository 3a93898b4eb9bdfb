"""``config show`` prints the settings in force so that they can be read back, without secrets."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from rig.command import Command
from tiercache.cli.show_config import MASK
from tiercache.config import Config

CONFIG = """
[nvme]
capacity = "10GiB"
[engine]
idle_timeout_s = "inf"
[profiles.weights]
ttl_s = "1h"
[[rules]]
path = "*.pt"
ack = "origin"
[[rules]]
path = "/tmp/"
sync_on_close = false
[origins."my data"]
url = "s3://bucket/prefix"
[origins."my data".options]
key = "AKIA"
secret = "hidden"
endpoint_url = "http://127.0.0.1:1"
client_kwargs = { region_name = "x", aws_session_token = "hidden" }
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "some.toml"
    path.write_text(CONFIG)
    return path


def test_what_is_shown_reads_back_as_the_same_configuration(inside: Command, config_file: Path) -> None:
    text = inside.good("config", "show", "--config", config_file, "--set", "fetch.retries=2")
    assert text.startswith(f"# file: {config_file}\n")
    shown = Config.model_validate(tomllib.loads(text))
    assert shown.nvme.capacity.resolve(0) == 10 * 1024**3
    assert shown.engine.idle_timeout_s == float("inf")
    assert shown.profile("weights").ttl_s == 3600
    assert shown.fetch.retries == 2
    assert shown.origins["my data"].url == "s3://bucket/prefix"
    assert [(rule.path, rule.ack, rule.sync_on_close) for rule in shown.rules] == [
        ("*.pt", "origin", None),
        ("/tmp/", None, False),
    ]


def test_secrets_are_masked(inside: Command, config_file: Path) -> None:
    for form in ([], ["--json"]):
        text = inside.good("config", "show", "--config", config_file, *form)
        assert "hidden" not in text
        assert "AKIA" not in text
        assert MASK in text
        assert "http://127.0.0.1:1" in text


def test_json_has_the_same_settings(inside: Command, config_file: Path) -> None:
    toml = tomllib.loads(inside.good("config", "show", "--config", config_file))
    assert json.loads(inside.good("config", "show", "--config", config_file, "--json")) == toml


def test_without_a_file_it_says_so(inside: Command) -> None:
    text = inside.good("config", "show")
    assert text.startswith("# file: none\n")
    assert f'cache_dir = "{inside.home}/.cache/tiercache"' in text
