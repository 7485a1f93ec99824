"""Reads shell text without a shell: which commands stand in it, and with which words. Nothing is ever executed.

A word is kept as it stands there; ``shell_words`` says what it comes to. The grammar is that of POSIX (Shell Command
Language, 2.2 to 2.10), with bash's arrays and ``$'...'``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.base.secrets import mask_secrets

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.ASCII | re.DOTALL)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(", re.ASCII)
_REDIRECT = re.compile(r"(&>>|&>|\d*(?:<<<|<<-|<<|<>|>>|>\||>&|<&|>|<))")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w.-]*>")
"""What a page writes for a word of one's own. Input from a file and output to another always have a blank between."""
_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()\n]")
_BLANK_LINE_END = re.compile(r"\\[ \t]+(?:\n|\Z)")
_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_BETWEEN_ITEMS = re.compile(r"[ \t\n<>;&|(]+|#[^\n]*")
_EXPANSION = r"""
    | (?P<backquoted>`(?:[^`\\]|\\.)*(?:`|\\?\Z))
    | (?P<command>\$\() | (?P<braces>\$\{)
    | \$(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9@*\#?$!-])
    | (?P<dollar>\$)"""
_IN_WORD = re.compile(
    r"""\\\n | \\(?P<escaped>.?) | '(?P<single>[^']*)' | \$'(?P<ansi>(?:[^'\\]|\\.)*)' | (?P<open>\$?')
    | (?P<double>\$?") | (?P<placeholder><[A-Za-z][\w.-]*>) | (?P<plain>[^\s;&|<>()"'`$\\]+)"""
    + _EXPANSION,
    re.DOTALL | re.VERBOSE,
)
_IN_QUOTES = re.compile(
    r"""\\\n | \\(?P<escaped>[$`"\\]) | (?P<plain>[^"$`\\]+|\\)""" + _EXPANSION, re.DOTALL | re.VERBOSE
)
"""What a word, and what stands in double quotes, is made of: the next piece."""
_BRACKETS = re.compile(r"""\\.|'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|[(){}]""", re.DOTALL)
_ARMS = {"then": 1, "elif": -1, "fi": -1, "esac": -1}
_KEYWORDS = {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!", "esac", "coproc"}
_LOOPS = {"for", "select"}


class Piece(NamedTuple):
    """A part of a word. ``kind``: a group of the patterns above ("" for a line that goes on); ``end``: where it ends.

    ``text`` is what stands between quotes or braces; "open" is a quote that is never closed, and all behind it.
    """

    kind: str
    text: str
    end: int


def next_piece(text: str, at: int, *, quoted: bool = False) -> Piece | None:
    """The piece that begins at ``at``; None where the word, or with ``quoted`` what stands in double quotes, ends."""
    found = (_IN_QUOTES if quoted else _IN_WORD).match(text, at) if at < len(text) else None
    if found is None:
        return None
    kind, end = found.lastgroup or "", found.end()
    if kind == "command":
        end = _find_closing(text, end - 1)
        return Piece(kind, text[at:end], end)
    if kind == "braces":
        end = _find_closing(text, end - 1, "{", "}")
        return Piece(kind, text[found.end() : end - 1], end)
    if kind == "double":
        while inner := next_piece(text, end, quoted=True):
            end = inner.end
        if end < len(text):
            return Piece(kind, text[found.end() : end], end + 1)
    if kind in ("double", "open"):
        return Piece("open", text[at:], len(text))
    return Piece(kind, found[kind] if kind else "", end)


def _find_closing(text: str, at: int, opening: str = "(", closing: str = ")") -> int:
    """Behind the bracket that closes the one at ``at``; quotes within are passed over."""
    depth = 0
    for found in _BRACKETS.finditer(text, at):
        depth += (found[0] == opening) - (found[0] == closing)
        if depth == 0 and found[0] == closing:
            return found.end()
    return len(text)


@dataclass(frozen=True)
class Assignment:
    """``NAME=value``, ``NAME+=value`` or ``NAME=(a b)``; with ``loop``, of `for NAME in ...`, without a value."""

    name: str
    values: tuple[str, ...]
    array: bool = False
    append: bool = False
    loop: bool = False


@dataclass(frozen=True)
class Command:
    """One simple command, its words as they stand there.

    ``before`` and ``after``: the operators around it ("\\n" at the end of a line).
    """

    line: int
    source: str
    assignments: tuple[Assignment, ...]
    words: tuple[str, ...]
    redirects: tuple[tuple[str, str], ...]
    before: str
    after: str
    conditional: bool = False
    """It stands in an arm of `if` or `case`, or behind `||`, or behind a test and `&&`."""


@dataclass(frozen=True)
class Text:
    """All commands in their order, and sentences on what could not be read."""

    commands: Sequence[Command]
    problems: Sequence[str]


def read(text: str) -> Text:
    """Read ``text``, also where it is pasted from a page or a terminal."""
    reader = _Reader(_tidy_text(text))
    reader.read_all()
    return Text(tuple(reader.commands), tuple(reader.problems))


def _tidy_text(text: str) -> str:
    """Line ends of Windows, fences of Markdown, prompts, and quotes that an editor has bent."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = text.translate({0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'", 0xA0: " "})
    text = re.sub(r"(?m)^[ \t]*(?:```|~~~)\w*[ \t]*$", "", text)
    text = re.sub(r"(?m)^[ \t]*(?:\([\w.-]+\) ?)?[\w.-]+@[\w.-]+:[^\s$#]*[$#] +", "", text)
    text = re.sub(r"(?m)^[ \t]*\$ +(?=\S)", "", text)
    return re.sub(r"(?m)(^|[ \t])[\u2013\u2014]-?(?=\w)", r"\1--", text)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.commands: list[Command] = []
        self.problems: list[str] = []
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._heredocs: list[str] = []
        self._before = "\n"
        self._open = self._arms = 0
        self._clear_command()

    def _clear_command(self) -> None:
        self._words: list[str] = []
        self._assignments: list[Assignment] = []
        self._redirects: list[tuple[str, str]] = []
        self._begin, self._until = -1, 0

    def _say_problem(self, at: int, problem: str) -> None:
        self.problems.append(f"line {self._line_number(at)}: {problem}")

    def _line_number(self, at: int) -> int:
        return bisect_left(self._newlines, at) + 1

    # ---------------------------------------------------------------- commands

    def read_all(self) -> None:
        while True:
            self._skip_blanks()
            if self.at >= len(self.text):
                break
            if found := _COMMENT.match(self.text, self.at):
                self.at = found.end()
                continue
            operator = _OPERATOR.match(self.text, self.at)
            redirect = _REDIRECT.match(self.text, self.at)
            is_redirect = redirect is not None and not self.text.startswith("(", redirect.end())
            if operator and not is_redirect:
                self._end_command(operator[0])
            else:
                self._begin = self.at if self._begin < 0 else self._begin
                if redirect and is_redirect and not _PLACEHOLDER.match(self.text, self.at):
                    self._read_redirect(redirect)
                elif redirect and not is_redirect:
                    begin, self.at = redirect.end() - 1, _find_closing(self.text, redirect.end())
                    self._words.append(self.text[begin : self.at])
                elif array := _ARRAY.match(self.text, self.at):
                    self._read_array(array)
                else:
                    self._add_word(self._read_word())
            self._until = self.at
        self._end_command("\n")

    def _end_command(self, operator: str) -> None:
        """A command ends with ``operator``: keep it, without the words of the shell's own grammar."""
        source = self.text[self._begin : self._until].strip() if self._begin >= 0 else ""
        self._open += (operator == "(") - (operator == ")")
        if self._open < 0:  # behind a pattern of `case`: a|b)
            self._open, self._words = 0, []
            while self.commands and self.commands[-1].after == "|":
                self.commands.pop()
        words, assignments = self._words, self._assignments
        while words and words[0] in _KEYWORDS:
            self._arms += _ARMS.get(words[0], 0)
            words = words[1:]
        if words and words[0] in _LOOPS and len(words) > 1:
            assignments, words = [*assignments, Assignment(words[1].replace("\\\n", ""), (), loop=True)], []
        elif words and words[0] in ("case", "function"):
            self._arms += words[0] == "case"
            words = []
        elif not assignments:  # those that stood behind a keyword
            while words and (found := read_assignment(words[0])):
                assignments, words = [*assignments, found], words[1:]
        if words or assignments or self._redirects:
            kept = tuple(assignments), tuple(words), tuple(self._redirects)
            last = self.commands[-1].words[:1] if self.commands else ()
            tested = self._before == "&&" and any(word in ("[", "[[", "test") for word in last)
            around = self._before, operator, self._arms > 0 or self._before == "||" or tested
            self.commands.append(Command(self._line_number(self._begin), source, *kept, *around))
        self._before = operator
        self.at += len(operator)
        self._clear_command()
        if operator == "\n":
            self._skip_heredocs()

    def _add_word(self, word: str) -> None:
        found = read_assignment(word) if not self._words else None
        if found:
            self._assignments.append(found)
        else:
            self._words.append(word)

    def _read_array(self, found: re.Match[str]) -> None:
        self.at = found.end()
        items: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            before = self.at
            if skipped := _BETWEEN_ITEMS.match(self.text, self.at):
                self.at = skipped.end()
            else:
                items.append(self._read_word())
            self.at += self.at == before  # a backslash before blanks that end the line
        self.at += 1
        self._assignments.append(Assignment(found[1], tuple(items), array=True, append=bool(found[2])))

    def _read_redirect(self, found: re.Match[str]) -> None:
        self.at = found.end()
        self._skip_blanks()
        target = self._read_word()
        if found[1].lstrip("0123456789") in ("<<", "<<-"):
            self._heredocs.append(re.sub(r"\$(?=['\"])|[\\'\"]", "", target))
        self._redirects.append((found[1], target))

    def _skip_heredocs(self) -> None:
        for ending in self._heredocs:
            found = re.compile(rf"(?m)^[^\S\n]*{re.escape(ending)}[^\S\n]*$\n?").search(self.text, self.at)
            if found is None:
                self._say_problem(len(self.text), f"the text that ends with {ending} has no such end.")
            self.at = found.end() if found else len(self.text)
        self._heredocs = []

    def _skip_blanks(self) -> None:
        while found := _BLANKS.match(self.text, self.at) or _BLANK_LINE_END.match(self.text, self.at):
            if found.re is _BLANK_LINE_END:
                self._say_problem(
                    self.at,
                    "blanks stand behind the \\ at its end, so that a shell would end the command there. It was read "
                    "as meant: the next line goes on with it.",
                )
            self.at = found.end()

    # ---------------------------------------------------------------- words

    def _read_word(self) -> str:
        begin = self.at
        while not _BLANK_LINE_END.match(self.text, self.at) and (piece := next_piece(self.text, self.at)):
            if piece.kind == "open":
                quote = piece.text.lstrip("$")[0]
                told = f"a {quote} is never closed, and nothing behind it was understood: {_shorten_text(piece.text)}"
                self._say_problem(self.at, told)
            self.at = piece.end
        if self.at == begin and self.at < len(self.text) and self.text[self.at] not in " \t\n\\;&|<>()":
            self.at += 1  # whatever that is (a form feed, say), it is passed over
        return self.text[begin : self.at]


def read_assignment(word: str) -> Assignment | None:
    """The assignment that a word is, where it stands before the command."""
    found = _ASSIGNMENT.fullmatch(word)
    return Assignment(found[1], (found[3],), append=bool(found[2])) if found else None


def _shorten_text(text: str) -> str:
    flat = mask_secrets(" ".join(text.split()))
    return flat if len(flat) <= 60 else flat[:57] + "..."
