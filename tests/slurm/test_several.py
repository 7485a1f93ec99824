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
from tests.slurm.run import read_claims
from tests.slurm.test_fleet import Fleet

pytestmark = pytest.mark.optin


class Several(PrimeRlCluster):
    """Its parts are where Slurm puts them."""

    engines = 2

    def ask_for(self, spares: int, more: str = "") -> None:
        table = f"[slurm]\nnodes = 3\nspares = {spares}\ngpus_per_node = 0\n{more}"
        text = self.run_file.read_text().replace("[store]\n", "[store]\ntake_over_after = 8\n")
        self.run_file.write_text(text + table)
        self.run_file.chmod(0o600)

    def submit(self, cluster: Cluster, spares: int, more: str = "") -> str:
        self.ask_for(spares, more)
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

    def tell_living(self) -> str:
        return "\n".join(f"{one.pid} {' '.join(one.cmdline())[:200]}" for one in self.everything())

    def wait_until_nothing_lives(self) -> None:
        wait_for(lambda: not self.everything(), "no process of the run is left", 60, self.tell_living)

    def lose_node(self, cluster: Cluster, node: str) -> None:
        """The whole machine, from one moment to the next."""
        gone = self.of_node(node)
        for process in list(gone):
            with contextlib.suppress(psutil.NoSuchProcess):
                gone += process.children(recursive=True)
        cluster.lose_node(node)
        for process in gone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def end(self, cluster: Cluster, lost: str) -> None:
        """After a test, however it went."""
        with contextlib.suppress(AssertionError):
            cluster.do("scancel", "--full", "--signal=KILL", self.job)
            cluster.do("scancel", self.job)
        if lost:
            cluster.start_node(lost)
        wait_for(lambda: not cluster.do("squeue", "-h", "-j", self.job).strip(), "the job is gone", 90)
        self.practice.end_all()
        for process in self.everything():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def sentences(self, event: str = "") -> list[str]:
        logs = [*self.folder.glob("run.slurm-*.log")]  # none before the job runs
        (self.folder / "daemon.out").write_bytes(b"".join(log.read_bytes() for log in logs))
        return super().sentences(event)


def engine_on(run: Several, node: str) -> psutil.Process:
    cores = {*run.practice.pids("engine-core")}
    for process in run.of_node(node):
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in process.children(recursive=True):
                if one.pid in cores:
                    return one
    raise AssertionError(f"no engine on {node}: {run.tell_living()}")


def some_engine(run: Several) -> psutil.Process:
    for node in NODES:
        with contextlib.suppress(AssertionError):
            return engine_on(run, node)
    raise AssertionError(run.tell_living())


def test_an_engine_dies_and_a_node_is_lost_and_the_run_goes_on_in_the_same_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = Several(tmp_path / "r", last=100_000, lease=20, machine_silent=5)
    job = run.submit(cluster, spares=1)
    lost = ""
    try:
        wait_for(lambda: run.step() >= 5, "step 5", 120)
        engine_on(run, "n2").kill()
        [verdict] = wait_for(lambda: run.sentences("verdict"), "the verdict", 15)
        assert verdict.startswith("vLLM 1 on n2 died silently: "), verdict
        wait_for(lambda: run.sentences("incident-closed"), "a new step", 60)

        lost = "n2"
        run.lose_node(cluster, lost)
        verdicts = wait_for(lambda: run.sentences("verdict")[1:], "the second verdict", LOST_S + 90)
        assert verdicts[0].startswith("n2 is lost: its agent has been silent for "), verdicts
        wait_for(lambda: run.sentences("incident-closed")[1:], "a new step without n2", 120)
        assert engine_on(run, "n1")
        assert engine_on(run, "n3"), "where the trainer was, which is on the spare now"
        assert cluster.state(job) == "RUNNING"
        assert cluster.field(job, "%r") in ("None", ""), "it was never requeued"
        starts = cluster.do("scontrol", "show", "job", job)
        assert "Restarts=0" in starts

        cluster.do("scancel", job)
        run.wait_until_nothing_lives()
    finally:
        run.end(cluster, lost)


def test_with_the_node_of_the_head_lost_the_agents_end_all_and_the_job_comes_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = Several(tmp_path / "r", last=100_000, lease=15, machine_silent=5)
    job = run.submit(cluster, spares=0)
    lost = ""
    try:
        wait_for(lambda: run.sentences("published"), "a published step", 120)
        lost = cluster.do("squeue", "-h", "-j", job, "-o", "%B").strip()
        before = run.sentences("published")
        run.lose_node(cluster, lost)
        wait_for(lambda: cluster.state(job) == "PENDING", "the job is requeued", 200)
        run.wait_until_nothing_lives()
        cluster.hurry(job)
        wait_for(lambda: cluster.state(job) == "RUNNING", "the job runs again", 60)
        assert lost not in cluster.names(cluster.field(job, "%N"))
        resumed = wait_for(lambda: run.sentences("launched")[1:], "the next attempt", 120)
        assert "resuming at step" in resumed[0], resumed
        wait_for(lambda: len(run.sentences("published")) > len(before), "a newer published step", 120)
        cluster.do("scancel", job)
        run.wait_until_nothing_lives()
    finally:
        run.end(cluster, lost)


def claims(run: Several) -> list[bool]:
    """Each claim in order: was it given back?"""
    return [one["released"] for one in read_claims(run.folder / "store" / "several")]


def test_a_requeue_and_a_cancel_publish_what_is_whole_and_leave_nothing(cluster: Cluster, tmp_path: Path) -> None:
    run = Several(tmp_path / "r", last=100_000, lease=20, machine_silent=5)
    job = run.submit(cluster, spares=0)
    try:
        wait_for(lambda: run.sentences("published"), "a published step", 120)
        cluster.do("scontrol", "requeue", job)
        wait_for(lambda: cluster.state(job) == "PENDING", "the job is requeued", 120, run.tell_living)
        run.wait_until_nothing_lives()
        assert claims(run) == [True], run.sentences()[-20:]
        cluster.hurry(job)
        resumed = wait_for(lambda: run.sentences("launched")[1:], "the next attempt", 120)
        assert "resuming at step" in resumed[0], resumed
        before = len(run.sentences("published"))
        wait_for(lambda: len(run.sentences("published")) > before, "a newer published step", 120)
        # Killed, then cancelled at once.
        some_engine(run).kill()
        cluster.do("scancel", job)
        run.wait_until_nothing_lives()
        assert claims(run) == [True, True], run.sentences()[-20:]
    finally:
        run.end(cluster, "")


def test_a_run_that_is_preempted_goes_on_when_the_other_job_is_done(cluster: Cluster, tmp_path: Path) -> None:
    run = Several(tmp_path / "r", last=100_000, lease=20, machine_silent=5)
    job = run.submit(cluster, spares=0)
    try:
        wait_for(lambda: run.sentences("published"), "a published step", 120)
        urgent = ["--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 5"]
        other = cluster.do("sbatch", "--parsable", *urgent).strip()
        wait_for(lambda: cluster.state(job) == "PENDING", "the job is back in the queue", 120, run.tell_living)
        run.wait_until_nothing_lives()
        assert claims(run) == [True], run.sentences()[-20:]
        wait_for(lambda: cluster.state(other) == "COMPLETED", "the other job is done", 90)
        wait_until_it_runs_again(cluster, job)
        resumed = wait_for(lambda: run.sentences("launched")[1:], "the next attempt", 120)
        assert "resuming at step" in resumed[0], resumed
        cluster.do("scancel", job)
        run.wait_until_nothing_lives()
    finally:
        run.end(cluster, "")


def wait_until_it_runs_again(cluster: Cluster, job: str) -> None:
    if cluster.state(job) != "RUNNING":
        cluster.hurry(job)
    wait_for(lambda: cluster.state(job) == "RUNNING", "the job runs again", 120)


def test_a_run_longer_than_the_wall_time_is_a_chain_of_jobs(cluster: Cluster, tmp_path: Path) -> None:
    run = Several(tmp_path / "r", last=100_000, lease=20, machine_silent=5)
    job = run.submit(cluster, 0, 'time = "2"\nnotice = 40\n')
    try:
        wait_for(lambda: run.sentences("published"), "a published step", 120)
        for jobs in (1, 2):
            wait_for(lambda: cluster.state(job) == "PENDING", "it has requeued itself", 180, run.tell_living)
            run.wait_until_nothing_lives()
            assert claims(run) == [True] * jobs, run.sentences()[-20:]
            wait_until_it_runs_again(cluster, job)
            started = wait_for(lambda jobs=jobs: run.sentences("launched")[jobs:], "the next attempt", 120)
            assert "resuming at step" in started[0], started
        cluster.do("scancel", job)
        run.wait_until_nothing_lives()
    finally:
        run.end(cluster, "")


def test_a_job_of_a_fleet_that_lost_a_node_is_not_held_and_the_next_one_trains(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Without accounting Slurm takes no comment and no exclusion from a job that has lost a node."""
    run = Several(tmp_path / "r", last=100_000, lease=15, machine_silent=5)
    run.cluster, run.run_id = cluster, "several"  # type: ignore[attr-defined]
    run.ask_for(spares=0)
    fleet = Fleet(run)  # type: ignore[arg-type]
    fleet.submit()
    first, lost = run.job, ""
    try:
        wait_for(lambda: run.sentences("published"), "a published step", 120)
        head = cluster.do("squeue", "-h", "-j", first, "-o", "%B").strip()
        lost = next(name for name in cluster.names(cluster.field(first, "%N")) if name != head)
        run.lose_node(cluster, lost)
        wait_for(lambda: cluster.state(first) == "PENDING", "it is requeued", 200, run.tell_living)
        assert cluster.field(first, "%r") == "BeginTime"
        fleet.submit()
        assert cluster.state(first) == "CANCELLED" and run.job != first
        wait_for(lambda: cluster.state(run.job) == "RUNNING", "the next job runs", 90)
        assert lost not in cluster.names(cluster.field(run.job, "%N"))
    finally:
        run.end(cluster, lost)
