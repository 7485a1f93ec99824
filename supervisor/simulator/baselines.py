"""What people use instead: the seeds' scripts, systemd, fixed time-outs, torchrun; each behind the core's interface.

Each docstring says what is modelled, where its numbers come from, and what it was given beyond what ``given`` gives to
all. None of them looks at processes' roles, GPUs or the engine: their originals do not either.
"""

from __future__ import annotations

import math
import random

from supervisor.core import facts as f
from supervisor.simulator.given import Given
from supervisor.simulator.oracle import Oracle, TierOracle
from supervisor.simulator.policy import AutoIntervalPolicy, AutoTierPolicy, CorePolicy, PolicyFactory, TierPolicy


class SeedScripts(Given):
    """The scripts of the runs that this project exists for, had they been able to see and to restart what they watched.

    Models ``.github/workflows/training-monitor.yml`` (cron ``*/10``) and ``scripts/training_controller.py``
    (seconds-0/beautifulsoup-rl@060d71248): every ten minutes W&B is asked; a run that ended is restarted, and so is one
    with a newest history point older than ``stale_threshold_minutes = 20``.

    W&B's lag: ``TRAINING_RUNS.md`` of that repository tells of two occasions on which points did not arrive (stalls of
    "~100" and "141 min" where the real gaps were at most 33 min), between 6 January 03:15 and 7 January 16:55: one in
    19 hours, some 105 minutes long. Between them points arrive after ``lag_s`` (assumed).

    Given beyond the rest: cron jobs on time (GitHub's come late); an exit is seen at the next poll however it ended;
    a stalled run is restarted in place, while the original takes a running pod for a recovery in progress and does
    nothing; its clock begins anew with each restart.
    """

    name = "seed-scripts"
    poll_s = 600.0
    stale_s = 1200.0
    lag_s = 60.0
    outage_every_s = 19 * 3600.0
    outage_s = 105 * 60.0

    def __init__(self) -> None:
        super().__init__()
        self._points: list[tuple[float, float]] = []  # (when W&B shows it, when the step was done), not shown yet
        self._shown = 0.0  # newest step that W&B shows, or the start
        self._next_poll = 0.0
        self._attempt_seen = -1

    def notice_fact(self, fact: f.Fact) -> None:
        if isinstance(fact, f.DaemonStarted):
            self._next_poll = self._poll_after()
        if isinstance(fact, f.StepDone) and fact.role == "trainer":
            self._points.append((self._arrives(), self.t))

    def reason_to_restart(self) -> str:
        if self._attempt_seen != self.attempt:
            self._attempt_seen, self._shown, self._points = self.attempt, self.started, []
        if self.t < self._next_poll:
            return ""
        self._next_poll = self._poll_after()
        while self._points and self._points[0][0] <= self.t:
            self._shown = self._points.pop(0)[1]
        if self.ended is not None:
            return "The poll found that the job has ended."
        if self.t - self._shown > self.stale_s:
            return f"W&B shows no new step for {(self.t - self._shown) / 60:.0f} min."
        return ""

    def look_at(self) -> float:
        return self._next_poll

    def _poll_after(self) -> float:
        return self.t + self.poll_s - self.wall % self.poll_s

    def _arrives(self) -> float:
        """When W&B shows a point of now. One outage in each stretch of ``outage_every_s``, at a place of its own."""
        if self.outage_s <= 0:
            return self.t + self.lag_s
        stretch = math.floor(self.wall / self.outage_every_s)
        draw = random.Random(f"{self.settings.seed}:{stretch}").random()
        begins = (stretch + draw * (1 - self.outage_s / self.outage_every_s)) * self.outage_every_s
        over = begins + self.outage_s if begins <= self.wall < begins + self.outage_s else self.wall
        return self.t + (over - self.wall) + self.lag_s


class SeedScriptsPromptWandb(SeedScripts):
    """The same with a W&B that shows every step a minute later, always: the best that such scripts can be."""

    name = "seed-scripts-ideal"
    outage_s = 0.0


class Systemd(Given):
    """``Restart=on-failure`` alone: the launcher's own end, by an exit code other than 0 or by a signal.

    SIGHUP, SIGINT, SIGTERM and SIGPIPE count as clean ends (systemd.service(5), ``Restart=``). The numbers are those of
    the seeds' own unit (``scripts/training.service``): ``RestartSec=60``, and no more than 5 starts in 600 s. What it
    does not see (a hang, a silent death, an exit with 0) lasts until the pod is lost: no program looks.
    """

    name = "systemd"
    restart_delay_s = 60.0
    clean_signals = frozenset({1, 2, 13, 15})
    burst, interval_s = 5, 600.0

    def __init__(self) -> None:
        super().__init__()
        self._starts: list[float] = []

    def notice_fact(self, fact: f.Fact) -> None:
        if isinstance(fact, f.AttemptStarted):
            self._starts = [*self._starts[1 - self.burst :], self.t]

    def reason_to_restart(self) -> str:
        ended = self.ended
        if ended is None or ended.exit_code == 0:
            return ""
        if ended.signal in self.clean_signals:
            return ""
        return f"Main process exited, {_how(ended)}."

    def gives_up(self) -> bool:
        recent = [t for t in self._starts if self.t + self.restart_delay_s - t < self.interval_s]
        return len(recent) >= self.burst


class Torchrun(Given):
    """torchrun's agent: the whole group is restarted at once on any failed exit, without back-off.

    ``monitor_interval`` is 0.1 s and exit code 0 means success (torch.distributed.elastic). Given beyond the rest:
    ``--max-restarts`` without a limit (its default is 0). Hangs are not its business: its health-check server
    is a stub.
    """

    name = "torchrun"
    monitor_s = 0.1

    def __init__(self) -> None:
        super().__init__()
        self._failed_at: float | None = None

    def notice_fact(self, fact: f.Fact) -> None:
        if isinstance(fact, f.ComponentExited):
            self._failed_at = self.t + self.monitor_s
        if isinstance(fact, f.AttemptStarted):
            self._failed_at = None

    def reason_to_restart(self) -> str:
        ended = self.ended
        if ended is None or ended.exit_code == 0 or self._failed_at is None or self.t < self._failed_at:
            return ""
        return f"A worker failed, {_how(ended)}: the group is restarted."

    def look_at(self) -> float:
        failing = self.ended is not None and self.ended.exit_code != 0
        return self._failed_at if failing and self._failed_at is not None else math.inf


class FixedTimeouts(Given):
    """A heartbeat a step with NVRx's old defaults: 60 min to the first, 45 min between two, looked at every 5 s.

    ``FaultToleranceConfig`` of NVIDIA/nvidia-resiliency-ext up to v0.3 (d815452 to b14ef61:
    ``initial_rank_heartbeat_timeout`` 3600, ``rank_heartbeat_timeout`` 2700, ``workload_check_interval`` 5); later
    versions have no numbers of their own. A failed exit restarts as in torchrun, from which its launcher is made.
    Given beyond the rest: restarts without a limit (``--max-restarts`` is 3).
    """

    name = "fixed-timeouts"
    initial_s, between_s, check_s = 3600.0, 2700.0, 5.0

    def reason_to_restart(self) -> str:
        ended = self.ended
        if ended is not None and ended.exit_code != 0:
            return f"A worker failed, {_how(ended)}: the group is restarted."
        if ended is None and self.t >= self.look_at():
            since = self.started if self.step_t is None else self.step_t
            return f"No heartbeat for {(self.t - since) / 60:.0f} min."
        return ""

    def look_at(self) -> float:
        if self.ended is not None:
            return math.inf
        due = self.started + self.initial_s if self.step_t is None else self.step_t + self.between_s
        return self.started + math.ceil((due - self.started) / self.check_s) * self.check_s


class PlainWatcher(Given):
    """Thirty lines that any user could write: any key process gone for two seconds, or no step for twenty minutes.

    Given beyond the rest: which processes belong to which role, and each step's line within a second.
    """

    name = "plain-watcher"
    gone_s, stale_s = 2.0, 1200.0

    def __init__(self) -> None:
        super().__init__()
        self._gone_t = math.inf

    def notice_fact(self, fact: f.Fact) -> None:
        if isinstance(fact, f.AttemptStarted):
            self._gone_t = math.inf
        if isinstance(fact, f.ProcessGone) and fact.key and fact.attempt == self.attempt:
            self._gone_t = min(self._gone_t, self.t)

    def reason_to_restart(self) -> str:
        if self.ended is not None:
            return f"The job has ended, {_how(self.ended)}."
        if self.t >= self._gone_t + self.gone_s:
            return "A process of the job is gone."
        return "No step for 20 min." if self.t >= self._stale_at() else ""

    def look_at(self) -> float:
        return min(self._gone_t + self.gone_s, self._stale_at())

    def _stale_at(self) -> float:
        return (self.started if self.step_t is None else self.step_t) + self.stale_s


def _how(ended: f.ComponentExited) -> str:
    if ended.signal is not None:
        return f"signal {ended.signal}"
    return "status lost" if ended.exit_code is None else f"exit code {ended.exit_code}"


POLICIES: dict[str, PolicyFactory] = {
    policy.name: policy
    for policy in (PlainWatcher, SeedScripts, SeedScriptsPromptWandb, Systemd, FixedTimeouts, Torchrun, Oracle)
}
"""Every policy but the core, by its name."""

ALL: dict[str, PolicyFactory] = {CorePolicy.name: CorePolicy, **POLICIES}
"""What is compared: all of these save at the scenario's interval."""
NAMED: dict[str, PolicyFactory] = {
    **ALL,
    **{policy.name: policy for policy in (AutoIntervalPolicy, TierPolicy, AutoTierPolicy, TierOracle)},
}
"""Every policy: of one that chooses its interval no oracle, which does not, is a bound."""
