"""Messages to people who are elsewhere: sent by a thread for each target, within limits, and never twice for one thing.

What is to be told, and what was, is kept (``STATE/messages.json``) before it is sent, so that a daemon that is killed
in between tells it again rather than not at all. Nothing waits for a message, but the daemon's end for a few seconds.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from supervisor.base import secrets
from supervisor.config.reporting import Notify
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core.messages import (
    END,
    VARIABLE,
    Message,
    Severity,
    join_messages,
    list_messages,
    message_of_end,
    message_of_lag,
)
from supervisor.core.pinned_steps import findings
from supervisor.core.state import State
from supervisor.core.wellness import Tolerance
from supervisor.core.words import span
from supervisor.effects.notify_targets import SendError, Target, open_targets
from supervisor.process.shim_records import write_atomically

HOUR_S = 3600.0
LOOK_S = 30.0  # at most, between two looks at what waits, and at whether publishing lags
AGAIN_S = (15.0, 60.0, 300.0, 900.0)  # after so long a target that failed is tried again
GIVE_UP_S = 24 * HOUR_S
LAST_S = 8.0  # the daemon's end waits so long for the last message
LATE_S = 60.0
MOST_NAMED = 5  # sentences of a digest
MOST_KEPT = 200


class Outbox:
    """Messages under one name. Without a target it does nothing."""

    def __init__(self, name: str, limits: Notify, tell: Callable[[str, str, str], None], digest: str) -> None:
        """``tell``: of event, sentence and level. ``digest``: the command to type after several messages in one."""
        self._per_hour, self._asleep = limits.per_hour, limits.asleep
        self._tell, self._digest = tell, digest
        self.targets, odd = open_targets(secrets.secret(VARIABLE) or "", name)
        for sentence in odd:
            tell("notify-failed", sentence, "warning")
        self._lock, self._wake, self._over = threading.Lock(), threading.Event(), threading.Event()
        self._waiting: dict[str, list[dict[str, Any]]] = {}  # by the target's name, oldest first
        self._sent: dict[str, list[float]] = {}  # by the target's name, Unix times of the last hour
        self._senders: dict[threading.Thread, threading.Event] = {}  # one a target, and what wakes it
        self.told: set[str] = set()  # threads that were told and are not over
        self._failed: dict[str, tuple[int, float, str]] = {}  # by target: how often, when to try again, why
        self._all_at_end = True
        self._thread = threading.Thread(target=self._send_until_over, name="notify", daemon=True)
        if self.targets:
            self._read()

    def start(self) -> None:
        """Begin to send. No thread is begun later: there may be no room for one when a message matters most."""
        for target in self.targets:
            wake = threading.Event()
            sender = threading.Thread(target=self._send_to, args=(target, wake), name="notify", daemon=True)
            self._senders[sender] = wake
            sender.start()
        if self.targets:
            self._thread.start()

    def close(self, *, all_at_end: bool = True) -> None:
        """End, after some seconds at most. ``all_at_end``: what limits hold back is tried, too."""
        self._all_at_end = all_at_end
        self._over.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(LAST_S)

    def read_kept(self) -> Any:
        """What was kept last. One without a memory has none."""

    def keep(self, kept: Mapping[str, object]) -> None:
        """Keep what waits, and what was told."""

    def tend(self) -> None:
        """Called by the thread before it sends, and afterwards: what takes its time is done here."""

    @property
    def note_for_status(self) -> str:
        """Which targets do not take messages, in sentences; "" while all do."""
        return " ".join(f"Messages do not reach {name}: {why}." for name, (_, _, why) in sorted(self._failed.items()))

    # ------------------------------------------------------------ what waits

    def put(self, messages: Sequence[Message]) -> None:
        """Tell what was not told yet."""
        with self._lock:
            # A thread is told of once, and its end only where it was; the daemon's own end always is.
            news = [one for one in messages if (one.thread in self.told) == one.is_over or one.thread == END]
            if not news or not self.targets:
                return
            for message in news:
                for target in self.targets:
                    self._join(self._waiting.setdefault(target.name, []), message)
                if message.thread != END:
                    (self.told.discard if message.is_over else self.told.add)(message.thread)
            self._write()
        self._wake.set()

    def _join(self, waiting: list[dict[str, Any]], message: Message) -> None:
        at = time.time()
        for one in waiting:
            if one["message"]["thread"] == message.thread:
                message, at = join_messages(Message(**one["message"]), message), one["at"]
                waiting.remove(one)
                break
        waiting.append({"at": at, "message": asdict(message)})
        del waiting[:-MOST_KEPT]

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            kept: Any = self.read_kept()
            waiting = {
                str(name): [{"at": float(one["at"]), "message": asdict(Message(**one["message"]))} for one in there]
                for name, there in kept["waiting"].items()
            }
            sent = {str(name): [float(at) for at in times] for name, times in kept["sent"].items()}
            self._sent, self.told, self._waiting = sent, {str(one) for one in kept["open"]}, waiting

    def _write(self) -> None:
        sent = {name: times[-MOST_KEPT:] for name, times in self._sent.items()}
        self.keep({"waiting": self._waiting, "sent": sent, "open": sorted(self.told)})

    # ------------------------------------------------------------ the threads

    def _send_until_over(self) -> None:
        ends = False
        while not ends:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            ends = self._over.is_set()
            self.tend()
            for wake in self._senders.values():
                wake.set()
        for sender in self._senders:
            sender.join()
        self.tend()

    def _send_to(self, target: Target, wake: threading.Event) -> None:
        ends = False
        while not ends:
            wake.wait()
            wake.clear()
            ends = self._over.is_set()
            self._send_waiting(target, last=ends and self._all_at_end)

    def _send_waiting(self, target: Target, *, last: bool) -> None:
        count, again_at, _ = self._failed.get(target.name, (0, 0.0, ""))
        with self._lock:
            now, waiting = time.time(), self._waiting.setdefault(target.name, [])
            if old := [Message(**one["message"]) for one in waiting if now - one["at"] >= GIVE_UP_S]:
                self._take_out(waiting, old)
            messages = [_with_age(Message(**one["message"]), now - one["at"]) for one in waiting]
            sent = self._sent[target.name] = [at for at in self._sent.get(target.name, ()) if abs(now - at) < HOUR_S]
            left = self._per_hour - len(sent)
            may_all = last or (left > 0 and not is_asleep(self._asleep, now))
        if old:
            told = f"Messages that waited for {target.name} for {span(GIVE_UP_S)} are dropped: {len(old)}."
            self._tell("notify-failed", told, "warning")
        chosen = messages if may_all else [one for one in messages if one.severity == "error"]
        if not chosen or (time.monotonic() < again_at and not last):
            return
        digest = make_digest(chosen, max(1, left) if may_all else 1, self._digest)
        try:
            for number, message in enumerate(digest):
                target.send(message)
                with self._lock:
                    sent.append(time.time())
                    self._take_out(waiting, chosen[number:] if message is digest[-1] else [message])
        except SendError as error:
            again_at = time.monotonic() + AGAIN_S[min(count, len(AGAIN_S) - 1)]
            self._failed[target.name] = (count + 1, again_at, str(error))
            if not count:
                told = f"Messages do not reach {target.name}: {error}. It is tried again."
                self._tell("notify-failed", told, "warning")
        else:
            if self._failed.pop(target.name, None):
                self._tell("notify", f"Messages reach {target.name} again.", "info")
        self._wake.set()  # more may have come meanwhile

    def _take_out(self, waiting: list[dict[str, Any]], sent: Sequence[Message]) -> None:
        """Forget what a target has. What was joined with a newer message meanwhile is still to be told."""
        gone = {(one.thread, one.is_over) for one in sent}
        waiting[:] = [one for one in waiting if (one["message"]["thread"], one["message"]["is_over"]) not in gone]
        for message in (one["message"] for one in waiting):
            if message["is_over"] and (message["thread"], False) in gone:
                message["severity"] = "info"  # the worse has been told by itself
        self._write()


class Notifier(Outbox):
    """The messages of one daemon."""

    def __init__(self, run_file: RunFile, post: Callable[[f.Fact], None], state: Callable[[], State]) -> None:
        self._state, beat = state, run_file.heartbeat
        self._tolerance = Tolerance(beat.behind_s, beat.behind_steps, run_file.job.saves_every)
        self._path = run_file.state_dir / "messages.json"
        super().__init__(run_file.run.id, run_file.notify, lambda *one: post(f.Remark(*one)), "supervisorctl incidents")

    def start(self) -> None:
        """Begin; what an earlier daemon could not send, or had no time to note, is sent."""
        state = self._state()
        standing = {f"worth-{name}" for name in findings(state)}
        self.told -= {thread for thread in self.told - standing if thread.startswith("worth-")}  # it ended meanwhile
        self.put(list_messages(State(), state))
        super().start()

    def note(self, before: State, after: State) -> None:
        """One turn of the loop."""
        if self.targets and after is not before:
            self.put(list_messages(before, after))

    def note_end(self, code: int, reason: str) -> None:
        """The daemon is about to end."""
        message = message_of_end(code, reason)
        self.put([] if message is None else [message])

    def tend(self) -> None:
        """Tell when publishing lags."""
        lag = message_of_lag(self._state(), time.time(), self._tolerance, told="publish" in self.told)
        if lag is not None and not self._over.is_set():
            self.put([lag])

    def read_kept(self) -> Any:
        """From ``STATE/messages.json``."""
        return json.loads(self._path.read_bytes())

    def keep(self, kept: Mapping[str, object]) -> None:
        """In a file that is whole at any moment."""
        with contextlib.suppress(OSError):
            write_atomically(str(self._path), kept)


def _with_age(message: Message, age_s: float) -> Message:
    """A message that waited says so: what it tells may be over."""
    return message if age_s < LATE_S else replace(message, sentence=f"{span(age_s)} ago: {message.sentence}")


def make_digest(messages: Sequence[Message], most: int, command: str = "") -> list[Message]:
    """At most ``most`` messages: the last one says what the others would have."""
    if len(messages) <= most:
        return list(messages)
    apart, rest = list(messages[: most - 1]), list(messages[most - 1 :])
    named = [one.sentence for one in rest[-MOST_NAMED:]]
    more = len(rest) - len(named)
    severity: Severity = "error" if any(one.severity == "error" for one in rest) else "warning"
    sentence = "\n".join([f"{len(rest)} messages:", *named, *([f"And {more} more."] if more else [])])
    return [*apart, Message("digest", severity, sentence, command)]


def is_asleep(hours: str | None, wall: float) -> bool:
    """``"22-7"``: from 22:00 to 7:00, in UTC."""
    if not hours:
        return False
    first, last = map(int, hours.split("-"))
    hour = time.gmtime(wall).tm_hour
    return first <= hour < last if first < last else hour >= first or hour < last
