"""Collectors that hang, fail or talk too much cost nobody but themselves."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from supervisor.evidence.collecting import COLLECTOR_BYTES, FILE_BYTES, Collector, Part, Sink, gather, output_of

ENV = {"PATH": os.defpath}


def gathered(
    collectors: Sequence[Collector], budget_s: float = 5.0, cut: threading.Event | None = None
) -> dict[str, Part]:
    parts: list[Part] = []
    gather(
        collectors,
        until=time.monotonic() + budget_s,
        cut=cut or threading.Event(),
        ready=parts.append,
    )
    assert len(parts) == len(collectors)
    return {part.name: part for part in parts}


def test_one_that_hangs_is_left_behind_and_what_it_told_before_is_kept() -> None:
    let_go = threading.Event()

    def hangs(sink: Sink) -> None:
        sink.put("first.txt", "two of three disks answered")
        let_go.wait(20)
        sink.put("late.txt", "much later")

    began = time.monotonic()
    parts = gathered([Collector("hangs-1", hangs, 0.3), Collector("works", lambda sink: sink.put("b.txt", "b"), 3.0)])
    assert time.monotonic() - began < 2
    assert parts["works"].word == "collected"
    assert parts["hangs-1"].word == "late"
    assert parts["hangs-1"].files == {"first.txt": b"two of three disks answered"}
    assert "it is left behind" in parts["hangs-1"].notes[0]
    let_go.set()


def test_one_that_fails_says_why_without_a_secret() -> None:
    def fails(sink: Sink) -> None:
        raise ValueError("HF_TOKEN=abcdefghijklmnop is refused")

    def is_forbidden(sink: Sink) -> None:
        raise PermissionError(13, "Permission denied", "/proc/1/stack")

    parts = gathered([Collector("fails", fails, 1), Collector("forbidden", is_forbidden, 1)])
    assert parts["fails"].word == "failed"
    assert parts["fails"].notes == ["ValueError: HF_TOKEN=*** is refused"]
    assert parts["forbidden"].notes == ["/proc/1/stack: Permission denied"]


def test_it_can_be_ended_early() -> None:
    cut = threading.Event()
    threading.Timer(0.2, cut.set).start()
    began = time.monotonic()
    parts = gathered([Collector("waits", lambda sink: time.sleep(3), 10)], budget_s=10, cut=cut)
    assert time.monotonic() - began < 2
    assert "the collecting was ended early" in parts["waits"].notes[0]


@pytest.mark.soak
def test_no_file_and_no_part_grows_beyond_its_limit() -> None:
    def talks(sink: Sink) -> None:
        sink.put("head.txt", "".join(f"line {n}\n" for n in range(60_000)))
        sink.put("tail.txt", "".join(f"line {n}\n" for n in range(60_000)), end=True)
        for number in range(6):
            sink.put(f"more-{number}.txt", "a long line of what a process says\n" * (FILE_BYTES // 70))
        for _ in range(12):
            sink.add("added.txt", "word " * 10_000)

    part = gathered([Collector("talks", talks, 20)], 20)["talks"]
    assert sum(map(len, part.files.values())) <= COLLECTOR_BYTES
    assert all(len(data) <= FILE_BYTES + 200 for data in part.files.values())
    assert part.files["head.txt"].startswith(b"line 0\n")
    assert part.files["tail.txt"].endswith(b"line 59999\n")
    assert any("is left out" in note for note in part.notes)


def test_a_program_is_never_waited_for_longer_or_read_further_than_said() -> None:
    began = time.monotonic()
    _, trouble = output_of(
        [sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.5, limit_bytes=99, env=ENV
    )
    assert time.monotonic() - began < 5
    assert "did not end within 0.5 s and was killed" in trouble
    text, trouble = output_of(["yes", "no"], timeout_s=20, limit_bytes=1000, env=ENV)
    assert len(text) == 1000
    assert "printed more than 1000 bytes" in trouble
    text, trouble = output_of(
        [sys.executable, "-c", "print('x'); raise SystemExit(3)"], timeout_s=20, limit_bytes=99, env=ENV
    )
    assert (text, trouble) == ("x\n", f"{sys.executable} ended with exit code 3")
