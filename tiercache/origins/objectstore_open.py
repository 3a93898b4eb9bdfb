"""Opening GCS, Azure and HTTP stores with the options of their fsspec filesystems or obstore's own."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import obstore.exceptions
from obstore.store import AzureStore, GCSStore, HTTPStore

from tiercache.config import FetchConfig
from tiercache.errors import ConfigError
from tiercache.memory import Memory
from tiercache.origins.limits import Limits
from tiercache.origins.objectstore import ObjectStoreOrigin

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_GCS = frozenset({"gs", "gcs"})
_HTTP = frozenset({"http", "https"})

_GCS_NAMES = {"token": "application_credentials", "endpoint_url": "base_url"}
_AZURE_NAMES = {"sas_token": "sas_key", "endpoint_url": "endpoint"}
_IGNORED = frozenset(
    {
        "asynchronous",
        "cache_timeout",
        "consistency",
        "listings_expiry_time",
        "loop",
        "max_concurrency",
        "max_paths",
        "project",
        "skip_instance_cache",
        "use_listings_cache",
    }
)


def open_store(
    scheme: str, host: str, options: Mapping[str, Any], *, fetch: FetchConfig, limits: Limits, memory: Memory
) -> ObjectStoreOrigin:
    """The origin of a bucket, container or host. ConfigError for an option that the store does not know."""
    given = {name: value for name, value in options.items() if name not in _IGNORED and value is not None}
    client = _client_config(fetch, allow_http=_is_plain_http(scheme, given))
    try:
        if scheme in _HTTP:
            return _open_http(scheme, host, given, client, limits, memory)
        if scheme in _GCS:
            settings = _gcs_settings(given)
            gcs = GCSStore(host, client_options=client, retry_config=_NO_RETRY, **settings)
            return ObjectStoreOrigin(gcs, f"gs://{host}", limits=limits, memory=memory)
        container, account = _azure_names(host, given)
        settings = _renamed(given, _AZURE_NAMES) | ({"account_name": account} if account else {})
        azure = AzureStore(container, client_options=client, retry_config=_NO_RETRY, **settings)
    except (obstore.exceptions.BaseError, TypeError, ValueError) as error:
        raise ConfigError(f"{scheme}://{host}: {str(error).strip().splitlines()[0]}") from error
    return ObjectStoreOrigin(azure, azure_identity(host, options), limits=limits, memory=memory, dashes="_")


def azure_identity(host: str, options: Mapping[str, Any]) -> str:
    """A container is named by its account, whether the URL or an option names that."""
    container, account = _azure_names(host, options)
    return f"az://{container}@{account or os.environ.get('AZURE_STORAGE_ACCOUNT_NAME', '')}"


def _open_http(
    scheme: str, host: str, given: Mapping[str, Any], client: ClientConfig, limits: Limits, memory: Memory
) -> ObjectStoreOrigin:
    if given:
        raise ConfigError(f"{scheme}://{host}: unknown option {min(given)!r}: HTTP takes none (or client = 'fsspec')")
    store = HTTPStore(f"{scheme}://{host}", client_options=client, retry_config=_NO_RETRY)
    return ObjectStoreOrigin(store, f"{scheme}://{host}", limits=limits, memory=memory, read_only=True)


_NO_RETRY: RetryConfig = {"max_retries": 0}  # retrying is the caller's affair


def _client_config(fetch: FetchConfig, *, allow_http: bool) -> ClientConfig:
    return {
        "allow_http": allow_http,
        "connect_timeout": datetime.timedelta(seconds=fetch.connect_timeout_s),
        "read_timeout": datetime.timedelta(seconds=fetch.timeout_s),
        "timeout": datetime.timedelta(seconds=fetch.timeout_s * 20),  # a trickle must end some time
    }


def _is_plain_http(scheme: str, given: Mapping[str, Any]) -> bool:
    endpoint = str(given.get("endpoint_url") or given.get("endpoint") or given.get("base_url") or "")
    return scheme == "http" or endpoint.startswith("http://") or bool(given.get("use_emulator"))


def _gcs_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("token") == "anon" or given.get("anon"):
        return {"skip_signature": True} | _renamed(_without(given, "token", "anon"), _GCS_NAMES)
    if given.get("token") in ("google_default", "cloud", "cache", "browser"):
        return _renamed(_without(given, "token"), _GCS_NAMES)  # obstore finds the default credentials by itself
    return _renamed(given, _GCS_NAMES)


def _azure_names(host: str, given: Mapping[str, Any]) -> tuple[str, str]:
    container, _, domain = host.partition("@")
    return container, domain.partition(".")[0] or str(given.get("account_name") or "")


def _renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    renamed = {names.get(name, name): value for name, value in given.items()}
    if renamed.pop("anon", False):
        renamed["skip_signature"] = True
    return renamed


def _without(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}
