"""Keys, tokens, ports and environments."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from supervisor.config.settings import RunFile
from supervisor.preflight import eras, tracking
from supervisor.preflight.models import ModelFacts
from tests.preflight.eras_by_day import EVERY, IDS, JANUARY, JUNE, MARCH, NEWEST, RUN, SEPTEMBER, found, of, weights
from tests.preflight.subjects import site

POD = site(environ={"HOME": "/root"})
WANDB = '[wandb]\nproject = "soup"\n'


def given(**environ: str) -> object:
    return site(environ={"HOME": "/root", **environ})


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", False),
        (WANDB, True),
        (WANDB + "offline = true\n", False),
        ('wandb = "None"\n', False),
        ("[trainer.wandb]\noffline = true\n[orchestrator.wandb]\noffline = true\n", False),
        ("[trainer.wandb]\noffline = true\n[orchestrator.wandb]\n", True),
        ("[trainer.monitor.wandb]\n", True),
        ("[monitors.wandb]\n", True),
        ("[env_vars]\nWANDB_API_KEY = 'x'\n" + WANDB, False),
    ],
)
def test_who_logs_to_the_server_needs_a_key(text: str, missing: bool) -> None:
    assert ("wandb-key" in weights(tracking.CHECKS, of(JANUARY, text, site=POD))) == missing


def test_each_way_to_be_known_to_wandb_is_one() -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        assert weights(tracking.CHECKS, of(JANUARY, WANDB, site=given(**{name: "x"}))) == {}
    for mode in ("offline", "disabled", "OFFLINE"):
        assert weights(tracking.CHECKS, of(JANUARY, WANDB, site=given(WANDB_MODE=mode))) == {}
    assert weights(tracking.CHECKS, of(JANUARY, WANDB, site=site(environ={"HOME": "/"}, netrc_wandb=True))) == {}
    assert weights(tracking.CHECKS, of(JANUARY, WANDB)) == {}  # nobody knows what the job would be given
    assert "wandb-key" in weights(
        tracking.CHECKS, of(JANUARY, WANDB, site=given(WANDB_API_KEY="", WANDB_MODE="online"))
    )


def test_a_key_that_does_not_reach_the_job_is_told_apart() -> None:
    run = RunFile.model_validate({**RUN.model_dump(exclude_unset=True), "job": {
        "dir": "/srv/prime-rl", "config": "rl.toml", "pass_env": ["HF_*"]}})  # fmt: skip
    [one] = found(tracking.CHECKS, of(JANUARY, WANDB, site=POD, run_file=run))
    assert "pass_env" in one.remedy
    [other] = found(tracking.CHECKS, of(JANUARY, WANDB, site=POD))
    assert "pass_env" not in other.remedy


@pytest.mark.parametrize(
    ("era", "text", "refused"),
    [
        (JANUARY, WANDB + "offline = true\n", False),
        (MARCH, WANDB + "offline = true\n", True),
        (MARCH, WANDB + "offline = true\nshared = false\n", False),
        (JUNE, WANDB + "offline = true\n", True),
        (JUNE, "[trainer.wandb]\noffline = true\n[orchestrator.wandb]\noffline = true\n", False),
        (NEWEST, "[monitors.wandb]\noffline = true\n", True),
        (None, WANDB + "offline = true\n", False),
    ],
)
def test_since_when_offline_is_refused_for_both_at_once(era: str | None, text: str, refused: bool) -> None:
    assert ("wandb-offline-shared" in weights(tracking.CHECKS, of(era, text))) == refused


def test_the_remedy_for_offline_is_one_that_the_version_takes() -> None:
    [march] = found(tracking.CHECKS, of(MARCH, WANDB + "offline = true\n"))
    assert march.remedy == "Write shared = false beside it in [wandb]."
    [newest] = found(tracking.CHECKS, of(NEWEST, "[monitors.wandb]\noffline = true\n"))
    assert "[trainer.monitors.wandb]" in newest.remedy


CLIENT = "[orchestrator.client]\nbase_url = "
LLAMA = '[model]\nname = "meta-llama/Llama-3.1-8B-Instruct"\n'
GATED = ModelFacts("meta-llama/Llama-3.1-8B-Instruct", gated=True)


def test_a_gated_model_is_complained_of_only_where_all_is_known() -> None:
    pod = {"environ": {"HOME": "/root"}, "hf_login": False}
    assert weights(tracking.CHECKS, of(JANUARY, LLAMA, model=GATED, site=site(**pod))) == {"model-gated": "error"}
    for more in ({"environ": {"HF_TOKEN": "x"}}, {"hf_login": True}, {"hf_login": None}, {"environ": {}},
                 {"hf_models": {GATED.name: "/cache"}}, {"environ": {"HF_ENDPOINT": "https://mirror"}}):  # fmt: skip
        assert weights(tracking.CHECKS, of(JANUARY, LLAMA, model=GATED, site=site(**{**pod, **more}))) == {}
    open_one = ModelFacts(GATED.name, gated=None)
    assert weights(tracking.CHECKS, of(JANUARY, LLAMA, model=open_one, site=site(**pod))) == {}


@pytest.mark.parametrize(
    ("era", "text", "other"),
    [
        (JANUARY, "[inference]\n", False),
        (JANUARY, "[inference.server]\nport = 8000\n", False),
        (JANUARY, "[inference.server]\nport = 8001\n", True),
        (JANUARY, f"[inference.server]\nport = 8001\n{CLIENT}['http://localhost:8001/v1']\n", False),
        (JANUARY, f"[inference]\n{CLIENT}['http://10.0.0.7:9000/v1']\n", False),  # a router elsewhere
        (JANUARY, '[orchestrator.client]\nbase_url = ["http://localhost:9000/v1"]\n', False),  # an engine of one's own
        (IDS, '[inference]\n[orchestrator.client]\nbase_url = "http://localhost:9000/v1"\n', True),
        (SEPTEMBER, "[inference.server]\nport = 8001\n[orchestrator.client]\nport = 8001\n", False),
        (SEPTEMBER, "[inference]\n[orchestrator.client]\nport = 8001\n", True),
        (MARCH, '[inference.server]\nport = 8001\n[orchestrator.client.elastic]\nhostname = "pool"\n', False),
        (NEWEST, "[inference.server]\nport = 8001\n", True),
        (NEWEST, '[inference.server]\nport = 8001\n[orchestrator.algo]\ntype = "sft_distill"\n', False),
        (NEWEST, '[inference]\n[orchestrator.model.client]\nbase_url = "http://localhost:8000/v1"\n', False),
    ],
)  # fmt: skip
def test_the_port_that_is_asked_is_the_port_that_listens(era: str, text: str, other: bool) -> None:
    assert ("engine-port" in weights(tracking.CHECKS, of(era, text))) == other


def test_the_url_is_not_told_as_a_list_where_only_a_text_is_taken() -> None:
    text = '[inference]\n[orchestrator.model.client]\nbase_url = ["http://localhost:8001/v1"]\n'
    schema = eras.load_eras()[-1].schema("rl")
    remedies = {
        one.id: one.remedy for check in tracking.CHECKS for one in check(replace(of(NEWEST, text), schema=schema))
    }
    assert remedies["engine-port"] == 'Set orchestrator.model.client.base_url = "http://localhost:8000/v1".'


@pytest.mark.parametrize(
    ("day", "key"),
    [
        (date(2026, 1, 15), "orchestrator.client.base_url"),
        (date(2026, 3, 13), "orchestrator.client.base_url"),
        (date(2026, 8, 14), "orchestrator.model.client.base_url"),
    ],
)
def test_the_address_is_told_by_the_key_that_the_version_takes(day: date, key: str) -> None:
    schema = eras.on(day)[-1].schema("rl")
    subject = replace(of(NEWEST, "[orchestrator]\n[inference.server]\nport = 8001\n"), schema=schema)
    (finding,) = [one for one in found(tracking.CHECKS, subject) if one.id == "engine-port"]
    assert f"{key} is not set and asks port 8000" in finding.sentence
    assert schema.get(key) is not None


def test_the_remote_executor_is_found_in_each_environment_at_its_line() -> None:
    text = (
        '[[orchestrator.env]]\nid = "a"\nargs = { executor_backend = "local" }\n'
        '[[orchestrator.env]]\nid = "b"\n[orchestrator.env.args]\nexecutor_backend = "prime"\n'
        '[[orchestrator.env]]\nid = "c"\nargs = { executor_backend = "prime" }\n'
    )
    told = found(tracking.CHECKS, of(JANUARY, text))
    assert [(one.id, one.where.line) for one in told] == [("remote-executor", 7), ("remote-executor", 10)]


def test_one_name_is_refused_where_metrics_are_kept_by_name() -> None:
    text = '[[orchestrator.train.env]]\nid = "a/math"\n[[orchestrator.train.env]]\nid = "a/math@1.0"\n'
    assert weights(tracking.CHECKS, of(JUNE, text)) == {"environments-same-name": "error"}
    assert weights(tracking.CHECKS, of(MARCH, text)) == {"environments-same-name": "warning"}
    assert weights(tracking.CHECKS, of(JANUARY, text)) == {}
    assert weights(tracking.CHECKS, of(JUNE, text + 'name = "hard"\n')) == {}


def test_a_model_in_a_folder_needs_its_renderer_named() -> None:
    folder = '[model]\nname = "./my-qwen"\n'
    assert weights(tracking.CHECKS, of(NEWEST, folder)) == {"renderer-of-a-folder": "error"}
    assert weights(tracking.CHECKS, of(MARCH, folder)) == {}
    assert weights(tracking.CHECKS, of(JUNE, folder + '[orchestrator]\nrenderer = "None"\n')) == {}
    assert weights(tracking.CHECKS, of(NEWEST, folder + '[tokenizer]\nname = "Qwen/Qwen3-8B"\n')) == {}


@pytest.mark.parametrize("era", EVERY)
def test_an_empty_configuration_is_left_alone(era: str | None) -> None:
    assert weights(tracking.CHECKS, of(era, site=POD)) == {}


def test_where_nothing_will_run_a_missing_key_is_a_warning() -> None:
    """On the desk where a run is prepared: its environment is not the pod's."""
    desk = site(environ={"HOME": "/home/me"}, gpus=())
    assert weights(tracking.CHECKS, of(JANUARY, WANDB, site=desk)) == {"wandb-key": "warning"}
    assert weights(tracking.CHECKS, of(JANUARY, WANDB, site=POD, run_file=None)) == {"wandb-key": "warning"}


@pytest.mark.parametrize(
    ("launcher", "weight"),
    [
        (["uv", "run", "--env-file", ".env", "rl"], "warning"),
        (["uv", "run", "--env-file=.env", "rl"], "warning"),
        (["bash", "-lc", "source .env; exec rl"], "warning"),
        (["./start.sh"], "warning"),
        (["uv", "run", "--no-sync", "rl"], "error"),
        (["/opt/uv", "run", "torchrun", "--nproc-per-node", "4", "src/prime_rl/trainer/sft/train.py"], "error"),
        (None, "error"),
    ],
)
def test_a_key_that_the_launcher_may_bring_is_not_missing_for_certain(launcher: list[str] | None, weight: str) -> None:
    job = {"dir": "/srv/prime-rl", "config": "rl.toml", **({"launcher": launcher} if launcher else {})}
    run = RunFile.model_validate({"run": {"id": "case"}, "job": job})
    assert weights(tracking.CHECKS, of(JANUARY, WANDB, site=POD, run_file=run)) == {"wandb-key": weight}
    gated = of(JANUARY, LLAMA, model=GATED, run_file=run, site=site(environ={"HOME": "/root"}, hf_login=False))
    assert weights(tracking.CHECKS, gated) == {"model-gated": weight}


def test_uv_may_read_a_file_of_keys_by_a_variable() -> None:
    pod = given(UV_ENV_FILE=".env")
    assert weights(tracking.CHECKS, of(JANUARY, WANDB, site=pod)) == {"wandb-key": "warning"}
