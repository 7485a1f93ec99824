"""Which lines are worth a look: searches that pass over all others, whole blocks of them at once."""

from __future__ import annotations

import re
from functools import cache
from itertools import accumulate
from typing import Any, Final

from supervisor.diagnosis.frames import IGNORED, IN_THREAD
from supervisor.primerl.logs import SIGNATURES
from supervisor.signatures.registry import reach
from supervisor.signatures.words import finder

# Of lines without colours (``scan.blocks`` takes them away). Possessive, so that nothing is tried twice: a line of
# blanks alone would take for ever else.
_HEAD = (
    rb"(?:(?:\[?+\d{4}-\d\d-\d\d[T ]\S{8,40}+|\[?+[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d\]?+) "
    rb"(?:std(?:out|err) F |[^\s:]{1,100}+ [^\s:\[\]]{1,60}+(?:\[\d{1,9}+\])?+: )?+)?+"
    rb"(?:- verifiers[\w.]{0,80}+ - )?+"  # others repeat at this level what their ranks print
    rb"(?:\[[A-Za-z]{1,32}+\d{1,6}+\]: ?+){0,2}+"
    rb"(?:\((?:[^()\n]{1,160}+|\([^()\n]{0,80}+(?:\([^()\n]{0,80}+\))?+\)){1,4}+\) ?+){0,3}+ ?+"
    rb"(?:\d\d:\d\d:\d\d)?+"
)
# A line of a logger at a level that tells of nothing bad, and the little in such lines that is wanted.
# None where a server says again what a process of it said: "INFO: (Worker_TP1 pid=42) ERROR ...".
ORDINARY = re.compile(
    _HEAD + rb" *+(?:INFO|DEBUG|SUCCESS|TRACE)\b(?!: {0,8}(?:\([^()\n]{1,60}\) ){1,2}(?:WARN|ERROR|CRIT))|"
    rb'\{.{0,400}?"level(?:name)?": ?"(?:INFO|DEBUG|SUCCESS|TRACE|info|debug|success)"'
)
# The same of lines in a block, each with the line end before it.
ORDINARY_LINE = re.compile(rb"\n(?=" + ORDINARY.pattern + rb")")
OTHER_LINE = re.compile(rb"\n(?!" + ORDINARY.pattern + rb")")
# An engine that works: a line of its core other than the complaint itself, or tokens that it made.
CORE = re.compile(rb"\(EngineCore(?:_DP|_)?(\d{0,4})\b")
WORKS = re.compile(
    rb".{0,80}\(EngineCore(?:_DP|_)?(\d{0,4})\b[^()\n]{0,60}\).{0,20}INFO (?!.{0,60}shm_broadcast)|"
    rb".{0,160}Engine (\d{1,4}): .{0,120}generation throughput: (?!0\.0 )"
)
WORKS_LINE = re.compile(ORDINARY_LINE.pattern + rb"(?:" + WORKS.pattern + rb")")
# Steps of prime-rl, and of trainers of other kinds (transformers and TRL; verl, torchtitan, Megatron, slime ...).
STEP: Final = r"Step \d{1,12} \|"
_NUMBERED_STEP: Final = (
    # A micro step is none. Between number and word: whole runs of letters that begin none of the words; one letter at
    # a time costs half of the speed.
    r"tep(?<!Micro Step)(?:(?<!Step)|(?! \d{1,12} \|))[ :=]{1,5}\d{1,12}(?: - |\b"
    r"(?:[^\nglrs]{1,200}+|(?!loss|reward|grad|lr\b|score)[glrs]){0,60}+(?:loss|reward|grad|lr\b|score))"
)
OTHERS_STEP: Final = (
    _NUMBERED_STEP,
    r"teration {1,8}\d{1,12}/",
    r"ollout \d{1,12}: ",
)
# Each begins with plain letters, which ``re`` finds much faster than a choice of them.
_STEPS: Final = tuple(re.compile(one.encode()) for one in (STEP, r"\{'loss': ", *OTHERS_STEP))
# Characters that may stand before a message: each outer prefix of ``lines``, a progress bar, three processes, a head.
BEFORE: Final = 1800
# Lines of a logger at the level of an error, known or not, in JSON and of torch's own, too.
_ERRORS: Final = (r"\b(?:ERROR|CRITICAL|FATAL)\b", r'"(?:error|critical|fatal)"', r"\b[WEF]\d{3,4} \d\d:\d\d:")
# Of ordinary lines: starts, ends, and an engine that was told to end. Of steps there are many: they have ``steps``.
_WANTED: Final = (
    r"Starting (?:RL|SFT|orchestrator|from scratch)",
    "finished[.!]",
    "Resuming ",
    "API server version",
    "startup complete",
    r"\[shutdown\] ",
    "Shutting down FastAPI",
    "'train_runtime':",
    "Training completed",
    "Final validation metrics",
    "Results saved to ",
    "Started container ",
)


@cache
def gate() -> Any:
    """Finds any word without which no known error, traceback or summary of one can be, and what is wanted of others."""
    words = {word for signature in SIGNATURES.signatures for word in signature.words}
    words |= {
        "Traceback (most",
        "ray::",
        "==> ",
        "dump signal",
        "last enqueued",
        "Root Cause",
        "above exception",
        IGNORED,
        IN_THREAD,
    }
    return finder(words, *_ERRORS, *_WANTED)


def steps(block: bytes, at: int, end: int) -> list[tuple[int, re.Match[bytes]]]:
    """Steps in order, each with how many of other trainers there are up to it: a log may consist of them."""
    found = [list(one.finditer(block, at, end)) for one in _STEPS]
    several = sum(1 for one in found if one) > 1
    steps = [one for those in found for one in those]
    if several:
        steps.sort(key=lambda one: one.start())
    numbers = accumulate(not one[0].startswith(b"Step") for one in steps)
    return list(zip(numbers, steps, strict=True))


@cache
def _longest_reach() -> int:
    return BEFORE + reach(SIGNATURES.signatures)


def end_of(raw: bytes) -> int:
    """How far a line has to be looked at. What a model writes may be much longer than any error's beginning.

    All of it counts where it is no plain text: progress bars hide where a message begins, JSON holds more.
    """
    near = _longest_reach()
    if len(raw) <= near or not raw.isascii() or b"\r" in raw or b'{"' in raw[:BEFORE]:
        return len(raw)
    return near


@cache
def news() -> Any:
    """Finds what is wanted of ordinary lines."""
    words = {word for signature in SIGNATURES.signatures if signature.quiet for word in signature.words}
    return finder(words, *_WANTED, STEP)
