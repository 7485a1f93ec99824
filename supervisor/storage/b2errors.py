"""What b2sdk's errors mean for us: the kind that decides what happens next, and a sentence that says what to do.

The classes are b2sdk 2.13.1's (``b2sdk.v3.exception``). Texts of the SDK are quoted only where they hold no token.
"""

from __future__ import annotations

import json
import re
import textwrap

import requests
import urllib3
from b2sdk.v3 import exception as b2

from supervisor.storage.base import Kind, StoreError
from supervisor.storage.keys import MAKE_A_KEY

NETWORK_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)
CATCH = (b2.B2Error, *NETWORK_ERRORS, AssertionError, ValueError)
"""``interpret_b2_error`` asserts what the texts of two codes look like (auth_token_limit, source_too_large).

b2sdk hands a server's Retry-After to ``time.sleep`` unread, which refuses a negative one with ValueError.
"""

EXPIRED = "expired_auth_token"
NO_JSON = "non_json_response"
"""b2sdk's code of an error without B2's JSON: the page of something between us and B2 (2.13.1, ``b2http.py``)."""
NOT_ITS_OWN = "an answer came that is not B2's own (is there a proxy on the way, or is store.realm another server's?)"
_KEY_REFUSED = (b2.InvalidAuthToken, b2.Unauthorized, b2.CapabilityNotAllowed, b2.AccessDenied)
_ACCOUNT = (b2.NoPaymentHistory, b2.EmailNotVerified)
_ERRNO = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
_HOST = re.compile(r"host='([^']+)', port=(\d+)")
_QUOTA_WORDS = ("cap_exceeded", "storage cap", "transaction cap")


def explain(error: Exception, tried: str, bucket: str, key_id: str) -> StoreError:
    """Turn an error of b2sdk, requests or the network into ours.

    ``tried`` completes "could not ..."; of the key id only the last four characters are shown.
    """
    error = _innermost_error(error)
    retry_after = getattr(error, "retry_after_seconds", None)
    could_not = f"could not {tried}"
    key = f"application key ...{key_id[-4:]}"

    def say(kind: Kind, sentence: str) -> StoreError:
        return StoreError(kind, sentence, float(retry_after) if retry_after else None)

    if isinstance(error, (b2.StorageCapExceeded, b2.TransactionCapExceeded)) or _is_cap(error):
        return say(
            "quota",
            f"{could_not}: B2 says that a cap of the account is reached ({_text_of_error(error)}). Raise it in B2's "
            f"Caps & Alerts, or keep fewer steps (store.keep_last)",
        )
    if _is_anothers(error):
        return say("transient", f"{could_not}: {NOT_ITS_OWN}")
    if isinstance(error, (b2.RestrictedBucket, b2.BucketNotAllowed)):
        return say(
            "permanent",
            f"{could_not}: the {key} is limited to another bucket than {bucket}. Correct store.url, or: {MAKE_A_KEY}",
        )
    if isinstance(error, (b2.NonExistentBucket, b2.BucketIdNotFound)):
        return say(
            "permanent",
            f"{could_not}: the bucket {bucket} does not exist in the account of the {key}. Make the bucket, or correct "
            f"store.url",
        )
    if isinstance(error, b2.InvalidAuthToken) and error.code == EXPIRED:
        # b2sdk signs in anew once and then gives up; with a key that B2 refuses, that sign-in would have failed
        return say("transient", f"{could_not}: B2 says of an authorization just given that it has expired")
    if isinstance(error, _KEY_REFUSED):
        return say("permanent", f"{could_not}: B2 refuses the {key} ({_text_of_error(error)}). {MAKE_A_KEY}")
    if isinstance(error, _ACCOUNT):
        return say("permanent", f"{could_not}: B2 wants something done for the account first ({_text_of_error(error)})")
    if isinstance(error, b2.PotentialS3EndpointPassedAsRealm):
        return say("permanent", f"{could_not}: store.realm names an S3 endpoint; B2's own API has the realm production")
    if isinstance(error, b2.FileNotPresent):
        return say("missing", f"{could_not}: there is no such file in the bucket {bucket}")
    if isinstance(error, b2.UnsatisfiableRange):
        return say("damaged", f"{could_not}: the file in the bucket {bucket} ends before the bytes that were expected")
    if isinstance(error, b2.UnusableFileName):
        return say("permanent", f"{could_not}: B2 does not take that name ({_text_of_error(error)})")
    if isinstance(error, b2.TooManyRequests):
        return say("transient", f"{could_not}: B2 asks for fewer requests (429)")
    return say("transient", f"{could_not}: {_text_of_error(error)}")


def _innermost_error(error: Exception) -> Exception:
    """b2sdk wraps what happened on the last of its own tries."""
    while isinstance(error, b2.MaxRetriesExceeded) and error.exception_info_list:
        error = error.exception_info_list[-1]
    return error


def _is_anothers(error: Exception) -> bool:
    """Is it no answer of B2's? A page with a 5xx may be that of B2's own gateways, and tells its status."""
    if type(error).__name__ == "ResourceNotFound":  # which v3 does not export
        return True  # of a file that it lacks B2 says not_found; no other 404 is its own
    if isinstance(error, b2.Unauthorized) and error.code is None:
        return True  # B2 gives each of its refusals a code
    page = NO_JSON in str(error) and not isinstance(error, b2.ServiceError)
    return page or isinstance(error, json.JSONDecodeError)


def _is_cap(error: Exception) -> bool:
    """Caps that b2sdk has no class for arrive as UnknownError("403 download_cap_exceeded ...")."""
    text = str(error)
    return isinstance(error, b2.UnknownError) and text.find("403") >= 0 and any(word in text for word in _QUOTA_WORDS)


def _text_of_error(error: Exception) -> str:
    """The error's own words, shortened; none where they would quote a token."""
    text = " ".join(str(error).split())
    if "auth token" in text and "upload" in text:
        return "an upload URL was used twice at a time"
    reason, host = _ERRNO.search(text), _HOST.search(text)
    if reason:
        return f"no connection{f' to {host[1]}:{host[2]}' if host else ''} ({reason[1]})"
    return textwrap.shorten(text, 200, placeholder=" ...") or type(error).__name__
