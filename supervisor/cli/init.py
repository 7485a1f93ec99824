"""``rl-supervisor init``: writes a commented run file for the machine it runs on, and never over an existing one.

``--from`` takes the launch command that a person has now, and keeps its meaning; it is read, never executed.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.base import homes
from supervisor.base.errors import ConfigError
from supervisor.base.secrets import remember_environment
from supervisor.cli.launch_line import LARGEST, find
from supervisor.cli.launch_settings import Draft, draft
from supervisor.cli.machine import ConfigFound, Machine, look
from supervisor.cli.pod import Pod, survey
from supervisor.cli.run_text import run_file_text
from supervisor.config.run_place import RUN_ID
from supervisor.config.settings import load
from supervisor.primerl import configs
from supervisor.primerl.configs import Source
from supervisor.primerl.launch_flags import PARTS, Translation, of_files
from supervisor.storage.backends import BACKENDS


def init(output: Path, job_dir: Path | None, launch: str | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Write ``output``, then check it. ``launch``: a launch line, the name of a script, or ``-`` for standard input.

    0 when the file is written, also where the check finds something. Raises ConfigError when it exists already or
    cannot be written, or when no launch line is understood.
    """
    if os.path.lexists(output):
        raise ConfigError(f"{output} exists already and is left as it is: name another file with -o.")
    remember_environment(environ)
    given = _read_given_launch(launch) if launch is not None else None  # before anything is asked that takes time
    machine = look(job_dir)
    if given is not None:
        here = Path.cwd()
        wanted = draft(
            find(given.text, environ=environ, folder=here, script=given.script),
            job_dir=job_dir,
            installed=machine.job_dir,
            environ=environ,
            here=here,
            gpus=len(machine.gpus),
            script=given.script,
        )
        # It may name another prime-rl than the one that lies in a usual place.
        ours = wanted.settings["job.kind"] in ("rl", "sft")
        machine = replace(machine, job_dir=Path(wanted.settings["job.dir"]) if ours else None)
    else:
        wanted = _from_machine(machine)
    python = wanted.settings.get("job.python")
    pod = survey(machine, environ, Path(python) if python else None)
    name = wanted.name if re.fullmatch(RUN_ID, wanted.name) else _run_id(output.stem, machine, wanted)
    write_new_file(output, run_file_text(pod, wanted, name))
    run = load(output).run.id
    print(f"{output} is written, for the run {run}.")
    _print_notes(wanted, [] if given is not None else machine.notes)
    _check_file(output, environ)
    _say_next(output, run, pod)
    return 0


def write_new_file(output: Path, text: str, remedy: str = "name another file with -o") -> None:
    """Write it; a file that is there already is left as it is. Raises ConfigError, which then says the ``remedy``."""
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{output} exists already and is left as it is: {remedy}.") from None
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}.") from None


# ---------------------------------------------------------------- where the settings come from


@dataclass(frozen=True)
class _Given:
    """Shell text, and the script that it stands in."""

    text: str
    script: Path | None = None


def _read_given_launch(launch: str) -> _Given:
    """What --from names. Raises ConfigError for a file that cannot be read."""
    if launch == "-":
        return _Given(_decode_text(sys.stdin.buffer.read(LARGEST + 1), "What comes from standard input"))
    if "\n" not in launch and len(launch) < 4096:
        path = Path(launch).expanduser()
        if path.is_file():
            try:
                with path.open("rb") as file:
                    return _Given(_decode_text(file.read(LARGEST + 1), str(path)), path.absolute())
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
        if re.fullmatch(r"\S+\.(sh|bash)", launch):
            raise ConfigError(f"{path} does not exist: name the script, or give the launch line itself.")
    return _Given(_decode_text(launch.encode("utf-8", "surrogateescape"), "The launch line"))


def _decode_text(data: bytes, what: str) -> str:
    if len(data) > LARGEST:
        raise ConfigError(f"{what} has more than {LARGEST >> 20} MiB: that is no launch script.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{what} is not UTF-8, which a run file must be.") from None
    if "\0" in text:
        raise ConfigError(f"{what} holds a zero byte, which no shell would take.")
    if not text.strip():
        raise ConfigError(f"{what} is empty: give the line that starts the training.")
    return text


def _from_machine(machine: Machine) -> Draft:
    """The settings of what was found here, where no launch line was given."""
    settings: dict[str, Any] = {}
    config = machine.configs[0] if machine.configs else None
    settings["job.kind"] = config.kind if config else "rl"
    if machine.job_dir:
        settings["job.dir"] = str(machine.job_dir)
    if config is None:
        return Draft(settings)
    if not config.split:
        settings["job.config"] = str(config.path)
        files = [Source(config.path)]
    else:
        parts = [(part, config.path.with_name(f"{part}.toml")) for part in PARTS]
        files = [Source(path, part) for part, path in parts if path.is_file()]
        settings |= {f"job.{one.table}_config": str(one.path) for one in files}
    told = Translation()
    with suppress(ConfigError):  # the check says what is wrong with it
        of_files(told, configs.load(files), sft=config.kind == "sft")
    return Draft({**told.settings, **settings}, kept=told.kept, changed=told.changed)


def _run_id(stem: str, machine: Machine, wanted: Draft) -> str:
    """A name from the run file's (the unit's instance is called so), else from the configuration's file or folder."""
    config: ConfigFound | None = machine.configs[0] if machine.configs and not wanted.source else None
    named = wanted.settings.get("job.config") or wanted.settings.get("job.trainer_config")
    path = config.path if config else Path(named[0] if isinstance(named, list) else named) if named else None
    parts = (path.stem, path.parent.name, path.parent.parent.name) if path else ()
    for part in (stem, *parts):
        word = re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-._")[:60]
        if word and word.lower() not in ("config", "configs", "rl", "sft", "train", "trainer", "run", "root", "tmp"):
            return word
    return "my-run"


# ---------------------------------------------------------------- what is said


def _print_notes(wanted: Draft, notes: Sequence[str]) -> None:
    for title, sentences in (
        ("What stands where:" if wanted.source else "Taken from the configuration:", wanted.kept),
        ("Not as it was:", wanted.changed),
        ("To do before the first start:", wanted.to_do),
    ):
        if sentences:
            print(title)
            for sentence in sentences:
                print(f"  - {sentence}")
    for note in notes:
        print(f"  note: {note}")


def _check_file(output: Path, environ: Mapping[str, str]) -> None:
    """What `check` says of the new file. Findings are no failure of init's: the file is there to be mended."""
    from supervisor.cli import check

    print(f"`rl-supervisor check {shlex.quote(str(output))}` says:")
    code = check.check(output, wish=check.Wish(brief=True), environ=environ)
    if code:
        named = shlex.quote(str(output))
        print(f"The file is written anyway. See how to mend it: rl-supervisor check {named}")


def _say_next(output: Path, run: str, pod: Pod) -> None:
    named = shlex.quote(str(output))
    print("Next, in this order:")
    print("  1. Read it, and set what it says about itself: the store above all.")
    if pod.systemd:
        print(f"  2. rl-supervisor install --run {named}   makes the unit, and an .env beside the run file's copy")
        print("  3. Put the store's key into that .env: it is never written anywhere else.")
        print(f"  4. rl-supervisor check --online {_installed_place(run)}")
        print(f"  5. systemctl {'' if os.geteuid() == 0 else '--user '}enable --now rl-supervisor@{run}")
    else:
        keys = "; ".join(f"for {one.scheme}:// {' and '.join(one.keys)}" for one in BACKENDS if one.keys)
        print(f"  2. Put the store's key into the environment: {keys}.")
        print(f"  3. rl-supervisor check --online {named}")
        print(f"  4. rl-supervisor run {named}")


def _installed_place(run: str) -> Path:
    """Where `install` puts the run file."""
    own = homes.config_home() if os.geteuid() != 0 else None
    return (own / "rl-supervisor" if own else homes.SYSTEM_CONFIG) / f"{run}.toml"
