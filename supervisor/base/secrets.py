"""Where secrets come from, and how they are kept out of everything that is written down."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import lru_cache
from itertools import islice
from operator import is_
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.base.secret_shapes import find_secrets, is_telling, plain_form

MASK = "***"
_SHORTEST = 8  # masking "true" or "1" wherever they stand would make logs unreadable
_KEY_LENGTH = 16  # a part of a path that is as long is a key, and not a word
_LARGEST_CREDENTIAL = 64 << 10
_MOST_KNOWN = 2000  # values
_MOST_OF_ONE = 200  # values of one process: the job's own code chooses how many telling names there are
_ENVIRONMENT_BYTES = 1 << 20  # of one process that are read
_SHORT_TEXT, _MOST_DONE = 300, 4096

_WORD = re.compile(r"[a-z-]{0,11}|[A-Z]{0,11}")  # WANDB_API_KEY=disabled: a word that any line may hold is no key
_USERINFO = re.compile(r"://[^/\s:@\"']{0,256}:([^\s/@\"']{8,256})@")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_STOPS = re.compile(r"""\\{0,15}["']|[\r\n]""")
_KEY_BODY = re.compile(r"(?:[A-Za-z0-9+/=]{1,128}|[A-Za-z-]{1,20}: .{0,120})?$")
_MOST_KEY_LINES = 400
_CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?|(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]?|\x1b[^\[\]]?"
)

CREDSTORES = tuple(Path(folder, "credstore") for folder in ("/etc", "/run", "/usr/lib"))
"""Where systemd looks for the credentials that the unit names, as NAME.CREDENTIAL (systemd.exec(5))."""


class _Known(NamedTuple):
    """Values, the longest first, and the same without what hides them in a text."""

    values: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()


NOTHING = _Known()
_lock = threading.Lock()
_known = NOTHING


def secret(name: str) -> str | None:
    """The secret ``name`` from the environment, else from ``$CREDENTIALS_DIRECTORY/<name in lower case>``.

    None when it is in neither, or empty. What is returned is masked in every log line from then on.
    """
    value = os.environ.get(name) or _credential(name.lower())
    if value:
        remember(value)
    return value or None


def _credential(name: str) -> str | None:
    """A systemd credential (systemd.exec(5), LoadCredential=), without the newline that editors leave."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return None
    try:
        with (Path(folder) / name).open("rb") as file:
            return file.read(_LARGEST_CREDENTIAL).decode("utf-8", "replace").strip()
    except OSError:
        return None


def remember(*values: str) -> None:
    """Mask these values from now on; short ones are left alone."""
    global _known  # noqa: PLW0603 - one process, one set of secrets
    with _lock:
        known = {*_known.values, *(value for value in values if len(value) >= _SHORTEST)}
        if len(known) > len(_known.values) < _MOST_KNOWN:
            longest_first = tuple(sorted(known, key=lambda value: (-len(value), value))[:_MOST_KNOWN])
            _known = _Known(longest_first, tuple(dict.fromkeys(plain_form(value)[0] for value in longest_first)))
            _short.cache_clear()


def known_secrets() -> tuple[str, ...]:
    """All values that this process masks, for a child that has to mask them as well."""
    return _known.values


def remember_url(url: str) -> str:
    """Mask this address from now on, and what of it is a key by its length; a short word stays readable elsewhere."""
    _, _, rest = url.partition("://")
    remember(url, *(part for part in re.split(r"[/?&=#]", rest)[1:] if len(part) >= _KEY_LENGTH))
    return url


def remember_environment(env: Mapping[str, str] = os.environ) -> None:
    """Mask what is secret in ``env``: the values of telling names, passwords in addresses, every systemd credential."""
    remember(*_secrets_in(env.items()))
    folder = env.get("CREDENTIALS_DIRECTORY")
    if folder:
        try:
            names = [entry.name for entry in Path(folder).iterdir()]
        except OSError:
            return
        remember(*(value for name in names if (value := _credential(name))))


def remember_processes(pids: Iterable[int]) -> None:
    """The same for the environments of these processes.

    Reading the environment of a process that sits in a page fault on a dead mount hangs: call it beside what must go
    on, and leave out processes in D state.
    """
    for pid in pids:
        try:
            with Path(f"/proc/{pid}/environ").open("rb") as file:
                data = file.read(_ENVIRONMENT_BYTES)
        except OSError:
            continue  # gone, or another user's
        entries = (entry.decode(errors="replace").partition("=") for entry in data.split(b"\0"))
        remember(*islice(_secrets_in((name, value) for name, _, value in entries), _MOST_OF_ONE))


def _secrets_in(variables: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in variables:
        if is_telling(name) and not _WORD.fullmatch(value):
            yield value
            if len(lines := value.splitlines()) > 1:  # of a key over many lines
                yield from (line for line in lines if len(line) >= _KEY_LENGTH)
        elif "://" in value and (found := _USERINFO.search(value)):
            yield found[1]


# ---------------------------------------------------------------- the one masker


def mask_secrets(text: str) -> str:
    """``text`` with every secret that we know, and everything that looks like one, replaced by ``***``.

    Each line stays a line: of a private key that goes over many, each is masked. Safe to do twice, and what was JSON
    stays JSON.
    """
    if len(text) <= _SHORT_TEXT:
        return _short(text)
    return _lines(text)


def mask_value(value: object, name: str = "") -> object:
    """``mask_secrets`` for every text inside a value that will be written; what is no plain data becomes text.

    What a telling ``name`` holds is masked whole. A list of texts is taken as lines of one text, and as the words of a
    command.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        hidden = len(value) >= _SHORTEST and name and is_telling(name) and not value.startswith(("<", MASK))
        return MASK if hidden else mask_secrets(value)
    if isinstance(value, Mapping):
        return {mask_secrets(str(key)): mask_value(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        texts = [inner for inner in value if isinstance(inner, str)]
        if texts and len(texts) == len(value):
            value = mask_texts(texts)
        return [mask_value(inner, name) for inner in value]
    return mask_secrets(str(value))


def mask_texts(texts: Sequence[str]) -> list[str]:
    """As many texts: the lines of a log, of which a private key may be some, or the words of a command."""
    words = _words(texts)
    if len("\n".join(words).splitlines()) == len(words):
        return mask_secrets("\n".join(words)).split("\n")
    return [mask_secrets(word) for word in words]


def mask_command(words: Sequence[str]) -> str:
    """A command line for people; the word after ``--api-key`` is masked whatever it looks like."""
    return mask_secrets(" ".join(_words(words)))


def printable(text: str) -> str:
    """``text`` without anything that a terminal would obey: escapes are left out, other control characters blanks."""
    if text.isprintable():
        return text
    text = _CONTROL.sub("", text)
    return "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)


_NUMBERS = frozenset((int, float, bool, type(None)))


def mask_fact(value: Any) -> Any:
    """A fact as the core may keep it: no text in it holds a secret, or anything that a terminal would obey.

    What holds neither is the very same object.
    """
    if type(value) in _NUMBERS:  # most of what sensors tell
        return value
    if isinstance(value, str):
        return printable(mask_secrets(value)) if len(value) >= _SHORTEST or not value.isprintable() else value
    if isinstance(value, tuple):
        inner = tuple(map(mask_fact, value))
        return value if all(map(is_, inner, value)) else inner
    if isinstance(value, dict):
        changed = {mask_fact(key): mask_fact(one) for key, one in value.items()}
        return changed if any(changed.get(key) is not one for key, one in value.items()) else value
    if is_dataclass(value) and not isinstance(value, type):
        news = {one: new for one, old in vars(value).items() if (new := mask_fact(old)) is not old}
        return replace(value, **news) if news else value
    return value


def _words(words: Sequence[str]) -> list[str]:
    shown: list[str] = []
    before = ""
    for word in words:
        key, equals, _ = word.partition("=")
        hidden = before.startswith("-") and "=" not in before and _names_secret(before) and not word.startswith("-")
        shown.append(MASK if hidden else f"{key}={MASK}" if equals and _names_secret(key) else word)
        before = word
    return shown


def _names_secret(word: str) -> bool:
    """Is it an option or a variable, and telling? Not a whole command line, which may be one word of another."""
    return len(word) < 80 and " " not in word and is_telling(word.lstrip("-").replace("-", "_").replace(".", "_"))


@lru_cache(_MOST_DONE)
def _short(text: str) -> str:
    return _lines(text)


def _lines(text: str) -> str:
    if "PRIVATE KEY" not in text:
        return "".join(map(_line, text.splitlines(keepends=True))) if "\n" in text or "\r" in text else _line(text)
    out: list[str] = []
    left = 0  # lines of a private key that may still follow
    for line in text.splitlines(keepends=True):
        body = line.rstrip("\r\n")
        end = _KEY_ENDS.search(line)
        if left and end is None:
            word = _last_word(body)
            if _KEY_BODY.match(body.strip()) or (len(word) >= 40 and _KEY_BODY.match(word)):
                left -= 1
                out.append(MASK + line[len(body) :])
                continue
            left = 0  # a log that only imitates a key must not blind its reader
        begin = _KEY_BEGINS.search(line)
        if begin is not None:
            end = _KEY_ENDS.search(line, begin.end())
            left = 0 if end is not None else _MOST_KEY_LINES
            # Else to the end of the line, or of the text in JSON.
            stop = _KEY_STOPS.search(line, begin.end())
            rest = end.end() if end is not None else stop.start() if stop is not None else len(line)
            out.append(_line(line[: begin.start()]) + MASK + _line(line[rest:]))
            continue
        if end is not None:
            if not left:
                _mask_body(out)  # it began before what we were given
            left = 0
            before = max(line.rfind(quote, 0, end.start()) for quote in "\"'") + 1
            out.append(_line(line[:before]) + MASK + _line(line[end.end() :]))
            continue
        out.append(_line(line))
    return "".join(out)


def _mask_body(out: list[str]) -> None:
    """Mask the last lines of a key that ends here; its first line was not seen."""
    for place in range(len(out) - 1, max(-1, len(out) - 1 - _MOST_KEY_LINES), -1):
        body = out[place].rstrip("\r\n")
        word = _last_word(body)
        if not _KEY_BODY.match(word) or (len(word) < 40 and place < len(out) - 1):
            return
        out[place] = MASK + out[place][len(body) :]


def _last_word(line: str) -> str:
    """Of a line that may begin with a log's prefix."""
    words = line.split()
    return words[-1] if words else ""


def _line(line: str) -> str:
    for value in _known.values:  # not one pattern of all: that would hold the interpreter for their product
        if value in line:
            line = line.replace(value, MASK)
    plain, places = plain_form(line)
    spans = list(find_secrets(plain))
    if places is not None:
        for value in _known.plain:
            at = plain.find(value)
            while at >= 0:
                spans.append((at, at + len(value)))
                at = plain.find(value, at + 1)
    if not spans:
        return line
    out: list[str] = []
    done = 0
    for start, end in sorted(spans):
        start, end = (start, end) if places is None else (places[start], places[end])
        if start >= done:
            out += [line[done:start], MASK]
        done = max(done, end)
    return "".join([*out, line[done:]])
