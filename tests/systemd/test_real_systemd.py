"""The unit, the daemon and the job under a real systemd: ready, killed, hung, stopped, rebooted, refused, finished.

By choice: `SYSTEMD_BOX=TOOL pytest -m optin tests/systemd`, as root. TOOL is a program that keeps a systemd of its own
in a folder: `create DIR`, `boot DIR HOST:GUEST...`, `run DIR COMMAND...` and `halt DIR`. SYSTEMD_BOX_DIR names a folder
in which it may keep the box for the next time; else a fresh one is made, which takes about a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.simulator.nvml.build import build

TOOL = os.environ.get("SYSTEMD_BOX", "")
CHECKOUT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.optin,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("systemd"),
    pytest.mark.skipif(not TOOL, reason="set SYSTEMD_BOX to a program that keeps a systemd in a folder"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a systemd"),
]

SETUP = """
import sys
from pathlib import Path
from supervisor.simulator.command_line import toml_value
from supervisor.simulator.practice import make_practice
import json
name, knobs = sys.argv[1], json.loads(sys.argv[2])
practice = make_practice(Path("/srv") / name, "v0.6", **knobs)
tables = {
    "run": {"id": name},
    "job": {"dir": str(practice.home), "config": str(practice.config), "checkpoint_interval": 5},
    "store": {"url": f"file:///srv/{name}/store"},
    "disk": {"stop_below_mb": 0},
    "deadlines": {"startup": 60, "step_floor": 5, "step_ceiling": 60, "memory_fell": 1, "hang": 5, "engine_grace": 1},
    "recovery": {"backoff": 0.2, "backoff_cap": 2},
    "supervision": {"sample": 0.5, "engine_sample": 1, "scan": 1, "quiet": 1, "gpu_free": 10},
    "job.env": {key: value for key, value in practice.environment.items() if key != "PATH"},
}
lines = []
for table, values in tables.items():
    lines += [f"[{table}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
Path("/etc/rl-supervisor").mkdir(exist_ok=True)
Path(f"/etc/rl-supervisor/{name}.toml").write_text("\\n".join(lines) + "\\n")
drop_in = Path(f"/etc/systemd/system/rl-supervisor@{name}.service.d")
drop_in.mkdir(parents=True, exist_ok=True)
environment = f"Environment=LD_LIBRARY_PATH=/opt/nvml PRACTICE_GPUS={practice.gpus}"
(drop_in / "practice.conf").write_text(f"[Service]\\n{environment}\\nWatchdogSec=8\\nRestartSec=1\\n")
"""
FORGET = """
systemctl stop 'rl-supervisor@*.service'
rm -rf /etc/systemd/system/rl-supervisor@* /etc/systemd/system/*.wants/rl-supervisor@* /etc/rl-supervisor
rm -rf /var/lib/rl-supervisor /opt/rl-supervisor /srv/* /var/log/journal/*/* /run/log/journal/*/*
systemctl daemon-reload
systemctl restart systemd-journald
"""
SCRIPT = "#!/opt/rl-supervisor/bin/python\nimport sys\nfrom supervisor.cli.{module} import main\nsys.exit(main())\n"


class Box:
    """A small machine with systemd."""

    def __init__(self, folder: Path, nvml: Path) -> None:
        self.folder = folder
        self.binds = [f"{CHECKOUT}:/opt/checkout", f"{site.getsitepackages()[0]}:/opt/packages", f"{nvml}:/opt/nvml"]

    def boot(self) -> None:
        subprocess.run([TOOL, "boot", str(self.folder), *self.binds], check=True, stdout=subprocess.DEVNULL)

    def halt(self) -> None:
        subprocess.run([TOOL, "halt", str(self.folder)], check=True)

    def run(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TOOL, "run", str(self.folder), *words], input=text, capture_output=True, text=True, check=False
        )

    def do(self, *words: str, text: str = "") -> str:
        done = self.run(*words, text=text)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def install(self) -> None:
        """The checkout as it is, in an environment of its own, and the unit where an administrator puts it."""
        if self.do("python3", "-c", "import sys; print(*sys.version_info[:2])").split() != [
            str(part) for part in sys.version_info[:2]
        ]:
            pytest.skip("the box has another Python than the one that runs these tests, whose packages it uses")
        self.do("python3", "-m", "venv", "--without-pip", "/opt/rl-supervisor")
        packages = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        self.write(f"/opt/rl-supervisor/{packages}/checkout.pth", "/opt/checkout\n/opt/packages\n")
        for name, module in (("rl-supervisor", "main"), ("supervisorctl", "ctl")):
            self.write(f"/opt/rl-supervisor/bin/{name}", SCRIPT.format(module=module))
            self.do("chmod", "755", f"/opt/rl-supervisor/bin/{name}")
        unit = "rl-supervisor@.service"
        self.write(f"/etc/systemd/system/{unit}", (CHECKOUT / "units" / unit).read_text())

    def write(self, path: str, text: str) -> None:
        self.do("sh", "-c", 'cat >"$0"', path, text=text)


class Run:
    """One run in the box, as its operator sees it."""

    def __init__(self, box: Box, name: str, **knobs: Any) -> None:
        self.box, self.name, self.unit = box, name, f"rl-supervisor@{name}"
        knobs = {"max_steps": 5000, "interval": 5, "step_s": 0.4, **knobs}
        box.do("/opt/rl-supervisor/bin/python", "-c", SETUP, name, json.dumps(knobs))
        box.do("systemctl", "daemon-reload")

    def systemctl(self, verb: str, *words: str) -> str:
        return self.box.do("systemctl", verb, *words, self.unit)

    def show(self, name: str, unit: str = "") -> str:
        return self.box.do("systemctl", "show", "--value", "-p", name, unit or self.unit).strip()

    def ctl(self, *words: str) -> tuple[int, str]:
        done = self.box.run("/opt/rl-supervisor/bin/supervisorctl", *words)
        return done.returncode, done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.ctl("status", self.name, "--json")[1]))

    def step(self) -> int:
        return int(self.status().get("step") or 0)

    def journal(self, *filters: str) -> list[str]:
        """Messages of this run's daemon and of systemd about it, or those that ``filters`` choose."""
        wanted = filters or (f"--unit={self.unit}",)
        return self.box.do("journalctl", "--quiet", "--no-pager", "--output=cat", *wanted).splitlines()

    def latest(self) -> int:
        return int(json.loads(self.box.do("cat", f"/srv/{self.name}/store/{self.name}/latest.json"))["step_number"])

    def until(self, what: Callable[[], Any], about: str, timeout_s: float = 60) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = what()
            if found:
                return found
            time.sleep(0.1)
        story = "\n".join(self.journal()[-40:])
        raise AssertionError(
            f"not in {timeout_s} s: {about}\n{self.box.run('systemctl', 'status', self.unit).stdout}\n{story}"
        )

    def said(self, part: str) -> list[str]:
        return [line for line in self.journal() if part in line]

    def end(self) -> None:
        self.box.run("systemctl", "disable", "--now", self.unit)
        self.box.run("systemctl", "reset-failed", self.unit)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    kept = os.environ.get("SYSTEMD_BOX_DIR")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("box")
    nvml = tmp_path_factory.mktemp("nvml")
    build(nvml)
    subprocess.run([TOOL, "create", str(folder)], check=True)
    box = Box(folder, nvml)
    box.boot()
    try:
        box.do("sh", "-c", FORGET)
        box.install()
        yield box
    finally:
        box.halt()
        if not kept:
            shutil.rmtree(folder)


@pytest.fixture
def run(box: Box, request: pytest.FixtureRequest) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(name: str, **knobs: Any) -> Run:
        made.append(Run(box, name, **knobs))
        return made[-1]

    yield make
    for one in made:
        one.end()


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
    incident = demo.journal(f"RL_RUN={demo.name}", "RL_INCIDENT=1")
    for part in ("vLLM", "The job is stopped", "Attempt 2 is launched, resuming at step 5", "Incident 1 is over"):
        assert any(part in line for line in incident), (part, incident)
    assert demo.said("step 29 of 30")
    assert demo.said("Published step 30")
    assert len(demo.journal(f"RL_RUN={demo.name}", "RL_STEP=20")) >= 2  # its line, and its publish
    assert not demo.said("reception only permitted for main PID"), "a child spoke to systemd in the daemon's place"
    assert demo.ctl("status", demo.name)[0] == 3
    demo.systemctl("start")
    demo.until(lambda: demo.show("ActiveState") == "inactive", "a finished run stays finished")
    assert demo.said("This run is finished")


def test_a_killed_daemon_and_a_hung_one_cost_the_run_nothing(run: Callable[..., Run]) -> None:
    demo = run("adopt")
    demo.systemctl("start")
    demo.until(lambda: demo.step() >= 8, "the run makes steps")
    job = demo.status()["pid"]
    for count, (name, result) in enumerate((("KILL", "signal"), ("STOP", "watchdog")), start=1):
        daemon, step = demo.show("MainPID"), demo.step()
        demo.systemctl("kill", f"--signal={name}", "--kill-whom=main")
        demo.until(lambda count=count: len(demo.said("it was not touched")) == count, f"adopted after SIG{name}")
        demo.until(lambda step=step: demo.step() >= step + 20, "steps go on")
        assert demo.show("MainPID") != daemon
        assert demo.said(f"Failed with result '{result}'")
        status = demo.status()
        assert (status["pid"], status["attempt"], status["restarts"], status["incidents"]) == (job, 1, 0, [])
    assert demo.show("NRestarts") == "2"


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
    demo.until(lambda: demo.said("Stopped by a person, and stays so until: supervisorctl start"), "it stays stopped")
    assert demo.show("ActiveState") == "active"
    assert (demo.ctl("status", demo.name)[0], demo.status()["attempt"]) == (3, 2)
    assert demo.ctl("start", demo.name)[0] == 0
    demo.until(lambda: demo.status().get("state") == "running", "it goes on")
    box.halt()
    box.boot()
    demo.until(lambda: demo.status().get("attempt") == 4, "after a reboot while it runs it is started by itself")
    demo.until(lambda: demo.status().get("state") == "running", "it makes steps")


def test_a_mistake_in_the_run_file_leaves_the_unit_failed_and_is_not_tried_again(run: Callable[..., Run]) -> None:
    demo = run("wrong")
    demo.box.do("sed", "-i", "s/^stop_below_mb/stop_belov_mb/", f"/etc/rl-supervisor/{demo.name}.toml")
    assert demo.box.run("systemctl", "start", demo.unit).returncode == 1
    demo.until(lambda: demo.show("ActiveState") == "failed", "the unit is failed")
    assert (demo.show("ExecMainStatus"), demo.show("NRestarts")) == ("93", "0")
    assert demo.said('"stop_belov_mb"')
    assert demo.said('"stop_below_mb"') or demo.said("stop_below_mb")
