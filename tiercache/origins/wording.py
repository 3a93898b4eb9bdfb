"""What libraries tell of a failed request, in words for a user: their own texts show whole URLs and internals.

No library is imported here: an error is known by its class's name, and by the fields or the text that it carries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

_OBSTORE_REQUEST = re.compile(r"Error performing \w+ (\S+) in ")
_OBSTORE_FAILURE = re.compile(r"HttpError \{\s*kind: (\w+)")


def _unconnected(server: str) -> str:
    return f"cannot connect to {server}"


def _silent(server: str) -> str:
    return f"{server} did not answer in time"


def _interrupted(server: str) -> str:
    return f"{server} broke the connection off"


_OF_OBSTORE: Mapping[str, Callable[[str], str]] = {
    "Connect": _unconnected,
    "Timeout": _silent,
    "Interrupted": _interrupted,
    "Request": _interrupted,
}
"""By the ``kind`` of object_store's HttpError."""

_OF_BOTOCORE: Mapping[str, Callable[[str], str]] = {
    "EndpointConnectionError": _unconnected,
    "ConnectTimeoutError": _unconnected,
    "ReadTimeoutError": _silent,
    "ConnectionClosedError": _interrupted,
}


def of_obstore(text: str) -> str:
    """``text`` is the whole of an obstore exception's: its first line, unless the dump says that the way failed."""
    failure = _OBSTORE_FAILURE.search(text)
    words = _OF_OBSTORE.get(failure.group(1)) if failure is not None else None
    if words is None:
        return text.strip().split("\n", 1)[0][:300]
    request = _OBSTORE_REQUEST.search(text)
    return words(_server(request.group(1)) if request is not None else "the server")


def of_botocore(error: BaseException) -> str:
    """The same for an exception of botocore, or of what is built on it."""
    kind = type(error).__name__
    fields: Mapping[str, Any] = getattr(error, "kwargs", {})
    server = _server(str(fields.get("endpoint_url", "")))
    if words := _OF_BOTOCORE.get(kind):
        return words(server)
    if kind == "SSLError":
        return f"no TLS with {server}: {fields.get('error', '')}"
    if kind == "ProfileNotFound":
        return f"the AWS configuration files have no profile {fields.get('profile', '')!r}"
    if kind == "NoCredentialsError":
        return (
            "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; a public "
            "bucket takes the option anon=true"
        )
    if kind == "ParamValidationError" and "Invalid bucket name" in str(error):
        return "a bucket cannot have this name"
    return " ".join(str(error).split())


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else url or "the server"
