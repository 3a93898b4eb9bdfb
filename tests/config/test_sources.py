"""File, environment and options lie over each other in rising order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tiercache.config import Config, ConfigError, Size, load_config

WriteConfig = Callable[[str], Path]


def test_without_any_source_the_defaults_hold(home: Path) -> None:
    config = load_config()
    assert config == Config()
    assert config.cache_dir == home / ".cache" / "tiercache"
    assert config.nvme.capacity == Size(0, 0.8)
    assert config.fetch.concurrency == 64


def test_the_environment_is_above_the_file_and_options_are_above_both(
    write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config("[fetch]\nconcurrency = 1\nretries = 1\ntimeout_s = '1s'\n[nvme]\ncapacity = '1GiB'")
    monkeypatch.setenv("TIERCACHE_FETCH__CONCURRENCY", "2")
    monkeypatch.setenv("TIERCACHE_FETCH__RETRIES", "2")
    config = load_config(path, {"fetch.retries": 3})
    assert (config.fetch.timeout_s, config.fetch.concurrency, config.fetch.retries) == (1.0, 2, 3)
    assert config.nvme.capacity.resolve(0) == 1024**3


def test_the_named_file_is_above_the_variable_which_is_above_xdg(
    home: Path, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = home / ".config" / "tiercache" / "config.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text("[fetch]\nretries = 1")
    assert load_config().fetch.retries == 1
    other = home / "xdg" / "tiercache" / "config.toml"
    other.parent.mkdir(parents=True)
    other.write_text("[fetch]\nretries = 2")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    assert load_config().fetch.retries == 2
    by_variable = home / "variable.toml"
    by_variable.write_text("[fetch]\nretries = 3")
    monkeypatch.setenv("TIERCACHE_CONFIG", str(by_variable))
    assert load_config().fetch.retries == 3
    assert load_config(write_config("[fetch]\nretries = 4")).fetch.retries == 4


def test_only_the_usual_file_may_be_missing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        load_config(home / "nowhere.toml")
    monkeypatch.setenv("TIERCACHE_CONFIG", str(home / "gone.toml"))
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read"):
        load_config()


def test_variables_nest_with_two_underscores_and_take_json_for_whole_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERCACHE_CACHE_DIR", "/somewhere")
    monkeypatch.setenv("TIERCACHE_RAM__CAPACITY", "5%")
    monkeypatch.setenv("TIERCACHE_STAGING__UPLOAD_DELAY_S", "500ms")
    monkeypatch.setenv("TIERCACHE_ORIGINS__IMAGES__URL", "s3://images/train")
    monkeypatch.setenv("TIERCACHE_ORIGINS__IMAGES__OPTIONS", '{"anon": true}')
    monkeypatch.setenv("TIERCACHE_READAHEAD", '{"budget_bytes": "1MiB"}')
    monkeypatch.setenv("TIERCACHE_DEBUG", "1")
    config = load_config()
    assert config.cache_dir == Path("/somewhere")
    assert config.ram.capacity == Size(0, 0.05)
    assert config.staging.upload_delay_s == 0.5
    assert config.origins["images"].url == "s3://images/train"
    assert config.origins["images"].options == {"anon": True}
    assert config.readahead.budget_bytes == 1024**2


def test_origins_and_options_of_a_file_keep_their_spelling(write_config: WriteConfig) -> None:
    path = write_config(
        "[origins.My-Data]\nurl = 's3://b'\nclient = 's3fs'\nprofile = 'dataset'\n"
        "[origins.My-Data.options]\nendpoint_url = 'http://127.0.0.1:1'\nclient_kwargs = {region_name = 'x'}"
    )
    origin = load_config(path).origins["My-Data"]
    assert (origin.client, origin.profile) == ("s3fs", "dataset")
    assert origin.options == {"endpoint_url": "http://127.0.0.1:1", "client_kwargs": {"region_name": "x"}}


def test_options_of_none_are_left_out_and_sections_may_be_nested() -> None:
    config = load_config(None, {"cache_dir": None, "fetch": {"retries": 1}, "fetch.concurrency": 2})
    assert (config.fetch.retries, config.fetch.concurrency) == (1, 2)


def test_a_configuration_survives_json_exactly() -> None:
    """That is how a command hands it to the engine that it starts."""
    config = load_config(
        None,
        {
            "cache_dir": "/c",
            "nvme.capacity": 123457,
            "ram.capacity": "12.5%",
            "fetch.timeout_s": "250ms",
            "engine.idle_timeout_s": "inf",
            "profiles": {"weights": {"ttl_s": "inf"}},
            "origins": {"x": {"url": "s3://b", "options": {"anon": True}}},
        },
    )
    for changed_only in (True, False):
        text = json.dumps(config.model_dump(mode="json", exclude_unset=changed_only))
        assert Config.model_validate(json.loads(text)) == config


def test_paths_are_absolute_and_know_the_home_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    assert load_config(None, {"cache_dir": "cache"}).cache_dir == home / "cache"
    assert load_config(None, {"cache_dir": "~/cache"}).cache_dir == home / "cache"


def test_a_profile_can_be_changed_and_the_others_stay(write_config: WriteConfig) -> None:
    config = load_config(write_config("[profiles.dataset]\nttl_s = '1h'\nread_only = false"))
    assert (config.profile("dataset").ttl_s, config.profile("dataset").read_only) == (3600, False)
    assert config.profile("dataset").posix_metadata is False
    assert config.profile("general") == Config().profile("general")


def test_the_ram_tier_has_one_directory_per_cache_directory() -> None:
    directories = {load_config(None, {"cache_dir": name}).ram_directory for name in ("/a", "/b")}
    assert len(directories) == 2
    assert all(directory.parent == Path("/dev/shm") for directory in directories)
    assert load_config(None, {"ram.directory": "/mnt/ram"}).ram_directory == Path("/mnt/ram")
