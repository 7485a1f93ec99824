"""Looks beside each other: one that hangs is named and given up, and the end of the program does not wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.base.beside import Beside, side_by_side
from supervisor.cli import check
from supervisor.cli.main import main
from supervisor.config.settings import RunFile
from supervisor.preflight import dry_run, environments, online
from supervisor.preflight.finding import Finding
from supervisor.storage.base import StoreError
from tests.preflight.subjects import subject

RUN = RunFile.model_validate(
    {"run": {"id": "a"}, "job": {"dir": "/srv", "config": "a.toml"}, "store": {"url": "b2://bucket"}}
)


def fails() -> int:
    raise PermissionError("no")


def test_what_is_seen_comes_in_the_order_that_was_asked_for() -> None:
    first = threading.Event()

    def waits() -> int:
        assert first.wait(10)
        return 0

    def sets() -> int:
        first.set()
        return 1

    assert side_by_side([waits, sets, lambda: 2], 2) == [0, 1, 2]
    assert side_by_side([], 4) == []
    with pytest.raises(PermissionError):
        side_by_side([lambda: 1, fails, lambda: 2], 1)


def test_one_that_hangs_or_fails_tells_nothing() -> None:
    back = threading.Event()
    hangs = Beside(back.wait)
    assert hangs.result_or_none(time.monotonic()) is None
    assert hangs.hangs
    back.set()
    assert hangs.result(None) is True
    assert Beside(fails).result_or_none(time.monotonic() + 10) is None
    assert Beside(Path("a\0b").stat).result_or_none(time.monotonic() + 10) is None


def test_a_slow_look_that_hangs_is_named_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    back = threading.Event()

    def hangs(*_: object, **__: object) -> Sequence[Finding]:
        back.wait(30)
        return ()

    seen = Finding("hub-no-answer", "The others are told.")
    monkeypatch.setattr(online, "findings", lambda *_, **__: [seen])
    monkeypatch.setattr(environments, "slow_findings", hangs)
    monkeypatch.setattr(environments, "patience", lambda _: 0.0)
    monkeypatch.setattr(dry_run, "findings", lambda *_, **__: ())
    monkeypatch.setattr(check, "WAITS_S", 0.0)
    monkeypatch.setattr(dry_run, "TIMEOUT_S", 30.0)
    found = check._look_online(subject("max_steps = 3"), (), {}, {}, measure=False)
    back.set()
    assert found[0] is seen
    assert [(one.id, one.sentence) for one in found[1:]] == [
        ("no-answer", "The job's environment gave no answer within 0 s, and was given up.")
    ]


def test_a_store_that_is_silent_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    back = threading.Event()
    monkeypatch.setattr(online, "open_store", lambda *_, **__: back.wait(30))
    monkeypatch.setattr(online, "OPEN_S", 0.0)
    with pytest.raises(StoreError, match="no answer came within 0 s, as where there is no network"):
        online.open_run_store(RUN, {})
    back.set()
    assert max(online.OPEN_S, online.HUB_S) < 8


HANGS = """
import sys
from pathlib import Path
from supervisor.cli import patience
from supervisor.base.beside import Beside
fifo = Path(sys.argv[2])
if sys.argv[1] == "beside":
    Beside(fifo.read_text)
    print("done")
else:
    with patience.within(0.1, "The check"):
        print(fifo.read_text())
"""


@pytest.mark.parametrize(
    ("where", "code", "said", "complains"),
    [
        ("beside", 0, "done\n", ""),
        ("here", 1, "", "The check did not end within 0.1 s: {fifo} gives no answer. Is the volume"),
    ],
)
def test_the_program_ends_while_something_hangs(
    where: str, code: int, said: str, complains: str, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # whoever opens it to read waits for somebody who writes
    ended = subprocess.run(
        [sys.executable, "-c", HANGS, where, str(fifo)], capture_output=True, text=True, check=False, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (code, said)
    assert ended.stderr.startswith(complains.format(fifo=fifo))


def test_a_check_by_hand_ends_where_a_file_hangs_and_not_while_somebody_reads_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    under_way: list[bool] = []

    @contextmanager
    def within(limit_s: float, _: str) -> Iterator[None]:
        limits.append(limit_s)
        under_way.append(True)
        yield
        under_way.clear()

    monkeypatch.setattr(check.patience, "within", within)
    monkeypatch.setattr(check, "_print_result", lambda *_: len(under_way))
    config = tmp_path / "rl.toml"
    config.write_text("max_steps = 3\n[trainer]\n[orchestrator]\n")
    assert main(["check", str(config)]) == 0
    assert limits == [check.LONGEST_S]
    check.check(config, environ={})
    assert limits == [check.LONGEST_S], "within another program it ends nothing"
