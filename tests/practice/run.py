"""One practice run, ready to start: an install, a configuration with free ports, GPUs, knobs and its environment.

What tests and the demo use; see the package's docstring for an example.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.practice.command_line import toml_value
from tests.practice.era import Era, load_era
from tests.practice.gpus import DEFAULT_TOTAL_BYTES, make_gpus
from tests.practice.install import example, install, without_inference
from tests.practice.knobs import State, read_knobs
from tests.practice.nvml.build import build
from tests.practice.processes import registered_processes

STEP = re.compile(r"^\[[a-z]+0\]:\S+ \S+SUCCESS\S* \S*?Step (\d+) \|")


@dataclass(frozen=True)
class Practice:
    """A practice run's places. `home` is the installed prime-rl and the job's working folder."""

    era: Era
    home: Path
    config: Path
    knobs_file: Path
    run_dir: Path
    """The folder that holds checkpoints/."""
    port: int
    engine_port: int
    gpus: Path
    engine_config: Path | None = None
    """The inference server's own configuration, where it is not in `config`."""

    @property
    def environment(self) -> dict[str, str]:
        """What the job needs: [job].env must pass the two PRACTICE_ variables, and PATH must find .venv/bin."""
        path = f"{self.home / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '/usr/bin:/bin')}"
        return {"PRACTICE_FILE": str(self.knobs_file), "PRACTICE_GPUS": str(self.gpus), "PATH": path}

    def driver_environment(self, library_folder: Path) -> dict[str, str]:
        """What a watcher of the GPUs needs before it starts: the NVML stand-in, built there, and the GPUs."""
        build(library_folder)
        return {"LD_LIBRARY_PATH": str(library_folder), "PRACTICE_GPUS": str(self.gpus)}

    def command(self, *extra: str) -> list[str]:
        return [str(self.home / ".venv" / "bin" / "rl"), "@", str(self.config), *extra]

    def resume_flags(self, step: int) -> list[str]:
        """The era's own spelling of "resume at this step"."""
        return [f"--{self.era.command_line['resume_key'].replace('_', '-')}", str(step)]

    def set_knobs(self, *, faults: Iterable[dict[str, Any]] = (), **knobs: Any) -> None:
        """Writes the knobs file. Raises ValueError for an unknown knob or fault."""
        lines = [f"{name} = {toml_value(value)}" for name, value in knobs.items()]
        for fault in faults:
            lines += ["[[fault]]", *(f"{name} = {toml_value(value)}" for name, value in fault.items())]
        self.knobs_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        read_knobs(self.knobs_file)

    def start(self, *extra: str, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        """Starts the launcher in a session of its own; its output goes to `launcher_output`."""
        with self.launcher_output.open("ab") as output:
            return subprocess.Popen(
                command or self.command(*extra),
                cwd=self.home,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def launcher_output(self) -> Path:
        return self.home / "launcher.out"

    @property
    def state(self) -> State:
        return State(self.home, self.run_dir)

    def starts(self) -> list[dict[str, Any]]:
        """What each start was given: `arguments`, `folder`, environment `names`, `values` of identities in it."""
        file = self.state.folder / "starts.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def logs(self) -> Path:
        """The log folder of the present attempt."""
        folder = self.run_dir / "logs"
        return folder / "latest" if self.era.layout["attempts"] else folder

    def log(self, role: str) -> str:
        """The text of a role's log (`trainer`, `orchestrator`, `inference`); "" before it is there."""
        file = self.logs() / f"{role}{self.era.layout['log_suffix']}"
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def answers(self) -> list[dict[str, Any]]:
        """What the engines answered to rollouts: `step`, `weights` that ended the answer, `pid` of the engine core."""
        file = self.state.folder / "answers.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def trained_steps(self) -> list[int]:
        """The steps that the present attempt's trainer logged as done."""
        return [int(found[1]) for line in self.log("trainer").splitlines() if (found := STEP.match(line))]

    def trainer_part(self, step: int) -> Path:
        return self.run_dir / "checkpoints" / f"step_{step}" / str(self.era.layout["trainer_dir"])

    def orchestrator_part(self, step: int) -> Path:
        tree = self.run_dir / str(self.era.layout["orchestrator_tree"])
        return tree / "checkpoints" / f"step_{step}" / "orchestrator"

    def alive(self) -> dict[int, str]:
        """The run's living processes, orphans included: pid -> role."""
        return registered_processes(self.home)

    def pids(self, role: str) -> list[int]:
        return [pid for pid, found in self.alive().items() if found == role]

    def end_all(self, timeout_s: float = 10.0) -> None:
        """Kills everything of this install. Raises TimeoutError when something lives on."""
        deadline = time.monotonic() + timeout_s
        while found := self.alive():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"These processes do not end: {found}")
            time.sleep(0.02)


def make_practice(
    folder: Path,
    era_name: str,
    *,
    max_steps: int = 8,
    interval: int = 2,
    gpu_count: int = 2,
    gpu_bytes: int = DEFAULT_TOTAL_BYTES,
    inference_gpus: tuple[int, ...] = (0,),
    trainer_gpus: tuple[int, ...] = (1,),
    own_engine: bool = False,
    faults: Iterable[dict[str, Any]] = (),
    **knobs: Any,
) -> Practice:
    """Makes the install in `folder/prime-rl`, GPUs in `folder/gpus`, knobs beside them, and finds free ports.

    `own_engine`: the configuration has no [inference], and the inference server has a file of its own.
    """
    era = load_era(era_name)
    home = install(folder / "prime-rl", era_name)
    offset = int(era.engine["port_offset"])
    port = free_port_pair(offset)
    config = home / "configs" / "practice.toml"
    text = example(
        era,
        port=port,
        max_steps=max_steps,
        interval=interval,
        inference_gpus=inference_gpus,
        trainer_gpus=trainer_gpus,
    )
    engine_config = home / "configs" / "inference.toml" if own_engine else None
    if engine_config is not None:
        text, engine_text = without_inference(era, text, port)
        engine_config.write_text(engine_text, encoding="utf-8")
    config.write_text(text, encoding="utf-8")
    make_gpus(folder / "gpus", gpu_count, gpu_bytes)
    run_dir = home / "outputs" / ("practice" if era.layout["run_dirs"] else "")
    practice = Practice(
        era=era,
        home=home,
        config=config,
        knobs_file=folder / "practice-knobs.toml",
        run_dir=run_dir,
        port=port,
        engine_port=port + offset,
        gpus=folder / "gpus",
        engine_config=engine_config,
    )
    practice.set_knobs(faults=faults, **knobs)
    return practice


def free_port_pair(offset: int) -> int:
    """A port that is free, and free `offset` higher too; below the range from which clients' own ports are taken."""
    choices = random.SystemRandom()
    for _ in range(200):
        port = choices.randrange(12000, 31000)
        if all(_is_free(candidate) for candidate in {port, port + offset}):
            return port
    raise RuntimeError("No free port between 12000 and 31000 in 200 tries")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 15.0) -> None:
    """Polls until the condition holds. Raises TimeoutError, naming `what`, when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {timeout_s:g} s for {what}")
        time.sleep(0.02)
