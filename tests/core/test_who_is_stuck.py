"""All stand still, and the sentence names whom they wait for: by what is logged at level "info", by GPUs and processes.

prime-rl's trainer says what it does at level "debug" only (trainer/rl/train.py, all of 2026). The orchestrator says at
"info" that it waits for the trainer. Lines are those of the format strings at the commits named, with loguru's colours.
"""

from __future__ import annotations

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.primerl.logs import parse_line
from tests.primerl.lines import coloured

from .world import GIB, SETTINGS, World

STEP_S = 240.0
BUSY_W, SPINS_W, RESTS_W = 520.0, 210.0, 90.0

# Day, number of the first step, the trainer's prefix, its step line, and how the orchestrator says that it waits.
ERAS = {
    "d70a00f6e (2026-01-09)": (
        0,
        "[default0]:",
        "Step {step} | Time: 240.00s | Loss: 0.0010 | Entropy: 0.3871 | Mismatch KL: 0.0007 | Grad. Norm: 0.0912 | LR: 1.00e-05 | Throughput: 4410 tokens/s | MFU: 12.9% | Peak Mem.: 61.2 GiB",  # noqa: E501
        "Step {step} | Time: 240.00s | Reward: 0.4123 | Throughput: 900.1 tokens/s | Seq. Length: 512.0 tokens/sample | Async Level: 1 | Max. Off-Policy Level: 1",  # noqa: E501
        "Hit async barrier because we are >1 step(s) async. Waiting for checkpoint {version}",
    ),
    "fc6fd48fa (2026-03-20)": (
        0,
        "[default0]:",
        "Step {step} | Time: 240.00s | Loss: 0.0010 | Entropy: 0.3871 | Grad. Norm: 0.0912 | LR: 1.00e-05 | Throughput: 4410 tokens/s | MFU: 12.9% | Peak Mem.: 61.2 GiB",  # noqa: E501
        "Step {step} | Time: 240.00s | Reward: 0.4123 | Seq. Length: 512.0 tokens/sample | Async Level: 1 | Max. Off-Policy Level: 1",  # noqa: E501
        "Orchestrator paused: waiting for trainer process to complete checkpoint {version} (>1 step(s) ahead). Training is progressing normally.",  # noqa: E501
    ),
    "c7a6573de (2026-08-18), the dispatcher": (
        1,
        "[trainer0]:",
        "Step {step} |   4m 0s | Loss 0.0010 | Entropy 0.3000 | Mismatch KL 0.0010 | Grad. Norm 0.1000 | LR 1.00e-05 | Throughput 1200 tokens/s | MFU 4.1% | Peak Mem. 71.2 GiB",  # noqa: E501
        "Step {step} |   4m 0s | Reward 0.4123 | Trainable 120/128 (93.8%) | Turns 3.1 | Branches 1.0 | Max Off-Policy 2 | Error 0.0% | Cancelled 0.0% | Truncation 1.0%",  # noqa: E501
        "Pausing dispatcher to prevent orchestrator from racing from trainer. Waiting for new policy...",
    ),
    "c7a6573de (2026-08-18), a batch that is held": (
        1,
        "[trainer0]:",
        "Step {step} |   4m 0s | Loss 0.0010 | Entropy 0.3000 | Grad. Norm 0.1000 | LR 1.00e-05 | Throughput 1200 tokens/s | MFU 4.1% | Peak Mem. 71.2 GiB",  # noqa: E501
        "Step {step} |   4m 0s | Reward 0.4123 | Trainable 120/128 (93.8%) | Turns 3.1 | Branches 1.0 | Max Off-Policy 2 | Error 0.0% | Cancelled 0.0% | Truncation 1.0%",  # noqa: E501
        "Holding batch 63 until the trainer publishes policy v{version} (currently v60)",
    ),
    "c7a6573de (2026-08-18), the watcher": (
        1,
        "[trainer0]:",
        "Step {step} |   4m 0s | Loss 0.0010 | Entropy 0.3000 | Grad. Norm 0.1000 | LR 1.00e-05 | Throughput 1200 tokens/s | MFU 4.1% | Peak Mem. 71.2 GiB",  # noqa: E501
        "Step {step} |   4m 0s | Reward 0.4123 | Trainable 120/128 (93.8%) | Turns 3.1 | Branches 1.0 | Max Off-Policy 2 | Error 0.0% | Cancelled 0.0% | Truncation 1.0%",  # noqa: E501
        "Orchestrator paused: waiting for trainer to broadcast checkpoint {version}. Training is progressing normally.",
    ),
}


def read(world: World, role: f.Role, line: str) -> None:
    facts = parse_line(role, line)
    assert facts, line
    for fact in facts:
        world.see(fact)


def look(
    world: World,
    watts: float | None = BUSY_W,
    *,
    tokens: bool,
    load: float | None = None,
    others: tuple[f.Gpu, ...] = (),
) -> None:
    """One look of the sensors; ``watts`` and ``load`` are of the trainer's GPU."""
    gpus = (
        *others,
        f.Gpu("GPU-0", 0, 70 * GIB, 80 * GIB, "inference", power_w=500.0 if tokens else 120.0),
        f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer", power_w=watts, load=load),
    )
    world.see(f.GpuLook(gpus))
    count = world.t if tokens else world.state.engine.count
    world.engine(iterations=count, running=8.0 if tokens else 0.0, connections=None if tokens else 0)


def run(era: str, steps: int = 60) -> World:
    """A healthy run, of which the log tells no more than its steps and that the orchestrator waits for the trainer."""
    first, prefix, trainer, orchestrator, barrier = ERAS[era]
    world = World(f.Settings(**{**vars(SETTINGS), "first_step_at": first}))
    world.boot()
    world.job_up()
    for step in range(first, first + steps):
        for t in range(0, int(STEP_S), 10):
            world.t += 10
            look(world, tokens=t < 200)
            if t == 200:
                read(world, "orchestrator", coloured("SUCCESS", orchestrator.format(step=step)))
                if step > first:
                    read(world, "orchestrator", coloured("INFO", barrier.format(version=step + 1 - first)))
        read(world, "trainer", prefix + coloured("SUCCESS", trainer.format(step=step)))
        over = {
            "Pausing": "Resuming dispatcher",
            "Orchestrator paused: waiting for trainer p": "Orchestrator resumed: checkpoint 5 ready (after 40.12s)",
        }
        said = next((line for begin, line in over.items() if barrier.startswith(begin)), "")
        if said:
            read(world, "orchestrator", coloured("INFO", said))
        elif first:
            read(world, "orchestrator", coloured("INFO", f"Updating policy in-flight to v{step}"))
        else:
            read(world, "orchestrator", coloured("INFO", f"Starting orchestrator step {step + 2}"))
    assert not world.asked(a.Stop)
    return world


def until_stopped(world: World, watts: float | None, load: float | None = None, limit_s: float = 8 * 3600.0) -> str:
    began = world.t
    while not world.asked(a.Stop) and world.t < began + limit_s:
        world.t += 10
        look(world, watts, tokens=False, load=load)
    return world.said("verdict")[0]


@pytest.mark.soak
@pytest.mark.parametrize("era", ERAS)
def test_a_trainer_for_which_the_orchestrator_waits_is_named_at_the_default_log_level(era: str) -> None:
    first, _, _, orchestrator, barrier = ERAS[era]
    world = run(era)
    for _ in range(20):
        world.t += 10
        look(world, tokens=True)
    read(world, "orchestrator", coloured("SUCCESS", orchestrator.format(step=first + 60)))
    read(world, "orchestrator", coloured("INFO", barrier.format(version=61)))
    sentence = until_stopped(world, SPINS_W)
    assert sentence.startswith("The trainer is stuck: the orchestrator has waited for its next policy for ")
    assert world.state.recovery.failures[-1].signature == "trainer-hang"


def test_a_january_barrier_for_weights_that_are_there_names_nobody() -> None:
    """At 2026-01-09 the line is also printed where the weights exist already; its end is told at level "debug"."""
    world = run("d70a00f6e (2026-01-09)")
    read(world, "orchestrator", coloured("INFO", ERAS["d70a00f6e (2026-01-09)"][4].format(version=60)))
    sentence = until_stopped(world, RESTS_W)
    assert sentence.startswith("The orchestrator or the trainer is stuck: ")
    assert world.state.recovery.failures[-1].signature == "job-stuck"


def test_an_orchestrator_that_never_said_that_it_waits_is_named() -> None:
    world = run("fc6fd48fa (2026-03-20)")
    assert until_stopped(world, RESTS_W, 0.0).startswith("The orchestrator is stuck: ")
    assert world.state.recovery.failures[-1].signature == "orchestrator-wedged"


def test_rollouts_that_wait_for_their_environments_are_said() -> None:
    world = run("c7a6573de (2026-08-18), the dispatcher")
    line = "Train batch 12/128 (9.4%); 64 inflight rollouts (train=64, eval=0)"
    for _ in range(600):
        if world.asked(a.Stop):
            break
        world.t += 10
        look(world, RESTS_W, tokens=False, load=0.0)
        read(world, "orchestrator", coloured("INFO", line))
    sentence = world.said("verdict")[0]
    assert sentence.startswith("The orchestrator is stuck, or the environments for which its 64 rollouts wait: ")


def silent(world: World) -> World:
    """A run whose logs tell of the trainer's steps alone."""
    world.boot()
    world.job_up()
    for step in range(1, 61):
        for t in range(0, int(STEP_S), 10):
            world.t += 10
            look(world, tokens=t < 200, load=100.0)
        world.see(f.StepDone("trainer", step, STEP_S, loss=0.1))
    return world


def test_where_no_line_tells_both_are_named() -> None:
    assert until_stopped(silent(World()), RESTS_W).startswith("The orchestrator or the trainer is stuck: ")


def test_a_trainer_whose_gpus_do_nothing_waits_for_the_orchestrator() -> None:
    assert until_stopped(silent(World()), RESTS_W, 0.0).startswith("The orchestrator is stuck: ")


def test_gpus_that_are_busy_at_little_power_are_a_trainers_collective() -> None:
    sentence = until_stopped(silent(World()), SPINS_W, 100.0)
    assert sentence.startswith("The trainer is stuck: its GPUs have been busy ")
    assert "210 W" in sentence and "collective" in sentence


def test_one_gpu_of_two_that_rests_names_nobody() -> None:
    """A rank that waits for its batch lets the others spin."""
    world = silent(World())
    began = world.t
    while not world.asked(a.Stop) and world.t < began + 8 * 3600:
        world.t += 10
        other = f.Gpu("GPU-2", 2, 60 * GIB, 80 * GIB, "trainer", power_w=SPINS_W, load=0.0)
        look(world, SPINS_W, tokens=False, load=100.0, others=(other,))
    assert world.said("verdict")[0].startswith(("The orchestrator or the trainer is stuck: ", "The job hangs: "))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("effort", "begins"),
    [
        (
            f.Effort("trainer", 0.0, 0.0, "pid 114 in nfs4_wait_clnt_recover"),
            "The trainer is stuck: its pid 114 in nfs4",
        ),
        (f.Effort("orchestrator", 0.0, 0.0, "pid 113 in fuse_wait"), "The orchestrator is stuck: its pid 113 in fuse"),
        (f.Effort("env", 0.0, 0.0, "pid 120 in nfs4_wait"), "An environment server is stuck: its pid 120 in nfs4"),
        (f.Effort("trainer", 2.0, 1.0), "The trainer is stuck: each of its processes has used a whole core for "),
        (f.Effort("orchestrator", 1.0, 1.0), "The orchestrator is stuck: each of its processes has used a whole core"),
        (f.Effort("trainer", 1.0, 0.0), "The orchestrator or the trainer is stuck: "),
    ],
)
def test_what_processes_do_says_who_is_stuck(effort: f.Effort, begins: str) -> None:
    world = silent(World())
    began = world.t
    while not world.asked(a.Stop) and world.t < began + 8 * 3600:
        world.t += 10
        look(world, RESTS_W, tokens=False)
        if int(world.t - began) % 60 == 0:
            world.see(f.EffortLook((effort,)))
    assert world.said("verdict")[0].startswith(begins)


def test_a_look_at_processes_that_came_to_nothing_is_unknown() -> None:
    world = silent(World())
    world.see(f.EffortLook((f.Effort("trainer", 0.0, 0.0, "pid 114 in nfs4_wait"),)))
    world.see(f.EffortLook(reason="the look took too long"))
    assert not world.state.job.efforts


def test_a_trainer_that_trains_on_while_the_orchestrator_is_done_is_named_when_it_hangs() -> None:
    world = run("fc6fd48fa (2026-03-20)")
    read(world, "orchestrator", coloured("SUCCESS", "Orchestrator finished."))
    assert until_stopped(world, SPINS_W).startswith("The trainer is stuck: the orchestrator is done; ")


def test_nothing_of_it_stops_a_run_any_sooner() -> None:
    """Who is stuck is asked once it is known that something is."""
    told = []
    for efforts in ((), (f.Effort("trainer", 0.0, 0.0, "pid 114 in nfs4_wait"),)):
        world = silent(World())
        began = world.t
        while not world.asked(a.Stop) and world.t < began + 8 * 3600:
            world.t += 10
            look(world, RESTS_W, tokens=False, load=0.0)
            world.see(f.EffortLook(tuple(efforts)))
        told.append(world.t - began)
    assert told[0] == told[1]
