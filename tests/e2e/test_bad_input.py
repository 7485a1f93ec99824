"""Bad input, end to end: one clear sentence, the right exit code, nothing lost, the job never killed for it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main

from .rig import Pod

NewPod = Callable[..., Pod]


@pytest.fixture
def new_pod(tmp_path: Path) -> Iterator[NewPod]:
    made: list[Pod] = []

    def make(era: str = "v0.6", **options: Any) -> Pod:
        pod = Pod(tmp_path, era, **{"max_steps": 8, "step_s": 0.3, **options})
        made.append(pod)
        return pod

    yield make
    for pod in made:
        pod.close()


def refused(pod: Pod, *sentences: str, process: bool = False) -> str:
    """The daemon ends with 93, says all of this, starts nothing, and shows no traceback."""
    code = pod.start().wait_exit() if process else pod.run_to_end()
    assert code == 93, pod.story()
    text = pod.output.read_text()
    for sentence in sentences:
        assert sentence in text, text
    assert "Traceback" not in text
    assert not (pod.practice.home.exists() and pod.practice.starts())
    return text


# ---------------------------------------------------------------- the run file


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: None, "run.toml"),
        (lambda text: "[run\n" + text, "run.toml line 1, column 5: this is not TOML"),
        (lambda text: text.replace("checkpoint_interval = 2", 'checkpoint_interval = "two"'), "checkpoint_interval"),
        (lambda text: text.replace("checkpoint_interval", "checkpoint_intervall"), "checkpoint_interval"),
        (
            lambda text: text.replace('id = "practice"', 'id = "../practice"'),
            "line 2: [run] id takes letters, digits, '.', '_' and '-', up to 100; it begins with a letter or a digit.",
        ),
        (lambda text: text + 'WANDB_API_KEY = "x"\n', "secret"),
        (lambda text: text.encode() + b"\xff\xfe", "run.toml"),
        (
            lambda text: text.replace("file:///", "gs://bucket/"),
            "is none of b2://bucket[/prefix], s3://bucket[/prefix]",
        ),
    ],
    ids=["missing", "not TOML", "wrong type", "unknown key", "bad id", "secret", "not text", "unknown store"],
)
def test_a_run_file_that_cannot_be_used(
    change: Callable[[str], str | bytes | None], sentence: str, new_pod: NewPod, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; the folder below is tried as people do."""
    pod = new_pod()
    changed = change(pod.run_file.read_text())
    if changed is None:
        pod.run_file.unlink()
    else:
        pod.run_file.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    assert main(["run", str(pod.run_file)]) == 93
    told = capsys.readouterr().err
    assert sentence in told and "Traceback" not in told
    assert not pod.practice.starts()


def test_a_run_file_that_is_a_folder(new_pod: NewPod) -> None:
    pod = new_pod()
    pod.run_file.unlink()
    pod.run_file.mkdir()
    refused(pod, "run.toml", process=True)


# ---------------------------------------------------------------- the trainer


def test_the_folder_of_prime_rl_is_missing(new_pod: NewPod) -> None:
    pod = new_pod()
    home = pod.practice.home
    home.rename(home.with_name("elsewhere"))
    refused(pod, str(home))


def test_a_prime_rl_of_no_known_era(new_pod: NewPod) -> None:
    pod = new_pod()
    for path in (pod.practice.home / "src").rglob("*.py"):
        path.write_text("")
    refused(pod, "prime-rl")


@pytest.mark.parametrize(
    ("era", "more", "word"),
    [
        ("v0.6", '\n[slurm]\njob_name = "x"\n', "slurm"),
        pytest.param("2026-08-21", '\n[deployment]\ntype = "multi_node"\n', "multi_node", marks=pytest.mark.soak),
        pytest.param("v0.6", "\n[trainer]\nmax_concurrent_runs = 4\n", "max_concurrent_runs", marks=pytest.mark.soak),
    ],
    ids=["slurm", "multi-node", "multi-run"],
)
def test_what_is_not_supervised_is_refused_with_a_sentence(era: str, more: str, word: str, new_pod: NewPod) -> None:
    pod = new_pod(era)
    config = pod.practice.config
    table = more.split("]")[0].strip() + "]"
    text = config.read_text()
    if table in text:
        config.write_text(text.replace(table, more.strip(), 1))
    else:
        config.write_text(text + more)
    refused(pod, word)


# ---------------------------------------------------------------- logs, checkpoints, disks, drivers


@pytest.mark.soak
def test_ten_megabytes_binary_and_half_lines_in_a_log_cost_nothing_and_a_symbolic_link_is_no_checkpoint(
    new_pod: NewPod, tmp_path: Path
) -> None:
    pod = new_pod(max_steps=10)
    pod.start()
    pod.wait_for(lambda: pod.step() >= 1, "a step is done")
    for role in ("trainer", "orchestrator"):
        log = pod.practice.logs() / f"{role}{pod.practice.era.layout['log_suffix']}"
        with log.open("ab") as file:
            file.write(b"x" * (10 << 20) + b"\n")
            file.write(bytes(range(256)) * 64 + b"\n")
            file.write(b"\n\x1b[1mhalf of a line, Step 7 | Time: ")
    assert pod.wait_exit() == 0, pod.story()
    assert pod.resume_steps() == [None]
    assert pod.latest()["step"] == "step_10"

    foreign = tmp_path / "foreign"
    real = pod.practice.trainer_part(10).parent
    real.rename(foreign)
    real.symlink_to(foreign)
    before = {path.relative_to(foreign): path.read_bytes() for path in foreign.rglob("*") if path.is_file()}
    steps = pod.by_hand("publish", "--step", "10")
    assert steps.returncode == 1, steps
    assert "link" in steps.stderr, steps.stderr
    pruned = pod.by_hand("prune")
    assert pruned.returncode == 0, pruned
    assert {path.relative_to(foreign): path.read_bytes() for path in foreign.rglob("*") if path.is_file()} == before, (
        "where it points nothing is touched"
    )


def test_a_state_folder_that_cannot_be_written(new_pod: NewPod) -> None:
    pod = new_pod()
    (pod.folder / "state").write_text("a file where the folder should be")
    text = refused(pod, "The state folder", "Set run.state_dir to a folder")
    assert len(text.strip().splitlines()) == 1


@pytest.mark.soak
def test_a_full_disk_silences_nobody_and_costs_the_job_nothing(new_pod: NewPod) -> None:
    """Writes of the daemon fail (journal and log included, as on a full disk); the job's own do not."""
    pod = new_pod(max_steps=60)
    pod.start()
    pod.wait_for(lambda: pod.step() >= 2, "steps are done")
    assert pod.daemon is not None
    before = resource.prlimit(pod.daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pod.daemon.pid, resource.RLIMIT_FSIZE, (100, before[1]))
    told = pod.wait_for(lambda: [n for n in pod.status().get("notes", ()) if "journal" in n], "the status says so")
    assert "cannot be written" in told[0]
    assert "Make room on its disk" in told[0]
    step = pod.step()
    pod.wait_for(lambda: pod.step() >= step + 2, "the run goes on, and is watched")
    resource.prlimit(pod.daemon.pid, resource.RLIMIT_FSIZE, before)
    pod.wait_for(lambda: pod.status() and not any("journal" in n for n in pod.status()["notes"]), "it mends itself")
    assert pod.wait_exit() == 0, pod.story()
    assert pod.resume_steps() == [None]
    assert pod.latest()["step"] == "step_60"


@pytest.mark.soak
def test_without_a_driver_the_gpus_are_unknown_and_a_dead_engine_is_healed_all_the_same(new_pod: NewPod) -> None:
    faults = [{"kind": "engine-exit-0", "at_step": 5}]
    pod = new_pod(environ={"LD_LIBRARY_PATH": "/nonexistent"}, faults=faults, max_steps=10, step_s=0.6)
    pod.start()
    reason = pod.wait_for(lambda: pod.status().get("gpu_reason") not in (None, "", "no look yet"), "GPUs are unknown")
    assert reason
    assert "driver" in pod.status()["gpu_reason"].lower() or "NVML" in pod.status()["gpu_reason"]
    assert pod.wait_exit() == 0, pod.story()
    assert "vLLM died silently" in pod.sentences("verdict")[0]
    assert pod.latest()["step"] == "step_10"
