"""Which of a job's processes is which, by its title or command line, and whether its end proves that a role is dead.

Titles: prime-rl sets them from 06c54dde7 (2026-04-01) on, vLLM in every version used. Before that the command lines are
those of the launchers' Popen calls (`uv run inference @ ...`) and of the console scripts that uv starts for them.
A process that was only forked bears its parent's title until it runs something else: do not take it for a role of its
own when its parent has the same title.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from supervisor.core.facts import Role

Kind = tuple[Role, bool] | None

# What the titles begin with (prime-rl 559b44772, 38494ccb4, 06c54dde7; vLLM 0.10 to 0.26), most special first.
# /proc/PID/comm holds only 15 characters of them.
_TITLES: tuple[tuple[str, Kind], ...] = (
    ("PRIME-RL::Launcher", ("launcher", False)),  # its shim reports its end
    ("PRIME-RL::SFTTrainer", ("trainer", True)),
    ("PRIME-RL::SFT", ("launcher", False)),
    ("PRIME-RL::Inference", ("inference", True)),
    ("PRIME-RL::Orchestrator", ("orchestrator", True)),
    ("PRIME-RL::Trainer", ("trainer", True)),
    ("PRIME-RL::EnvServer", ("env", True)),  # one a source, and none is started anew when it ends (327f378e0)
    ("PRIME-RL::Evals", ("env", False)),
    ("VLLM::EngineCore", ("inference", True)),
    ("VLLM::Engine", ("inference", True)),
    ("VLLM::", ("inference", False)),  # workers and API servers beside the main one: the engine core tells
    ("Verifiers::", ("env", False)),  # workers, and servers that the orchestrator looks after
)

# Console scripts and modules (pyproject.toml of every era; verifiers a497ee524^).
_SCRIPTS: dict[str, Kind] = {
    "rl": ("launcher", False),
    "sft": ("launcher", False),
    "vf-rl": ("launcher", False),
    "inference": ("inference", True),
    "orchestrator": ("orchestrator", True),
    "trainer": ("trainer", True),
    "env-server": ("env", True),
    "evals": ("env", False),
    "vf-vllm": ("inference", True),
    "vf-train": ("trainer", True),
    "vllm-router": ("inference", False),
}
_MODULES: dict[str, Kind] = {
    "prime_rl.rl": ("launcher", False),
    "prime_rl.entrypoints.rl": ("launcher", False),
    "prime_rl.entrypoints.sft": ("launcher", False),
    "prime_rl.inference.server": ("inference", True),
    "prime_rl.entrypoints.inference": ("inference", True),
    "prime_rl.orchestrator.orchestrator": ("orchestrator", True),
    "prime_rl.entrypoints.orchestrator": ("orchestrator", True),
    "prime_rl.trainer.rl.train": ("trainer", True),
    "prime_rl.trainer.sft.train": ("trainer", True),
    "prime_rl.entrypoints.trainer": ("trainer", True),
}
_PYTHON = re.compile(r"python[0-9.]*")
_LONGEST = 4096


def classify(title: str, comm: str, *, sft_is_trainer: bool = False) -> Kind:
    """Role of a process, and whether its end is proof. None: of no interest (a log's tail, a resource tracker).

    ``title``: its command line, words joined by blanks; ``comm``: /proc/PID/comm. ``sft_is_trainer``: `sft` itself
    trains (before 2026-02-24).
    """
    title = title[:_LONGEST].strip()
    named = _by_title(title or comm)
    if named is not None or not title:
        return named
    words = title.split()
    if not words:
        return None
    program = PurePosixPath(words[0]).name
    if program in ("uv", "uvx"):
        return _is_wrapper(words[1:])
    if program == "torchrun":
        return ("trainer", False)
    if _PYTHON.fullmatch(program):
        return _role_of_python(words[1:], sft_is_trainer)
    kind = _SCRIPTS.get(program)
    return _role_of_sft(program, kind, sft_is_trainer) if "@" in words or program == "vllm-router" else None


def _by_title(title: str) -> Kind:
    for start, kind in _TITLES:
        # A title, or its first 15 characters where only comm can be read.
        if title.startswith(start) or (len(title) == 15 and start.startswith(title)):
            return kind
    return None


def _is_wrapper(words: list[str]) -> Kind:
    """`uv run NAME ...` waits for what it started; its own end proves nothing."""
    if words[:1] != ["run"]:
        return None
    for word in words[1:]:
        name = PurePosixPath(word).name
        if name == "torchrun":
            return ("trainer", False)
        if name in _SCRIPTS:
            kind = _SCRIPTS[name]
            return (kind[0], False) if kind else None
        if not (word.startswith("-") or "=" in word or name in ("env", "python")):
            return None
    return None


def _role_of_python(words: list[str], sft_is_trainer: bool) -> Kind:
    while words and words[0] in ("-u", "-s", "-E", "-I", "-B", "-O"):
        words = words[1:]
    if not words or words[0] == "-c":
        return None  # multiprocessing's children and resource trackers
    if words[0] == "-m":
        module = words[1] if len(words) > 1 else ""
        return ("trainer", False) if module.startswith("torch.distributed.") else _MODULES.get(module)
    script = PurePosixPath(words[0])
    if script.name == "torchrun":
        return ("trainer", False)
    if script.name.startswith("vf_train") and script.suffix == ".py":
        return ("trainer", True)
    if script.suffix == ".py":
        inner = ".".join(part for part in script.with_suffix("").parts if part != "/")
        return next((kind for module, kind in _MODULES.items() if inner.endswith(module)), None)
    return _role_of_sft(script.name, _SCRIPTS.get(script.name), sft_is_trainer)


def _role_of_sft(name: str, kind: Kind, sft_is_trainer: bool) -> Kind:
    return ("trainer", True) if name == "sft" and sft_is_trainer else kind
