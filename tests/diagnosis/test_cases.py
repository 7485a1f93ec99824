"""Logs as they were left behind by runs that failed, and by runs that did not: what is the root, and what followed."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnosis.causes import Diagnosis, diagnose
from supervisor.diagnosis.places import open_unpacked, sources
from supervisor.diagnosis.scan import scan
from supervisor.diagnosis.seen import Log
from supervisor.diagnosis.telling import as_json, text

CASES = sorted((Path(__file__).parent / "cases").glob("*.toml"))


def laid_out(case: dict[str, Any], folder: Path) -> None:
    for name, content in case["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def read(folder: Path) -> tuple[list[Diagnosis], list[Log]]:
    logs: list[Log] = []
    for source in sources(folder):
        with open_unpacked(source, io.BytesIO()) as stream:
            logs += scan(stream, source.name, source.role, attempt=source.attempt, kernel=source.kernel)
    return diagnose(logs), logs


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case(path: Path, tmp_path: Path) -> None:
    case = tomllib.loads(path.read_text(encoding="utf-8"))
    laid_out(case, tmp_path)
    *earlier, told = (found := read(tmp_path))[0]
    said = text(*found)
    if "root" not in case:
        assert told.root is None, said
        assert told.outcome == case["outcome"], said
        assert not told.has_named_cause
        assert {one.name for one in told.survived} >= set(case.get("survived", [])), said
        return
    assert told.root is not None, said
    assert told.root.name in (case["root"], case.get("root_or")), said
    assert told.outcome == "failed"
    if "at" in case:
        assert str(told.root.first) == case["at"].removeprefix(f"{tmp_path}/"), said
    if "kind" in case:
        assert told.root.kind == case["kind"]
    names = [one.name for one in told.cascade]
    assert set(case.get("cascade", [])) <= set(names), said
    assert case["root"] not in names
    if "note" in case:
        assert case["note"] in " ".join(told.root.notes), said
    if "own" in case:
        assert case["own"] in str(told.root.own), said
    if "more" in case:
        assert case["more"] in said
    if "text" in case:
        assert case["text"] in told.root.sentence, said
    if "attempt" in case:
        assert told.attempt == case["attempt"]
    assert [one.root.name for one in earlier if one.root] == case.get("earlier", [])
    assert told.has_named_cause is case.get("named", True)
    assert as_json(*found)["root"]["name"] == told.root.name
