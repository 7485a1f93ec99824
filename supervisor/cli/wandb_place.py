"""Where a run is in W&B: its ids, its project, and the folders that its offline attempts left on this machine."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.base.errors import SupervisorError
from supervisor.config.settings import RunFile
from supervisor.jobs.environment import with_own
from supervisor.journal.journal import open_read_only
from supervisor.primerl import configs
from supervisor.primerl.command import interpreter, uses_wandb

TABLES = ("monitors.wandb", "wandb", "monitor.wandb")  # of prime-rl's configuration, the newest first
PARTS = ("-trainer", "-orchestrator")  # eras of prime-rl with two W&B runs end their ids so
LIVE_S = 120.0  # a file that was written to so recently is probably still written to
_FOLDER = re.compile(r"offline-run-(\d{8}_\d{6})-(.{1,128})")


@dataclass(frozen=True)
class Place:
    """``entity`` "": the default one of the key. ``project`` "": not known."""

    ids: tuple[str, ...]
    project: str
    entity: str


@dataclass(frozen=True)
class OfflineRun:
    """What one process left that logged offline. ``began``: local time, as W&B names it."""

    folder: Path
    run: str
    began: str
    size_bytes: int
    is_sent: bool
    is_live: bool


def find_id(run_file: RunFile, told: str | None) -> str:
    """The id that the run file, ``told`` (a daemon or the store), or this machine's journal knows; "" for none."""
    if found := run_file.wandb.id or told:
        return found
    journal = run_file.state_dir / "journal.db"
    with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(open_read_only(journal)) as db:
        row = db.execute("SELECT value FROM meta WHERE key = 'wandb_id'").fetchone()
        return str(row[0]) if row else ""
    return ""


def find_place(run_file: RunFile, environ: Mapping[str, str], run_id: str) -> Place:
    """What the job is told: its own configuration before its variables, as prime-rl has it."""
    given = with_own(environ, run_file.job.env)
    project, entity = given.get("WANDB_PROJECT", ""), given.get("WANDB_ENTITY", "")
    with contextlib.suppress(SupervisorError, OSError):
        settings = configs.load(configs.sources(run_file.job), run_file.job.args)
        if uses_wandb(settings):
            paths = [f"{part}{table}" for table in TABLES for part in ("", "trainer.", "orchestrator.")]
            project = settings.get(*(f"{path}.project" for path in paths)) or project
            entity = settings.get(*(f"{path}.entity" for path in paths)) or entity
    return Place(_ids_of_run(run_file, environ, run_id), str(project), str(entity))


def _ids_of_run(run_file: RunFile, environ: Mapping[str, str], run_id: str) -> tuple[str, ...]:
    if run_file.job.kind == "rl":
        from supervisor.primerl import open_job
        from supervisor.primerl.job import PrimeRlJob

        with contextlib.suppress(SupervisorError, OSError):
            job = open_job(run_file, environ)
            if isinstance(job, PrimeRlJob) and job.dialect.wandb in ("monitor-id", "id"):
                return tuple(run_id + part for part in PARTS)
    return (run_id,)


def list_offline(run_file: RunFile, environ: Mapping[str, str], run_id: str) -> list[OfflineRun]:
    """The run's offline folders, the oldest first."""
    wanted = {run_id, *(run_id + part for part in PARTS)}
    found = {}
    for parent in _parents(run_file, environ):
        with contextlib.suppress(OSError):
            for folder in parent.iterdir():
                match = _FOLDER.fullmatch(folder.name)
                if match is not None and match[2] in wanted and folder.is_dir():
                    found[folder.resolve()] = _look_at_folder(folder.resolve(), match[2], match[1])
    return sorted(found.values(), key=lambda one: (one.began, one.run))


def _look_at_folder(folder: Path, run: str, began: str) -> OfflineRun:
    file = folder / f"run-{run}.wandb"
    size, changed = 0, 0.0
    with contextlib.suppress(OSError):
        look = file.stat()
        size, changed = look.st_size, look.st_mtime
    # ``wandb sync`` leaves this beside the file (wandb 0.31.0, cli/beta_sync.py).
    is_sent = file.with_name(f"{file.name}.synced").exists()
    began = f"{began[:4]}-{began[4:6]}-{began[6:8]} {began[9:11]}:{began[11:13]}:{began[13:]}"
    return OfflineRun(folder, run, began, size, is_sent, not is_sent and time.time() - changed < LIVE_S)


def _parents(run_file: RunFile, environ: Mapping[str, str]) -> Iterator[Path]:
    """Folders in which W&B's client makes one for each process: below WANDB_DIR, or where the job runs and writes."""
    if told := with_own(environ, run_file.job.env).get("WANDB_DIR"):
        yield run_file.job.folder / told / "wandb"
    yield run_file.job.folder / "wandb"
    for pattern in ("wandb", "*/wandb", "*/*/wandb"):
        with contextlib.suppress(OSError):
            yield from run_file.output_dir.glob(pattern)


def find_client(run_file: RunFile) -> list[str]:
    """The words that start ``wandb``: ours, which is known to us, else the job's; [] where there is none."""
    for program in (Path(sys.executable).parent / "wandb", interpreter(run_file).parent / "wandb"):
        if program.exists():
            return [str(program)]
    found = shutil.which("wandb")
    return [found] if found else []
