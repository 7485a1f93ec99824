"""Which sensors look, and at what: some at the pod all the time, some at one attempt while it lives."""

from __future__ import annotations

import contextlib
import glob
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core.state import State
from supervisor.daemon.engine_watch import EngineWatch
from supervisor.effects.own_engine import COMPONENT, engine_dir, look_at
from supervisor.jobs.base import GpuPlan, GrowthKind, Job, LogSource, gpus_of_run_file
from supervisor.process.attached import HOW
from supervisor.process.attempts import read_snapshot
from supervisor.process.launch import ShimState
from supervisor.sensors.base import Looker, Sensor
from supervisor.sensors.checkpoints import CheckpointSensor
from supervisor.sensors.config_watch import ConfigWatch
from supervisor.sensors.disk import DiskSensor
from supervisor.sensors.effort import EffortSensor
from supervisor.sensors.engine import EngineSensor
from supervisor.sensors.gpu import GpuSensor
from supervisor.sensors.growing import GrowthSensor
from supervisor.sensors.host import HostSensor
from supervisor.sensors.logs import LastLines, LogSensor, end_positions
from supervisor.sensors.processes import (
    TITLE_LENGTH,
    Identity,
    ProcessScanner,
    ProcessWatcher,
    identity_of,
    process_sensors,
    read_title,
)

LOG_INTERVAL_S = 1.0
SCAN_PROCESSES_S = 3.0
SCANS_WITHOUT_CALL = 4  # the housekeeping calls for scans; should it die, they go on more slowly
HOST_S = 5.0
EFFORT_S = 10.0
GROWTH_S = 10.0  # what takes long grows for minutes
KNOWN_ROLES = ("inference", "trainer", "shared")


class ActiveSensors:
    """Starts and stops sensors as attempts come and go, and keeps what people want to read of them."""

    def __init__(
        self,
        run_file: RunFile,
        post: Callable[[f.Fact, str], None],
        attempt_dir: Callable[[int], Path],
        state: Callable[[], State],
        room: Callable[[], Sensor | None],
    ) -> None:
        """``post`` hands a fact and its sensor's name to the loop; ``state`` is the core's present one.

        ``room``: looks at the disks of machines that have their own.
        """
        self._run_file = run_file
        self._post = post
        self._attempt_dir = attempt_dir
        self._state, self._room = state, room
        self._pod: list[Looker] = []
        self._attempt: list[Looker] = []
        self._number: int | None = None
        self._prepared: tuple[int, list[dict[str, str | int]]] = (0, [])
        self._watcher: ProcessWatcher | None = None
        self._logs: LogSensor | None = None
        self._configs: ConfigWatch | None = None
        self._began_wall, self.run_file_note = time.time(), ""
        self._plan: GpuPlan | None = None
        self._steps: Looker | None = None
        self._last_logs: dict[str, Path] = {}
        self._sources: Sequence[LogSource] = ()
        self._engine: EngineWatch | None = None
        self._engine_sensor: EngineSensor | None = None
        self._scanner: ProcessScanner | None = None

    # ------------------------------------------------------------ the pod

    def watch_pod(self, job: Job | None) -> None:
        """Look at GPUs, host and disk; called again once the job is known."""
        from supervisor.checkpoints.completeness import folder_size  # every job loads it

        self._stop_sensors(self._pod)
        file = self._run_file
        plan = job.gpus() if job else gpus_of_run_file(file)
        self._plan = plan if job else None
        capacity = int(file.disk.capacity_gb * 1e9) if file.disk.capacity_gb else None
        folder = job.output_dir if job else file.output_dir
        home = (folder / job.place(0, "x")).parents[1] if job else folder  # perhaps a volume of its own
        used = lambda: folder_size([folder.resolve()])[0]  # noqa: E731 - it may be a link to a volume
        disk = self._room() or DiskSensor(home, capacity_bytes=capacity, used_bytes=used)
        scan_s = file.supervision.scan
        self._pod = [self.start_sensor(disk, min(5.0, scan_s), deadline_s=20.0)]
        if file.nodes is None:  # else each machine's agent looks at its own
            host = HostSensor(lambda: [(one.pid, one.role) for one in self._state().job.processes_here()])
            self._pod.append(self.start_sensor(host, min(HOST_S, scan_s), deadline_s=20.0))
            self._pod.append(self.start_sensor(GpuSensor(plan), file.supervision.sample, deadline_s=10.0))
        if job is not None:
            steps = CheckpointSensor(job, quiet_s=file.supervision.quiet)
            self._steps = self.start_sensor(steps, SCANS_WITHOUT_CALL * file.supervision.scan, deadline_s=60.0)
            self._pod.append(self._steps)

    # ------------------------------------------------------------ one attempt

    def prepare(self, job: Job, attempt: int) -> None:
        """An attempt is about to be launched: lines written from now on are its own."""
        self._prepared = (attempt, end_positions(job.log_sources(self._attempt_dir(attempt))))

    def watch_attempt(
        self,
        job: Job,
        attempt: int,
        components: Sequence[str],
        look: Callable[[str], ShimState],
        *,
        positions: Sequence[Mapping[str, object]] | None,
    ) -> None:
        """Look at the processes, logs and engine of an attempt that runs.

        ``positions``: where the daemon before was in its logs, empty where that is unknown; None when this daemon
        launched the attempt.
        """
        self.leave(None)
        found = [look(name) for name in components]
        roots = [known for one in found if (known := _root_of_output(one)) is not None]
        roots += self._engine_roots()
        state = self._state()
        seen = [
            f.ProcessSeen(attempt, p.role, p.pid, p.start_ticks, p.title, p.key) for p in state.job.processes_here()
        ]
        seen += self._attached_processes(job, attempt, found, known={one.pid for one in seen})

        supervision = self._run_file.supervision
        folder = self._attempt_dir(attempt)
        late = positions is not None and not positions
        if positions is None:
            positions = self._prepared[1] if self._prepared[0] == attempt else []
        engines = str(engine_dir(self._run_file.state_dir, 0).parent)
        positions = [position for position in positions if not str(position.get("path")).startswith(engines)]
        started = min((one.started_wall for one in found if one.started_wall), default=None)
        since = started and started - 1.0
        logs = LogSensor(job.log_sources(folder), job, positions=positions, since_wall=since, late=late)
        following = self.start_sensor(logs, min(LOG_INTERVAL_S, supervision.sample))
        exits = _Exits(attempt, components, look, logs, following)
        watcher, scanner = process_sensors(attempt, roots, job.classify_process, exits, known=seen)
        self._watcher, self._scanner, self._logs, self._number = watcher, scanner, logs, attempt
        self._sources = job.log_sources(folder)
        self._attempt = [
            self.start_sensor(watcher, supervision.sample),
            self.start_sensor(scanner, max(supervision.sample, min(SCAN_PROCESSES_S, 3 * supervision.sample))),
            following,
        ]
        engine = job.engine()
        if engine is not None:
            sensor = EngineSensor(
                engine,
                canary_after_s=self._run_file.deadlines.hang / 2,
                canary_timeout_s=self._run_file.deadlines.hang / 2,
                work_waits=lambda: (work := self._state().job.work) is not None and work.inflight > 0,
            )
            self._engine_sensor = sensor
            self._attempt.append(self.start_sensor(sensor, supervision.engine_sample))
        growth = GrowthSensor(job, wanted=lambda what: self._may_grow(what, attempt))
        self._attempt.append(self.start_sensor(growth, min(GROWTH_S, supervision.scan), deadline_s=60.0))
        if self._run_file.nodes is None:
            self._attempt.append(self.start_sensor(EffortSensor(self._all_processes), EFFORT_S))
        snapshot = read_snapshot(folder)
        self._configs = ConfigWatch(snapshot, self._state().orders.config_changed) if snapshot else None

    def _may_grow(self, what: GrowthKind, attempt: int) -> bool:
        """A model is downloaded before the first step; what else arrives in that cache later is not ours to judge."""
        state = self._state()
        return what != "download" or (state.attempt.number == attempt and state.progress.step is None)

    def _all_processes(self) -> Iterator[tuple[f.Role | None, int, int, bool]]:
        """Those with a role, and the helpers of the attempt's tree."""
        named = self._state().job.processes_here()
        yield from ((one.role, one.pid, one.start_ticks, one.key) for one in named)
        known = {(one.pid, one.start_ticks) for one in named}
        yield from ((None, *other, False) for other in self.identities() if other not in known)

    def _attached_processes(
        self, job: Job, attempt: int, found: Sequence[ShimState], known: set[int]
    ) -> list[f.ProcessSeen]:
        """The top of a job that was attached: no shim is above it, so no scan would find it and tell of it."""
        new = []
        for one in found:
            if one.how == HOW and one.pid is not None and one.start_ticks is not None and one.pid not in known:
                title = read_title(one.pid)
                role, key = job.classify_process(title, "") or ("job", False)
                new.append(f.ProcessSeen(attempt, role, one.pid, one.start_ticks, title[:TITLE_LENGTH], key))
        for fact in new:
            self._post(fact, "processes")
        return new

    def leave(self, attempt: int | None) -> None:
        """Stop looking at the attempt (None: whichever it is)."""
        if attempt is not None and attempt != self._number:
            return
        self._last_logs = self.log_files()
        self._stop_sensors(self._attempt)
        if self._watcher is not None:
            self._watcher.close()
        if self._logs is not None:
            self._logs.close()
        self._attempt, self._watcher, self._scanner, self._logs = [], None, None, None
        self._configs, self._number = None, None

    # ------------------------------------------------------------ an inference server of our own

    def watch_engine(self, job: Job, engine: int, positions: Sequence[Mapping[str, object]] = ()) -> None:
        """Look at the inference server that was started for the ``engine``-th time, whatever becomes of attempts.

        ``positions``: where the daemon before was in its log.
        """
        self.leave_engine(None)
        state_dir, sample = self._run_file.state_dir, self._run_file.supervision.sample
        self._engine = EngineWatch(
            engine,
            engine_dir(state_dir, engine) / f"{COMPONENT}.log",
            job,
            lambda: look_at(state_dir, engine),
            lambda sensor: self.start_sensor(sensor, min(LOG_INTERVAL_S, sample)),
            positions=positions,
        )
        if self._scanner is not None:
            for root in self._engine_roots():
                self._scanner.add_root(root)

    @property
    def engine(self) -> int | None:
        """Number of the inference server that is looked at."""
        return self._engine.engine if self._engine is not None else None

    def leave_engine(self, engine: int | None) -> None:
        """Stop looking at it (None: whichever it is); its log stays to be read."""
        watch = self._engine
        if watch is None or engine not in (None, watch.engine):
            return
        self._last_logs["inference"] = watch.log
        watch.close()
        self._engine = None

    def _engine_roots(self) -> list[Identity]:
        if self._engine is None:
            return []
        root = _root_of_output(look_at(self._run_file.state_dir, self._engine.engine))
        return [] if root is None else [root]

    def close(self) -> None:
        """Stop looking at anything."""
        self.leave(None)
        self.leave_engine(None)
        self._stop_sensors(self._pod)
        self._pod = []

    # ------------------------------------------------------------ questions

    def look_at_steps(self) -> None:
        """Look at the checkpoint folders now."""
        if self._steps is not None:
            self._steps.wake()

    def engine_page(self) -> tuple[float, bytes] | None:
        """The engine's /metrics as it was last read (Unix time), whatever has become of the engine since."""
        return self._engine_sensor.page if self._engine_sensor is not None else None

    def look_at_configs(self) -> None:
        """Compare the configuration on disk with the snapshot that runs."""
        watch = self._configs
        for fact in watch.look() if watch else ():
            self._post(fact, "config")
        # A daemon reads its run file once: a person who changed it and restarts the job would wait for nothing.
        path, note = self._state().settings.run_file, ""  # as a shell reads it
        with contextlib.suppress(OSError):
            if path and Path(*shlex.split(path)).stat().st_mtime > self._began_wall:
                note = f"{path} was written after this daemon had read it. To take it: supervisorctl upgrade"
                note += " (what starts the job: and then supervisorctl restart)"
        self.run_file_note = note

    def log_files(self) -> dict[str, Path]:
        """Newest log file of each role; the ended attempt's until the next one has some."""
        found = self._newest_logs() or self._last_logs
        engine = {"inference": self._engine.log} if self._engine is not None else {}
        if not engine and "inference" in self._last_logs and self._state().settings.inference == "own-role":
            engine = {"inference": self._last_logs["inference"]}
        return {**found, **engine}

    def _newest_logs(self) -> dict[str, Path]:
        newest: dict[str, tuple[float, Path]] = {}
        for source in self._sources:
            if source.kind != "text":
                continue
            for name in glob.glob(source.path):  # noqa: PTH207 - the pattern is absolute, which Path.glob refuses
                path = Path(name)
                with contextlib.suppress(OSError):
                    changed = path.stat().st_mtime
                    if changed >= newest.get(source.role, (0.0, path))[0]:
                        newest[source.role] = (changed, path)
        return {role: path for role, (_, path) in newest.items()}

    def positions(self) -> list[dict[str, str | int]] | None:
        """Where the log files were read to; None while none is followed."""
        if self._logs is None:
            return None
        return [*self._logs.positions(), *(self._engine.positions() if self._engine else ())]

    def gpu_free(self, *roles: str) -> bool | None:
        """Is the memory of the run's GPUs (of these roles, or of all) back? None when it is unknown."""
        if self._plan is not None and not self._plan.inference and not self._plan.trainer:
            return True  # the run names no GPU: there is nothing of it to wait for
        state = self._state()
        if state.gpus.reason or not state.gpus.by_uuid:
            return None
        mine = [memory.gpu for memory in state.gpus.by_uuid.values() if memory.gpu.role in (roles or KNOWN_ROLES)]
        return all(gpu.is_empty for gpu in mine) if mine else None

    def gpu_pids(self) -> list[int]:
        """The processes that the driver lists on the run's GPUs, at the last look; [] where it hides that."""
        gpus = [memory.gpu for memory in self._state().gpus.by_uuid.values() if memory.gpu.role in KNOWN_ROLES]
        return sorted({pid for gpu in gpus for pid in gpu.pids or ()})

    def identities(self) -> list[Identity]:
        """Every process that was seen in the attempt's tree, also those of no role."""
        return self._scanner.identities() if self._scanner is not None else []

    # ------------------------------------------------------------ lookers

    def start_sensor(self, sensor: Sensor, interval_s: float, deadline_s: float = 15.0) -> Looker:
        """Have it look from now on; what it says goes to the loop."""
        name = sensor.name
        looker = Looker(sensor, lambda fact: self._post(fact, name), interval_s=interval_s, deadline_s=deadline_s)
        looker.start()
        return looker

    @staticmethod
    def _stop_sensors(lookers: list[Looker]) -> None:
        for looker in lookers:
            looker.stop(timeout_s=0.5)


@dataclass
class _Exits:
    """The components' ends, each told only after its last lines: they say whether it finished, and why it did not."""

    attempt: int
    components: Sequence[str]
    look: Callable[[str], ShimState]
    logs: LogSensor
    following: Looker
    last: dict[str, LastLines] = field(default_factory=dict)

    def __call__(self) -> list[f.ComponentExited | f.Remark | None]:
        found: list[f.ComponentExited | f.Remark | None] = []
        for name in self.components:
            one = self.look(name)
            if one.state == "running" and one.reason:
                found.append(f.Remark("shim-gone", f"{name} runs on, though {one.reason}.", "warning"))
            if one.state not in ("exited", "lost"):
                continue
            if name not in self.last:
                self.last[name] = LastLines(self.logs, self.following)
            if self.last[name].are_read():
                fact = f.ComponentExited(self.attempt, name, one.exit_code, one.signal, lost=one.state == "lost")
                if (place := one.place) is not None:
                    age_s = time.time() - one.ended_wall if one.ended_wall is not None else 0.0
                    fact = replace(fact, host=place.host, role=place.role, index=place.index, age_s=max(0.0, age_s))
                found.append(fact)
            else:
                found.append(None)
        return found


def _root_of_output(found: ShimState) -> Identity | None:
    # Without a shim what the person started is the top of the tree itself. On another machine its agent looks.
    pid = found.pid if found.how == HOW else found.shim_pid
    return identity_of(pid) if pid and found.place is None else None
