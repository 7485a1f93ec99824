"""Checkpoints and resuming - whether and when they are written, kept, and what would delete them.

The supervisor itself says at each start when checkpoints are written, that none is deleted, where the run's folder is
and from which step it goes on. What a configuration says of these is a note at most; without a run file it counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from supervisor.preflight.finding import Finding, Severity, Where
from supervisor.preflight.reading import first, has, number, switched_on
from supervisor.preflight.subject import Check, Subject
from supervisor.primerl import configs
from supervisor.primerl.renames import spellings

FEW_STEPS = 20
"""A run of so few steps tries something out; losing it is no loss to warn of."""

# Last part of the key that configs.refusals names, and what the refusal is called here.
_REFUSED = {
    "weights_only": "weights-only",
    "output_dir": "checkpoints-elsewhere",
    "resume_step": "resume-by-hand",
    "resume": "resume-by-hand",
    "clean": "clean-at-start",
    "clean_output_dir": "clean-at-start",
    "dry_run": "nothing-trained",
    "dump_config": "nothing-trained",
    "toml_files": "other-files",
}
_WHAT = {
    "weights-only": "{key} is on: no checkpoint would hold what a resume needs.",
    "checkpoints-elsewhere": '{key} = "{value}" takes the trainer\'s part of each checkpoint away from the rest.',
    "resume-by-hand": "{key} is set, and the supervisor names the step to resume from at each start.",
    "clean-at-start": "{key} is on: every start would delete the run's checkpoints.",
    "nothing-trained": "{key} is on: the launcher writes its configuration down and ends.",
    "other-files": "{key} takes in other files, which the copies that each attempt runs from do not reach.",
    "nccl-cannot-resume": '{key} = "{value}", and with {dialect} such a run cannot resume.',
}
_SKIPS = ("skip_optimizer", "skip_scheduler", "skip_progress", "skip_dataloader")


def _check_refused(subject: Subject) -> Iterator[Finding]:
    """What the supervisor refuses for the checkpoints' sake. The condition of each stands in configs.refusals alone."""
    if subject.dialect is None or subject.kind not in ("rl", "sft"):
        return
    for one in configs.refusals(subject.settings, subject.dialect, spread=subject.is_spread):
        where = subject.where(one.key)
        if "weight_broadcast" in one.key:
            name = "nccl-cannot-resume"
        else:
            name = _REFUSED.get(one.key.rpartition(".")[2], "")
        if name and where.line:
            value = subject.settings.get(one.key)
            told = _WHAT[name].format(key=one.key, value=value, dialect=subject.dialect.name)
            yield Finding(name, told, where)


# ---------------------------------------------------------------- when, and how many


def _checkpoint_tables(subject: Subject) -> tuple[str, ...]:
    return ("ckpt", "trainer.ckpt", "orchestrator.ckpt") if subject.kind == "rl" else ("ckpt",)


def _check_supervised(subject: Subject) -> Severity | None:
    """A note where the supervisor overrules it anyway, else the rule's own severity."""
    return "note" if subject.run_file is not None else None


def _switched_off(subject: Subject) -> Iterator[Finding]:
    if subject.kind not in ("rl", "sft") or not subject.knows("trainer"):
        return
    tables = _checkpoint_tables(subject)
    intervals = spellings(*(f"{one}.interval" for one in tables))
    steps = f"; this supervisor starts it with one every {subject.interval} steps" if subject.run_file else ""
    table = next((one for one in tables if subject.settings.has(one)), "")
    if not table:
        told = f"There is no [ckpt], so prime-rl alone would write no checkpoint{steps}."
        yield Finding("checkpointing-off", told, subject.file("ckpt"), severity=_check_supervised(subject))
    elif first(subject, *intervals) is None and has(subject, date(2025, 12, 3)) is True:
        told = f"[{table}] has no interval, so prime-rl alone would save after the last step only{steps}."  # 1a28ff3d9
        yield Finding("checkpoint-interval-missing", told, subject.where(table), severity=_check_supervised(subject))


def _after_the_end(subject: Subject) -> Iterator[Finding]:
    interval, last = subject.interval, subject.max_steps
    if interval and last and 0 < last < interval and subject.kind != "command":
        if subject.run_file is not None:
            where = subject.run_where("job", "checkpoint_interval")
            remedy = f"Set [job] checkpoint_interval of the run file to {max(1, last // 10)}, for example."
        else:
            where, remedy = subject.where(*spellings("ckpt.interval", "trainer.ckpt.interval")), ""
        told = f"A checkpoint every {interval} steps, and the run ends at step {last}."
        yield Finding("checkpoint-after-the-end", told, where, remedy, "note" if last <= FEW_STEPS else None)


def _check_intervals(subject: Subject) -> Iterator[Finding]:
    found = [number(subject, *spellings(f"{table}.interval")) for table in _checkpoint_tables(subject)]
    _, trainer, orchestrator = found if len(found) == 3 else (None, None, None)
    if trainer and orchestrator and trainer.value != orchestrator.value:
        told = f"{trainer.path} = {trainer.value}, and {orchestrator.path} = {orchestrator.value}."
        where = subject.where(orchestrator.path)
        yield Finding("checkpoint-intervals-differ", told, where, severity=_check_supervised(subject))
    own = next((one for one in found if one), None)
    if own and subject.run_file is not None and own.value != subject.interval:
        told = f"{own.path} = {own.value} is overruled: the run file says every {subject.interval} steps."
        remedy = f"Set [job] checkpoint_interval = {own.value} in the run file if that is what you want."
        yield Finding("checkpoint-interval-overruled", told, subject.where(own.path), remedy)


def _check_keep(subject: Subject) -> Iterator[Finding]:
    paths = spellings(*(f"{table}.keep" for table in _checkpoint_tables(subject)))
    for kept in (number(subject, path) for path in paths):
        if kept and (kept.value == 1 or (kept.value < 1 and subject.run_file is not None)):  # else it is refused
            overruled = ": overruled, only the supervisor deletes checkpoints" if subject.run_file else ""
            told = f"{kept.path} = {kept.value} keeps one checkpoint{overruled}."
            yield Finding("keep-one", told, subject.where(kept.path), severity=_check_supervised(subject))


def _check_forgetting(subject: Subject) -> Iterator[Finding]:
    for table in _checkpoint_tables(subject):
        for name in _SKIPS:
            if path := switched_on(subject, f"{table}.{name}"):
                what = name.removeprefix("skip_")
                told = f"{path} is on: each resume, also after a crash, begins without the checkpoint's {what}."
                yield Finding("resume-forgets", told, subject.where(path))


def _nothing_left(subject: Subject) -> Iterator[Finding]:
    newest = max(subject.steps, default=0)
    if subject.max_steps and subject.max_steps > 0 and newest >= subject.max_steps:
        told = f"The newest checkpoint here is of step {newest}, and the run ends at step {subject.max_steps}."
        where = subject.run_where("run", "max_steps")
        if not where.line:
            where = subject.where("max_steps", "trainer.max_steps", "orchestrator.max_steps")
        yield Finding("nothing-left-to-train", told, where)


# ---------------------------------------------------------------- where


def _run_name(subject: Subject) -> Iterator[Finding]:
    """Since e26b50503 the run's folder is named by it, and without one every start is a new run."""
    named = first(subject, "run.name", "run.dir")
    if subject.dialect is None or subject.dialect.clean != "run-dir":
        return
    if subject.run_file is None and named is None:
        yield Finding("run-name-not-pinned", "Neither run.name nor run.dir is set.", subject.file("run.name"))
    elif subject.run_file is not None and named and named.value != subject.run_file.run.id:
        told = f'{named.path} = "{named.value}" is overruled: the run is called {subject.run_file.run.id}.'
        yield Finding("run-name-overruled", told, subject.where(named.path))


def _output_dir(subject: Subject) -> Iterator[Finding]:
    said = subject.settings.get("output_dir")
    if subject.run_file is None or not isinstance(said, str) or "\0" in said or subject.kind not in ("rl", "sft"):
        return
    if subject.run_file.job.folder / said != subject.run_file.output_dir:
        told = f'output_dir = "{said}" is overruled: the job writes to {subject.run_file.output_dir}.'
        remedy = f'Set [job] output_dir = "{said}" in the run file if that is what you want.'
        yield Finding("output-dir-overruled", told, subject.where("output_dir"), remedy)


def _check_store(subject: Subject) -> Iterator[Finding]:
    """Without a store, published steps lie in a folder of this machine, and go with it."""
    site = subject.site
    if subject.run_file is None or subject.run_file.store.url is not None or not (site.provider or site.container):
        return
    if subject.run_line("store", "url"):
        return  # one is named, in words that are not understood: another finding says so
    state = site.volumes.get("state")
    stays = state is not None and state.mount in {one.mount for one in site.persistent}
    rented = f"This pod is rented from {site.provider}" if site.provider else "This is a container"
    told = f"{rented}, and the run file names no store."
    where = subject.run_where("store")
    severity: Severity | None = None if site.provider and not stays else "note"
    yield Finding("no-store", told, Where(where.file, where.line, "store.url"), severity=severity)


CHECKS: tuple[Check, ...] = (
    _check_refused,
    _switched_off,
    _after_the_end,
    _check_intervals,
    _check_keep,
    _check_forgetting,
    _nothing_left,
    _run_name,
    _output_dir,
    _check_store,
)
