"""``rl-supervisor notify --test``: do messages reach people?"""

from __future__ import annotations

from pathlib import Path

from supervisor.base import env_file, secrets
from supervisor.base.errors import UsageError
from supervisor.cli.render import wrap
from supervisor.config.settings import load
from supervisor.core.messages import VARIABLE, Message
from supervisor.effects.notify_targets import SendError, open_targets
from supervisor.fleet import fleet_file


def notify(run_file: Path) -> int:
    """Send a message to each target of a run or a fleet; 1 where one is not reached. Raises UsageError without any."""
    run = fleet_file.load(run_file).fleet.name if fleet_file.is_fleet_file(run_file) else load(run_file).run.id
    beside = env_file.beside(run_file)  # as the daemon reads it, over its environment
    targets, odd = open_targets(beside.values.get(VARIABLE) or secrets.secret(VARIABLE) or "", run)
    if not targets and not odd:
        told = f"{VARIABLE} names no address, neither in {beside.path} nor in the environment."
        raise UsageError(" ".join([told, *beside.notes, f"Write it there: {VARIABLE}=ntfys://ntfy.sh/my-topic"]))
    failed = bool(odd)
    for sentence in odd:
        print(*wrap(sentence), sep="\n")
    for target in targets:
        try:
            target.send(Message("test", "info", f"This is a test: messages of {run} reach you."))
            print(f"{target.name}: sent.")
        except SendError as error:
            failed = True
            print(*wrap(f"{target.name}: not sent: {error}."), sep="\n")
    return int(failed)
