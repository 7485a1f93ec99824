"""Evidence of an incident, as one of the daemon's effects: from the core's order to a bundle that is kept.

The order comes before the one to stop, and the stop waits for the bundle, ``evidence.budget_s`` seconds at most: on the
same lane because it is behind it, on another one by ``wait``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.config.settings import RunFile
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.effects.run_context import RunContext, Sights
from supervisor.evidence import bundle, keeping, stacks
from supervisor.evidence.scene import Known, Scene
from supervisor.process.attempts import attempt_dir
from supervisor.process.survivors import Belongings, Identity, Process

FOLDER = "incidents"


def bundles_dir(state_dir: Path) -> Path:
    """Where the bundles of all incidents are. Not in the attempts' folders: those go by their own rules."""
    return state_dir / FOLDER


class IncidentEvidence:
    """Collects bundles and keeps them in number and size. ``take_order`` belongs to the loop, the rest to lanes."""

    def __init__(
        self, run: RunContext, sights: Sights, living: Callable[[int], Sequence[Process]], hurry: threading.Event
    ) -> None:
        """``living`` are an attempt's processes, those of an inference server of our own included; ``hurry``: when
        set, no more patience.
        """
        self._run = run
        self._sights = sights
        self._living = living
        self._hurry = hurry
        self._parent = bundles_dir(run.state_dir)
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

    def _collect_bundle(self, action: a.CollectEvidence, known: Known) -> Path | None:
        folder = None
        try:
            about = self._run.run_file.evidence
            found = bundle.collect(
                self._scene_of(action, known),
                self._parent,
                budget_s=about.budget_s,
                hurry=self._hurry,
                made_room=lambda: self._forget_old_bundles(0, 0, action.incident, known.journal),
                kept=lambda: self._forget_old_bundles(
                    about.keep, int(about.max_mb * 1e6), action.incident, known.journal
                ),
            )
            folder, sentence = found.folder, found.sentence
        except OSError as error:  # whatever it was: the stop that is behind it must come
            sentence = f"The evidence of incident {action.incident} could not be collected: {error}."
        finally:
            self._ready.set()
        self._run.post(f.Remark("evidence", sentence))
        return folder

    def _forget_old_bundles(self, keep: int, max_bytes: int, incident: int, journal: str) -> None:
        keeping.forget_bundles(self._parent, keep, max_bytes, incident, journal)

    def _scene_of(self, action: a.CollectEvidence, known: Known) -> Scene:
        run_file, job = self._run.run_file, self._run.job
        served = job.engine() if job is not None else None
        return Scene(
            run=run_file.run.id,
            attempt=action.attempt,
            incident=action.incident,
            reason=action.reason,
            state_dir=run_file.state_dir,
            known=known,
            living=lambda: self._living(action.attempt),
            shims=lambda: self._shims_of_attempt(action.attempt),
            logs=self._sights.log_files,
            engine_url=served.url if served is not None else None,
            folders=(job.output_dir if job is not None else run_file.output_dir,),
            stack_programs=lambda: self._stack_programs(run_file),
        )

    def _shims_of_attempt(self, attempt: int) -> frozenset[Identity]:
        return Belongings(attempt_dir(self._run.state_dir, attempt), (), self._run.run_file.run.id).shims

    def _stack_programs(self, run_file: RunFile) -> list[Path]:
        if not run_file.evidence.py_spy:
            return []
        bins = [run_file.job.python.parent] if run_file.job.python else []
        bins += [run_file.job.dir / ".venv" / "bin"] if run_file.job.dir else []
        return stacks.programs(self._run.environ.get("PATH", ""), bins, Path(sys.executable).parent)
