"""Reads shell text without a shell: which commands stand in it, and with which words. Nothing is ever executed.

What only a running shell could know (``$(...)``, arithmetic, patterns in ``${...}``) stays text and is called unknown.
The grammar is that of POSIX (Shell Command Language, 2.2 to 2.10), with bash's arrays and ``$'...'``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from supervisor.base.secrets import mask_secrets

DEEPEST = 20  # defaults within defaults

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
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
_PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9@*#?$!-])(?:(:?[-=])(.*)|:?\?.*)?", re.ASCII | re.DOTALL)
_LIST = re.compile(r"([A-Za-z_]\w*)\[[@*]\]", re.ASCII)
_ARMS = {"then": 1, "elif": -1, "fi": -1, "esac": -1}
_KEYWORDS = {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!", "esac", "coproc"}
_LOOPS = {"for", "select"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True)
class Piece:
    """A part of a word: text, a variable by its name, all of a list, or what cannot be known here."""

    kind: Literal["text", "variable", "list", "unknown"]
    text: str
    quoted: bool = False
    default: tuple[Piece, ...] | None = None
    """Of ``${NAME:-default}``."""
    assigns: bool = False
    """``${NAME:=default}`` sets it, too."""


@dataclass(frozen=True)
class Raw:
    """A word as it stands there."""

    pieces: tuple[Piece, ...]

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
    def __init__(self, text: str, depth: int = 0) -> None:
        self.text, self.at, self.depth = text, 0, depth
        self.commands: list[Command] = []
        self.problems: list[str] = []
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._heredocs: list[str] = []
        self._before = "\n"
        self._open = self._arms = 0
        self._clear_command()

    def _clear_command(self) -> None:
        self._words: list[Raw] = []
        self._assignments: list[Assignment] = []
        self._redirects: list[tuple[str, Raw]] = []
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
                    self._words.append(Raw((self._add_unknown(self.at + 1, self._find_closing(self.at + 1)),)))
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
        while words and words[0].bare in _KEYWORDS:
            self._arms += _ARMS.get(words[0].bare, 0)
            words = words[1:]
        if words and words[0].bare in _LOOPS and len(words) > 1:
            name = words[1].bare
            assignments, words = [*assignments, Assignment(name, (Raw((Piece("unknown", f"${name}"),)),))], []
        elif words and words[0].bare in ("case", "function"):
            self._arms += words[0].bare == "case"
            words = []
        elif not assignments:  # those that stood behind a keyword
            while words and (found := read_assignment(words[0])):
                assignments, words = [*assignments, found], words[1:]
        if words or assignments or self._redirects:
            kept = tuple(assignments), tuple(words), tuple(self._redirects)
            last = self.commands[-1].words[:1] if self.commands else ()
            tested = self._before == "&&" and any(word.bare in ("[", "[[", "test") for word in last)
            around = self._before, operator, self._arms > 0 or self._before == "||" or tested
            self.commands.append(Command(self._line_number(self._begin), source, *kept, *around))
        self._before = operator
        self.at += len(operator)
        self._clear_command()
        if operator == "\n":
            self._skip_heredocs()

    def _add_word(self, word: Raw) -> None:
        found = read_assignment(word) if not self._words else None
        if found:
            self._assignments.append(found)
        else:
            self._words.append(word)

    def _read_array(self, found: re.Match[str]) -> None:
        self.at = found.end()
        items: list[Raw] = []
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
            self._heredocs.append("".join(piece.text for piece in target.pieces))
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

    def _read_word(self) -> Raw:
        pieces = self._read_pieces(_IN_WORD)
        if not pieces and self.at < len(self.text) and self.text[self.at] not in " \t\n\\;&|<>()":
            self.at += 1  # whatever that is (a form feed, say), it is passed over
        return Raw((Piece("unknown", "..."),) if Raw(tuple(pieces)).bare == "..." else tuple(pieces))

    def _read_pieces(self, pattern: re.Pattern[str]) -> list[Piece]:
        pieces: list[Piece] = []
        quoted = pattern is _IN_QUOTES
        while quoted or not _BLANK_LINE_END.match(self.text, self.at):
            found = pattern.match(self.text, self.at) if self.at < len(self.text) else None
            if found is None:
                break
            begin, self.at = self.at, found.end()
            kind, text = found.lastgroup, found[found.lastgroup or 0]
            if kind == "double":
                pieces += self._read_double_quoted(self.at - 1)
            elif kind == "open":
                pieces.append(self._never_closed("'", begin))
            elif kind == "command":
                pieces.append(self._add_unknown(begin, self._find_closing(begin + 1), quoted=quoted))
            elif kind == "braces":
                self.at = self._find_closing(begin + 1, "{", "}")
                pieces.append(self._read_parameter(self.text[begin + 2 : self.at - 1], quoted=quoted))
            elif kind == "ansi" and all(escape in _ESCAPES for escape in re.findall(r"(?s)\\(.)", text)):
                text = re.sub(r"(?s)\\(.)", lambda escape: _ESCAPES[escape[1]], text)
                pieces.append(Piece("text", text, quoted=True))
            elif kind in ("ansi", "backquoted", "placeholder"):
                pieces.append(Piece("unknown", found[0], quoted or kind == "ansi"))
            elif kind is not None:
                what: Literal["variable", "text"] = "variable" if kind == "name" else "text"
                pieces.append(Piece(what, text, quoted or kind in ("escaped", "single")))
        return pieces

    def _read_double_quoted(self, begin: int) -> list[Piece]:
        pieces = self._read_pieces(_IN_QUOTES)
        if self.at >= len(self.text):
            return [self._never_closed('"', begin)]
        self.at += 1
        # An empty text counts only where it is all there is: "$@" of nothing is no word.
        return pieces or [Piece("text", "", quoted=True)]

    def _never_closed(self, quote: str, begin: int) -> Piece:
        piece = self._add_unknown(begin, len(self.text), quoted=True)
        self._say_problem(
            begin, f"a {quote} is never closed, and nothing behind it was understood: {_shorten_text(piece.text)}"
        )
        return piece

    def _add_unknown(self, begin: int, end: int, *, quoted: bool = False) -> Piece:
        self.at = end
        return Piece("unknown", self.text[begin:end], quoted)

    def _find_closing(self, at: int, opening: str = "(", closing: str = ")") -> int:
        """Behind the bracket that closes the one at ``at``; quotes within are passed over."""
        depth = 0
        for found in _BRACKETS.finditer(self.text, at):
            depth += (found[0] == opening) - (found[0] == closing)
            if depth == 0 and found[0] == closing:
                return found.end()
        return len(self.text)

    def _read_parameter(self, inner: str, *, quoted: bool) -> Piece:
        if found := _LIST.fullmatch(inner):
            return Piece("list", found[1], quoted)
        found = _PARAMETER.fullmatch(inner)
        if found is None or (found[3] is not None and self.depth >= DEEPEST):
            return Piece("unknown", f"${{{inner}}}", quoted)
        default = None
        if (text := found[3]) is not None:
            if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
                text = text[1:-1]
            default = tuple(_Reader(text, self.depth + 1)._read_default()) or (Piece("text", "", quoted=True),)
        return Piece("variable", found[1], quoted, default, "=" in (found[2] or ""))

    def _read_default(self) -> list[Piece]:
        """All of the text, in which a double quote is a letter like others."""
        pieces = self._read_pieces(_IN_QUOTES)
        while self.at < len(self.text):
            self.at += 1
            pieces += [Piece("text", '"', quoted=True), *self._read_pieces(_IN_QUOTES)]
        return pieces


def read_assignment(word: Raw) -> Assignment | None:
    """The assignment that a word is, where it stands before the command."""
    if not word.pieces or word.pieces[0].kind != "text" or word.pieces[0].quoted:
        return None
    found = _ASSIGNMENT.match(word.pieces[0].text)
    if found is None:
        return None
    rest = word.pieces[0].text[found.end() :]
    first = (Piece("text", rest),) if rest else ()
    return Assignment(found[1], (Raw((*first, *word.pieces[1:])),), append=bool(found[2]))


def _shorten_text(text: str) -> str:
    flat = mask_secrets(" ".join(text.split()))
    return flat if len(flat) <= 60 else flat[:57] + "..."
