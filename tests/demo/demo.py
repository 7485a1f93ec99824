"""The main job in about a minute: `make demo`, or `python -m tests.demo.demo`.

A practice run on two pretended GPUs is given to the real rl-supervisor, as a person would: a run file, the command
`rl-supervisor run`, and `supervisorctl`. Its vLLM dies silently, its checkpoints outgrow its disk, and it still
finishes. Exit code 0 only when all of that really happened (`timeline.Story.shortcomings`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from tests.demo.timeline import Said, Seen, Story, parse_said
from tests.practice.command_line import toml_value
from tests.practice.nvml.build import NoCompilerError
from tests.practice.pathing import folder_bytes, step_numbers
from tests.practice.run import Practice, make_practice

MIB = 1 << 20
RUN_ID = "practice"
INTERVAL = 2
CHECKPOINT_BYTES = 4 * MIB
VOLUME_PART = 0.7  # of what the run writes: without pruning, it could not finish
LOOK_S = 0.05
STOP_S = 20.0
INTERRUPTED = 130


def find_page_address() -> str:
    """Where the page of the run can be served; "" where the extra for it is not installed."""
    if not all(find_spec(name) for name in ("starlette", "uvicorn", "plotly")):
        return ""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


class Demo:
    """One demo: its folder, its practice run and its daemon."""

    def __init__(self, folder: Path, runtime: Path, *, era: str, steps: int, step_s: float) -> None:
        self.folder = folder
        self.run_file = folder / "run.toml"
        self.store = folder / "store"
        self.log_file = folder / "rl-supervisor.jsonl"
        self.socket = runtime / "socket"
        self.driver = runtime / "driver"
        self.environment = dict(os.environ)
        self.page = find_page_address()
        written = steps // INTERVAL
        # Two stay, one is written and two wait for their turn: a disk below that would ask the impossible.
        self.volume_bytes = int(max(written * VOLUME_PART, 5.5) * CHECKPOINT_BYTES)
        self.scan_s = min(1.0, step_s)
        self.practice = self._practice(era, steps, step_s)
        self.seen = Seen(time.time(), steps, self.practice.era.first_step, self.volume_bytes)
        self.log: list[Said] = []
        self.daemon: subprocess.Popen[bytes] | None = None
        self._read = 0
        self._engine: int | None = None
        self._pruned = False

    def _practice(self, era: str, steps: int, step_s: float) -> Practice:
        # Half of step_s are rollouts and half is training, side by side: so a step is done each half of it.
        return make_practice(
            self.folder / "pod",
            era,
            max_steps=steps,
            interval=INTERVAL,
            faults=[{"kind": "engine-exit-0", "at_step": steps // 2 + 2}],
            step_s=2 * step_s,
            checkpoint_bytes=CHECKPOINT_BYTES,
            volume_bytes=self.volume_bytes,
        )

    def pretend_gpus(self) -> str:
        """Builds the driver's stand-in. Returns why there is none, or ""."""
        try:
            made = self.practice.driver_environment(self.driver)
        except NoCompilerError:
            return "There is no C compiler here for the pretended GPU driver, so GPU memory is shown as unknown."
        before = self.environment.get("LD_LIBRARY_PATH", "")
        self.environment |= made | {"LD_LIBRARY_PATH": f"{made['LD_LIBRARY_PATH']}:{before}".rstrip(":")}
        return ""

    def write_run_file(self) -> None:
        """What a person would write, and the settings that the fast motion needs."""
        _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        tables: dict[str, dict[str, object]] = {
            "run": {"id": RUN_ID, "state_dir": str(self.folder / "state")},
            "job": {
                "dir": str(self.practice.home),
                "config": str(self.practice.config),
                "checkpoint_interval": INTERVAL,
                "nofile": min(65536, open_files) if open_files >= 1024 else 65536,
            },
            "job.env": {name: self.practice.environment[name] for name in ("PRACTICE_FILE", "PRACTICE_GPUS")},
            "store": {"url": self.store.as_uri()},
            "disk": {"capacity_gb": self.volume_bytes / 1e9, "prune_above": 0.6, "stop_below_mb": 1},
            "check": {"at_start": False},  # which takes the pretended model at its word, and this disk for too small
            "supervision": {"scan": self.scan_s, "quiet": self.scan_s, "shim": "fork"},
            "api": {"socket": str(self.socket)},
            **({"web": {"listen": self.page}} if self.page else {}),
            "logging": {"format": "pretty", "file": str(self.log_file)},
        }
        lines = []
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{name} = {toml_value(value)}" for name, value in values.items()), ""]
        self.run_file.write_text("\n".join(lines), encoding="utf-8")

    # ---------------------------------------------------------------- the run

    def start(self) -> None:
        """Starts the daemon; its sentences go where the demo's go."""
        self.seen.began = time.time()
        self.daemon = subprocess.Popen(
            [sys.executable, "-m", "supervisor.cli.main", "run", str(self.run_file)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stdout.fileno(),
            stderr=sys.stdout.fileno(),
            start_new_session=True,  # Ctrl-C is for the demo, which then ends everything in order
        )

    def watch(self, limit_s: float) -> None:
        """Looks on until the daemon has ended, and tells what its own log cannot."""
        assert self.daemon is not None
        deadline = time.monotonic() + limit_s
        while self.daemon.poll() is None and time.monotonic() < deadline:
            self._look_around()
            for one in self._new_sentences():
                if one.event == "verdict" and one.fields.get("incident"):
                    self._show_status()
                if one.event == "pruned" and one.fields.get("where") == "local" and not self._pruned:
                    self._pruned = True
                    full = self.seen.fullest_bytes / self.volume_bytes
                    print_remark(
                        f"The disk was {full:.0%} full, and prime-rl deletes nothing: published steps make room."
                    )
            time.sleep(LOOK_S)
        self._look_around()
        self._new_sentences()
        self.seen.exit_code = self.daemon.poll()
        self._look_at_the_end()

    def _look_around(self) -> None:
        seen, alive = self.seen, self.practice.alive()
        engines = [pid for pid, role in alive.items() if role == "engine-core"]
        if seen.engine_died is None and self._engine is not None and self._engine not in alive:
            seen.engine_died = time.time()
            left = {"rl": "launcher", "orchestrator": "orchestrator", "trainer-rank": "trainer"}
            others = [name for role, name in left.items() if role in alive.values()]
            print_remark(f"vLLM has just died, with exit code 0. Still alive: {', '.join(others) or 'nothing'}.")
        self._engine = engines[0] if engines else self._engine
        if "rl" in alive.values() and len(self.log) and not any(one.event == "stopped-job" for one in self.log):
            seen.launcher_alive = time.time()
        run_dir = self.practice.run_dir
        seen.fullest_bytes = max(seen.fullest_bytes, folder_bytes(run_dir))
        for step in step_numbers(run_dir / "checkpoints"):
            size = folder_bytes(run_dir / "checkpoints" / f"step_{step}")
            seen.written[step] = max(size, seen.written.get(step, 0))

    def _new_sentences(self) -> Iterator[Said] | list[Said]:
        if not self.log_file.exists():
            return []
        with self.log_file.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        new = [one for line in whole.decode("utf-8", "replace").splitlines() if (one := parse_said(line))]
        self.log += new
        return new

    def _show_status(self) -> None:
        """What a person who looks now is told."""
        told = subprocess.run(
            [sys.executable, "-m", "supervisor.cli.ctl", "--socket", str(self.socket), "status"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        print_remark("supervisorctl status", "\n" + (told.stdout + told.stderr).rstrip())

    def _look_at_the_end(self) -> None:
        seen, era = self.seen, self.practice.era
        flag = f"--{era.command_line['resume_key'].replace('_', '-')}"
        for start in self.practice.starts():
            words = [word.replace("_", "-") for word in start["arguments"]]
            seen.resume_steps.append(int(words[words.index(flag) + 1]) if flag in words else None)
        seen.left_here = step_numbers(self.practice.run_dir / "checkpoints")
        seen.ran_full = self.practice.state.is_marked("disk-was-full")
        published = self.store / RUN_ID
        seen.stored = [step for step in step_numbers(published) if (published / f"step_{step}/manifest.json").exists()]
        with contextlib.suppress(OSError, ValueError, KeyError):
            seen.latest = str(json.loads((published / "latest.json").read_text(encoding="utf-8"))["step"])
        seen.left_alive = len(self.practice.alive())

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        """Ends what is left, the daemon in its own way first. Safe at any moment."""
        daemon = self.daemon
        if daemon is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if daemon.poll() is None:
                    daemon.terminate()
                daemon.wait(STOP_S)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        self.practice.end_all()


# -------------------------------------------------------------------- what is printed


def _colour(text: str, code: str) -> str:
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{code}m{text}\x1b[0m" if wanted else text


def print_remark(text: str, more: str = "") -> None:
    """A remark of the demo between the daemon's lines."""
    print(_colour(f"{time.strftime('%H:%M:%S')}  ---- {text}", "36;1") + more, flush=True)


def print_heading(text: str) -> None:
    """A title of one line."""
    print(f"\n{_colour(text, '1')}\n", flush=True)


INTRODUCTION = """\
A practice run ({steps} steps, a checkpoint each {interval}, two pretended GPUs) is started by the real rl-supervisor.
It stands in for prime-rl as it was at {commit}. After half of the steps its vLLM dies silently, and its
checkpoints need more room than its disk of {volume:.0f} MiB has.

In fast motion: steps of {step_s:g} s, checkpoints of {size:.0f} MiB, a job that loads and stops in a moment, disk and
checkpoints looked at each {scan:g} s (in earnest 15), which count as written after {scan:g} s of quiet (in earnest 20).
As in earnest: a look at the processes each second, 3 s before a process that is gone is held for dead, and all else."""


def _introduce(demo: Demo, step_s: float) -> None:
    era = demo.practice.era
    print_heading("rl-supervisor: the demo")
    print(
        INTRODUCTION.format(
            steps=demo.seen.max_steps,
            interval=INTERVAL,
            commit=f"{era.commit} ({era.date})",
            volume=demo.volume_bytes / MIB,
            step_s=step_s,
            scan=demo.scan_s,
            size=CHECKPOINT_BYTES / MIB,
        )
    )


def _conclude(story: Story) -> int:
    print_heading("What happened")
    print("\n".join(story.timeline()))
    shortcomings = story.shortcomings()
    if shortcomings:
        print_heading("The demo FAILED:")
        print("\n".join(f"  - {sentence}" for sentence in shortcomings), flush=True)
        return 1
    return 0


# -------------------------------------------------------------------- from the command line


@contextlib.contextmanager
def _demo_folders(keep: Path | None) -> Iterator[tuple[Path, Path]]:
    """(the demo's folder, a short one for the socket and the driver); removed unless kept."""
    runtime = tempfile.mkdtemp(prefix="rl-demo-")
    if len(runtime) > 80:  # a unix socket's path has 107 bytes
        Path(runtime).rmdir()
        runtime = tempfile.mkdtemp(prefix="rl-demo-", dir="/tmp")
    try:
        folder = keep.absolute() if keep else Path(runtime, "demo")
        folder.mkdir(parents=True, exist_ok=True)
        yield folder, Path(runtime)
    finally:
        shutil.rmtree(runtime, ignore_errors=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.demo.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder, and leave it there")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="length of the run (default 20)")
    parser.add_argument("--step-seconds", type=float, default=1.5, metavar="S", help="length of a step (default 1.5)")
    parser.add_argument(
        "--era", default="2026-08-21", help="which prime-rl the practice job plays (default 2026-08-21)"
    )
    parser.add_argument("--limit", type=float, default=300, metavar="S", help="give up after so long (default 300)")
    options = parser.parse_args(argv)
    if options.keep and options.keep.exists() and any(options.keep.iterdir()):
        parser.error(f"{options.keep} is not empty: name a new folder")
    if options.steps < 12:
        parser.error("--steps: at least 12, so that there is something to prune")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo. Exit code: 0 when it showed all it should, 1 when not, 130 after Ctrl-C."""
    options = _options(argv)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _interrupt)
    demo = None
    try:
        with _demo_folders(options.keep) as (folder, runtime), contextlib.ExitStack() as ending:
            demo = Demo(folder, runtime, era=options.era, steps=options.steps, step_s=options.step_seconds)
            ending.callback(demo.close)
            ending.callback(_no_more_signals)
            no_gpus = demo.pretend_gpus()
            demo.write_run_file()
            _introduce(demo, options.step_seconds)
            if no_gpus:
                print(no_gpus)
            print_heading(f"$ rl-supervisor run {demo.run_file.name}")
            if demo.page:
                print(f"The run has a page while it lives: http://{demo.page}/", flush=True)
            demo.start()
            demo.watch(options.limit)
            code = _conclude(Story(demo.log, demo.seen))
            if options.keep:
                print(f"\nEverything is still in {folder}: run file, journal, store, logs.")
            return code
    except KeyboardInterrupt:
        rest = f"{options.keep} was left as it is" if options.keep else "its folder was removed"
        print(f"\nInterrupted. All processes of the demo were ended, and {rest}.", flush=True)
        return INTERRUPTED


def _no_more_signals() -> None:
    """Cleaning up is not interrupted: it is bounded by itself."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
