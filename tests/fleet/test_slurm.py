"""A Slurm cluster as a place: what its jobs are to the fleet, through their whole lives and all of Slurm's moods."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError
from supervisor.cli.main import main
from supervisor.fleet.assemble import assemble
from supervisor.fleet.controller import Controller, RunLook, Told
from supervisor.fleet.model import Claim
from supervisor.fleet.observe import sum_dollars
from supervisor.fleet.places.base import Instance, Offer, Order, Phase, PlaceError, Provider, Want, label_of
from supervisor.fleet.places.slurm import Slurm
from supervisor.sensors import slurm as sensor
from supervisor.simulator.virtual_fleet import VirtualBook
from supervisor.slurm import submit
from tests.fleet.conformance import PlaceConformance
from tests.fleet.fake_slurm import FakeSlurm
from tests.fleet.world import KilledError

WANT = Want("", 1, spot=False, disk_gb=1, most_per_hour=0.0)
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
partition = "gpu"
gpus_per_node = 4
exclude = ["n9"]
{more}
"""
FLEET_FILE = """
[fleet]
store = "file://{folder}/memory"
[limits]
per_hour = 100
total = 1000
[place.cluster]
provider = "slurm"
{place}
[run.otter]
file = "otter.toml"
places = ["cluster"]
[run.otter.env]
WANDB_MODE = "offline"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "cluster")


class SlurmRig:
    """``fail_*`` of those kinds that Slurm knows."""

    want, key, other_gpu, stopped_per_hour = WANT, "no key", "", 0.0

    def __init__(self, cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self._patch = cluster, monkeypatch
        self.provider: Provider = Slurm(cluster.folder, cluster.environ)

    def add_offer(self, per_hour: float, *, spot: bool = False, gpus: int = 2, gpu: str = "") -> str:
        return "slurm"

    def rent_by_hand(self, label: str) -> str:
        offer, order = Offer("slurm", "", 1, 0.0, spot=False), Order(label, "", 0, "#!/bin/bash\n", {})
        return self.provider.create(offer, order)

    def enter(self, instance_id: str, phase: Phase) -> None:
        states = {"running": "RUNNING", "unknown": "COMPLETING", "stopped": "TIMEOUT"}
        self.cluster.change(instance_id, state=states[phase])

    def rented(self) -> list[str]:
        return [self.cluster.label(number) for number in self.cluster.living()]

    def bid_of(self, instance_id: str) -> float | None:
        return None

    def print_log(self, instance_id: str, text: str) -> None:
        (self.cluster.folder / f"log.{instance_id}").write_text(text)

    def with_wrong_key(self) -> Provider:
        raise NotImplementedError

    def fail_list(self, how: str) -> None:
        self._fail("squeue", how)

    def fail_create(self, how: str) -> None:
        self._fail("sbatch", how)

    def fail_destroy(self, how: str) -> None:
        self._fail("scancel", how)

    def _fail(self, command: str, how: str) -> None:
        if how in ("late", "silence"):
            self._patch.setattr(sensor, "TIMEOUT_S", 3.0)
            self._patch.setattr(submit, "TIMEOUT_S", 1.0)
        self.cluster.fail(command, how)


@pytest.fixture
def rig(cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> SlurmRig:
    return SlurmRig(cluster, monkeypatch)


VIOLATES = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


class TestConformance(PlaceConformance):
    first_phase: Phase = "queued"

    @pytest.mark.parametrize(
        ("words", "kind", "then"),
        [
            (VIOLATES, "credit", "See what your account may use: "),
            ("Invalid account or account/partition combination specified", "refused", "Mend [slurm] of the run file"),
            ("Invalid partition name specified", "refused", "Mend [slurm] of the run file"),
            (
                "Requested node configuration is not available",
                "refused",
                "What is left out: rl-supervisor fleet history.",
            ),
            ("Protocol authentication error", "key", "Look whether munged runs on this machine"),
            ("Unable to contact slurm controller (connect failure)", "away", "Jobs that run go on without it."),
            ("Socket timed out on send/recv operation", "unsure", ""),
        ],
    )
    def test_a_create_that_failed_submits_nothing_and_says_why(
        self, rig: SlurmRig, words: str, kind: str, then: str
    ) -> None:
        offer = self.offer(rig)
        rig.fail_create(words)
        error = self.error_of(rig, lambda: rig.provider.create(offer, replace(ORDER, label=label_of("a", 1, "aaaaaa"))))
        assert error.kind == kind
        assert words in str(error) and then in str(error)
        assert rig.rented() == []

    @pytest.mark.parametrize(
        ("how", "kind"),
        [
            ("Unable to contact slurm controller (connect failure)", "away"),
            ("Socket timed out on send/recv operation", "away"),
            ("Munge encode failed: Failed to access '/run/munge/munge.socket.2'", "key"),
            ("silence", "away"),
            ("nonsense", "away"),
        ],
    )
    def test_a_list_that_failed_is_never_an_empty_one(self, rig: SlurmRig, how: str, kind: str) -> None:
        self.rent(rig)
        rig.fail_list(how)
        assert self.error_of(rig, rig.provider.list_instances).kind == kind
        assert len(rig.provider.list_instances()) == 1

    def test_where_slurm_is_not_installed_each_call_says_so(self, tmp_path: Path) -> None:
        place = Slurm(tmp_path, {"PATH": str(tmp_path)})
        pod = Instance("1", "", "running", None)
        order = Order(label_of("a", 1, "aaaaaa"), "", 0, "", {})
        offer = Offer("slurm", "", 1, 0.0, spot=False)
        for call in (place.list_instances, lambda: place.create(offer, order), lambda: place.destroy(pod)):
            with pytest.raises(
                PlaceError, match=r"cannot be run .* that has Slurm's commands: the login machine"
            ) as caught:
                call()
            assert caught.value.kind == "refused"


ORDER = Order(label_of("otter", 1, "aaaaaa"), "", 0, "#!/bin/bash\n", {})


# ---------------------------------------------------------------- the fleet, in virtual time


class World:
    """A fleet of one run on the cluster: its real script and settings, and a clock and a claim that a test moves."""

    def __init__(self, folder: Path, cluster: FakeSlurm, *, place: str = "", more: str = "") -> None:
        self.cluster, self.now = cluster, 1_000_000.0
        (folder / "otter.toml").write_text(RUN_FILE.format(folder=folder, more=more))
        self.file = folder / "fleet.toml"
        self.file.write_text(FLEET_FILE.format(folder=folder, place=place))
        self.claim, self.published = Claim(), 0
        self.book = VirtualBook(self)  # type: ignore[arg-type]
        self.controller = self.control()

    def control(self) -> Controller:
        fleet = assemble(self.file, {**self.cluster.environ, "VAST_API_KEY": "theirs", "B2_APPLICATION_KEY": "ours"})
        run = replace(fleet.run("otter"), look=lambda: RunLook(self.claim, self.published))
        return Controller({"otter": run}, fleet.places(), self.book, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def tick(self, after_s: float = 30.0) -> Told:
        self.now += after_s
        [told] = self.controller.tick()
        return told

    def wait(self, seconds: float, *, beats: bool = False) -> Told:
        """Tick after tick for so long; returns the last one."""
        until = self.now + seconds
        while True:
            if beats:
                self.beat()
            told = self.tick()
            if self.now >= until:
                return told

    def claims(self, number: str) -> None:
        """The daemon of a job claims the run, and trains."""
        label = self.cluster.label(number).split()[0]
        generation = self.claim.generation + 1
        self.claim = Claim(generation, f"m{generation}", self.now, label=label, step=generation * 10, unpublished=())

    def beat(self) -> None:
        self.claim = replace(self.claim, beat_at=self.now, mark=f"{self.claim.mark}+")

    def gives_back(self, code: int | None, reason: str = "it had to leave") -> None:
        self.claim = replace(self.claim, released=True, code=code, reason=reason, beat_at=self.now)

    def up(self) -> None:
        self.book.states["otter"] = replace(self.book.states["otter"], up_at=self.now)

    def train(self, node: str = "n1") -> str:
        """The first job runs and trains."""
        [did] = self.tick().did
        [number] = self.cluster.living()
        assert did.endswith(f"It is instance {number}.")
        self.cluster.start(number, node)
        self.claims(number)
        assert f"Pod {number} (slurm) trains at step 10." == self.tick().decision.sentence
        return number

    def excluded(self, number: str) -> set[str]:
        [line] = [line for line in self.cluster.script(number).splitlines() if line.startswith("#SBATCH --exclude=")]
        return {*line.removeprefix("#SBATCH --exclude=").split(",")}


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path, cluster: FakeSlurm) -> Iterator[Make]:
    yield lambda **options: World(tmp_path, cluster, **options)


def test_a_job_is_the_script_of_slurm_submit_under_the_runs_label_without_the_controllers_keys(
    make: Make, cluster: FakeSlurm, tmp_path: Path
) -> None:
    world = make()
    [did] = world.tick().did
    assert did == (
        "Submitting a job in cluster (4 GPUs, no price, so limits do not count it): the run has not begun. "
        "It is instance 1."
    )
    script = cluster.script("1").splitlines()
    asked = ("--job-name=otter", "--partition=gpu", "--gres=gpu:4", "--exclude=n9", "--requeue")
    assert {f"#SBATCH {option}" for option in asked} <= {*script}
    assert any(f"run={tmp_path}/otter.toml" in line for line in script)
    environ = cluster.environment("1")
    assert environ["RL_SUPERVISOR_LABEL"] == cluster.label("1") and cluster.label("1").startswith("rls-otter-g00001-")
    assert environ["WANDB_MODE"] == "offline"
    assert not {"VAST_API_KEY", "B2_APPLICATION_KEY"} & environ.keys()


def test_a_job_that_waits_for_hours_is_waited_for_and_costs_nothing_until_it_runs(
    make: Make, cluster: FakeSlurm
) -> None:
    world = make(place="per_gpu_hour = 2.5")
    assert "(4 GPUs, $10.00 an hour while it runs)" in world.tick().did[0]
    cluster.change("1", reason="Priority", start="1795815107")
    told = world.wait(3600)
    assert told.decision.sentence == (
        "Pod 1 (slurm) waits in the queue since 60 min: Priority; expected to start at 2026-11-27 21:31 UTC"
    )
    assert not told.decision.person and cluster.living() == ["1"]
    before = cluster.asked("squeue")
    world.tick()
    assert cluster.asked("squeue") == before + 1, "Slurm's controller is asked once a look"
    state = world.book.states["otter"]
    assert sum_dollars(state) == 0
    assert world.controller.money is not None
    assert world.controller.money.per_hour == 10.0, "it may start at any moment"
    # The time in which it has to claim the run begins now.
    cluster.start("1", "n1")
    assert world.wait(1700).decision.sentence.startswith("Pod 1 (slurm) starts since 28 min")
    assert sum_dollars(world.book.states["otter"]) == pytest.approx(10.0 * 1700 / 3600, rel=0.05)
    world.claims("1")
    assert world.tick().decision.sentence == "Pod 1 (slurm) trains at step 10."
    assert cluster.asked("sbatch") == 1


def test_a_machine_on_which_a_job_starts_and_never_claims_the_run_is_left_out(make: Make, cluster: FakeSlurm) -> None:
    world = make()
    world.tick()
    (cluster.folder / "log.1").write_text("srun: error: the file system hangs\n")
    cluster.start("1", "n1")
    world.wait(1900)
    assert cluster.jobs() == {"1": "CANCELLED", "2": "PENDING"}
    assert any("within 30 min: it is destroyed. The last line that it printed: srun" in one for one in world.book.said)
    assert world.excluded("2") == {"n9", "n1"}


def test_a_job_whose_machine_is_lost_is_waited_for_in_the_queue_and_goes_on_elsewhere(
    make: Make, cluster: FakeSlurm
) -> None:
    world = make()
    world.train()
    world.wait(300)  # SlurmdTimeout, without a beat
    cluster.requeue("1")
    told = world.wait(1200)
    assert told.decision.sentence == (
        "Pod 1 (slurm) waits in the queue again: BeginTime; expected to start at 2026-11-27 21:24 UTC"
    )
    cluster.start("1", "n2")
    told = world.wait(650)  # the next daemon watches the heartbeat of the first one for ten minutes
    assert told.decision.sentence.startswith("Pod 1 (slurm) starts since 11 min")
    world.claims("1")
    assert world.tick().decision.sentence == "Pod 1 (slurm) trains at step 20."
    assert cluster.jobs() == {"1": "RUNNING"} and cluster.asked("sbatch") == 1
    assert world.book.states["otter"].faults == {}, "Slurm itself knows which machines are lost"


@pytest.mark.soak
def test_a_job_that_requeues_itself_before_its_wall_time_is_not_joined_by_another(
    make: Make, cluster: FakeSlurm
) -> None:
    world = make()
    world.train()
    world.gives_back(None)
    cluster.change("1", state="COMPLETING")
    assert "its pod may start it again" in world.tick().decision.sentence
    cluster.requeue("1")
    assert "waits in the queue again" in world.wait(7200).decision.sentence
    cluster.start("1", "n3")
    assert world.tick().decision.sentence.startswith("Pod 1 (slurm) starts since")
    world.claims("1")
    assert world.tick().decision.sentence == "Pod 1 (slurm) trains at step 20."
    assert cluster.asked("sbatch") == 1


@pytest.mark.parametrize("second_runs", [False, True])
def test_where_slurm_notices_a_lost_machine_late_one_of_two_jobs_is_left_at_the_next_look(
    make: Make, cluster: FakeSlurm, second_runs: bool
) -> None:
    """``SlurmdTimeout`` is longer than the fleet's patience."""
    world = make()
    world.published = 20
    world.train()
    world.wait(660)
    assert cluster.jobs() == {"1": "RUNNING", "2": "PENDING"}
    cluster.requeue("1")
    if second_runs:
        cluster.start("2", "n2")
    world.tick()
    assert cluster.living() == (["2"] if second_runs else ["1"])


@pytest.mark.parametrize("requeues", [True, False])
def test_after_94_the_next_job_leaves_that_machine_out(make: Make, cluster: FakeSlurm, requeues: bool) -> None:
    """Also where the job's own script has put it into the queue again meanwhile."""
    world = make()
    world.train("n4")
    world.gives_back(94, "n4 has 2 GPUs, and 4 were promised.")
    if requeues:
        cluster.requeue("1")
        cluster.change("1", comment=f"{cluster.label('1')} n4 is unfit for this run (exit 94): 2 GPUs.")
    else:
        cluster.change("1", state="FAILED", reason="NonZeroExitCode")
    told = world.tick()
    assert any(did.startswith("Pod 1: n4 has 2 GPUs") for did in told.did)
    world.tick()
    assert cluster.jobs() == {"1": "CANCELLED" if requeues else "FAILED", "2": "PENDING"}
    assert world.excluded("2") == {"n9", "n4"}
    assert any(", no price, so limits do not count it), without n4: its pod gave" in one for one in world.book.said)


def test_a_controller_that_never_saw_the_job_run_knows_its_machine_by_what_the_job_says(
    make: Make, cluster: FakeSlurm
) -> None:
    """A cron: the job began, was unfit, and is in the queue again between two looks."""
    world = make()
    world.tick()
    world.claims("1")
    world.gives_back(94, "n4 has 2 GPUs, and 4 were promised.")
    cluster.requeue("1")
    cluster.change("1", comment=f"{cluster.label('1')} n4 is unfit for this run (exit 94): 2 GPUs. See /log.")
    world.tick(600)
    world.tick()
    assert cluster.jobs() == {"1": "CANCELLED", "2": "PENDING"}
    assert world.excluded("2") == {"n9", "n4"}


@pytest.mark.parametrize("unfit", [(), ("n2",), ("n2", "n7")])
def test_of_several_machines_those_are_left_out_that_the_job_named(
    make: Make, cluster: FakeSlurm, unfit: tuple[str, ...]
) -> None:
    world = make()
    world.tick()
    cluster.start("1", "n1", "n2")
    world.claims("1")
    world.tick()
    world.gives_back(94, "too few machines")
    if unfit:
        named = f"{cluster.label('1')} {', '.join(unfit)} is unfit for this run (exit 94): See /log."
        cluster.change("1", state="PENDING", nodes="", reason="BeginTime", comment=named)
    world.tick()
    world.tick()
    assert world.excluded("2") == {"n9", *unfit}


@pytest.mark.soak
def test_an_sbatch_that_timed_out_and_worked_is_found_by_its_label(
    make: Make, cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    monkeypatch.setattr(submit, "TIMEOUT_S", 1.0)
    cluster.fail("sbatch", "late")
    assert "cluster: Slurm: sbatch did not answer within a minute. It may have worked." in world.tick().failed
    assert "waits in the queue" in world.wait(600).decision.sentence
    assert cluster.living() == ["1"] and cluster.asked("sbatch") == 1


def test_a_controller_of_slurm_that_is_away_for_ten_minutes_changes_nothing(make: Make, cluster: FakeSlurm) -> None:
    world = make()
    world.tick()
    cluster.be_away()
    told = world.wait(600)
    assert told.decision.sentence.startswith("Pod 1 may start; slurm does not answer: Slurm: `squeue ")
    assert told.decision.sentence.endswith("(connect failure). Jobs that run go on without it.")
    cluster.be_away(False)
    assert "waits in the queue" in world.tick().decision.sentence
    cluster.start("1", "n1")
    world.claims("1")
    world.tick()
    cluster.be_away()
    assert world.wait(600, beats=True).decision.sentence == "Pod 1 (slurm) trains at step 10."
    cluster.be_away(False)
    world.beat()
    assert world.tick().decision.sentence == "Pod 1 (slurm) trains at step 10."
    assert cluster.asked("sbatch") == 1


def test_while_slurm_is_away_the_next_job_waits_and_is_asked_for_again(make: Make, cluster: FakeSlurm) -> None:
    world = make()
    cluster.be_away()
    assert "no place can be asked: cluster: Slurm: `squeue" in world.wait(300).decision.sentence
    cluster.be_away(False)
    world.wait(60)
    assert cluster.living() == ["1"]


def test_a_refused_job_is_told_to_a_person_and_tried_again_within_the_hour(make: Make, cluster: FakeSlurm) -> None:
    world = make()
    cluster.fail("sbatch", "Invalid account or account/partition combination specified")
    assert "Invalid account" in world.tick().failed
    told = world.wait(600)
    assert told.decision.person and "Mend [slurm] of the run file" in told.decision.sentence
    world.wait(3600)
    assert cluster.living() == ["1"] and cluster.asked("sbatch") == 2


@pytest.mark.soak
@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("JobHeldUser", "it is held (JobHeldUser). To let it start: scontrol release 1"),
        (
            "InvalidQOS",
            "Slurm does not start it as it is (InvalidQOS). Mend [slurm] of the run file, then: scancel 1",
        ),
    ],
)
def test_a_job_that_waits_for_a_person_is_left_alone_and_told(
    make: Make, cluster: FakeSlurm, reason: str, said: str
) -> None:
    world = make()
    world.tick()
    cluster.change("1", reason=reason)
    told = world.wait(7200)
    assert told.decision.person and told.decision.sentence.endswith(said)
    assert cluster.asked("sbatch") == 1 and cluster.living() == ["1"]


def test_after_93_a_person_says_when_the_run_goes_on(make: Make, cluster: FakeSlurm) -> None:
    world = make()
    world.train()
    world.gives_back(93, "the loss is NaN")
    cluster.change("1", state="SPECIAL_EXIT", nodes="", reason="job requeued in held state")
    told = world.wait(3600)
    assert told.decision.person and "The run needs a person: the loss is NaN." in told.decision.sentence
    assert cluster.asked("sbatch") == 1
    world.up()
    world.tick()
    assert cluster.jobs() == {"1": "SPECIAL_EXIT", "2": "PENDING"}
    cluster.start("2", "n1")
    world.claims("2")
    assert "Pod 1 is kept" in world.tick().decision.sentence
    world.published = 20
    world.tick()
    assert cluster.jobs() == {"1": "CANCELLED", "2": "RUNNING"}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("TIMEOUT", "it reached its wall time and did not requeue itself"),
        ("NODE_FAIL", "its machine is lost, and Slurm may not requeue it"),
        ("PREEMPTED", "another job took its machine, and Slurm may not requeue it"),
        ("OUT_OF_MEMORY", "it used more memory than it had asked for"),
    ],
)
def test_a_job_that_ended_says_how_and_is_followed_by_another_on_any_machine(
    make: Make, cluster: FakeSlurm, state: str, why: str
) -> None:
    world = make()
    world.train()
    cluster.change("1", state=state, reason="None")
    world.wait(240)
    assert any(f": no beat for 3 min. Job 1 is {state}: {why}." in one for one in world.book.said)
    assert cluster.jobs() == {"1": state, "2": "PENDING"}
    cluster.forget("1")
    world.wait(300)
    assert world.book.states["otter"].faults == {} and world.excluded("2") == {"n9"}


def test_a_finished_run_needs_no_other_job(make: Make, cluster: FakeSlurm) -> None:
    world = make()
    world.train()
    world.gives_back(0, "all steps are done")
    cluster.change("1", state="COMPLETED")
    world.wait(600)
    assert cluster.jobs() == {"1": "COMPLETED"} and world.tick().decision.done


def test_a_job_that_a_person_cancelled_is_followed_by_another_and_blames_no_machine(
    make: Make, cluster: FakeSlurm
) -> None:
    world = make()
    world.train()
    cluster.change("1", state="CANCELLED")
    world.gives_back(None)
    world.wait(120)
    assert cluster.jobs() == {"1": "CANCELLED", "2": "PENDING"}
    assert world.book.states["otter"].faults == {}


@pytest.mark.soak
@pytest.mark.parametrize("after", [False, True])
def test_a_controller_that_is_killed_at_any_request_submits_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    killed = 0
    for number in range(1, 7):
        folder = tmp_path / str(number)
        folder.mkdir()
        cluster = FakeSlurm(folder / "cluster")
        world = World(folder, cluster)
        requests = 0

        def dying(call: Callable[..., object], at: int = number) -> Callable[..., object]:
            def asked(*words: object) -> object:
                nonlocal requests
                requests += 1
                if requests == at and not after:
                    raise KilledError
                answer = call(*words)
                if requests == at:
                    raise KilledError
                return answer

            return asked

        provider = world.controller._places["cluster"].provider
        for name in ("list_instances", "create", "find_offers"):
            setattr(provider, name, dying(getattr(provider, name)))
        try:
            world.tick()
        except KilledError:
            killed += 1
        world.controller = world.control()
        for _ in range(8):
            world.tick()
            assert len(cluster.living()) <= 1
        assert len(cluster.living()) == 1
        shutil.rmtree(folder)
    assert killed >= 4


def test_two_controllers_that_submit_at_once_leave_one_job_at_the_next_look(
    make: Make, cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    provider = world.controller._places["cluster"].provider
    other, create = world.control(), provider.create

    def late(offer: Offer, order: Order) -> str:
        world.now += 600.0  # this controller slept; the other one has given its create up
        other.tick()
        create(offer, order)
        raise KilledError  # what it would write down is refused: the other one tends the fleet

    monkeypatch.setattr(provider, "create", late)
    with pytest.raises(KilledError):
        world.tick()
    assert len(cluster.living()) == 2
    world.controller = other
    world.tick()
    assert len(cluster.living()) == 1


# ---------------------------------------------------------------- settings and commands


def test_what_the_cluster_cannot_do_is_told_when_the_file_is_read(make: Make, cluster: FakeSlurm) -> None:
    with pytest.raises(ConfigError, match="a job of Slurm reads the run file itself"):
        make(place='args = ["--x"]')
    with pytest.raises(ConfigError, match=r"and has no \[nodes\], which says what runs on which"):
        make(more="nodes = 2")


def test_the_commands_of_the_fleet_know_the_cluster(
    make: Make, cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make(place="per_gpu_hour = 2.5")
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    assert main(["fleet", "check", "--file", str(world.file)]) == 0
    assert "otter in cluster: nothing known is in the way." in capsys.readouterr().out
    assert main(["fleet", "offers", "--file", str(world.file)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:5] == ["cluster", "4", "GPUs", "10.00", "?"]
    assert main(["fleet", "up", "otter", "--file", str(world.file)]) == 0
    assert cluster.living() == ["1"]
    assert main(["fleet", "status", "--file", str(world.file)]) == 0
    assert "slurm/1 queued" in capsys.readouterr().out
    assert main(["fleet", "down", "otter", "--file", str(world.file)]) == 0
    assert cluster.jobs() == {"1": "CANCELLED"}
