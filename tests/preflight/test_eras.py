"""What is known of prime-rl's versions where none is installed."""

from __future__ import annotations

import os
import tomllib
from datetime import date
from pathlib import Path

import pytest

from supervisor.preflight import eras
from supervisor.preflight.schema import walk
from tests.primerl.eras import ERAS

CLONE, VERIFIERS = os.environ.get("PRIME_RL_GIT", ""), os.environ.get("VERIFIERS_GIT", "")


def test_the_eras_are_in_the_order_of_time_and_speak_as_their_commits_did() -> None:
    known = eras.load_eras()
    assert [era.day for era in known] == sorted(era.day for era in known)
    assert known[0].commit == "ceb60c03f"
    listed = [era for era in known if era.commit in ERAS]
    assert len(listed) > 30
    for era in listed:
        assert (era.day, era.dialect) == (ERAS[era.commit].day, ERAS[era.commit].dialect), era.commit


def test_each_way_to_speak_of_the_history_has_an_era() -> None:
    spoken = {era.dialect for era in eras.load_eras()}
    assert {era.dialect for era in ERAS.values()} <= spoken


@pytest.mark.soak
def test_the_keys_of_an_era_are_not_certain_of_the_version_that_will_run() -> None:
    for kind in eras.KINDS:
        for era in eras.load_eras()[::9]:
            schema = era.schema(kind)
            assert not schema.exact
            assert (era.commit in schema.version, schema.day) == (True, era.day)
            assert len(list(walk(schema.top))) > 60


@pytest.mark.parametrize(
    ("day", "commit"),
    [("2024-01-01", "ceb60c03f"), ("2025-09-01", "ceb60c03f"), ("2026-01-04", "e3dbf2ad8"), ("2026-01-05", "5ad6f62fc"),
     ("2030-01-01", "967fbf25e")],
)  # fmt: skip
def test_the_era_of_a_day_is_the_newest_that_had_come(day: str, commit: str) -> None:
    assert eras.on(date.fromisoformat(day))[-1].commit == commit


def test_a_day_has_the_version_of_its_morning_and_those_that_began_on_it() -> None:
    eras_of = {day: [era.commit for era in eras.on(date.fromisoformat(day))] for day in ("2026-01-05", "2026-01-06")}
    assert eras_of["2026-01-05"][-1] == "5ad6f62fc"
    assert eras_of["2026-01-05"][0] == eras.on(date(2026, 1, 4))[-1].commit
    assert eras_of["2026-01-06"] == ["5ad6f62fc"], "no key changed on that day"


def test_of_a_union_a_day_knows_each_table_by_itself() -> None:
    optim = eras.on(date(2026, 8, 14))[-1].schema("rl").get("trainer.optim")
    assert optim is not None and optim.usual == "adamw"
    assert "mu" in optim.of({"type": "muon"}).below and "mu" not in optim.of({}).below


OF_JANUARY = """
inference_gpu_ids = [0]
trainer_gpu_ids = [1]
[trainer.model.lora]
rank = 8
[orchestrator]
rollouts_per_example = 8
lora_name = "adapter"
[orchestrator.buffer]
online_difficulty_filtering = true
[[orchestrator.env]]
id = "somebody/some-env"
[inference.model]
enforce_eager = true
"""


def test_a_configuration_tells_its_time_by_its_keys() -> None:
    era = eras.find_fitting_eras(tomllib.loads(OF_JANUARY))[-1]
    # trainer.model.lora came on 17 Dec 2025, and orchestrator.lora_name went on 7 Jan 2026.
    assert date(2025, 12, 17) <= era.day <= date(2026, 1, 7)
    assert era.dialect.gpus == "ids"


NEWEST = [
    (
        "[deployment]\nnum_train_gpus = 1\n[wandb]\nname = 'a'\n[inference.model]\ndtype = 'a'",
        "2026-02-24",
        "2026-08-08",
    ),
    ("[monitors.wandb]\nproject = 'a'\n[[orchestrator.train.source]]\nratio = 1.0", "2026-08-15", "2026-08-21"),
    ("trainer_gpus = 1\ninference_gpus = 1", "2025-09-01", "2025-09-20"),
    ("[orchestrator]\ngroup_size = 8\nmax_async_level = 2", "2026-05-22", "2026-05-25"),
    (
        "[[orchestrator.env]]\nid = 'a'\n[orchestrator.buffer]\nonline_difficulty_filtering = true",
        "2025-11-17",
        "2026-06-01",
    ),
]


@pytest.mark.parametrize(("text", "since", "before"), NEWEST)
def test_the_guess_is_the_newest_version_that_knows_all_keys(text: str, since: str, before: str) -> None:
    era = eras.find_fitting_eras(tomllib.loads(text))[-1]
    assert date.fromisoformat(since) <= era.day <= date.fromisoformat(before)


def test_one_slip_does_not_change_the_guess() -> None:
    tree = tomllib.loads(OF_JANUARY)
    era = eras.find_fitting_eras(tree)[-1]
    tree["max_step"] = 10
    assert eras.find_fitting_eras(tree)[-1] == era


@pytest.mark.parametrize("tree", [{}, {"max_steps": 10}, {"a": 1, "b": {"c": 2}}, {"trainer": "x"}, {"": {"": []}}])
def test_keys_that_say_nothing_give_no_guess(tree: dict[str, object]) -> None:
    assert not eras.find_fitting_eras(tree)


def test_when_a_key_was_known() -> None:
    assert eras.periods("inference_gpu_ids") == [(date(2025, 9, 20), date(2026, 2, 24))]
    assert eras.periods("max_steps") == [(date(2025, 9, 1), None)]
    assert eras.periods("clean")[0] == (date(2025, 9, 1), date(2026, 2, 24))
    assert eras.periods("clean")[1][1] is None
    assert eras.periods("no.such.key") == []


def test_what_every_version_refuses() -> None:
    assert eras.refused_by_all("orchestrator.sampling.top_p")
    assert eras.refused_by_all("no_such_key")
    assert eras.refused_by_all("trainer.model.ac", value="selective")
    assert eras.refused_by_all("orchestrator.batch_size", value=0)
    assert eras.refused_by_all("inference_gpu_ids", value=["cuda:0"])
    assert not eras.refused_by_all("orchestrator.batch_size", value=8)
    assert not eras.refused_by_all("inference_gpu_ids", value=["0"])  # a number in text
    assert not eras.refused_by_all("orchestrator.oversampling_factor", value=0.5)  # since May 2026
    assert not eras.refused_by_all("orchestrator.group_size")
    assert not eras.refused_by_all("trainer.optim.no_such_key")  # dropped until June 2026
    assert not eras.refused_by_all("inference.vllm.max_num_seqs")  # taken since August 2026
    assert not eras.refused_by_all("trainer.model.full_offload", value=True)  # a validator makes a table of it
    assert not eras.refused_by_all("anything", "vf-rl")


@pytest.mark.optin
@pytest.mark.skipif(not (CLONE and VERIFIERS), reason="PRIME_RL_GIT and VERIFIERS_GIT do not name clones of both")
def test_the_data_is_what_the_two_histories_give() -> None:
    from docs.eras import history, text_of

    assert eras.DATA.read_text(encoding="utf-8") == text_of(history(Path(CLONE), Path(VERIFIERS)))
