"""``rl-supervisor check``: what is wrong with a run before a GPU is touched, and what would be done. Starts nothing."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from supervisor.base import env_file
from supervisor.base.beside import Beside
from supervisor.base.errors import SupervisorError, UsageError
from supervisor.base.secrets import mask_value, remember_environment
from supervisor.cli import findings, fixing, patience
from supervisor.cli.render import Paint
from supervisor.config.settings import RunFile
from supervisor.jobs.base import GpuPlan, Job, StartRequest
from supervisor.preflight import examine
from supervisor.preflight.examine import in_order
from supervisor.preflight.finding import Finding
from supervisor.preflight.gate import (
    add_standing_refusals,
    beaten,
    find_stopping_errors,
    lower_passing_errors,
    may_be_overruled,
    overrule_mistakes,
)
from supervisor.preflight.gather import gather, gather_run, looks_like_run_file
from supervisor.preflight.subject import Subject
from supervisor.storage import backends
from supervisor.storage.base import Store
from supervisor.storage.keys import find_missing_keys

EXIT_ERRORS = 1
EXIT_WARNINGS = 3  # with --strict
NETWORK_S = 120.0
"""Also for a store with very many files, listed over a slow link; one that is silent is given up long before."""
LONGEST_S, SLOWEST_S = 60.0, 1800.0
"""After these a check by hand is given up, without and with the slow looks: something hangs that should not."""
MANY = 5
"""Findings that a terminal shows at once."""
WAITS_S = 10.0
"""To end what took too long."""


@dataclass(frozen=True)
class Wish:
    """What the command line asks for."""

    as_json: bool = False
    online: bool = False
    measure: bool = False
    strict: bool = False
    brief: bool = False
    fix: bool = False
    write: bool = False
    overrule: Sequence[str] = ()
    as_of: date | None = None
    job_dir: Path | None = None
    limited: bool = False
    """The program is nothing but this check, and ends where a look hangs."""


def main(options: argparse.Namespace) -> int:
    """``rl-supervisor check``."""
    if options.explain:
        return explain(options.explain)
    given = {one.name: getattr(options, one.name) for one in fields(Wish) if one.name in options}
    return check(options.files, wish=Wish(**given, limited=True))


def check(
    paths: Path | Sequence[Path],
    *,
    as_json: bool = False,
    online: bool = False,
    wish: Wish | None = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Print a report; 0 when the run could be started, 1 when not, 3 where only ``strict`` minds.

    Raises UsageError for an id to overrule that does not exist, or where --write has nothing to do with the rest.
    """
    named = [paths] if isinstance(paths, Path) else list(paths)
    if not named:
        raise UsageError("check wants a file: RUN.toml, or the trainer's own configuration.")
    wish = wish or Wish(as_json=as_json, online=online)
    for name in wish.overrule:
        findings.find_rule(name)
    if wish.write and not wish.fix:
        raise UsageError("--write applies what --fix shows: say --fix --write.")
    remember_environment(environ)
    look = _look_in_time(named, wish, environ)
    if wish.fix:
        fixing.show(look.found, write=wish.write, command=_same_command(named, wish))
        if not wish.write:
            return _exit_code(look, wish)
        look = _look_in_time(named, wish, environ)  # what is left, from the files as they are now
    return _print_result(named, look, wish)


def explain(name: str) -> int:
    """Print what a finding means. Raises UsageError for one that does not exist."""
    print("\n".join(findings.explain_finding(name, columns=findings.width())))
    return 0


def problems(path: Path, run_file: RunFile, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Why ``check`` refuses this run file, as far as files can say it; empty when it does not.

    What only holds at this moment (a port in use, a GPU that is not empty) is left to the start.
    """
    subject, _ = gather_run(path, environ=environ, run_file=run_file)
    found = find_stopping_errors([*examine(subject), *_store_library(subject)], run_file.check.overrule)
    return [_tell_problem(one) for one in found if one.where.file]


def before_start(path: Path, settings: str, overrule: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """For the daemon (supervisor.daemon.start_check): print the findings as JSON. ``settings``: the run's, as JSON."""
    remember_environment(environ)
    run_file = RunFile.model_validate_json(settings)
    subject, _ = gather_run(path, environ=environ, run_file=run_file)
    overruled = frozenset([*overrule, *run_file.check.overrule])
    looked = in_order(lower_passing_errors([*examine(subject), *overrule_mistakes(subject)]))
    found = add_standing_refusals(looked, subject, overruled)
    told = [{**one.as_json(), "overruled": beaten(one, overruled)} for one in found]
    says = {"findings": told, "yields": may_be_overruled(looked, subject, overruled)}
    print(json.dumps(mask_value(says), ensure_ascii=False))
    return 0


# ---------------------------------------------------------------- looking


@dataclass
class _Look:
    """What one look at everything has brought."""

    report: dict[str, Any]
    found: list[Finding]
    overruled: frozenset[str]
    run_file: bool
    yields: bool = False
    """Would a start follow if all its errors were overruled?"""

    @property
    def stopping_errors(self) -> list[Finding]:
        return find_stopping_errors(self.found, self.overruled)


def _look_in_time(paths: Sequence[Path], wish: Wish, environ: Mapping[str, str]) -> _Look:
    if not wish.limited:
        return _look_at_files(paths, wish, environ)
    # What is printed afterwards may wait for a person who reads it page by page.
    with patience.within(SLOWEST_S if wish.online or wish.measure else LONGEST_S, "The check"):
        return _look_at_files(paths, wish, environ)


def _look_at_files(paths: Sequence[Path], wish: Wish, environ: Mapping[str, str]) -> _Look:
    report: dict[str, Any] = {"file": ", ".join(map(str, paths)), "ok": False, "problems": [], "notes": []}
    ours = len(paths) == 1 and looks_like_run_file(paths[0])
    job: Job | None = None
    if ours:
        beside = env_file.beside(paths[0])
        report["notes"] += beside.notes
        environ = {**environ, **beside.values}
        remember_environment(environ)
        subject, job = gather_run(paths[0], environ=environ, as_of=wish.as_of)
    else:
        subject = gather(paths, environ=environ, as_of=wish.as_of, job_dir=wish.job_dir)
    found = examine(subject)
    run_file = subject.run_file
    overruled = frozenset(wish.overrule)
    if run_file is not None:
        overruled |= frozenset(run_file.check.overrule)
        found += overrule_mistakes(subject)
        report |= _places_of_run(run_file)
        report["notes"] += _missing_keys(run_file, paths[0], environ)
        found += _store_library(subject)
        if job is not None:
            _describe_job(run_file, job, report, startable=not find_stopping_errors(found, overruled))
    elif not ours:
        _describe_configs(subject, report)
    if wish.online or wish.measure:
        found += _look_online(subject, found, environ, report, measure=wish.measure)
    looked = in_order(found)
    found = add_standing_refusals(looked, subject, overruled)
    look = _Look(report, found, overruled, ours)
    look.yields = ours and may_be_overruled(looked, subject, overruled)
    report["ok"] = not look.stopping_errors
    report["problems"] = [_tell_problem(one) for one in look.stopping_errors]
    report["findings"] = [{**one.as_json(), "overruled": beaten(one, overruled)} for one in look.found]
    return look


def _tell_problem(one: Finding) -> str:
    place = f"{one.where.file} line {one.where.line}: " if one.where.line else ""
    return f"{place}{one.sentence}"


def _look_online(
    subject: Subject, found: Sequence[Finding], environ: Mapping[str, str], report: dict[str, Any], *, measure: bool
) -> list[Finding]:
    """The slow looks, side by side: each has its own patience."""
    from supervisor.preflight import dry_run, environments, online  # they bring what a quick check need not

    unwanted = threading.Event()
    environment, trial = programs = ("The job's environment", "The dry run of prime-rl")
    looks: list[tuple[str, float, Callable[[], Sequence[Finding]]]] = [
        ("The network", NETWORK_S, lambda: online.findings(subject, environ, measure=measure)),
        (
            environment,
            environments.patience(subject),
            lambda: environments.slow_findings(subject, unwanted=unwanted),
        ),
        (
            trial,
            dry_run.TIMEOUT_S + WAITS_S,
            lambda: dry_run.findings(subject, known=found, unwanted=unwanted),
        ),
    ]
    run_file = subject.run_file
    if run_file is not None and run_file.store.url and not _store_library(subject):
        # The embedded default is made when the daemon starts.
        store = f"The store {run_file.store_url}"
        looks.append((store, NETWORK_S, lambda: _look_at_store(subject, run_file, environ, report)))
    began = time.monotonic()
    under_way = [(what, limit_s, Beside(look)) for what, limit_s, look in looks]
    told: list[Finding] = []
    try:
        for what, limit_s, look in under_way:
            try:
                told += look.result(began + limit_s)
            except TimeoutError:
                told.append(Finding("no-answer", f"{what} gave no answer within {limit_s:g} s, and was given up."))
    finally:
        unwanted.set()  # interrupted, or one failed or is late
        for what, _, look in under_way:
            if what in programs:  # each ends what it has started, which would outlive us
                look.wait(time.monotonic() + WAITS_S)
    return told


def _missing_keys(run_file: RunFile, path: Path, environ: Mapping[str, str]) -> list[str]:
    """What the store cannot be opened without, and neither environment nor the .env beside the run file has."""
    missing = find_missing_keys(run_file.store_url, path.stem, environ)
    told = f"The store {run_file.store_url} needs {' and '.join(missing)}, which neither this environment nor "
    return [f"{told}{path.with_suffix('.env')} has: the run would stop and ask for it."] if missing else []


def _places_of_run(run_file: RunFile) -> dict[str, Any]:
    return {
        "run": run_file.run.id,
        "socket": str(run_file.socket),
        "state_dir": str(run_file.state_dir),
        "output_dir": str(run_file.output_dir),
        "store": run_file.store_url,
    }


def _describe_job(run_file: RunFile, job: Job, report: dict[str, Any], *, startable: bool) -> None:
    facts = job.facts()
    report["job"], report["revision"] = facts.name, facts.revision
    report["output_dir"] = str(job.output_dir)
    report["notes"] += list(facts.notes)
    if not run_file.store.url:
        report["notes"].append(
            "No [store] url is set: steps are kept in a folder on this machine, which a lost pod takes with it."
        )
    report["max_steps"] = run_file.run.max_steps or job.max_steps()
    report["gpus"] = _gpus_in_words(job.gpus())
    engine = job.engine()
    report["engine"] = engine.url if engine else None
    report["recovery"] = _unusual_recovery(job.run)
    if startable and not job.problems():
        report["commands"] = _command_lines(job.run, job)


def _describe_configs(subject: Subject, report: dict[str, Any]) -> None:
    """Without a run file: as what the configurations were checked."""
    if subject.dialect is not None:
        how = {"installed": "", "as-of": ", as of the day that was named", "guessed": ", as its keys have it"}
        kind = "SFT of " if subject.kind == "sft" else ""
        report["job"] = f"{kind}{subject.dialect.name}{how.get(subject.dialect_from, '')}"
        report["gpus"] = _gpus_in_words(subject.plan)
    report["max_steps"] = subject.max_steps


def _gpus_in_words(plan: GpuPlan) -> str:
    if plan.is_shared:
        return f"{', '.join(plan.inference)} shared by engine and trainer"
    parts = [(plan.inference, "inference"), (plan.trainer, "trainer")]
    return "; ".join(f"{name} {', '.join(gpus)}" for gpus, name in parts if gpus) or "not named"


def _unusual_recovery(run_file: RunFile) -> str:
    """What is unusual about it, "" where nothing is."""
    told = []
    if run_file.recovery.mode == "observe":
        told.append("observes only: publishes, and starts, stops and deletes nothing")
    if run_file.recovery.inference == "own-role":
        told.append("the inference server is started beside the job, as a role of its own")
    return "; ".join(told)


def _command_lines(run_file: RunFile, job: Job) -> list[str]:
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


# ---------------------------------------------------------------- the store


def _store_library(subject: Subject) -> list[Finding]:
    """What the store needs besides, where it is not installed."""
    url = subject.run_file.store_url if subject.run_file else ""
    backend = backends.backend_of(url)
    if backend is None or not backend.library or find_spec(backend.module) is not None:
        return []
    pip = f"{sys.executable} -m pip install 'rl-supervisor[{backend.scheme}]'"
    told = f"The store {url} needs {backend.module}, which is not installed here: {pip}"
    return [Finding("refused", told, replace(subject.run_where("store", "url"), line=0), remedy=f"Run: {pip}")]


def _look_at_store(
    subject: Subject, run_file: RunFile, environ: Mapping[str, str], report: dict[str, Any]
) -> Sequence[Finding]:
    """Look at the store, its key and who holds the run; what is found becomes findings and notes. Writes nothing."""
    from supervisor.preflight.online import open_run_store
    from supervisor.storage.bucket import survey

    where = subject.run_where("store", "url")
    report["store_reachable"] = False
    try:
        store = open_run_store(run_file, environ)
        found = survey(store, run_file.run.id)
        report["notes"] += [note for note in found.notes if note not in found.ids]
        if not found.problems:
            report["notes"] += _holder_of_run(store, run_file.run.id)
    except SupervisorError as error:
        told = f"The store {run_file.store_url} cannot be used: {str(error).rstrip('.')}."
        return [Finding("store-unusable", told, where)]
    report["store_reachable"] = not found.problems
    noted = [Finding(found.ids[note], note, where) for note in found.notes if note in found.ids]
    return [*noted, *(Finding("store-unusable", problem, replace(where, line=0)) for problem in found.problems)]


def _holder_of_run(store: Store, run_id: str) -> list[str]:
    """The pod that holds the run now, if one does."""
    from supervisor.checkpoints.claims import look
    from supervisor.checkpoints.writers import host_of

    standing = look(store, run_id)
    if not standing.generation or standing.released:
        return []
    told = (
        f"Pod {host_of(standing.writer)} holds the run (generation {standing.generation}). Another pod that is started "
        "waits until that one has been silent for store.take_over_after; `rl-supervisor run RUN.toml --take-over` does "
        "not wait."
    )
    return [told]


# ---------------------------------------------------------------- printing


def _exit_code(look: _Look, wish: Wish) -> int:
    if look.stopping_errors:
        return EXIT_ERRORS
    minded = any(one.weight == "warning" for one in look.found)
    return EXIT_WARNINGS if wish.strict and minded else 0


def _print_result(paths: Sequence[Path], look: _Look, wish: Wish) -> int:
    if wish.as_json:
        print(json.dumps(mask_value(look.report), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines_to_print(paths, look, wish)))
    return _exit_code(look, wish)


def _lines_to_print(paths: Sequence[Path], look: _Look, wish: Wish) -> list[str]:
    report = look.report
    paint, columns = Paint.for_stdout(), findings.width()
    number = findings.count(look.found, look.overruled)
    minded = number if any(one.weight != "note" for one in look.found) else ""
    if not look.run_file:
        verdict = f"{report['file']}: {minded or 'nothing wrong was found'}."
        if minded and not look.stopping_errors:
            verdict = f"{report['file']}: no errors, {minded}."
    elif report["ok"]:
        verdict = f"{report['file']} can be started{f': {minded}' if minded else ''}."
    else:
        verdict = f"{report['file']} cannot be started: {minded}."
    lines = [verdict]
    lines += findings.lines(look.found, look.overruled, brief=wish.brief, paint=paint, columns=columns)
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
    summary = [f"  {label:<10} {report[key]}" for key, label in labels.items() if report.get(key) not in (None, "")]
    summary += [f"  {'command':<10} {command}" for command in report.get("commands", ())]
    summary += [f"  {'note':<10} {note}" for note in report["notes"]]
    if wish.brief:
        return lines
    gap = [""] if look.found and summary else []
    lines += [*gap, *summary]
    if look.stopping_errors:
        lines += ["", *_way_on(paths, look, wish)]
    return lines


def _same_command(paths: Sequence[Path], wish: Wish) -> str:
    """The same check again, to be pasted."""
    words = ["rl-supervisor", "check", *map(str, paths)]
    words += ["--job", str(wish.job_dir)] if wish.job_dir else []
    words += ["--as-of", str(wish.as_of)] if wish.as_of else []
    return shlex.join(words)


def _way_on(paths: Sequence[Path], look: _Look, wish: Wish) -> list[str]:
    """What to type next. What scrolled away comes first, and what goes around the errors last."""
    again, told = _same_command(paths, wish), []
    if len(look.found) > MANY:
        told.append(f"All in one line each:    {again} --brief")
    if any(one.edits for one in look.found):
        told.append(f"Show what would mend it: {again} --fix")
    told.append(f"Explain one:             rl-supervisor check --explain {look.stopping_errors[0].id}")
    ids = list(dict.fromkeys(one.id for one in look.stopping_errors))
    if look.yields:
        words = " ".join(f"--overrule {name}" for name in ids)
        told.append(f"Start anyway:            rl-supervisor run {shlex.quote(str(paths[0]))} {words}")
        told.append(f"  or for good:           overrule = {json.dumps(ids)} in [check] of the run file")
    return told
