"""What is written has the modes that are meant, whatever umask the daemon was started with: two real runs."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.rig import Pod

OURS = {0o600, 0o640}, {0o700, 0o750}
THE_JOBS = {0o644, 0o755}, {0o755}


@contextmanager
def caller(umask: int) -> Iterator[None]:
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Path below ``folder`` to mode; links and sockets apart."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            found[path.relative_to(folder).as_posix() + ("/" if stat.S_ISDIR(mode) else "")] = stat.S_IMODE(mode)
    return found


def wrong(found: dict[str, int], allowed: tuple[set[int], set[int]]) -> dict[str, str]:
    return {name: f"{mode:04o}" for name, mode in found.items() if mode not in allowed[name.endswith("/")]}


@pytest.mark.soak
def test_a_run_leaves_the_same_modes_behind_whatever_umask_it_was_started_with(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pods = {}
    for umask in (0o000, 0o077):
        pod = Pod(
            tmp_path / f"{umask:03o}", settings={"hooks": {"finish": f"touch {tmp_path}/hook-{umask:03o}"}}, max_steps=4
        )
        request.addfinalizer(pod.close)
        with caller(umask):
            pods[umask] = pod.start()
    for umask, pod in pods.items():
        assert pod.wait_exit(90) == 0, pod.story()
        to = pod.folder / "restored"
        with caller(umask):
            done = subprocess.run(
                [sys.executable, "-m", "supervisor.cli.main", "restore", str(pod.run_file), "--to", str(to)],
                capture_output=True,
                text=True,
                timeout=60,
            )
        assert done.returncode == 0, done.stderr
        state = modes(pod.state_dir)
        assert {"journal.db", "lock", "attempts/", "hook-finish.log"} <= set(state)
        # A transfer's own notes are closed by the state folder alone: its umask is for the steps that it restores.
        noted = {name: mode for name, mode in state.items() if name.startswith("publish/")}
        assert wrong({name: mode for name, mode in state.items() if name not in noted}, OURS) == {}
        assert wrong(noted, THE_JOBS) == {}
        [ended] = [mode for name, mode in state.items() if name.endswith("/rl.exit.json")]
        assert ended == state["accepted-files.json"] == 0o600
        store = modes(pod.folder / "store")
        assert len(store) > 5
        assert wrong(store, THE_JOBS) == {}
        step = modes(next(to.glob("step_*")))
        assert len(step) > 3
        assert wrong(step, THE_JOBS) == {}
        # The job has 022, which is what systemd gives it, too: its checkpoints are for everybody to read.
        saved = modes(next(pod.practice.home.glob("**/checkpoints/step_4")))
        assert wrong(saved, THE_JOBS) == {}
        assert stat.S_IMODE((tmp_path / f"hook-{umask:03o}").stat().st_mode) == 0o644
