"""What each of the other policies does with the same facts: by hand, without a virtual pod."""

from __future__ import annotations

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.simulator.baselines import ALL, POLICIES
from supervisor.simulator.policy import Policy

GIB = 1 << 30
MIN = 60.0
SETTINGS = f.Settings(run_id="bs4", keep_local=2, keep_last=3, stop_below_bytes=2 * GIB)


class Desk:
    """One policy, a clock, and effects that answer at once; steps and their places are lists that a test fills."""

    def __init__(self, name: str, settings: f.Settings = SETTINGS) -> None:
        self.policy: Policy = ALL[name]()
        self.t, self.wall0 = 0.0, 600_000 * 3600.0  # a whole number of hours: polls come at whole ten minutes
        self.settings = settings
        self.local: dict[int, str] = {}
        self.stored: dict[int, int] = {}
        self.store_reason = ""
        self.log: list[tuple[float, a.Action]] = []
        self.deadline = 0.0
        self.publish_works = True

    def see(self, fact: f.Fact) -> None:
        actions, self.deadline = self.policy.see(f.Observation(self.t, self.wall0 + self.t, fact))
        for action in actions:
            self.log.append((self.t, action))
            self._carry_out(action)

    def until(self, t: float) -> None:
        """Time passes; the policy is woken when it asked to be."""
        while (wake := self.deadline if self.deadline > self.t else self.t + 1.0) < t:
            self.t = wake
            self.see(f.Tick())
        self.t = max(t, self.t)

    def _carry_out(self, action: a.Action) -> None:
        match action:
            case a.Survey():
                self.survey()
            case a.Start():
                self.see(f.AttemptStarted(action.attempt, action.step, 100))
            case a.Stop():
                self.see(f.AttemptStopped(action.attempt, 3.0, gpu_free=True))
            case a.Publish() if self.publish_works:
                self.stored[action.step] = GIB
                self.see(f.Published(action.step, GIB, 60.0, GIB))
            case a.Publish():
                self.see(f.PublishFailed(action.step, "the link is down."))
            case a.PruneLocal():
                self.local.pop(action.step)
                self.see(f.Pruned(action.step, "local", GIB))
            case a.PruneStale():
                self.see(f.Pruned(-1, "local", 0))
            case a.PruneStore():
                self.stored.pop(action.step)
                self.see(f.Pruned(action.step, "store", GIB))
            case a.Restore():
                self.local[action.step] = "complete"
                self.see(f.Restored(action.step, GIB, 60.0))

    def survey(self) -> None:
        steps = tuple(f.LocalStep(s, what, "", GIB) for s, what in sorted(self.local.items()))  # type: ignore[arg-type]
        self.see(f.LocalSteps(steps, settled=True))
        if self.store_reason:
            self.see(f.StoreSteps(reason=self.store_reason))
        else:
            stored = tuple(f.StoredStep(s, True, size) for s, size in sorted(self.stored.items()))
            self.see(f.StoreSteps(stored, max(self.stored, default=None)))

    def boot(self, adopted: int | None = None) -> Desk:
        self.see(f.DaemonStarted("test", self.settings, "boot", adopted))
        return self

    def step(self, number: int, after: float = 4 * MIN) -> None:
        self.until(self.t + after)
        self.see(f.StepDone("trainer", number, after))

    def exits(self, code: int | None, signal: int | None = None) -> None:
        self.see(f.ComponentExited(self.attempt, "rl", code, signal))

    def asked(self, kind: type[a.Action]) -> list[a.Action]:
        return [action for _, action in self.log if isinstance(action, kind)]

    @property
    def attempt(self) -> int:
        return max((s.attempt for s in self.asked(a.Start) if isinstance(s, a.Start)), default=0)

    @property
    def starts(self) -> list[tuple[float, int | None]]:
        return [(t, action.step) for t, action in self.log if isinstance(action, a.Start)]


# ---------------------------------------------------------------- given to all


@pytest.mark.parametrize("name", POLICIES)
def test_a_fresh_pod_restores_the_highest_good_step_and_names_it(name: str) -> None:
    desk = Desk(name)
    desk.stored = {5: GIB, 10: GIB}
    desk.boot()
    assert desk.asked(a.Restore) == [a.Restore(10)]
    assert desk.starts == [(0.0, 10)]


@pytest.mark.parametrize("name", POLICIES)
def test_a_torn_step_is_passed_over_for_the_good_one_below(name: str) -> None:
    desk = Desk(name)
    desk.local = {5: "complete", 10: "incomplete"}
    desk.boot()
    assert desk.starts == [(0.0, 5)]


@pytest.mark.parametrize("name", POLICIES)
def test_a_store_that_cannot_be_listed_is_no_empty_store(name: str) -> None:
    desk = Desk(name)
    desk.store_reason = "503"
    desk.boot()
    desk.until(5 * MIN)
    assert desk.starts == []
    desk.store_reason, desk.stored = "", {5: GIB}
    desk.until(6 * MIN)
    assert [step for _, step in desk.starts] == [5]


@pytest.mark.parametrize("name", POLICIES)
def test_the_newest_complete_step_is_published_and_only_published_steps_are_pruned(name: str) -> None:
    desk = Desk(name)
    desk.boot()
    desk.local = {5: "complete", 10: "complete", 15: "complete"}
    desk.publish_works = False
    desk.survey()
    desk.see(f.DiskLook("/ckpt", 100 * GIB, 5 * GIB))
    assert desk.asked(a.Publish) == [a.Publish(15)] and not desk.asked(a.PruneLocal)
    desk.publish_works = True
    desk.until(desk.t + 60)
    assert 15 in desk.stored
    desk.see(f.DiskLook("/ckpt", 100 * GIB, 5 * GIB))
    assert desk.asked(a.PruneLocal) == [a.PruneLocal(5)]
    assert sorted(desk.local) == [10, 15]


@pytest.mark.parametrize("name", POLICIES)
def test_a_daemon_that_comes_back_leaves_its_living_job_alone(name: str) -> None:
    desk = Desk(name).boot()
    desk.step(1)
    desk.boot(adopted=1)
    desk.step(2)
    assert len(desk.starts) == 1 and not desk.asked(a.Stop)


@pytest.mark.parametrize("name", POLICIES)
def test_a_warned_pod_stops_its_job_publishes_and_leaves(name: str) -> None:
    desk = Desk(name).boot()
    desk.local[5] = "complete"
    desk.step(5)
    desk.see(f.Command("shutdown", "the provider"))
    assert desk.asked(a.Publish) == [a.Publish(5)]
    assert desk.asked(a.Exit) == [a.Exit(0, "Nothing is left to do.")]
    assert len(desk.starts) == 1


@pytest.mark.parametrize("name", POLICIES)
def test_ten_hours_of_ordinary_steps_are_left_alone(name: str) -> None:
    desk = Desk(name).boot()
    if name == "seed-scripts":
        desk.policy.outage_s = 0.0  # type: ignore[attr-defined]  # a test of its own has it
    for number in range(1, 150):
        desk.step(number)
    assert len(desk.starts) == 1


def test_ten_restarts_without_a_new_step_are_answered_with_one_step_back_and_the_new_one_is_published() -> None:
    desk = Desk("torchrun")
    desk.local, desk.stored = {5: "complete", 10: "complete"}, {5: GIB, 10: GIB}
    desk.boot()
    for _ in range(11):
        desk.until(desk.t + 5 * MIN)
        desk.exits(1)
    desk.until(desk.t + 1)
    assert [step for _, step in desk.starts] == [10] * 11 + [5]
    del desk.local[10]  # what a start at 5 moves aside
    desk.survey()
    desk.step(10)
    desk.local[10] = "complete"
    desk.survey()
    assert desk.asked(a.Publish) == [a.Publish(10, back=True)]


# ---------------------------------------------------------------- each by itself


def test_the_seeds_scripts_find_an_exit_at_the_next_poll_and_not_before() -> None:
    desk = Desk("seed-scripts-ideal").boot()
    desk.step(1, 11 * MIN)
    desk.until(13 * MIN)
    desk.exits(0)
    desk.until(25 * MIN)
    assert [t for t, _ in desk.starts] == [0.0, 20 * MIN]


def test_the_seeds_scripts_restart_a_run_of_which_wandb_shows_nothing_for_twenty_minutes() -> None:
    desk = Desk("seed-scripts-ideal").boot()
    desk.step(1, 12 * MIN)  # and then a hang
    desk.until(65 * MIN)
    # 32 min is past the limit, and the poll that sees it is that of minute 40; then nothing ever comes again.
    assert [t for t, _ in desk.starts][1] == 40 * MIN


def test_the_seeds_scripts_restart_a_healthy_run_while_wandb_lags() -> None:
    healthy = Desk("seed-scripts").boot()
    for number in range(1, 15 * 40):  # forty hours, as in the log of the seeds, which tells of two such alarms
        healthy.step(number)
    assert len(healthy.starts) > 1
    assert all(step is None for _, step in healthy.starts)


def test_systemd_restarts_a_failed_launcher_after_a_minute() -> None:
    desk = Desk("systemd").boot()
    desk.step(1)
    desk.exits(1)
    desk.until(10 * MIN)
    assert [t for t, _ in desk.starts] == [0.0, 5 * MIN]


@pytest.mark.parametrize(("code", "signal"), [(0, None), (None, 15)])
def test_systemd_takes_a_clean_end_for_the_end(code: int | None, signal: int | None) -> None:
    desk = Desk("systemd").boot()
    desk.step(1)
    desk.exits(code, signal)
    desk.until(600 * MIN)
    assert len(desk.starts) == 1


def test_systemd_is_killed_by_a_signal_that_is_not_clean_and_restarts() -> None:
    desk = Desk("systemd").boot()
    desk.exits(None, 9)
    desk.until(2 * MIN)
    assert len(desk.starts) == 2


def test_systemd_gives_up_after_five_starts_in_ten_minutes() -> None:
    desk = Desk("systemd").boot()
    for _ in range(8):
        desk.until(desk.t + 5)
        desk.exits(1)
        desk.until(desk.t + 61)
    assert len(desk.starts) == 5
    assert desk.asked(a.Exit) == [a.Exit(93, "systemd does not try again: Main process exited, exit code 1.")]


def test_torchrun_restarts_at_once_however_often_and_never_sees_a_hang() -> None:
    desk = Desk("torchrun").boot()
    for _ in range(20):
        desk.until(desk.t + 5)
        desk.exits(1)
    desk.until(desk.t + 1)
    assert len(desk.starts) == 21
    assert desk.starts[1][0] == pytest.approx(5.1)
    desk.until(desk.t + 100 * 3600)
    assert len(desk.starts) == 21


def test_fixed_timeouts_wait_an_hour_for_the_first_step_and_45_minutes_for_the_others() -> None:
    desk = Desk("fixed-timeouts").boot()
    desk.until(61 * MIN)
    assert [t for t, _ in desk.starts] == [0.0, 60 * MIN]
    desk.step(1, 9 * MIN)  # at minute 70
    desk.until(114 * MIN)
    assert len(desk.starts) == 2
    desk.until(116 * MIN)
    assert [t for t, _ in desk.starts][2] == pytest.approx(115 * MIN, abs=5.0)


@pytest.mark.parametrize("name", ["fixed-timeouts", "torchrun", "systemd"])
def test_a_silent_death_behind_a_living_launcher_is_no_news_to_them(name: str) -> None:
    desk = Desk(name).boot()
    desk.step(1)
    desk.see(f.ProcessGone(1, "inference", 200, 1))
    desk.until(desk.t + 30 * MIN)
    assert len(desk.starts) == 1


def test_the_oracle_stops_at_the_moment_of_the_fault_and_resumes_at_the_last_good_step() -> None:
    desk = Desk("oracle").boot()
    desk.local[5] = "complete"
    desk.step(5)
    desk.survey()
    desk.step(6)
    desk.policy.learn_fault(desk.t, "engine-hang")
    desk.see(f.Tick())
    assert desk.starts[1:] == [(desk.t, 5)]


def test_the_oracle_leaves_a_pod_that_lost_a_gpu_and_goes_one_step_back_from_a_poisoned_one() -> None:
    desk = Desk("oracle")
    desk.local = {5: "complete", 10: "complete"}
    desk.boot()
    desk.step(11)
    desk.policy.learn_fault(desk.t, "poison-step")
    desk.see(f.Tick())
    assert [step for _, step in desk.starts] == [10, 5]
    desk.policy.learn_fault(desk.t, "gpu-lost")
    desk.see(f.Tick())
    assert desk.asked(a.Exit) == [a.Exit(94, "The pod has to be replaced.")]


def test_a_person_sends_a_run_with_a_lost_gpu_elsewhere_after_ten_restarts() -> None:
    desk = Desk("torchrun").boot()
    desk.see(f.GpuLook(lost=("GPU 1: GPU is lost",)))
    for _ in range(11):
        desk.until(desk.t + 60)
        desk.exits(1)
    desk.until(desk.t + 1)
    assert desk.asked(a.Exit) == [a.Exit(94, "A person sends the run elsewhere: GPU 1: GPU is lost.")]


def test_the_oracle_does_not_restart_for_what_passes_by_itself() -> None:
    desk = Desk("oracle").boot()
    desk.step(1)
    for fault in ("store-outage", "engine-overload", "disk-fills"):
        desk.policy.learn_fault(desk.t, fault)
        desk.see(f.Tick())
    assert len(desk.starts) == 1


def test_the_plain_watcher_restarts_when_a_process_is_gone_or_no_step_is_done_for_twenty_minutes() -> None:
    desk = Desk("plain-watcher").boot()
    desk.step(1)
    desk.see(f.ProcessGone(1, "env", 7, 1, key=False))
    desk.until(desk.t + MIN)
    assert len(desk.starts) == 1
    desk.see(f.ProcessGone(1, "inference", 8, 1, key=True))
    desk.until(desk.t + 10)
    assert [t for t, _ in desk.starts] == [0.0, 5 * MIN + 2]
    desk.step(1)
    desk.until(desk.t + 21 * MIN)
    assert [t for t, _ in desk.starts][2] == pytest.approx(9 * MIN + 10 + 20 * MIN)
