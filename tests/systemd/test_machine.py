"""The tool that boots a systemd for the tests: what it must not do to the machine it is called on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

MACHINE = Path(__file__).with_name("machine")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a systemd")


def machine(verb: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MACHINE, verb, folder], capture_output=True, text=True, check=False, timeout=60)


def test_a_number_that_is_another_programs_by_now_is_nobodys_to_halt(tmp_path: Path) -> None:
    script = "sleep 60 & echo; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, process_group=0) as other:
        assert other.stdout is not None
        other.stdout.readline()
        (tmp_path / "leader").write_text(f"{other.pid}\n")
        done = machine("halt", tmp_path)
        assert (done.returncode, other.poll()) == (0, None), done.stderr
        children = Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text().split()
        assert len(children) == 1, "its child lives"
        assert not (tmp_path / "leader").exists()
        os.killpg(other.pid, 9)


def test_what_others_can_write_is_not_run_as_root(tmp_path: Path) -> None:
    folder = tmp_path / "machine"
    (folder / "tree" / "lib" / "systemd").mkdir(parents=True)
    (folder / "tree" / "lib" / "systemd" / "systemd").write_text("#!/bin/sh\n")
    (folder / "tree" / "lib" / "systemd" / "systemd").chmod(0o755)
    assert machine("create", folder).returncode == 0, "it is there"
    folder.chmod(0o777)
    done = machine("create", folder)
    assert (done.returncode, "is not root's alone" in done.stderr) == (1, True)
    folder.chmod(0o755)
    os.chown(folder, 1234, 1234)
    assert machine("create", folder).returncode == 1
