"""``rl-supervisor check``: load a run file, open its job, and say what would be done with it. Starts nothing."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from supervisor import env_file
from supervisor.config import RunFile, load
from supervisor.errors import ConfigError, SupervisorError, UnknownDialectError
from supervisor.jobs.base import GpuPlan, Job, StartRequest
from supervisor.secrets import masked, masked_all, remember_environment
from supervisor.storage import keys
from supervisor.storage.base import Store


def check(path: Path, *, as_json: bool = False, online: bool = False, environ: Mapping[str, str] = os.environ) -> int:
    """Print a report; 0 when the run could be started, 1 when not. Warnings alone are no failure."""
    remember_environment(environ)
    report: dict[str, Any] = {"file": str(path), "ok": False, "problems": [], "notes": []}
    try:
        run_file = load(path)
    except ConfigError as error:
        report["problems"] = str(error).splitlines()
        return _print(report, as_json)
    report |= _places(run_file)
    beside = env_file.beside(path)
    if beside is not None:
        report["notes"] += beside.notes
    own, environ = environ, {**environ, **(beside.values if beside is not None else {})}
    remember_environment(environ)
    report["notes"] += _keys(run_file, path, own, environ)
    usable = _examine(run_file, environ, report)
    if online and run_file.store.url and usable:  # the embedded default is made when the daemon starts
        report["store_reachable"] = _reach(run_file, environ, report)
    report["ok"] = not report["problems"]
    return _print(report, as_json)


def problems(run_file: RunFile, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Why ``check`` refuses this run file, as far as can be said without the network; empty when it does not."""
    report: dict[str, Any] = {"problems": [], "notes": []}
    _examine(run_file, environ, report)
    return [masked(problem) for problem in report["problems"]]


def _examine(run_file: RunFile, environ: Mapping[str, str], report: dict[str, Any]) -> bool:
    """Fill in what the job says of itself. Whether what its store needs is installed here."""
    try:
        _describe_job(run_file, environ, report)
    except (ConfigError, UnknownDialectError) as error:
        report["problems"] += str(error).splitlines()
    missing = _missing_library(run_file.store_url)
    report["problems"] += missing
    return not missing


def _keys(run_file: RunFile, path: Path, own: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """What the store cannot be opened without and is nowhere, and what only the .env beside the run file has."""
    file = path.with_suffix(".env")
    told = ""
    if missing := keys.missing(run_file.store_url, path.stem, environ):
        told = (
            f"The store {run_file.store_url} needs {' and '.join(missing)}, which neither this environment nor {file} "
            "has: the run would stop and ask for it."
        )
    elif theirs := keys.missing(run_file.store_url, path.stem, own):
        told = (
            f"{' and '.join(theirs)} stand{'s' if len(theirs) == 1 else ''} in {file}, which systemd and onstart.sh "
            "read; `rl-supervisor run` by hand wants them in its environment."
        )
    return [told] if told else []


def _places(run_file: RunFile) -> dict[str, Any]:
    return {
        "run": run_file.run.id,
        "socket": str(run_file.socket),
        "state_dir": str(run_file.state_dir),
        "output_dir": str(run_file.output_dir),
        "store": run_file.store_url,
    }


def _describe_job(run_file: RunFile, environ: Mapping[str, str], report: dict[str, Any]) -> None:
    from supervisor.primerl import open_job

    job = open_job(run_file, environ)
    facts = job.facts()
    report["job"], report["revision"] = facts.name, facts.revision
    report["output_dir"] = str(job.output_dir)
    report["notes"] += list(facts.notes)
    report["problems"] += list(job.problems())
    if not run_file.store.url:
        report["notes"].append(
            "No [store] url is set: steps are kept in a folder on this machine, which a lost pod takes with it."
        )
    report["max_steps"] = run_file.run.max_steps or job.max_steps()
    report["gpus"] = _gpus(job.gpus())
    engine = job.engine()
    report["engine"] = engine.url if engine else None
    report["recovery"] = _recovery(run_file)
    if not report["problems"]:
        report["commands"] = _commands(run_file, job)


def _gpus(plan: GpuPlan) -> str:
    if plan.shared:
        return f"{', '.join(plan.inference)} shared by engine and trainer"
    parts = [(plan.inference, "inference"), (plan.trainer, "trainer")]
    return "; ".join(f"{name} {', '.join(gpus)}" for gpus, name in parts if gpus) or "not named"


def _recovery(run_file: RunFile) -> str:
    """What is unusual about it, "" where nothing is."""
    told = []
    if run_file.recovery.mode == "observe":
        told.append("observes only: publishes, and starts, stops and deletes nothing")
    if run_file.recovery.inference == "own-role":
        told.append("the inference server is started beside the job, as a role of its own")
    return "; ".join(told)


def _commands(run_file: RunFile, job: Job) -> list[str]:
    """The command lines of a fresh start, in the job's own dialect."""
    request = StartRequest(
        run_id=run_file.run.id,
        attempt=1,
        step=None,
        configs={path: path for path in job.config_files()},
        wandb_id=run_file.wandb.id or "WANDB_ID",
        attempt_dir=run_file.state_dir / "attempts" / "1",
    )
    parts = list(job.components(request))
    if run_file.recovery.inference == "own-role":
        parts.insert(0, job.engine_component(request))
    return [f"cd {part.cwd} && {shlex.join(part.argv)}" for part in parts]


def _missing_library(url: str) -> list[str]:
    """What an s3:// store needs besides, where it is not installed."""
    if not url.startswith("s3://") or find_spec("botocore") is not None:
        return []
    pip = f"{sys.executable} -m pip install 'rl-supervisor[s3]'"
    return [f"The store {url} needs botocore, which is not installed here: {pip}"]


def _reach(run_file: RunFile, environ: Mapping[str, str], report: dict[str, Any]) -> bool:
    """Look at the store, its key and who holds the run; what is found becomes notes and problems. Writes nothing."""
    from supervisor.storage import open_store
    from supervisor.storage.bucket import survey

    try:
        where = run_file.store
        store = open_store(run_file.store_url, where.service, environ, region=where.region)
        found = survey(store, run_file.run.id)
        report["problems"] += found.problems
        report["notes"] += found.notes
        if not found.problems:
            report["notes"] += _holder(store, run_file.run.id)
    except SupervisorError as error:
        report["problems"].append(f"The store {run_file.store_url} cannot be used: {str(error).rstrip('.')}.")
        return False
    return not found.problems


def _holder(store: Store, run_id: str) -> list[str]:
    """The pod that holds the run now, if one does."""
    from supervisor.checkpoints.claims import host_of, look

    standing = look(store, run_id)
    if not standing.generation or standing.released:
        return []
    told = (
        f"Pod {host_of(standing.writer)} holds the run (generation {standing.generation}). Another pod that is started "
        "waits until that one has been silent for store.take_over_after; `rl-supervisor run RUN.toml --take-over` does "
        "not wait."
    )
    return [told]


def _print(report: Mapping[str, Any], as_json: bool) -> int:
    if as_json:
        print(json.dumps(masked_all(report), indent=2, ensure_ascii=False))
    else:
        print(masked("\n".join(_lines(report))))
    return 0 if report["ok"] else 1


def _lines(report: Mapping[str, Any]) -> list[str]:
    lines = []
    labels = {
        "run": "run",
        "job": "job",
        "revision": "revision",
        "max_steps": "last step",
        "gpus": "GPUs",
        "engine": "engine",
        "recovery": "recovery",
        "output_dir": "output",
        "store": "store",
        "state_dir": "state",
        "socket": "socket",
    }
    lines += [f"  {label:<10} {report[key]}" for key, label in labels.items() if report.get(key) not in (None, "")]
    lines += [f"  {'command':<10} {command}" for command in report.get("commands", ())]
    lines += [f"  {'note':<10} {note}" for note in report["notes"]]
    lines += [f"  {'problem':<10} {problem}" for problem in report["problems"]]
    count = len(report["problems"])
    verdict = "can be started" if report["ok"] else f"cannot be started: {count} problem{'s' if count > 1 else ''}"
    return [f"{report['file']} {verdict}.", *lines]
