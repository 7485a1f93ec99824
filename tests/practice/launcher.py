"""The practice launcher: `rl`, which cleans or refuses, starts the others, and watches them as the era's own launcher
does.

Source: src/prime_rl/rl.py (to 2026-02-24), then src/prime_rl/entrypoints/rl.py with utils/process.py and
utils/pathing.py. What it does not notice matters as much as what it does: a child that ends with exit 0 is never
missed, in any era.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from pathlib import Path
from types import FrameType
from typing import Any

from tests.practice import gpus
from tests.practice.command_line import CommandLine, get, to_toml
from tests.practice.era import Era
from tests.practice.knobs import Knobs, State, read_knobs
from tests.practice.logs import Log
from tests.practice.pathing import highest_step, step_numbers
from tests.practice.processes import children_of, register, set_title, signal_tree, spawn
from tests.practice.settings import Settings, SettingsError, resolve, subconfigs

SHORTEST_GRACE_S = 1.5
"""However fast the motion: a busy machine needs this long to end a process that wants to."""
LAUNCHER_ARTIFACTS = ("configs", "rl.sbatch", "sft.sbatch", "job_*.log")


class Launcher:
    """One start of a run."""

    def __init__(self, era: Era, home: Path, config: dict[str, Any], run: Settings, knobs: Knobs) -> None:
        self.era = era
        self.config = config
        self.run = run
        self.knobs = knobs
        self.state = State(home, run.run_dir)
        self.home = home
        file = run.output_dir / era.layout["launcher_file"] if era.layout["launcher_file"] else None
        self._log_file = file
        self.log = Log()
        self.children: list[subprocess.Popen[bytes]] = []
        self.threads: list[threading.Thread] = []
        self.ended: dict[str, threading.Event] = {}
        self.errors: list[str] = []

    # --- before the start ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Cleans, refuses or forgets, by the era's rule. Raises FileExistsError where the era refuses."""
        rule = self.era.start["clean"]
        if rule.startswith("refuse"):
            self._refuse_or_clean(rule)
            self.run.run_dir.mkdir(parents=True, exist_ok=True)
            self._forget_future_steps()
            self.log = Log(self.run.log_level, json_lines=self.run.json_lines)
            return
        self.log = Log(self.run.log_level, self._log_file)
        self.say("info", "start")
        if self.run.clean:
            self._wipe_folders(rule)

    def _wipe_folders(self, rule: str) -> None:
        self.say("info", "clean")
        root, other = self.run.run_dir, self.run.orchestrator_dir
        resuming = bool(self.run.resume_step) or (self.run.resuming and self.run.resume_step is None)
        doomed = [("clean_logs", root / "logs")]
        if rule == "everything":
            if not resuming:
                doomed += [("clean_checkpoints", root / "checkpoints"), ("clean_weights", root / "weights")]
        else:
            doomed.append(("clean_orchestrator_logs", other / "logs"))
            if not (resuming and self.run.broadcast_kind == "filesystem"):
                doomed.append(("clean_broadcasts", other / "broadcasts"))
        doomed.append(("clean_rollouts", other / "rollouts"))
        for key, folder in doomed:
            self.say("info", key, path=folder)
            shutil.rmtree(folder, ignore_errors=True)
        (root / "logs").mkdir(parents=True, exist_ok=True)
        (other / "logs").mkdir(parents=True, exist_ok=True)

    def _refuse_or_clean(self, rule: str) -> None:
        if self.run.resuming:
            return
        folders = list(dict.fromkeys([self.run.run_dir, self.run.checkpoint_dir]))
        if self.run.clean and not os.environ.get(self.era.start["never_clean_variable"]):
            for folder in folders:
                if folder.exists():
                    self.say("warning", "cleaning", path=folder)
                    shutil.rmtree(folder)
            return
        for number, folder in enumerate(folders):
            checkpoints = folder / "checkpoints"
            used = checkpoints.is_dir() and any(checkpoints.iterdir())
            if rule == "refuse-artifacts" and number == 0:
                allowed = {entry for pattern in LAUNCHER_ARTIFACTS for entry in folder.glob(pattern)}
                used = folder.is_dir() and any(entry not in allowed for entry in folder.iterdir())
            if used:
                raise FileExistsError(self.era.line("launcher", "refused", path=folder))

    def _forget_future_steps(self) -> None:
        step: int | None = self.run.resume_step
        if self.run.resuming and step is None:
            checkpoints = self.run.checkpoint_dir / "checkpoints"
            step = highest_step(checkpoints)
            if step is None:
                self.say("warning", "none_found", path=checkpoints)
            else:
                self.say("info", "latest", path=checkpoints, step=step)
        self.say("info", "from_scratch" if step is None else "from_step", step=step)
        limit = -1 if step is None else step
        root, other = self.run.run_dir, self.run.orchestrator_dir
        for folder in dict.fromkeys([root / "rollouts", other / "rollouts", other / "broadcasts"]):
            doomed = [number for number in step_numbers(folder) if number > limit]
            if doomed:
                self.say("info", "deleting", count=len(doomed), path=folder, steps=",".join(map(str, doomed)))
            for number in doomed:
                shutil.rmtree(folder / f"step_{number}")

    # --- the start ----------------------------------------------------------------------------------------------------

    def start(self) -> int:
        attempt = self.state.folder / f"attempt-{os.getpid()}"
        shutil.rmtree(attempt, ignore_errors=True)
        os.environ["PRACTICE_ATTEMPT"] = str(attempt)
        os.environ["PRACTICE_RUN_DIR"] = str(self.run.run_dir.resolve())
        (self.home / ".practice" / "run-dir").write_text(os.environ["PRACTICE_RUN_DIR"], encoding="utf-8")
        commands = self._child_commands()
        if self.run.dry_run:
            self.say("success", "dry")
            return 0
        engines, trainers = self._gpu_numbers()
        if self.era.start["clean"].startswith("refuse"):
            self.say("info", "start")
        logs = self._log_folder()
        titled = self.era.titles
        if titled:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        if self.state.strikes(self.knobs, "ignores-sigterm", self.era.first_step, "launcher"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        suffix = self.era.layout["log_suffix"]
        try:
            if self.run.has_inference:
                self.say("info", "inference", gpus=" ".join(map(str, engines)))
                self._launch_child(
                    "inference",
                    commands["inference"],
                    logs / f"inference{suffix}",
                    {"CUDA_VISIBLE_DEVICES": ",".join(map(str, engines))},
                )
            else:
                self.say("warning", "no_inference")
            for env, command in self._env_commands():
                file = logs / "envs" / "train" / f"{env}.log"
                self.say("info", "env_server", split="train", env=env, address="tcp://127.0.0.1:5000")
                self._launch_child(f"train env server {env}", command, file, {})
            self.say("info", "orchestrator")
            colours = {"LOGURU_FORCE_COLORS": "1", "WANDB_PROGRAM": "uv run rl", "WANDB_ARGS": json.dumps(sys.argv)}
            self._launch_child(
                "orchestrator",
                commands["orchestrator"],
                logs / f"orchestrator{suffix}",
                colours | self._wandb_variables("orchestrator"),
            )
            self.say("info", "trainer", gpus=" ".join(map(str, trainers)))
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, trainers)), "PYTHONUNBUFFERED": "1"}
            self._launch_child(
                "trainer",
                commands["trainer"](logs, len(trainers)),
                logs / f"trainer{suffix}",
                colours | visible | self._wandb_variables("trainer"),
            )
            self.say("success", "up")
            self._tail_log(logs / f"{self.era.processes['tail_of']}{suffix}")
            return self._watch_children()
        except KeyboardInterrupt:
            self.say("warning", "interrupted")
            self._clean_up()
            return 1
        except OSError as error:
            self.log.write("ERROR", f"Error occurred: {error}")
            self._clean_up()
            raise

    def _launch_child(self, name: str, command: list[str], file: Path, environment: dict[str, str]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w") as output:
            child = spawn(command, environment, output=output.fileno())
        self.children.append(child)
        event = self.ended[name] = threading.Event()
        thread = threading.Thread(target=self._wait_for, args=(child, event, name), daemon=True)
        thread.start()
        self.threads.append(thread)

    def _wait_for(self, child: subprocess.Popen[bytes], event: threading.Event, name: str) -> None:
        code = child.wait()
        if code != 0:
            self.errors.append(self.era.line("launcher", "failed", name=name.capitalize(), code=code))
        event.set()

    def _watch_children(self) -> int:
        while not (self.ended["orchestrator"].is_set() and self.ended["trainer"].is_set()):
            if self.errors:
                self.say("error", "error", error=self.errors[0])
                self.say("error", "terminating")
                self._clean_up()
                return 1
            # Short beside a step, as the real second is: two ends that fall into one look count as a finish.
            time.sleep(self.era.processes["poll_s"] * min(self.knobs.patience, self.knobs.step_s / 100))
        if self.era.titles and self.errors:
            self.log.write("ERROR", self.errors[0])
            self._clean_up()
            return 1
        self.say("success", "finished")
        self._clean_up()
        return 0

    def _clean_up(self) -> None:
        grace_s = max(SHORTEST_GRACE_S, self.era.processes["grace_s"] * self.knobs.patience)
        for thread in self.threads:
            thread.join(timeout=self.era.processes["join_s"] * self.knobs.patience)
        for child in self.children:
            if child.poll() is not None:
                continue
            self._signal_child(child, signal.SIGTERM)
            try:
                child.wait(timeout=grace_s)
            except subprocess.TimeoutExpired:
                self._signal_child(child, signal.SIGKILL)
        shutil.rmtree(os.environ["PRACTICE_ATTEMPT"], ignore_errors=True)

    def _signal_child(self, child: subprocess.Popen[bytes], number: int) -> None:
        """The whole tree since 2026-04-01; before, only the direct child, which is the `uv` wrapper."""
        if self.era.processes["sigterm"] == "tree":
            signal_tree(child.pid, number)
        else:
            child.send_signal(number)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.say("warning", "terminated")
        self._clean_up()
        sys.exit(1)

    # --- what it starts -----------------------------------------------------------------------------------------------

    def _child_commands(self) -> dict[str, Any]:
        parts = subconfigs(self.era, self.config, self.run)
        files = {role: self._write_config(role, part) for role, part in parts.items()}
        kind = self.era.layout["config_format"]
        if kind != "temp-toml":
            self.say("info", "wrote", path=self.run.run_dir / "configs")
        wrapper = [uv_of(self.home), "run"] if self.era.processes["wrapper"] == "uv" else []

        def trainer(logs: Path, ranks: int) -> list[str]:
            root = self.run.run_dir if wrapper else logs.parent.parent if self.era.layout["attempts"] else logs.parent
            folder = (logs if self.era.layout["attempts"] else root) / self.era.layout["torchrun_dir"]
            role = self.era.processes["torchrun_role"]
            return [
                *(
                    [*wrapper, "env", "PYTHONUNBUFFERED=1", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]
                    if wrapper
                    else []
                ),
                "torchrun",
                *([f"--role={role}"] if role != "default" else []),
                f"--rdzv-endpoint=localhost:{free_port()}",
                f"--rdzv-id={uuid.uuid4().hex}",
                f"--log-dir={folder}",
                "--local-ranks-filter=0",
                "--redirect=3",
                "--tee=3",
                f"--nproc-per-node={ranks}",
                "-m",
                "prime_rl.trainer.rl.train",
                "@",
                files["trainer"],
            ]

        return {
            "inference": [*wrapper, "inference", "@", files["inference"]],
            "orchestrator": [*wrapper, "orchestrator", "@", files["orchestrator"]],
            "trainer": trainer,
        }

    def _write_config(self, role: str, part: dict[str, Any]) -> str:
        if self.era.layout["config_format"] == "temp-toml":
            folder, name, text = Path(".pydantic_config"), f"temp_{uuid.uuid4()}.toml", to_toml(part)
        elif self.era.layout["config_format"] == "toml":
            folder, name, text = self.run.run_dir / "configs", f"{role}.toml", to_toml(part)
        else:
            folder, name, text = self.run.run_dir / "configs", f"{role}.json", json.dumps(part, indent=2)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        return (folder / name).as_posix()

    def _env_commands(self) -> list[tuple[str, list[str]]]:
        if self.era.processes["env_servers"] != "under-launcher":
            return []
        commands = []
        for number, source in enumerate(get(self.config, "orchestrator.train.source", [{"name": "reverse-text"}])):
            name = source.get("name") or "reverse-text"
            file = self.run.run_dir / "configs" / "envs" / "train" / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(
                json.dumps(
                    {"env": source.get("env"), "serve": {"address": f"tcp://127.0.0.1:{5000 + number}"}}, indent=2
                )
            )
            commands.append((name, ["env-server", "@", file.as_posix()]))
        return commands

    def _wandb_variables(self, role: str) -> dict[str, str]:
        variable = self.era.start["wandb_variable"]
        if not variable:
            return {}
        name = "WANDB_RUN_ID" if variable == "PRL_RUN_ID" else variable
        identity = os.environ.setdefault(variable, uuid.uuid4().hex)
        return {"WANDB_SHARED_MODE": "1", name: identity, "WANDB_SHARED_LABEL": role}

    def _gpu_numbers(self) -> tuple[list[int], list[int]]:
        engines, trainers = list(self.run.inference_gpus), list(self.run.trainer_gpus)
        if self.era.command_line["gpus"] == "ids":
            return engines, trainers
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        physical = (
            [int(part) for part in visible.split(",") if part.strip()] if visible is not None else gpus.installed_gpus()
        )
        wanted = len(engines) + len(trainers)
        if wanted > len(physical):
            raise ValueError(
                f"Requested {wanted} GPUs via deployment settings, but only "
                f"{len(physical)} physical GPU(s) are available: {physical}"
            )
        self.say("info", "mapping", mapping={number: physical[number] for number in range(wanted)})
        return [physical[number] for number in engines], [physical[number] for number in trainers]

    def _log_folder(self) -> Path:
        logs = self.run.run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        if not self.era.layout["attempts"]:
            return logs
        attempts = [int(path.name[8:]) for path in logs.glob("attempt_*") if path.name[8:].isdigit()]
        folder = logs / f"attempt_{1 + max(attempts, default=0)}"
        folder.mkdir()
        link = logs / f".{folder.name}"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        link.replace(logs / "latest")
        return folder

    def _tail_log(self, file: Path) -> None:
        command = ["tail", "-F", str(file)]
        if self.era.processes["tail"] == "shell":
            command = ["/bin/sh", "-c", f"tail -F '{file}'"]
        child = spawn(command)
        register(self.home, child.pid, "tail")
        self.children.append(child)
        if self.era.processes["tail"] == "shell":
            # A shell that is killed leaves its tail behind, with nothing to tell where it belongs.
            deadline = time.monotonic() + 1.0
            while not (found := children_of(child.pid)) and time.monotonic() < deadline and child.poll() is None:
                time.sleep(0.005)
            for pid in found:
                register(self.home, pid, "tail")

    def say(self, level: str, key: str, **values: object) -> None:
        self.log.write(level.upper(), self.era.line("launcher", key, **values))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def uv_of(home: Path) -> str:
    """The install's own `uv`: a real one on PATH would try to build the folder."""
    return str(home / ".venv" / "bin" / "uv")


def main(era: Era, home: Path, arguments: list[str]) -> int:
    if era.titles:
        set_title("PRIME-RL::Launcher")
    config = CommandLine(era, "rl").parse(arguments)
    knobs = read_knobs()
    try:
        run = resolve(era, config)
        launcher = Launcher(era, home, config, run, knobs)
        number = launcher.state.record_start(arguments)
        if launcher.state.config_is_wrong(knobs, number):
            raise SettingsError("max_steps\n  Input should be a valid integer (practice fault config-error)")
        launcher.prepare()
        return launcher.start()
    except SettingsError as error:
        name = "pydantic_core._pydantic_core.ValidationError"
        print(f"Traceback (most recent call last):\n{name}: 1 validation error for RLConfig\n{error}", file=sys.stderr)
        return 1
    except (OSError, ValueError):
        traceback.print_exc()
        return 1
