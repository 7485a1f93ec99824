"""The practice job over four machines: trainer and orchestrator on the first, a vLLM on each other one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.nodes.rig import ENGINES, Cluster
from tests.practice.command_line import toml_value
from tests.practice.run import make_practice

LAUNCHER = Path(__file__).with_name("rendering_launcher.py")


class PracticeCluster(Cluster):
    """A cluster whose components are prime-rl's own programs, as the practice job imitates them."""

    def write_run_file(self, last: int, lease: float, deadlines: dict[str, float]) -> None:
        super().write_run_file(last, lease, deadlines)
        self.practice = make_practice(self.folder / "practice", "v0.6", max_steps=last, interval=2, step_s=0.5)
        home = self.practice.home
        env = {name: value for name, value in self.practice.environment.items() if name != "PATH"}
        # The launcher writes the configurations of its parts, and starts none of them.
        dry = [*self.practice.command(), "--dry-run"]
        subprocess.run(dry, cwd=home, env={"PATH": "/usr/bin:/bin", **env}, check=True, capture_output=True)
        programs, parts = home / ".venv" / "bin", self.practice.run_dir / "configs"
        env["PRACTICE_RUN_DIR"] = str(self.practice.run_dir.resolve())

        def command(role: str, *words: str) -> list[str]:
            first = ["torchrun", "--nproc-per-node=1", "-m", "prime_rl.trainer.rl.train"]
            program = first if role == "trainer" else [role]
            attempt = f"PRACTICE_ATTEMPT={self.folder}/attempt-{{attempt}}"
            start = ["env", attempt, str(programs / program[0]), *program[1:], "@", str(parts / f"{role}.toml")]
            return [*start, *words]

        components: list[dict[str, Any]] = []
        for role in ("trainer", "orchestrator"):
            resume = command(role, "--ckpt.resume-step", "{step}")
            components.append({"role": role, "machine": 0, "start": command(role), "resume": resume})
        for number in range(ENGINES):
            start = command("inference", "--server.port", str(self.practice.port + number))
            components.append({"role": "inference", "machine": 1 + number, "start": start})

        text = self.run_file.read_text()
        own, _, _ = text.partition("[[nodes.components]]")
        plain, job = own.index("[job.plain]"), own.index("[job]")
        store = own.index("[store]")
        table = {"kind": "command", "dir": str(home), "output_dir": str(self.practice.run_dir)}
        trained = {
            "start": [],
            "resume": ["{step}"],
            "checkpoint": "checkpoints/step_{step}",
            "also": ["run_default/checkpoints/step_{step}"],
            "markers": ["trainer/.metadata"],
            "step_line": r"SUCCESS\S* \S*?Step (?P<step>\d+) \|",
            "finish_line": "RL trainer finished!",
        }
        assert job < plain < store
        middle = ["[job]", *_lines(table), "[job.env]", *_lines(env), "[job.plain]", *_lines(trained)]
        for component in components:
            middle_of_one = ["[[nodes.components]]", *_lines(component)]
            own += "\n".join(middle_of_one) + "\n"
        self.run_file.write_text(own[:job] + "\n".join(middle) + "\n" + own[store:])

    def living(self) -> list[psutil.Process]:
        found = []
        for pid in self.practice.alive():
            try:
                found.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                continue
        return found

    def core_of_engine(self, name: str) -> psutil.Process:
        """The process of the engine itself below the server on this machine, as soon as it is there."""
        found = self.wait_for(lambda: self._children(name, "engine-core"), f"the engine's core on {name}")
        return found[0]

    def server_of_engine(self, name: str) -> psutil.Process:
        return self._children(name, "inference")[0]

    def _children(self, name: str, part: str) -> list[psutil.Process]:
        pids = set(self.practice.pids(part))
        return [one for one in psutil.Process(self.nannies[name].pid).children(recursive=True) if one.pid in pids]

    def step(self) -> int:
        return int(self.status().get("step") or 0)


class PrimeRlCluster(PracticeCluster):
    """A run of ``kind = "rl"``: before each start the launcher renders the parts."""

    engines = ENGINES

    def write_run_file(self, last: int, lease: float, deadlines: dict[str, float]) -> None:
        Cluster.write_run_file(self, last, lease, deadlines)
        self.practice = make_practice(self.folder / "practice", "2026-08-21", max_steps=last, interval=2, step_s=0.5)
        text = self.practice.config.read_text()
        assert "[deployment]\nnum_infer_gpus = 1\nnum_train_gpus = 1\n" in text
        config = self.folder / "rl.toml"
        config.write_text(text.replace("num_infer_gpus = 1\nnum_train_gpus = 1\n", 'type = "multi_node"\n'))
        launcher = [sys.executable, str(LAUNCHER), str(self.practice.home / ".venv/bin/rl"), str(self.engines)]
        job = {"kind": "rl", "dir": str(self.practice.home), "config": str(config), "launcher": launcher}
        job |= {"output_dir": str(self.folder / "outputs"), "checkpoint_interval": 2}
        env = {name: value for name, value in self.practice.environment.items() if name != "PATH"}
        env |= {"PYTHONPATH": str(LAUNCHER.parents[2])}
        own, _, _ = self.run_file.read_text().partition("[[nodes.components]]")
        begin, end = own.index("[job]"), own.index("[store]")
        middle = ["[job]", *_lines(job), "[job.env]", *_lines(env)]
        self.run_file.write_text(own[:begin] + "\n".join(middle) + "\n" + own[end:])


def _lines(table: dict[str, Any]) -> list[str]:
    return [f"{key} = {toml_value(value)}" for key, value in table.items()]
