"""A W&B server on loopback, as far as W&B's own client asks it: runs of one project, kept in memory."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "0123456789abcdef0123456789abcdef01234567"
PROJECT = {"id": "p", "name": "proj", "entity": {"id": "e", "name": "lab"}}
VIEWER = {"id": "u", "entity": "lab", "username": "u", "email": "u@lab", "flags": "{}", "teams": {"edges": []}}


class Server(ThreadingHTTPServer):
    """``runs`` by id, as the API shows them; ``upserts`` and ``streams`` are what clients sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, dict[str, Any]] = {}
        self.upserts: list[dict[str, Any]] = []
        self.streams: list[tuple[str, dict[str, Any]]] = []
        self.hangs = threading.Event()
        self.refuses_keys = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def environ(self, home: Path) -> dict[str, str]:
        """Variables of a process that speaks to this server and to no other."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(home), "WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def add_run(self, name: str, **more: Any) -> None:
        none = dict.fromkeys(("sweepName", "group", "jobType", "commit", "notes"))
        texts = {"config": "{}", "systemMetrics": "{}", "summaryMetrics": "{}", "description": "", "displayName": name}
        what = {"id": "b", "name": name, "tags": [], "state": "running", "readOnly": False, "project": PROJECT}
        when = {"createdAt": "2026-11-24T01:00:00Z", "heartbeatAt": "2026-11-24T04:00:00Z"}
        counts = {"historyLineCount": 0, "projectId": 1, "historyKeys": {"step": 1}, "user": {"name": "u"}}
        self.runs[name] = {**none, **texts, **what, **when, **counts, **more}

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/file_stream"):
            name = path.split("/")[-2]
            files = body.get("files") or {}
            self.streams.append((name, files))
            if history := files.get("wandb-history.jsonl"):
                self.runs[name]["historyLineCount"] = history["offset"] + len(history["content"])
            return {}
        if path != "/graphql":
            return {}
        asked, given = body.get("query", ""), body.get("variables") or {}
        name = given.get("name")
        if "upsertBucket" in asked:
            self.upserts.append(given)
            inserted = name not in self.runs
            if inserted:
                self.add_run(name)
            return {"upsertBucket": {"bucket": self.runs[name], "inserted": inserted}}
        if "createRunFiles" in asked:
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}
        if "RunResumeStatus" in asked:
            lines = {"logLineCount": 0, "eventsLineCount": 0, "historyTail": "[]", "eventsTail": "[]"}
            return {"model": {"bucket": {**self.runs[name], **lines} if name in self.runs else None}}
        if "run(name" in asked:
            return {"project": {"internalId": "1", "run": self.runs.get(name)}}
        return {"viewer": None if self.refuses_keys else VIEWER}


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.hangs.is_set():
            threading.Event().wait(300)
        body = json.loads(data) if data.startswith(b"{") else {}
        if self.server.refuses_keys and "upsertBucket" in body.get("query", ""):
            self.send_error(401)
            return
        answer = json.dumps({"data": self.server.answer(self.path, body)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not news."""


@contextmanager
def serving() -> Iterator[Server]:
    """A server until the end."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
