"""A command of ours, run in the process of the tests: a process of its own takes most of its time to import."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import read_state


def call(
    program: Callable[[Sequence[str]], int],
    words: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[Any]:
    """``program(words)`` with what it prints and the exit code that its process would have."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd or "."),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        try:
            code = program(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def read_here(what: str, path: str, query: str) -> str:
    """In the place of ``state_folder.ask_child``, and of its child: the same answer."""
    return json.dumps(read_state.answer(what, Path(path), json.loads(query)))
