"""A practice run that a job of the real cluster carries."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.rig import NVML, Pod
from tests.slurm.box import Cluster, wait_for


class SlurmRun(Pod):
    """Its folder is what all nodes share. ``each_node``: a state folder for each node, as on a local disk."""

    def __init__(
        self, cluster: Cluster, folder: Path, *, each_node: bool = False, settings: dict[str, Any], **knobs: Any
    ) -> None:
        settings = {**settings, "run": {**settings.get("run", {}), "id": folder.parent.name[:60]}}
        if each_node:
            settings["run"]["state_dir"] = "~/state"
            lines = ['export HOME="$(dirname "$run")/$SLURMD_NODENAME"; mkdir -p "$HOME"']
            settings["slurm"] = {**settings.get("slurm", {}), "setup": lines}
        super().__init__(folder, "v0.6", settings=settings, **{"step_s": 0.4, "max_steps": 100_000, **knobs})
        self.cluster, self.run_id = cluster, settings["run"]["id"]
        self.job = ""

    def slurm(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "supervisor.cli.main", "slurm", verb, str(self.run_file), *words],
            env={**self.cluster.environ, **self.practice.driver_environment(NVML)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def submit(self) -> SlurmRun:
        done = self.slurm("submit")
        assert done.returncode == 0, done.stderr
        self.job = done.stdout.split()[2].rstrip(".")
        self.output = self.folder / f"run.slurm-{self.job}.log"
        return self

    # ------------------------------------------------------------ what is seen

    def until(self, what: Callable[[], Any], about: str, timeout_s: float = 60) -> Any:
        return wait_for(what, about, timeout_s, self.story)

    def until_state(self, *states: str, timeout_s: float = 60) -> None:
        self.until(lambda: self.cluster.state(self.job) in states, f"job {self.job} is {states}", timeout_s)

    def until_starts(self, count: int, timeout_s: float = 60) -> None:
        self.until(lambda: len(self.practice.starts()) >= count, f"start {count} of the trainer", timeout_s)

    def until_published(self, newer_than: int = 0, timeout_s: float = 60) -> int:
        self.until(lambda: max(self.stored(), default=0) > newer_than, f"a step after {newer_than}", timeout_s)
        return max(self.stored())

    def stored(self) -> list[int]:
        folder = Path(self.store.removeprefix("file://")) / self.run_id
        return sorted(int(path.parent.name.removeprefix("step_")) for path in folder.glob("step_*/manifest.json"))

    def latest(self) -> dict[str, Any]:
        pointer = Path(self.store.removeprefix("file://")) / self.run_id / "latest.json"
        return dict(json.loads(pointer.read_text())) if pointer.exists() else {}

    def claims(self) -> list[dict[str, Any]]:
        """Each claim there is, in order, with ``released``."""
        return read_claims(Path(self.store.removeprefix("file://")) / self.run_id)

    def story(self) -> str:
        queue = self.cluster.do("squeue", "-t", "all", "-o", "%i %j %T %r %N %x %k")
        return f"{super().story()}\n{queue}"

    def close(self) -> None:
        with contextlib.suppress(AssertionError):
            if self.job:
                self.cluster.do("scancel", "--full", "--signal=KILL", self.job)
                self.cluster.do("scancel", self.job)
        super().close()


def read_claims(folder: Path) -> list[dict[str, Any]]:
    """The claims of a run in a store that is a folder, in order, with ``released``."""
    found = []
    for path in sorted((folder / "writers").glob("gen_?????.json")):
        end = path.with_name(f"{path.stem}.end.json")
        found.append({**json.loads(path.read_text()), "released": end.exists()})
    return found
