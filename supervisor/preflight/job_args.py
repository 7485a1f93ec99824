"""The words of [job] args beside what the installed prime-rl takes: flags that it does not know, and their numbers.

And secrets among the words of any job: each user of the machine can read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from supervisor.preflight.finding import Finding, Where
from supervisor.preflight.key_reasons import explain_unknown_key, severity
from supervisor.preflight.kinds import beyond, describe_field, describe_value, fits
from supervisor.preflight.renames import takes
from supervisor.preflight.schema import Schema
from supervisor.preflight.subject import Check, Subject
from supervisor.primerl.configs import flags, without_no

_SECRET = re.compile(r"(?i)(?:secret|token|(?:api|access|application|private|wandb|auth|hf|openai)[_-]?key)$")
_PASSWORD = re.compile(r"(?i)pass(?:word|wd|phrase)$")
"""Names are taken by their ends: --token-dtype, --api-key-file and --prompt-key hold no secret."""
_NO_KEY = re.compile(r"[-/~.$<{*].*|.{0,11}|[^0-9]*|[^A-Za-z]*", re.DOTALL)
_NO_PASSWORD = re.compile(r"[-/~.$<{*].*|.{0,7}|[0-9.]*", re.DOTALL)
"""A path, what a variable or the supervisor fills in, a number, a plain word (`EMPTY`, `disabled`)."""


def unknown_flags(subject: Subject) -> Iterator[Finding]:
    """Flags in [job] args that the trainer does not know."""
    for schema, name, _, path in _flags_of_job(subject):
        stranger = _first_unknown(schema, path)
        if not stranger or takes(schema, without_no(path)):
            continue
        told, remedy, _ = explain_unknown_key(stranger, schema, subject.kind, f"--{name}")
        weight = severity(stranger, schema, subject.kind)
        yield Finding("unknown-flag", told, _place_of_flag(subject, name), remedy, weight)


def wrong_flags(subject: Subject) -> Iterator[Finding]:
    """Numbers in [job] args that are none, or beyond what the trainer takes. How other kinds are read differs."""
    for schema, name, value, path in _flags_of_job(subject):
        field = schema.get(path)
        if field is None or value is None or not field.kinds <= {"int", "float", "none"}:
            continue
        where = _place_of_flag(subject, name)
        weight = severity(path, schema, subject.kind, value)
        if value != "None" and not fits(field, value):  # every parser takes that word for nothing
            told = f"--{name} is given {describe_value(value)}, and {describe_field(field)} is wanted there."
            yield Finding("wrong-kind", told, where, f"Give --{name} {describe_field(field)}.", weight)
        elif bounds := beyond(field, value):
            told = f"--{name} {value}, and prime-rl wants {bounds}."
            yield Finding("out-of-bounds", told, where, f"Give --{name} {bounds}.", weight)


def at_signs(subject: Subject) -> Iterator[Finding]:
    """`@file` in [job] config or args: the launcher wants a space between the two."""
    for number, (before, word) in enumerate(zip(("", *subject.args), subject.args, strict=False)):
        if not word.startswith("@") or len(word) < 2:
            continue
        # The later of prime-rl's two parsers takes `--trainer @file` also without the space; neither takes `@file`.
        parser = subject.dialect.parser if subject.dialect else ""
        if before.startswith("--") and parser != "pydantic-settings":
            continue
        where = Where(str(subject.run_path or ""), _line_of_element(subject, "args", number), "job.args")
        told = f"[job] args has {word!r} in one word, which the launcher does not take for a configuration file."
        yield Finding("at-sign", told, where, f'Write two words: "@", "{word[1:]}"; or name the file in [job] config.')
    run = subject.run_file
    for number, path in enumerate(run.job.config if run else ()):
        name = str(path)
        if name.startswith("@"):
            line = _line_of_element(subject, "config", number)
            told = f"[job] config names {name!r}: the supervisor puts the @ of the command line there by itself."
            remedy = f'Write it as: config = "{name.lstrip("@ ")}"'
            yield Finding("at-sign", told, Where(str(subject.run_path or ""), line, "job.config"), remedy)


def secret_words(subject: Subject) -> Iterator[Finding]:
    """`--wandb.api-key VALUE`, `--hf-token=VALUE`, `env HF_TOKEN=VALUE`. The sentence does not hold the value."""
    job = subject.run_file.job if subject.run_file else None
    plain = job.plain if job else None
    lists: dict[tuple[str, ...], Sequence[str]] = {}
    if job:
        lists = {("args",): job.args, ("launcher",): job.launcher or ()}
    if plain:
        lists |= {("plain", "start"): plain.start, ("plain", "resume"): plain.resume}
    for key, words in lists.items():
        for number, (before, word) in enumerate(zip(("", *words), words, strict=False)):
            name, equals, value = word.partition("=")
            if not equals:
                name, value = before if before.startswith("-") else "", word
            if not _is_secret(name, value):
                continue
            place = subject.run_positions.get(("job", *key, number))
            where = Where(str(subject.run_path or ""), place.line if place else 0, ".".join(("job", *key)))
            yield Finding("secret-on-command-line", f"{name} has its secret on the job's command line.", where)


def _is_secret(name: str, value: str) -> bool:
    if _PASSWORD.search(name):
        return _NO_PASSWORD.fullmatch(value) is None
    return _SECRET.search(name) is not None and _NO_KEY.fullmatch(value) is None


CHECKS: tuple[Check, ...] = (unknown_flags, wrong_flags, at_signs, secret_words)


def _flags_of_job(subject: Subject) -> Iterator[tuple[Schema, str, str | None, str]]:
    """Each flag of the trainer's with its value and its dotted path; none where its keys are not known."""
    schema = subject.schema
    if schema is not None and subject.kind in ("rl", "sft"):
        yield from ((schema, name, value, name.replace("-", "_")) for name, value in flags(subject.args))


def _first_unknown(schema: Schema, path: str) -> str:
    """The shortest part of a dotted path that is not known, "" where all of it is."""
    parts = path.split(".")
    for length in range(1, len(parts) + 1):
        if parts[length - 1].isdigit():
            continue
        if not takes(schema, ".".join(parts[:length])) and not (length == 1 and schema.open):
            return ".".join(parts[:length])
    return ""


def _place_of_flag(subject: Subject, name: str) -> Where:
    number = next((at for at, word in enumerate(subject.args) if word.partition("=")[0] == f"--{name}"), 0)
    return Where(str(subject.run_path or ""), _line_of_element(subject, "args", number), "job.args")


def _line_of_element(subject: Subject, key: str, number: int) -> int:
    place = subject.run_positions.get(("job", key, number))
    return place.line if place else subject.run_line("job", key)
