"""Claim the run for this pod, keep its heartbeat moving, and give it back at the end.

The store says who holds the run (``supervisor.checkpoints.claims``); how long another pod's heartbeat has stood still
is measured here, on this machine's own clock that goes on while the host sleeps. The core asks for the claim and is
told of each change; when to look again is no decision, and no wall clock is compared with another.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.base.errors import StoreError
from supervisor.base.retry import Retry
from supervisor.checkpoints.writers import FencedError, host_of, same_journal, settle_time, writer_name
from supervisor.core import facts as f
from supervisor.core.words import span

STALL_S = 120.0
LONGEST_BEAT_S = 60.0
SHORTEST_BEAT_S = 2.0
LONGEST_LOOK_S = 15.0
SHORTEST_LOOK_S = 0.5
LEAVING_BEAT_S = 3.0
LEAVING_LOOK_S = 2.0
LEAVING_STALL_S = 8.0
LEAVING_PATIENCE_S = 30.0
"""When a holder's pod is about to go, its heartbeat may stand still for so long: three requests that each hang for
LEAVING_STALL_S. Should it take longer, and that holder still write, then it is fenced like any other."""

RELEASE = Retry(base_s=0.5, cap_s=5.0)
"""How long to wait between two tries to give the run back."""
OWN_BEATS = 3
"""Beat periods for which a claim of this very journal is watched: a living original, if this disk is a copy of
its disk, beats meanwhile, and a machine that was started anew waits no longer than that."""

CONVICTED = "RL_SUPERVISOR_CONVICTED"
"""In the environment of a pod that a fleet's controller made: the standing that it may claim over."""
LABEL = "RL_SUPERVISOR_LABEL"
"""The same: the label of the pod, by which the controller knows whose heartbeat it is."""
PROMISED = "RL_SUPERVISOR_PROMISED"
"""The same: what the offer of its host said, a JSON object (``base.promised``)."""
LONGEST_LAST_WORDS = 300
Answer = dict[str, Any]
Run = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Carry out one request of ``supervisor.checkpoints.transfer`` for this run; raises StoreError."""


def beat_time(patience_s: float) -> float:
    """How long the holder waits between two heartbeats where others have this patience with it (seconds)."""
    return min(LONGEST_BEAT_S, max(SHORTEST_BEAT_S, patience_s / 10))


def watch_time(patience_s: float) -> float:
    """How long a claim of this very journal is watched where nothing proves that it was made on this pod (seconds)."""
    return min(patience_s, OWN_BEATS * beat_time(patience_s))


def not_given_back(patience_s: float, reason: str) -> str:
    """What it costs, a sentence."""
    waits = f"another pod waits {patience_s:.0f} s for its heartbeat before it goes on with the run"
    return f"The run could not be given back in the store, so {waits}: {reason.rstrip('.')}."


def claim_once(
    run: Run,
    writer: str,
    patience_s: float,
    tell: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """The claim of a command, which waits only for what its own state folder claimed: who holds the run then.

    Raises StoreError.
    """
    asked: Answer = {"writer": writer, "settle_s": settle_time(patience_s)}
    found = run("claim", asked)
    if found["writer"] == writer or not same_journal(str(found["writer"]), writer):
        return found
    watch_s = watch_time(patience_s)
    tell(
        f"Pod {host_of(str(found['writer']))} claimed this run with this very state folder (generation "
        f"{found['generation']}), and nothing proves that it was this machine: its disk may be a copy. Waiting until "
        f"its heartbeat has stood still for {span(watch_s)}."
    )
    for _ in range(OWN_BEATS):
        sleep(watch_s / OWN_BEATS)
        if run("standing", {}) != found:
            return run("claim", asked)  # it beats, or it has given the run back
    return run("claim", {**asked, "over": found})


def read_conviction(text: str) -> tuple[int, str] | None:
    """``GENERATION:MARK`` of a holder that a fleet's controller convicted; None where it is no such thing."""
    generation, colon, mark = text.partition(":")
    if not (colon and mark and generation.isascii() and generation.isdigit() and len(generation) <= 15):
        return None
    return int(generation), mark


def sentence_of_conviction(found: Answer) -> str:
    """Why this pod does not wait."""
    return (
        f"The fleet's controller found pod {host_of(str(found['writer']))} gone, and the store still shows its last "
        f"heartbeat (generation {found['generation']}): this pod claims the run at once."
    )


class Claiming:
    """The claim of one daemon. ``tick`` is called about once a second, from any thread, and queues what is due."""

    def __init__(
        self,
        run: Run,
        post: Callable[[f.Fact], None],
        queue: Callable[[str, Callable[[], None]], None],
        patience_s: float,
        *,
        needed: bool = True,
        listed: Callable[[], None] = lambda: None,
        lost: Callable[[StoreError], None] = lambda error: None,
        cancel: Callable[[], None] = lambda: None,
        about: Callable[[], Mapping[str, Any]] = dict,
        label: str = "",
        convicted: str = "",
        unfit: Callable[[], str] = str,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """``queue`` puts work on a lane; ``listed`` lists the store anew, after a claim; ``lost`` is called
        when another pod holds the run; ``cancel`` ends the heartbeat that is under way; ``patience_s``: for so long
        another pod's heartbeat may stand still. ``needed``: other pods reach the store, too. ``about``: what a
        heartbeat says of this pod besides. ``label``: of this pod, as a fleet named it. ``convicted``: the standing
        that a fleet's controller gave this pod to claim over. ``unfit``: why the run cannot be
        here, in sentences; "" where it can.
        """
        self._run, self._post, self._queue = run, post, queue
        self._patience_s = patience_s
        self._needed = needed
        self._listed = listed
        self._lost, self._cancel = lost, cancel
        self._about, self._label = about, label
        self._unfit = unfit
        self._convicted = read_conviction(convicted)
        if convicted and self._convicted is None:
            self._post(f.Remark("conviction", f"{CONVICTED} is no GENERATION:MARK: this pod waits as any other."))
        self._clock = clock
        self._lock = threading.Lock()
        self._session = secrets.token_hex(4)
        self._wanted = False
        self._take_over, self._held = False, 0
        self._leaving = False  # this pod is about to go
        self.marks_leaving = True  # False: what it began on other machines may write for longer than a mark allows
        self._marked = False  # and the store knows it
        self._under_way = False
        self._due = 0.0
        self._seen: dict[str, Any] | None = None  # another pod's standing, and since when it is this one
        self._since = 0.0
        self._count = 0
        self.journal = "0" * 16
        self.place = ""  # as ``supervisor.process.pod_identity`` tells it
        self.generation: int | None = None
        self.ended = threading.Event()  # nothing is waited for any more
        self.unreturned = ""  # why the run could not be given back, a sentence

    @property
    def writer(self) -> str:
        """Who this daemon is in the store's records."""
        return writer_name(socket.gethostname(), self.journal, self._session, self.place)

    @property
    def holds(self) -> bool:
        """May this daemon write to the store: has it claimed the run, where that is needed?"""
        return self.generation is not None or not self._needed

    def sign_request(self) -> dict[str, Any]:
        """What a request that writes or deletes says of its writer: it is looked whether it still holds the run.

        Raises StoreError, of kind "transient", when this pod does not hold it (any more): without a generation nothing
        would be looked at, and what was asked for before the run was lost or given back would still be written.
        """
        with self._lock:
            generation = self.generation
        if generation is None and self._needed:
            raise StoreError("transient", "This pod does not hold the run now: nothing is written to the store.")
        return {"writer": self.writer, "generation": generation}

    def write(self, do: Callable[[dict[str, Any]], Answer]) -> Answer:
        """``do`` one request that writes or deletes, signed; the core is told when another pod holds the run.

        Raises what ``do`` raises, and StoreError.
        """
        signed = self.sign_request()
        try:
            return do(signed)
        except StoreError as error:
            if error.kind == "fenced":
                self.note_fencing(error, signed["generation"])
            raise

    # ------------------------------------------------------------ asked for by the core

    def want(self, *, take_over: bool, held: int = 0) -> None:
        """Claim the run, of which this pod ``held`` a generation before, and go on trying."""
        with self._lock:
            if self.generation is not None:
                self._session = secrets.token_hex(4)  # it was lost: this is another claim than that one
            self._wanted, self._take_over, self.generation, self._due = True, take_over, None, 0.0
            self._leaving, self._marked, self._held = False, False, held
        self.tick()

    def leave(self) -> None:
        """Tell in the store that this pod is about to go, and let the heartbeat come often from now on.

        The run stays ours until it is given back: a step that is nearly published still gets its manifest.
        """
        with self._lock:
            if self.generation is None or self._leaving:
                return
            self._leaving, self._due = True, 0.0
        self._cancel()  # a heartbeat that hangs would be waited for first
        self.tick()

    def rest(self) -> None:
        """No heartbeat from now on, and none that is waited for: the run is about to be given back."""
        with self._lock:
            self._wanted = False
        self._cancel()

    def give_back(self, code: int | None = None, reason: str = "") -> None:
        """Give the run back, if it is ours. A store that is away is asked again until ``ended`` is set, and no longer
        than another pod waits for this one's heartbeat: by then any pod may take the run.

        ``code`` and ``reason`` are the last words. ``unreturned`` says why nothing came of it.
        """
        with self._lock:
            generation, self.generation, self._wanted = self.generation, None, False
        if generation is None:
            return
        self.unreturned = self._cost_in_words("the daemon ended before the store had answered")
        failures, over, until = 0, False, time.monotonic() + self._patience_s_now(leaving=self._marked)
        while not over:
            try:
                last = {"code": code, "reason": reason, "about": dict(self._about())}
                self._run("release", {"generation": generation, "writer": self.writer, **last})
                self.unreturned = ""
                return
            except StoreError as error:
                self.unreturned = "" if error.kind == "fenced" else self._cost_in_words(str(error))
                failures += 1
                pause_s = min(RELEASE.pause(failures, error.retry_after_s), max(0.0, until - time.monotonic()))
                over = error.kind != "transient" or pause_s == 0.0 or self.ended.wait(pause_s)

    def _cost_in_words(self, reason: str) -> str:
        return not_given_back(self._patience_s_now(leaving=self._marked), reason)

    def note_fencing(self, error: StoreError, signed: int | None = None) -> None:
        """An effect was told that another pod holds the run. ``signed``: the generation that its request named."""
        by, generation = (error.by, error.generation) if isinstance(error, FencedError) else ("another pod", 0)
        with self._lock:
            if self.generation is None or (signed is not None and signed != self.generation):
                return  # the request was signed before the run was lost, and is ours again since
            self._wanted = False
        self._post(f.Fenced(by, generation))
        self._lost(error)

    # ------------------------------------------------------------ now and then

    def tick(self) -> None:
        """Queue the next look or heartbeat when it is due."""
        with self._lock:
            if not self._wanted or self._under_way or self._clock() < self._due:
                return
            self._under_way = True
            holding = self.generation is not None
        # A claim waits its turn with the listings: one that was begun before it must not be taken for a newer one.
        self._queue("claims" if holding else "catalogue", self._send_beat if holding else self._claim_run)

    def _again_in(self, seconds: float) -> None:
        with self._lock:
            self._under_way = False
            if self._leaving:
                seconds = min(seconds, LEAVING_BEAT_S if self._marked else SHORTEST_BEAT_S)
            self._due = self._clock() + seconds

    def _patience_s_now(self, *, leaving: bool) -> float:
        return min(self._patience_s, LEAVING_PATIENCE_S) if leaving else self._patience_s

    def _patience_with(self, found: Answer) -> float:
        """For how long the heartbeat of this standing may stand still."""
        patience_s = self._patience_s_now(leaving=bool(found.get("leaving")))
        if not same_journal(str(found["writer"]), self.writer):
            return patience_s
        return min(patience_s, watch_time(self._patience_s))

    def _claim_run(self) -> None:
        try:
            self._try_to_claim()
        except StoreError as error:
            self._post(f.ClaimFailed(str(error), permanent=error.kind == "permanent"))
        finally:
            holding = self.generation is not None
            soon = self._seen is not None and self._seen.get("leaving")
            longest = LEAVING_LOOK_S if soon else LONGEST_LOOK_S
            pause = min(longest, max(SHORTEST_LOOK_S, self._patience_s / 10))
            self._again_in(beat_time(self._patience_s) if holding else pause)

    def _try_to_claim(self) -> None:
        asked: dict[str, Any] = {"writer": self.writer, "settle_s": settle_time(self._patience_s), "label": self._label}
        asked["held"] = self._held
        if self._take_over:
            asked["take_over"] = True
        elif self._seen is not None and self._clock() - self._since >= self._patience_with(self._seen):
            asked["over"] = self._seen
        found = self._run("claim", asked)
        if self._is_convicted(found):
            self._post(f.Remark("convicted", sentence_of_conviction(found)))
            asked["over"] = found
            found = self._run("claim", asked)
        self._convicted = None  # it is good for one look: whoever holds the run later was not convicted
        with self._lock:
            if not self._wanted:
                return
            if found["writer"] == self.writer:
                self.generation, self._seen, self._take_over = int(found["generation"]), None, False
            elif found != self._seen:
                self._seen, self._since = found, self._clock()
            generation, age = self.generation, self._clock() - self._since
        if generation is not None:
            self._post(f.Claimed(generation, watched="over" in asked, unfit=self._unfit()))
            self._listed()
        else:
            writer, patience_s = str(found["writer"]), self._patience_with(found)
            copied = same_journal(writer, self.writer)
            self._post(f.ClaimHeld(host_of(writer), int(found["generation"]), age, patience_s, copied))

    def _is_convicted(self, found: Answer) -> bool:
        """Is this exactly the standing of which a fleet's controller said that its holder is gone?"""
        standing = (int(found["generation"]), str(found["mark"]))
        other = found["writer"] != self.writer and not same_journal(str(found["writer"]), self.writer)
        return self._convicted == standing and other and not found["released"]

    def _send_beat(self) -> None:
        with self._lock:
            generation, leaving = self.generation if self._wanted else None, self._leaving
        self._count += 1
        more: dict[str, Any] = {"urgent": True} if leaving else {}
        try:
            if generation is not None and leaving and self.marks_leaving and not self._marked:
                self._run("leave", {"generation": generation, "writer": self.writer, **more})
                self._marked = True
                told = "The store knows that the run ends on this pod: another pod need not wait long after that."
                self._post(f.Remark("leave-marked", told))
            elif generation is not None:
                about = {"label": self._label, **self._about()}
                beat = {"generation": generation, "writer": self.writer, "count": self._count, "about": about}
                self._run("beat", {**beat, **more})
        except StoreError as error:
            if error.kind == "fenced":
                self.note_fencing(error)
            # Else the store is away: the publish tells so, and another pod may take the run over meanwhile.
        finally:
            told_since = self._leaving and not leaving  # the mark waits for nothing
            self._again_in(0.0 if told_since else beat_time(self._patience_s))
