"""What is written for people in the check's tables: every rule, and every entry on models."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from supervisor import preflight
from supervisor.preflight import finding, model_support
from supervisor.preflight.finding import SEVERITIES, Rule

FOLDER = Path(preflight.__file__).parent
RULES: list[dict[str, Any]] = [
    table
    for path in sorted((FOLDER / "rules").glob("*.toml"))
    for table in tomllib.loads(path.read_text(encoding="utf-8"))["rule"]
]


def test_each_rule_says_what_people_will_read() -> None:
    for rule in finding.rules().values():
        assert re.fullmatch(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", rule.id), f"{rule.id}: small letters and single hyphens"
        assert rule.severity in SEVERITIES, rule.id
        for clause in (rule.title, rule.source):
            assert clause.strip() and not clause.endswith("."), f"{rule.id}: a clause"
        for sentence in (rule.why, rule.remedy):
            assert sentence.strip() and sentence.endswith("."), f"{rule.id}: a sentence"


def test_no_two_rules_have_one_id() -> None:
    assert [name for name, count in Counter(one["id"] for one in RULES).items() if count > 1] == []
    assert len(RULES) == len(finding.rules())


def test_each_entry_on_models_is_a_sentence_about_some() -> None:
    for entry in model_support.table():
        assert entry.says.endswith(".") and "{model}" in entry.says, entry
        assert entry.model_types or entry.architectures or entry.names or entry.quantization, entry
        assert entry.severity in (None, *SEVERITIES), entry
        assert entry.unsure in ("", *SEVERITIES), entry
        assert {type(day).__name__ for day in (entry.since, entry.until)} <= {"date", "NoneType"}, entry


def test_a_word_that_nothing_reads_is_refused() -> None:
    with pytest.raises(TypeError, match="typo"):
        Rule(**{**RULES[0], "typo": 1})
    with pytest.raises(TypeError, match="typo"):
        model_support._entry_of_table({"rule": "model-quantized", "says": "{model} is odd.", "typo": 1})
