"""The options of an S3 origin, in the names that s3fs users know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiercache.config.aws import checked_endpoint, endpoint_of
from tiercache.errors import ConfigError

_TAKEN = frozenset(
    {
        "key",
        "secret",
        "token",
        "username",
        "password",
        "anon",
        "endpoint_url",
        "profile",
        "region",
        "use_ssl",
        "requester_pays",
        "client_kwargs",
        "config_kwargs",
        "s3_additional_kwargs",
    }
)
_IGNORED = frozenset(
    {
        "asynchronous",
        "batch_size",
        "cache_regions",
        "default_block_size",
        "default_cache_type",
        "default_fill_cache",
        "fixed_upload_size",
        "listings_expiry_time",
        "local_expiry_check",
        "loop",
        "max_concurrency",
        "max_paths",
        "session",
        "skip_instance_cache",
        "use_listings_cache",
        "version_aware",
    }
)
"""Options of s3fs about its own buffers, caches and loops: they mean nothing here."""

_CLIENT = frozenset(
    {
        "region_name",
        "endpoint_url",
        "use_ssl",
        "verify",
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "api_version",
    }
)


class S3Options(NamedTuple):
    """Empty means: as the standard AWS chain of environment, profile and instance role says."""

    key: str = ""
    secret: str = ""
    token: str = ""
    anon: bool = False
    endpoint_url: str = ""
    profile: str = ""
    region: str = ""
    use_ssl: bool = True
    verify: bool | str | None = None
    requester_pays: bool = False
    config: Mapping[str, Any] = {}
    """Arguments of botocore's Config."""
    write_arguments: Mapping[str, Any] = {}
    """Arguments for every write, such as ``ServerSideEncryption`` (``s3_additional_kwargs`` of s3fs)."""

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> S3Options:
        """ConfigError names an unknown option and those that are known, or an endpoint without a scheme."""
        _refuse_unknown(options, _TAKEN | _IGNORED, "S3 option", _TAKEN)
        client: Mapping[str, Any] = options.get("client_kwargs") or {}
        _refuse_unknown(client, _CLIENT, "client_kwargs of S3", _CLIENT)

        def text(*candidates: Any) -> str:
            return next((str(value) for value in candidates if value), "")

        return cls(
            key=text(options.get("key"), options.get("username"), client.get("aws_access_key_id")),
            secret=text(options.get("secret"), options.get("password"), client.get("aws_secret_access_key")),
            token=text(options.get("token"), client.get("aws_session_token")),
            anon=bool(options.get("anon", False)),
            endpoint_url=checked_endpoint(
                text(options.get("endpoint_url"), client.get("endpoint_url")), "endpoint_url"
            ).rstrip("/"),
            profile=text(options.get("profile")),
            region=text(options.get("region"), client.get("region_name")),
            use_ssl=bool(options.get("use_ssl", client.get("use_ssl", True))),
            verify=client.get("verify"),
            requester_pays=bool(options.get("requester_pays", False)),
            config=dict(options.get("config_kwargs") or {}),
            write_arguments=dict(options.get("s3_additional_kwargs") or {}),
        )

    def identity(self, bucket: str) -> str:
        """A bucket is named by its endpoint too, unless that is AWS's own."""
        endpoint = self.endpoint()
        return f"s3://{bucket}" + (f"?endpoint={endpoint}" if endpoint else "")

    def endpoint(self) -> str:
        """The endpoint that will be used, ``""`` for AWS's own: option, environment, then the profile of the files."""
        return (
            self.endpoint_url
            or endpoint_of(os.environ)
            or checked_endpoint(self._endpoint_of_profile(), "endpoint_url")
        ).rstrip("/")

    def _endpoint_of_profile(self) -> str:
        path = os.path.expanduser(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"))
        if not os.path.exists(path):
            return ""  # spares the import of botocore where nothing is configured
        from tiercache.origins.s3.session import profile_endpoint

        return profile_endpoint(self.profile)


def _refuse_unknown(options: Mapping[str, Any], known: frozenset[str], name: str, told: frozenset[str]) -> None:
    if unknown := sorted(set(options) - known):
        raise ConfigError(f"unknown {name} {unknown[0]!r}: allowed are {', '.join(sorted(told))}")
