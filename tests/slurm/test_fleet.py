"""A fleet whose place is a real Slurm: it submits the practice job, leaves an unfit node out, and waits for the queue.

``make slurm`` runs it: it wants root and Debian's slurm-wlm.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.slurm.box import LOST_S, Cluster
from tests.slurm.run import SlurmRun
from tests.slurm.test_box import daemons_of, no_process_stays, node_of, on

pytestmark = pytest.mark.optin
Run = Callable[..., SlurmRun]
HOLDS = "holds the run, and has trained no step yet"  # by its first heartbeat
FLEET = """
[fleet]
store = "file://{folder}/memory"
[limits]
per_hour = 1
total = 1
[place.cluster]
provider = "slurm"
[run.practice]
file = "run.toml"
places = ["cluster"]
boot_s = 120
"""


class Fleet:
    """Its ``tick`` is a cron's, on the login machine."""

    def __init__(self, run: SlurmRun) -> None:
        self.run, self.file = run, run.folder / "fleet.toml"
        self.file.write_text(FLEET.format(folder=run.folder))

    def tick(self) -> str:
        """What it said."""
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.cli.main", "fleet", "tick", "--file", str(self.file)],
            env={**self.run.cluster.environ, "COLUMNS": "500", "B2_APPLICATION_KEY": "of-the-controller"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.run.story()}"
        return " ".join(done.stdout.split())

    def submit(self) -> str:
        """A tick that submits a job; what it said."""
        said = self.tick()
        assert " It is instance " in said, said
        self.run.job = said.rpartition(" It is instance ")[2].split(".")[0]
        self.run.output = self.run.folder / f"run.slurm-{self.run.job}.log"
        return said


def test_the_fleet_leaves_a_node_out_after_94_and_the_second_job_finishes_the_run(run: Run, cluster: Cluster) -> None:
    lies = """[[ $(cat "$first") == "$SLURMD_NODENAME" ]] && export RL_SUPERVISOR_PROMISED='{"gpus": 64}'"""
    setup = ['first=$(dirname "$run")/first; [[ -e $first ]] || echo "$SLURMD_NODENAME" >"$first"', lies]
    one = run(settings=on("n1", "n2", setup=setup), max_steps=6)
    fleet = Fleet(one)
    said = fleet.submit()
    assert "no price, so limits do not count it): the run has not begun." in said
    first_job = one.job
    one.until(lambda: "unfit" in cluster.field(first_job, "%k"), "it is judged")
    first = (one.folder / "first").read_text().strip()
    label = cluster.field(first_job, "%k").split()[0]
    assert label.startswith(f"rls-{one.run_id}-g00001-"), "what the job says of itself has not taken its label"
    said = fleet.submit()
    assert f"Pod {first_job}: " in said and f"without {first}: its pod gave the run back" in said
    assert cluster.state(first_job) == "CANCELLED" and one.job != first_job
    assert cluster.names(cluster.field(one.job, "%x")) == {first, "n3", "n4"}
    one.until_state("COMPLETED", timeout_s=120)
    assert cluster.field(one.job, "%N") == {"n1": "n2", "n2": "n1"}[first]
    assert max(one.stored()) == 6 and one.latest()["step"] == "step_6", one.story()
    no_process_stays(one)
    assert "The run has ended" in fleet.tick()
    assert len(cluster.do("squeue", "-h", "-t", "all", f"--name={one.run_id}").splitlines()) == 2
    assert [claim["label"].rpartition("-")[0] for claim in one.claims()] == [
        f"rls-{one.run_id}-g0000{n}" for n in (1, 2)
    ]


def test_the_fleet_waits_for_a_job_that_is_in_the_queue_again(run: Run, cluster: Cluster) -> None:
    one = run(settings=on("n1"))
    fleet = Fleet(one)
    fleet.submit()
    one.until_published()
    assert f"Pod {one.job} (slurm) {HOLDS}" in fleet.tick()
    cluster.do("scontrol", "requeue", one.job)
    one.until_state("PENDING")
    no_process_stays(one)
    said = fleet.tick()
    assert f"Pod {one.job} (slurm) waits in the queue again: " in said and "expected to start at" in said, said
    cluster.hurry(one.job)
    one.until_starts(2)
    assert f"Pod {one.job} (slurm) {HOLDS}" in fleet.tick()
    assert len({claim["label"] for claim in one.claims()}) == 1 and len(one.claims()) == 2
    refused = one.slurm("submit")
    assert refused.returncode == 2 and f"has job {one.job} already" in refused.stderr
    assert len(cluster.do("squeue", "-h", "-t", "all", f"--name={one.run_id}").splitlines()) == 1


def test_of_a_lost_node_the_fleet_waits_until_slurm_starts_the_same_job_elsewhere(run: Run, cluster: Cluster) -> None:
    """Slurm tells of the lost node well before the fleet's patience is over, as with both defaults."""
    one = run(each_node=True, settings={**on("n2", "n3"), "store": {"take_over_after": 45}})
    fleet = Fleet(one)
    fleet.submit()
    newest = one.until_published()
    node = cluster.field(one.job, "%N")
    cluster.lose_node(node)
    try:
        for pid in [pid for pid in daemons_of(one) if node_of(pid) == node]:
            os.kill(pid, signal.SIGKILL)
        one.practice.end_all()
        said = []

        def waits() -> bool:
            said.append(fleet.tick())
            return cluster.state(one.job) == "PENDING" and "waits in the queue again" in said[-1]

        one.until(waits, "the fleet sees it in the queue", LOST_S + 80)
        cluster.hurry(one.job)

        def goes_on() -> bool:
            said.append(fleet.tick())
            return len(one.practice.starts()) >= 2

        one.until(goes_on, "the second start", 200)
        assert cluster.field(one.job, "%N") != node
        assert int(one.resume_steps()[1] or 0) >= newest
        assert any(f"Pod {one.job} (slurm) starts since" in line for line in said), said
        assert len(cluster.do("squeue", "-h", "-t", "all", f"--name={one.run_id}").splitlines()) == 1, said
    finally:
        cluster.start_node(node)


def test_a_job_of_the_fleet_waits_behind_another_one_and_is_cancelled_with_the_run(run: Run, cluster: Cluster) -> None:
    words = ["--parsable", "--nodelist=n1", "--exclusive", "--time=5", "--output=/dev/null", "--wrap=sleep 240"]
    other = cluster.do("sbatch", *words).strip()
    one = run(settings=on("n1"))
    fleet = Fleet(one)
    try:
        fleet.submit()
        one.until(lambda: cluster.field(one.job, "%r") not in ("", "None"), "Slurm says why it waits")
        said = fleet.tick()
        assert re.search(rf"Pod {one.job} \(slurm\) waits in the queue since .* s: (Resources|ReqNodeNotAvail)", said)
        environ = {**cluster.environ, "COLUMNS": "500"}
        down = [sys.executable, "-m", "supervisor.cli.main", "fleet", "down", "practice", "--file", str(fleet.file)]
        done = subprocess.run(down, env=environ, capture_output=True, text=True, timeout=300, check=False)
        assert f"Pod {one.job} is destroyed" in done.stdout, done.stdout + done.stderr
        assert cluster.state(one.job) == "CANCELLED"
    finally:
        cluster.do("scancel", other)
