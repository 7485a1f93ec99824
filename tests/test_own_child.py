"""A child that is asked one thing never holds its parent up, whatever it does."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from supervisor.base.own_child import OwnChild


def child(program: str, given: bytes = b"", *, together: bool = False) -> OwnChild:
    return OwnChild([sys.executable, "-I", "-c", program], environ={}, given=given, together=together)


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


def test_it_reads_what_it_is_given_and_its_answer_and_its_last_complaint_are_read() -> None:
    with child("import sys; print(sys.stdin.read().upper()); sys.exit('first\\nlast words')", b"a word") as one:
        assert one.wait(soon()) == 1
        assert one.answer() == b"A WORD\n"
        assert one.complaint() == "last words"
    with child("import sys; print('a', flush=True); print('b', file=sys.stderr)", together=True) as one:
        assert one.wait(soon()) == 0
        assert (one.answer(), one.complaint()) == (b"a\nb\n", "")


def test_what_it_leaves_behind_with_its_output_open_is_not_waited_for(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    )
    began = time.monotonic()
    with child(program) as one:
        assert one.wait(soon()) == 0
        left = int(one.answer())
    assert time.monotonic() - began < 15
    os.kill(left, 9)


def test_one_that_takes_too_long_or_is_not_wanted_any_more_is_killed_with_what_it_started() -> None:
    unwanted = threading.Event()
    with child("import time; print('begun', flush=True); time.sleep(60)") as one:
        assert one.wait(soon(0.3)) is None
        unwanted.set()
        assert one.wait(soon(), unwanted) is None
        one.kill()
        assert one.process.returncode == -9


def test_one_that_talks_without_end_is_ended() -> None:
    talks = "while True: print('frame ' * 1000)"
    with OwnChild([sys.executable, "-I", "-c", talks], environ={}, most_bytes=1 << 20) as one:
        assert one.wait(soon()) == -9
        assert one.is_cut
        assert len(one.answer(100)) == 100


def test_no_file_of_it_stays_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with child("pass") as one:
        one.wait(soon())
    with pytest.raises(FileNotFoundError):
        OwnChild(["/nowhere/at-all"], environ={})
    assert len(list(Path("/proc/self/fd").iterdir())) == before
