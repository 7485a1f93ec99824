"""What the installed prime-rl itself says of the configuration: its dry run, in its own environment.

Its words are the real ones: what our own reading of its source misses, its validators say. It is run without GPUs, in
a folder that is deleted, and ended with all that it started when its time is over.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.base.errors import SupervisorError
from supervisor.jobs.base import Component, StartRequest
from supervisor.preflight import environments, installed
from supervisor.preflight.finding import Finding, Where
from supervisor.preflight.refusals import Refusal, refusals
from supervisor.preflight.subject import Subject
from supervisor.primerl import command, open_job
from supervisor.process import ask_program

FLAG = re.compile(r"^    dry_run\b", re.MULTILINE)
DUMP = re.compile(r"^    dump_config\b", re.MULTILINE)
_GPU = re.compile(r"\bCUDA|\bcuda\b|libcuda|libnvidia|NVML|\bGPUs?\b|\bnvidia\b|Triton")
_NETWORK = re.compile(
    r"Connection|Timeout|timed out|resolve|Max retries|huggingface\.co|HTTP|offline mode", re.IGNORECASE
)
_ELSEWHERE = ("OSError", "ConnectionError", "TimeoutError", "PermissionError", "MemoryError", "SSLError")
TIMEOUT_S = 120.0


def findings(
    subject: Subject,
    timeout_s: float = TIMEOUT_S,
    known: Sequence[Finding] = (),
    unwanted: threading.Event | None = None,
) -> Sequence[Finding]:
    """Run it where this version has one; empty where it has none or all is well.

    ``known``: what was found already; of what stands at the line of one of those errors nothing is said again.
    ``unwanted``: ends it when it is set.
    """
    start = _start_of_job(subject)
    if start is None:
        return ()
    try:
        answer = ask_program.ask(start.argv, cwd=start.cwd, env=start.env, timeout_s=timeout_s, unwanted=unwanted)
    except OSError as error:
        return [Finding("dry-run-failed", f"{start.argv[0]} cannot be run ({error.strerror}).")]
    if answer.code is None:
        return [Finding("dry-run-late", f"The dry run of prime-rl gave no answer in {timeout_s:g} s.")]
    if answer.code == 0:
        return ()
    said = {(one.where.file, one.where.line) for one in known if one.weight == "error" and one.where.line}
    found = list(_translate_answer(subject, answer))
    return [one for one in found if (one.where.file, one.where.line) not in said]


def _start_of_job(subject: Subject) -> Component | None:
    """A fresh start with an output folder that is deleted, and the word for a dry run; None where there is none."""
    run = subject.run_file
    if run is None or subject.kind not in ("rl", "sft") or not command.interpreter(run).exists():
        return None  # without an environment `uv run` would make one
    flag = _flag_of_version(subject)
    split = any(text.table for text in subject.texts)
    if not flag or (subject.dialect and subject.dialect.parser == "pydantic-settings" and split):
        return None  # that parser writes split files anew into the folder it runs in
    try:
        job = open_job(run, subject.site.environ or os.environ)
        start = job.components(StartRequest(run.run.id, 1, None, {}, run.wandb.id or "dry-run", Path("/")))[0]
    except SupervisorError:
        return None  # what keeps it from starting is told elsewhere
    argv = list(start.argv)
    if "--output-dir" not in argv:
        return None
    argv[argv.index("--output-dir") + 1] = "{scratch}/outputs"
    return replace(start, argv=[*argv, *(word for word in flag if word not in argv)])


def _flag_of_version(subject: Subject) -> list[str]:
    """``--dry-run`` since 3d9aa90a2 (2026-02-26), ``--dump-config`` for two weeks before (258638503)."""
    names = ("configs/sft.py",) if subject.kind == "sft" else ("configs/rl.py", "rl_config.py", "rl.py")
    texts = [installed.text_of(root / name) for root in subject.roots for name in names]
    if any(FLAG.search(text) for text in texts):
        return ["--dry-run"]
    return ["--dump-config", "{scratch}/configs"] if any(DUMP.search(text) for text in texts) else []


# ---------------------------------------------------------------- what it said


def _translate_answer(subject: Subject, answer: ask_program.Answer) -> Iterator[Finding]:
    refused = refusals(answer.text)
    for one in refused:
        yield _finding_of_answer(subject, one)
    if not refused:
        lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
        last = lines[-1][:300] if lines else "it said nothing"
        how = f"signal {-answer.code}" if answer.code is not None and answer.code < 0 else f"exit code {answer.code}"
        yield Finding("dry-run-failed", f"The dry run of prime-rl ended with {how}: {last.rstrip('.')}.")


def _finding_of_answer(subject: Subject, one: Refusal) -> Finding:
    if one.kind == "words":
        place = subject.run_where("job", "args") if subject.args else Where()
        return Finding("dry-run-refused", f"prime-rl refuses the command line: {one.told}.", place)
    place = _place_of_key(subject, one.path) if one.path else _mentioned_key(subject, one.told)
    if one.kind in ("value", "file"):
        name = ".".join(str(part) for part in one.path)
        return Finding("dry-run-refused", f"prime-rl refuses {name or 'the configuration'}: {one.told}.", place)
    if _GPU.search(one.told) or _NETWORK.search(one.told) or one.error in _ELSEWHERE:
        # It was run without a GPU, and what it reached is unknown: a start may do better.
        return Finding("dry-run-failed", f"The dry run of prime-rl ended with {one.error}: {one.told}.")
    if one.kind == "import":
        return Finding("dry-run-import", f"prime-rl cannot be started: {one.error}: {one.told}.", place)
    return Finding("dry-run-refused", f"prime-rl refuses the configuration: {one.error}: {one.told}.", place)


def _place_of_key(subject: Subject, path: tuple[str | int, ...]) -> Where:
    """The key's line; that of the table above it where the key is a default, or a union's variant is named in it."""
    names = [str(part) for part in path if isinstance(part, str)]
    if exact := subject.find_key(path):
        return exact
    tried = [names, *([*names[:at], *names[at + 1 :]] for at in range(1, len(names) - 1))]
    tried += [names[:end] for end in range(len(names) - 1, 0, -1)]
    for one in tried:
        dotted = ".".join(one)
        if subject.settings.get(dotted) is not None and (place := subject.where(dotted)).line:
            return replace(place, key=".".join(names))
    return subject.file(".".join(names))


def _mentioned_key(subject: Subject, told: str) -> Where:
    """The environment or the key that a sentence speaks of, where it names one that is set once."""
    for one in environments.list_environments(subject):
        if f"'{one.id}'" in told or f'"{one.id}"' in told:
            return environments.where(subject, one)
    for dotted in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", told):
        if subject.settings.get(dotted) is not None and (place := subject.where(dotted)).line:
            return place
    named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|(?<=[`'\"])[\w/@.\-]+(?=[`'\"])", told))
    hits = []
    for text in subject.texts:
        for key, position in text.positions.items():
            last = key[-1] if key else ""
            if isinstance(last, str) and last in named:
                path = ".".join(
                    str(part) for part in ((text.table, *key) if text.table else key) if isinstance(part, str)
                )
                hits.append(Where(str(text.path), position.line, path))
    return hits[0] if len(hits) == 1 else Where()
