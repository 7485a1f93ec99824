"""Secrets that are no secrets, in each form in which a job can be given or print one; and a search that finds them.

``leaks`` looks into every file of a folder, whatever it is packed in, so that a new file or table needs no new test.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote, unquote

CORE = {
    name: f"Qz{number:02d}kW7vN3xPtL9rY"
    for number, name in enumerate(
        (
            *("environment", "argument", "address", "bearer", "basic", "locals", "source", "toml", "netrc", "key"),
            *("json", "percent", "colour", "header", "query", "value", "cookie", "address-at", "dict", "option"),
            *("loguru", "token-in-address"),
        )
    )
}
"""What is looked for: no program writes such a word by chance."""

COLOUR = "\x1b[1;31m"
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b2J\u202e"

LINES: Mapping[str, str] = {
    "address": f"https://bob:{CORE['address']}@host/x",
    "address-at": f"https://bob:p@{CORE['address-at']}@host/x",
    "token-in-address": f"cloning https://{CORE['token-in-address']}@github.com/me/private",
    "bearer": f"Authorization: Bearer {CORE['bearer']}",
    "basic": f"Proxy-Authorization: Basic {base64.b64encode(CORE['basic'].encode()).decode()}{CORE['basic']}==",
    "header": f"{{'x-api-key': '{CORE['header']}', 'accept': '*/*'}}",
    "cookie": f"Set-Cookie: sid={CORE['cookie']}; HttpOnly",
    "locals": f"│ password = '{CORE['locals']}' │",
    "loguru": f"    │           └ '{CORE['loguru']}{CORE['loguru']}'",
    "source": f'    login(api_key="{CORE["source"]}", relogin=True)',
    "dict": f"environ({{'HF_TOKEN': '{CORE['dict']}', 'HOME': '/root'}})",
    "netrc": f"machine api.wandb.ai login user password {CORE['netrc']}",
    "json": json.dumps({"msg": f'{{"api_key": "{CORE["json"]}"}}', "n": 1}),
    "percent": quote(f"https://bob:{CORE['percent']}@host/x?y=1", safe=""),
    "query": f"GET https://host/x?X-Amz-Signature={CORE['query']}&a=1",
    "colour": f"hf_{CORE['colour'][:6]}{COLOUR}{CORE['colour'][6:]}\x1b[0m",
    "option": f"launching: rl --hf-token {CORE['option']} --tokenizer Qwen/Qwen3-0.6B",
    "value": f"the vendor took {CORE['value']} at once",  # known by the environment alone
}
KEY = ["-----BEGIN OPENSSH PRIVATE KEY-----", *[CORE["key"] + "x9" * 20] * 3, "-----END OPENSSH PRIVATE KEY-----"]


def plain(text: str) -> str:
    """Without what would hide a canary."""
    text = re.sub(r"\x1b\[[0-9;]*m|\\+u001b\[[0-9;]*m", "", text)
    return unquote(text)


def found_in(text: str) -> set[str]:
    """Names of the canaries in a text, however they are written."""
    shown = plain(text)
    encoded = {name: base64.b64encode(core.encode()).decode().rstrip("=")[:-1] for name, core in CORE.items()}
    return {name for name, core in CORE.items() if core in shown or encoded[name] in shown}


def leaks(folder: Path, own: Callable[[Path], bool] = lambda path: False) -> dict[str, set[str]]:
    """Canaries in the files below ``folder``, by the file's name; not in those that are the job's ``own``."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not own(path.relative_to(folder)):
            for text in texts(path):
                if names := found_in(text):
                    found.setdefault(path.relative_to(folder).as_posix(), set()).update(names)
    return found


def texts(path: Path) -> Iterator[str]:
    """All that a file holds: as it is, unpacked, and out of a database's cells."""
    data = path.read_bytes()
    yield from _unpacked(data)
    if data.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in database.execute(f"SELECT * FROM {table}"):
                    for cell in row:
                        yield from _unpacked(cell if isinstance(cell, bytes) else str(cell).encode())


def _unpacked(data: bytes) -> Iterator[str]:
    yield data.decode(errors="replace")
    for unpack in (gzip.decompress, zlib.decompress):
        with suppress(OSError, EOFError, zlib.error):
            yield unpack(data).decode(errors="replace")
    for word in re.findall(rb"[A-Za-z0-9+/]{64,}={0,2}", data[: 4 << 20]):
        with suppress(ValueError, OSError, EOFError, zlib.error):
            inner = base64.b64decode(word)
            yield inner.decode(errors="replace")
            yield gzip.decompress(inner).decode(errors="replace")
