"""The command line of each era: an explicit step, no keep policy, nothing cleaned, one W&B run."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError
from supervisor.jobs.base import GpuPlan, TieredPart
from supervisor.primerl import open_job
from supervisor.primerl.renames import oldest_name, renames
from tests.primerl.eras import ERAS, Era
from tests.primerl.helpers import CONFIG, job_of, request, words

BY_FILES = CONFIG + '[weight_broadcast]\ntype = "filesystem"\n'
WANDB = CONFIG + '[wandb]\nproject = "p"\n'

# What resuming at step 40 on GPUs 0 (engine) and 1 (trainer) must look like. OUT stands for the output folder.
# These lists were fed to the real parsers of the same commits, which read them as meant.
RESUME = {
    "ceb60c03f": "--ckpt.interval 5 --ckpt.keep 1000000 --ckpt.resume-step 40 --output-dir OUT --no-clean "
    "--trainer-gpus 1 --inference-gpus 1 --trainer.monitor.wandb.id w4nd8-trainer "
    "--orchestrator.monitor.wandb.id w4nd8-orchestrator",
    "f12e2f2ee": "--ckpt.interval 5 --ckpt.keep 1000000 --ckpt.resume-step 40 --output-dir OUT --no-clean "
    "--trainer-gpus 1 --inference-gpus 1 --trainer.wandb.id w4nd8-trainer --orchestrator.wandb.id w4nd8-orchestrator",
    "454e2cba4": "--ckpt.interval 5 --ckpt.keep 1000000 --ckpt.resume-step 40 --output-dir OUT --no-clean "
    "--inference-gpu-ids 0 --trainer-gpu-ids 1 --trainer.wandb.id w4nd8-trainer "
    "--orchestrator.wandb.id w4nd8-orchestrator",
    **dict.fromkeys(
        ("af5073208", "8518c157c", "34ac60439", "1a28ff3d9", "b8697b0f0", "017b3fe71", "be0e3d131", "f870f3cbd"),
        "--ckpt.interval 5 --ckpt.resume-step 40 --output-dir OUT --no-clean --inference-gpu-ids 0 --trainer-gpu-ids 1 "
        "--trainer.wandb.id w4nd8-trainer --orchestrator.wandb.id w4nd8-orchestrator",
    ),
    "1826b1892": "--ckpt.interval 5 --ckpt.resume-step 40 --output-dir OUT --no-clean --deployment.num-train-gpus 1 "
    "--deployment.num-infer-gpus 1 --trainer.wandb.id w4nd8-trainer --orchestrator.wandb.id w4nd8-orchestrator",
    "09a6875f1": "--ckpt.interval 5 --ckpt.resume-step 40 --output-dir OUT --deployment.num-train-gpus 1 "
    "--deployment.num-infer-gpus 1 --trainer.wandb.id w4nd8-trainer --orchestrator.wandb.id w4nd8-orchestrator",
    **dict.fromkeys(
        ("63331ad8b", "a12f5d5af", "625e05fa6", "d3e478d73", "38494ccb4", "d334ea529", "60bc29547", "d1046b876"),
        "--ckpt.interval 5 --ckpt.resume-step 40 --output-dir OUT --deployment.num-train-gpus 1 "
        "--deployment.num-infer-gpus 1",
    ),
    **dict.fromkeys(
        ("e26b50503", "559b44772"),
        "--ckpt.interval 5 --resume.step 40 --output-dir OUT --run.name demo --run.dir demo "
        "--deployment.num-train-gpus 1 --deployment.num-infer-gpus 1",
    ),
}


@pytest.mark.parametrize("commit", RESUME)
def test_resuming_names_the_step_in_the_eras_own_words(tmp_path: Path, commit: str) -> None:
    job = job_of(tmp_path, commit, config=WANDB, gpus={"inference": [0], "trainer": [1]})
    assert words(job, 40) == RESUME[commit].replace("OUT", str(tmp_path / "out")).split()


@pytest.mark.parametrize("era", ERAS.values(), ids=ERAS.keys())
def test_no_start_of_any_era_cleans_keeps_few_or_takes_the_latest(tmp_path: Path, era: Era) -> None:
    job = job_of(tmp_path, era.commit, config=BY_FILES)
    for step in (None, 40):
        line = words(job, step)
        flags = [word for word in line if word.startswith("--")]
        assert "-1" not in line
        assert not {"--resume", "--clean", "--clean-output-dir"} & set(flags)
        assert ("--no-clean" in flags) == (era.dialect.clean in ("wipes-checkpoints", "wipes-outputs"))
        keep = [line[at + 1] for at, word in enumerate(line) if word.rpartition(".")[2].startswith("keep")]
        assert keep == (["1000000"] if era.dialect.keep_default_one else [])
        assert any("resume" in flag for flag in flags) == (step is not None)
        assert line[line.index("--ckpt.interval") + 1] == "5"
    chosen = job.components(replace(request(40), interval=7))[0].argv
    assert chosen[list(chosen).index("--ckpt.interval") + 1] == "7"


def test_a_keep_policy_of_the_persons_file_is_overruled_wherever_it_stands(tmp_path: Path) -> None:
    config = CONFIG + "[ckpt]\nkeep_last = 2\n[trainer.ckpt]\nkeep_interval = 50\ninterval = 7\n"
    config = config.replace("[trainer]\n", "")
    line = words(job_of(tmp_path, "be0e3d131", config=config), None)
    assert line[: line.index("--output-dir")] == [
        *("--ckpt.interval", "5", "--trainer.ckpt.interval", "5"),
        *("--ckpt.keep-last", "1000000", "--trainer.ckpt.keep-last", "1000000"),
    ]


def test_three_separate_files_follow_their_flags(tmp_path: Path) -> None:
    for part in ("t", "o", "i"):
        (tmp_path / f"{part}.toml").write_text("max_steps = 60\n" if part != "i" else "[server]\nport = 9000\n")
    files = {
        "config": [],
        "trainer_config": str(tmp_path / "t.toml"),
        "orchestrator_config": str(tmp_path / "o.toml"),
        "inference_config": str(tmp_path / "i.toml"),
    }
    job = job_of(tmp_path, "af5073208", job=files)
    argv = list(job.components(request(10, {tmp_path / "t.toml": Path("/attempt/config/0-t.toml")}))[0].argv)
    assert argv[argv.index("--trainer") :][:9] == [
        *("--trainer", "@", "/attempt/config/0-t.toml"),
        *("--orchestrator", "@", str(tmp_path / "o.toml")),
        *("--inference", "@", str(tmp_path / "i.toml")),
    ]
    assert job.max_steps() == 60
    engine = job.engine()
    assert engine is not None
    assert engine.url == "http://127.0.0.1:9000"


def test_an_attempt_reads_its_snapshot_and_not_the_file(tmp_path: Path) -> None:
    job = job_of(tmp_path, "559b44772")
    copy = tmp_path / "attempt" / "0-rl.toml"
    copy.parent.mkdir()
    copy.write_text("max_steps = 7\n")
    assert job.config_files() == [tmp_path / "rl.toml"]
    argv = job.components(request(None, {tmp_path / "rl.toml": copy}))[0].argv
    assert argv[argv.index("@") + 1] == str(copy)
    assert str(tmp_path / "rl.toml") not in argv
    assert job.max_steps() == 100
    assert open_job(job.run, {}, copies={tmp_path / "rl.toml": copy}).max_steps() == 7


def test_the_run_files_last_step_goes_over_what_each_part_says(tmp_path: Path) -> None:
    config = "[trainer]\nmax_steps = 10\n[orchestrator]\nmax_steps = 10\n[inference]\n"
    job = job_of(tmp_path, "559b44772", config=config, run={"max_steps": 500})
    assert job.max_steps() == 500
    line = words(job, None)
    assert [line[at + 1] for at, word in enumerate(line) if word.endswith("max-steps")] == ["500"] * 3


def test_a_renamed_setting_of_a_start_is_said_in_the_spelling_of_the_version_and_known_by_both() -> None:
    said = [one for one in renames() if one.sign]
    assert said
    oldest = ERAS["ceb60c03f"].dialect
    for one in said:
        assert replace(oldest, renamed=(one.old,)).spell(one.old) == one.new
        assert oldest.spell(one.old) == one.old
        assert oldest_name(f"{one.new}.below") == f"{one.old}.below"
        assert oldest_name(f"{one.new}s") == f"{one.new}s", "a name that only begins like it is another"


@pytest.mark.parametrize(
    ("commit", "args", "sentence"),
    [
        ("be0e3d131", ["--ckpt"], "--ckpt: checkpoints are always on"),
        ("be0e3d131", ["--ckpt.resume-step", "-1"], "--ckpt.resume-step: the supervisor names the step to resume from"),
        ("be0e3d131", ["--trainer.ckpt.resume_step", "5"], "the supervisor names the step to resume from"),
        ("be0e3d131", ["--ckpt.keep-last", "2"], "--ckpt.keep-last: only the supervisor deletes checkpoints"),
        ("ceb60c03f", ["--ckpt.keep=2"], "--ckpt.keep: only the supervisor deletes checkpoints"),
        ("be0e3d131", ["--clean"], "--clean: it would delete checkpoints"),
        ("38494ccb4", ["--clean-output-dir"], "it would delete checkpoints"),
        ("559b44772", ["--resume"], "--resume: the supervisor names the step to resume from"),
        ("559b44772", ["--resume.dir", "x/step_5"], "the supervisor names the step"),
        ("559b44772", ["--run.name", "other"], "--run.name: it is [run] id of the run file"),
        ("be0e3d131", ["--output-dir", "/elsewhere"], "set [job] output_dir of the run file instead"),
        ("be0e3d131", ["--ckpt.interval", "5"], "set [job] checkpoint_interval of the run file instead"),
        ("be0e3d131", ["@", "more.toml"], "name files in [job] config instead"),
        ("be0e3d131", ["--trainer.wandb.id", "x"], "set [wandb] id of the run file instead"),
        ("38494ccb4", ["--trainer.max-concurrent-runs", "4"], "several runs in one trainer"),
    ],
)
def test_words_that_are_the_supervisors_own_are_refused(
    tmp_path: Path, commit: str, args: list[str], sentence: str
) -> None:
    job = job_of(tmp_path, commit, job={"args": args})
    assert any(sentence in problem for problem in job.problems()), job.problems()
    with pytest.raises(ConfigError):
        job.components(request(None))


def test_harmless_words_pass_before_the_supervisors_own(tmp_path: Path) -> None:
    args = ["--max-steps", "300", "--orchestrator.eval.interval", "20", "--trainer.optim.lr", "1e-5"]
    job = job_of(tmp_path, "be0e3d131", job={"args": args})
    assert job.problems() == []
    assert words(job, None)[: len(args)] == args
    assert job.max_steps() == 300


# ---------------------------------------------------------------- launcher and environment


def test_without_a_virtual_environment_uv_starts_the_launcher(tmp_path: Path) -> None:
    argv = job_of(tmp_path, "be0e3d131").components(request(None))[0].argv
    assert list(argv[:3]) == ["uv", "run", "rl"]


def test_the_checkouts_own_environment_is_used_and_activated(tmp_path: Path) -> None:
    job_of(tmp_path, "be0e3d131")
    folder = tmp_path / "prime-rl" / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "rl").touch()
    component = job_of(tmp_path, "be0e3d131").components(request(None))[0]
    assert component.argv[0] == str(folder / "bin" / "rl")
    assert component.cwd == tmp_path / "prime-rl"
    assert component.env["VIRTUAL_ENV"] == str(folder)
    assert component.env["PATH"] == f"{folder / 'bin'}:/usr/bin:/bin"


def test_a_launcher_of_the_persons_own_comes_first(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131", job={"launcher": ["/opt/bin/rl", "--quiet"]})
    assert list(job.components(request(None))[0].argv[:3]) == ["/opt/bin/rl", "--quiet", "@"]


@pytest.mark.parametrize("era", ERAS.values(), ids=ERAS.keys())
def test_the_environment_of_every_era_protects_checkpoints_and_marks_the_attempt(tmp_path: Path, era: Era) -> None:
    env = job_of(tmp_path, era.commit, config=BY_FILES).components(request(40))[0].env
    expected = {
        "NEVER_CLEAN": "1",
        "NEVER_CLEAN_OUTPUT_DIR": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "SPT_NOENV": "1",
        "RL_SUPERVISOR_RUN": "demo",
        "RL_SUPERVISOR_ATTEMPT": "3",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert env.get("PRL_RUN_ID") == ("w4nd8" if era.dialect.wandb == "prl-id" else None)
    shared = era.dialect.wandb in ("shared-id", "none")
    assert env.get("WANDB_SHARED_RUN_ID") == ("w4nd8" if shared else None)


def test_the_era_that_cannot_set_the_wandb_id_says_so(tmp_path: Path) -> None:
    notes = job_of(tmp_path, "63331ad8b", config=WANDB).facts().notes
    assert any("no way to set the W&B id" in note for note in notes)
    assert not any("W&B" in note for note in job_of(tmp_path, "63331ad8b").facts().notes)


def test_wandb_is_not_switched_on_by_naming_an_id(tmp_path: Path) -> None:
    line = words(job_of(tmp_path, "be0e3d131"), 40)
    assert not [word for word in line if word.startswith("--") and "wandb" in word]


# ---------------------------------------------------------------- GPUs


def test_one_shared_gpu_in_the_era_that_can(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131", gpus={"inference": [0], "trainer": [0]})
    assert job.problems() == []
    assert job.gpus().is_shared
    line = words(job, None)
    assert line[line.index("--inference-gpu-ids") :][:4] == ["--inference-gpu-ids", "0", "--trainer-gpu-ids", "0"]


def test_several_ids_are_joined_by_commas_as_the_old_parser_wants(tmp_path: Path) -> None:
    line = words(job_of(tmp_path, "be0e3d131", gpus={"inference": [0, 1, 2], "trainer": [3]}), None)
    assert line[line.index("--inference-gpu-ids") + 1] == "0,1,2"


def test_launchers_that_count_get_the_engines_gpus_first(tmp_path: Path) -> None:
    job = job_of(tmp_path, "559b44772", gpus={"inference": [6, 7], "trainer": [4]})
    component = job.components(request(None))[0]
    assert component.env["CUDA_VISIBLE_DEVICES"] == "6,7,4"
    line = words(job, None)
    assert line[line.index("--deployment.num-train-gpus") + 1] == "1"
    assert line[line.index("--deployment.num-infer-gpus") + 1] == "2"


@pytest.mark.parametrize(
    ("commit", "gpus", "sentence"),
    [
        ("559b44772", {"inference": [0], "trainer": [0]}, "cannot share one"),
        ("559b44772", {"inference": [0]}, "needs both `inference` and `trainer`"),
        ("ceb60c03f", {"inference": [1], "trainer": [0]}, "gives the lower numbers to the engine"),
        ("be0e3d131", {"inference": ["GPU-12ab"], "trainer": [0]}, "prime-rl takes numbers only"),
    ],
)
def test_gpus_that_the_eras_launcher_cannot_give_are_refused(
    tmp_path: Path, commit: str, gpus: dict[str, list[int | str]], sentence: str
) -> None:
    assert any(sentence in problem for problem in job_of(tmp_path, commit, gpus=gpus).problems())


@pytest.mark.parametrize(
    ("commit", "config", "inference", "trainer"),
    [
        ("be0e3d131", CONFIG, ["0"], ["1"]),
        ("be0e3d131", "inference_gpu_ids = [0, 1]\ntrainer_gpu_ids = [2]\n" + CONFIG, ["0", "1"], ["2"]),
        ("be0e3d131", "[trainer]\n[orchestrator]\n", [], ["1"]),
        ("ceb60c03f", "inference_gpus = 2\ntrainer_gpus = 1\n" + CONFIG, ["0", "1"], ["2"]),
        ("38494ccb4", CONFIG + "[deployment]\nnum_train_gpus = 2\n", ["0"], ["1", "2"]),
        ("559b44772", "[trainer]\n[orchestrator]\n[deployment]\nnum_train_gpus = 2\n", [], ["0", "1"]),
    ],
)
def test_without_gpus_in_the_run_file_the_configuration_says_who_has_which(
    tmp_path: Path, commit: str, config: str, inference: list[str], trainer: list[str]
) -> None:
    plan = job_of(tmp_path, commit, config=config).gpus()
    assert (list(plan.inference), list(plan.trainer)) == (inference, trainer)


@pytest.mark.parametrize("commit", ["be0e3d131", "559b44772"])
def test_the_run_file_overrules_the_configuration(tmp_path: Path, commit: str) -> None:
    config = "inference_gpu_ids = [0]\n" + CONFIG + "[deployment]\nnum_train_gpus = 2\n"
    job = job_of(tmp_path, commit, config=config, gpus={"inference": [2, "GPU-0abc"], "trainer": [1]})
    assert job.gpus() == GpuPlan(["2", "GPU-0abc"], ["1"])


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("commit", "text", "sentence"),
    [
        ("289562d2e", '[slurm]\njob_name = "x"\n', "the launcher submits a job of its own"),
        ("38494ccb4", '[deployment]\ntype = "multi_node"\n', "it needs [nodes] in the run file"),
        ("38494ccb4", "[trainer]\nmax_concurrent_runs = 4\n", "several runs in one trainer"),
        ("63331ad8b", "[ckpt]\nweights_only = true\n", "cannot be resumed from"),
        ("63331ad8b", '[ckpt]\noutput_dir = "/big"\n', "would lie apart from the orchestrator's"),
        ("be0e3d131", "[ckpt]\nresume_step = -1\n", "the supervisor names the step to resume from in each start"),
        ("559b44772", "[resume]\n", "the supervisor names the step to resume from in each start"),
        ("559b44772", "clean = true\n", "would delete the run's checkpoints"),
        ("be0e3d131", 'toml_files = ["base.toml"]\n', "takes in other files with toml_files"),
        ("be0e3d131", '[weight_broadcast]\ntype = "nccl"\n', "with NCCL cannot resume"),
        ("77766bb59", "[trainer]\n[inference]\n", "with NCCL cannot resume"),
    ],
)
def test_configurations_that_one_pod_cannot_run_are_refused_with_a_sentence(
    tmp_path: Path, commit: str, text: str, sentence: str
) -> None:
    job = job_of(tmp_path, commit, config=text)
    assert any(sentence in problem for problem in job.problems()), job.problems()
    with pytest.raises(ConfigError, match=r"rl\.toml"):
        job.components(request(None))


def test_a_clean_configuration_has_no_problems_in_any_era(tmp_path: Path) -> None:
    for number, commit in enumerate(ERAS):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert job_of(folder, commit, config=BY_FILES).problems() == []


def test_a_missing_or_broken_configuration_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml does not exist: put the configuration there"):
        job_of(tmp_path, "be0e3d131", job={"config": ["gone.toml"]})
    with pytest.raises(ConfigError, match=r"rl\.toml is not TOML"):
        job_of(tmp_path, "be0e3d131", config="max_steps = \n")
    with pytest.raises(ConfigError, match="nowhere: there is no such folder"):
        job_of(tmp_path, "be0e3d131", job={"dir": str(tmp_path / "nowhere")})


# ---------------------------------------------------------------- sft


def test_sft_of_the_early_eras_is_started_under_torchrun(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131", kind="sft", config="max_steps = 9\n[wandb]\n", gpus={"trainer": [2, 3]})
    component = job.components(request(5))[0]
    assert component.name == "sft"
    assert list(component.argv) == [
        *("uv", "run", "torchrun", "--nproc-per-node=2", "-m", "prime_rl.trainer.sft.train", "@"),
        *(str(tmp_path / "rl.toml"), "--ckpt.interval", "5", "--ckpt.resume-step", "5"),
        *("--output-dir", str(tmp_path / "out"), "--wandb.id", "w4nd8"),
    ]
    assert component.env["CUDA_VISIBLE_DEVICES"] == "2,3"


@pytest.mark.parametrize(("commit", "flag"), [("38494ccb4", "num-gpus"), ("559b44772", "num-train-gpus")])
def test_sft_of_the_later_eras_starts_torchrun_itself(tmp_path: Path, commit: str, flag: str) -> None:
    job = job_of(tmp_path, commit, kind="sft", config="max_steps = 9\n", gpus={"trainer": [0, 1]})
    component = job.components(request(5))[0]
    assert list(component.argv[:3]) == ["uv", "run", "sft"]
    line = words(job, 5)
    assert line[line.index(f"--deployment.{flag}") + 1] == "2"
    assert "--no-clean" not in line
    assert component.env["WANDB_RUN_ID"] == "w4nd8"
    assert job.engine() is None


# ---------------------------------------------------------------- engine and stopping


@pytest.mark.parametrize(
    ("commit", "config", "url", "router"),
    [
        ("be0e3d131", CONFIG, "http://127.0.0.1:8000", None),
        ("38494ccb4", CONFIG + "[inference.server]\nport = 9001\n", "http://127.0.0.1:9001", None),
        ("559b44772", CONFIG, "http://127.0.0.1:8100", "http://127.0.0.1:8000"),
        ("559b44772", CONFIG + "[inference.server]\nport = 9000\n", "http://127.0.0.1:9100", "http://127.0.0.1:9000"),
        ("559b44772", CONFIG.replace("[inference]", "[inference]\nbackend_port = 7000"), "http://127.0.0.1:7000", "x"),
        ("559b44772", CONFIG.replace("[inference]", '[inference]\nrouter = "None"'), "http://127.0.0.1:8000", None),
    ],
)
def test_the_engine_is_looked_for_behind_the_router(
    tmp_path: Path, commit: str, config: str, url: str, router: str | None
) -> None:
    config = config.replace("[inference]\n[inference.server]", "[inference.server]")
    engine = job_of(tmp_path, commit, config=config).engine()
    assert engine is not None
    assert engine.url == url
    assert (engine.router_url is None) == (router is None)
    assert engine.liveness == ERAS[commit].dialect.liveness
    assert engine.model == "Qwen/Qwen3-0.6B"


def test_an_engine_that_prime_rl_does_not_start_is_watched_only_where_named(tmp_path: Path) -> None:
    config = "[trainer]\n[orchestrator]\n"
    job = job_of(tmp_path, "be0e3d131", config=config)
    assert job.engine() is None
    assert any("starts no engine" in note for note in job.facts().notes)
    own = job_of(tmp_path, "be0e3d131", config=config, job={"engine_url": "http://10.0.0.2:8000/"}).engine()
    assert own is not None
    assert own.url == "http://10.0.0.2:8000"


def test_the_signal_and_the_patience_are_those_of_the_era(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = job_of(tmp_path / "old", "be0e3d131"), job_of(tmp_path / "new", "38494ccb4")
    assert [int(signal) for signal, _ in old.stop_rules().signals] == [2, 15]
    assert [(int(signal), seconds) for signal, seconds in new.stop_rules().signals] == [(15, 330.0)]


@pytest.mark.parametrize(
    ("commit", "config", "ports"),
    [
        ("be0e3d131", CONFIG, [8000]),
        ("be0e3d131", CONFIG + "[inference.server]\nport = 8123\n", [8123]),
        ("be0e3d131", "[trainer]\n[orchestrator]\n", []),
    ],
)
def test_the_ports_that_a_start_needs_are_known(tmp_path: Path, commit: str, config: str, ports: list[int]) -> None:
    component = job_of(tmp_path, commit, config=config).components(request(None))[0]
    assert list(component.ports) == ports


def test_a_router_needs_a_port_beside_the_engines(tmp_path: Path) -> None:
    commit = next(name for name, era in ERAS.items() if era.dialect.router)
    config = CONFIG + '[weight_broadcast]\ntype = "filesystem"\n[inference.server]\nport = 9000\n'
    ports = job_of(tmp_path, commit, config=config).components(request(None))[0].ports
    assert sorted(ports) == [9000, 9100]


@pytest.mark.parametrize(("said", "port"), [("", 29501), ("port = 29777\n", 29777)])
def test_weights_that_go_by_nccl_need_a_port_of_their_own(tmp_path: Path, said: str, port: int) -> None:
    commit = next(name for name, era in ERAS.items() if era.dialect.nccl_resume)
    config = CONFIG + f'[weight_broadcast]\ntype = "nccl"\n{said}'
    ports = job_of(tmp_path, commit, config=config).components(request(None))[0].ports
    assert [one for one in ports if one > 20_000] == [port]


@pytest.mark.parametrize("commit", ["ceb60c03f", "09a6875f1", "9b2fb9afb", "38494ccb4", "559b44772"])
def test_the_trainer_is_told_of_a_tier_from_march_2026_on_and_a_sentence_says_why_not_before(
    commit: str, tmp_path: Path
) -> None:
    job = job_of(tmp_path, commit)
    part = job.tiered_part()
    if ERAS[commit].day < date(2026, 3, 11):
        assert isinstance(part, str) and part.endswith("has no ckpt.output_dir, which came on 11 March 2026")
        return
    assert isinstance(part, TieredPart) and part.home == job.layout.run_dir / "checkpoints" and part.part == "trainer"
    (component,) = job.components(replace(request(40), tier=Path("/dev/shm/run")))
    words = list(component.argv)
    assert words[words.index("--ckpt.output-dir") + 1] == "/dev/shm/run"
    assert "--ckpt.output-dir" not in job.components(request(40))[0].argv
