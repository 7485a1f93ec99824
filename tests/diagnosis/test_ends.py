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
        "train.py: error: too few sprockets",
        "fatal: the sprocket is not to be found",
        "docker: Error response from daemon: the sprocket is not to be found.",
        "make: *** No targets specified and no makefile found.  Stop.",
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
    assert not found.has_named_cause  # the exit code says so


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
    for line in ("{'loss': 0.1, 'epoch': 1}", "(TaskRunner pid=5) step:NUMBER - actor/loss:0.1"):
        seen.clear()
        lines = "".join(line.replace("NUMBER", str(number + 1)) + "\n" for number in range(5000))
        (log,) = scan(io.BytesIO(lines.encode()), "job.log")
        assert log.steps["job"].count == log.steps["job"].numbers[-1] == 5000
        assert len(seen) < 400


def test_a_traceback_that_its_process_left_open_does_not_make_the_rest_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    parse = scanning.parse
    monkeypatch.setattr(scanning, "parse", lambda raw: (seen.append(raw), parse(raw))[1])
    left = behind("(Worker pid=3) ", "Traceback (most recent call last):", *FRAME)
    scan(io.BytesIO(("\n".join(left) + "\n" + "a plain line\n" * 5000).encode()), "job.log")
    assert len(seen) < 700


# ---------------------------------------------------------------- a run that went on


TORN = ["Traceback (most recent call last):", *FRAME, ODD, "failed (exitcode: 1) local_rank: 5 (pid: 951) of binary: x"]


@pytest.mark.parametrize(
    "step",
    [
        "step   NUMBER loss 2.5986 grad_norm 0.431 tps 11,902",
        "[2025-09-18 02:32:10][rank0] step NUMBER loss=0.9742 gnorm=0.693 tok/s=9543",
        " [2026-06-10 22:18:41] iteration    NUMBER/  200000 | consumed samples:     42189824 | lm loss: 3.01E+00",
        "(RolloutManager pid=3001) [2026-07-01 10:09:00] rollout NUMBER: reward 0.51 truncated_ratio 0.03",
        "(TaskRunner pid=5) step:NUMBER - global_seqlen/mean:114658.9 - actor/entropy:0.3086",
    ],
)
def test_what_came_before_more_steps_of_any_trainer_was_survived(step: str) -> None:
    steps = [step.replace("NUMBER", str(number)) for number in range(300, 340, 2)]
    assert read(*steps[:8], *TORN, *steps[5:]).root is None
    ended = read(*steps, *TORN)
    assert ended.root is not None
    assert ended.root.text == ODD


def test_a_step_without_a_time_is_not_put_behind_an_error_of_another_log() -> None:
    step = "step NUMBER loss 2.5"
    late = [step.replace("NUMBER", str(number)) for number in range(9)]
    waiting = scan(io.BytesIO("\n".join([*late, "10:20:00   ERROR all ranks wait"]).encode()), "rank0.log")
    failing = scan(io.BytesIO("\n".join(["10:10:00    INFO go", *TORN[:-1]]).encode()), "rank1.log")
    found = diagnose([*waiting, *failing])[-1]
    assert found.root is not None
    assert found.root.text == ODD


def test_an_exception_whose_message_a_warning_repeats_was_caught() -> None:
    caught = ["Traceback (most recent call last):", *FRAME, "json.decoder.JSONDecodeError: Expecting value: line 1"]
    warning = "2025-10-28 09:04:25 - env.score - WARNING - Error calling reward function f: Expecting value: line 1"
    assert read("a line", *caught, warning, "Processing: 100%").root is None
    assert read("a line", *caught).root is not None


def test_why_a_program_ended_itself_stands_above_its_exit() -> None:
    error = "2025-11-14 16:51:51 | ERROR | data.helper | Failed to compile the helper functions"
    found = read("a line", error, "Traceback (most recent call last):", *FRAME, "SystemExit: 1")
    assert found.root is not None
    assert "Failed to compile" in found.root.text


@pytest.mark.parametrize(("share", "said"), [("60.3%", "connection-error"), ("11.0%", None)])
def test_rollouts_that_fail_are_the_trouble_where_most_of_them_do(share: str, said: str | None) -> None:
    failed = [
        f"02:{minute:02d}:{second:02d} WARNING Trace failed in group 7 (swe) — ProviderError: Request timed out."
        for minute in range(10)
        for second in (5, 25, 45)
    ]
    step = f"02:10:19 SUCCESS Step 5 |  8m 40s | Reward 0.1126 | Trainable 85/1024 | Error {share} | Cancelled 0.0%"
    found = read(*failed, step, *failed[-3:], role="orchestrator", name="orchestrator.log")
    assert (found.root and found.root.name) == said


def test_the_error_with_which_another_log_ends_explains_what_only_says_that_something_failed() -> None:
    server = "usage: trl\nTRL CLI: error: argument command: invalid choice: 'vllm-serve'\nserve exited with 2\n"
    trainer = "\n".join(["W0323 11:15:20.000000 4411 torch/x.py:900] Sending process 4503 closing signal SIGTERM"])
    logs = scan(io.BytesIO(server.encode()), "serve.log") + scan(io.BytesIO(trainer.encode()), "train.log")
    found = diagnose(logs)[-1]
    assert found.root is not None
    assert "invalid choice" in found.root.text


def test_a_closed_terminal_is_said_in_words() -> None:
    found = read("WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers")
    assert found.root is not None
    assert "SSH session was closed" in found.root.sentence


# ---------------------------------------------------------------- what the run lived with

REFUSED = "httpx.ConnectError: All connection attempts failed"


def steps(first: int, last: int, told: str, more: str = "") -> str:
    """Lines of a step a minute, with ``told`` in each and ``more`` ten seconds later."""
    behind = f"2026-01-01 10:{{minute:02d}}:10 {more}\n" if more else ""
    line = f"2026-01-01 10:{{minute:02d}}:00 SUCCESS Step {{minute}} | Time: 60.00s | {told}\n{behind}"
    return "".join(line.format(minute=minute) for minute in range(first, last))


def test_an_error_that_comes_long_before_the_first_time_and_again_behind_it_is_read() -> None:
    """Its first line has no time and its last has one: only from the last are other logs' steps counted."""
    orchestrator = f"{REFUSED}\n" + "an ordinary line of this program\n" * 1000
    orchestrator += "".join(
        f"2026-01-01 10:04:{told}\n" for told in ("00 INFO Starting", f"01 ERROR {REFUSED}", "30 INFO x")
    )
    logs = scan(io.BytesIO(orchestrator.encode()), "orchestrator.log", "orchestrator")
    logs += scan(io.BytesIO(steps(5, 12, "Loss: 0.1 | Entropy: 0.2").encode()), "trainer.log", "trainer")
    found = diagnose(logs)[-1]
    assert found.root is None
    assert [cause.name for cause in found.survived] == ["connection-error"]


def test_what_makes_all_steps_worthless_is_not_also_told_as_survived() -> None:
    log = steps(5, 30, "Reward: 0.0000 | Loss: 0.1", "WARNING CUDA out of memory")
    found = diagnose(scan(io.BytesIO(log.encode()), "job.log", None))[-1]
    assert found.root is not None
    assert found.root.name == "cuda-oom"
    assert not found.survived
    assert not found.cascade
