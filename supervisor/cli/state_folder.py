"""What a run left on this machine: a child, ``rl-supervisor``, reads it, so that asking a daemon stays light.

Journals, evidence, processes and a run file's mistakes are known to half of the program. The child answers in JSON
(``supervisor.cli.read_state``); an error of ours that it meets is raised here as if it had been met here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from supervisor.api.client import NotThereError, UnclearError
from supervisor.base.errors import ConfigError, SupervisorError

VERB = "read-state"
ERRORS = {one.__name__: one for one in (ConfigError, NotThereError, UnclearError, SupervisorError)}


def read(what: str, path: Path, **query: object) -> Any:
    """The answer about the state folder or run file ``path``: JSON values. Raises one of ERRORS."""
    try:
        answer = json.loads(ask_child(what, str(path), json.dumps(query)))
    except (OSError, ValueError) as error:
        raise UnclearError(f"rl-supervisor could not read {path}: {error}") from None
    if "error" in answer:
        raise ERRORS.get(answer["kind"], SupervisorError)(answer["error"])
    return answer["answer"]


def ask_child(what: str, path: str, query: str) -> str:
    """What ``rl-supervisor read-state`` prints. Raises OSError, or ValueError with what it said of its failure."""
    words = ["-P", "-m", "supervisor.cli.main", VERB, "--", what, path, query]
    done = subprocess.run(
        [sys.executable, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"it ended with exit code {done.returncode}")
    return done.stdout
