"""`rl-supervisor simulate` as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.cli.main import main


def test_the_report_names_the_ratio_the_ledger_and_the_money(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--hours", "5", "--seed", "4", "--price", "20"]) == 0
    text = capsys.readouterr().out
    assert "ETTR " in text
    assert "100.000 %" in text
    assert "False restarts: " in text
    assert "100.00 dollars" in text


@pytest.mark.soak
def test_json_is_the_same_twice(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        assert main(["simulate", "--hours", "20", "--json"]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    report = json.loads(told[0])
    assert sum(report["ledger_s"].values()) == pytest.approx(20 * 3600, abs=0.1)


def test_own_faults_are_struck_and_their_story_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "faults.toml"
    file.write_text('[[fault]]\nat = "1h"\nkind = "engine-exit-0"\n')
    trace = tmp_path / "trace.jsonl"
    assert main(["simulate", "--hours", "2", "--faults", str(file), "--story", "--trace", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "vLLM died silently" in text
    assert "Faults that struck: engine-exit-0 1." in text
    assert json.loads(trace.read_text().splitlines()[0])["format"] == "rl-supervisor-trace"


def test_an_own_fault_after_the_end_of_the_run_is_not_left_unsaid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "late.toml"
    file.write_text('[[fault]]\nat = "20h"\nkind = "engine-hang"\n')
    assert main(["simulate", "--hours", "2", "--faults", str(file)]) == 0
    assert "Not struck: engine-hang at 20:00:00.0, since the run was over by then." in capsys.readouterr().out


def test_faults_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list-faults"]) == 0
    assert "nccl-hang: a collective of the trainer never ends" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "luck"], "There is no policy 'luck'; known are core, "),
        (["--scenario", "x"], "There is no scenario 'x'"),
        (["--hours", "0"], "--hours takes"),
        (["--hours", "nan"], "--hours takes"),
        (["--seeds", "3"], "--seeds is for --compare and --sensitivity"),
        (["--story", "--json"], "leave one of them out"),
        (["--compare", "--policy", "systemd"], "--policy is for one run"),
        (["--set", "x=1"], "There is nothing called x"),
        (["--faults", "/nowhere/f.toml"], "cannot be read"),
        (["--trace", "/nowhere/t.jsonl", "--hours", "1"], "cannot be written"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 1
    assert says in capsys.readouterr().err
