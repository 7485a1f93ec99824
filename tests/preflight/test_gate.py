"""Which errors stop a start, and what becomes of those that a person overrules."""

from __future__ import annotations

import tomllib
from pathlib import Path

from supervisor.config.settings import RunFile
from supervisor.config.toml_positions import key_positions
from supervisor.preflight import gate
from supervisor.preflight.examine import in_order
from supervisor.preflight.finding import Finding, Where
from supervisor.preflight.gate import (
    UNYIELDING,
    add_standing_refusals,
    beaten,
    find_stopping_errors,
    lower_passing_errors,
    may_be_overruled,
    overrule_mistakes,
)
from supervisor.preflight.subject import Subject
from supervisor.primerl.configs import Settings

SLURM = Where("rl.toml", 3, "slurm")
REFUSED = Finding("refused", "It has [slurm].", SLURM)
BETTER = Finding("slurm", "[slurm] hands the run to a cluster.", SLURM)
BATCH = Finding("batch-of-whole-groups", "7 is odd.", Where("rl.toml", 9, "orchestrator.batch_size"))
NO_GPU = Finding("no-gpu", "There is none.")


def subject(*found: Finding, overrule: list[str] | None = None) -> Subject:
    text = '[run]\nid = "x"\n[check]\noverrule = []\n'
    job = {"kind": "command", "plain": {"start": ["a"], "resume": ["b"]}}
    run = RunFile.model_validate({"run": {"id": "x"}, "job": job, "check": {"overrule": overrule or []}})
    return Subject(
        "command",
        Settings({}, ""),
        run_file=run,
        run_path=Path("run.toml"),
        run_positions=key_positions(text),
        found=found,
    )


def test_errors_stop_and_warnings_and_overruled_errors_do_not() -> None:
    assert find_stopping_errors([BATCH, NO_GPU], ()) == [BATCH]
    assert find_stopping_errors([BATCH, NO_GPU], {"batch-of-whole-groups"}) == []
    assert not beaten(NO_GPU, {"no-gpu"}), "a warning need not be overruled"


def test_what_passes_by_itself_is_no_error_of_a_start() -> None:
    port, gpu = Finding("port-in-use", "8000."), Finding("gpu-busy", "70 GiB.", severity="error")
    assert find_stopping_errors([port, gpu, BATCH], ()) == [port, gpu, BATCH]
    assert [one.weight for one in lower_passing_errors([port, gpu, BATCH])] == ["warning", "warning", "error"]


def test_what_cannot_be_started_cannot_be_overruled() -> None:
    for name in UNYIELDING:
        assert find_stopping_errors([Finding(name, "x")], {name})


def test_a_file_that_cannot_be_read_is_never_called_one_that_can_be_started() -> None:
    path = Path(gate.__file__).parent / "rules" / "text.toml"
    assert {rule["id"] for rule in tomllib.loads(path.read_text())["rule"]} == gate.NO_TOML
    assert not beaten(Finding("unquoted-text", "x."), {"unquoted-text"})


def test_a_refusal_gives_way_to_what_says_more_at_its_place_and_comes_back_when_that_is_overruled() -> None:
    told = subject(REFUSED)
    found = in_order([REFUSED, BETTER, BATCH])
    assert found == [BETTER, BATCH]
    assert add_standing_refusals(found, told, ()) == found
    assert add_standing_refusals(found, told, {"slurm"}) == [BETTER, REFUSED, BATCH]
    assert find_stopping_errors(add_standing_refusals(found, told, {"slurm"}), {"slurm"}) == [REFUSED, BATCH]
    alone = in_order([REFUSED, BATCH])
    assert add_standing_refusals(alone, told, ()) == alone == [REFUSED, BATCH]


def test_a_refusal_without_a_place_gives_way_to_nothing() -> None:
    nowhere = Finding("refused", "It cannot be.")
    assert in_order([nowhere, Finding("gpu-missing", "GPU 3 is not there.")])[0] == nowhere


def test_a_run_that_is_refused_whatever_is_overruled_does_not_yield() -> None:
    assert may_be_overruled([BATCH, NO_GPU], subject(), ())
    assert not may_be_overruled([BETTER], subject(REFUSED), ())
    assert not may_be_overruled([BETTER, BATCH], subject(REFUSED), {"slurm"})


def test_an_id_that_is_none_or_helps_nothing_is_told_where_it_stands() -> None:
    assert overrule_mistakes(subject(overrule=["batch-of-whole-groups"])) == []
    found = overrule_mistakes(subject(overrule=["batch-of-whole-group", "zzz", "refused"]))
    assert {str(one.where) for one in found} == {"run.toml:4 check.overrule"}
    near = "; did you mean batch-of-whole-groups?"
    assert [one.sentence for one in found] == [
        f"[check] overrule names batch-of-whole-group, and there is no such finding{near}",
        "[check] overrule names zzz, and there is no such finding.",
        "[check] overrule names refused, and overruling that does not help: such a run cannot be started.",
    ]
