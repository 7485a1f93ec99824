"""A head and machines with disks of their own: a folder for each, and a rank of the trainer on each."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from supervisor.checkpoints.manifest import Manifest, parse_latest, parse_manifest
from tests.nodes.disk_job import plan_of
from tests.nodes.rig import Cluster
from tests.practice import dcp
from tests.practice.command_line import toml_value

JOB = Path(__file__).with_name("disk_job.py")


class DiskCluster(Cluster):
    """``machines`` agents, on the first ``ranks`` of which a rank of the trainer runs."""

    def __init__(self, folder: Path, machines: int = 3, ranks: int = 3, **settings: Any) -> None:
        self.ranks = ranks
        self.interval = int(settings.pop("interval", 6))
        self.store_folder: Path = settings.pop("store", folder / "store")
        super().__init__(folder, machines, **settings)

    def disk(self, name: str) -> Path:
        return self.folder / f"disk-{name}"

    def write_run_file(self, last: int, lease: float, deadlines: dict[str, float]) -> None:
        tables: dict[str, dict[str, Any]] = {
            "run": {"id": "several", "state_dir": str(self.state_dir)},
            "job": {"kind": "command", "dir": str(self.folder), "output_dir": str(self.disk("head"))},
            "job.plain": {
                "start": [],
                "resume": ["{step}"],
                "checkpoint": "checkpoints/step_{step}",
                "markers": ["trainer/.metadata"],
                "step_line": r"step (?P<step>\d+) done",
                "finish_line": "training finished",
                "first_step": 1,
            },
            "store": {"url": self.store_folder.as_uri()},
            "api": {"socket": str(self.socket)},
            "logging": {"format": "json"},
            "check": {"at_start": False},
            "deadlines": {"engine_grace": 0.5, "step_floor": 6, "step_ceiling": 60, **deadlines},
            "recovery": {"backoff": 0.2, "backoff_cap": 2},
            "supervision": {"sample": 0.2, "scan": 0.3, "quiet": 0.3, "shim": "fork"},
            "disk": {"stop_below_mb": 0},
            "nodes": {
                "folder": str(self.shared),
                "listen": "127.0.0.1:0",
                "lease": lease,
                "wait": 30,
                "disks": "local",
            },
        }
        for name in ["head", *self.names]:
            tables["job"]["output_dir"] = str(self.disk(name))
            lines = []
            for table, values in tables.items():
                lines += [f"[{table}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
            for rank in range(self.ranks):
                disk, words = f"{self.folder}/disk-{{name.{rank}}}", [str(rank), str(self.ranks), "{attempt}"]
                start = [sys.executable, "-u", str(JOB), str(self.folder / "common"), disk, *words, str(last)]
                start.append(str(self.interval))
                part = {"role": "trainer", "machine": rank, "start": start, "resume": [*start, "{step}"]}
                lines += ["[[nodes.components]]", *(f"{key} = {toml_value(value)}" for key, value in part.items())]
            path = self.run_file if name == "head" else self.run_file_of(name)
            path.write_text("\n".join(lines) + "\n")

    def run_file_of(self, name: str) -> Path:
        return self.folder / f"run-{name}.toml"

    def start_agent(self, name: str) -> None:
        words = ["--name", name, "--rank", name[1:], "--state", str(self.folder / name)]
        with (self.folder / f"{name}.out").open("ab") as output:
            self.nannies[name] = subprocess.Popen(
                [sys.executable, "-m", "supervisor.cli.main", "node", str(self.run_file_of(name)), *words],
                stdout=output,
                stderr=output,
                env={**os.environ, "RL_SUPERVISOR_BACKOFF": "0.3", **self.environs.get(name, {})},
                start_new_session=True,
            )

    # ------------------------------------------------------------ what is seen

    def living(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            with contextlib.suppress(psutil.NoSuchProcess):
                common = str(self.folder / "common")
                if str(JOB) in words and common in words and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def step(self) -> int:
        return int(self.status().get("step") or 0)

    def shard(self, name: str, step: int, rank: int) -> Path:
        return self.disk(name) / "checkpoints" / f"step_{step}" / "trainer" / dcp.shard_name(rank)

    def published(self) -> list[int]:
        """Steps with a manifest."""
        folder = self.store_folder / "several"
        return sorted(int(path.parent.name.removeprefix("step_")) for path in folder.glob("step_*/manifest.json"))

    def latest(self) -> int:
        with contextlib.suppress(OSError):
            return parse_latest((self.store_folder / "several" / "latest.json").read_bytes(), "several").step
        return 0

    def check_stored(self, step: int, ranks: int | None = None) -> Manifest:
        """Each byte of a published step is what the ranks wrote. Files of a folder store are plain files."""
        folder = self.store_folder / "several" / f"step_{step}"
        manifest = parse_manifest((folder / "manifest.json").read_bytes(), "several", step)
        assert {file.path: (folder / file.path).read_bytes() for file in manifest.files} == expected(
            step, ranks or self.ranks
        )
        return manifest

    def loaded(self, attempt: int) -> dict[int, str]:
        """What each rank of an attempt found on its disk."""
        gate = self.folder / "common" / f"attempt-{attempt}"
        return {int(path.name.removeprefix("loaded-")): path.read_text() for path in gate.glob("loaded-*")}


@functools.cache
def expected(step: int, ranks: int) -> dict[str, bytes]:
    """All files of a step, as the ranks together write them."""
    progress, plan = dcp.Progress(step, step, step), plan_of(ranks)
    files = {f"trainer/{dcp.shard_name(rank)}": dcp.shard(plan, progress, rank)[0] for rank in range(ranks)}
    files["trainer/.metadata"] = dcp.metadata(plan, progress)
    files["config.json"] = json.dumps({"step": step}).encode()
    return files
