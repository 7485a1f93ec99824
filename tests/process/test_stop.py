"""Stopping: the job's own rules, then the whole tree however it hides, and never anything that is not the run's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from supervisor.jobs.base import StopRules
from supervisor.process import own_cgroup, segments, survivors
from supervisor.process import stop as stop_module
from supervisor.process.survivors import Process
from tests.process import zoo
from tests.process.conftest import BLUNT, PATIENT, Attempt, kill, wait_for

HIDE = """
def hide(note):
    # A double fork into a session of its own, deaf to SIGTERM and SIGINT.
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tell(note)
        sleep()
    os.wait()
def wash(note):
    # The same, and with an empty environment: no marker, no session, only descent is left.
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c",
            "import os, time; f = open('%s.tmp', 'w'); f.write(str(os.getpid())); f.close();"
            "os.rename('%s.tmp', '%s'); time.sleep(60)" % (note, note, note)], {})
    os.wait()
"""


def test_a_polite_job_is_asked_once_and_its_end_is_recorded(attempt: Attempt) -> None:
    attempt.start(
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        tell("up"); sleep()
        """
    )
    attempt.told("up")
    report = attempt.stop()
    assert (report.survivors, report.gpu_free, report.killed) == ((), True, 0)
    assert report.seconds < 5
    assert attempt.look().exit_code == 0
    assert attempt.alive() == []


def test_the_launcher_alone_is_asked_first_and_takes_its_tree_down_in_its_own_order(attempt: Attempt) -> None:
    attempt.start(
        """
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, lambda *_: tell("child was asked too"))
            signal.signal(signal.SIGTERM, lambda *_: (tell("child ended by its launcher"), os._exit(0)))
            tell("child"); sleep()
        def end(*_):
            os.kill(child, signal.SIGTERM); os.wait(); sys.exit(1)
        signal.signal(signal.SIGINT, end)
        tell("up"); sleep()
        """
    )
    attempt.told("up")
    attempt.told("child")
    report = attempt.stop(StopRules(((signal.SIGINT, 10.0), (signal.SIGTERM, 10.0))))
    assert report.killed == 0
    assert (attempt.folder / "child ended by its launcher").exists()
    assert not (attempt.folder / "child was asked too").exists()
    assert attempt.look().exit_code == 1
    assert attempt.alive() == []


def test_orphans_of_a_launcher_that_just_dies_are_asked_themselves(attempt: Attempt) -> None:
    """prime-rl before April 2026: SIGTERM ends the launcher and leaves its children with the GPUs."""
    attempt.start(
        """
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, lambda *_: (tell("freed"), os._exit(0)))
            tell("engine"); sleep()
        tell("up"); sleep()
        """
    )
    attempt.told("up")
    attempt.told("engine")
    report = attempt.stop()
    assert report.killed == 0
    assert (attempt.folder / "freed").exists()
    assert attempt.look().signal == signal.SIGTERM
    assert attempt.alive() == []


def test_a_job_that_ignores_sigterm_double_forks_leaves_its_session_and_clears_its_environment(
    attempt: Attempt,
) -> None:
    attempt.start(
        HIDE
        + """
for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, signal.SIG_IGN)
hide("hidden"); wash("washed"); tell("up"); sleep()
"""
    )
    for note in ("hidden", "washed", "up"):
        attempt.told(note)
    report = attempt.stop(StopRules(((signal.SIGINT, 0.2), (signal.SIGTERM, 0.2))))
    assert report.survivors == ()
    assert report.killed >= 2
    assert attempt.look().signal == signal.SIGKILL
    assert attempt.alive() == []


def test_a_job_that_exited_zero_and_left_orphans_is_cleaned_up(attempt: Attempt) -> None:
    attempt.start(HIDE + "hide('hidden'); wash('washed')")
    attempt.told("hidden")
    attempt.told("washed")
    assert attempt.ended().exit_code == 0
    report = attempt.stop(BLUNT)
    assert (report.survivors, report.killed) == ((), 2)
    assert attempt.look().exit_code == 0
    assert attempt.alive() == []


def test_survivors_of_a_killed_shim_are_found_by_session_and_by_marker(attempt: Attempt) -> None:
    launched = attempt.start(HIDE + "hide('hidden'); tell('up'); sleep()")
    attempt.told("hidden")
    job = attempt.told("up")
    os.kill(launched.shim_pid, signal.SIGKILL)
    wait_for(lambda: attempt.look().reason, "the shim ends")
    assert attempt.look().state == "running"
    kill([job])  # now nobody of the tree above is left: only the marker in the environment tells
    assert [p.pid for p in survivors.Belongings(attempt.folder, [], attempt.run_id).list_living()] == [
        int((attempt.folder / "hidden").read_text())
    ]
    report = attempt.stop(BLUNT)
    assert (report.survivors, report.killed) == ((), 1)
    assert attempt.alive() == []


def test_what_lost_its_shim_and_cleared_its_environment_is_found_when_a_sensor_knew_it(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_cgroup, "make_group", lambda *_: None)  # where it has no group that would tell
    launched = attempt.start(HIDE + "wash('washed'); tell('up'); sleep()")
    washed = attempt.told("washed")
    job = attempt.told("up")
    kill([survivors.look_at(launched.shim_pid).identity, job])  # type: ignore[union-attr]
    attempt.stop(BLUNT, known=[(washed[0], washed[1] - 1)])  # another process that once had this pid
    assert survivors.alive(washed)
    assert attempt.stop(BLUNT, known=[washed]).killed == 1
    assert attempt.alive() == []


def test_a_session_survives_its_shim_and_its_launcher_with_a_cleared_environment(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_cgroup, "make_group", lambda *_: None)
    launched = attempt.start(
        """
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", '''if True:
            import os, time
            if os.fork() == 0:
                with open("child.tmp", "w") as file: file.write(str(os.getpid()))
                os.rename("child.tmp", "child")
            time.sleep(60)'''], {})
        """
    )
    child = attempt.told("child")
    shim = survivors.look_at(launched.shim_pid)
    assert shim
    kill([shim.identity, (launched.child_pid, launched.child_start_ticks)])
    assert attempt.stop(BLUNT).killed == 1
    assert not survivors.alive(child)


def test_what_no_look_ever_catches_ends_with_its_group_where_shim_and_control_group_are_gone(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that forks each millisecond, on a machine so busy that each look comes too late."""
    monkeypatch.setattr(own_cgroup, "make_group", lambda *_: None)
    launched = attempt.start(
        """
        until = time.monotonic() + 60
        os.mkfifo("alive.fifo")
        os.set_inheritable(os.open("alive.fifo", os.O_RDWR), True)
        tell("up")
        while time.monotonic() < until:
            if os.fork():
                os._exit(0)
            time.sleep(0.001)
        """
    )
    wait_for((attempt.folder / "up").exists, "it forks")
    os.kill(launched.shim_pid, signal.SIGKILL)
    wait_for(lambda: (shim := survivors.look_at(launched.shim_pid)) is None or shim.dead, "the shim is gone")
    for module in (survivors, stop_module):
        monkeypatch.setattr(module, "process_table", dict, raising=False)  # shows no process at all
    assert zoo.held(attempt.folder)
    attempt.stop(BLUNT, budget_s=10.0)
    wait_for(lambda: not zoo.held(attempt.folder), "it ends", 5.0)


def test_a_stopped_attempt_can_be_stopped_again(attempt: Attempt) -> None:
    attempt.start("tell('up'); sleep()")
    attempt.told("up")
    assert attempt.stop().survivors == ()
    again = attempt.stop()
    assert (again.survivors, again.killed, again.gpu_free) == ((), 0, True)


def test_a_suspended_job_hears_the_signal(attempt: Attempt) -> None:
    launched = attempt.start("signal.signal(signal.SIGTERM, lambda *_: sys.exit(4)); tell('up'); sleep()")
    attempt.told("up")
    os.kill(launched.child_pid, signal.SIGSTOP)
    wait_for(lambda: survivors.look_at(launched.child_pid).state == "T", "the job is suspended")  # type: ignore[union-attr]
    assert attempt.stop().killed == 0
    assert attempt.look().exit_code == 4


def test_several_components_are_stopped_together(attempt: Attempt) -> None:
    for name in ("trainer", "engine"):
        attempt.start(f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); tell('{name} up'); sleep()", name)
        attempt.told(f"{name} up")
    assert attempt.stop().killed == 0
    assert [attempt.look(name).exit_code for name in ("trainer", "engine")] == [0, 0]
    assert attempt.alive() == []


# ---------------------------------------------------------------- patience


def test_a_second_request_ends_the_patience(attempt: Attempt) -> None:
    attempt.start("signal.signal(signal.SIGTERM, signal.SIG_IGN); tell('up'); sleep()")
    attempt.told("up")
    hurry = threading.Event()
    timer = threading.Timer(0.3, hurry.set)
    timer.start()
    report = attempt.stop(StopRules(((signal.SIGTERM, 100.0),)), budget_s=200.0, hurry=hurry)
    timer.join()
    assert 0.3 <= report.seconds < 10
    assert report.killed == 1
    assert attempt.alive() == []


def test_patience_is_cut_to_the_budget_so_that_there_is_time_left_to_kill(attempt: Attempt) -> None:
    attempt.start("signal.signal(signal.SIGTERM, signal.SIG_IGN); tell('up'); sleep()")
    attempt.told("up")
    report = attempt.stop(StopRules(((signal.SIGTERM, 330.0),)), budget_s=1.5)
    assert 1.0 <= report.seconds < 10
    assert report.killed == 1


@pytest.mark.soak
@pytest.mark.parametrize(("answers", "free"), [([False, None, True], True), ([False, False], False), ([None], None)])
def test_the_gpus_are_waited_for_but_not_for_ever(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, answers: list[bool | None], free: bool | None
) -> None:
    monkeypatch.setattr(stop_module, "GPU_SILENCE_S", 0.2)
    given = iter(answers)

    def look() -> bool | None:
        return next(given, answers[-1])

    report = stop_module.stop_attempt(attempt.folder, [], attempt.run_id, PATIENT, 5.0, look, 0.6)
    assert report.gpu_free is free
    assert report.seconds < 5


# ---------------------------------------------------------------- nothing foreign


def test_foreign_processes_with_the_same_command_line_and_another_attempt_are_left_alone(
    attempt: Attempt, tmp_path: Path
) -> None:
    attempt.start("tell('up' + str(os.getpid())); sleep()")
    argv = [sys.executable, "-I", "-S", str(attempt.folder / "job.py")]
    environment = {"RL_SUPERVISOR_RUN": attempt.run_id, "RL_SUPERVISOR_ATTEMPT": str(tmp_path / "attempt-2")}
    foreign = [
        subprocess.Popen(argv, cwd=attempt.folder),
        subprocess.Popen(argv, cwd=attempt.folder, env=environment, start_new_session=True),
    ]
    try:
        for process in foreign:
            attempt.told(f"up{process.pid}")
        attempt.mine.clear()
        assert attempt.stop().survivors == ()
        assert [process.poll() for process in foreign] == [None, None]
    finally:
        for process in foreign:
            process.kill()
            process.wait()


def test_the_daemon_and_its_transfers_are_never_counted(attempt: Attempt) -> None:
    """Even a daemon that was itself started with the marker, from inside a job, does not stop itself."""
    source = (
        "import os, signal, sys; from pathlib import Path; from supervisor.process.survivors import Belongings\n"
        f"print(len(Belongings(Path({str(attempt.folder)!r}), [], {attempt.run_id!r}).list_living()))"
    )
    env = {
        "PATH": os.environ["PATH"],
        "RL_SUPERVISOR_RUN": attempt.run_id,
        "RL_SUPERVISOR_ATTEMPT": str(attempt.folder),
    }
    done = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_no_pid_of_an_altered_record_is_signalled(attempt: Attempt) -> None:
    """A record whose pids were given to others since: a process, and the leader of a session with members."""
    attempt.start("pass")
    attempt.ended()
    wait_for(lambda: not attempt.alive(), "the shim ends")
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        found = survivors.look_at(stranger.pid)
        assert found
        path = attempt.folder / "job.shim.json"
        pids = {"child_pid": stranger.pid, "child_start_ticks": found.start_ticks - 5, "shim_pid": os.getpid()}
        path.write_text(json.dumps({**json.loads(path.read_text()), **pids}))
        report = attempt.stop()
        assert (report.survivors, report.killed) == ((), 0)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_signal_for_a_recycled_pid_is_not_sent() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = survivors.look_at(stranger.pid)
        assert found
        assert survivors.send_signal((stranger.pid, found.start_ticks - 1), signal.SIGKILL) is False
        assert stranger.poll() is None
        assert survivors.send_signal(found.identity, signal.SIGKILL) is True
        assert stranger.wait() == -signal.SIGKILL
        assert survivors.send_signal(found.identity, signal.SIGKILL) is False
    finally:
        stranger.kill()
        stranger.wait()


def test_stragglers_of_an_attempt_are_found_by_a_new_daemon(attempt: Attempt) -> None:
    attempt.start(HIDE + "hide('hidden'); tell('up'); sleep()")
    attempt.told("hidden")
    attempt.told("up")
    source = (
        "from pathlib import Path; from supervisor.process.stop import stop_attempt\n"
        "from supervisor.jobs.base import StopRules\n"
        f"print(stop_attempt(Path({str(attempt.folder)!r}), ['job'], {attempt.run_id!r}, StopRules(((15, 0.2),)),"
        " 30.0, lambda: True, 1.0))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert "survivors=()" in done.stdout
    assert attempt.alive() == []


# ---------------------------------------------------------------- what cannot be killed


def test_a_process_in_the_kernels_hands_is_named_with_what_to_do(attempt: Attempt) -> None:
    stuck = Process(pid=os.getpid(), start_ticks=1, ppid=1, session=1, state="D", threads=1, name="VLLM::EngineCor")
    sentence = survivors.describe_survivor(stuck)
    assert sentence.startswith(f"VLLM::EngineCor (pid {os.getpid()}, state D")
    assert sentence.endswith(
        "cannot be killed: a process that hangs in a driver goes away only with a restart of the machine"
    )


def test_a_zombie_is_dead_but_not_while_one_of_its_threads_lives(attempt: Attempt) -> None:
    """The main thread ended, another goes on: proc shows Z, and it still holds everything it held."""
    launched = attempt.start(
        """
        import ctypes, threading
        threading.Thread(target=sleep).start()
        tell("up")
        ctypes.CDLL(None).pthread_exit(None)
        """
    )
    attempt.told("up")
    found = wait_for(
        lambda: p if (p := survivors.look_at(launched.child_pid)) and p.state == "Z" else None, "the main thread ends"
    )
    assert (found.threads, found.dead) == (2, False)
    assert attempt.look().state == "running"
    assert attempt.stop(BLUNT).killed == 1
    assert attempt.alive() == []


# ---------------------------------------------------------------- shared memory


def test_a_segment_that_is_nobodys_for_a_moment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """On its way from a neighbour's process to another, it is closed by the first and not yet opened by the next."""
    passed = Path(f"/dev/shm/psm_passed{os.getpid()}")
    queued = Path(f"/dev/shm/torch_{os.getpid()}_4711_0")  # in a queue: its maker lives, and nobody has it open
    left = Path(f"/dev/shm/torch_{2**22 + 1}_4711_{os.getpid()}")  # above any pid: its maker is gone
    began = time.time() - 1
    for path in (passed, queued, left):
        path.write_bytes(b"made since the attempt began")
    opened: list[int] = []
    timer = threading.Timer(0.3, lambda: opened.append(os.open(passed, os.O_RDONLY)))
    monkeypatch.setattr(segments, "SECOND_LOOK_S", 3 * segments.SECOND_LOOK_S)
    timer.start()
    try:
        removed = segments.remove_stale(began, frozenset())
        timer.join()
        assert passed.exists() and queued.exists()
        assert not left.exists() and not {str(passed), str(queued)} & set(removed)
    finally:
        timer.join()
        for path in (passed, queued, left):
            path.unlink(missing_ok=True)
        for one in opened:
            os.close(one)


def test_who_cannot_be_looked_into_for_a_moment_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that an init with more rights has just forked; before, such a moment kept the next engine's hang."""
    stale = Path(f"/dev/shm/vllm-stale-{os.getpid()}")
    stale.write_bytes(b"its engine is dead")
    looks = iter([False, True])  # the first is for segments of our own
    real = segments.held_by
    monkeypatch.setattr(
        segments,
        "held_by",
        lambda them, *patience_s: segments.Held(real(them, *patience_s).files, next(looks, False)),
    )
    try:
        segments.remove_stale(time.time() - 60, frozenset())
        assert not stale.exists()
    finally:
        stale.unlink(missing_ok=True)


@pytest.mark.soak
@pytest.mark.parametrize("told", ["brief", "hurry", "blind"])
def test_what_only_the_next_start_would_need_costs_a_stop_in_a_hurry_no_look(
    told: str, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three seconds for whom nobody can look into, twice, were more than a pod has that is killed after five."""
    theirs = Path(f"/dev/shm/psm_theirs-{told}-{os.getpid()}")
    hurry = threading.Event()
    real, blind_looks = segments.held_by, 0

    def blind(them: Iterable[Process], *patience_s: float) -> segments.Held:
        nonlocal blind_looks
        blind_looks += 1
        return segments.Held(real(them, *patience_s).files, blind=True)

    monkeypatch.setattr(segments, "BLIND_PATIENCE_S", 0.0)
    attempt.start("tell('up'); sleep()")
    attempt.told("up")
    theirs.write_bytes(b"made since the attempt began, by whom nobody knows")
    monkeypatch.setattr(segments, "held_by", blind)
    if told == "hurry":
        hurry.set()
    try:
        report = attempt.stop(BLUNT, hurry=hurry, brief=told == "brief")
        assert theirs.exists() and not report.survivors and not report.segments
        assert blind_looks == (3 if told == "blind" else 2), "of the job, for its own segments; else one for others'"
    finally:
        theirs.unlink(missing_ok=True)


def test_processes_that_hang_in_a_driver_are_waited_for_once_and_not_each(monkeypatch: pytest.MonkeyPatch) -> None:
    me = survivors.look_at(os.getpid())
    assert me is not None
    hanging = replace(me, state="D")
    monkeypatch.setattr(segments, "look_at", lambda _: hanging)
    began = time.monotonic()
    assert segments.held_by([hanging] * 20, 0.2).blind
    assert time.monotonic() - began < 2.0


def test_an_attempt_that_ended_long_ago_makes_nothing_seem_its_own(attempt: Attempt, tmp_path: Path) -> None:
    """A start looks for all earlier attempts; a neighbour's segment is younger than the first of them, and not ours."""
    first = tmp_path / "attempt-0"
    first.mkdir()
    attempt.start("tell('up'); sleep()")
    attempt.told("up")
    attempt.stop(BLUNT)
    record = json.loads((attempt.folder / "job.shim.json").read_text())
    (first / "job.shim.json").write_text(json.dumps({**record, "started_wall": time.time() - 9000}))
    theirs = Path(f"/dev/shm/psm_theirs{os.getpid()}")
    theirs.write_bytes(b"a neighbour's, closed at this moment")
    an_hour_ago = time.time() - 3600
    os.utime(theirs, (an_hour_ago, an_hour_ago))
    try:
        report = attempt.stop(BLUNT, also=[first])
        assert theirs.exists() and str(theirs) not in report.segments
    finally:
        theirs.unlink(missing_ok=True)


def test_segments_of_the_attempt_go_and_those_of_others_stay(attempt: Attempt) -> None:
    made = """
        from multiprocessing import shared_memory, resource_tracker
        resource_tracker.register = lambda *_: None      # as after kill -9: nobody tidies up
        mine = shared_memory.SharedMemory(create=True, size=4096)
        tell("segment " + mine.name); tell("up"); sleep()
    """
    before = Path(f"/dev/shm/psm_before{os.getpid()}")
    before.write_bytes(b"older than the attempt")
    old = time.time() - 1000
    os.utime(before, (old, old))
    abandoned = Path(f"/dev/shm/vllm-abandoned-{os.getpid()}")
    other = Path(f"/dev/shm/something-else-{os.getpid()}")
    held = shared_memory.SharedMemory(create=True, size=4096)
    try:
        attempt.start(made)
        attempt.told("up")
        abandoned.write_bytes(b"made since the attempt began, and held by nobody")
        other.write_bytes(b"no engine names its files so")
        (note,) = attempt.folder.glob("segment psm_*")
        segment = Path("/dev/shm") / note.name.removeprefix("segment ")
        # As old as that, it is known as ours by its holder alone, and by no stop that another test makes meanwhile.
        os.utime(segment, (old, old))
        report = attempt.stop(BLUNT)
        assert str(segment) in report.segments
        assert not segment.exists()
        assert not abandoned.exists()  # by this stop, or by one that another test made at the same time
        assert before.exists() and other.exists()
        assert Path(f"/dev/shm/{held.name}").exists()
    finally:
        for path in (before, other, abandoned):
            path.unlink(missing_ok=True)
        held.close()
        held.unlink()
