"""The inference server as a role of its own: started and stopped in folders of its own, beside the attempts.

Its processes hang under another shim than the job's and bear another marker, so neither half is ever found among the
other's. A server that was restarted alone, under a job that lives on, holds the base model; before it may answer for
long it is given the weights that the run is at, and where that fails it is ended: no batch comes from wrong weights.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urljoin

from supervisor.base import http
from supervisor.base.errors import ConfigError, SupervisorError, UnknownDialectError
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.effects.before_start import BeforeStart
from supervisor.effects.run_context import RunContext, Sights
from supervisor.jobs.base import Job, StartRequest, WeightUpdate
from supervisor.process.attempts import attempt_dir, take_snapshot
from supervisor.process.launch import ShimState, launch, look_at_component
from supervisor.process.stop import StopReport, stop_attempt
from supervisor.process.survivors import Belongings

COMPONENT = "inference"
NOTE = "weights.json"  # in the server's folder: whether weights are still to be given to it
POLL_S = 0.02  # the server must not answer for the base model for longer than it takes to notice that it is up
READY_LIMIT_S = 3600.0
CALL_LIMIT_S = 720.0  # prime-rl's own UPDATE_WEIGHTS_TIMEOUT_S (utils/client.py at 559b44772)
STOP_S = 60.0
MAY_ANSWER = ("running", "unknown")


def engine_dir(state_dir: Path, engine: int) -> Path:
    """Folder of the server's ``engine``-th start."""
    return state_dir / "engines" / f"{engine:04d}"


def last_engine(state_dir: Path) -> int:
    """Number of the newest start, 0 when there was none."""
    names = [path.name for path in (state_dir / "engines").glob("[0-9]*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def look_at(state_dir: Path, engine: int) -> ShimState:
    """What became of the server's ``engine``-th start."""
    return look_at_component(engine_dir(state_dir, engine), COMPONENT)


class OwnEngine:
    """Starts and stops the server, and gives it weights. ``start`` and ``stop`` block: they are a lane's work."""

    def __init__(self, run: RunContext, sights: Sights, hurry: threading.Event, start_check: BeforeStart) -> None:
        """``hurry``: when set, no more patience. ``start_check`` is asked before it is started with the job."""
        self._run = run
        self._sights = sights
        self._hurry = hurry
        self._start_check = start_check
        self.unwanted = threading.Event()  # set: the start that is under way is followed by a stop
        self._giving = threading.Event()  # set: no one waits for weights any more
        self._giving.set()

    # ------------------------------------------------------------ start and stop

    def start(self, action: a.StartEngine, *, alone: bool) -> None:
        """Launch it. ``alone``: the job lives on, and will not hand over its weights before its next update."""
        try:
            self._run.post(self._launch_engine(action, alone=alone))
        except (ConfigError, UnknownDialectError) as error:
            self._run.post(f.EngineStartFailed(action.engine, str(error), permanent=True))
        except (SupervisorError, OSError) as error:
            self._run.post(f.EngineStartFailed(action.engine, str(error)))

    def _launch_engine(self, action: a.StartEngine, *, alone: bool) -> f.Fact:
        job = self._run.need_job()
        if problems := [*job.engine_role().problems, *job.problems()]:
            raise ConfigError(" ".join(dict.fromkeys(problems)))
        if not alone:
            self._start_check.before_start(job, action.step, action.snapshot, self.unwanted)
        if alone and action.step is not None and job.weight_update() is None:
            raise SupervisorError(
                "The inference server is not restarted under the living job: the weights that the trainer handed over "
                "are not on the disk, and it would answer for the base model. Both halves have to restart."
            )
        for earlier in sorted({last_engine(self._run.state_dir), action.engine} - {0}):
            if Belongings(engine_dir(self._run.state_dir, earlier), (), self._run.run_file.run.id).list_living():
                self._end_engine(job, earlier, STOP_S)  # of a journal that was lost, or a start that died half-way
        folder = engine_dir(self._run.state_dir, action.engine)
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        snapshot = attempt_dir(self._run.state_dir, action.snapshot) if action.snapshot else None
        configs = take_snapshot(folder, job.config_files(), snapshot)
        request = StartRequest(
            self._run.run_file.run.id, action.engine, action.step, configs, self._sights.wandb_id(), attempt_dir=folder
        )
        component = job.engine_component(request)
        if alone:
            _write_note(folder, "wanted")
        how, run_id = self._run.run_file.supervision.shim, self._run.run_file.run.id
        launched = launch(component, folder, how, run_id, self.unwanted)
        for note in launched.notes:
            self._run.post(f.Remark("launch", f"{note[:1].upper()}{note[1:].rstrip('.')}."))
        self._forget_old(action.engine)
        if alone:
            self.give_weights(action.engine)
        return f.EngineStarted(action.engine, launched.child_pid, " ".join(component.argv))

    def stop(self, action: a.StopEngine) -> None:
        """End it with everything that is its own, and wait for the memory of its GPUs."""
        self.forget_weights()
        job = self._run.need_job()
        report = self._end_engine(job, action.engine, action.budget_s)
        self._run.post(f.EngineStopped(action.engine, report.seconds, report.survivors, report.gpu_free))

    def _end_engine(self, job: Job, engine: int, budget_s: float) -> StopReport:
        return stop_attempt(
            engine_dir(self._run.state_dir, engine),
            [],
            self._run.run_file.run.id,
            job.engine_stop_rules(),
            budget_s,
            self._sights.engine_gpu_free,
            self._run.run_file.supervision.gpu_free,
            hurry=self._hurry,
            known=self._sights.engine_processes(),
        )

    def _forget_old(self, engine: int) -> None:
        folders = sorted((self._run.state_dir / "engines").glob("[0-9]*"))
        for folder in folders[: -self._run.run_file.logs.keep_attempts]:
            if folder != engine_dir(self._run.state_dir, engine):
                shutil.rmtree(folder, ignore_errors=True)

    # ------------------------------------------------------------ what is its own

    def served_before(self) -> bool:
        """Does a server live that an attempt before this one has used? Its weights are not the base model's."""
        number = last_engine(self._run.state_dir)
        if number == 0 or (found := look_at(self._run.state_dir, number)).state != "running" or not found.started_wall:
            return False
        starts = (self._run.state_dir / "attempts").glob("[0-9]*/*.shim.json")
        with contextlib.suppress(OSError):
            return any(path.stat().st_mtime >= found.started_wall for path in starts)
        return True

    # ------------------------------------------------------------ weights

    def adopt(self) -> None:
        """A new daemon goes on giving weights where the one before had not come to an end."""
        number = last_engine(self._run.state_dir)
        if number and _read_note(engine_dir(self._run.state_dir, number)) == "wanted":
            self.give_weights(number)

    def forget_weights(self) -> None:
        """The job is being restarted, and hands over its weights itself; or the server is being stopped."""
        self._giving.set()
        number = last_engine(self._run.state_dir)
        if number and _read_note(engine_dir(self._run.state_dir, number)) == "wanted":
            _write_note(engine_dir(self._run.state_dir, number), "left to the job")

    def give_weights(self, engine: int) -> None:
        """Wait beside everything else until the server is up, then give it the newest weights."""
        self._giving = threading.Event()
        args = (engine, self._giving)
        threading.Thread(target=self._give_pieces, args=args, name="engine-weights", daemon=True).start()

    def _give_pieces(self, engine: int, cancelled: threading.Event) -> None:
        try:
            step = self._give_newest(engine, cancelled)
        except (SupervisorError, OSError, http.NoAnswerError) as error:
            if cancelled.is_set() or look_at(self._run.state_dir, engine).state not in MAY_ANSWER:
                return  # its end is told as any other end is
            self._end_engine(self._run.need_job(), engine, STOP_S)
            told = f"The restarted inference server could not be given the run's weights ({error}): it was ended"
            self._run.post(f.Remark("engine", f"{told}, so that no rollout comes from the base model."))
            return
        if cancelled.is_set():
            return
        _write_note(engine_dir(self._run.state_dir, engine), "given")
        what = "serves the base model, as the run does" if step is None else f"was given the weights of step {step}"
        self._run.post(f.Remark("engine", f"The restarted inference server {what}."))

    def _give_newest(self, engine: int, cancelled: threading.Event) -> int | None:
        job = self._run.need_job()
        served = job.engine()
        if served is None:
            raise SupervisorError("its address is not known")
        until = time.monotonic() + READY_LIMIT_S
        while not _server_answers(served.url):
            if cancelled.wait(POLL_S) or look_at(self._run.state_dir, engine).state not in MAY_ANSWER:
                raise SupervisorError("it ended before it was up")
            if time.monotonic() > until:
                raise SupervisorError(f"it was not up within {READY_LIMIT_S:.0f} s")
        given: WeightUpdate | None = None
        # The trainer may write the next weights meanwhile, and the orchestrator load them: the last word has to be the
        # newest weights.
        while (update := job.weight_update()) is not None and (given is None or update.step > given.step):
            for path, body in update.calls:
                if cancelled.is_set():
                    return None
                _call_server(update.url, path, body)
            given = update
        return given.step if given else None


def _server_answers(url: str) -> bool:
    try:
        return http.ask(urljoin(url, "/health"), timeout_s=5.0).status == 200
    except http.NoAnswerError:
        return False


def _call_server(url: str, path: str, body: Mapping[str, object]) -> None:
    headers, data = {"Content-Type": "application/json"}, json.dumps(body).encode()
    status = http.ask(urljoin(url, path), "POST", headers, timeout_s=CALL_LIMIT_S, body=data).status
    if status != 200:
        raise SupervisorError(f"POST {path} was answered with {status}")


def _write_note(folder: Path, state: str) -> None:
    (folder / NOTE).write_text(json.dumps({"state": state}))


def _read_note(folder: Path) -> str:
    try:
        return str(json.loads((folder / NOTE).read_text())["state"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
