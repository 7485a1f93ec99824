"""What prime-rl's own log lines say: steps, phases, work in flight, the end, and errors with a name.

Formats of loguru since September 2025 and of its JSON mode (utils/logger.py), with the prefixes that torchrun puts
before lines. A line counts only when it has the shape that the role's logger writes, and only when its message *begins*
like the known one: models write log lines too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from supervisor import signatures
from supervisor.base.escapes import plain
from supervisor.core.facts import (
    Fact,
    FinishSeen,
    FreshStartSeen,
    PhaseSeen,
    Role,
    StepDone,
    WorkSeen,
)
from supervisor.signatures.words import Choices, words_of

LONGEST: Final = signatures.LONGEST  # of a text line; the longest of ours has some 400 characters
LONGEST_JSON: Final = 65536  # a JSON line carries its traceback, and half of one is no JSON
SHOWN: Final = signatures.SHOWN
MOST_STEPS: Final = 10**12  # as many digits as a step's line may have

# Up to two: torchrun's own ("[trainer0]:"), and torch's before the lines of an exception ("[rank0]: ").
TORCHRUN = re.compile(r"(?:\[[A-Za-z]{1,32}\d{1,6}\]: {0,8}){1,2}")
LINE = re.compile(r"\d\d:\d\d:\d\d\s{1,10}(DEBUG|INFO|SUCCESS|WARNING|ERROR|CRITICAL)\s(.*)", re.S)
# vLLM's own format: "(APIServer pid=12) INFO 01-06 03:00:12 [core.py:88] text".
VLLM = re.compile(
    r"(?:\([A-Za-z0-9_ =.:-]{1,60}\) ){0,2}(DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r" \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]{1,80}\] ?|[\w.]{1,60}\.py:\d{1,6}\] ?)?(.*)",
    re.S,
)

# A server says again what a process of it said: "ERROR: (Worker_TP1 pid=42) ERROR 01-06 03:00:12 [core.py:7] ...".
_AGAIN = re.compile(
    r"(?:\([A-Za-z_]\w{0,40} pid=\d{1,9}\) )?(?:DEBUG|INFO|WARNING|ERROR): {1,8}(?=\([A-Za-z_]\w{0,40} pid=)"
)
# Before a line that its logger did not write: "(EngineCore_DP0 pid=12) ValueError: ...".
VLLM_PROCESS = re.compile(r"\([A-Za-z_]\w{0,40} pid=\d{1,9}\) ")

_DURATION = r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))(?: \d+[hms])?"
_VALUE = r"(-?[\d.]+(?:e[+-]?\d+)?|-?nan|-?inf)"
TRAINER_STEP = re.compile(rf"Step (\d{{1,12}}) \| (?:Time: )?\s{{0,10}}({_DURATION}) \| Loss:? {_VALUE}")
THROUGHPUT = re.compile(r" \| Throughput:? (\d{1,12}(?:\.\d{1,6})?) tokens/s")  # of the trainer; of both before 2026
ERROR_RATE = re.compile(r" \| Error (\d{1,3}(?:\.\d{1,6})?)%")  # since 38494ccb4, rollouts of all that came in
TRAINABLE = re.compile(r" \| Trainable (\d{1,9})/(\d{1,9}) \(")  # since 38494ccb4, samples of those that were sent
ORCHESTRATOR_STEP = re.compile(rf"Step (\d{{1,12}}) \| (?:Time: )?\s{{0,10}}({_DURATION}) \| Reward:? {_VALUE}")
BATCH = re.compile(r"Train batch (\d{1,9})/(\d{1,9}) \(")
INFLIGHT = re.compile(r"\b(\d{1,9}) inflight (?:rollouts|episodes)\b")
_FRAME = " \t\r\n\u2502"  # pydantic_config draws a frame of lines around a configuration error
STEP = r"`?(?P<step>\d{1,12})`?"

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_UPDATE = "Updating weights to (?:weight checkpoint|step)"
# From September 2025 to HEAD, at level "info": the orchestrator waits for the trainer. Of the first (November 2025 to
# January 2026, orchestrator/scheduler.py at d70a00f6e) the end is told at "debug" only: its number shows whether it is.
_BARRIER = (
    r"Hit async barrier because (?:we are >\d{1,6} step\(s\) async\. Waiting for checkpoint (?P<barrier>\d{1,12}))?"
    r"|Waiting for weight checkpoint \d|Orchestrator paused: waiting for trainer"
    r"|Pausing dispatcher to prevent |Holding batch \d{1,12} until the trainer publishes"
)
_BARRIER_OVER = r"Orchestrator resumed: checkpoint \d|Resuming dispatcher"
# Said at the levels of warnings and errors, just before it ends its parts one by one (entrypoints/rl.py, sft.py).
_STOPPING = r"(?:Received (?:SIGTERM|interrupt signal), t|T)erminating all processes\.\.\.|Error occurred: "
_UPDATED = r"Updated weights to step \d|All inference engines resumed"
_PHASE_LINES: tuple[tuple[tuple[Role, ...], str, str], ...] = (
    (("launcher", "trainer"), "download", r"Pre-downloading "),
    (("launcher",), "stopping", _STOPPING),
    (("trainer",), "startup", r"Starting (?:RL|SFT) trainer\b|Initializing model "),
    (("trainer", "orchestrator"), "startup", rf"Resuming (?:training|orchestrator) from checkpoint step {STEP}"),
    (("orchestrator",), "startup", r"Starting orchestrator(?:$| \()"),
    (("orchestrator",), "engine-wait", r"Waiting for (?:(?:policy|student) )?inference pool to be ready"),
    (("orchestrator",), "startup", r"(?:(?:Policy|Student) )?[Ii]nference pool ready"),
    (("trainer",), "rollouts", r"Waiting for training batch to arrive"),
    (("orchestrator",), "rollouts", rf"Starting orchestrator step {STEP}"),
    (("trainer",), "training", rf"Starting training step {STEP}"),
    (("trainer",), "training", r"Starting forward and backward pass"),
    (("trainer", "orchestrator"), "checkpoint", rf"Saving (?:weight )?checkpoint at step {STEP}"),
    (("trainer", "orchestrator"), "checkpoint", r"Writing final (?:weight )?checkpoint"),
    (("trainer",), "weight-update", r"Broadcasting startup policy weights"),
    (("orchestrator",), "weight-update", rf"{_UPDATE} {STEP}|Updating policy in-flight to v(?P<version>\d{{1,12}})"),
    (("orchestrator",), "weight-update", r"Pausing inference engines for weight update"),
    (("orchestrator",), "barrier", _BARRIER),
    (("orchestrator",), "rollouts", rf"{_BARRIER_OVER}|{_UPDATED}"),
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


# Found in this order: what prime-rl says of a failure is more than what the library below it says.
SIGNATURES: Final = signatures.read(Path(__file__).with_name("signatures.toml"), *signatures.SHARED)


@cache
def _choices() -> Choices:
    """The words that a line with a fact cannot be without: those of progress, then those of each signature.

    Most lines have none, and are looked at no closer. All in one: RE2 takes megabytes for so many words.
    """
    patterns = (TRAINER_STEP, ORCHESTRATOR_STEP, BATCH, _FRESH, *(pattern for _, _, pattern in _PHASES))
    words = {word for pattern in patterns for word in words_of(pattern.pattern)}
    progress = sorted(words.union(*_FINISHES.values()))
    return Choices([progress, *(signature.words for signature in SIGNATURES.signatures)])


def parse_line(role: Role, line: str) -> list[Fact]:
    """Facts in one line of ``role``'s own file. Never raises; time is bounded by ``LONGEST``."""
    line = plain(line[:LONGEST_JSON])
    if not _choices().of(line):
        return []
    level, message = _message(line)
    if not message:
        return []
    text = message[:SHOWN].rstrip()
    if level is None:
        # No logger's line: a traceback's last line may stand here, and nothing else that we believe.
        return list(_find_errors(role, message))
    facts: list[Fact] = []
    if level in ("INFO", "SUCCESS", "DEBUG", "WARNING") or role == "launcher":
        facts += _read_progress(role, message, text)
    if level in ("WARNING", "ERROR", "CRITICAL"):
        facts += _find_errors(role, message)
    return facts


def _message(line: str) -> tuple[str | None, str]:
    """Level and message of a line; level None when it is no line of a logger."""
    if "\r" in line[:LONGEST] and not line.startswith("{"):
        line = line[:LONGEST].rpartition("\r")[2]
    head = TORCHRUN.match(line)
    if head:
        line = line[head.end() :]
    if line.startswith("{"):
        return _json_message(line)
    line = line[:LONGEST]
    found = LINE.match(line) or VLLM.match(_AGAIN.sub("", line, count=1))
    if found:
        return found[1], found[2].strip()
    process = VLLM_PROCESS.match(line)
    return None, line[process.end() if process else 0 :].strip(_FRAME)


def _json_message(line: str) -> tuple[str | None, str]:
    if '"message"' not in line:
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
    return level.upper(), plain(message[:LONGEST]).strip()


def _read_progress(role: Role, message: str, text: str) -> list[Fact]:
    if role in ("trainer", "orchestrator"):
        pattern = TRAINER_STEP if role == "trainer" else ORCHESTRATOR_STEP
        found = pattern.match(message)
        if found:
            return [_read_step(role, found, message)]
    if role == "orchestrator":
        batch = BATCH.match(message)
        inflight = INFLIGHT.search(message) if batch else None
        if batch and inflight:
            return [WorkSeen(int(inflight[1]), int(batch[1]), int(batch[2]))]
    finishes = _FINISHES.get(role, ())
    if message.startswith(finishes) and _DEBUG_TAIL.sub("", message) in finishes:
        return [FinishSeen(role, text)]
    if role in ("launcher", "trainer", "orchestrator") and _FRESH.match(message):
        return [FreshStartSeen(role, text)]
    for roles, phase, pattern in _PHASES:
        if role in roles and (found := pattern.match(message)):
            groups = found.groupdict()
            step_text = groups.get("step") or groups.get("version") or groups.get("barrier")
            return [PhaseSeen(role, phase, int(step_text) if step_text else None, text)]
    return []


def _read_step(role: Role, found: re.Match[str], message: str) -> StepDone:
    # Not a number is news, so it is handed on as it is; what is not said is None.
    step, seconds, value = int(found[1]), duration(found[2]), _parse_float(found[3])
    if role == "trainer":
        speed = THROUGHPUT.search(message)
        return StepDone(role, step, seconds, loss=value, throughput=float(speed[1]) if speed else None)
    errors, trainable = ERROR_RATE.search(message), TRAINABLE.search(message)
    return StepDone(
        role,
        step,
        seconds,
        value,
        error_rate=float(errors[1]) / 100 if errors else None,
        trainable=int(trainable[1]) / int(trainable[2]) if trainable and int(trainable[2]) else None,
    )


@lru_cache(256)  # a storm says the same again and again
def _find_errors(role: Role, message: str) -> tuple[Fact, ...]:
    # Of the message: in the line an escape of JSON may hide a word.
    error = SIGNATURES.error(role, message, [place - 1 for place in _choices().of(message) if place])
    return (error,) if error else ()


def parse_metrics(record: Mapping[str, object]) -> list[Fact]:
    """Facts in one record of ``metrics.jsonl``, into which trainer and orchestrator both write (prime-rl 9975d8868).

    The trainer logs a step in several records; the one with its times comes once a step.
    """
    step = record.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < MOST_STEPS:
        return []
    if "time/forward_backward" in record:
        return [StepDone("trainer", step, _parse_seconds(record.get("time/step")))]
    if "loss/mean" in record:
        return [StepDone("trainer", step, loss=_parse_number(record.get("loss/mean")))]
    return []


def duration(text: str) -> float | None:
    """Seconds in prime-rl's durations: "12.34s", "850ms", "45s", "1m 5s", "5m", "2h 3m", "1d 2h". None: not finite."""
    total = 0.0
    for part in text.split():
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd])", part)
        if not found:
            return None
        total += float(found[1]) * _UNITS[found[2]]
    return _parse_seconds(total)


def _parse_float(text: str) -> float | None:
    try:
        return _parse_number(float(text))
    except ValueError:
        return None


def _parse_number(value: object) -> float | None:
    """A number, or the one NaN that there is: so two facts of one line are equal."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return math.nan if math.isnan(value) else float(value)
    except OverflowError:  # JSON's whole numbers know no end
        return None


def _parse_seconds(value: object) -> float | None:
    """Seconds that something took; None where it is no such number."""
    number = _parse_number(value)
    return number if number is not None and math.isfinite(number) and number >= 0 else None
