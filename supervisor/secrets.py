"""Where secrets come from, and how they are kept out of everything that is written down."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path

SECRET_NAME = re.compile(
    # "token" but not TOKENIZERS_PARALLELISM or MAX_TOKENS, which trainers really set.
    r"(?i)(secret|token(?!iz|s$|s_)|passw|passphrase|_pwd$|api[_-]?key|application_?key|credential|_key$|_key_id$|private)"
)
"""Names of variables whose value is a secret."""

MASK = "***"
_POINTER = re.compile(r"(?i)_(path|file|dir|sock|url)$")  # HF_TOKEN_PATH names a place, not a secret
_SHORTEST = 8  # masking "true" or "1" wherever they stand would make logs unreadable
_KEY_LENGTH = 16  # a part of a path that is as long is a key, and not a word
_LARGEST_CREDENTIAL = 64 << 10

_DAEMONS_OWN = (
    *("B2_", "AWS_", "RL_HEARTBEAT_URL", "RL_SUPERVISOR_NANNY"),
    *("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_"),
)

_SHAPES = (
    # B2: application keys are 31 characters that start with K and the cluster, their ids 25 digits and letters, the
    # master key's id 12 (Backblaze's page on application keys).
    (re.compile(r"\bK0[0-9]{2}[A-Za-z0-9+/]{27}(?![A-Za-z0-9+/])"), MASK),
    (re.compile(r"\b0[0-9]{2}[0-9a-f]{12}0[0-9]{9}\b"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),  # Amazon's access key ids
    (re.compile(r"\b(?:sk-|ghp_|github_pat_)[A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), MASK),  # no underscore: hf_raise_for_status is a function
    (re.compile(r"(?i)\b(Basic|Bearer)\s+[A-Za-z0-9+/=._~-]{12,}"), r"\1 " + MASK),
    (re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"), MASK),
    # Every repetition is bounded: this also runs over log lines of many megabytes.
    # NAME=value and "name": "value" with a telling name, as in printed environments and JSON bodies. Not prime-rl's
    # api_key_var = "OPENAI_API_KEY": that names a variable.
    (
        re.compile(
            r"""(?ix)
            ( ["']? \b [\w-]{0,40}
              (?: secret | (?:api|application)[_-]?key | _pwd | passphrase
              | passw(?:or)?d | auth(?:orization)?_?token | access_?token )
              \w{0,40} (?<!_var) ["']? \s{0,4} [=:] \s{0,4} ["']? )
            (?! \*\*\* ) [^\s"',}]{8,}"""
        ),
        r"\1" + MASK,
    ),
)

CREDSTORES = tuple(Path(folder, "credstore") for folder in ("/etc", "/run", "/usr/lib"))
"""Where systemd looks for the credentials that the unit names, as NAME.CREDENTIAL (systemd.exec(5))."""

_lock = threading.Lock()
_known: frozenset[str] = frozenset()
_pattern: re.Pattern[str] | None = None


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
    global _known, _pattern  # noqa: PLW0603 - one process, one set of secrets
    with _lock:
        known = _known | {value for value in values if len(value) >= _SHORTEST}
        if known != _known:
            longest_first = sorted(known, key=len, reverse=True)
            _pattern = re.compile("|".join(re.escape(value) for value in longest_first))
            _known = known


def remember_url(url: str) -> str:
    """Mask this address from now on, and what of it is a key by its length; a short word stays readable elsewhere."""
    _, _, rest = url.partition("://")
    remember(url, *(part for part in re.split(r"[/?&=#]", rest)[1:] if len(part) >= _KEY_LENGTH))
    return url


def remember_environment(env: Mapping[str, str] = os.environ) -> None:
    """Mask the values of all variables of ``env`` whose name tells a secret, and every systemd credential."""
    remember(*(value for name, value in env.items() if SECRET_NAME.search(name) and not _POINTER.search(name)))
    folder = env.get("CREDENTIALS_DIRECTORY")
    if folder:
        try:
            names = [entry.name for entry in Path(folder).iterdir()]
        except OSError:
            return
        remember(*(value for name in names if (value := _credential(name))))


def withheld_from_commands(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that a person named in the run file: without the store's keys, the heartbeat's
    address, and what a service manager says to the daemon.
    """
    return {name: value for name, value in environ.items() if not name.startswith(_DAEMONS_OWN)}


def masked(text: str) -> str:
    """``text`` with every secret that we know, and everything that looks like one, replaced by ``***``."""
    pattern = _pattern
    if pattern is not None:
        text = pattern.sub(MASK, text)
    for shape, mask in _SHAPES:
        text = shape.sub(mask, text)
    return text


def masked_all(value: object) -> object:
    """``masked`` for every text inside a value that will be written; what is no plain data becomes text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {str(name): masked_all(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [masked_all(inner) for inner in value]
    return masked(str(value))
