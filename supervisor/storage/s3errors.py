"""What an S3 service's errors mean for us: the kind that decides what happens next, and a sentence what to do.

Codes are those of Amazon's S3 API reference, and what MinIO, R2, B2's S3 side and SeaweedFS answer instead. A HEAD has
no body, so only its status is known.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from botocore import exceptions as aws

from supervisor.storage.base import Kind, StoreError
from supervisor.storage.keys import MAKE_AN_S3_KEY

CATCH = (aws.BotoCoreError, aws.ClientError, OSError)


class ForeignAnswerError(aws.BotoCoreError):  # type: ignore[misc]
    """An answer came that is not the service's own. As a page of a proxy it says nothing of keys and objects."""

    fmt = (
        "a {status} came that is not the service's own (is there a proxy on the way, or is store.endpoint another "
        "server's?)"
    )


_WRONG_KEY = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationQueryParametersError", "401"})
_EXPIRED = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "NotSignedUp", "403", "Forbidden"})
_NO_BUCKET = frozenset({"NoSuchBucket", "InvalidBucketName"})
_GONE = frozenset({"NoSuchKey", "NoSuchVersion", "NoSuchUpload", "404", "MethodNotAllowed"})
_REGION = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException", "301"})
_QUOTA = frozenset({"QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull", "StorageFull", "507"})
_QUOTA_WORDS = ("storage cap", "transaction cap", "download cap", "cap exceeded", "quota exceeded")
_OTHER_VERSION = frozenset({"PreconditionFailed", "412"})
_SLOWER = frozenset({"SlowDown", "TooManyRequests", "RequestLimitExceeded", "Throttling", "ThrottlingException", "429"})
_NEVER = frozenset({"EntityTooLarge", "EntityTooSmall", "InvalidArgument", "InvalidRequest", "KeyTooLongError"})
UNSUPPORTED = frozenset({"NotImplemented", "501", "InvalidArgument", "InvalidRequest", "UnsupportedArgument", "400"})
"""What services answer to a header or an operation that they do not have."""
BROKEN_ON_THE_WAY = frozenset({"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})


def code_of(error: BaseException | None) -> str:
    """The service's error code, or its HTTP status as text; "" when there was no answer."""
    if not isinstance(error, aws.ClientError):
        return ""
    code = str(error.response.get("Error", {}).get("Code") or "")
    return code or str(_answer_of(error).get("HTTPStatusCode", ""))


def status_of(error: BaseException | None) -> int:
    """The HTTP status, or 0 when there was no answer."""
    return int(_answer_of(error).get("HTTPStatusCode") or 0) if isinstance(error, aws.ClientError) else 0


def explain(error: Exception, tried: str, bucket: str, key_id: str) -> StoreError:
    """Turn an error of botocore or the network into ours.

    ``tried`` completes "could not ..."; of the key id only the last four characters are shown.
    """
    could_not = f"could not {tried}"
    if not isinstance(error, aws.ClientError):
        return _without_answer(error, could_not)
    code, status, text = code_of(error), status_of(error), _text_of_error(error)
    key = f"access key ...{key_id[-4:]}"

    def say(kind: Kind, sentence: str) -> StoreError:
        return StoreError(kind, f"{could_not}: {sentence}", _retry_after(error))

    if code in _QUOTA or status == 507 or any(word in text.lower() for word in _QUOTA_WORDS):
        return say("quota", f"the store is full ({text}). Raise its quota, or keep fewer steps (store.keep_last)")
    if code in _EXPIRED:
        return say(
            "permanent",
            f"the session token of the {key} has expired or is not valid ({text}). Set a fresh AWS_ACCESS_KEY_ID, "
            f"AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or a key that does not expire",
        )
    if code == "RequestTimeTooSkewed":
        return say("permanent", f"this machine's clock is wrong ({text}). Set it (ntp, chrony)")
    if code in _WRONG_KEY:
        return say("permanent", f"the service refuses the {key} ({text}). {MAKE_AN_S3_KEY}")
    if code in _NO_BUCKET:
        return say(
            "permanent",
            f"the bucket {bucket} does not exist there. Make the bucket, or correct store.url or store.endpoint",
        )
    if code in _REGION:
        return say("permanent", f"the bucket {bucket} is in another region ({text}). Set store.region")
    if code in _GONE:
        return say("missing", f"there is no such object in the bucket {bucket}")
    if code in _OTHER_VERSION:
        return say("missing", "it is no longer the version that is asked for")
    if code == "InvalidRange" or status == 416:
        return say("damaged", "it is shorter than it was when it was stored")
    if code in _DENIED or status in (401, 403):
        return say("permanent", f"the {key} may not do that ({text}). {MAKE_AN_S3_KEY}")
    if code in _SLOWER:
        return say("transient", f"the service asks for fewer requests ({text})")
    if code in BROKEN_ON_THE_WAY:
        return say("transient", f"the bytes did not arrive as they were sent ({text})")
    if code in _NEVER or status == 501:
        return say("permanent", f"the service does not take that request ({text})")
    return say("transient", text)


def _without_answer(error: Exception, could_not: str) -> StoreError:
    if isinstance(error, (aws.EndpointConnectionError, aws.ConnectTimeoutError, aws.ProxyConnectionError)):
        where = urlsplit(str(error.kwargs.get("endpoint_url") or "")).netloc
        return StoreError("transient", f"{could_not}: no connection{f' to {where}' if where else ''}")
    if isinstance(error, aws.SSLError):
        return StoreError("transient", f"{could_not}: the TLS connection failed ({_shorten_message(error)})")
    if isinstance(error, ForeignAnswerError):
        return StoreError("transient", f"{could_not}: {error}")
    if isinstance(error, (aws.HTTPClientError, aws.IncompleteReadError, OSError)):
        return StoreError("transient", f"{could_not}: the connection broke ({_shorten_message(error)})")
    return StoreError("permanent", f"{could_not}: {_shorten_message(error)}")


def _answer_of(error: aws.ClientError) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    return answer


def _retry_after(error: aws.ClientError) -> float | None:
    value = str(_answer_of(error).get("HTTPHeaders", {}).get("retry-after", ""))
    return float(value) if value.isdigit() else None


def _text_of_error(error: aws.ClientError) -> str:
    """The service's own words, shortened: "SlowDown: Please reduce your request rate"."""
    told = error.response.get("Error", {})
    code, message = code_of(error), " ".join(str(told.get("Message") or "").split())
    text = f"{code}: {message}" if message and message != code else code
    return textwrap.shorten(text, 200, placeholder=" ...") or f"status {status_of(error)}"


def _shorten_message(error: Exception) -> str:
    return textwrap.shorten(str(error), 200, placeholder=" ...") or type(error).__name__
