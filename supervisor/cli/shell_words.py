"""What the words of a shell text come to: variables that it sets itself, then those of the environment.

A secret is never looked up, and nothing is executed: what is not known stays text and is called unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.base.secret_shapes import SECRET_NAME
from supervisor.base.secrets import mask_secrets
from supervisor.cli.shell_text import Assignment, Piece, Raw

LONGEST = 64 << 10  # characters that a variable may grow to: what doubles itself line by line has no end


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

    def assign(self, given: Assignment) -> Word:
        """Remember it; for a list, the answer is its words with blanks between."""
        words = [word for raw in given.values for word in self.expand(raw, split=given.array)]
        before = self.own.get(given.name, self._of_the_environment(given)) if given.append else ()
        if not given.array:
            parts = [*before, *(words or [Word("")])]
            words = [Word("".join(part.text for part in parts), tuple(what for part in parts for what in part.unknown))]
            before = ()
        if sum(len(word.text) for word in (*before, *words)) > LONGEST:
            words = [Word(f"${given.name}", (f"${given.name}",))]
        self.own[given.name] = (*before, *words)
        return join_words(self.own[given.name])

    def _of_the_environment(self, given: Assignment) -> tuple[Word, ...]:
        value = "" if given.array or SECRET_NAME.search(given.name) else self.environ.get(given.name, "")
        return (Word(value),) if value and mask_secrets(value) == value else ()

    def expand(self, raw: Raw, *, split: bool = True) -> list[Word]:
        """The words that one word becomes: none, one, or several where a list or an unquoted variable stands in it."""
        fields: list[list[Word]] = []
        open_field = False
        for number, piece in enumerate(raw.pieces):
            values = self._values_of_piece(piece)
            if piece.kind == "text" and not piece.quoted and number == 0:
                values = [Word(self._expand_home(piece.text))]
            if piece.kind == "variable" and not piece.quoted and split:
                values = [
                    Word(part, tuple(what for what in value.unknown if what in part or len(what.split()) > 1))
                    for value in values
                    for part in value.text.split()
                ]
            for index, value in enumerate(values):
                if not open_field or index:
                    fields.append([])
                    open_field = True
                fields[-1].append(value)
        return [join_words(parts, "") for parts in fields]

    def _values_of_piece(self, piece: Piece) -> list[Word]:
        if piece.kind == "text":
            return [Word(piece.text)]
        if piece.kind == "unknown":
            told = self.known(piece.text)
            return [Word(piece.text, (piece.text,)) if told is None else Word(told)]
        shown = f"${{{piece.text}[@]}}" if piece.kind == "list" else f"${piece.text}"
        if SECRET_NAME.search(piece.text):
            return [Word(shown, (shown,))]
        if piece.kind == "list":
            return list(self.own.get(piece.text, (Word(shown, (shown,)),)))
        places, of_the_call = self.places or (), piece.text in ("@", "*") or piece.text.isdigit()
        if piece.text in ("@", "*"):
            if self.places is None:
                self.assumed[shown] = ""
            return list(places)
        if piece.text.isdigit() and 0 < int(piece.text) <= len(places):
            return [places[int(piece.text) - 1]]
        found = self.own.get(piece.text)
        if found is not None and (found[0].text if found else ""):
            return [found[0]]
        value = self.environ.get(piece.text) if found is None else None
        if value and mask_secrets(value) == value:
            return [Word(value)]
        if piece.default is not None and not value:
            default = join_words([word for part in piece.default for word in self._values_of_piece(part)], "")
            known = found is not None or value == "" or (of_the_call and self.places is not None)
            if not default.text and not known:
                return [Word(shown, (shown,))]  # "${1:-}": what may be given is no empty text
            if of_the_call and self.places is None:
                self.assumed[shown] = default.text
            if piece.assigns:
                self.own[piece.text] = (default,)
            return [default]
        if value == "":
            return [Word("")]
        return [found[0]] if found else [Word(shown, (shown,))]

    def _expand_home(self, text: str) -> str:
        home = self.environ.get("HOME", "")
        return home + text[1:] if home and (text == "~" or text.startswith("~/")) else text


def join_words(words: Sequence[Word], between: str = " ") -> Word:
    """One word of several."""
    return Word(between.join(word.text for word in words), tuple(what for word in words for what in word.unknown))
