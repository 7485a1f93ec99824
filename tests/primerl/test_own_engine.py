"""The inference server as a role of its own: its command in each era, what is refused, which half restarts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.config.settings import RunFile
from supervisor.primerl import open_job
from supervisor.primerl.job import PrimeRlJob
from tests.primerl.eras import ERAS
from tests.primerl.helpers import job_of, request, words

JANUARY, V06, AUGUST = "be0e3d131", "38494ccb4", "559b44772"
RUN = 'max_steps = 100\n[model]\nname = "Qwen/Qwen3-0.6B"\n[trainer]\n[orchestrator]\n'
FILES = '[weight_broadcast]\ntype = "filesystem"\n'
LORA = "[trainer.model.lora]\nrank = 8\n"
ADMIN = '[orchestrator.model.client]\nadmin_base_url = ["http://localhost:8100/v1"]\n'


def own(
    tmp_path: Path,
    commit: str,
    config: str = RUN,
    engine: str = "",
    *,
    job: dict[str, Any] | None = None,
    how: str = "own-role",
    **more: Any,
) -> PrimeRlJob:
    (tmp_path / "inference.toml").write_text(engine)
    if ERAS[commit].dialect.router and config.startswith(RUN) and ADMIN not in config:
        config += ADMIN
    more.setdefault("gpus", {"inference": [0], "trainer": [1]})
    return job_of(
        tmp_path,
        commit,
        config=config,
        job={"inference_config": str(tmp_path / "inference.toml"), **(job or {})},
        recovery={"inference": how},
        **more,
    )


@pytest.mark.parametrize("commit", [JANUARY, V06, AUGUST])
def test_the_launcher_is_given_the_trainers_gpus_only_and_the_server_its_own_file_and_gpus(
    tmp_path: Path, commit: str
) -> None:
    job = own(tmp_path, commit)
    assert list(job.problems()) == []
    launcher, server = job.components(request(40))[0], job.engine_component(request(40))
    assert not any("infer" in word for word in words(job, 40))
    assert server.name == "inference"
    assert list(server.argv)[-3:] == ["inference", "@", str(tmp_path / "inference.toml")]
    assert server.env["CUDA_VISIBLE_DEVICES"] == "0"
    if commit == JANUARY:
        assert "--trainer-gpu-ids 1" in " ".join(words(job, 40))
    else:
        assert launcher.env["CUDA_VISIBLE_DEVICES"] == "1"
        assert "--deployment.num-train-gpus 1" in " ".join(words(job, 40))
    assert {path.name for path in job.config_files()} == {"rl.toml", "inference.toml"}


def test_the_server_reads_the_attempts_copy_of_its_file(tmp_path: Path) -> None:
    job = own(tmp_path, AUGUST)
    copies = {path: Path("/copies") / path.name for path in job.config_files()}
    assert job.engine_component(request(None, copies)).argv[-1] == "/copies/inference.toml"


@pytest.mark.parametrize(
    ("commit", "url"),
    [(JANUARY, "http://127.0.0.1:9000"), (V06, "http://127.0.0.1:9000"), (AUGUST, "http://127.0.0.1:9100")],
)
def test_the_engine_is_looked_at_where_its_own_file_makes_it_listen(tmp_path: Path, commit: str, url: str) -> None:
    engine = own(tmp_path, commit, engine="[server]\nport = 9000\n").engine()
    assert engine is not None and engine.url == url


@pytest.mark.parametrize(
    ("commit", "config", "more", "why"),
    [
        (AUGUST, RUN + FILES, {}, "goes on with a new one"),
        (AUGUST, RUN, {}, "Weights go through nccl"),
        (AUGUST, RUN + FILES, {"gpus": {}}, "needs [gpus] inference and trainer"),
        (AUGUST, RUN + FILES + "[inference]\n", {}, "still has [inference]"),
        (AUGUST, RUN + FILES + LORA, {"engine": "[vllm]\nenable_lora = true\n"}, "LoRA adapter"),
        (V06, RUN, {}, "lives on without ever handing over any"),
        (JANUARY, RUN, {}, "rollouts that failed"),
        ("1826b1892", RUN, {}, "rollouts that failed"),
    ],
)
def test_auto_takes_own_role_where_it_was_tried_and_else_starts_the_whole_and_says_why(
    tmp_path: Path, commit: str, config: str, more: dict[str, Any], why: str
) -> None:
    job = own(tmp_path, commit, config, how="auto", **more)
    alone = why.startswith("goes on")
    assert job.run.recovery.inference == ("own-role" if alone else "with-job")
    assert list(job.problems()) == []
    assert ("--inference @" in " ".join(words(job, 40))) is not alone
    assert any(why in note for note in job.facts().notes)
    (told,) = [change for change in job.changes(request(40)) if change.yours == '"auto"']
    assert why in told.why and told.what == f'recovery.inference = "{job.run.recovery.inference}"'
    for beside, how in ((False, "with-job"), (True, "own-role")):
        lives = open_job(job.run.with_inference("auto"), {}, beside)
        assert lives.run.recovery.inference == how, "what lives stays what it is"
        assert ("as it was started" in " ".join(lives.facts().notes)) is (beside is not alone)


def test_auto_has_no_choice_with_several_machines_and_other_kinds_and_says_so_in_words_that_were_written(
    tmp_path: Path,
) -> None:
    plain = {
        "kind": "command",
        "dir": str(tmp_path),
        "output_dir": str(tmp_path / "out"),
        "plain": {"start": ["true"], "resume": ["{step}"]},
    }
    run = RunFile.model_validate({"run": {"id": "x"}, "job": plain, "recovery": {"inference": "auto"}})
    sft = job_of(tmp_path, AUGUST, kind="sft", config="max_steps = 3\n", recovery={"inference": "auto"})
    vf = run.model_copy(update={"job": run.job.model_copy(update={"kind": "vf-rl", "config": [tmp_path / "rl.toml"]})})
    for job in (open_job(run, {}), sft, open_job(vf, {})):
        assert job.run.recovery.inference == "with-job"
        assert not any("own-role" in problem for problem in job.problems())
        (told,) = [note for note in job.facts().notes if '"auto"' in note]
        assert "with the job" in told and "own-role" not in told


# ---------------------------------------------------------------- what may restart without the other


def test_where_the_orchestrator_notices_its_own_parts_the_server_may_restart_alone(tmp_path: Path) -> None:
    role = own(tmp_path, AUGUST).engine_role()
    assert (role.keep_warm, role.restart_alone, role.why) == (True, True, "")


@pytest.mark.parametrize(
    ("commit", "why"),
    [
        (JANUARY, "rollouts that failed would fill the batches"),
        (V06, "its orchestrator lives on without ever handing over any"),
        ("15d6c8197", "its orchestrator lives on without ever handing over any"),
    ],
)
def test_before_that_it_stays_warm_and_is_not_restarted_alone(tmp_path: Path, commit: str, why: str) -> None:
    role = own(tmp_path, commit).engine_role()
    assert (role.keep_warm, role.restart_alone) == (True, False)
    assert why in role.why
    assert role.why in own(tmp_path, commit).facts().notes


def test_a_lora_run_must_name_its_adapter_before_the_server_may_restart_alone(tmp_path: Path) -> None:
    engine = "[vllm]\nenable_lora = true\n"
    role = own(tmp_path, AUGUST, RUN + LORA, engine).engine_role()
    assert (role.keep_warm, role.restart_alone) == (True, False)
    assert "orchestrator.model.lora.name would name it" in role.why
    named = RUN + LORA + '[orchestrator.model.lora]\nname = "mine"\n'
    assert own(tmp_path, AUGUST, named, engine).engine_role().restart_alone


# ---------------------------------------------------------------- weights


def broadcast(job: PrimeRlJob, step: int, *, stable: bool = True) -> Path:
    folder = job.layout.orchestrator_dir / "broadcasts" / f"step_{step}"
    folder.mkdir(parents=True)
    if stable:
        (folder / "STABLE").touch()
    return folder


def test_the_newest_finished_broadcast_is_what_a_restarted_server_is_given(tmp_path: Path) -> None:
    job = own(tmp_path, AUGUST)
    assert job.weight_update() is None
    broadcast(job, 9)
    folder = broadcast(job, 10)
    broadcast(job, 11, stable=False)
    update = job.weight_update()
    assert update is not None
    assert (update.step, update.url) == (10, "http://127.0.0.1:8100")
    assert list(update.calls) == [
        ("/pause", {}),
        ("/update_weights", {"weight_dir": str(folder)}),
        ("/resume", {}),
    ]


def test_an_adapter_is_loaded_under_the_name_that_requests_use(tmp_path: Path) -> None:
    config = RUN + LORA + '[orchestrator.student.model.lora]\nname = "mine"\n'
    job = own(tmp_path, V06, config, "enable_lora = true\n")
    folder = broadcast(job, 3)
    update = job.weight_update()
    assert update is not None
    assert list(update.calls) == [("/load_lora_adapter", {"lora_name": "mine", "lora_path": str(folder)})]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("commit", "config", "engine", "words"),
    [
        (AUGUST, RUN + "[inference]\n", "", "still has [inference], so `rl` would start a second inference server"),
        (AUGUST, RUN + '[weight_broadcast]\ntype = "nccl"\n', "", "needs weights that go through files"),
        (AUGUST, RUN, '[weight_broadcast]\ntype = "nccl"\n', "needs weights that go through files"),
        (AUGUST, RUN + LORA, "", "set enable_lora = true and max_lora_rank"),
        (AUGUST, RUN, "[vllm]\ndata_parallel_size = 2\n", "uses 2: `rl` no longer sets that up"),
        (AUGUST, RUN, '[vllm]\nmodel = "Qwen/Qwen3-8B"\n', "serves Qwen/Qwen3-8B, and the run trains Qwen/Qwen3-0.6B"),
        (AUGUST, RUN, "[server]\nport = 9000\n", "The orchestrator asks port 8000"),
        (AUGUST, RUN.replace("max_steps", "#"), "", "would send its weight updates to the router"),
        ("ceb60c03f", RUN, "", "cannot be used with prime-rl between 1 Sep 2025"),
        ("1826b1892", RUN, "", "cannot be used with prime-rl between 24 Feb 2026"),
    ],
)
def test_what_the_launcher_no_longer_sets_up_is_asked_for_in_a_sentence(
    tmp_path: Path, commit: str, config: str, engine: str, words: str
) -> None:
    job = own(tmp_path, commit, config, engine)
    assert any(words in problem for problem in job.problems()), list(job.problems())
    assert not job.engine_role().keep_warm


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ({}, "needs [gpus] inference and trainer"),
        ({"inference": [0], "trainer": [0]}, "gives GPU 0 to both halves"),
    ],
)
def test_each_half_needs_gpus_of_its_own(tmp_path: Path, gpus: dict[str, list[int]], words: str) -> None:
    assert any(words in problem for problem in own(tmp_path, JANUARY, gpus=gpus).problems())


def test_a_server_of_somebody_else_and_a_launcher_that_hides_its_entry_point_are_refused(tmp_path: Path) -> None:
    job = own(tmp_path, AUGUST, job={"engine_url": "http://10.0.0.1:8000", "launcher": ["/opt/start.sh"]})
    found = " ".join(job.problems())
    assert "names a server of another program" in found
    assert "[job] launcher ends in '/opt/start.sh'" in found


def test_without_a_file_of_its_own_the_sentence_says_how_to_make_one(tmp_path: Path) -> None:
    job = own(tmp_path, AUGUST, job={"inference_config": None})
    assert any("move the table [inference] of" in problem for problem in job.problems())


@pytest.mark.parametrize(
    ("config", "engine", "told"),
    [
        ('[orchestrator.model.client]\nbase_url = ["http://localhost:8000x/v1"]\n', "", "address that cannot be read"),
        ("", "[weight_broadcast]\ntype = 3\n", "3 and filesystem is configured"),
    ],
)
def test_what_is_no_address_and_no_type_is_a_problem_in_a_sentence(
    tmp_path: Path, config: str, engine: str, told: str
) -> None:
    job = own(tmp_path, V06, RUN + config, engine)
    assert any(told in problem for problem in job.problems()), job.problems()
