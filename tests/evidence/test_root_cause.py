"""`diagnose` looks at an incident's evidence in a child, beside the recovery: what it names reaches the core."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.effects import root_cause
from supervisor.evidence.known import bundles_dir

from .rig import until
from .test_order import effects_of

TRAINER = """\
[trainer0]:\x1b[32m03:00:01\x1b[0m | \x1b[1mINFO\x1b[0m Step 41 | Time: 3.00s
[trainer0]:Traceback (most recent call last):
[trainer0]:  File "/app/train.py", line 7, in step
[trainer0]:    loss.backward()
[trainer0]:torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB.
"""


def roots(posted: list[f.Fact]) -> list[f.RootSeen]:
    return [fact for fact in posted if isinstance(fact, f.RootSeen)]


def logs_in(folder: Path, text: str = TRAINER) -> dict[str, Path]:
    log = folder / "trainer.log"
    log.write_text(text)
    return {"trainer": log}


def test_the_evidence_of_an_incident_is_diagnosed_and_its_root_posted(tmp_path: Path) -> None:
    posted: list[f.Fact] = []
    logs = logs_in(tmp_path)
    effects = effects_of(tmp_path, posted, lambda: logs)
    effects.do(a.CollectEvidence(3, 2, "The job ended with exit code 1."))
    assert effects.root_cause.looks
    until(lambda: not effects.root_cause.looks, "the look is over", 60)
    (root,) = roots(posted)
    assert (root.incident, root.attempt, root.name, root.role) == (2, 3, "cuda-oom", "trainer")
    assert root.text.startswith("torch.OutOfMemoryError: CUDA out of memory.")
    assert root.remedy
    effects.close()


def test_where_no_evidence_can_be_kept_the_logs_themselves_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    bundles_dir(tmp_path / "state").write_text("a file where the folder of the bundles should be")
    posted: list[f.Fact] = []
    logs = logs_in(tmp_path)
    effects = effects_of(tmp_path, posted, lambda: logs)
    effects.do(a.CollectEvidence(1, 1, "The job ended with exit code 1."))
    until(lambda: not effects.root_cause.looks, "the look is over", 60)
    assert [root.name for root in roots(posted)] == ["cuda-oom"]
    effects.close()


def test_a_healthy_log_has_no_root_and_nothing_is_posted(tmp_path: Path) -> None:
    posted: list[f.Fact] = []
    logs = logs_in(tmp_path, TRAINER.splitlines()[0] + "\n")
    effects = effects_of(tmp_path, posted, lambda: logs)
    effects.do(a.CollectEvidence(1, 1, "vLLM hangs."))
    until(lambda: not effects.root_cause.looks, "the look is over", 60)
    assert not roots(posted)
    effects.close()


def test_a_look_that_hangs_is_ended_and_costs_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(root_cause, "LIMIT_S", 0.5)
    monkeypatch.setattr(root_cause, "COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    posted: list[f.Fact] = []
    logs = logs_in(tmp_path)
    effects = effects_of(tmp_path, posted, lambda: logs)
    began = time.monotonic()
    effects.do(a.CollectEvidence(1, 1, "vLLM hangs."))
    until(lambda: effects.root_cause.child is not None, "the child lives", 20)
    until(lambda: not effects.root_cause.looks, "the look is over", 20)
    assert time.monotonic() - began < 15
    assert not roots(posted)
    assert not any(isinstance(fact, f.EffectCrashed) for fact in posted)
    effects.close()


def test_a_daemon_that_ends_takes_the_look_with_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(root_cause, "COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    posted: list[f.Fact] = []
    logs = logs_in(tmp_path)
    effects = effects_of(tmp_path, posted, lambda: logs)
    effects.do(a.CollectEvidence(1, 1, "vLLM hangs."))
    until(lambda: effects.root_cause.child is not None, "the child lives", 20)
    child = effects.root_cause.child
    assert child is not None
    effects.close()
    until(lambda: child.process.poll() is not None, "the child is gone", 20)
