"""`supervisorctl incidents`: beside a daemon, and out of the journal of one that is gone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.api.protocol import Api
from supervisor.cli import ctl
from supervisor.evidence.bundle import collect
from supervisor.evidence.known import bundles_dir
from supervisor.journal.journal import Journal
from supervisor.views import incidents
from tests.people.conftest import serve, sockets  # noqa: F401 - fixtures
from tests.people.desk import FakeDesk

from .rig import journal_with_an_incident, scene

SIGNALS = [{"kind": "step", "sentence": "no new step for 51 min"}, {"kind": "gpu", "sentence": "GPU 1 is idle"}]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a run whose daemon is gone, with one incident and its evidence."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RL_SUPERVISOR_ETC", str(tmp_path / "etc"))
    monkeypatch.setenv("RL_SUPERVISOR_SOCKET_DIR", str(tmp_path / "sockets"))
    folder = tmp_path / "rl-supervisor" / "bs4"
    identity = journal_with_an_incident(folder, over=True)
    about = scene(folder, explain={"verdict": {"signals": SIGNALS}}, journal=identity)
    assert collect(about, bundles_dir(folder), budget_s=20).folder
    return folder


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert ctl.main(["incidents", *words]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


@pytest.mark.soak
def test_without_a_daemon_the_journal_tells(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = told(capsys)
    assert "#1  " in listed
    assert "over after" in listed
    assert "with step 1" in listed
    assert "[cuda-oom]" in listed
    assert "The job ended with exit code 1 after step 12 of 1000" in listed.replace("\n     ", "")
    assert "    - Attempt 2 is launched, resuming at step 10" in listed, "what was done"
    assert str(bundles_dir(state) / "0001-attempt-0001") in listed
    shown = told(capsys, "1")
    assert shown.startswith("Incident 1 of attempt 1: ")
    assert "  - no new step for 51 min\n  - GPU 1 is idle\n" in shown
    assert "ERROR  The job ended with exit code 1" in shown
    assert "processes  collected" in shown
    assert "trace.jsonl.gz" in shown


@pytest.mark.soak
def test_as_json_it_is_all_there(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = json.loads(told(capsys, "bs4", "--json"))
    assert one["id"] == 1
    assert one["signals"] == ["no new step for 51 min", "GPU 1 is idle"]
    assert one["opened"] <= one["noticed"]
    assert one["down_s"] >= 0
    assert one["bundles"][0]["path"].endswith("incidents/0001-attempt-0001")
    assert "story" not in one
    shown = json.loads(told(capsys, "1", "--json"))
    events = [event["event"] for event in shown["story"]]
    assert events.index("verdict") < events.index("starting") < events.index("incident-closed")
    assert (one["open"], one["recovered_step"] is None) == (False, False)
    assert "step" not in events, "what goes on beside any incident is left out"


def test_the_attempt_that_broke_is_nothing_that_was_done_about_it(state: Path) -> None:
    """The first attempt began within two seconds of what broke it, as one does that dies early."""
    with sqlite3.connect(state / "journal.db") as db:
        noticed = db.execute("SELECT id, wall FROM events WHERE event = 'verdict'").fetchone()
        db.execute("UPDATE events SET id = id + 1000 WHERE id >= ?", noticed[:1])
        db.execute(
            "INSERT INTO events (id, wall, level, event, sentence, fields) VALUES (?, ?, 'info', 'launched', "
            "'Attempt 1 is launched, from the start', '{}')",
            (noticed[0] + 500, noticed[1] - 1.0),
        )
    (one,) = incidents.read_incidents(state, 1)
    assert "Attempt 1 is launched, from the start" in [event["sentence"] for event in one["story"]]
    assert [sentence for sentence in one["done"] if "is launched" in sentence] == [
        "Attempt 2 is launched, resuming at step 10."
    ]


@pytest.mark.soak
def test_open_ones_alone(state: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert told(capsys, "bs4", "--open") == "No incident is open.\n"
    journal_with_an_incident(tmp_path / "rl-supervisor" / "crashed")
    assert "  open for " in told(capsys, "crashed", "--open")
    Journal(tmp_path / "rl-supervisor" / "quiet").close()
    (tmp_path / "rl-supervisor" / "quiet" / "attempts").mkdir()
    assert told(capsys, "quiet") == "No incident.\n"
    assert "There are 3 runs on this machine, name one: bs4, crashed, quiet." in told(capsys, code=2)


@pytest.mark.soak
def test_a_number_that_is_not_there_and_a_run_that_is_not_there(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "The journal keeps no incident 7; it knows 1." in told(capsys, "7", code=1)
    assert "There is no run named other on this machine; there are bs4." in told(capsys, "other", code=2)
    assert "one incident and the name of one run" in told(capsys, "1", "2", code=2)


@pytest.mark.soak
def test_a_run_file_names_the_state_folder(
    state: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    run = tmp_path / "run.toml"
    run.write_text(
        f'[run]\nid = "bs4"\nstate_dir = "{state}"\n[job]\nkind = "command"\n'
        '[job.plain]\nstart = ["true"]\nresume = ["true"]\n'
    )
    assert "#1  " in told(capsys, str(run))


@pytest.mark.soak
def test_a_journal_that_is_damaged_is_a_sentence(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("journal.db-wal", "journal.db-shm"):
        (state / name).unlink(missing_ok=True)
    (state / "journal.db").write_bytes(b"no database at all" * 1000)
    assert "cannot be read: file is not a database" in told(capsys, code=1)


@pytest.mark.soak
def test_a_bundle_that_was_cut_off_or_garbled_is_listed_as_such(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bundles_dir(state) / "0001-attempt-0001"
    (folder / "bundle.json").write_text('{"parts": [')
    (folder / "explain.json").write_text('{"verdict": 7}')
    assert "(it was not finished)" in told(capsys, "1")


def test_beside_a_daemon_it_is_asked(
    serve: Callable[..., Api],  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RL_SUPERVISOR_SOCKET_DIR")
    desk = FakeDesk("bs4")
    asked: list[tuple[int | None, bool]] = []

    def answer(number: int | None, *, only_open: bool) -> list[dict[str, object]]:
        asked.append((number, only_open))
        return incidents.read_incidents(state, number, only_open=only_open)

    desk.incidents = answer  # type: ignore[method-assign]
    api = serve(desk)
    path = str(api._path)
    assert ctl.main(["--socket", path, "incidents", "--open"]) == 0
    assert ctl.main(["--socket", path, "incidents", "1"]) == 0
    assert "Incident 1 of attempt 1" in capsys.readouterr().out
    assert ctl.main(["--socket", path, "incidents", "9"]) == 1
    assert "The journal keeps no incident 9" in capsys.readouterr().err
    assert asked == [(None, True), (1, False), (9, False)]
