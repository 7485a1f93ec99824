"""From the run file to the core's settings: the part of them that needs no installed job, as a replay has none."""

from __future__ import annotations

from dataclasses import fields, replace

from supervisor.config.settings import RunFile
from supervisor.core.settings import Settings


def of_run_file(file: RunFile) -> Settings:
    """What the core needs of the run file. What only the trainer's configuration tells has its default."""
    return replace(under(file, Settings(file.run.id)), seed=sum(file.run.id.encode()))


def under(file: RunFile, recorded: Settings) -> Settings:
    """The settings of ``file`` for a run that was recorded under others: what the job itself told then stays."""
    chooses_interval = file.job.kind != "command" and file.job.checkpoint_interval == "auto"
    tables = (file.deadlines, file.recovery, file.disk, file.store)
    known = {field.name for field in fields(Settings)}
    return replace(
        recorded,
        max_steps=file.run.max_steps or recorded.max_steps,
        stop_below_bytes=file.disk.stop_below_mb << 20,
        interval_between=file.job.checkpoint_interval_between if chooses_interval else None,
        hooks=("finish",) if file.hooks.finish else (),
        **{name: value for table in tables for name, value in table if name in known},
    )
