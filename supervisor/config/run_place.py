"""Where a run is found on this machine: its id, its daemon's socket, its state folder. All that asking a daemon needs.

``supervisor.config.settings`` takes the defaults from here, so that a daemon and who asks it agree.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from supervisor.base import homes, socket_paths
from supervisor.config.toml_keys import long_key_line

RUN_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
LARGEST = 1 << 20  # bytes; a run file has a few thousand


@dataclass(frozen=True)
class RunPlace:
    """What a run file says of it; ``socket`` and ``state_dir`` are None where the defaults hold."""

    id: str
    socket: Path | None = None
    state_dir: Path | None = None


def read_place(path: Path) -> RunPlace | None:
    """What a run file says, though it may have mistakes elsewhere: the daemon that was started with it lives on.

    None where it cannot be read, has no valid run.id, or says of the two paths what is no path.
    """
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:  # a FIFO would be read for ever
            return None
        text = path.read_text(encoding="utf-8-sig")
        if long_key_line(text):
            return None
        data = tomllib.loads(text)
        run, api = data["run"], data.get("api", {})
        name, places = run["id"], (api.get("socket"), run.get("state_dir"))
        if re.fullmatch(RUN_ID, name) and all(value is None or isinstance(value, str) for value in places):
            return RunPlace(name, *(None if value is None else absolute(Path(value)) for value in places))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError):
        pass  # not ours to read, no run file, or one in a home that is not there
    return None


def absolute(path: Path) -> Path:
    """A path of the run file, which may begin with ~."""
    return path.expanduser().absolute()


def default_socket(run_id: str) -> Path:
    """Where the API listens without ``api.socket``."""
    return socket_paths.socket_dir() / f"{run_id}.sock"


def default_state_dir(run_id: str) -> Path:
    """The state folder without ``run.state_dir``. Raises ConfigError where this user has no place for one."""
    return homes.runs_dir() / run_id
