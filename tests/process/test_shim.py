"""The shim: the job outlives whoever started it, gets exactly what was asked for, and its end is never lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.base import proc_stat
from supervisor.base.errors import ConfigError, SupervisorError, TryAgainError
from supervisor.base.secrets import mask_texts
from supervisor.process import launch as launching
from supervisor.process import shim, shim_records, survivors
from supervisor.process.attempts import describe_full_disk
from supervisor.process.launch import ShimState, launch, look_at_component
from tests.process.conftest import Attempt, gone, wait_for
from tests.sensors.support import no_descriptor_left


def test_the_job_gets_exactly_its_environment_folder_and_output_file(attempt: Attempt) -> None:
    attempt.start(
        """
        import json
        print(json.dumps({"env": dict(os.environ), "cwd": os.getcwd(), "session": os.getsid(0) == os.getpid(),
            "stdin": os.fstat(0).st_rdev == os.stat("/dev/null").st_rdev, "fds": os.listdir("/proc/self/fd"),
            "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler}), flush=True)
        print("to stderr", file=sys.stderr)
        sys.exit(3)
        """
    )
    state = attempt.ended()
    assert (state.state, state.exit_code, state.signal) == ("exited", 3, None)
    first, second = (attempt.folder / "job.log").read_text().splitlines()
    seen = json.loads(first)
    assert second == "to stderr"
    env = {name: value for name, value in seen["env"].items() if name != "LC_CTYPE"}  # Python sets that one itself
    assert env == {
        "PATH": os.environ["PATH"],
        "COLOUR": "blue",
        "RL_SUPERVISOR_RUN": attempt.run_id,
        "RL_SUPERVISOR_ATTEMPT": str(attempt.folder),
    }
    assert seen["cwd"] == str(attempt.folder)
    assert seen["session"] and seen["stdin"] and seen["sigint"]
    assert len(seen["fds"]) == 4  # 0, 1, 2 and the listing itself: nothing of the daemon or the shim leaks in


def test_a_job_started_from_a_shell_that_ignores_interrupts_can_still_be_interrupted(attempt: Attempt) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        launched = attempt.start("tell('up'); sleep()")
    finally:
        signal.signal(signal.SIGINT, before)
    attempt.told("up")
    os.kill(launched.child_pid, signal.SIGINT)
    state = attempt.ended()
    assert state.signal == signal.SIGINT


def test_the_daemon_is_killed_and_the_job_lives_on_and_its_exit_status_is_still_recorded(attempt: Attempt) -> None:
    component = attempt.component(
        """
        tell("up")
        while not os.path.exists("finish"):
            time.sleep(0.01)
        sys.exit(7)
        """
    )
    source = (
        "import sys, time; from pathlib import Path; from supervisor.process.launch import launch\n"
        "from supervisor.jobs.base import Component\n"
        f"launch(Component('job', {component.argv!r}, Path({str(component.cwd)!r}), {component.env!r}),"
        f" Path({str(attempt.folder)!r}), 'fork', {attempt.run_id!r})\n"
        "print('up', flush=True); time.sleep(60)"
    )
    daemon = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, start_new_session=True)
    assert daemon.stdout is not None
    try:
        assert daemon.stdout.readline() == b"up\n"
        job = attempt.told("up")
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
        daemon.stdout.close()

    state = attempt.look()
    assert (state.state, state.pid, state.start_ticks) == ("running", *job)
    assert survivors.alive(job)
    (attempt.folder / "finish").touch()
    assert attempt.ended().exit_code == 7
    wait_for(lambda: not attempt.alive(), "the shim ends with its job")


def test_a_signal_that_ends_the_job_is_recorded_as_a_signal(attempt: Attempt) -> None:
    launched = attempt.start("tell('up'); sleep()")
    attempt.told("up")
    os.kill(launched.child_pid, signal.SIGKILL)
    assert attempt.ended().signal == signal.SIGKILL
    state = wait_for(lambda: s if (s := attempt.look()).ended_wall else None, "the record is written")
    assert (state.exit_code, state.signal) == (None, signal.SIGKILL)
    assert state.ended_wall is not None and state.started_wall is not None
    assert state.ended_wall >= state.started_wall


def test_terminal_signals_do_not_end_the_shim_and_sigterm_reaches_the_job(attempt: Attempt) -> None:
    launched = attempt.start(
        """
        signal.signal(signal.SIGTERM, lambda *_: (tell("asked"), sys.exit(5)))
        tell("up")
        sleep()
        """
    )
    attempt.told("up")
    for signum in (signal.SIGHUP, signal.SIGQUIT):
        os.kill(launched.shim_pid, signum)
    assert attempt.look().state == "running"
    os.kill(launched.shim_pid, signal.SIGTERM)
    assert attempt.ended().exit_code == 5
    assert (attempt.folder / "asked").exists()


def test_a_shim_stays_for_orphans_and_takes_them_along_when_it_is_told_to_end(attempt: Attempt) -> None:
    launched = attempt.start(
        """
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            signal.signal(signal.SIGTERM, lambda *_: (tell("orphan asked"), os._exit(0)))
            tell("orphan")
            sleep()
        while not os.path.exists("orphan"):
            time.sleep(0.01)
        """
    )
    orphan = attempt.told("orphan")
    state = attempt.ended()
    assert state.exit_code == 0
    wait_for(lambda: survivors.look_at(orphan[0]).ppid == launched.shim_pid, "the shim adopts the orphan")  # type: ignore[union-attr]
    assert survivors.look_at(launched.shim_pid)
    os.kill(launched.shim_pid, signal.SIGTERM)
    wait_for(lambda: not attempt.alive(), "the shim and the orphan end")
    assert (attempt.folder / "orphan asked").exists()


def test_zombies_are_collected_while_the_job_runs(attempt: Attempt) -> None:
    launched = attempt.start(
        """
        for n in range(20):
            if os.fork() == 0:
                if os.fork():
                    os._exit(0)      # its child is an orphan
                os._exit(0)          # and ends at once
            os.wait()
        tell("up")
        sleep()
        """
    )
    attempt.told("up")
    children = lambda: [p for p in survivors.process_table().values() if p.ppid == launched.shim_pid]  # noqa: E731
    wait_for(lambda: [p.pid for p in children()] == [launched.child_pid], "only the job is left under the shim")


def test_open_files_are_raised_and_a_limit_that_cannot_be_is_told(attempt: Attempt) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    script = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)"
    quiet = attempt.start(script, "quiet", nofile=hard)
    assert quiet.notes == ()
    attempt.ended("quiet")
    assert int((attempt.folder / "quiet.log").read_text()) == hard

    asked = 1 << 30  # above what any kernel allows (fs.nr_open), also for root
    loud = attempt.start(script, "loud", nofile=asked)
    attempt.ended("loud")
    got = int((attempt.folder / "loud.log").read_text())
    assert loud.notes[0].startswith(f"asked for {asked} open files, but this machine's hard limit is {got} ")
    assert "--ulimit nofile=" in loud.notes[0]
    assert attempt.look("loud").notes == loud.notes


def test_no_secret_is_left_on_disk_or_on_a_command_line(attempt: Attempt) -> None:
    env = {"PATH": os.environ["PATH"], "WANDB_API_KEY": "hunter2-hunter2"}
    launched = attempt.start("tell('up'); sleep()", env=env)
    attempt.told("up")
    secret = b"hunter2"
    for path in attempt.folder.iterdir():
        assert secret not in path.read_bytes(), path
    assert not [path for path in Path("/dev/shm").glob("rl-supervisor-*") if secret in path.read_bytes()]
    for place in ("cmdline", "environ"):
        assert secret not in Path(f"/proc/{launched.shim_pid}/{place}").read_bytes()
    assert secret in Path(f"/proc/{launched.child_pid}/environ").read_bytes()


def test_words_that_look_like_secrets_are_not_recorded() -> None:
    shown = mask_texts(["rl", "@", "a.toml", "--wandb.api-key", "abc", "--hub-token=xyz", "--ckpt.interval", "10"])
    assert shown == ["rl", "@", "a.toml", "--wandb.api-key", "***", "--hub-token=***", "--ckpt.interval", "10"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"argv": ["no-such-launcher", "x"]}, "job cannot start: no no-such-launcher in the job's PATH"),
        ({"argv": ["/nowhere/rl"]}, "job cannot start: /nowhere/rl does not exist"),
        ({"argv": ["./notes.txt"]}, "may not be executed by user"),
        ({"argv": []}, "the command of job is empty"),
        ({"cwd": Path("/no/such/folder")}, "job should run in /no/such/folder, which is not a folder: set job.dir"),
        ({"env": {"A": "b\0c"}}, "holds a NUL character"),
        ({"name": "../x"}, "cannot name a component"),
    ],
)
def test_a_start_that_must_fail_says_why_before_anything_runs(
    attempt: Attempt, changes: dict[str, object], sentence: str
) -> None:
    (attempt.folder / "notes.txt").write_text("no program")
    component = attempt.component("")
    given = {"name": component.name, "argv": component.argv, "cwd": component.cwd, "env": component.env, **changes}
    with pytest.raises(ConfigError, match=sentence):
        launch(type(component)(**given), attempt.folder, "fork", attempt.run_id)  # type: ignore[arg-type]
    assert not list(attempt.folder.glob("*.json"))
    assert attempt.look().state == "absent"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("#!/no/such/python\n", "does not exist, or its #! line names nothing"),
        ("neither a program nor a script", "is no program"),
    ],
)
def test_a_program_that_only_the_kernel_can_refuse_is_a_configuration_error(
    attempt: Attempt, content: str, sentence: str
) -> None:
    program = attempt.folder / "rl"
    program.write_text(content)
    program.chmod(0o755)
    with pytest.raises(ConfigError, match=sentence):
        attempt.start("", argv=[str(program)])
    assert attempt.look().exit_code == 127
    assert not survivors.Belongings(attempt.folder, [], attempt.run_id).jobs()
    assert not list(attempt.folder.glob("*.spec*"))


def test_the_same_component_is_not_started_twice(attempt: Attempt) -> None:
    launched = attempt.start("tell('up'); sleep()")
    with pytest.raises(SupervisorError, match=f"running already \\(pid {launched.child_pid}\\): stop it before"):
        attempt.start("tell('up'); sleep()")
    assert attempt.look().pid == launched.child_pid


def test_a_component_whose_orphans_live_is_not_started_again(attempt: Attempt) -> None:
    attempt.start("if os.fork() == 0: tell('orphan'); sleep()")
    orphan = attempt.told("orphan")
    attempt.ended()
    with pytest.raises(SupervisorError, match=rf"ended but left .* \(pid {orphan[0]}\) behind: stop the attempt"):
        attempt.start("pass")
    assert attempt.look().exit_code == 0


def test_the_exit_status_is_not_lost_when_the_disk_takes_no_record(attempt: Attempt) -> None:
    """A folder in place of the record makes every write fail, for root too, as a full disk would."""
    attempt.start("tell('up')\nwhile not os.path.exists('finish'): time.sleep(0.01)\nsys.exit(9)")
    attempt.told("up")
    blocked = attempt.folder / "job.exit.json"
    blocked.mkdir()
    (attempt.folder / "finish").touch()
    state = attempt.ended()
    assert (state.state, state.exit_code) == ("exited", 9)
    assert state.reason == "the exit record is not written yet (is the disk full or slow?)"
    blocked.rmdir()
    wait_for(lambda: blocked.is_file(), "the shim writes it as soon as it can")
    assert attempt.look().exit_code == 9
    assert attempt.look().reason == ""
    wait_for(lambda: not attempt.alive(), "the shim ends")


def test_a_disk_that_filled_up_after_the_start_still_takes_the_exit_record(tmp_path: Path) -> None:
    """The reserved blocks: on a file system without a free block, the record is written and renamed."""
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("needs a mount of its own")
    try:
        reserved = shim.reserve(str(mount / "job.exit.json.reserved"))
        with pytest.raises(OSError, match="No space left"), (mount / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        record = mount / "job.exit.json"
        with pytest.raises(OSError, match="No space left"):
            shim_records.write_atomically(str(record), {"exit_code": 9})
        shim_records.write_atomically(str(record), {"exit_code": 9}, reserved=reserved)
        assert json.loads(record.read_text()) == {"exit_code": 9}
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_job_whose_record_cannot_be_written_is_not_started(attempt: Attempt) -> None:
    """By it the job is found again: without it nobody would see how it ends."""
    attempt.folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(attempt.folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("needs a mount of its own")
    try:
        component = attempt.component("tell('up'); sleep()")
        with pytest.raises(OSError, match="No space left"), (attempt.folder / "x").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        with pytest.raises(TryAgainError, match=r"job\.shim\.json cannot be written \(No space left") as caught:
            launch(component, attempt.folder, "fork", attempt.run_id)
        assert describe_full_disk(caught.value, attempt.folder)
        assert not attempt.alive()
        assert not (attempt.folder / "up").exists()
    finally:
        subprocess.run(["umount", "-l", str(attempt.folder)], check=True)  # the shim may be ending


def test_a_shim_that_is_silent_is_tried_again(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(launching, "start_forked", lambda *words: None)
    with pytest.raises(TryAgainError, match=r"gave no answer within 0 s .*; nothing of the job was left running"):
        attempt.start("tell('up'); sleep()")


def test_a_shim_whose_file_is_just_being_replaced_is_tried_again_and_says_why(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It speaks of this moment, and not against the pod: nothing is sent elsewhere for it."""
    monkeypatch.setattr(launching, "SHIM", attempt.folder / "shim.py")
    with pytest.raises(TryAgainError, match=r"the shim of job failed \(.*No such file or directory\); nothing of the"):
        attempt.start("tell('up'); sleep()")


# ---------------------------------------------------------------- identity


def change_record(attempt: Attempt, **values: object) -> None:
    path = attempt.folder / "job.shim.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_job_whose_shim_was_killed_runs_until_it_ends_itself(attempt: Attempt) -> None:
    launched = attempt.start("tell('up'); sleep()")
    job = attempt.told("up")
    os.kill(launched.shim_pid, signal.SIGKILL)
    state = wait_for(lambda: s if (s := attempt.look()).reason else None, "the shim ends")
    assert (state.state, state.pid, state.start_ticks, state.shim_pid) == ("running", *job, job[0])
    assert state.reason == f"the shim of job (pid {launched.shim_pid}) is gone: its exit status will never be known"
    os.kill(job[0], signal.SIGKILL)
    wait_for(lambda: gone(*job), "the job ends")
    assert (attempt.look().state, attempt.look().pid, attempt.look().reason) == ("lost", None, state.reason)


def test_a_recycled_pid_is_never_believed(attempt: Attempt) -> None:
    launched = attempt.start("tell('up'); sleep()")
    attempt.told("up")
    shim_ticks = json.loads((attempt.folder / "job.shim.json").read_text())["shim_start_ticks"]
    change_record(attempt, shim_start_ticks=shim_ticks - 100, child_start_ticks=launched.child_start_ticks - 100)
    state = attempt.look()
    assert (state.state, state.pid) == ("lost", None)


def test_a_reboot_makes_every_pid_of_the_record_someone_elses(attempt: Attempt) -> None:
    attempt.start("tell('up'); sleep()")
    change_record(attempt, boot_id="00000000-0000-0000-0000-000000000000")
    state = attempt.look()
    assert (state.state, state.pid) == ("lost", None)
    assert state.reason == "the machine was rebooted since job was started"


def test_a_damaged_record_is_a_sentence_and_no_crash(attempt: Attempt) -> None:
    attempt.start("tell('up'); sleep()")
    (attempt.folder / "job.shim.json").write_text('{"shim_pid": "x"}')
    state = attempt.look()
    assert state.state == "lost"
    assert "is not a record of a shim" in state.reason


def test_a_record_that_cannot_be_read_proves_no_death_and_an_end_that_was_written_down_does(attempt: Attempt) -> None:
    attempt.start("tell('up'); sleep()")
    job = attempt.told("up")
    record, kept = attempt.folder / "job.shim.json", attempt.folder / "kept"
    record.rename(kept)
    record.mkdir()  # as good as a stale handle of NFS: also root cannot read it
    unreadable = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(record))
    assert attempt.look() == ShimState("unknown", reason=f"what became of job cannot be seen: {unreadable}")
    os.kill(job[0], signal.SIGKILL)
    assert wait_for(lambda: s if (s := attempt.look()).state != "unknown" else None, "its end").signal == signal.SIGKILL
    record.rmdir()
    kept.rename(record)
    assert attempt.look().signal == signal.SIGKILL


def test_a_daemon_without_a_free_descriptor_takes_no_component_for_dead(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt.start("tell('up'); sleep()")
    attempt.told("up")
    with no_descriptor_left():
        assert attempt.look().state == "unknown"
    assert attempt.look().state == "running"
    monkeypatch.setattr(proc_stat, "boot_id", lambda: "")
    assert attempt.look().state == "running", "a name of this boot that cannot be read is no reboot"


def test_an_exit_record_of_another_start_is_not_taken_for_this_one(attempt: Attempt) -> None:
    attempt.start("tell('up'); sleep()")
    (attempt.folder / "job.exit.json").write_text('{"exit_code": 0, "signal": null, "wall": 1.0, "child_pid": 1}')
    assert look_at_component(attempt.folder, "job").state == "running"


def test_a_link_in_the_place_of_a_record_leads_nowhere(tmp_path: Path) -> None:
    """The attempt's folder is the job's to write in, and the job runs code that models wrote."""
    victim = tmp_path / "authorized_keys"
    victim.write_text("a person's key")
    record = tmp_path / "job.exit.json"
    for planted, write in (
        (f"{record}.tmp", lambda: shim_records.write_atomically(str(record), {"exit_code": 0})),
        (f"{record}.reserved", lambda: shim.reserve(f"{record}.reserved")),
        (f"{record}.reserved", lambda: shim_records.write_atomically(str(record), {}, reserved=f"{record}.reserved")),
    ):
        Path(planted).unlink(missing_ok=True)
        Path(planted).symlink_to(victim)
        with pytest.raises(OSError, match="symbolic link"):
            write()
        assert victim.read_text() == "a person's key", planted
    assert not record.exists()


def test_a_job_whose_shim_died_before_it_had_written_the_record_never_begins(tmp_path: Path) -> None:
    """No daemon would know of it: the next start would train beside it."""
    begun = tmp_path / "begun"
    words = [sys.executable, "-c", f"open({str(begun)!r}, 'w')"]
    spec = {"name": "job", "argv": words, "cwd": str(tmp_path), "env": {"PATH": os.environ["PATH"]}}
    for word, code in ((b"", 125), (b"!", 0)):
        go_read, go_write = os.pipe()
        output = os.open(tmp_path / "output", os.O_WRONLY | os.O_CREAT)
        child = os.fork()
        if child == 0:
            os.close(go_write)
            shim.become_the_job(spec, output, go_read, output)  # type: ignore[arg-type]
        os.write(go_write, word)
        for fd in (go_read, go_write, output):
            os.close(fd)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
        assert begun.exists() == bool(word)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be protected from the kernel's out-of-memory killer")
def test_a_job_is_not_protected_from_the_kernel_though_its_daemon_is(attempt: Attempt) -> None:
    """Its 60 GB of caches would stay, and the kernel would kill sshd."""
    own = Path("/proc/self/oom_score_adj")
    before = own.read_text()
    try:
        own.write_text("-900")
    except OSError:
        pytest.skip("this container may not protect a process")
    try:
        attempt.start("print(open('/proc/self/oom_score_adj').read())")
    finally:
        own.write_text(before)
    attempt.ended()
    assert int((attempt.folder / "job.log").read_text()) == 0
