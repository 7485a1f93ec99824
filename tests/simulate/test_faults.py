"""Each kind of fault, in a world of a few hours with the real core: what it says, and that the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.core import facts as f
from supervisor.core.time_kinds import STOPPING
from supervisor.simulator.faults import KINDS
from tests.simulate.worlds import after, fault

FEW_SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))]  # one here, the others at night
PROCESS_DEATHS = [
    ("engine-exit-0", "vLLM died silently"),
    ("engine-crash", "vLLM died"),
    ("trainer-crash", "The trainer died"),
    ("orchestrator-crash", "The orchestrator died"),
    ("job-killed", "The job ended with signal 9"),
]


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "sentence"), PROCESS_DEATHS)
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_process_that_dies_is_noticed_in_seconds_and_the_run_resumes_from_the_newest_checkpoint(
    kind: str, sentence: str, seed: int
) -> None:
    told = after(fault(kind), seed=seed, hours=3)
    assert told.detected_s(kind) < 5
    assert told.said("verdict")[0].startswith(sentence)
    first, second = told.resumed_at()
    assert first is None
    assert second is not None
    assert second % 5 == 0
    assert told.account.steps_lost <= 5
    assert told.goes_on
    assert told.account.false_restarts == []


@pytest.mark.soak
@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("shows_running", [True, False])
def test_an_engine_that_makes_no_token_and_answers_health_is_found_hung(says: bool, shows_running: bool) -> None:
    told = after(fault("engine-hang", says=says, shows_running=shows_running), seed=3)
    assert told.detected_s("engine-hang") < 180
    assert told.said("verdict")[0].startswith("vLLM hangs: it answers /health but makes no progress")
    assert told.goes_on


def test_an_engine_without_liveness_is_found_hung_by_its_counters_and_a_canary() -> None:
    told = after(fault("engine-hang"), seed=3, sets=["liveness=false"])
    assert told.detected_s("engine-hang") < 240
    assert told.goes_on


@pytest.mark.soak
def test_one_of_four_engines_that_dies_is_a_death() -> None:
    told = after(fault("engine-one-dies", engine=2), sets=["engines=4"])
    assert told.detected_s("engine-one-dies") < 5
    assert told.goes_on


@pytest.mark.soak
def test_one_of_four_engines_that_hangs_is_found_at_last() -> None:
    told = after(fault("engine-one-hangs", engine=2), sets=["engines=4"])
    assert told.said("verdict")
    assert told.goes_on


@pytest.mark.soak
def test_a_run_whose_loss_is_nan_keeps_the_step_before_it_though_the_pod_is_lost() -> None:
    told = after(fault("weights-lost"), fault("spot-loss", at="4h"), hours=10)
    sentences = [one for one in told.said("worth") if "supervisorctl rollback" in one]
    assert len(sentences) == 2, "one of each pod"
    kept = {int(one.rpartition(" ")[2]) for one in sentences}
    assert len(kept) == 1, "the same step"
    assert kept <= set(told.world.store.steps)
    assert not told.world.store.steps[kept.pop()].ruined
    assert sum(checkpoint.ruined for checkpoint in told.world.store.steps.values()) >= 3
    assert told.account.false_restarts == []


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_an_overloaded_engine_that_recovers_is_left_alone(seed: int) -> None:
    told = after(fault("engine-overload", seconds=600), seed=seed)
    assert told.account.restarts == 0
    assert told.goes_on


def test_a_trainer_that_hangs_in_a_collective_is_stopped_before_its_own_time_out() -> None:
    told = after(fault("nccl-hang"))
    assert told.detected_s("nccl-hang") < 3600
    assert told.said("verdict")[0].startswith("The trainer is stuck")
    assert told.goes_on


@pytest.mark.soak
@pytest.mark.parametrize("silent", [True, False])
def test_an_orchestrator_that_stands_still_is_stuck_once_the_step_is_overdue(silent: bool) -> None:
    told = after(fault("orchestrator-wedge", silent=silent))
    assert "stuck" in told.said("verdict")[0] or "hangs" in told.said("verdict")[0]
    assert told.detected_s("orchestrator-wedge") < 3000
    assert told.goes_on


def test_an_environment_server_that_is_gone_stops_the_rollouts_and_is_found() -> None:
    told = after(fault("env-death"))
    assert told.detected_s("env-death") < 3000
    assert told.goes_on


@pytest.mark.soak
def test_an_environment_server_that_lives_and_hangs_is_found() -> None:
    told = after(fault("env-hang", "6h"), hours=8)
    assert told.detected_s("env-hang") < 900
    assert "the trainer's GPUs have rested" in told.said("verdict")[0]
    assert told.goes_on


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["env-stall", "collective-stall"])
def test_what_stands_still_for_a_minute_and_lifts_is_left_alone(kind: str) -> None:
    told = after(fault(kind, "6h", seconds=70.0), hours=8)
    assert told.account.restarts == 0
    assert told.goes_on


@pytest.mark.soak
def test_a_resume_that_deadlocks_is_given_up_after_its_budget_and_tried_again() -> None:
    told = after(fault("resume-deadlock"), fault("trainer-crash", "2h1min"), hours=8)
    assert told.detected_s("resume-deadlock") < 3700
    assert "no step" in told.said("verdict")[1]
    assert told.resumed_at()[1] == told.resumed_at()[2]
    assert told.goes_on


@pytest.mark.parametrize("role", ["trainer", "orchestrator", "inference"])
def test_a_role_that_the_kernel_killed_is_named_with_the_reason(role: str) -> None:
    told = after(fault("host-oom", role=role))
    assert told.detected_s("host-oom") < 5
    assert any(isinstance(fact, f.HostLook) and fact.oom_kills == 1 for fact in told.facts)
    assert told.goes_on


@pytest.mark.soak
def test_a_lost_gpu_ends_on_another_pod() -> None:
    told = after(fault("gpu-lost", gpu=1), hours=8)
    assert told.account.pods == 2
    assert told.account.gave_up == 0
    assert told.goes_on


def test_a_driver_that_answers_nobody_is_unknown_and_not_dead() -> None:
    told = after(fault("nvml-hang", seconds=1800))
    assert any(isinstance(fact, f.GpuLook) and fact.reason for fact in told.facts)
    assert told.account.restarts == 0


@pytest.mark.soak
@pytest.mark.parametrize("growth", [0.0, 0.5])
def test_files_of_others_fill_the_disk_and_old_published_steps_make_room(growth: float) -> None:
    told = after(fault("disk-fills", growth_gb_s=growth, leaves_gb=30))
    assert any(isinstance(fact, f.Pruned) and fact.where == "local" for fact in told.facts)
    assert told.account.restarts == 0
    assert told.goes_on


@pytest.mark.soak
def test_a_disk_with_no_room_at_all_stops_the_job_and_it_goes_on_once_there_is_room() -> None:
    told = after(fault("disk-fills", growth_gb_s=0.2, leaves_gb=0, seconds=5400), hours=8)
    assert told.account.false_restarts == []
    assert told.goes_on


@pytest.mark.soak
def test_a_torn_checkpoint_is_never_resumed_from() -> None:
    told = after(fault("torn-checkpoint"))
    torn = next(s.step for fact in told.facts if isinstance(fact, f.LocalSteps) for s in fact.steps if _torn(s))
    assert torn not in told.resumed_at()
    assert told.resumed_at()[1] == torn - 5
    assert told.goes_on


def _torn(step: f.LocalStep) -> bool:
    return step.state == "incomplete"


@pytest.mark.soak
def test_a_checkpoint_that_always_crashes_is_quarantined_and_the_run_goes_one_step_back() -> None:
    told = after(fault("poison-step"), hours=8)
    assert told.said("one-step-back")
    resumed = [step for step in told.resumed_at() if step is not None]
    assert resumed[-1] == resumed[0] - 5
    assert told.account.gave_up == 0
    assert told.goes_on


def test_a_store_that_is_away_for_an_hour_costs_the_run_nothing() -> None:
    told = after(fault("store-outage", seconds=3600))
    assert any(isinstance(fact, f.StoreSteps) and fact.reason for fact in told.facts)
    assert told.account.restarts == 0
    published = [fact.step for fact in told.facts if isinstance(fact, f.Published)]
    assert published == sorted(published)
    assert told.goes_on


@pytest.mark.soak
def test_a_store_that_is_away_when_a_new_pod_asks_for_the_checkpoint_is_waited_for() -> None:
    told = after(fault("store-outage", "1h55min", seconds=3600), fault("spot-loss"), hours=8)
    assert told.account.pods == 2
    assert told.resumed_at()[0] is None
    assert None not in told.resumed_at()[1:], "a fresh start although the store may hold checkpoints"
    assert told.goes_on


@pytest.mark.soak
def test_a_damaged_step_in_the_store_is_left_for_the_one_before() -> None:
    told = after(fault("store-damage"), fault("spot-loss", "2h1min"), hours=8)
    damaged = [fact.step for fact in told.facts if isinstance(fact, f.RestoreFailed) and fact.damaged]
    assert len(damaged) == 1
    assert told.resumed_at()[1] == damaged[0] - 5
    assert told.goes_on


@pytest.mark.soak
def test_a_slow_link_skips_steps_and_stops_nothing() -> None:
    told = after(fault("slow-link", seconds=10000, speed=0.05), hours=8)
    assert told.account.restarts == 0
    assert told.goes_on


@pytest.mark.parametrize("warning_s", [0, *(pytest.param(s, marks=pytest.mark.soak) for s in (5, 30)), 120])
def test_a_pod_that_is_taken_away_is_followed_by_one_that_resumes_from_the_store(warning_s: float) -> None:
    told = after(fault("spot-loss", warning_s=warning_s))
    assert told.account.pods == 2
    assert told.account.false_restarts == []
    restored = [fact.step for fact in told.facts if isinstance(fact, f.Restored)]
    assert restored == told.resumed_at()[1:]
    assert told.goes_on


def test_a_host_that_vanishes_is_replaced() -> None:
    told = after(fault("host-vanishes"))
    assert told.account.pods == 2
    assert told.goes_on


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [60, 3600])
def test_a_host_that_stood_still_is_no_hang(seconds: float) -> None:
    told = after(fault("clock-jump", seconds=seconds))
    assert any(isinstance(fact, f.ClockJumped) and fact.seconds == pytest.approx(seconds) for fact in told.facts)
    assert told.account.restarts == 0
    assert told.goes_on


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [2, 60, 900])
def test_a_daemon_that_is_killed_costs_the_run_nothing(seconds: float) -> None:
    told = after(fault("daemon-kill", seconds=seconds))
    assert told.said("adopted")
    assert told.account.restarts == 0
    assert told.goes_on


@pytest.mark.soak
def test_daemons_that_die_every_nine_minutes_beside_a_stuck_job_see_that_it_is_stuck() -> None:
    kills = [fault("daemon-kill", 9 * 60.0 * number, seconds=20) for number in range(1, 50)]
    told = after(*kills, fault("orchestrator-wedge"), hours=8)
    assert told.detected_s("orchestrator-wedge") < 3000, "as soon as one daemon does"
    assert told.account.restarts == 1


def test_a_job_that_dies_while_no_daemon_lives_is_restarted_by_the_next_one() -> None:
    told = after(fault("daemon-kill", seconds=600), fault("trainer-crash", "2h1min"))
    assert told.account.restarts == 1
    assert 530 < told.detected_s("trainer-crash") < 560
    assert told.goes_on


def test_a_daemon_that_dies_while_it_stops_the_job_is_followed_by_one_that_ends_the_stop() -> None:
    told = after(fault("trainer-crash", 7200), fault("daemon-kill", 7205, seconds=20))
    assert told.account.restarts == 1
    assert told.goes_on


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("big-save", {"seconds": 600}),
        ("slow-steps", {"steps": 3, "factor": 3}),
        ("long-evaluation", {"seconds": 1200}),
    ],
)
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_what_is_odd_and_healthy_is_left_alone(kind: str, parameters: dict[str, float], seed: int) -> None:
    told = after(fault(kind, **parameters), seed=seed)
    assert told.account.restarts == 0
    assert told.goes_on


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_log_that_cannot_be_read_for_a_while_is_no_silence_of_the_job(seed: int) -> None:
    told = after(fault("log-gap", seconds=900), seed=seed)
    assert told.account.restarts == 0
    assert told.goes_on


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["gpu-stumbles", "code-error"])
def test_a_job_that_ends_by_itself_goes_on_on_its_pod(kind: str) -> None:
    told = after(fault(kind), hours=4)
    assert told.detected_s(kind) < 40
    assert told.goes_on and told.account.pods == 1 and len(told.resumed_at()) == 2


def test_a_start_that_fails_is_tried_again() -> None:
    told = after(fault("start-fails", 7100), fault("job-killed"), hours=5)
    assert len(told.resumed_at()) == 3 and told.goes_on


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["memory-stays", "slow-stop"])
def test_a_stop_that_takes_longer_costs_its_time_and_no_pod(kind: str) -> None:
    told = after(fault(kind, 7100, seconds=60), fault("job-killed"), hours=5)
    assert told.account.seconds[STOPPING] > 60 and told.goes_on and told.account.pods == 1


@pytest.mark.soak
def test_a_host_reboot_ends_the_job_and_leaves_the_disk() -> None:
    told = after(fault("host-reboot", seconds=300), hours=5)
    first, second = told.resumed_at()
    assert first is None and second is not None and told.goes_on and told.account.pods == 1


def test_each_kind_of_fault_has_a_test_here() -> None:
    text = Path(__file__).read_text()
    assert [kind for kind in KINDS if f'"{kind}"' not in text] == []


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["orchestrator-wedge", "env-death"])
def test_an_orchestrator_that_stands_still_in_an_evaluation_is_found_within_the_hour(kind: str) -> None:
    told = after(fault(kind), seed=2, hours=8)  # at that time seed 2 is in an evaluation
    assert told.detected_s(kind) < 3600


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_an_evaluation_of_forty_minutes_is_left_alone(seed: int) -> None:
    assert after(fault("long-evaluation", seconds=2400), seed=seed).account.restarts == 0
