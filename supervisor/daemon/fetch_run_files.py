"""On a fresh pod: the run's settings and the trainer's configuration come from the store when the pod lacks them.

Nothing from the store is trusted (promise 10). The pod's own run file decides what is started, where, and with which
environment; from the store come only numbers and limits of the run, and the trainer's configuration files, which the
pod's run file must name. No command, no path, no environment variable is ever taken from there.
"""

from __future__ import annotations

import base64
import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from supervisor.base.errors import ConfigError, StoreError, TryAgainError
from supervisor.base.logs import say
from supervisor.base.secrets import MASK
from supervisor.config.settings import RunFile
from supervisor.core.settings import DeadlineSettings
from supervisor.effects.run_files import MASKED
from supervisor.effects.transfers import Transfers, request

FROM_THE_STORE: dict[str, tuple[str, ...]] = {
    "run": ("max_steps",),
    "job": ("checkpoint_interval", "checkpoint_interval_between"),
    "wandb": ("id",),
    "store": ("keep_last", "keep_every"),
    "disk": ("prune_above", "keep_local"),
    "deadlines": tuple(one.name for one in fields(DeadlineSettings)),
    "recovery": ("max_restarts", "on_worthless", "backoff", "backoff_cap"),
}
"""Settings that a run file from the store may fill in where the pod's own file is silent."""


def fetch(run_file: RunFile, environ: Mapping[str, str]) -> dict[str, str]:
    """The small files of the run in the store, name -> text; empty when there are none.

    When the store cannot be read the pod's own files do, where it has all that it needs. Raises TryAgainError or
    ConfigError (a wrong key, a missing bucket) where a configuration can only come from the store.
    """
    try:
        answer = Transfers(environ, stall_s=120.0).run(request(run_file, "get-run-files"))
    except StoreError as error:
        missing = [
            path
            for path in _configuration_files(run_file)
            if not path.exists() and not _path_of_copy(path, run_file).exists()
        ]
        if missing:
            sentence = f"{missing[0]} is not on this pod, and the store that may hold it cannot be read: {error}"
            raise (ConfigError if error.kind in ("permanent", "quota") else TryAgainError)(sentence) from error
        say("warning", "next-pod", f"The run's settings could not be fetched from the store: {error}")
        return {}
    return {str(name): base64.b64decode(text).decode(errors="replace") for name, text in answer["files"].items()}


def fill_in(run_file: RunFile, path: Path, stored: Mapping[str, str]) -> RunFile:
    """``run_file`` with what it leaves open taken from the store; fetched trainer configs lie in the state folder."""
    own = tomllib.loads(path.read_text("utf-8-sig"))
    data = run_file.model_dump(exclude_unset=True)
    told = []
    for table, keys in FROM_THE_STORE.items():
        for key in keys:
            value = _stored_settings(stored).get(table, {}).get(key)
            if value is None or key in own.get(table, {}):
                continue
            if isinstance(value, str) and MASK in value:
                say("warning", "next-pod", f"{table}.{key} is masked in the store and not taken: set it in {path}.")
            else:
                data.setdefault(table, {})[key] = value
                told.append(f"{table}.{key}")
    job = data.get("job", {})
    for key in ("config", "trainer_config", "orchestrator_config", "inference_config"):
        if job.get(key):
            paths = job[key] if isinstance(job[key], list) else [job[key]]
            found = [_own_or_stored_config(Path(one), run_file, stored) for one in paths]
            job[key] = found if isinstance(job[key], list) else found[0]
    try:
        result = RunFile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        say("warning", "next-pod", f"The run's settings in the store are not used: {where}: {first['msg']}.")
        return run_file
    if told:
        say(
            "info", "next-pod", f"Taken from the store, since this pod's run file is silent on them: {', '.join(told)}."
        )
    return result


def _stored_settings(stored: Mapping[str, str]) -> dict[str, Any]:
    try:
        data = json.loads(stored.get("run.json", "{}"))
    except ValueError:
        return {}
    return {key: value for key, value in data.items() if isinstance(value, dict)} if isinstance(data, dict) else {}


def _configuration_files(run_file: RunFile) -> list[Path]:
    """The configuration files that the run file names, absolute."""
    job = run_file.job
    named = [*job.config, job.trainer_config, job.orchestrator_config, job.inference_config]
    return [_absolute_path(path, run_file) for path in named if path is not None]


def _absolute_path(path: Path, run_file: RunFile) -> Path:
    return run_file.job.folder / path.expanduser()


def _path_of_copy(path: Path, run_file: RunFile) -> Path:
    """Where the store's copy of a configuration file is put."""
    return run_file.state_dir / "fetched" / path.name


def _own_or_stored_config(path: Path, run_file: RunFile, stored: Mapping[str, str]) -> Path:
    """The pod's own configuration file, else the store's copy of it, put under the state folder."""
    absolute = _absolute_path(path, run_file)
    if absolute.exists():
        return path
    copy = _path_of_copy(path, run_file)
    masked = _stored_settings(stored).get(MASKED, {}).get("files")
    for name, text in sorted(stored.items()):
        if name.startswith("config-") and name.split("-", 2)[-1] == path.name:
            if isinstance(masked, list) and name in masked:
                what = f"{absolute} is not on this pod, and a secret was masked in the store's copy of it"
                say("warning", "next-pod", f"{what}, which is not used: put your own there.")
                continue
            copy.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            copy.write_text(text)
            say("info", "next-pod", f"{absolute} is not on this pod; the store's copy of it is used.")
            return copy
    return copy if copy.exists() else path
