"""The standard AWS variables of the process that asks: the engine that reads the bucket may have others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_CREDENTIALS = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN"}
_IDENTITY = frozenset({*_CREDENTIALS, "anon", "profile", "username", "password"})
_IDENTITY_OF_CLIENT = frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token"})


def with_aws_environment(
    url: str, options: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """``options`` of an S3 URL, filled up from the environment as every AWS tool would read it; others unchanged.

    An option that says who asks (a key, a profile, ``anon``) keeps all credentials of the environment out.
    """
    filled = dict(options)
    if url.partition("://")[0] not in ("s3", "s3a"):
        return filled
    client: Mapping[str, Any] = options.get("client_kwargs") or {}
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if endpoint and "endpoint_url" not in filled and "endpoint_url" not in client:
        filled["endpoint_url"] = endpoint
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if region and "region" not in filled and "region_name" not in client:
        filled["client_kwargs"] = {**client, "region_name": region}
    if not _IDENTITY & set(options) and not _IDENTITY_OF_CLIENT & set(client):
        filled |= _identity(environment)
    return filled


def _identity(environment: Mapping[str, str]) -> dict[str, str]:
    # A key in the environment wins over a profile there, as botocore has it.
    if environment.get("AWS_ACCESS_KEY_ID"):
        return {name: environment[variable] for name, variable in _CREDENTIALS.items() if environment.get(variable)}
    profile = environment.get("AWS_PROFILE")
    return {"profile": profile} if profile else {}
