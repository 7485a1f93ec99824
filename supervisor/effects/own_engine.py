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
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urljoin

from supervisor.base import http
from supervisor.base.errors import ConfigError, PodUnfitError, SupervisorError, UnknownDialectError
from supervisor.config.settings import RunFile
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.effects.before_start import NO_CHECK, BeforeStart
from supervisor.jobs.base import Job, StartRequest, WeightUpdate
from supervisor.process.attempts import attempt_dir, take_snapshot
from supervisor.process.launch import ShimState, launch, look_at_component
from supervisor.process.stop import StopReport, stop_attempt
from supervisor.process.survivors import Belongings, Identity

COMPONENT = "inference"
NOTE = "weights.json"  # in the server's folder: whether weights are still to be given to it
POLL_S = 0.02  # the server must not answer for the base model for longer than it takes to notice that it is up
READY_LIMIT_S = 3600.0
CALL_LIMIT_S = 720.0  # prime-rl's own UPDATE_WEIGHTS_TIMEOUT_S (utils/client.py at 559b44772)
STOP_S = 60.0


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

    def __init__(
        self,
        run_file: Callable[[], RunFile],
        post: Callable[[f.Fact], None],
        *,
        job: Callable[[], Job],
        gpu_free: Callable[[], bool | None],
        wandb_id: Callable[[], str],
        known: Callable[[], list[Identity]],
        hurry: threading.Event,
        start_check: BeforeStart = NO_CHECK,
    ) -> None:
        """``run_file``: as it is now (the store may complete it); ``job`` opens the job where it is not open yet.

        ``gpu_free``: is the memory of the inference GPUs back? ``known``: the server's processes that a sensor saw, for
        those that left its shim's tree. ``start_check`` is asked before it is started with the job.
        """
        self._read_run_file = run_file
        self._post = post
        self._job = job
        self._gpu_free = gpu_free
        self._wandb_id = wandb_id
        self._known = known
        self._hurry = hurry
        self._start_check = start_check
        self._state_dir = run_file().state_dir
        self.unwanted = threading.Event()  # set: the start that is under way is followed by a stop
        self._giving = threading.Event()  # set: nobody waits for weights any more
        self._giving.set()

    @property
    def _run_file(self) -> RunFile:
        return self._read_run_file()

    # ------------------------------------------------------------ start and stop

    def start(self, action: a.StartEngine, *, alone: bool) -> None:
        """Launch it. ``alone``: the job lives on, and will not hand over its weights before its next update."""
        try:
            self._post(self._launch(action, alone=alone))
        except (ConfigError, UnknownDialectError, PodUnfitError) as error:
            self._post(f.EngineStartFailed(action.engine, str(error), permanent=True))
        except (SupervisorError, OSError) as error:
            self._post(f.EngineStartFailed(action.engine, str(error)))

    def _launch(self, action: a.StartEngine, *, alone: bool) -> f.Fact:
        job = self._job()
        if problems := [*job.engine_role().problems, *job.problems()]:
            raise ConfigError(" ".join(dict.fromkeys(problems)))
        if not alone:
            self._start_check.before_start(job, action.step, action.snapshot, self.unwanted)
        if alone and action.step is not None and job.weight_update() is None:
            raise SupervisorError(
                "The inference server is not restarted under the living job: the weights that the trainer handed over "
                "are not on the disk, and it would answer for the base model. Both halves have to restart."
            )
        for earlier in sorted({last_engine(self._state_dir), action.engine} - {0}):
            if Belongings(engine_dir(self._state_dir, earlier), (), self._run_file.run.id).living():
                self._end(job, earlier, STOP_S)  # of a journal that was lost, or a start that died half-way
        folder = engine_dir(self._state_dir, action.engine)
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        snapshot = attempt_dir(self._state_dir, action.snapshot) if action.snapshot else None
        configs = take_snapshot(folder, job.config_files(), snapshot)
        request = StartRequest(
            self._run_file.run.id, action.engine, action.step, configs, self._wandb_id(), attempt_dir=folder
        )
        component = job.engine_component(request)
        if alone:
            _note(folder, "wanted")
        how, run_id = self._run_file.supervision.shim, self._run_file.run.id
        launched = launch(component, folder, how, run_id, self.unwanted)
        for note in launched.notes:
            self._post(f.Remark("launch", f"{note[:1].upper()}{note[1:].rstrip('.')}."))
        self._forget_old(action.engine)
        if alone:
            self.give_weights(action.engine)
        return f.EngineStarted(action.engine, launched.child_pid, " ".join(component.argv))

    def stop(self, action: a.StopEngine) -> None:
        """End it with everything that is its own, and wait for the memory of its GPUs."""
        self.forget_weights()
        job = self._job()
        report = self._end(job, action.engine, action.budget_s)
        self._post(f.EngineStopped(action.engine, report.seconds, report.survivors, report.gpu_free))

    def _end(self, job: Job, engine: int, budget_s: float) -> StopReport:
        return stop_attempt(
            engine_dir(self._state_dir, engine),
            [],
            self._run_file.run.id,
            job.engine_stop_rules(),
            budget_s,
            self._gpu_free,
            self._run_file.supervision.gpu_free,
            hurry=self._hurry,
            known=self._known(),
        )

    def _forget_old(self, engine: int) -> None:
        folders = sorted((self._state_dir / "engines").glob("[0-9]*"))
        for folder in folders[: -self._run_file.logs.keep_attempts]:
            if folder != engine_dir(self._state_dir, engine):
                shutil.rmtree(folder, ignore_errors=True)

    # ------------------------------------------------------------ what is its own

    def living(self) -> set[Identity]:
        """Its living processes, the shim's included: the job's stop never touches them."""
        number = last_engine(self._state_dir)
        if number == 0:
            return set()
        tree = Belongings(engine_dir(self._state_dir, number), (), self._run_file.run.id)
        return {process.identity for process in tree.living()}

    def served_before(self) -> bool:
        """Does a server live that an attempt before this one has used? Its weights are not the base model's."""
        number = last_engine(self._state_dir)
        if number == 0 or (found := look_at(self._state_dir, number)).state != "running" or not found.started_wall:
            return False
        starts = (self._state_dir / "attempts").glob("[0-9]*/*.shim.json")
        with contextlib.suppress(OSError):
            return any(path.stat().st_mtime >= found.started_wall for path in starts)
        return True

    # ------------------------------------------------------------ weights

    def adopt(self) -> None:
        """A new daemon goes on giving weights where the one before had not come to an end."""
        number = last_engine(self._state_dir)
        if number and _noted(engine_dir(self._state_dir, number)) == "wanted":
            self.give_weights(number)

    def forget_weights(self) -> None:
        """The job is being restarted, and hands over its weights itself; or the server is being stopped."""
        self._giving.set()
        number = last_engine(self._state_dir)
        if number and _noted(engine_dir(self._state_dir, number)) == "wanted":
            _note(engine_dir(self._state_dir, number), "left to the job")

    def give_weights(self, engine: int) -> None:
        """Wait beside everything else until the server is up, then give it the newest weights."""
        self._giving = threading.Event()
        thread = threading.Thread(target=self._give, args=(engine, self._giving), name="engine-weights", daemon=True)
        thread.start()

    def _give(self, engine: int, cancelled: threading.Event) -> None:
        try:
            step = self._give_newest(engine, cancelled)
        except (SupervisorError, OSError, http.NoAnswerError) as error:
            if cancelled.is_set() or look_at(self._state_dir, engine).state != "running":
                return  # its end is told as any other end is
            self._end(self._job(), engine, STOP_S)
            self._post(
                f.Remark(
                    "engine",
                    f"The restarted inference server could not be given the run's weights ({error}): it was ended, so "
                    "that no rollout comes from the base model.",
                )
            )
            return
        if cancelled.is_set():
            return
        _note(engine_dir(self._state_dir, engine), "given")
        what = "serves the base model, as the run does" if step is None else f"was given the weights of step {step}"
        self._post(f.Remark("engine", f"The restarted inference server {what}."))

    def _give_newest(self, engine: int, cancelled: threading.Event) -> int | None:
        job = self._job()
        served = job.engine()
        if served is None:
            raise SupervisorError("its address is not known")
        until = time.monotonic() + READY_LIMIT_S
        while not _answers(served.url):
            if cancelled.wait(POLL_S) or look_at(self._state_dir, engine).state != "running":
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
                _call(update.url, path, body)
            given = update
        return given.step if given else None


def _answers(url: str) -> bool:
    try:
        return http.ask(urljoin(url, "/health"), timeout_s=5.0).status == 200
    except http.NoAnswerError:
        return False


def _call(url: str, path: str, body: Mapping[str, object]) -> None:
    headers, data = {"Content-Type": "application/json"}, json.dumps(body).encode()
    status = http.ask(urljoin(url, path), "POST", headers, timeout_s=CALL_LIMIT_S, body=data).status
    if status != 200:
        raise SupervisorError(f"POST {path} was answered with {status}")


def _note(folder: Path, state: str) -> None:
    (folder / NOTE).write_text(json.dumps({"state": state}))


def _noted(folder: Path) -> str:
    try:
        return str(json.loads((folder / NOTE).read_text())["state"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
