"""``rl-supervisor restore``, ``publish``, ``prune`` and ``verify``: what a person does with steps by hand."""

from __future__ import annotations

import argparse
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.base.errors import UsageError
from supervisor.cli import restore_command, store_commands, where
from supervisor.cli.moving import show_transfers
from supervisor.cli.render import safe
from supervisor.config.settings import load
from supervisor.effects.patient_transfers import PatientTransfers


def by_hand(options: argparse.Namespace) -> int:
    """restore, publish or prune, as ``options.by_hand`` says. Raises SupervisorError."""
    dry_run = options.dry_run
    if options.by_hand != "restore":
        run_file = load(options.run_file)
    else:
        run_file = where.run_file_of(options)
        if options.to is None and not where.has_run_file(options):
            raise UsageError("Name the folder with --to: only a RUN.toml knows where the job's own is.")
    transfers = PatientTransfers(os.environ, run_file.store.stall_s)
    with show_transfers(transfers, quiet=options.as_json):
        if options.by_hand == "restore":
            step: restore_command.Wanted = "latest" if options.step is None else options.step
            done, told = restore_command.restore(run_file, step, options.to, dry_run=dry_run, transfers=transfers)
        elif options.by_hand == "publish":
            done, told = store_commands.publish(run_file, options.step, dry_run=dry_run, transfers=transfers)
        else:
            done, told = store_commands.prune(run_file, dry_run=dry_run)
    _print_steps(done, told, as_json=options.as_json)
    return 0


def verify(options: argparse.Namespace) -> int:
    """Compare the store with its manifests; 1 when something is damaged. Raises SupervisorError."""
    run_file = where.run_file_of(options)
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    transfers = PatientTransfers(os.environ, run_file.store.stall_s)
    with show_transfers(transfers, quiet=options.as_json):
        found, told = store_commands.verify(
            run_file, options.step, options.deep, seed, transfers, has_job=where.has_run_file(options)
        )
    _print_steps(found | {"seed": seed}, told, as_json=options.as_json)
    return 1 if found["damaged"] else 0


def _print_steps(found: Mapping[str, Any], told: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**found, "sentences": told}, indent=2, ensure_ascii=False))
    else:
        print("\n".join(map(safe, told)))
