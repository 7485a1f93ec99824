"""What a run looked like over time: nothing is lost to the eye, however long it lasts, and it costs no run anything."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.checkpoints.log_packing import LOG_LIMIT, pack
from supervisor.core.facts import Gpu, GpuLook, Observation, StepDone, Tick
from supervisor.core.state import Disk, GpuMemory, State
from supervisor.effects.transfers import Moving
from supervisor.journal import series
from supervisor.journal.journal import Event
from supervisor.journal.series import SeriesWriter, parse_series, path_of, thin

GIB = 1 << 30


class Loop:
    """A writer, and a state in which an attempt lives."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.writer, self.t = folder, SeriesWriter(folder, lambda: self.moving), 0.0
        self.moving: Moving | None = None
        state = State()
        self.state = replace(
            state, mode="running", attempt=replace(state.attempt, number=3), disk=Disk(total=100, free=40)
        )

    def turn(self, fact: object, *said: Event, seconds: float = 1.0) -> None:
        self.t += seconds
        self.writer.note(Observation(self.t, 1e9 + self.t, fact), self.state, said)  # type: ignore[arg-type]

    def rows(self, attempt: int = 3) -> list[series.Row]:
        return parse_series(path_of(self.folder, attempt).read_bytes())


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


def look(used: int, load: float | None = None) -> GpuLook:
    return GpuLook((Gpu("GPU-a", 0, used, 80 * GIB, "trainer", load=load),))


def test_steps_samples_and_sentences_are_kept_with_what_is_known_of_them(loop: Loop) -> None:
    loop.moving = Moving("publish")
    loop.turn(Tick(), Event(1, 0.0, "info", "started", "Attempt 3 begins.", {}))
    loop.turn(StepDone("trainer", 7, duration_s=61.5, loss=math.nan))
    loop.turn(StepDone("orchestrator", 7, reward=0.123456789), Event(2, 0.0, "info", "step", "step 7", {}))
    said, sample, trainer, orchestrator = loop.rows()
    assert said == {"t": 1e9 + 1, "event": "started", "level": "info", "sentence": "Attempt 3 begins."}
    assert sample == {"t": 1e9 + 1, "disk": 40, "link": 0}
    assert (trainer["step"], trainer["role"], trainer["s"]) == (7, "trainer", 61.5)
    assert math.isnan(trainer["loss"])
    assert orchestrator == {"t": 1e9 + 3, "step": 7, "role": "orchestrator", "reward": 0.123457}


def test_a_dip_between_two_samples_is_in_the_next_one(loop: Loop) -> None:
    loop.turn(Tick())
    for used in (70, 70, 0, 71):
        loop.turn(look(used * GIB, load=50.0 if used else None), seconds=5)
    loop.turn(Tick(), seconds=30)
    assert loop.rows()[-1]["gpu"] == {"0": [0, 71 * GIB, 50]}
    loop.turn(look(3), seconds=30)
    assert loop.rows()[-1]["gpu"] == {"0": [3, 3, None]}


def test_nothing_is_sampled_while_no_attempt_lives_and_unknown_is_no_zero(loop: Loop) -> None:
    loop.state = replace(loop.state, disk=Disk())
    loop.turn(Tick())
    assert not path_of(loop.folder, 3).exists()
    loop.state = replace(loop.state, mode="stopped", disk=Disk(total=1, free=1))
    loop.turn(Tick(), seconds=100)
    assert not path_of(loop.folder, 3).exists()


@pytest.mark.soak
def test_a_long_run_stays_small_and_its_extremes_stay(loop: Loop) -> None:
    luck = random.Random(1)
    for step in range(1, 20_001):
        loss = 1e6 if step == 17 else luck.random()
        loop.turn(StepDone("trainer", step, duration_s=luck.random(), loss=loss, reward=luck.random()), seconds=31)
    data = path_of(loop.folder, 3).read_bytes()
    assert len(data) <= series.FILE_BYTES
    assert len(pack(data.decode())) < LOG_LIMIT
    steps = [row for row in loop.rows() if "step" in row]
    assert steps[-1]["step"] == 20_000
    assert max(row["loss"][1] for row in steps if isinstance(row["loss"], list)) == 1e6
    assert steps[0]["step"][0] == 1
    covered = [row["step"] if isinstance(row["step"], list) else [row["step"]] * 2 for row in steps]
    assert all(one[1] + 1 == other[0] for one, other in itertools.pairwise(covered))


def test_what_was_said_stays_when_numbers_are_thinned() -> None:
    rows = [{"t": float(n), "event": "x", "level": "info", "sentence": str(n)} for n in range(3000)]
    rows += [{"t": float(n), "step": n, "role": "trainer", "loss": math.nan if n == 0 else 1.0} for n in range(10)]
    rows += [{"t": 0.5, "roles": {"0": ["trainer", 80]}}]
    kept = thin(rows)
    assert [row["sentence"] for row in kept if "event" in row] == [str(n) for n in range(1000, 3000)]
    assert [row["step"] for row in kept if "step" in row] == [[0, 1], [2, 3], 4, 5, 6, 7, 8, 9]
    assert [row["loss"] for row in kept if "step" in row][:2] == [[1.0, 1.0], [1.0, 1.0]]  # NaN is no extreme
    assert {"t": 0.5, "roles": {"0": ["trainer", 80]}} in kept


def test_lines_that_are_cut_or_foreign_are_left_out() -> None:
    assert parse_series(b'{"t": 1, "disk": 2}\n[]\n{"t": "x"}\n7\n\xff\n{"t": 2, "di') == [{"t": 1, "disk": 2}]


@pytest.mark.parametrize(
    "row",
    [
        '{"t": NaN, "disk": 1}',
        '{"t": 1, "step": "x", "role": "trainer"}',
        '{"t": 1, "step": 1}',
        '{"t": 1, "step": [1, Infinity], "role": "trainer"}',
        '{"t": 1, "step": 1, "role": "trainer", "loss": "high"}',
        '{"t": 1, "step": 1, "role": "trainer", "loss": [1, 2, 3]}',
        '{"t": 1, "gpu": {"0": [1, 2]}}',
        '{"t": 1, "gpu": {"x": [1, 2, 3]}}',
        '{"t": 1, "gpu": [1]}',
        '{"t": 1, "roles": {"0": "trainer"}}',
        '{"t": 1, "event": 7}',
        '{"t": true, "disk": 1}',
    ],
)
def test_rows_that_another_host_made_up_are_left_out(row: str) -> None:
    assert parse_series(f'{row}\n{{"t": 2, "disk": 1}}'.encode()) == [{"t": 2, "disk": 1}]


def test_what_is_written_is_read_again(loop: Loop) -> None:
    loop.turn(look(5), Event(1, 0.0, "error", "verdict", "It died.", {}))
    loop.turn(StepDone("trainer", 7, duration_s=61.5, loss=math.nan, reward=-1.0, throughput=1e4), seconds=40)
    loop.turn(Tick(), seconds=40)
    assert len(loop.rows()) == len(path_of(loop.folder, 3).read_text().splitlines()) >= 4


def test_a_folder_that_cannot_be_written_costs_nothing(loop: Loop) -> None:
    (loop.folder / series.FOLDER).write_text("in the way")
    loop.turn(StepDone("trainer", 1))
    (loop.folder / series.FOLDER).unlink()
    loop.turn(StepDone("trainer", 2))
    assert [row["step"] for row in loop.rows() if "step" in row] == [2]


def test_the_oldest_files_go(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_FILES", 3)
    for attempt in range(1, 6):
        loop.state = replace(loop.state, attempt=replace(loop.state.attempt, number=attempt))
        loop.turn(StepDone("trainer", attempt))
    assert sorted(path.name for path in (loop.folder / series.FOLDER).iterdir()) == [f"000{n}.jsonl" for n in (3, 4, 5)]


def test_each_attempt_says_which_gpu_had_which_role(loop: Loop) -> None:
    for attempt in (3, 4):
        loop.state = replace(loop.state, attempt=replace(loop.state.attempt, number=attempt))
        for used in (5, 6):
            gpu = replace(look(used).gpus[0])
            loop.state = replace(loop.state, gpus=replace(loop.state.gpus, by_uuid={"GPU-a": GpuMemory(gpu)}))
            loop.turn(Tick(), seconds=31)
        assert [row["roles"] for row in loop.rows(attempt) if "roles" in row] == [{"0": ["trainer", 80 * GIB]}]
