"""Every mistake of the corpus is found at its place, sound ones are left alone, and every text is fit to read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from supervisor import preflight
from supervisor.cli.check import check
from supervisor.preflight import rules
from supervisor.preflight.finding import SEVERITIES
from tests.preflight.harness import Case, cases, complaints, found, shown

STORE = "store-unusable"  # found by asking the store alone
PLACE = "world-size-changed"  # found for a place of fleet.toml alone: tests/fleet/test_place_check.py
RULES = Path(preflight.__file__).parent / "rules"
# Rules of these files are of what other programs or whole checkpoints say, which no file of the corpus can hold: a test
# beside this one speaks of each by its id.
ELSEWHERE = {
    "dry_run": "test_dry_run.py",
    "environments": "test_environments.py",
    "gather": "test_gather.py",
    "online": "test_online.py",
    "resume": "test_resume.py",
}


@pytest.mark.parametrize("case", cases().values(), ids=cases().keys())
def test_the_case_gives_what_it_expects_and_it_can_be_read_at_three_in_the_morning(case: Case, tmp_path: Path) -> None:
    findings = found(case, tmp_path)
    wrong = complaints(case, findings, tmp_path)
    assert not wrong, "\n".join(["", case.about, *wrong, "", "All that was found:", shown(findings)])
    for one in findings:
        told = one.as_json()
        for part in ("sentence", "remedy", "why"):
            text = str(told[part])
            assert text.endswith((".", "?")) or re.match(r"Write [\w ]+: ", text), (one.id, text)
            assert "\n" not in text, (one.id, text)
            ours = re.sub(r"`[^`]*`|\"[^\"]*\"|^Write [\w ]+: .*", "", text)  # without what a person wrote
            assert not re.search(r"\b(None|True|False)\b|<[\w.]+ object|Traceback|dataclass|MISSING", ours), (
                one.id,
                text,
            )
        assert told["source"], one.id
        assert told["severity"] in SEVERITIES
        assert json.loads(json.dumps(told)) == told
        for edit in one.edits:
            assert edit.file.is_file(), one.id
            assert 1 <= edit.first <= edit.last + 1, one.id


def test_a_store_without_its_key_is_an_error_once_it_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.toml"
    job = 'kind = "command"\n[job.plain]\nstart = ["train"]\nresume = ["train", "{step}"]\n'
    run.write_text(f'[run]\nid = "x"\nstate_dir = "{tmp_path}"\n[job]\n{job}[store]\nurl = "b2://some-bucket"\n')
    assert check(run, online=True, as_json=True, environ={}) != 0
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["id"] == STORE]
    assert [(one["severity"], one["line"], one["key"]) for one in found] == [("error", 10, "store.url")]
    assert "B2_APPLICATION_KEY_ID is not set" in found[0]["sentence"]


def test_every_rule_has_a_mistake_that_shows_it() -> None:
    shown_by = {one.id for case in cases().values() for one in case.expect}
    assert sorted(set(rules()) - shown_by - _elsewhere() - {STORE, PLACE}) == []


def _elsewhere() -> set[str]:
    found = set()
    for name, test in ELSEWHERE.items():
        path = RULES / f"{name}.toml"
        if not path.exists():
            continue
        text = (Path(__file__).parent / test).read_text(encoding="utf-8")
        found |= {one for one in re.findall(r'^id = "(.+)"$', path.read_text(encoding="utf-8"), re.M) if one in text}
    return found


def test_the_corpus_names_only_rules_that_there_are() -> None:
    named = {(case.name, one.id) for case in cases().values() for one in case.expect}
    named |= {(case.name, name) for case in cases().values() for name in (*case.never, *case.warnings)}
    assert sorted((case, name) for case, name in named if name not in rules()) == []
