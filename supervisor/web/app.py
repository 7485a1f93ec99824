"""The page's own small web program. It answers GET alone, and shows runs only to those who have its token.

On loopback no token is asked for. Elsewhere the first link carries it (``?t=``), and a cookie keeps it.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import sysconfig
from collections.abc import Mapping
from functools import cache
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
from supervisor.web.page import line_of_run, page_of_run
from supervisor.web.sources import RunSource

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


def make_app(sources: Mapping[str, RunSource], token: str | None, fleet: FleetSource | None = None) -> ASGIApp:
    """``token`` None: all who can connect may look. ``fleet``: to which the runs belong."""

    def source_of(request: Request) -> RunSource | None:
        return sources.get(request.query_params.get("run", ""))

    async def page(request: Request) -> Response:
        return _pack(request, (STATIC / "page.html").read_bytes(), "text/html; charset=utf-8")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return PlainTextResponse("There is no such file.", 404)
        headers = {"cache-control": "max-age=86400"} if name == "plotly.js" else {}
        return _pack(request, _read_file(name), FILES[name], headers, packed=_packed_file(name))

    async def runs(request: Request) -> Response:
        if fleet is not None:
            seen = await run_in_threadpool(fleet.look)
            return _pack(request, to_json({"fleet": seen.name, "runs": lines_of_fleet(seen)}), "application/json")
        lines = await run_in_threadpool(lambda: [line_of_run(one.look()) for one in sources.values()])
        return _pack(request, to_json({"runs": lines}), "application/json")

    async def of_fleet(request: Request) -> Response:
        if fleet is None:
            return PlainTextResponse("There is no fleet here.", 404)
        return _answer_page(request, page_of_fleet(await run_in_threadpool(fleet.look)))

    async def data(request: Request) -> Response:
        source = source_of(request)
        if source is None:
            return PlainTextResponse("There is no such run.", 404)
        return _answer_page(request, await run_in_threadpool(lambda: page_of_run(source.look(), source.price)))

    async def log(request: Request) -> Response:
        source = source_of(request)
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
        Route("/fleet.json", of_fleet),
        Route("/log.txt", log),
        Route("/static/{name}", file),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, token=token)])


class _Guard:
    """GET alone, the token, and the same headers on every answer."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

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
            answer = RedirectResponse(request.url.remove_query_params("t").replace(scheme="", netloc=""), 303)
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict", max_age=30 * 86400)
            return answer
        if _same(request.cookies.get(COOKIE, ""), self._token):
            return None
        return PlainTextResponse("This page asks for its token: open the link that `rl-supervisor web` printed.", 403)


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


@cache
def _read_file(name: str) -> bytes:
    if name == "plotly.js":  # as the library's wheel brings it; the library itself is not imported
        return (Path(sysconfig.get_path("purelib")) / "plotly/package_data/plotly.min.js").read_bytes()
    return (STATIC / name).read_bytes()


@cache
def _packed_file(name: str) -> bytes:
    return gzip.compress(_read_file(name), 9, mtime=0)


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


def _answer_page(request: Request, told: Mapping[str, Any]) -> Response:
    """What did not change, but for the time, is not sent again."""
    sign = hashlib.sha1(to_json({**told, "at": 0})).hexdigest()  # noqa: S324 (tells versions apart)
    if request.headers.get("if-none-match") == sign:
        return Response(status_code=304)
    return _pack(request, to_json(told), "application/json", {"etag": sign})


def _pack(
    request: Request,
    body: bytes,
    kind: str,
    headers: Mapping[str, str] | None = None,
    *,
    packed: bytes | None = None,
) -> Response:
    more = {"vary": "accept-encoding", **(headers or {})}
    if len(body) > 1000 and "gzip" in request.headers.get("accept-encoding", ""):
        body, more["content-encoding"] = packed or gzip.compress(body, 4, mtime=0), "gzip"
    return Response(body, media_type=kind, headers=more)
