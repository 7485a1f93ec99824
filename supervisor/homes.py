"""Where a user's own files go: the XDG folders, also for a user without a home, or with one that cannot be written."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from supervisor.errors import ConfigError

VAR_TMP = Path("/var/tmp")  # noqa: S108 (on the disk, and so outlives a container's restart; /tmp may be memory)


def home(env: Mapping[str, str] = os.environ) -> Path | None:
    """The user's home by $HOME, else by the password file; None where a container's user has neither."""
    told = env.get("HOME", "")
    if told.startswith("/"):
        return Path(told)
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return None


def state_home(env: Mapping[str, str] = os.environ) -> Path:
    """Folder above ``rl-supervisor/ID``, for a user who is not root: $XDG_STATE_HOME, else ~/.local/state.

    (XDG Base Directory Specification 0.8, which also says that a relative path counts as not set.) Where the home is
    missing or read-only: /var/tmp/rl-supervisor-UID. Raises ConfigError when somebody else has made that.
    """
    told = env.get("XDG_STATE_HOME", "")
    if told.startswith("/"):
        return Path(told)
    found = home(env)
    if found is not None:
        usual = found / ".local/state"
        # What is there stays the place, also on a disk that has just become read-only: the run's journal is in it.
        if os.path.exists(usual / "rl-supervisor") or _writable(usual):  # noqa: PTH110 (sudo may keep root's HOME)
            return usual
    last = VAR_TMP / f"rl-supervisor-{os.geteuid()}"
    if os.path.lexists(last) and last.lstat().st_uid != os.geteuid():
        raise ConfigError(
            f"There is no home folder to keep the run's journal in, and {last} belongs to somebody else: set "
            "run.state_dir, or XDG_STATE_HOME, to a folder that this user may write."
        )
    return last


def config_home(env: Mapping[str, str] = os.environ) -> Path | None:
    """Folder above ``rl-supervisor/ID.toml``, for a user who is not root; None for one without a home."""
    told = env.get("XDG_CONFIG_HOME", "")
    if told.startswith("/"):
        return Path(told)
    found = home(env)
    return found / ".config" if found is not None else None


def _writable(folder: Path) -> bool:
    """May this user make ``folder``, or write in it?"""
    # Path.exists raises where a folder above may not be entered.
    there = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))  # noqa: PTH110
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)  # noqa: PTH112
