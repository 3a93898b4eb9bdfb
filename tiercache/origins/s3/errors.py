"""botocore's exceptions in the domain's words."""

from __future__ import annotations

import botocore.exceptions as botocore_exceptions

from tiercache.errors import Broken, Busy, Denied, InvalidName, TierCacheError
from tiercache.origins.http_status import CredentialsExpired, error_of_status
from tiercache.origins.wording import of_botocore

_NO_CREDENTIALS = (
    botocore_exceptions.NoCredentialsError,
    botocore_exceptions.PartialCredentialsError,
    botocore_exceptions.CredentialRetrievalError,
    botocore_exceptions.ProfileNotFound,
    botocore_exceptions.TokenRetrievalError,
    botocore_exceptions.UnauthorizedSSOTokenError,
    botocore_exceptions.SSOTokenLoadError,
)


def classify(error: Exception, what: str) -> TierCacheError:
    """The domain's error for one of botocore's; ``what`` names the object in the message."""
    if isinstance(error, botocore_exceptions.ClientError):
        return _of_response(error, what)
    told = f"{what}: {of_botocore(error)}"
    if isinstance(error, _NO_CREDENTIALS):
        return Denied(told)
    if isinstance(error, botocore_exceptions.SSLError):
        return Broken(told)  # a certificate that does not fit will not fit next time
    if isinstance(error, botocore_exceptions.HTTPClientError | botocore_exceptions.ConnectionError):
        return Busy(told)
    if isinstance(error, botocore_exceptions.ResponseStreamingError | botocore_exceptions.IncompleteReadError):
        return Busy(told)
    if isinstance(error, botocore_exceptions.ParamValidationError):
        return InvalidName(told)
    return Broken(told)


def _of_response(error: botocore_exceptions.ClientError, what: str) -> TierCacheError:
    answer = error.response
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(answer.get("Error", {}).get("Code", ""))
    detail = str(answer.get("Error", {}).get("Message", ""))
    if status == 400 and error.operation_name == "HeadObject":
        # the answer to a HEAD has no body that could tell; on S3 it stands for expired credentials
        return CredentialsExpired(f"{what}: 400 Bad Request")
    if status == 200:  # an error document under a 200, as botocore reports it
        status = 500
    return error_of_status(status, "" if code == str(status) else code, what, detail)
