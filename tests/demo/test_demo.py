"""The demo shows the whole main job, fails when it does not, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.demo.timeline import Said, Seen, Story, parse_said, steps

DEMO = [sys.executable, "-m", "tests.demo.demo"]
QUICK = ["--steps", "12", "--step-seconds", "0.8", "--limit", "120"]
DIED = 1000.0


def processes_below(folder: Path) -> list[str]:
    """Command lines of everything that has this folder in its arguments or works in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = str((entry / "cwd").readlink())
        except OSError:
            continue
        if str(folder) in words or place.startswith(str(folder)):
            found.append(words)
    return found


@pytest.mark.soak
def test_the_demo_heals_a_silent_death_prunes_publishes_and_finishes(tmp_path: Path) -> None:
    """Without a C compiler on PATH, as on many machines: it says so, and loses nothing but the GPU memory."""
    scratch, kept, programs = tmp_path / "t", tmp_path / "kept", tmp_path / "bin"
    scratch.mkdir()
    programs.mkdir()
    env = {**os.environ, "TMPDIR": str(scratch), "PATH": str(programs)}
    ran = subprocess.run([*DEMO, *QUICK, "--keep", str(kept)], capture_output=True, text=True, timeout=150, env=env)
    told = ran.stdout
    assert ran.returncode == 0, told + ran.stderr
    assert "\x1b" not in told, "no colours but on a terminal"
    blind = "There is no C compiler here for the pretended GPU driver, so GPU memory is shown as unknown."
    assert (blind in told) == (importlib.util.find_spec("ziglang") is None)
    assert "Still alive: launcher, orchestrator, trainer." in told
    silently = r"vLLM died silently: its process \d+ has been gone for .* while the launcher, the orchestrator"
    assert re.search(silently, told)
    status = told.partition("---- supervisorctl status")[2]
    assert "practice  " in status.splitlines()[1]
    (resumed,) = re.findall(r"launched again, told to resume at step (\d+)", told)
    assert f"--resume.step {resumed} " in told
    assert "latest.json names step_12" in told
    assert re.search(r"Deleted: +steps? 2\b.* from the local disk", told)
    assert re.search(r"3 hours until a person looked. Here the death was noticed after [2-9]\.\d s", told)
    store = kept / "store" / "practice"
    assert json.loads((store / "latest.json").read_text())["step"] == "step_12"
    assert (store / "step_12" / "manifest.json").exists()
    assert list(scratch.iterdir()) == []
    assert processes_below(tmp_path) == []


@pytest.mark.soak
def test_ctrl_c_ends_every_process_and_removes_the_folder(tmp_path: Path) -> None:
    output = tmp_path / "output"
    scratch = tmp_path / "t"
    scratch.mkdir()
    with output.open("wb") as file:
        demo = subprocess.Popen(
            [*DEMO, *QUICK],
            stdout=file,
            stderr=file,
            env={**os.environ, "TMPDIR": str(scratch)},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while "step 1 of 12" not in output.read_text():
            assert time.monotonic() < deadline, output.read_text()
            assert demo.poll() is None, output.read_text()
            time.sleep(0.05)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(40) == 130, output.read_text()
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait()
    assert "Interrupted. All processes of the demo were ended" in output.read_text()
    assert list(scratch.iterdir()) == []
    assert processes_below(scratch) == []


# ---------------------------------------------------------------- a demo that cannot fail would be worth nothing


def good_log() -> list[Said]:
    def line(after_s: float, event: str, **fields: Any) -> Said:
        return Said(DIED + after_s, event, "A sentence.", fields)

    return [
        *(line(number - 9, "step", step=number) for number in range(1, 9)),
        line(-1, "pruned", step=2, bytes=4 << 20, where="local"),
        line(3.5, "verdict", verdict="engine-gone", incident=1),
        line(5, "stopped-job"),
        line(5.1, "launched", step=6),
        line(9, "step", step=7),
        line(9, "incident-closed", step=7),
        *(line(number + 2, "step", step=number) for number in range(8, 13)),
        line(16, "published", step=12, bytes=4 << 20),
        line(17, "finished"),
    ]


GOOD = Seen(
    began=DIED - 20,
    max_steps=12,
    first_step=1,
    volume_bytes=16 << 20,
    engine_died=DIED,
    launcher_alive=DIED + 4,
    written=dict.fromkeys((2, 4, 6, 8, 10, 12), 4 << 20),
    fullest_bytes=12 << 20,
    resume_steps=[None, 6],
    left_here=[8, 10, 12],
    stored=[8, 10, 12],
    latest="step_12",
    exit_code=0,
)


def test_a_run_that_met_both_and_finished_has_no_shortcoming_and_its_timeline_adds_up() -> None:
    story = Story(good_log(), GOOD)
    assert story.shortcomings() == []
    text = "\n".join(story.timeline())
    assert " 23.5 s    3.5 s  rl-supervisor was sure" in text
    assert " 25.0 s    1.5 s  the rest of the job was stopped" in text
    assert " 29.0 s    3.9 s  step 7 was done" in text
    assert "noticed after 3.5 s" in text
    assert "again after 9.0 s, and 2 steps were done twice" in text
    assert "24.0 MiB of checkpoints went through 16.0 MiB, which were never more than 75% full" in text


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        ("verdict", "the death of vLLM was not found"),
        ("stopped-job", "the wounded job was not stopped"),
        ("launched", "the job was not launched again"),
        ("incident-closed", "no step was done after the death"),
        ("pruned", "no checkpoint was deleted from the local disk"),
        ("finished", "the run did not finish"),
    ],
)
def test_what_the_daemon_did_not_do_fails_the_demo(event: str, sentence: str) -> None:
    story = Story([one for one in good_log() if one.event != event], GOOD)
    assert sentence in story.shortcomings()
    assert story.timeline(), "what happened is told all the same"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"exit_code": None}, "rl-supervisor ended with None instead of 0"),
        ({"engine_died": None}, "vLLM did not die"),
        ({"launcher_alive": DIED + 1}, "the launcher ended by itself, so the death was not silent"),
        ({"resume_steps": [None, None]}, "was told: none, none"),
        ({"resume_steps": [None, 10]}, "was told: none, 10"),
        ({"left_here": [2, 12]}, "deleted steps are still on the disk: [2]"),
        ({"volume_bytes": 64 << 20}, "24.0 MiB of checkpoints could not fill 64.0 MiB"),
        ({"ran_full": True}, "the disk was full"),
        ({"stored": [8, 10]}, "step 12 is not in the store, which holds [8, 10]"),
        ({"latest": "step_10"}, "latest.json names step_10"),
        ({"max_steps": 13}, "12 steps were done instead of 13"),
        ({"left_alive": 2}, "2 processes of the job were left"),
    ],
)
def test_what_is_not_so_in_the_world_fails_the_demo(change: dict[str, Any], sentence: str) -> None:
    found = Story(good_log(), dataclasses.replace(GOOD, **change)).shortcomings()
    assert any(sentence in one for one in found), found


def test_an_older_verdict_than_the_death_is_none_about_it() -> None:
    log = [dataclasses.replace(one, at=DIED - 5) if one.event == "verdict" else one for one in good_log()]
    assert "the death of vLLM was not found" in Story(log, GOOD).shortcomings()


def test_lines_that_are_no_records_are_passed_over() -> None:
    assert parse_said("Traceback (most recent call last):") is None
    assert parse_said('["time"]') is None
    assert parse_said('{"time": "yesterday", "event": "step", "sentence": ""}') is None
    record = parse_said('{"time": "1970-01-01T00:16:40.000+00:00", "event": "step", "sentence": "step 7", "step": 7}')
    assert record == Said(1000.0, "step", "step 7", {"step": 7})


def test_steps_in_words() -> None:
    assert [steps([]), steps([2]), steps([4, 2]), steps([6, 2, 4])] == [
        "no step",
        "step 2",
        "steps 2 and 4",
        "steps 2, 4 and 6",
    ]
