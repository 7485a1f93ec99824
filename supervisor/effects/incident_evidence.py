"""Evidence of an incident, as one of the daemon's effects: from the core's order to a bundle that is kept.

The order comes before the one to stop, and the stop waits for the bundle, ``evidence.budget_s`` seconds at most: on the
same lane because it is behind it, on another one by ``wait``. A child collects: what it looks at may hang, and takes
memory. Where its time is over it is left behind, and ends by itself.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.base.beside import Beside
from supervisor.base.own_child import OwnChild
from supervisor.base.secrets import known_secrets
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.effects.own_engine import engine_dir, last_engine
from supervisor.effects.run_context import RunContext, Sights
from supervisor.evidence import keeping
from supervisor.evidence.known import NO_JOURNAL, Asked, Known, bundles_dir
from supervisor.process.attempts import attempt_dir

COMMAND = (sys.executable, "-P", "-m", "supervisor.evidence.child")
LOGS_S = 2.0  # for the job's folders to say where its logs are; a dead mount never does
HURRY_S = 0.5


class IncidentEvidence:
    """Collects bundles and keeps them in number and size. ``take_order`` belongs to the loop, the rest to lanes."""

    def __init__(self, run: RunContext, sights: Sights, hurry: threading.Event) -> None:
        """``hurry``: when set, no more patience."""
        self._run = run
        self._sights = sights
        self._hurry = hurry
        self._ready = threading.Event()
        self._ready.set()

    def take_order(self, action: a.CollectEvidence) -> Callable[[], Path | None]:
        """Take down what is known at the verdict; what is returned does the rest and is a lane's work.

        It returns the bundle's folder, None where there is none.
        """
        known = self._sights.scene()
        self._ready.clear()
        return lambda: self._collect_bundle(action, known)

    def wait(self) -> None:
        """Until no evidence is being collected: what comes next destroys some. Never longer than the budget."""
        self._ready.wait(self._run.run_file.evidence.budget_s)

    def forget_old_bundles(self, incident: int) -> None:
        """Delete the oldest that are too many or too large; those of ``incident``, which is open, stay."""
        about = self._run.run_file.evidence
        parent = bundles_dir(self._run.state_dir)
        keeping.forget_bundles(parent, about.keep, int(about.max_mb * 1e6), incident, self._run.journal)

    def _collect_bundle(self, action: a.CollectEvidence, known: Known) -> Path | None:
        folder = None
        try:
            folder, sentence = self._ask_child(action, known)
        except (OSError, ValueError, LookupError, TypeError) as error:  # whatever it was: the stop behind it must come
            sentence = f"The evidence of incident {action.incident} could not be collected: {error}."
        finally:
            self._ready.set()
        self._run.post(f.Remark("evidence", sentence))
        return folder

    def _ask_child(self, action: a.CollectEvidence, known: Known) -> tuple[Path | None, str]:
        """The bundle's folder, and what came of it in a sentence. Raises OSError where no child can be started."""
        begun = time.monotonic()
        until = begun + self._run.run_file.evidence.budget_s
        order = self._write_order(action, known, until)
        asked, others = order.as_json(), self._ask_machines(order, until)
        with OwnChild(COMMAND, environ=self._run.environ, given=asked, cwd=Path("/")) as child:
            code = child.wait(until, self._hurry)
            if code is None and self._hurry.is_set():
                child.process.terminate()  # it ends with what there is
                code = child.wait(min(until, time.monotonic() + HURRY_S))
            said, complaint = child.answer(), child.complaint()
        patience = min(until, time.monotonic() + HURRY_S) if self._hurry.is_set() else until
        for sentence in others.result_or_none(patience) or ():
            self._run.post(f.Remark("evidence", sentence))
        told: dict[str, str] = {}
        for line in said.rpartition(b"\n")[0].splitlines():
            told |= json.loads(line)
        folder = Path(told["folder"]) if "folder" in told else None
        if "sentence" in told:
            return folder, told["sentence"]
        number, seconds = action.incident, time.monotonic() - begun
        if code is not None:
            why = complaint or f"exit code {code}"
            return folder, f"The evidence of incident {number} could not be collected: {why}."
        return folder, f"The evidence of incident {number} was not ready after {seconds:.1f} s; nothing waits for it."

    def _ask_machines(self, order: Asked, until: float) -> Beside[Sequence[str]]:
        """Have the other machines of the run keep theirs, meanwhile. No secret of this daemon goes there."""
        machines = self._run.machines
        if machines is None:
            return Beside(tuple)
        told = replace(order, explain={}, engine_page=None, engine_url=None, secrets=(), journal=NO_JOURNAL)
        asked = json.loads(told.as_json())
        return Beside(lambda: machines.keep_evidence(asked, until - time.monotonic()))

    def _write_order(self, action: a.CollectEvidence, known: Known, until: float) -> Asked:
        run_file, job, page = self._run.run_file, self._run.job, known.engine_page
        looked = Beside(self._sights.log_files)
        logs = looked.result_or_none(time.monotonic() + min(LOGS_S, run_file.evidence.budget_s / 2))
        served = job.engine() if job is not None else None
        engine = last_engine(run_file.state_dir)
        trees = [attempt_dir(run_file.state_dir, action.attempt)]
        trees += [engine_dir(run_file.state_dir, engine)] if engine else []
        beside = [run_file.job.python.parent] if run_file.job.python else []
        beside += [run_file.job.dir / ".venv" / "bin"] if run_file.job.dir else []
        return Asked(
            run=run_file.run.id,
            attempt=action.attempt,
            incident=action.incident,
            reason=action.reason,
            state_dir=str(run_file.state_dir),
            until=until,
            explain=known.explain(),
            processes=[(pid, role, title) for pid, (role, title) in known.processes.items()],
            engine_page=(page[0], page[1].decode(errors="replace")) if page is not None else None,
            journal=known.journal,
            trees=[str(folder) for folder in trees],
            seen=self._sights.job_processes(),
            logs={role: str(path) for role, path in logs.items()} if logs is not None else None,
            engine_url=served.url if served is not None else None,
            folders=[str(job.output_dir if job is not None else run_file.output_dir)],
            py_spy=[str(folder) for folder in beside] if run_file.evidence.py_spy else None,
            secrets=known_secrets(),
        )
