"""The page of the run beside the daemon: a process of its own, started again when it ends, and gone with the daemon."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from supervisor.base.logs import say

AGAIN_S = 60.0
CLOSE_S = 2.0
SHOWN = 300


class PageChild:
    """``rl-supervisor web`` for one run. Its words, and the link with its token, go to ``STATE/page.log``."""

    def __init__(self, run_file: Path, listen: str, state_dir: Path) -> None:
        self._command = [sys.executable, "-m", "supervisor.cli.main", "web", str(run_file)]
        self._command += ["--listen", listen]
        self._environ = {**os.environ, "RL_SUPERVISOR_PAGE_OF_DAEMON": "1"}
        self._log = state_dir / "page.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._tried_at = -AGAIN_S
        self._told = ""

    def tend(self) -> None:
        """Start it where it does not run. Call it every few seconds."""
        child = self._child
        if child is not None and child.poll() is not None:
            self._child = None
            self._tell(f"The page of the run ended: {self._last_words() or f'exit code {child.returncode}'}")
        if self._child is None and time.monotonic() - self._tried_at >= AGAIN_S:
            self._tried_at = time.monotonic()
            try:
                with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
                    # It ends when its standard input does: with this process, also where that is killed or exec'd.
                    self._child = subprocess.Popen(
                        self._command, env=self._environ, stdin=subprocess.PIPE, stdout=log, stderr=log
                    )
            except OSError as error:
                self._tell(f"The page of the run could not be started: {error.strerror}.")

    def close(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(CLOSE_S)

    def _last_words(self) -> str:
        try:
            return self._log.read_text(errors="replace").strip().rpartition("\n")[2][:SHOWN]
        except OSError:
            return ""

    def _tell(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            say("warning", "page", f"{sentence} It is tried again every {AGAIN_S:.0f} s.")
