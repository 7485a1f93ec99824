"""Who is let in, and what is believed: the connection between agent and head."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import ConfigError, PodUnfitError
from supervisor.config.nodes import Nodes
from supervisor.core import facts as f
from supervisor.core.state import Attempt, State
from supervisor.jobs.base import Component, Place, StopRules
from supervisor.nodes import wire
from supervisor.nodes.head import Head
from supervisor.nodes.wire import Line, Message, WireError
from supervisor.process import away
from supervisor.process.launch import ShimState

RUN = "several"
TWO = [
    Component("inference-0", ["serve", "--for", "{address.0}"], Path("/"), {}, place=Place("{name.1}", "inference")),
    Component("trainer-0", ["train"], Path("/"), {"PEER": "{name.1}"}, place=Place("{name.0}", "trainer")),
]


class Stage:
    """A head without a daemon."""

    def __init__(self, folder: Path) -> None:
        self.state = State(mode="running", attempt=Attempt(number=3))
        self.facts: list[f.Fact] = []
        self.nodes = Nodes(folder=folder / "shared", listen="127.0.0.1:0", wait=0)
        self.state_dir = folder / "state"
        self.attempt = self.state_dir / "attempts" / "0003"
        self.attempt.mkdir(parents=True)
        away.write_record(self.attempt, "inference-0", ShimState("running", place=Place("n1", "inference")))
        self.head = Head(
            self.nodes, RUN, self.state_dir, {}, lambda fact, _: self.facts.append(fact), lambda: self.state
        )
        self.head.start()
        self.token = (folder / "shared" / "token").read_text().strip()

    def connect(self) -> Line:
        host, _, port = self.head.address.rpartition(":")
        return Line(socket.create_connection((host, int(port)), 5))

    def greet(self, name: str = "n1", token: str = "", **other: Any) -> tuple[Line, Message]:
        """An agent's greeting; returns the head's answer."""
        line = self.connect()
        hello = line.wait_for_one(5)
        said = (other.get("run", RUN), name, str(hello["nonce"]), "mine")
        proof = wire.prove(token or self.token, "agent", *said)
        message = {"v": wire.VERSION, "run": RUN, "name": name, "rank": 1, "nonce": "mine", "proof": proof}
        line.put({**message, "address": "127.0.0.1", **other})
        return line, line.wait_for_one(5)

    def wait_for(self, what: Any, about: str) -> Any:
        for _ in range(200):
            if found := what():
                return found
            threading.Event().wait(0.02)
        raise AssertionError(about)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr("supervisor.nodes.head.logs.say", lambda *_, **__: None)
    monkeypatch.setattr("supervisor.nodes.head.ANSWER_S", 0.0)
    made = Stage(tmp_path)
    yield made
    made.head.close(None)


def test_the_token_and_the_address_are_for_our_user_alone(stage: Stage) -> None:
    stage.wait_for((stage.nodes.folder / "head.json").exists, "where the head listens")
    for name in ("token", "head.json"):
        assert (stage.nodes.folder / name).stat().st_mode & 0o777 == 0o600
    (stage.nodes.folder / "token").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        wire.find_token(stage.nodes.folder, {})
    assert wire.find_token(stage.nodes.folder, {wire.TOKEN: "of the launcher"}) == "of the launcher"


def test_both_prove_that_they_know_the_token(stage: Stage) -> None:
    line, welcome = stage.greet()
    hello_again = stage.connect().wait_for_one(5)
    assert welcome["wanted"] == 3
    assert welcome["proof"] != hello_again.get("proof")
    assert stage.token not in json.dumps(welcome)
    assert f.MachineLook("n1") in stage.facts
    line.close()


@pytest.mark.parametrize(
    ("name", "token", "other"),
    [
        ("n1", "wrong", {}),
        ("n1", "", {"proof": None}),
        ("n1", "", {"proof": 7}),
        ("n1", "", {"proof": "ä"}),
        ("../n1", "", {}),
        ("n1", "", {"v": 99}),
    ],
)
def test_who_does_not_is_hung_up_on(stage: Stage, name: str, token: str, other: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        line, answer = stage.greet(name, token, **other)
        assert "proof" not in answer
        line.wait_for_one(5)
    assert not stage.facts


def test_a_run_of_another_name_is_told_so(stage: Stage) -> None:
    _, answer = stage.greet(run="other")
    assert "of run several" in answer["error"]


def test_a_greeting_without_end_is_not_kept(stage: Stage) -> None:
    line = stage.connect()
    line.wait_for_one(5)
    line.socket.setblocking(True)
    line.socket.sendall(b"x" * (wire.LONGEST_GREETING + 1))
    line.socket.setblocking(False)
    with pytest.raises(WireError, match=r"closed the connection|connection is gone"):
        line.wait_for_one(5)


def test_nonsense_ends_that_connection_and_no_other(stage: Stage) -> None:
    good, _ = stage.greet()
    for nonsense in (b"{}\n", b'{"t": "part"}\n', b"[1]\n", b"\xff\n", b'{"t":"log","attempt":"x","name":1}\n'):
        bad, _ = stage.greet("n2")
        bad.socket.setblocking(True)
        bad.socket.sendall(nonsense)
        good.put({"t": "beat", "n": 1})
        assert good.wait_for_one(5)["t"] == "beat"
        bad.close()


def test_a_machine_tells_only_of_what_was_to_be_on_it(stage: Stage) -> None:
    other, _ = stage.greet("n2")
    ended = {"t": "part", "attempt": 3, "name": "inference-0", "state": {"state": "exited", "exit_code": 0}}
    for name in ("inference-0", "../../x", "trainer-0"):
        other.put({**ended, "name": name})
        other.put({"t": "log", "attempt": 3, "name": name, "at": 0, "data": "spoiled"})
    other.put({"t": "beat", "n": 1})
    assert other.wait_for_one(5)["t"] == "beat"
    found = away.look_at_component(stage.attempt, "inference-0")
    assert found is not None
    assert found.state == "running"
    assert not list(stage.state_dir.rglob("*.log"))
    owner, _ = stage.greet("n1")
    owner.put({"t": "log", "attempt": 3, "name": "inference-0", "at": 0, "data": "last words\n"})
    owner.put({**ended, "age": 5.0})
    owner.put({**ended, "state": {"state": "running", "pid": 7}})  # nothing that has ended lives again
    owner.put({"t": "beat", "n": 1})
    owner.wait_for_one(5)
    found = away.look_at_component(stage.attempt, "inference-0")
    assert found is not None
    assert (found.state, found.exit_code) == ("exited", 0)
    assert (stage.attempt / "inference-0.log").read_text() == "last words\n"


def test_a_silent_agent_is_told_of_and_what_it_ran_still_counts_as_running(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.nodes.head.GONE_S", 0.2)
    line, _ = stage.greet()
    line.close()
    silent = stage.wait_for(
        lambda: [fact for fact in stage.facts if isinstance(fact, f.MachineLook) and fact.silent_s is not None],
        "that it is silent",
    )
    assert [fact.host for fact in silent] == ["n1"]
    found = away.look_at_component(stage.attempt, "inference-0")
    assert found is not None
    assert found.state == "running"


def test_a_pod_says_whose_place_it_has(stage: Stage) -> None:
    stage.greet("run-machines-0-2-x7f2p", rank=2, seat="run-machines-0-2")
    look = f.MachineLook("run-machines-0-2-x7f2p", seat="run-machines-0-2")
    stage.wait_for(lambda: look in stage.facts, "whose place it has")


def test_an_order_waits_for_the_next_connection_and_is_given_once_more(stage: Stage) -> None:
    order = stage.head.ask("n1", {"do": "stop"})
    for _ in range(2):
        line, _ = stage.greet()
        told = line.wait_for_one(5)
        assert (told["do"], told["id"]) == ("stop", order.message["id"])
        line.close()
    line, _ = stage.greet()
    line.put({"t": "done", "id": told["id"], "survivors": []})
    stage.wait_for(lambda: order.answer, "the answer")
    stranger, _ = stage.greet("n2")
    other = stage.head.ask("n1", {"do": "stop"})
    stranger.put({"t": "done", "id": other.message["id"]})
    stranger.put({"t": "beat", "n": 1})
    stranger.wait_for_one(5)
    assert other.answer is None


def test_too_few_machines_make_the_allocation_unfit(stage: Stage) -> None:
    line, _ = stage.greet()
    stage.wait_for(lambda: stage.facts, "it")
    with pytest.raises(PodUnfitError, match=r"Of the 2 machines .* these are there: n1\. It takes another allocation"):
        stage.head.choose(TWO, (), threading.Event())
    line.close()


@pytest.mark.soak
def test_a_start_that_waits_for_a_machine_says_so_until_it_is_there(stage: Stage) -> None:
    stage.head.nodes = stage.nodes.model_copy(update={"wait": 60})
    lines = [stage.greet("n1")[0]]
    stage.wait_for(lambda: stage.facts, "the first one")
    chosen: list[Any] = []
    start = threading.Thread(target=lambda: chosen.append(stage.head.choose(TWO, (), threading.Event())))
    start.start()
    waits = f.StartWaits("The start waits for machines: 1 of 2 are there.")
    stage.wait_for(lambda: waits in stage.facts, "that it waits")
    lines.append(stage.greet("n2", rank=2)[0])
    start.join(20)
    assert chosen[0][1] == ["n1", "n2"]
    assert [fact for fact in stage.facts if isinstance(fact, f.StartWaits)] == [waits, f.StartWaits("")]
    for line in lines:
        line.close()


def test_the_best_machines_are_taken_in_the_order_of_the_allocation(stage: Stage) -> None:
    lines = [stage.greet(name, rank=rank)[0] for name, rank in (("n3", 3), ("n1", 1), ("n2", 2))]
    stage.wait_for(lambda: len(stage.facts) == 3, "all three")
    unwanted = threading.Event()
    components, hosts = stage.head.choose(TWO, (), unwanted)
    assert hosts == ["n1", "n2"]
    assert [one.place and one.place.host for one in components] == ["n2", "n1"]
    assert components[0].argv == ["serve", "--for", "127.0.0.1"]
    assert components[1].env == {"PEER": "n2"}
    assert stage.head.choose(TWO, ("n1",), unwanted)[1] == ["n2", "n3"]
    assert stage.head.choose(TWO, ("n2", "n1"), unwanted)[1] == ["n2", "n3"]
    lost = replace(TWO[0], argv=["serve", "--for", "{address.7}"])
    with pytest.raises(ConfigError, match=r"inference-0 names \{address\.7\}, and the job has 2 machines"):
        stage.head.choose([lost, *TWO], (), unwanted)
    for line in lines:
        line.close()


def test_a_machine_that_came_by_loopback_is_reached_by_its_name(stage: Stage) -> None:
    lines = [stage.greet("n1", rank=0)[0], stage.greet("n2", rank=1, address="10.0.0.2")[0]]
    stage.wait_for(lambda: len(stage.facts) == 2, "both")
    components, _ = stage.head.choose(TWO, (), threading.Event())
    assert components[0].argv == ["serve", "--for", "n1"]
    for line in lines:
        line.close()


def test_a_head_that_ends_for_good_says_so_to_all(stage: Stage) -> None:
    line, _ = stage.greet()
    stage.wait_for(lambda: stage.facts, "it")
    stage.head.close(0)
    assert line.wait_for_one(5)["t"] == "bye"
    assert json.loads((stage.nodes.folder / "head.json").read_text())["ended"] == 0
    with contextlib.suppress(WireError):
        line.wait_for_one(1)


@pytest.mark.parametrize(
    ("ports", "gpus", "why"),
    [
        ((None,), None, ""),  # the daemon asks a lone one itself
        ((8100, 8101), None, ""),
        ((8100, None), None, "the engine on n1 has no port that is asked"),
        ((8100, None), (), ""),  # a router
    ],
)
def test_what_processes_do_says_nothing_where_an_engine_is_never_asked(
    stage: Stage, ports: tuple[int | None, ...], gpus: tuple[str, ...] | None, why: str
) -> None:
    for number, port in enumerate(ports):
        of = None if port else gpus
        place = Place(f"n{number}", "inference", number, False, of, port)
        away.write_record(stage.attempt, f"inference-{number}", ShimState("running", place=place))
    assert stage.head._why_engines_are_unknown(3) == why


def test_beats_are_answered_now_and_then_and_at_once_where_another_attempt_is_wanted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.nodes.head.ANSWER_S", 60.0)
    line, _ = stage.greet()
    for number in (1, 2, 3):
        line.put({"t": "beat", "n": number})
    line.put({"t": "remark", "text": "all of that was heard"})
    assert line.wait_for_one(5) == {"t": "beat", "n": 1, "wanted": 3}
    stage.wait_for(lambda: any(isinstance(one, f.Remark) for one in stage.facts), "the remark")
    stage.state = replace(stage.state, attempt=Attempt(number=4))
    line.put({"t": "beat", "n": 4})
    assert line.wait_for_one(5) == {"t": "beat", "n": 4, "wanted": 4}
    line.close()


def test_a_report_that_comes_between_the_record_of_a_launch_and_its_order_loses_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent was started again in that moment: it has no record of what it is about to be told."""
    folder = stage.state_dir / "attempts" / "0004"
    folder.mkdir()
    real, reports = away.write_record, list[threading.Thread]()

    def write(*args: Any, **more: Any) -> None:
        real(*args, **more)
        if more.get("durable"):
            reports.append(threading.Thread(target=stage.head._hear_report, args=("n1", {"parts": []})))
            reports[-1].start()
            threading.Event().wait(0.1)

    monkeypatch.setattr(away, "write_record", write)
    line, _ = stage.greet("n1")
    component = Component("trainer-0", ["train"], Path("/"), {}, place=Place("n1", "trainer"))
    away.write_record(stage.attempt, "inference-0", ShimState("exited", place=Place("n1", "inference")))
    launched = list[Any]()
    start = threading.Thread(
        target=lambda: launched.extend(stage.head.launch([component], folder, StopRules([]), threading.Event()))
    )
    start.start()
    order = line.wait_for_one(5)
    while order.get("t") != "do":
        order = line.wait_for_one(5)
    state = {"state": "running", "pid": 41, "start_ticks": 1, "shim_pid": 40}
    line.put({"t": "done", "id": order["id"], "state": state, "notes": []})
    line.flush()
    for thread in (*reports, start):
        thread.join(10)
    assert [one.child_pid for one in launched] == [41]
    kept = away.look_at_component(folder, "trainer-0")
    assert kept is not None and kept.state == "running"
