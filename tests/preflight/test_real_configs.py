"""Opt-in: every configuration that prime-rl itself shipped, beside its own source, gives no error that is not true.

PRIME_RL_GIT=~/prime-rl pytest -m optin tests/preflight/test_real_configs.py -s

A file is checked as a person would start it: a whole one after `rl @`, three of one folder as three, one for `sft` so.
Of a machine nothing is known here. True are only the refusals of what a supervisor of one pod cannot run, and what
stands in ``TRUE`` with its reason.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from supervisor.preflight import Finding, examine, pydantic_source
from supervisor.preflight.gather import gather
from supervisor.preflight.pydantic_source import read
from supervisor.preflight.site import Site
from supervisor.preflight.telling_apart import part_of
from tests.preflight.harness import shown
from tests.primerl.eras import ERAS

CLONE = os.environ.get("PRIME_RL_GIT", "")
pytestmark = [
    pytest.mark.optin,
    pytest.mark.skipif(not CLONE, reason="PRIME_RL_GIT names no clone of PrimeIntellect-ai/prime-rl"),
]
SOURCES = ("src/prime_rl", "packages")
CONFIGS = ("configs", "examples", "benchmarks/configs", "k8s")
# What a supervisor of one pod cannot run or would lose by, and prime-rl alone could.
OURS = {
    *("refused", "slurm", "several-machines", "several-runs", "weights-only", "checkpoints-elsewhere"),
    *(
        "multi-node",
        "multi-run",
        "resume-by-hand",
        "clean-at-start",
        "nothing-trained",
        "other-files",
        "nccl-cannot-resume",
    ),
}

OTHERS = {"evals", "eval", "synthesize", "env"}  # configurations of other commands than `rl` and `sft`

# Errors that are true of files that were shipped: (id, part of the path), and why.
TRUE: dict[tuple[str, str], str] = {
    ("missing-key", "/slurm_rl.toml"): "an overlay for a cluster, of which prime-rl wants another file before it",
    ("unknown-key", "k8s/prime-rl/examples/reverse-text/infer.toml"): "not brought along when inference.vllm came",
    ("unknown-key", "examples/wiki_search/rl.toml"): "not brought along when the buffer's type went (8518c157c)",
}


@dataclass(frozen=True)
class Launch:
    """What one start would read. ``files``: the setting of [job] that names each."""

    kind: str
    files: dict[str, str]
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " + ".join(self.files.values())


def _unpack(commit: str, folder: Path) -> bool:
    there = [one for one in (*SOURCES, *CONFIGS) if _has(commit, one)]
    found = subprocess.run(["git", "-C", CLONE, "archive", commit, *there], capture_output=True, check=False)
    if found.returncode:
        return False
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        text = [one for one in archive if one.isdir() or one.name.endswith((".py", ".toml"))]
        archive.extractall(folder, text, filter="data")
    return True


def _has(commit: str, path: str) -> bool:
    words = ["git", "-C", CLONE, "cat-file", "-e", f"{commit}:{path}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def launches(folder: Path, gpus: str) -> Iterator[Launch]:
    """Every way in which the configurations below ``folder`` are meant to be started."""
    parts: dict[str, dict[str, str]] = {}
    for path in sorted(path for place in CONFIGS for path in (folder / place).rglob("*.toml")):
        name = path.relative_to(folder)
        if OTHERS & {*name.parts[:-1], name.stem}:
            continue
        part = part_of(path, tomllib.loads(path.read_text(encoding="utf-8")))
        if part in ("", "sft"):
            yield Launch(part or "rl", {"config": str(name)})
        else:
            parts.setdefault(str(name.parent), {}).setdefault(f"{part}_config", str(name))
    for halves in parts.values():
        if {"trainer_config", "orchestrator_config"} <= set(halves):
            yield Launch("rl", halves, _gpu_flags(folder, halves, gpus))


def _gpu_flags(folder: Path, halves: dict[str, str], gpus: str) -> tuple[str, ...]:
    """The documentation's command lines name the GPUs of three files, which themselves cannot."""
    engine = folder / halves["inference_config"] if "inference_config" in halves else None
    layout = tomllib.loads(engine.read_text(encoding="utf-8")).get("parallel", {}) if engine else {}
    count = layout.get("tp", 1) * layout.get("dp", 1)
    if gpus == "counts":
        return ("--inference-gpus", str(count), "--trainer-gpus", "2")
    if gpus == "ids":
        return ("--inference-gpu-ids", ",".join(map(str, range(count))), "--trainer-gpu-ids", f"{count},{count + 1}")
    return ("--deployment.num-infer-gpus", str(count))


def check(folder: Path, launch: Launch) -> list[Finding]:
    """What the checks say of it, as of a run that is to start in the checkout ``folder``."""
    run = folder / "run.toml"
    lines = ["[run]", 'id = "shipped"', f'state_dir = "{folder}/state"', "[job]", f'kind = "{launch.kind}"']
    lines += [f'dir = "{folder}"', f'python = "{folder}/.venv/bin/python"', f"args = {json.dumps(launch.args)}"]
    lines += [f'{key} = "{name}"' for key, name in launch.files.items()]
    run.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return examine(gather(run, environ={}, site=Site()))


@pytest.fixture(autouse=True)
def _one_reading_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty configurations of one commit have one schema, and reading it is most of the time."""
    kept = cache(lambda roots, kind, verifiers: read(roots, kind, verifiers))
    monkeypatch.setattr(pydantic_source, "read", lambda roots, kind, verifiers: kept(tuple(roots), kind, verifiers))


@pytest.mark.parametrize("commit", ERAS)
def test_what_the_project_shipped_gives_no_error(commit: str, tmp_path: Path) -> None:
    assert _unpack(commit, tmp_path), f"{CLONE} lacks {commit}"
    wrong, count = [], 0
    for launch in launches(tmp_path, ERAS[commit].dialect.gpus):
        count += 1
        wrong += [f"{launch}:\n{shown([one])}" for one in _false(check(tmp_path, launch), launch)]
    print(f"\n{commit} {ERAS[commit].day}: {count} configurations")  # shown with -s
    assert count, "no configuration was found"
    assert not wrong, "\n\n".join(["", *wrong]).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("commit", ERAS)
def test_nor_does_it_where_only_the_files_are_known(commit: str, tmp_path: Path) -> None:
    """`rl-supervisor check FILES` on a laptop: no checkout, no command line; the day is guessed from the keys."""
    assert _unpack(commit, tmp_path), f"{CLONE} lacks {commit}"
    wrong = []
    for launch in launches(tmp_path, ERAS[commit].dialect.gpus):
        files = [tmp_path / name for name in launch.files.values()]
        wrong += [
            f"{launch}:\n{shown([one])}" for one in _false(examine(gather(files, environ={}, site=Site())), launch)
        ]
    assert not wrong, "\n\n".join(["", *wrong]).replace(f"{tmp_path}/", "")


def _false(findings: list[Finding], launch: Launch) -> list[Finding]:
    return [one for one in findings if one.weight == "error" and one.id not in OURS and not _true(one, launch)]


def _true(one: Finding, launch: Launch) -> bool:
    return any(one.id == name and part in str(launch) for name, part in TRUE)
