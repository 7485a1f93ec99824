"""A run of prime-rl over three nodes of a real Slurm, with a spare: an engine dies, a node is lost, and it is one job.

``make slurm`` runs it: it wants root and Debian's slurm-wlm.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.nodes.practice_cluster import PrimeRlCluster
from tests.slurm.box import LOST_S, NODES, Cluster, wait_for

pytestmark = pytest.mark.optin


class Several(PrimeRlCluster):
    """Its parts are where Slurm puts them."""

    engines = 2

    def submit(self, cluster: Cluster) -> str:
        table = "[slurm]\nnodes = 3\nspares = 1\ngpus_per_node = 0\n"
        self.run_file.write_text(self.run_file.read_text() + table)
        self.run_file.chmod(0o600)
        words = [sys.executable, "-m", "supervisor.cli.main", "slurm", "submit", str(self.run_file)]
        done = subprocess.run(words, env=cluster.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.job = done.stdout.split()[2].rstrip(".")
        return self.job

    def of_node(self, node: str) -> list[psutil.Process]:
        """Everything of the run on this node: agents, shims, parts, a daemon."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURMD_NODENAME") == node and str(self.folder) in str(process.environ()):
                    found.append(process)
        return found

    def everything(self) -> list[psutil.Process]:
        agents = [one for node in NODES for one in self.of_node(node)]
        return [*agents, *self.living()]

    def sentences(self, event: str = "") -> list[str]:
        (log,) = self.folder.glob("run.slurm-*.log")
        (self.folder / "daemon.out").write_bytes(log.read_bytes())
        return super().sentences(event)


def engine_on(run: Several, node: str) -> psutil.Process:
    cores = {*run.practice.pids("engine-core")}
    agents = [one for one in run.of_node(node) if "supervisor.nodes.agent" in " ".join(one.cmdline())]
    return next(one for agent in agents for one in agent.children(recursive=True) if one.pid in cores)


def test_an_engine_dies_and_a_node_is_lost_and_the_run_goes_on_in_the_same_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = Several(tmp_path / "r", last=100_000, lease=20, machine_silent=5)
    job = run.submit(cluster)
    lost = ""
    try:
        wait_for(lambda: run.step() >= 5, "step 5", 120)
        engine_on(run, "n2").kill()
        [verdict] = wait_for(lambda: run.sentences("verdict"), "the verdict", 15)
        assert verdict.startswith("vLLM 1 on n2 died silently: "), verdict
        wait_for(lambda: run.sentences("incident-closed"), "a new step", 60)

        lost = "n2"
        gone = run.of_node(lost)
        cluster.lose_node(lost)
        for process in gone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        verdicts = wait_for(lambda: run.sentences("verdict")[1:], "the second verdict", LOST_S + 90)
        assert verdicts[0].startswith("n2 is lost: its agent has been silent for "), verdicts
        wait_for(lambda: run.sentences("incident-closed")[1:], "a new step without n2", 120)
        assert engine_on(run, "n4"), "the spare"
        assert cluster.state(job) == "RUNNING"
        assert cluster.field(job, "%r") in ("None", ""), "it was never requeued"
        starts = cluster.do("scontrol", "show", "job", job)
        assert "Restarts=0" in starts

        cluster.do("scancel", job)
        wait_for(lambda: not run.everything(), "no process of the run is left", 60)
    finally:
        with contextlib.suppress(AssertionError):
            cluster.do("scancel", "--full", "--signal=KILL", job)
            cluster.do("scancel", job)
        if lost:
            cluster.start_node(lost)
        run.practice.end_all()
        for process in run.everything():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
