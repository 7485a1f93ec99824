"""What ``rl-supervisor install`` puts on a machine with systemd, and ``uninstall`` takes away again.

Both make a plan first: steps that were not done yet, and sentences about what stays as it is. A plan that is empty is
how a second call changes nothing, and a plan that is only printed is ``--dry-run``. A file that others wrote or changed
is never replaced and never removed.
"""

from __future__ import annotations

import difflib
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.base import env_file, secrets
from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.config.settings import RunFile, load
from supervisor.install.unit_files import (
    CREDENTIALS_SINCE,
    SERVICE,
    SLICE,
    UNITS,
    Place,
    mark_text,
    text_of,
    unit_texts,
    whose,
)
from supervisor.process import transient
from supervisor.storage.backends import BACKENDS
from supervisor.storage.keys import find_missing_keys

MANUALS_MARK = "Written by `rl-supervisor install`, which replaces it"
"""The last line of each man page and completion says it."""
START_TIMEOUT_S = 240.0  # above the unit's TimeoutStartSec

ENVIRONMENT = """\
# Keys of the run {name}: NAME=value lines, without `export`. systemd reads them before the daemon starts.
# Keep this file at mode 600. None of them is ever written to a log; the store's keys never reach the job.
#
{keys}
# Where the dead-man heartbeat goes, instead of heartbeat.url
# RL_HEARTBEAT_URL=
# Where messages to people go (docs/sight.md), with blanks between the addresses
# RL_NOTIFY_URLS=
# For the job, when job.pass_env lets them through (by default it does)
# WANDB_API_KEY=
# HF_TOKEN=
"""
STORE_KEYS = "\n".join(
    "\n".join([f"# The store at {one.scheme}://", *(f"# {key}=" for key in one.keys)]) for one in BACKENDS if one.keys
)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was not done yet. ``about`` reads after "would" and as a line of its own; ``diff`` may be ""."""

    about: str
    do: Callable[[], None]
    diff: str = ""


@dataclass(slots=True)
class Plan:
    """What is to be done, in order; what is in order already or left alone; what the reader does next."""

    steps: list[Step] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    then: list[str] = field(default_factory=list)

    def write(self, about: str, path: Path, text: str, mode: int, *, old: str = "") -> None:
        """Write a file, over the ``old`` text where there is one."""
        before = str(path) if old else "/dev/null"
        diff = "".join(difflib.unified_diff(old.splitlines(True), text.splitlines(True), before, str(path)))
        self.steps.append(Step(about, lambda: _write_file(path, text, mode, replace=bool(old)), diff))

    def remove(self, path: Path, why: str = "") -> None:
        """Remove a file."""
        self.steps.append(Step(f"remove {path}{why}", path.unlink))

    def systemctl(self, where: Place, *words: str) -> None:
        """Tell systemd, unless another root is written to."""
        if not where.prefix:
            self.steps.append(Step(f"{where.systemctl} {' '.join(words)}", lambda: _tell_systemd(*words)))


def why_not(where: Place) -> str:
    """Why nothing can be installed at ``where``, and what to do instead; "" when it can."""
    if where.prefix or not (reason := transient.why_not()):
        return ""
    bus = ""
    if where.user and transient.BOOTED.is_dir():
        name = pwd.getpwuid(os.getuid()).pw_name
        bus = f"For a user's own units, `loginctl enable-linger {name}` as root, and log in again. "
    return (
        f"No unit is installed here: {reason}. {bus}Without systemd, let the container run "
        f"`rl-supervisor run RUN.toml` in the foreground, or call {UNITS / 'onstart.sh'} at each "
        "start of the container."
    )


def plan_install(
    where: Place,
    program: Path,
    run_file: Path | None = None,
    *,
    now: bool = False,
    manuals: Mapping[str, str] | None = None,
) -> Plan:
    """What is missing of an installation; with ``now`` the run is enabled and started, too. ``manuals``: man pages and
    completion, by their places below ``where.share``.

    Raises ConfigError, before anything is done, when a file is in the way that is not ours, the run file is wrong, or
    a run is to be started that has no key for its store.
    """
    plan = Plan()
    version = None if where.prefix else _version()
    run = _check_run_file(run_file) if run_file else None
    for folder in (where.config, where.state):
        _plan_folder(plan, where, folder)
    reload = False
    for name, text in unit_texts(where, program, version).items():
        reload |= _plan_unit(plan, where, name, text)
    _plan_manuals(plan, where, program, manuals or {})
    if version is not None and version < CREDENTIALS_SINCE and not where.user:
        plan.kept.append(
            f"systemd {version} is older than {CREDENTIALS_SINCE}: the unit is written without LoadCredential=, so "
            f"keys go into {where.config}/NAME.env and not into /etc/credstore"
        )
    if reload:
        plan.systemctl(where, "daemon-reload")
    if run is None or run_file is None:
        plan.then.append(
            f"a run file goes in with: rl-supervisor install --run RUN.toml; it becomes {where.config}/ID.toml"
        )
        return plan
    name = _plan_run_file(plan, where, run_file, run)
    unit = f"rl-supervisor@{name}"
    runs = not where.prefix and _starts_by_itself(unit)
    missing = [] if runs else _missing_keys(where, name, run.store.url or "", version)
    _plan_environment(plan, where, name, missing)
    if runs:
        plan.kept.append(f"{unit} is enabled and runs")
    elif now and missing:
        raise ConfigError(
            f"The store {run.store.url} needs {' and '.join(missing)}, and {where.config}/{name}.env has no value for "
            f"{'it' if len(missing) == 1 else 'them'}. Nothing was done. Next: rl-supervisor install --run {run_file}, "
            f"put the key into {where.config}/{name}.env, then {where.systemctl} enable --now {unit}"
        )
    elif now:
        plan.systemctl(where, "enable", "--now", unit)
    else:
        plan.then.append(f"{where.systemctl} enable --now {unit}")
    if where.user and not (Path("/var/lib/systemd/linger") / pwd.getpwuid(os.getuid()).pw_name).exists():
        plan.then.append("`sudo loginctl enable-linger $USER`: without it your units end when you log out")
    return plan


def plan_uninstall(where: Place, manuals: Iterable[str] = ()) -> Plan:
    """What is left of an installation; ``manuals``: places below ``where.share``.

    Raises ConfigError while a daemon runs, which would lose its unit, and SupervisorError when systemd does not say
    whether one does.
    """
    plan = Plan()
    if not where.prefix and (running := _running_instances()):
        stop = f"{where.systemctl} disable --now {running[0]}"
        raise ConfigError(f"{', '.join(running)} runs. End it first, which also ends its job cleanly: {stop}")
    removed = False
    for name in (SERVICE, SLICE):
        path = where.at(where.units / name)
        state = whose(path, name)
        if state == "absent":
            continue
        if state in ("foreign", "edited"):
            plan.kept.append(f"{where.units / name} is left: it is not as install wrote it. To remove it: rm {path}")
            continue
        removed = True
        for link in sorted(where.at(where.units).glob("*.wants/rl-supervisor@*.service")) if name == SERVICE else ():
            plan.remove(link, " (the run no longer starts by itself)")
        plan.remove(path)
    if removed:
        plan.systemctl(where, "daemon-reload")
    for path in (where.at(where.share / name) for name in manuals):
        if MANUALS_MARK in (text_of(path) or ""):
            plan.remove(path)
    going = set()
    config = where.at(where.config)
    for file in sorted(config.glob("*.env")) if os.access(config, os.R_OK) else ():
        if _holds_no_key(file):
            going.add(file)
            plan.remove(file, " (it holds no key)")
    for folder in (config, where.at(where.state)):
        if not folder.is_dir():
            continue
        if rest := sorted(set(folder.iterdir()) - going):
            names = ", ".join(path.name for path in rest[:5]) + (" ..." if len(rest) > 5 else "")
            plan.kept.append(f"{folder} is left, with {names}")
        else:
            plan.steps.append(Step(f"remove the empty folder {folder}", folder.rmdir))
    plan.kept.append("checkpoints, here and in the store, are left; so is the program (pip uninstall rl-supervisor)")
    return plan


def carry_out(plan: Plan, told: Callable[[str], None]) -> None:
    """Do the steps in order; ``told`` hears of each that is done. Raises SupervisorError at the first that fails."""
    for step in plan.steps:
        try:
            step.do()
        except OSError as error:
            reason = error.strerror or error
            raise SupervisorError(
                f"This failed: {step.about}: {reason}. What stands above is done; call again."
            ) from None
        told(step.about)


# ---------------------------------------------------------------- the parts of a plan


def _holds_no_key(file: Path) -> bool:
    try:
        return file.read_bytes() == ENVIRONMENT.format(name=file.stem, keys=STORE_KEYS).encode()
    except OSError:
        return False


def _plan_folder(plan: Plan, where: Place, shown: Path) -> None:
    folder, mode = where.at(shown), where.folder_mode
    try:
        found = folder.stat().st_mode & 0o7777
    except FileNotFoundError:
        plan.steps.append(Step(f"make the folder {folder}, mode {mode:04o}", lambda: _make_folder(folder, mode)))
        return
    except OSError as error:
        raise ConfigError(f"{folder} cannot be looked at: {error.strerror}.") from None
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: move it away.")
    narrow = found & ~(0o777 & ~mode)
    if narrow != found:
        plan.steps.append(
            Step(f"chmod {narrow:04o} {folder} (it was {found:04o})", lambda: folder.chmod(narrow)),
        )
    else:
        plan.kept.append(f"{folder} is there")


def _plan_unit(plan: Plan, where: Place, name: str, text: str) -> bool:
    path, new = where.at(where.units / name), mark_text(text)
    state = whose(path, name)
    if state in ("foreign", "edited"):
        what = "was changed by hand" if state == "edited" else "is not from `rl-supervisor install`"
        raise ConfigError(
            f"{path} {what}, and is left as it is. Move your changes to a drop-in (systemctl edit {name}), "
            f"remove the file (rm {path}), and call again. Nothing was done."
        )
    old = text_of(path) or ""
    if old == new:
        plan.kept.append(f"{path} is up to date")
        return False
    if old:
        plan.then.append(
            "a daemon that runs takes the new unit when it is started anew; until then it goes on as it is"
        )
    plan.write(f"{'replace' if old else 'write'} {path}", path, new, 0o644, old=old)
    return True


def _plan_manuals(plan: Plan, where: Place, program: Path, manuals: Mapping[str, str]) -> None:
    """Man pages and completion, as one step. What is another's is left: `supervisorctl` may be supervisord's here."""
    new: dict[Path, str] = {}
    for name, text in manuals.items():
        path, command = where.at(where.share / name), Path(name).stem.removeprefix("_")
        theirs = None if where.prefix else shutil.which(command)
        if theirs and Path(theirs).resolve() != program.with_name(command).resolve():
            plan.kept.append(f"{path} is not written: {command} is {theirs} here")
        elif (there := text_of(path)) is not None and MANUALS_MARK not in there:
            plan.kept.append(f"{path} is left: it is not from `rl-supervisor install`")
        elif there != text:
            new[path] = text

    def write() -> None:
        for path, text in new.items():
            _write_file(path, text, 0o644, replace=True)

    folder = where.at(where.share)
    if new:
        plan.steps.append(Step(f"write man pages, and completion for bash and zsh, below {folder}", write))
    elif manuals:
        plan.kept.append(f"man pages and completion below {folder} are up to date")


def _plan_run_file(plan: Plan, where: Place, file: Path, run: RunFile) -> str:
    """The name of the instance."""
    if file.resolve().parent == where.at(where.config).resolve():
        plan.kept.append(f"{file} is in its place")
        return file.stem
    target, text = where.at(where.config / f"{run.run.id}.toml"), file.read_text(encoding="utf-8")
    there = text_of(target)
    if there == text:
        plan.kept.append(f"{target} is the same as {file}")
    elif there is not None or os.path.lexists(target):
        raise ConfigError(
            f"{target} exists and is another file than {file}; it is left as it is. Is it the same run? Edit it there, "
            f"or remove it first. Another run? Give it another run.id. Nothing was done."
        )
    else:
        plan.write(f"write {target}, as {file}", target, text, 0o640)
    return run.run.id


def _plan_environment(plan: Plan, where: Place, name: str, missing: Sequence[str]) -> None:
    path, text = where.at(where.config / f"{name}.env"), ENVIRONMENT.format(name=name, keys=STORE_KEYS)
    there = os.path.lexists(path)
    if missing or not there:
        names = f" ({', '.join(missing)})" if missing else ""
        plan.then.append(f"put the keys into {where.config}/{name}.env{names}")
    if not there:
        plan.write(f"write {path}, mode 600, with the names of what it may hold", path, text, 0o600)
        return
    mode = path.stat().st_mode & 0o777 if path.exists() else 0
    plan.kept.append(f"{path} is left as it is" + (f"; others can read it: chmod 600 {path}" if mode & 0o077 else ""))


def _missing_keys(where: Place, name: str, url: str, version: int | None) -> list[str]:
    """What the store at ``url`` cannot be opened without and neither the .env nor a credential of systemd has."""
    beside = env_file.beside(where.at(where.config / f"{name}.toml"))
    given = not where.user and (version is None or version >= CREDENTIALS_SINCE)
    stores = map(where.at, secrets.CREDSTORES) if given else ()
    return find_missing_keys(url, name, beside.values, stores)


def _check_run_file(path: Path) -> RunFile:
    """The run file. Raises ConfigError when it is wrong, or means something else where the unit starts it."""
    run = load(path)
    named = {
        "run.state_dir": run.run.state_dir,
        "job.dir": run.job.dir,
        "logging.file": run.logging.file,
        "api.socket": run.api.socket,
    }
    for key, value in named.items():
        if value and not value.expanduser().is_absolute():
            raise ConfigError(f'{path}: {key} = "{value}" depends on where one stands; a unit needs the whole path.')
    return run


# ---------------------------------------------------------------- files


def _make_folder(folder: Path, mode: int) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir()
    folder.chmod(mode)  # whatever the umask is


def _write_file(path: Path, text: str, mode: int, *, replace: bool = False) -> None:
    """Whole or not at all; without ``replace`` FileExistsError when something is there by now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if replace:
            part.replace(path)
        else:
            path.hardlink_to(part)
    finally:
        part.unlink(missing_ok=True)


# ---------------------------------------------------------------- systemd


def _running_instances() -> list[str]:
    """Instances with a living daemon. Raises SupervisorError when systemd does not say: no answer is not "none"."""
    words = ("list-units", "--plain", "--no-legend", "--state=active,activating,deactivating,reloading")
    done = _ask_systemd(*words, "rl-supervisor@*.service")
    if done.returncode != 0:
        raise SupervisorError(
            f"systemctl does not say whether a daemon runs ({_complaint(done)}), and a daemon must not lose its unit. "
            "Nothing was done: see that `systemctl` answers this user, then call again."
        )
    return [line.split()[0].removesuffix(".service") for line in done.stdout.splitlines() if line.split()]


def _version() -> int | None:
    """Of the systemd that is here; None when it does not say."""
    found = re.match(r"systemd (\d+)", _ask_systemd("--version").stdout)
    return int(found[1]) if found else None


def _starts_by_itself(unit: str) -> bool:
    """Whether it runs, and will after a reboot."""
    active = _ask_systemd("is-active", unit).stdout.strip() in ("active", "activating", "reloading")
    return active and _ask_systemd("is-enabled", unit).stdout.strip() == "enabled"


def _tell_systemd(*words: str) -> None:
    done = _ask_systemd(*words, timeout_s=START_TIMEOUT_S)
    if done.returncode != 0:
        who = " ".join(["systemctl", *transient.scope()])
        unit = f"{words[-1]}; {who.replace('systemctl', 'journalctl')} -n 50 -u {words[-1]}"
        hint = f" See: {who} status {unit}" if len(words) > 1 else ""
        raise SupervisorError(f"{who} {' '.join(words)} failed: {_complaint(done)}{hint}")


def _ask_systemd(*words: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", *transient.scope(), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SupervisorError(f"`{' '.join(command)}` gave no answer: {error}. What stands above is done.") from None


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
