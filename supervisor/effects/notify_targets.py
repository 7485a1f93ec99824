"""Where messages go: a webhook, ntfy, Slack and Discord by one POST each; everything else by apprise in a child."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from supervisor.base import http, secrets
from supervisor.base.escapes import plain
from supervisor.base.records import dataclass
from supervisor.core.messages import END, Message

TIMEOUT_S, CHILD_S = 10.0, 30.0
SLACK, DISCORD = "hooks.slack.com", "discord.com"
PASSED = ("PATH", "HOME", "LC_ALL", "PYTHONPATH", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
LONGEST_TEXT = 1700  # ntfy takes 4096 bytes, Discord 2000 characters with the title and the command
PRIORITY = {"info": 2, "warning": 4, "error": 5}  # of ntfy
TYPES = {"info": "info", "warning": "warning", "error": "failure"}  # of apprise


class SendError(Exception):
    """A message did not get through: why, a clause for people without what is secret."""


@dataclass(frozen=True)
class Target:
    """``name`` shows no secret. ``send`` raises SendError."""

    name: str
    send: Callable[[Message], None]


def open_targets(urls: str, run: str) -> tuple[list[Target], list[str]]:
    """The targets, by addresses with blanks between them, and sentences on those that cannot be used."""
    found, odd = [], []
    for number, url in enumerate(urls.split(), 1):
        secrets.remember_url(url)
        name = f"target {number} ({urlsplit(url).scheme}://...)"
        try:
            found.append(Target(name, _make_sender(url, run)))
        except SendError as error:
            odd.append(f"Messages do not go to {name} of RL_NOTIFY_URLS: {error}.")
    return found, odd


def title_of(message: Message, run: str) -> str:
    """Severity and run first."""
    began = {"info": "note", "warning": "warning", "error": "ERROR"}[message.severity]
    ended = "over" if message.thread == END else "resolved"  # of trouble: the run goes on
    return f"{ended if message.is_over else began}: {run}"


def text_of(message: Message) -> str:
    """The sentence, then the command to type."""
    text = plain(secrets.mask_secrets(message.sentence))[:LONGEST_TEXT]
    return f"{text}\n$ {message.command}" if message.command else text


def _make_sender(url: str, run: str) -> Callable[[Message], None]:
    parts = urlsplit(url)
    if parts.scheme in ("ntfy", "ntfys"):
        topic, base = parts.path.strip("/"), f"http{parts.scheme[4:]}://{parts.netloc.rpartition('@')[2]}/"
        if not topic or "/" in topic or not parts.hostname:
            raise SendError("it is not of the form ntfys://HOST/TOPIC")
        return lambda message: _post(base, _for_ntfy(message, run, topic), _has_id)
    if parts.scheme in ("http", "https"):
        if problem := http.problem_of(url):
            raise SendError(f"it {problem}")
        key = {SLACK: "text", DISCORD: "content"}.get(parts.hostname or "")
        return lambda message: _post(  # Slack answers "ok"
            url, _for_webhook(message, run, key), lambda page: key != "text" or page.text.strip() == "ok"
        )
    if find_spec("apprise") is None:
        raise SendError("this kind needs apprise: pip install 'rl-supervisor[notify]'")
    return lambda message: _ask_apprise(url, message, run)


def _for_webhook(message: Message, run: str, key: str | None) -> dict[str, object]:
    whole = f"{title_of(message, run)}\n{text_of(message)}"
    if key is not None:
        return {key: whole}
    return {
        "run": run,
        "severity": message.severity,
        "thread": f"{run}-{message.thread}",
        "over": message.is_over,
        "title": title_of(message, run),
        "text": whole,  # what services of Slack's shape show
        "command": message.command,
    }


def _for_ntfy(message: Message, run: str, topic: str) -> dict[str, object]:
    """As ntfy's JSON: from version 2.16 on the messages of one ``sequence_id`` replace each other."""
    return {
        "topic": topic,
        "title": title_of(message, run),
        "message": text_of(message),
        "priority": PRIORITY[message.severity],
        "sequence_id": "".join(c if c.isalnum() or c in "-_" else "-" for c in f"{run}-{message.thread}")[:64],
    }


def _post(url: str, value: Mapping[str, object], is_taken: Callable[[http.Page], bool]) -> None:
    try:
        page = http.ask(
            url, "POST", {"Content-Type": "application/json"}, timeout_s=TIMEOUT_S, body=json.dumps(value).encode()
        )
    except http.NoAnswerError as error:
        raise SendError(str(error)) from None
    if not 200 <= page.status < 300:
        moved = "; redirects are not followed: name the final address" if page.status // 100 == 3 else ""
        raise SendError(f"it answers with status {page.status}{moved}")
    if not is_taken(page):
        raise SendError(f"it answers with status {page.status}, but not that it took the message")


def _has_id(page: http.Page) -> bool:
    """As ntfy answers: with the message."""
    try:
        value = json.loads(page.text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value.get("id"))


def _ask_apprise(url: str, message: Message, run: str) -> None:
    asked = {"url": url, "title": title_of(message, run), "body": text_of(message), "type": TYPES[message.severity]}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.effects.apprise_child"],
            input=json.dumps(asked).encode(),
            env={name: os.environ[name] for name in PASSED if name in os.environ},
            capture_output=True,
            timeout=CHILD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SendError(f"apprise was not done within {CHILD_S:g} s") from None
    except OSError as error:
        raise SendError(f"no process could be started ({error.strerror})") from None
    if done.returncode:
        raise SendError("apprise could not send it")
