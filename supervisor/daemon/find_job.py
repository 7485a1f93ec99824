"""Which living process is the run's job, when a person started it: found by command line, folder and open files.

Nothing here touches a process. What is found is a pid with its kernel start time, for ``supervisor.process.attached``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from supervisor.base.errors import ConfigError
from supervisor.config.settings import RunFile
from supervisor.daemon.person_process import command_words, shown_command
from supervisor.jobs.base import Job
from supervisor.process.known_names import SHIMS
from supervisor.process.strangers import open_links
from supervisor.process.survivors import Identity, Process, ancestors, process_table
from supervisor.sensors.processes import read_title

SHOWN = 5
NOT_THE_JOB = ("tmux", "screen", "sshd", "login", "systemd")  # they hold the job's terminal, and outlive it


@dataclass(frozen=True)
class Candidate:
    """A process that may be the run's job. ``sure``: something that belongs to this run only says so."""

    process: Identity
    title: str
    why: str
    sure: bool

    def describe(self) -> str:
        """For people who have to choose."""
        title = self.title if len(self.title) <= 90 else self.title[:87] + "..."
        return f"{self.process[0]}: {title} ({self.why})"


def find(run_file: RunFile, job: Job, pid: int | None = None) -> Candidate:
    """The process at the top of the run's job: ``pid`` if it is given, else the only one that can be meant.

    Raises ConfigError with the candidates when there are several, or with what was looked for when there is none.
    """
    if pid is not None:
        return _candidate_of_pid(run_file, job, pid)
    found = candidates(run_file, job)
    found = [one for one in found if one.sure] or found
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(
            f"No living job of run {run_file.run.id} was found among the processes of user {os.geteuid()}: none has "
            f"{_looked_for(run_file, job)}. Start it, or name its process with --pid PID."
        )
    listed = "".join(f"\n  {one.describe()}" for one in found[:SHOWN])
    more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise ConfigError(
        f"{len(found)} processes could be the job of run {run_file.run.id}; name one with --pid:{listed}{more}"
    )


def candidates(run_file: RunFile, job: Job) -> list[Candidate]:
    """Every process of this user that may be the top of the run's job, oldest first."""
    processes = process_table()
    spared = ancestors(os.getpid(), processes)
    look = _Look(run_file, job, processes)
    found = {
        process.pid: candidate
        for process in processes.values()
        if process.pid not in spared and _ours_to_see(process) and (candidate := look.at(process)) is not None
    }
    # `uv run rl` waits for the `rl` that it started: the upper one ends last, and holds the whole tree.
    tops = [pid for pid in found if not found.keys() & (ancestors(pid, processes) - {pid})]
    return [found[pid] for pid in sorted(tops, key=lambda pid: processes[pid].start_ticks)]


class _Look:
    """One look at all processes, for one run."""

    def __init__(self, run_file: RunFile, job: Job, processes: dict[int, Process]) -> None:
        self._run_file, self._job, self._processes = run_file, job, processes
        self._folder = run_file.job.folder.resolve()
        self._output = job.output_dir.resolve()
        self._configs = {path.resolve() for path in job.config_files()}
        self._children: dict[int, list[int]] = {}
        for process in processes.values():
            self._children.setdefault(process.ppid, []).append(process.pid)

    def at(self, process: Process) -> Candidate | None:
        """What speaks for this process, None when nothing does."""
        if self.is_ours(process):
            return None
        title, words = read_title(process.pid), command_words(process.pid)
        plain = self._run_file.job.plain
        if plain is not None:
            folder = _folder_of_process(process.pid) or self._folder
            if any(_fits_command(template, words, folder, self._output) for template in (plain.start, plain.resume)):
                return Candidate(process.identity, shown_command(words), "it runs the command of [job.plain]", True)
            return None
        kind = self._job.classify_process(title, process.name)
        tops = ("trainer",) if self._run_file.job.kind == "vf-rl" else ("launcher", "trainer")
        if kind is None or kind[0] not in tops or (kind[0] == "trainer" and not kind[1]):
            return None
        return self._of_this_run(process, words)

    def _of_this_run(self, process: Process, words: Sequence[str]) -> Candidate | None:
        cwd, title = _folder_of_process(process.pid), shown_command(words)
        named = {path for word in words if (path := _file_of_word(word, cwd)) is not None}
        if named & self._configs:
            return Candidate(process.identity, title, "its command line names the run's configuration", True)
        if named:
            return None  # another run's
        if any(self._writes_output(pid) for pid in self._tree_of_process(process.pid)):
            return Candidate(process.identity, title, f"it writes in {self._output}", True)
        if cwd is not None and cwd == self._folder:
            return Candidate(process.identity, title, f"it runs in {cwd}", False)
        return None

    def why_related(self, process: Process) -> str:
        """Why a pid that a person gave can be the job's; "" when nothing speaks for it."""
        if self.is_ours(process):
            return ""
        found = self.at(process)
        if found is not None:
            return found.why
        for pid in self._tree_of_process(process.pid):
            one = self._processes.get(pid)
            if one is not None and (below := self.at(one)) is not None:
                return f"process {pid} below it is: {below.why}"
        return f"it runs in {self._folder}" if _folder_of_process(process.pid) == self._folder else ""

    def is_ours(self, process: Process) -> bool:
        """Does it live under a shim, so that a daemon of ours has started it?"""
        names = (self._processes[pid].name for pid in ancestors(process.pid, self._processes))
        return any(name.startswith(SHIMS) for name in names)

    def _tree_of_process(self, pid: int) -> Iterator[int]:
        ahead = [pid]
        while ahead:
            one = ahead.pop()
            yield one
            ahead += self._children.get(one, ())

    def _writes_output(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return any(Path(link).is_relative_to(self._output) for link in open_links(pid))
        return False


def _candidate_of_pid(run_file: RunFile, job: Job, pid: int) -> Candidate:
    processes = process_table()
    process = processes.get(pid)
    if process is None or process.dead:
        raise ConfigError(f"There is no process {pid}; `ps -ef` lists those that live.")
    look = _Look(run_file, job, processes)
    title = shown_command(command_words(pid)) or process.name
    if pid in ancestors(os.getpid(), processes) or process.name.startswith(NOT_THE_JOB):
        raise ConfigError(f"Process {pid} ({title}) is not a job but what this command runs in: name the job's own.")
    if look.is_ours(process):
        raise ConfigError(
            f"Process {pid} ({title}) was started by rl-supervisor, and is no job to attach to: the daemon of its run "
            "finds it by itself."
        )
    why = look.why_related(process)
    if not why:
        found = "".join(f"\n  {one.describe()}" for one in candidates(run_file, job)[:SHOWN])
        raise ConfigError(
            f"Process {pid} ({title}) is not of run {run_file.run.id}: neither it nor what it started has "
            f"{_looked_for(run_file, job)}.{f' These could be meant:{found}' if found else ''}"
        )
    return Candidate(process.identity, title, why, True)


def _looked_for(run_file: RunFile, job: Job) -> str:
    folder = run_file.job.folder
    if run_file.job.plain is not None:
        return f"the command line {' '.join(run_file.job.plain.start)} or {' '.join(run_file.job.plain.resume)}"
    configs = ", ".join(str(path) for path in job.config_files())
    return f"a launcher's command line with {configs}, writes in {job.output_dir}, or runs as a launcher in {folder}"


def _ours_to_see(process: Process) -> bool:
    if process.dead or process.state == "D":
        return False  # reading the command line of a process that hangs in the kernel can hang us
    try:
        owner = Path(f"/proc/{process.pid}").stat().st_uid
    except OSError:
        return False
    return os.geteuid() in (0, owner)


def _folder_of_process(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None


def _file_of_word(word: str, cwd: Path | None) -> Path | None:
    """The TOML file that a word of a command line names, `@x.toml` and `--trainer=x.toml` included."""
    name = word.rpartition("=")[2].lstrip("@")
    if not name.endswith(".toml"):
        return None
    return ((cwd or Path("/")) / name).resolve()


_OUTPUT = re.escape("{output_dir}")
_HOLE = re.compile(r"\\\{[a-z_]+\\\}")


def _fits_command(template: Sequence[str], words: Sequence[str], cwd: Path, output: Path) -> bool:
    """Is ``words``, run in ``cwd``, the command ``template``, with anything in its holes but another output folder?

    An interpreter before a script is let pass.
    """
    if not template:
        return False
    first: Callable[[str], str] = lambda word: PurePath(word).name  # noqa: E731
    texts = [re.escape(word).replace(_OUTPUT, "(?P<out>.+)", 1) for word in template[1:]]
    patterns = [re.compile(_HOLE.sub(".+", text), re.S) for text in texts]
    for skip in range(3):
        rest = words[skip:]
        if len(rest) < len(template) or first(rest[0]) != first(template[0]):
            continue
        # More words may follow: [job] args, and what the person added.
        found = [pattern.fullmatch(word) for pattern, word in zip(patterns, rest[1:], strict=False)]
        outs = [match.groupdict().get("out") for match in found if match]
        if all(found) and all((cwd / out).resolve() == output for out in outs if out):
            return True
    return False
