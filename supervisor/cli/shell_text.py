"""Reads shell text without a shell: which commands stand in it, and with which words. Nothing is ever executed.

What only a running shell could know (``$(...)``, arithmetic, patterns in ``${...}``) stays text and is called unknown.
The grammar is that of POSIX (Shell Command Language, 2.2 to 2.10), with bash's arrays and ``$'...'``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from supervisor.base.secrets import masked

DEEPEST = 20  # defaults within defaults

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(", re.ASCII)
_REDIRECT = re.compile(r"(&>>|&>|\d*(?:<<<|<<-|<<|<>|>>|>\||>&|<&|>|<))")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w.-]*>")
"""What a page writes for a word of one's own. Read from a file and written to another nobody says without a blank."""
_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()]")
_BLANK_LINE_END = re.compile(r"\\[ \t]+(?:\n|\Z)")
_PLAIN = re.compile(r"""[^\s;&|<>()"'`$\\]+""")
_PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9@*#?$!-])(?:(:?[-=])(.*)|:?\?.*)?", re.ASCII | re.DOTALL)
_LIST = re.compile(r"([A-Za-z_]\w*)\[[@*]\]", re.ASCII)
_KEYWORDS = {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!", "esac", "coproc"}
_LOOPS = {"for", "select"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True)
class Piece:
    """A part of a word: text, a variable by its name, all of a list, or what nobody can know here."""

    kind: Literal["text", "variable", "list", "unknown"]
    text: str
    quoted: bool = False
    default: tuple[Piece, ...] | None = None
    """Of ``${NAME:-default}``."""


@dataclass(frozen=True)
class Raw:
    """A word as it stands there."""

    pieces: tuple[Piece, ...]
    line: int

    @property
    def bare(self) -> str:
        """Its text where it is unquoted and nothing else, "" otherwise."""
        whole = len(self.pieces) == 1 and self.pieces[0].kind == "text" and not self.pieces[0].quoted
        return self.pieces[0].text if whole else ""


@dataclass(frozen=True)
class Assignment:
    """``NAME=value``, ``NAME+=value`` or ``NAME=(a b)``."""

    name: str
    values: tuple[Raw, ...]
    array: bool = False
    append: bool = False


@dataclass(frozen=True)
class Command:
    """One simple command. ``before`` and ``after``: the operators around it ("\\n" at the end of a line)."""

    line: int
    source: str
    assignments: tuple[Assignment, ...]
    words: tuple[Raw, ...]
    redirects: tuple[tuple[str, Raw], ...]
    before: str
    after: str


@dataclass(frozen=True)
class Text:
    """All commands in their order, and sentences on what could not be read."""

    commands: Sequence[Command]
    problems: Sequence[str]


def read(text: str, first_line: int = 1) -> Text:
    """Read ``text``, also where it is pasted from a page or a terminal."""
    reader = _Reader(_tidied(text), first_line)
    reader.everything()
    return Text(tuple(reader.commands), tuple(reader.problems))


def _tidied(text: str) -> str:
    """Line ends of Windows, fences of Markdown, prompts, and quotes that an editor has bent."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = text.translate({0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'", 0xA0: " "})
    text = re.sub(r"(?m)^[ \t]*(?:```|~~~)\w*[ \t]*$", "", text)
    text = re.sub(r"(?m)^[ \t]*(?:\([\w.-]+\) ?)?[\w.-]+@[\w.-]+:[^\s$#]*[$#] +", "", text)
    text = re.sub(r"(?m)^[ \t]*\$ +(?=\S)", "", text)
    return re.sub(r"(?m)(^|[ \t])[\u2013\u2014]-?(?=\w)", r"\1--", text)


class _Reader:
    def __init__(self, text: str, line: int = 1, depth: int = 0) -> None:
        self.text, self.at, self.line, self.depth = text, 0, line, depth
        self.commands: list[Command] = []
        self.problems: list[str] = []
        self._heredocs: list[str] = []
        self._before = "\n"
        self._open = 0
        self._clear()

    def _clear(self) -> None:
        self._words: list[Raw] = []
        self._assignments: list[Assignment] = []
        self._redirects: list[tuple[str, Raw]] = []
        self._begin, self._begin_line, self._until = -1, 0, 0

    # ---------------------------------------------------------------- commands

    def everything(self) -> None:
        text = self.text
        while True:
            self._blanks()
            if self.at >= len(text):
                break
            char = text[self.at]
            if char == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
                continue
            if char == "\n":
                self._end("\n", 1)
                self.line += 1
                self._skip_heredocs()
            elif _PLACEHOLDER.match(text, self.at):
                self._start()
                self._add(self._word())
            elif (found := _REDIRECT.match(text, self.at)) and text[found.end() : found.end() + 1] != "(":
                self._start()
                self._redirect(found)
            elif char in "<>":
                self._start()
                self._words.append(self._process_substitution())
            elif operator := _OPERATOR.match(text, self.at):
                self._end(operator[0], len(operator[0]))
            elif array := _ARRAY.match(text, self.at):
                self._start()
                self._array(array)
            else:
                self._start()
                self._add(self._word())
            self._until = self.at
        self._end("\n", 0)

    def _start(self) -> None:
        if self._begin < 0:
            self._begin, self._begin_line = self.at, self.line

    def _end(self, operator: str, length: int) -> None:
        source = self.text[self._begin : self._until].strip() if self._begin >= 0 else ""
        self._open += (operator == "(") - (operator == ")")
        if self._open < 0:  # behind a pattern of `case`: a|b)
            self._open, self._words = 0, []
            while self.commands and self.commands[-1].after == "|":
                self.commands.pop()
        words, assignments = self._words, self._assignments
        while words and words[0].bare in _KEYWORDS:
            words = words[1:]
        if words and words[0].bare in _LOOPS and len(words) > 1:
            unknown = Raw((Piece("unknown", f"${words[1].bare}"),), words[1].line)
            assignments = [*assignments, Assignment(words[1].bare, (unknown,))]
            words = []
        elif words and words[0].bare in ("case", "function"):
            words = []
        elif not assignments:  # those that stood behind a keyword
            while words and (found := assigned(words[0])):
                assignments = [*assignments, found]
                words = words[1:]
        if words or assignments or self._redirects:
            self.commands.append(
                Command(
                    *(self._begin_line, source, tuple(assignments), tuple(words), tuple(self._redirects)),
                    *(self._before, operator),
                )
            )
        self._before = operator
        self.at += length
        self._clear()

    def _add(self, word: Raw) -> None:
        found = assigned(word) if not self._words else None
        if found:
            self._assignments.append(found)
        else:
            self._words.append(word)

    def _array(self, found: re.Match[str]) -> None:
        self.at = found.end()
        items: list[Raw] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            char = self.text[self.at]
            if char == "\n":
                self.line += 1
                self.at += 1
            elif char in " \t":
                self.at += 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in "<>;&|(":
                self.at += 1  # nothing that a list of words has
            else:
                before = self.at
                items.append(self._word())
                if self.at == before:
                    self.at += 1  # a backslash before blanks that end the line
        self.at += 1
        self._assignments.append(Assignment(found[1], tuple(items), array=True, append=bool(found[2])))

    def _redirect(self, found: re.Match[str]) -> None:
        self.at = found.end()
        self._blanks()
        operator = found[1].lstrip("0123456789")
        target = self._word()
        if operator in ("<<", "<<-"):
            self._heredocs.append("".join(piece.text for piece in target.pieces))
        self._redirects.append((found[1], target))

    def _skip_heredocs(self) -> None:
        for ending in self._heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                self.line += 1
                if line.strip() == ending:
                    break
            else:
                self.problems.append(f"line {self.line}: the text that ends with {ending} has no such end.")
        self._heredocs = []

    def _blanks(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif found := _BLANK_LINE_END.match(self.text, self.at):
                self.problems.append(
                    f"line {self.line}: blanks stand behind the \\ at its end, so that a shell would end the command "
                    "there. It was read as meant: the next line goes on with it."
                )
                self.at = found.end()
                self.line += 1
            else:
                return

    # ---------------------------------------------------------------- words

    def _word(self) -> Raw:
        line = self.line
        pieces: list[Piece] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                if self.text.startswith("\\\n", self.at):
                    self.at += 2
                    self.line += 1
                elif _BLANK_LINE_END.match(self.text, self.at):
                    break
                else:
                    pieces.append(Piece("text", self.text[self.at + 1 : self.at + 2], quoted=True))
                    self.at += 2
            elif char == "'":
                pieces.append(self._single_quoted())
            elif char == '"':
                self.at += 1
                pieces += self._double_quoted(end='"')
            elif char == "$":
                pieces += self._dollar(quoted=False)
            elif char == "`":
                pieces.append(self._backquoted(quoted=False))
            elif found := _PLACEHOLDER.match(self.text, self.at):
                pieces.append(Piece("unknown", found[0]))
                self.at = found.end()
            elif found := _PLAIN.match(self.text, self.at):
                pieces.append(Piece("text", found[0]))
                self.at = found.end()
            else:
                break
        if not pieces and self.at < len(self.text) and self.text[self.at] not in " \t\n\\;&|<>()":
            self.at += 1  # whatever that is (a form feed, say), it is passed over
        if Raw(tuple(pieces), line).bare == "...":
            pieces = [Piece("unknown", "...")]
        return Raw(tuple(pieces), line)

    def _single_quoted(self) -> Piece:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            return self._never_closed("'")
        text = self.text[self.at + 1 : end]
        self.line += text.count("\n")
        self.at = end + 1
        return Piece("text", text, quoted=True)

    def _never_closed(self, quote: str) -> Piece:
        rest = self.text[self.at :]
        self.problems.append(
            f"line {self.line}: a {quote} is never closed, and nothing behind it was understood: {_short(rest)}"
        )
        self.at = len(self.text)
        return Piece("unknown", rest, quoted=True)

    def _double_quoted(self, end: str) -> list[Piece]:
        """Up to the closing quote; with ``end`` "" up to the end of the text."""
        begin = self.at - len(end)
        pieces: list[Piece] = []
        plain: list[str] = []
        while True:
            if self.at >= len(self.text):
                if end:
                    self.at = begin
                    return [self._never_closed('"')]
                break
            char = self.text[self.at]
            if char == end:
                self.at += 1
                break
            if char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                plain.append("" if following == "\n" else following if following in '$`"\\' else char + following)
                self.line += following == "\n"
                self.at += 2
            elif char in "$`":
                pieces.append(Piece("text", "".join(plain), quoted=True))
                plain = []
                pieces += [self._backquoted(quoted=True)] if char == "`" else self._dollar(quoted=True)
            else:
                plain.append(char)
                self.line += char == "\n"
                self.at += 1
        pieces.append(Piece("text", "".join(plain), quoted=True))
        # An empty text counts only where it is all there is: "$@" of nothing is no word.
        return [piece for piece in pieces if piece.text or piece.kind != "text"] or pieces[-1:]

    def _backquoted(self, *, quoted: bool) -> Piece:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        return self._unknown(end + 1, quoted=quoted)

    def _unknown(self, end: int, *, quoted: bool) -> Piece:
        text = self.text[self.at : end]
        self.line += text.count("\n")
        self.at = min(end, len(self.text))
        return Piece("unknown", text, quoted)

    def _process_substitution(self) -> Raw:
        line = self.line
        self.at += 1
        return Raw((self._unknown(self._closing("(", ")"), quoted=False),), line)

    def _closing(self, opening: str, closing: str) -> int:
        """Behind the bracket that closes the one at ``at``; quotes within are passed over."""
        depth, at = 0, self.at
        while at < len(self.text):
            char = self.text[at]
            if char == "\\":
                at += 1
            elif char in "'\"":
                end = self.text.find(char, at + 1)
                at = len(self.text) if end < 0 else end
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        return len(self.text)

    def _dollar(self, *, quoted: bool) -> list[Piece]:
        text, following = self.text, self.text[self.at + 1 : self.at + 2]
        if following == "(":
            self.at += 1
            piece = self._unknown(self._closing("(", ")"), quoted=quoted)
            return [Piece("unknown", f"${piece.text}", quoted)]
        if following == "{":
            self.at += 1
            end = self._closing("{", "}")
            inner = text[self.at + 1 : end - 1]
            self.line += inner.count("\n")
            self.at = end
            return [self._parameter(inner, quoted=quoted)]
        if following == "'" and not quoted:
            return [self._ansi_quoted()]
        if following == '"' and not quoted:
            self.at += 2
            return self._double_quoted(end='"')
        name = _NAME.match(text, self.at + 1)
        if name or (following and following in "0123456789@*#?$!-"):
            self.at += 1 + len(name[0] if name else following)
            return [Piece("variable", name[0] if name else following, quoted)]
        self.at += 1
        return [Piece("text", "$", quoted)]

    def _parameter(self, inner: str, *, quoted: bool) -> Piece:
        if found := _LIST.fullmatch(inner):
            return Piece("list", found[1], quoted)
        found = _PARAMETER.fullmatch(inner)
        if found is None or (found[3] is not None and self.depth >= DEEPEST):
            return Piece("unknown", f"${{{inner}}}", quoted)
        default = None
        if found[3] is not None:
            text = found[3]
            if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
                text = text[1:-1]
            default = tuple(_Reader(text, self.line, self.depth + 1)._double_quoted(end=""))
        return Piece("variable", found[1], quoted, default)

    def _ansi_quoted(self) -> Piece:
        begin = self.at
        self.at += 2
        found: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != "'":
            if self.text[self.at] == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following not in _ESCAPES:
                    end = self.text.find("'", self.at + 2)
                    self.at = begin
                    return self._unknown(end + 1 if end >= 0 else len(self.text), quoted=True)
                found.append(_ESCAPES[following])
                self.at += 2
            else:
                found.append(self.text[self.at])
                self.line += self.text[self.at] == "\n"
                self.at += 1
        if self.at >= len(self.text):
            self.at = begin
            return self._never_closed("'")
        self.at += 1
        return Piece("text", "".join(found), quoted=True)


def assigned(word: Raw) -> Assignment | None:
    """The assignment that a word is, where it stands before the command."""
    if not word.pieces or word.pieces[0].kind != "text" or word.pieces[0].quoted:
        return None
    found = _ASSIGNMENT.match(word.pieces[0].text)
    if found is None:
        return None
    rest = word.pieces[0].text[found.end() :]
    first = (Piece("text", rest),) if rest else ()
    return Assignment(found[1], (Raw((*first, *word.pieces[1:]), word.line),), append=bool(found[2]))


def _short(text: str) -> str:
    flat = masked(" ".join(text.split()))
    return flat if len(flat) <= 60 else flat[:57] + "..."
