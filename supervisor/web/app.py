"""The page's own small web program. It answers GET alone, and shows runs only to those who have its token.

On loopback no token is asked for. Elsewhere the first link carries it (``?t=``), and a cookie keeps it.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.base.errors import SupervisorError
from supervisor.base.escapes import plain
from supervisor.web.fleet_page import lines_of_fleet, page_of_fleet
from supervisor.web.fleet_source import FleetSource
from supervisor.web.history import Piece
from supervisor.web.page import curves_of_run, line_of_run, tell_of_run
from supervisor.web.sources import RunSource, Seen

STATIC = Path(__file__).parent / "static"
COOKIE = "rl-supervisor-token"
FILES = {
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "fleet.js": "text/javascript; charset=utf-8",
    "plotly.js": "text/javascript; charset=utf-8",
}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    # plotly writes its styles into elements of the page; scripts come from here alone.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class _Told:
    """JSON as it is sent. ``sign`` is of all but the time."""

    packed: bytes
    sign: str

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> _Told:
        sign = hashlib.sha1(to_json({**told, "at": 0})).hexdigest()  # noqa: S324 (tells versions apart)
        return cls(gzip.compress(to_json(told), 4, mtime=0), sign)


class _Shown:
    """A run as it is sent: made once for all who look, however many do."""

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._making = threading.Lock()
        self._seen: Seen | None = None
        self._told, self._curves = _Told(b"", ""), _Told(b"", "")
        self._drawn: Sequence[Piece] | None = None

    def tell(self) -> _Told:
        with self._making:
            if (seen := self._source.look()) is not self._seen:
                self._told, self._seen = _Told.of(tell_of_run(seen, self._source.price)), seen
            return self._told

    def draw(self) -> _Told:
        with self._making:
            seen = self._source.look()
            if self._drawn is None or [*seen.pieces] != self._drawn:  # a piece is equal to itself alone
                self._curves, self._drawn = _Told.of(curves_of_run(seen)), [*seen.pieces]
            return self._curves


def make_app(sources: Mapping[str, RunSource], token: str | None, fleet: FleetSource | None = None) -> ASGIApp:
    """``token`` None: all who can connect may look. ``fleet``: to which the runs belong."""

    shown = {run: _Shown(source) for run, source in sources.items()}

    async def page(request: Request) -> Response:
        return _pack(request, (STATIC / "page.html").read_bytes(), "text/html; charset=utf-8")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return PlainTextResponse("There is no such file.", 404)
        headers = {"cache-control": "max-age=86400"} if name == "plotly.js" else {}
        return _pack(request, None, FILES[name], headers, packed=await run_in_threadpool(_packed_file, name))

    async def runs(request: Request) -> Response:
        if fleet is not None:
            seen = await run_in_threadpool(fleet.look)
            told = {"fleet": seen.file.fleet.name, "runs": lines_of_fleet(seen)}
            return _pack(request, to_json(told), "application/json")
        lines = await run_in_threadpool(lambda: [line_of_run(one.look(0.0)) for one in sources.values()])
        return _pack(request, to_json({"runs": lines}), "application/json")

    async def of_fleet(request: Request) -> Response:
        if fleet is None:
            return PlainTextResponse("There is no fleet here.", 404)
        return _answer_page(request, _Told.of(page_of_fleet(await run_in_threadpool(fleet.look))))

    async def data(request: Request) -> Response:
        run = shown.get(request.query_params.get("run", ""))
        if run is None:
            return PlainTextResponse("There is no such run.", 404)
        told = run.draw if request.url.path == "/charts.json" else run.tell
        return _answer_page(request, await run_in_threadpool(told))

    async def log(request: Request) -> Response:
        source = sources.get(request.query_params.get("run", ""))
        if source is None:
            return PlainTextResponse("There is no such run.", 404)
        try:
            text = await run_in_threadpool(source.read_log, request.query_params.get("name", ""))
        except (SupervisorError, ValueError) as error:
            return PlainTextResponse(f"This log cannot be read: {error}", 404)
        return _pack(request, plain(text).encode(), "text/plain; charset=utf-8")

    routes = [
        Route("/", page),
        Route("/runs.json", runs),
        Route("/run.json", data),
        Route("/charts.json", data),
        Route("/fleet.json", of_fleet),
        Route("/log.txt", log),
        Route("/static/{name}", file),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, token=token)])


class _Guard:
    """GET alone, the token, and the same headers on every answer."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token
        # Cookies know no ports: a second page of this host with another token has another one.
        self._cookie = f"{COOKIE}-{hashlib.sha256((token or '').encode()).hexdigest()[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = Headers(raw=message["headers"])
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name not in there]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        answer = self._refuse(Request(scope))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("This page only shows. Orders are given with supervisorctl.", 405)
        if self._token is None:
            if request.url.hostname in LOOPBACK:
                return None
            return PlainTextResponse(f"This page is for {', '.join(LOOPBACK)}.", 403)  # or any site could point here
        given = request.query_params.get("t")
        if given is not None and _same(given, self._token):
            answer = RedirectResponse(request.url.remove_query_params("t").replace(scheme="", netloc="", path="."), 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", max_age=30 * 86400)
            return answer
        if _same(request.cookies.get(self._cookie, ""), self._token):
            return None
        return PlainTextResponse("This page asks for its token: open the link that `rl-supervisor web` printed.", 403)


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _read_file(name: str) -> bytes:
    if name == "plotly.js":  # as the library's wheel brings it; the library itself is not imported
        library = find_spec("plotly")  # where a virtual environment, --user or a distribution put it
        return Path(str(library and library.origin)).with_name("package_data").joinpath("plotly.min.js").read_bytes()
    return (STATIC / name).read_bytes()


@cache
def _packed_file(name: str) -> bytes:
    return gzip.compress(_read_file(name), 9, mtime=0)


def pack_library() -> None:
    """Half a second of work that the first viewer shall not wait for."""
    _packed_file("plotly.js")


def to_json(value: Any) -> bytes:
    """As browsers take it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def freeze_page(told: Mapping[str, Any]) -> str:
    """One file with all that the page needs: it opens from a disk, without a network."""
    style, script, library = (_read_file(name).decode() for name in ("page.css", "page.js", "plotly.js"))
    data = to_json(told).decode().replace("<", "\\u003c")  # no text of a run ends the element it stands in
    page = (STATIC / "page.html").read_text()
    page = page.replace('<link rel="stylesheet" href="static/page.css">', f"<style>{style}</style>")
    page = page.replace('<script src="static/page.js" defer></script>\n', "")
    inline = (
        f'<script type="application/json" id="data">{data}</script><script>{library}</script><script>{script}</script>'
    )
    return page.replace("</body>", f"{inline}\n</body>")


def _answer_page(request: Request, told: _Told) -> Response:
    """What did not change, but for the time, is not sent again."""
    if request.headers.get("if-none-match") == told.sign:
        return Response(status_code=304)
    return _pack(request, None, "application/json", {"etag": told.sign}, packed=told.packed)


def _pack(
    request: Request,
    body: bytes | None,
    kind: str,
    headers: Mapping[str, str] | None = None,
    *,
    packed: bytes | None = None,
) -> Response:
    """``body`` or ``packed`` may be left out."""
    more = {"vary": "accept-encoding", **(headers or {})}
    if "gzip" in request.headers.get("accept-encoding", "") and (packed or len(body or b"") > 1000):
        body, more["content-encoding"] = packed or gzip.compress(body or b"", 4, mtime=0), "gzip"
    elif body is None:
        body = gzip.decompress(packed or b"")
    return Response(body, media_type=kind, headers=more)
