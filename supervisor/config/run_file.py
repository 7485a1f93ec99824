"""Reads a TOML file into a pydantic model, and turns every mistake in it into a sentence that a person can act on."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from supervisor.base import homes, trust
from supervisor.base.errors import ConfigError
from supervisor.config.run_place import LARGEST, RUN_ID
from supervisor.config.section import describe_settings
from supervisor.config.toml_keys import MOST_PARTS, long_key_line
from supervisor.config.toml_positions import Key, Position, key_positions

if TYPE_CHECKING:
    from supervisor.config.settings import RunFile

Model = TypeVar("Model", bound=BaseModel)
MOST_MISTAKES = 20
DEEPEST = 100
SECOND_NAMES = {"recover": "recovery"}
"""Sections that people know by another name as well."""


def read(path: Path, model: type[Model]) -> Model:
    """The validated content of ``path``. Raises ConfigError: one line of text for each mistake."""
    return _read_model(path, model)[0]


def _read_model(path: Path, model: type[Model]) -> tuple[Model, bytes]:
    """The same, and what was read."""
    raw = _read_bytes(path)
    return parse_model(path, _decode_text(path, raw), model), raw


def parse_model(path: Path, text: str, model: type[Model]) -> Model:
    """``read`` for a ``text`` that is at hand; ``path`` is for the sentences."""
    if not text.strip():
        raise ConfigError(f"{path} is empty: delete it, and write one with `rl-supervisor init -o {path}`.")
    try:
        data = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_not_toml(path, text, error)) from None
    except (RecursionError, ValueError) as error:  # nested thousands deep, or a number of thousands of digits
        raise ConfigError(f"{path} is not a run file: {error}.") from None
    positions = key_positions(text)
    known = model.model_fields
    renamed = {name: first for name, first in SECOND_NAMES.items() if name in data and first in known}
    for name, first in renamed.items():
        if first in data:
            sentence = f"[{name}] and [{first}] are two names of one section: keep one of them."
            raise ConfigError(
                _place_of_key(path, positions, max((name,), (first,), key=lambda key: _line_of_key(positions, key)))
                + sentence
            )
        data[first] = data.pop(name)
        positions = {(first, *key[1:]) if key[0] == name else key: place for key, place in positions.items()}
    mistakes = [_place_of_key(path, positions, key) + sentence for key, sentence in _impossible_values(data)]
    if not mistakes:
        try:
            # JSON's strict mode: a path may be a string, but "10" is no number and true is not 1.
            return model.model_validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            mistakes = _sentences_of_errors(path, model, data, positions, error)
    for name, first in renamed.items():
        mistakes = [sentence.replace(f"[{first}]", f"[{name}]") for sentence in mistakes]  # as the person wrote it
    shown = mistakes[:MOST_MISTAKES]
    if len(mistakes) > len(shown):
        shown.append(f"{path}: and {len(mistakes) - len(shown)} more mistakes.")
    raise ConfigError("\n".join(shown))


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises ValueError, and RecursionError for values that are nested too deep.

    The time that ``tomllib`` takes for a key grows with the square of its parts: a line of 800 KB of them takes hours.
    """
    if number := long_key_line(text):
        raise ValueError(f"line {number} has a key of more than {MOST_PARTS} parts")
    data = tomllib.loads(text)
    if _is_deeper(data, DEEPEST):
        raise ValueError(f"its tables and lists are nested more than {DEEPEST} deep")
    return data


def _is_deeper(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(one, levels - 1) for one in inner)


def load(path: Path) -> RunFile:
    """``read`` for the supervisor's own run file. Raises ConfigError also when others can write it (``trust``)."""
    from supervisor.config.settings import RunFile

    try:
        found, raw = _read_model(path, RunFile)
    except ConfigError:
        if _of_the_trainer(path, RunFile):
            line = shlex.quote(f"uv run rl @ {path}")
            raise ConfigError(
                f"{path} is no run file: it looks like the trainer's own configuration. Write a run file that names "
                f"it, from the line that starts it: rl-supervisor init --from {line} -o my-run.toml"
            ) from None
        raise
    if complaint := trust.complaint(path, found.state_dir, raw):
        raise ConfigError(complaint)
    return found


def _of_the_trainer(path: Path, model: type[BaseModel]) -> bool:
    """Is it what most people name first? Complaining of each of its sections would hide the one thing to do."""
    try:
        data = parse_toml(_decode_text(path, _read_bytes(path)))
    except (ConfigError, ValueError, RecursionError):
        return False
    run = data.get("run")
    ours = "job" in data or (isinstance(run, dict) and "id" in run)
    strange = [name for name in data if name not in model.model_fields]
    misspelt = [name for name in strange if difflib.get_close_matches(name, ("run", "job"), 1, 0.6)]
    return not ours and not misspelt and any(isinstance(data[name], dict) for name in strange)


# ---------------------------------------------------------------- the file itself


def _read_bytes(path: Path) -> bytes:
    """What the file holds, or a ConfigError that says what is there instead."""
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder, and a run file is wanted: name the .toml file in it.")
        # A FIFO or a device would be read for ever.
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is not a plain file, and a run file is wanted.")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        near = _neighbour_files(path)
        raise ConfigError(f"{path} does not exist{near}: write one with `rl-supervisor init -o {path}`.") from None
    except PermissionError:
        user = f"user id {os.geteuid()}"
        raise ConfigError(f"{path} may not be read by {user}: `chmod` it, or run as its owner.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(f"{path} cannot be read: {error}.") from None
    if len(data) > LARGEST:
        raise ConfigError(f"{path} has more than {LARGEST >> 20} MiB: that is not a run file.")
    return data


def _decode_text(path: Path, data: bytes) -> str:
    """It as text; a ConfigError names the line that is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x}"
        raise ConfigError(f"{path} line {line}: {found} is not UTF-8, but TOML is: save the file as UTF-8.") from None


def _neighbour_files(path: Path) -> str:
    if path.name == str(path):  # the run's name alone, as other commands and systemd take it
        for folder in homes.run_file_dirs():
            if os.path.isfile(installed := folder / f"{path.name.removesuffix('.toml')}.toml"):  # noqa: PTH113 (never raises)
                return f" (did you mean {installed}?)"
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".toml"]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.stem, [name.removesuffix(".toml") for name in names], 1, 0.6)
    return f" (did you mean {near[0]}.toml?)" if near else ""


def _not_toml(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    """The parser's complaint with its place, and what people usually did."""
    message = str(error)
    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    lines = text.split("\n")
    if place:
        line, column = int(place[1]), int(place[2])
        message = message[: place.start()]
    else:  # "(at end of document)"
        line, column = len(lines), len(lines[-1]) + 1
        message = message.replace(" (at end of document)", ", and the file ends")
    source = lines[line - 1].strip() if line <= len(lines) else ""
    cause = _usual_cause(source, message)
    return f"{path} line {line}, column {column}: this is not TOML: {message}{cause}."


def _usual_cause(source: str, message: str) -> str:
    key, equals, value = (part.strip() for part in source.partition("="))
    if "“" in source or "”" in source or "‘" in source or "’" in source:
        return '; there are typographic quotes, TOML wants plain ones: "text"'
    if re.match(r"^[\w.-]+\s*:\s", source + " "):
        return "; TOML separates a key from its value with =, not with a colon"
    if "declare" in message or "overwrite" in message.lower():
        return "; the same key or table is there twice: keep one"
    if "scape" in message:
        return '; a backslash in "..." starts an escape: double it, or use single quotes'
    if equals and not value:
        return f"; {key} has no value"
    if value in ("True", "False"):
        return f"; TOML writes {value.lower()}"
    if value in ("None", "null", "nil"):
        return f"; TOML has no {value}: leave the line out"
    if equals and re.match(r"^[A-Za-z/~.$_]", value) and value not in ("true", "false"):
        return f'; text needs quotes: {key} = "{value.split("#")[0].strip()}"'
    if equals and value.count('"') % 2:
        return "; a quote is missing"
    if source.startswith("[") and "]" not in source:
        return "; the closing bracket is missing"
    if not equals and re.match(r"^[\w.-]+$", source):
        return f"; {source} has no value"
    return ""


# ---------------------------------------------------------------- its values


def _impossible_values(data: object, key: Key = ()) -> Iterator[tuple[Key, str]]:
    """TOML knows dates, infinity and not-a-number; no setting is any of them."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _impossible_values(value, (*key, name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _impossible_values(value, (*key, index))
    elif isinstance(data, (datetime, date, time)):
        yield key, f"{_name_of_key(key)} is a date or a time, and no setting is one: put it in quotes if it is text."
    elif isinstance(data, float) and not math.isfinite(data):
        yield key, f"{_name_of_key(key)} must be a finite number, not {data}."


def _sentences_of_errors(
    path: Path,
    model: type[BaseModel],
    data: Mapping[str, Any],
    positions: Mapping[Key, Position],
    error: ValidationError,
) -> list[str]:
    """One sentence for each wrong key, in the order of the file."""
    wants: dict[Key, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        wants.setdefault(_key_of_error(detail, data), []).append(detail)
    placed = []
    for key, details in wants.items():
        # Of a union's complaints, the ones about the value come from the member with the right type.
        details = [detail for detail in details if detail["type"] not in (*_WANTED, "literal_error")] or details
        unique = list(dict.fromkeys(_sentence_of_error(detail, key, model, data) for detail in details))
        sentence = unique[0]
        if len(unique) > 1:  # a union: each member complained, any of them would do
            sentence = sentence + " Or: " + " ".join(part.removeprefix(f"{_name_of_key(key)} ") for part in unique[1:])
        placed.append((_line_of_key(positions, key), _place_of_key(path, positions, key) + sentence))
    return [text for _, text in sorted(placed, key=lambda pair: pair[0])]


def _key_of_error(detail: ErrorDetails, data: object) -> Key:
    """The error's place as a path in the file: pydantic adds the names of union members, which are not in it."""
    key: Key = ()
    for part in detail["loc"]:
        if isinstance(data, Mapping) and part in data:
            key, data = (*key, part), data[str(part)]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            key, data = (*key, part), data[part]
        elif isinstance(data, Mapping) and detail["type"] == "missing":
            return (*key, part)
    return key


def _sentence_of_error(detail: ErrorDetails, key: Key, model: type[BaseModel], data: Mapping[str, Any]) -> str:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return _sentence_of_missing(key, model)
    if kind == "extra_forbidden":
        return _sentence_of_unknown(key, model, data)
    name = _name_of_key(key)
    if kind in ("value_error", "assertion_error"):
        reason = str(context.get("error", detail["msg"])).rstrip(".")
        return f"{name}: {reason}."
    if kind == "literal_error":
        words = str(context.get("expected", "")).replace("'", '"')
        near = _did_you_mean(str(given), re.findall(r'"([^"]*)"', words))
        return _end_sentence(f"{name} must be {words}, not {_show_value(given)}{near}")
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern"))
        if pattern == RUN_ID:
            return f"{name} takes letters, digits, '.', '_' and '-', up to 100; it begins with a letter or a digit."
        return f"{name} is {_show_value(given)}, which does not fit the pattern {pattern}."
    if kind in _WANTED:
        quotes = "; leave the quotes away" if isinstance(given, str) and "number" in _WANTED[kind] else ""
        quotes = quotes or ("; put it in quotes" if kind == "string_type" and isinstance(given, (int, float)) else "")
        return f"{name} must be {_WANTED[kind]}, not {_show_value(given)}{quotes}."
    if detail["msg"].startswith("Input should "):
        return f"{name} must {detail['msg'].removeprefix('Input should ')}, not {_show_value(given)}."
    return f"{name}: {detail['msg']}: {_show_value(given)}."


_WANTED = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "path_type": "a path in quotes",
    "list_type": "a list in [ ]",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def _sentence_of_missing(key: Key, model: type[BaseModel]) -> str:
    if len(key) == 1:
        return f"the section [{key[0]}] is missing, and it is required: {about_key(model, key)}"
    return f'[{_dotted_key(key[:-1])}] has no "{key[-1]}", which is required: {about_key(model, key)}'


def _sentence_of_unknown(key: Key, model: type[BaseModel], data: Mapping[str, Any]) -> str:
    """An unknown key: the nearest known one, or the section where this one lives, or what there is."""
    word = str(key[-1])
    owner = _model_at(model, key[:-1])
    known = list(owner.model_fields) if owner else []
    near = _did_you_mean(word, known)
    if len(key) == 1:
        if near:
            return _end_sentence(f"there is no section [{word}]{near}")
        home = _home_of(word, model) if not isinstance(data.get(word), Mapping) else ""
        return f"there is no section or setting {word}{home or '; the sections are ' + ', '.join(known)}."
    where = _home_of(word, model)
    rest = near or where or f"; its settings are {', '.join(known)}"
    return _end_sentence(f'[{_dotted_key(key[:-1])}] has no setting "{word}"{rest}')


def _end_sentence(sentence: str) -> str:
    return sentence if sentence.endswith("?") else sentence + "."


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word.lower(), known, 1, 0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


def _home_of(word: str, model: type[BaseModel]) -> str:
    """`` (it belongs in [disk])`` when another section has this setting."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and word in inner.model_fields:
            return f"; it belongs in [{name}]"
    return ""


def _model_at(model: type[BaseModel], key: Key) -> type[BaseModel] | None:
    parts = iter(key)
    for part in parts:
        field = model.model_fields.get(str(part))
        inner = next(_models_in(field.annotation), None) if field else None
        if field is None or inner is None:
            return None
        if get_origin(field.annotation) is dict:  # tables with names that people give: [place.NAME]
            next(parts, None)
        model = inner
    return model


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The models in an annotation such as ``Plain | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_in(inner)


def about_key(model: type[BaseModel], key: Key) -> str:
    """What a setting, or a section, is about."""
    owner = _model_at(model, key[:-1])
    field = owner.model_fields.get(str(key[-1])) if owner else None
    about = describe_settings(owner).get(str(key[-1]), "") if owner else ""
    if field and not about:
        inner = next(_models_in(field.annotation), None)
        about = (inner.__doc__ or "") if inner else ""
    return about.replace(" Required.", "").strip().rstrip(".") + "."


# ---------------------------------------------------------------- places and names


def _nearest_position(positions: Mapping[Key, Position], key: Key) -> Position | None:
    """The key's own place, else that of the table it is in."""
    for length in range(len(key), 0, -1):
        if key[:length] in positions:
            return positions[key[:length]]
    return None


def _line_of_key(positions: Mapping[Key, Position], key: Key) -> int:
    place = _nearest_position(positions, key)
    return place.line if place else 0


def _place_of_key(path: Path, positions: Mapping[Key, Position], key: Key) -> str:
    place = _nearest_position(positions, key)
    return f"{path} line {place.line}: " if place else f"{path}: "


def _dotted_key(key: Key) -> str:
    """``("job", "plain", "also", 0)`` as ``job.plain.also[0]``."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _name_of_key(key: Key) -> str:
    if len(key) < 2:
        return f"[{_dotted_key(key)}]" if key else "the file"
    return f"[{key[0]}] {_dotted_key(key[1:])}"


def _show_value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"the text {text}" if isinstance(value, str) else text
