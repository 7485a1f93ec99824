"""A run file that was copied for a second run, and still names the first one's state folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError
from supervisor.config.core_settings import of_run_file
from supervisor.config.run_file import load
from supervisor.core import facts as f
from supervisor.core.state import State
from supervisor.daemon.loop import Before, Daemon, Options
from supervisor.journal.journal import Journal


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rls") as name:  # short enough for a socket
        yield Path(name)


def daemon_of(folder: Path, run: str) -> Daemon:
    path = folder / f"{run}.toml"
    path.write_text(
        f'[run]\nid = "{run}"\nstate_dir = "{folder}/state"\n[api]\nsocket = "{folder}/{run}.sock"\n'
        f'[job]\nkind = "command"\ndir = "{folder}"\noutput_dir = "{run}"\n'
        '[job.plain]\nstart = ["true"]\nresume = ["true"]\n[check]\nat_start = false\n'
    )
    return Daemon(path, load(path), os.environ, Options(), Before())


def test_a_second_run_does_not_obey_the_journal_of_the_first_and_says_what_to_change(folder: Path) -> None:
    first = daemon_of(folder, "swe")
    first.state = replace(State(of_run_file(first.context.run_file)), mode="finished")
    first._end(0)
    first._lock_file.close()
    with pytest.raises(ConfigError) as refused:
        daemon_of(folder, "math")
    assert str(refused.value) == (
        f"{folder}/state is the state folder of run swe, and {folder}/math.toml names run math. A second run needs a "
        "[run] state_dir and a [job] output_dir of its own. To rename a run, end it under its old id, then change id "
        "and state_dir: it goes on from the checkpoints in its output folder."
    )
    with closing(Journal(folder / "state")) as journal:
        state, _ = journal.rebuild()
    assert (state.settings.run_id, state.mode) == ("swe", "finished"), "and changes nothing of it"


def test_an_id_that_is_masked_since_it_looks_like_a_secret_is_the_same_run(folder: Path) -> None:
    name = "sk-qwen3-32b-grpo-experiment-2026-11"
    first = daemon_of(folder, name)
    first.post(f.DaemonStarted("test", of_run_file(first.context.run_file), "boot"), "daemon")
    first._signals = 1
    first._loop()
    first._end(0)
    first._lock_file.close()
    with closing(Journal(folder / "state")) as journal:
        assert journal.rebuild()[0].settings.run_id == "***"
    second = daemon_of(folder, name)
    second._end(0)
