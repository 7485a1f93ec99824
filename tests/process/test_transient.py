"""The transient systemd service: its command line everywhere, and the real thing where systemd is PID 1."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError
from supervisor.process import survivors, transient
from supervisor.process.launch import Launched, choose, launch, shim_argv
from tests.isolation import SYSTEMD
from tests.process.conftest import BLUNT, Attempt, kill, wait_for


@pytest.mark.parametrize(
    ("uid", "group", "unit"),
    [
        (0, "/rlsupervisor.slice/rl-supervisor@demo.service", "rl-supervisor@demo.service"),
        (0, "/system.slice/a:b.service/below", "a:b.service"),
        (0, "/user.slice/user-0.slice/session-3.scope", None),
        (
            1000,
            "/user.slice/user-1000.slice/user@1000.service/app.slice/rl-supervisor@demo.service",
            "rl-supervisor@demo.service",
        ),
        (1000, "/user.slice/user-1000.slice/user@1000.service/app.slice/app-terminal.scope", None),
    ],
)
def test_the_own_unit_is_one_that_the_own_manager_knows(
    uid: int, group: str, unit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(transient, "BOOTED", tmp_path)
    monkeypatch.setattr(transient, "CGROUP", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text(f"0::{group}\n")
    assert transient.own_unit() == unit
    argv = transient.run_argv("x.service", ["true"], environment={}, nofile=1, description="x")
    assert [word for word in argv if "Before=" in word] == ([f"--property=Before={unit}"] if unit else [])


def test_the_command_line_gives_the_job_a_service_of_its_own_and_holds_no_secret() -> None:
    argv = transient.run_argv(
        "rl-job-demo-attempt-3-rl.service",
        shim_argv(Path("/dev/shm/x.spec"), "demo/attempt-3/rl"),
        environment={"RL_SUPERVISOR_RUN": "demo"},
        nofile=65536,
        description="rl of run demo (attempt-3)",
    )
    assert argv[0] == "systemd-run"
    assert ("--user" in argv) == (os.geteuid() != 0)
    assert "--unit=rl-job-demo-attempt-3-rl.service" in argv
    properties = {word.removeprefix("--property=") for word in argv if word.startswith("--property=")}
    assert {
        "Type=exec",
        "KillMode=mixed",
        "LimitNOFILE=65536:1048576",
        "TasksMax=infinity",
        "OOMPolicy=continue",
        "Restart=no",
    } <= properties
    assert not any(value.startswith(("BindsTo=", "PartOf=", "Delegate=")) for value in properties)
    after = argv[argv.index("--") + 1 :]
    assert after[1:5] == ["-I", "-S", "-X", "utf8"]
    assert after[-2:] == ["/dev/shm/x.spec", "demo/attempt-3/rl"]
    assert [word for word in argv if word.startswith("--setenv=")] == ["--setenv=RL_SUPERVISOR_RUN=demo"]


def test_unit_names_hold_only_what_units_may_hold() -> None:
    assert transient.unit_name("my.run-1", "attempt-2", "rl") == "rl-job-my.run-1-attempt-2-rl.service"
    odd = transient.unit_name("x" * 300, "a b", "c/d")
    assert len(odd) < 256
    assert "/" not in odd and " " not in odd


def test_without_systemd_auto_forks_and_systemd_is_refused_with_a_sentence() -> None:
    assert choose("auto") == "fork"
    with pytest.raises(ConfigError, match=r'supervision.shim = "systemd" cannot work here: .*; set it to "auto"'):
        choose("systemd")


# ---------------------------------------------------------------- the real thing


@pytest.fixture
def service(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr(transient, "BOOTED", SYSTEMD)
    if reason := transient.why_not():
        pytest.skip(f"no transient service can be started here: {reason}")
    return attempt


def start(attempt: Attempt, script: str) -> Launched:
    launched = launch(attempt.component(script), attempt.folder, "systemd", attempt.run_id)
    attempt.mine.append((launched.child_pid, launched.child_start_ticks))
    return launched


def active(unit: str) -> str:
    return subprocess.run(["systemctl", "is-active", unit], capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.optin
def test_a_service_runs_the_job_in_its_own_cgroup_with_its_own_limits(service: Attempt) -> None:
    launched = start(service, "import resource; print(resource.getrlimit(7)[0], flush=True); tell('up'); sleep()")
    service.told("up")
    assert launched.unit is not None
    assert launched.unit in survivors.cgroup_parts(launched.child_pid)
    assert launched.unit not in survivors.cgroup_parts(os.getpid())
    assert service.look().state == "running"
    assert int((service.folder / "job.log").read_text()) >= 1024
    assert service.stop().survivors == ()
    assert service.look().signal == signal.SIGTERM
    wait_for(lambda: active(launched.unit or "") in ("inactive", "failed", "unknown"), "the unit ends")


@pytest.mark.optin
def test_the_job_lives_on_when_the_daemons_own_service_is_killed(service: Attempt) -> None:
    component = service.component("tell('up'); sleep()")
    source = service.folder / "daemon.py"
    source.write_text(
        "import time; from pathlib import Path; from supervisor.process.launch import launch\n"
        "from supervisor.jobs.base import Component\n"
        f"launch(Component('job', {component.argv!r}, Path({str(component.cwd)!r}), {component.env!r}),"
        f" Path({str(service.folder)!r}), 'auto', {service.run_id!r})\n"
        "Path('launched').touch(); time.sleep(600)"
    )
    daemon = f"test-daemon-{os.getpid()}.service"
    options = [f"--working-directory={service.folder}", f"--setenv=PYTHONPATH={Path(transient.__file__).parents[2]}"]
    command = ["systemd-run", "--quiet", "--collect", f"--unit={daemon}", *options, component.argv[0], str(source)]
    subprocess.run(command, check=True)
    try:
        job = service.told("up")
        wait_for((service.folder / "launched").exists, "the daemon has launched it")
        assert service.look().how == "systemd"
        subprocess.run(["systemctl", "kill", "--signal=SIGKILL", daemon], check=True)
        wait_for(lambda: active(daemon) != "active", "the daemon's service dies")
        assert survivors.alive(job)
        assert service.look().state == "running"
    finally:
        subprocess.run(["systemctl", "stop", daemon], check=False, capture_output=True)
    assert service.stop().survivors == ()
    assert service.alive() == []


@pytest.mark.optin
def test_systemd_tells_the_exit_status_that_no_disk_took(service: Attempt) -> None:
    launched = start(service, "tell('up')\nwhile not os.path.exists('finish'): time.sleep(0.01)\nsys.exit(9)")
    service.told("up")
    (service.folder / "job.exit.json").mkdir()
    (service.folder / "finish").touch()
    assert service.ended().exit_code == 9
    os.kill(launched.shim_pid, signal.SIGTERM)  # it retries until it is told to end
    assert launched.unit is not None
    wait_for(lambda: active(launched.unit or "") == "failed", "the unit ends")
    assert service.look().exit_code == 9
    (service.folder / "job.exit.json").rmdir()
    transient.forget_unit(launched.unit)


@pytest.mark.optin
def test_stopping_the_service_by_hand_ends_the_job_cleanly_and_leaves_nothing(service: Attempt) -> None:
    launched = start(
        service,
        """
        if os.fork() == 0:
            os.setsid(); signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); tell("orphan"); sleep()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); tell("up"); sleep()
        """,
    )
    service.told("up")
    service.told("orphan")
    assert launched.unit is not None
    subprocess.run(["systemctl", "stop", launched.unit], check=True, timeout=30)
    assert service.look().exit_code == 5
    assert service.alive() == []
    transient.forget_unit(launched.unit)


@pytest.mark.optin
def test_a_killed_shim_takes_the_whole_service_with_it(service: Attempt) -> None:
    launched = start(service, "signal.signal(signal.SIGTERM, signal.SIG_IGN); tell('up'); sleep()")
    job = service.told("up")
    kill([identity for p in [survivors.look_at(launched.shim_pid)] if p for identity in [p.identity]])
    assert service.ended().state == "lost"
    report = service.stop(BLUNT)
    assert report.survivors == ()
    assert not survivors.alive(job)


@pytest.mark.optin
def test_a_unit_of_the_same_name_that_runs_is_refused_and_left_alone(service: Attempt, tmp_path: Path) -> None:
    launched = start(service, "tell('up'); sleep()")
    job = service.told("up")
    other = tmp_path / "other" / service.folder.name
    with pytest.raises(Exception, match="runs already: another supervisor of a run with the same name"):
        launch(service.component("sleep()"), other, "systemd", service.run_id)
    assert survivors.alive(job)
    assert launched.unit is not None
    service.stop(BLUNT)
