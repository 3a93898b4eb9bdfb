"""The standard AWS variables of the process that asks: the engine that reads the bucket may have others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tiercache.errors import ConfigError

_CREDENTIALS = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN"}
_IDENTITY = frozenset({*_CREDENTIALS, "anon", "profile", "username", "password"})
_IDENTITY_OF_CLIENT = frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token"})


def with_aws_environment(
    url: str, options: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """``options`` of an S3 URL, filled up from the environment as every AWS tool would read it; others unchanged.

    An option that says who asks (a key, a profile, ``anon``) keeps all credentials of the environment out.
    ConfigError for an endpoint without a scheme.
    """
    filled = dict(options)
    if url.partition("://")[0] not in ("s3", "s3a"):
        return filled
    client: Mapping[str, Any] = options.get("client_kwargs") or {}
    if "endpoint_url" not in filled and "endpoint_url" not in client:
        endpoint = endpoint_of(environment)
        if endpoint:
            filled["endpoint_url"] = endpoint
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if region and "region" not in filled and "region_name" not in client:
        filled["client_kwargs"] = {**client, "region_name": region}
    if not _IDENTITY & set(options) and not _IDENTITY_OF_CLIENT & set(client):
        filled |= _identity(environment)
    return filled


def endpoint_of(environment: Mapping[str, str]) -> str:
    """The S3 endpoint that the variables name, empty without one. ConfigError for one without a scheme."""
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if endpoint := environment.get(variable):
            return checked_endpoint(endpoint, variable)
    return ""


def checked_endpoint(endpoint: str, source: str) -> str:
    """The endpoint itself. ConfigError when it has no scheme: nothing that speaks S3 could use it."""
    if endpoint and not endpoint.lower().startswith(("http://", "https://")):
        host = endpoint.rpartition("://")[2]
        raise ConfigError(
            f"{source}={endpoint}: does not begin with http:// or https://; write {source}=http://{host} "
            "(https:// where the server speaks TLS)"
        )
    return endpoint


def _identity(environment: Mapping[str, str]) -> dict[str, str]:
    # A key in the environment wins over a profile there, as botocore has it.
    if environment.get("AWS_ACCESS_KEY_ID"):
        return {name: environment[variable] for name, variable in _CREDENTIALS.items() if environment.get(variable)}
    profile = environment.get("AWS_PROFILE")
    return {"profile": profile} if profile else {}
