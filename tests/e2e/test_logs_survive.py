"""What a killed attempt's processes said is there in the morning, in every era of prime-rl."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from supervisor.cli import ctl

from .rig import Pod

ERAS = ("2026-01-06", "2026-08-21")
"""Which truncate `.stdout` and `.log` files at each start, and keep a folder for each."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ROLES = ("trainer", "orchestrator", "inference")


@pytest.fixture
def pod(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pod]:
    settings = {"supervision": {"quiet": 0.2}, "logs": {"keep_attempts": 2}}
    pod = Pod(tmp_path, request.param, max_steps=500, step_s=0.2, settings=settings)
    yield pod
    pod.close()


def tail(pod: Pod, *words: str) -> str:
    """`supervisorctl tail`, in this process: it is quicker."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert ctl.main(["--socket", str(pod.socket), "tail", *words]) == 0, words
    return out.getvalue()


@pytest.mark.soak
@pytest.mark.parametrize("pod", ERAS, indirect=True)
def test_each_role_of_an_earlier_attempt_can_be_read_until_it_is_beyond_the_number_that_is_kept(pod: Pod) -> None:
    pod.start()
    pod.wait_for(lambda: pod.step() >= 3, "steps are made")
    said = {role: first(pod, role, 3) for role in ROLES}
    assert all(said.values()), said
    pod.command("restart")
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "the second attempt is started")
    pod.wait_for(lambda: pod.status().get("state") == "running", "it makes steps")
    captured = pod.state_dir / "attempts" / "0001" / "rl.log"
    pod.wait_for(lambda: captured.with_name("rl.log.gz").exists() and not captured.exists(), "it is compressed")
    assert not pod.sentences("logs"), "nothing was lost"

    for role in ROLES:
        told = tail(pod, role, "--attempt", "1", "-n", "10000")
        assert told.splitlines()[:3] == said[role], (role, told)
        now = tail(pod, role, "-n", "10000").splitlines()
        assert now, "and the present attempt's as ever"
        assert now[:3] != said[role]
    launcher = tail(pod, "launcher", "--attempt", "1")
    assert launcher
    listed = json.loads(tail(pod, "--json"))
    assert {(log["attempt"], log["role"]) for log in listed} >= {(n, role) for n in (1, 2) for role in ROLES}
    states = {log["role"]: log["state"] for log in listed if log["attempt"] == 1}
    own = "in the job's folder" if pod.practice.era.layout["attempts"] else "compressed"
    assert {role: states[role] for role in (*ROLES, "launcher")} == {
        **dict.fromkeys(ROLES, own),
        "launcher": "compressed",
    }

    for attempt in (3, 4):
        third = first(pod, "trainer", 1)  # of the attempt before, in the end the third
        pod.command("restart")
        pod.wait_for(lambda attempt=attempt: len(pod.practice.starts()) == attempt, f"attempt {attempt} is started")
        pod.wait_for(lambda: pod.status().get("state") == "running", "it makes steps")
    folders = pod.state_dir / "attempts"
    pod.wait_for(lambda: sorted(path.name for path in folders.iterdir()) == ["0003", "0004"], "two are kept")
    assert tail(pod, "trainer", "--attempt", "3")
    gone = pod.ctl("tail", "trainer", "--attempt", "1")
    assert "There is no attempt 1 in" in gone.stderr
    assert "there are 3 to 4" in gone.stderr

    pod.kill_daemon()
    pod.end_job()
    for number, line in (("3", third), ("4", first(pod, "trainer", 1))):
        alone = tail(pod, "trainer", "--attempt", number, "--state-dir", str(pod.state_dir), "-n", "10000")
        assert line and alone.splitlines()[:1] == line


def first(pod: Pod, role: str, lines: int) -> list[str]:
    """What the role says in its own file now, as `tail` prints it into a pipe: without colours, which v0.6 has."""
    return COLOUR.sub("", pod.practice.log(role)).splitlines()[:lines]
