"""A run over several machines, in the core alone: what is proof, what is a signal, and what is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.decide import decide
from supervisor.core.machines import blame, to_avoid
from supervisor.core.pictures import trainer_rests_since
from supervisor.core.settings import Settings
from supervisor.core.signals import each_odd_engine, soft_overdue
from supervisor.core.state import Attempt, Busy, Gpus, Machine, Progress, State
from supervisor.core.verdicts import judge
from supervisor.core.watch import Watch

HOSTS = ("n0", "n1", "n2")


class Run:
    """A state that is fed. ``kept``: it is written and read back after each fact."""

    kept = True

    def __init__(self) -> None:
        settings = Settings("r", machine_silent=30, step_floor=600, step_ceiling=600, has_engine=False)
        self.state = State(
            settings=settings,
            mode="running",
            now=1000.0,
            attempt=Attempt(number=1),
            machines={name: Machine(attempt=1) for name in HOSTS},
            progress=Progress(step=5, t=1000.0, highest=5),
        )
        self.acts: list[a.Action] = []
        self.t = 1000.0
        self.tell(f.ProcessSeen(1, "trainer", 7, 70, "train", True, "n0", 0))
        self.tell(f.ProcessSeen(1, "inference", 7, 70, "vllm", True, "n1", 0))  # the same pid on another machine
        self.tell(f.ProcessSeen(1, "inference", 7, 70, "vllm", True, "n2", 1))

    def tell(self, fact: f.Fact, after_s: float = 0.0) -> None:
        self.t += after_s
        decision = decide(self.state, f.Observation(self.t, self.t, fact))
        self.state = decision.state
        self.acts += decision.actions
        assert not self.kept or decode(encode(self.state)) == self.state

    def verdicts(self) -> list[str]:
        return [one.sentence for one in self.acts if isinstance(one, a.Say) and one.event == "verdict"]


def test_equal_pids_on_several_machines_are_several_processes() -> None:
    run = Run()
    assert len(run.state.job.processes) == 3
    assert run.state.job.processes_here() == []
    run.tell(f.ProcessGone(1, "inference", 7, 70, True, "n2", 1))
    assert {one.host for one in run.state.job.processes.values()} == {"n0", "n1"}


def test_a_component_that_ends_with_0_is_a_death_and_the_sentence_names_host_role_and_index() -> None:
    run = Run()
    run.tell(f.ComponentExited(1, "inference-1", 0, None, False, "n2", "inference", 1))
    run.tell(f.Tick(), 3.0)
    assert run.verdicts() == [
        "vLLM 1 on n2 died silently: it ended with exit code 0, 3 s ago while the trainer lives on."
    ]
    assert any(isinstance(one, a.Stop) for one in run.acts)
    assert run.state.machines["n2"].deaths == 1


def start_anew(run: Run) -> None:
    """The order for attempt 2 is given; parts of it are seen before the start is answered."""
    run.state = replace(run.state, mode="starting", attempt=Attempt(number=2), busy=Busy(start=2))
    run.tell(f.ProcessSeen(2, "trainer", 8, 80, "train", True, "n0", 0))
    run.tell(f.ProcessSeen(2, "inference", 8, 80, "vllm", True, "n2", 1))


def test_what_a_failing_launch_ends_did_not_die_and_the_reason_is_the_launchs_own() -> None:
    run = Run()
    start_anew(run)
    run.tell(f.ProcessGone(2, "inference", 8, 80, True, "n2", 1), 15.0)
    run.tell(f.ComponentExited(2, "trainer-0", None, 15, False, "n0", "trainer", 0))
    run.tell(f.Tick(), 30.0)
    assert run.verdicts() == []
    assert not [one for one in run.acts if isinstance(one, a.Say) and one.event == "suspect"]
    run.tell(f.StartFailed(2, "n1: inference-0 needs port 8000 of this machine, which is held"))
    said = [one.sentence for one in run.acts if isinstance(one, a.Say) and one.event == "backing-off"]
    assert said and "port 8000" in said[0]
    assert run.verdicts() == []


def test_a_death_during_a_launch_is_one_as_soon_as_the_launch_is_done() -> None:
    run = Run()
    start_anew(run)
    run.tell(f.ProcessGone(2, "inference", 8, 80, True, "n2", 1), 5.0)
    run.tell(f.AttemptStarted(2, 5, 8, ""), 20.0)
    run.tell(f.Tick(), run.state.settings.engine_grace)
    [verdict] = run.verdicts()
    assert verdict.startswith("vLLM 1 on n2 died silently: ")


def test_a_death_that_is_heard_during_a_launch_waits_for_what_else_tells_of_it() -> None:
    run = Run()
    start_anew(run)
    run.tell(f.ProcessGone(2, "trainer", 8, 80, True, "n0", 0), 1.0)
    run.tell(f.AttemptStarted(2, 5, 8, ""), 20.0)
    assert run.verdicts() == []
    run.tell(f.ComponentExited(2, "trainer-0", 1, None, False, "n0", "trainer", 0), 0.3)
    assert run.verdicts() == ["The job ended with exit code 1 after step 5."]


def lost_in_a_start(seat: str, other_seat: str) -> Run:
    """A run in which n2 has fallen silent right after a launch, 30 s before the end; n3 has come."""
    run = Run()
    start_anew(run)
    run.tell(f.MachineLook("n2", seat=seat))
    run.tell(f.AttemptStarted(2, 5, 8, "", machines=HOSTS), 1.0)
    run.tell(f.MachineLook("n3", seat=other_seat), 1.0)  # before the other is known to be silent
    run.tell(f.MachineLook("n2", 3.0), 2.0)
    run.tell(f.Tick(), 20.0)
    assert run.verdicts() == []
    return run


def test_a_machine_that_is_silent_and_has_a_successor_is_lost_also_before_the_first_step() -> None:
    run = lost_in_a_start("run-machines-0-2", "run-machines-0-2")
    run.tell(f.Tick(), 8.0)
    assert run.verdicts() == ["n2 is lost: its agent has been silent for 31 s; n3 has its place now."]


def test_a_daemon_that_starts_meanwhile_still_knows_whose_place_it_was() -> None:
    run = lost_in_a_start("run-machines-0-2", "run-machines-0-2")
    told = run.state.machines
    run.state = replace(run.state, machines={name: replace(one, speaks=False) for name, one in told.items()})
    run.tell(f.Tick(), 20.0)
    assert run.verdicts() == []  # who was heard by the daemon before may be gone as well
    run.tell(f.MachineLook("n3", seat="run-machines-0-2"), 1.0)
    assert run.verdicts() == ["n2 is lost: its agent has been silent for 44 s; n3 has its place now."]


def test_a_machine_that_comes_beside_a_silent_one_says_nothing_of_it() -> None:
    for seat, other_seat in (("", ""), ("run-machines-0-2", "run-machines-0-3"), ("run-machines-0-2", "")):
        run = lost_in_a_start(seat, other_seat)
        run.tell(f.Tick(), 60.0)
        assert run.verdicts() == []


def test_a_death_counts_from_when_it_happened_not_from_when_it_was_heard() -> None:
    run = Run()
    run.t += 60
    run.tell(f.ComponentExited(1, "inference-1", None, 9, False, "n2", "inference", 1, age_s=40.0))
    assert run.verdicts() == [
        "vLLM 1 on n2 died silently: it ended with signal 9, 40 s ago while the trainer lives on."
    ]


def test_the_engines_core_and_then_its_server_are_one_death() -> None:
    run = Run()
    run.tell(f.ProcessGone(1, "inference", 8, 80, True, "n2", 1))
    run.tell(f.ComponentExited(1, "inference-1", 0, None, False, "n2", "inference", 1), 1.0)
    run.tell(f.ProcessGone(1, "inference", 7, 70, True, "n2", 1))
    assert [(one.host, one.index, one.how != "") for one in run.state.job.gone] == [("n2", 1, True)]


def test_the_first_trainers_end_is_the_end_of_the_job_and_anothers_is_a_death() -> None:
    run = Run()
    run.tell(f.ComponentExited(1, "trainer-1", 1, None, False, "n1", "trainer", 1))
    assert run.state.job.ended is None
    run = Run()
    run.tell(f.ComponentExited(1, "trainer-0", 1, None, False, "n0", "trainer", 0))
    assert run.verdicts()[0].startswith("The job ended with exit code 1 after step 5")


def test_silence_of_a_machine_is_unknown_for_as_long_as_steps_come() -> None:
    run = Run()
    run.tell(f.MachineLook("n2", 4.0))
    for step in range(6, 40):
        run.tell(f.StepDone("job", step), 60.0)
    assert run.verdicts() == []
    assert judge(run.state).kind == "healthy"
    run.tell(f.MachineLook("n2"))
    assert run.state.machines["n2"].silent_since is None


def test_silence_and_a_step_that_does_not_come_convict_the_machine() -> None:
    run = Run()
    run.tell(f.MachineLook("n2", 4.0))
    for _ in range(130):
        run.tell(f.Tick(), 5.0)
    [sentence] = run.verdicts()
    assert sentence.startswith("n2 is lost: its agent has been silent for ")
    assert "no new step for" in sentence
    assert to_avoid(run.state) == ("n2",)


def test_silence_and_what_the_others_log_convict_it_sooner() -> None:
    run = Run()
    run.tell(f.MachineLook("n2", 4.0))
    run.tell(f.ErrorSeen("orchestrator", "connection-error", "Connection refused by n2"), 5.0)
    assert run.verdicts() == []
    for _ in range(8):
        run.tell(f.Tick(), 5.0)
    [sentence] = run.verdicts()
    assert "the orchestrator logs: Connection refused by n2" in sentence


def test_an_error_from_before_the_silence_says_nothing_of_it() -> None:
    run = Run()
    run.tell(f.ErrorSeen("orchestrator", "connection-error", "Connection refused by n2"), 5.0)
    run.tell(f.StepDone("job", 6), 5.0)
    run.tell(f.MachineLook("n2", 4.0))
    for _ in range(20):
        run.tell(f.Tick(), 5.0)
    assert run.verdicts() == []


def test_the_engines_word_alone_is_nothing_and_with_silence_it_is_enough() -> None:
    run = Run()
    run.tell(f.MachineDown("n2", "Slurm says DOWN*"))
    for _ in range(20):
        run.tell(f.Tick(), 5.0)
    assert run.verdicts() == []
    run.tell(f.MachineLook("n2", 4.0))
    for _ in range(8):
        run.tell(f.Tick(), 5.0)
    assert run.verdicts() == ["n2 is lost: its agent has been silent for 34 s; Slurm says DOWN*."]
    run.tell(f.MachineDown("n2"))
    assert run.state.machines["n2"].down == ""


def test_a_new_daemon_knows_of_no_silence() -> None:
    run = Run()
    run.tell(f.MachineLook("n2", 100.0))
    run.tell(f.DaemonStarted("1", run.state.settings, adopted=1))
    assert run.state.machines["n2"].silent_since is None


def test_a_start_rather_leaves_out_where_two_things_died_or_nothing_is_heard() -> None:
    run = Run()
    once = blame(run.state, "n2")
    assert to_avoid(once) == ()
    assert to_avoid(blame(once, "n2")) == ("n2",)
    run.state = blame(once, "n2")
    run.tell(f.MachineLook("n1", 4.0))
    assert to_avoid(run.state) == ("n1", "n2")  # the worst last


def test_a_gpu_that_is_lost_elsewhere_and_a_death_leave_that_machine_out_at_once() -> None:
    run = Run()
    run.tell(f.GpuFault("GPU 3", 79, "GPU has fallen off the bus", "n2"))
    run.tell(f.GpuFault("GPU 3", 79, "GPU has fallen off the bus", "n2", age_s=60.0), 60.0)  # told again
    assert len(run.state.gpus.trouble) == 1 and run.verdicts() == []
    run.tell(f.ComponentExited(1, "inference-1", 1, None, False, "n2", "inference", 1))
    run.tell(f.Tick(), 3.0)
    [sentence] = run.verdicts()
    assert sentence == (
        "vLLM 1 on n2 died: it ended with exit code 1, 3 s ago; GPU 3 of n2: Xid 79 (GPU has fallen off the bus)."
    )
    assert to_avoid(run.state) == ("n2",)
    assert run.state.mode == "stopping", "another machine may do"


def test_a_gpu_that_no_longer_answers_elsewhere_and_a_step_that_does_not_come_convict_its_machine() -> None:
    run = Run()
    run.tell(f.GpuFault("GPU 0", 0, "it is not on the bus any more", "n1"))
    for _ in range(130):
        run.tell(f.Tick(), 5.0)
    [sentence] = run.verdicts()
    assert sentence.startswith("A GPU is lost: GPU 0 of n1: it is not on the bus any more; no new step for"), sentence
    assert run.state.machines["n1"].deaths == 1 and to_avoid(run.state) == ("n1",)


def test_a_fault_of_a_machine_on_which_nothing_runs_convicts_nobody() -> None:
    run = Run()
    run.tell(f.GpuFault("GPU 0", 79, "", "n9"))
    run.tell(f.ComponentExited(1, "inference-1", 1, None, False, "n2", "inference", 1))
    run.tell(f.Tick(), 3.0)
    [sentence] = run.verdicts()
    assert "GPU" not in sentence
    assert to_avoid(run.state) == ("n9",)
    run.tell(f.GpuFault("GPU 0", 31, "MMU fault", "n1"))
    assert to_avoid(run.state) == ("n9",), "a fault that a restart cures"


def test_a_broken_gpu_without_another_machine_asks_for_another_allocation() -> None:
    run = Run()
    run.tell(f.MachineLook("n3"))  # a spare
    run.tell(f.GpuFault("GPU 3", 79, "GPU has fallen off the bus", "n2"))
    run.tell(f.ComponentExited(1, "inference-1", 1, None, False, "n2", "inference", 1))
    run.tell(f.Tick(), 3.0)
    assert run.state.attempt.after_stop == "restart", "the spare takes its place"
    run = Run()
    run.tell(f.MachineLook("n3"))
    run.tell(f.MachineLook("n3", 4.0))  # the spare is silent
    run.tell(f.GpuFault("GPU 3", 79, "GPU has fallen off the bus", "n2"))
    run.tell(f.ComponentExited(1, "inference-1", 1, None, False, "n2", "inference", 1))
    run.tell(f.Tick(), 3.0)
    assert run.state.attempt.after_stop == "unfit"
    assert run.state.attempt.stop_reason.endswith("No other machine is well: another allocation goes on.")


def test_a_broken_machine_that_was_taken_for_want_of_another_is_not_tried_a_second_time() -> None:
    run = Run()
    run.tell(f.GpuFault("GPU 3", 79, "GPU has fallen off the bus", "n2"))
    run.state = replace(run.state, gpus=Gpus(), attempt=Attempt(number=1, started=run.t))  # told in an attempt before
    run.tell(f.ComponentExited(1, "inference-1", 0, None, False, "n2", "inference", 1))
    run.tell(f.Tick(), 3.0)
    assert run.state.attempt.after_stop == "unfit"


def test_a_death_on_a_machine_without_a_broken_gpu_restarts_there_where_no_other_is_left() -> None:
    run = Run()
    run.tell(f.ComponentExited(1, "inference-1", 0, None, False, "n2", "inference", 1))
    run.tell(f.Tick(), 3.0)
    assert run.state.attempt.after_stop == "restart"


# ---------------------------------------------------------------- GPUs and engines of other machines

GIB = 1 << 30


def gpus(host: str, role: str, used_gib: float, power_w: float = 600.0, reason: str = "") -> f.GpuLook:
    found = [
        f.Gpu(f"GPU-{host}-{n}", n, int(used_gib * GIB), 80 * GIB, role, power_w=power_w, load=0.0)  # type: ignore[arg-type]
        for n in range(2)
    ]
    return f.GpuLook(() if reason else tuple(replace(gpu, host=host) for gpu in found), reason, host=host)


def look(host: str, index: int, count: float, **more: object) -> f.EngineLook:
    well = f.EngineLook("http://127.0.0.1:8100", "ok", "ok", iterations=count, running=4, waiting=0, connections=4)
    return replace(well, **{"host": host, "index": index, **more})  # type: ignore[arg-type]


class WatchedRun(Run):
    """The same with what the agents see of GPUs and engines, every five seconds."""

    kept = False

    def __init__(self) -> None:
        super().__init__()
        self.state = replace(self.state, settings=replace(self.state.settings, hang=60))
        self.used = {"n0": 70.0, "n1": 75.0, "n2": 75.0}
        self.counts = {"n1": 0.0, "n2": 0.0}

    def go(self, seconds: float, *, silent: str = "", still: str = "", **odd: dict[str, object]) -> None:
        """``odd``: what the engine of a machine answers in place of what it does when all is well."""
        until = self.t + seconds
        while self.t < until:
            self.t += 5
            for host, role in (("n0", "trainer"), ("n1", "inference"), ("n2", "inference")):
                if host != silent:
                    self.tell(gpus(host, role, self.used[host]))
            for index, host in enumerate(("n1", "n2")):
                self.counts[host] += 0 if host in still.split() else 100
                if host != silent:
                    self.tell(look(host, index, self.counts[host], **odd.get(host, {})))
            self.tell(f.Tick())


def timed_run() -> WatchedRun:
    """It is known what a step takes: a minute."""
    run = WatchedRun()
    run.state = replace(run.state, settings=replace(run.state.settings, step_floor=100, step_ceiling=3000))
    run.go(60)
    for _ in range(2):
        run.tell(f.StepDone("trainer", (run.state.progress.step or 0) + 1, 60.0), 5)
        run.go(55)
    return run


REFUSES: dict[str, object] = {"health": "refused", "liveness": "unknown", "iterations": None, "running": None}
ANSWERS_BADLY: dict[str, object] = {**REFUSES, "health": "bad"}
LATE: dict[str, object] = {**REFUSES, "health": "timeout"}


def test_an_engine_elsewhere_whose_memory_is_gone_and_whose_port_refuses_is_dead_and_named() -> None:
    run = WatchedRun()
    run.go(60)
    run.used["n2"] = 0.5
    run.go(20, n2=REFUSES)
    [sentence] = run.verdicts()
    assert sentence.startswith("vLLM 1 on n2 is dead: its port has refused connections for "), sentence
    assert "memory on GPU 0 of n2 fell to 512 MiB from 75.0 GiB" in sentence
    assert run.state.machines["n2"].deaths == 1
    assert run.state.machines["n1"].deaths == 0


def test_what_one_engine_shows_and_what_another_does_are_not_two_signals() -> None:
    """One refuses and is alone in it, another machine's memory has gone, a third machine's agent is silent."""
    run = WatchedRun()
    run.go(60)
    run.used["n1"] = 0.5
    run.tell(f.MachineLook("n0", 12.0))
    run.go(120, silent="n0", n2=ANSWERS_BADLY)
    assert not run.verdicts()
    assert run.state.suspicion.sentence.startswith("vLLM 0 on n1 is under suspicion: memory on GPU 0 of n1 fell")


def test_an_engine_that_is_late_is_not_convicted_by_a_long_step_while_others_work() -> None:
    run = timed_run()
    run.go(590, n2=LATE)
    assert soft_overdue(run.state, Watch(run.state.now)) is not None
    assert not run.verdicts()
    run.go(30, n2=LATE)
    assert run.verdicts()[0].startswith("vLLM 1 on n2 hangs: its port has accepted and not answered for 10 min; no new")


def test_an_engine_that_is_not_up_yet_is_not_dead_because_others_are() -> None:
    run = WatchedRun()
    run.tell(f.ErrorSeen("orchestrator", "connection-error", "All connection attempts failed"))
    run.go(300, n2=REFUSES)
    assert not run.verdicts(), "it was never seen to answer: it loads, or listens where it is not asked"


def test_one_bad_look_before_its_machine_fell_silent_stays_one() -> None:
    run = WatchedRun()
    run.go(60)
    run.go(5, n2=ANSWERS_BADLY)
    run.tell(f.ErrorSeen("orchestrator", "connection-error", "All connection attempts failed"))
    run.go(100, silent="n2")
    assert run.state.engines["n2/1"].bad_looks == 1
    assert not run.verdicts()


def test_an_engine_that_makes_nothing_while_it_has_requests_hangs_whatever_another_does() -> None:
    misses: dict[str, object] = {"liveness": "timeout"}
    for other in ({}, {"n1": LATE}, {"n1": ANSWERS_BADLY}):
        run = WatchedRun()
        run.go(60)
        run.go(50, still="n2", n2={"liveness": "unknown"}, **other)
        assert not run.verdicts()
        run.go(15, still="n2", n2=misses, **other)
        [sentence] = run.verdicts()
        assert sentence.startswith("vLLM 1 on n2 hangs: it answers /health but makes no progress: it made no token for")
        assert run.state.machines["n2"].deaths == 1


def test_an_engine_that_pauses_with_its_requests_and_answers_from_within_does_not_hang() -> None:
    run = WatchedRun()
    run.go(60)
    run.tell(f.WorkSeen(40, 3, 100))
    run.go(60, still="n1 n2")
    held: dict[str, object] = {"canary": "timeout"}  # with the requests of others
    run.go(200, still="n1 n2", n1=held, n2=held)
    assert not run.verdicts(), "all stand, and /liveness goes through the engine"
    run.go(60, still="n2", n2=held)
    assert run.verdicts()[0].startswith("vLLM 1 on n2 hangs"), "and this one stands while the other works again"


def test_an_engine_with_nothing_to_do_is_not_still_and_its_machines_other_gpus_are_not_its_own() -> None:
    run = timed_run()
    idle: dict[str, object] = {"running": 0, "waiting": 0, "liveness": "absent"}  # a router keeps its connections
    run.go(900, still="n2", n2=idle)
    assert soft_overdue(run.state, Watch(run.state.now)) is not None
    assert not run.verdicts()
    one = gpus("n2", "inference", 75)
    run.tell(replace(one, gpus=(one.gpus[0], replace(one.gpus[1], used_bytes=1 << 20))))
    run.used["n2"] = 75.0
    assert not [one for one in each_odd_engine(run.state, Watch(run.state.now + 60)) if one.signals]


def test_one_of_several_data_parallel_engines_behind_one_port_that_stands_is_suspected() -> None:
    run = WatchedRun()
    run.go(60)
    for count in range(30):
        units = (f.EngineCount(0, 100.0 + count, 3.0, 0.0), f.EngineCount(1, 50.0, 3.0, 1.0))
        run.go(5, n2={"engines": units, "liveness": "absent"})
    assert not run.verdicts()
    assert run.state.suspicion.sentence.startswith("vLLM 1 on n2 is under suspicion: engine 1 of 2 made no token for")


def test_what_a_silent_machine_showed_is_unknown_and_never_zero() -> None:
    for word in (f.MachineLook("n2", 12.0), gpus("n2", "inference", 0, reason="the driver does not answer")):
        run = WatchedRun()
        run.go(60)
        run.used["n2"] = 0.5
        run.go(5)
        assert any(one.fallen_since is not None for one in run.state.gpus.by_uuid.values())
        run.tell(word)
        assert all(one.fallen_since is None for one in run.state.gpus.by_uuid.values())
        assert all(one.plateau_bytes for one in run.state.gpus.by_uuid.values()), "what was learned stays"
        assert not run.state.machines["n2"].sees_gpus


def test_a_trainer_rests_only_where_the_gpus_of_all_machines_are_seen() -> None:
    run = WatchedRun()
    run.go(60)
    for _ in range(3):
        run.tell(gpus("n0", "trainer", 70, power_w=90), 5)
    assert trainer_rests_since(run.state) is not None
    run.tell(gpus("n1", "inference", 70, reason="the driver does not answer"), 5)
    assert trainer_rests_since(run.state) is None, "another trainer may be among those that are not seen"


def test_what_a_machine_shows_that_a_start_leaves_out_is_none_of_the_runs() -> None:
    run = WatchedRun()
    run.go(10)
    run.tell(f.AttemptStarted(1, None, 8, machines=("n0", "n1")))
    assert {one.gpu.host for one in run.state.gpus.by_uuid.values()} == {"n0", "n1"}


def test_memory_of_a_machine_is_warned_of_by_name_and_explains_only_a_death_there() -> None:
    run = WatchedRun()
    low = f.HostLook(100 * GIB, 2 * GIB, oom_kills=3, host="n2")
    run.tell(low)
    run.tell(replace(low, memory_available_bytes=60 * GIB, host="n1"))
    run.tell(replace(low, memory_available_bytes=60 * GIB))
    told = [one.sentence for one in run.acts if isinstance(one, a.Say)]
    assert told == [
        "n2: The host has little memory left (2.0 GiB of 100 GiB): the kernel will end a process when it is full.",
        "n2: The host has memory again.",
    ], told
    for place, because in (("n1", False), ("n2", True)):
        run = WatchedRun()
        run.tell(replace(low, host=place))
        run.tell(replace(low, oom_kills=4, host=place), 2)
        told = [one.sentence for one in run.acts if isinstance(one, a.Say)][-1]
        assert told == f"The kernel ended a process on {place} because memory was full (OOM kill)."
        run.tell(f.ProcessGone(1, "inference", 7, 70, True, "n2", 1))
        run.go(10)
        verdict = run.verdicts()[0]
        assert ("the kernel ended a process because n2's memory was full" in verdict) is because, verdict


def test_memory_of_a_machine_that_works_for_nothing_explains_no_end() -> None:
    run = WatchedRun()
    for kills in (0, 1):
        run.tell(f.HostLook(100 * GIB, 50 * GIB, oom_kills=kills, host="n9"))
    run.tell(f.ErrorSeen("trainer", "config", "ValueError: bad config", deterministic=True))
    run.tell(f.ComponentExited(1, "trainer-0", 1, host="n0", role="trainer"))
    run.go(10)
    assert "bad config" in run.verdicts()[0] and "memory" not in run.verdicts()[0]


QUIET = f.EffortLook((f.Effort("trainer", 0.0, 0.0),), "", 0.1, 0.0, 2e5)


def stand_still(run: WatchedRun, seconds: float, effort: f.EffortLook | None = QUIET, unseen: str = "") -> float:
    """Nothing is made anywhere and the trainer's GPU spins; for how long until the job is stopped."""
    began = run.t
    while not any(isinstance(one, a.Stop) for one in run.acts) and run.t < began + seconds:
        run.t += 10
        trainer = gpus("n0", "trainer", 70, power_w=200)
        run.tell(replace(trainer, gpus=tuple(replace(one, load=100.0) for one in trainer.gpus)))
        for index, host in enumerate(("n1", "n2")):
            run.tell(gpus(host, "inference", 75, power_w=120))
            if host != unseen:
                run.tell(look(host, index, run.counts[host], running=0, connections=0))
        if effort is not None:
            run.tell(effort)
    return run.t - began


def run_of_pictures() -> WatchedRun:
    run = timed_run()
    run.tell(gpus("n0", "trainer", 70, power_w=100))
    for _ in range(30):
        run.go(55)
        run.tell(QUIET)
        run.tell(f.StepDone("trainer", (run.state.progress.step or 0) + 1, 60.0), 5)
    run.acts.clear()
    return run


def test_a_collective_over_machines_that_never_ends_is_found_by_what_all_of_them_show() -> None:
    run = run_of_pictures()
    took = stand_still(run, 1000)
    [verdict] = run.verdicts()
    assert 180 <= took <= 200, (took, verdict)
    assert "no engine made a token for" in verdict and "as in a collective that never ends" in verdict, verdict
    # Where one thing moves or is not seen, the slower rules hold.
    for effort, unseen in (
        (replace(QUIET, net_bytes_s=5e7), ""),
        (replace(QUIET, file_bytes_s=None), ""),
        (f.EffortLook(reason="n1 does not tell what its processes do"), ""),
        (None, ""),
        (QUIET, "n2"),
    ):
        assert stand_still(run_of_pictures(), 200, effort, unseen) == 200, (effort, unseen)


def failed_start(run: Run, **more: Any) -> None:
    number = run.state.attempt.number + 1
    run.state = replace(run.state, mode="starting", attempt=Attempt(number=number), busy=Busy(start=number))
    run.tell(f.StartFailed(number, "n2: [Errno 28] No space left on device", host="n2", **more))


def test_a_machine_on_which_starts_fail_is_left_out_where_there_is_another() -> None:
    run = Run()
    for _ in range(2):
        failed_start(run)
        assert run.state.mode != "gave-up"
    assert to_avoid(run.state) == ("n2",)


@pytest.mark.parametrize("max_restarts", [0, 3])
def test_an_unfit_machine_is_left_out_and_the_allocation_is_given_back_where_there_is_no_other(
    max_restarts: int,
) -> None:
    run = Run()
    run.state = replace(run.state, settings=replace(run.state.settings, max_restarts=max_restarts))
    failed_start(run, unfit=True)
    assert run.state.mode == "backing-off" and to_avoid(run.state) == ("n2",) and run.state.recovery.barren == 0
    failed_start(run, unfit=True)  # it was taken again, or it has what keeps each start waiting
    assert (run.state.mode, run.state.ending.code) == ("unfit", 94)


def test_a_start_that_goes_well_on_a_machine_clears_it() -> None:
    run = Run()
    failed_start(run, unfit=True)
    number = run.state.attempt.number + 1
    run.state = replace(run.state, mode="starting", attempt=Attempt(number=number), busy=Busy(start=number))
    run.tell(f.AttemptStarted(number, 5, 70, machines=HOSTS))
    assert to_avoid(run.state) == ()


def test_a_spare_that_has_not_greeted_a_daemon_that_just_began_counts_as_one() -> None:
    for since_s, after in ((10.0, "restart"), (60.0, "unfit")):
        run = Run()
        run.state = replace(run.state, began=run.t)
        run.state = replace(run.state, machines={**run.state.machines, "n3": Machine()})
        run.tell(f.Tick(), since_s)
        run.state = replace(run.state, progress=replace(run.state.progress, t=run.t))  # a step was done just now
        run.tell(f.GpuFault("GPU 3", 79, "GPU has fallen off the bus", "n2"))
        run.tell(f.ComponentExited(1, "inference-1", 1, None, False, "n2", "inference", 1))
        run.tell(f.Tick(), 3.0)
        assert run.state.attempt.after_stop == after


def test_a_machine_of_an_earlier_allocation_takes_no_other_ones_place() -> None:
    run = Run()
    run.state = replace(run.state, machines={**run.state.machines, "n3": Machine(attempt=0)})
    run.tell(f.Tick(), 60.0)
    run.tell(f.GpuFault("GPU 3", 79, "GPU has fallen off the bus", "n2"))
    run.tell(f.ComponentExited(1, "inference-1", 1, None, False, "n2", "inference", 1))
    run.tell(f.Tick(), 3.0)
    assert run.state.attempt.after_stop == "unfit"
