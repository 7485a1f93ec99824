"""A run over several machines, in the core alone: what is proof, what is a signal, and what is unknown."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.decide import decide
from supervisor.core.machines import blame, to_avoid
from supervisor.core.settings import Settings
from supervisor.core.state import Attempt, Gpus, Machine, Progress, State
from supervisor.core.verdicts import judge

HOSTS = ("n0", "n1", "n2")


class Run:
    """A state that is fed."""

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
        assert decode(encode(self.state)) == self.state

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
    run.tell(f.MachineDown("n2", "DOWN*"))
    for _ in range(20):
        run.tell(f.Tick(), 5.0)
    assert run.verdicts() == []
    run.tell(f.MachineLook("n2", 4.0))
    for _ in range(8):
        run.tell(f.Tick(), 5.0)
    assert run.verdicts() == ["n2 is lost: its agent has been silent for 34 s; the engine says: DOWN*."]
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
