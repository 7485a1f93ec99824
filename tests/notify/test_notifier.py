"""Messages that are really sent: one an incident, never a storm, and no run waits for them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.base import secrets
from supervisor.base.errors import UsageError
from supervisor.cli.notify import notify as send_test
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core.messages import END, Message
from supervisor.core.state import Incident, State
from supervisor.core.training_health import Streak, Worth
from supervisor.effects import notify, notify_targets
from supervisor.effects.notify import Notifier
from supervisor.effects.notify_targets import SendError, open_targets
from tests.notify.server import Service, until

TOPIC = "a-topic-that-nobody-guesses-7f3a"


class Desk:
    """A state that a test changes, a notifier that hears of it, and what it told the daemon."""

    def __init__(self, folder: Path, **about: object) -> None:
        self.state = State()
        self.told: list[str] = []
        value = {
            "run": {"id": "swe", "state_dir": str(folder)},
            "job": {"kind": "command", "plain": {"start": ["a"], "resume": ["b"]}},
            "store": {"url": f"file://{folder}/store"},
            "notify": about,
        }
        self.notifier = Notifier(RunFile.model_validate(value), self.hear, lambda: self.state)

    def hear(self, fact: f.Fact) -> None:
        assert isinstance(fact, f.Remark)
        self.told.append(fact.sentence)

    def turn(self, state: State) -> None:
        before, self.state = self.state, state
        self.notifier.note(before, state)

    def open(self, number: int, sentence: str = "") -> None:
        one = Incident(number, "engine-gone", sentence or f"vLLM died, number {number}.", 100.0, 1e9, 1, 40)
        self.turn(replace(self.state, incidents=replace(self.state.incidents, open=one)))

    def close(self) -> None:
        incidents = self.state.incidents
        assert incidents.open is not None
        over = replace(incidents.open, closed=130.0, closed_step=41)
        self.turn(replace(self.state, incidents=replace(incidents, open=None, closed=(*incidents.closed, over)[-50:])))

    def send_with(self, send: Callable[[Message], None]) -> None:
        """In place of its one target's way of sending."""
        object.__setattr__(self.notifier.targets[0], "send", send)


MakeDesk = Callable[..., Desk]


@pytest.fixture
def make_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeDesk]:
    monkeypatch.setattr(notify, "LOOK_S", 0.05)
    monkeypatch.setattr(notify, "AGAIN_S", (0.1,))
    made: list[Desk] = []

    def make(urls: str, **about: object) -> Desk:
        monkeypatch.setattr(secrets, "secret", lambda name: urls if name == notify.VARIABLE else None)
        made.append(Desk(tmp_path, **about))
        return made[-1]

    yield make
    for desk in made:
        desk.notifier.close()


def test_one_incident_is_a_message_and_its_end_another_in_the_same_thread(make_desk: MakeDesk) -> None:
    with Service("ntfy") as ntfy, Service() as plain:
        desk = make_desk(f"ntfy://{ntfy.place}/{TOPIC} http://{plain.place}/hook")
        desk.notifier.start()
        desk.open(1)
        until(lambda: len(ntfy.got) == len(plain.got) == 1)
        desk.close()
        until(lambda: len(ntfy.got) == len(plain.got) == 2)
        opened, closed = (value for _, value, _ in ntfy.got)
        assert opened["topic"] == closed["topic"] == TOPIC
        assert opened["sequence_id"] == closed["sequence_id"] == "swe-incident-1"
        assert (opened["title"], closed["title"]) == ("warning: swe", "resolved: swe")
        assert opened["message"] == "vLLM died, number 1.\n$ supervisorctl incidents 1"
        assert opened["priority"] > closed["priority"]
        hook = plain.got[0][1]
        assert hook["text"].startswith("warning: swe\nvLLM died, number 1.")
        assert (hook["thread"], hook["over"], hook["severity"]) == ("swe-incident-1", False, "warning")


def test_the_end_of_a_run_is_over_and_an_end_of_trouble_is_resolved() -> None:
    for thread, title in (("incident-1", "resolved: swe"), (END, "over: swe")):
        assert notify_targets.title_of(Message(thread, "info", "x", is_over=True), "swe") == title


def test_a_webhook_that_redirects_is_told_to_be_named_where_it_leads(make_desk: MakeDesk) -> None:
    with Service() as hook:
        hook.status = 301
        desk = make_desk(f"http://{hook.place}/hook")
        with pytest.raises(SendError, match="it answers with status 301; redirects are not followed: name the final "):
            desk.notifier.targets[0].send(Message("test", "info", "x"))


def test_the_test_message_goes_where_the_env_file_beside_the_run_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(notify.VARIABLE, raising=False)
    run_file, beside = tmp_path / "swe.toml", tmp_path / "swe.env"
    run_file.write_text('[run]\nid = "swe"\n[job]\nkind = "command"\n[job.plain]\nstart = ["a"]\nresume = ["b"]\n')
    with pytest.raises(UsageError, match=f"no address, neither in {beside} nor in the environment. Write it there: "):
        send_test(run_file)
    with Service() as hook:
        beside.write_text(f"RL_NOTIFY_URLS=http://{hook.place}/{TOPIC}\n")
        assert send_test(run_file) == 0
        assert hook.texts() == ["note: swe\nThis is a test: messages of swe reach you."]
    assert capsys.readouterr().out == "target 1 (http://...): sent.\n"


def test_what_ends_while_its_message_is_under_way_ends_as_a_note(make_desk: MakeDesk) -> None:
    with Service("ntfy") as ntfy:
        desk = make_desk(f"ntfy://{ntfy.place}/{TOPIC}")
        send, sent = desk.notifier.targets[0].send, []

        def send_and_end(message: Message) -> None:
            send(message)
            sent.append(message)
            if len(sent) == 1:
                desk.close()

        desk.send_with(send_and_end)
        desk.notifier.start()
        desk.open(1)
        until(lambda: len(sent) == 2)
        assert [(one.is_over, one.severity) for one in sent] == [(False, "warning"), (True, "info")]


def test_it_arrives_within_five_seconds(make_desk: MakeDesk) -> None:
    with Service() as plain:
        desk = make_desk(f"http://{plain.place}/")
        desk.notifier.start()
        began = time.monotonic()
        desk.open(1)
        until(lambda: plain.got)
        assert plain.got[0][2] - began < 5.0


@pytest.mark.soak
def test_hundreds_of_incidents_in_an_hour_are_at_most_the_limit_and_errors_never_wait(make_desk: MakeDesk) -> None:
    with Service() as plain:
        desk = make_desk(f"http://{plain.place}/", per_hour=10)
        desk.notifier.start()
        for number in range(1, 301):
            desk.open(number)
            desk.close()
            if number < 30:
                time.sleep(0.02)
        until(lambda: len(plain.got) >= 10)
        time.sleep(0.5)
        assert len(plain.got) <= 10
        desk.notifier.note_end(93, "three restarts failed")
        until(lambda: any("A person is needed: three restarts failed" in one for one in plain.texts()))
        assert len(plain.got) <= 11


@pytest.mark.soak
def test_a_target_that_is_slow_or_gone_takes_neither_time_nor_room_from_the_others(
    make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LAST_S", 3.0)
    with Service() as slow, Service() as gone, Service() as well:
        slow.wait_s, gone.status = 8.0, 500
        desk = make_desk(f"http://{slow.place}/ http://{gone.place}/ http://{well.place}/", per_hour=4)
        desk.notifier.start()
        for number in range(1, 8):
            began = time.monotonic()
            desk.open(number)
            desk.close()
            if number < 3:
                until(lambda number=number: f"number {number}" in " ".join(well.texts()))
                assert time.monotonic() - began < 5.0
        until(lambda: len(well.got) >= 4)
        time.sleep(0.5)
        assert len(well.got) == 4  # its own limit, and not what the two others leave
        began = time.monotonic()
        desk.notifier.note_end(93, "the disk is broken")
        desk.notifier.close()
        assert "A person is needed: the disk is broken" in " ".join(well.texts())  # the slow one was still at work
        assert time.monotonic() - began < notify.LAST_S + 5.0


def test_what_had_to_wait_is_told_together_when_there_is_room(
    make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Service() as plain:
        desk = make_desk(f"http://{plain.place}/", per_hour=2)
        desk.notifier.start()
        for number in range(1, 10):
            desk.open(number)
            desk.close()
            until(lambda: len(plain.got) >= min(len(desk.state.incidents.closed), 2))
        assert len(plain.got) == 2
        monkeypatch.setattr(notify, "HOUR_S", 0.0)
        until(lambda: len(plain.got) >= 4)
        assert any("messages:" in one or "number 9" in one for one in plain.texts()[2:])


def test_during_the_night_only_errors_are_sent(make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = [True]
    monkeypatch.setattr(notify, "is_asleep", lambda hours, wall: asleep[0])
    with Service() as plain:
        desk = make_desk(f"http://{plain.place}/", asleep="22-7")
        desk.notifier.start()
        desk.open(1)
        desk.notifier.note_end(94, "a GPU fell off the bus")
        until(lambda: plain.got)
        time.sleep(0.3)
        [told] = plain.texts()
        assert told.startswith("ERROR: swe\nThis pod is unfit")
        monkeypatch.setattr(notify, "LATE_S", 0.1)
        asleep[0] = False
        until(lambda: len(plain.got) == 2)
        assert re.search(r"^\S+ m?s ago: ", plain.texts()[1].partition("\n")[2]), "it says since when it waits"


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["plain", "ntfy", "slack"])
@pytest.mark.parametrize(("status", "body"), [(500, b"{}"), (404, b"x"), (429, b"{}"), (200, b'{"error": "no"}')])
def test_a_target_that_refuses_or_lies_is_told_once_and_gets_it_later(
    make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch, kind: str, status: int, body: bytes
) -> None:
    if (kind, status) == ("plain", 200):
        pytest.skip("a plain webhook may answer what it likes")
    with Service(kind) as service:
        url = f"ntfy://{service.place}/{TOPIC}" if kind == "ntfy" else f"http://{service.place}/services/{TOPIC}"
        if kind == "slack":
            monkeypatch.setattr(notify_targets, "SLACK", "127.0.0.1")
        service.status, service.body = status, body
        desk = make_desk(url)
        desk.notifier.start()
        desk.open(1)
        until(lambda: desk.notifier.note_for_status)
        time.sleep(0.3)
        [told] = desk.told
        assert told.startswith("Messages do not reach target 1 (") and f"status {status}" in told
        assert TOPIC not in told + desk.notifier.note_for_status
        service.heal()
        until(lambda: service.got)
        until(lambda: not desk.notifier.note_for_status)
        assert desk.told[-1].startswith("Messages reach target 1 (")
        assert len(service.got) == 1


def test_a_slow_target_delays_no_other_turn_and_the_end_only_for_seconds(
    make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LAST_S", 0.5)
    monkeypatch.setattr(notify_targets, "TIMEOUT_S", 20.0)
    with Service() as slow:
        slow.wait_s = 20.0
        desk = make_desk(f"http://{slow.place}/")
        desk.notifier.start()
        began = time.monotonic()
        for number in range(1, 50):
            desk.open(number)
            desk.close()
        desk.notifier.note_end(0, "the run is finished")
        desk.notifier.close()
        assert time.monotonic() - began < 5.0


def test_what_a_killed_daemon_did_not_send_the_next_one_sends_once(make_desk: MakeDesk) -> None:
    with Service() as plain:
        plain.status = 500
        first = make_desk(f"http://{plain.place}/")
        first.notifier.start()
        first.open(1)
        until(lambda: first.notifier.note_for_status)
        first.notifier.close(all_at_end=False)
        plain.heal()
        second = make_desk(f"http://{plain.place}/")
        second.state = first.state
        second.notifier.start()
        until(lambda: plain.got)
        time.sleep(0.3)
        assert len(plain.got) == 1
        second.close()
        until(lambda: len(plain.got) == 2)


def test_a_moment_without_room_for_a_thread_silences_no_message(
    make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    desk = make_desk("http://127.0.0.1:9/")
    sent: list[Message] = []
    desk.send_with(sent.append)
    desk.notifier.start()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        desk.open(1)
        until(lambda: sent)
    desk.close()
    until(lambda: len(sent) == 2)


def test_a_message_that_is_refused_makes_no_other_go_out_again(make_desk: MakeDesk, tmp_path: Path) -> None:
    sent: list[str] = []
    refused: list[str] = []

    def send(message: Message) -> None:
        (refused if message.thread == "incident-2" else sent).append(message.thread)
        if message.thread == "incident-2":
            raise SendError("it answers with status 400")

    desk = make_desk("http://127.0.0.1:9/")
    desk.send_with(send)
    desk.notifier.put([Message("incident-1", "warning", "vLLM died."), Message("incident-2", "warning", "x")])
    desk.notifier.start()
    until(lambda: len(refused) > 2)
    assert sent == ["incident-1"]
    [waiting] = json.loads((tmp_path / "messages.json").read_bytes())["waiting"].values()
    assert [one["message"]["thread"] for one in waiting] == ["incident-2"], "nor does the next daemon send it again"


def test_of_a_digest_everything_is_told(make_desk: MakeDesk) -> None:
    sent: list[str] = []
    desk = make_desk("http://127.0.0.1:9/", per_hour=2)
    desk.send_with(lambda message: sent.append(message.sentence))
    desk.notifier.put([Message(f"incident-{number}", "error", f"Number {number}.") for number in range(4)])
    desk.notifier.start()
    until(lambda: len(sent) == 2)
    desk.notifier.close()
    assert sent == ["Number 0.", "3 messages:\nNumber 1.\nNumber 2.\nNumber 3."]


def test_what_was_found_bad_and_ended_unnoted_is_told_when_it_comes_again(make_desk: MakeDesk, tmp_path: Path) -> None:
    kept = {"waiting": {}, "sent": {}, "open": ["worth-loss-nan", "worth-reward-flat"]}
    (tmp_path / "messages.json").write_text(json.dumps(kept))  # the disk was full when the first of them ended
    sent: list[str] = []
    flat = Streak(10, said="The reward is flat.")
    desk = make_desk("http://127.0.0.1:9/")
    desk.state = replace(State(), worth=Worth(rows={"reward-flat": flat}))
    desk.send_with(lambda message: sent.append(message.thread))
    desk.notifier.start()
    nan = Streak(2, said="The loss is NaN.")
    desk.turn(replace(desk.state, worth=Worth(rows={"reward-flat": flat, "loss-nan": nan})))
    until(lambda: sent)
    assert sent == ["worth-loss-nan"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock of the notifier is off, in seconds."""
    off = [0.0]
    told = SimpleNamespace(time=lambda: time.time() + off[0], monotonic=time.monotonic, gmtime=time.gmtime)
    monkeypatch.setattr(notify, "time", told)
    return off


def test_a_clock_that_is_set_back_holds_no_message_up(make_desk: MakeDesk, clock: list[float]) -> None:
    sent: list[str] = []
    refuses = [True]

    def send(message: Message) -> None:
        if refuses[0]:
            raise SendError("its host's name is not known here")
        sent.append(message.thread)

    clock[0] = 8 * 3600.0
    desk = make_desk("http://127.0.0.1:9/", per_hour=1)
    desk.send_with(send)
    desk.notifier.start()
    desk.open(1)
    until(lambda: desk.notifier.note_for_status)
    refuses[0] = False
    until(lambda: sent == ["incident-1"])
    clock[0], refuses[0] = 0.0, True
    desk.notifier.note_end(93, "the disk is broken")
    until(lambda: desk.notifier.note_for_status)
    clock[0], refuses[0] = -8 * 3600.0, False
    until(lambda: sent == ["incident-1", "end"])
    desk.open(2)  # what was sent at a time to come fills no hour
    clock[0] = -16 * 3600.0
    until(lambda: sent == ["incident-1", "end", "incident-2"])


def test_what_waited_for_a_day_is_dropped_and_that_is_told(make_desk: MakeDesk, clock: list[float]) -> None:
    def send(message: Message) -> None:
        raise SendError("it answers with status 500")

    desk = make_desk("http://127.0.0.1:9/")
    desk.send_with(send)
    desk.notifier.start()
    desk.open(1)
    until(lambda: desk.notifier.note_for_status)
    clock[0] = 25 * 3600.0
    until(lambda: len(desk.told) == 2)
    assert desk.told[1] == "Messages that waited for target 1 (http://...) for 24 h are dropped: 1."


def test_the_longest_message_is_one_that_discord_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Service() as service:
        monkeypatch.setattr(notify_targets, "DISCORD", "127.0.0.1")
        run = "r" * 100
        [target], _ = open_targets(f"http://{service.place}/api/webhooks/1/x", run)
        target.send(Message("incident-12345", "warning", "x" * 5000, f"supervisorctl incidents 12345 {run}"))
        [(_, value, _)] = service.got
        assert value["content"].endswith(f"x\n$ supervisorctl incidents 12345 {run}")
        assert len(value["content"]) <= 2000


def test_an_incident_that_opened_while_no_daemon_could_note_it_is_told(make_desk: MakeDesk) -> None:
    with Service() as plain:
        desk = make_desk(f"http://{plain.place}/")
        one = Incident(7, "engine-gone", "vLLM died.", 100.0, 1e9, 1, 40)
        desk.state = replace(State(), incidents=replace(State().incidents, open=one))
        desk.notifier.start()
        until(lambda: plain.got)


def test_a_file_that_a_person_edited_costs_no_daemon(make_desk: MakeDesk, tmp_path: Path) -> None:
    for text in ("{", "[]", '{"waiting": {"a": [{"at": "x"}]}, "sent": [], "open": []}', '{"waiting": 7}'):
        (tmp_path / "messages.json").write_text(text)
        with Service() as plain:
            desk = make_desk(f"http://{plain.place}/")
            desk.notifier.start()
            desk.open(1)
            until(lambda: plain.got)
            desk.notifier.close()


def test_addresses_that_cannot_be_used_are_told_and_never_shown(make_desk: MakeDesk) -> None:
    secret = "sEcReT-0123456789-abcdef"
    desk = make_desk(f"ntfy://host/{secret}/more http:///{secret} ntfy:///x")
    assert len(desk.told) == 3
    assert not any(secret in one for one in desk.told)


@pytest.mark.soak
def test_apprise_sends_what_no_post_reaches() -> None:
    pytest.importorskip("apprise")
    with Service() as plain:
        [target], odd = open_targets(f"json://{plain.place}/hook", "swe")
        assert odd == []
        target.send(Message("incident-1", "error", "vLLM died."))
        [(path, value, _)] = plain.got
        assert (path, value["title"], value["message"], value["type"]) == (
            "/hook",
            "ERROR: swe",
            "vLLM died.",
            "failure",
        )
        plain.status = 500
        with pytest.raises(SendError, match="apprise could not send it"):
            target.send(Message("incident-2", "error", "x"))


def test_secrets_in_a_sentence_do_not_leave(make_desk: MakeDesk) -> None:
    with Service() as plain:
        desk = make_desk(f"http://{plain.place}/")
        desk.notifier.start()
        desk.open(1, "It printed WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 and \x1b[31mred\x1b[0m.")
        until(lambda: plain.got)
        assert "0123456789abcdef0123" not in plain.texts()[0]
        assert "\x1b" not in plain.texts()[0]


@pytest.mark.soak
def test_a_real_run_tells_of_its_incident_within_five_seconds_and_of_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with Service() as plain:
        environ = {**os.environ, notify.VARIABLE: f"http://{plain.place}/{TOPIC}"}
        demo = [sys.executable, "-m", "tests.demo.demo", "--keep", str(folder), "--steps", "20"]
        assert subprocess.run(demo, env=environ, capture_output=True, timeout=200, check=False).returncode == 0
        heard = time.time() - time.monotonic()
        opened, closed, end = (value for _, value, _ in plain.got)
        assert "vLLM died silently" in opened["text"] and opened["severity"] == "warning"
        assert closed["thread"] == opened["thread"] and closed["over"]
        assert "Trains again after" in closed["text"]
        assert end["thread"].endswith("-end") and end["severity"] == "info"
        log = [json.loads(line) for line in (folder / "rl-supervisor.jsonl").read_text().splitlines()]
        verdict = next(one for one in log if one["event"] == "verdict")
        at = datetime.fromisoformat(verdict["time"]).timestamp()
        assert heard + plain.got[0][2] - at <= 5.0
    text = "".join(path.read_text(errors="replace") for path in folder.rglob("*.json*"))
    assert TOPIC not in text
