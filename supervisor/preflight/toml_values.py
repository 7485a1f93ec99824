"""Makes TOML of a value that is almost TOML: text without quotes, Python's words, typographic quotes, missing brackets.

Only what can be meant in one way is rewritten; the caller has the last word by parsing the result. Lines stay lines,
but for inline tables, which TOML 1.0 wants on one line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

CLAUSES: Mapping[str, str] = {
    "unquoted-text": "TOML wants quotes around text",
    "python-word": "that is Python's word, not TOML's",
    "typographic-quotes": "these are typographic quotes, and TOML knows only straight ones",
    "unclosed": "a quote or bracket is missing",
    "backslashes": "a backslash starts an escape in double quotes, and TOML knows no such escape",
    "missing-comma": "a comma is missing between two values",
    "missing-brackets": "several values want [ ] around them",
    "odd-number": "TOML writes this number otherwise",
    "inline-table": "a table in { } must stand on one line, without a comma at its end",
    "stray-character": "there is a character that does not belong here",
    "wrong-separator": "TOML wants = between a key and its value",
}
"""What each mistake is, in a clause that goes after the text that has it."""
TYPOGRAPHIC = "“”„‟«»″‘’‚‛′`´"
BLANKS = {"\u00a0": " ", "\u202f": " ", "\u3000": " ", "\u200b": "", "\u200e": "", "\u2060": "", "\ufeff": ""}
"""Characters that look like nothing or like a space, and come along with text that is copied from a web page."""

_DEEPEST = 40
_ESCAPE = re.compile(r'\\(?:[btnfr"\\]|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8})')
_TRUTH = {"true", "false"}
_NOTHING = {"none", "null", "nil", "~", "undefined"}
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_LEADING_ZEROS = re.compile(r"([+-]?)0+(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_BARE_POINT = re.compile(r"([+-]?)(\d*)\.(\d*)([eE][+-]?\d+)?")
_OTHER_COMMENT = re.compile(r"//|;(?=[ \t]*\S)")
"""Comments as other languages write them."""
_SUM = re.compile(r"[\d.]+(?:[ \t]*[-+*/][ \t]*[\d.]+)+")
_VARIABLE = re.compile(r"\$\{\w+\}")
_MINUS = str.maketrans("\u2212\u2013\u2014", "---")
_KEY = re.compile(
    r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:[ \t]*\.[ \t]*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*"""
)


class CannotMendError(Exception):
    """What is meant is not certain."""


def rewritten(text: str) -> tuple[str, tuple[str, ...]]:
    """TOML for the value ``text`` (what stands after "=", comments included), with as many lines; and what was wrong.

    Each mistake is named once. Raises CannotMendError.
    """
    return _Value(text).whole()


def is_scalar(word: str) -> bool:
    """Is this one number, truth, date or quoted text of TOML?"""
    if not word or "\n" in word or word[0] in "[{#":
        return False
    try:
        return len(tomllib.loads(f"x = {word}")) == 1
    except (ValueError, RecursionError):
        return False


def quote_toml(text: str) -> str:
    """``text`` as TOML writes it: in plain quotes if it has backslashes, else in double ones."""
    if "\\" in text and "'" not in text:
        return f"'{text}'"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Value:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.out: list[str] = []
        self.mistakes: list[str] = []
        self.joined = False
        """An inline table stands over several lines: they become one."""

    def whole(self) -> tuple[str, tuple[str, ...]]:
        self._skip_blank(newlines=False)
        start = len(self.out)
        self._read_value("", 0)
        self._skip_blank(newlines=False)
        if self._peek_next() == ",":
            self._rest_of_a_list(start)
        if self._peek_next() == "," or re.match(r";[ \t]*(?:#.*)?$", self._rest_of_line()):
            self._skip_mistake("stray-character")
            self._skip_blank(newlines=False)
        if comment := _OTHER_COMMENT.match(self._rest_of_line()):
            self.mistakes.append("stray-character")
            self.out.append("#")
            self.at += comment.end()
            self._copy_text(self._line_end() - self.at)
        rest = self.text[self.at :]
        if any(line.strip() and not line.lstrip().startswith("#") for line in rest.split("\n")):
            raise CannotMendError
        text = "".join(self.out) + rest
        if self.joined:
            text = text[: len(text) - len(text.lstrip())] + " ".join(line.strip() for line in text.split("\n")).strip()
        return text, tuple(dict.fromkeys(self.mistakes))

    def _rest_of_a_list(self, start: int) -> None:
        """Values with commas and no brackets around: `gpu_ids = 0, 1`. One comma at the end is no list."""
        if not re.match(r",[ \t]*[^\s#]", self._rest_of_line()):
            return
        while self._peek_next() == ",":
            self._copy_text(1)
            self._skip_blank(newlines=False)
            if self._peek_next() in ("", "\n", "#"):
                break
            self._read_value("[", 0)
            self._skip_blank(newlines=False)
        self.out.insert(start, "[")
        self.out.append("]")
        self.mistakes.append("missing-brackets")

    # ------------------------------------------------------------ values

    def _read_value(self, inside: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise CannotMendError
        head = self._peek_next()
        if head in ('"', "'"):
            self._read_quoted(head, inside)
        elif head and head in TYPOGRAPHIC:
            self._mend_typographic()
        elif head and head in "[({":
            if head == "(":
                self.mistakes.append("missing-brackets")
            self._read_items({"[": "]", "(": ")", "{": "}"}[head], depth)
        else:
            self._read_bare(inside)

    def _read_quoted(self, quote: str, inside: str) -> None:
        if self.text.startswith(quote * 3, self.at):
            end = self.text.find(quote * 3, self.at + 3)
            if end < 0:
                raise CannotMendError
            end += 3
            while self.text.startswith(quote, end):
                end += 1
            self._copy_text(end - self.at)
            return
        line_end = self._line_end()
        end = self.at + 1
        while end < line_end and self.text[end] != quote:
            end += 2 if quote == '"' and self.text[end] == "\\" else 1
        if end >= line_end:
            self._mend_unclosed(quote, inside, line_end)
            return
        content = self.text[self.at + 1 : end]
        if quote == '"' and "\\" in _ESCAPE.sub("", content):
            # A backslash that starts no escape of TOML's was meant as itself, and so were the others of this text.
            self.mistakes.append("backslashes")
            self.out.append(quote_toml(content))
            self.at = end + 1
        else:
            self._copy_text(end + 1 - self.at)

    def _mend_unclosed(self, quote: str, inside: str, line_end: int) -> None:
        """A text that is not closed on its line. Where it ends is certain when nothing else could stand there."""
        line = self.text[self.at + 1 : line_end].rstrip()
        if line.endswith('\\"') and quote == '"' and "\\" in _ESCAPE.sub("", line[:-2] + "\\"):
            self.mistakes.append("backslashes")  # "C:\models\": the last backslash was meant as itself, too
            self.out.append(quote_toml(line[:-1]))
        elif inside == "[" and line.endswith("]") and not set(line[:-1]) & set(",'\"#[ "):
            self.mistakes.append("unclosed")
            self.out.append(quote_toml(line[:-1]))
            line_end = self.at + 1 + len(line) - 1
        elif inside or "#" in line or quote in line:
            raise CannotMendError
        else:
            other = line[-1:] in "'\"" + TYPOGRAPHIC and line[-1:] != ""
            self.mistakes.append("typographic-quotes" if other and line[-1] in TYPOGRAPHIC else "unclosed")
            self.out.append(quote_toml(line[:-1] if other else line))
        self.at = line_end

    def _mend_typographic(self) -> None:
        line_end = self._line_end()
        end = self.at + 1
        while end < line_end and self.text[end] not in TYPOGRAPHIC + '"':
            end += 1
        if end >= line_end:
            raise CannotMendError
        self.mistakes.append("typographic-quotes")
        self.out.append(quote_toml(self.text[self.at + 1 : end]))
        self.at = end + 1

    def _read_items(self, closing: str, depth: int) -> None:
        """What stands in [ ], in ( ), which are meant for them, or in { }."""
        table = closing == "}"
        self._skip_mistake()
        self.out.append("{" if table else "[")
        while True:
            self._skip_blank(newlines=True, in_table=table)
            if self._peek_next() in ("", closing):
                break
            if table:
                self._read_key()
            self._read_value("{" if table else "[", depth + 1)
            end = len(self.out)
            self._skip_blank(newlines=True, in_table=table)
            if self._peek_next() == ",":
                comma = len(self.out)
                self._copy_text(1)
                self._skip_blank(newlines=True, in_table=table)
                if table and self._peek_next() == "}":
                    self.out[comma] = ""
                    self.mistakes.append("inline-table")
            elif self._peek_next() not in ("", closing):
                self.out.insert(end, ",")
                self.mistakes.append("missing-comma")
        bracket = "}" if table else "]"
        if self._peek_next():
            self._skip_mistake()
            self.out.append(bracket)
        else:
            self._close_bracket(bracket)

    def _read_key(self) -> None:
        """A key of a table in { }, with what parts it from its value."""
        key = _KEY.match(self.text, self.at)
        if not key:
            raise CannotMendError
        self._copy_text(key.end() - self.at)
        self._skip_blank(newlines=False)
        if self._peek_next() == ":":
            self._skip_mistake("wrong-separator")
            self.out.append(" =")
        elif self._peek_next() == "=":
            self._copy_text(1)
        else:
            raise CannotMendError
        self._skip_blank(newlines=False)

    def _close_bracket(self, bracket: str) -> None:
        """Put a missing bracket behind the last thing that stands there, not behind its comment or on an empty line."""
        last = len(self.out)
        while last and (not self.out[last - 1].strip() or self.out[last - 1].lstrip().startswith("#")):
            last -= 1
        self.out.insert(last, bracket)
        self.mistakes.append("unclosed")

    def _read_bare(self, inside: str) -> None:
        stops = {"": "\n#", "[": ",])\n#", "{": ",}\n#"}[inside]
        end = self.at
        while end < len(self.text) and self.text[end] not in stops:
            end += 1
        raw = self.text[self.at : end]
        if inside == "" and (comment := re.search(r"[ \t]+(?://|;)(?=[ \t])", raw)):
            raw = raw[: comment.start()]
            end = self.at + len(raw)
        word = raw.strip()
        if not word or _SUM.fullmatch(word):
            raise CannotMendError
        # Commas part values, but for `1,000`, and where the whole is one.
        if inside == "" and "," in word and not _THOUSANDS.fullmatch(word):
            first = word.partition(",")[0]
            raw = raw[: raw.index(",")]
            word = first.strip()
            end = self.at + len(raw)
        parts = word.split()
        if inside != "{" and len(parts) > 1 and not is_scalar(word) and all(map(is_scalar, parts)):
            self.mistakes.append("missing-comma" if inside else "missing-brackets")
            listed = ", ".join(parts)
            self.out.append(listed if inside else f"[{listed}]")
        else:
            self.out.append(self._read_word(word))
        self.out.append(raw[len(raw.rstrip()) :])
        self.at = end

    def _read_word(self, word: str) -> str:
        if not word:
            raise CannotMendError
        if is_scalar(word):
            return word
        lower = word.lower()
        if lower in _TRUTH:
            self.mistakes.append("python-word")
            return lower
        if lower in _NOTHING:
            self.mistakes.append("python-word")
            return '"None"'
        if number := _mend_number(word):
            self.mistakes.append("odd-number")
            return number
        if word.endswith(";"):
            self.mistakes.append("stray-character")
            return self._read_word(word[:-1].rstrip())
        if word[-1] in "'\"" + TYPOGRAPHIC and not set(word[:-1]) & set("'\"" + TYPOGRAPHIC):
            self.mistakes.append("unclosed")
            return quote_toml(word[:-1])
        if set(_VARIABLE.sub("", word)) & set("='\"[]{}" + TYPOGRAPHIC) or word[0] in "#,;:":
            raise CannotMendError
        self.mistakes.append("unquoted-text")
        return quote_toml(word)

    # ------------------------------------------------------------ characters

    def _peek_next(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _rest_of_line(self) -> str:
        return self.text[self.at : self._line_end()]

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _copy_text(self, count: int) -> None:
        self.out.append(self.text[self.at : self.at + count])
        self.at += count

    def _skip_mistake(self, mistake: str = "") -> None:
        self.at += 1
        if mistake:
            self.mistakes.append(mistake)

    def _skip_blank(self, *, newlines: bool, in_table: bool = False) -> None:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in BLANKS:
                self._skip_mistake("stray-character")
                self.out.append(BLANKS[char])
            elif char in " \t" or (char == "\n" and newlines):
                if char == "\n" and in_table:
                    self.mistakes.append("inline-table")
                    self.joined = True
                self._copy_text(1)
            elif char == "#" and newlines:
                if in_table:
                    raise CannotMendError  # the comment would swallow the rest of the joined line
                self._copy_text(self._line_end() - self.at)
            else:
                return


def _mend_number(word: str) -> str:
    """A number that TOML writes otherwise: `.5`, `5.`, `007`, `1,000`; "" for all else."""
    word = word.translate(_MINUS)
    if _THOUSANDS.fullmatch(word):
        return word.replace(",", "")
    if (parts := _BARE_POINT.fullmatch(word)) and (parts[2] or parts[3]):
        word = f"{parts[1]}{parts[2] or '0'}.{parts[3] or '0'}{parts[4] or ''}"
    if zeros := _LEADING_ZEROS.fullmatch(word):
        word = f"{zeros[1]}{zeros[2]}"
    return word if is_scalar(word) and word[:1].isdigit() | (word[:1] in "+-") else ""
