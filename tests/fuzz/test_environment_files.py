"""Any lines in the files that bring a pod's keys: nothing in them is executed, and the ones after them still count."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.base import env_file
from tests.fuzz.given import texts
from tests.fuzz.profiles import fuzzed

ONSTART = (Path(__file__).parents[2] / "units" / "onstart.sh").read_text()
TAKE_OVER = ONSTART[ONSTART.index("take_over() {") : ONSTART.index("\n}\n", ONSTART.index("take_over() {")) + 3]
READ = f"""set -euo pipefail
{TAKE_OVER}
while IFS= read -r line || [[ -n $line ]]; do take_over "$line" force; done <"$1"
printf '%s' "$LAST"
"""
NAMES = (
    "A", "PATH", "IFS", "BASH_ENV", "BASHOPTS", "SHELLOPTS", "EUID", "UID", "PPID", "PS4", "PROMPT_COMMAND", "FUNCNAME",
    "SRANDOM", "DIRSTACK", "LINENO", "RANDOM", "SECONDS", "HISTCMD", "OPTIND", "POSIXLY_CORRECT", "key", "line",
    "a[$(touch HACKED)]", "$(touch HACKED)", "x y", "", "é", "1A", "export A", "readonly A", "_",
)  # fmt: skip
VALUES = (
    "",
    '"',
    '"a"',
    "'a'",
    "$(touch HACKED)",
    "`touch HACKED`",
    "${x:?}",
    "BASH_VERSINFO[$(touch HACKED)]",
    "\\",
    "*",
    "=",
    "\x01",
)


@fuzzed(0.7)
@given(
    lines=st.lists(
        st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES) | texts) | texts, max_size=9
    )
)
@example(lines=[f"{name}={value}" for name in NAMES for value in VALUES])
def test_any_lines_of_an_environment_file_are_taken_or_passed_over(tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "demo.env"
    file.write_bytes("\n".join([*lines, "LAST=here"]).encode("utf-8", "replace"))
    done = subprocess.run(
        ["/bin/bash", "-c", READ, "onstart", str(file)], cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"here"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["demo.env"]


@fuzzed()
@given(
    lines=st.lists(
        st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES) | texts) | texts, max_size=9
    )
)
@example(lines=[f"{name}={value}" for name in NAMES for value in VALUES])
@example(lines=["a" * 1_000_000])
@example(lines=['A="' + "\\" * 300_001])
@example(lines=["=" * 100_000, "#" * 100_000, "\0"])
def test_any_lines_are_read_as_values_and_notes(tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "demo.env"
    file.write_bytes("\n".join([*lines, "LAST=here"]).encode("utf-8", "replace"))
    begun = time.thread_time()
    found = env_file.beside(tmp_path / "demo.toml")
    assert time.thread_time() - begun < 10
    assert all(name.isascii() and name.replace("_", "a").isalnum() for name in found.values)
    assert all(note.endswith(".") for note in found.notes)
