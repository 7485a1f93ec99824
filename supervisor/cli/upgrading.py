"""``supervisorctl upgrade``: ask for it, then wait for the outcome, also while no daemon answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from supervisor.api.client import Client, NotThereError, RefusedError, UnclearError
from supervisor.cli import which
from supervisor.cli.terminal import reply
from supervisor.cli.which import Here

PATIENCE_S = 170.0  # the trial, the launch that it may wait for, the end of one program and the start of the other
AGAIN_S = 0.3
WAIT_EVENTS_S = 5
OUTCOMES = {"upgraded": True, "upgrade-refused": False}
"""Events that end the wait, and whether it was done."""


def upgrade_run_file(run_file: Path) -> int:
    """``rl-supervisor upgrade RUN.toml``."""
    return upgrade(which.of_file(run_file), as_json=False)


def upgrade(run: Here, *, as_json: bool) -> int:
    """0 when another program watches the run now, 1 when the one before goes on, or none does."""
    try:
        client = run.client
        last = client.get("/v1/events", after=-1, limit=1)["events"]
    except NotThereError as error:
        raise NotThereError(f"{error} It will be what is installed then, so nothing is to be upgraded.") from None
    newest = max((int(item["id"]) for item in last), default=0)
    pid = client.get("/v1/status").get("daemon_pid")
    done, sentence = client.command("upgrade", [])
    if done:
        if not as_json:
            reply(run.id, True, sentence, as_json=False)
        done, sentence = _outcome_of_upgrade(client, newest, pid)
    return reply(run.id, done, sentence, as_json=as_json)


def _outcome_of_upgrade(client: Client, newest: int, pid: object) -> tuple[bool, str]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            events: list[dict[str, Any]] = client.get("/v1/events", after=newest, limit=500, wait=WAIT_EVENTS_S)[
                "events"
            ]
            found = next((item for item in events if item["event"] in OUTCOMES), None)
            if found is not None:
                return OUTCOMES[found["event"]], str(found["sentence"])
            newest = max([newest, *(int(item["id"]) for item in events)])
            if client.get("/v1/status").get("daemon_pid") != pid:
                return False, "Another daemon watches the run now: the one that was asked has ended. See its events."
        except (NotThereError, UnclearError, RefusedError):
            pass  # one program has ended, the other does not answer yet
        time.sleep(AGAIN_S)
    return False, (
        f"The daemon has not told in {PATIENCE_S:.0f} s what came of it. The job is not touched in any case: see "
        "supervisorctl status, and the daemon's log."
    )
