"""``rl-supervisor report``: what people show to others, beside a daemon, after it, and on a machine of its own."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.record_files import put_record
from supervisor.cli import render
from supervisor.cli import report as page
from supervisor.cli.main import main
from supervisor.core import facts as f
from supervisor.core import goodput as g
from supervisor.core import time_kinds as k
from supervisor.core.decide import decide
from supervisor.core.goodput import Ledger, Outage
from supervisor.core.records import Learned
from supervisor.effects.run_records import Record, to_bytes
from supervisor.journal.journal import Journal
from supervisor.process.attempts import attempt_dir, take_snapshot
from supervisor.storage import open_store
from supervisor.views import run_report, status
from tests.core.world import SETTINGS, World

RUN_FILE = """\
[run]
id = "bs4"
state_dir = "{here}/state"
[job]
kind = "command"
dir = "{here}"
checkpoint_interval = 5
[job.plain]
start = ["python", "train.py"]
resume = ["python", "train.py", "--resume", "{{step}}"]
[store]
url = "file://{here}/store"
[report]
dollars_per_hour = 36
"""
OTHER, OWN = "00000000000000aa", "00000000000000bb"


class Kept(World):
    """A world whose journal is written as the daemon writes it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(replace(SETTINGS, first_step_at=1, **settings))
        self.journal = Journal(folder)

    def see(self, fact: f.Fact) -> None:
        before = self.state
        observation = f.Observation(self.t, 1.7e9 + self.t, fact)
        decision = decide(before, observation)
        self.state = decision.state
        self.journal.record(observation, before, self.state, decision.actions)
        for action in decision.actions:
            self._carry_out(action)

    def boot(self, adopted: int | None = None) -> None:
        self.see(f.DaemonStarted("test", self.settings, "boot", adopted, journal=OWN))


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "bs4.toml"
    path.write_text(RUN_FILE.format(here=tmp_path))
    (tmp_path / "store").mkdir()
    return path


def a_bad_night(folder: Path) -> Kept:
    """Seven steps, saves among them, a vLLM that dies, and the run goes on from step 5."""
    world = Kept(folder / "state")
    world.boot()
    world.job_up()
    for number in range(1, 8):
        world.step(number)
        if number == 5:
            world.see(f.PhaseSeen("trainer", "checkpoint", number))
            world.t += 40
            world.see(f.PhaseSeen("trainer", "rollouts"))
            world.checkpoint(number)
    world.gpus(inference=0)
    world.engine_process_dies()
    world.after(4)
    world.job_up()
    for number in range(6, 12):
        world.step(number)
    return world


def another_pod(until: float) -> Ledger:
    return Ledger(
        {k.PRODUCTIVE: 3000.0, k.STARTUP: 600.0},
        began_wall=until - 3600,
        wall=until,
        last=k.PRODUCTIVE,
        floor=g.FROM_SCRATCH,
        steps=15,
        timed=14,
        timed_s=3000.0,
        incidents=1,
        outages=(Outage(1, "engine-hang", until - 2000, 3, 61.0, 9.0, 0.0, 240.0, 1),),
    )


def leave(run_file: Path, journal: str, ledger: Ledger) -> None:
    store = open_store((run_file.parent / "store").as_uri(), None, {})
    put_record(store, "bs4", journal, to_bytes(Record(journal, Learned(), ledger)))


class Answer:
    """What a command printed, and how it ended."""

    def __init__(self, words: list[str]) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.returncode = main(words)
        self.stdout, self.stderr = out.getvalue(), err.getvalue()


def asked(run_file: Path, *words: str) -> Answer:
    return Answer(["report", str(run_file), *words])


# ---------------------------------------------------------------- where it works


def test_a_night_is_told_with_its_incident_its_costs_and_advice(run_file: Path, tmp_path: Path) -> None:
    world = a_bad_night(tmp_path)
    world.journal.close()
    answer = asked(run_file)
    assert answer.returncode == 0, answer.stderr
    text = re.sub(r"\s+", " ", answer.stdout)
    assert re.search(r"Run bs4: 67\.\d % of 44 min \d+ s was effective training \(ETTR\), ", text)
    assert "11 steps stayed, 2 were lost and had to be done again. 1 incident, 1 restart." in text
    assert "steps that were lost or cut off 6 min 4" in text
    assert "saving checkpoints 40 s" in text
    assert "vLLM died silently: its process 111 has been gone for " in text
    assert re.search(r"\(after step 7\) \[engine-gone\] noticed in \d s, ended in 3 s, first step", text)
    assert "2 steps lost;" in text
    assert "At $36.00 an hour that is $2" in text
    assert re.search(r"What the supervisor saved: about 3 h 59 min of pod time, \$143.9\d, in the 1 incident", text)
    assert "until a person looks, every 8 hours day and night" in text
    assert "Estimated" in text
    assert "Checkpoints come every 5 steps (16 min 40 s)" in text
    assert "something fails about every" in text
    assert max(map(len, answer.stdout.splitlines())) <= render.WIDTH


def test_beside_a_living_daemon_the_report_is_of_this_moment_and_disturbs_nothing(
    run_file: Path, tmp_path: Path
) -> None:
    world = a_bad_night(tmp_path)  # its journal is still open
    answer = asked(run_file, "--json")
    report = json.loads(answer.stdout)
    assert report["steps_kept"] == 11
    world.step(12)
    assert json.loads(asked(run_file, "--json").stdout)["steps_kept"] == 12
    assert sum(report["categories"].values()) == pytest.approx(report["seconds"])
    assert report["pods"][0]["journal"] == OWN


def test_markdown_ends_with_what_people_keep_in_a_log_of_their_runs(run_file: Path, tmp_path: Path) -> None:
    """The reward of the first and the last ten steps; what was done again counts as it went then. By hand: 2 and 24.5.

    Attempt 1 did steps 1 to 22 with rewards 1, 1, ... (a NaN, and the steps 3 and 4 as one row of 0 to 6), attempt 2
    went on from 19 with rewards as high as the step.
    """
    a_bad_night(tmp_path).journal.close()
    state = tmp_path / "state"
    (state / "series").mkdir()
    rows: list[list[dict[str, Any]]] = [[], []]
    for step in range(1, 23):
        rows[0].append({"t": 1.7e9 + step, "role": "orchestrator", "step": step, "reward": 1.0})
    rows[0][2:4] = [{"t": 1.7e9, "role": "orchestrator", "step": [3, 4], "reward": [0.0, 22.0]}]
    rows[0].append({"t": 1.7e9, "role": "orchestrator", "step": 99, "reward": float("nan")})
    rows[1] = [{"t": 1.8e9, "role": "orchestrator", "step": step, "reward": float(step)} for step in range(20, 30)]
    config, told = tmp_path / "rl.toml", 'max_steps = {}\n[[env]]\nid = "{}"\napi_key = "{}"\n'
    for number, texts in enumerate(((1000, "bs4", "k-1234567890"), (500, "bs4", "k-0987654321"), (500, "bs4", "")), 1):
        config.write_text(told.format(*texts))
        take_snapshot(attempt_dir(state, number), [config], attempt_dir(state, 2) if number == 3 else None)
        lines = "".join(f"{json.dumps(row)}\n" for row in rows[number - 1]) if number < 3 else ""
        (state / "series" / f"{number:04d}.jsonl").write_text(lines)
    place = '[wandb]\nid = "abc123"\n[job.env]\nWANDB_PROJECT = "soup"\nWANDB_ENTITY = "team"\n'
    run_file.write_text(run_file.read_text() + place)
    text = asked(run_file, "--md").stdout.replace("\\", "").partition("For the log of runs")[2]
    assert [line for line in text.split("\n") if line] == [
        "- W&B: https://wandb.ai/team/soup/runs/abc123",
        "- Baseline reward: 2 (mean of steps 1 to 11)",
        "- Final reward: 24.5 (mean of steps 20 to 29)",
        "- Improvement: +22.5",
        '- Configuration, from attempt 2 on: max_steps 1000 → 500; env.0.api_key "***" → "***"',
    ]


def test_on_a_machine_that_has_only_the_store(run_file: Path) -> None:
    leave(run_file, OTHER, another_pod(1.79e9))
    answer = asked(run_file, "--price", "10", "--person-every", "4")
    assert answer.returncode == 0, answer.stderr
    text = re.sub(r"\s+", " ", answer.stdout)
    assert "Run bs4: 83.3 % of 60 min was effective training" in text
    assert "vLLM answered and made no progress (after step 3) [engine-hang] noticed in 61 s, ended in 9 s" in text
    assert "about 118 min 50 s of pod time, $19.81" in text
    assert "so a dead job stands for 2 h on average" in text
    assert not (run_file.parent / "state").exists(), "a report writes nothing"


def test_two_pods_add_up_with_the_gap_between_them(run_file: Path, tmp_path: Path) -> None:
    world = a_bad_night(tmp_path)
    world.journal.close()
    began = 1.7e9 + 1000
    leave(run_file, OTHER, replace(another_pod(began - 600), spans=((1, 15, 3000.0),)))
    report = json.loads(asked(run_file, "--json").stdout)
    assert [pod["journal"] for pod in report["pods"]] == [OTHER, OWN]
    assert report["categories"][k.INFRASTRUCTURE] == pytest.approx(600)
    assert report["categories"][k.WASTED] >= 3000, "the second pod began from scratch"
    assert report["seconds"] == pytest.approx(report["until"] - report["began"])
    text = asked(run_file).stdout
    rows = [line for line in text.splitlines() if line.startswith("  ") and line.rstrip().endswith("%")]
    for column in (0, 1, 2):
        shares = [[float(one) for one in re.findall(r"([\d.]+) %", line)] for line in rows]
        full = [row for row in shares if len(row) == 3]
        assert full[-1][column] == 100.0
    assert "pod 1 #1" in text and "pod 2 #1" in text


def test_a_pod_that_came_back_is_told_with_the_steps_that_it_did_since(run_file: Path, tmp_path: Path) -> None:
    world = a_bad_night(tmp_path)
    first = world.state.books.ledger.began_wall
    assert first is not None
    back = world.state.books.ledger.starts[-1][0]
    # The other pod had the run from step 4 until this one came back at 5, and had got to 9.
    between = replace(another_pod(back - 1), began_wall=back - 3000, floor=4, starts=((back - 3000, 4),), steps=5)
    between = replace(between, seconds={k.PRODUCTIVE: 2999.0}, spans=((5, 9, 2999.0),), began_wall=first + 1)
    between = replace(between, starts=((back - 10, 4),))
    world.journal.close()
    leave(run_file, OTHER, between)
    report = json.loads(asked(run_file, "--json").stdout)
    by_pod = {pod["journal"]: pod["steps_kept"] for pod in report["pods"]}
    assert by_pod == {OWN: 4 + 6, OTHER: 1}
    assert report["steps_kept"] == 11
    assert sum(report["categories"].values()) == pytest.approx(report["seconds"])


def test_own_record_in_the_store_does_not_count_twice(run_file: Path, tmp_path: Path) -> None:
    world = a_bad_night(tmp_path)
    leave(run_file, OWN, another_pod(1.7e9 + 1500))
    report = json.loads(asked(run_file, "--json").stdout)
    assert len(report["pods"]) == 1
    assert report["steps_kept"] == 11
    world.journal.close()


def test_a_store_that_is_away_is_a_note_and_not_the_end_of_the_report(run_file: Path, tmp_path: Path) -> None:
    a_bad_night(tmp_path).journal.close()
    run_file.write_text(run_file.read_text().replace("/store", "/gone/store"))
    answer = asked(run_file)
    assert answer.returncode == 0
    assert "Note: The store could not be asked" in answer.stdout


def test_a_run_of_which_nothing_is_known_is_a_sentence(run_file: Path, tmp_path: Path) -> None:
    answer = asked(run_file)
    assert answer.returncode == 1
    expected = f"Nothing is known of run bs4: neither in {tmp_path}/state/journal.db nor in "
    assert expected in re.sub(r"\s+", " ", answer.stderr)
    assert "Traceback" not in answer.stderr


def test_a_damaged_journal_is_told_and_the_store_speaks(run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "journal.db").write_bytes(b"no database" * 1000)
    leave(run_file, OTHER, another_pod(1.79e9))
    answer = asked(run_file)
    assert answer.returncode == 0
    assert "cannot be read and is left out" in re.sub(r"\s+", " ", answer.stdout)


def test_an_incident_that_is_still_open_is_in_the_report(run_file: Path, tmp_path: Path) -> None:
    world = Kept(tmp_path / "state")
    world.boot()
    world.job_up()
    world.step(1)
    world.step(2)
    world.engine_process_dies()
    world.after(4)
    report = json.loads(asked(run_file, "--json").stdout)
    (one,) = report["incidents"]
    assert one["open"] and not one["recovered"] and one["sentence"].startswith("vLLM died")
    assert report["saved"]["incidents"] == 0
    assert "so it saved nothing yet" in asked(run_file).stdout
    world.journal.close()


# ---------------------------------------------------------------- figures


def test_shares_add_up_to_a_hundred_to_the_last_tenth() -> None:
    for parts in ([1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [999, 0.4, 0.4, 0.2], [5]):
        shares = run_report.percentages({str(number): float(part) for number, part in enumerate(parts)})
        assert round(sum(float(share.removesuffix(" %")) for share in shares.values()), 6) == 100.0
    assert run_report.percentages({}) == {}


def test_what_was_saved_is_only_what_came_back_by_itself() -> None:
    good = Outage(1, "engine-gone", 1.79e9, 7, 3.0, 4.0, 3.0, 300.0)
    bad = replace(good, number=2, recovered=False)
    ledger = replace(another_pod(1.79e9 + 9000), outages=(good, bad))
    report = run_report.report(run_report.Found("bs4", "", {OTHER: ledger}), price=2.0, person_every_h=6)
    assert report["saved"]["incidents"] == 1
    assert report["saved"]["seconds"] == 3 * 3600 - 10
    assert report["saved"]["dollars"] == pytest.approx(2 * (3 * 3600 - 10) / 3600)
    assert report["saved"]["baseline"] == "until a person looks, every 6 hours day and night"


def test_a_person_who_looks_every_minute_would_have_been_as_good(run_file: Path) -> None:
    leave(run_file, OTHER, another_pod(1.79e9))
    assert "saved nothing" in asked(run_file, "--person-every", "0.01").stdout


def test_control_characters_from_a_store_do_not_reach_the_terminal() -> None:
    found = run_report.Found("bs4", OTHER, {OTHER: another_pod(1.79e9)}, {1: "x\x1b[2Jy"})
    assert "\x1b" not in "\n".join(page.text(run_report.report(found)))


# ---------------------------------------------------------------- the status line


def test_status_says_in_a_line_how_much_of_the_time_was_training(tmp_path: Path) -> None:
    world = a_bad_night(tmp_path)
    world.see(f.StoreRecords(Learned(), {OTHER: another_pod(1.7e9 + 400)}))
    told = status.status(world.state)
    json.dumps(told["goodput"])
    lines = render.status_block({**told, "store": "", "job": ""})
    (line,) = [line for line in lines if line.strip().startswith("time ")]
    found = re.search(r"effective training time (\d\d\.\d) % over 114 min \d+ s \(2 pods\); lost most to (.*)", line)
    assert found, line
    assert found[2] == "no pod: lost, replaced or set up" or found[2] in k.WORDS.values()
    world.journal.close()


def test_status_of_a_run_that_has_not_begun_has_no_such_line() -> None:
    assert status.goodput(World().state) is None
