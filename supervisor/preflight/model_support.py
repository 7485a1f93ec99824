"""Models that cannot be trained or served, from ``model_support.toml``: what fits, when, and what happens then.

The table is data, so that a person who met one more can add it without code. Each entry points at a rule of
``rules/model_support.toml`` and says for which models, which versions and which settings it holds.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal

from supervisor.preflight.estimate_inputs import is_training
from supervisor.preflight.finding import SEVERITIES, Finding, Severity, Where
from supervisor.preflight.installed import parse_version
from supervisor.preflight.models import ModelFacts, with_owner
from supervisor.preflight.reading import has, lora, of_trainer
from supervisor.preflight.subject import Check, Subject

_REPO = re.compile(r"[\w.-]+(?:/[\w.-]+)?\Z", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """One matter. A model fits where one of ``model_types``, ``architectures``, ``names`` or ``quantization`` does.

    ``since`` and ``until``: days of prime-rl's main branch, the first that has it and the first that has it no more.
    ``older``: a distribution of the job's environment and the version that mends it. ``severity``: where it is sure
    that the installed version is such a one; ``unsure``: where that cannot be told, "" for silence.
    ``needs`` and ``without``: settings that must be there, or must not. ``unless``: settings with which all is well,
    each with the value that it needs. ``lora``: only with, or only without an adapter. ``here``: only where the model
    lies on this machine, or only where it does not. ``gpus``: a pattern for names of GPUs on which all is well.
    """

    rule: str
    says: str
    model_types: Sequence[str] = ()
    architectures: re.Pattern[str] | None = None
    names: re.Pattern[str] | None = None
    quantization: Sequence[str] = ()
    kinds: Sequence[str] = ("rl", "sft")
    since: date | None = None
    until: date | None = None
    older: Mapping[str, str] = field(default_factory=dict)
    severity: Severity | None = None
    unsure: Severity | Literal[""] = "warning"
    needs: Sequence[str] = ()
    without: Sequence[str] = ()
    unless: Mapping[str, str] = field(default_factory=dict)
    lora: bool | None = None
    here: bool | None = None
    gpus: re.Pattern[str] | None = None
    remedy: str = ""

    def fits(self, name: str, facts: ModelFacts | None) -> bool:
        """Is it about this model? What the model's own files say goes before its name."""
        if facts is not None and facts.quantization and facts.quantization in self.quantization:
            return True
        own = facts is not None and facts.local
        if facts is not None and own and (self.model_types or self.architectures):
            if facts.model_type in self.model_types:
                return True
            return self.architectures is not None and any(map(self.architectures.search, facts.architectures))
        if facts is not None and facts.model_type in self.model_types:
            return True
        return self.names is not None and self.names.search(name) is not None


def models(subject: Subject) -> Iterator[Finding]:
    """Every entry that fits the model that is trained, the severest alone of those with one rule."""
    name = subject.settings.get(of_trainer(subject, "model.name"), "model.name")
    if subject.kind not in ("rl", "sft") or not isinstance(name, str) or not name or not is_training(subject):
        return
    facts = subject.model if subject.model is not None and subject.model.name == name else None
    said: dict[str, Finding] = {}
    for entry in table():
        if subject.kind not in entry.kinds or not entry.fits(name, facts) or not _set_so(subject, entry):
            continue
        sure = _in_period(subject, entry)
        if sure is False or (sure is None and not entry.unsure):
            continue
        severity = entry.severity if sure else entry.unsure or None
        told = entry.says.replace("{model}", name)
        if sure is None:
            told += " Whether the installed version is one of those cannot be told."
        finding = Finding(entry.rule, told, _place_of_model(subject), entry.remedy, severity)
        other = said.get(entry.rule)
        if other is None or SEVERITIES.index(finding.weight) < SEVERITIES.index(other.weight):
            said[entry.rule] = finding
    yield from said.values()


def _place_of_model(subject: Subject) -> Where:
    return subject.where(*_spelled_path(subject, "model.name"))


def _set_so(subject: Subject, entry: Entry) -> bool:
    if entry.lora is not None and bool(lora(subject)) is not entry.lora:
        return False
    if entry.here is not None and (subject.model is not None and subject.model.local) is not entry.here:
        return False
    if entry.needs and not any(_has_key(subject, path) for path in entry.needs):
        return False
    if any(_has_key(subject, path) for path in entry.without):
        return False
    if entry.unless and all(
        str(subject.settings.get(*_spelled_path(subject, path))) == value for path, value in entry.unless.items()
    ):
        return False
    if entry.gpus is not None:
        there = [gpu.name for gpu in subject.site.gpus or () if str(gpu.index) in map(str, subject.plan.trainer)]
        if not there or any(entry.gpus.search(name) or not name for name in there):
            return False
    return True


def _spelled_path(subject: Subject, path: str) -> tuple[str, ...]:
    """``model.vlm`` stands in the trainer's own table, or (of `rl`) in the one that all parts share."""
    return (path,) if subject.kind == "sft" else (f"trainer.{path}", path)


def _has_key(subject: Subject, path: str) -> bool:
    return any(subject.settings.has(one) for one in _spelled_path(subject, path))


def _in_period(subject: Subject, entry: Entry) -> bool | None:
    """Is the installed version one of those? None where that cannot be told."""
    for package, mended in entry.older.items():
        if installed := parse_version(subject.site.versions.get(package, "")):
            return installed < parse_version(mended)
    answers: list[bool | None] = []
    if entry.since is not None:
        answers.append(has(subject, entry.since))
    if entry.until is not None:
        past = has(subject, entry.until)
        answers.append(None if past is None else not past)
    if entry.older and not answers:
        return None
    return False if False in answers else None if None in answers else True


# ---------------------------------------------------------------- paths


def paths(subject: Subject) -> Iterator[Finding]:
    """A model that is named like a folder and is none that prime-rl would find."""
    if subject.kind not in ("rl", "sft"):
        return
    name = subject.settings.get(of_trainer(subject, "model.name"), "model.name")
    if not isinstance(name, str) or not name:
        return
    if name.startswith("~"):
        told = f'model.name = "{name}" begins with a tilde, which prime-rl does not replace by the home folder.'
        yield Finding("model-path-missing", told, _place_of_model(subject), "Write the whole path of the folder.")
        return
    local = name.startswith(("/", "./", "../")) or _REPO.match(name) is None
    if subject.model is not None and subject.model.local:
        return
    if not local:
        if "/" not in name and (whole := with_owner(name)):
            told = f'model.name = "{name}" lacks its owner: on the Hub it is {whole}.'
            yield Finding("model-name-elsewhere", told, _place_of_model(subject), f'Write it as: name = "{whole}"')
        return
    # On another machine than the pod the folder may well be missing.
    told = f'model.name = "{name}" is a path, and there is no folder with a config.json.'
    yield Finding("model-path-missing", told, _place_of_model(subject), severity=None if subject.roots else "warning")


CHECKS: tuple[Check, ...] = (models, paths)


# ---------------------------------------------------------------- the table


@cache
def table() -> tuple[Entry, ...]:
    """All entries; tests/preflight/test_rules.py says what each must be like."""
    text = (Path(__file__).parent / "model_support.toml").read_text(encoding="utf-8")
    return tuple(_entry_of_table(one) for one in tomllib.loads(text)["entry"])


def _entry_of_table(data: Mapping[str, Any]) -> Entry:
    patterns = {key: re.compile(data[key], re.IGNORECASE) for key in ("architectures", "names", "gpus") if key in data}
    return Entry(**{**data, **patterns})
