"""Where a user's own files go: the XDG folders, also for a user without a home, or with one that cannot be written."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from supervisor.base.errors import ConfigError

SYSTEM_CONFIG = Path("/etc/rl-supervisor")
SYSTEM_STATE = Path("/var/lib/rl-supervisor")
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


def data_home(env: Mapping[str, str] = os.environ) -> Path | None:
    """A user's `share` folder: $XDG_DATA_HOME, else ~/.local/share; None without a home."""
    told, found = env.get("XDG_DATA_HOME", ""), home(env)
    return Path(told) if told.startswith("/") else found / ".local/share" if found else None


def state_home(env: Mapping[str, str] = os.environ) -> Path:
    """Folder above ``rl-supervisor/ID``, for a user who is not root: $XDG_STATE_HOME, else ~/.local/state.

    (XDG Base Directory Specification 0.8, which also says that a relative path counts as not set.) Where the home is
    missing or read-only: /var/tmp/rl-supervisor-UID. Raises ConfigError when another user has made that.
    """
    told = env.get("XDG_STATE_HOME", "")
    if told.startswith("/"):
        return Path(told)
    found = home(env)
    if found is not None:
        usual = found / ".local/state"
        # What is there stays the place, also on a disk that has just become read-only: the run's journal is in it.
        if os.path.exists(usual / "rl-supervisor") or _is_writable(usual):  # noqa: PTH110 (sudo may keep root's HOME)
            return usual
    last = VAR_TMP / f"rl-supervisor-{os.geteuid()}"
    if os.path.lexists(last) and last.lstat().st_uid != os.geteuid():
        raise ConfigError(
            f"There is no home folder to keep the run's journal in, and {last} belongs to another user: set "
            "run.state_dir, or XDG_STATE_HOME, to a folder that this user may write."
        )
    return last


def runs_dir(env: Mapping[str, str] = os.environ) -> Path:
    """The folder that holds ``ID/`` of a run that this user starts: its journal, attempts and snapshots.

    Raises ConfigError as ``state_home``.
    """
    return _system_state(env) if os.geteuid() == 0 else state_home(env) / "rl-supervisor"


def config_home(env: Mapping[str, str] = os.environ) -> Path | None:
    """Folder above ``rl-supervisor/ID.toml``, for a user who is not root; None for one without a home."""
    told = env.get("XDG_CONFIG_HOME", "")
    if told.startswith("/"):
        return Path(told)
    found = home(env)
    return found / ".config" if found is not None else None


def run_file_dirs(env: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Folders in which run files of this machine are looked for, the nearest last.

    RL_SUPERVISOR_ETC stands for all others, as it does for ``units/onstart.sh``, which keeps the run files of a user
    without a home below /var/tmp.
    """
    if told := env.get("RL_SUPERVISOR_ETC"):
        return (Path(told).absolute(),)
    own = config_home(env)
    homeless = [last / ".config/rl-supervisor"] if (last := _last_resort()) else []
    return (SYSTEM_CONFIG, *homeless, *([own / "rl-supervisor"] if own else []))


def state_dirs(env: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Folders that hold ``ID/`` of a run of this machine, the likeliest last.

    More than the one that ``runs_dir`` gives: a login may have a home that the on-start script did not have.
    """
    places = [_system_state(env)]
    if last := _last_resort():
        places.append(last / "rl-supervisor")
    if found := home(env):
        places.append(found / ".local/state/rl-supervisor")
    try:
        places.append(state_home(env) / "rl-supervisor")
    except ConfigError:
        pass  # the last resort is another user's: nothing of ours is in it
    return tuple(dict.fromkeys(reversed(places)))[::-1]


def _system_state(env: Mapping[str, str]) -> Path:
    """RL_SUPERVISOR_STATE, which stands for /var/lib/rl-supervisor as XDG_STATE_HOME does for another user's place."""
    told = env.get("RL_SUPERVISOR_STATE", "")
    return Path(told) if told.startswith("/") else SYSTEM_STATE


def _last_resort() -> Path | None:
    """The last resort of ``state_home``, where it is there and ours."""
    last = VAR_TMP / f"rl-supervisor-{os.geteuid()}"
    try:
        return last if last.lstat().st_uid == os.geteuid() else None
    except OSError:
        return None


def _is_writable(folder: Path) -> bool:
    """May this user make ``folder``, or write in it?"""
    # Path.exists raises where a folder above may not be entered.
    there = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))  # noqa: PTH110
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)  # noqa: PTH112
