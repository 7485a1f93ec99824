"""`python -m bench.house` on a small package: what is imported, how names and sentences are counted, and its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import house

FILES = {
    "supervisor/__init__.py": "",
    "supervisor/daemon/__init__.py": "",
    "supervisor/daemon/loop.py": (
        "from __future__ import annotations\n"
        "import os\n"
        "from typing import TYPE_CHECKING\n"
        "from supervisor.base import plain\n"
        "if TYPE_CHECKING:\n"
        "    from supervisor.base.typed import Thing\n"
        "class Daemon:\n"
        "    import supervisor.base.early\n"
        "    def run_all(self):\n"
        "        from supervisor.base.late import go\n"
        "        def told():\n"
        "            pass\n"
    ),
    "supervisor/base/__init__.py": "from supervisor.loose import told\n",
    "supervisor/base/plain.py": "try:\n    from . import caught\nexcept ImportError:\n    pass\ndef told(): pass\n",
    "supervisor/base/caught.py": "def told(): pass\n",
    "supervisor/base/typed.py": "class Thing: pass\n",
    "supervisor/base/early.py": "",
    "supervisor/base/late.py": "def go(): pass\n",
    "supervisor/base/unused.py": "def keep_it(): pass\n",
    "supervisor/loose.py": "def told(): pass\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "README.md").write_text("Nobody reads it all the same: " + "one two three four five " * 2)
    return tmp_path


def test_late_imports_count_in_all_and_only_what_loading_runs_counts_at_start(checkout: Path) -> None:
    found = house.House(checkout)
    base = "supervisor.base"
    in_all = found.imported_by("supervisor.daemon.loop", at_start=False)
    named = {f"{base}.{name}" for name in ("plain", "caught", "typed", "early", "late")}
    assert in_all == {"supervisor.daemon.loop", base, "supervisor.loose", *named}
    at_start = found.imported_by("supervisor.daemon.loop", at_start=True)
    assert at_start == (in_all | {"supervisor", "supervisor.daemon"}) - {f"{base}.typed", f"{base}.late"}
    assert found.size_of({f"{base}.plain", f"{base}.caught"}) == 6


def test_names_and_sentences_are_counted(checkout: Path) -> None:
    rows = {one.name: one.value for one in house.measure(house.House(checkout), house.ASKED)}
    assert rows["files"] == len(FILES)
    assert rows["loose files at the top"] == 1
    assert rows["longest function, lines"] == 4
    # run_all, go, keep_it, and told four times, in four files
    assert rows["one-word function names, %"] == pytest.approx(100 * 5 / 7, abs=0.1)
    assert rows["names in 4 files and more, %"] == pytest.approx(100 * 4 / 7, abs=0.1)
    assert rows["bare participles as names"] == 1
    assert rows["odd words in 1,000"] == pytest.approx(1000 * 2 / 16, abs=0.1)
    assert [
        name for name in ("kept", "going", "string", "read_it", "need", "kept_logs") if house.is_participle(name)
    ] == [
        "kept",
        "going",
    ]


def test_a_limit_that_holds_and_is_broken_ends_with_one(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(["--root", str(checkout), "--check"]) == 1
    assert capsys.readouterr().err == (
        "bare participles as names: 1, and at most 0 holds\nodd words in 1,000: 125.0, and at most 0.2 holds\n"
    )
    (checkout / "README.md").write_text("It is not read.")
    for path in (checkout / "supervisor").rglob("*.py"):
        path.write_text(path.read_text().replace("told", "tell_it"))
    assert house.main(["--root", str(checkout), "--check"]) == 0
    assert capsys.readouterr() == ("", "")
    for number in range(4):
        (checkout / f"supervisor/more{number}.py").write_text("")
    assert house.main(["--root", str(checkout), "--check"]) == 1
    assert capsys.readouterr().err == "loose files at the top: 5, and at most 3 holds\n"
    assert house.main(["--root", str(checkout)]) == 0
    assert "loose files at the top" in capsys.readouterr().out


def test_every_limit_is_of_a_row_that_there_is_and_every_program_is_there(checkout: Path) -> None:
    for program in house.PROGRAMS.values():
        place = f"{program.replace('.', '/')}.py"
        assert (Path(house.__file__).parents[1] / place).is_file(), program
        (checkout / place).parent.mkdir(parents=True, exist_ok=True)
        (checkout / place).write_text("")
    rows = {one.name for one in house.measure(house.House(checkout), {})}
    assert house.ASKED.keys() <= rows
