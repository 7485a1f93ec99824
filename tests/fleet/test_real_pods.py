"""The next pod comes up by itself: real daemons and jobs on two "hosts" of this machine, behind a stand-in for ssh."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.fleet import decide, observe
from supervisor.fleet.assemble import Assembly, assemble
from supervisor.fleet.places.ssh import FOLDER, Ssh
from tests.fleet.hosts import JOB, kill_pod, processes_of, write_host

STEPS = 60

RUN_FILE = """
[run]
id = "fled"
state_dir = "~/state"
max_steps = {steps}
[job]
kind = "command"
dir = "~"
output_dir = "~/out"
checkpoint_interval = 5
pass_env = ["SAID"]
[job.plain]
start = ["{python}", "{job}", "{steps}"]
resume = ["{python}", "{job}", "{steps}", "--from", "{{checkpoint}}"]
markers = ["state.json"]
step_line = 'step (?P<step>\\d+) loss'
finish_line = 'all steps are done'
first_step = 1
[store]
url = "{store}"
take_over_after = 20
[supervision]
scan = 0.5
quiet = 0.5
[check]
at_start = false
[api]
socket = "~/socket"
"""
FLEET = """
[fleet]
store = "{store}"
[limits]
per_hour = 1
total = 1
[place.first]
provider = "ssh"
host = "first"
[place.second]
provider = "ssh"
host = "second"
[run.fled]
file = "fled.toml"
places = ["first", "second"]
[run.fled.env]
SAID = "$SAID_TO_PODS"
"""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Assembly]:
    """A fleet of two hosts; all that runs there is ended at the end."""
    monkeypatch.setattr(observe, "SECOND_LOOK_S", 2.0)
    monkeypatch.setattr(decide, "SECOND_LOOK_S", 2.0)
    monkeypatch.setattr(decide, "DESTROY_AGAIN_S", 5.0)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    store = (tmp_path / "store").as_uri()
    words = {"steps": STEPS, "python": sys.executable, "job": job, "store": store}
    (tmp_path / "fled.toml").write_text(RUN_FILE.format(**words))
    (tmp_path / "fleet.toml").write_text(FLEET.format(store=store))
    for name in (tmp_path, *tmp_path.iterdir()):
        name.chmod(0o700)
    found = assemble(tmp_path / "fleet.toml", {"SAID_TO_PODS": "hello"})
    for name in ("first", "second"):
        found._providers[f"ssh/{name}"] = Ssh(name, (str(write_host(tmp_path, name)),))
    yield found
    for name in ("first", "second"):
        kill_pod(tmp_path / name)


def tick_until(fleet: Assembly, is_so: object, within_s: float = 180.0) -> list[str]:
    """Pass after pass, as ``fleet run`` does; returns what was said."""
    assert callable(is_so)
    book, said = fleet.book(), [""]
    deadline = time.monotonic() + within_s
    try:
        book.begin()
        while not is_so():
            for told in fleet.controller(book, time.sleep).tick():
                said += [one for one in (*told.did, told.failed, told.decision.sentence) if one and one != said[-1]]
            assert time.monotonic() < deadline, "\n".join([*said, *read_logs(fleet.path.parent)])
            time.sleep(0.5)
    finally:
        book.end()
    return said


def read_logs(folder: Path) -> list[str]:
    logs = [*folder.glob("*/log"), *folder.glob("*/onstart.log"), *folder.glob(f"*/{FOLDER}/*/log")]
    return [f"--- {one}\n{one.read_text()[-3000:]}" for one in logs]


def published(folder: Path) -> int:
    try:
        return int(json.loads((folder / "store/fled/latest.json").read_text())["step_number"])
    except (OSError, ValueError):
        return 0


@pytest.mark.soak
def test_a_pod_that_vanishes_is_followed_by_the_next_which_finishes(fleet: Assembly, tmp_path: Path) -> None:
    said = tick_until(fleet, lambda: published(tmp_path) >= 10)
    assert any("in first at $0.00 an hour: the run has not begun" in one for one in said), said
    assert (tmp_path / "first/out/said").read_text() == "hello"
    (tmp_path / "first.down").touch()
    kill_pod(tmp_path / "first")
    before = published(tmp_path)
    said = tick_until(fleet, lambda: published(tmp_path) == STEPS)
    assert any("It is convicted after 20 s" in one for one in said), said
    assert any("in second at $0.00 an hour: no beat for" in one for one in said), said
    (tmp_path / "first.down").unlink()
    said = tick_until(fleet, lambda: not list(tmp_path.glob(f"*/{FOLDER}/*")))
    assert any("The run has ended: The run is finished: step 60 of 60" in one for one in said), said
    steps = [int(line.split()[1]) for line in (tmp_path / "second/out/steps").read_text().splitlines()]
    assert steps[0] >= before + 1  # it went on where the first pod had published, and not from the start
    assert steps[-1] == STEPS
    assert processes_of(tmp_path / "second") == []


@pytest.mark.soak
def test_a_pod_whose_processes_are_gone_is_followed_at_once(fleet: Assembly, tmp_path: Path) -> None:
    """Both signals: no beat for three periods, and a host that answers and has no process of it any more."""
    tick_until(fleet, lambda: published(tmp_path) >= 5)
    kill_pod(tmp_path / "first")
    said = tick_until(fleet, lambda: published(tmp_path) == STEPS and not list(tmp_path.glob(f"*/{FOLDER}/*")))
    [renting] = [one for one in said if one.startswith("Renting")]
    assert float(renting.partition("no beat for ")[2].partition(" s")[0]) < 15, "not the whole patience of 20 s"
    log = (tmp_path / "first/out/steps").read_text().split()
    assert log.count(str(STEPS)) == 1


@pytest.mark.soak
def test_a_pod_that_is_told_to_go_gives_the_run_back_and_another_one_goes_on(fleet: Assembly, tmp_path: Path) -> None:
    """SIGTERM of a host that goes, or is stopped: the daemon ends with 0, and the run has not ended."""
    tick_until(fleet, lambda: published(tmp_path) >= 5)
    (pid,) = [int(one.read_text()) for one in tmp_path.glob(f"first/{FOLDER}/*/pid")]
    os.kill(pid, signal.SIGTERM)
    said = tick_until(fleet, lambda: published(tmp_path) == STEPS and not list(tmp_path.glob(f"*/{FOLDER}/*")))
    assert any("The run has ended: The run is finished: step 60 of 60" in one for one in said), said
