"""What is not the run's and in its way: ports and GPUs. It is named for a person, and never touched."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base.errors import TryAgainError
from supervisor.base.socket_paths import login_name
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.jobs.plain import PlainJob
from supervisor.process import ports, segments, strangers, survivors
from supervisor.process.launch import launch
from supervisor.process.stop import stop_attempt
from tests.process.conftest import BLUNT, Attempt, wait_for
from tests.process.test_earlier_attempts import Driver

LISTENS = """
import socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=getattr(socket, sys.argv[3]))
print(server.getsockname()[1], flush=True)
time.sleep(60)
"""


def listener(address: str = "127.0.0.1", family: str = "AF_INET", *more: str) -> tuple[subprocess.Popen[str], int]:
    """A process that listens, and its port."""
    argv = [sys.executable, "-c", LISTENS, address, "0", family, *more]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def stranger() -> Iterator[tuple[subprocess.Popen[str], int]]:
    process, port = listener("127.0.0.1", "AF_INET", "--api-key", "abc-secret-value")
    yield process, port
    end(process)


def test_a_job_whose_port_is_somebodys_is_not_started_and_the_holder_is_named_and_lives(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, stranger: tuple[subprocess.Popen[str], int]
) -> None:
    process, port = stranger
    monkeypatch.setattr(ports.wait_until_free, "__defaults__", (0.3,))
    with pytest.raises(TryAgainError) as caught:
        attempt.start("tell('up'); sleep()", ports=[port])
    told = str(caught.value)
    assert told.startswith(f"job needs port {port} of this machine, and after 0 s of waiting port {port} is held by")
    assert f"pid {process.pid} of user {login_name(os.getuid())} ({sys.executable}" in told
    assert "abc-secret-value" not in told
    assert told.endswith("it is left alone: end it, or give this run another port")
    assert process.poll() is None
    assert attempt.look().state == "absent"
    assert not (attempt.folder / "up").exists()


def test_a_port_that_is_given_back_in_time_only_costs_the_time(
    attempt: Attempt, stranger: tuple[subprocess.Popen[str], int]
) -> None:
    process, port = stranger
    timer = threading.Timer(0.3, end, [process])
    timer.start()
    begun = time.monotonic()
    launch(attempt.component("tell('up'); sleep()", ports=[port]), attempt.folder, "fork", attempt.run_id)
    assert 0.25 < time.monotonic() - begun < ports.PATIENCE_S
    timer.join()
    attempt.told("up")
    assert attempt.stop(BLUNT).survivors == ()


def test_connections_and_clients_of_a_port_are_not_in_the_way() -> None:
    """Established and closing connections hold a number, too; an engine can be started beside them."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = server.accept()
    server.close()
    try:
        assert ports.listeners([port]) == []
    finally:
        client.close()
        accepted.close()
    assert ports.listeners([]) == []


def test_a_listener_on_ipv6_counts() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        process, port = listener("::1", "AF_INET6")
    except ValueError:
        pytest.skip("no address ::1 here")
    try:
        (found,) = ports.with_pids(ports.listeners([port]))
        assert (found.port, found.pids) == (port, (process.pid,))
    finally:
        end(process)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("theirs", "wanted", "barred"),
    [
        ("127.0.0.2", "127.0.0.1", False),
        ("127.0.0.2", "localhost", False),
        ("127.0.0.2", "127.0.0.2", True),
        ("127.0.0.2", "", True),  # all addresses, so that one, too
        ("127.0.0.2", "0.0.0.0", True),
        ("127.0.0.2", "a-name-that-only-a-server-knows", True),
        ("0.0.0.0", "127.0.0.1", True),
    ],
)
def test_a_port_at_another_address_is_not_in_the_way(theirs: str, wanted: str, barred: bool) -> None:
    process, port = listener(theirs)
    try:
        assert len(ports.listeners([port], {port: wanted})) == barred
        if barred:
            with pytest.raises(TryAgainError):
                ports.wait_until_free("job", [port], 0.1, hosts={port: wanted})
        else:
            ports.wait_until_free("job", [port], 0.1, hosts={port: wanted})
            socket.create_server((wanted, port)).close()  # the kernel agrees
    finally:
        end(process)


def test_a_stop_does_not_wait_behind_a_start_that_waits_for_a_port(
    attempt: Attempt, stranger: tuple[subprocess.Popen[str], int]
) -> None:
    process, port = stranger
    unwanted = threading.Event()
    timer = threading.Timer(0.3, unwanted.set)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(TryAgainError, match="job was to be stopped again while it waited for port"):
        launch(attempt.component("sleep()", ports=[port]), attempt.folder, "fork", attempt.run_id, unwanted)
    assert time.monotonic() - begun < ports.PATIENCE_S / 2
    timer.join()
    assert process.poll() is None
    assert attempt.look().state == "absent"


def test_an_ordered_stop_ends_the_wait_of_the_start_before_it(
    tmp_path: Path, stranger: tuple[subprocess.Popen[str], int]
) -> None:
    """The same by the daemon's own hands: both orders share a lane."""
    process, port = stranger
    driver = Driver(tmp_path / "pod", "run")
    try:
        job = PlainJob(driver.run_file, dict(os.environ))
        real = job.components
        job.components = lambda request: [replace(one, ports=[port]) for one in real(request)]  # type: ignore[method-assign]
        driver.effects.run.job = job
        driver.effects.do(a.Start(1, None))
        wait_for(lambda: (driver.run_file.state_dir / "attempts" / "0001").exists(), "the start is under way", 30)
        begun = time.monotonic()
        driver.effects.do(a.Stop(1, "a person says so", 10.0))
        failed = wait_for(lambda: driver.told(1), "the start is given up", 30)
        assert time.monotonic() - begun < ports.PATIENCE_S - 3
        assert isinstance(failed, f.StartFailed) and "was to be stopped again" in failed.reason
        wait_for(lambda: any(isinstance(one, f.AttemptStopped) for one in driver.facts), "it is stopped", 30)
        assert process.poll() is None
    finally:
        driver.close()


def test_a_holder_that_cannot_be_looked_into_is_told_by_its_user() -> None:
    told = ports.describe_listener(ports.Listener(8000, 4711, 0))
    assert told == "port 8000 is held by a process of user root that cannot be seen from here"


# ---------------------------------------------------------------- GPUs


def test_memory_that_a_stranger_holds_is_explained_and_the_stranger_lives(attempt: Attempt, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(60)", "--their-job"]
    process = subprocess.Popen(argv)
    try:
        attempt.start("tell('up'); sleep()")
        job = attempt.told("up")

        def driver() -> list[int]:
            return [job[0], process.pid, 4_000_000]  # ours, theirs, and a number of the machine's that nobody has here

        report = stop_attempt(attempt.folder, [], attempt.run_id, BLUNT, 5.0, lambda: False, 0.1, gpu_pids=driver)
        assert report.gpu_free is False
        (told,) = report.gpu_holders
        assert told.startswith(f"pid {process.pid} of user ")
        assert "--their-job" in told
        assert process.poll() is None
        assert not survivors.alive(job)
    finally:
        process.kill()
        process.wait()


def test_the_drivers_list_alone_is_no_reason_to_name_or_to_end_anybody(tmp_path: Path) -> None:
    """In a container the list may be in the machine's numbers: here they are some innocent's."""
    (tmp_path / "nvidiactl").touch()
    innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        wait_for(lambda: strangers.on_the_gpus([innocent.pid], []), "it has begun")
        assert strangers.on_the_gpus([innocent.pid], [], driver=tmp_path / "nvidiactl") == ()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_nobody_is_named_where_the_memory_is_back(attempt: Attempt) -> None:
    attempt.start("tell('up'); sleep()")
    attempt.told("up")

    def asked() -> list[int]:
        raise AssertionError("nobody has to ask")

    report = stop_attempt(attempt.folder, [], attempt.run_id, BLUNT, 5.0, lambda: True, 0.1, gpu_pids=asked)
    assert (report.gpu_free, report.gpu_holders) == (True, ())


# ---------------------------------------------------------------- shared memory of other containers


def test_shared_memory_of_the_whole_machine_is_not_judged_from_inside_a_container(tmp_path: Path) -> None:
    def namespaces(ipc: str, pid: str) -> Path:
        folder = tmp_path / f"{ipc}{pid}"
        folder.mkdir()
        (folder / "ipc").symlink_to(f"ipc:[{ipc}]")
        (folder / "pid").symlink_to(f"pid:[{pid}]")
        return folder

    first = segments.FIRST_IPC[5:-1], segments.FIRST_PID[5:-1]
    assert segments.shared_with_unseen(namespaces(*first)) is False  # the machine itself: everything is seen
    assert segments.shared_with_unseen(namespaces(first[0], "4026532201")) is True  # --ipc=host
    assert segments.shared_with_unseen(namespaces("4026532200", "4026532201")) is False
    assert segments.shared_with_unseen(tmp_path / "absent") is False
