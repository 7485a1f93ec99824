"""A JobSet over several machines: its pods are processes here, with the commands and variables of the file."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.fleet.kubernetes import Cluster as Kubernetes
from supervisor.fleet.kubernetes import make_job_set
from tests.nodes.rig import Cluster

ADDRESS = 'address = "several-head-0-0.several"\nlisten = "0.0.0.0:7433"'


class JobSetCluster(Cluster):
    """What the controllers of JobSet and Job would do: a pod for the head, and one for each index."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, machines=4, last=60, lease=15, machine_silent=5)
        # In the cluster the head has a name; here it is this machine, at any port.
        here = self.run_file.read_text()
        there = here.replace('listen = "127.0.0.1:0"', ADDRESS)
        assert there != here
        self.run_file.write_text(there)
        text = make_job_set(self.run_file, Kubernetes("image", gpus=8, claim=f"data:{folder}"), ())
        self.run_file.write_text(here)
        jobs = {one["name"]: one["template"]["spec"] for one in yaml.safe_load(text)["spec"]["replicatedJobs"]}
        self.jobs = {name: spec["template"]["spec"]["containers"][0] for name, spec in jobs.items()}
        assert jobs["machines"]["completions"] == len(self.names)
        self.pods = 0

    def make_pod(self, job: str, index: str, output: Path) -> subprocess.Popen[bytes]:
        container: dict[str, Any] = self.jobs[job]
        self.pods += 1
        own = self.folder / f"pod-{self.pods}"  # what a pod has for itself
        own.mkdir()
        env = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        env |= {
            "RL_SUPERVISOR_RUN_FILE_B64": base64.b64encode(self.run_file.read_bytes()).decode(),
            "RL_SUPERVISOR_LABEL": f"several-{job}-0-{index}-{self.pods}x",
            "RL_SUPERVISOR_VENV": sys.prefix,
            "RL_SUPERVISOR_ETC": str(own / "etc"),
            "RL_SUPERVISOR_LOCKS": str(own / "locks"),
            "RL_SUPERVISOR_BACKOFF": "0.3",
        }
        env |= {"JOB_COMPLETION_INDEX": index} if job == "machines" else {}
        with output.open("ab") as out:
            return subprocess.Popen(
                container["command"], stdout=out, stderr=out, env={**os.environ, **env}, start_new_session=True
            )

    def close(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.nannies["head"] = self.daemon  # a shell, with a nanny and the daemon below it
            self.lose_machine("head")
        super().close()

    def start_daemon(self) -> None:
        self.daemon = self.make_pod("head", "0", self.folder / "daemon.out")

    def start_agent(self, name: str) -> None:
        self.nannies[name] = self.make_pod("machines", name[1:], self.folder / f"{name}.out")


@pytest.mark.soak
def test_a_pod_that_is_lost_is_replaced_and_the_run_finishes(tmp_path: Path) -> None:
    cluster = JobSetCluster(tmp_path / "c")
    try:
        cluster.start()
        cluster.wait_for_step(6)
        cluster.component("engine", "1").kill()
        cluster.wait_for(lambda: len(cluster.starts()) == 2, "a restart in place")
        # Just then, before a step is due, the node of an engine is drained; the Job's controller makes another pod with
        # the same index.
        cluster.lose_machine("n2")
        cluster.start_agent("n2")
        cluster.wait_for(lambda: len(cluster.starts()) == 3, "a start with the new pod")
        assert cluster.daemon is not None
        assert cluster.daemon.wait(120) == 0, cluster.story()
        assert cluster.step() == 60
        cluster.check_sound()
        assert {name: pod.wait(60) for name, pod in cluster.nannies.items()} == dict.fromkeys(cluster.names, 0)
    finally:
        cluster.close()
