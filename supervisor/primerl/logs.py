"""What prime-rl's own log lines say: steps, phases, work in flight, the end, and errors with a name.

Formats of loguru since September 2025 and of its JSON mode (utils/logger.py), with the prefixes that torchrun puts
before lines. A line counts only when it has the shape that the role's logger writes, and only when its message *begins*
like the known one: models write log lines too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from supervisor.core.facts import (
    ErrorSeen,
    Fact,
    FinishSeen,
    FreshStartSeen,
    PhaseSeen,
    Role,
    StepDone,
    WorkSeen,
)

LONGEST: Final = 4096  # characters of a text line that are looked at; the longest of ours has some 400
LONGEST_JSON: Final = 65536  # a JSON line carries its traceback, and half of one is no JSON
SHOWN: Final = 300

ANSI = re.compile(r"\x1b\[[0-9;]{0,32}m")
TORCHRUN = re.compile(r"\[[A-Za-z]{1,32}\d{1,6}\]:")
LINE = re.compile(r"\d\d:\d\d:\d\d\s{1,10}(DEBUG|INFO|SUCCESS|WARNING|ERROR|CRITICAL)\s(.*)", re.S)
# vLLM's own format: "(APIServer pid=12) INFO 01-06 03:00:12 [core.py:88] text".
VLLM = re.compile(
    r"(?:\([A-Za-z0-9_ =.:-]{1,60}\) )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r" \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]{1,80}\] ?)?(.*)",
    re.S,
)

_DURATION = r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))(?: \d+[hms])?"
_VALUE = r"(-?[\d.]+(?:e[+-]?\d+)?|-?nan|-?inf)"
TRAINER_STEP = re.compile(rf"Step (\d{{1,12}}) \| (?:Time: )?\s{{0,10}}({_DURATION}) \| Loss:? {_VALUE}")
ORCHESTRATOR_STEP = re.compile(rf"Step (\d{{1,12}}) \| (?:Time: )?\s{{0,10}}({_DURATION}) \| Reward:? {_VALUE}")
BATCH = re.compile(r"Train batch (\d{1,9})/(\d{1,9}) \(")
INFLIGHT = re.compile(r"\b(\d{1,9}) inflight (?:rollouts|episodes)\b")
_FRAME = " \t\r\n\u2502"  # pydantic_config draws a frame of lines around a configuration error
STEP = r"`?(?P<step>\d{1,12})`?"

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_BARRIER = "Updating weights to (?:weight checkpoint|step)"
_PHASE_LINES: tuple[tuple[tuple[Role, ...], str, str], ...] = (
    (("launcher", "trainer"), "download", r"Pre-downloading "),
    (("trainer",), "startup", r"Starting (?:RL|SFT) trainer\b|Initializing model "),
    (("trainer", "orchestrator"), "startup", rf"Resuming (?:training|orchestrator) from checkpoint step {STEP}"),
    (("orchestrator",), "startup", r"Starting orchestrator(?:$| \()"),
    (("orchestrator",), "startup", r"Waiting for (?:(?:policy|student) )?inference pool to be ready"),
    (("trainer",), "rollouts", r"Waiting for training batch to arrive"),
    (("orchestrator",), "rollouts", rf"Starting orchestrator step {STEP}"),
    (("trainer",), "training", rf"Starting training step {STEP}"),
    (("trainer",), "training", r"Starting forward and backward pass"),
    (("trainer", "orchestrator"), "checkpoint", rf"Saving (?:weight )?checkpoint at step {STEP}"),
    (("trainer", "orchestrator"), "checkpoint", r"Writing final (?:weight )?checkpoint"),
    (("trainer",), "weight-update", r"Broadcasting startup policy weights"),
    (("orchestrator",), "weight-update", rf"{_BARRIER} {STEP}|Updating policy in-flight to v(?P<version>\d{{1,12}})"),
    (("orchestrator",), "weight-update", r"Pausing inference engines for weight update"),
    (("orchestrator",), "eval", rf"Running (?:final )?evals(?: for checkpoint step {STEP})?|Starting evals in "),
    (("orchestrator", "trainer"), "eval", rf"Running validation(?: for step {STEP})?"),
    (("orchestrator",), "draining", r"Shipped the final batch|Draining pipeline|.{1,80} \S draining pipeline"),
)
_PHASES = tuple((frozenset(roles), phase, re.compile(pattern)) for roles, phase, pattern in _PHASE_LINES)

# Exactly these messages, from exactly these roles (both train.py, orchestrator.py, and the launchers rl.py and sft.py).
_FINISHES: Final[Mapping[Role, tuple[str, ...]]] = {
    "trainer": ("RL trainer finished!", "SFT trainer finished!"),
    "orchestrator": ("Orchestrator finished.",),
    "launcher": ("RL training finished!", "Training finished!", "SFT training finished!"),
}
_DEBUG_TAIL = re.compile(r"\s{0,4}\[[\w./<>-]{1,120}::\d{1,6}\]\s*$")

_FRESH = re.compile(r"Training from scratch|No checkpoints found in .{1,400}\. Starting from scratch\.")


class _Error:
    """A known error: from whom, how its message begins, and what it is called."""

    def __init__(
        self, signature: str, pattern: str, roles: Sequence[Role] = (), *, deterministic: bool = False
    ) -> None:
        self.signature = signature
        self.matches: Callable[[str], object] = re.compile(pattern).match
        self.roles = frozenset(roles)
        self.deterministic = deterministic


# "deterministic": no restart cures it, a person has to do something.
_ERRORS: tuple[_Error, ...] = (
    _Error(
        "engine-dead",
        r"EngineCore encountered (?:a fatal error|an issue)|EngineCore failed to start|AsyncLLM output_handler failed"
        r"|Engine core proc \S{1,60} died unexpectedly|Worker proc \S{1,60} died unexpectedly"
        r"|(?:[\w.]{1,80}\.)?EngineDeadError",
        ("inference",),
    ),
    _Error("engine-stalled", r"No available shared memory broadcast block found in \d{1,6} seconds", ("inference",)),
    _Error(
        "gpu-memory-taken",
        r"(?:ValueError: )?Free memory on device .{0,80}less than desired GPU memory utilization"
        r"|(?:RuntimeError: )?Existing processes found on GPUs",
    ),
    _Error("cuda-oom", r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b|(?:RuntimeError: )?CUDA out of memory"),
    _Error("disk-full", r"(?:OSError: )?\[Errno 28\]|.{0,120}No space left on device"),
    _Error(
        "port-in-use",
        r"(?:OSError: )?\[Errno 98\]|.{0,80}[Aa]ddress already in use",
        ("inference", "launcher", "orchestrator", "trainer"),
    ),
    _Error(
        "run-folder-used",
        r"FileExistsError: (?:(?:Run|Checkpoint|Output) d|D)irectory .{0,400}already contains",
        ("launcher",),
        deterministic=True,
    ),
    _Error(
        "config-invalid",
        r"(?:[\w.]{1,80}\.)?(?:ValidationError|ConfigError|SettingsError|CLIError): "
        r"|\d{1,4} validation errors? for \w{1,60}|(?:rl|sft): error: |error: unrecognized arguments"
        r"|Shared config conflicts with matching sub-config|Failed to validate config|Value error, "
        r"|Unrecognized (?:option|arg)|\u256d\u2500 [\w ]{1,40} error ",
        ("launcher", "trainer", "orchestrator"),
        deterministic=True,
    ),
    _Error(
        "module-missing",
        r"(?:ModuleNotFoundError|ImportError): ",
        ("launcher", "trainer", "orchestrator", "inference"),
        deterministic=True,
    ),
    _Error(
        "key-missing",
        r"(?:[\w.]{1,80}\.)?GatedRepoError|(?:[\w.]{1,80}\.)?RepositoryNotFoundError"
        r"|wandb\.errors\.(?:[\w.]{1,40}\.)?(?:UsageError|AuthenticationError)|.{0,60}[Aa]pi_key not configured",
        ("launcher", "trainer", "orchestrator", "inference"),
        deterministic=True,
    ),
    _Error(
        "checkpoint-other-version",
        r"KeyError: 'train_source'|(?:RuntimeError: |[\w.]{1,80}: )?Missing key in checkpoint state_dict",
        ("trainer", "orchestrator"),
        deterministic=True,
    ),
    _Error(
        "checkpoint-missing",
        r"FileNotFoundError: (?:Checkpoint not found at|No weight directory found)",
        ("trainer", "orchestrator"),
    ),
    _Error(
        "checkpoint-damaged",
        r"(?:[\w.]{1,80}\.)?CheckpointException|zipfile\.BadZipFile|EOFError: Ran out of input"
        r"|RuntimeError: PytorchStreamReader failed",
        ("trainer", "orchestrator"),
    ),
    _Error("wandb-unreachable", r"wandb\.errors\.(?:[\w.]{1,40}\.)?CommError", ("launcher", "trainer", "orchestrator")),
    _Error(
        "nccl-timeout",
        r".{0,120}Watchdog caught collective operation timeout|torch\.distributed\.DistBackendError",
        ("trainer", "inference"),
    ),
    _Error(
        "connection-error",
        r"(?:(?:Rollout|Episode) (?:task )?(?:failed|error)|Error in (?:rollout|group)|Inference server (?:was|is) not"
        r"|(?:openai\.)?APIConnectionError|httpx\.(?:ConnectError|ReadTimeout|RemoteProtocolError)).{0,400}?"
        r"(?:[Cc]onnection error|APIConnectionError|ConnectError|Connection refused|All connection attempts failed"
        r"|reached|ready|ReadTimeout|RemoteProtocolError|Server disconnected)",
        ("orchestrator", "env"),
    ),
    _Error(
        "component-failed",
        r"(?:Error: )?[\w/ -]{1,80} failed with exit code -?\d{1,4}",
        ("launcher",),
    ),
    _Error("fatal-error", r"Fatal error in \w{1,60}", ("trainer", "orchestrator")),
    _Error("batch-empty", r"\d{1,6} consecutive (?:zero-output batch|empty train batch)", ("orchestrator",)),
)


def parse_line(role: Role, line: str) -> list[Fact]:
    """Facts in one line of ``role``'s own file. Never raises; time is bounded by ``LONGEST``."""
    level, message = _message(line)
    if not message:
        return []
    text = message[:SHOWN].rstrip()
    if level is None:
        # No logger's line: a traceback's last line may stand here, and nothing else that we believe.
        return _errors(role, message, text)
    facts: list[Fact] = []
    if level in ("INFO", "SUCCESS", "DEBUG", "WARNING"):
        facts += _progress(role, message, text)
    if level in ("WARNING", "ERROR", "CRITICAL"):
        facts += _errors(role, message, text)
    return facts


def _message(line: str) -> tuple[str | None, str]:
    """Level and message of a line; level None when it is no line of a logger."""
    start = line[:64]
    if "\r" in line[:LONGEST]:
        line = line[:LONGEST].rpartition("\r")[2] if not start.startswith("{") else line
    head = TORCHRUN.match(line)
    if head:
        line = line[head.end() :].lstrip(" ")
    if line.startswith("{"):
        return _json_message(line)
    line = ANSI.sub("", line[:LONGEST])
    found = LINE.match(line) or VLLM.match(line)
    if found:
        return found[1], found[2].strip()
    return None, line.strip(_FRAME)


def _json_message(line: str) -> tuple[str | None, str]:
    if len(line) > LONGEST_JSON or '"message"' not in line:
        return None, ""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(record, dict):
        return None, ""
    level, message = record.get("level"), record.get("message")
    if not isinstance(level, str) or not isinstance(message, str) or "timestamp" not in record:
        return None, ""
    return level.upper(), ANSI.sub("", message[:LONGEST]).strip()


def _progress(role: Role, message: str, text: str) -> list[Fact]:
    if role in ("trainer", "orchestrator"):
        pattern = TRAINER_STEP if role == "trainer" else ORCHESTRATOR_STEP
        found = pattern.match(message)
        if found:
            value = number(found[3])
            step, seconds = int(found[1]), duration(found[2])
            return [
                StepDone(role, step, seconds, loss=value) if role == "trainer" else StepDone(role, step, seconds, value)
            ]
    if role == "orchestrator":
        batch = BATCH.match(message)
        inflight = INFLIGHT.search(message) if batch else None
        if batch and inflight:
            return [WorkSeen(int(inflight[1]), int(batch[1]), int(batch[2]))]
    if _DEBUG_TAIL.sub("", message) in _FINISHES.get(role, ()):
        return [FinishSeen(role, text)]
    if role in ("launcher", "trainer", "orchestrator") and _FRESH.match(message):
        return [FreshStartSeen(role, text)]
    for roles, phase, pattern in _PHASES:
        if role in roles and (found := pattern.match(message)):
            groups = found.groupdict()
            step_text = groups.get("step") or groups.get("version")
            return [PhaseSeen(role, phase, int(step_text) if step_text else None, text)]
    return []


def _errors(role: Role, message: str, text: str) -> list[Fact]:
    for error in _ERRORS:
        if (not error.roles or role in error.roles) and error.matches(message):
            return [ErrorSeen(role, error.signature, text, error.deterministic)]
    return []


def parse_metrics(record: Mapping[str, object]) -> list[Fact]:
    """Facts in one record of ``metrics.jsonl``, into which trainer and orchestrator both write (prime-rl 9975d8868).

    The trainer logs a step in several records; the one with its times comes once a step.
    """
    step = record.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        return []
    if "time/forward_backward" in record:
        return [StepDone("trainer", step, _finite(record.get("time/step")))]
    if "loss/mean" in record:
        return [StepDone("trainer", step, loss=_finite(record.get("loss/mean")))]
    return []


def duration(text: str) -> float | None:
    """Seconds in prime-rl's durations: "12.34s", "850ms", "45s", "1m 5s", "5m", "2h 3m", "1d 2h"."""
    total = 0.0
    for part in text.split():
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd])", part)
        if not found:
            return None
        total += float(found[1]) * _UNITS[found[2]]
    return total


def number(text: str) -> float | None:
    """A finite number, else None."""
    try:
        return _finite(float(text))
    except ValueError:
        return None


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
