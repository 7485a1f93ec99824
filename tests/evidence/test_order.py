"""Evidence comes before anything is killed, on whichever lane the killing is."""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor.base import secrets
from supervisor.config.settings import load
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.effects import incident_evidence
from supervisor.effects.carry_out import Effects
from supervisor.evidence.known import bundles_dir
from tests import hands
from tests.core.world import GIB, World

from .rig import until

HANGS = (sys.executable, "-c", "import time; time.sleep(60)")


def effects_of(
    folder: Path, posted: list[f.Fact], log_files: Callable[[], dict[str, Path]] = dict, **evidence: Any
) -> Effects:
    lines = "\n".join(f"{name} = {value}" for name, value in evidence.items())
    (folder / "run.toml").write_text(
        f'[run]\nid = "r1"\nstate_dir = "{folder}/state"\n[job]\nkind = "command"\noutput_dir = "{folder}/out"\n'
        f'[job.plain]\nstart = ["true"]\nresume = ["true"]\n[evidence]\npy_spy = false\n{lines}\n'
    )
    return hands.effects_of(load(folder / "run.toml"), posted, seen=hands.Seen(log_files=log_files))


def test_the_core_asks_for_evidence_before_each_stop_of_an_incident() -> None:
    world = World()
    world.publish_works = False
    world.running_at(12)
    world.see(f.DiskLook("/data", 100 * GIB, 1 * GIB))
    assert "no local step is safe to delete" in world.said("verdict")[0]
    kinds = [type(action) for action in world.actions]
    assert kinds.index(a.CollectEvidence) < kinds.index(a.Stop), "also where the job is stopped before it fails"
    (asked,) = world.asked(a.CollectEvidence)
    assert isinstance(asked, a.CollectEvidence)
    assert (asked.attempt, asked.incident) == (1, 1)


def test_an_engine_that_is_restarted_alone_is_looked_at_before_it_is_killed(tmp_path: Path) -> None:
    """Its stop is on another lane than the evidence."""
    posted: list[f.Fact] = []
    effects = effects_of(tmp_path, posted)
    kept: list[bool] = []
    manifest = bundles_dir(tmp_path / "state") / "0001-attempt-0001" / "bundle.json"
    effects.engine.stop = lambda action: kept.append(manifest.exists())  # type: ignore[method-assign]
    effects.do(a.CollectEvidence(1, 1, "vLLM hangs."))
    effects.do(a.StopEngine(1, "vLLM hangs.", 60.0))
    until(lambda: kept, "the engine is stopped")
    assert kept == [True]
    assert any(isinstance(fact, f.Remark) and "is kept in" in fact.sentence for fact in posted)
    effects.close()


def test_a_stop_waits_for_the_budget_and_no_longer(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(incident_evidence, "COMMAND", HANGS)
    posted: list[f.Fact] = []
    effects = effects_of(tmp_path, posted, budget_s=1.0)
    stopped: list[float] = []
    effects._stop_attempt = lambda action: stopped.append(time.monotonic())  # type: ignore[method-assign]
    began = time.monotonic()
    effects.do(a.CollectEvidence(1, 1, "vLLM hangs."))
    effects.do(a.Stop(1, "vLLM hangs.", 60.0))
    until(lambda: stopped, "the job is stopped")
    assert 0.8 < stopped[0] - began < 2.0
    assert any(isinstance(fact, f.Remark) and "was not ready after 1.0 s" in fact.sentence for fact in posted)
    effects.close()


def test_a_dead_volume_below_the_jobs_logs_delays_no_stop_and_costs_no_bundle(tmp_path: Path) -> None:
    let_go = threading.Event()
    volume = ["hangs"]

    def on_a_volume() -> dict[str, Path]:
        if volume == ["hangs"]:
            let_go.wait(30)
        raise OSError(errno.ESTALE, "Stale file handle", "/volume/logs")

    posted: list[f.Fact] = []
    effects = effects_of(tmp_path, posted, log_files=on_a_volume, budget_s=2.0)
    stopped: list[float] = []
    effects._stop_attempt = lambda action: stopped.append(time.monotonic())  # type: ignore[method-assign]
    for incident, volume[0] in ((1, "hangs"), (2, "is gone")):
        began = time.monotonic()
        effects.do(a.CollectEvidence(1, incident, "vLLM hangs."))
        effects.do(a.Stop(1, "vLLM hangs.", 60.0))
        until(lambda count=incident: len(stopped) == count, "the job is stopped", timeout_s=10)
        assert stopped[-1] - began < 3.0
        manifest = bundles_dir(tmp_path / "state") / f"{incident:04d}-attempt-0001" / "bundle.json"
        until(manifest.exists, "the rest of the evidence is kept")
        assert "where the job's logs are could not be seen" in manifest.read_text()
    assert not any(isinstance(fact, f.EffectCrashed) for fact in posted)
    let_go.set()
    effects.close()


def test_a_second_request_to_stop_ends_the_collecting(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(incident_evidence, "COMMAND", HANGS)
    effects = effects_of(tmp_path, [], budget_s=60)
    stopped: list[float] = []
    effects._stop_attempt = lambda action: stopped.append(time.monotonic())  # type: ignore[method-assign]
    effects.do(a.CollectEvidence(1, 1, "vLLM hangs."))
    effects.do(a.Stop(1, "vLLM hangs.", 60.0))
    effects.hurry()
    until(lambda: stopped, "the job is stopped", timeout_s=5)
    effects.close()


def test_a_child_that_fails_is_a_sentence_and_delays_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(incident_evidence, "COMMAND", (sys.executable, "-c", "raise SystemExit('no module of ours')"))
    posted: list[f.Fact] = []
    effects = effects_of(tmp_path, posted)
    effects.do(a.CollectEvidence(1, 1, "vLLM hangs."))
    until(lambda: posted, "it is told")
    assert posted == [f.Remark("evidence", "The evidence of incident 1 could not be collected: no module of ours.")]
    effects.close()


def test_the_child_masks_what_this_process_masks(tmp_path: Path) -> None:
    """A secret that the child cannot know from its own environment, in a log of the job."""
    secrets.remember("a plain sentence that is a secret")
    (tmp_path / "trainer.log").write_text("it said a plain sentence that is a secret\n")
    effects = effects_of(tmp_path, [], lambda: {"trainer": tmp_path / "trainer.log"})
    effects.do(a.CollectEvidence(1, 1, "vLLM hangs."))
    log = bundles_dir(tmp_path / "state") / "0001-attempt-0001" / "trainer.log"
    until(log.exists, "the log is kept")
    until(lambda: log.read_text() == "it said ***\n", "the secret is masked")
    effects.close()
