"""The looks that need a network: a Hub and a store that are played here, and a journal."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.catalogue import RUN_FILES
from supervisor.checkpoints.manifest import Latest, Manifest, ManifestFile, sha256
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.effects import tier_fit
from supervisor.effects.tier_fit import write_rate
from supervisor.journal import journal
from supervisor.preflight import online
from supervisor.preflight.finding import Finding
from supervisor.preflight.subject import Subject
from supervisor.preflight.tier_gain import tier_gain
from supervisor.storage import open_store
from supervisor.storage.bucket import survey
from tests.b2server import ALL_CAPABILITIES, B2Server, Key
from tests.preflight.subjects import ids, site, subject
from tests.primerl.helpers import ERAS

MODEL = 'max_steps = 5\n[model]\nname = "owner/model"\n'


class Hub(ThreadingHTTPServer):
    """Answers as huggingface.co does; ``gated``: what it tells of the model, ``reads``: tokens that may read it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.gated: Any = False
        self.there = True
        self.status = 0
        self.reads = {""}
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def answer(self) -> None:
        hub = self.server
        hub.asked.append(f"{self.command} {self.path}")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        known = self.path.startswith(("/api/models/owner/model?", "/owner/model/resolve/main/"))
        status = 200 if known and hub.there else 404 if token else 401  # it tells strangers nothing of what is private
        if "/resolve/" in self.path and status == 200 and token not in hub.reads:
            status = 403 if token else 401
        status = hub.status or status
        body = json.dumps({"id": "owner/model", "gated": hub.gated}).encode() if status == 200 else b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_GET = do_HEAD = answer

    def log_message(self, *words: object) -> None:
        """Nothing."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    yield server
    server.shutdown()
    server.server_close()


def look(hub: Hub, text: str = MODEL, *, token: str = "", **pod: Any) -> list[Finding]:
    environ = {"HF_ENDPOINT": hub.url, "HOME": "/nowhere", **({"HF_TOKEN": token} if token else {})}
    environ |= pod.pop("environ", {})
    found = list(online.findings(subject(text, site=site(environ=environ, **pod)), {}))
    assert all(one.rule for one in found)
    return found


def test_a_model_that_is_there_costs_one_request(hub: Hub) -> None:
    assert look(hub) == []
    assert hub.asked == ["GET /api/models/owner/model?expand%5B%5D=gated"]


def test_a_model_that_is_not_there_is_found_at_its_line(hub: Hub) -> None:
    hub.there = False
    (found,) = look(hub)
    assert (found.id, found.weight, found.where.line) == ("model-not-on-hub", "error", 3)
    assert "without a token" in found.sentence
    (found,) = look(hub, token="t")
    assert "with the token that the job has" in found.sentence


@pytest.mark.parametrize("kind", ["auto", "manual"])
def test_a_gated_model_without_a_token_and_with_one_that_was_not_let_in(hub: Hub, kind: str) -> None:
    hub.gated, hub.reads = kind, {"good"}
    (found,) = look(hub)
    assert (found.id, found.weight) == ("model-gated", "error")
    assert "the job has no token" in found.sentence
    (found,) = look(hub, token="bad")
    assert "may not read it (HTTP 403)" in found.sentence
    assert "bad" not in found.sentence
    assert look(hub, token="good") == []


def test_the_token_of_a_login_counts(hub: Hub, tmp_path: Path) -> None:
    hub.gated, hub.reads = "auto", {"filed"}
    (tmp_path / "token").write_text("filed\n")
    assert look(hub, environ={"HF_HOME": str(tmp_path)}) == []


def test_what_need_not_be_fetched_is_not_asked_for(hub: Hub) -> None:
    assert look(hub, hf_models={"owner/model": Path("/x")}) == []
    assert look(hub, '[model]\nname = "/models/mine"\n') == []
    assert look(hub, '[model]\nname = "outputs/mine"\n') == []
    assert look(hub, "[model]\nname = 7\n") == []
    assert look(hub, environ={"HF_HUB_OFFLINE": "1"}) == []
    assert hub.asked == []


def test_a_hub_that_is_out_of_order_is_a_note(hub: Hub) -> None:
    hub.status = 503
    assert [(one.id, one.weight) for one in look(hub)] == [("hub-no-answer", "note")]
    assert ids(look(hub, environ={"HF_ENDPOINT": "http://127.0.0.1:1"})) == ["hub-no-answer"]
    assert ids(look(hub, environ={"HF_ENDPOINT": "ftp://x"})) == ["hub-no-answer"]


# ---------------------------------------------------------------- the store's newest step


@pytest.fixture
def b2() -> Iterator[B2Server]:
    with B2Server() as server:
        yield server


def published(b2: B2Server, config: str, step: int = 20) -> None:
    manifest = Manifest("r7", step, "pod", (ManifestFile("x", 1, "f", 1, ("a" * 40,)),), revision="1" * 40, step_base=1)
    data = manifest.to_bytes()
    b2.put(f"team/r7/step_{step}/manifest.json", data)
    latest = Latest(step, "r7", writer="pod", manifest_sha256=sha256(data))
    b2.put("team/r7/latest.json", latest.to_bytes())
    b2.put(f"team/r7/{RUN_FILES}config-0-config.toml", config.encode())
    b2.put(f"team/r7/{RUN_FILES}run.json", json.dumps({"masked": {"files": []}}).encode())


def stored(b2: B2Server, text: str, environ: dict[str, str] | None = None, **given: Any) -> list[Finding]:
    store = {"url": "b2://the-bucket/team", "realm": b2.url}
    run = RunFile.model_validate({"run": {"id": "r7"}, "job": {"dir": "/x", "config": "config.toml"}, "store": store})
    over = subject(text, run_file=run, site=site(environ={"HF_HUB_OFFLINE": "1"}), revision="2" * 40, **given)
    return list(online.findings(over, b2.environ() if environ is None else environ))


def test_a_fresh_pod_learns_from_the_store_what_its_newest_step_was_made_with(b2: B2Server) -> None:
    published(b2, MODEL)
    found = stored(b2, MODEL.replace("owner/model", "owner/other"))
    assert ids(found) == ["resume-other-model", "resume-other-revision"]
    assert "as b2://the-bucket/team keeps it" in found[0].sentence
    assert ids(stored(b2, MODEL)) == ["resume-other-revision"]


def test_a_newer_step_on_this_disk_counts_for_more(b2: B2Server) -> None:
    published(b2, MODEL)
    assert stored(b2, MODEL, steps={30: 1}) == []


def test_a_store_that_is_empty_damaged_or_locked_says_nothing_here(b2: B2Server) -> None:
    assert stored(b2, MODEL) == []
    b2.put("team/r7/latest.json", b"{")
    assert stored(b2, MODEL) == []
    assert stored(b2, MODEL, environ={}) == []  # no keys


# ---------------------------------------------------------------- publishing


def run_with_journal(folder: Path, seconds_to_publish: float, seconds_a_step: float) -> Subject:
    with sqlite3.connect(folder / "journal.db") as db:
        db.executescript(journal._SCHEMA)
        for step in range(1, 31):
            rows: list[tuple[float, f.Fact]] = [(step * seconds_a_step, f.StepDone("trainer", step))]
            rows += [(step * seconds_a_step, f.StepDone("orchestrator", step))]
            if step % 10 == 0:
                rows += [(step * seconds_a_step, f.Published(step, 47 << 30, seconds_to_publish, 40 << 30))]
            for wall, fact in rows:
                db.execute(
                    "INSERT INTO observations (t, wall, source, fact) VALUES (0, ?, 'x', ?)",
                    (wall, json.dumps(encode(fact))),
                )
    table = {"run": {"id": "x", "state_dir": str(folder)}, "job": {"dir": "/x", "config": "config.toml"}}
    return subject("", run_file=RunFile.model_validate(table), interval=10)


def test_publishing_that_does_not_keep_up_is_told_with_the_interval_that_would(tmp_path: Path) -> None:
    (found,) = online.publish_times(run_with_journal(tmp_path, 3000, 200))
    assert (found.id, found.weight) == ("publishing-too-slow", "warning")
    assert "took 50 min to publish (median of the last 3)" in found.sentence
    assert "every 33 min there is a new one" in found.sentence
    assert found.remedy == "Set job.checkpoint_interval to 16 or more."


def test_publishing_that_keeps_up_and_a_run_without_a_history_say_nothing(tmp_path: Path) -> None:
    assert list(online.publish_times(run_with_journal(tmp_path, 600, 200))) == []
    assert list(online.publish_times(subject(""))) == []
    (tmp_path / "journal.db").write_text("no database")
    table = {"run": {"id": "x", "state_dir": str(tmp_path)}, "job": {"dir": "/x", "config": "config.toml"}}
    assert list(online.publish_times(subject("", run_file=RunFile.model_validate(table), interval=10))) == []


def test_what_a_survey_of_the_store_tells_has_rules_of_its_own(b2: B2Server) -> None:
    """`supervisor.storage.bucket` names them; tests/storage/test_bucket.py has each sentence."""
    from supervisor.preflight.finding import rules

    found = survey(open_store("b2://the-bucket/team", b2.url, b2.environ()), "r7")
    assert set(found.ids.values()) == {"store-no-backstop"}
    assert set(found.ids) <= set(found.notes)
    named = {"store-no-backstop", "store-no-delete", "store-hides-steps", "store-old-versions"}
    assert named <= set(rules())


# ---------------------------------------------------------------- how long an upload takes


def with_store(b2: B2Server, interval: int = 10, **store: Any) -> Subject:
    table = {
        "run": {"id": "r7", "state_dir": "/nowhere"},
        "job": {"dir": "/x", "config": "config.toml"},
        "store": {"url": "b2://the-bucket/team", "realm": b2.url, **store},
    }
    return subject("", run_file=RunFile.model_validate(table), interval=interval, steps={10: 47_000_000_000})


def test_an_upload_time_is_told_by_the_stores_limit(b2: B2Server) -> None:
    (found,) = online.upload_time(with_store(b2, limit_mbit=100))
    assert (found.id, found.weight) == ("upload-time", "note")
    assert "A step of 47 GB (as step 10 on this disk) takes an estimated 63 min to publish" in found.sentence
    assert "(store.limit_mbit = 100)" in found.sentence
    assert "keeps up while a training step takes 6 min or more" in found.sentence
    assert list(online.upload_time(with_store(b2))) == []  # nothing is known of the way there


def test_a_measured_upload_sends_little_and_leaves_nothing(b2: B2Server) -> None:
    rate = online._probe_store(with_store(b2), b2.environ())
    assert rate is not None
    assert 0 < rate.low <= rate.high
    assert "17 MB over 4 streams took" in rate.told
    store = open_store("b2://the-bucket/team", b2.url, b2.environ())
    assert list(store.list_versions("")) == []
    (found,) = online.upload_time(with_store(b2), rate)
    assert "took" in found.sentence


def test_a_key_that_may_not_delete_measures_nothing(b2: B2Server) -> None:
    key = Key("000keep", "K-keep", tuple(one for one in ALL_CAPABILITIES if one != "deleteFiles"), ("the-bucket",))
    b2.add_key(key)
    assert online._probe_store(with_store(b2), b2.environ(key)) is None
    assert online._probe_store(with_store(b2), {}) is None


# ---------------------------------------------------------------- what a tier would bring


def test_what_a_tier_would_bring_is_told_by_a_probe_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 120 MB at 6 MB/s takes 20 s, at 30 MB/s 4 s."""
    assert write_rate(tmp_path, 8 << 20) > 0
    rates = {"fast": 30e6, "out": 6e6}
    monkeypatch.setattr(tier_fit, "write_rate", lambda folder: rates[folder.name])
    for name in rates:
        (tmp_path / name).mkdir()

    def told(step_bytes: int = 120_000_000, era: str = "559b44772") -> str:
        table = {
            "run": {"id": "r7", "state_dir": "/nowhere"},
            "job": {"dir": "/x", "config": "config.toml", "output_dir": str(tmp_path / "out")},
            "checkpoints": {"tier": str(tmp_path / "fast")},
        }
        run_file, dialect = RunFile.model_validate(table), ERAS[era].dialect
        looked = subject(run_file=run_file, steps={10: step_bytes}, dialect=dialect)
        findings = list(tier_gain(looked))
        assert {found.id for found in findings} <= {"tier-gain"}
        return " ".join(found.sentence for found in findings)

    assert told() == (
        f"A save of 114 MiB (as step 10 on this disk) takes about 20 s on {tmp_path}/out (5.7 MiB/s) and 4 s on "
        f"{tmp_path}/fast (28.6 MiB/s): as the tier that is 16 s less for each save."
    )
    assert "which does not fit: three steps and a margin take " in told(1 << 50)
    rates["out"] = 25e6
    assert "too little for a tier, which auto takes from 1.5 times as fast on." in told()
    assert told(era="ceb60c03f") == "", "it cannot be told to save elsewhere"
    monkeypatch.setattr(tier_fit, "write_rate", write_rate)
    (tmp_path / "fast").rmdir()
    assert told() == (
        f"What a tier would bring is not known: {tmp_path}/fast/.rl-supervisor-probe-{os.getpid()} cannot be written "
        "(No such file or directory)."
    )
