"""Processes of ours beside the daemon: the page of the run, the way to a collector. Each is gone with the daemon."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.base import secrets
from supervisor.base.logs import say
from supervisor.config.settings import RunFile
from supervisor.effects.notify_targets import PASSED

AGAIN_S = 60.0
CLOSE_S = 2.0
SHOWN = 300
HEADERS = [f"OTEL_EXPORTER_OTLP_{part}HEADERS" for part in ("", "METRICS_", "TRACES_")]


class SideChild:
    """One of them, started again when it ends. What it prints goes to ``log``, which its owner alone may read."""

    def __init__(self, name: str, words: Sequence[str], log: Path, environ: Mapping[str, str], *, tells: bool) -> None:
        """``words``: of our interpreter. ``tells``: each line that it prints is a sentence for people."""
        self._name, self._log, self._tells = name, log, tells
        self._command, self._environ = [sys.executable, *words], environ
        self._child: subprocess.Popen[bytes] | None = None
        self._tried_at = -AGAIN_S
        self._told = ""

    def tend(self) -> None:
        """Start it where it does not run. Call it every few seconds."""
        child = self._child
        if child is not None and child.poll() is not None:
            self._child = None
            why = self._last_words() or f"exit code {child.returncode}."
            self._tell(f"{self._name} ended: {why} It is tried again every {AGAIN_S:.0f} s.")
        elif child is not None and self._tells:
            self._tell(self._last_words())
        if self._child is None and time.monotonic() - self._tried_at >= AGAIN_S:
            self._tried_at = time.monotonic()
            try:
                with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
                    # It ends when its standard input does: with this process, also where that is killed or exec'd.
                    self._child = subprocess.Popen(
                        self._command, env=self._environ, stdin=subprocess.PIPE, stdout=log, stderr=log
                    )
            except OSError as error:
                self._tell(f"{self._name} could not be started: {error.strerror}. It is tried again.")

    def close(self) -> None:
        """End it."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(CLOSE_S)

    def _last_words(self) -> str:
        try:
            return self._log.read_text(errors="replace").strip().rpartition("\n")[2][:SHOWN]
        except OSError:
            return ""

    def _tell(self, sentence: str) -> None:
        if sentence and sentence != self._told:
            self._told = sentence
            say("warning", "beside", sentence)


def side_children(path: Path, run_file: RunFile) -> list[SideChild]:
    """Those that the run file and the environment ask for."""
    found, state_dir = [], run_file.state_dir
    if listen := run_file.web.listen:
        words = ["-m", "supervisor.cli.main", "web", str(path), "--listen", listen]
        environ = {**os.environ, "RL_SUPERVISOR_PAGE_OF_DAEMON": "1"}
        found.append(SideChild("The page of the run", words, state_dir / "page.log", environ, tells=False))
    names = [name for name in os.environ if name.startswith("OTEL_")]
    if any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in names):
        environ = {name: os.environ[name] for name in (*PASSED, *names) if name in os.environ}
        environ |= {name: value for name in HEADERS if (value := secrets.secret(name))}
        words = ["-m", "supervisor.otel.child", str(run_file.socket), str(state_dir), run_file.run.id]
        found.append(SideChild("The way to the collector", words, state_dir / "otel.log", environ, tells=True))
    return found
