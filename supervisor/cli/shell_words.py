"""What the words of a shell text come to: variables that it sets itself, then those of the environment.

A secret is never looked up, and nothing is executed: what only a running shell could know (``$(...)``, arithmetic,
patterns in ``${...}``) stays text and is called unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.base.secret_shapes import SECRET_NAME
from supervisor.base.secrets import mask_secrets
from supervisor.cli.shell_text import Assignment, Piece, next_piece

LONGEST = 64 << 10  # characters that a variable may grow to: what doubles itself line by line has no end
DEEPEST = 20  # defaults within defaults

_PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9@*#?$!-])(?:(:?[-=])(.*)|:?\?.*)?", re.ASCII | re.DOTALL)
_LIST = re.compile(r"([A-Za-z_]\w*)\[[@*]\]", re.ASCII)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True)
class Word:
    """A word after its variables were looked up. ``unknown``: the parts with a value that is not known here."""

    text: str
    unknown: tuple[str, ...] = ()


@dataclass
class Scope:
    """Variables: those that the text itself has set, then those of ``environ``. A secret is never looked up."""

    environ: Mapping[str, str]
    own: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    places: tuple[Word, ...] | None = None
    """``$1`` and so on, of a script; None where it is not known here with which words it is called."""
    assumed: dict[str, str] = field(default_factory=dict)
    """What ``$@``, and ``$1`` with a default, were taken for where the words of the call are not known."""
    known: Callable[[str], str | None] = lambda text: None
    """The value of a ``$(...)`` that can be told without executing it."""
    _depth: int = 0

    def assign(self, given: Assignment) -> Word:
        """Remember it; for a list, the answer is its words with blanks between."""
        words = [word for one in given.values for word in self.expand(one, split=given.array)]
        if given.loop:
            words = [_unknown(f"${given.name}")]
        before = self.own.get(given.name, self._of_the_environment(given)) if given.append else ()
        if not given.array:
            parts = [*before, *(words or [Word("")])]
            words = [Word("".join(part.text for part in parts), tuple(what for part in parts for what in part.unknown))]
            before = ()
        if sum(len(word.text) for word in (*before, *words)) > LONGEST:
            words = [_unknown(f"${given.name}")]
        self.own[given.name] = (*before, *words)
        return join_words(self.own[given.name])

    def _of_the_environment(self, given: Assignment) -> tuple[Word, ...]:
        value = "" if given.array or SECRET_NAME.search(given.name) else self.environ.get(given.name, "")
        return (Word(value),) if value and mask_secrets(value) == value else ()

    def expand(self, word: str, *, split: bool = True) -> list[Word]:
        """The words that one word becomes: none, one, or several where a list or an unquoted variable stands in it."""
        if split and (word == "..." or word.startswith(("<(", ">("))):
            return [_unknown(word.lstrip("<>"))]
        fields: list[list[Word]] = []
        for values in self._values(word, split=split):
            for index, value in enumerate(values):
                if not fields or index:
                    fields.append([])
                fields[-1].append(value)
        return [join_words(parts, "") for parts in fields]

    def _values(self, text: str, *, quoted: bool = False, split: bool = False) -> Iterator[list[Word]]:
        """The values of each piece of a word, or with ``quoted`` of what stands in double quotes."""
        at = 0
        while at < len(text):
            piece = next_piece(text, at, quoted=quoted)
            if piece is None:  # a form feed, say; within a default, a quote is a letter like others
                if quoted:
                    yield [Word(text[at])]
                at += 1
            elif piece.kind == "double":
                # An empty text counts only where it is all there is: "$@" of nothing is no word.
                yield from list(self._values(piece.text, quoted=True)) or [[Word("")]]
            elif piece.kind:
                yield self._values_of_piece(piece, is_first=at == 0 and not quoted, split=split)
            at = piece.end if piece else at

    def _values_of_piece(self, piece: Piece, *, is_first: bool, split: bool) -> list[Word]:
        text = piece.text
        if piece.kind == "ansi" and all(escape in _ESCAPES for escape in re.findall(r"(?s)\\(.)", text)):
            return [Word(re.sub(r"(?s)\\(.)", lambda escape: _ESCAPES[escape[1]], text))]
        if piece.kind in ("plain", "escaped", "single", "dollar"):
            return [Word(self._expand_home(text) if is_first and piece.kind == "plain" else text)]
        if piece.kind == "braces" and (found := _LIST.fullmatch(text)):
            shown = f"${{{found[1]}[@]}}"
            return (
                [_unknown(shown)] if SECRET_NAME.search(found[1]) else list(self.own.get(found[1], (_unknown(shown),)))
            )
        parameter = _PARAMETER.fullmatch(text) if piece.kind in ("name", "braces") else None
        if parameter is None or (parameter[3] is not None and self._depth >= DEEPEST):
            shown = {"braces": f"${{{text}}}", "ansi": f"$'{text}'"}.get(piece.kind, text)
            told = self.known(shown)
            return [_unknown(shown) if told is None else Word(told)]
        values = self._values_of_variable(parameter[1], parameter[3], assigns="=" in (parameter[2] or ""))
        if not split:
            return values
        return [
            Word(part, tuple(what for what in value.unknown if what in part or len(what.split()) > 1))
            for value in values
            for part in value.text.split()
        ]

    def _values_of_variable(self, name: str, default: str | None, *, assigns: bool) -> list[Word]:
        """``default``: the text of ``${NAME:-default}``; ``assigns``: ``${NAME:=default}`` sets it, too."""
        shown = f"${name}"
        if SECRET_NAME.search(name):
            return [_unknown(shown)]
        places, of_the_call = self.places or (), name in ("@", "*") or name.isdigit()
        if name in ("@", "*"):
            if self.places is None:
                self.assumed[shown] = ""
            return list(places)
        if name.isdigit() and 0 < int(name) <= len(places):
            return [places[int(name) - 1]]
        found = self.own.get(name)
        if found is not None and (found[0].text if found else ""):
            return [found[0]]
        value = self.environ.get(name) if found is None else None
        if value and mask_secrets(value) == value:
            return [Word(value)]
        if default is not None and not value:
            taken = self._expand_default(default)
            known = found is not None or value == "" or (of_the_call and self.places is not None)
            if not taken.text and not known:
                return [_unknown(shown)]  # "${1:-}": what may be given is no empty text
            if of_the_call and self.places is None:
                self.assumed[shown] = taken.text
            if assigns:
                self.own[name] = (taken,)
            return [taken]
        if value == "":
            return [Word("")]
        return [found[0]] if found else [_unknown(shown)]

    def _expand_default(self, text: str) -> Word:
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
        self._depth += 1
        word = join_words([word for values in self._values(text, quoted=True) for word in values], "")
        self._depth -= 1
        return word

    def _expand_home(self, text: str) -> str:
        home = self.environ.get("HOME", "")
        return home + text[1:] if home and (text == "~" or text.startswith("~/")) else text


def _unknown(text: str) -> Word:
    return Word(text, (text,))


def join_words(words: Sequence[Word], between: str = " ") -> Word:
    """One word of several."""
    return Word(between.join(word.text for word in words), tuple(what for word in words for what in word.unknown))
