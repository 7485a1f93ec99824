"""``rl-supervisor wandb sync``: sends what a run logged offline, and says beforehand what W&B will make of it.

An offline run cannot resume: each process of each attempt writes a folder of its own, all with one id. The real
``wandb sync`` sends them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from supervisor.base import secrets
from supervisor.base.errors import SupervisorError, UsageError
from supervisor.cli.render import table, wrap
from supervisor.cli.wandb_place import OfflineRun, find_client, find_id, list_offline
from supervisor.config.settings import RunFile
from supervisor.core.words import size

APPENDS = (0, 31)
"""From this version on the folders of one id are sent in the order of their start, each below the lines that are there
(tried with wandb 0.31.0: the second folder's history begins at the line where the first one's ends). Before it each
began at line 0, so that one replaced the other (wandb/wandb#3841)."""


def sync_offline(run_file: RunFile, environ: Mapping[str, str], *, dry_run: bool) -> int:
    """List the folders, say what will become of them, and send them. Raises UsageError and SupervisorError."""
    run_id = find_id(run_file, None)
    if not run_id:
        raise SupervisorError(f"Run {run_file.run.id} has no id in W&B yet: it is chosen at the first start.")
    found = list_offline(run_file, environ, run_id)
    if not found:
        print(f"No offline folder of W&B run {run_id} is on this machine.")
        return 0
    print(*table([("began", "run", "size", "", "folder"), *map(_row_of_folder, found)]), sep="\n")
    ready = [one for one in found if not one.is_sent and not one.is_live]
    if not ready:
        print("There is nothing to send now.")
        return 0
    client = find_client(run_file)
    if not client:
        raise UsageError("W&B's client is neither here nor beside the job: pip install 'rl-supervisor[wandb]'")
    version = _ask_version(client)
    for sentence in foretell(found, ready, version):
        print(*wrap(sentence), sep="\n")
    command = [*client, "sync", *(str(one.folder) for one in ready)]
    if dry_run:
        print(*wrap(f"Would call: {' '.join(command)}"), sep="\n")
        return 0
    key = secrets.secret("WANDB_API_KEY")
    given = {**os.environ, **({"WANDB_API_KEY": key} if key else {})}
    # It writes logs of its own into a folder ``wandb`` where it stands: there they lie beside the runs.
    done = subprocess.run(command, env=given, cwd=ready[0].folder.parent.parent, check=False)
    missing = [one for one in list_offline(run_file, environ, run_id) if one in ready and not one.is_sent]
    if done.returncode or missing:  # the client ends with 0 also where the server refused it (tried with 0.31.0)
        told = f"{len(missing)} of {len(ready)} folders are not sent"
        raise SupervisorError(f"{told}: `wandb sync` ended with {done.returncode}. They stay; call this again.")
    return 0


def _row_of_folder(one: OfflineRun) -> Sequence[str]:
    told = "sent" if one.is_sent else "still written to" if one.is_live else "to send"
    return (one.began, one.run, size(one.size_bytes), told, str(one.folder))


def _ask_version(client: Sequence[str]) -> tuple[int, ...]:
    try:
        done = subprocess.run([*client, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else ()


def foretell(found: Sequence[OfflineRun], ready: Sequence[OfflineRun], version: tuple[int, ...]) -> list[str]:
    """What W&B will do with these, in sentences."""
    shown = ".".join(map(str, version)) or "of an unknown version"
    sentences = [f"W&B's client {shown} sends them."]
    for run in dict.fromkeys(one.run for one in ready):
        folders = [one for one in found if one.run == run]
        if len(folders) == 1:
            continue
        if version >= APPENDS:
            sentences.append(
                f"{run} has {len(folders)} folders. W&B gets them in the order of their start, each below the one "
                "before. Steps that were trained again stand there twice, and W&B's own counter (_step) begins at 0 in "
                "each folder: draw charts over step."
            )
        else:
            sentences.append(
                f"{run} has {len(folders)} folders. Clients before 0.31 send each from line 0, so in W&B a later "
                "folder replaces the lines of an earlier one (wandb/wandb#3841). The folders here stay. To keep all: "
                "pip install 'rl-supervisor[wandb]', then call this again."
            )
    if any(one.is_live for one in found):
        sentences.append("A folder that is still written to is left out: call this again when the job has ended.")
    return sentences
