"""The control group of a job's own: it reaches what forks faster than anybody looks, and nobody else's group is hit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.base import proc_stat
from supervisor.process import own_cgroup, stop, survivors, transient
from tests.process.conftest import BLUNT, LAST_NUMBER, Attempt, kill, next_number, wait_for

FORKS_AND_LEAVES = """
# Each generation forks the next one and ends: whoever lists processes names one that is gone already.
tell("up")
until = time.monotonic() + 300  # where its test was killed
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    {each}
"""


@pytest.fixture
def grouped(attempt: Attempt) -> Attempt:
    folder = own_cgroup.make_group("probe", attempt.folder, "probe")
    if folder is None:
        pytest.skip("this user may make no control groups (version 2, Linux 5.14) here")
    own_cgroup.remove_group(folder)
    assert not folder.exists()
    return attempt


def group_of(attempt: Attempt, name: str = "job") -> Path:
    record = survivors.read_record(attempt.folder, name)
    assert record and record.cgroup
    return Path(record.cgroup)


def members(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "cgroup.procs").read_text().split()]


def nobody_in(folder: Path) -> bool:
    return not folder.exists() or not members(folder)


def test_a_job_has_a_group_of_its_own_without_the_shim_and_the_group_goes_with_it(grouped: Attempt) -> None:
    launched = grouped.start("tell('up'); sleep()")
    job = grouped.told("up")
    folder = group_of(grouped)
    assert members(folder) == [job[0]]
    assert own_cgroup.folder_of(launched.shim_pid) == own_cgroup.folder_of("self")
    assert grouped.stop(BLUNT).killed == 1
    assert not folder.exists()
    assert grouped.look().signal == signal.SIGKILL  # the shim was outside, and wrote it down


@pytest.mark.parametrize("each", ["pass", "os.setsid()"])
def test_what_forks_faster_than_anybody_looks_is_ended(grouped: Attempt, each: str) -> None:
    grouped.start(FORKS_AND_LEAVES.format(each=each))
    wait_for(lambda: (grouped.folder / "up").exists(), "the forking begins")
    folder = group_of(grouped)
    report = grouped.stop(BLUNT, budget_s=10.0)
    assert report.survivors == ()
    assert report.seconds < 10
    assert nobody_in(folder)
    assert survivors.Belongings(grouped.folder, [], grouped.run_id).list_living() == []


def test_without_a_group_of_its_own_the_process_group_is_ended_as_a_whole(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most containers show their control groups read-only."""
    monkeypatch.setattr(own_cgroup, "make_group", lambda *_: None)
    attempt.start(FORKS_AND_LEAVES.format(each="pass"))
    wait_for(lambda: (attempt.folder / "up").exists(), "the forking begins")
    report = attempt.stop(BLUNT, budget_s=10.0)
    assert report.survivors == ()
    assert survivors.Belongings(attempt.folder, [], attempt.run_id).list_living() == []


def test_who_lost_shim_session_and_environment_is_found_in_the_group(grouped: Attempt) -> None:
    """As a process is that cleared its environment before any sensor saw it, when the shim was killed as well."""
    launched = grouped.start(
        """
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", '''if True:
                import os, time
                with open("washed.tmp", "w") as file: file.write(str(os.getpid()))
                os.rename("washed.tmp", "washed")
                time.sleep(60)'''], {})
        tell("up"); sleep()
        """
    )
    washed, job = grouped.told("washed"), grouped.told("up")
    parent = survivors.look_at(launched.shim_pid)
    assert parent
    kill([parent.identity, job])
    assert survivors.alive(washed)
    report = grouped.stop(BLUNT)
    assert (report.survivors, report.killed) == ((), 1)
    assert grouped.alive() == []


def test_groups_that_the_job_made_below_its_own_are_ended_and_removed(grouped: Attempt) -> None:
    grouped.start("tell('up'); sleep()")
    job = grouped.told("up")
    folder = group_of(grouped)
    (folder / "inner" / "most").mkdir(parents=True)
    (folder / "inner" / "most" / "cgroup.procs").write_text(str(job[0]))
    assert grouped.stop(BLUNT).survivors == ()
    assert not folder.exists()


def test_a_group_that_a_record_names_and_we_did_not_make_is_never_killed(grouped: Attempt) -> None:
    own = own_cgroup.folder_of("self")
    assert own
    foreign = own / f"rl-job-of-somebody-{os.getpid()}"
    foreign.mkdir()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (foreign / "cgroup.procs").write_text(str(stranger.pid))
        grouped.start("tell('up'); sleep()")
        grouped.told("up")
        path = grouped.folder / "job.shim.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "cgroup": str(foreign)}))
        assert grouped.stop(BLUNT).survivors == ()
        assert stranger.poll() is None
        assert foreign.exists()
    finally:
        stranger.kill()
        stranger.wait()
        wait_for(lambda: nobody_in(foreign), "the stranger ends")
        foreign.rmdir()


def test_a_daemon_inside_the_group_does_not_end_itself(grouped: Attempt) -> None:
    folder = own_cgroup.make_group(grouped.run_id, grouped.folder, "inside")
    assert folder
    source = (
        "import os; from pathlib import Path; from supervisor.process import own_cgroup\n"
        f"folder = Path({str(folder)!r}); (folder / 'cgroup.procs').write_text(str(os.getpid()))\n"
        "print(own_cgroup.kill_group(folder))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    own_cgroup.remove_group(folder)


def test_no_group_is_made_where_systemd_divides_them(
    grouped: Attempt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(transient, "BOOTED", tmp_path)
    assert own_cgroup.make_group(grouped.run_id, grouped.folder, "job") is None


def test_a_kernel_without_groups_only_costs_the_group(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_cgroup, "MOUNTS", Path("/proc/self/limits"))
    launched = attempt.start("tell('up'); sleep()")
    attempt.told("up")
    record = survivors.read_record(attempt.folder, "job")
    assert record and record.cgroup is None
    assert not [note for note in launched.notes if "group" in note], "most containers are so: nobody need read of it"
    assert attempt.stop(BLUNT).killed == 1


# ---------------------------------------------------------------- numbers that went to somebody else


LEAVES_A_DAEMON = """
import os, time
os.setsid()
if os.fork():
    os._exit(0)
time.sleep(60)
"""


def daemonize_as(number: int) -> bool:
    """Start a daemon of the usual kind, whose session's leader has this very number and has ended."""
    for _ in range(200):
        with next_number(number):
            pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", LEAVES_A_DAEMON], {})
        if pid != number:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if pid == number:
            return True
    return False


AS_MANY_AS_THERE_CAN_BE = 1 << 22
"""Numbers on Linux, whatever /proc/sys/kernel/pid_max is here."""


@pytest.mark.soak
@pytest.mark.parametrize(
    "change", [{"forks": -AS_MANY_AS_THERE_CAN_BE}, {"init_start_ticks": 1}, {"boot_id": "another"}]
)
def test_a_session_under_a_recycled_number_is_somebody_elses(attempt: Attempt, change: dict[str, object]) -> None:
    """All numbers went round (or the container, or the machine, began anew), and a daemon got the old shim's."""
    if not os.access(LAST_NUMBER, os.W_OK):
        pytest.skip(f"numbers cannot be chosen here (no {LAST_NUMBER} for this user)")
    launched = attempt.start("pass")
    attempt.ended()
    wait_for(lambda: not survivors.look_at(launched.shim_pid), "the shim ends")
    path = attempt.folder / "job.shim.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    if not daemonize_as(launched.shim_pid):
        pytest.skip("this machine gives numbers away too fast for one to be had by choice")
    (daemon,) = [one for one in survivors.process_table().values() if one.session == launched.shim_pid and not one.dead]
    try:
        report = attempt.stop(BLUNT)
        assert (report.survivors, report.killed) == ((), 0)
        assert survivors.alive(daemon.identity)
    finally:
        kill([daemon.identity])


def test_numbers_go_round_only_after_many_forks() -> None:
    now = proc_stat.forks()
    assert now
    assert survivors.may_be_recycled(now) is False
    assert survivors.may_be_recycled(None) is True
    assert survivors.may_be_recycled(now - (1 << 23)) is True
    assert survivors.may_be_recycled(now + 1_000_000) is True  # another machine's count


def test_a_transient_unit_can_be_ended_as_a_whole_shim_and_all(
    grouped: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played without systemd: a group under the unit's name, with the shim in it, as systemd would have made it."""
    monkeypatch.setattr(own_cgroup, "make_group", lambda *_: None)
    own = own_cgroup.folder_of("self")
    assert own
    unit = own / f"rl-job-played-{os.getpid()}.service"
    unit.mkdir()
    try:
        (unit / "cgroup.procs").write_text(str(os.getpid()))
        launched = grouped.start(FORKS_AND_LEAVES.format(each="os.setsid()"))
        (own / "cgroup.procs").write_text(str(os.getpid()))
        wait_for(lambda: (grouped.folder / "up").exists(), "the forking begins")
        path = grouped.folder / "job.shim.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "unit": unit.name}))
        tree = survivors.Belongings(grouped.folder, [], grouped.run_id)
        stop._kill_groups(tree, [])  # what a stop does after a second; no look of it need have seen anybody
        wait_for(lambda: nobody_in(unit), "everybody in the unit ends")
        assert launched.shim_pid in {pid for pid, _ in tree.shims}
        assert not any(map(survivors.alive, tree.shims))
        assert grouped.stop(BLUNT).killed == 0
    finally:
        (own / "cgroup.procs").write_text(str(os.getpid()))
        own_cgroup.kill_group(unit)
        wait_for(lambda: nobody_in(unit), "the unit is empty")
        unit.rmdir()
