"""``rl-supervisor init``: writes a commented run file for the machine it runs on, and never over an existing one."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

from supervisor import homes
from supervisor.cli.machine import ConfigFound, Machine, look
from supervisor.config import load
from supervisor.core.words import size
from supervisor.effects import transient
from supervisor.errors import ConfigError
from supervisor.storage.keys import KEYS


def init(output: Path, job_dir: Path | None) -> int:
    """Write ``output``. Raises ConfigError when it exists already or cannot be written."""
    if os.path.lexists(output):
        raise ConfigError(f"{output} exists already and is left as it is: name another file with -o.")
    machine = look(job_dir)
    text = run_file_text(machine, output.stem)
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{output} exists already and is left as it is: name another file with -o.") from None
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}.") from None
    run = load(output).run.id
    print(f"{output} is written, for the run {run}.")
    for note in machine.notes:
        print(f"  note: {note}")
    named = shlex.quote(str(output))
    print("Next, in this order:")
    print("  1. Read it, and set what it says about itself: the store above all.")
    if transient.BOOTED.is_dir():
        print(f"  2. rl-supervisor install --run {named}   makes the unit, and an .env beside the run file's copy")
        print("  3. Put the store's key into that .env: it is never written anywhere else.")
        print(f"  4. rl-supervisor check --online {_installed(run)}")
        print(f"  5. systemctl {'' if os.geteuid() == 0 else '--user '}enable --now rl-supervisor@{run}")
    else:
        b2, s3 = (" and ".join(KEYS[kind]) for kind in ("b2", "s3"))
        print(f"  2. Put the store's key into the environment: {b2}; for s3:// {s3}.")
        print(f"  3. rl-supervisor check --online {named}")
        print(f"  4. rl-supervisor run {named}")
    return 0


def _installed(run: str) -> Path:
    """Where `install` puts the run file."""
    own = homes.config_home() if os.geteuid() != 0 else None
    return (own / "rl-supervisor" if own else homes.SYSTEM_CONFIG) / f"{run}.toml"


def run_file_text(machine: Machine, stem: str = "run") -> str:
    """The run file ``stem``.toml. Every value is written with TOML's own quoting, whatever the folder's name is."""
    config = machine.configs[0] if machine.configs else None
    lines = [
        "# A run of rl-supervisor. All settings and their defaults are in docs/settings.md of its repository.",
        "# Secrets (B2_APPLICATION_KEY_ID, B2_APPLICATION_KEY, WANDB_API_KEY, ...) never stand here: put them into the",
        "# daemon's environment, or into systemd credentials.",
        "",
        "[run]",
        "# Name of the run, the same on every pod: the folder in the store, the socket, the name in W&B.",
        f"id = {_quoted(_run_id(stem, config))}",
        "# Last step; without it, what the trainer's own configuration says.",
        "# max_steps = 1000",
        "",
        "[job]",
        f'kind = "{config.kind if config else "rl"}"',
        *_dir_lines(machine),
        *_config_lines(machine, config),
        "# Where the job writes, below dir. One run, one folder.",
        '# output_dir = "outputs"',
        "# A checkpoint every so many steps: what a crash can cost.",
        "checkpoint_interval = 10",
        "",
        "[gpus]",
        *_gpu_lines(machine),
        "",
        "[store]",
        "# Where complete steps are published. Without it they stay in a folder on this machine, which a lost pod",
        "# takes with it. The key needs listFiles, readFiles, writeFiles and deleteFiles on this one bucket.",
        '# url = "b2://my-bucket/prefix"',
        "# Newest steps kept in the store; besides, every step that is a multiple of keep_every.",
        "# keep_last = 3",
        "# keep_every = 100",
        "",
        "[disk]",
        "# Used part of the checkpoint volume above which published steps are deleted here, oldest first.",
        "# prune_above = 0.85",
        "# keep_local = 2",
        "",
        "[hooks]",
        "# A shell command after the last step is published: end the pod's billing here.",
        '# finish = "..."',
    ]
    return "\n".join(lines) + "\n"


def _dir_lines(machine: Machine) -> list[str]:
    if machine.job_dir:
        return ["# The installed prime-rl.", f"dir = {_quoted(str(machine.job_dir))}"]
    return ["# The installed prime-rl. None was found on this machine: set this.", 'dir = "/workspace/prime-rl"']


def _config_lines(machine: Machine, config: ConfigFound | None) -> list[str]:
    if config is None:
        return ["# The file after `rl @`. None was found on this machine: set this.", 'config = "rl.toml"']
    others = [other for other in machine.configs[1:] if not other.split][:8]
    lines = ["# The file after `rl @`." + (" Found besides:" if others else "")]
    lines += [f"#   {' '.join(str(other.path).split())}" for other in others]
    if not config.split:
        return [*lines, f"config = {_quoted(str(config.path))}"]
    lines = ["# prime-rl's three files."]
    for name in ("trainer", "orchestrator", "inference"):
        path = config.path.with_name(f"{name}.toml")
        if path.is_file():
            lines.append(f"{name}_config = {_quoted(str(path))}")
    return lines


def _gpu_lines(machine: Machine) -> list[str]:
    lines = ["# The GPUs of the run, as nvidia-smi numbers them. Without it, what the trainer's configuration says."]
    lines += [f"#   {gpu.index}: {gpu.name}, {size(gpu.total_bytes)}, {gpu.uuid}" for gpu in machine.gpus]
    count = len(machine.gpus)
    half = max(1, count // 2)
    inference, trainer = list(range(half)) or [0], list(range(half, count)) or [0 if count == 1 else 1]
    return [*lines, f"# inference = {inference}", f"# trainer = {trainer}"]


def _run_id(stem: str, config: ConfigFound | None) -> str:
    """A name from the run file's (the unit's instance is called so), else from the configuration's file or folder."""
    parts = (config.path.stem, config.path.parent.name, config.path.parent.parent.name) if config else ()
    for part in (stem, *parts):
        word = re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-._")[:60]
        if word and word.lower() not in ("config", "configs", "rl", "sft", "train", "trainer", "run", "root", "tmp"):
            return word
    return "my-run"


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are among TOML's, and DEL is the one that JSON leaves plain."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"The name {text!a} is not UTF-8, which a run file must be: rename it.") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
