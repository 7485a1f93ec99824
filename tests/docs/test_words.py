"""The measure of plain words: what it counts, where, and that a ceiling stops the lint."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import words


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("docs", "configs", "units", "supervisor"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").write_text("Nobody reads it.\n\nThe second line is fine.\n")
    (tmp_path / "docs" / "page.md").write_text(
        "One, whose words count, not `--kill-whom`.\n<!-- list: written by a script -->\nnobody\n<!-- end of list -->\n"
    )
    (tmp_path / "configs" / "run.toml").write_text('id = "nobody"  # for whoever reads\n')
    (tmp_path / "supervisor" / "data.toml").write_text('remedy = "Ask somebody else."\n')
    (tmp_path / "supervisor" / "code.py").write_text(
        '"""Says it all the same."""\n\nA = "nobody here"\nB = f"{A} is not\\n to be had by anybody"  # whom\n'
    )
    return tmp_path


def test_each_kind_of_text_is_counted_where_a_person_reads_it(root: Path) -> None:
    found = {kind: listed for kind, (listed, _) in words.figures(root).items()}
    assert found == {
        "docs": 3,
        "messages": 3,
        "docstrings": 1,
        "comments": 1,
    }


def test_a_place_is_told_with_file_line_and_text(root: Path) -> None:
    assert "README.md:1: docs: Nobody reads it." in list(words.places(root))
    assert any(line.startswith("docs/page.md:1: docs: One, whose") for line in words.places(root))


def test_a_figure_above_its_ceiling_is_a_sentence() -> None:
    below = dict.fromkeys(words.CEILINGS, (0, 1000))
    assert words.above(below) == []
    (said,) = words.above({**below, "docs": (1, 1000)})
    assert said == ("docs: 1.00 listed words per 1,000 words, at most 0.2 are allowed: python docs/words.py --where")
