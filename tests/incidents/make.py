"""Writes the incidents of the original runs (January 2026) as traces that can be replayed.

python -m tests.incidents.make     write them beside this file

The figures are those of the runs' own notes: Qwen3-8B on two H100, steps of three to five minutes, checkpoints of 47 GB
every five steps, 128 rollouts a step, vLLM at 90 % of GPU 0, uploads of 14 MB/s. Log lines are prime-rl's own (commit
be0e3d131 of 6 January 2026, 559b44772 for counts of rollouts) and go through the real parser; looks come as often as
the sensors' settings say. Times of which the notes say nothing (start-up, the second of a crash) are made up.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.core.facts import Role
from supervisor.journal.trace_lines import FORMAT, VERSION
from supervisor.primerl.logs import parse_line

HERE = Path(__file__).parent
GIB = 1 << 30
GB = 10**9
CHECKPOINT_BYTES = 47 * GB
H100_BYTES = 80 * GIB
URL = "http://127.0.0.1:8000"
STEPS_S = (287, 214, 232, 251, 226, 243, 238, 229, 262, 247)
REFUSED_S, GPU_S, ENGINE_S, DISK_S = 5.0, 10.0, 5.0, 60.0
ONE_REFUSED = "APIConnectionError('Connection error.')"
TOO_LARGE = (
    "ValueError: 'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum context length is "
    "4096 tokens and your request has 1297 input tokens (4000 > 4096 - 1297)."
)


class Story:
    """Observations of one attempt (or of each), by seconds since its start."""

    def __init__(self, attempt: int | str = 1) -> None:
        self.attempt = attempt
        self.lines: list[tuple[float, f.Fact, str]] = []

    def see(self, after_s: float, fact: f.Fact, source: str) -> None:
        self.lines.append((after_s, fact, source))

    def log(self, after_s: float, role: Role, line: str) -> None:
        for fact in parse_line(role, line):
            self.see(after_s, fact, f"log-{role}")

    def processes(self, after_s: float, roles: tuple[Role, ...] = ("launcher", "inference", "orchestrator")) -> None:
        for number, role in enumerate(roles):
            self.see(after_s, self.process(f.ProcessSeen, role, number), "processes")

    def process(self, kind: Any, role: Role, number: int) -> Any:
        attempt = self.attempt if isinstance(self.attempt, int) else 1
        return kind(attempt, role, 4100 + number, 900_000 + number)

    def engine_up(self, begin: float, end: float, *, tokens: bool = True, every: float = ENGINE_S, **what: Any) -> None:
        for number, after_s in enumerate(span(begin, end, every)):
            count = 1000.0 + 250 * after_s if tokens else 1000.0
            seen = {"running": 96.0, "waiting": 12.0, "iterations": count, "connections": 128, **what}
            seen = {key: value(number) if callable(value) else value for key, value in seen.items()}
            self.see(after_s, f.EngineLook(URL, "ok", "absent", **seen), "engine")

    def engine_refuses(self, begin: float, end: float) -> None:
        for after_s in span(begin, end, ENGINE_S):
            reason = f"{URL}/health: connection refused"
            self.see(after_s, f.EngineLook(URL, "refused", "unknown", reason=reason), "engine")

    def gpus(self, begin: float, end: float, first: float, second: float | None) -> None:
        for after_s in span(begin, end, GPU_S):
            gpus = [f.Gpu("GPU-a", 0, int(first * GIB), H100_BYTES, "inference" if second is not None else "shared")]
            if second is not None:
                gpus.append(f.Gpu("GPU-b", 1, int(second * GIB), H100_BYTES, "trainer"))
            self.see(after_s, f.GpuLook(tuple(gpus)), "gpu")

    def blind_gpus(self, begin: float, end: float) -> None:
        for after_s in span(begin, end, 30):
            self.see(after_s, f.GpuLook(reason="NVML: Driver/library version mismatch"), "gpu")

    def step(self, after_s: float, number: int, seconds: float) -> None:
        said = f"Step {number} | Time: {seconds:.2f}s"
        self.log(after_s - 31, "orchestrator", line("SUCCESS", f"{said} | Reward: {0.02 + 0.03 * number:.4f} |"))
        self.log(after_s, "trainer", line("SUCCESS", f"{said} | Loss: 0.0021 | Entropy: 0.31"))

    def checkpoint(self, after_s: float, wall: float, numbers: list[int]) -> None:
        """The newest of ``numbers`` is saved in 30 s, and complete when its files were quiet for 20 s."""
        self.log(after_s, "trainer", line("INFO", f"Saving checkpoint at step {numbers[-1]}"))
        old = tuple(f.LocalStep(n, "complete", "", CHECKPOINT_BYTES) for n in numbers[:-1])
        changed = wall + after_s + 30
        new = f.LocalStep(numbers[-1], "writing", "", CHECKPOINT_BYTES // 2, wall + after_s + 14)
        self.see(after_s + 15, f.LocalSteps((*old, new)), "checkpoints")
        new = f.LocalStep(numbers[-1], "complete", "", CHECKPOINT_BYTES, changed)
        self.see(after_s + 60, f.LocalSteps((*old, new)), "checkpoints")

    def text(self) -> Iterator[str]:
        for after_s, fact, source in sorted(self.lines, key=lambda seen: seen[0]):
            value = {"attempt": self.attempt, "after": round(after_s, 3), "source": source, "fact": brief(fact)}
            yield json.dumps(value, separators=(",", ":"))


def span(begin: float, end: float, every: float) -> Iterator[float]:
    number = 0
    while begin + number * every < end:
        yield begin + number * every
        number += 1


def line(level: str, message: str) -> str:
    return f"03:00:00 {level:>7} {message}"


def brief(fact: Any) -> Any:
    """Encoded, without what has its default: a person is to read these files."""
    value = encode(fact)
    return _without_defaults(fact, value)


def _without_defaults(fact: Any, value: Any) -> Any:
    if isinstance(fact, tuple):
        return [_without_defaults(item, inner) for item, inner in zip(fact, value, strict=True)]
    if not hasattr(fact, "__dataclass_fields__"):
        return value
    found = {"@": value["@"]}
    for name, known in fact.__dataclass_fields__.items():
        item = getattr(fact, name)
        if item != known.default:
            found[name] = _without_defaults(item, value[name])
    return found


def unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def write(name: str, header: dict[str, Any], stories: list[Story]) -> dict[str, str]:
    first = {"format": FORMAT, "version": VERSION, "ticks": "named", "effects": "answered", **header}
    return {name: "\n".join([json.dumps(first), *(text for story in stories for text in story.text())]) + "\n"}


TWO_GPUS = {"run_id": "bs4-rl-qwen3-8b-2xh100", "max_steps": 1000, "stop_below_bytes": 2 * GIB}
ROLES: tuple[Role, ...] = ("launcher", "inference", "orchestrator", "trainer")
STARTUP_S = 240.0


def healthy(story: Story, steps: int, wall: float, *, blind: bool = False) -> float:
    """A run from the start to the end of step ``steps`` - 1; when that was, in seconds since the start."""
    if not blind:
        story.processes(2, ROLES)
        story.gpus(5, 60, 1, 1)
    after_s = STARTUP_S
    story.engine_refuses(5, 150)
    for number in range(steps):
        after_s += STEPS_S[number % len(STEPS_S)]
        story.step(after_s, number, STEPS_S[number % len(STEPS_S)])
    story.engine_up(150, after_s)
    if blind:
        story.blind_gpus(5, after_s)
    else:
        story.gpus(60, after_s, 72.4, 61.8)
    for number in range(5, steps, 5):
        done = STARTUP_S + sum(STEPS_S[n % len(STEPS_S)] for n in range(number))
        story.checkpoint(done, wall, list(range(5, number + 1, 5)))
    return after_s


def second_attempt(resumed: int, steps: int) -> Story:
    """After the restart all is well again: two more steps."""
    story = Story(2)
    story.processes(2, ROLES)
    story.gpus(60, STARTUP_S + 700, 72.4, 61.8)
    story.engine_up(150, STARTUP_S + 700)
    after_s = STARTUP_S
    for number in range(resumed, resumed + steps):
        after_s += STEPS_S[number]
        story.step(after_s, number, STEPS_S[number])
    return story


def crash_after_step_6(*, processes: bool) -> dict[str, str]:
    """6 January, 03:00: vLLM ended with exit code 0; launcher, orchestrator and trainer lived on, GPU 0 held 0 MiB."""
    story = Story()
    fault = STARTUP_S + sum(STEPS_S[:7]) + 97
    begin = unix("2026-01-06T03:00:00") - fault
    last = healthy(story, 7, begin)
    story.engine_up(last, fault)
    story.gpus(last, fault, 72.4, 61.8)
    if processes:
        story.see(fault + 0.6, story.process(f.ProcessGone, "inference", 1), "processes")
    else:
        story.lines = [seen for seen in story.lines if not isinstance(seen[1], f.ProcessSeen)]
    end = fault + 900  # a person came fifteen minutes later
    story.gpus(fault + 1.2, end, 0, 61.8)
    story.engine_refuses(fault + 3.5, end)
    errors(story, fault + 2, end)
    verdict = "vLLM died silently" if processes else "vLLM is dead while the trainer holds 61.8 GiB"
    header = {
        "about": (crash_after_step_6.__doc__ or "") + ("" if processes else " Here nobody could see its processes."),
        "wall": begin,
        "settings": TWO_GPUS,
        "expect": {
            "fault": fault,
            "within_s": 5 if processes else 15,
            "verdict": verdict,
            "action": {"@": "Start", "attempt": 2, "step": 5},
        },
    }
    name = "crash-after-step-6" + ("" if processes else "-by-memory")
    return write(f"{name}.jsonl", header, [story, second_attempt(6, 2)])


def errors(story: Story, begin: float, end: float) -> None:
    """Each of 128 rollouts fails at once and is tried again; the log shows a burst every half minute."""
    for number, after_s in enumerate(span(begin, end, 30)):
        failed = line("WARNING", f"Error in rollout {number % 128}: {ONE_REFUSED}")
        for part in range(3):
            story.log(after_s + part, "orchestrator", failed)


def three_hours_of_connection_errors() -> dict[str, str]:
    """5 January, after step 5: vLLM died, and the orchestrator tried 128 rollouts again and again for three hours.

    Neither GPUs nor processes can be seen here, so the port and the log are all there is.
    """
    story = Story()
    fault = STARTUP_S + sum(STEPS_S[:6]) + 41
    begin = unix("2026-01-05T20:00:00") - fault
    last = healthy(story, 6, begin, blind=True)
    story.engine_up(last, fault)
    end = fault + 3 * 3600
    story.blind_gpus(last, end)
    story.engine_refuses(fault + 2.5, end)
    errors(story, fault + 2, end)
    header = {
        "about": (three_hours_of_connection_errors.__doc__ or "").strip(),
        "wall": begin,
        "settings": TWO_GPUS,
        "expect": {
            "fault": fault,
            "within_s": 60,
            "verdict": "vLLM is dead: its port has refused connections",
            "action": {"@": "Start", "attempt": 2, "step": 5},
        },
    }
    second = second_attempt(5, 2)
    second.lines = [seen for seen in second.lines if not isinstance(seen[1], f.ProcessSeen | f.GpuLook)]
    return write("three-hours-of-connection-errors.jsonl.gz", header, [story, second])


def stuck_at_0_of_8() -> dict[str, str]:
    """4 January: max_tokens = 4000 does not fit into max_model_len = 4096, so vLLM answers every request with 400.

    The batch stands at 0/8, the main log shows no error, and vLLM is in the best of health. One H100 for both.
    """
    story = Story("each")
    hours = 2 * 3600.0
    story.processes(2, ROLES)
    story.gpus(5, 160, 1, None)
    story.gpus(160, hours, 72, None)
    story.engine_refuses(5, 150)
    story.log(30, "orchestrator", line("INFO", "Waiting for inference pool to be ready"))
    story.log(155, "orchestrator", line("INFO", "Starting orchestrator step 0"))
    story.log(156, "trainer", line("DEBUG", "Waiting for training batch to arrive"))
    # A refused request makes no token. The one-token request that the sensor sends every half a minute is answered.
    story.engine_up(
        150,
        hours,
        running=0.0,
        waiting=0.0,
        connections=8,
        iterations=lambda number: 1000.0 + number // 7,
        canary=lambda number: "ok" if number % 7 == 6 else "",
    )
    for after_s in span(160, hours, 10):
        story.log(
            after_s, "orchestrator", line("INFO", "Train batch 0/8 (0.0%); 8 inflight episodes (train=8, eval=0)")
        )
    for after_s in span(158, hours, 30):
        story.log(after_s, "inference", TOO_LARGE)
    header = {
        "about": (stuck_at_0_of_8.__doc__ or "").strip(),
        "wall": unix("2026-01-04T23:10:00"),
        "until": hours,
        "settings": {"run_id": "bs4-rl-qwen2.5-7b-h100-v4", "max_steps": 1000, "stop_below_bytes": 2 * GIB},
        "expect": {
            "fault": 159.0,
            "within_s": 600,
            "verdict": "max_tokens",
            "action": {"@": "Exit", "code": 93},
        },
    }
    return write("stuck-at-0-of-8.jsonl.gz", header, [story])


DISK_BYTES = 250 * GB
OTHERS_BYTES = 60 * GB  # the model, the environment, the system


def disk_full(*, published: bool) -> dict[str, str]:
    """6 January: --ckpt.keep-last 2 deleted nothing, and each checkpoint of 47 GB stayed until the disk was full."""
    story = Story()
    begin = unix("2026-01-06T07:20:00")
    steps = 22
    last = healthy(story, steps, begin)
    saves = [STARTUP_S + sum(STEPS_S[n % len(STEPS_S)] for n in range(number)) for number in range(5, steps, 5)]
    free = DISK_BYTES - OTHERS_BYTES
    done = 10.0
    fault = last
    for save in saves:
        for after_s in span(done, save, DISK_S):
            story.see(after_s, f.DiskLook("/ckpt", DISK_BYTES, free), "disk")
        # Written in 30 s, looked at every five.
        for part in range(1, 7):
            left = free - CHECKPOINT_BYTES * part // 6
            story.see(save + 5 * part, f.DiskLook("/ckpt", DISK_BYTES, max(0, left)), "disk")
            if left < 0:
                fault = min(fault, save + 5 * part)
        free = max(0, free - CHECKPOINT_BYTES)
        done = save + 35
    # What happened then: the save fails, and takes the trainer along.
    no_room = "OSError: [Errno 28] No space left on device: '/ckpt/checkpoints/step_20/trainer/__0_0.distcp'"
    if not published:
        story.lines = [seen for seen in story.lines if seen[0] <= fault]
        story.log(fault + 1, "trainer", no_room)
        story.see(fault + 3, f.ComponentExited(1, "launcher", 1), "shim")
    else:
        story.lines = [seen for seen in story.lines if seen[0] <= fault - 5]
    action = {"@": "PruneLocal", "step": 5} if published else {"@": "Stop", "attempt": 1}
    header = {
        "about": (disk_full.__doc__ or "") + ("" if published else " Here nothing reaches the store either."),
        "wall": begin,
        "settings": {**TWO_GPUS, "run_id": "bs4-rl-qwen3-8b-2xh100-v4"},
        "unanswered": [] if published else ["Publish"],
        "bytes_per_s": 14e6,
        "expect": {
            "fault": fault,
            "within_s": 0,  # before it happens
            "verdict": "" if published else "The disk is",
            "action": action,
        },
    }
    name = "disk-full" + ("" if published else "-and-nothing-published")
    return write(f"{name}.jsonl", header, [story])


def all_files() -> dict[str, str]:
    """Name -> text of every incident."""
    return {
        **crash_after_step_6(processes=True),
        **crash_after_step_6(processes=False),
        **three_hours_of_connection_errors(),
        **stuck_at_0_of_8(),
        **disk_full(published=True),
        **disk_full(published=False),
    }


if __name__ == "__main__":
    for name, text in all_files().items():
        data = text.encode()
        (HERE / name).write_bytes(gzip.compress(data, 9, mtime=0) if name.endswith(".gz") else data)
