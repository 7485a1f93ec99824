"""What a log ends with counts where nothing else explains the end; and who wrote it, whatever stands before it."""

from __future__ import annotations

import io

import pytest

from supervisor.core.facts import Role
from supervisor.diagnosis import scan as scanning
from supervisor.diagnosis.causes import Diagnosis, diagnose
from supervisor.diagnosis.scan import scan
from supervisor.diagnosis.telling import text

FRAME = ['  File "/x/y.py", line 3, in f', "    go()"]
ODD = "ValueError: an odd thing"


def read(*lines: str, role: Role | None = None, name: str = "job.log", end: str = "\n") -> Diagnosis:
    return diagnose(scan(io.BytesIO(("\n".join(lines) + end).encode()), name, role))[-1]


def behind(prefix: str, *lines: str) -> list[str]:
    return [f"{prefix}{line}" for line in lines]


# ---------------------------------------------------------------- no silence


@pytest.mark.parametrize(
    "lines",
    [
        ["INFO 06-26 23:10:02 [loggers.py:116] Engine 000", f"ERROR 06-26 23:10:17 [core.py:396] {ODD}"],
        [*behind("(EngineCore_DP0 pid=1) ", *FRAME, ODD), "INFO 06-26 23:10:18 [launcher.py:1] Shutting down"],
        [*behind("[rank1]: ", *FRAME, ODD), "wandb: Find logs at: wandb/run-1/logs"],
        behind("(pid=16406) ", "Traceback (most recent call last):", *FRAME, ODD),
        behind("(ServeReplica:app:my-vLLM pid=16406) ", "Traceback (most recent call last):", *FRAME, ODD),
        behind("(vllm-test, pid=2150) (EngineCore_0 pid=3966) ", "Traceback (most recent call last):", *FRAME, ODD),
        ["│ ❱  88 │   │   mask = batch['mask'] │", "╰──────╯", ODD, "failed (exitcode: 1) local_rank: 0 (pid: 7) of x"],
    ],
    ids=["level", "no head", "rank", "ray", "serve", "two names", "a box without its top"],
)
def test_an_exception_without_the_beginning_of_its_traceback_is_named(lines: list[str]) -> None:
    found = read(*lines)
    assert found.root is not None
    assert found.root.text == ODD


@pytest.mark.parametrize(
    "line",
    [
        "10:00:02   ERROR The sprocket broke: none left",
        "[2025-03-01 10:00:00,111] [ERROR] [trainer.py:12:main] The sprocket broke",
        "train.py: error: unrecognized arguments: --sprocket",
        "fatal: could not read Username for 'https://host': No such device or address",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        "python: ../csrc/x.cu:12: void f(): Assertion `sprocket > 0' failed.",
    ],
)
def test_an_error_of_no_known_kind_with_which_a_log_ends_is_shown(line: str) -> None:
    logs = scan(io.BytesIO(f"10:00:00    INFO Starting\n{line}\n".encode()), "job.log")
    (found,) = diagnose(logs)
    assert found.root is not None
    said = text([found], logs)
    assert said.startswith(("Root cause: an error (unknown)\n", "Root cause: ")), said
    assert line[-30:] in said
    assert not found.named  # the exit code says so


@pytest.mark.parametrize(
    "after",
    [
        "10:00:03    INFO Waiting for batch",
        "10:00:03 SUCCESS Step 3 | Time: 1.0s | Reward: 0.1",
        "{'loss': 0.1, 'epoch': 1}",
    ],
)
def test_it_is_no_end_where_the_program_goes_on(after: str) -> None:
    assert read("10:00:02   ERROR The sprocket broke", after).root is None


def test_a_trainer_that_made_steps_lives_on_with_what_it_logs() -> None:
    assert read("{'loss': 0.1, 'epoch': 1}", "10:00:02   ERROR A sample was not logged").root is None


def test_it_is_no_end_where_another_log_goes_on() -> None:
    one = scan(io.BytesIO(b"10:00:02   ERROR The sprocket broke\n"), "a.log")
    other = scan(io.BytesIO(b"10:00:00    INFO a\n10:09:00    INFO b\n"), "b.log")
    assert diagnose([*one, *other])[-1].root is None
    other = scan(io.BytesIO(b"10:00:00    INFO a\n10:01:00    INFO b\n"), "b.log")
    assert diagnose([*one, *other])[-1].root is not None


# ---------------------------------------------------------------- who ended it


@pytest.mark.parametrize(
    ("code", "name"),
    [(-9, "killed"), (-7, "bus-error"), (-11, "segfault"), (-6, "aborted"), (-8, "instruction-failed")],
)
def test_the_exit_code_stands_behind_a_command_of_any_length(code: int, name: str) -> None:
    command = str(["/usr/bin/python3", *["--option", "value"] * 120])
    line = (
        f"[2025-03-07 23:56:42,103] [ERROR] [launch.py:325:sigkill_handler] {command} exits with return code = {code}"
    )
    found = read(line)
    assert found.root is not None
    assert found.root.name == name


def test_a_bare_assertion_is_told_with_its_code() -> None:
    lines = ["Traceback (most recent call last):", '  File "/x/site-packages/vllm/core/s.py", line 3, in f']
    found = read(*lines, "    assert tokens > 0", "           ^^^^^^^^^^", "AssertionError")
    assert found.root is not None
    assert found.root.text == "AssertionError: assert tokens > 0"
    assert "raised inside vllm" in found.root.remedy
    found = read(*lines, "    assert tokens > 0, why", "AssertionError: no tokens")
    assert found.root is not None
    assert found.root.text == "AssertionError: no tokens"


# ---------------------------------------------------------------- times, joined texts, much text


def test_steps_of_a_log_of_other_hours_do_not_show_that_a_run_went_on() -> None:
    died = [f"2026-01-06T03:0{n}:00+0000 pod rl[4]: INFO sample" for n in range(5)]
    died += behind("2026-01-06T03:05:00+0000 pod rl[4]: ", "Traceback (most recent call last):", *FRAME, ODD)
    steps = "2026-01-06T08:0{n}:00+0200 pod rl[5]: 08:0{n}:00 SUCCESS Step {n} | Time: 1.00s | Reward: 0.3"
    one = scan(io.BytesIO("\n".join(died).encode()), "a.log")
    other = scan(
        io.BytesIO("\n".join(steps.format(n=n) for n in range(9)).encode()), "orchestrator.log", "orchestrator"
    )
    found = diagnose([*one, *other])[-1]
    assert found.root is not None
    assert found.root.text == ODD


def test_a_joined_text_may_be_cut_too() -> None:
    lines = ["==> a.log <==", "10:00:00    INFO a", "==> b.log <==", "Traceback (most recent call last):", *FRAME, ODD]
    found = read(*lines, end="")
    assert found.root is not None
    assert any("no line end" in note for note in found.root.notes)


def test_steps_of_other_trainers_are_counted_though_not_each_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    parse = scanning.parse
    monkeypatch.setattr(scanning, "parse", lambda raw: (seen.append(raw), parse(raw))[1])
    for line in ("{'loss': 0.1, 'epoch': 1}", "(TaskRunner pid=5) step:7 - actor/loss:0.1"):
        seen.clear()
        (log,) = scan(io.BytesIO(f"{line}\n".encode() * 5000), "job.log")
        assert log.steps["job"].count == log.steps["job"].numbers[-1] == 5000
        assert len(seen) < 400


def test_a_traceback_that_its_process_left_open_does_not_make_the_rest_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    parse = scanning.parse
    monkeypatch.setattr(scanning, "parse", lambda raw: (seen.append(raw), parse(raw))[1])
    left = behind("(Worker pid=3) ", "Traceback (most recent call last):", *FRAME)
    scan(io.BytesIO(("\n".join(left) + "\n" + "a plain line\n" * 5000).encode()), "job.log")
    assert len(seen) < 700
