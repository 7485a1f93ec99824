"""What a start of prime-rl is given beside the person's own configuration, with what that says instead.

The words are those of ``command``, the very ones that the launcher gets: there is no second list.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping

from supervisor.config.settings import RunFile
from supervisor.jobs.base import Change, StartRequest
from supervisor.jobs.environment import open_files, set_variables, with_own
from supervisor.jobs.wandb_client import wandb_variables
from supervisor.primerl import command, inference
from supervisor.primerl.configs import Settings
from supervisor.primerl.dialect import Dialect


def changes(
    run: RunFile,
    dialect: Dialect,
    settings: Settings,
    environ: Mapping[str, str],
    request: StartRequest,
) -> Iterator[Change]:
    """In the order of the command line, then variables, then the rest. ``environ``: the daemon's own."""
    sft = run.job.kind == "sft"
    for one in command.list_added(run, dialect, settings, request):
        yield Change(shlex.join(one.words), one.why, _persons_own_value(settings, one))
    if inference.is_asked_for(run):
        yield Change(
            shlex.join([*inference.words(run), "@", str(run.job.inference_config)]),
            'recovery.inference = "own-role": each half is restarted without the other where that is safe',
        )
    own = with_own(environ, run.job.env)
    offline = command.is_offline(settings, own)
    fixed = command.environment(run, dialect, request, sft=sft, offline=offline)
    if command.uses_wandb(settings):
        fixed |= wandb_variables(run, environ, request.wandb_notes)
    yield from set_variables(fixed, own)
    path = command.variables_of_activation(run, own).get("PATH")
    if path is not None:
        first = path.split(":", 1)[0]
        yield Change(f"PATH={first}:...", "the environment of [job] dir comes first, as after `activate`")
    yield open_files(run.job.nofile)


def _persons_own_value(settings: Settings, one: command.Added) -> str:
    """What the person's configuration says of the same setting, "" where that is nothing or the same."""
    value = settings.get(one.key)
    if value is None or isinstance(value, Mapping):
        return ""
    given = one.words[-1] if len(one.words) > 1 else ""
    same = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    if given and same == given:
        return ""
    return f"{one.key} = {json.dumps(value, default=str)}"
