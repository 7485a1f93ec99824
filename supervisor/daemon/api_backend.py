"""The daemon as people meet it: what the API's pages show, and which orders are taken. Nothing here decides."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from supervisor import __version__
from supervisor.api import metrics
from supervisor.api.protocol import VERBS, Reply
from supervisor.base.errors import SupervisorError
from supervisor.base.own_child import OwnChild
from supervisor.core import facts as f
from supervisor.core import fencing, leaving, pinned_steps
from supervisor.core.state import State
from supervisor.daemon import order_replies
from supervisor.daemon.active_sensors import ActiveSensors
from supervisor.daemon.attach_requests import AttachRequests
from supervisor.daemon.inbox import Waits
from supervisor.daemon.upgrade import Upgrade
from supervisor.effects.carry_out import Effects
from supervisor.effects.heartbeat import Heartbeat
from supervisor.effects.run_context import RunContext
from supervisor.jobs.base import StartRequest
from supervisor.jobs.wandb_client import notes_of_rollbacks
from supervisor.journal.clock import Clock
from supervisor.journal.journal import Journal
from supervisor.views import status

READ_INCIDENTS = (sys.executable, "-P", "-m", "supervisor.cli.main", "read-state", "--", "incidents")
INCIDENTS_S = 30.0
MOST_INCIDENTS_BYTES = 32 << 20

if TYPE_CHECKING:
    from supervisor.effects.notify import Notifier


class House(Protocol):
    """What people may see of the daemon; its loop changes ``state`` meanwhile, always for a whole new one."""

    context: RunContext
    state: State
    clock: Clock
    journal: Journal
    effects: Effects
    sensors: ActiveSensors
    heartbeat: Heartbeat
    messages: Notifier
    upgrade: Upgrade
    waits: Waits
    is_ending: bool

    def post(self, fact: f.Fact, source: str = "") -> None:
        """Hand a fact to the core."""

    def find_config_problem(self) -> str:
        """Why no job could start with the configuration files as they are now; "" when one can."""


class ApiBackend:
    """The API's desk (``api.protocol.Desk``). Every method is called from other threads, and answers at once."""

    def __init__(self, house: House, attaching: AttachRequests) -> None:
        self._house = house
        self._attaching = attaching
        self._began = time.monotonic()
        self._incidents: tuple[object, list[dict[str, Any]]] = (None, [])

    def status(self) -> dict[str, Any]:
        """Everything that `supervisorctl status` shows."""
        state = self._house.state
        job = self._house.context.job
        transfers = self._house.effects.store.transfers.moving
        moving = transfers.get("publish") or transfers.get("restore")
        facts = job.facts() if job else None
        return {
            **status.status(state),
            "observed": self._house.context.observed,
            "store": self._house.context.run_file.store_url,
            "disk": {
                "path": str(job.output_dir if job else self._house.context.run_file.output_dir),
                "total_bytes": state.disk.total,
                "free_bytes": state.disk.free,
                "reason": state.disk.reason,
            },
            "publishing": {
                "what": "publishing" if moving.what == "publish" else "restoring",
                "step": state.busy.publish if moving.what == "publish" else state.busy.restore,
                "phase": moving.phase,
                "bytes": moving.bytes,
                "total_bytes": moving.total,
                "rate": moving.rate,
                "remaining_s": moving.remaining_s,
            }
            if moving
            else None,
            "wandb_id": self._house.context.run_file.wandb.id or self._house.journal.get("wandb_id"),
            "checkpoint_interval": state.attempt.interval or self._house.context.run_file.job.saves_every,
            "host": socket.gethostname(),
            "version": __version__,
            "daemon_pid": os.getpid(),
            "state_dir": str(self._house.context.run_file.state_dir),
            "uptime_s": round(time.monotonic() - self._began, 1),
            "loop_waits": self._house.waits.as_dict(),
            "job": facts.name if facts else "not installed yet",
            "notes": [
                *pinned_steps.findings(state).values(),
                *filter(None, (fencing.note(state), leaving.note(state), self._house.heartbeat.note)),
                *filter(None, (self._house.messages.note_for_status, *(facts.notes if facts else ()))),
                *filter(None, (self._house.journal.failure, self._house.sensors.run_file_note)),
            ],
        }

    def metrics(self) -> str:
        """The page for Prometheus."""
        return metrics.render(self.status())

    def command(self, verb: str, args: list[str], who: str) -> Reply:
        """Take a person's command; it is carried out by the loop."""
        if verb not in VERBS:
            return Reply(False, f"There is no command {verb!r}; known are {', '.join(VERBS)}.")
        if self._house.is_ending:
            told = "The daemon is about to end" + ("" if verb == "shutdown" else ": give this order to the next one")
            return Reply(verb == "shutdown", f"{told}.")
        if verb == "attach":
            return self._attaching.ask(args)
        if verb == "upgrade":
            return Reply(*self._house.upgrade.ask(who))
        ok, sentence = order_replies.answer(self._house.state, verb, args, self._house.context.observed)
        asked = ok and "--new-config" in args and not self._house.state.setup_pending  # [setup] may bring the files
        if asked and (problem := self._house.find_config_problem()):
            ok, sentence = False, f"Nothing is stopped or started, since the new configuration cannot start: {problem}"
        if ok:
            self._house.post(f.Command(verb, who, tuple(args)), "api")
        return Reply(ok, f"{sentence} {self._house.journal.failure}".rstrip())

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        """What was said, oldest first."""
        return [asdict(event) for event in self._house.journal.events(after, limit)]

    def incidents(self, number: int | None, *, only_open: bool) -> list[dict[str, Any]]:
        """The run's incidents, newest first, out of the journal; the whole story of one when it is named.

        A child reads them, as ``supervisorctl`` does where no daemon lives. Its answer holds until the next event,
        for a minute at most.
        """
        newest = next((event.id for event in self._house.journal.events(-1, 1)), 0)
        asked = json.dumps({"number": number, "only_open": only_open})
        key = (asked, newest, int(self._house.clock.now() / 60))
        if self._incidents[0] != key:
            self._incidents = key, self._ask_for_incidents(asked)
        return self._incidents[1]

    def _ask_for_incidents(self, query: str) -> list[dict[str, Any]]:
        words = [*READ_INCIDENTS, str(self._house.context.run_file.state_dir), query]
        try:
            with OwnChild(words, environ=os.environ) as child:
                child.wait(time.monotonic() + INCIDENTS_S)
                child.kill()
                told = json.loads(child.answer(MOST_INCIDENTS_BYTES))
        except (OSError, ValueError) as error:
            raise SupervisorError(f"The journal's incidents could not be read: {error}.") from None
        if "error" in told:
            raise SupervisorError(told["error"])
        return list(told["answer"])

    def log_files(self) -> dict[str, Path]:
        """Newest log of each role, and of each component's captured output."""
        return self._house.sensors.log_files()

    def explain(self) -> dict[str, Any]:
        """Why the core thinks what it thinks."""
        now = replace(self._house.state, now=self._house.clock.now(), wall=time.time())  # ages are told as of now
        return {**status.explain(now), "observed": self._house.context.observed, "start": self._start()}

    def _start(self) -> list[dict[str, str]]:
        """What the supervisor gives the job's start beside the person's own configuration."""
        job, state, run_file = self._house.context.job, self._house.state, self._house.context.run_file
        if job is None:
            return []
        wandb_id = run_file.wandb.id or self._house.journal.get("wandb_id") or "chosen at the first start"
        folder = run_file.state_dir / "attempts"
        notes = notes_of_rollbacks((*state.lineage.known, *state.lineage.unwritten))
        attempt = max(1, state.attempt.number)
        step, interval = state.attempt.resume_step, state.attempt.interval
        request = StartRequest(run_file.run.id, attempt, step, {}, wandb_id, folder, notes, interval=interval)
        return [asdict(change) for change in job.changes(request)]

    def health(self) -> tuple[bool, str]:
        """Does the decision loop turn?"""
        age = self._house.clock.now() - self._house.state.now
        return age < 30, f"the decision loop turned {age:.1f} s ago"

    def ready(self) -> tuple[bool, str]:
        """Is the job running and making steps?"""
        now = status.status(self._house.state)
        return now["state"] == "running", now["sentence"]
