"""Which run of this machine is meant: by its name, its RUN.toml, its socket or its state folder, else the only one.

The one answer for all of ``supervisorctl`` and for ``rl-supervisor upgrade``. A run is called by its id everywhere, and
its socket's and its run file's names need not begin with that.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from supervisor.api.client import Client, NotThereError, RefusedError, UnclearError, sockets
from supervisor.base import homes
from supervisor.base.errors import ConfigError, UsageError
from supervisor.base.socket_paths import remove_if_dead
from supervisor.cli import state_folder
from supervisor.config import run_place

LOOK_S = 3.0
NO_RUN = (
    "No daemon runs on this machine. Start one with `rl-supervisor run RUN.toml`, under systemd with "
    "`systemctl start rl-supervisor@NAME`, in a container with `onstart.sh NAME`; write a run file with "
    "`rl-supervisor init`."
)
BOOTED = Path("/run/systemd/system")  # sd_booted(3)
ONSTART = Path(__file__).parents[1] / "install/units/onstart.sh"


@dataclass(frozen=True)
class Here:
    """A run of this machine, as far as it is known. ``id`` is "" where no daemon answers at a named socket."""

    id: str
    socket: Path | None = None
    state_dir: Path | None = None
    file: Path | None = None

    @property
    def has_daemon(self) -> bool:
        """Does a daemon seem to be there?"""
        return self.socket is not None and os.path.exists(self.socket)  # noqa: PTH110 (a folder may be closed to us)

    @property
    def client(self) -> Client:
        """Its daemon. Raises NotThereError, with what to do, where none is known."""
        if self.socket is None:
            raise NotThereError(f"No daemon watches {self.id} now. {self.how_to_start()}")
        return Client(self.socket, run=self.id, advice=self.how_to_start())

    def folder(self) -> Path:
        """The state folder: what the daemon says, else what is known here. Raises UnclearError or NotThereError."""
        if self.has_daemon:
            try:
                return Path(str(self.client.get("/v1/status")["state_dir"]))
            except (NotThereError, UnclearError, KeyError):  # it has just ended, or hangs, or is of an older version
                if self.state_dir is None:
                    raise
        if self.state_dir is None:
            raise NotThereError(
                f"{self.id or 'That run'} has left nothing in the usual places: name its RUN.toml, or its state folder "
                "with --state-dir."
            )
        return self.state_dir

    def how_to_start(self) -> str:
        """The next step where no daemon runs, as a sentence."""
        if self.file is None and self.state_dir is not None and (self.state_dir / "journal.db").exists():
            return f"`supervisorctl status {self.id}` says how to start it."  # its journal knows the run file
        return f"Start it with `{self.start_command()}`."

    def start_command(self) -> str:
        """What to type on this machine: the unit's instance, or ``onstart.sh``'s word, is called as the run file is."""
        own = homes.config_home()
        if self.file is None:
            user = os.geteuid() != 0 and self.state_dir is not None and homes.SYSTEM_STATE not in self.state_dir.parents
        elif self.file.parent == homes.SYSTEM_CONFIG or (own and self.file.parent == own / "rl-supervisor"):
            user = self.file.parent != homes.SYSTEM_CONFIG
        elif BOOTED.is_dir() or self.file.parent not in homes.run_file_dirs():
            return f"rl-supervisor run {shlex.quote(str(self.file))}"
        if BOOTED.is_dir():
            return f"{'systemctl --user' if user else 'systemctl'} start rl-supervisor@{self.unit}"
        return f"{shutil.which('rl-supervisor-onstart') or f'bash {shlex.quote(str(ONSTART))}'} {self.unit}"

    def log_command(self) -> str:
        """What to type to read the daemon's own log."""
        if BOOTED.is_dir():
            return f"journalctl -u rl-supervisor@{self.unit} -n 50"
        there = [path for path in self.log_files() if path.exists()]
        return f"tail -n 50 {shlex.quote(str(there[0]))}" if there else ""

    def log_files(self) -> tuple[Path, ...]:
        """Where the daemon's log is without systemd: of ``onstart.sh``, and its own."""
        folder = Path("/var/log/rl-supervisor") if os.geteuid() == 0 else homes.state_home() / "rl-supervisor"
        started = Path(os.environ.get("RL_SUPERVISOR_LOG") or folder / f"{self.unit}.log")
        return (started, *([self.state_dir / "daemon.jsonl"] if self.state_dir else []))

    @property
    def unit(self) -> str:
        """The instance's name: the run file's, which need not be the run's."""
        return self.file.stem if self.file else self.id or "NAME"


@dataclass
class Machine:
    """What was found on this machine: runs by id, and folders that this user may not look into."""

    runs: dict[str, Here] = field(default_factory=dict)
    closed: list[Path] = field(default_factory=list)

    def try_sudo(self) -> str:
        """A sentence about what could not be looked at, with a blank before it; "" where all could."""
        return f" You may not look into {' and '.join(map(str, self.closed))}: try sudo." if self.closed else ""

    def names(self) -> list[str]:
        """For a sentence, in alphabetical order."""
        return sorted(self.runs)


def find_run(name: str | None, socket: Path | None = None, state_dir: Path | None = None, word: str = "") -> Here:
    """The one run that is meant.

    ``name`` is an id or a path that ends in .toml; ``socket`` and ``state_dir`` go over what is known of it; ``word``
    was typed beside them and names no run. Raises UsageError when it is not clear or not there, NotThereError when no
    run is there at all, and ConfigError with what is wrong in a run file.
    """
    if name is not None and name.endswith(".toml"):
        run = of_file(Path(name))
    elif socket is not None:
        run = _run_at_socket(socket.absolute())
    elif state_dir is not None:
        run = Here(name or state_dir.absolute().name)
    else:
        run = _run_of_name(name) if name is not None else _only_run(word)
    return replace(run, socket=socket or run.socket, state_dir=state_dir or run.state_dir)


def is_run_name(name: str) -> bool:
    """Does the word name a run, rather than something of one?"""
    return name.endswith(".toml") or name in look().runs


def of_file(path: Path) -> Here:
    """The run of a run file. Raises ConfigError with what is wrong in the file."""
    told = run_place.read_place(path)
    if told is None:
        state_folder.read("run-file", path)  # says what is wrong with it
        raise ConfigError(f"{path} says of run.id, run.state_dir or api.socket what cannot be used here.")
    run = look().runs.get(told.id, Here(told.id))
    state_dir = told.state_dir or run.state_dir
    if state_dir is None:
        try:
            state_dir = run_place.default_state_dir(told.id)
        except ConfigError:
            pass  # this user has no place for one, so the daemon is another's
    return Here(told.id, told.socket or run.socket or run_place.default_socket(told.id), state_dir, path.absolute())


def list_runs_with_daemon() -> list[Here]:
    """Every run with a daemon, by id."""
    runs = look().runs
    return [runs[name] for name in sorted(runs) if runs[name].has_daemon]


def list_runs_here(read: Callable[..., Any] = state_folder.read) -> list[Here]:
    """Every run with a daemon, or with a job that lives without one, by id. Where no daemon is there: all that have a
    state folder here.
    """
    runs = [run for _, run in sorted(look().runs.items())]
    alone = {run.id: str(run.state_dir) for run in runs if run.state_dir is not None and not run.has_daemon}
    asks = alone and any(run.has_daemon for run in runs)
    shown: Collection[str] = alone
    if asks:
        try:
            shown = read("living", Path(), folders=alone)
        except UnclearError:
            shown = ()  # those with a daemon are shown, and get their order
    return [run for run in runs if run.has_daemon or run.id in shown]


def no_run() -> str:
    """What to say on a machine without any."""
    return NO_RUN + look().try_sudo()


def look() -> Machine:
    """Look for every run of this machine: its state folders, its run files, its daemons' sockets."""
    found = Machine()
    for folder in homes.state_dirs():
        for path in _entries_of_folder(folder, found.closed):
            if re.fullmatch(run_place.RUN_ID, path.name) and os.path.isdir(path):  # noqa: PTH112 (never raises)
                found.runs[path.name] = Here(path.name, state_dir=path)
    for folder in homes.run_file_dirs():
        for path in _entries_of_folder(folder, found.closed):
            if path.suffix == ".toml" and (told := run_place.read_place(path)):
                left = found.runs.get(told.id)
                state_dir = told.state_dir or (left.state_dir if left else None)
                found.runs[told.id] = Here(told.id, told.socket, state_dir, path)
    explicit = {run.socket for run in found.runs.values() if run.socket is not None}
    for path in explicit:
        remove_if_dead(path)
    for stem, path in sockets().items():
        if path in explicit:
            continue
        run = found.runs.get(stem)
        if run is None or run.socket is not None:  # its name says nothing: the daemon does
            name = str((_ask_daemon(path) or {}).get("run") or stem)
            run = found.runs.get(name, Here(name))
        found.runs[run.id] = replace(run, socket=path)
    return found


# ---------------------------------------------------------------- the ways of naming one


def _run_of_name(name: str) -> Here:
    found = look()
    if name in found.runs:
        return found.runs[name]
    there = f"; there are {', '.join(found.names())}" if found.runs else ""
    raise UsageError(
        f"There is no run named {name} on this machine{there}. One that keeps its files elsewhere is named by its "
        f"RUN.toml.{found.try_sudo()}"
    )


def _only_run(word: str) -> Here:
    """The only run with a daemon; where none has one, the only run that has left something."""
    found = look()
    every = list(found.runs.values())
    choice = [run for run in every if run.has_daemon] or [run for run in every if run.state_dir is not None] or every
    if not choice:
        raise NotThereError(NO_RUN + found.try_sudo())
    if len(choice) > 1:
        names = ", ".join(sorted(run.id for run in choice))
        no = f"{word} is no run's name. " if word else ""
        raise UsageError(f"{no}There are {len(choice)} runs on this machine, name one: {names}.")
    return choice[0]


def _run_at_socket(socket: Path) -> Here:
    """The run of the daemon that listens at ``socket``."""
    if status := _ask_daemon(socket):
        state_dir = status.get("state_dir")
        return Here(str(status.get("run") or ""), socket, Path(str(state_dir)) if state_dir else None)
    runs = look().runs
    return next((run for run in runs.values() if run.socket == socket), Here("", socket))


def _ask_daemon(socket: Path) -> dict[str, Any] | None:
    """What the daemon there says of itself."""
    try:
        return Client(socket, LOOK_S).get("/v1/status")
    except (NotThereError, UnclearError, RefusedError):
        return None


def _entries_of_folder(folder: Path, closed: list[Path]) -> Iterator[Path]:
    """What lies in a folder, by name; one that this user may not read is noted in ``closed``."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
    except PermissionError:
        # A folder above may be closed to us: then we cannot know whether anything is there. In another user's home
        # nothing is ours.
        if os.path.isdir(folder):  # noqa: PTH112
            closed.append(folder)
        return
    except OSError:
        return
    yield from (folder / name for name in names)
