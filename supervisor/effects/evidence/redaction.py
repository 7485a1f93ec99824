"""Secrets kept out of evidence: by value, by name and by shape. Stricter than the masking of our own log lines.

A bundle quotes what strangers wrote, and leaves the pod: here a git revision that is masked because W&B's keys look the
same costs less than a key that is not. Text is worked on line by line, patterns in pieces of a line and known values
one by one, so that no single call is long and no other thread of the daemon waits for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from supervisor.secrets import MASK, SECRET_NAME, masked

ENVIRONMENT_BYTES = 1 << 20  # of one process that are read
SHORTEST = 8  # masking "true" or "1" wherever they stand would make a text unreadable
LONG_LINE = 16 << 10  # characters that are worked on in one piece
LONG_WORD = 4 << 10  # what is longer and holds no blank is nothing that people read
MOST_VALUES = 2000
MOST_OF_ONE = 200  # values of one process: the job's own code chooses how many telling names there are
SHORT_TEXT, MOST_DONE = 200, 20_000

_PLACES = re.compile(r"(?i)_(path|file|dir|sock|url)$")  # HF_TOKEN_PATH names a place, not a secret
_HEADERS = re.compile(r"(?i)^(?:(?:proxy-)?authorization|(?:set-)?cookie)$")
_WORD = r"""[^\s"',;}\]]"""
_QUOTE = r"""(?:\\?["'])?"""
_TELLING = (
    r"(?:secret|token(?!iz|s\b|s_)|passw(?:or)?d|passphrase|_pwd|api[_-]?key|access[_-]?key|account_?key|application_?key"
    r"|private[_-]?key(?:[_-]id)?|credentials?)"
)
_RARE = (  # each with words of which one must be there: most lines have none, and words are found much faster
    # Authorization, Cookie and their like: in quotes as a dict shows them, else to the line's end.
    (
        ("authorization", "cookie"),
        re.compile(
            rf"""(?i)(\b(?:(?:proxy-)?authorization|(?:set-)?cookie){_QUOTE}\s{{0,2}}[=:]\s{{0,2}})"""
            r"""(?:(["'])(?!\*\*\*)(?:(?!\2)[^\r\n]){6,}\2|(?!["']|\*\*\*)[^\r\n]{6,})"""
        ),
        r"\1\2" + MASK + r"\2",
    ),
    # HF_TOKEN='a b', "private_key_id": "..."; not "token_path": "/root/token".
    (
        ('"', "'"),
        re.compile(
            rf"""(?i)(\b[\w-]{{0,40}}{_TELLING}[\w-]{{0,20}}(?<!_path)(?<!_file)(?<!_dir)(?<!_sock)(?<!_url)(?<!_var)"""
            rf"""{_QUOTE}\s{{0,2}}[=:]\s{{0,2}})(["'])(?!\*\*\*)(?:(?!\2)[^\r\n]){{8,2048}}\2"""
        ),
        r"\1\2" + MASK + r"\2",
    ),
    (
        ("passphrase",),
        re.compile(rf"""(?i)(\bpassphrase{_QUOTE}\s{{0,2}}[=:]\s{{0,2}})(?!["']|\*\*\*)[^\r\n]{{8,}}"""),
        r"\1" + MASK,
    ),
    # AccountKey=... as Azure's connection strings have it.
    (
        ("account", "access", "private"),
        re.compile(
            rf"""(?i)(\b[\w-]{{0,40}}(?:account_?key|access[_-]?key|private[_-]?key(?:[_-]id)?){_QUOTE}\s{{0,2}}[=:]"""
            rf"""\s{{0,2}}(?:\\?["'])?)(?!\*\*\*){_WORD}{{8,}}"""
        ),
        r"\1" + MASK,
    ),
    # pwd=..., but not the shell's PWD=/root.
    (
        ("pwd",),
        re.compile(rf"""(?i)(\bpwd{_QUOTE}\s{{0,2}}[=:]\s{{0,2}}["']?)(?!\*\*\*)[^\s"',;}}\]/]{_WORD}{{5,}}"""),
        r"\1" + MASK,
    ),
    (
        ("-key",),
        re.compile(rf"""(?i)((?<![\w-])--?[\w-]{{0,40}}-key["']?,?[ =]\s{{0,2}}["']?)(?!\*\*\*){_WORD}{{8,}}"""),
        r"\1" + MASK,
    ),
    # Webhooks and pings: who has the address may write there.
    (
        ("slack", "discord", "hc-ping"),
        re.compile(
            r"(?i)(\b(?:hooks\.slack(?:-gov)?\.com|discord(?:app)?\.com/api/(?:v[0-9]{1,3}/)?webhooks|hc-ping\.com)/)"
            r"[\w./+-]{8,255}"
        ),
        r"\1" + MASK,
    ),
)
_SHAPES = (
    # NAME=value and NAME: value as environments are printed; "token": "..." as JSON is.
    (
        re.compile(
            r"\b([A-Z0-9_]{0,60}(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|_PASS|_PWD|KEY|KEY_ID|CREDENTIALS?|AUTH)"
            rf"""["']?\s{{0,2}}[=:]\s{{0,2}}["']?)(?!\*\*\*){_WORD}{{8,}}"""
        ),
        r"\1" + MASK,
    ),
    (
        re.compile(rf"""(?i)(["']?\b[\w-]{{0,40}}token["']?\s{{0,2}}[=:]\s{{0,2}}["']?)(?!\*\*\*){_WORD}{{12,}}"""),
        r"\1" + MASK,
    ),
    # --hf-token VALUE, --api-key=VALUE; neither --tokenizer Qwen/Qwen3 nor --max-tokens 8192.
    (
        re.compile(
            r"(?i)((?<![\w-])--?[\w-]{0,40}(?:secret|token(?!iz|s\b)|api-?_?key|access-?_?key|passw(?:or)?d|credential)[\w-]{0,20}"
            rf"""["']?,?[ =]\s{{0,2}}["']?)(?!\*\*\*){_WORD}{{8,}}"""
        ),
        r"\1" + MASK,
    ),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,255}"), MASK),  # GitHub
    (re.compile(r"\bwandb_v[0-9]_[A-Za-z0-9_-]{20,255}"), MASK),
    (re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])"), MASK),  # W&B's older keys; git revisions, too
    (re.compile(r"\b(?:hf|api_org|rpa|gsk|r8|pit|npm|do[opr]_v1)_[A-Za-z0-9]{20,255}"), MASK),
    (re.compile(r"\b(?:nvapi|xox[abposr]|glpat|sk|pk|rk)-[A-Za-z0-9_-]{16,255}"), MASK),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{35}"), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{0,4096}"), MASK),  # JSON Web Tokens
    (re.compile(r"""(?<=://)[^/\s:@"']{0,256}:[^/\s@"']{1,256}(?=@)"""), MASK),
    (re.compile(r"""(?<=://)[^/\s:@"']{16,256}(?=@)"""), MASK),  # https://TOKEN@github.com
    (
        re.compile(
            r"(?i)([?&][\w.-]{0,40}(?:token|key|sig|signature|secret|passw(?:or)?d|credential|auth)[\w.-]{0,10}=)"
            r"""(?!\*\*\*)[^&\s"'#]{6,}"""
        ),
        r"\1" + MASK,
    ),
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"(?:[A-Za-z0-9+/=]{1,128}|[A-Za-z-]{1,20}: .{0,120})?$")
_MOST_KEY_LINES = 400


class Redactor:
    """Masks texts. ``values``: secrets besides those that the process knows (``supervisor.secrets.remember``)."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {value for value in values if len(value) >= SHORTEST}
        known |= {json.dumps(value)[1:-1] for value in known}  # as it stands inside JSON
        self._values = sorted(known, key=lambda value: (-len(value), value))[:MOST_VALUES]  # the longest first
        self._done: dict[str, str] = {}  # short texts of values: a trace says the same ones thousands of times

    def text(self, text: str) -> str:
        """``text`` without secrets; private keys that go over many lines are taken out whole."""
        out: list[str] = []
        left = 0  # lines of a private key that may still follow
        for line in text.splitlines(keepends=True):
            if left:
                end = _KEY_ENDS.search(line)
                if end is not None:
                    left, line = 0, line[end.end() :]
                elif _KEY_BODY.match(line.strip()) or (len(word := _last_word(line)) >= 40 and _KEY_BODY.match(word)):
                    left -= 1
                    continue
                else:
                    left = 0  # a log that only imitates a key must not blind its reader
            begin = _KEY_BEGINS.search(line)
            if begin is not None:
                end = _KEY_ENDS.search(line, begin.end())
                rest = line[end.end() :] if end is not None else "\n"
                out.append(self._line(line[: begin.start()]) + MASK + self._line(rest))
                left = 0 if end is not None else _MOST_KEY_LINES
                continue
            if (end := _KEY_ENDS.search(line)) is not None:  # it began before what we were given
                short = True  # its last line
                while out and _KEY_BODY.match(word := _last_word(out[-1])) and (short or len(word) >= 40):
                    short = False
                    out.pop()
                out.append(MASK)
                line = line[end.end() :]
            out.append(self._line(line))
        return "".join(out)

    def value(self, value: Any, name: str = "") -> Any:
        """The same for every text inside a value as JSON has it; what a telling name holds is masked whole."""
        if isinstance(value, str):
            return MASK if len(value) >= SHORTEST and _is_telling(name) else self._short(value)
        if isinstance(value, dict):
            return {self._short(str(key)): self.value(inner, str(key)) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner, name) for inner in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        return self.text(str(value))

    def _short(self, text: str) -> str:
        if len(text) < SHORTEST:
            return text
        if len(text) > SHORT_TEXT:
            return self.text(text)
        if len(self._done) > MOST_DONE:
            self._done.clear()
        return self._done.setdefault(text, self.text(text)) if text not in self._done else self._done[text]

    def words(self, words: Iterable[str]) -> str:
        """A command line; the word after ``--api-key`` is masked whatever it looks like."""
        shown: list[str] = []
        hidden = False
        for word in words:
            if hidden and not word.startswith("-"):
                shown.append(MASK)
                hidden = False
                continue
            name, equals, value = word.partition("=")
            telling = _is_telling(name.lstrip("-").replace("-", "_"))
            hidden = telling and not equals and word.startswith("-")
            if telling and equals and len(value) >= SHORTEST:
                word = f"{name}={MASK}"
            shown.append(word)
        return self.text(" ".join(shown))

    def _line(self, line: str) -> str:
        for value in self._values:  # not one pattern of all: that would hold the interpreter for their product
            if value in line:
                line = line.replace(value, MASK)
        if len(line) > LONG_LINE:
            return "".join(map(self._piece, _pieces(line)))
        return self._piece(line)

    @staticmethod
    def _piece(text: str) -> str:
        lower = text.lower()
        for words, shape, mask in _RARE:  # first: their values may hold blanks, where the others end
            if any(word in lower for word in words):
                text = shape.sub(mask, text)
        text = masked(text)
        for shape, mask in _SHAPES:
            text = shape.sub(mask, text)
        return text


def _pieces(line: str) -> Iterable[str]:
    """A very long line in pieces that end at a blank; a run without one that nobody could read is left out."""
    start = 0
    while len(line) - start > LONG_LINE:
        cut = max(line.rfind(mark, start + LONG_LINE - LONG_WORD, start + LONG_LINE) for mark in ' ,"')
        if cut < 0:
            # To the next blank; a secret that were cut in two would be known by nothing.
            ends = [found for mark in ' ,"' if (found := line.find(mark, start + LONG_LINE)) >= 0]
            end = min(ends, default=len(line))
            yield f"[{end - start} characters without a blank are left out]"
            start = end
            continue
        # Not between a telling name and its value.
        while SECRET_NAME.search(line, max(start, cut - 60), cut) and (back := line.rfind(" ", start + 1, cut)) > 0:
            cut = back
        yield line[start:cut]
        start = cut
    yield line[start:]


def _is_telling(name: str) -> bool:
    """Is what is called so a secret?"""
    telling = SECRET_NAME.search(name) is not None or _HEADERS.search(name) is not None
    return telling and _PLACES.search(name) is None


def _last_word(line: str) -> str:
    """Of a line that may begin with a log's prefix."""
    words = line.split()
    return words[-1] if words else ""


def secrets_of(pids: Iterable[int]) -> set[str]:
    """Values of variables with telling names in the environments of these processes.

    Reading the environment of a process that sits in a page fault on a dead mount hangs: call it beside what must go
    on, and leave out processes in D state.
    """
    found: set[str] = set()
    for pid in pids:
        try:
            with Path(f"/proc/{pid}/environ").open("rb") as file:
                data = file.read(ENVIRONMENT_BYTES)
        except OSError:
            continue  # gone, or another user's
        of_this: set[str] = set()
        for entry in data.split(b"\0"):
            name, _, value = entry.decode(errors="replace").partition("=")
            if len(value) >= SHORTEST and _is_telling(name):
                of_this.add(value)
                of_this.update(line for line in value.splitlines() if len(line) >= 16)  # of a key over many lines
            if len(of_this) >= MOST_OF_ONE:
                break
        found |= of_this
    return found
