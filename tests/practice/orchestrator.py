"""The practice orchestrator: asks the engine for rollouts over real HTTP, ships them to the trainer, and saves its own
part.

Source of the order of things: src/prime_rl/orchestrator/orchestrator.py at each era's commit. What matters outside: a
failing engine is retried for ever, a request has no time-out, and since v0.6 the pipeline line comes at its interval
whether anything moves or not.
"""

from __future__ import annotations

import http.client
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

from tests.practice import imitation
from tests.practice.command_line import CommandLine
from tests.practice.engine_client import EngineHttp
from tests.practice.era import Era
from tests.practice.knobs import Knobs, State, read_knobs
from tests.practice.logs import Log, caught_line, format_duration
from tests.practice.numbers import reward
from tests.practice.orchestrator_state import Counters, load_part, save_part
from tests.practice.outputs import append_metrics, write_rollouts
from tests.practice.pathing import highest_step
from tests.practice.processes import set_title, spawn
from tests.practice.settings import Part, part_settings
from tests.practice.volume import Volume

POLL_S = 0.01
ADMIN_TRIES = 10


class Orchestrator:
    """One orchestrator process."""

    def __init__(self, era: Era, part: Part, knobs: Knobs, state: State) -> None:
        self.era, self.part, self.knobs, self.state = era, part, knobs, state
        run_dir = part.output_dir.parent if era.layout["orchestrator_tree"] else part.output_dir
        file = part.output_dir / "logs" / "orchestrator.log" if era.layout["role_files"] else None
        self.log = Log(part.log_level, file, part.json_lines, module="orchestrator")
        meets_full_volume = not era.layout["orchestrator_tree"]  # where the trainer writes rollouts, it crashes first
        self.volume = Volume(run_dir, knobs if meets_full_volume else replace(knobs, volume_bytes=0), state)
        self.counters = Counters(era.first_step, 0, 0, 0)
        self.policy = 0
        self.have = 0
        self.inflight = 0
        self.env = "reverse-text"
        self.engine = EngineHttp(part.base_url)
        self.started = time.perf_counter()
        self.metrics = run_dir / era.layout["metrics_file"] if era.layout["metrics_file"] else None

    def say(self, level: str, key: str, **values: object) -> None:
        self.log.write(level.upper(), self.era.line("orchestrator", key, **values))

    def run(self) -> None:
        self.say("info", "starting", mode="grpo" if self.era.first_step else "rl")
        self.say("info", "envs")
        self.say("success", "envs_ready")
        self.say("info", "workers", count=1)
        self._await_engine()
        self._load_checkpoint()
        self.say("info", "loop", max_steps=self.part.max_steps or "infinite")
        self.started = time.perf_counter()
        if "pipeline" in self.era.lines["orchestrator"]:
            threading.Thread(target=self._say_pipeline_lines, daemon=True).start()
        if not self.era.titles:
            self._blocking_loop()
            self._finish()
            return
        try:
            self._pipeline_loop()
        except BaseException:
            self.say("warning", "interrupted", duration=format_duration(time.perf_counter() - self.started))
            self._final_part()
            self.say("warning", "forced")
            raise
        self.say("success", "loop_done", duration=format_duration(time.perf_counter() - self.started))
        self._final_part()
        self.say("success", "finished")

    def _finish(self) -> None:
        if self.part.checkpoints:
            self.say("info", "final")
            self._save_part(self.counters.step)
        self.say("success", "finished")

    def _final_part(self) -> None:
        """The part that `finally` writes since 2026-06-01, on any end but a SIGTERM or SIGKILL, without a trainer's
        part beside it."""
        if not self.part.checkpoints:
            return
        step = self.counters.step
        if self.era.first_step == 1:
            if step <= 1:
                return
            step -= 1
        self.say("info", "final")
        self._save_part(step)

    # --- the loops ----------------------------------------------------------------------------------------------------

    def _blocking_loop(self) -> None:
        """Until v0.5: one step after the other, the checkpoint at the loop's top."""
        first = True
        while True:
            step = self.counters.step
            last = self.part.max_steps is not None and step == self.part.max_steps - 1
            if self.part.interval and not first and not last and step % self.part.interval == 0:
                self.say("info", "saving", step=step)
                self._save_part(step)
            if self.part.max_steps is not None and step >= self.part.max_steps:
                return
            self.say("info", "step_begins", step=step, policy=self.policy)
            self._await_policy(step - self.part.max_async_level)
            started = time.perf_counter()
            if not self._fill_batch(step):
                self._stand_still()
            self._ship_batch(step)
            self._count_batch()
            self._step_line(step, time.perf_counter() - started)
            self.counters = self.counters.next()
            first = False

    def _pipeline_loop(self) -> None:
        """Since v0.6: batches are shipped as they fill; v0.6 saves step N before shipping it, later ones after."""
        saves_after = self.era.steps["orchestrator_saves"] == "when-shipped"
        last_step = self.part.max_steps
        while True:
            step = self.counters.step
            if saves_after and last_step is not None and step > last_step:
                self._say_drained(self.era.line("orchestrator", "past_the_end", step=step, max_steps=last_step))
                return
            started = time.perf_counter()
            self._await_policy(
                step - 1 - self.part.max_async_level if saves_after else step - self.part.max_async_level
            )
            if not self._fill_batch(step):
                self._stand_still()
            if not saves_after:
                if step > 0 and (last_step is None or step < last_step):
                    self._interval_part(step)
                if last_step is not None and step >= last_step:
                    self._say_drained("")
                    return
            self._ship_batch(step)
            self._count_batch()
            if saves_after:
                self.counters = self.counters.next()
                if last_step is None or step < last_step:
                    self._interval_part(step)
            self._step_line(step, time.perf_counter() - started)
            if not saves_after:
                self.counters = self.counters.next()
            elif last_step is not None and step >= last_step:
                self._say_drained(self.era.line("orchestrator", "shipped_last"))
                self._await_last_broadcast(last_step - 1)
                return

    def _interval_part(self, step: int) -> None:
        if self.part.interval and step % self.part.interval == 0:
            self.say("info", "saving", step=step)
            self._save_part(step)

    def _say_drained(self, reason: str) -> None:
        self.say("info", "draining", cancelled=self.knobs.rollouts, reason=reason)
        self.say("info", "drained")

    def _await_last_broadcast(self, step: int) -> None:
        if self.part.broadcast_kind == "markers" and not self._stable_marker(step).exists():
            self.say("info", "last_broadcast", step=step)
            while not self._stable_marker(step).exists():
                time.sleep(POLL_S)

    def _stand_still(self) -> None:
        while True:
            time.sleep(1)
            self._end_with_the_install()

    # --- rollouts -----------------------------------------------------------------------------------------------------

    def _fill_batch(self, step: int) -> bool:
        """Fills batch `step`. False when the orchestrator wedges at it: alive, and asking for nothing any more."""
        self.have, self.inflight = 0, 0
        if self.state.strikes(self.knobs, "orchestrator-wedge", step):
            self.have, self.inflight = self.knobs.rollouts // 2, self.knobs.rollouts
            return False
        if self.state.strikes(self.knobs, "imitation", step):
            for line in imitation.raw_lines(self.era):
                self.log.raw(line)
            self.log.write("WARNING", imitation.quote_model(self.era))
        done: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(self.knobs.rollouts):
            threading.Thread(target=self._make_rollout, args=(step, done), daemon=True).start()
        for _ in range(self.knobs.rollouts):
            self._take_rollout(done)
            self.have += 1
        return True

    def _take_rollout(self, done: queue.SimpleQueue[None]) -> None:
        while True:
            try:
                done.get(timeout=1)
            except queue.Empty:
                self._end_with_the_install()
            else:
                return

    def _end_with_the_install(self) -> None:
        """An orphan without its install has nothing to wait for; a real one would wait for ever."""
        if not self.state.folder.exists():
            sys.exit(1)

    def _make_rollout(self, step: int, done: queue.SimpleQueue[None]) -> None:
        """One rollout, tried again for ever."""
        body = {
            "model": self.part.model,
            "prompt": "Reverse: abc",
            "max_tokens": self.knobs.tokens,
            "user": f"step {step}",
        }
        while True:
            self.inflight += 1
            try:
                self.engine.post("/v1/chat/completions" if self.era.titles else "/v1/completions", body)
            except (OSError, http.client.HTTPException) as error:
                name = (
                    "InternalServerError('Error code: 500')"
                    if isinstance(error, http.client.HTTPException)
                    else "APIConnectionError('Connection error.')"
                )
                plain = "Connection error." if isinstance(error, OSError) else "Error code: 500"
                self.say(
                    "warning",
                    "rollout_failed",
                    error=name if self.era.titles else plain,
                    group=uuid.uuid4(),
                    env=self.env,
                )
                time.sleep(self.knobs.retry_s)
            else:
                done.put(None)
                return
            finally:
                self.inflight -= 1

    # --- the policy ---------------------------------------------------------------------------------------------------

    def _stable_marker(self, step: int) -> Path:
        folder = self.part.output_dir / str(self.era.layout["broadcasts"]) / f"step_{step}"
        return folder / ("pytorch_model.bin" if self.part.broadcast_kind == "torch" else "STABLE")

    def _await_policy(self, needed: int) -> None:
        """Waits until the trainer published policy `needed`, then gives it to the engine."""
        if needed > self.policy:
            if not self._stable_marker(needed).exists():
                self.say("info", "gate_closed")
                self.say("info", "barrier", step=needed, lag=self.part.max_async_level)
                self.say("info", "paused", step=needed)
                self.say("info", "holding", step=self.counters.step, needed=needed, have=self.policy)
            waited = time.perf_counter()
            while not self._stable_marker(needed).exists():
                self._end_with_the_install()
                time.sleep(POLL_S)
            duration = format_duration(time.perf_counter() - waited)
            self.say("info", "resumed", step=needed, duration=duration)
            self._update_engine(needed)
            self.say("info", "gate_open")

    def _update_engine(self, step: int) -> None:
        self.say("info", "update", step=step)
        if self.part.broadcast_kind == "markers":
            (self._stable_marker(step).parent / "NCCL_READY").touch()
        for path in self.era.engine["update_paths"]:
            self._tell_engine(path, {"weight_dir": str(self._stable_marker(step).parent)})
        self.policy = step

    def _tell_engine(self, path: str, body: dict[str, str]) -> None:
        """Since 2026-06-10 an update is tried ten times, with waits up to 10 s (utils/client.py, _admin_post)."""
        tries = ADMIN_TRIES if "pipeline" in self.era.lines["orchestrator"] else 1
        for number in range(1, tries + 1):
            try:
                self.engine.post(path, body)
            except (OSError, http.client.HTTPException):
                if number == tries:
                    raise
                time.sleep(min(2 ** (number - 1), 10) * self.knobs.patience)
            else:
                return

    def _await_engine(self) -> None:
        self.say("info", "waiting")
        tries = 0
        while not self._is_up(tries):
            tries += 1
            self._end_with_the_install()
            time.sleep(0.1 if tries > 20 else 0.03)
        self.say("success", "ready")

    def _is_up(self, tries: int) -> bool:
        try:
            return self.engine.healthy()
        except OSError as error:
            if tries and tries % 100 == 0:
                self.say("warning", "not_reached", seconds=tries // 10, error=error, url=self.engine.url)
            return False

    def _load_checkpoint(self) -> None:
        step = self.part.resume_step
        if self.part.resuming and step is None:
            step = highest_step(self.part.output_dir / "checkpoints")
        if step is None or not self.part.resuming:
            self.say("info", "scratch")
            for path in self.era.engine["admin_paths"]:
                self.engine.post(path, {})
            if self.era.first_step == 1:
                self._await_startup_broadcast(0)
            return
        source = self.part.resume_from
        folder = (source or self.part.output_dir / "checkpoints" / f"step_{step}") / "orchestrator"
        self.counters = load_part(self.era, folder)
        self.say("info", "resuming", step=step)
        if self.era.first_step == 1:
            self.counters = self.counters.at(step + 1)
            self._await_startup_broadcast(step)
            return
        needed = max(step - self.part.max_async_level, 0) if self.part.broadcast_kind == "torch" else self.counters.step
        if not self._stable_marker(needed).exists() and needed:
            raise FileNotFoundError(f"No weight directory found for checkpoint step {needed}")
        self._update_engine(needed)

    def _await_startup_broadcast(self, step: int) -> None:
        """The rendezvous with the trainer's start-up broadcast (since 2026-08-08)."""
        while not self._stable_marker(step).exists():
            self._end_with_the_install()
            time.sleep(POLL_S)
        self._update_engine(step)

    # --- what it leaves behind ----------------------------------------------------------------------------------------

    def _ship_batch(self, step: int) -> None:
        size = self.knobs.rollout_bytes
        if not self.era.layout["orchestrator_tree"]:
            size += self.state.growth(self.knobs, step)
        write_rollouts(self.era, self.part.output_dir / "rollouts" / f"step_{step}", step, size, self.volume)
        if self.state.folder.exists():
            (self.state.attempt / f"batch-{step}").touch()

    def _count_batch(self) -> None:
        tokens = self.knobs.rollouts * self.knobs.tokens
        self.counters = self.counters.plus(tokens, self.part.batch_size)

    def _save_part(self, step: int) -> None:
        folder = self.part.output_dir / "checkpoints" / f"step_{step}" / "orchestrator"
        save_part(self.era, folder, self.counters, self.volume)

    def _step_line(self, step: int, seconds: float) -> None:
        value = reward(self.knobs.seed, step)
        size = self.part.batch_size
        rates = {"share": 1.0, "turns": 1.0, "branches": 1.0, "errors": 0.0, "cancelled": 0.0, "truncated": 0.0}
        self.say(
            "success",
            "step",
            step=step,
            seconds=seconds,
            duration=format_duration(seconds),
            reward=value,
            throughput=self.knobs.rollouts * self.knobs.tokens / max(seconds, 0.001),
            length=float(self.knobs.tokens),
            lag=step - self.policy,
            off_policy=step - self.policy,
            trainable=size,
            total=size,
            **rates,
        )
        row = {
            "train/agg/effective/reward/mean": value,
            "time/step": seconds,
            "progress/total_tokens": self.counters.total_tokens,
        }
        append_metrics(self.metrics, step, [row])

    def _say_pipeline_lines(self) -> None:
        while True:
            time.sleep(self.knobs.pipeline_log_s)
            want = self.knobs.rollouts
            self.say(
                "info", "pipeline", have=self.have, want=want, share=self.have / want, inflight=self.inflight, evals=0
            )


def _spawn_envs(era: Era, home: Path) -> subprocess.Popen[bytes] | None:
    """The children that hold the environments, where the orchestrator starts them. A killed orchestrator of January
    2026 leaves its worker."""
    kind = era.processes["env_servers"]
    script = "from tests.practice.entry import main; main()"
    if kind in ("workers", "under-orchestrator"):
        role = "env-worker" if kind == "workers" else "env-server-child"
        return spawn([sys.executable, "-c", script, role, era.name, str(home)], pipe_in=True)
    return None


def main(era: Era, home: Path, arguments: list[str]) -> int:
    if era.titles:
        set_title("PRIME-RL::Orchestrator")
    part = part_settings(era, "orchestrator", CommandLine(era, "orchestrator").parse(arguments))
    knobs = read_knobs()
    state = State(home, Path(os.environ.get("PRACTICE_RUN_DIR") or part.output_dir))
    if state.strikes(knobs, "ignores-sigterm", era.first_step, "orchestrator"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if era.layout["orchestrator_tree"]:
        folder = part.output_dir / ("control" if era.titles else "configs")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "orch.toml").write_text(f'output_dir = "{part.output_dir}"\n')
    environments = _spawn_envs(era, home)
    orchestrator = Orchestrator(era, part, knobs, state)
    try:
        orchestrator.run()
    except (OSError, http.client.HTTPException, KeyError) as error:
        message = era.line("orchestrator", "fatal", function="run_orchestrator") or caught_line("orchestrate")
        orchestrator.log.caught(message, error)
        return 1
    finally:
        if environments is not None:
            environments.terminate()
            environments.wait()
    return 0
