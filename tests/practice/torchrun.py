"""`torchrun`: starts one process a rank, copies each one's output to a file, and the shown ranks' lines, prefixed, to
its own output.

Source: torch 2.x torch/distributed/run.py and elastic/agent, as prime-rl calls it (`--redirect=3 --tee=3
--local-ranks-filter=0`): lines come out as `[trainer0]:...` (`[default0]:` without --role), files lie in
LOG_DIR/RDZV_ID_RANDOM/attempt_0/RANK/.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from tests.practice.knobs import read_knobs
from tests.practice.processes import spawn


class SignalError(Exception):
    """torchrun's SignalException."""


def main(arguments: list[str]) -> int:
    options, rest = _split_options(arguments)
    count = int(options.get("nproc-per-node", "1"))
    role = options.get("role", "default")
    shown = {int(rank) for rank in options.get("local-ranks-filter", "0").split(",")}
    folder = (
        Path(options.get("log-dir", "torchrun"))
        / f"{options.get('rdzv-id', 'none')}_{secrets.token_hex(4)}"
        / "attempt_0"
    )
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    command = [sys.executable, "-u", *rest]
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    ranks: list[subprocess.Popen[bytes]] = []
    followers: list[threading.Thread] = []
    finished = threading.Event()
    try:
        for rank in range(count):
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
                "CUDA_VISIBLE_DEVICES": devices,
            }
            own = folder / str(rank)
            own.mkdir(parents=True, exist_ok=True)
            (own / "stderr.log").touch()
            with (own / "stdout.log").open("wb") as output:
                ranks.append(spawn(command, place, output=output.fileno()))
            if rank in shown:
                thread = threading.Thread(
                    target=_follow_output, args=(own / "stdout.log", f"[{role}{rank}]:", finished)
                )
                thread.start()
                followers.append(thread)
        return _watch_ranks(ranks)
    except SignalError as error:
        _end_ranks(ranks)
        print(f"torch.distributed.elastic.multiprocessing.api.SignalException: {error}", file=sys.stderr)
        return 1
    finally:
        finished.set()
        for thread in followers:
            thread.join(timeout=2)


def _split_options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    for position, word in enumerate(arguments):
        if not word.startswith("--"):
            return options, arguments[position:]
        name, _, value = word[2:].partition("=")
        options[name] = value
    return options, []


def _watch_ranks(ranks: list[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [rank.poll() for rank in ranks]
        for number, code in enumerate(codes):
            if code:
                _end_ranks(ranks)
                print(_failure(number, code, ranks[number].pid), file=sys.stderr)
                return 1
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.03)


def _failure(rank: int, code: int, pid: int) -> str:
    """What the agent logs of a rank that failed, and the end of run.py (elastic/multiprocessing/errors)."""
    now, line = time.gmtime(), "-" * 60
    told = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    if code < 0:
        told = f"Signal {-code} ({signal.Signals(-code).name}) received by PID {pid}"
    return f"""\
E{time.strftime("%m%d %H:%M:%S", now)}.{time.time_ns() // 1000 % 10**6:06d} {os.getpid()} \
torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: {code}) local_rank: {rank} (pid: {pid}) of \
binary: {sys.executable}
Traceback (most recent call last):
  File "{Path(sys.executable).with_name("torchrun")}", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
{"=" * 60}
prime_rl.trainer.rl.train FAILED
{line}
Failures:
  <NO_OTHER_FAILURES>
{line}
Root Cause (first observed failure):
[0]:
  time      : {time.strftime("%Y-%m-%d_%H:%M:%S", now)}
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : {told}
{"=" * 60}"""


def _end_ranks(ranks: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM to all, 30 s of patience, then SIGKILL (elastic's PContext.close)."""
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + max(1.0, 30 * read_knobs().patience)
    for rank in ranks:
        try:
            rank.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def _follow_output(file: Path, prefix: str, finished: threading.Event) -> None:
    partial = b""
    with file.open("rb") as stream:
        while True:
            last = finished.is_set()
            data = stream.read()
            *lines, partial = (partial + data).split(b"\n")
            for line in lines:
                sys.stdout.write(prefix + line.decode("utf-8", "replace") + "\n")
            if lines:
                sys.stdout.flush()
            if last and not data:
                return
            if not data:
                finished.wait(0.03)


def _on_signal(number: int, frame: FrameType | None) -> None:
    raise SignalError(f"Process {os.getpid()} got signal: {number}")
