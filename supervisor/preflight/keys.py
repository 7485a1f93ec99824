"""Keys that the trainer does not know, or knows at another place, and values of the wrong kind.

The installed prime-rl is the judge (``schema``), or that of the day that a person named: where its classes refuse a
key, the run would end before it begins, which is an error. Where the version is guessed, the same is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from supervisor.config.toml_positions import Key
from supervisor.preflight import job_args
from supervisor.preflight.finding import Edit, Finding, Severity, Where, join_words
from supervisor.preflight.key_reasons import explain_unknown_key, near_names, of_another_type, severity
from supervisor.preflight.kinds import beyond, correct_value, describe_field, describe_value, fits
from supervisor.preflight.reading import overlay
from supervisor.preflight.renames import known_as
from supervisor.preflight.schema import Field, Schema
from supervisor.preflight.subject import Check, ConfigText, Subject
from supervisor.preflight.toml_values import is_toml

_SUPERVISED = re.compile(r"(?:(?:trainer|orchestrator)\.)?ckpt\.(?:interval|keep|keep_last)")
_LAST_STEP = ("max_steps", "trainer.max_steps", "orchestrator.max_steps")
"""The supervisor says these itself at each start, the last step where the run file has one (primerl/command.py)."""


def unknown_keys(subject: Subject) -> Iterator[Finding]:
    """Keys of the files that the trainer does not know."""
    for reader, data, field in _readers_of_files(subject):
        yield from reader.report_unknown(data, field, reader.text.table, ())


def wrong_values(subject: Subject) -> Iterator[Finding]:
    """Values of a kind that the trainer does not take, and texts that are none of those that it takes."""
    for reader, data, field in _readers_of_files(subject):
        yield from reader.report_wrong(data, field, reader.text.table, ())


def _is_overruled(subject: Subject, path: str) -> bool:
    """Will prime-rl never see a file's value, because [job] args or the supervisor's own flags replace it?"""
    run = subject.run_file
    if path in subject.flags:
        return True
    if run is None:
        return False
    return bool(_SUPERVISED.fullmatch(path)) or (path in _LAST_STEP and run.run.max_steps is not None)


def old_names(subject: Subject) -> Iterator[Finding]:
    """Tables that stand there under their old name and under their new one."""
    for old, new in subject.dropped_tables.items():
        where, counts = subject.where(old), subject.where(new)
        line = f" (line {counts.line})" if counts.line and counts.file == where.file else ""
        told = f"{old} and {new} are both set: {new}{line} counts, and {old} is dropped."
        remedy = f"Take {old} out; what of it is to count belongs into {new}."
        yield Finding("old-name-dropped", told, where, remedy)


def missing_keys(subject: Subject) -> Iterator[Finding]:
    """Keys that the trainer wants and that are not set."""
    schema = subject.schema
    if schema is None or not schema.exact or any(word.startswith("@") for word in subject.args):
        return
    if not subject.texts or any(text.data is None for text in subject.texts):
        return
    yield from _check_missing(subject, subject.settings.tree, schema.top, "")


def other_machines(subject: Subject) -> Iterator[Finding]:
    """Runs that are not of one pod."""
    settings = subject.settings
    if subject.is_submitted:
        told = "[slurm] hands the run to a cluster, and this version's launcher cannot be told not to."
        yield Finding("slurm", told, subject.where("slurm"))
    kinds = ("disaggregated",) if subject.is_spread else ("multi_node", "disaggregated")
    if (kind := settings.get(path := "deployment.type")) in kinds:
        told = f'{path} = "{kind}" is a run over several machines: it needs [nodes] (docs/many-machines.md).'
        yield Finding("multi-node", told, subject.where(path))
    if (kind := settings.get(path := "inference.deployment.type")) in ("multi_node", "disaggregated"):
        yield Finding("multi-node", f'{path} = "{kind}" is not supported.', subject.where(path))
    for path in ("max_concurrent_runs", "trainer.max_concurrent_runs"):
        if (runs := settings.number(path)) and runs > 1:
            told = f"{path} = {runs}: several runs in one trainer, of which the supervisor could keep none alive alone."
            yield Finding("multi-run", told, subject.where(path))


CHECKS: tuple[Check, ...] = (
    unknown_keys,
    wrong_values,
    old_names,
    missing_keys,
    *job_args.CHECKS,
    other_machines,
)


# ---------------------------------------------------------------- one file


def _readers_of_files(subject: Subject) -> Iterator[tuple[_Reader, Mapping[str, Any], Field]]:
    """Each file that could be read, what it says, and the table that it fills."""
    schema = subject.schema
    if schema is None:
        return
    for text in subject.texts:
        whole = Field(frozenset({"table"}), schema.top, schema.open)
        field = schema.get(text.table) if text.table else whole
        if text.data is not None and field is not None and "table" in field.kinds:
            yield _Reader(subject, schema, text), text.data, field


@dataclass(frozen=True)
class _Reader:
    """One file beside the schema."""

    subject: Subject
    schema: Schema
    text: ConfigText

    # ------------------------------------------------------------ unknown keys

    def report_unknown(self, table: Mapping[str, Any], field: Field, above: str, place: Key) -> Iterator[Finding]:
        for key, value in table.items():
            name = str(key)
            path = f"{above}.{name}" if above else name
            here = (*place, name)
            inside = field.below.get(name)
            if path in self.subject.dropped_tables:
                continue  # what is in it is not read
            if inside is not None:
                for one, inner in _tables_in_value(value, here):
                    yield from self.report_unknown(one, inside.of(one), path, inner)
            elif not field.open:
                yield self._report_stranger(path, table, field, here)

    def _severity_of_key(self, path: str, value: object = None) -> Severity:
        return severity(path, self.schema, self.subject.kind, value)

    def _report_stranger(self, path: str, table: Mapping[str, Any], field: Field, place: Key) -> Finding:
        name, ignored = str(place[-1]), field.ignores
        plain = name.removeprefix("--").replace("-", "_")
        where = self._where_in_words(path, place)
        if plain in field.below and plain != name:
            told = f"{path} is written with hyphens, which only the command line takes: in a file it is {plain}."
            return Finding(
                "hyphens",
                told + (" As it stands, it is dropped without a word." if ignored else ""),
                where,
                f"Write it as: {plain}",
                severity="warning" if ignored else self._severity_of_key(path),
                edits=self._rename_edit(place, name, plain),
            )
        other = self.schema.get(path)
        if other is not None:  # the table takes it, but not of this type
            told, remedy, new = of_another_type(path, self.schema, field)
        else:
            beside = {str(key).replace("-", "_") for key in table} - {plain}
            told, remedy, new = explain_unknown_key(
                path.replace("-", "_"), self.schema, self.subject.kind, path, table[name], beside=beside
            )
        weight = self._severity_of_key(path)
        if ignored:
            told += " It is dropped without a word."
        elif weight == "error" and not self.schema.exact:
            told += " No other version that is known here takes it, either."
        return Finding(
            "ignored-key" if ignored else "unknown-key",
            told,
            where,
            remedy,
            severity=None if ignored else weight,
            edits=self._rename_edit(place, name, new) if new else self._move_edit(table[name], path, place),
        )

    # ------------------------------------------------------------ wrong values

    def report_wrong(self, table: Mapping[str, Any], field: Field, above: str, place: Key) -> Iterator[Finding]:
        for key, value in table.items():
            name = str(key)
            inside = field.below.get(name)
            path = f"{above}.{name}" if above else name
            if inside is None or path in self.subject.dropped_tables or _is_overruled(self.subject, path):
                continue
            here = (*place, name)
            if not fits(inside, value):
                yield self._wrong_kind(path, value, inside, here)
                continue
            if isinstance(value, str) and not _check_choice(inside, value):
                yield self._wrong_choice(path, value, inside, here)
            elif bounds := beyond(inside, value):
                told = f"{path} = {describe_value(value)}, and prime-rl wants {bounds}."
                remedy = f"Set {path} to {bounds}."
                weight = self._severity_of_key(path, value)
                yield Finding("out-of-bounds", told, self._where_in_words(path, here), remedy, weight)
            elif "any" not in inside.kinds and isinstance(value, float) and isnan(value):
                yield Finding("not-a-number", f"{path} = nan.", self._where_in_words(path, here))
            for one, inner in _tables_in_value(value, here):
                yield from self.report_wrong(one, inside.of(one), path, inner)

    def _wrong_kind(self, path: str, value: object, field: Field, place: Key) -> Finding:
        name = path.rpartition(".")[2]
        told = f"{path} = {describe_value(value)}, and {describe_field(field)} is wanted there."
        edits: tuple[Edit, ...] = ()
        remedy = ""
        if isinstance(value, Mapping) and "list" in field.kinds and field.below:
            told = f"[{path}] is one table, and a list of tables is wanted there: [[{path}]]."
            remedy = f"Write the header as: [[{path}]]"
            edits = self._report_doubled(place)
        elif isinstance(value, list) and value and isinstance(value[0], str) and "id" in field.below:
            remedy = f'Write a table for each: [[{path}]] with id = "{value[0]}" below it.'
        elif isinstance(value, list) and len(value) == 2 and "float" in field.kinds:
            remedy = "Write one number. If the comma is meant for a decimal sign: TOML wants a point there."
        elif (new := correct_value(value, field)) is not None:
            remedy = f"Write it as: {name} = {new}"
            edits = self._replace_edit(place, f"{name} = {new}")
        return Finding(
            "wrong-kind", told, self._where_in_words(path, place), remedy, self._severity_of_key(path, value), edits
        )

    def _wrong_choice(self, path: str, value: str, field: Field, place: Key) -> Finding:
        name = path.rpartition(".")[2]
        told = f'{path} = "{value}" is none of {_list_choices(field.choices)}.'
        lower = value.lower()
        near = [*near_names(lower.replace("-", "_"), field.choices), *near_names(lower, field.choices)]
        remedy = f'Write it as: {name} = "{near[0]}"' if near else f"Set it to one of {_list_choices(field.choices)}."
        edits = self._replace_edit(place, f'{name} = "{near[0]}"') if near else ()
        return Finding(
            "wrong-choice", told, self._where_in_words(path, place), remedy, self._severity_of_key(path, value), edits
        )

    # ------------------------------------------------------------ places and edits

    def _where_in_words(self, path: str, place: Key) -> Where:
        at = self.text.positions.get(place)
        return Where(str(self.text.path), at.line if at else 0, path)

    def _line_of_key(self, place: Key) -> tuple[int, str, int] | None:
        """Line number, line and column (from 0) of a key, where it stands in a line `key = value` of its own."""
        at = self.text.positions.get(place)
        lines = self.text.text.replace("\r\n", "\n").split("\n")
        if at is None or not 0 < at.line <= len(lines):
            return None
        return at.line, lines[at.line - 1], at.column - 1

    def _rename_edit(self, place: Key, name: str, new: str) -> tuple[Edit, ...]:
        found = self._line_of_key(place)
        if found is None or not found[1].startswith(name, found[2]):
            return ()
        number, line, column = found
        return (Edit(self.text.path, number, number, (line[:column] + new + line[column + len(name) :],)),)

    def _move_edit(self, value: object, path: str, place: Key) -> tuple[Edit, ...]:
        """The header of a table that has another name in this version, where nothing else has to be changed."""
        known = known_as(path, self.schema, self.subject.kind)
        if known is None and isinstance(value, Mapping) and len(value) == 1:
            [(name, inner)] = value.items()
            return self._move_edit(inner, f"{path}.{name}", (*place, str(name))) if isinstance(inner, Mapping) else ()
        found = self._line_of_key(place)
        if known is None or known.by.note or found is None or not isinstance(value, Mapping):
            return ()
        number, line, _ = found
        above = f"{self.text.table}." if self.text.table else ""
        header = f"[{path.removeprefix(above)}]"
        if line.partition("#")[0].strip() != header or not known.path.startswith(above):
            return ()
        if self.subject.settings.has(known.path) or any(
            True for inner in value.values() for _ in _tables_in_value(inner, place)
        ):
            return ()
        new = line.replace(header, f"[{known.path.removeprefix(above)}]", 1)
        return (Edit(self.text.path, number, number, (new,)),)

    def _replace_edit(self, place: Key, pair: str) -> tuple[Edit, ...]:
        """The whole of `key = value`, where it has a line for itself."""
        found = self._line_of_key(place)
        name = pair.partition(" ")[0]
        if found is None or found[1][: found[2]].strip() or not found[1].startswith(name, found[2]):
            return ()
        number, line, column = found
        ends = [*(sign.start() for sign in re.finditer("#", line)), len(line)]
        end = next((one for one in ends if is_toml(line[column:one])), None)  # else it goes on in more lines
        if end is None or not line[column + len(name) :].lstrip().startswith("="):
            return ()
        comment = line[len(line[:end].rstrip()) :].rstrip()
        return (Edit(self.text.path, number, number, (line[:column] + pair + comment,)),)

    def _report_doubled(self, place: Key) -> tuple[Edit, ...]:
        found = self._line_of_key(place)
        if found is None:
            return ()
        number, line, _ = found
        name = line.strip()
        if not name.startswith("[") or name.startswith("[[") or name.count("]") != 1:
            return ()
        new = line.replace("[", "[[", 1).replace("]", "]]", 1)
        return (Edit(self.text.path, number, number, (new,)),)


def _tables_in_value(value: object, place: Key) -> Iterator[tuple[Mapping[str, Any], Key]]:
    if isinstance(value, Mapping):
        yield value, place
    elif isinstance(value, list):
        for index, one in enumerate(value):
            if isinstance(one, Mapping):
                yield one, (*place, index)


def _check_choice(field: Field, value: str) -> bool:
    """Is the text one of those that the field takes, or something else that it takes, such as a number in quotes?"""
    if not field.choices or value in field.choices or (value == "None" and "none" in field.kinds):
        return True
    rest = field.kinds - {"str"}
    return bool(rest) and fits(Field(rest), value)


def _list_choices(choices: Sequence[str]) -> str:
    return join_words(f'"{choice}"' for choice in choices)


def _check_missing(
    subject: Subject, table: Mapping[str, Any], known: Mapping[str, Field], above: str
) -> Iterator[Finding]:
    names = {str(key).replace("-", "_") for key in table}
    for name, field in known.items():
        path = f"{above}.{name}" if above else name
        if field.required and name not in names:
            if not above and subject.run_file is None and not subject.knows(name):
                continue  # it has a file of its own, which is not looked at
            where = subject.where(above) if above else subject.file(name)
            told = f"{path} is not set, and {_version_in_words(subject)} wants it" + (
                f" in [{above}]." if above else "."
            )
            empty = "table" in field.kinds and not any(inner.required for inner in field.below.values())
            remedy = f"Write a table [{path}]; it may be empty." if empty else f"Set {path}."
            weight: Severity | None = "warning" if empty and overlay(subject) else None
            yield Finding("missing-key", told, Where(where.file, where.line, path), remedy, weight)
    for key, value in table.items():
        inner = known.get(str(key).replace("-", "_"))
        if inner is not None:
            path = f"{above}.{key}" if above else str(key)
            for one, _ in _tables_in_value(value, ()):
                if inner.tagged and not inner.usual and inner.variants and "type" not in one:
                    told = (
                        f"{path} does not say its type, and there is none that {_version_in_words(subject)} takes "
                        "it for."
                    )
                    remedy = f"Set type to one of {_list_choices(list(inner.variants))} in it."
                    yield Finding("missing-key", told, subject.where(path), remedy)
                yield from _check_missing(subject, one, inner.of(one).below, path)


def _version_in_words(subject: Subject) -> str:
    return subject.schema.version if subject.schema is not None else "prime-rl"
