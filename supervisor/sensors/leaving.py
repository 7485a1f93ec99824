"""What tells that this pod is about to go: a file, a page, a command. Each is asked now and then, and told of once.

Sources: Amazon's spot notice is a page that answers 404 until it answers 200 with ``{"action": ..., "time": ...}``
(EC2 user guide, "Spot Instance interruption notices"); Google's says TRUE or FALSE and wants the header
``Metadata-Flavor: Google`` (Compute Engine, "Preemptible VM instances", preempted metadata value).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from supervisor.base import http
from supervisor.base.own_child import OwnChild
from supervisor.base.proc_stat import start_ticks
from supervisor.core import facts as f

WORDS_LIMIT = 4 << 10  # bytes that are read of a file or of a command's output
OLD_FILE_S = 600.0
WRITTEN_S = 0.1
MOST_WITHIN_S = 86_400.0
PAGE_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 10.0
SLURM_JOB = "RL_SUPERVISOR_SLURM_JOB"
"""The number of the job, set by ``rl-supervisor slurm step``: SIGTERM then comes from Slurm or from our script."""
SIGNALS = {"SIGUSR1": signal.SIGUSR1, "SIGUSR2": signal.SIGUSR2, "SIGPWR": signal.SIGPWR}

Asked = tuple[str, str] | None
"""Who says that the pod goes, and in which words; None: no source does."""


class TriggerError(Exception):
    """A trigger cannot be asked: why, a clause for people."""


def within(words: str, default_s: float | None, wall: float) -> float | None:
    """Seconds that the trigger's own words leave, else ``default_s``.

    A number alone is seconds; of a JSON object ``within_s`` is, and ``time`` is when (ISO 8601, as Amazon tells it).
    """
    text = words.strip()
    found: float | None = None
    if re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text):
        found = float(text)
    elif text.startswith("{"):
        found = _within_json(text, wall)
    return default_s if found is None else min(MOST_WITHIN_S, max(0.0, found))


def _within_json(text: str, wall: float) -> float | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    seconds, at = value.get("within_s"), value.get("time")
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds == seconds:  # noqa: PLR0124
        return float(max(0, min(MOST_WITHIN_S, seconds)))  # a whole number may be too large for a float
    if not isinstance(at, str):
        return None
    try:
        when = datetime.fromisoformat(at)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - wall
    except (ValueError, OverflowError):
        return None


def process_one_began() -> float | None:
    """When this machine or container was started, in Unix time; None where process 1 cannot be seen."""
    with contextlib.suppress(OSError):
        ticks = start_ticks(1)
        age_s = -1.0 if ticks is None else time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - age_s if age_s >= 0 else None
    return None


class Trigger:
    """A sensor that asks one source until it says that the pod goes. That it cannot be asked is told once."""

    def __init__(self, name: str, ask: Callable[[], Asked], within_s: float | None) -> None:
        """``ask`` raises TriggerError; ``within_s``: the time that is left when the words do not say."""
        self.name = f"leaving-{name}"
        self._setting = f"leaving.{name}"
        self._ask = ask
        self._within_s = within_s
        self._failed = False
        self._fired = False

    def look(self) -> Sequence[f.Fact]:
        if self._fired:
            return ()
        try:
            asked = self._ask()
        except TriggerError as error:
            return self.unknown(str(error))
        told: list[f.Fact] = []
        if self._failed:
            self._failed = False
            told.append(f.Remark("trigger", f"The preemption notice ({self._setting}) can be read again."))
        if asked is not None:
            why, words = asked
            told.append(f.LeaveSoon(within(words, self._within_s, time.time()), why))
            self._fired = True  # and not before its words are understood: it would never be asked again
        return told

    def unknown(self, reason: str) -> Sequence[f.Fact]:
        if self._failed:
            return ()
        self._failed = True
        told = f"Cannot read the preemption notice ({self._setting}): {reason.rstrip('.')}. Will retry."
        return [f.Remark("trigger-failed", told, "warning")]


class FileSource:
    """A file that appears. One that lay there long before this daemon counts only once it is written anew, and so does
    one from before this machine or container began: on a volume it outlives the pod that it told of.
    """

    def __init__(self, path: Path, began: Callable[[], float | None] | None = None) -> None:
        """``began``: when process 1 was started, in Unix time; None: unknown."""
        self._path = path
        self._began = began or process_one_began
        self._old: float | None = None  # mtime of one from before
        self._first = True

    def __call__(self) -> Asked:
        first, self._first = self._first, False
        try:
            changed = self._path.stat().st_mtime
            if first and self._is_old(changed):
                self._old = changed
            if changed == self._old:
                return None
            words = self._words()
            if not words:
                time.sleep(WRITTEN_S)  # ``echo 30 > FILE`` makes the file first and writes then
                words = self._words()
            return f"{self._path} appeared", words
        except FileNotFoundError:
            self._old = None
            return None
        except OSError as error:
            raise TriggerError(f"{self._path}: {error.strerror}") from error

    def _is_old(self, changed: float) -> bool:
        began = self._began()
        return time.time() - changed > OLD_FILE_S or (began is not None and changed < began)

    def _words(self) -> str:
        with contextlib.suppress(OSError):
            if self._path.is_file():  # a pipe or a device would be waited for
                with self._path.open("rb") as file:
                    return file.read(WORDS_LIMIT).decode(errors="replace")
        return ""


def ask_page(url: str, matches: str | None, headers: Mapping[str, str]) -> Asked:
    """A page that answers with status 200, and with a text that matches where a pattern is given."""
    try:
        page = http.ask(url, headers=headers, timeout_s=PAGE_TIMEOUT_S)
    except http.NoAnswerError as error:
        raise TriggerError(f"leaving.url: {error}") from error
    if page.status in (401, 403) or page.status >= 500:
        raise TriggerError(f"leaving.url answers with status {page.status}")
    if page.status != 200:
        return None
    if matches and not re.search(matches, page.text):
        return None
    return "the page of leaving.url says so", page.text


def ask_command(words: Sequence[str], environ: Mapping[str, str]) -> Asked:
    """A command that ends with exit code 0 when the pod goes."""
    named = words[0]
    try:
        with OwnChild(words, environ=environ, cwd=Path("/"), umask=0o022) as child:
            code = child.wait(time.monotonic() + COMMAND_TIMEOUT_S)
            child.kill()
            output = child.answer(WORDS_LIMIT)
    except (OSError, ValueError) as error:
        raise TriggerError(f"{named} cannot be run: {getattr(error, 'strerror', None) or error}") from error
    if code is None:
        raise TriggerError(f"{named} did not end within {COMMAND_TIMEOUT_S:g} s")
    if code in (126, 127):
        raise TriggerError(f"{named} ended with exit code {code}, which says that it cannot be run")
    if code != 0:
        return None
    return f"{named} says so", output.decode(errors="replace")


class PublishSensor:
    """How far the publish under way is, for a core that has to know what can still be done."""

    name = "publishing"

    def __init__(self, look: Callable[[], f.PublishMoves | None]) -> None:
        self._look = look
        self._said: f.PublishMoves | None = None

    def look(self) -> Sequence[f.Fact]:
        found = self._look()
        if found is None or found == self._said:
            return ()
        self._said = found
        return [found]

    def unknown(self, reason: str) -> Sequence[f.Fact]:
        return ()
