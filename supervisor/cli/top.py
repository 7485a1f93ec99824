"""``supervisorctl top``: a run on one screen, for as long as a person looks.

Plain ANSI and not curses: that wants a terminfo entry for the terminal, which pods' images often lack, and what is
drawn here are lines of text, of which those that changed are sent. A thread asks; the keys are heard meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import textwrap
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from supervisor.base.errors import SupervisorError, UsageError
from supervisor.base.secrets import mask_secrets
from supervisor.cli import live, render
from supervisor.cli.series_tail import SeriesTail
from supervisor.cli.top_screen import (
    BLOCKS,
    KEYS,
    Line,
    Size,
    draw_head,
    draw_run,
    draw_runs,
    draw_text,
    fit_lines,
)
from supervisor.cli.which import Here

LOG_LINES = 300
CLOCK_S = 60.0  # the screen is drawn again after so long without any news
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"
ARROWS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down"}
WORDS = {"k": "up", "j": "down", " ": "page down", "\r": "enter", "\n": "enter", "\x7f": "back", "\x1b": "back"}


@dataclass(frozen=True)
class View:
    """What a person looks at. ``back``: lines above the end of a log, or above the end of an explanation."""

    kind: str = "run"  # a key of KEYS
    run: Here | None = None
    role: str = ""  # of the log; "": the daemon's choice
    back: int = 0
    chosen: int = 0  # in the list of runs


@dataclass(frozen=True)
class News:
    """What the last question brought. ``trouble``: why it brought nothing."""

    status: dict[str, Any] = field(default_factory=dict)
    runs: Sequence[tuple[Here, dict[str, Any]]] = ()
    series: Sequence[dict[str, Any]] = ()
    text: Sequence[str] = ()  # of a log, or of an explanation
    roles: Sequence[str] = ()
    role: str = ""
    trouble: str = ""
    failed_at: float | None = None  # monotonic: since when there is trouble


class Top:
    """The screen. ``show`` returns when the person has seen enough."""

    def __init__(self, name: str | None, socket: Path | None) -> None:
        """Raises UsageError or ConfigError where no such run is known."""
        self._name, self._socket = name, socket
        runs = live.find_runs(name, socket)
        one = len(runs) == 1
        self._view = View("run" if one else "runs", runs[0] if one else None)
        self._news = News()
        self._over = threading.Event()
        self._lock, self._wanted = threading.Lock(), threading.Event()
        self._woken, self._wake = os.pipe()
        self._drawn: list[Line] = []
        self._terminal = Size()

    def show(self) -> int:
        """Raises UsageError where the terminal cannot move its cursor."""
        if os.environ.get("TERM", "dumb") == "dumb":
            raise UsageError("This terminal cannot move its cursor (TERM). There is: supervisorctl status --watch")
        paint = render.Paint.for_stdout()
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, lambda *_: self._over.set())
        signal.signal(signal.SIGWINCH, lambda *_: None)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        threading.Thread(target=self._ask_again_and_again, daemon=True).start()
        with _own_screen(self._forget_screen), contextlib.suppress(OSError):  # the terminal is gone
            while not self._over.is_set():
                self._draw(paint)
                ready, _, _ = select.select([sys.stdin.fileno(), self._woken], [], [], CLOCK_S)
                if self._woken in ready:
                    os.read(self._woken, 4096)
                if sys.stdin.fileno() in ready:
                    typed = os.read(sys.stdin.fileno(), 64)
                    for key in _keys_of(typed):
                        self._obey(key)
                    if not typed:  # the terminal is gone
                        break
        return 0

    # ------------------------------------------------------------ keys

    def _obey(self, key: str) -> None:
        view = self._view
        step = {"up": 1, "down": -1, "page up": self._terminal.rows // 2, "page down": -self._terminal.rows // 2}
        if key in ("q", "\x03"):
            self._over.set()
        elif key == "r":
            self._change(replace(view, kind="runs"))
        elif view.kind == "runs":
            self._obey_in_runs(key)
        elif key == "l":
            roles = list(self._news.roles)
            following = roles.index(self._news.role) + 1 if self._news.role in roles else 0
            role = roles[following % len(roles)] if roles and view.kind == "logs" else view.role
            self._change(replace(view, kind="logs", role=role, back=0))
        elif key == "e":
            self._change(replace(view, kind="explain", back=1 << 20))  # it is read from its beginning
        elif key == "back":
            self._change(replace(view, kind="run", back=0))
        elif key in step and view.kind in ("logs", "explain"):
            most = max(0, len(self._news.text) - (self._terminal.rows - 3))
            self._view = replace(view, back=min(max(min(view.back, most) + step[key], 0), most))

    def _obey_in_runs(self, key: str) -> None:
        view, runs = self._view, self._news.runs
        chosen = view.chosen
        if key.isdigit() and 0 < int(key) <= len(runs):
            chosen, key = int(key) - 1, "enter"
        if key == "enter" and chosen < len(runs):
            self._change(View("run", runs[chosen][0], chosen=chosen))
        elif key == "back" and view.run is not None:
            self._change(replace(view, kind="run"))
        elif key in ("up", "down"):
            chosen += 1 if key == "down" else -1
            self._view = replace(view, chosen=min(max(chosen, 0), max(len(runs) - 1, 0)))

    def _change(self, view: View) -> None:
        """Another question is to be asked at once."""
        with self._lock:
            same_run = view.run == self._view.run
            kept = News(self._news.status, self._news.runs, self._news.series, roles=self._news.roles)
            self._view, self._news = view, kept if same_run else News(runs=self._news.runs)
        self._wanted.set()

    # ------------------------------------------------------------ questions

    def _ask_again_and_again(self) -> None:
        series: dict[str, SeriesTail] = {}
        while not self._over.is_set():
            self._wanted.clear()
            with self._lock:
                view, before = self._view, self._news
            news = self._ask(view, before, series)
            with self._lock:
                if (view.kind, view.run, view.role) == (self._view.kind, self._view.run, self._view.role):
                    self._news = news
            with contextlib.suppress(OSError):
                os.write(self._wake, b".")
            self._wanted.wait(live.EVERY_S)

    def _ask(self, view: View, before: News, series: dict[str, SeriesTail]) -> News:
        """One question to each daemon that is shown, and to one where one run is."""
        try:
            if view.kind == "runs" or view.run is None:
                return replace(before, runs=[(run, live.ask_status(run)) for run in live.find_runs(None, None)])
            run = view.run if before.failed_at is None else self._find_again(view.run)
            if view.kind == "logs":
                answer = live.ask_daemon(run, "/v1/log", lines=LOG_LINES, **({"role": view.role} if view.role else {}))
                text = render.without_colours(str(answer.get("text") or "")).rstrip("\n").split("\n")
                lines = [line.rstrip("\r").rpartition("\r")[2] for line in text]  # of a progress bar, its last form
                roles = [str(one) for one in answer.get("roles") or ()]
                return replace(
                    before, text=lines, roles=roles, role=str(answer.get("role")), trouble="", failed_at=None
                )
            if view.kind == "explain":
                text = render.explanation(live.ask_daemon(run, "/v1/explain"))
                return replace(before, text=text, trouble="", failed_at=None)
            status = live.ask_daemon(run, "/v1/status")
            folder = str(status.get("state_dir") or run.state_dir or "")
            rows = series.setdefault(folder, SeriesTail(Path(folder))).read() if folder else []
            trouble = series[folder].trouble if folder else ""
            return replace(before, status=status, series=rows, trouble=trouble, failed_at=None)
        except SupervisorError as error:
            since = before.failed_at if before.failed_at is not None else time.monotonic()
            return replace(before, trouble=str(error), failed_at=since)

    def _find_again(self, run: Here) -> Here:
        """Its daemon may be another one by now, with another socket."""
        try:
            found = live.find_runs(run.id or None, self._socket)[0]
        except (SupervisorError, IndexError):
            return run
        return found if found.id else run

    # ------------------------------------------------------------ drawing

    def _forget_screen(self) -> None:
        self._drawn = []

    def _draw(self, paint: render.Paint) -> None:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        terminal = Size(columns or 80, rows or 24, blocks=_can_show(BLOCKS))
        if terminal != self._terminal:
            self._terminal, self._drawn = terminal, []
        lines = [(mask_secrets(text), kind) for text, kind in fit_lines(*self._compose(terminal), terminal)]
        told = "" if self._drawn else "\x1b[0m\x1b[H\x1b[2J"
        for number, line in enumerate(lines):
            if not self._drawn and line == ("", ""):
                continue
            if not self._drawn or self._drawn[number] != line:
                told += f"\x1b[{number + 1};1H\x1b[K{_paint_line(line, paint)}"
        self._drawn = lines
        _write(told)

    def _compose(self, terminal: Size) -> tuple[list[Line], str]:
        with self._lock:
            view, news = self._view, self._news
        now = time.time()
        if view.kind == "runs":
            if not news.runs:
                return [(news.trouble or "Looking for runs ...", "")], KEYS["runs"]
            return draw_runs([status for _, status in news.runs], view.chosen, terminal), KEYS["runs"]
        name = render.safe(view.run.id if view.run else "")
        trouble = news.trouble
        if news.failed_at is not None:
            lasts = f"{max(0.0, time.monotonic() - news.failed_at):.0f} s"
            trouble = f"No answer for {lasts}{', and what is shown is old' if news.status else ''}: {news.trouble}"
        if view.kind == "run":
            if not news.status:
                return [(name, ""), ("", ""), *_fold(trouble or "Asking its daemon ...", terminal)], KEYS["run"]
            return draw_run(news.status, news.series, trouble, terminal, now), KEYS["run"]
        if trouble:
            return [(name, ""), ("", ""), *_fold(trouble, terminal)], KEYS[view.kind]
        if view.kind == "logs":
            others = ", ".join(one for one in news.roles if one != news.role)
            title = f"{name}  {news.role}{f'   (others: {others})' if others else ''}"
            return draw_text(title if news.role else name, news.text, view.back, terminal), KEYS["logs"]
        head = draw_head(news.status, terminal, now)[0][0] if news.status else name
        return draw_text(head, news.text, view.back, terminal), KEYS["explain"]


def _fold(text: str, terminal: Size) -> list[Line]:
    return [(line, "error") for line in textwrap.wrap(render.safe(text), max(terminal.columns, 10))]


def _keys_of(typed: bytes) -> Iterator[str]:
    """What was typed, by name; a sequence that is not known says nothing."""
    while typed:
        known = next((one for one in ARROWS if typed.startswith(one)), None)
        if known is not None:
            yield ARROWS[known]
            typed = typed[len(known) :]
        elif typed.startswith((b"\x1b[", b"\x1bO")):
            return
        else:
            char = typed[:1].decode("ascii", "replace")
            yield WORDS.get(char, char)
            typed = typed[1:]


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.__stdout__.encoding if sys.__stdout__ else "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def _paint_line(line: Line, paint: render.Paint) -> str:
    text, kind = line
    return f"\x1b[7m{text}\x1b[0m" if kind == "keys" else paint(text, kind)


def _write(text: str) -> None:
    """Straight to the terminal: ``run_cli``'s own output lets no movement of the cursor through."""
    data = text.encode("utf-8" if _can_show(BLOCKS) else "ascii", "replace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


@contextlib.contextmanager
def _own_screen(forget: Any) -> Iterator[None]:
    """The terminal's other screen without its cursor; as it was afterwards, also while the program is stopped (^Z)."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def enter() -> None:
        tty.setcbreak(terminal)
        _write(ENTER)

    def leave() -> None:
        with contextlib.suppress(OSError, termios.error):  # it may be gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
            _write(LEAVE)

    def suspend(_: int, __: FrameType | None) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()
        forget()

    signal.signal(signal.SIGTSTP, suspend)
    enter()
    try:
        yield
    finally:
        leave()
