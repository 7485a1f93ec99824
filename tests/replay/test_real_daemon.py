"""What real daemons wrote is replayed to the same decisions.

`tests/e2e/test_faults.py` asks it of a run in which an engine died.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.core import actions as a
from supervisor.journal import trace
from supervisor.journal.replay_trace import replay
from tests.e2e.rig import Pod


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def export_incident(pod: Pod, file: Path) -> None:
    """Write the trace of incident 1 of a run that is watched."""
    exported = run("trace", str(pod.run_file), "--incident", "1", "-o", str(file))
    assert exported.returncode == 0, exported.stderr
    assert pod.daemon is not None
    assert pod.daemon.poll() is None, "the daemon was still running"


def assert_replayed(pod: Pod, file: Path) -> None:
    """The journal of a run whose engine died silently, and the trace in ``file``, give the same decisions."""
    journal = pod.state_dir / "journal.db"
    for path in (file, journal):
        replayed = run("replay", str(path))
        assert replayed.returncode == 0, replayed.stdout
        assert "the same as recorded" in replayed.stdout
        assert "vLLM died silently" in replayed.stdout
    source = trace.load(journal)
    turns = list(replay(source))
    assert sum(len(turn.recorded or ()) for turn in turns) == sum(len(turn.actions) for turn in turns) > 20
    said = [x.sentence for turn in turns for x in turn.actions if isinstance(x, a.Say) and x.event == "verdict"]
    assert said == pod.sentences("verdict"), "replay says what the log said"
    bundle = (pod.state_dir / "incidents" / "0001-attempt-0001" / "reason.txt").read_text()
    assert f"rl-supervisor trace {journal} --incident 1" in bundle


@pytest.mark.soak
def test_the_journal_of_two_daemons_the_first_of_them_killed_gives_the_same_decisions(tmp_path: Path) -> None:
    pod = Pod(tmp_path / "pod", max_steps=12, step_s=1.0)
    journal = pod.state_dir / "journal.db"
    try:
        pod.start()
        pod.wait_for(lambda: pod.sentences("published"), "something is published")
        pod.practice.set_knobs(step_s=10)  # it is not to end while nobody watches
        pod.kill_daemon()
        for file in pod.state_dir.glob("journal.db*"):
            shutil.copy(file, tmp_path)  # as the kill left it
        pod.start()
        pod.wait_for(lambda: pod.sentences("adopted"), "the next one took the job over")
        pod.practice.set_knobs(step_s=0.5)
        assert pod.wait_exit() == 0
    finally:
        pod.close()
    alone = run("replay", str(tmp_path / "journal.db"))
    assert alone.returncode == 0, alone.stdout
    both = run("replay", str(journal))
    assert both.returncode == 0, both.stdout
    assert "the same as recorded" in both.stdout
    assert both.stdout.count("watches run practice") == 2
    assert "Took over the living job of attempt 1" in both.stdout
