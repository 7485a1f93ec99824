"""Training that runs but is worthless: what is said, when, and what never is."""

from __future__ import annotations

import json
import math
import random

import pytest

from supervisor.core.codec import decode, encode
from supervisor.core.evolve import replace
from supervisor.core.facts import ErrorSeen, Role, StepDone
from supervisor.core.training_health import KEEP_SPEEDS, RULES, Finding, Worth, judge_fact, standing_findings

WALL = 1_767_600_000.0


class Run:
    """A run whose steps take four minutes each, and what people were told."""

    def __init__(self, step_s: float = 240.0) -> None:
        self.worth = Worth()
        self.t = 1000.0
        self.step = 0
        self.step_s = step_s
        self.findings: list[Finding] = []

    def steps(self, count: int, role: Role = "trainer", **values: float) -> list[Finding]:
        """So many steps that all say the same; the findings that they brought."""
        before = len(self.findings)
        for _ in range(count):
            self.step += 1
            self.t += self.step_s
            self.see(StepDone(role, self.step, self.step_s, **values))
        return self.findings[before:]

    def see(self, fact: StepDone | ErrorSeen) -> list[Finding]:
        self.worth, found = judge_fact(self.worth, fact, self.t, WALL + self.t)
        self.findings += found
        return list(found)


def one(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


# ---------------------------------------------------------------- loss


def test_a_loss_that_is_nan_twice_is_said_once_and_taken_back_when_it_is_a_number_again() -> None:
    run = Run()
    assert run.steps(20, loss=0.1) == []
    finding = one(run.steps(30, loss=math.nan))
    assert finding.name == "loss-nan"
    assert not finding.cleared
    assert finding.sentence == ("The loss is nan for 2 steps, up to step 22: the weights are most likely lost.")
    assert list(standing_findings(run.worth).values()) == [finding.sentence]
    assert run.steps(1, loss=0.2) == []  # one number between many NaN takes nothing back
    taken = one(run.steps(1, loss=0.2))
    assert (taken.name, taken.cleared) == ("loss-nan", True)
    assert taken.sentence == "The loss is a number again at step 52 (0.2)."
    assert not standing_findings(run.worth)


def test_one_nan_is_no_news_and_an_infinite_loss_is() -> None:
    run = Run()
    for _ in range(10):
        assert run.steps(1, loss=math.nan) == []
        assert run.steps(1, loss=0.1) == []
    assert one(run.steps(2, loss=math.inf)).sentence.startswith("The loss is inf for 2 steps")


def test_the_same_step_from_the_log_and_from_metrics_counts_once() -> None:
    run = Run()
    for _ in range(3):
        run.see(StepDone("trainer", 1, loss=math.nan))
        run.see(StepDone("trainer", 1, 200.0))
    assert run.findings == []
    run.see(StepDone("trainer", 2, loss=math.nan))
    assert [finding.name for finding in run.findings] == ["loss-nan"]


def test_a_step_done_again_after_a_restart_counts_again() -> None:
    run = Run()
    run.see(StepDone("trainer", 41, loss=math.nan))
    run.worth = replace(run.worth, newest={})  # as at an attempt's first step
    run.see(StepDone("trainer", 40, loss=math.nan))  # went one back, and it is there already
    assert [finding.name for finding in run.findings] == ["loss-nan"]


def test_lines_that_the_next_daemon_reads_once_more_take_nothing_back_and_count_once() -> None:
    run = Run()
    run.steps(9, loss=0.1)
    assert run.steps(2, loss=math.nan)
    run.step = 3  # its own daemon was killed before it noted how far it had read
    assert run.steps(6, loss=0.1) == []
    assert run.steps(2, loss=math.nan) == []
    assert standing_findings(run.worth) and run.worth.rows["loss-nan"].bad == 2
    assert one(run.steps(2, loss=0.1)).cleared


# ---------------------------------------------------------------- reward


def test_a_reward_that_never_leaves_zero_is_said_after_ten_steps_and_half_an_hour() -> None:
    run = Run()
    assert run.steps(9, "orchestrator", reward=0.0) == []
    finding = one(run.steps(50, "orchestrator", reward=0.0))
    assert finding == Finding(
        "reward-flat",
        "The reward is zero for 10 steps in 36 min, up to step 10; it was never above zero. "
        "Look at some answers, at the parser and at the reward function.",
    )
    assert one(run.steps(1, "orchestrator", reward=0.01)).sentence == "The reward moves again: 0.01 at step 60."


def test_fast_steps_are_given_half_an_hour() -> None:
    run = Run(step_s=10.0)
    assert run.steps(180, "orchestrator", reward=0.0) == []
    assert "for 181 steps in 30 min" in one(run.steps(1, "orchestrator", reward=0.0)).sentence


def test_a_reward_that_fell_to_zero_and_stays_is_told_as_such() -> None:
    run = Run()
    run.steps(30, "orchestrator", reward=0.4)
    finding = one(run.steps(20, "orchestrator", reward=0.00001))
    assert "it was above zero before" in finding.sentence


def test_a_sparse_or_a_negative_reward_is_not_flat() -> None:
    run = Run()
    for _ in range(20):
        assert run.steps(9, "orchestrator", reward=0.0) == []
        assert run.steps(1, "orchestrator", reward=0.01) == []
    assert run.steps(50, "orchestrator", reward=-0.5) == []


def test_batches_without_any_reward_are_as_flat_as_zeros() -> None:
    run = Run()
    finding = one(run.steps(12, "orchestrator", reward=math.nan))
    assert finding.name == "reward-flat"
    assert finding.sentence.startswith("The reward is no number for 10 steps")


def test_a_plain_commands_reward_counts_too() -> None:
    run = Run()
    assert one(run.steps(12, "job", reward=0.0, loss=0.5)).name == "reward-flat"


# ---------------------------------------------------------------- masked samples


def test_no_trainable_sample_for_six_batches_is_said() -> None:
    run = Run()
    assert run.steps(5, "orchestrator", reward=0.3, trainable=0.0) == []
    assert run.steps(1, "orchestrator", reward=0.3, trainable=0.5) == []
    finding = one(run.steps(9, "orchestrator", reward=0.3, trainable=0.0))
    assert finding.name == "all-masked"
    assert finding.sentence == (
        "No sample of the last 6 batches, up to step 12, carried a gradient: either all rewards of a group are equal, "
        "or the environment marks no token as trainable."
    )
    run.steps(3, loss=0.0)  # the trainer goes on all the same: that takes nothing back
    assert list(standing_findings(run.worth).values()) == [finding.sentence]
    cleared = one(run.steps(2, "orchestrator", reward=0.3, trainable=0.25))
    assert cleared.sentence == "Samples are trained on again: 25% of them at step 20."


def test_the_trainers_own_word_for_an_empty_loss_mask_is_enough() -> None:
    run = Run()
    text = "RuntimeError: min(): Expected reduction dim to be specified for input.numel() == 0."
    finding = one(run.see(ErrorSeen("trainer", "empty-loss-mask", text)))
    assert finding.name == "all-masked"
    assert finding.sentence == (
        "All samples of a batch are masked; the trainer logs: RuntimeError: min(): Expected reduction dim to be "
        "specified for input.numel() == 0."
    )
    assert run.see(ErrorSeen("trainer", "empty-loss-mask", text)) == []  # each rank says it
    assert run.steps(1, loss=0.1) == []
    assert one(run.steps(1, loss=0.1)).cleared


def test_one_dropped_batch_is_no_news_and_six_in_a_row_are() -> None:
    run = Run()
    error = ErrorSeen("orchestrator", "batch-dropped", "Step 5: empty train batch after 128 finalized episodes")
    assert run.see(error) == []
    run.steps(1, "orchestrator", reward=0.1, trainable=0.2)
    for _ in range(5):
        assert run.see(error) == []
    told = one(run.see(error))
    assert told.sentence.startswith("6 batches held no sample to train on; the orchestrator logs: Step 5: empty")


# ---------------------------------------------------------------- rollouts that fail


def test_rollouts_that_nearly_all_fail_are_said() -> None:
    run = Run()
    assert run.steps(30, "orchestrator", reward=0.3, error_rate=0.6) == []
    finding = one(run.steps(9, "orchestrator", reward=0.3, error_rate=0.98))
    assert finding == Finding(
        "rollouts-failing",
        "98% of the rollouts end in an error, for 3 steps up to step 33. The orchestrator's warnings name the error.",
    )
    assert one(run.steps(3, "orchestrator", reward=0.3, error_rate=0.1)).cleared


def test_requests_that_are_all_refused_before_the_first_step_are_said_with_the_remedy() -> None:
    run = Run()
    text = "ValueError: 'max_tokens' or 'max_completion_tokens' is too large: 4000."
    error = ErrorSeen("inference", "max-tokens-too-large", text, remedy="Lower max_tokens.")
    for _ in range(100):
        run.t += 10.0
        run.see(error)
    assert one(run.findings) == Finding(
        "requests-refused",
        "No step is done, and the engine refused 61 requests in 10 min (max-tokens-too-large): ValueError: "
        "'max_tokens' or 'max_completion_tokens' is too large: 4000. Lower max_tokens.",
    )
    assert one(run.steps(1, loss=0.1)).sentence == "Step 1 is done, so requests are served after all."
    for _ in range(1000):
        run.t += 10.0
        assert run.see(error) == []  # after a first step, some of a healthy run's requests are too long


# ---------------------------------------------------------------- throughput


def test_a_throughput_that_fell_to_a_third_and_stayed_there_is_said() -> None:
    run = Run()
    assert run.steps(20, loss=0.1, throughput=9000.0) == []
    finding = one(run.steps(30, loss=0.1, throughput=2500.0))
    assert finding.name == "throughput-fell"
    assert finding.sentence.startswith(
        "The trainer makes 2500 tokens/s, less than a third of its usual 9000, for 5 steps in 16 min, up to step 25."
    )
    assert run.steps(5, loss=0.1, throughput=3500.0) == [], "above a third, yet far from what it was"
    cleared = one(run.steps(2, loss=0.1, throughput=8000.0))
    assert cleared == Finding("throughput-fell", "The trainer is fast again: 8000 tokens/s at step 57.", cleared=True)


def test_fast_steps_must_be_slow_for_ten_minutes() -> None:
    run = Run(step_s=10.0)
    run.steps(50, loss=0.1, throughput=9000.0)
    assert run.steps(60, loss=0.1, throughput=100.0) == []
    assert one(run.steps(1, loss=0.1, throughput=100.0)).name == "throughput-fell"


def test_first_steps_checkpoints_and_evaluations_are_slow_and_no_news() -> None:
    run = Run()
    assert run.steps(3, loss=0.1, throughput=300.0) == []  # compiling
    for _ in range(20):
        assert run.steps(9, loss=0.1, throughput=9000.0) == []
        assert run.steps(1, loss=0.1, throughput=900.0) == []  # the step of a checkpoint
    for _ in range(5):
        assert run.steps(1, loss=0.1, throughput=9000.0) == []
        assert run.steps(4, loss=0.1, throughput=900.0) == []  # a long evaluation


def test_the_orchestrators_throughput_is_not_the_trainers() -> None:
    run = Run()
    run.steps(20, loss=0.1, throughput=9000.0)
    assert run.steps(20, "orchestrator", reward=0.5, throughput=10.0) == []


# ---------------------------------------------------------------- in all


def test_a_healthy_run_of_ten_thousand_steps_says_nothing() -> None:
    chance = random.Random(1)
    run = Run()
    for _ in range(10_000):
        run.steps(
            1,
            "orchestrator",
            reward=max(0.0, chance.gauss(0.3, 0.2)),
            trainable=chance.choice((0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.8, 1.0)),
            error_rate=min(1.0, chance.lognormvariate(-4, 1.5)),
        )
        run.step -= 1
        run.steps(1, loss=chance.gauss(0, 0.1), throughput=9000 * chance.lognormvariate(0, 0.4))
    assert run.findings == []


def test_what_is_kept_is_small_and_survives_the_journal() -> None:
    run = Run()
    for _ in range(500):
        run.steps(1, loss=math.nan, throughput=9000.0)
        run.steps(1, "orchestrator", reward=0.0, trainable=0.0, error_rate=1.0)
    assert len(run.worth.speeds) == KEEP_SPEEDS
    text = json.dumps(encode(run.worth), allow_nan=False)
    assert len(text) < 4096
    assert decode(json.loads(text)) == run.worth
    assert decode({"@": "Worth"}) == Worth()
    assert len(standing_findings(run.worth)) == 4


def test_all_that_can_be_said_ends_with_a_full_stop_and_has_a_rule() -> None:
    run = Run()
    run.see(ErrorSeen("trainer", "empty-loss-mask", "no token"))
    run.steps(20, loss=math.nan, throughput=9000.0)
    run.steps(20, "orchestrator", reward=0.0, trainable=0.0, error_rate=1.0)
    run.steps(20, loss=0.1, throughput=1.0)
    run.steps(20, loss=0.1, throughput=9000.0)
    run.steps(20, "orchestrator", reward=0.5, trainable=1.0, error_rate=0.0)
    assert {finding.name for finding in run.findings} == set(RULES) - {"requests-refused"}
    for finding in run.findings:
        assert finding.sentence.endswith("."), finding
    for name in RULES:
        told = [finding.cleared for finding in run.findings if finding.name == name]
        assert told == [False, True] * (len(told) // 2), name


@pytest.mark.parametrize("signature", ["cuda-oom", "connection-error", "engine-dead"])
def test_other_errors_and_steps_that_say_nothing_change_nothing(signature: str) -> None:
    run = Run()
    run.steps(1, loss=0.1)
    before = run.worth
    assert run.see(ErrorSeen("orchestrator", signature, "text")) == []
    assert run.see(StepDone("trainer", 2, 200.0)) == []
    assert run.worth is before
