"""What only the network can tell, beside the store's own survey: the model on the Hub, what the store's newest step was
made with, and whether publishing keeps up.

Nothing is written anywhere, unless measuring is asked for. How fast publishing is comes from the run's own
journal where it has one: what a few megabytes say of hundreds of gigabytes over many streams is an estimate only.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from urllib.parse import quote
from uuid import uuid4

from supervisor.base import http
from supervisor.base.beside import Beside, side_by_side
from supervisor.base.errors import SupervisorError
from supervisor.base.retry import Retry
from supervisor.checkpoints.catalogue import get_run_files
from supervisor.checkpoints.records import delete_versions, read_latest, read_manifest
from supervisor.config.settings import RunFile
from supervisor.effects.run_files import MASKED, RUN
from supervisor.jobs.downloads import token_file
from supervisor.journal import journal
from supervisor.preflight import disk_space, installed, look, resume
from supervisor.preflight.finding import Finding, Where
from supervisor.preflight.reading import ANY_MODEL
from supervisor.preflight.subject import Subject
from supervisor.preflight.tier_gain import tier_gain
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from supervisor.storage.bucket import HasBucket

HUB = "https://huggingface.co"
HUB_S = 5.0
OPEN_S = 5.0
"""Patience with a store that does not answer at all; what it is asked then has its own."""
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
LATEST_FACTS = 400
PROBE, PROBE_BYTES, PROBE_STREAMS = "preflight-probe", 4 << 20, 4
_NAME = re.compile(r"[\w.-]+/[\w.-]+\Z", re.ASCII)
_LOCAL = ("outputs/", "models/", "checkpoints/", "weights/")
_CONFIG = re.compile(r"config-(\d+)-")


def findings(subject: Subject, environ: Mapping[str, str] = os.environ, *, measure: bool = False) -> Sequence[Finding]:
    """Look at the Hub, at what the store tells of its newest step, and at how publishing went.

    ``environ``: what the daemon would have, with the store's keys. A store that cannot be reached says nothing here:
    ``supervisor.storage.bucket`` surveys it. ``measure``: send a few megabytes to the store and delete them, and write
    a probe to the volume and to a tier.
    """
    looks: list[Callable[[], list[Finding]]] = [
        lambda: list(_ask_hub(subject, environ)),
        lambda: list(_ask_store(subject, environ)),
        lambda: list(publish_times(subject)),
        lambda: list(upload_time(subject, _probe_store(subject, environ) if measure else None)),
        lambda: list(tier_gain(subject) if measure else ()),
    ]
    return [finding for found in side_by_side(looks, len(looks)) for finding in found]


def open_run_store(run: RunFile, environ: Mapping[str, str]) -> Store:
    """The run's store, or soon why not: a check is no publish, which waits for hours. Raises SupervisorError."""
    quick = Retry(tries=4, base_s=0.25)
    look = Beside(lambda: open_store(run.store_url, run.store.service, environ, retry=quick, region=run.store.region))
    try:
        return look.result(time.monotonic() + OPEN_S)
    except TimeoutError:
        told = f"no answer came within {OPEN_S:g} s, as where there is no network"
        raise StoreError("transient", told) from None


# ---------------------------------------------------------------- the Hub


def _ask_hub(subject: Subject, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Is the model there, and may the job have it? One small request, and one more for a gated model."""
    name = subject.settings.get(*ANY_MODEL)
    if subject.kind == "command" or not isinstance(name, str) or not _NAME.match(name) or name.startswith(_LOCAL):
        return
    folder = subject.run_file.job.dir if subject.run_file else None
    if name in subject.site.hf_models or ((folder or Path.cwd()) / name).is_dir():
        return  # it need not be fetched
    given = subject.site.environ or (
        look.needs(subject.run_file, None, environ).environ if subject.run_file else environ
    )
    if given.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return  # what that means is said without asking
    place = subject.where(*ANY_MODEL)
    base = (given.get("HF_ENDPOINT") or HUB).rstrip("/")
    token = token_of(given, folder or Path.cwd())
    try:
        page = _send_request(f"{base}/api/models/{quote(name)}?expand%5B%5D=gated", "GET", token)
        if page.status in (401, 403, 404):
            who = "with the token that the job has" if token else "without a token, which the job does not have"
            yield Finding("model-not-on-hub", f"{base} shows no model {name} {who} (HTTP {page.status}).", place)
            return
        if page.status != 200:
            yield Finding("hub-no-answer", f"{base} answered HTTP {page.status} when it was asked for {name}.", place)
            return
        if _is_gated(page.text):
            page = _send_request(f"{base}/{quote(name)}/resolve/main/config.json", "HEAD", token)
            if page.status in (401, 403):
                yield _report_closed(name, token, page.status, place)
    except http.NoAnswerError as error:
        yield Finding("hub-no-answer", f"{base} gave no answer when it was asked for {name}: {error}.", place)


def _send_request(url: str, method: str, token: str) -> http.Page:
    problem = http.problem_of(url)
    if problem:
        raise http.NoAnswerError(f"its address {problem}")
    return http.ask(url, method, {"Authorization": f"Bearer {token}"} if token else {}, timeout_s=HUB_S)


def _is_gated(text: str) -> bool:
    """Does the owner of the model let people in one by one ("manual") or by a form ("auto")?"""
    try:
        said = json.loads(text)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("gated") in ("auto", "manual", True)


def _report_closed(name: str, token: str, status: int, place: Where) -> Finding:
    if token:
        told = f"{name} is gated, and the token that the job has may not read it (HTTP {status})."
        return Finding("model-gated", told, place, f"Ask for access at {HUB}/{name} with the account of that token.")
    told = f"{name} is gated, and the job has no token (HTTP {status})."
    return Finding("model-gated", told, place)


def token_of(environ: Mapping[str, str], cwd: Path) -> str:
    """The token for the Hub of a job that runs in ``cwd``: a variable's, else that of ``huggingface-cli login``."""
    for name in TOKENS:
        if environ.get(name, "").strip():
            return environ[name].strip()
    text = installed.text_of(token_file(environ, cwd)).strip()
    return text if text.isascii() and "\n" not in text else ""


# ---------------------------------------------------------------- the store's newest step


def _ask_store(subject: Subject, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What the store tells of its newest step, where this disk has none that is newer."""
    run = subject.run_file
    if run is None or subject.kind == "command" or not run.store.url or run.store.url.startswith("file:"):
        return  # a folder's manifest is read without asking
    try:
        store = open_run_store(run, environ)
        latest = read_latest(store, run.run.id)
        if latest is None or latest.legacy or latest.step <= max(subject.steps, default=-1):
            return
        manifest, _ = read_manifest(store, run.run.id, latest.step)
        texts = _stored_texts(store, run.run.id)
    except SupervisorError:
        return
    told, settings = f"as {store.url} keeps it", resume.of_texts(subject, texts)
    before = resume.Before(manifest.step, settings, told, manifest.revision, manifest.step_base)
    yield from resume.changed_settings(subject, before)


def _stored_texts(store: Store, run_id: str) -> list[str]:
    """The trainer's configuration files that are kept beside the steps; none where a secret was masked in one."""
    files = get_run_files(store, run_id)
    try:
        about = json.loads(files.get(RUN, b"{}"))
    except ValueError:
        return []
    masked = about.get(MASKED) if isinstance(about, dict) else None
    if isinstance(masked, dict) and masked.get("files"):
        return []
    named = [(int(found[1]), data) for name, data in files.items() if (found := _CONFIG.match(name))]
    return [data.decode("utf-8", "replace") for _, data in sorted(named)]


# ---------------------------------------------------------------- does publishing keep up?


def publish_times(subject: Subject) -> Iterator[Finding]:
    """The last publishes against the time between two checkpoints, both as the run's journal has them."""
    run = subject.run_file
    if run is None or not subject.interval:
        return
    took, steps = _measured_publishes(run.state_dir / "journal.db")
    if len(took) < 2 or len(steps) < 3:
        return
    upload, between = median(took), median(steps) * subject.interval
    if upload <= between:
        return
    yield Finding(
        "publishing-too-slow",
        f"A step took {_span_in_words(upload)} to publish (median of the last {len(took)}), and every "
        f"{_span_in_words(between)} there is "
        f"a new one: job.checkpoint_interval = {subject.interval}, and a step takes {_span_in_words(median(steps))}.",
        subject.run_where("job", "checkpoint_interval"),
        f"Set job.checkpoint_interval to {-(-int(upload) // max(1, int(median(steps)))) + 1} or more.",
    )


@dataclass(frozen=True)
class Rate:
    """Bytes a second that a store takes: between the two. ``told``: a clause on where that is from."""

    low: float
    high: float
    told: str


def upload_time(subject: Subject, probed: Rate | None = None) -> Iterator[Finding]:
    """How long a step takes to publish, by what is known of the way there, and what step time keeps up with it."""
    run, size = subject.run_file, disk_space.step_bytes(subject)
    if run is None or size is None or not subject.interval or not run.store.url or run.store.url.startswith("file:"):
        return
    limit = run.store.limit_mbit * 1e6 / 8 if run.store.limit_mbit else None
    rate = probed
    if limit is not None and (rate is None or rate.low > limit):
        rate = Rate(limit, limit, f"store.limit_mbit = {run.store.limit_mbit:g}")
    if rate is None or rate.low <= 0:
        return
    weight, origin = size
    low, high = weight.low / rate.high, weight.high / rate.low
    sizes, spans = (
        _both_in_words(f"{weight.low / 1e9:.0f}", f"{weight.high / 1e9:.0f}"),
        _both_in_words(_span_in_words(low), _span_in_words(high)),
    )
    told = (
        f"A step of {sizes} GB ({origin}) takes an estimated {spans} to publish ({rate.told}); with one every "
        f"{subject.interval} steps that keeps up while a training step takes "
        f"{_span_in_words(low / subject.interval)} or more."
    )
    yield Finding("upload-time", told, subject.run_where("job", "checkpoint_interval"))


def _probe_store(subject: Subject, environ: Mapping[str, str]) -> Rate | None:
    """Send a few megabytes beside the run and delete them again; None where the key may not, or the store fails."""
    run = subject.run_file
    if run is None or not run.store.url or run.store.url.startswith("file:"):
        return None
    folder = f"{PROBE}-{uuid4().hex[:12]}/"
    data = os.urandom(PROBE_BYTES)
    try:
        store = open_run_store(run, environ)
        if isinstance(store, HasBucket) and not {"writeFiles", "deleteFiles"} <= store.bucket().capabilities:
            return None
        try:
            began = time.monotonic()
            puts = [partial(store.put_bytes, f"{folder}{number}", data) for number in range(PROBE_STREAMS)]
            side_by_side(puts, PROBE_STREAMS)
            seconds = max(time.monotonic() - began, 1e-3)
        finally:
            delete_versions(store, folder, None)
    except SupervisorError:
        return None
    rate = PROBE_STREAMS * PROBE_BYTES / seconds
    streams = max(1.0, run.store.streams / PROBE_STREAMS)
    sent = f"{PROBE_STREAMS * PROBE_BYTES / 1e6:.0f} MB over {PROBE_STREAMS} streams took {seconds:.1f} s"
    return Rate(rate, rate * streams, f"{sent}; a publish has {run.store.streams}")


def _measured_publishes(path: Path) -> tuple[list[float], list[float]]:
    """Seconds of the last publishes that sent something, and seconds between the trainer's last steps."""
    took: list[float] = []
    done: list[tuple[int, float]] = []
    if not path.exists():
        return [], []
    try:
        with closing(journal.open_read_only(path)) as db:
            rows = db.execute(
                "SELECT wall, fact FROM observations WHERE fact LIKE '%Published%' OR fact LIKE '%StepDone%' "
                "ORDER BY id DESC LIMIT ?",
                (LATEST_FACTS,),
            ).fetchall()
    except sqlite3.Error:
        return [], []
    for wall, text in rows:
        try:
            fact = json.loads(text)
            if fact["@"] == "Published" and float(fact.get("sent_bytes", 0)) > 0:
                took.append(float(fact["seconds"]))
            elif fact["@"] == "StepDone" and fact.get("role") == "trainer":
                done.append((int(fact["step"]), float(wall)))
        except (ValueError, KeyError, TypeError):
            continue
    steps = [last - first for (after, last), (before, first) in pairwise(done) if after == before + 1]
    return took[:10], [one for one in steps[:50] if one > 0]


def _span_in_words(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _both_in_words(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
