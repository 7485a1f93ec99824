"""``supervisorctl top`` in a real terminal, and ``status --watch``: as people see them, whatever the daemon does."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.api.protocol import Api
from supervisor.cli.main import main
from supervisor.cli.series_tail import SeriesTail
from supervisor.cli.top_screen import ASCII, BLOCKS, KEYS, Size, clip_text, draw_run, draw_sparks, fit_lines
from supervisor.journal.series import path_of
from tests.people.desk import GIB, FakeDesk, until
from tests.people.in_process import call
from tests.people.terminal import Terminal

Serve = Callable[..., Api]
CTL = [sys.executable, "-m", "supervisor.cli.ctl"]
HOSTILE = "step 9 \x1b[2Jgone \x1b]0;title\x07 \x1b[31mred\x1b[0m \u202e 漢字 \x9b5n done"


def top(*words: str, columns: int = 80, rows: int = 24, **env: str) -> Terminal:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return Terminal([*CTL, "top", *words], {**kept, "TERM": "xterm", "LC_ALL": "C.UTF-8", **env}, columns, rows)


def write_series(state_dir: Path, steps: int = 60) -> list[dict[str, Any]]:
    """Steps of about 200 s, of which the last took 900, and memory of one GPU that fell once."""
    now = time.time()
    rows: list[dict[str, Any]] = [
        {"t": now - 200 * (steps - n), "step": n, "role": "trainer", "s": 900.0 if n == steps else 200.0 + n % 3}
        for n in range(1, steps + 1)
    ]
    rows += [
        {"t": now - 200 * (steps - n), "step": n, "role": "orchestrator", "reward": n / steps}
        for n in range(1, steps + 1)
    ]
    rows += [{"t": now - 30 * (400 - n), "gpu": {"0": [0 if n == 380 else 60 * GIB, 61 * GIB, 50]}} for n in range(400)]
    rows.sort(key=lambda row: float(row["t"]))
    path = path_of(state_dir, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


class CountingDesk(FakeDesk):
    """``asked``: when each question came."""

    def __init__(self, *words: Any, **changes: Any) -> None:
        super().__init__(*words, **changes)
        self.asked: list[float] = []

    def status(self) -> dict[str, Any]:
        self.asked.append(time.monotonic())
        return super().status()


# ---------------------------------------------------------------- the screen


def test_one_screen_says_what_the_run_does_and_q_leaves_the_terminal_as_it_was(serve: Serve, tmp_path: Path) -> None:
    write_series(tmp_path)
    vllm = {"id": 1, "opened": time.time() - 3600, "seconds": 221.0, "sentence": "vLLM died silently."}
    moving = {"what": "publishing", "step": 420, "phase": "sending", "bytes": GIB, "total_bytes": 4 * GIB}
    moving |= {"rate": 100 << 20, "remaining_s": 30.0}
    serve(FakeDesk(state_dir=str(tmp_path), incidents=[vllm], publishing=moving, notes=["The store is slow."]))
    with top() as terminal:
        shown = terminal.until(lambda text: "q quit" in text and "step time" in text)
        lines = terminal.lines()
        assert len(lines) == 24
        assert re.match(r"bs4-qwen3  RUNNING +\d\d:\d\d$", lines[0])
        assert lines[1].startswith("step 412 of 1000, 212 s a step")
        [steps] = [line for line in lines if line.startswith("step time")]
        assert re.match(r"step time   900 s +▁+█  200 s to 900 s, \d+ steps$", steps)
        [reward] = [line for line in lines if line.startswith("reward")]
        assert re.match(r"reward      1 +▁[▁-█]+█  0\.\d+ to 1, \d+ steps$", reward)
        [memory] = [line for line in lines if line.startswith("inference")]
        assert re.match(r"inference   70.0 of 80 GiB   ▇+▁{1,2}▇+  \d+ min$", memory), memory
        assert "disk        /workspace 60% used, 80.0 GiB of 200 GiB free" in lines
        assert "publishing  step 420, sending 1.0 GiB of 4.0 GiB (25 %) at 100 MiB/s, about 30 s" in shown
        assert re.search(r"incident    #1 \d\d:\d\d over in 3 min 41 s: vLLM died silently\.", shown)
        assert "note        The store is slow." in lines
        assert terminal.modes == {b"1049"}  # the other screen, no cursor
        ends_as_it_was(terminal, lambda: terminal.type("q"))
        assert terminal.odd == []


def ends_as_it_was(terminal: Terminal, end: Callable[[], object]) -> None:
    """The screen takes each key as it comes, and leaves a terminal that shows what is typed, and its cursor."""
    assert not termios.tcgetattr(terminal.fd)[3] & termios.ECHO
    end()
    assert terminal.end() == 0
    assert termios.tcgetattr(terminal.fd)[3] & termios.ECHO
    assert terminal.modes == {b"25"}


@pytest.mark.soak
def test_a_person_chooses_a_run_and_keys_lead_to_logs_the_explanation_another_run_and_ctrl_c_out(
    serve: Serve, tmp_path: Path
) -> None:
    desk = FakeDesk("first")
    for role in ("orchestrator", "trainer"):
        path = tmp_path / f"{role}.log"
        path.write_text("".join(f"{role} {n}\n" for n in range(1, 101)))
        desk.files[role] = path
    serve(desk)
    serve(FakeDesk("second", sentence="the second one trains"))
    with top() as terminal:
        terminal.until(lambda text: "1  first" in text and "2  second" in text)
        terminal.type("j\r")
        terminal.until(lambda text: text.startswith("second  RUNNING"))
        terminal.type("r1")
        terminal.until(lambda text: text.startswith("first  RUNNING") and "step 412" in text)
        terminal.type("l")
        shown = terminal.until(lambda text: "orchestrator 100" in text)
        assert "orchestrator 81" in shown and "orchestrator 78" not in shown
        terminal.type("\x1b[A\x1b[A\x1b[A\x1b[A")
        terminal.until(lambda text: "orchestrator 96" in text and "orchestrator 97" not in text)
        terminal.type("l")
        terminal.until(lambda text: "trainer 100" in text)
        with desk.files["trainer"].open("a") as file:
            file.write("trainer goes on\n")
        terminal.until(lambda text: "trainer goes on" in text)
        terminal.type("e")
        terminal.until(lambda text: "Evidence:" in text and "/health ok" in text)
        terminal.type("\x1b")
        terminal.until(lambda text: "progress" in text)
        terminal.type("r")
        terminal.until(lambda text: "> 1  first" in text and "2  second" in text)
        terminal.type("2")
        terminal.until(lambda text: text.startswith("second") and "the second one trains" in text)
        terminal.type("r\x1b[A\r")
        terminal.until(lambda text: text.startswith("first"))
        ends_as_it_was(terminal, lambda: terminal.type("\x03"))


def test_text_of_the_run_moves_nothing_and_sigterm_leaves_the_terminal_as_it_was(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_text(f"{HOSTILE}\n" * 50 + "x" * 5000 + "\n" + "漢" * 500 + "\nthe end\n")
    desk = FakeDesk(sentence=HOSTILE, notes=[HOSTILE], job=HOSTILE)
    desk.files["trainer\x1b[5n"] = path
    serve(desk)
    with top() as terminal:
        terminal.until(lambda text: "step 9 gone" in text)
        terminal.type("l")
        terminal.until(lambda text: "the end" in text)
        terminal.type("e")
        terminal.until(lambda text: "Evidence" in text)
        ends_as_it_was(terminal, lambda: os.kill(terminal.pid, signal.SIGTERM))
        assert terminal.odd == []


def test_without_colours_and_without_their_characters_it_says_the_same(serve: Serve, tmp_path: Path) -> None:
    write_series(tmp_path)
    serve(FakeDesk(state_dir=str(tmp_path), store_reason="the key is not valid"))
    with top(NO_COLOR="1", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0") as terminal:
        terminal.until(lambda text: "cannot be used: the key is not valid" in text and "step time" in text)
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.colours <= {b"0", b"7"}
        assert terminal.sent.isascii()
        assert re.search(r"step time   900 s +_+#  200 s to 900 s", terminal.text() + terminal.sent.decode())


def test_a_terminal_that_cannot_move_its_cursor_and_a_pipe_are_told_what_to_type(serve: Serve) -> None:
    serve(FakeDesk())
    with top(TERM="dumb") as terminal:
        assert terminal.end() == 2
        assert b"supervisorctl status --watch" in terminal.sent
    asked = json.dumps({"name": None, "socket": None, "as_json": False})
    done = call(main, ["live", "top", asked])  # what `supervisorctl top` becomes
    assert done.returncode == 2
    assert "status --watch" in done.stderr


def test_a_run_that_is_not_known_is_refused_and_no_screen_is_opened(serve: Serve) -> None:
    serve(FakeDesk())
    with top("other") as terminal:
        assert terminal.end() == 2
        assert "There is no run named other" in terminal.text()
        assert b"\x1b[" not in terminal.sent


# ---------------------------------------------------------------- what the daemon notices of it


@pytest.mark.soak
def test_a_refresh_is_one_question_and_few_bytes_and_a_resized_window_is_drawn_anew(
    serve: Serve, tmp_path: Path
) -> None:
    write_series(tmp_path)
    desk = CountingDesk(state_dir=str(tmp_path))
    serve(desk)
    with top("bs4-qwen3") as terminal:
        terminal.until(lambda text: "q quit" in text and "step time" in text)
        first, sent = len(desk.asked), len(terminal.sent)
        assert sent < 6000
        until(lambda: len(desk.asked) >= first + 3, 30.0)
        terminal.read(0.2)
        assert min(b - a for a, b in zip(desk.asked[first - 1 :], desk.asked[first:], strict=False)) >= 1.9
        desk.now["step"] = 413
        terminal.until(lambda text: "step 413" in text)
        assert len(terminal.sent) - sent < 600  # two lines, and the clock where a minute has passed
        for columns, rows in ((40, 10), (132, 50), (20, 3), (1, 1), (80, 24)):
            terminal.resize(columns, rows)
            terminal.until(
                lambda text, columns=columns: (
                    text.replace("\n", " ").strip().startswith("bs4-qwen3"[:columns]) or columns == 1
                )
            )
        terminal.until(lambda text: "q quit" in text and "step time" in text)
        assert terminal.odd == []


@contextmanager
def a_daemon_that_hangs(path: Path) -> Iterator[list[socket.socket]]:
    """It takes connections and answers none. Gives those that are open."""
    taken: list[socket.socket] = []
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(50)

        def take() -> None:
            while not over.is_set():
                if select.select([listener], [], [], 0.05)[0]:
                    taken.append(listener.accept()[0])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield taken
        over.set()
        thread.join()
        for one in taken:
            one.close()
    path.unlink()


def has_hung_up(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while one.recv(4096):
            pass
    except BlockingIOError:
        return False
    return True


@pytest.mark.soak
def test_a_daemon_that_goes_away_hangs_and_comes_back(serve: Serve, sockets: Path) -> None:
    desk = FakeDesk()
    api = serve(desk)
    with top("--socket", str(sockets / "bs4-qwen3.sock")) as terminal:
        terminal.until(lambda text: "step 412 of 1000" in text)
        api.close()
        shown = terminal.until(lambda text: "No daemon answers for bs4-qwen3" in " ".join(text.split()))
        assert "and what is shown is old: No daemon" in " ".join(shown.split())
        assert "step 412 of 1000" in shown
        with a_daemon_that_hangs(sockets / "bs4-qwen3.sock") as taken:
            terminal.until(lambda text: "gave no answer in 3 s" in " ".join(text.split()))
            asked = time.monotonic()
            terminal.type("l")
            terminal.until(lambda text: "Esc back" in text)
            assert time.monotonic() - asked < 2.0  # keys do not wait for the daemon
            until(lambda: len(taken) >= 3, 30.0)
            assert sum(not has_hung_up(one) for one in taken) <= 1
            terminal.type("\x1b")
        desk.now["sentence"] = "step 500 of 1000"
        serve(desk)
        shown = terminal.until(lambda text: "step 500 of 1000" in text)
        terminal.until(lambda text: "No answer" not in text)
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.odd == []


@pytest.mark.soak
def test_a_run_whose_daemon_is_not_there_yet_is_waited_for(serve: Serve, sockets: Path, tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(f'[run]\nid = "bs4-qwen3"\nstate_dir = "{tmp_path}/state"\n')
    run_file.chmod(0o600)
    with top(str(run_file)) as terminal:
        terminal.until(lambda text: "No daemon" in text)
        serve(FakeDesk())
        terminal.until(lambda text: "step 412 of 1000" in text)


# ---------------------------------------------------------------- status --watch


def watch(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*CTL, "status", "--watch", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.soak
def test_watching_is_a_line_a_change_and_ctrl_c_ends_it_well(serve: Serve) -> None:
    desk = CountingDesk(sentence="no sign of vLLM for 62 s; step 412 of 1000")
    api = serve(desk)
    process = watch()
    assert process.stdout is not None
    first = process.stdout.readline()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  bs4-qwen3  RUNNING  no sign of vLLM for 62 s; step 412", first)
    desk.now["sentence"] = "no sign of vLLM for 2 min 4 s; step 412 of 1000"  # time alone went by
    asked = len(desk.asked)
    until(lambda: len(desk.asked) >= asked + 2)
    desk.now |= {"state": "recovering", "sentence": "vLLM is gone"}
    assert process.stdout.readline().partition("  ")[2] == "bs4-qwen3  RECOVERING  vLLM is gone\n"
    api.close()
    assert "bs4-qwen3  NOT RUNNING  No daemon answers for bs4-qwen3" in process.stdout.readline()
    serve(desk)
    assert "RECOVERING  vLLM is gone" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.soak
def test_watching_all_runs_names_each_and_json_is_a_line_each(serve: Serve) -> None:
    serve(FakeDesk("first"))
    process = watch("--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["run"] == "first"
    serve(FakeDesk("second"))
    found = json.loads(process.stdout.readline())
    assert (found["run"], found["state"]) == ("second", "running")
    assert abs(found["at"] - time.time()) < 30
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0


# ---------------------------------------------------------------- lines


@pytest.mark.soak
def test_every_size_of_a_terminal_is_filled_exactly() -> None:
    gpus = [
        {"index": n, "used_bytes": (60 + n) * GIB, "total_bytes": 80 * GIB, "role": "trainer" if n else "inference"}
        for n in range(8)
    ]
    now = FakeDesk(gpus=gpus, notes=["漢字 " * 40] * 20, incidents=[FakeDesk().now["last_incident"]] * 30).now
    rows = [{"t": 30.0 * n, "gpu": {str(m): [GIB * n, GIB * n, None] for m in range(8)}} for n in range(100)]
    rows += [{"t": 30.0 * n, "step": [n, n + 1], "role": "trainer", "s": [1.0, 9.0]} for n in range(100)]
    for columns in (1, 2, 5, 12, 20, 39, 40, 41, 79, 80, 81, 132, 199):
        for height in (1, 2, 3, 5, 9, 10, 23, 24, 25, 40, 59):
            terminal = Size(columns, height)
            lines = fit_lines(draw_run(now, rows, "trouble", terminal, 1e9), KEYS["run"], terminal)
            assert len(lines) == height
            assert all(len(text) <= columns for text, _ in lines)


def test_the_lowest_of_a_roles_gpus_is_drawn_and_the_whole_span_is_told() -> None:
    gpus = [{"index": n, "used_bytes": (60 + n) * GIB, "total_bytes": 80 * GIB, "role": "trainer"} for n in range(2)]
    rows = [{"t": 30.0 * n, "gpu": {"0": [70 * GIB, 0, 0], "1": [0 if n == 30 else 70 * GIB, 0, 0]}} for n in range(61)]
    lines = [text for text, _ in draw_run(FakeDesk(gpus=gpus).now, rows, "", Size(), 1e9)]
    [memory] = [line for line in lines if line.startswith("trainer")]
    assert "60.0 to 61.0 of 80 GiB" in memory
    assert "lowest of 2, 10 min" in memory
    assert memory.count("▁") == 0  # the fall was 15 min ago
    rows = rows[:35]
    [memory] = [text for text, _ in draw_run(FakeDesk(gpus=gpus).now, rows, "", Size(), 1e9) if text[:7] == "trainer"]
    assert memory.count("▁") in (1, 2)


def test_what_is_not_known_has_no_mark_and_no_line() -> None:
    assert draw_sparks([None, 1.0, None, 3.0, 2.0], Size(), most=None, least=None) == " ▁ █▅"
    assert draw_sparks([5.0, 5.0], Size(blocks=False), most=None, least=None) == ASCII[4] * 2
    assert draw_sparks([float("nan")], Size(), most=None, least=None) == ""
    assert draw_sparks([90.0, -1.0], Size(), most=80.0, least=0.0) == BLOCKS[-1] + BLOCKS[0]
    nothing = {"run": "r", "state": "running", "sentence": "no step yet"}
    text = "\n".join(line for line, _ in draw_run(nothing, [], "", Size(), 1e9))
    assert "step time" not in text and "reward" not in text and "disk" in text
    assert clip_text("a漢字b", 4) == "a漢"


def test_of_a_series_only_what_was_added_is_read(tmp_path: Path) -> None:
    rows = write_series(tmp_path)
    tail = SeriesTail(tmp_path)
    assert tail.read() == rows
    path = path_of(tmp_path, 1)
    with path.open("a") as file:
        file.write('{"t": 1.0, "step": 61, "role": "trainer"}\n{"t": 2.0, "st')
    assert tail.read()[len(rows) :] == [{"t": 1.0, "step": 61, "role": "trainer"}]
    with path.open("a") as file:
        file.write('ep": 62, "role": "trainer"}\n')
    assert tail.read()[-1] == {"t": 2.0, "step": 62, "role": "trainer"}
    other = path.with_suffix(".new")  # thinned: another file of that name
    other.write_text('{"t": 3.0, "step": 63, "role": "trainer"}\n')
    other.replace(path)
    assert tail.read() == [{"t": 3.0, "step": 63, "role": "trainer"}]
    path_of(tmp_path, 2).write_text('{"t": 4.0, "step": 64, "role": "trainer"}\n')
    assert [row["step"] for row in tail.read()] == [63, 64]
    assert SeriesTail(tmp_path / "nothing").read() == []
