"""``rl-supervisor wandb``: the real client asks a server on loopback, and sends what was logged offline to it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest

from supervisor.cli import wandb_page, wandb_sync
from supervisor.cli.main import main
from supervisor.cli.wandb_page import Page, compare_page
from supervisor.cli.wandb_place import OfflineRun
from supervisor.jobs.base import StartRequest
from supervisor.web.history import Piece
from supervisor.web.sources import Seen
from tests.people.desk import FakeDesk, serving, until
from tests.primerl.helpers import CONFIG, job_of
from tests.tracking import server as wandb_server
from tests.tracking.server import Server

pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="no wandb here: pip install 'rl-supervisor[wandb]'")
NOW = 1_763_950_000.0
RUN = "abcd1234"
RUN_FILE = """\
[run]
id = "bs4-qwen3"
state_dir = "{here}/state"
[job]
kind = "command"
dir = "{here}"
env = {{ WANDB_PROJECT = "proj", WANDB_ENTITY = "lab" }}
[job.plain]
start = ["a"]
resume = ["b", "{{step}}"]
[api]
socket = "{here}/bs4-qwen3.sock"
[wandb]
id = "abcd1234"
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    path = tmp_path / "bs4-qwen3.toml"
    path.write_text(RUN_FILE.format(here=tmp_path))
    return path


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """W&B, and an environment that speaks to no other."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    with wandb_server.serving() as found:
        for name, value in found.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield found


class Client:
    """In the place of W&B's package in our child: a run, or an error."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "client" / "wandb"
        self._folder.mkdir(parents=True)
        errors = "class CommError(Exception): ...\nclass UsageError(Exception): ...\n"
        (self._folder / "errors.py").write_text(errors)

    @property
    def path(self) -> str:
        return str(self._folder.parent)

    def raises(self, error: str, text: str) -> None:
        self._write(f"raise {error}({text!r})")

    def shows(self, **more: object) -> None:
        beat = datetime.fromtimestamp(time.time() - 20, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        given = {"state": "running", "heartbeatAt": beat, "summaryMetrics": {"step": 412}, "id": RUN, **more}
        self._write(f"given = json.loads({json.dumps(given)!r}); return Run(given)")

    def _write(self, answer: str) -> None:
        (self._folder / "__init__.py").write_text(f"""
import json
from wandb.errors import CommError, UsageError

class Run:
    entity, project, url = "lab", "proj", "http://127.0.0.1/lab/proj"

    def __init__(self, given):
        self.id, self.state, self._attrs = given["id"], given["state"], given

class Api:
    def __init__(self, timeout):
        assert timeout > 0

    def run(self, path):
        assert path == "lab/proj/{RUN}", path
        {answer}
""")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    made = Client(tmp_path)
    monkeypatch.setenv("PYTHONPATH", made.path)
    return made


def call(*words: str) -> tuple[int, str]:
    """Exit code, and all that was printed, in one line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(["wandb", *words])
    return code, " ".join(out.getvalue().split())


def show(server: Server, *, step: object = 412, age_s: float = 20.0, **more: object) -> None:
    """The run as W&B shows it."""
    beat = datetime.fromtimestamp(time.time() - age_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    server.add_run(RUN, summaryMetrics=json.dumps({"step": step, "_step": 9000}), heartbeatAt=beat, **more)


# ---------------------------------------------------------------- the run's page


# What becomes of an answer is asked of a stand-in for the client, which takes two seconds to import.


@pytest.mark.soak
def test_what_both_say_and_no_difference(server: Server, run_file: Path, tmp_path: Path) -> None:
    show(server)
    with serving(tmp_path) as serve:
        serve(FakeDesk())
        code, told = call(str(run_file))
    assert code == 0, told
    assert f"W&B: lab/proj/{RUN} is running, step 412, heartbeat 2" in told
    assert "Here: running, step 412." in told


def test_what_differs_is_said_and_is_the_exit_code(client: Client, run_file: Path, tmp_path: Path) -> None:
    client.shows(state="crashed", summaryMetrics={"step": 500})
    with serving(tmp_path) as serve:
        serve(FakeDesk())
        code, told = call(str(run_file))
    assert code == 3
    assert "- W&B says crashed; the run is running here." in told
    assert "- W&B has step 500, above step 412 here" in told


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("no key", "No API key configured"),
        pytest.param("refused", "invalid credentials", marks=pytest.mark.soak),
        pytest.param("no such run", "Could not find run", marks=pytest.mark.soak),
        pytest.param("other run", "and tells of zzz", marks=pytest.mark.soak),
        pytest.param("no JSON", "Expecting property name", marks=pytest.mark.soak),
    ],
)
def test_a_server_that_shows_nothing_is_told_with_its_reason(
    server: Server, run_file: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, why: str
) -> None:
    if wrong != "no such run":
        show(server)
    if wrong == "no key":
        monkeypatch.delenv("WANDB_API_KEY")
    server.refuses_keys = wrong == "refused"
    if wrong == "other run":
        server.runs[RUN]["name"] = "zzz"
    if wrong == "no JSON":
        server.runs[RUN]["summaryMetrics"] = "{no"
    code, told = call(str(run_file))
    assert code == 1
    assert why in told
    assert wandb_server.KEY not in told


@pytest.mark.soak
@pytest.mark.parametrize(
    ("raises", "why"),
    [
        ("CommError", "W&B does not show lab/proj/abcd1234: what went wrong"),
        ("UsageError", "W&B does not show lab/proj/abcd1234: what went wrong"),
        ("ValueError", "W&B does not show lab/proj/abcd1234: what went wrong"),
        ("KeyError", "its answer makes no sense to W&B's client (KeyError)"),
    ],
)
def test_what_the_client_raises_is_told(client: Client, run_file: Path, raises: str, why: str) -> None:
    client.raises(raises, "what went wrong")
    code, told = call(str(run_file))
    assert code == 1
    assert why in told


def test_an_answer_about_another_run_is_none(client: Client, run_file: Path) -> None:
    client.shows(id="zzz")
    code, told = call(str(run_file))
    assert code == 1
    assert f"W&B was asked for lab/proj/{RUN} and tells of zzz." in told


ODD = {"step": float("nan"), "_step": -1, "loss": "Infinity"}


def test_odd_values_are_unknown_and_escapes_are_gone(client: Client, run_file: Path) -> None:
    client.shows(state="\x1b[31mrunning\x1b[0m", heartbeatAt="yesterday", summaryMetrics=ODD)
    assert_odd(run_file)


@pytest.mark.soak
def test_the_real_client_gives_odd_values_on(server: Server, run_file: Path) -> None:
    show(server, state="\x1b[31mrunning\x1b[0m")
    server.runs[RUN] |= {"heartbeatAt": "yesterday", "summaryMetrics": json.dumps(ODD)}
    assert_odd(run_file)


def assert_odd(run_file: Path) -> None:
    code, told = call(str(run_file))
    assert code == 0
    assert f"W&B: lab/proj/{RUN} is running, no step, no heartbeat." in told
    assert "\x1b" not in told


@pytest.mark.soak
def test_a_server_that_hangs_costs_bounded_time_and_leaves_no_process(
    server: Server, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_page, "CHILD_S", 6.0)
    server.hangs.set()
    began = time.monotonic()
    code, told = call(str(run_file))
    assert code == 1
    assert "W&B did not answer for lab/proj/abcd1234 within 6 s." in told
    assert time.monotonic() - began < 20
    until(lambda: not [path for path in Path("/proc").glob("[0-9]*/environ") if _names_server(path, server.url)])


def _names_server(path: Path, url: str) -> bool:
    if path.parent.name == str(os.getpid()):
        return False
    with contextlib.suppress(OSError):
        return f"WANDB_BASE_URL={url}".encode() in path.read_bytes()
    return False


@pytest.mark.soak
def test_without_a_project_or_an_id_it_says_what_to_set(server: Server, run_file: Path) -> None:
    run_file.write_text(run_file.read_text().replace('WANDB_PROJECT = "proj", ', ""))
    code, told = call(str(run_file))
    assert code == 2
    assert "WANDB_PROJECT=my-project" in told
    run_file.write_text(run_file.read_text().replace('[wandb]\nid = "abcd1234"\n', ""))
    code, told = call(str(run_file))
    assert code == 1
    assert "has no id in W&B yet" in told


def test_two_words_or_a_stray_dry_run_are_refused(run_file: Path) -> None:
    assert call("look", str(run_file))[0] == 2
    assert call(str(run_file), "--dry-run")[0] == 2


# ---------------------------------------------------------------- what differs


def page(**more: object) -> Page:
    words = {
        "name": "lab/proj/x",
        "state": "running",
        "heartbeat": NOW - 30,
        "step": 50,
        "step_name": "step",
        "url": "",
    }
    return Page(**{**words, **more})  # type: ignore[arg-type]


def seen(*, minutes_a_step: float = 1.0, rolled_back: bool = False, **status: object) -> Seen:
    """A run at step 50."""
    rows = [{"t": NOW - 60 * minutes_a_step * (50 - n), "step": n, "role": "trainer"} for n in range(1, 51)]
    told = {"state": "running", "step": 50, "last_step_at": NOW, "rollbacks": int(rolled_back), **status}
    return Seen("bs4", NOW, status=told, pieces=[Piece("a", 1, rows)])


def test_a_usual_lag_is_named_and_is_no_difference() -> None:
    lines, sentences = compare_page(page(step=45), seen(minutes_a_step=6))
    assert sentences == []
    assert "W&B is 5 steps (30 min) behind. Its page lags: up to 35 min were seen" in lines[-1]
    _, sentences = compare_page(page(step=45), seen(minutes_a_step=60))
    assert sentences == ["W&B is 5 steps (5 h) behind. That is more than its page usually lags (35 min)."]


def test_a_run_that_ended_here_and_goes_on_there() -> None:
    over = Seen("bs4", NOW, ended={"job": None}, newest={"step": 50})
    lines, sentences = compare_page(page(heartbeat=NOW - 3600), over)
    assert "no daemon and no job, step 50" in lines[1]
    assert sentences == [
        (
            "W&B says that the run is running; here it is not. W&B learns late of an end without a farewell, and heard "
            "from it 60 min ago."
        ),
        "W&B has heard nothing from the run for 60 min: it is stalled there.",
    ]


def test_a_stall_in_wandb_alone_is_the_link() -> None:
    _, sentences = compare_page(page(heartbeat=NOW - 700), seen())
    assert sentences == [
        (
            "W&B has heard nothing from the run for 11 min 40 s: it is stalled there. The supervisor sees the run "
            "alive, so its link to W&B is what fails."
        )
    ]


def test_points_above_a_rollback_and_clocks_that_differ() -> None:
    _, sentences = compare_page(page(step=60), seen(rolled_back=True))
    assert sentences == ["W&B has step 60, above step 50 here: W&B keeps points of steps that a rollback left."]
    _, sentences = compare_page(page(heartbeat=NOW + 4000), seen())
    assert sentences == ["W&B's last heartbeat lies 66 min 40 s in the future: one of the two clocks is wrong."]


def test_wandbs_own_counter_is_not_held_against_the_runs_steps() -> None:
    assert compare_page(page(step=9000, step_name="_step"), seen())[1] == []


# ---------------------------------------------------------------- offline runs

LOG = """
import sys, wandb
run = wandb.init(dir=sys.argv[1], mode="offline")
for step in range(int(sys.argv[2]), int(sys.argv[3])):
    run.log({"step": step})
run.finish()
"""


def log_offline(server: Server, folder: Path, *, first: int, last: int) -> None:
    """One attempt, with the variables that the supervisor gives each."""
    given = {"WANDB_RUN_ID": RUN, "WANDB_RESUME": "allow", "WANDB_PROJECT": "proj", "WANDB_ENTITY": "lab"}
    env = {**server.environ(folder), **given}
    subprocess.run([sys.executable, "-c", LOG, str(folder), str(first), str(last)], env=env, check=True, timeout=120)


def history_of(server: Server) -> list[tuple[int, int]]:
    """(line, its step) of all that the client sent, in as many pieces as it was."""
    sent = [files["wandb-history.jsonl"] for _, files in server.streams if "wandb-history.jsonl" in files]
    return [(line, json.loads(text)["step"]) for one in sent for line, text in enumerate(one["content"], one["offset"])]


@pytest.mark.soak
def test_the_folders_of_one_id_are_listed_foretold_and_sent(
    server: Server, run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_offline(server, tmp_path, first=0, last=5)
    code, told = call("sync", str(run_file))
    assert code == 0
    assert "still written to" in told, "its job may not have ended yet"
    assert "There is nothing to send now." in told
    log_offline(server, tmp_path, first=3, last=6)
    for file in tmp_path.glob("wandb/offline-run-*/*.wandb"):
        os.utime(file, (time.time() - 600, time.time() - 600))
    code, told = call("sync", str(run_file), "--dry-run")
    assert code == 0
    assert f"{RUN} has 2 folders. W&B gets them in the order of their start" in told
    assert "Would call:" in told
    assert server.upserts == [], "nothing was sent"
    code, told = call("sync", str(run_file))
    assert code == 0, told
    assert history_of(server) == list(enumerate([0, 1, 2, 3, 4, 3, 4, 5])), "what the sentence said"
    assert {one["name"] for one in server.upserts} == {RUN}
    code, told = call("sync", str(run_file))
    assert code == 0
    assert told.count(" sent ") == 2
    assert "There is nothing to send now." in told


@pytest.mark.soak
def test_a_server_that_refuses_leaves_the_folders_and_fails(server: Server, run_file: Path, tmp_path: Path) -> None:
    log_offline(server, tmp_path, first=0, last=2)
    for file in tmp_path.glob("wandb/offline-run-*/*.wandb"):
        os.utime(file, (time.time() - 600, time.time() - 600))
    server.refuses_keys = True
    code, told = call("sync", str(run_file))
    assert code == 1
    assert "1 of 1 folders are not sent" in told
    assert "Would call:" in call("sync", str(run_file), "--dry-run")[1]


def test_an_older_client_is_said_to_replace() -> None:
    both = [
        OfflineRun(Path(f"/w/{n}"), RUN, f"2026-11-24 0{n}:00:00", 100, is_sent=False, is_live=False) for n in (1, 2)
    ]
    (_, new), (_, old), (_, unknown) = (wandb_sync.foretell(both, both, v) for v in ((0, 31, 0), (0, 22, 3), ()))
    assert "each below the one before" in new
    assert "a later folder replaces the lines of an earlier one" in old
    assert old == unknown


def test_no_folder_is_no_error(server: Server, run_file: Path) -> None:
    assert call("sync", str(run_file)) == (0, f"No offline folder of W&B run {RUN} is on this machine.")


@pytest.mark.parametrize("commit", ["0f236d322", "625e05fa6", "559b44772"])
def test_prime_rl_that_logs_offline_keeps_the_id(tmp_path: Path, commit: str) -> None:
    request = StartRequest("bs4", 2, 85, {}, "w4nd8", tmp_path)
    online = job_of(tmp_path, commit, config=f"{CONFIG}[wandb]\nproject = 'p'\n")
    assert "WANDB_RUN_ID" not in online.components(request)[0].env, "shared mode has its own variable"
    offline = job_of(tmp_path, commit, config=CONFIG.replace("[trainer]", "[trainer.wandb]\noffline = true"))
    by_variable = job_of(tmp_path, commit, config=f"{CONFIG}[wandb]\n", job={"env": {"WANDB_MODE": "offline"}})
    for job in (offline, by_variable):
        assert job.components(request)[0].env["WANDB_RUN_ID"] == "w4nd8"
        assert any(one.what == "WANDB_RUN_ID=w4nd8" for one in job.changes(request))
