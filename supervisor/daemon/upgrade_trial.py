"""The trial of an upgrade, in a child of the living daemon: all that a new daemon does until it watches the run.

It is a module of its own since the daemon that asks for it needs none of it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from supervisor import __version__
from supervisor.base import env_file
from supervisor.base.errors import ConfigError
from supervisor.config.run_file import load
from supervisor.core.state import State
from supervisor.daemon import fetch_run_files
from supervisor.daemon.upgrade import ANSWER, what_is_seen
from supervisor.journal.journal import Journal
from supervisor.primerl import open_job
from supervisor.process.attempts import attempt_dir, read_snapshot


def try_upgrade(path: Path, folder: Path, *, onstart: bool, environ: Mapping[str, str]) -> None:
    """As a child of the living daemon: do all that a new daemon does until it watches, and leave what was found.

    ``folder`` is the asker's, empty, and takes a copy of the journal. Raises SupervisorError with what is wrong.
    """
    for module in ("supervisor.daemon.loop", "supervisor.checkpoints.transfer", "supervisor.effects.log_round"):
        importlib.import_module(module)  # what is missing of an install shows here, not after the exec
    run_file = load(path)
    environ = {**environ, **env_file.beside(path).values}
    identity, state = _read_copied_journal(run_file.state_dir / "journal.db", folder)
    if onstart:
        run_file = fetch_run_files.fill_in(run_file, path, fetch_run_files.fetch(run_file, environ))
    # As the new daemon will: what lives is watched by the configuration that it runs.
    copies = read_snapshot(attempt_dir(run_file.state_dir, state.attempt.number)) if state.live else {}
    job = open_job(run_file, environ, None, copies)
    if not copies and (problems := job.problems()):
        raise ConfigError(" ".join(problems))
    seen = what_is_seen(run_file, job, identity, state)
    (folder / ANSWER).write_text(json.dumps({"version": __version__, **asdict(seen)}))


def _read_copied_journal(path: Path, folder: Path) -> tuple[str, State]:
    """Identity of the journal at ``path`` and the state that it leads to, both read from a copy in ``folder``."""
    if not path.exists():
        raise ConfigError(f"There is no journal {path}: the run file names another run, or another state folder.")
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as source,
            contextlib.closing(sqlite3.connect(folder / "journal.db")) as target,
        ):
            source.backup(target)
        journal = Journal(folder)
    except sqlite3.Error as error:
        raise ConfigError(f"The journal {path} cannot be copied to {folder} and read there: {error}.") from error
    try:
        if journal.set_aside is not None:
            raise ConfigError(f"The journal {path} cannot be read by rl-supervisor {__version__}.")
        state, _ = journal.rebuild()
        return journal.identity(), state
    finally:
        journal.close()
