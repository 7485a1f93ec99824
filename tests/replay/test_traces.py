"""Traces by hand and by strangers: what is accepted, what is said of the rest, and that the page is true."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.core.decide import decide
from supervisor.core.proof import APART_S
from supervisor.journal import trace
from supervisor.journal.journal import Journal
from supervisor.journal.replay_trace import replay

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "replay.md").read_text()
HEADER = {"format": "rl-supervisor-trace", "version": 1, "settings": {"max_steps": 100}}


def write(folder: Path, *lines: object, **header: object) -> Path:
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in ({**HEADER, **header}, *lines)))
    return path


def seen(t: float, **fact: object) -> dict[str, object]:
    kind = fact.pop("kind")
    return {"t": t, "fact": {"@": kind, **fact}}


def test_every_kind_of_fact_is_on_the_page() -> None:
    for name in trace.KINDS:
        assert f"**`{name}`**" in PAGE


def test_every_key_of_the_header_is_explained() -> None:
    table = PAGE.partition("| key of the header |")[2].partition("\n\n")[0]
    keys = [key for row in table.splitlines()[2:] for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert set(keys) == set(trace.HEADER)


def test_the_example_of_the_page_is_a_silent_death_and_a_restart_at_the_saved_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = PAGE.partition("### Traces by hand")[2].partition("```json\n")[2].partition("```")[0]
    path = tmp_path / "example.jsonl"
    path.write_text(example)
    assert main(["replay", str(path)]) == 0
    out = capsys.readouterr().out
    assert "vLLM died silently: its process 11 has been gone for 2 s while the launcher and the trainer live on" in out
    assert "Start(attempt=2, step=1" in out
    assert "counterfactual" not in out


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(gzip.compress(write(tmp_path, seen(1, kind="Tick")).read_bytes()))
    assert len(trace.load(path).lines) == 1


def test_facts_and_fields_of_another_version_are_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path,
        seen(1, kind="ThermalLook", celsius=90),
        seen(2, kind="ThermalLook", celsius=91),
        seen(3, kind="DiskLook", path="/ckpt", total_bytes=100, free_bytes=50, inodes=7),
        colour="blue",
    )
    assert main(["replay", str(path)]) == 0
    out = capsys.readouterr().out
    assert "ThermalLook (2)" in out
    assert "DiskLook.inodes is not known" in out
    assert "colour means nothing" in out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not json", "line 2 is no JSON"),
        ("[1]", "line 2 is no JSON object"),
        ('{"t": 1}', "none of"),
        ('{"fact": {"@": "Tick"}}', 'lacks "t"'),
        ('{"t": "soon", "fact": {"@": "Tick"}}', "a number of seconds, not 'soon'"),
        ('{"t": 1e999, "fact": {"@": "Tick"}}', "a number of seconds"),
        ('{"t": 1, "fact": {"@": "StepDone", "role": "trainer"}}', "StepDone.step is missing"),
        ('{"t": 1, "fact": {"@": "StepDone", "role": "cook", "step": 1}}', "StepDone.role is not right"),
        ('{"t": 1, "fact": {"@": "StepDone", "role": "trainer", "step": "many"}}', "StepDone.step is not right"),
        ('{"t": 1, "fact": {"@": "GpuLook", "gpus": [{"@": "Gpu", "uuid": "x"}]}}', "GpuLook.gpus.0"),
        ('{"t": 1, "fact": {"@": "State"}}', "State is no fact"),
        ('{"t": 1, "fact": "Tick"}', 'its name under "@"'),
        ('{"attempt": 1, "after": 3, "fact": {"@": "Tick"}}', '"effects": "answered"'),
        ('{"decision": []}', "follows its observation"),
        ('{"state": {"@": "Nonsense"}}', "written by another version"),
    ],
)
def test_what_is_wrong_with_a_line_is_a_sentence_with_its_number(
    tmp_path: Path, line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(HEADER) + "\n" + line + "\n")
    assert main(["replay", str(path)]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert "line 2" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"hello\n", "its first line has to be"),
        (b'{"format": "other"}\n', "this is no trace"),
        (b'{"format": "rl-supervisor-trace", "version": 9}\n', "version 9"),
        (b'{"format": "rl-supervisor-trace", "version": 1, "ticks": "often"}\n', "'ticks' is one of recorded, named"),
        (b'{"format": "rl-supervisor-trace", "version": 1, "settings": {"hang_s": "long"}}\n', "Settings.hang"),
        (b'{"format": "rl-supervisor-trace", "version": 1}\n{"t": 1, "fact": {"@": "Tick"}}\n', "begins nowhere"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"\x1f\x8bnot gzip", "cannot be read"),
        (b"SQLite format 3\x00 and then nothing", "cannot be read as a journal"),
    ],
)
def test_a_file_that_is_no_trace_is_a_sentence(
    tmp_path: Path, content: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none.jsonl")]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_named_ticks_come_when_the_core_wants_them_and_recorded_ones_alone_otherwise(tmp_path: Path) -> None:
    lines = [
        seen(1, kind="LocalSteps", settled=True),
        seen(1, kind="StoreSteps"),
        seen(2, kind="AttemptStarted", attempt=1, step=None, pid=7),
        seen(3, kind="ProcessSeen", attempt=1, role="trainer", pid=8, start_ticks=1),
        seen(500, kind="ProcessGone", attempt=1, role="trainer", pid=8, start_ticks=1),
        seen(600, kind="DiskLook", path="/ckpt", total_bytes=100, free_bytes=50),
    ]
    when = {}
    for ticks in ("recorded", "named"):
        turns = list(replay(trace.load(write(tmp_path, *lines, ticks=ticks))))
        when[ticks] = next(t.observation.t for t in turns if any(isinstance(x, a.Stop) for x in t.actions))
    assert when["recorded"] == 600
    assert 0 <= when["named"] - 500 - APART_S < 1


def test_what_an_attempt_would_have_shown_is_not_seen_after_its_stop(tmp_path: Path) -> None:
    line = {"attempt": 1, "fact": {"@": "StepDone", "role": "trainer", "step": 1}}
    path = write(
        tmp_path,
        {**line, "after": 100},
        {"t": 200, "fact": {"@": "Command", "verb": "stop", "who": "kim"}},
        {**line, "after": 300, "fact": {"@": "StepDone", "role": "trainer", "step": 2}},
        ticks="named",
        effects="answered",
    )
    steps = [t.observation.fact for t in replay(trace.load(path)) if isinstance(t.observation.fact, f.StepDone)]
    assert steps == [f.StepDone("trainer", 1)]


def test_a_new_pod_begins_with_an_empty_journal(tmp_path: Path) -> None:
    started = f.DaemonStarted("x", f.Settings("mine"))
    path = write(
        tmp_path,
        {"t": 1, "fact": encode(started)},
        seen(2, kind="AttemptStarted", attempt=0, step=None, pid=1),
        seen(3, kind="Command", verb="stop", who="kim"),
        {"state": None},
        {"t": 9, "fact": encode(started)},
    )
    modes = [turn.mode for turn in replay(trace.load(path))]
    assert modes[-2:] == ["stopped", "surveying"], "what a person said to the pod before is not known here"


def test_a_trace_on_standard_output_holds_observations_and_decisions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Journal(tmp_path)
    state = kept.rebuild()[0]
    first = f.Observation(5.0, 1.7e9, f.DaemonStarted("x", f.Settings("mine")), "daemon")
    decision = decide(state, first)
    kept.record(first, state, decision.state, decision.actions)
    assert main(["trace", str(kept.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[0])["decisions"] is True
    assert json.loads(lines[1])["source"] == "daemon"
    assert [action["@"] for action in json.loads(lines[2])["decision"]] == [type(x).__name__ for x in decision.actions]
    assert main(["trace", str(kept.path), "-o", str(tmp_path / "none" / "x.jsonl")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_an_empty_journal_and_a_run_that_never_began_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(tmp_path).close()
    assert main(["replay", str(tmp_path / "journal.db")]) == 1
    assert "nothing that can be replayed yet" in capsys.readouterr().err
    run = tmp_path / "run.toml"
    run.write_text(f'[run]\nid = "x"\nstate_dir = "{tmp_path}/none"\n[job]\ndir = "/opt/x"\nconfig = "rl.toml"\n')
    assert main(["trace", str(run)]) == 1
    assert "has no journal yet" in capsys.readouterr().err


def test_a_journal_that_cannot_be_written_to_is_read(tmp_path: Path) -> None:
    kept = Journal(tmp_path)
    state = kept.rebuild()[0]
    first = f.Observation(5.0, 1.7e9, f.DaemonStarted("x", f.Settings("mine")), "daemon")
    kept.record(first, state, decide(state, first).state, decide(state, first).actions)
    kept.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(trace.load(kept.path).lines) == 1
    assert kept.path.read_bytes() == before["journal.db"], "nothing was written"


def written(tmp_path: Path, head: dict[str, object], *facts: tuple[float, dict[str, object]]) -> Path:
    """A trace as a person writes it: sensor facts alone."""
    lines = [
        json.dumps({"format": "rl-supervisor-trace", "version": 1, "ticks": "named", "effects": "answered", **head})
    ]
    lines += [json.dumps({"t": t, "fact": fact}) for t, fact in facts]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


STEP_20 = {"@": "LocalStep", "step": 20, "state": "complete", "reason": "", "size_bytes": 1}


def test_the_first_survey_knows_what_the_trace_lists_at_its_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = written(tmp_path, {"settings": {"run_id": "own"}}, (0.0, {"@": "LocalSteps", "steps": [STEP_20]}))
    assert main(["replay", str(own)]) == 0
    out = capsys.readouterr().out
    assert "Step 20 is the last good step" in out
    assert "fresh start" not in out


def test_a_run_that_is_only_observed_is_answered_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = {"@": "ProcessSeen", "attempt": 1, "role": "trainer", "pid": 7, "start_ticks": 1}
    own = written(
        tmp_path,
        {"settings": {"run_id": "own", "mode": "observe"}},
        (1.0, {"@": "AttemptAdopted", "attempt": 1, "step": None, "pid": 5}),
        (2.0, seen),
        (3.0, {"@": "StepDone", "role": "trainer", "step": 1}),
        (4.0, {**seen, "@": "ProcessGone"}),
        (30.0, {"@": "Tick"}),
    )
    assert main(["replay", str(own)]) == 0
    out = capsys.readouterr().out
    assert "Would have restarted the job at the last good step: The trainer died" in out
    assert "gave-up" not in out
    assert "is stopped after" not in out
