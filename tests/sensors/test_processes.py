"""Who belongs to an attempt, and who of them has ended: with real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from supervisor.core.facts import ComponentExited, ProcessGone, ProcessSeen, Remark, Role
from supervisor.sensors.base import Looker
from supervisor.sensors.processes import (
    Identity,
    ProcessScanner,
    ProcessWatcher,
    connections_to,
    identity_of,
    is_alive,
    process_sensors,
)
from tests.sensors.support import FakeClock, Inbox, no_descriptor_left, until


def classify(title: str, comm: str) -> tuple[Role, bool] | None:
    if title.startswith("VLLM::EngineCore"):
        return "inference", True
    if title.startswith("PRIME-RL::Trainer") or "tree.py trainer" in title:
        return "trainer", True
    if title.startswith("tail"):
        return "launcher", False
    return None


def until_exec(pid: int) -> None:
    # Not the name (comm): the kernel sets that before the new command line is there.
    until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\x00600\x00"), "the exec of sleep")


class Tree:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("tree.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.id = self.ask_identity(self.process.pid)

    @staticmethod
    def ask_identity(pid: int) -> Identity:
        found = identity_of(pid)
        assert found is not None
        return found

    def make(self, verb: str, word: str) -> Identity:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{verb} {word}\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        found = self.ask_identity(pid)
        if verb != "loader":
            until_exec(pid)
        return found

    def end(self) -> None:
        self.process.communicate(timeout=20)


@pytest.fixture
def tree() -> Iterator[Tree]:
    tree = Tree()
    yield tree
    tree.end()


@pytest.fixture
def other() -> Iterator[Tree]:
    tree = Tree()
    yield tree
    tree.end()


def sensors(
    tree: Tree, clock: FakeClock, known: Sequence[ProcessSeen] = (), root: Identity | None = None
) -> tuple[ProcessWatcher, ProcessScanner]:
    return process_sensors(7, [root or tree.id], classify, list, known=known, clock=clock)


def scan(scanner: ProcessScanner, clock: FakeClock) -> list[object]:
    clock.now += 3
    return list(scanner.look())


def kill(process: Identity) -> None:
    os.kill(process.pid, signal.SIGKILL)


def watch_until_gone(watcher: ProcessWatcher) -> list[object]:
    facts: list[object] = []

    def look() -> bool:
        facts.extend(watcher.look())
        return bool(facts)

    until(look, "the end of the process is seen")
    return facts


@pytest.mark.parametrize("left", [0, 1], ids=["no descriptor left", "the last one is the pidfd"])
def test_a_process_that_cannot_be_looked_at_has_not_ended(tree: Tree, left: int) -> None:
    trainer = tree.make("spawn", "PRIME-RL::Trainer")
    other = tree.make("spawn", "VLLM::EngineCore")
    seen = [ProcessSeen(7, "trainer", *one, title="PRIME-RL::Trainer", key=True) for one in (trainer, other)]
    with no_descriptor_left(but=left):
        watcher, _ = sensors(tree, FakeClock(), known=seen)
        assert watcher.look() == []
    assert watcher.look() == []
    kill(trainer)
    assert watch_until_gone(watcher) == [ProcessGone(7, "trainer", *trainer, key=True)]
    kill(other)
    assert watch_until_gone(watcher) == [ProcessGone(7, "trainer", *other, key=True)]
    watcher.close()


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "a kernel without pidfd"])
def test_the_engine_core_dies_unreaped_and_its_end_is_proof(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", lambda pid, flags=0: (_ for _ in ()).throw(OSError(38, "not here")))
    clock = FakeClock()
    watcher, scanner = sensors(tree, clock)
    engine = tree.make("spawn", "VLLM::EngineCore")
    trainer = tree.make("spawn", "PRIME-RL::Trainer")
    tree.make("spawn", "python some helper")
    follower = tree.make("spawn", "tail -F")

    assert scan(scanner, clock) == [
        ProcessSeen(7, "inference", *engine, title="VLLM::EngineCore 600", key=True),
        ProcessSeen(7, "trainer", *trainer, title="PRIME-RL::Trainer 600", key=True),
        ProcessSeen(7, "launcher", *follower, title="tail -F 600", key=False),
    ]
    assert scan(scanner, clock) == []
    assert watcher.look() == []

    kill(engine)  # its parent does not wait for it: a zombie counts as gone
    assert watch_until_gone(watcher) == [ProcessGone(7, "inference", *engine, key=True)]
    assert scan(scanner, clock) == []
    kill(follower)
    assert watch_until_gone(watcher) == [ProcessGone(7, "launcher", *follower, key=False)]
    watcher.close()
    assert watcher.look() == () and scan(scanner, clock) == []


def test_an_orphan_is_still_of_the_family(tree: Tree) -> None:
    clock = FakeClock()
    watcher, scanner = sensors(tree, clock)
    orphan = tree.make("orphan", "VLLM::EngineCore")
    assert scan(scanner, clock) == [ProcessSeen(7, "inference", *orphan, title="VLLM::EngineCore 600", key=True)]
    watcher.close()


def test_a_forked_copy_of_the_trainer_is_no_trainer_until_it_has_a_title_of_its_own(tree: Tree, tmp_path: Path) -> None:
    clock = FakeClock()
    watcher, scanner = sensors(tree, clock)
    trainer = tree.make("loader", str(tmp_path / "copy"))
    until((tmp_path / "copy").exists, "the copy")
    copy = tree.ask_identity(int((tmp_path / "copy").read_text()))
    seen = scan(scanner, clock)
    assert [(fact.role, fact.pid) for fact in seen if isinstance(fact, ProcessSeen)] == [("trainer", trainer.pid)]

    os.kill(copy.pid, signal.SIGUSR1)
    until_exec(copy.pid)
    assert scan(scanner, clock) == [ProcessSeen(7, "inference", *copy, title="VLLM::EngineCore 600", key=True)]
    watcher.close()


def test_a_copy_that_ends_is_not_the_end_of_the_trainer(tree: Tree, tmp_path: Path) -> None:
    clock = FakeClock()
    watcher, scanner = sensors(tree, clock)
    tree.make("loader", str(tmp_path / "copy"))
    until((tmp_path / "copy").exists, "the copy")
    copy = tree.ask_identity(int((tmp_path / "copy").read_text()))
    assert len(scan(scanner, clock)) == 1
    kill(copy)
    until(lambda: not is_alive(copy), "the end of the copy")
    assert scan(scanner, clock) == [] and watcher.look() == []
    watcher.close()


def test_a_new_daemon_learns_who_ended_while_nobody_looked(tree: Tree) -> None:
    engine = tree.make("spawn", "VLLM::EngineCore")
    trainer = tree.make("spawn", "PRIME-RL::Trainer")
    known = [
        ProcessSeen(7, "inference", *engine, title="VLLM::EngineCore 600", key=True),
        ProcessSeen(7, "trainer", *trainer, title="PRIME-RL::Trainer 600", key=True),
    ]
    kill(engine)
    until(lambda: not is_alive(engine), "the end of the engine")
    clock = FakeClock()
    watcher, scanner = sensors(tree, clock, known)
    assert watcher.look() == [ProcessGone(7, "inference", *engine, key=True)]
    assert scan(scanner, clock) == [], "the trainer had been reported before"
    kill(trainer)
    assert watch_until_gone(watcher) == [ProcessGone(7, "trainer", *trainer, key=True)]
    watcher.close()


def test_processes_of_another_run_are_not_counted_even_when_they_carry_our_number(tree: Tree, other: Tree) -> None:
    other.make("spawn", "VLLM::EngineCore")
    clock = FakeClock()
    watcher, scanner = sensors(tree, clock)
    assert scan(scanner, clock) == []
    watcher.close()
    # The shim ended, and its number went to the root of another run's tree.
    watcher, scanner = sensors(tree, clock, root=Identity(other.id.pid, other.id.start_ticks - 1))
    assert scan(scanner, clock) == []
    watcher.close()


def test_a_number_that_was_given_to_another_process_does_not_keep_the_engine_alive(tree: Tree) -> None:
    helper = tree.make("spawn", "python helper")
    known = [ProcessSeen(7, "inference", helper.pid, helper.start_ticks - 1, title="VLLM::EngineCore", key=True)]
    watcher, _ = sensors(tree, FakeClock(), known)
    assert watcher.look() == [ProcessGone(7, "inference", helper.pid, helper.start_ticks - 1, key=True)]
    watcher.close()


def test_the_exit_that_the_shim_wrote_is_posted_once(tree: Tree) -> None:
    exits: list[ComponentExited] = []
    watcher, scanner = process_sensors(7, [tree.id], classify, lambda: exits)
    inbox = Inbox()
    lookers = [Looker(watcher, inbox, interval_s=0.02), Looker(scanner, inbox, interval_s=0.02)]
    for looker in lookers:
        looker.start()
    engine = tree.make("spawn", "VLLM::EngineCore")
    until(lambda: inbox.of(ProcessSeen), "the engine is seen")
    exits.append(ComponentExited(7, "rl", 0))
    kill(engine)
    until(lambda: inbox.of(ProcessGone) and inbox.of(ComponentExited), "both ends are seen")
    for looker in lookers:
        assert looker.stop()
    watcher.close()
    assert inbox.of(ComponentExited) == [ComponentExited(7, "rl", 0)]
    assert [gone.pid for gone in inbox.of(ProcessGone)] == [engine.pid]


def test_a_shim_that_is_gone_is_told_once_and_the_end_of_its_component_later(tree: Tree) -> None:
    gone, ended = Remark("shim-gone", "rl runs on"), ComponentExited(7, "rl", None, lost=True)
    exits: list[ComponentExited | Remark | None] = [gone]
    watcher, _ = process_sensors(7, [tree.id], classify, lambda: exits)
    assert [list(watcher.look()) for _ in range(2)] == [[gone], []]
    exits[:] = [ended]
    assert [list(watcher.look()) for _ in range(2)] == [[ended], []]
    watcher.close()


def test_an_exit_whose_last_lines_are_not_read_yet_is_asked_for_again_soon(tree: Tree) -> None:
    exits: list[ComponentExited | None] = [None]
    watcher, _ = process_sensors(7, [tree.id], classify, lambda: exits)
    inbox = Inbox()
    looker = Looker(watcher, inbox, interval_s=3600.0)
    looker.start()
    until(lambda: watcher.again_s(0.0) is not None, "it was asked for once")
    exits[:] = [ComponentExited(7, "rl", 0)]
    until(lambda: inbox.of(ComponentExited), "it is told, long before the next look is due")
    until(lambda: watcher.again_s(0.0) is None, "and then all goes as usual")
    assert looker.stop()
    watcher.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_open_connections_to_the_engine_are_counted_without_our_own(family: socket.AddressFamily) -> None:
    with socket.socket(family) as listener:
        listener.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert connections_to(port) == 0
        with socket.create_connection(listener.getsockname()[:2]) as one:
            assert connections_to(port) == 1
            with socket.create_connection(listener.getsockname()[:2]) as ours:
                assert connections_to(port) == 2
                assert connections_to(port, own_ports=[ours.getsockname()[1]]) == 1
            # A client's own number may be another client's, too, where that asks another server.
            assert connections_to(one.getsockname()[1]) >= 1
        assert connections_to(port, limit_bytes=10) is None
