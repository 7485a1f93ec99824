"""Reads failure signatures from TOML, refuses those that are careless, and finds the one that a log line has."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, cached_property
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, Final, Literal, get_args
from zlib import crc32

from supervisor.base.records import dataclass
from supervisor.core.facts import ErrorSeen, Role
from supervisor.signatures.words import END, Choices, is_bounded, is_doubtful, reach_of, words_of

Kind = Literal["deterministic", "transient"]
Link = Literal["cause", "failure", "consequence", "end"]
"""Where in a chain of errors it stands: what went wrong, the part that failed of it, what followed, the end of all."""
Example = tuple[Role, str]

SHOWN: Final = 300  # characters of the line that are kept
LONGEST: Final = 4096  # characters of a message that are looked at

_ROLES: Final = frozenset(get_args(Role))
_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_TEXTS: Final = ("sentence", "remedy", "source")
_OF_DIAGNOSE: Final = ("link", "after", "before", "mild", "quiet", "only", "frame")
_KEYS: Final = {"name", "kind", "roles", "pattern", "examples", "others", *_TEXTS, *_OF_DIAGNOSE}
_OWN: Final = (Path(__file__), Path(__file__).with_name("words.py"))
_LEAST: Final = 4  # letters of the word that a pattern must hold, so that most lines are told apart without it


class SignatureError(ValueError):
    """A signature that must not be used as it stands; the sentence says which, why, and what to do."""


@dataclass(frozen=True)
class Signature:
    """One known failure. ``expression`` is matched from the beginning of a message; no ``roles``: it counts in all.

    ``words``: each line that matches holds one of them, at its end where the word ends with ``words.END``. The last
    fields are read by ``diagnose`` alone.
    """

    name: str
    expression: str
    reach: int  # no match is longer than so many characters
    words: tuple[str, ...]
    roles: frozenset[Role]
    sentence: str  # what it means
    remedy: str  # what people did about it
    kind: Kind
    source: str  # where the text comes from
    examples: tuple[Example, ...] = ()  # (role, message) that it must match
    others: tuple[Example, ...] = ()  # and that it must not
    link: Link = "cause"
    after: frozenset[str] = frozenset()  # names of those that may have caused it
    before: frozenset[str] = frozenset()  # names of later, wider ones that match its lines, too
    mild: bool = False  # a healthy run may say it: it explains nothing while the run goes on
    quiet: bool = False  # it is also said at the level of ordinary lines
    diagnosed_only: bool = False  # recovery is not told of it
    frame: str = ""  # part of the path in which the exception was raised, where that is known

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The expression, compiled when a line is first tried on it: of hundreds, most runs need a few."""
        return re.compile(self.expression, re.S)


class Registry:
    """Signatures in the order in which they are tried. Immutable, safe in any thread."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        """Raises SignatureError where two have one name."""
        self.signatures = tuple(signatures)
        self._by_name: dict[str, Signature] = {}
        for signature in self.signatures:
            if signature.name in self._by_name:
                raise SignatureError(f"Two signatures are called {signature.name}: give one of them another name.")
            self._by_name[signature.name] = signature
        self._choices: Choices | None = None

    def match(
        self,
        role: Role,
        line: str,
        places: Sequence[int] | None = None,
        *,
        diagnosing: bool = False,
        frame: str = "",
    ) -> Signature | None:
        """The first signature that ``line`` (a message) has in ``role``'s file. Time is bounded by ``LONGEST``.

        ``places``: of those in ``signatures`` that may match, where that is known. ``diagnosing``: also those that
        recovery is not told of. ``frame``: the file in which the exception was raised.
        """
        if len(line) > LONGEST:
            line = line[:LONGEST]
        for place in self._may_match(line) if places is None else places:
            signature = self.signatures[place]
            if (signature.roles and role not in signature.roles) or (signature.diagnosed_only and not diagnosing):
                continue
            if diagnosing and signature.frame not in frame:
                continue
            if signature.pattern.match(line):
                return signature
        return None

    def _may_match(self, line: str) -> list[int]:
        if self._choices is None:  # made when a line is first heard: most commands read no log
            self._choices = Choices([signature.words for signature in self.signatures])
            self._reach = reach(self.signatures)
        # All match from the beginning, and none further than that: the rest of a long line need not be looked at.
        return self._choices.of(line[: self._reach + 1])

    def error(self, role: Role, line: str, places: Sequence[int] | None = None) -> ErrorSeen | None:
        """The same as a fact, with what it means and what helps."""
        found = self.match(role, line, places)
        if found is None:
            return None
        return ErrorSeen(
            role,
            found.name,
            line[:SHOWN].rstrip(),
            found.kind == "deterministic",
            sentence=found.sentence,
            remedy=found.remedy,
        )

    def get(self, name: str) -> Signature | None:
        """The signature of that name."""
        return self._by_name.get(name)


def reach(signatures: Sequence[Signature]) -> int:
    """No match of any of them ends further than so many characters from the beginning of its message."""
    return max((signature.reach for signature in signatures), default=0)


@cache
def read(*paths: Path) -> Registry:
    """All of these files, narrow ones first (``before``). Raises SignatureError, and OSError for a missing file.

    What was read is kept beside Python's own compiled modules, until a file of them or of this package changes: it
    takes a third of a second, and each daemon needs it.
    """
    stamp = [[str(path), (about := path.stat()).st_mtime_ns, about.st_size] for path in (*paths, *_OWN)]
    kept = Path(cache_from_source(str(paths[0]))).with_suffix(f".{crc32(repr(paths).encode()):08x}.json")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        there = json.loads(kept.read_bytes())
        if there["of"] == stamp:
            return Registry([_thaw(one) for one in there["signatures"]])
    found = _read_anew(paths)
    if not sys.dont_write_bytecode:
        there = {
            "of": stamp,
            "signatures": [{field.name: getattr(one, field.name) for field in fields(one)} for one in found],
        }
        part = kept.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            kept.parent.mkdir(exist_ok=True)
            part.write_text(json.dumps(there, default=sorted))
            part.replace(kept)
        with contextlib.suppress(OSError):
            part.unlink()  # where the disk is full
    return Registry(found)


def _thaw(told: dict[str, Any]) -> Signature:
    for name in ("words", "examples", "others"):
        told[name] = tuple(tuple(one) if isinstance(one, list) else one for one in told[name])
    for name in ("roles", "after", "before"):
        told[name] = frozenset(told[name])
    return Signature(**told)


def _read_anew(paths: Sequence[Path]) -> list[Signature]:
    found: list[Signature] = []
    for path in paths:
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8")).get("signature", [])
        except tomllib.TOMLDecodeError as error:
            raise SignatureError(f"{path.name} is no TOML: {error}. Mend it.") from None
        found += [parse(table, path.name) for table in tables]
    return list(dict.fromkeys(_put_narrow_first(found, found)))


def _put_narrow_first(some: Sequence[Signature], every: Sequence[Signature]) -> Iterator[Signature]:
    for one in some:
        yield from _put_narrow_first([other for other in every if one.name in other.before], every)
        yield one


def parse(table: Mapping[str, object], where: str) -> Signature:
    """One ``[[signature]]`` table. Raises SignatureError."""
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SignatureError(f"{where}: {name!r} is no name: use small letters, digits and single hyphens.")
    where = f"{where}: signature {name}"
    if unknown := sorted(set(table) - _KEYS):
        raise SignatureError(f"{where} has {', '.join(unknown)}, which nothing reads: remove it or mend its spelling.")
    kind = table.get("kind")
    if kind not in ("deterministic", "transient"):
        raise SignatureError(f'{where} has kind {kind!r}: say "deterministic" or "transient".')
    roles = _parse_texts(table.get("roles", []), f"{where}: roles")
    if strange := sorted(set(roles) - _ROLES):
        raise SignatureError(f"{where} names the roles {', '.join(strange)}: use some of {', '.join(sorted(_ROLES))}.")
    texts = {key: table.get(key) for key in _TEXTS}
    for key, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise SignatureError(f"{where} has no {key}: write one, people will read it.")
        if key != "source" and not text.endswith("."):
            raise SignatureError(f"{where}: its {key} does not end with a full stop: {text!r}.")
    examples = _parse_examples(table.get("examples", []), f"{where}: examples")
    if not examples:
        raise SignatureError(f"{where} has no example: give a line that it matches, as it was seen.")
    link, frame = table.get("link", "cause"), table.get("frame", "")
    if link not in get_args(Link):
        raise SignatureError(f"{where} has link {link!r}: use one of {', '.join(get_args(Link))}.")
    if (
        not isinstance(frame, str)
        or table.get("only", "diagnose") != "diagnose"
        or {table.get("mild", True), table.get("quiet", True)} != {True}
    ):
        raise SignatureError(
            f'{where}: frame is a text, only is "diagnose", mild and quiet are true, or they are left out.'
        )
    patterns = _parse_texts(table.get("pattern", []), f"{where}: pattern")
    return Signature(
        name,
        _join_patterns(patterns, where),
        max(map(reach_of, patterns)),
        _words_of_all(patterns, where),
        frozenset(roles),  # type: ignore[arg-type]  # checked against the roles above
        str(texts["sentence"]),
        str(texts["remedy"]),
        "deterministic" if kind == "deterministic" else "transient",
        str(texts["source"]),
        examples,
        _parse_examples(table.get("others", []), f"{where}: others"),
        link,  # type: ignore[arg-type]  # a link, checked above
        frozenset(_parse_texts(table.get("after", []), f"{where}: after")),
        frozenset(_parse_texts(table.get("before", []), f"{where}: before")),
        "mild" in table,
        "quiet" in table,
        "only" in table,
        frame,
    )


def _join_patterns(patterns: Sequence[str], where: str) -> str:
    if not patterns:
        raise SignatureError(f"{where} has no pattern: give the beginning of its line.")
    try:
        for pattern in patterns:
            # Unbounded repeats are what makes an expression take minutes on a line that was made for it.
            if not is_bounded(pattern):
                raise SignatureError(
                    f"{where} repeats without a bound in {pattern!r}: write {{0,80}} instead of * or +."
                )
        joined = "|".join(f"(?:{pattern})" for pattern in patterns)
        matches_nothing = any(map(is_doubtful, patterns)) and re.compile(joined, re.S).match("")  # that takes time
    except re.error as error:
        raise SignatureError(f"{where} is no regular expression: {error}. Mend it.") from None
    if matches_nothing:
        raise SignatureError(f"{where} matches an empty line, so it would match them all: make it say more.")
    return joined


def _words_of_all(patterns: Sequence[str], where: str) -> tuple[str, ...]:
    found: list[str] = []
    for pattern in patterns:
        words = words_of(pattern)
        if not words or min(len(word.removesuffix(END)) for word in words) < _LEAST:
            raise SignatureError(
                f"{where} has no plain word of {_LEAST} letters in {pattern!r} that each of its lines must hold: "
                "write one, or make two patterns of one with a choice."
            )
        found += words
    return tuple(dict.fromkeys(found))


def _parse_texts(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SignatureError(f"{where} is no list of texts: write it as [ '...', '...' ].")
    return value


def _parse_examples(value: object, where: str) -> tuple[Example, ...]:
    found: list[Example] = []
    for pair in value if isinstance(value, list) else [None]:
        texts = _parse_texts(pair, where)
        if len(texts) != 2 or texts[0] not in _ROLES:
            raise SignatureError(f'{where} holds {pair!r}: write each as ["role", "line"].')
        found.append((texts[0], texts[1]))  # type: ignore[arg-type]  # a role, checked above
    return tuple(found)
