"""What is read of a process that a person started: its command line, where its output goes, and what it is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from supervisor.base.secrets import mask_command, printable
from supervisor.jobs.base import Job, literal


def output_file(pid: int) -> Path | None:
    """The plain file that the process's output goes to (``rl @ x.toml > run.log``); None for a terminal or a pipe."""
    try:
        path = Path(f"/proc/{pid}/fd/1").readlink()
    except OSError:
        return None
    return path if path.is_file() and not path.is_relative_to("/proc") else None


def first_component(job: Job, folder: Path) -> str:
    """The name that the job's first component has, by the file that its output would be captured in."""
    names = [PurePath(source.path) for source in job.log_sources(folder) if Path(source.path).parent == literal(folder)]
    return names[0].stem if names else "job"


def shown_command(words: Sequence[str]) -> str:
    """A command line for people."""
    return printable(" ".join(mask_command(words).split()))


def command_words(pid: int) -> list[str]:
    """The words of the process's command line, [] where it cannot be read."""
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in data.rstrip(b"\0").split(b"\0")]
