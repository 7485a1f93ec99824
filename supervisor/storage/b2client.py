"""One bucket of B2 over b2sdk: the sign-in, what the key may, its requests, and their errors in our words.

A request is a method of ``session``, called within ``explain_errors`` (or ``explain_send_errors``, when it has a body).
What moves bodies is also given ``retry``, since b2sdk's own patience is not enough there (see ``base/retry.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import requests
from b2sdk.v3 import B2Api, B2HttpApiConfig, InMemoryAccountInfo
from b2sdk.v3 import exception as b2
from requests.adapters import HTTPAdapter

from supervisor import __version__
from supervisor.base.retry import Retry
from supervisor.storage import b2errors, hashing
from supervisor.storage.b2http import ANSWER_S, CONNECT_S, PartApi, Transport
from supervisor.storage.base import StoredFile, StoreError
from supervisor.storage.keys import MAKE_A_KEY
from supervisor.storage.limit import Throttle
from supervisor.storage.names import name_problem
from supervisor.storage.source import SourceRange


class B2Client:
    """Requests about the names of one bucket below ``prefix`` (empty, or ending in '/'). Signs in at once.

    Safe to use from several threads.
    """

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str,
        key_id: str,
        key: str,
        realm: str | None,
        streams: int,
        retry: Retry,
        limit_bytes_per_s: float | None = None,
    ) -> None:
        self.url = f"b2://{bucket}/{prefix}".rstrip("/")
        self.bucket = bucket
        self.prefix = prefix
        self.key_id = key_id
        self.retry = retry
        info = InMemoryAccountInfo()
        config = B2HttpApiConfig(
            http_session_factory=lambda: _open_session(streams),
            user_agent_append=f"rl-supervisor/{__version__}",
            decode_content=True,  # keeps the factory's adapter; nothing is ever compressed (Accept-Encoding)
            install_clock_skew_hook=False,  # B2 does not mind, we compare no clocks, and a container cannot set its own
            _raw_api_class=PartApi,
        )
        self.api = B2Api(info, api_config=config)
        self._session = _Renewing(self.api.session, retry)
        raw_api: PartApi = self.session.raw_api
        raw_api.transport = Transport(raw_api.b2_http.user_agent, Throttle(limit_bytes_per_s))
        with self.explain_errors(f"sign in to B2 for the bucket {bucket}"):
            self.api.authorize_account(key_id, key, realm=realm or "production")
            self.bucket_id: str = retry_when_expired(retry, self.api.get_bucket_by_name)(bucket).id_
        allowed = info.get_allowed()
        self.capabilities = frozenset(allowed["capabilities"])
        self._key_prefix: str = allowed["namePrefix"] or ""
        self.least_part_bytes = int(info.get_absolute_minimum_part_size())
        self.recommended_part_bytes = int(info.get_recommended_part_size())

    @property
    def session(self) -> Any:
        """b2sdk's session. Its requests without a body are made again when B2 says that their token has expired."""
        return self._session

    def reach(self, name: str, capability: str, verb: str, *, folder: bool = False) -> str:
        """The name in the bucket, when the key may ``verb`` it; else one sentence, before any request is made."""
        plain = name.removesuffix("/") if folder else name
        problem = None if folder and not plain else name_problem(plain)
        if problem:
            raise StoreError("permanent", f"{name!r} cannot be a name in {self.url}: {problem}")
        if capability not in self.capabilities:
            raise StoreError(
                "permanent",
                f"could not {verb} {self.url}/{name}: the application key ...{self.key_id[-4:]} lacks the capability "
                f"{capability}. {MAKE_A_KEY}",
            )
        full = self.prefix + name
        if not full.startswith(self._key_prefix):
            raise StoreError(
                "permanent",
                f"could not {verb} {self.url}/{name}: the application key ...{self.key_id[-4:]} only reaches names "
                f"that start with {self._key_prefix!r}. Correct store.url or run.id, or: {MAKE_A_KEY}",
            )
        return full

    @contextlib.contextmanager
    def explain_errors(self, tried: str) -> Iterator[None]:
        try:
            yield
        except b2errors.CATCH as error:
            raise b2errors.explain(error, tried, self.bucket, self.key_id) from error

    @contextlib.contextmanager
    def explain_send_errors(self, name: str, stream: Any, file_id: str | None = None) -> Iterator[None]:
        """As ``explain_errors``; when B2 denies a part's SHA-1, tells a changed file from bytes that broke on the way.

        A refused token is an upload URL's, since the key itself was accepted at sign-in: all that wait are thrown away.
        """
        try:
            with self.explain_errors(f"send {self.url}/{name}"):
                yield
        except StoreError as error:
            if isinstance(stream, SourceRange) and stream.failure is not None:
                raise stream.failure from None  # b2sdk makes an unknown error of what the stream raised
            if isinstance(stream, SourceRange) and isinstance(error.__cause__, b2.BadRequest):
                stream.check()
            if isinstance(error.__cause__, b2.InvalidAuthToken):
                if file_id is None:
                    self.api.account_info.clear_bucket_upload_data(self.bucket_id)
                else:
                    self.api.account_info.clear_large_file_upload_urls(file_id)
                void = f"could not send {self.url}/{name}: B2 does not know its own upload URL any more"
                raise StoreError("transient", void) from error.__cause__
            raise

    def file_of_entry(self, entry: Mapping[str, Any]) -> StoredFile:
        name = str(entry["fileName"])
        return StoredFile(
            name=name.removeprefix(self.prefix),
            size=int(entry["contentLength"]),
            file_id=str(entry["fileId"]),
            sha1=plain_sha1(entry.get("contentSha1")),
            uploaded_at=float(entry.get("uploadTimestamp") or 0) / 1000,
        )


def retry_when_expired(retry: Retry, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, made again while B2 says of an authorization just given that it has expired.

    b2sdk signs in anew once for each request (2.13.1, ``B2Session``), and B2's hosts do not always agree on a token at
    once. A key that B2 refuses is another answer: that of the sign-in.
    """

    def call_renewed(*args: Any, **more: Any) -> Any:
        for number in range(1, retry.tries):
            try:
                return call(*args, **more)
            except b2.InvalidAuthToken as error:
                if error.code != b2errors.EXPIRED:
                    raise
                retry.sleep(retry.pause(number))
        return call(*args, **more)

    return call_renewed


class _Renewing:
    """A session of b2sdk: each of its requests goes through ``retry_when_expired``.

    But for those with a body: their token is an upload URL's, and who sends them throws that away and tries again.
    """

    def __init__(self, session: Any, retry: Retry) -> None:
        self._wrapped, self._retry = session, retry

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        plain = not callable(found) or name in ("raw_api", "upload_file", "upload_part")
        return found if plain else retry_when_expired(self._retry, found)


def plain_sha1(value: object) -> str | None:
    """B2 says "none" for a large file, and "unverified:HASH" where the sender did not want the check."""
    text = str(value or "").removeprefix("unverified:")
    return text if len(text) == 40 else None


def _open_session(streams: int) -> requests.Session:
    """A connection for each stream, and reads of 1 MiB: requests' own ten connections would be dropped and remade."""
    session = requests.Session()
    adapter = _WideAdapter(pool_connections=4, pool_maxsize=streams + 4)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    session.headers["Accept-Encoding"] = "identity"
    session.auth = lambda request: request  # else an entry of ~/.netrc takes the place of B2's own Authorization
    return session


class _WideAdapter(HTTPAdapter):
    def send(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> requests.Response:
        """b2sdk waits twenty minutes for any answer, since a copy may take that long: nothing else may."""
        if "/b2_copy_" not in (request.url or ""):
            more["timeout"] = (CONNECT_S, ANSWER_S)
        return super().send(request, *args, **more)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, blocksize=hashing.CHUNK_BYTES, **kwargs)
