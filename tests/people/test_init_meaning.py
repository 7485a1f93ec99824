"""What `init --from` makes of a launch line trains the same: the supervisor's own command line, parsed as the era's
launcher parses it, against the person's, but for what the supervisor decides and has said so.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from supervisor.jobs.base import StartRequest
from supervisor.primerl import open_job
from tests.people.launches import ENVIRON, Taken, take
from tests.practice.command_line import CommandLine, walk
from tests.practice.era import load_era
from tests.practice.install import install

DECIDED = {
    # The supervisor's own business in each start: where it writes, which step, what is kept, one W&B run, no clean.
    *("output_dir", "clean", "clean_output_dir", "ckpt", "resume", "run", "trainer.ckpt", "orchestrator.ckpt"),
    *("wandb.id", "trainer.wandb.id", "orchestrator.wandb.id"),
}
OLD, GPU_IDS, DEPLOYED, RUN_DIRS = "2025-09-30", "2026-01-06", "v0.6", "2026-08-21"

LINES = {
    "as it was resumed": (
        (OLD, GPU_IDS),
        "uv run rl @ rl.toml --ckpt --ckpt.resume-step 5 --ckpt.interval 5 --max-steps 25",
    ),
    "the latest of both parts": (
        (OLD, GPU_IDS),
        "uv run rl @ rl.toml --trainer.ckpt.resume-step -1 --orchestrator.ckpt.resume-step -1 --output-dir outputs/d",
    ),
    "GPUs by id": (
        (OLD, GPU_IDS),
        "uv run rl @ rl.toml --inference-gpu-ids 0,1,2 --trainer-gpu-ids 3 --orchestrator.seed 4",
    ),
    "one GPU by id": ((OLD, GPU_IDS), "uv run rl @ rl.toml --inference-gpu-ids 0 --trainer-gpu-ids 0"),
    "only the trainer's GPUs": ((OLD, GPU_IDS), "uv run rl @ rl.toml --trainer-gpu-ids 5"),
    "three files": (
        (OLD, GPU_IDS, DEPLOYED, RUN_DIRS),
        "uv run rl --trainer @ t.toml --orchestrator @ o.toml --inference @ i.toml --max-steps 7",
    ),
    "three files without the blanks": (
        (GPU_IDS, RUN_DIRS),
        "rl --trainer @t.toml --orchestrator @o.toml --inference @i.toml",
    ),
    "two files": ((GPU_IDS, RUN_DIRS), "uv run rl @ rl.toml @ more.toml --ckpt.interval 3"),
    "GPUs by count": (
        (DEPLOYED, RUN_DIRS),
        "uv run rl @ rl.toml --deployment.num-infer-gpus 6 --deployment.num-train-gpus 2",
    ),
    "GPUs by one count": ((DEPLOYED, RUN_DIRS), "uv run rl @ rl.toml --deployment.num-infer-gpus 3"),
    "a node's other half": (
        (DEPLOYED, RUN_DIRS),
        "CUDA_VISIBLE_DEVICES=2,3 uv run rl @ rl.toml --deployment.num-infer-gpus 1 --deployment.num-train-gpus 1",
    ),
    "a node's other half by the files": ((DEPLOYED, RUN_DIRS), "CUDA_VISIBLE_DEVICES=2,3 uv run rl @ rl.toml"),
    "everything by flags": (
        (GPU_IDS,),
        (
            "FOO=1 nohup uv run rl @ rl.toml --model.name x/y --trainer.optim.lr 1e-6 --orchestrator.batch-size 16 "
            "--orchestrator.sampling.max-tokens 512 --inference.gpu-memory-utilization 0.5 --ckpt.keep-last 2 >log &"
        ),
    ),
    "today's": (
        (RUN_DIRS,),
        (
            "tmux new -d -s x 'uv run rl @ rl.toml --run.name mine --resume --ckpt.interval 25 --ckpt.keep-last 3 "
            "--trainer.optim.lr=1e-6 --orchestrator.batch-size 16 2>&1 | tee log'"
        ),
    ),
    "a fixed step of today's": ((RUN_DIRS,), "uv run rl @ rl.toml --max-steps 20 --ckpt --resume.step 10 --run.name r"),
    "cleaned": ((DEPLOYED,), "uv run rl @ rl.toml --clean-output-dir --ckpt.resume-step 4"),
}


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkout of each era, with the files that the lines name."""
    found = {}
    for era in (OLD, GPU_IDS, DEPLOYED, RUN_DIRS):
        folder = install(tmp_path_factory.mktemp("pod") / "prime-rl", era)
        (folder / "rl.toml").write_text(
            'max_steps = 20\n[model]\nname = "Qwen/Qwen3-0.6B"\n[ckpt]\ninterval = 6\n'
            "[trainer]\n[orchestrator]\n[inference]\n"
        )
        (folder / "more.toml").write_text("[trainer.optim]\nlr = 1e-5\n")
        (folder / "t.toml").write_text("max_steps = 9\n")
        (folder / "o.toml").write_text("max_steps = 9\nbatch_size = 8\n")
        (folder / "i.toml").write_text("[server]\nport = 8000\n")
        found[era] = folder
    return found


CASES = [(era, name) for name, (eras, _) in LINES.items() for era in eras]


@pytest.mark.parametrize(("era", "name"), CASES)
def test_the_supervisors_start_trains_what_the_line_trained(
    pods: dict[str, Path], monkeypatch: pytest.MonkeyPatch, era: str, name: str
) -> None:
    folder = pods[era]
    monkeypatch.chdir(folder)
    line = LINES[name][1]
    taken = take(line, folder)
    theirs = parsed(era, words_of(line))
    job = open_job(taken.run, ENVIRON)
    assert list(job.problems()) == []
    request = StartRequest(taken.run.run.id, 1, None, {}, "w4nd8", folder / "attempt")
    (part,) = job.components(request)
    ours = parsed(era, list(part.argv[part.argv.index("@") - (1 if "--trainer" in part.argv else 0) :]))
    assert part.cwd == folder
    assert differing(theirs, ours) == {}
    assert_the_rest_is_taken_over(taken, theirs, ours, part.env)


def words_of(line: str) -> list[str]:
    """The words behind `rl`, as the person's shell would hand them on (the lines above are simple enough)."""
    words = shlex.split(line)
    if words[0] == "tmux":
        words = shlex.split(words[-1])
    ends = [at for at, word in enumerate(words) if word in (">log", "2>&1", "|", "&")]
    words = words[words.index("rl") + 1 : ends[0] if ends else None]
    return [part for word in words for part in (("@", word[1:]) if word.startswith("@") and len(word) > 1 else (word,))]


def parsed(era: str, words: list[str]) -> dict[str, Any]:
    return CommandLine(load_era(era), "rl").parse(words)


def differing(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that are not the same, the supervisor's own left out."""
    left, right = flat(theirs), flat(ours)
    if "max_steps" in left:  # the launcher hands it on to both parts (auto_setup_max_steps in its configuration)
        left |= {path: left["max_steps"] for path in ("trainer.max_steps", "orchestrator.max_steps") if path in left}
    return {path: (left.get(path), right.get(path)) for path in {*left, *right} if left.get(path) != right.get(path)}


def flat(config: dict[str, Any]) -> dict[str, Any]:
    return {
        path: value
        for path, value in walk(config)
        if not isinstance(value, dict) and not any(f"{path}.".startswith(f"{one}.") for one in DECIDED)
        if path not in ("deployment.num_infer_gpus", "deployment.num_train_gpus") or value != 1  # their defaults
    }


def assert_the_rest_is_taken_over(
    taken: Taken, theirs: dict[str, Any], ours: dict[str, Any], env: dict[str, str] | Any
) -> None:
    """Of what the supervisor decides, the interval, the folder and the name are the person's."""
    wanted = theirs.get("ckpt") if isinstance(theirs.get("ckpt"), dict) else {}
    if interval := (wanted or {}).get("interval"):
        assert ours["ckpt"]["interval"] == interval
    folder = Path.cwd() / (theirs.get("output_dir") or "outputs")
    assert Path(ours["output_dir"]) == folder
    if name := (theirs.get("run") or {}).get("name"):
        assert ours["run"]["name"] == name
    assert "resume" not in ours
    assert "resume_step" not in ours["ckpt"]
    assert (theirs.get("trainer") or {}).get("ckpt", {}).get("resume_step") in (None, -1)
    if "CUDA_VISIBLE_DEVICES" in taken.draft.source:
        assert env["CUDA_VISIBLE_DEVICES"] == "2,3"
    if "FOO" in taken.draft.source:
        assert env["FOO"] == "1"


def test_every_era_is_tried() -> None:
    assert {era for era, _ in CASES} == {OLD, GPU_IDS, DEPLOYED, RUN_DIRS}
    assert len(CASES) >= 25


def test_the_comparison_can_fail(pods: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pods[GPU_IDS])
    one = parsed(GPU_IDS, ["@", "rl.toml", "--orchestrator.seed", "1"])
    two = parsed(GPU_IDS, ["@", "rl.toml", "--orchestrator.seed", "2", "--trainer-gpu-ids", "3"])
    assert set(differing(one, two)) == {"orchestrator.seed", "trainer_gpu_ids"}
