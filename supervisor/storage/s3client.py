"""One bucket of an S3 service over botocore: the connection, our own patience, and errors in our words.

botocore's retries are off (they would multiply ours, and read a part again without telling), and so are the checksums
that it adds by itself: we send the ones that we have anyway, and B2 refuses botocore's (400, "Unsupported header").
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config

from supervisor import __version__
from supervisor.base.retry import Retry
from supervisor.storage import s3errors
from supervisor.storage.base import StoreError

CONNECT_TIMEOUT_S = 20
READ_TIMEOUT_S = 60
_REGION_IN_HOST = re.compile(r"(?:^|\.)s3[.-](?:dualstack\.)?([a-z]{2,}(?:-[a-z]+)*-\d+)\.")
_ROOT = re.compile(rb"<(?:\w+:)?(\w+)")  # of an XML, behind its declaration
_HAS_ETAG = ("GetObject", "HeadObject", "PutObject", "UploadPart")
_FINAL = (301, 401, 403, 404, 507)


def region_of(endpoint: str | None, region: str | None, environ_region: str | None) -> str:
    """The region to sign for: what was set, else what the endpoint's name says, else what most services ignore."""
    if region or environ_region:
        return region or environ_region or ""
    host = urlsplit(endpoint or "").hostname or ""
    named = _REGION_IN_HOST.search(host)
    if named:
        return named[1]
    return "auto" if host.endswith(".r2.cloudflarestorage.com") else "us-east-1"


class S3Client:
    """Requests about one bucket. Safe to use from several threads."""

    def __init__(
        self,
        *,
        bucket: str,
        endpoint: str | None,
        region: str,
        key_id: str,
        secret: str,
        token: str | None,
        streams: int,
        retry: Retry,
    ) -> None:
        self.bucket = bucket
        self.key_id = key_id
        self.retry = retry
        session = botocore.session.Session()
        session.set_config_variable("config_file", os.devnull)  # a person's ~/.aws is about other things than this run
        session.set_config_variable("credentials_file", os.devnull)
        config = Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=streams + 4,
            tcp_keepalive=True,
            user_agent_extra=f"rl-supervisor/{__version__}",
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={
                # The bucket in the host's name needs a wildcard certificate and DNS, which only the big services have.
                "addressing_style": "path" if endpoint else "auto",
                # Every body carries a hash of its own; signing another one would read each part twice.
                "payload_signing_enabled": False,
            },
        )
        try:
            self._client: Any = session.create_client(
                "s3",
                region_name=region,
                endpoint_url=endpoint,
                aws_access_key_id=key_id,
                aws_secret_access_key=secret,
                aws_session_token=token,
                config=config,
            )
        except (*s3errors.CATCH, ValueError) as error:
            raise StoreError(
                "permanent", f"the S3 service {endpoint or 'of Amazon'} cannot be used: {error}. Correct store.endpoint"
            ) from error
        self._client.meta.events.register("before-parse.s3", _refuse_foreign_answer)

    def call(self, tried: str, operation: str, **asked: Any) -> dict[str, Any]:
        """One request, with patience. ``operation`` in botocore's spelling; raises StoreError, caused by botocore's."""
        return self.retry.call(lambda: self.once(tried, operation, **asked))

    def once(self, tried: str, operation: str, **asked: Any) -> dict[str, Any]:
        """One request, tried once."""
        with self.explain_errors(tried):
            answer: dict[str, Any] = getattr(self._client, operation)(Bucket=self.bucket, **asked)
            return answer

    @contextlib.contextmanager
    def explain_errors(self, tried: str) -> Iterator[None]:
        try:
            yield
        except s3errors.CATCH as error:
            raise s3errors.explain(error, tried, self.bucket, self.key_id) from error


def _refuse_foreign_answer(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
    """botocore takes any XML for the answer that it asked for, so that a page would be an empty listing.

    Looked for is what every service sends: the ETag of an object, else a root that ends as Amazon's do (rclone's whole
    name for ListVersionsResult is ListBucketVersionsResult, and its uploads begin with InitiateMultipartUpload). Of
    errors only those are looked at that say something of the bucket, the key or the room.
    """
    method, status = operation_model.http["method"], response_dict["status_code"]
    if status < 300 and operation_model.name in _HAS_ETAG:
        own = "ETag" in response_dict["headers"]
    elif method == "HEAD" or (method == "DELETE" and status < 300) or (status >= 300 and status not in _FINAL):
        return  # these have no body, or any
    else:
        root = _ROOT.search(response_dict["body"])
        own = root is not None and root[1].endswith((b"Result", b"Configuration", b"Upload", b"Error"))
    if not own:
        raise s3errors.ForeignAnswerError(status=status)


def is_unsupported(error: StoreError) -> bool:
    """Does the service not know that operation or header? (A bad name or key is answered with other codes.)"""
    cause = error.__cause__
    return s3errors.code_of(cause) in s3errors.UNSUPPORTED or s3errors.status_of(cause) == 501


def is_denied(error: StoreError) -> bool:
    """May the key not do that? (A wrong key is another matter.)"""
    return s3errors.code_of(error.__cause__) == "AccessDenied"
