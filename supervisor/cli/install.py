"""``rl-supervisor install`` and ``uninstall``: shows what would be done, or does it and says so."""

from __future__ import annotations

import sys
from pathlib import Path

from supervisor.base.errors import ConfigError, UsageError
from supervisor.cli import manuals
from supervisor.cli.check import problems
from supervisor.cli.render import safe
from supervisor.config.settings import load
from supervisor.install import installing, unit_files


def install(run_file: Path | None, *, now: bool, dry_run: bool, prefix: Path | None) -> int:
    """Put the units, folders and the run file in place. 1, with a sentence, where there is no systemd."""
    if now and run_file is None:
        raise UsageError("--now starts a run: name its file with --run RUN.toml.")
    if now and prefix is not None:
        raise UsageError("--now starts a run here, and --prefix writes for another root: leave one of them out.")
    where = unit_files.place(prefix)
    if reason := installing.why_not(where):
        print(reason, file=sys.stderr)
        return 1
    if run_file and prefix is None:
        _refuse_what_check_refuses(run_file)
    plan = installing.plan_install(where, unit_files.program(), run_file, now=now, manuals=manuals.texts())
    _carry_out_plan(plan, dry_run=dry_run, nothing="Nothing to do: it is installed.")
    return 0


def uninstall(*, dry_run: bool, prefix: Path | None) -> int:
    """Remove what install put there; run files, state and checkpoints stay."""
    where = unit_files.place(prefix)
    if reason := installing.why_not(where):
        print(reason, file=sys.stderr)
        return 1
    _carry_out_plan(
        installing.plan_uninstall(where, manuals.texts()),
        dry_run=dry_run,
        nothing="Nothing to do: nothing of install is here.",
    )
    return 0


def _refuse_what_check_refuses(path: Path) -> None:
    """Raises ConfigError for a run that could not be started. Not for another root: its job is not here."""
    run = load(path)
    if run.setup.commands:
        return  # they may bring the job that would be looked at
    if found := problems(path, run):
        raise ConfigError("\n".join([*found, f"Nothing was done. Mend {path}, then: rl-supervisor check {path}"]))


def _carry_out_plan(plan: installing.Plan, *, dry_run: bool, nothing: str) -> None:
    if not plan.steps:
        print(nothing)
    elif dry_run:
        print("Would do, in this order:")
        for step in plan.steps:
            print(f"  {safe(step.about)}")
        for step in plan.steps:
            if step.diff:
                print("\n" + "\n".join(map(safe, step.diff.splitlines())))
    else:
        installing.carry_out(plan, lambda about: print(f"done: {safe(about)}"))
    for sentence in plan.kept:
        print(f"as it was: {safe(sentence)}")
    for sentence in plan.then:
        print(f"next: {safe(sentence)}")
