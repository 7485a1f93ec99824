"""Python stacks through py-spy: a stand-in that behaves badly in each way, and the real one where it is installed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from supervisor.evidence import stacks
from supervisor.evidence.collecting import Sink
from supervisor.process.survivors import look_at

from .rig import SPINS, WAITS, running, scene


def stand_in(folder: Path, body: str) -> Path:
    """A program in py-spy's place; ``pid`` is whom it was asked about."""
    path = folder / "py-spy"
    path.write_text(f"#!{sys.executable} -I\nimport os, signal, sys, time\npid = int(sys.argv[-1])\n{body}\n")
    path.chmod(0o755)
    return path


def dumped(folder: Path, program: Path, *programs: str, each_s: float = 20) -> tuple[str, list[str]]:
    sink = Sink()
    with running(*(programs or (WAITS,))) as living:
        stacks.dump(scene(folder, living, stack_programs=[program]), living, sink, each_s=each_s)
        states = [now.state for one in living if (now := look_at(one.pid)) is not None]
        assert states
        assert "T" not in states, "nobody is left standing still"
    files, notes = sink.close()
    return files["stacks.txt"].decode(), notes


def test_each_python_process_is_asked_once_without_being_stopped_and_without_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("B2_APPLICATION_KEY", "a-key-of-the-store")
    program = stand_in(tmp_path, "print(sys.argv[1:-1], sorted(os.environ), 'HF_TOKEN=abcdefghijkl')")
    text, notes = dumped(tmp_path, program, WAITS, SPINS)
    assert text.count("['dump', '--nonblocking', '--pid']") == 2
    assert "== " in text
    assert " trainer ==" in text
    assert "HF_TOKEN=***" in text
    assert "B2_APPLICATION_KEY" not in text, "it may lie where models' code can write"
    assert notes == []


def test_one_that_is_not_allowed_to_look_is_a_sentence_and_no_failure(tmp_path: Path) -> None:
    program = stand_in(
        tmp_path, "print('Error: Permission Denied: Try running again with elevated permissions'); sys.exit(1)"
    )
    text, notes = dumped(tmp_path, program)
    assert "py-spy may not look into this process" in text
    assert "It needs CAP_SYS_PTRACE" in text
    assert "py-spy may not look into process" in notes[0]


def test_one_that_hangs_is_killed_and_the_others_are_told(tmp_path: Path) -> None:
    program = stand_in(
        tmp_path,
        f"first = os.open({str(tmp_path / 'first')!r}, os.O_CREAT | os.O_RDWR)\n"
        "import fcntl\n"
        "try: fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: print('the stack of', pid); sys.exit()\n"
        "time.sleep(60)",
    )
    began = time.monotonic()
    text, notes = dumped(tmp_path, program, WAITS, WAITS, each_s=1.5)
    assert time.monotonic() - began < 10
    assert "did not end within 1.5 s and was killed" in text
    assert text.count("the stack of") == 1
    assert len(notes) == 1


def test_a_process_that_it_leaves_stopped_is_told_to_go_on(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "os.kill(pid, signal.SIGSTOP); time.sleep(0.1); print('half a stack'); sys.exit(1)")
    text, notes = dumped(tmp_path, program)
    assert "was found stopped after py-spy had asked it, and was told to go on" in text
    assert any("told to go on" in note for note in notes)


def test_one_that_talks_without_end_is_ended(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "\nwhile True: print('frame ' * 1000)")
    text, _ = dumped(tmp_path, program)
    assert "printed more than" in text
    assert len(text) < 2 * stacks.EACH_BYTES


def test_without_it_a_sentence_says_how_to_have_it(tmp_path: Path) -> None:
    sink = Sink()
    stacks.dump(scene(tmp_path), [], sink)
    assert b"py-spy is not installed" in sink.close()[0]["stacks.txt"]


def test_it_is_looked_for_on_the_path_beside_us_and_in_the_jobs_environment(tmp_path: Path) -> None:
    ours, jobs = tmp_path / "ours", tmp_path / "jobs"
    for folder in (ours, jobs):
        folder.mkdir()
    assert stacks.programs(str(tmp_path), [jobs], ours) == []
    stand_in(jobs, "")
    assert stacks.programs(os.defpath, [jobs], ours)[-1] == jobs / "py-spy"
    stand_in(ours, "")
    found = stacks.programs(str(jobs), [], ours)
    assert found == [jobs / "py-spy", ours / "py-spy"]
    (ours / "py-spy").chmod(0o644)
    assert stacks.programs("", [], ours) == [], "what may not be run is not there"


def test_the_real_one_says_where_a_trainer_spins_and_another_waits(tmp_path: Path) -> None:
    found = stacks.programs(os.environ.get("PATH", ""), [], Path(sys.executable).parent)
    if not found:
        pytest.skip("py-spy is not installed")
    text, notes = dumped(tmp_path, found[0], SPINS, WAITS)
    if notes and "may not look into" in notes[0]:
        pytest.skip(f"tracing is not allowed here: {notes[0]}")
    assert "wait_for_a_batch" in text
    # It reads while the other one runs, so a spinning one may change under its eyes: most looks succeed, not each.
    for _ in range(5):
        if "spin_in_the_optimizer" in text:
            return
        text, _ = dumped(tmp_path, found[0], SPINS)
    raise AssertionError(text)
