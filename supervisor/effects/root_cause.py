"""What an incident's evidence shows as the root cause: ``rl-supervisor diagnose`` as a child, beside the recovery.

Nothing waits for it but the daemon's own end, and that only for a few seconds. A child, because reading logs is heavy
and what a job prints may be anything.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.process.own_child import OwnChild

COMMAND = (sys.executable, "-P", "-m", "supervisor.cli.main", "diagnose", "--json")
LIMIT_S = 60.0
NICE = 10  # the restart of the job is more urgent
LONGEST = 1000  # of the job's own words
MORE_LINES = 2  # of a configuration error: which setting it is about stands there


class RootCause:
    """One look for each bundle. ``expect`` belongs to the loop, the rest to a lane."""

    def __init__(self, post: Callable[[f.Fact], None], environ: Mapping[str, str]) -> None:
        """``environ`` is the daemon's: the child masks the secrets in it."""
        self._post = post
        self._environ = environ
        self._lock = threading.Lock()
        self._asked = 0
        self._closed = False
        self.child: OwnChild | None = None

    @property
    def looks(self) -> bool:
        """Is a look asked for that is not over? Its fact is posted before this turns false."""
        return self._asked > 0

    def expect(self) -> None:
        """A look is asked for; it begins as soon as its evidence is there."""
        with self._lock:
            self._asked += 1

    def look(self, action: a.CollectEvidence, folder: Path | None, log_files: Callable[[], dict[str, Path]]) -> None:
        """Read the bundle in ``folder``, or the logs themselves where none of them could be kept there."""
        try:
            kept = folder is not None and any(folder.glob("*.log"))
            places = [folder] if kept and folder is not None else sorted(set(log_files().values()))
            if places and (root := _parse_root(self._ask_diagnose(places))) is not None:
                self._post(f.RootSeen(action.incident, action.attempt, **root))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            pass  # no room for a child, or none of its answers: a person can still ask `diagnose` by hand
        finally:
            with self._lock:
                self._asked -= 1

    def close(self) -> None:
        """End the look under way, and begin no other."""
        with self._lock:
            self._closed = True
            if self.child is not None:
                self.child.kill()

    def _ask_diagnose(self, places: Sequence[Path]) -> bytes:
        with self._lock:
            if self._closed:
                return b"{}"
            child = self.child = OwnChild([*COMMAND, *map(str, places)], environ=self._environ)
        with child:
            try:
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, child.process.pid, NICE)
                child.wait(time.monotonic() + LIMIT_S)
                return child.answer()
            finally:
                with self._lock:
                    self.child = None
                child.kill()


def _parse_root(said: bytes) -> dict[str, Any] | None:
    """The fields of the fact, of what the child said; None where nothing is named but that something ended."""
    told = json.loads(said or b"{}")
    root = told.get("root")
    if not root or not (told["named"] or root["name"] == "unknown"):
        return None
    text = " / ".join([root["text"], *root["more"][:MORE_LINES]])
    role = next(iter(root["roles"]), "")
    return {"name": root["name"], "role": role, "text": text[:LONGEST], "remedy": root["remedy"]}
