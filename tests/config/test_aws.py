"""The caller's AWS variables count, wherever the engine was started."""

from __future__ import annotations

from typing import Any

import pytest

from tiercache.config.aws import with_aws_environment
from tiercache.errors import ConfigError

KEY = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hidden"}


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ({}, {}, {}),
        ({}, KEY, {"key": "id", "secret": "hidden"}),
        ({}, {**KEY, "AWS_SESSION_TOKEN": "t"}, {"key": "id", "secret": "hidden", "token": "t"}),
        ({}, {"AWS_PROFILE": "lab"}, {"profile": "lab"}),
        ({}, {**KEY, "AWS_PROFILE": "lab"}, {"key": "id", "secret": "hidden"}),
        ({}, {"AWS_ENDPOINT_URL": "http://a"}, {"endpoint_url": "http://a"}),
        ({}, {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"}, {"endpoint_url": "http://b"}),
        ({}, {"AWS_DEFAULT_REGION": "eu-1"}, {"client_kwargs": {"region_name": "eu-1"}}),
        ({"anon": True}, KEY, {"anon": True}),
        ({"key": "mine", "secret": "s"}, {**KEY, "AWS_SESSION_TOKEN": "t"}, {"key": "mine", "secret": "s"}),
        ({"profile": "mine"}, KEY, {"profile": "mine"}),
        ({"client_kwargs": {"aws_access_key_id": "x"}}, KEY, {"client_kwargs": {"aws_access_key_id": "x"}}),
        ({"endpoint_url": "http://mine"}, {"AWS_ENDPOINT_URL": "http://a"}, {"endpoint_url": "http://mine"}),
        ({"region": "mine"}, {"AWS_REGION": "eu-1"}, {"region": "mine"}),
    ],
)
def test_options_win_over_variables(
    options: dict[str, Any], environment: dict[str, str], expected: dict[str, Any]
) -> None:
    assert with_aws_environment("s3://bucket/key", options, environment=environment) == expected


@pytest.mark.parametrize("url", ["/data", "file:///data", "gs://bucket", "tiercache://NAME/x", "http://host/s3"])
def test_other_origins_get_nothing(url: str) -> None:
    assert with_aws_environment(url, {"a": 1}, environment=KEY) == {"a": 1}


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("endpoint", ["localhost:8333", "ftp://localhost:8333"])
def test_an_endpoint_without_a_scheme_is_told_with_what_to_write(variable: str, endpoint: str) -> None:
    with pytest.raises(ConfigError) as told:
        with_aws_environment("s3://bucket", {}, environment={variable: endpoint})
    assert str(told.value) == (
        f"{variable}={endpoint}: does not begin with http:// or https://; write {variable}=http://localhost:8333 "
        "(https:// where the server speaks TLS)"
    )
    assert with_aws_environment("s3://bucket", {"endpoint_url": "http://mine"}, environment={variable: endpoint})
