"""Beside the daemon: asks it for its status as any other reader, reads its journal, and sends both to a collector.

A collector that is slow, refuses or is gone costs the daemon nothing: this process alone waits for it. It ends when its
standard input does, and writes nothing but what the daemon shall tell: each line of its output is a sentence.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from supervisor.api.client import Client
from supervisor.api.metrics import list_families
from supervisor.base import secrets
from supervisor.base.errors import SupervisorError
from supervisor.journal.journal import identity_in
from supervisor.otel.trace import is_over, trace_incident
from supervisor.views.incidents import read_incidents

EVERY = "OTEL_METRIC_EXPORT_INTERVAL"  # milliseconds, of OpenTelemetry's own variables; its default is a minute
HEADERS = tuple(f"OTEL_EXPORTER_OTLP_{part}HEADERS" for part in ("", "METRICS_", "TRACES_"))
RECENT_S = 86_400.0  # incidents that were over for so long are not sent again by a child that starts
_AGAIN = "The collector takes what the run tells again."
LAST_S = 1.0  # what the last incident may take when the daemon ends


def main() -> int:
    """``SOCKET STATE_DIR RUN``."""
    socket, state_dir, run = sys.argv[1:]
    os.nice(10)
    for name in HEADERS:
        secrets.remember(*(pair.partition("=")[2] for pair in os.environ.get(name, "").split(",")))
    try:
        from supervisor.otel.send import Sender
    except ImportError:
        print("OpenTelemetry's SDK is not installed: pip install 'rl-supervisor[otel]'.", flush=True)  # noqa: T201
        return 1
    over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    watch = Watch(Client(Path(socket), run=run), Path(state_dir), run, Sender(run))
    interval_s = _interval_s()
    while True:
        watch.send_news()
        if over.wait(interval_s):
            watch.send_incidents()
            return 0


def _interval_s() -> float:
    text = os.environ.get(EVERY, "")
    return max(1.0, int(text) / 1000) if text.isascii() and text.isdigit() else 60.0


def _wait_for_end(over: threading.Event) -> None:
    """Nothing is ever written there; it ends when the daemon does, however that happens."""
    sys.stdin.buffer.read()
    over.set()
    time.sleep(LAST_S)
    os._exit(0)


class Watch:
    """One run. What the collector took is known here alone: a child that starts sends the last day again."""

    def __init__(self, client: Client, state_dir: Path, run: str, sender: Any) -> None:
        """``sender``: a ``supervisor.otel.send.Sender``."""
        self._client, self._state_dir, self._run, self._sender = client, state_dir, run, sender
        self._sent: set[int] = set()
        self._seen: object = None  # what the status said of incidents when the journal was read last
        self._why = ""

    def send_news(self) -> None:
        """The metrics of now, and incidents that are over."""
        try:
            status = self._client.get("/v1/status")
        except SupervisorError:
            return  # it is not up yet, or ends
        now = time.time()
        why = self._sender.send_metrics(list_families(status), began=now - (status.get("uptime_s") or 0.0), now=now)
        known = [(status.get(name) or {}).get("id") for name in ("incident", "last_incident")] + [status.get("state")]
        if not why and known != self._seen:
            why = self.send_incidents()
            self._seen = None if why else known
        self._tell_change(why)

    def send_incidents(self) -> str:
        """Those that are over and were not sent. Returns why the collector did not take them."""
        why = ""
        with contextlib.suppress(SupervisorError):
            journal = identity_in(self._state_dir) or ""
            for one in read_incidents(self._state_dir):
                old = one["closed"] is not None and time.time() - one["closed"] > RECENT_S
                if one["id"] in self._sent or old:
                    continue
                incident = read_incidents(self._state_dir, one["id"])[0]
                if not is_over(incident):
                    continue
                why = str(self._sender.send_spans(trace_incident(self._run, journal, incident)))
                if why:
                    return why
                self._sent.add(one["id"])
        return why

    def _tell_change(self, why: str) -> None:
        if why != self._why:
            told = f"The collector does not take what the run tells: {why}. It is tried again." if why else _AGAIN
            print(secrets.mask_secrets(told), flush=True)  # noqa: T201
        self._why = why


if __name__ == "__main__":
    sys.exit(main())
