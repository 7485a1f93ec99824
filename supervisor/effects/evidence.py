"""What a person needs in the morning, kept before anything is killed: log ends, processes, GPUs, the explanation."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TAIL_BYTES = 256 << 10
MOST_BUNDLES = 5  # of one attempt's incidents that leave the pod


def collect(
    folder: Path,
    reason: str,
    logs: Mapping[str, Path],
    explanation: Mapping[str, Any],
    pids: list[int],
    *,
    trace: str = "",
) -> None:
    """Write a small bundle into ``folder``. Best effort by nature: what cannot be read is named in the bundle.

    ``trace``: how to get the observations before, in and after the incident, most of which are still to come.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reason.txt").write_text(f"{reason}\n{trace}")
    (folder / "explain.json").write_text(json.dumps(explanation, indent=1, default=str))
    (folder / "processes.txt").write_text("\n".join(describe(pid) for pid in pids) + "\n")
    for role, path in logs.items():
        (folder / f"{role}.log").write_bytes(tail_of(path))


def trace_command(journal: Path, incident: int) -> str:
    """The sentence that stands in the bundle instead of a trace that would end where the incident begins."""
    return (
        f"What was observed around it: rl-supervisor trace {journal} --incident {incident} "
        f"-o incident-{incident}.jsonl.gz\n"
    )


def log_ends(logs: Mapping[str, Path], attempt: Path) -> dict[str, bytes]:
    """By name: the ends of the logs, and of what the newest bundles in the attempt's folder say besides."""
    ends = {f"{role}.log": tail_of(path) for role, path in logs.items()}
    for bundle in sorted(attempt.glob("incident-*"))[-MOST_BUNDLES:]:
        for name in ("reason.txt", "explain.json", "processes.txt"):
            if (bundle / name).is_file():
                ends[f"{bundle.name}-{name}"] = tail_of(bundle / name)
    return ends


def tail_of(path: Path) -> bytes:
    """The last 256 KiB of a file, or a sentence why it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}\n".encode()


def describe(pid: int) -> str:
    """One line on a process: pid, state, threads, resident memory, where it waits in the kernel, command line."""
    try:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"{pid} gone"
    try:
        waits = Path(f"/proc/{pid}/wchan").read_text() or "-"
    except OSError:
        waits = "-"
    memory, threads, state = status.get("VmRSS", "-").strip(), status.get("Threads", "-"), status.get("State", "-")
    return f"{pid} {state.split()[0]} threads={threads} rss={memory} wchan={waits} {command or status.get('Name', '')}"
