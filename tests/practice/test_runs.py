"""A practice run from start to end, in every era: what it writes and logs, how it resumes, that nothing is left."""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.practice.conftest import ERAS, LONG, Make, soak
from tests.practice.dcp import read_progress
from tests.practice.run import Practice, wait_until
from tests.practice.torchfile import read_archive

pytestmark = pytest.mark.soak  # the end-to-end tests run the practice job, too

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def finish(practice: Practice, *extra: str) -> tuple[int, str]:
    practice.launcher_output.unlink(missing_ok=True)
    code = practice.start(*extra).wait(timeout=30)
    return code, practice.launcher_output.read_text(encoding="utf-8", errors="replace")


STEP_LINES = {
    "2026-01-06": r"\[default0\]:{head}Step 0 \| Time: \d+\.\d\ds \| Loss: -?\d\.\d{4} \| Entropy: \d\.\d{4} \| "
    r"Mismatch KL: \d\.\d{4} \| Grad\. Norm: \d\.\d{4} \| LR: 1\.00e-05 \| Throughput: \d+ tokens/s \| "
    r"MFU: \d+\.\d% \| Peak Mem\.: \d+\.\d GiB{tail}$",
    "2026-08-21": r"\[trainer0\]:{head}Step 1 \| +\d+(?:ms|\.\ds) \| Loss -?\d\.\d{4} \| Entropy \d\.\d{4} \| "
    r"Mismatch KL \d\.\d{4} \| Grad\. Norm \d\.\d{4} \| LR 1\.00e-05 \| Throughput \d+ tokens/s \| "
    r"MFU \d+\.\d% \| Peak Mem\. \d+\.\d GiB{tail}$",
}
"""The exact bytes of the trainer's line of its first step."""
HEAD = r"\x1b\[2m\d\d:\d\d:\d\d\x1b\[0m \x1b\[32m\x1b\[1mSUCCESS\x1b\[0m \x1b\[32m\x1b\[1m\x1b\[22m"
TAIL = r"\x1b\[0m\x1b\[0m"


@pytest.mark.parametrize("era", LONG)
def test_a_run_trains_to_its_last_step_leaves_no_process_and_resumes_with_the_same_numbers_and_bytes(
    era: str, make: Make, tmp_path: Path
) -> None:
    practice = make(era, max_steps=6, interval=2)

    code, output = finish(practice)

    assert code == 0, output
    first = practice.era.first_step
    assert practice.trained_steps() == list(range(first, 6 + first))
    assert practice.era.line("launcher", "finished") in output
    wait_until(lambda: not practice.alive(), "all processes are gone")
    for step in (2, 4, 6):
        assert read_progress(practice.trainer_part(step)).step == step
        assert not (practice.trainer_part(step) / ".metadata.tmp").exists()
        progress = read_archive((practice.orchestrator_part(step) / "progress.pt").read_bytes())["progress"]
        assert progress.total_tokens > 0
    shared_tree = (practice.run_dir / "checkpoints" / "step_2" / "orchestrator").exists()
    assert shared_tree == (era in ("2025-09-30", "2026-08-21"))
    buffer = practice.orchestrator_part(2) / "buffer"
    assert sorted(path.name for path in buffer.glob("*.jsonl")) == (
        ["easy_examples.jsonl", "hard_examples.jsonl", "rollout_buffer.jsonl"] if era == "2026-01-06" else []
    )
    if era in STEP_LINES:
        line = STEP_LINES[era].replace("{head}", HEAD).replace("{tail}", TAIL)
        assert any(re.match(line, text) for text in practice.log("trainer").splitlines()), practice.log("trainer")

    whole_losses, whole_step_6 = losses(practice), tmp_path / "step_6"
    shutil.copytree(practice.trainer_part(6), whole_step_6)
    shutil.rmtree(practice.trainer_part(6))

    code, output = finish(practice, *practice.resume_flags(4))

    assert code == 0, output
    resumed = 4 if first == 0 else 5
    assert practice.trained_steps()[0] == resumed
    assert practice.era.line("trainer", "resuming", step=4) in practice.log("trainer")
    assert losses(practice)[resumed] == whole_losses[resumed]
    for name in ("__0_0.distcp", ".metadata"):
        assert filecmp.cmp(practice.trainer_part(6) / name, whole_step_6 / name, shallow=False)


def losses(practice: Practice) -> dict[int, str]:
    text = ANSI.sub("", practice.log("trainer"))
    return {int(step): loss for step, loss in re.findall(r"SUCCESS Step (\d+) \|.*?\| Loss:? (\S+)", text)}


def test_august_keeps_an_attempts_logs_and_adds_to_metrics(make: Make) -> None:
    practice = make("2026-08-21", max_steps=3, interval=1)
    finish(practice)
    finish(practice, *practice.resume_flags(2))

    logs = practice.run_dir / "logs"
    assert sorted(path.name for path in logs.iterdir()) == ["attempt_1", "attempt_2", "latest"]
    assert (logs / "latest").readlink() == Path("attempt_2")
    rows = [json.loads(line) for line in (practice.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss/mean" in row] == [1, 2, 3, 3]


@pytest.mark.parametrize("era", [soak("2026-01-06"), "2026-08-21"])
def test_two_trainer_ranks_write_a_shard_each(era: str, make: Make) -> None:
    practice = make(era, max_steps=3, interval=2, gpu_count=3, trainer_gpus=(1, 2))

    code, output = finish(practice)

    assert code == 0, output
    assert sorted(path.name for path in practice.trainer_part(2).glob("*.distcp")) == ["__0_0.distcp", "__1_0.distcp"]
    assert read_progress(practice.trainer_part(2)).step == 2


@pytest.mark.parametrize("era", [soak("2026-01-06"), "2026-08-21"])
def test_a_cut_shard_or_a_missing_orchestrator_part_ends_the_resume_with_exit_1(era: str, make: Make) -> None:
    practice = make(era, max_steps=6, interval=2)
    finish(practice)
    shard = practice.trainer_part(2) / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:5000])
    (practice.orchestrator_part(4) / "progress.pt").unlink()

    code, _ = finish(practice, *practice.resume_flags(4))

    assert code == 1
    assert "FileNotFoundError" in practice.log("orchestrator")

    code, _ = finish(practice, *practice.resume_flags(2))

    assert code == 1
    assert "PytorchStreamReader failed reading zip archive" in practice.log("trainer")


def test_january_ends_with_exit_0_when_both_end_at_once_though_one_failed(make: Make) -> None:
    practice = make("2026-01-06", max_steps=4, interval=2)
    finish(practice)
    (practice.orchestrator_part(4) / "progress.pt").unlink()

    code, output = finish(practice, *practice.resume_flags(4))

    assert "FileNotFoundError" in practice.log("orchestrator")
    assert (code, "RL training finished!" in output) in ((0, True), (1, False)), "by which of the two it sees first"


def test_january_leaves_the_step_before_the_last_without_an_orchestrator_part(make: Make) -> None:
    practice = make("2026-01-06", max_steps=3, interval=2)

    finish(practice)

    assert read_progress(practice.trainer_part(2)).step == 2
    assert not practice.orchestrator_part(2).exists()


def test_the_earliest_era_wipes_every_checkpoint_when_it_starts_without_resume(make: Make) -> None:
    practice = make("2025-09-30", max_steps=4, interval=2)
    finish(practice)
    practice.config.write_text(practice.config.read_text().replace("max_steps = 4", "max_steps = 1"))

    finish(practice)

    assert not practice.trainer_part(2).exists()
    assert not practice.trainer_part(4).exists()


def test_january_keeps_checkpoints_but_overwrites_them_from_step_0(make: Make) -> None:
    practice = make("2026-01-06", max_steps=4, interval=2)
    finish(practice)
    before = (practice.trainer_part(2) / ".metadata").stat().st_mtime_ns
    (practice.trainer_part(4) / "kept").touch()

    finish(practice)

    assert practice.trained_steps() == [0, 1, 2, 3]
    assert (practice.trainer_part(2) / ".metadata").stat().st_mtime_ns > before
    assert (practice.trainer_part(4) / "kept").exists()


@pytest.mark.parametrize("era", [soak("v0.6"), "2026-08-21"])
def test_later_eras_refuse_a_used_folder_and_honour_never_clean(
    era: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    practice = make(era, max_steps=2, interval=1)
    finish(practice)

    code, output = finish(practice)

    assert code == 1
    assert "FileExistsError" in output and practice.era.line("launcher", "refused", path="").split("''")[1] in output

    flag = f"--{practice.era.start['clean_key'].replace('_', '-')}"
    monkeypatch.setenv(practice.era.start["never_clean_variable"], "1")
    code, _ = finish(practice, flag)

    assert code == 1
    assert practice.trainer_part(1).exists()

    monkeypatch.delenv(practice.era.start["never_clean_variable"])
    (practice.trainer_part(1) / "old").touch()
    code, _ = finish(practice, flag)

    assert code == 0
    assert not (practice.trainer_part(1) / "old").exists()


@pytest.mark.parametrize(("era", "code"), [("2025-09-30", 2), ("2026-01-06", 2), ("v0.6", 1), ("2026-08-21", 1)])
def test_an_unknown_flag_ends_with_the_parsers_own_exit_code(era: str, code: int, make: Make) -> None:
    practice = make(era)

    for words in (["--no-such-flag", "3"], ["@configs/practice.toml"]):
        ended, output = finish(practice, *words)
        assert ended == code, output
        assert words[0] in output


@pytest.mark.parametrize("era", ERAS)
def test_an_unknown_key_in_the_file_ends_with_exit_1(era: str, make: Make) -> None:
    practice = make(era)
    practice.config.write_text("max_stepss = 3\n" + practice.config.read_text())

    code, output = finish(practice)

    assert code == 1
    assert "max_stepss" in output.replace("-", "_") and "Extra inputs are not permitted" in output


def test_other_eras_spellings_are_refused(make: Make) -> None:
    january, august = make("2026-01-06"), make("2026-08-21")

    assert finish(january, "--resume.step", "2")[0] == 2
    assert finish(january, "--deployment.num-train-gpus", "1")[0] == 2
    assert finish(august, "--ckpt.resume-step", "2")[0] == 1
    assert finish(august, "--trainer-gpu-ids", "1")[0] == 1


def test_three_files_and_flags_make_one_configuration(make: Make) -> None:
    practice = make("2026-01-06")
    configs = practice.home / "configs"
    (configs / "train.toml").write_text("[optim]\nlr = 1e-5\n")
    (configs / "orch.toml").write_text(
        f'batch_size = 8\n[client]\nbase_url = ["http://localhost:{practice.port}/v1"]\n'
    )
    (configs / "infer.toml").write_text(f"[server]\nport = {practice.port}\n")
    parts = [
        f"--{role} @ configs/{name}.toml".split()
        for role, name in (("trainer", "train"), ("orchestrator", "orch"), ("inference", "infer"))
    ]
    flags = "--max-steps 2 --ckpt --ckpt.interval 1 --inference-gpu-ids 0 --trainer-gpu-ids 1 --output-dir outputs"

    code = practice.start(
        command=[practice.command()[0], *(word for part in parts for word in part), *flags.split()]
    ).wait(timeout=30)

    assert code == 0, practice.launcher_output.read_text()
    assert practice.trained_steps() == [0, 1]
    assert read_progress(practice.trainer_part(1)).step == 1


def test_a_start_remembers_what_it_was_given(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    practice = make("2026-08-21", max_steps=1)
    monkeypatch.setenv("PRL_RUN_ID", "run-7")
    monkeypatch.setenv("WANDB_API_KEY", "not-to-be-copied")

    finish(practice, "--run.name", "practice")

    (start,) = practice.starts()
    assert start["arguments"][-2:] == ["--run.name", "practice"]
    assert start["values"]["PRL_RUN_ID"] == "run-7"
    assert "WANDB_API_KEY" in start["names"] and "not-to-be-copied" not in json.dumps(start)


def test_the_install_answers_an_interpreter_and_a_text_search(make: Make) -> None:
    practice = make("2026-08-21")

    found = subprocess.run(
        [practice.home / ".venv" / "bin" / "python", "-c", "import prime_rl; print(*prime_rl.__path__, sep='\\n')"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert found.stdout.split() == [
        str(practice.home / "src" / "prime_rl"),
        str(practice.home / "packages/prime-rl-configs/src/prime_rl"),
    ]
    assert (
        "class ResumeConfig" in (practice.home / "packages/prime-rl-configs/src/prime_rl/configs/shared.py").read_text()
    )
