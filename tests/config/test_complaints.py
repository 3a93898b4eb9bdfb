"""What is wrong with a setting is one line: source, key, fault, what is allowed."""
# ruff: noqa: E501 - the table shows whole lines as a user sees them

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tiercache.config import ConfigError, load_config

WriteConfig = Callable[[str], Path]


def complaint_of(path: Path | None = None, overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("toml", "rest"),
    [
        ("[nvme]\ncapcity = '1GiB'", "nvme.capcity: unknown key, did you mean 'capacity'?; allowed: capacity, daily_writes_max, exclude, free_space_floor, …"),
        ("[nvmee]\ncapacity = 1", "nvmee: unknown key, did you mean 'nvme'?; allowed: cache_dir, catalog, checkpoints, …"),
        ("nvme = 5", "nvme: 5 is of the wrong kind; allowed: a section of keys"),
        ("[nvme]\ncapacity = '200XB'", "nvme.capacity: '200XB' is not a size; allowed: a size such as 64MiB or 200GiB, or a share such as 80%"),
        ("[nvme]\ncapacity = '150%'", "nvme.capacity: '150%' is not a share above 0% and up to 100%; allowed: …"),
        ("[nvme]\ncapacity = [1]", "nvme.capacity: [1] is not understood; allowed: a size …"),
        ("[nvme]\npolicy = 'lfuu'", "nvme.policy: 'lfuu' is not known, did you mean 'lfu'?; allowed: auto, s3fifo, wtinylfu, sieve, arc, lfu, gdsf, lru, fifo, hold"),
        ("[ram]\npolicy = 'planned'", "ram.policy: 'planned' is not known; allowed: auto, s3fifo, wtinylfu, sieve, arc, lfu, gdsf, lru, fifo, hold"),
        ("[nvme]\ndaily_writes_max = '5'", "nvme.daily_writes_max: '5' is not understood; allowed: bytes a day such as 500GB (at least 1MiB), or inf"),
        ("[nvme]\nexclude = ['*.tmp', '']", "nvme.exclude.1: is empty; allowed: text in quotes"),
        ("[[nvme.quotas]]\npath = '/a/'", "nvme.quotas.0.capacity: is required"),
        ("[[nvme.quotas]]\npath = ''\ncapacity = '10%'", "nvme.quotas.0.path: is empty; allowed: text in quotes"),
        ("[[nvme.quotas]]\npath = '/a/'\ncapacity = 0", "nvme.quotas.0.capacity: 0 would keep nothing; allowed: more, or the path in nvme.exclude"),
        ("[[nvme.quotas]]\npath = '/a/'\ncapacity = '101%'", "nvme.quotas.0.capacity: '101%' is not a share above 0% and up to 100%; allowed: …"),
        ("[[nvme.quotas]]\npath = '/a/'\nshare = '10%'", "nvme.quotas.0.capacity: is required (and 1 more)"),
        ("[[nvme.quotas]]\npath = '/a/'\ncapacity = '1%'\nprefix = '/a'", "nvme.quotas.0.prefix: unknown key; allowed: capacity, path"),
        ("nvme.quotas = [{path = 'a/', capacity = '1%'}, {path = 'a/', capacity = '2%'}]", "nvme.quotas: 'a/' is there twice; allowed: one quota for each path"),
        (f"nvme.quotas = [{', '.join(f'{{path = {number!r}, capacity = 1}}' for number in map(str, range(65)))}]", "nvme.quotas: 65 are too many; allowed: 64"),
        ("nvme.quotas = [{path = 'a/', capacity = '60%'}, {path = 'b/', capacity = '40%'}]", "nvme: the quotas are … together and leave nothing for what matches none; allowed: less than nvme.capacity, which is …"),
        ("[nvme]\ncapacity = '1GiB'\nquotas = [{path = 'a/', capacity = '2GiB'}]", "nvme: the quotas are 2 GiB together and leave nothing for what matches none; allowed: less than nvme.capacity, which is 1 GiB"),
        ("[nvme]\nmax_object_share = 2", "nvme.max_object_share: 2 is out of range; allowed: at most 1"),
        ("[fetch]\nconcurrency = 0", "fetch.concurrency: 0 is out of range; allowed: at least 1"),
        ("[fetch]\nconcurrency = 'many'", "fetch.concurrency: 'many' is of the wrong kind; allowed: a whole number"),
        ("[fetch]\ntimeout_s = '5 parsecs'", "fetch.timeout_s: '5 parsecs' is not a duration; allowed: a duration such as 500ms, 5s, 10m, 2h or inf"),
        ("[fetch]\npart_size = '1KiB'", "fetch.part_size: 1 KiB is out of range; allowed: at least 64 KiB"),
        ("[readahead]\nbudget_bytes = '10%'", "readahead.budget_bytes: '10%' is not a size; allowed: a size such as 64MiB, 200GiB or 1.5TB"),
        ("verify = 'never'", "verify: 'never' is not known; allowed: open, read"),
        ("[engine]\nmode = 'inproces'", "engine.mode: 'inproces' is not known, did you mean 'inprocess'?; allowed: auto, attach, inprocess"),
        ("[metrics]\nlisten = '9100'", "metrics.listen: '9100' is not an address; allowed: HOST:PORT …"),
        ("cache_dir = 5", "cache_dir: 5 is of the wrong kind; allowed: a path"),
        ("[origins.x]\nclient = 's3fs'", "origins.x.url: is required"),
        ("[origins.x]\nurl = ''", "origins.x.url: is empty; allowed: text in quotes"),
        ("[origins.x]\nurl = 's3://b'\nurll = 1", "origins.x.urll: unknown key, did you mean 'url'?; allowed: client, options, profile, url"),
        ("[origins.x]\nurl = 's3://b'\nprofile = 'data'", "origins.x.profile: 'data' is not known, did you mean 'dataset'?; allowed: dataset, checkpoint, weights, scratch, general"),
        ("[profiles.datset]\nttl_s = 1", "profiles.datset: unknown key, did you mean 'dataset'?; allowed: checkpoint, dataset, general, scratch, weights"),
        ("[profiles.dataset]\nttl = 1", "profiles.dataset.ttl: unknown key, did you mean 'ttl_s'?; allowed: ack, …"),
        ("[profiles.dataset]\nnegative_ttl_s = 30", "profiles.dataset.negative_ttl_s: 30 is out of range; allowed: at most 5"),
        ("[profiles.dataset]\nread_only = 'maybe'", "profiles.dataset.read_only: 'maybe' is of the wrong kind; allowed: true or false"),
        ("[profiles.general]\nack = 'replica'", "profiles.general.ack: replica comes with the shared cluster, which is not there yet; allowed: memory, local, origin"),
        ("[[rules]]\npath = '*.pt'\nack = 'orign'", "rules.0.ack: 'orign' is not known, did you mean 'origin'?; allowed: memory, local, origin"),
        ("[[rules]]\npath = '*.pt'\nack = 'local'\n[[rules]]\npath = '/x/'\nack = 'replica'", "rules.1.ack: replica comes with the shared cluster, which is not there yet; allowed: memory, local, origin"),
        ("[[rules]]\npath = '*.pt'", "rules.0: tells nothing; allowed: ack, sync_on_close"),
        ("[[rules]]\nack = 'local'", "rules.0.path: is required"),
        ("[[rules]]\npath = ''\nack = 'local'", "rules.0.path: is empty; allowed: text in quotes"),
        ("[[rules]]\npath = 'x'\nakc = 'local'", "rules.0.akc: unknown key, did you mean 'ack'?; allowed: ack, path, sync_on_close"),
        ("[rules]\npath = 'x'", "rules: {'path': 'x'} is of the wrong kind; allowed: a list of sections"),
        ("[fetch]\nretries = -1\nconcurrency = 0", "fetch.concurrency: 0 is out of range; allowed: at least 1 (and 1 more)"),
    ],
)  # fmt: skip
def test_a_fault_in_the_file_names_file_key_and_what_is_allowed(
    write_config: WriteConfig, toml: str, rest: str
) -> None:
    path = write_config(toml)
    expected = re.escape(f"{path}:{rest}").replace("…", ".*")
    assert re.fullmatch(expected, complaint_of(path))


def test_what_is_no_toml_is_told_with_line_and_column(write_config: WriteConfig) -> None:
    path = write_config("[nvme]\ncapacity = 80%\n")
    assert re.fullmatch(re.escape(str(path)) + r": is no TOML: .*line 2, column \d+.*", complaint_of(path))


def test_a_directory_or_binary_file_as_config_is_one_line_too(tmp_path: Path, write_config: WriteConfig) -> None:
    assert complaint_of(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    path = write_config("")
    path.write_bytes(b"\xff\xfe")
    assert complaint_of(path).startswith(f"{path}: is no TOML:")


@pytest.mark.parametrize(
    ("variable", "value", "rest"),
    [
        ("TIERCACHE_NVME__CAPACITY", "1XB", "'1XB' is not a size; allowed: …"),
        ("TIERCACHE_NVME__CAPCITY", "1GB", "unknown key, did you mean 'capacity'?; allowed: …"),
        ("TIERCACHE_NVMEE__CAPACITY", "1GB", "unknown key; allowed: …"),
        ("TIERCACHE_CACHEDIR", "/x", "unknown key, did you mean 'cache_dir'?; allowed: …"),
        ("TIERCACHE_FETCH__RETRIES", "x", "'x' is of the wrong kind; allowed: a whole number"),
        ("TIERCACHE_ORIGINS", "{bad", "is no JSON: …"),
        ("TIERCACHE_FETCH", "5", "'5' is of the wrong kind; allowed: a section of keys"),
    ],
)
def test_a_fault_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, rest: str
) -> None:
    monkeypatch.setenv(variable, value)
    expected = re.escape(f"environment:{variable}: {rest}").replace("…", ".*")
    assert re.fullmatch(expected, complaint_of())


def test_the_uppermost_source_that_set_the_value_is_blamed(
    write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config("[fetch]\nretries = 3")
    monkeypatch.setenv("TIERCACHE_FETCH__RETRIES", "-3")
    assert complaint_of(path).startswith("environment:TIERCACHE_FETCH__RETRIES: '-3' is out of range")
    assert complaint_of(path, {"fetch.retries": "-4"}).startswith("options:fetch.retries: '-4' is out of range")
    assert load_config(path, {"fetch.retries": "4"}).fetch.retries == 4


def test_a_long_value_is_shortened(write_config: WriteConfig) -> None:
    assert len(complaint_of(write_config(f"[fetch]\nretries = '{'x' * 5000}'"))) < 300
