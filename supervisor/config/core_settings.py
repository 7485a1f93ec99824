"""From the run file to the core's settings: the part of them that needs no installed job, as a replay has none."""

from __future__ import annotations

from dataclasses import replace

from supervisor.config.settings import RunFile
from supervisor.core.facts import Settings


def of_run_file(file: RunFile) -> Settings:
    """What the core needs of the run file. What only the trainer's configuration tells has its default."""
    return Settings(
        run_id=file.run.id,
        max_steps=file.run.max_steps,
        mode=file.recovery.mode,
        inference=file.recovery.inference,
        startup_s=file.deadlines.startup,
        step_floor_s=file.deadlines.step_floor,
        step_ceiling_s=file.deadlines.step_ceiling,
        engine_grace_s=file.deadlines.engine_grace,
        memory_fell_s=file.deadlines.memory_fell,
        hang_s=file.deadlines.hang,
        writing_s=file.deadlines.checkpoint_save,
        stop_budget_s=400.0,
        max_restarts=file.recovery.max_restarts,
        on_worthless=file.recovery.on_worthless,
        backoff_base_s=file.recovery.backoff,
        backoff_cap_s=file.recovery.backoff_cap,
        keep_local=file.disk.keep_local,
        prune_above=file.disk.prune_above,
        keep_last=file.store.keep_last,
        keep_every=file.store.keep_every,
        stop_below_bytes=file.disk.stop_below_mb << 20,
        seed=sum(file.run.id.encode()),
        hooks=("finish",) if file.hooks.finish else (),
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
