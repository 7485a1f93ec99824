"""The parts of an upgrade in place: when it may come, what waits for it, and what a new program finds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.base.errors import ConfigError
from supervisor.config.run_file import load
from supervisor.core import facts as f
from supervisor.core.state import Attempt, Busy, Fence, Leave, Orders, OwnEngine, State
from supervisor.daemon import upgrade, upgrade_trial
from supervisor.daemon.leaving import LeavingWatch
from supervisor.daemon.upgrade import Launch, Upgrade, busy_with
from supervisor.journal.journal import Journal
from supervisor.sensors.leaving import SLURM_JOB

TAKING = f.Settings(run_id="r", take_over=True)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State(mode="running", busy=Busy(publish=10, prune_local=5, prune_store=2)), ""),
        (State(mode="restoring", busy=Busy(restore=10)), ""),
        (State(mode="stopped"), ""),
        (State(mode="starting", busy=Busy(start=1)), "something is just being launched"),
        (State(mode="running", own=OwnEngine(asked="start")), "something is just being launched"),
        (State(mode="stopping"), "something is just being stopped"),
        (State(mode="running", own=OwnEngine(asked="stop")), "something is just being stopped"),
        (State(mode="surveying", setup_pending=True), "[setup] is under way"),
        (State(mode="finishing", busy=Busy(hook="finish")), "a hook is running"),
        (State(mode="leaving"), "the daemon is about to end"),
        (State(mode="running", leave=Leave(asked=True, why="SIGPWR")), "this pod is about to go"),
        (State(mode="running", leave=Leave(asked=True)), "the daemon is about to end"),
        (State(mode="gave-up"), "the daemon is about to end"),
        (
            State(settings=f.Settings(run_id="r", fresh=True), orders=Orders(override=True)),
            "what the daemon was started for",
        ),
        (State(settings=f.Settings(run_id="r", fresh=True)), ""),
        (State(settings=TAKING, fence=Fence(asked=True)), "the run that --take-over asked for"),
        (State(settings=TAKING, fence=Fence(asked=True, generation=2)), ""),
        (State(settings=TAKING, fence=Fence(asked=True, lost=True)), ""),
    ],
)
def test_an_upgrade_waits_for_what_would_be_begun_a_second_time(state: State, words: str) -> None:
    assert busy_with(state).startswith(words)
    assert bool(busy_with(state)) == bool(words)


class House:
    """A daemon's house without a daemon: chores are done when ``work`` is called."""

    def __init__(self, folder: Path) -> None:
        run_file = SimpleNamespace(run=SimpleNamespace(id="r"), state_dir=folder)
        self.run: Any = SimpleNamespace(run_file=run_file, job=None)
        self.state = State(mode="running", attempt=Attempt(number=1))
        self.journal: Any = SimpleNamespace(snapshot=lambda state: None, identity=lambda: "abc")
        self.facts: list[f.Fact] = []
        self.chores: list[Callable[[], None]] = []
        self.kept = 0

    def post(self, fact: f.Fact, source: str = "") -> None:
        self.facts.append(fact)

    def chore(self, work: Callable[[], None]) -> None:
        self.chores.append(work)

    def keep_positions(self) -> None:
        self.kept += 1

    def work(self) -> None:
        while self.chores:
            self.chores.pop(0)()

    def said(self) -> list[tuple[str, str]]:
        return [(fact.event, fact.sentence) for fact in self.facts if isinstance(fact, f.Remark)]


def upgrade_of(house: House) -> Upgrade:
    return Upgrade(house, house.run, house.journal, Launch(Path("run.toml")))


def seen(**changes: Any) -> dict[str, Any]:
    known = {"run": "r", "output_dir": "/o", "journal": "abc", "attempt": 1, "pid": None, "incident": None}
    return {**known, **changes}


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def trying(house: House, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """An upgrade whose trial has just given its answer."""
    one = upgrade_of(house)
    monkeypatch.setattr(one, "_trial", lambda: {"state_dir": str(house.run.run_file.state_dir), **answer})
    monkeypatch.setattr(upgrade.threading, "Thread", Now)
    assert one.ask("a person")[0]
    assert not one.due(house.state)
    house.work()
    return one


class Now:
    """A thread that has done its work when it is started."""

    def __init__(self, target: Callable[[], None], **_: Any) -> None:
        self.start = target


def test_it_comes_at_a_quiet_moment_and_after_the_logs_were_read(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.state = State(mode="starting", busy=Busy(start=1), attempt=Attempt(number=1))
    one = trying(house, seen(), monkeypatch)
    assert house.kept == 1
    assert one.ask("another person") == (
        False,
        "An upgrade is under way already: supervisorctl events shows what comes of it.",
    )
    assert not one.due(house.state)
    quiet = State(mode="running", attempt=Attempt(number=1))
    assert not one.due(quiet), "lines were read while it waited"
    assert house.kept == 2
    house.work()
    assert not one.due(house.state), "something else has begun meanwhile"
    assert not one.due(quiet)
    house.work()
    assert one.due(quiet)
    assert one.is_going


def test_what_does_not_become_quiet_is_left_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "QUIET_S", -1.0)
    house.state = State(mode="stopping", attempt=Attempt(number=1))
    one = trying(house, seen(), monkeypatch)
    assert not one.due(house.state) and not one.is_going
    event, sentence = house.said()[-1]
    assert event == "upgrade-refused"
    assert sentence.endswith("but something is just being stopped: ask again when that is over.")
    assert one.ask("a person")[0], "it may be asked for again"


@pytest.mark.parametrize(("name", "value"), [("attempt", 0), ("journal", "xyz"), ("incident", 3), ("run", "other")])
def test_a_program_that_sees_another_run_is_refused(
    name: str, value: object, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trying(house, seen(**{name: value}), monkeypatch)
    assert not one.due(house.state)
    assert f"it would go on with {name} {value!r}" in house.said()[-1][1]


def test_what_changed_while_the_other_one_looked_is_no_difference(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = upgrade_of(house)

    def trial() -> dict[str, Any]:
        house.state = State(mode="running", attempt=Attempt(number=2, pid=7))  # it had read attempt 1 by then
        return seen(state_dir=str(house.run.run_file.state_dir))

    monkeypatch.setattr(one, "_trial", trial)
    monkeypatch.setattr(upgrade.threading, "Thread", Now)
    one.ask("a person")
    house.work()
    assert one.due(house.state)


def test_a_program_that_looked_between_two_launches_looks_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.state = State(mode="stopping", attempt=Attempt(number=1, pid=6))
    one = upgrade_of(house)
    answers = [seen(attempt=2, pid=None), seen(attempt=2, pid=7)]

    def trial() -> dict[str, Any]:
        house.state = State(mode="running", attempt=Attempt(number=2, pid=7))
        return {"state_dir": str(house.run.run_file.state_dir), **answers.pop(0)}

    monkeypatch.setattr(one, "_trial", trial)
    monkeypatch.setattr(upgrade.threading, "Thread", Now)
    one.ask("a person")
    house.work()
    assert one.due(house.state) and not answers
    assert [event for event, _ in house.said()] == ["upgrade"]


def test_what_was_asked_for_in_the_last_moment_is_carried_out_by_the_program_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders, clock = upgrade.Orders(), [1000.0]
    monkeypatch.setattr(upgrade, "_boot_s", lambda: clock[0])
    pin, stop = f.Command("pin", "ubuntu", ("40",)), f.Command("shutdown", "ubuntu")
    orders.take(pin, "api")
    orders.take(f.LeaveSoon(30.0, "/run/preempted appeared"), "leaving-file")
    orders.take(f.LeaveSoon(5.0, "SIGTERM"), "signal")
    orders.take(f.Tick(), "clock")
    orders.take(stop, "api")
    assert orders.end == signal.SIGTERM
    clock[0] += 2.5
    environ = {upgrade.ORDERS: orders.text()}
    assert upgrade.orders_of(environ) == [
        (pin, "api"),
        (f.LeaveSoon(27.5, "/run/preempted appeared"), "leaving-file"),
        (f.LeaveSoon(2.5, "SIGTERM"), "signal"),
        (stop, "api"),
    ]
    assert environ == {}, "none is carried out twice"
    clock[0] += upgrade.FRESH_S
    assert upgrade.orders_of({upgrade.ORDERS: orders.text()}) == [], "a program that did not know them kept them"
    for odd in ("", "{", "[1]", '[{"fact": {"@": "Nothing"}, "at": 1, "source": "x"}]', "{}", '[{"at": "x"}]'):
        assert upgrade.orders_of({upgrade.ORDERS: odd}) == []


def test_each_signal_that_ends_a_pod_goes_on_over_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for text, slurm, number in (
        ("", {}, signal.SIGTERM),
        ("", {SLURM_JOB: "17"}, signal.SIGTERM),
        ("[leaving]\ngrace_s = 30\n", {}, signal.SIGTERM),
        ('[leaving]\nsignal = "SIGUSR1"\n', {SLURM_JOB: "17"}, signal.SIGUSR1),
    ):
        path.write_text(
            f'[run]\nid = "demo"\n[job]\nkind = "command"\n[job.plain]\nstart = ["true"]\nresume = ["true"]\n{text}'
        )
        watch = LeavingWatch(load(path), slurm, lambda fact, source: None, State, lambda: None)
        orders = upgrade.Orders()
        orders.take(watch.meaning_of(number), "signal")
        assert orders.end == number


def test_a_daemon_that_is_about_to_end_is_not_upgraded(house: House) -> None:
    house.state = State(mode="leaving")
    assert not upgrade_of(house).ask("a person")[0]


def test_a_new_program_reaps_what_the_one_before_left_and_forgets_that_it_came() -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "from supervisor.daemon import upgrade\n"
        "child = subprocess.Popen(['true'])\n"
        "os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
        f"environ = {{{upgrade.VARIABLE!r}: '0.0.9'}}\n"
        "assert upgrade.arrive(environ) == '0.0.9' and environ == {}\n"
        "assert upgrade.arrive(environ) == ''\n"
        "assert not os.path.exists(f'/proc/{child.pid}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.soak
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_signals_and_files_over_the_exec(tmp_path: Path, name: str) -> None:
    """A signal that nobody could take yet reaches the new program as itself; a library's open file does not."""
    ours, lent = tmp_path / "ours", tmp_path / "lent"
    lent.touch()
    script = tmp_path / "program.py"
    script.write_text(
        "import os, signal, sys\n"
        "from supervisor.daemon import upgrade\n"
        "from pathlib import Path\n"
        "taken = []\n"
        "came = upgrade.arrive(os.environ)\n"
        "if came:\n"
        "    for number in upgrade.HELD: signal.signal(number, lambda number, frame: taken.append(number))\n"
        "    upgrade.listen()\n"
        "    held = sorted(os.readlink(f'/proc/self/fd/{n}') for n in upgrade.inheritable())\n"
        "    names = [signal.Signals(number).name for number in taken]\n"
        "    print(came, os.getpid(), names, held, os.environ['NOTIFY_SOCKET'])\n"
        "    sys.exit()\n"
        "one = upgrade.Upgrade(None, None, None, upgrade.Launch(Path('x'), os.environ, {'NOTIFY_SOCKET': '/n'}))\n"
        f"leak = os.open({str(ours)!r}, os.O_CREAT | os.O_RDWR); os.set_inheritable(leak, True)\n"
        "print(os.getpid(), flush=True)\n"
        "orders = upgrade.Orders()\n"
        f"orders.end = signal.{name}\n"
        "one.become(lambda: orders)\n"
    )
    fd = os.open(lent, os.O_RDONLY)
    try:
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60, pass_fds=[fd]
        )
    finally:
        os.close(fd)
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert second == f"{upgrade.__version__} {first} ['{name}'] ['{lent}'] /n"
    assert signal.Signals[name] in upgrade.HELD


@pytest.mark.soak
def test_a_daemon_that_was_started_without_a_stdout_is_replaced_as_well(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from supervisor.daemon import upgrade\n"
        "if upgrade.arrive(os.environ): sys.exit(7)\n"
        "upgrade.Upgrade(None, None, None, upgrade.Launch(Path('x'), os.environ)).become(upgrade.Orders)\n"
    )
    words = ["bash", "-c", 'exec "$@" >&-', "bash", sys.executable, str(script)]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")


def run_file_with_new_key(folder: Path, key: str) -> Path:
    path = folder / "demo.toml"
    path.write_text(
        f'[run]\nid = "demo"\nstate_dir = "{folder}/state"\n[job]\nkind = "command"\n'
        '[job.plain]\nstart = ["true"]\nresume = ["true"]\n'
    )
    path.with_suffix(".env").write_text(f"B2_APPLICATION_KEY={key}\n")
    return path


@pytest.mark.soak
@pytest.mark.parametrize("before", ["", "0.0.9"], ids=["after a crash below its nanny", "after an upgrade"])
def test_a_key_that_was_changed_in_the_env_file_counts_for_the_next_daemon(tmp_path: Path, before: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from supervisor.base.secrets import mask_secrets\n"
        "from supervisor.daemon import loop\n"
        "class Daemon:\n"
        "    def __init__(self, path, run_file, environ, options, before):\n"
        "        key, masked = environ['B2_APPLICATION_KEY'], mask_secrets('my-second-key')\n"
        "        print(before.version, key, masked, environ['OTHER'])\n"
        "    def run(self): return 0\n"
        "loop.Daemon = Daemon\n"
        "sys.exit(loop.main(Path(sys.argv[1])))\n"
    )
    path = run_file_with_new_key(tmp_path, "my-second-key")
    old = {"B2_APPLICATION_KEY": "my-first-key", "OTHER": "stays", upgrade.VARIABLE: before}
    words = [sys.executable, str(script), str(path)]
    done = subprocess.run(words, env={**os.environ, **old}, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    version, key, masked, other = done.stdout.rstrip("\n").split(" ")
    assert (version, key, other) == (before, "my-second-key", "stays")
    assert "my-second-key" not in masked


def test_an_upgrade_is_tried_with_the_key_that_it_will_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_file_with_new_key(tmp_path, "my-second-key")
    (tmp_path / "state").mkdir()
    Journal(tmp_path / "state").close()
    keys: list[str] = []

    def open_job(run_file: object, environ: Mapping[str, str], *more: object) -> None:
        keys.append(environ["B2_APPLICATION_KEY"])
        raise ConfigError("That is all.")

    monkeypatch.setattr(upgrade_trial, "open_job", open_job)
    (tmp_path / "trial").mkdir()
    with pytest.raises(ConfigError, match=r"That is all\."):
        upgrade_trial.try_upgrade(
            path, tmp_path / "trial", onstart=False, environ={"B2_APPLICATION_KEY": "my-first-key"}
        )
    assert keys == ["my-second-key"]
