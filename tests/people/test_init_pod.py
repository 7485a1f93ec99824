"""What `init` says of the pod, and what it writes because of it. Names of variables, never their values."""

from __future__ import annotations

import io
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base import secrets
from supervisor.cli import init as init_module
from supervisor.cli import main, pod, providers
from supervisor.cli.launch_settings import Draft
from supervisor.cli.machine import Machine
from supervisor.cli.pod import Pod
from supervisor.cli.run_text import comment, run_file_text
from supervisor.config.settings import RunFile, load
from supervisor.config.toml_text import value_text
from supervisor.jobs.base import StartRequest
from supervisor.preflight.site import Site, Volume
from supervisor.primerl import open_job
from supervisor.sensors.gpu_survey import GpuSurveyed
from tests.practice.install import install

GB = 10**9
ROOT = Volume("/", "overlay", 50 * GB, 20 * GB)
GIVEN = Volume("/workspace", "ext4", 2000 * GB, 1500 * GB)
H100 = GpuSurveyed(0, "NVIDIA H100 80GB HBM3", "GPU-1", 85_520_809_984, free_bytes=85_520_809_984, used_bytes=0)


@pytest.fixture(autouse=True)
def _no_secret_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", secrets.NOTHING)
    secrets._short.cache_clear()


def pod_of(provider: str = "", *, container: bool = True, **site: object) -> Pod:
    looked = replace(Site(provider=provider, container=container, volumes={"output": ROOT}), **site)
    machine = Machine(gpus=[H100, replace(H100, index=1, uuid="GPU-2")])
    return Pod(machine, looked, providers.of(provider, container=container), {"HF_TOKEN": "hf_abc", "PATH": "/bin"})


def written(one: Pod, draft: Draft | None = None) -> tuple[str, RunFile]:
    draft = draft or Draft({"job.kind": "rl", "job.dir": "/opt/prime-rl", "job.config": "rl.toml"})
    text = run_file_text(one, draft, "demo")
    return text, RunFile.model_validate(tomllib.loads(text))


def test_gpus_disks_and_variables_are_named_with_their_numbers() -> None:
    told = pod.describe_pod(pod_of("runpod", persistent=(GIVEN,), netrc_wandb=True))
    assert "GPUs: 2 x NVIDIA H100 80GB HBM3 with 79.6 GiB." in told
    assert "Pod: RunPod." in told
    assert "Disk: outputs would lie on / (overlay): 18.6 GiB free of 46.6 GiB." in told
    assert any(line.startswith("Disk: given to this container from outside") and "/workspace" in line for line in told)
    assert "Variables: set: HF_TOKEN, a login for W&B in .netrc." in told
    assert "Variables: not set here: B2_APPLICATION_KEY_ID, B2_APPLICATION_KEY." in told
    assert "hf_abc" not in "".join(told)


def test_what_only_process_one_has_is_told_by_name() -> None:
    one = replace(pod_of("vast"), process_one=["B2_APPLICATION_KEY", "VAST_CONTAINERLABEL"])
    assert any("only process 1 has B2_APPLICATION_KEY" in line for line in pod.describe_pod(one))


def test_a_pod_without_anything_has_a_run_file_all_the_same() -> None:
    bare = Pod(Machine(), Site(), providers.of("", container=False), {})
    text, run = written(bare, Draft())
    assert "GPUs: none is known." in text
    assert run.run.id == "demo"


@pytest.mark.parametrize("name", [*providers.PROVIDERS, ""])
def test_every_provider_gives_a_run_file_that_loads(name: str) -> None:
    text, run = written(pod_of(name))
    assert run.leaving.grace_s == (5 if name == "runpod" else None)
    active = re.sub(
        r"(?m)^# (?=(?:finish|grace_s|url = \"(?:b2|https)|keep_\w+|max_steps|output_dir|prune_above))", "", text
    )
    uncommented = RunFile.model_validate(tomllib.loads(active))
    assert uncommented.hooks.finish
    assert uncommented.store.url == "b2://my-bucket/prefix"


def test_a_provider_without_notice_gets_the_advice_of_a_heartbeat() -> None:
    assert "\n[heartbeat]\n" in written(pod_of("vast"))[0]
    assert "\n[heartbeat]\n" not in written(pod_of("runpod"))[0]


def test_outputs_go_to_the_volume_that_outlives_the_container() -> None:
    text, run = written(pod_of("runpod", persistent=(GIVEN, replace(GIVEN, mount="/small", free_bytes=20 * GB))))
    assert str(run.job.output_dir) == "/workspace/outputs/demo"
    assert "# /workspace has 1.36 TiB free and is likely to outlive this container" in text


def test_a_folder_of_the_launch_line_stays_and_the_volume_is_only_suggested() -> None:
    draft = Draft({"job.dir": "/opt/prime-rl", "job.config": "rl.toml", "job.output_dir": "out"}, source="rl @ rl.toml")
    text, run = written(pod_of("runpod", persistent=(GIVEN,)), draft)
    assert str(run.job.output_dir) == "out"
    assert '# output_dir = "/workspace/outputs/demo"' in text


def test_nothing_is_suggested_where_outputs_already_lie_on_such_a_volume_or_outside_a_container() -> None:
    assert pod.better_volume(pod_of(volumes={"output": GIVEN}, persistent=(GIVEN,))) is None
    assert pod.better_volume(pod_of(container=False, persistent=(GIVEN,))) is None
    assert pod.better_volume(pod_of()) is None


def test_comments_hold_no_character_that_ends_them() -> None:
    lines = comment("a\nb = 1\x07\x85\u2028[x]\tc " + "y" * 300)
    assert all(line.startswith("# ") for line in lines)
    assert tomllib.loads("\n".join(lines)) == {}


@pytest.mark.parametrize(
    "value", ['a"b\\c', "tab\there", "\x7f", "ü", [1, 2], ["--x", "y" * 200, "--z"], True, 1.5, ["a\nb"]]
)
def test_values_come_back_as_they_were(value: object) -> None:
    assert tomllib.loads(f"x = {value_text(value)}")["x"] == value


# ---------------------------------------------------------------- the command


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = install(tmp_path / "prime-rl", "2026-01-06")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("be0e3d131" + "0" * 31 + "\n")
    monkeypatch.chdir(folder)
    return folder


LINE = "uv run rl @ configs/practice.toml --ckpt --ckpt.resume-step 5 --max-steps 25 --wandb.name x"


def test_a_launch_line_is_taken_checked_and_told(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine.toml"
    assert main.main(["init", "-o", str(target), "--from", LINE]) == 0
    said = capsys.readouterr().out
    run = load(target)
    assert (run.run.id, run.run.max_steps, run.job.args) == ("mine", 25, ["--wandb.name", "x"])
    assert "rl-supervisor run RUN.toml --step 5" in said
    assert f"`rl-supervisor check {target}` says:\n{target} " in said
    assert said.index("says:") < said.index("Next, in this order:")
    before = target.read_text()
    told = " ".join(before.replace("\n#", " ").split())
    assert "prime-rl between 31 Dec 2025 and 24 Feb 2026, commit be0e3d131." in told
    assert main.main(["init", "-o", str(target), "--from", LINE]) == 1
    assert target.read_text() == before


def test_the_lines_of_the_page_are_taken(checkout: Path) -> None:
    (checkout / "launch.sh").write_text("uv run rl @ configs/practice.toml --max-steps 500\n")
    given = ("uv run rl @ rl.toml --max-steps 500", "launch.sh")
    for number, launch in enumerate(given):
        words = ("init", "--from", launch, "-o", f"my-run-{number}.toml")
        assert main.main(words) == 0
        assert load(Path(words[-1])).run.max_steps == 500


def test_without_a_launch_line_the_files_own_interval_and_folder_are_kept(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNPOD_POD_ID", "abc")
    assert main.main(["init", "-o", str(tmp_path / "found.toml"), "--job", str(checkout)]) == 0
    run = load(tmp_path / "found.toml")
    assert (run.run.id, run.job.checkpoint_interval, str(run.job.output_dir)) == ("found", 5, "outputs")
    text = (tmp_path / "found.toml").read_text()
    assert "Pod: RunPod (RUNPOD_POD_ID is set)." in text
    assert "abc" not in text
    assert run.leaving.grace_s == 5


def test_a_line_from_a_persons_own_repository_runs_there_with_the_other_checkouts_prime_rl(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = checkout / ".venv" / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True, exist_ok=True)
    (site / "__editable__.prime_rl.pth").write_text(f"{checkout / 'src'}\n")
    mine = tmp_path / "mine"
    (mine / ".git").mkdir(parents=True)
    (mine / ".git" / "HEAD").write_text("f" * 40 + "\n")
    (mine / "my.toml").write_text((checkout / "configs" / "practice.toml").read_text())
    monkeypatch.chdir(mine)
    line = f"{checkout}/.venv/bin/rl @ my.toml --max-steps 25"
    assert main.main(["init", "-o", "run.toml", "--from", line]) == 0
    assert "cannot be started" not in capsys.readouterr().out
    job = open_job(load(mine / "run.toml"), {"PATH": "/bin"})
    (part,) = job.components(StartRequest("run", 1, None, {}, "w4nd8", tmp_path))
    assert (part.cwd, part.argv[0]) == (mine, str(checkout / ".venv" / "bin" / "rl"))
    assert job.facts().revision.startswith("be0e3d131"), "prime-rl's commit, not that of the person's own repository"


def test_a_script_and_standard_input_are_read_the_same(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = checkout / "go.sh"
    script.write_text(f"#!/bin/bash\n{LINE}\n")
    assert main.main(["init", "-o", str(tmp_path / "a.toml"), "--from", "go.sh"]) == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINE.encode())))
    assert main.main(["init", "-o", str(tmp_path / "b.toml"), "--from", "-"]) == 0
    settings = [load(tmp_path / f"{name}.toml").job for name in "ab"]
    assert settings[0] == settings[1]


def test_findings_are_no_failure_of_init(checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "broken.toml"
    assert main.main(["init", "-o", str(target), "--from", "uv run rl @ not-there.toml"]) == 0
    said = capsys.readouterr().out
    assert "not-there.toml" in said.partition("says:")[2]
    assert "The file is written anyway. See how to mend it: rl-supervisor check " in said


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("gone.sh", "gone.sh does not exist: name the script, or give the launch line itself."),
        ("", "The launch line is empty: give the line that starts the training."),
        ("uv run rl @ a.toml\0", "holds a zero byte"),
        ("uv run rl @ \udcff.toml", "The launch line is not UTF-8, which a run file must be."),
        ("echo hello", "No launch line was found there"),
    ],
)
def test_what_is_no_launch_line_is_refused_and_nothing_is_written(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, sentence: str
) -> None:
    assert main.main(["init", "-o", str(tmp_path / "x.toml"), "--from", given]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "x.toml").exists()


def test_nothing_of_the_line_is_executed(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = tmp_path / "witness"
    line = (
        f"touch {witness}; X=$(touch {witness}) uv run rl @ configs/practice.toml "
        f"--a $(touch {witness}) --b `touch {witness}` <(touch {witness}) ${{Y:-$(touch {witness})}} && touch {witness}"
    )
    started: list[str] = []
    monkeypatch.setattr(os, "system", started.append)
    assert main.main(["init", "-o", str(tmp_path / "x.toml"), "--from", line]) == 0
    assert not witness.exists()
    assert started == []


def test_no_secret_of_this_environment_is_in_the_file(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("WANDB_API_KEY", "HF_TOKEN", "B2_APPLICATION_KEY", "OTHER_SECRET"):
        monkeypatch.setenv(name, f"value-of-{name}-0123456789")
    line = f"{LINE} --x $OTHER_SECRET --y ${{WANDB_API_KEY}}"
    assert init_module.init(tmp_path / "x.toml", None, line, os.environ) == 0
    text, said = (tmp_path / "x.toml").read_text(), capsys.readouterr().out
    assert "0123456789" not in text + said
    assert "Variables: set: WANDB_API_KEY, HF_TOKEN" in text
