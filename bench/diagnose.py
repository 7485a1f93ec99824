"""How fast does `rl-supervisor diagnose` read, beside `grep -c -E` of the same words?

`python -m bench diagnose` (or `python -m bench.diagnose --mb 200 --rounds 3`) writes a log for each role as prime-rl,
vLLM and verifiers write it, with and without colours, then one with a suspicious line in each hundred, and lets both
programs read them in turns. The figures are CPU time of whole processes on one core, the median of the rounds; the
machine may be shared, so the ratio says more than either. Exit code 1 where a figure that is asked for is missed.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.primerl.logs import SIGNATURES

HEALTHY, SUSPICIOUS = 100.0, 20.0  # MB/s that are asked for
EVERY = 100  # of so many lines one is suspicious
BLOCK_LINES = 20_000
BAD = (
    "httpx.ConnectError: All connection attempts failed",
    "{at} WARNING Rollout failed: openai.APITimeoutError: Request timed out.",
    "ValueError: a completion that cannot be read",
    "{at}   ERROR Error in rollout group 412: Connection refused",
)


def _clock(number: int, a_second: int) -> str:
    seconds = number // a_second % 86_400
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def loguru(at: str, level: str, message: str, coloured: bool) -> str:
    """As prime-rl's logger writes it (utils/logger.py at 559b44772)."""
    if not coloured:
        return f"{at} {level:>7} {message}"
    return f"\x1b[2m{at}\x1b[0m \x1b[1m{level:>7}\x1b[0m \x1b[1m\x1b[22m{message}\x1b[0m\x1b[0m"


def trainer(number: int, coloured: bool) -> str:
    """Formats of trainer/rl/train.py at 559b44772, at the level debug."""
    at, step, place = _clock(number, 3), number // 20, number % 20
    if place == 0:
        said = (
            f"Step {step} |     45s | Loss 0.0010 | Entropy 0.3000 | Mismatch KL 0.0001 | Grad. Norm 0.1000 | "
            f"LR 1.00e-06 | Throughput {9000 + place} tokens/s | MFU 20.0% | Peak Mem. 60.0 GiB"
        )
        return loguru(at, "SUCCESS", said, coloured)
    if place > 5:
        said = f"Micro Step {place - 5}/14 | Loss 0.{number % 9973:04d} | Entropy 0.{number % 9967:04d}"
        return loguru(at, "DEBUG", said, coloured)
    said = (
        f"Starting training step {step}",
        "Waiting for training batch to arrive",
        f"Waited for batch to arrive for {number % 40}.12 seconds",
        "Loading batch",
        f"Starting forward and backward pass (batch_size={number % 64})",
    )[place - 1]
    return loguru(at, "DEBUG", said, coloured)


def orchestrator(number: int, coloured: bool) -> str:
    """Formats of orchestrator/orchestrator.py and of httpx."""
    at, step, place = _clock(number, 5), number // 30, number % 30
    shares = "Branches 1.0 | Max Off-Policy 2 | Error 0.0% | Cancelled 0.0% | Truncation 1.0%"
    if place == 0:
        said = f"Step {step} |  3m 32s | Reward 0.5000 | Trainable 120/128 (93.8%) | Turns 3.1 | {shares}"
        return loguru(at, "SUCCESS", said, coloured)
    if place == 1:
        return f"\t\t \u2570\u2500 wordle   | Ratio 50.0% | Reward 0.4412 | Turns 3.1 | {shares}"
    if place == 2:
        return loguru(at, "INFO", f"Updating policy in-flight to v{step}", coloured)
    if place < 12:
        said = f"Train batch {place * 10}/128 (+8 in 10s) | {number % 96} inflight rollouts | 12.1 rollouts/min"
        return loguru(at, "INFO", said, coloured)
    said = "HTTP Request: POST http://localhost:8000/v1/chat/completions 'HTTP/1.1 200 OK'"
    return loguru(at, "INFO", said, coloured)


def inference(number: int, coloured: bool) -> str:
    """Of vLLM: uvicorn's access lines, and its throughput (v1/metrics/loggers.py)."""
    who = "\x1b[1;36m(APIServer pid=812)\x1b[0;0m" if coloured else "(APIServer pid=812)"
    if number % 40:
        return f'{who} INFO:     127.0.0.1:{30_000 + number % 30_000} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    return (
        f"{who} INFO 08-21 {_clock(number, 40)} [loggers.py:236] Engine 000: Avg prompt throughput: "
        f"{number % 9000}.1 tokens/s, Avg generation throughput: {number % 7000}.2 tokens/s, Running: 48 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 31.2%, Prefix cache hit rate: 44.1%"
    )


def environment(number: int, coloured: bool) -> str:
    """Of an environment server of verifiers, whose logging module has no colours."""
    del coloured
    said = f"Completed request {number * 7919:010x} in {number % 30}.12s (active=12)"
    return f"2026-08-21 {_clock(number, 10)} - verifiers.serve.EnvServer - INFO - {said}"


ROLES: dict[str, Callable[[int, bool], str]] = {
    "trainer": trainer,
    "orchestrator": orchestrator,
    "inference": inference,
    "env": environment,
}


def lines(role: str, count: int, *, coloured: bool = False, bad_every: int = 0) -> list[str]:
    """Healthy lines of a role's log; ``bad_every``: of so many lines one is an error that a run survives."""
    found = [ROLES[role](number, coloured) for number in range(count)]
    if bad_every:
        for nth, number in enumerate(range(bad_every - 1, count, bad_every)):
            found[number] = BAD[nth % len(BAD)].format(at=_clock(number, 5))
    return found


def words() -> str:
    """What grep looks for: all words that the known errors cannot be without."""
    found = {word.rstrip("\n") for signature in SIGNATURES.signatures for word in signature.words}
    return "|".join(sorted(re.sub(r"([][\\.(){}*+?|^$])", r"\\\1", word) for word in found))


def cpu_s(command: Sequence[str]) -> float:
    """CPU time of a process with its children."""
    with tempfile.TemporaryFile() as said:  # grep stops at its first match where nothing is to be written
        actions = [(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)]
        pid = os.posix_spawnp(command[0], command, {**os.environ, "LC_ALL": "C"}, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1, 3):
        raise RuntimeError(f"{' '.join(command)[:200]} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime


def measure(path: Path, rounds: int) -> tuple[float, float, float]:
    """MB/s of diagnose and of grep, and how often the one is the other: each the median."""
    mb = path.stat().st_size / 1e6
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(cpu_s([sys.executable, "-m", "supervisor.cli.main", "diagnose", str(path)]))
        theirs.append(cpu_s(["grep", "-c", "-E", words(), str(path)]))
    ratio = statistics.median(theirs[at] / ours[at] for at in range(rounds))
    return mb / statistics.median(ours), mb / statistics.median(theirs), ratio


def write(path: Path, mb: int, role: str, coloured: bool, bad_every: int) -> None:
    """Such lines, again and again, to a file of so many megabytes."""
    block = "\n".join([*lines(role, BLOCK_LINES, coloured=coloured, bad_every=bad_every), ""]).encode()
    with path.open("wb") as file:
        while file.tell() < mb * 10**6:
            file.write(block)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.diagnose", description=__doc__)
    parser.add_argument(
        "--mb", type=int, default=500, help="the size of each log: 0.4 s of each figure are the start of the program"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    missed = False
    print(f"{'lines':44} {'asked':>9} {'diagnose':>10} {'grep -c -E':>11}  diagnose is")
    with tempfile.TemporaryDirectory(prefix="rl-bench-") as folder:
        for bad_every, asked in ((0, HEALTHY), (EVERY, SUSPICIOUS)):
            for role in ROLES:
                for coloured in (False, True)[: 1 if role == "env" else 2]:
                    path = Path(folder) / f"{role}.log"
                    write(path, options.mb, role, coloured, bad_every)
                    ours, theirs, ratio = measure(path, options.rounds)
                    path.unlink()
                    name = f"{role}{', colours' * coloured}{f', each {bad_every}th suspicious' if bad_every else ''}"
                    shares = f"{asked:4.0f} MB/s {ours:5.0f} MB/s {theirs:6.0f} MB/s"
                    print(f"{name:44} {shares}  {ratio:.2f} of grep", flush=True)
                    missed = missed or ours < asked
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
