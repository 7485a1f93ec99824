"""The lease of an agent: when it is over, nothing may write that it started, and the head counts on seconds."""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.evidence.known import NO_JOURNAL
from supervisor.nodes import agent as agents
from supervisor.nodes.agent import Agent

LEASE_S = 1.5
STUBBORN = "trap '' TERM; while :; do sleep 0.1; done"


def make_order(number: str, folder: Path) -> dict[str, object]:
    component = {"name": f"trainer-{number}", "argv": ["/bin/bash", "-c", STUBBORN], "cwd": str(folder)}
    component |= {"env": {"PATH": "/usr/bin:/bin"}, "nofile": 1024}
    place = {"host": "n0", "role": "trainer", "index": int(number), "writes": True}
    rules = {"signals": [[15, 60.0]]}
    return {
        "t": "do",
        "id": number,
        "do": "launch",
        "attempt": 1,
        "rules": rules,
        "place": place,
        "component": component,
    }


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    state = tmp_path / "state"
    state.mkdir()
    options = {"name": "n0", "rank": 0, "run": "lease", "folder": tmp_path, "head": "", "state": state}
    made = Agent(argparse.Namespace(**options, lease=LEASE_S, disk=None))
    made._take_order(make_order("0", tmp_path))
    threading.Thread(target=made._lane, daemon=True).start()
    wait(made, lambda: "1/trainer-0" in made.parts and state_of(made) == "running")
    yield made
    made._stop(10**9, None, 1.0, brief=True)


def state_of(agent: Agent) -> str:
    return agent.parts["1/trainer-0"].state.state


def wait(agent: Agent, until: object) -> None:
    deadline = time.monotonic() + 20
    while not until():  # type: ignore[operator]
        assert time.monotonic() < deadline, agent.parts
        agent._turn(None)
        time.sleep(0.05)


def test_what_minds_no_signal_is_gone_well_before_the_head_starts_another(agent: Agent) -> None:
    """It was told to end, with a minute of patience, of which the head waits a part."""
    agent._heard = agents.now()
    threading.Thread(target=agent._watch_lease, daemon=True).start()
    wait(agent, lambda: state_of(agent) != "running")
    assert agents.now() - agent._heard - LEASE_S < 0.05 * LEASE_S + 5, "what the head waits beyond the lease"


@pytest.mark.soak
@pytest.mark.parametrize("error", [OSError(116, "Stale file handle"), ValueError("a record that is none")])
def test_an_end_that_fails_is_tried_again(agent: Agent, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    tries = []
    stop = agents.stop_attempt

    def fail_first(*args: object, **more: object) -> object:
        tries.append(1)
        if len(tries) < 3:
            raise error
        return stop(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(agents, "stop_attempt", fail_first)
    threading.Thread(target=agent._watch_lease, daemon=True).start()
    wait(agent, lambda: state_of(agent) != "running")
    assert len(tries) >= 3


def test_nothing_is_launched_once_the_lease_is_over(agent: Agent, tmp_path: Path) -> None:
    agent._heard = agents.now() - LEASE_S - 1
    agent._take_order(make_order("1", tmp_path))
    wait(agent, lambda: "1" in agent._answers)
    assert agent._answers["1"]["kind"] == "try-again"
    assert "longer than its lease" in agent._answers["1"]["error"]
    assert "1/trainer-1" not in agent.parts


def runs(pid: int | None) -> bool:
    return psutil.pid_exists(pid or 0) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_an_agent_whose_state_folder_is_older_ends_what_that_does_not_tell_of(agent: Agent) -> None:
    """The head hears that it is gone, and would start another trainer beside it."""
    pid = agent.parts["1/trainer-0"].state.pid
    shutil.rmtree(agent.state_dir / "attempts")
    options = {"name": "n0", "rank": 0, "run": "lease", "folder": agent.folder, "head": "", "state": agent.state_dir}
    later = Agent(argparse.Namespace(**options, lease=LEASE_S, disk=None))
    later._adopt()
    assert not later.parts
    assert runs(pid)
    later._end_unknown()
    assert not runs(pid)


def test_evidence_of_what_runs_is_kept_on_its_machine(agent: Agent) -> None:
    asked = {"run": "lease", "attempt": 1, "incident": 3, "reason": "It hangs.", "explain": {}, "engine_page": None}
    asked |= {"journal": NO_JOURNAL, "engine_url": None, "folders": [], "py_spy": None, "secrets": []}
    agent._watch(agent.parts["1/trainer-0"])
    agent._take_order({"t": "do", "id": "e", "do": "evidence", "asked": asked, "limit_s": 15})
    wait(agent, lambda: "e" in agent._answers)
    [bundle] = (agent.state_dir / "incidents").iterdir()
    assert f"is kept in {bundle}" in agent._answers["e"]["ok"]
    assert "Could not be collected" not in agent._answers["e"]["ok"]
    told = (bundle / "processes.txt").read_text()
    assert f"{agent.parts['1/trainer-0'].state.pid} " in told and "trainer" in told


def test_a_head_that_lost_its_journal_and_counts_from_1_again_gets_nothing_of_what_ran_before(
    agent: Agent, tmp_path: Path
) -> None:
    attempts = agent.state_dir / "attempts"
    agent.lease_s = 600.0  # no head speaks to this agent, and a busy machine may take longer than its short one
    agent._stop(1, None, 1.0, brief=True)
    wait(agent, lambda: state_of(agent) != "running")
    (attempts / "0001/trainer-0.log").write_text("step 12 done\n")
    shutil.copytree(attempts / "0001", attempts / "0007")
    agent._adopt()
    assert agent._list_newest()[0].attempt == 7
    agent._unwanted.clear()
    agent._take_order({**make_order("0", tmp_path), "id": "again"})
    wait(agent, lambda: "again" in agent._answers and state_of(agent) == "running")
    assert "step 12 done" not in (attempts / "0001/trainer-0.log").read_text()
    assert [path.name for path in attempts.iterdir()] == ["0001"]
    assert [one.attempt for one in agent._list_newest()] == [1]
