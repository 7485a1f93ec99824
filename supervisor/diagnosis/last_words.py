"""Words with which a log ends when its program failed: by programs that no logger writes for, in whatever words."""

from __future__ import annotations

import re
from typing import Final

# What is still written when an exception ends a program: by W&B, torch, Python and the shell, and other tracebacks.
LAST_WORDS: Final = re.compile(
    r"$|[ \t\u2502|+]|wandb\b|(?:\[rank\d{1,6}\]: ?)?\[[WE]\d|.{0,300}[Ww]arning\b|Exception ignored |Process "
    r"|sys:1|make\b|srun: |slurmstepd|.{0,60}[Ee]xit|Terminat|Kill|Traceback |The above exception|During handling "
)
# Errors that no logger wrote: of command lines, git, Docker, Rust, and assertions in C++.
PLAIN_ERROR = re.compile(
    r"(?:[\w./+-]{1,80}: ){1,3}(?:[Ee]rror|ERROR|fatal|FATAL)(?::| response from )|fatal: "
    r"|thread '.{1,80}' panicked at |[\w ./-]{1,60}: error: argument |make(?:\[\d{1,2}\])?: \*\*\* |CMake Error "
    r"|\[[\w.-]{1,60}:\d{1,9}\] \*\*\* An error occurred in |.{0,200} UCX {1,2}ERROR "
    r"|.{1,300}: Assertion [`'].{1,300} failed\."
    r"|curl: \(\d|wget: |E: [A-Z]|(?:srun|sbatch|salloc|slurmstepd): (?:error|fatal): "
)
_PARTS: Final = (
    r"\b(?:[Jj]ob|[Tt]raining|[Rr]un|[Tt]ask|[Pp]rocess|[Cc]ommand|[Ss]cript|[Ww]orker|[Cc]ontainer|[Pp]od|[Ss]tep|[Bb]uild"
    r"|[Nn]ode|[Rr]ank|[Ss]erver|[Pp]rogram)(?:es|s)?\b"
)
_FAILURE: Final = re.compile(
    # A program and what it could not do; a model's answer may say the same behind a role.
    r"(?!(?:assistant|user|system|question|answer|prompt|think)\b)[a-z][\w.+/-]{0,60}: .{0,200}"
    r"(?:[Cc]annot|[Cc]ould not|[Uu]nable to|[Ff]ailed|denied|refused|[Nn]ot found|No such|[Ii]nvalid|timed out)"
    r"|[\[(]?(?:ERROR|FATAL|FAILED|FAILURE|Error|Fatal|Failed|error|fatal|failed)[\])]?(?:[:!] | to )"
    rf"|.{{0,200}}{_PARTS}.{{0,80}}\b"
    r"(?:failed|FAILED|crashed|died|was killed|aborted|(?:terminated|stopped|exited) unexpectedly)\b"
    r"|.{0,200}\b(?:[Ee]xit(?:ed|ing)?|[Rr]eturn(?:ed)?)(?: with)?(?: an?)?(?: error| non-zero| exit)? ?"
    r"(?:[Cc]ode|[Ss]tatus)[ :=]{1,4}(?!0\b)-?\d{1,3}\b"
    r"|.{0,200}(?:core dumped|[Nn]on-zero exit|\bFAILED\b|\b(?:OUT_OF_MEMORY|NODE_FAIL|BOOT_FAIL)\b)"
    r"|panic: "
)
_NO_FAILURE: Final = re.compile(
    r"(?i)\b(?:0|no|zero|without|any) (?:errors?|fail\w{0,4})"
    r"|(?:errors?|failed|failures?)[\"']? {0,3}[:=] {0,3}(?:0\b|none|false|no\b|\[\])"
    r"|\bretry|\btry(?:ing)? again|falling back|ignor|skipp|recover|warning"
)


def says_failure(text: str) -> bool:
    """Does a plain line say that something failed, in words of its own?"""
    return _FAILURE.match(text) is not None and _NO_FAILURE.search(text) is None
