"""From the run file to the core's settings: the part of them that needs no installed job, as a replay has none."""

from __future__ import annotations

from dataclasses import fields, replace

from supervisor.config.settings import RunFile
from supervisor.core.settings import Settings


def of_run_file(file: RunFile) -> Settings:
    """What the core needs of the run file. What only the trainer's configuration tells has its default."""
    tables = (file.deadlines, file.recovery, file.disk, file.store)
    known = {field.name for field in fields(Settings)}
    return Settings(
        run_id=file.run.id,
        max_steps=file.run.max_steps,
        stop_below_bytes=file.disk.stop_below_mb << 20,
        seed=sum(file.run.id.encode()),
        hooks=("finish",) if file.hooks.finish else (),
        **{name: value for table in tables for name, value in table if name in known},
    )


def under(file: RunFile, recorded: Settings) -> Settings:
    """The settings of ``file`` for a run that was recorded under others: what the job itself told then stays."""
    return replace(
        of_run_file(file),
        run_id=recorded.run_id,
        max_steps=file.run.max_steps or recorded.max_steps,
        first_step_at=recorded.first_step_at,
        has_engine=recorded.has_engine,
        has_finish_line=recorded.has_finish_line,
        fresh=recorded.fresh,
        pin_step=recorded.pin_step,
        fencing=recorded.fencing,
        take_over=recorded.take_over,
        seed=recorded.seed,
        engine_alone=recorded.engine_alone,
        engine_warm=recorded.engine_warm,
        run_file=recorded.run_file,
    )
