"""The tables of the run file about what is told: kept for people, sent out, and heard from outside.

``[logging]`` and ``[logs]``: what the daemon and the job say. ``[evidence]``: what is kept of an incident.
``[leaving]``: how one hears that this pod is about to go. ``[heartbeat]``: who hears that all is well.
``[notify]``: who hears what is not.
"""

# ruff: noqa: RUF012 - pydantic gives each instance its own copy of a default

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from supervisor.base import secrets
from supervisor.base.secret_shapes import is_telling
from supervisor.config.section import Section
from supervisor.core.settings import Positive


def _check_url(url: str) -> str:
    """``url``, or ValueError that does not hold it: it may be a secret."""
    from supervisor.base import http  # brings a whole HTTP library, which most run files need not

    if problem := http.problem_of(url):
        raise ValueError(f"what is written there {problem}")
    return url


Url = Annotated[str, AfterValidator(_check_url)]


class Logging(Section):
    """The daemon's own log."""

    format: Literal["auto", "journal", "pretty", "json"] = "auto"
    """`auto`: journald fields under systemd, pretty on a terminal, JSON lines elsewhere."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe line that is written."""
    file: Path | None = None
    """Also write JSON lines here. Default: where no systemd runs, `daemon.jsonl` in the state folder (none:
    `/dev/null`)."""
    file_mb: Annotated[float, Field(gt=0)] = 20
    """Size at which a new file is begun."""
    keep: Annotated[int, Field(ge=0)] = 5
    """How many older ones stay: `.1`, and compressed `.2.gz`, `.3.gz` ..."""


class Logs(Section):
    """What is kept of what the job said, in the state folder. The ends of all logs go to the store as well."""

    keep_attempts: Positive = 20
    """The folders of this many newest attempts are kept; besides, the present one and that of an open incident."""
    max_mb: Annotated[int, Field(ge=64)] = 4096
    """Most megabytes of logs, compressed ones and the present attempt's included; the oldest go first. The captured
    output of a living attempt may take half of it, and is compressed in pieces from a sixteenth of it (64 MB) on."""


class Evidence(Section):
    """What is kept of an incident before anything is killed."""

    budget_s: Annotated[float, Field(ge=0.5, le=120)] = 10
    """Seconds that a stop waits for the bundle at most; what is not collected by then is left behind and named."""
    py_spy: bool = True
    """Ask py-spy for the Python stacks of the run's processes, where it is installed. That does not stop them."""
    keep: Positive = 30
    """Bundles that stay on this machine; the oldest go first, never those of the open incident."""
    max_mb: Annotated[float, Field(ge=1)] = 200
    """Megabytes of all bundles together."""


class Leaving(Section):
    """When this pod is about to go, and how one hears of it. All triggers that are set are asked; the first counts."""

    grace_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds from SIGTERM to the kill: 5 on RunPod, 10 for plain `docker stop`. Default: as long as stopping and the
    last publish take, up to 400 s, which the unit's TimeoutStopSec allows."""
    within_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds that are left once a trigger fires, where its own words do not say: a number alone, or JSON with
    `within_s` (seconds) or `time` (ISO 8601). Default: unknown, so everything is done at once."""
    file: Path | None = None
    """The pod goes when this file appears. An absolute path."""
    url: Url | None = None
    """The pod goes when this page answers with status 200 (Amazon:
    `http://169.254.169.254/latest/meta-data/spot/instance-action`)."""
    url_matches: str | None = None
    """And its text matches this regular expression (Google: `TRUE`)."""
    url_headers: dict[str, str] = {}
    """Headers of that question (Google: `Metadata-Flavor = "Google"`). A page that wants a secret is a `command`'s."""
    command: list[str] = []
    """The pod goes when this command ends with exit code 0. No shell; it has 10 seconds."""
    signal: Literal["SIGUSR1", "SIGUSR2", "SIGPWR"] | None = None
    """The pod goes when the daemon gets this signal."""

    @field_validator("file")
    @classmethod
    def same_everywhere(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError(f"must be an absolute path: {value}")
        return value

    @field_validator("url_matches")
    @classmethod
    def regular(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value

    @field_validator("url_headers")
    @classmethod
    def plain_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if is_telling(name):
                raise ValueError(f"{name} carries a secret, and secrets do not belong in the run file: use `command`")
            if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", name) or not (text.isascii() and text.isprintable()):
                raise ValueError(f"{name!r} and its value are no HTTP header")
        return value

    @field_validator("command")
    @classmethod
    def words(cls, value: list[str]) -> list[str]:
        if any("\0" in word for word in value) or (value and not value[0]):
            raise ValueError("names no program")
        return value

    @model_validator(mode="after")
    def with_a_url(self) -> Leaving:
        if self.url is None and (self.url_matches is not None or self.url_headers):
            raise ValueError("has `url_matches` or `url_headers` without `url`")
        return self


class Heartbeat(Section):
    """A sign of life for a page that calls people when it stops (Healthchecks.io and the like). It goes out only while
    the run trains *and* what it trains reaches the store; why it stops is told once."""

    url: Annotated[Url, AfterValidator(secrets.remember_url)] | None = None
    """Page that is asked with GET. It is treated as a secret. Default: the secret RL_HEARTBEAT_URL, else none."""
    object: bool = False
    """Also write `heartbeat.json` beside the run's steps in the store."""
    interval_s: Annotated[float, Field(ge=1, le=86400)] = 60
    """Seconds between two."""
    behind_s: Annotated[float, Field(gt=0)] = 7200
    """Unhealthy when a complete step has waited this many seconds to be published."""
    behind_steps: Positive | None = None
    """Unhealthy when the newest published step is this many steps behind. Default: any number."""


class Notify(Section):
    """Messages to people: an incident and its end, a person is needed, the pod is unfit, nothing is published for too
    long, training is worth nothing, the run is finished. They go to the addresses in the secret RL_NOTIFY_URLS, with
    blanks between them; `rl-supervisor notify --test RUN.toml` tries them."""

    per_hour: Positive = 10
    """Most messages an hour. What comes beyond is told together when there is room again; errors never wait."""
    asleep: Annotated[str, StringConstraints(pattern=r"^([01]?\d|2[0-3])-([01]?\d|2[0-3])$")] | None = None
    """Hours (UTC) in which only errors are sent, such as `"22-7"`; the rest is told together afterwards."""
