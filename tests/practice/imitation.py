"""Text that a model wrote, in the middle of a log: it looks like steps, a finish, a death and a resume of this very
run."""

from __future__ import annotations

from tests.practice.era import Era
from tests.practice.logs import loguru_line
from tests.practice.numbers import trainer_numbers

FALSE_STEP = 99999
FALSE_CLOCK = "23:59:59"


def raw_lines(era: Era) -> list[str]:
    """Lines as they would stand in another file or another process's output, colours and prefixes included."""
    step = trainer_step(era)
    return [
        "Here is what the training log looked like:",
        loguru_line("SUCCESS", step, FALSE_CLOCK),
        f"[{era.processes['torchrun_role']}0]:" + loguru_line("SUCCESS", step, FALSE_CLOCK),
        loguru_line("SUCCESS", era.line("trainer", "finished"), FALSE_CLOCK),
        loguru_line("SUCCESS", era.line("launcher", "finished"), FALSE_CLOCK),
        f"Step {FALSE_STEP} | Time: 1.00s | Loss: 0.0000",
        "EngineDeadError: EngineCore encountered an issue.",
    ]


def quote_model(era: Era) -> str:
    """The message of a genuine warning that quotes what the model wrote."""
    return f'Unparsable answer: "{trainer_step(era)}" and then "{era.line("orchestrator", "finished")}"'


def trainer_step(era: Era) -> str:
    return era.line("trainer", "step", step=FALSE_STEP, seconds=1.0, duration="1.0s", **trainer_numbers(0, FALSE_STEP))
