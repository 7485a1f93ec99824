"""Golden data against the real things, opt-in: prime-rl's source (PRIME_RL_GIT), torch (PRACTICE_TORCH_PYTHON)."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator

import pytest

from tests.practice.conftest import ERAS, Make
from tests.practice.era import Era, load_era
from tests.practice.install import example
from tests.practice.test_runs import finish

LITERALS = {
    "startup broadcast": "Broadcasting startup policy weights",
    "one more step": "self.progress.step = self.resume_step + 1",
    "metrics by default": "FileMonitorConfig()",
    "NCCL by default": "self.weight_broadcast = SharedNCCLWeightBroadcastConfig()",
    "uv children": '"uv",',
    "environ.get": 'os.environ.get("WANDB_SHARED_RUN_ID"',
}
"""What a name in an era's `install` table means in the real file, where it is not the text itself."""
TELLING = [
    "class ResumeConfig",
    "num_train_gpus",
    "inference_gpu_ids: ",
    "keep_last",
    "shutil.rmtree(ckpt_dir",
    "clean_output_dir",
    "create_attempt_log_dir",
    '"trainer.log"',
    "PRL_RUN_ID",
    "WANDB_SHARED_RUN_ID",
    "def start_router",
    "step: int = 1",
    "PRIME_RL_PROC_PREFIX",
    "sigterm_handler",
]
"""Names by which eras are told apart: a stand-in file holds one exactly when the real file does."""
FIELD = re.compile(r"\{[^}]*\}")
TORCH_CHECK = """
import sys, types, dataclasses, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
folder, progress_file, progress_class = sys.argv[1:]
state = {}
_load_state_dict(state, storage_reader=FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
base = state["app"]["model"]["base.weight"]
again = {"app": {"model": {"base.weight": torch.zeros_like(base)}, "progress": {"step": 0}}}
dcp.load(again, checkpoint_id=folder)
assert torch.equal(again["app"]["model"]["base.weight"], base) and base.abs().sum() > 0
assert torch.isfinite(base).all() and again["app"]["progress"]["step"] == state["app"]["progress"]["step"]
module, _, name = progress_class.rpartition(".")
fields = ["step", "total_tokens", "total_samples", "total_problems"]
cls = dataclasses.make_dataclass(name, fields)
cls.__module__ = module
parts = module.split(".")
for depth in range(1, len(parts) + 1):
    sys.modules.setdefault(".".join(parts[:depth]), types.ModuleType(parts[depth - 1]))
setattr(sys.modules[module], name, cls)
with torch.serialization.safe_globals([cls]):
    progress = torch.load(progress_file, weights_only=True)["progress"]
print(state["app"]["progress"]["step"], tuple(base.shape), progress.total_tokens > 0)
"""


@pytest.fixture
def source_of() -> Iterator[object]:
    clone = os.environ.get("PRIME_RL_GIT")
    if not clone:
        pytest.skip("PRIME_RL_GIT names no clone of prime-rl")

    def read(era: Era, path: str) -> str:
        command = ["git", "-C", clone, "show", f"{era.commit}:{path}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.stdout if found.returncode == 0 else ""

    yield read


@pytest.mark.optin
@pytest.mark.parametrize("name", ERAS)
def test_every_log_lines_constant_text_stands_in_the_source_at_its_commit(name: str, source_of) -> None:  # type: ignore[no-untyped-def]
    era = load_era(name)
    missing = []
    for role, lines in era.lines.items():
        text = "\n".join(source_of(era, path) for path in lines["source"])
        joined = re.sub(r'"\s*\n\s*f?"', "", text)
        joined = re.sub(r"\{([\w.]+=)\}", r"\1{", joined)  # f"{name=}" writes its own name
        for key, template in lines.items():
            if key == "source":
                continue
            for piece in FIELD.split(template.replace("\n", "\\n")):
                words = piece.strip(" ()[]|,.:%s")
                if len(words) > 3 and words not in joined:
                    missing.append((role, key, words))

    assert missing == []


@pytest.mark.optin
@pytest.mark.parametrize("name", ERAS)
def test_the_installs_files_hold_the_names_that_the_real_ones_hold_and_no_others(name: str, source_of) -> None:  # type: ignore[no-untyped-def]
    era = load_era(name)
    for entry in era.install:
        text = source_of(era, entry["path"])
        if not entry["path"].endswith("__init__.py"):
            assert text, f"{entry['path']} is not in {era.commit}"
        names = entry.get("names", [])
        assert [name for name in names if LITERALS.get(name, name) not in text] == [], entry["path"]
        held = {name for name in TELLING if name in text}
        assert held <= set(names), f"{entry['path']} really holds {held - set(names)} too"
    assert bool(source_of(era, "src/prime_rl/entrypoints/rl.py")) == era.titles
    assert bool(source_of(era, "src/prime_rl/utils/pydantic_config.py")) != era.titles


@pytest.mark.parametrize("name", ERAS)
def test_the_example_uses_only_keys_of_its_era(name: str) -> None:
    from tests.practice.command_line import CommandLine, walk

    era = load_era(name)
    reader = CommandLine(era, "rl")

    unknown = [path for path, _ in walk(tomllib.loads(example(era))) if not reader.is_known(path)]

    assert unknown == []


@pytest.mark.optin
@pytest.mark.parametrize("name", ERAS)
def test_real_torch_loads_what_the_practice_job_saved(name: str, make: Make) -> None:
    python = os.environ.get("PRACTICE_TORCH_PYTHON")
    if not python:
        pytest.skip("PRACTICE_TORCH_PYTHON names no interpreter with torch")
    practice = make(name, max_steps=3, interval=2, gpu_count=3, trainer_gpus=(1, 2), checkpoint_bytes=100_000)
    finish(practice)
    practice.trainer_part(3)

    arguments = [
        practice.trainer_part(3),
        practice.orchestrator_part(3) / "progress.pt",
        practice.era.layout["progress_class"],
    ]
    found = subprocess.run(
        [python, "-c", TORCH_CHECK, *map(str, arguments)], capture_output=True, text=True, check=False
    )

    assert found.returncode == 0, found.stderr
    assert found.stdout.split("(")[0].strip() == "3" and found.stdout.strip().endswith("True")
