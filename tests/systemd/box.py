"""A small machine with a real systemd, and a run in it as its operator sees it."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOOL = os.environ.get("SYSTEMD_BOX", "")
CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = "/opt/rl-supervisor/bin/rl-supervisor"
UNIT = "/etc/systemd/system/rl-supervisor@.service"

SETUP = """
import sys
from pathlib import Path
from tests.practice.command_line import toml_value
from tests.practice.run import make_practice
import json
name, knobs = sys.argv[1], json.loads(sys.argv[2])
practice = make_practice(Path("/srv") / name, "v0.6", **knobs)
tables = {
    "run": {"id": name},
    "job": {"dir": str(practice.home), "config": str(practice.config), "checkpoint_interval": 5},
    # No firmware or provider names this container: its own claim from before a boot is watched, for a third of this.
    "store": {"url": f"file:///srv/{name}/store", "take_over_after": 30},
    "disk": {"stop_below_mb": 0},
    "deadlines": {"startup": 60, "step_floor": 5, "step_ceiling": 60, "memory_fell": 1, "hang": 5, "engine_grace": 1},
    "recovery": {"backoff": 0.2, "backoff_cap": 2},
    "check": {"at_start": False},  # practice is no sound configuration of prime-rl, and the disk is anybody's
    "supervision": {"sample": 0.5, "engine_sample": 1, "scan": 1, "quiet": 1, "gpu_free": 10},
    "job.env": {key: value for key, value in practice.environment.items() if key != "PATH"},
}
lines = []
for table, values in tables.items():
    lines += [f"[{table}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
Path(f"/srv/{name}.toml").write_text("\\n".join(lines) + "\\n")
drop_in = Path(f"/etc/systemd/system/rl-supervisor@{name}.service.d")
drop_in.mkdir(parents=True, exist_ok=True)
environment = f"Environment=LD_LIBRARY_PATH=/opt/nvml PRACTICE_GPUS={practice.gpus}"
(drop_in / "practice.conf").write_text(f"[Service]\\n{environment}\\nWatchdogSec=8\\nRestartSec=1\\n")
"""
FORGET = """
systemctl stop 'rl-supervisor@*.service'
rm -rf /etc/systemd/system/rl*supervisor* /etc/systemd/system/*.wants/rl-supervisor@* /etc/rl-supervisor
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

    def reboot(self) -> None:
        """As an administrator does it: services are stopped in their order, then the machine starts again."""
        self.run("systemctl", "--no-block", "reboot")
        deadline = time.monotonic() + 120
        while self.run("true").returncode == 0:
            assert time.monotonic() < deadline, "the machine does not go down"
            time.sleep(0.1)
        self.halt()
        self.boot()

    def install(self) -> None:
        """The checkout as it is, in an environment of its own; the rest is what `rl-supervisor install` does."""
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
        self.do(PROGRAM, "install")

    def write(self, path: str, text: str) -> None:
        self.do("sh", "-c", 'cat >"$0"', path, text=text)


class Run:
    """One run in the box, as its operator sees it."""

    def __init__(self, box: Box, name: str, **knobs: Any) -> None:
        self.box, self.name, self.unit = box, name, f"rl-supervisor@{name}"
        knobs = {"max_steps": 5000, "interval": 5, "step_s": 0.4, **knobs}
        box.do("/opt/rl-supervisor/bin/python", "-c", SETUP, name, json.dumps(knobs))
        box.do("systemctl", "daemon-reload")
        box.do(PROGRAM, "install", "--run", f"/srv/{name}.toml")

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

    def fields(self, *filters: str) -> list[dict[str, Any]]:
        """The journal's entries, whole."""
        text = self.box.do("journalctl", "--quiet", "--no-pager", "--output=json", *filters)
        return [dict(json.loads(line)) for line in text.splitlines()]

    def job(self, attempt: int = 1) -> str:
        """The job's own service."""
        return f"rl-job-{self.name}-{attempt:04}-rl.service"

    def pids(self, attempt: int = 1) -> set[str]:
        """All processes of the job."""
        group = self.show("ControlGroup", self.job(attempt))
        return set(self.box.do("cat", f"/sys/fs/cgroup{group}/cgroup.procs").split())

    def complete_here(self) -> int:
        """Highest step whose data is whole on this machine."""
        found = self.box.do("sh", "-c", f"find /srv/{self.name} -path '*/checkpoints/step_*' -name .metadata")
        return max(int(part.partition("/")[0]) for part in found.replace("\n", "").split("/step_")[1:])

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
