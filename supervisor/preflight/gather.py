"""Builds the Subject of a check: reads the run file and the trainer's configuration, and looks at what is installed.

Nothing that is wrong stops it. A mistake becomes a finding, and the rest is looked at as far as it can be: a person who
mends one line wants to know of the next one now, and not after the next attempt.
"""

from __future__ import annotations

import os
import re
import shlex
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from supervisor.base.errors import ConfigError, SupervisorError, UnknownDialectError
from supervisor.config import run_file as run_files
from supervisor.config.settings import RunFile
from supervisor.config.toml_positions import key_positions
from supervisor.jobs.base import GpuPlan, Job
from supervisor.preflight import eras, look, pydantic_source
from supervisor.preflight.finding import Finding, Where
from supervisor.preflight.installed import packages, text_of
from supervisor.preflight.models import facts_of
from supervisor.preflight.schema import Schema
from supervisor.preflight.site import Site
from supervisor.preflight.subject import ConfigText, How, Kind, Subject
from supervisor.preflight.telling_apart import is_hosted, is_run_file, part_of
from supervisor.preflight.toml_text import mend_text
from supervisor.primerl import command, configs, open_job
from supervisor.primerl.configs import Settings, Source
from supervisor.primerl.dialect import Dialect
from supervisor.primerl.probe import find_roots, probe
from supervisor.primerl.renames import spellings

LARGEST = configs.LARGEST
MOST_STEPS = 6
"""Newest steps that are looked into: one of a thousand says no more of their size, and each costs a read."""

MODELS = (
    "model.name",
    "trainer.model.name",
    "orchestrator.student.model.name",
    "orchestrator.model.name",
    "inference.model.name",
    "inference.vllm.model",
)
"""Where a configuration names the model: one for all parts, else that which is trained."""

# What opening the job would say again.
_SAID_BY_OPENING = {"prime-rl-not-found", "prime-rl-unknown"}
_PLACE = re.compile(r"^(?P<file>.+?) line (?P<line>\d+)(?:, column \d+)?: (?P<told>.*)$", re.DOTALL)
_UNKNOWN_KEY = re.compile(r'^\[(?P<section>[\w.]+)\] has no (?:setting )?"(?P<key>[^"]+)"')
_SECTION = re.compile(r"^(?:there is no|the) section \[(?P<section>\w+)\]")
_DOTTED_KEY = re.compile(r"^(?P<section>[a-z]+)\.(?P<key>[a-z_]+) = ")  # recovery.inference = "own-role" ...
_RUN_KEY = re.compile(r"^\[(?P<section>\w+)\](?: (?P<key>[a-z]\w*(?:[.\[][\w.\[\]]+)?)(?=[ :]))?")


def gather(
    path: Path | Sequence[Path],
    *,
    environ: Mapping[str, str],
    site: Site | None = None,
    as_of: date | None = None,
    job_dir: Path | None = None,
    run_file: RunFile | None = None,
) -> Subject:
    """Everything that the checks may ask of a run file, or of one or several configurations of prime-rl.

    ``environ``: what the daemon would have. ``site``: the pod, looked at here unless it is given. ``as_of``: where no
    prime-rl is installed, the one of that day is meant. ``job_dir``: the checkout, where no run file names it.
    ``run_file``: the settings of a run file that was read (and filled in) already.
    """
    paths = [path] if isinstance(path, Path) else list(path)
    if run_file is None and (len(paths) > 1 or not looks_like_run_file(paths[0])):
        return _of_configs(paths, environ, site, as_of, job_dir)
    return gather_run(paths[0], environ=environ, site=site, as_of=as_of, run_file=run_file)[0]


def looks_like_run_file(path: Path) -> bool:
    """Is it one of ours, and no configuration of prime-rl? A file that cannot be read counts as one."""
    if path.suffix == ".json" or not path.is_file():
        return path.suffix != ".json"
    text, problem = _read_text(path)
    if problem:
        return True  # the reader of run files says what is wrong with it
    return is_run_file(mend_text(path, text).data, text)


# ---------------------------------------------------------------- of a run file


def gather_run(
    path: Path,
    *,
    environ: Mapping[str, str],
    site: Site | None = None,
    as_of: date | None = None,
    run_file: RunFile | None = None,
) -> tuple[Subject, Job | None]:
    """The same for a run file, and its job where that can be opened."""
    text, _ = _read_text(path)
    positions = key_positions(text)
    run, found = (run_file, []) if run_file is not None else _read_run_file(path, text)
    if run is None:
        return Subject("command", Settings({}, ""), run_path=path, run_positions=positions, found=found), None
    kind: Kind = run.job.kind
    if kind in ("rl", "sft"):
        files = [_not_hosted(_config_text(one)) for one in configs.sources(run.job)]
    else:
        files = [_config_text(one) for one in configs.sources(run.job)] if kind == "vf-rl" else []
    found += [_before_setup(one, run) for file in files for one in file.found]
    tree = configs.merge_configs([(file.table, file.data) for file in files if file.data], run.job.args)
    where = ", ".join(str(file.path) for file in files)
    settings = Settings(tree, f"{where} (with [job] args)" if run.job.args else where)  # as the job's own sentences
    subject = Subject(
        kind=kind,
        settings=settings,
        texts=tuple(files),
        args=tuple(run.job.args),
        run_file=run,
        run_path=path,
        run_positions=positions,
        interval=run.job.first_interval,
        max_steps=run.run.max_steps,
    )
    if kind in ("rl", "sft"):
        folder = run.job.folder
        subject, more = _with_trainer(subject, folder, run, as_of)
        found += [_before_setup(one, run) for one in more]
    subject, job, more = _with_job(subject, run, environ, found)
    subject = _with_site(replace(subject, found=(*found, *more)), job, environ, site)
    return subject, job


def _before_setup(one: Finding, run: RunFile) -> Finding:
    """What is not there may be brought by [setup] commands, which only the pod runs."""
    absent = one.id in ("prime-rl-not-found", "config-missing")
    return replace(one, severity="warning") if absent and run.setup.commands else one


def _read_run_file(path: Path, text: str) -> tuple[RunFile | None, list[Finding]]:
    """What can be used of it, and what is wrong with it. Its settings are used without those that are wrong."""
    found: list[Finding] = []
    try:
        return run_files.load(path), found
    except ConfigError as error:
        told = str(error)
    better = mend_text(path, text) if text else None
    if better is not None and better.findings:
        # It is no TOML, and this says more of it; what else is wrong is seen behind that.
        found, told = list(better.findings), ""
        try:
            run_files.parse_model(path, better.text, RunFile)
        except ConfigError as error:
            told = str(error)
    found += [_run_mistake(path, line) for line in told.splitlines() if better is None or better.data is not None]
    data = None
    if better is not None and better.data is not None:
        data = {run_files.SECOND_NAMES.get(name, name): value for name, value in better.data.items()}
    while data is not None:
        try:
            return RunFile.model_validate(data), found
        except ValidationError as error:
            wrong = [detail["loc"] for detail in error.errors(include_url=False, include_context=False)]
            if not sum(_remove_value(data, place) for place in wrong):
                return None, found
    return None, found


def _run_mistake(path: Path, line: str) -> Finding:
    """A sentence of supervisor.config.run_file, with its place told apart."""
    place = _PLACE.match(line)
    if place is None:
        return Finding("run-file", line.removeprefix(f"{path}: "), Where(str(path)))
    return Finding("run-file", place["told"], Where(str(path), int(place["line"]), _key_named(place["told"])))


def _key_named(sentence: str) -> str:
    """``run.max_steps`` for a sentence on [run] max_steps."""
    if lacking := _UNKNOWN_KEY.match(sentence):
        return f"{lacking['section']}.{lacking['key']}"
    named = _RUN_KEY.match(sentence)
    if named is None:
        whole = _SECTION.match(sentence)
        return whole["section"] if whole else ""
    section, key = named.groups()
    # A word that is no setting is one of the sentence ("[job] has both ...").
    return f"{section}.{key}" if key and _is_setting(section, key) else str(section)


def _is_setting(section: str, key: str) -> bool:
    field = RunFile.model_fields.get(section)
    known = getattr(field.annotation, "model_fields", {}) if field else {}
    return re.split(r"[.\[]", key, maxsplit=1)[0] in known


def _remove_value(data: dict[str, Any], place: tuple[str | int, ...]) -> bool:
    """Take the value at ``place`` out; False where nothing can be (a known table as a whole is what is wrong)."""
    node: Any = data
    for part in place[:-1]:
        node = node.get(part) if isinstance(node, dict) else None
    whole = len(place) == 1 and place[0] in RunFile.model_fields
    if not place or whole or not isinstance(node, dict) or place[-1] not in node:
        return False
    del node[place[-1]]
    return True


# ---------------------------------------------------------------- of prime-rl's own configurations


def _of_configs(
    paths: Sequence[Path], environ: Mapping[str, str], site: Site | None, as_of: date | None, job_dir: Path | None
) -> Subject:
    files = [_config_text(Source(path)) for path in paths]
    parts = [part_of(file.path, file.data) for file in files]
    if set(parts) == {"other"}:
        found = [Finding("no-training", "It has settings of prime-rl's `eval` or `synthesize`.", Where(str(paths[0])))]
        return Subject("command", Settings({}, ", ".join(map(str, paths))), found=found)
    if parts == ["hosted"]:
        return Subject("command", Settings({}, str(paths[0])), found=_not_hosted(files[0]).found)
    kind: Kind = "sft" if parts == ["sft"] else "vf-rl" if parts == ["vf-rl"] else "rl"
    # Beside the files of other parts, one that looks like a hosted run's is the orchestrator's with a wrong model.
    parts = ["orchestrator" if part == "hosted" else part for part in parts]
    tables = [part if part in ("trainer", "orchestrator", "inference") else "" for part in parts]
    files = [replace(file, table=table) for file, table in zip(files, tables, strict=True)]
    found = [*(one for file in files for one in file.found), *_find_missing_files(paths, tables)]
    tree = configs.merge_configs([(file.table, file.data) for file in files if file.data], ())
    settings = Settings(tree, ", ".join(map(str, paths)))
    subject = Subject(
        kind=kind,
        settings=settings,
        texts=tuple(files),
        interval=settings.number(*spellings("ckpt.interval", "trainer.ckpt.interval")),
        max_steps=settings.number("max_steps", "trainer.max_steps", "orchestrator.max_steps"),
    )
    if kind != "vf-rl":
        subject, more = _with_trainer(subject, job_dir, None, as_of)
        found += more
    if subject.dialect is not None:
        alone = RunFile.model_validate({"run": {"id": "check"}, "job": {"dir": ".", "config": "rl.toml"}})
        # Files of single parts cannot name the GPUs: the command line does, and is not known here.
        split = any(tables) and not settings.has("inference_gpu_ids") and not settings.has("trainer_gpu_ids")
        plan = GpuPlan() if split else command.gpu_plan(alone, subject.dialect, settings, environ, sft=kind == "sft")
        found += _refusals_of_start(subject, configs.refusals(settings, subject.dialect, spread=subject.is_spread), ())
        subject = replace(subject, plan=plan)
    return _with_site(replace(subject, found=found), None, environ, site, job_dir)


def _find_missing_files(paths: Sequence[Path], tables: Sequence[str]) -> Iterator[Finding]:
    """Of the three files of a run, not all are named. Without one of inference, others run its engine."""
    missing = [part for part in ("trainer", "orchestrator") if part not in tables]
    if missing and all(tables):
        told = f"What the run is given for the {' and the '.join(missing)} is not looked at: no file of it is named."
        yield Finding("part-alone", told, Where(str(paths[0])))


# ---------------------------------------------------------------- one configuration file


def _config_text(source: Source) -> ConfigText:
    where = Where(str(source.path))
    text, problem = _read_text(source.path)
    if problem:
        missing = not source.path.exists()
        finding = Finding("config-missing" if missing else "config-unreadable", problem, where)
        return ConfigText(source.path, source.table, "", None, {}, (finding,))
    better = mend_text(source.path, text)
    # A mended text has its lines where they were.
    found = (*_has_byte_order_mark(source.path), *better.findings)
    return ConfigText(source.path, source.table, text, better.data, key_positions(better.text), found)


def _has_byte_order_mark(path: Path) -> Iterator[Finding]:
    """Some editors begin a file with a mark that they do not show, and Python's readers of TOML and JSON refuse it."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            return
    kind = "json" if path.suffix == ".json" else "toml"
    told = (
        f"{path.name} begins with a byte order mark (U+FEFF), and prime-rl's {kind.upper()} reader refuses that. "
        f"Remove it: sed -i '1s/^\\xEF\\xBB\\xBF//' {shlex.quote(str(path))}"
    )
    yield Finding(f"{kind}-syntax", told, Where(str(path), 1))


def _not_hosted(file: ConfigText) -> ConfigText:
    """One for Prime's hosted training is another language: that is said once, instead of once for each of its keys."""
    data = file.data
    if data is None or file.table or not is_hosted(data):
        return file
    place = file.positions.get(("model",))
    where = Where(str(file.path), place.line if place else 0, "model")
    told = (
        "It is a configuration of Prime's hosted training (`prime rl run`): its model is a text, and [[env]] and "
        "the batch stand beside it. prime-rl's own `rl` does not take it."
    )
    if "environments" in data and "env" not in data:
        told = told.replace("[[env]]", "environments")
    return replace(file, data=None, found=(*file.found, Finding("hosted-training", told, where)))


def _read_text(path: Path) -> tuple[str, str]:
    """The file's text, or "" and a sentence on why it has none."""
    try:
        if not path.is_file():  # a FIFO would be read for ever
            kind = "is no plain file" if path.exists() else "does not exist"
            return "", f"{path} {kind}."
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            return "", f"{path} has more than {LARGEST >> 20} MiB: that is no configuration."
        return content.decode("utf-8-sig"), ""
    except UnicodeDecodeError as error:
        return "", f"{path} is not UTF-8 text: {error.reason} at byte {error.start}."
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        return "", f"{path} cannot be read: {getattr(error, 'strerror', None) or error}."


# ---------------------------------------------------------------- the trainer


def _with_trainer(
    subject: Subject, folder: Path | None, run: RunFile | None, as_of: date | None
) -> tuple[Subject, list[Finding]]:
    """The installed prime-rl and how it speaks; else that of the day that was named, else what the keys fit."""
    found: list[Finding] = []
    dialect: Dialect | None = None
    how: How = ""
    others: list[eras.Era] = []
    roots: list[Path] = []
    keys: Schema | None = None
    if folder is not None:
        where = subject.run_where("job", "dir") if run is not None else Where(str(folder))
        said = f"[job] dir = {folder}" if run is not None else f"--job {folder}"
        remedy = (
            "" if run is not None else "Name a checkout of prime-rl with --job DIR: the folder that holds src/prime_rl."
        )
        python = command.interpreter(run) if run is not None else folder / ".venv" / "bin" / "python"
        if folder.is_dir():
            roots = find_roots(folder.expanduser().absolute(), python)
            try:
                dialect = probe(roots or [folder.expanduser().absolute() / "src" / "prime_rl"])
                how = "installed"
                keys = pydantic_source.read(roots, subject.kind, packages(python).folder_of("verifiers"))
            except UnknownDialectError as error:
                known = "prime-rl-unknown" if roots else "prime-rl-not-found"
                told = str(error) if roots or run is not None else f"{said}: there is no prime-rl in this folder."
                found.append(Finding(known, told, where, remedy))
        else:
            told = f"{said}: there is no such folder, and prime-rl should be in it."
            found.append(Finding("prime-rl-not-found", told, where, remedy))
    era: eras.Era | None = None
    if as_of is not None:  # a person's word: it may be the version that will be installed
        *others, era = eras.on(as_of)
        how = "as-of"
    elif dialect is None:
        fitting = eras.find_fitting_eras(subject.settings.tree, subject.kind)
        era, how = next(reversed(fitting), None), "guessed"
        others = [fitting[at] for at in sorted({0, len(fitting) // 2}) if at < len(fitting) - 1]
        if subject.settings.tree:
            found.append(_guess_era(subject, era))

    def keys_of(one: eras.Era) -> Schema:
        return replace(one.schema(subject.kind), exact=how == "as-of")

    if era is not None:
        dialect, keys = era.dialect, keys_of(era)
    if dialect is None:
        how = ""
    versions = [(one.dialect, keys_of(one)) for one in others]
    subject = replace(
        subject,
        dialect=dialect,
        dialect_from=how,
        as_of=as_of,
        schema=keys,
        roots=roots,
        others=versions,
        engine_cuts=_engine_cuts(roots) if how == "installed" else None,
    )
    return subject, found


def _engine_cuts(roots: Sequence[Path]) -> bool | None:
    """By the name of the patch that does it (82417b015, 2026-02-15); None where the engine's files are not there."""
    texts = [text_of(root / "inference" / "patches.py") for root in roots]
    return any("tokenize_params_validation" in text for text in texts) if any(texts) else None


def _guess_era(subject: Subject, era: eras.Era | None) -> Finding:
    missing, remedy = "No prime-rl is installed here", ""
    if subject.run_file is not None:
        missing, remedy = "No prime-rl was found", "Set [job] dir in the run file to its checkout."
    told = f"{missing}, and the keys fit none of its versions better than another: less can be said."
    if era is not None:
        told = f"{missing}, so this is checked as for {era.dialect.name}, the newest that the keys fit."
    return Finding("prime-rl-guessed", told, Where(str(subject.texts[0].path)) if subject.texts else Where(), remedy)


# ---------------------------------------------------------------- the job


def _with_job(
    subject: Subject, run: RunFile, environ: Mapping[str, str], found: Sequence[Finding]
) -> tuple[Subject, Job | None, list[Finding]]:
    """What the job says of itself: GPUs, steps on the disk, and why it would refuse to start."""
    try:
        job = open_job(run, environ)
    except (ConfigError, UnknownDialectError) as error:
        subject = _with_plan(subject, run, environ)
        broken = {str(text.path) for text in subject.texts}
        if any(one.id in _SAID_BY_OPENING or one.where.file in broken for one in found):
            return subject, None, []  # said already, with its place
        return subject, None, _refusals_of_start(subject, (), str(error).splitlines())
    subject = replace(
        subject,
        run_file=job.run,
        plan=job.gpus(),
        max_steps=run.run.max_steps or job.max_steps(),
        steps=_steps_of_job(job),
        revision=job.facts().revision,
    )
    spread = subject.is_spread
    places = configs.refusals(subject.settings, subject.dialect, spread=spread) if subject.dialect else ()
    return subject, job, [*_refusals_of_start(subject, places, job.problems()), *_find_links_to_steps(subject, job)]


def _with_plan(subject: Subject, run: RunFile, environ: Mapping[str, str]) -> Subject:
    plan = GpuPlan()
    if subject.dialect is not None:
        env = {**environ, **run.job.env}
        plan = command.gpu_plan(run, subject.dialect, subject.settings, env, sft=subject.kind == "sft")
    steps = subject.settings.number("max_steps", "trainer.max_steps", "orchestrator.max_steps")
    return replace(subject, plan=plan, max_steps=run.run.max_steps or steps)


def _find_links_to_steps(subject: Subject, job: Job) -> Iterator[Finding]:
    steps = (job.output_dir / job.place(0, "x")).parents[1]
    for folder in (steps, *steps.parents):
        if folder == job.output_dir:
            return
        if os.path.islink(folder):  # noqa: PTH114 - a disk that does not answer is told elsewhere
            told = f"{folder} is a symlink to {os.path.realpath(folder)}, and the steps of this run lie behind it."
            yield Finding("linked-checkpoints", told, subject.run_where("job", "output_dir"))


def _steps_of_job(job: Job) -> dict[int, int]:
    try:
        newest = sorted(job.steps())[-MOST_STEPS:]
        checked = {step: job.check_step(step, settled=True) for step in newest}
    except (OSError, SupervisorError):
        return {}
    return {step: one.size_bytes for step, one in checked.items() if one.state == "complete"}


def _refusals_of_start(
    subject: Subject, placed: Iterator[configs.Refusal] | tuple[()], told: Sequence[str]
) -> list[Finding]:
    """Why a start is refused whatever a person says. ``placed``: those of a key of the configuration."""
    places = {one.sentence: subject.where(one.key) for one in placed}
    sentences = dict.fromkeys([*places, *told])
    start = f"{subject.settings.where} "  # its place is told beside it
    return [
        Finding(
            "refused",
            f"It {one.removeprefix(start)}" if one.startswith(start) else one,
            places.get(one) or _place_in_run_file(subject, one),
        )
        for one in sentences
    ]


def _place_in_run_file(subject: Subject, sentence: str) -> Where:
    """``[gpus] ...`` is about [gpus] of the run file."""
    named = _RUN_KEY.match(sentence) or _DOTTED_KEY.match(sentence)
    if named is None or subject.run_path is None:
        return Where(str(subject.run_path or ""))
    section, key = named["section"], named["key"]
    if key and _is_setting(section, key):
        place = subject.run_where(section, key)
        return place if place.line else replace(place, line=subject.run_line(section))
    return subject.run_where(section)


# ---------------------------------------------------------------- the pod


def _own_logs(subject: Subject, job: Job | None) -> list[Path]:
    """The files of engine and orchestrator where the run writes them, which an earlier start may have left."""
    if job is not None and subject.kind == "rl":
        sources = [one for one in job.log_sources(Path("/")) if one.role in ("inference", "orchestrator")]
        return [Path(re.sub(r"\[([*?[])\]", r"\1", one.path)) for one in sources]  # no pattern, but for its escapes
    said = subject.settings.get("output_dir")
    folder = Path(said) if isinstance(said, str) and "\0" not in said else Path("outputs")
    names = [f"{role}.{end}" for role in ("inference", "orchestrator") for end in ("stdout", "log")]
    return [folder / "logs" / name for name in names] if subject.kind == "rl" else []


def _with_site(
    subject: Subject, job: Job | None, environ: Mapping[str, str], site: Site | None, checkout: Path | None = None
) -> Subject:
    if site is None:
        site = look.site(subject.run_file, job, environ, checkout=checkout)
        run = subject.run_file
        site = replace(
            site,
            refused=look.look_at_refused_prompts(run.state_dir if run is not None else None, _own_logs(subject, job)),
        )
    name = subject.settings.get(*MODELS)
    folder = subject.run_file.job.folder if subject.run_file is not None else Path.cwd()
    model = None
    if isinstance(name, str):
        model = facts_of(name, site.hf_models, folder)
    return replace(subject, site=site, model=model)
