"""A run on a real Slurm of four nodes: wall time, requeue, cancel, the exit codes, a lost node.

Nothing is lost, nothing is done twice, two never write, and no process stays.

``make slurm`` runs them: they want root and Debian's slurm-wlm.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.process.run_lock import read_holder
from tests.slurm.box import LOST_S, Cluster
from tests.slurm.run import SlurmRun

pytestmark = pytest.mark.optin
Run = Callable[..., SlurmRun]


def on(*nodes: str, **slurm: object) -> dict[str, object]:
    left_out = [name for name in ("n1", "n2", "n3", "n4") if name not in nodes]
    return {"slurm": {"gpus_per_node": 0, "exclude": left_out, **slurm}}


def daemons_of(one: SlurmRun) -> list[int]:
    """Everything that has the run file on its command line: script, srun, daemon, nanny."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if str(one.run_file).encode() in words:
            found.append(int(folder.name))
    return found


def no_process_stays(one: SlurmRun) -> None:
    one.until(lambda: not one.practice.alive() and not daemons_of(one), "no process of the run is left", 40)


def test_a_requeued_job_goes_on_at_the_newest_step(run: Run, cluster: Cluster) -> None:
    one = run(settings=on("n1")).submit()
    one.until_published()
    cluster.do("scontrol", "requeue", one.job)
    one.until_state("PENDING")
    no_process_stays(one)
    newest = max(one.stored())
    assert one.claims()[-1]["released"], one.story()
    cluster.hurry(one.job)
    one.until_starts(2)
    assert one.resume_steps() == [None, newest], one.story()
    assert [claim["label"] for claim in one.claims()] == [f"slurm-{one.job}-0", f"slurm-{one.job}-1"]
    refused = one.slurm("submit")
    assert refused.returncode == 2 and f"has job {one.job} already, running on n1" in refused.stderr


def test_a_preempted_job_goes_on_when_the_other_one_is_done(run: Run, cluster: Cluster) -> None:
    one = run(settings=on("n1")).submit()
    one.until_published()
    words = ["--parsable", "--partition=urgent", "--nodelist=n1", "--exclusive", "--output=/dev/null", "--wrap=true"]
    other = cluster.do("sbatch", *words).strip()
    one.until_state("PENDING")
    no_process_stays(one)
    newest = max(one.stored())
    one.until(lambda: cluster.state(other) == "COMPLETED", "the other job is done")
    cluster.hurry(one.job)
    one.until_starts(2)
    assert one.resume_steps() == [None, newest], one.story()


def test_a_cancelled_job_publishes_what_is_whole_and_does_not_come_back(run: Run, cluster: Cluster) -> None:
    one = run(settings=on("n1")).submit()
    one.until_published()
    cluster.do("scancel", one.job)
    one.until_state("CANCELLED")
    no_process_stays(one)
    assert one.claims()[-1]["released"], one.story()
    assert "Slurm ends this job itself" in one.output.read_text(errors="replace")


def test_a_run_that_needs_a_person_waits_in_the_queue_and_says_why(run: Run, cluster: Cluster) -> None:
    settings = {**on("n1"), "recovery": {"max_restarts": 0}}
    one = run(settings=settings, faults=[{"kind": "config-error", "every_time": True}]).submit()
    one.until_state("SPECIAL_EXIT")
    no_process_stays(one)
    comment = cluster.field(one.job, "%k")
    assert comment.startswith("A person is needed (exit 93): "), comment
    assert f"See {one.output}. Then: scontrol release {one.job}" in comment, comment
    one.practice.set_knobs(step_s=0.4)
    cluster.do("scontrol", "release", one.job)
    cluster.hurry(one.job)
    one.until_published()


def test_an_unfit_machine_is_excluded_and_the_run_goes_on_elsewhere(run: Run, cluster: Cluster) -> None:
    lies = """[[ $(cat "$first") == "$SLURMD_NODENAME" ]] && export RL_SUPERVISOR_PROMISED='{"gpus": 64}'"""
    setup = ['first=$(dirname "$run")/first; [[ -e $first ]] || echo "$SLURMD_NODENAME" >"$first"', lies]
    one = run(settings=on("n1", "n2", setup=setup)).submit()
    one.until(lambda: "unfit" in cluster.field(one.job, "%k"), "it is judged")
    first = (one.folder / "first").read_text().strip()
    one.until(lambda: first in cluster.names(cluster.field(one.job, "%x")), f"{first} is excluded")
    assert cluster.names(cluster.field(one.job, "%x")) == {first, "n3", "n4"}
    assert cluster.field(one.job, "%k").startswith(f"{first} is unfit for this run (exit 94): "), one.story()
    assert not one.practice.starts()
    no_process_stays(one)
    cluster.hurry(one.job)
    one.until_published()
    assert cluster.field(one.job, "%N") == {"n1": "n2", "n2": "n1"}[first]


def daemon_and_nanny(one: SlurmRun) -> list[int]:
    """Their pids; fewer while the next ones begin."""
    return [found[0] for found in read_holder(one.state_dir / "lock") if found is not None]


def test_a_daemon_that_has_lost_its_nanny_still_leaves_when_the_job_is_cancelled(run: Run, cluster: Cluster) -> None:
    """Slurm's own signal does not reach it: ``proctrack/linuxproc`` follows parents."""
    one = run(settings=on("n1")).submit()
    one.until_published()
    os.kill(daemon_and_nanny(one)[1], signal.SIGKILL)
    one.until_published(max(one.stored()))
    cluster.do("scancel", one.job)
    no_process_stays(one)
    one.until_state("CANCELLED")
    assert one.claims()[-1]["released"], one.story()


def test_killed_nanny_and_daemon_are_replaced_in_the_same_job_and_the_trainer_runs_on(
    run: Run, cluster: Cluster
) -> None:
    one = run(settings=on("n1")).submit()
    one.until_published()
    before = daemon_and_nanny(one)
    for pid in reversed(before):
        os.kill(pid, signal.SIGKILL)
    one.until(lambda: len({*daemon_and_nanny(one)} - {*before}) == 2, "the next ones are there")
    one.until_published(max(one.stored()))
    assert len(one.practice.starts()) == 1, one.story()
    assert cluster.do("squeue", "-h", "-j", one.job, "-o", "%T %N").split() == ["RUNNING", "n1"]
    cluster.do("scancel", one.job)
    no_process_stays(one)


def test_of_a_lost_node_the_first_copy_writes_on_until_it_is_gone_and_only_then_the_second_begins(
    run: Run, cluster: Cluster
) -> None:
    settings = {**on("n2", "n3"), "store": {"take_over_after": 8}}
    one = run(each_node=True, settings=settings).submit()
    one.until_published()
    node = cluster.field(one.job, "%N")
    cluster.lose_node(node)
    try:
        one.until(lambda: cluster.state(one.job) == "PENDING", "Slurm requeues the job of a lost node", LOST_S + 60)
        cluster.hurry(one.job)
        one.until_state("RUNNING")
        other = cluster.field(one.job, "%N")
        assert other != node
        one.until(lambda: (one.folder / other / "state" / "journal.db").exists(), "the second daemon is up")
        newest = one.until_published(max(one.stored()))
        one.until_published(newest)
        assert len(one.claims()) == 1 and len(one.practice.starts()) == 1, "the first copy lives, and holds the run"
        for pid in [pid for pid in daemons_of(one) if node_of(pid) == node]:
            os.kill(pid, signal.SIGKILL)
        one.practice.end_all()
        one.until_starts(2)
        assert len(one.claims()) == 2 and not one.claims()[0]["released"]
        assert int(one.resume_steps()[1] or 0) >= newest
    finally:
        cluster.start_node(node)


def node_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((word.partition(b"=")[2].decode() for word in words if word.startswith(b"SLURMD_NODENAME=")), "")


def test_a_run_longer_than_the_wall_time_is_a_chain_of_jobs(run: Run, cluster: Cluster) -> None:
    one = run(settings=on("n4", time="2", notice=30)).submit()
    newest = []
    for number in (1, 2):
        one.until_starts(number)
        one.until_published(newest[-1] if newest else 0)
        one.until_state("PENDING", timeout_s=150)  # it has requeued itself
        no_process_stays(one)
        newest.append(max(one.stored()))
        cluster.hurry(one.job)
    one.until_starts(3)
    assert one.resume_steps() == [None, *newest], one.story()
    assert [claim["released"] for claim in one.claims()] == [True, True, False]
    assert [claim["label"] for claim in one.claims()] == [f"slurm-{one.job}-{number}" for number in (0, 1, 2)]


def test_a_finished_run_completes_its_job(run: Run, cluster: Cluster) -> None:
    one = run(settings=on("n1"), max_steps=6).submit()
    one.until_state("COMPLETED")
    assert max(one.stored()) == 6 and one.latest()["step"] == "step_6", one.story()
    no_process_stays(one)
    done = one.slurm("submit")
    assert done.returncode == 0, "a job that is over stands in no one's way"
    one.job = done.stdout.split()[2].rstrip(".")
    one.until_state("COMPLETED")
    assert len(one.practice.starts()) == 1
