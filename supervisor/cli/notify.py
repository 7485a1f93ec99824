"""``rl-supervisor notify --test``: do messages reach people?"""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.base import secrets
from supervisor.base.errors import UsageError
from supervisor.cli.render import wrap
from supervisor.config.settings import load
from supervisor.core.messages import Message
from supervisor.effects.notify import VARIABLE
from supervisor.effects.notify_targets import SendError, open_targets


def notify(run_file: Path) -> int:
    """Send one message to each target of a run; 1 where one did not get through. Raises UsageError without a target."""
    run = load(run_file).run.id
    urls = secrets.secret(VARIABLE) or os.environ.get(VARIABLE, "")
    targets, odd = open_targets(urls, run)
    if not targets and not odd:
        raise UsageError(f"{VARIABLE} names no address. It belongs into the run's .env file: ntfys://ntfy.sh/my-topic")
    failed = bool(odd)
    for sentence in odd:
        print(*wrap(sentence), sep="\n")
    for target in targets:
        try:
            target.send(
                Message("test", "info", "This is a test: messages of this run reach you.", "supervisorctl status")
            )
            print(f"{target.name}: sent.")
        except SendError as error:
            failed = True
            print(*wrap(f"{target.name}: not sent: {error}."), sep="\n")
    return int(failed)
