"""The engine's HTTP side as the real sensor sees it: health, counters, /liveness beside the looks, the canary."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from supervisor.core import facts as f
from supervisor.simulator.clockwork import Alarm, Owner
from supervisor.simulator.job import INFLIGHT, Job

ENDPOINT = "http://127.0.0.1:8000"
LOOK_S, CALM_S, IDLE_S = 5.0, 60.0, 30.0
LIVENESS_EVERY_S, LIVENESS_TIMEOUT_S = 15.0, 15.0
CANARY_AFTER_S, CANARY_TIMEOUT_S = 30.0, 30.0
STARTING_S = 30.0  # between looks at an engine that was not up yet and refuses
SLOW_ANSWERS = 0.7  # part of the looks that time out at an engine that is overloaded
FAILED = ("timeout", "bad", "unknown")  # what a look that fails says
MISSES = 0.0003  # looks that time out for no reason


class EngineEyes:
    """Looks at the engine of one job."""

    def __init__(
        self, job: Job, random: Random, tell: Callable[[f.Fact, str], None], *, owner: Owner, phase_s: float
    ) -> None:
        self.pod, self.job, self.random, self._tell = job.pod, job, random, tell
        self.clock = job.clock
        self._phase_s = phase_s
        self._alarm = Alarm(self.clock, self._look_at_engine, owner)
        self._shape: tuple[object, ...] = ()
        self._last: list[float] = []
        self._still_since = self.clock.now
        self._canary_at = float("-inf")
        self._canary_due: float | None = None  # when the answer to the open question comes
        self._liveness_at = float("-inf")
        self._liveness_due: float | None = None
        self._ever_up = job.up

    def look_soon(self) -> None:
        """Something about the engine may be seen: look on the grid of the real looks."""
        job = self.job
        shape = (job.activity, job.up, job.slow, bool(job.broken), sum(e.health == "ok" for e in job.engines))
        if shape == self._shape:
            return
        self._shape = shape
        now = self.clock.now
        self._alarm.not_after(now + LOOK_S - (now - self._phase_s) % LOOK_S)

    def _look_at_engine(self) -> None:
        job, now = self.job, self.clock.now
        if not job.alive or job is not self.pod.job:
            return
        physics = self.pod.physics
        failed = self._look_fails()
        health = self.random.choice(FAILED) if failed else self._health_word()
        its = job.iterations()
        moved = its != self._last or not physics.counters
        counts = its if health == "ok" and physics.counters and not self._look_fails() else None
        running, waiting = self._request_counts() if health == "ok" else (0.0, 0.0)
        connections: int | None = self._count_connections()
        in_flight = physics.pipeline and not self.pod.logs_stand and job.work()[0] > 0
        waits = bool(running or waiting or connections or in_flight)
        if not physics.sockets or failed:
            connections = None
        canary = self._ask_canary(health, moved or not waits, now)
        liveness = self._ask_liveness(health, now)
        if counts is not None:
            self._last = its
        total = sum(its)
        per_engine = len(its) > 1 and counts is not None
        self._tell(
            f.EngineLook(
                ENDPOINT,
                health,
                liveness,
                generation_tokens=round(total * 40.0, 1) if counts is not None else None,
                iterations=round(total, 1) if counts is not None else None,
                running=running if counts is not None else None,
                waiting=waiting if counts is not None else None,
                connections=connections,
                canary=canary,
                engines=self._engine_counts(its, running) if per_engine else (),
            ),
            "engine",
        )
        self._ever_up = self._ever_up or job.up
        calm = health == "ok" and moved and "inference" not in job.broken
        calm = calm and (job.activity == "working" or not waits)
        if not self.pod.physics.thinned:
            wait_s = LOOK_S
        elif calm:
            wait_s = CALM_S
        elif health == "refused" and not self._ever_up:
            wait_s = STARTING_S
        elif health == "ok" and not waits:
            wait_s = IDLE_S
        else:
            wait_s = LOOK_S
        self._alarm.within(wait_s)

    def _look_fails(self) -> bool:
        """Does this look come to nothing, for no reason of the engine's?"""
        return self.pod.physics.flaky > 0 and self.random.random() < self.pod.physics.flaky

    def _health_word(self) -> str:
        if not self.job.up:
            return "refused"
        if self.pod.http_slow and self.random.random() < SLOW_ANSWERS:
            return "timeout"
        return "timeout" if self.random.random() < MISSES else "ok"

    def _request_counts(self) -> tuple[float, float]:
        job = self.job
        match job.activity:
            case "working":
                waiting = 400.0 if job.slow < 1 else float(int(self.random.random() * 5))
                return float(INFLIGHT - int(self.random.random() * 16)), waiting
            case "paused":
                return float(INFLIGHT - 8), 0.0
            case "stuck":
                return (float(INFLIGHT - 8) if job.shows_running else 0.0), 0.0
        stray = sum(1 for e in job.engines if e.health == "stuck") / len(job.engines)
        return (float(round(INFLIGHT * stray)) if job.shows_running else 0.0), 0.0

    def _count_connections(self) -> int:
        job = self.job
        if job.activity in ("working", "paused", "stuck") or (job.up and self.pod.physics.keepalive):
            return INFLIGHT
        broken = sum(1 for e in job.engines if e.health == "stuck") / len(job.engines)
        return round(INFLIGHT * broken) if job.up else 0

    def _engine_counts(self, its: list[float], running: float) -> tuple[f.EngineCount, ...]:
        share = running / len(its)
        return tuple(
            f.EngineCount(k, round(count, 1), share if self.job.engines[k].health != "gone" else 0.0, 0.0)
            for k, count in enumerate(its)
            if self.job.engines[k].health != "gone"
        )

    def _all_answer(self) -> bool:
        """Would a request through all engines come back soon?"""
        return self.job.up and not self.pod.http_slow and "inference" not in self.job.broken

    def _ask_liveness(self, health: str, now: float) -> str:
        if not self.pod.physics.liveness:
            return "absent"
        word = "unknown"
        if self._liveness_due is not None and now >= self._liveness_due:
            word, self._liveness_due = ("ok" if self._all_answer() and not self._look_fails() else "timeout"), None
        if self._liveness_due is None and health == "ok" and now - self._liveness_at >= LIVENESS_EVERY_S:
            self._liveness_at = now
            self._liveness_due = now if self._all_answer() else now + LIVENESS_TIMEOUT_S
            if self._all_answer():
                word, self._liveness_due = ("timeout" if self._look_fails() else "ok"), None
        return word

    def _ask_canary(self, health: str, moved: bool, now: float) -> str:
        if moved or health == "refused":
            self._still_since = now
        word = ""
        if self._canary_due is not None and now >= self._canary_due:
            # It waits for so long that only what would fail twice in a row makes it fail.
            failed = self._look_fails() and self._look_fails()
            word, self._canary_due = ("ok" if self._one_answers() and not failed else "timeout"), None
        elif (
            self._canary_due is None
            and health == "ok"
            and now - self._still_since >= CANARY_AFTER_S
            and now - self._canary_at >= CANARY_AFTER_S
        ):
            self._canary_at = now
            self._canary_due = now + (1.0 if self._one_answers() else CANARY_TIMEOUT_S)
        return word

    def _one_answers(self) -> bool:
        """Does a single request come back? It goes to one of the engines."""
        well = sum(1 for e in self.job.engines if e.health == "ok")
        return self.job.up and self.random.random() < well / len(self.job.engines)
