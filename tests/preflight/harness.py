"""Reads the cases of the corpus, makes each one's files, and asks what the checks say. See README.md."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from supervisor.preflight import Finding, eras, examine
from supervisor.preflight.gate import overrule_mistakes
from supervisor.preflight.gather import gather
from supervisor.preflight.models import ModelFacts
from supervisor.preflight.schema import Schema
from supervisor.preflight.site import Gpu, GpuProcess, Refused, Site, Volume
from supervisor.preflight.subject import Subject
from tests.primerl.eras import ERAS, write_checkout

CORPUS = Path(__file__).parent / "corpus"
GIB = 1 << 30
PARTS = ("trainer", "orchestrator", "inference")
_KEYS = {
    "about", "era", "as_of", "config", *PARTS, "kind", "args", "run", "files", "steps", "model", "site", "expect",
    "never", "warnings",
}  # fmt: skip
_EXPECT_KEYS = {"id", "file", "at", "line", "key", "says", "severity", "becomes"}


@dataclass(frozen=True)
class Expected:
    """One finding that a case must give."""

    id: str
    file: str = "config.toml"
    at: str = ""
    line: int | None = None
    key: str = ""
    says: tuple[str, ...] = ()
    severity: str = ""
    becomes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Case:
    """One file of the corpus."""

    name: str
    about: str
    files: Mapping[str, str]
    era: str = ""
    as_of: str = ""
    kind: str = "rl"
    args: tuple[str, ...] = ()
    run: str = ""
    steps: Mapping[int, int] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    site: Mapping[str, Any] = field(default_factory=dict)
    expect: tuple[Expected, ...] = ()
    never: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Must it give no error?"""
        return self.name.startswith("sound/")


@cache
def cases() -> Mapping[str, Case]:
    """All cases by name: the path below ``corpus/`` without its suffix."""
    return {one.name: one for one in map(_read, sorted(CORPUS.rglob("*.toml")))}


def _read(path: Path) -> Case:
    name = path.relative_to(CORPUS).with_suffix("").as_posix()
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert not (unknown := set(table) - _KEYS), f"{name} has keys that nothing reads: {sorted(unknown)}"
    assert str(table.get("about", "")).endswith("."), f"{name} needs `about`, a sentence"
    files = dict(table.get("files", {}))
    files |= {f"{part}.toml": table[part] for part in ("config", *PARTS) if part in table}
    case = Case(
        name=name,
        about=table["about"],
        files=files,
        era=table.get("era", ""),
        as_of=table.get("as_of", ""),
        kind=table.get("kind", "rl"),
        args=tuple(table.get("args", ())),
        run=table.get("run", ""),
        steps={int(step): size for step, size in table.get("steps", {}).items()},
        model=table.get("model", {}),
        site=table.get("site", {}),
        expect=tuple(_expected(name, one) for one in table.get("expect", ())),
        never=tuple(table.get("never", ())),
        warnings=tuple(table.get("warnings", ())),
    )
    assert case.sound != bool(case.expect), f"{name}: a mistake expects something, a sound case nothing"
    assert not case.era or case.era in ERAS, f"{name}: no era {case.era} in tests/primerl/eras.py"
    return case


def _expected(name: str, table: Mapping[str, Any]) -> Expected:
    assert not (unknown := set(table) - _EXPECT_KEYS), f"{name}: expect has keys that nothing reads: {sorted(unknown)}"
    lists = {key: tuple(table[key]) for key in ("says", "becomes") if key in table}
    return Expected(**{**table, **lists})


# ---------------------------------------------------------------- what it becomes


def subject_of(case: Case, here: Path) -> Subject:
    """The case's files in ``here``, and what is gathered of them with the case's site."""
    prime_rl = here / "prime-rl"
    if case.era:
        write_checkout(prime_rl, ERAS[case.era])
    prime_rl.mkdir(exist_ok=True)
    named = ["config.toml", *(f"{part}.toml" for part in PARTS)]
    start = [here / name for name in named if name in case.files]
    files = dict(case.files)
    if case.era or case.run or case.args or case.kind not in ("rl", "sft"):
        files["run.toml"] = case.run or _default_run(case)
        start = [here / "run.toml"]
    for name, text in files.items():
        place = here / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name not in named:
            text = text.replace("{here}", str(here)).replace("{prime_rl}", str(prime_rl))
        place.write_text(text, encoding="utf-8")
    site = site_of(case.site, here)
    subject = gather(start, environ=site.environ, site=site, as_of=day_of(case))
    if case.era and subject.schema is None:  # the checkout has identifiers only
        subject = replace(subject, schema=_schema(case.era, case.kind))
    if case.model:
        known = {one.name for one in fields(ModelFacts)}
        facts = {key: tuple(value) if isinstance(value, list) else value for key, value in case.model.items()}
        assert set(facts) <= known, f"{case.name}: ModelFacts has no {sorted(set(facts) - known)}"
        subject = replace(subject, model=ModelFacts(**{"name": "a model", **facts}))
    return replace(subject, steps=dict(case.steps)) if case.steps else subject


def _schema(commit: str, kind: str) -> Schema | None:
    schema = eras.on(ERAS[commit].day)[-1].schema(kind)
    return schema and replace(schema, exact=True, version="the installed prime-rl", day=None)


def found(case: Case, here: Path) -> list[Finding]:
    """Everything that the checks say of the case, its files written to ``here``."""
    subject = subject_of(case, here)
    return [*examine(subject), *overrule_mistakes(subject)]


def _default_run(case: Case) -> str:
    lines = ["[run]", 'id = "case"', 'state_dir = "{here}/state"', "", "[job]", f'kind = "{case.kind}"']
    lines += ['dir = "{prime_rl}"', 'python = "{prime_rl}/.venv/bin/python"']
    if "config.toml" in case.files:
        lines.append('config = "{here}/config.toml"')
    lines += [f'{part}_config = "{{here}}/{part}.toml"' for part in PARTS if f"{part}.toml" in case.files]
    if case.args:
        lines.append(f"args = {json.dumps(case.args)}")
    return "\n".join(lines) + "\n"


def site_of(table: Mapping[str, Any], here: Path) -> Site:
    """The pod that a case's ``site`` describes."""
    given = dict(table)
    gpus = None
    if "gpus" in given:
        total, name = given.pop("gpu_gib", 79.6), given.pop("gpu_name", "NVIDIA H100 80GB HBM3")
        free = given.pop("gpu_free_gib", total - 0.6)
        gpus = [
            _gpu({"index": n, "name": name, "total_gib": total, "free_gib": free}) for n in range(given.pop("gpus"))
        ]
    elif "gpu" in given:
        gpus = [_gpu(one) for one in given.pop("gpu")]
    models = {}
    for name, text in given.pop("hf_models", {}).items():
        models[name] = here / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "0"
        models[name].mkdir(parents=True)
        (models[name] / "config.json").write_text(text, encoding="utf-8")
    memory = given.pop("memory_gib", None)
    site = Site(
        gpus=gpus,
        memory_bytes=None if memory is None else int(memory * GIB),
        nofile=_pair(given.pop("nofile", None)),
        nproc=_pair(given.pop("nproc", None)),
        shm=_volume(given.pop("shm")) if "shm" in given else None,
        persistent=[_volume(one) for one in given.pop("persistent", ())],
        volumes={name: _volume(one) for name, one in given.pop("volumes", {}).items()},
        ports={int(port): who for port, who in given.pop("ports", {}).items()},
        hf_cache=Path(cache) if (cache := given.pop("hf_cache", "")) else None,
        hf_models=models,
        refused=[Refused(**one) for one in given.pop("refused", ())],
    )
    return replace(site, **given)


def _pair(value: Iterable[int] | None) -> tuple[int, int] | None:
    if value is None:
        return None
    soft, hard = value
    return soft, hard


def _volume(table: Mapping[str, Any]) -> Volume:
    kind, mount = table.get("kind", "ext4"), table.get("mount", "/data")
    return Volume(mount, kind, int(table["total_gib"] * GIB), int(table["free_gib"] * GIB))


def _gpu(table: Mapping[str, Any]) -> Gpu:
    index, total = table["index"], table.get("total_gib", 79.6)
    processes = [
        GpuProcess(one.get("pid", 0), one.get("name", ""), int(one.get("used_gib", 0) * GIB))
        for one in table.get("processes", ())
    ]
    free = total - 0.6 - sum(one.used_bytes for one in processes) / GIB
    return Gpu(
        index=index,
        uuid=table.get("uuid", f"GPU-00000000-0000-0000-0000-{index:012d}"),
        name=table.get("name", "NVIDIA H100 80GB HBM3"),
        total_bytes=int(total * GIB),
        free_bytes=int(table.get("free_gib", free) * GIB),
        processes=processes,
        capability=_pair(table.get("capability")),
    )


# ---------------------------------------------------------------- what is expected of it


def complaints(case: Case, findings: Iterable[Finding], here: Path) -> list[str]:
    """What of the case's expectations is not so; empty when all is well."""
    findings = list(findings)
    wrong = []
    met: list[Finding] = []
    for one in case.expect:
        same = [finding for finding in findings if finding.id == one.id]
        fitting = [finding for finding in same if not _misses(one, finding, case, here)]
        met += fitting
        if not same:
            wrong.append(f"{one.id} was not found")
        elif not fitting:
            wrong += [f"{one.id}: {miss}" for finding in same for miss in _misses(one, finding, case, here)]
    ids = {one.id for one in case.expect}
    wrong += [
        f"an error that nobody expected: {one.id}" for one in findings if one.weight == "error" and one.id not in ids
    ]
    wrong += [f"{name} must not be found" for name in case.never if any(one.id == name for one in findings)]
    if case.sound:
        warned = {one.id for one in findings if one.weight == "warning"}
        wrong += [f"a warning that nobody expected: {name}" for name in sorted(warned - set(case.warnings))]
        wrong += [f"the warning {name} was not found" for name in sorted(set(case.warnings) - warned)]
    return wrong


def _misses(one: Expected, finding: Finding, case: Case, here: Path) -> list[str]:
    wrong = []
    file = str(here / one.file) if one.file else ""
    if finding.where.file != file:
        wrong.append(f"stands in {finding.where.file or 'no file'}, not in {file or 'none'}")
    line = _line(one, case, here)
    if line is not None and finding.where.line != line:
        wrong.append(f"stands at line {finding.where.line}, not at line {line}")
    if one.key and finding.where.key != one.key:
        wrong.append(f"is about {finding.where.key or 'no key'}, not about {one.key}")
    wrong += [f"does not say {word!r}: {finding.sentence}" for word in one.says if word not in finding.sentence]
    if one.severity and finding.weight != one.severity:
        wrong.append(f"is of weight {finding.weight}, not {one.severity}")
    if one.becomes is not None:
        lines = tuple(line for edit in finding.edits for line in edit.lines)
        if lines != one.becomes:
            wrong.append(f"suggests the lines {lines}, not {one.becomes}")
    return wrong


def _line(one: Expected, case: Case, here: Path) -> int | None:
    if not one.at:
        return one.line
    lines = (here / one.file).read_text(encoding="utf-8").split("\n")
    places = [number for number, line in enumerate(lines, 1) if one.at in line]
    assert len(places) == 1, f"{case.name}: {one.at!r} stands in {len(places)} lines of {one.file}, and must in one"
    return places[0]


def shown(findings: Iterable[Finding]) -> str:
    """For people who read a failure."""
    lines = [f"{one.weight:8} {one.id}  {one.where}\n         {one.sentence}" for one in findings]
    return "\n".join(lines) or "nothing was found"


def day_of(case: Case) -> date | None:
    """The day for which the case is meant."""
    return date.fromisoformat(case.as_of) if case.as_of else None
