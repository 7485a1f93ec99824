"""What follows from each end of a job's daemon, with stand-ins for Slurm's commands that write down what they hear."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError, SupervisorError, UsageError
from supervisor.checkpoints.writers import same_pod, writer_name
from supervisor.cli.slurm import submit
from supervisor.config.run_file import load
from supervisor.core import facts as f
from supervisor.nodes.headless import requeue_headless
from supervisor.process.pod_identity import place_of_pod
from supervisor.sensors import slurm
from supervisor.slurm.ended import JobEnd
from supervisor.slurm.step import prepare
from tests.practice.run import make_practice

RUN_FILE = """
[run]
id = "otter"
state_dir = "{folder}/state"
[job]
kind = "command"
[job.plain]
start = ["true"]
resume = ["true", "{{step}}"]
[store]
url = "file://{folder}/store"
[slurm]
{more}
"""
SCONTROL = """#!/bin/bash
echo "$*" >>"$BOX/asked"
[[ -e $BOX/refuses && "$*" =~ $(cat "$BOX/refuses") ]] && { echo "slurm: not now" >&2; exit 1; }
[[ $1 == show ]] && echo "KillWait                = 17 sec"
exit 0
"""
SQUEUE = """#!/bin/bash
[[ $SLURM_TIME_FORMAT == %s ]] || exit 3
cat "$BOX/queue" 2>/dev/null || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
"""
SINFO = """#!/bin/bash
cat "$BOX/nodes" 2>/dev/null || true
"""
SBATCH = """#!/bin/bash
cat >"$BOX/script"
[[ -e $BOX/refuses ]] && { echo "sbatch: error: invalid partition specified: ours" >&2; exit 1; }
echo "41;box"
"""


class Box:
    """A folder with stand-ins, a run file, and an environment that finds them."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder = folder
        for name, text in (("scontrol", SCONTROL), ("squeue", SQUEUE), ("sinfo", SINFO), ("sbatch", SBATCH)):
            file = folder / name
            file.write_text(text)
            file.chmod(0o755)
        self.run_file = folder / "run.toml"
        self.run_file.write_text(RUN_FILE.format(folder=folder, more=more))
        self.environ = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "BOX": str(folder),
            "SLURM_JOB_ID": "17",
            "SLURMD_NODENAME": "n1",
        }
        self.said: list[str] = []
        self.queue("17|RUNNING|1000|n1|n[3-4]|None")

    def queue(self, *lines: str) -> None:
        (self.folder / "queue").write_text("".join(f"{line}\n" for line in lines))

    def asked(self) -> list[str]:
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []

    def end(self, code: int, *, told: bool = False) -> int:
        end = JobEnd(load(self.run_file), "/log", self.environ, self.said.append, sleep=lambda seconds: None)
        return end.decide(code, told=told)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_a_finished_run_ends_the_job(box: Box) -> None:
    assert box.end(0) == 0 and box.asked() == []
    assert box.said == ["The run is finished, or a person shut it down: the job ends."]


@pytest.mark.parametrize(("code", "told"), [(0, True), (75, False), (75, True), (137, False), (1, True)])
def test_what_is_to_be_tried_again_is_requeued(box: Box, code: int, told: bool) -> None:
    assert box.end(code, told=told) == code
    assert box.asked() == ["requeue 17"]


def test_93_holds_the_job_even_before_its_wall_time_and_says_why(box: Box) -> None:
    assert box.end(93, told=True) == 93
    assert box.asked() == [
        "update JobId=17 Comment=A person is needed (exit 93): See /log. Then: scontrol release 17",
        "requeuehold State=SpecialExit 17",
    ]


def test_94_excludes_the_machine_while_the_job_is_held_beside_those_that_were_excluded(box: Box) -> None:
    assert box.end(94) == 94
    assert box.asked() == [
        "update JobId=17 Comment=n1 is unfit for this run (exit 94): See /log.",
        "requeuehold 17",
        "update JobId=17 ExcNodeList=n3,n4,n1",
        "release 17",
    ]


@pytest.mark.parametrize(
    ("more", "left", "excluded"),
    [
        ("nodes = 1", "n2|idle\nn3|idle\nn4|idle\nn1|allocated", "n3,n4,n1"),
        ("nodes = 1", "n2|drained\nn3|idle\nn4|idle\nn1|allocated", "n1"),
        ('nodes = 1\nexclude = ["n4"]', "n3|idle\nn4|idle\nn1|allocated", "n4,n1"),
        ("nodes = 1", "", "n3,n4,n1"),
    ],
)
def test_earlier_exclusions_are_dropped_where_the_job_would_wait_for_ever(
    tmp_path: Path, more: str, left: str, excluded: str
) -> None:
    box = Box(tmp_path, more)
    (box.folder / "nodes").write_text(left)
    box.end(94)
    assert f"update JobId=17 ExcNodeList={excluded}" in box.asked()
    dropped = [line for line in box.said if line.startswith("Too few machines would be left: ")]
    assert len(dropped) == (excluded in ("n1", "n4,n1"))


SEVERAL = """
[nodes]
folder = "{folder}/several"
[[nodes.components]]
role = "trainer"
start = ["true"]
resume = ["true", "{{step}}"]
"""


@pytest.mark.parametrize(
    ("left", "excluded"),
    [
        ({"ended": 94, "run": "otter", "job": "17.0", "unfit": ["n2", "n7"]}, "n3,n4,n2,n7"),
        ({"ended": 94, "run": "otter", "job": "17.0", "unfit": []}, ""),
        ({"ended": 94, "run": "otter", "job": "17.1", "unfit": ["n2"]}, ""),
        ({"ended": 94, "run": "other", "job": "17.0", "unfit": ["n2"]}, ""),
        ({"ended": 0, "run": "otter", "job": "17.0", "unfit": ["n2"]}, ""),
        ({"ended": 94, "run": "otter", "job": "17.0", "unfit": ["n2;x"]}, ""),
        (None, ""),
    ],
)
def test_of_several_machines_those_that_the_head_named_are_excluded(
    tmp_path: Path, left: dict[str, object] | None, excluded: str
) -> None:
    box = Box(tmp_path, more=SEVERAL.format(folder=tmp_path))
    if left is not None:
        (tmp_path / "several").mkdir()
        file = tmp_path / "several" / "head.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(left))
    assert box.end(94) == 94
    if excluded:
        assert f"update JobId=17 ExcNodeList={excluded}" in box.asked()
        assert box.asked()[0] == "update JobId=17 Comment=n2, n7 is unfit for this run (exit 94): See /log."
    else:
        assert box.asked() == ["requeue 17"]


def test_a_job_that_slurm_does_not_change_any_more_is_requeued_and_not_held_for_ever(box: Box) -> None:
    """So it is without accounting once a node was taken out of it; to let it go from a hold is a change, too."""
    (box.folder / "scontrol").write_text(SCONTROL.replace("slurm: not now", "Job update not available: the DB index"))
    (box.folder / "refuses").write_text("^update")
    assert box.end(94) == 94
    assert box.asked()[-1] == "requeue 17" and not any("hold" in line for line in box.asked())
    assert "Slurm changes nothing of this job any more: n1 is not excluded." in box.said


@pytest.mark.parametrize("code", [75, 93, 94, 137])
def test_a_copy_that_was_left_behind_does_nothing_about_the_job_that_runs_elsewhere(box: Box, code: int) -> None:
    box.queue("17|RUNNING|1000|n2|n[3-4]|None")
    assert box.end(code) == box.end(code, told=True) == code
    assert box.asked() == []


def test_the_label_by_which_a_fleet_finds_its_job_stays_in_the_comment(box: Box) -> None:
    box.environ["RL_SUPERVISOR_LABEL"] = "rls-otter-g00002-0a1b2c"
    box.end(94)
    assert (
        box.asked()[0]
        == "update JobId=17 Comment=rls-otter-g00002-0a1b2c n1 is unfit for this run (exit 94): See /log."
    )


def test_a_job_that_slurm_ends_itself_is_left_alone(box: Box) -> None:
    for state in ("COMPLETING", "CANCELLED", "PENDING"):
        box.queue(f"17|{state}|1000|n1||None")
        for code in (0, 75, 93, 94):
            assert box.end(code, told=True) == code
    assert box.asked() == []
    assert box.said[0] == "Slurm ends this job itself (completing): nothing is requeued here."


def test_without_requeue_the_job_ends_with_the_daemons_code(tmp_path: Path) -> None:
    box = Box(tmp_path, "requeue = false")
    assert [box.end(code) for code in (0, 75, 94)] == [0, 75, 94] and box.asked() == []
    assert box.end(93) == 93 and [line.split()[0] for line in box.asked()] == ["update"]


def test_a_controller_that_does_not_answer_is_asked_again_and_then_the_person_is_told(box: Box) -> None:
    (box.folder / "queue").unlink()
    (box.folder / "refuses").write_text("requeue")
    assert box.end(75) == 75
    assert box.asked() == ["requeue 17"] * 10
    assert "Unable to contact slurm controller" in box.said[0]
    assert box.said[-1] == (
        "Job 17 could not be requeued, so it ends with 75. The run goes on with a new job: rl-supervisor slurm submit"
    )


def test_a_machine_that_cannot_be_excluded_does_not_leave_the_job_held(box: Box) -> None:
    (box.folder / "refuses").write_text("ExcNodeList")
    box.end(94)
    assert box.asked()[-1] == "release 17" and "n1 could not be excluded: the job may come back to it." in box.said


def test_a_slow_controller_does_not_leave_the_job_held(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm kills the script half a minute after the hold; each try takes six seconds here."""
    clock = [1000.0]
    monkeypatch.setattr("supervisor.slurm.ended.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("supervisor.slurm.ended.TRY_S", 6.0)
    (box.folder / "refuses").write_text("ExcNodeList")
    end = JobEnd(
        load(box.run_file), "/log", box.environ, box.said.append, sleep=lambda s: clock.append(clock.pop() + s)
    )
    held, ask_slurm = list[float](), slurm.ask

    def ask(words: Sequence[str], environ: Mapping[str, str]) -> str:
        if "requeuehold" in words or "release" in words:
            held.append(clock[0])
        return ask_slurm(words, environ)

    monkeypatch.setattr("supervisor.slurm.ended.ask", ask)
    end.decide(94, told=False)
    assert len(held) == 2 and held[1] - held[0] <= 15


def test_any_other_code_ends_the_job_with_a_comment(box: Box) -> None:
    assert box.end(2) == 2
    assert box.asked() == ["update JobId=17 Comment=rl-supervisor ended with 2. See /log."]


# ---------------------------------------------------------------- submit


def test_a_run_is_submitted_once(box: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in box.environ.items():
        monkeypatch.setenv(name, value)
    box.queue("16|FAILED|NONE||(null)|NonZeroExitCode")
    assert submit(box.run_file) == 0
    assert "Submitted job 41." in capsys.readouterr().out
    assert (box.folder / "script").read_text().startswith("#!/bin/bash\n")
    box.queue("41|SPECIAL_EXIT|NONE||(null)|job requeued in held state")
    with pytest.raises(UsageError, match=r"has job 41 already, special_exit \(job requeued in held state\)\. End it"):
        submit(box.run_file)


def test_what_the_start_would_refuse_is_refused_before_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, practice = Box(tmp_path), make_practice(tmp_path / "practice", "v0.6")
    practice.config.write_text(practice.config.read_text() + '[slurm]\npartition = "theirs"\n')
    text = box.run_file.read_text()
    job = f'[job]\ndir = "{practice.home}"\nconfig = "{practice.config}"\n'
    box.run_file.write_text(text.partition("[job]")[0] + job + "[store]" + text.partition("[store]")[2])
    for name, value in box.environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"has \[slurm\], with which the launcher submits a job of its own"):
        submit(box.run_file)
    assert not (box.folder / "script").exists()


def test_what_slurm_refuses_is_said_in_its_own_words(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in box.environ.items():
        monkeypatch.setenv(name, value)
    box.queue()
    (box.folder / "refuses").touch()
    with pytest.raises(SupervisorError, match="Slurm did not take the job: sbatch: error: invalid partition"):
        submit(box.run_file)


# ---------------------------------------------------------------- in the job


def test_the_step_says_who_it_is_and_reads_the_keys(box: Box) -> None:
    keys = box.run_file.with_suffix(".env")
    keys.write_text("B2_APPLICATION_KEY=k\n")
    environ = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2", "RL_SUPERVISOR_TRUST_FILES": "1"}
    prepare(box.run_file, environ)
    assert environ["RL_SUPERVISOR_LABEL"] == "slurm-17-2" and environ["B2_APPLICATION_KEY"] == "k"
    for count in ("2", "3"):  # the same job, started again
        environ |= {"RL_SUPERVISOR_LABEL": "rls-otter-g00002-0a1b2c", "SLURM_RESTART_COUNT": count}
        prepare(box.run_file, environ)
        assert environ["RL_SUPERVISOR_LABEL"] == "rls-otter-g00002-0a1b2c", "a fleet knows it by that"
    keys.chmod(0o666)
    with pytest.raises(ConfigError, match="is not obeyed, since others could change it"):
        prepare(box.run_file, {"SLURM_JOB_ID": "17"})
    with pytest.raises(ConfigError, match="This is no job of Slurm"):
        prepare(box.run_file, {})


def test_a_machine_of_slurm_is_known_by_its_name_and_its_boot(tmp_path: Path) -> None:
    """One state folder for all, as in a home on a network: the next start on another node is another pod."""

    def writer(node: str, session: str) -> str:
        return writer_name(node, "aaaaaaaa", session, place_of_pod({"SLURMD_NODENAME": node}, tmp_path))

    assert same_pod(writer("n1", "1111"), writer("n1", "2222"))
    assert not same_pod(writer("n1", "1111"), writer("n2", "1111"))


# ---------------------------------------------------------------- the sensor


def sentences(facts: object) -> list[str]:
    assert isinstance(facts, list | tuple)
    return [fact.sentence for fact in facts if isinstance(fact, f.Remark)]


def test_how_long_a_job_has_from_sigterm(box: Box) -> None:
    sensor = slurm.SlurmSensor("17", 420, box.environ)
    assert sensor.left_s(1000.0) is None, "never asked: unknown"
    box.queue("17|RUNNING|100000|n1||None")
    assert sentences(sensor.look()) == [
        "Slurm ends job 17 on n1 at 1970-01-02 03:46 UTC. Before that this pod publishes and leaves."
    ]
    assert sensor.left_s(100_000 - 430.0) == 385.0, "its wall time, less what requeueing takes"
    assert sensor.left_s(100_000 - 5000.0) == 17.0, "cancelled or preempted: KillWait"
    assert sensor.left_s(100_000 - 20.0) == 17.0 and sensor.left_s(100_001.0) == 17.0
    box.queue("17|RUNNING|NONE|n1||None")
    assert sensor.look() == [] and sensor.left_s(0.0) == 17.0


def test_of_several_machines_each_that_is_down_is_told_for_itself(box: Box) -> None:
    sensor = slurm.SlurmSensor("17", 420, {**box.environ, "SLURM_JOB_NODELIST": "n[1-3]"})

    def down() -> list[f.Fact]:
        return [fact for fact in sensor.look() if isinstance(fact, f.MachineDown)]

    box.queue("17|RUNNING|1000|n[1-3]||None")
    (box.folder / "nodes").write_text("n1|allocated|none\nn2|down*|Not responding\nn3|draining|fan broken\n")
    assert down() == [f.MachineDown("n2", "Slurm says down*: Not responding")]
    assert not down()
    (box.folder / "nodes").write_text("n1|allocated|none\nn2|allocated|none\n")
    assert down() == [f.MachineDown("n2")]
    box.queue("17|RUNNING|1000|n[1-2]||None")  # as Slurm shows a job of which a node is lost
    assert down() == [f.MachineDown("n3", "Slurm took it out of the job")]
    box.queue("17|COMPLETING|1000|n1||None")
    assert down() == [f.MachineDown("n3")]


def test_without_the_heads_machine_an_agent_has_the_job_requeued(box: Box) -> None:
    environ = {**box.environ, "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]"}
    del box.environ["SLURM_JOB_ID"]
    for told in ("17|RUNNING|1000|n[1-3]||None", "17|PENDING|1000|||None", ""):
        box.queue(told)
        assert requeue_headless(environ) == ""
    assert requeue_headless(box.environ) == ""
    box.queue("17|RUNNING|1000|n[2-3]||None")
    assert requeue_headless(environ) == "The machine of the head (n1) is no longer in job 17: it is requeued."
    assert "requeue 17" in box.asked()


def test_drained_machines_and_a_silent_controller_are_told_once(box: Box) -> None:
    sensor = slurm.SlurmSensor("17", 420, box.environ)
    (box.folder / "nodes").write_text("n1|allocated|none\n")
    sensor.look()
    (box.folder / "nodes").write_text("n1|draining|fan broken\nn1|draining|fan broken\n")
    told = "Slurm takes machines of job 17 out of service: n1 is draining: fan broken."
    assert sentences(sensor.look()) == [told] and sensor.look() == []
    (box.folder / "nodes").unlink()
    assert sentences(sensor.look()) == ["The machines of job 17 are in service again."]
    (box.folder / "queue").unlink()
    [silent] = sentences(sensor.look())
    assert silent.startswith("Slurm cannot be asked about job 17: `squeue --noheader")
    assert not sensor.look()
    box.queue("17|RUNNING|1000|n1||None")
    assert sentences(sensor.look()) == ["Slurm answers again."]
