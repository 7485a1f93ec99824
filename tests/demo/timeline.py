"""What happened in a demo: the daemon's own JSON log and what was seen from outside, as a timeline and as a judgement.

Pure: lines in, lines out. Every number is computed from the two; where something is missing, that is a shortcoming,
and a demo with a shortcoming has failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

UNNOTICED_S = 3 * 3600
"""How long the death that this project exists for stood unnoticed: "training appeared stuck for ~3 hours", with vLLM
gone at 0 % and 0 MiB, on two H100 in January 2026."""


@dataclass(frozen=True)
class Said:
    """One line of the daemon's log."""

    at: float
    """Unix time, from milliseconds."""
    event: str
    sentence: str
    fields: dict[str, Any]

    def number(self, name: str) -> int | None:
        """A whole number among the fields."""
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass
class Seen:
    """What the demo saw from outside, without asking the daemon. Times are Unix times."""

    began: float
    max_steps: int
    first_step: int
    """Number of the first step: 0 or 1, by era."""
    volume_bytes: int
    engine_died: float | None = None
    """When the engine's process was gone."""
    launcher_alive: float | None = None
    """When the first attempt's launcher was last seen alive."""
    written: dict[int, int] = field(default_factory=dict)
    """Step -> the bytes that its checkpoint had on the disk."""
    fullest_bytes: int = 0
    ran_full: bool = False
    resume_steps: list[int | None] = field(default_factory=list)
    """What each start of the job was told on its command line."""
    left_here: list[int] = field(default_factory=list)
    """Steps on the local disk at the end."""
    stored: list[int] = field(default_factory=list)
    """Steps with a manifest in the store at the end."""
    latest: str = ""
    """`step` of latest.json at the end."""
    left_alive: int = 0
    """Processes of the job that live after the end."""
    exit_code: int | None = None
    """The daemon's; None when it had to be ended."""


def parse_said(line: str) -> Said | None:
    """One line of the log; None for what is no record."""
    try:
        record = json.loads(line)
        at = datetime.fromisoformat(record.pop("time")).timestamp()
        return Said(at, str(record.pop("event")), str(record.pop("sentence")), record)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class Story:
    """Both accounts together."""

    def __init__(self, log: Sequence[Said], seen: Seen) -> None:
        self.log, self.seen = log, seen
        died = seen.engine_died if seen.engine_died is not None else float("inf")
        self.verdict = self._first_line("verdict", died, cause="engine")
        since = self.verdict.at if self.verdict else float("inf")
        self.stopped = self._first_line("stopped-job", since)
        self.launched = self._first_line("launched", since)
        self.healed = self._first_line("incident-closed", since)
        self.finished = self._first_line("finished", since)
        self.steps = [one for one in log if one.event == "step"]
        self.published = [one for one in log if one.event == "published"]
        deleted = [one for one in log if one.event == "pruned" and (one.number("step") or 0) > 0]
        self.deleted_here = [one for one in deleted if one.fields.get("where") == "local"]
        self.deleted_there = [one for one in deleted if one.fields.get("where") == "store"]

    def _first_line(self, event: str, since: float, cause: str = "") -> Said | None:
        for one in self.log:
            if one.event == event and one.at >= since and str(one.fields.get("verdict", "")).startswith(cause):
                return one
        return None

    @property
    def done_before(self) -> int:
        """How many steps were done before the verdict, which is the number of the checkpoint they would make."""
        until = self.verdict.at if self.verdict else 0.0
        return max((self._steps_done_with(one) for one in self.steps if one.at <= until), default=0)

    def _steps_done_with(self, step: Said) -> int:
        number = step.number("step")
        return 0 if number is None else number + 1 - self.seen.first_step

    # ---------------------------------------------------------------- the judgement

    def shortcomings(self) -> list[str]:
        """Why this demo did not show what it should; empty when it did."""
        seen = self.seen
        found = []

        def need(held: object, otherwise: str) -> None:
            if not held:
                found.append(otherwise)

        need(seen.exit_code == 0, f"rl-supervisor ended with {seen.exit_code} instead of 0")
        need(seen.engine_died is not None, "vLLM did not die")
        if self.verdict:
            outlived = (seen.launcher_alive or 0.0) > self.verdict.at - 1
            need(outlived, "the launcher ended by itself, so the death was not silent")
        need(self.verdict, "the death of vLLM was not found")
        need(self.stopped, "the wounded job was not stopped")
        need(self.launched, "the job was not launched again")
        need(self.healed, "no step was done after the death")
        need(self.finished, "the run did not finish")
        resumed = [step for step in seen.resume_steps[1:] if step is not None]
        starts = ", ".join("none" if step is None else str(step) for step in seen.resume_steps)
        need(
            len(seen.resume_steps) == 2 and resumed and 0 < resumed[0] <= self.done_before,
            f"the job should have been started twice, the second time at a step it had done, and was told: {starts}",
        )
        reached = max(map(self._steps_done_with, self.steps), default=0)
        need(reached == seen.max_steps, f"{reached} steps were done instead of {seen.max_steps}")
        need(self.deleted_here, "no checkpoint was deleted from the local disk")
        still = [step for one in self.deleted_here if (step := one.number("step")) in seen.left_here]
        need(not still, f"deleted steps are still on the disk: {still}")
        total = sum(seen.written.values())
        need(
            total > seen.volume_bytes,
            f"{mebibytes(total)} of checkpoints could not fill {mebibytes(seen.volume_bytes)}",
        )
        need(not seen.ran_full, "the disk was full")
        need(seen.max_steps in seen.stored, f"step {seen.max_steps} is not in the store, which holds {seen.stored}")
        need(seen.latest == f"step_{seen.max_steps}", f"latest.json names {seen.latest or 'nothing'}")
        need(not seen.left_alive, f"{seen.left_alive} processes of the job were left")
        return found

    # ---------------------------------------------------------------- the timeline

    def timeline(self) -> list[str]:
        """The lines to print at the end."""
        return [*self._incident_lines(), "", *self._disk_lines(), "", *self._comparison_lines()]

    def _incident_lines(self) -> list[str]:
        seen, died = self.seen, self.seen.engine_died
        rows = [(0.0, "", "rl-supervisor was started")]
        first = self.steps[0] if self.steps else None
        if first:
            rows.append((first.at, "", f"step {first.number('step')} was done"))
        if died is not None:
            rows.append((died, "", "vLLM died: exit code 0, and the launcher did not notice"))
            stages = (
                (self.verdict, "rl-supervisor was sure of it, and said why"),
                (self.stopped, "the rest of the job was stopped, nothing of it left"),
                (self.launched, f"the job was launched again, told to resume at step {self._resume_step()}"),
                (self.healed, f"step {self._healed_step()} was done: the incident was over"),
            )
            before = died
            for one, text in stages:
                if one is not None:
                    rows.append((one.at, seconds(one.at - before), text))
                    before = one.at
        if self.finished:
            rows.append(
                (
                    self.finished.at,
                    "",
                    f"the run was finished: step {seen.max_steps} of {seen.max_steps} is in the store",
                )
            )
        lines = ["   at      took"]
        for at, took, text in rows:
            since = max(0.0, at - seen.began) if at else 0.0
            lines.append(f"{seconds(since):>7}  {took:>7}  {text}")
        return lines

    def _disk_lines(self) -> list[str]:
        seen = self.seen
        total = sum(seen.written.values())
        gone = [one.number("step") or 0 for one in self.deleted_here]
        freed = sum(one.number("bytes") or 0 for one in self.deleted_here)
        published = steps(one.number("step") or 0 for one in self.published)
        retired = steps(one.number("step") or 0 for one in self.deleted_there)
        through, room = mebibytes(total), mebibytes(seen.volume_bytes)
        fullest = seen.fullest_bytes / seen.volume_bytes
        return [
            f"Published:  {published}.",
            f"In store:   {steps(seen.stored)}; latest.json names {seen.latest or 'nothing'} ({retired} retired).",
            f"Deleted:    {steps(gone)} from the local disk, {mebibytes(freed)}, each after it was published.",
            f"Disk:       {through} of checkpoints went through {room}, which were never more than {fullest:.0%} full.",
        ]

    def _comparison_lines(self) -> list[str]:
        if self.seen.engine_died is None or self.verdict is None or self.healed is None:
            return []
        noticed = self.verdict.at - self.seen.engine_died
        healed = self.healed.at - self.seen.engine_died
        again = max(0, self.done_before - (self._resume_step() or 0))
        hours, work = UNNOTICED_S // 3600, "1 step was" if again == 1 else f"{again} steps were"
        return [
            "The incident that this was made for: vLLM dead, the launcher alive, no error, and two GPUs idle for",
            f"{hours} hours until a person looked. Here the death was noticed after {seconds(noticed)}, the run made",
            f"steps again after {seconds(healed)}, and {work} done twice. A real model adds its time to stop and load.",
        ]

    def _resume_step(self) -> int | None:
        return self.launched.number("step") if self.launched else None

    def _healed_step(self) -> int | None:
        return self.healed.number("step") if self.healed else None


def seconds(value: float) -> str:
    """A duration: 3.6 s."""
    return f"{value:.1f} s"


def mebibytes(count: float) -> str:
    """A size: 24.1 MiB."""
    return f"{count / (1 << 20):.1f} MiB"


def steps(numbers: Iterable[int]) -> str:
    """Steps in words: steps 2, 4 and 6."""
    found = [str(number) for number in sorted(set(numbers))]
    if not found:
        return "no step"
    if len(found) == 1:
        return f"step {found[0]}"
    return f"steps {', '.join(found[:-1])} and {found[-1]}"
