"""What does not divide: batches and groups, GPUs and degrees of parallelism."""

from __future__ import annotations

from itertools import product

import pytest

from supervisor.jobs.base import GpuPlan
from supervisor.preflight import batches
from supervisor.preflight.models import ModelFacts
from tests.preflight.eras_by_day import EVERY, JANUARY, JUNE, MARCH, NEWEST, SEPTEMBER, found, of, weights


@pytest.mark.parametrize(("batch", "group"), [(8, 2), (128, 16), (16, 16), (7, 7), (256, 1)])
@pytest.mark.parametrize("era", EVERY)
def test_whole_groups_are_sound_in_every_version(era: str | None, batch: int, group: int) -> None:
    for name in ("group_size", "rollouts_per_example"):
        text = f"[orchestrator]\nbatch_size = {batch}\nmicro_batch_size = 1\n{name} = {group}\n"
        assert weights(batches.CHECKS, of(era, text)) == {}


@pytest.mark.parametrize("era", EVERY)
def test_a_broken_group_is_refused_in_every_version(era: str | None) -> None:
    text = "[orchestrator]\nbatch_size = 129\nmicro_batch_size = 1\ngroup_size = 16\n"
    [one] = found(batches.CHECKS, of(era, text))
    assert (one.id, one.where.line, one.weight) == ("batch-of-whole-groups", 2, "error")
    assert one.remedy == "Set orchestrator.batch_size to 128 or 144."
    text = text.replace("129", "129.0").replace("16", "'16'")  # pydantic makes whole numbers of both
    assert "batch-of-whole-groups" in weights(batches.CHECKS, of(era, text))


@pytest.mark.parametrize(
    ("orchestrator", "source", "warned"),
    [
        ("", "", True),
        ("group_size = 1", "", True),
        ("group_size = 8", "", False),
        ("", "group_size = 8", False),
        ("algo = { type = 'rae' }", "", False),
        ("", "algo = { type = 'rae' }", False),
        ("training_mode = 'opd'", "", False),
        ("group_size = 'x'", "", False),
    ],
)
def test_a_group_of_one_teaches_nothing_but_with_another_lesson(orchestrator: str, source: str, warned: bool) -> None:
    text = f"[orchestrator]\n{orchestrator}\n[[orchestrator.train.source]]\n{source}\n"
    assert ("group-of-one" in weights(batches.CHECKS, of(NEWEST, text))) == warned
    assert "group-of-one" not in weights(batches.CHECKS, of(NEWEST, f"[orchestrator]\n{orchestrator}\n"))


@pytest.mark.parametrize(("source", "warned"), [("", True), ("sampling = { temperature = 1.0 }", False)])
def test_a_temperature_of_0_holds_where_a_source_names_none_of_its_own(source: str, warned: bool) -> None:
    text = f"[orchestrator.train.sampling]\ntemperature = 0.0\n[[orchestrator.train.source]]\n{source}\n"
    assert ("greedy-rollouts" in weights(batches.CHECKS, of(NEWEST, text))) == warned


def test_a_batch_of_tokens_has_no_groups_to_fill() -> None:
    text = "[orchestrator]\ntoken_batch_size = 100000\ngroup_size = 12\nmax_inflight_rollouts = 48\n"
    assert weights(batches.CHECKS, of(MARCH, text)) == {}


def test_the_remedy_for_a_batch_below_one_group_is_one_group() -> None:
    [one] = found(batches.CHECKS, of(NEWEST, "[orchestrator]\nbatch_size = 8\ngroup_size = 16\n"))
    assert one.remedy == "Set orchestrator.batch_size to 16."


@pytest.mark.parametrize(
    ("era", "factor", "refused"),
    [(JANUARY, "1.0", False), (JANUARY, "0.99", True), (MARCH, "0.5", True), (JUNE, "0.5", False), (JUNE, "0.0", True)],
)
def test_since_when_oversampling_may_be_below_one(era: str, factor: str, refused: bool) -> None:
    text = f"[orchestrator]\noversampling_factor = {factor}\n"
    assert ("oversampling-below-one" in weights(batches.CHECKS, of(era, text))) == refused


@pytest.mark.parametrize(
    ("gpus", "tp", "fits"), [(1, 1, True), (4, 2, True), (3, 2, False), (2, 4, False), (6, 6, True)]
)
def test_tensor_parallelism_and_the_engines_gpus(gpus: int, tp: int, fits: bool) -> None:
    text = f"inference_gpu_ids = {list(range(gpus))}\ntrainer_gpu_ids = [7]\n[inference.parallel]\ntp = {tp}\n"
    assert ("tensor-parallel-divides" not in weights(batches.CHECKS, of(JANUARY, text))) == fits


def test_a_server_of_its_own_role_is_not_the_launchers_business() -> None:
    from supervisor.config.settings import RunFile

    run = RunFile.model_validate(
        {
            "run": {"id": "case"},
            "job": {"dir": "/srv/prime-rl", "config": "rl.toml", "inference_config": "infer.toml"},
            "gpus": {"inference": [0, 1, 2], "trainer": [3]},
            "recovery": {"inference": "own-role"},
        }
    )
    plan = GpuPlan(["0", "1", "2"], ["3"])
    assert weights(batches.CHECKS, of(JANUARY, "[inference.parallel]\ntp = 2\n", plan=plan, run_file=run)) == {}


def test_heads_are_counted_only_where_they_are_known() -> None:
    text = "inference_gpu_ids = [0, 1, 2]\ntrainer_gpu_ids = [3]\n[inference.parallel]\ntp = 3\n"
    assert weights(batches.CHECKS, of(JANUARY, text)) == {}
    assert weights(batches.CHECKS, of(JANUARY, text, model=ModelFacts("a", heads=24))) == {}
    assert "heads-by-tensor-parallel" in weights(batches.CHECKS, of(JANUARY, text, model=ModelFacts("a", heads=32)))


def test_the_trainers_layout_as_prime_rl_itself_computes_it() -> None:
    """ParallelDims._validate of trainer/parallel_dims.py, over all small layouts."""
    for world, cp, replicas, ep in product(range(1, 9), (1, 2, 4), (1, 2, 3), (1, 2, 4, 8)):
        shards = world // (replicas * cp)
        right = shards >= 1 and replicas * shards * cp == world
        if right and ep > 1:
            right = ep % cp == 0 and (shards * cp) % ep == 0
        text = f"[trainer.model]\ncp = {cp}\ndp_replicate = {replicas}\nep = {ep}\n"
        plan = GpuPlan((), [str(gpu) for gpu in range(world)])
        told = weights(batches.CHECKS, of(JANUARY, text, plan=plan))
        assert (told == {}) == right, (world, cp, replicas, ep, told)


def test_a_cluster_run_is_not_measured_by_this_pods_gpus() -> None:
    text = '[deployment]\ntype = "multi_node"\nnum_train_nodes = 2\nnum_infer_nodes = 1\n[trainer.model]\ncp = 4\n'
    assert weights(batches.CHECKS, of(NEWEST, text)) == {}


@pytest.mark.parametrize(
    ("era", "expected"), [(JANUARY, "error"), (NEWEST, "error"), (SEPTEMBER, "warning"), (None, "warning")]
)
def test_no_steps_and_the_version_that_took_0_for_no_limit(era: str | None, expected: str) -> None:
    assert weights(batches.CHECKS, of(era, "max_steps = 0\n")) == {"no-steps": expected}
    assert weights(batches.CHECKS, of(era, "max_steps = 1\n")) == {}


@pytest.mark.parametrize("era", EVERY)
def test_an_empty_configuration_is_left_alone(era: str | None) -> None:
    assert weights(batches.CHECKS, of(era)) == {}
