"""The unit, the daemon and the job under a real systemd: ready, killed, hung, stopped, rebooted, refused, finished.

By choice, as root: `SYSTEMD_BOX=tests/systemd/machine pytest -n 0 -m optin tests/systemd`.

SYSTEMD_BOX is a program that keeps a systemd of its own in a folder: `create DIR`, `boot DIR HOST:GUEST...`,
`run DIR COMMAND...` and `halt DIR`. SYSTEMD_BOX_DIR names a folder in which it may keep the box for the next time; else
a fresh one is made, which takes one to two minutes.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable

import pytest

from tests.systemd.box import CHECKOUT, PROGRAM, TOOL, UNIT, Box, Run
from tests.units.test_service import EXPOSURE

pytestmark = [
    pytest.mark.optin,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not TOOL, reason="set SYSTEMD_BOX to a program that keeps a systemd in a folder"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a systemd"),
]


def test_a_run_meets_a_silent_vllm_death_finishes_and_its_story_stands_in_the_journal(run: Callable[..., Run]) -> None:
    demo = run("demo", max_steps=30, faults=[{"kind": "engine-exit-0", "at_step": 8}])
    demo.systemctl("start")
    assert (demo.show("Type"), demo.show("ActiveState")) == ("notify", "active")
    pid = demo.until(lambda: demo.status().get("pid"), "the job runs")
    assert f"rl-job-{demo.name}-0001-rl.service" in demo.box.do("cat", f"/proc/{pid}/cgroup")
    assert demo.show("MainPID") not in demo.box.do("systemctl", "status", f"rl-job-{demo.name}-0001-rl.service")
    demo.until(lambda: "of 30" in demo.show("StatusText"), "systemctl status tells the step")
    demo.until(lambda: demo.show("ActiveState") == "inactive", "the run finishes")
    assert (demo.show("Result"), demo.show("ExecMainStatus")) == ("success", "0")
    assert demo.latest() == 30
    assert not demo.show("StatusText") or "\n" not in demo.show("StatusText")
    incident = demo.journal(f"RL_RUN={demo.name}", "RL_INCIDENT=1")
    entries = demo.fields(f"RL_RUN={demo.name}", "RL_INCIDENT=1")
    assert [entry["MESSAGE"] for entry in entries] == incident
    assert {entry["_SYSTEMD_UNIT"] for entry in entries} == {f"{demo.unit}.service"}
    assert all(entry["RL_EVENT"] and entry["SYSLOG_IDENTIFIER"] == "rl-supervisor" for entry in entries)
    assert min(int(entry["PRIORITY"]) for entry in entries) <= 4, "what went wrong is at least a warning"
    assert not any("Published step 30" in line for line in incident), "only the incident's own lines"
    assert not demo.journal(f"RL_RUN={demo.name}", "RL_INCIDENT=2")
    for part in ("vLLM", "The job is stopped", "Attempt 2 is launched, resuming at step 5", "Incident 1 is over"):
        assert any(part in line for line in incident), (part, incident)
    assert demo.said("step 29 of 30")
    assert demo.said("Published step 30")
    published = demo.said("Published step ")[0].partition("Published step ")[2].split()[0].rstrip(":,.")
    assert len(demo.journal(f"RL_RUN={demo.name}", f"RL_STEP={published}")) >= 2, "its line, and its publish"
    assert not demo.said("reception only permitted for main PID"), "a child spoke to systemd in the daemon's place"
    assert demo.ctl("status", demo.name)[0] == 3
    demo.systemctl("start")
    demo.until(lambda: demo.show("ActiveState") == "inactive", "a finished run stays finished")
    assert demo.said("This run is finished")


def test_a_killed_daemon_and_a_hung_one_cost_the_run_nothing(run: Callable[..., Run]) -> None:
    demo = run("adopt")
    demo.systemctl("start")
    demo.until(lambda: demo.step() >= 8, "the run makes steps")
    job, processes = demo.status()["pid"], demo.pids()
    assert str(job) in processes
    for count, (name, result) in enumerate((("KILL", "signal"), ("STOP", "watchdog")), start=1):
        daemon, step = demo.show("MainPID"), demo.step()
        demo.systemctl("kill", f"--signal={name}", "--kill-whom=main")
        demo.until(lambda count=count: len(demo.said("it was not touched")) == count, f"adopted after SIG{name}")
        demo.until(lambda step=step: demo.step() >= step + 20, "steps go on")
        assert demo.show("MainPID") != daemon
        assert demo.said(f"Failed with result '{result}'")
        status = demo.status()
        assert (status["pid"], status["attempt"], status["restarts"], status["incidents"]) == (job, 1, 0, [])
        assert demo.pids() == processes, "no process of the job is gone, and none is new"
    assert demo.show("NRestarts") == "2"


def test_reload_puts_the_installed_program_in_the_daemons_place_or_is_refused(run: Callable[..., Run]) -> None:
    demo = run("reload")
    demo.systemctl("start")
    demo.until(lambda: demo.step() >= 4, "the run makes steps")
    daemon, job = demo.show("MainPID"), demo.status()["pid"]

    def assert_untouched() -> None:
        step = demo.step()
        demo.until(lambda: demo.step() >= step + 5, "steps go on")
        assert (demo.show("MainPID"), demo.show("NRestarts"), demo.show("ActiveState")) == (daemon, "0", "active")
        status = demo.status()
        assert (status["pid"], status["attempt"], status["restarts"], status["incidents"]) == (job, 1, 0, [])

    for count in (1, 2):
        demo.systemctl("reload")
        assert len(demo.said(f"was started anew in its own place (pid {daemon})")) >= count
        assert_untouched()
    assert not demo.said("Failed with result")

    demo.box.do("sed", "-i", "s/^stop_below_mb/stop_belov_mb/", f"/etc/rl-supervisor/{demo.name}.toml")
    assert demo.box.run("systemctl", "reload", demo.unit).returncode == 1
    assert demo.said('"stop_belov_mb"')
    assert_untouched()


def test_stop_start_pause_and_a_reboot(run: Callable[..., Run], box: Box) -> None:
    demo = run("night")
    demo.systemctl("enable", "--now")
    demo.until(lambda: demo.status().get("published_step"), "a step is published")
    assert demo.ctl("status")[0] == 0
    for verb in ("explain", "checkpoints", "version", "events", "tail", "pause", "resume"):
        code, text = demo.ctl(verb)
        assert (code, bool(text.strip())) == (0, True), (verb, text)
    assert demo.ctl("tail", demo.name, "nobody")[0] == 1
    assert demo.ctl("status", "nothing")[0] == 4

    began = time.monotonic()
    demo.systemctl("stop")
    assert time.monotonic() - began < 60
    assert (demo.show("Result"), demo.show("ExecMainStatus")) == ("success", "0")
    assert not box.run("pgrep", "-f", f"/srv/{demo.name}/prime-rl").stdout
    assert not box.do("systemctl", "list-units", "--no-legend", f"rl-job-{demo.name}-*")
    latest = demo.latest()
    assert demo.complete_here() == latest, "the last whole step was published before the daemon went"
    assert demo.ctl("status", demo.name)[0] == 3
    demo.systemctl("start")
    demo.until(
        lambda: demo.said(f"Attempt 2 is launched, resuming at step {latest}:"), "it resumes at the last good step"
    )

    demo.until(lambda: demo.status().get("state") == "running", "it runs again")
    assert demo.ctl("stop")[0] == 0
    demo.until(lambda: demo.status().get("state") == "stopped", "it is stopped")
    assert demo.ctl("status", demo.name)[0] == 3
    box.halt()
    box.boot()
    demo.until(
        lambda: demo.said("Stopped by a person. It stays stopped until you run: supervisorctl start"),
        "it stays stopped",
    )
    assert demo.show("ActiveState") == "active"
    assert (demo.ctl("status", demo.name)[0], demo.status()["attempt"]) == (3, 2)
    assert demo.ctl("start", demo.name)[0] == 0
    demo.until(lambda: demo.status().get("state") == "running", "it goes on")
    demo.until(lambda: demo.latest() > latest, "a further step is published")
    latest = demo.latest()
    box.halt()  # the power fails
    box.boot()
    demo.until(lambda: demo.status().get("attempt") == 4, "after that it is started by itself")
    resumed = demo.until(lambda: demo.said("Attempt 4 is launched, resuming at step "), "it resumes")[0]
    assert int(resumed.partition("resuming at step ")[2].partition(":")[0]) >= latest
    demo.until(lambda: demo.step() > latest, "it makes steps")

    latest = demo.latest()
    box.reboot()
    stopped = "shutdown was asked for by SIGTERM"
    assert len(demo.said(stopped)) == 2, "the job was stopped before the machine went down"
    resumed = demo.until(lambda: demo.said("Attempt 5 is launched, resuming at step "), "it comes back by itself")[0]
    assert int(resumed.partition("resuming at step ")[2].partition(":")[0]) >= latest
    demo.until(lambda: demo.step() > latest, "it makes steps")


def test_a_mistake_in_the_run_file_leaves_the_unit_failed_and_is_not_tried_again(run: Callable[..., Run]) -> None:
    demo = run("wrong")
    demo.box.do("sed", "-i", "s/^stop_below_mb/stop_belov_mb/", f"/etc/rl-supervisor/{demo.name}.toml")
    assert demo.box.run("systemctl", "start", demo.unit).returncode == 1
    demo.until(lambda: demo.show("ActiveState") == "failed", "the unit is failed")
    assert (demo.show("ExecMainStatus"), demo.show("NRestarts")) == ("93", "0")
    assert demo.said('"stop_belov_mb"')
    assert demo.said('"stop_below_mb"') or demo.said("stop_below_mb")


def test_the_check_before_the_first_start_fails_the_unit_until_a_person_overrules(run: Callable[..., Run]) -> None:
    demo = run("checked", step_s=0.2)
    file = f"/etc/rl-supervisor/{demo.name}.toml"
    config = tomllib.loads(demo.box.do("cat", file))["job"]["config"]
    demo.box.do("sed", "-i", "s/^at_start = false/at_start = true/", file)
    demo.box.do("sed", "-i", "s/^batch_size = 8$/batch_size = 7/", config)  # in groups of two
    demo.box.run("systemctl", "start", demo.unit)
    demo.until(lambda: demo.show("ActiveState") == "failed", "the unit is failed")
    assert (demo.show("ExecMainStatus"), demo.show("NRestarts")) == ("93", "0")
    assert "[batch-of-whole-groups]" in demo.show("StatusText")
    [told] = demo.said(f"[batch-of-whole-groups] {config} line ")
    assert "To start anyway: --overrule batch-of-whole-groups" in told
    assert not demo.said("is launched")

    demo.box.do("sed", "-i", 's/^at_start = true/&\\noverrule = ["batch-of-whole-groups"]/', file)
    demo.systemctl("start")
    demo.until(lambda: demo.step() >= 3, "a person has said that it is meant")
    demo.systemctl("stop")
    demo.box.do("sed", "-i", "/^overrule = /d", file)
    demo.systemctl("start")
    demo.until(lambda: demo.said("Attempt 2 is launched"), "what has trained is not stopped by a check")


def test_each_exit_code_leaves_the_state_that_the_page_names(run: Callable[..., Run], box: Box) -> None:
    demo = run("codes")
    states = {
        0: ("inactive", "dead"),
        75: ("activating", "auto-restart"),
        93: ("failed", "failed"),
        94: ("failed", "failed"),
    }
    for code, state in states.items():
        program = f"systemd-notify --ready; exit {code}"
        stub = f"NotifyAccess=all\nExecStart=\nExecStart=/bin/sh -c '{program}'\nRestartSec=600\n"
        box.write(f"/etc/systemd/system/{demo.unit}.service.d/stub.conf", f"[Service]\n{stub}")
        box.do("systemctl", "daemon-reload")
        demo.systemctl("start")
        demo.until(lambda state=state: demo.show("SubState") == state[1], f"{code} is {state}")
        assert (demo.show("ActiveState"), demo.show("ExecMainStatus"), demo.show("NRestarts")) == (
            state[0],
            str(code),
            "0",
        )
        demo.systemctl("stop")
        box.run("systemctl", "reset-failed", demo.unit)
    box.do("rm", "-r", f"/etc/systemd/system/{demo.unit}.service.d")


def test_the_daemon_is_the_last_to_be_killed_and_the_job_has_room(run: Callable[..., Run]) -> None:
    demo = run("limits")
    demo.systemctl("start")
    demo.until(lambda: demo.step() >= 2, "the run makes steps")
    wanted = {
        "OOMPolicy": "continue",
        "OOMScoreAdjust": "-900",
        "ManagedOOMPreference": "omit",
        "MemoryMin": str(128 << 20),
        "MemoryLow": str(256 << 20),
        "Slice": "rlsupervisor.slice",
        "KillMode": "process",
        "LimitNOFILE": "1048576",
        "TasksMax": "infinity",
        "NoNewPrivileges": "no",
        "DevicePolicy": "auto",
    }
    assert {name: demo.show(name) for name in wanted} == wanted
    assert (demo.show("MemoryMin", "rlsupervisor.slice"), demo.show("ControlGroup", "rlsupervisor.slice")) == (
        str(256 << 20),
        "/rlsupervisor.slice",
    )
    wanted = {
        "OOMPolicy": "continue",
        "OOMScoreAdjust": "0",
        "LimitNOFILESoft": "65536",
        "LimitMEMLOCK": "infinity",
        "TasksMax": "infinity",
        "Slice": "system.slice",
        "Restart": "no",
    }
    assert {name: demo.show(name, demo.job()) for name in wanted} == wanted
    daemon, job = demo.show("MainPID"), str(demo.status()["pid"])
    may = demo.box.run("sh", "-c", "echo -900 >/proc/self/oom_score_adj").returncode == 0  # not in every container
    assert demo.box.do("cat", f"/proc/{daemon}/oom_score_adj").strip() == ("-900" if may else "0")
    assert {demo.box.do("cat", f"/proc/{pid}/oom_score_adj").strip() for pid in demo.pids()} == {"0"}
    # What the kernel does when memory is full, to the one that it should take last.
    processes = demo.pids()
    demo.box.do("kill", "-KILL", daemon)
    demo.until(lambda: demo.said("it was not touched"), "the next daemon adopts the job")
    assert (demo.show("MainPID") != daemon, demo.pids()) == (True, processes)
    assert job in processes


def test_two_runs_on_one_machine_do_not_hurt_one_another(run: Callable[..., Run]) -> None:
    left, right = run("left"), run("right")
    for one in (left, right):
        one.systemctl("start")
    for one in (left, right):
        one.until(lambda one=one: one.step() >= 3, "both make steps")
    processes = right.pids()
    assert not processes & left.pids()
    code, both = right.ctl("status", "--json", left.name)
    assert (code, "right" in both) == (0, False)
    left.systemctl("kill", "--signal=KILL", "--kill-whom=main")
    left.until(lambda: left.said("it was not touched"), "the left one is adopted by its own daemon")
    left.systemctl("stop")
    step = right.step()
    right.until(lambda: right.step() >= step + 5, "the right one goes on")
    status = right.status()
    assert (right.pids(), status["attempt"], status["incidents"]) == (processes, 1, [])
    assert not [line for line in right.journal() if "left" in line.split()]
    assert right.ctl("status")[0] == 0, "only one runs, so it need not be named"


def test_install_twice_refused_to_go_under_a_daemon_removed_and_put_back(run: Callable[..., Run], box: Box) -> None:
    demo = run("guest")
    unit = box.do("cat", UNIT)
    assert "ExecStart=/opt/rl-supervisor/bin/rl-supervisor run /etc/rl-supervisor/%i.toml" in unit
    assert box.do("stat", "-c", "%a", f"/etc/rl-supervisor/{demo.name}.env").strip() == "600"
    assert not box.run("systemd-analyze", "verify", "--man=no", "rl-supervisor@guest.service").stderr
    limit = ("--no-pager", f"--threshold={EXPOSURE * 10:.0f}")
    exposed = box.run("systemd-analyze", "security", *limit, "rl-supervisor@guest.service")
    assert exposed.returncode == 0, exposed.stdout[-400:]
    started = box.do(PROGRAM, "install", "--run", f"/srv/{demo.name}.toml", "--now")
    assert f"done: systemctl enable --now {demo.unit}" in started
    demo.until(lambda: demo.step() >= 2, "it runs")
    again = box.do(PROGRAM, "install", "--run", f"/srv/{demo.name}.toml", "--now")
    assert "Nothing to do: it is installed." in again
    assert f"{demo.unit} is enabled and runs" in again

    refused = box.run(PROGRAM, "uninstall")
    assert (refused.returncode, f"systemctl disable --now {demo.unit}" in refused.stderr) == (1, True)
    box.do("sh", "-c", f"echo '# a changed unit' >>{UNIT}")
    refused = box.run(PROGRAM, "install")
    assert (refused.returncode, "was changed by hand" in refused.stderr) == (1, True)
    box.write(UNIT, unit)

    demo.systemctl("stop")  # still enabled
    said = box.do(PROGRAM, "uninstall")
    assert "the run no longer starts by itself" in said
    assert f"/etc/rl-supervisor is left, with {demo.name}.toml" in said or f"{demo.name}.toml" in said
    assert box.run("systemctl", "cat", demo.unit).returncode != 0
    assert not box.do("find", "/etc/systemd/system", "-name", "rl*supervisor*.service")
    assert box.do("ls", f"/var/lib/rl-supervisor/{demo.name}/journal.db")
    assert "Nothing to do: nothing of install is here." in box.do(PROGRAM, "uninstall")
    box.do(PROGRAM, "install", "--run", f"/srv/{demo.name}.toml", "--now")
    demo.until(lambda: demo.status().get("attempt") == 2, "put back, it goes on")


def test_the_commands_of_the_page_work_in_their_order(run: Callable[..., Run], box: Box) -> None:
    demo = run("my-run")
    for line in box.do("sh", "-c", f"ls -d /etc/rl-supervisor/{demo.name}.*").split():
        box.do("rm", line)
    page = (CHECKOUT / "docs" / "systemd.md").read_text()
    block = page.partition("```sh\n")[2].partition("```")[0]
    lines = [line.partition("  #")[0].strip().replace("sudo ", "") for line in block.splitlines()]
    lines = [line for line in lines if "pip install" not in line]  # no network here; tests/units/test_install.py does
    lines = [line for line in lines if not line.startswith("editor ")]  # a person's
    assert len(lines) == 11
    for line in lines:
        done = box.run("sh", "-c", f"cd /srv && {line}")
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        if "enable --now" in line:
            demo.until(lambda: demo.step() >= 2, "it runs")
        if "systemctl status" in line:
            assert 'Status: "' in done.stdout
    assert box.run("sh", "-c", "command -v rl-supervisor || ls /opt/rl-supervisor").returncode != 0
    box.install()


def test_what_the_jobs_own_service_is_asked_by_its_own_tests(box: Box) -> None:
    """tests/process/test_transient.py, inside: its second half wants a systemd as the machine's init."""
    pytest = "/opt/rl-supervisor/bin/python -B -m pytest -n 0 -p no:cacheprovider -m optin"
    done = box.run("sh", "-c", f"cd /opt/checkout && {pytest} tests/process/test_transient.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 6 passed" in done.stdout and "skipped" not in done.stdout, done.stdout


def test_a_user_without_root_has_it_under_a_manager_of_their_own(box: Box) -> None:
    box.do("sh", "-c", "id someone 2>/dev/null || useradd -m -u 1234 someone")
    box.do("install", "-d", "-o", "someone", "-m", "700", "/run/user/1234")
    theirs = ("-E", "XDG_RUNTIME_DIR=/run/user/1234", "-E", "HOME=/home/someone", "-p", "User=someone")
    box.do("systemd-run", "--unit=theirs", *theirs, "-p", "Delegate=yes", "/lib/systemd/systemd", "--user")

    def someone(line: str) -> tuple[int, str]:
        them = ("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "env", "HOME=/home/someone")
        done = box.run(*them, "XDG_RUNTIME_DIR=/run/user/1234", "sh", "-c", f"cd; {line}")
        return done.returncode, done.stdout + done.stderr

    def until(line: str, part: str) -> None:
        deadline = time.monotonic() + 60
        while part not in (said := someone(line)[1]):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)

    box.write(
        "/srv/mine.toml",
        '[run]\nid = "mine"\n[job]\nkind = "command"\ndir = "/home/someone"\n'
        '[job.plain]\nstart = ["sleep", "1000"]\nresume = ["sleep", "{step}"]\n',
    )
    until("systemctl --user is-system-running", "running")
    try:
        code, said = someone(f"{PROGRAM} install --run /srv/mine.toml --now")
        assert (code, "done: systemctl --user enable --now rl-supervisor@mine" in said) == (0, True), said
        until("/opt/rl-supervisor/bin/supervisorctl status mine", "STARTING")
        until("pgrep -u someone -x sleep", "\n")  # the check comes first
        job = box.do("pgrep", "-u", "someone", "-x", "sleep")
        daemon = someone("systemctl --user show --value -p MainPID rl-supervisor@mine")[1]
        box.do("kill", "-KILL", daemon.strip())
        until("journalctl --no-pager -o cat -n 50 _UID=1234", "it was not touched")
        assert box.do("pgrep", "-u", "someone", "-x", "sleep") == job
        assert someone("systemctl --user disable --now rl-supervisor@mine")[0] == 0
        assert not box.run("pgrep", "-u", "someone", "-x", "sleep").stdout
        assert someone(f"{PROGRAM} uninstall")[0] == 0
        assert "mine.toml" in someone("ls .config/rl-supervisor")[1]
    finally:
        box.run("systemctl", "stop", "theirs")
        box.run("userdel", "--force", "--remove", "someone")
