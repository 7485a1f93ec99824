"""The systemd unit: what systemd itself says of it, and the words that the promises rest on."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from supervisor.base.errors import EXIT_PERSON_NEEDED, EXIT_POD_UNFIT
from supervisor.cli.upgrading import PATIENCE_S
from supervisor.daemon.upgrade import QUIET_S, TRIAL_S

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "units" / "rl-supervisor@.service"
EXPOSURE = 8.1
"""What `systemd-analyze security` (252) says of the unit, from 0 (closed) to 10; stated in docs/systemd.md."""


class Unit(configparser.RawConfigParser):
    """Keys keep their case; one that stands several times keeps its last value."""

    def __init__(self, path: Path = UNIT) -> None:
        super().__init__(strict=False, delimiters=("=",), comment_prefixes=("#",))
        self.read_string(path.read_text())

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(
        UNIT.read_text().replace("/opt/rl-supervisor/bin/rl-supervisor", shutil.which("true") or "/bin/true")
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy).replace("@.service", "@demo.service")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "Failed to" in done.stderr and "demo" not in done.stderr:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.strip()[:200]}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_the_unit_is_no_more_exposed_than_the_page_says(tmp_path: Path) -> None:
    shutil.copy(UNIT, tmp_path)
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE * 10:.0f}"]
    done = subprocess.run(
        [*command, str(tmp_path / UNIT.name)], capture_output=True, text=True, check=False, timeout=60
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze is older than systemd 250")
    assert done.returncode == 0, (done.stdout + done.stderr)[-400:]
    assert f"{EXPOSURE} of 10" in (ROOT / "docs" / "systemd.md").read_text()


def test_the_daemons_memory_is_protected_and_its_slice_grants_what_it_asks_for() -> None:
    service, group = Unit()["Service"], Unit(UNIT.with_name("rlsupervisor.slice"))["Slice"]
    assert (service["OOMScoreAdjust"], service["OOMPolicy"], service["ManagedOOMPreference"]) == (
        "-900",
        "continue",
        "omit",
    )
    assert service["Slice"] == "rlsupervisor.slice"
    assert "-" not in service["Slice"], "a dash makes it a child of a slice that grants nothing"
    for name in ("MemoryMin", "MemoryLow"):
        assert int(group[name].removesuffix("M")) >= int(service[name].removesuffix("M")) > 0


def test_the_exit_contract_of_the_unit_is_that_of_the_program() -> None:
    service = Unit()["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == f"{EXIT_PERSON_NEEDED} {EXIT_POD_UNFIT}"
    assert "SuccessExitStatus" not in service
    assert Unit()["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_reload_names_the_run_file_and_has_time_for_all_that_an_upgrade_may_wait_for() -> None:
    service = Unit()["Service"]
    assert service["ExecReload"] == service["ExecStart"].replace(" run ", " upgrade ")
    assert TRIAL_S + QUIET_S < PATIENCE_S < int(service["TimeoutStartSec"])


def test_a_stop_has_time_for_the_longest_patience_of_any_era_and_for_gpu_memory() -> None:
    assert int(Unit()["Service"]["TimeoutStopSec"]) >= 330 + 50


def test_a_daemon_that_dies_leaves_the_job_and_the_shared_folder_of_sockets_alone() -> None:
    service = Unit()["Service"]
    assert service["KillMode"] == "process"
    assert service["RuntimeDirectoryPreserve"] == "yes"


@pytest.mark.parametrize(
    "breaks",
    [
        *("PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock"),  # GPUs
        "MemoryDenyWriteExecute",  # NVML through ctypes
        *("ProtectSystem", "PrivateTmp", "ReadWritePaths", "ProtectHome"),  # mounts made by [setup]
        *("ProtectProc", "ProcSubset", "PrivateUsers", "NoNewPrivileges"),
    ],
)
def test_no_hardening_that_breaks_gpus_setup_commands_or_looking_at_the_job(breaks: str) -> None:
    assert breaks not in Unit()["Service"]


def test_no_secret_is_in_the_unit() -> None:
    service = Unit()["Service"]
    assert "Environment" not in service
    assert service["EnvironmentFile"].startswith("-/etc/rl-supervisor/%i")
