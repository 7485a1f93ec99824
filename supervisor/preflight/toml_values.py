"""Makes TOML of a statement that is almost TOML: text without quotes, Python's words, typographic quotes, no brackets.

Only what can be meant in one way is rewritten; the caller has the last word by parsing the result. Lines stay lines,
but for inline tables, which TOML 1.0 wants on one line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from supervisor.config.run_file import parse_toml

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

_CURLED = "“”„‟«»″‘’‚‛′`´"
_BLANKS = {"\u00a0": " ", "\u202f": " ", "\u3000": " ", "\u200b": "", "\u200e": "", "\u2060": "", "\ufeff": ""}
"""Characters that look like nothing or like a space, and come along with text that is copied from a web page."""
_DEEPEST = 40
NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
KEY = re.compile(rf"[ \t]*({NAME}(?:[ \t]*\.[ \t]*{NAME})*)[ \t]*")
_SEPARATOR = re.compile(r"==|:=|=>|->|=|:")
_PIECE = re.compile(
    rf"""(?P<blank>[ \t]+|\#[^\n]*|\n) | (?P<strange>[{"".join(_BLANKS)}])
    | (?P<text>\"\"\"(?:[^"\\]|\\.|"{{1,2}}(?!"))*+"{{3,5}} | '''(?:[^']|'{{1,2}}(?!'))*+'{{3,5}}
        | (?!\"\"\"|''')(?:"(?:[^"\\\n]|\\[^\n])*+" | '[^'\n]*+'))
    | (?P<curled>[{_CURLED}][^\n"{_CURLED}]*["{_CURLED}] | "[^\n"{_CURLED}]*[{_CURLED}](?=[ \t]*(?:[,\]}}\#\n]|\Z)))
    | (?P<unclosed>["'][^\n]*) | (?P<opening>[\[({{]) | (?P<mark>[\])}},])""",
    re.VERBOSE | re.DOTALL,
)
"""What a value is made of, but for words without quotes."""
_WORD = {"": re.compile(r"(?:(?![ \t]+(?://|;)[ \t])[^\n#])+"), "[": re.compile(r"[^,\])\n#]+"),
         "{": re.compile(r"[^,}\n#]+")}  # fmt: skip
_ESCAPE = re.compile(r'\\(?:[btnfr"\\]|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8})')
_NOTHING = {"none", "null", "nil", "~", "undefined"}
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_NUMBER = re.compile(r"([+-]?)(\d*)(\.?)(\d*)((?:[eE][+-]?\d+)?)")
_SUM = re.compile(r"[\d.]+(?:[ \t]*[-+*/][ \t]*[\d.]+)+")
_MINUS = str.maketrans("\u2212\u2013\u2014", "---")


class BrokenValueError(Exception):
    """What is meant is not certain."""


@dataclass(frozen=True)
class Mend:
    """A statement as it was meant, and what was wrong with it, the first to be named first."""

    text: str
    mistakes: tuple[str, ...]
    certain: bool = True
    """It could not be meant otherwise."""


def mend_pair(text: str) -> Mend:
    """A key with its value, comments included, with as many lines or fewer. Raises BrokenValueError."""
    if text.lstrip().startswith("//"):
        return Mend(text.replace("//", "#", 1), ("stray-character",))
    head, equals, tail = text.partition("=")
    plain = "".join(_BLANKS.get(char, char) for char in head)
    text = plain + equals + tail
    wrong = ["stray-character"] * (plain != head)
    key = KEY.match(text)
    if key is None:
        raise BrokenValueError
    separator = _SEPARATOR.match(text, key.end())
    name, before = key[1], text[: key.end()].rstrip()
    if separator is None:  # `max_steps 100`: nothing stands between
        rest = text[key.end() :]
        if "." in name or not _is_value(rest.partition(" #")[0].strip()):
            raise BrokenValueError
        if name.startswith("--"):  # a flag of the command line
            before = before.replace(name, name[2:].replace("-", "_"), 1)
        return Mend(f"{before} = {rest.lstrip()}", (*wrong, "wrong-separator"))
    value = _Value(text[separator.end() :])
    new = value.whole()
    if separator[0] != "=":
        wrong.append("wrong-separator")
        new = f"{before} ={'' if new[:1] in (' ', '') else ' '}{new}"
    else:
        new = text[: separator.end()] + new
    return Mend(new, tuple(dict.fromkeys([*wrong, *value.wrong])), value.certain)


def mend_header(line: str, lists: Collection[str]) -> Mend | None:
    """A section header as it was meant, None where that is not certain. ``lists``: names that stand as `[[name]]`."""
    plain = "".join('"' if char in _CURLED else _BLANKS.get(char, char) for char in line)
    found = re.fullmatch(r"([ \t]*)(\[{1,2})([^\[\]#={},]*?)(\]{0,2})[ \t]*:?[ \t]*(#.*)?", plain)
    parts = [part.strip() for part in re.split(r"""\.(?=(?:[^"']|"[^"]*"|'[^']*')*$)""", found[3])] if found else [""]
    if found is None or not all(parts):
        return None
    name = ".".join(
        one if re.fullmatch(r"[\w-]+", one, re.ASCII) or one[0] in "\"'" else quote_toml(one) for one in parts
    )
    many = len(found[2]) == 2 or (len(found[4]) == 2 and name in lists)
    text = f"{found[1]}{'[[' if many else '['}{name}{']]' if many else ']'}{f'  {found[5]}' if found[5] else ''}"
    if len(found[2]) != len(found[4]):
        return Mend(text, ("unclosed",), len(found[2]) == 2 or not found[4] or name in lists)
    quoted = name != found[3].strip()
    return Mend(text, ("typographic-quotes" if plain != line else "unquoted-text" if quoted else "stray-character",))


def quote_toml(text: str) -> str:
    """``text`` as TOML writes it: in plain quotes if it has backslashes, else in double ones."""
    if "\\" in text and "'" not in text:
        return f"'{text}'"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def is_toml(text: str) -> bool:
    """Can a parser read it?"""
    try:
        parse_toml(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_value(text: str) -> bool:
    try:
        return bool(text) and "\n" not in text and len(tomllib.loads(f"x = {text}")) == 1
    except (ValueError, RecursionError):
        return False


class _Value:
    """What stands behind the "=", read from its start."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.out: list[str] = []
        self.wrong: list[str] = []
        self.joined = False
        """An inline table stands over several lines: they become one."""
        self.certain = True

    def whole(self) -> str:
        self._skip_blanks("")
        start = len(self.out)
        self._read_value("", 0)
        self._skip_blanks("")
        if re.compile(r",[ \t]*[^\s#]").match(self.text, self.at):  # `gpu_ids = 0, 1`
            while self._next() == ",":
                self._take(self._next())
                self._skip_blanks("")
                if self._next() not in ("", "\n"):
                    self._read_value("[", 0)
                    self._skip_blanks("")
            self.out = [*self.out[:start], "[", *self.out[start:], "]"]
            self.wrong.insert(0, "missing-brackets")  # gives way where a number is wanted: 0,00001
        if found := re.compile(r"[,;][ \t]*(?=#|\n|\Z)").match(self.text, self.at):
            self.wrong.append("stray-character")
            self.at = found.end() if found.end() == len(self.text) else found.start() + 1
        elif found := re.compile(r"//|;").match(self.text, self.at):  # a comment as other languages have it
            self.wrong.append("stray-character")
            self.out.append("#")
            self.at = found.end()
            self._take(self.text[self.at :].partition("\n")[0])
        self._skip_blanks("[")
        if self.at < len(self.text):
            raise BrokenValueError
        text = "".join(self.out)
        if self.joined:
            text = text[: len(text) - len(text.lstrip())] + " ".join(line.strip() for line in text.split("\n")).strip()
        return text

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, text: str, written: str | None = None, mistake: str = "") -> None:
        self.at += len(text)
        self.out.append(text if written is None else written)
        self.wrong += [mistake] if mistake else []

    def _skip_blanks(self, inside: str) -> None:
        """Blanks and comments, over several lines within brackets."""
        while (found := _PIECE.match(self.text, self.at)) and found.lastgroup in ("blank", "strange"):
            if found.lastgroup == "strange":
                self._take(found[0], _BLANKS[found[0]], "stray-character")
                continue
            if found[0][0] in "\n#" and not inside:
                return
            if inside == "{" and found[0][0] == "#":
                raise BrokenValueError  # the comment would swallow the rest of the joined line
            self.joined |= inside == "{" and found[0] == "\n"
            self._take(found[0], mistake="inline-table" if inside == "{" and found[0] == "\n" else "")

    def _read_value(self, inside: str, depth: int) -> None:
        found = _PIECE.match(self.text, self.at)
        kind = found.lastgroup if found else None
        if depth > _DEEPEST:
            raise BrokenValueError
        if found is None:
            self._read_words(inside)
        elif kind == "text":
            # A backslash that starts no escape of TOML's was meant as itself, and so were the others of this text.
            odd = found[0][0] == '"' and found[0][:3] != '"""' and "\\" in _ESCAPE.sub("", found[0][1:-1])
            self._take(found[0], *((quote_toml(found[0][1:-1]), "backslashes") if odd else ()))
        elif kind == "curled":
            self._take(found[0], quote_toml(found[0][1:-1]), "typographic-quotes")
        elif kind == "unclosed":
            self._read_unclosed(found[0], inside)
        elif kind == "opening":
            self._read_items(found[0], depth)
        else:
            raise BrokenValueError

    def _read_unclosed(self, text: str, inside: str) -> None:
        """A text that is not closed on its line. Where it ends is certain when nothing else could stand there."""
        quote, line = text[0], text[1:].rstrip()
        if line.endswith('\\"') and quote == '"' and "\\" in _ESCAPE.sub("", line[:-2] + "\\"):
            self._take(text, quote_toml(line[:-1]), "backslashes")  # "C:\models\": so was the last backslash
        elif inside == "[" and line.endswith("]") and not set(line[:-1]) & set(",'\"#[ "):
            self._take(quote + line[:-1], quote_toml(line[:-1]), "unclosed")
        elif inside or "#" in line or quote in line:
            raise BrokenValueError
        else:
            self._take(text, quote_toml(line.removesuffix("'").removesuffix('"')), "unclosed")

    def _read_items(self, opening: str, depth: int) -> None:
        """What stands in [ ], in ( ), which are meant for them, or in { }."""
        closing = {"[": "]", "(": ")", "{": "}"}[opening]
        inside = "{" if opening == "{" else "["
        self._take(opening, inside, "missing-brackets" if opening == "(" else "")
        comma = -1
        self._skip_blanks(inside)
        while self._next() not in ("", closing):
            if inside == "{":
                self._read_key()
            self._read_value(inside, depth + 1)
            end = len(self.out)
            self._skip_blanks(inside)
            comma = -1
            if self._next() == ",":
                comma = len(self.out)
                self._take(",")
                self._skip_blanks(inside)
            elif self._next() not in ("", closing):
                self.out.insert(end, ",")
                self.wrong.append("missing-comma")
        if inside == "{" and comma >= 0:
            self.out[comma] = ""
            self.wrong.append("inline-table")
        if self._next():
            self._take(closing, "}" if inside == "{" else "]")
            return
        if inside == "{" and (comma >= 0 or self.joined or self.out[-1] == "{"):
            self.certain = False  # more keys may belong to it
        # Behind the last thing that stands there, not behind its comment or on an empty line.
        last = max(n for n, one in enumerate(self.out) if one.strip() and not one.startswith("#"))
        self.out.insert(last + 1, "}" if inside == "{" else "]")
        self.wrong.append("unclosed")

    def _read_key(self) -> None:
        key = KEY.match(self.text, self.at)
        if key is None or self.text[key.end() : key.end() + 1] not in ("=", ":"):
            raise BrokenValueError
        self._take(key[0])
        self._take(*(("=",) if self._next() == "=" else (":", " =", "wrong-separator")))
        self._skip_blanks("")

    def _read_words(self, inside: str) -> None:
        """Up to what may stand behind a value: one, or several that are parted by blanks alone."""
        found = _WORD[inside].match(self.text, self.at)
        raw = found[0].rstrip() if found else ""
        if not inside and "," in raw and not _THOUSANDS.fullmatch(raw):
            raw = raw.partition(",")[0].rstrip()
        parts: Sequence[str] = raw.split()
        if not raw or _SUM.fullmatch(raw):
            raise BrokenValueError
        if inside != "{" and len(parts) > 1 and not _is_value(raw) and all(map(_is_value, parts)):
            listed = ", ".join(parts)
            self._take(raw, listed if inside else f"[{listed}]", "missing-comma" if inside else "missing-brackets")
        else:
            self._take(raw, *self._read_word(raw))

    def _read_word(self, word: str) -> tuple[str, str]:
        """The word as TOML has it, and what was wrong with it."""
        if _is_value(word):
            return word, ""
        lower = word.lower()
        if lower in ("true", "false"):
            return lower, "python-word"
        if lower in _NOTHING:
            return '"None"', "python-word"
        if number := _mend_number(word):
            return number, "odd-number"
        if word.endswith(";") and word[:-1].strip():
            self.wrong.append("stray-character")
            return self._read_word(word[:-1].rstrip())
        quotes = "'\"" + _CURLED
        if word[-1] in quotes and not set(word[:-1]) & set(quotes):
            return quote_toml(word[:-1]), "unclosed"
        if set(re.sub(r"\$\{\w+\}", "", word)) & set("=[]{}" + quotes) or word[0] in "#,;:":
            raise BrokenValueError
        return quote_toml(word), "unquoted-text"


def _mend_number(word: str) -> str:
    """A number that TOML writes otherwise: `.5`, `5.`, `007`, `1,000`; "" for all else."""
    word = word.translate(_MINUS)
    if _THOUSANDS.fullmatch(word):
        return word.replace(",", "")
    found = _NUMBER.fullmatch(word)
    if found is None or not (found[2] or found[4]):
        return ""
    fraction = f".{found[4] or '0'}" if found[3] else ""
    return f"{found[1]}{found[2].lstrip('0') or '0'}{fraction}{found[5]}"
