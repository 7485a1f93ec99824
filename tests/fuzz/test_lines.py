"""Any line of a job, and any page of an engine: facts that the journal can keep and the core can count with."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor import signatures
from supervisor.config.settings import RunFile
from supervisor.core.codec import decode, encode
from supervisor.core.facts import Fact, FinishSeen, Role, StepDone
from supervisor.jobs.base import LogSource
from supervisor.jobs.plain import PlainJob
from supervisor.primerl import logs, verifiers
from supervisor.sensors import vllm_metrics
from supervisor.sensors.logs import LogSensor
from tests.fuzz.given import NUMBERS, TEXTS, dumped, junk, texts, values
from tests.fuzz.profiles import fuzzed

ROLES: tuple[Role, ...] = get_args(Role)
STEP = "12:34:56    INFO Step 41 | Time: 12.34s | Loss: 0.5 | Throughput: 1234 tokens/s"
KNOWN = (
    STEP,
    "12:34:56 SUCCESS Step 41 | Time: 1m 5s | Reward: 0.41 | Error 3.5% | Trainable 100/128 (78%)",
    "12:34:56    INFO Train batch 12/128 (9%) | 64 inflight rollouts",
    "12:34:56    INFO Saving checkpoint at step 40",
    "12:34:56    INFO Starting orchestrator step 7",
    "12:34:56 SUCCESS RL trainer finished!",
    "12:34:56    INFO Training from scratch",
    "[default0]:12:34:56    INFO Waiting for training batch to arrive",
    "(EngineCore pid=12) ERROR 01-06 03:00:12 [core.py:88] EngineCore encountered a fatal error.",
    '{"timestamp": "2026-01-06", "level": "INFO", "message": "Step 3 | Time: 4.5s | Loss: nan"}',
    " 12%|█▏        | 12/100 [00:12<01:28,  1.00it/s]",
    "{'loss': 0.1, 'reward': '0.25', 'grad_norm': 0.5}",
    "{'train_runtime': 1.0}",
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory.",
    "step 12 took 3.4 s, reward 0.5",
)
NUMERALS = (
    "1e999",
    "nan",
    "-inf",
    "9" * 30,
    "9" * 4000,
    "0" * 4000,
    "٣",
    "²",
    "१२",
    "1_000",
    "0x10",
    "-1",
    "1.2.3",
    "",
)


def plain_job() -> PlainJob:
    """A command whose expressions take what they are given."""
    line = r"step (?P<step>\S+) took (?P<duration>\S+) s, reward (?P<reward>\S+)"
    command = {"start": ["train"], "resume": ["train", "{step}"], "step_line": line, "finish_line": "all done"}
    job = {"kind": "command", "dir": "/nowhere", "output_dir": "out", "plain": command}
    return PlainJob(RunFile.model_validate({"run": {"id": "fuzz"}, "job": job}), {})


PLAIN = plain_job()
FAILURES = [line for one in logs.SIGNATURES.signatures for _, line in one.examples]


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A line that is known with other numbers, words or colours in it; or none at all."""
    line: str = draw(
        st.sampled_from(KNOWN) | st.sampled_from([e for s in logs.SIGNATURES.signatures for _, e in s.examples])
    )
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(line)))
        until = draw(st.integers(at, min(len(line), at + 8)))
        line = line[:at] + draw(st.sampled_from(NUMERALS + TEXTS) | st.text(max_size=10)) + line[until:]
    words = line.split(" ")
    if draw(st.booleans()) and any(word[:1].isdigit() for word in words):
        which = draw(st.sampled_from([n for n, word in enumerate(words) if word[:1].isdigit()]))
        unit = words[which].lstrip("0123456789.")
        words[which] = draw(st.sampled_from(NUMERALS)) + unit
    return " ".join(words)


def kept(facts: Sequence[Fact]) -> None:
    """The journal writes these down and reads the same again, and no time or count in them is endless."""
    for fact in facts:
        assert decode(json.loads(json.dumps(encode(fact)))) == fact
        assert len(json.dumps(encode(fact))) < 5000
        if isinstance(fact, StepDone):
            assert 0 <= fact.step < 10**18
            assert fact.duration_s is None or (math.isfinite(fact.duration_s) and fact.duration_s >= 0)
            assert fact.throughput is None or math.isfinite(fact.throughput)


@fuzzed(4)
@given(st.sampled_from(ROLES), lines() | texts)
@example("trainer", STEP.replace("12.34", "9" * 400))
@example("trainer", STEP.replace("0.5", "1e999"))
@example("orchestrator", KNOWN[1].replace("100/128", "0/0"))
@example("trainer", STEP.replace("41", "٣"))
def test_any_line_of_prime_rl_gives_facts_that_can_be_kept(role: Role, line: str) -> None:
    kept(logs.parse_line(role, line))


@fuzzed()
@given(st.sampled_from(ROLES), lines() | texts)
def test_any_line_of_vf_train_gives_facts_that_can_be_kept(role: Role, line: str) -> None:
    job = object.__new__(verifiers.VerifiersJob)
    job.max_steps = lambda configs=None: 100  # type: ignore[method-assign]  # the one thing that its lines are read with
    kept(job.parse_line(role, line))


@fuzzed()
@given(line=lines() | texts)
@example(line="step 5 took 1e999 s, reward nan")
@example(line="step ٣ took 1 s, reward 1")
def test_any_line_of_a_plain_command_gives_facts_that_can_be_kept(line: str) -> None:
    kept(PLAIN.parse_line("job", line))


RECORD = {"step": 7, "time/step": 12.5, "time/forward_backward": 3.0, "loss/mean": 0.5}


@fuzzed(2)
@given(st.sampled_from(sorted(RECORD)), values, st.booleans())
@example("loss/mean", 10**400, True)
@example("time/step", 10**400, False)
@example("step", 10**400, False)
@example("step", True, False)
def test_any_record_of_metrics_gives_facts_that_can_be_kept(name: str, value: Any, of_loss: bool) -> None:
    record: dict[str, Any] = {**RECORD, name: value}
    if of_loss:
        del record["time/forward_backward"]
    kept(logs.parse_metrics(record))


@fuzzed()
@given(st.lists(junk | lines().map(lambda line: line.encode("utf-8", "replace")), max_size=6), st.binary(max_size=3))
@example([b"\0" * 1_000_000, STEP.encode(), b"\xff" * 1_000_000, dumped({"step": 10**400, "loss/mean": 1e999})], b"")
def test_any_bytes_in_a_log_and_in_the_metrics_file_are_read_and_passed(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], half: bytes
) -> None:
    class Parser:
        def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
            return logs.parse_line(role, line)

        def parse_metrics(self, role: Role, record: Any) -> Sequence[Fact]:
            return logs.parse_metrics(record)

    folder = tmp_path_factory.mktemp("logs")
    for name in ("trainer.log", "metrics.jsonl"):
        (folder / name).write_bytes(
            b"\n".join([*pieces, b'{"step": 3, "time/forward_backward": 1}', STEP.encode(), half])
        )
    sources = [
        LogSource("trainer", str(folder / "trainer.log")),
        LogSource("trainer", str(folder / "metrics.jsonl"), "jsonl"),
    ]
    sensor = LogSensor(sources, Parser(), discover_s=0)
    try:
        found: list[Fact] = []
        for _ in range(60):  # looks; a look reads a bounded number of bytes, and 2 MB in each of two files are the most
            news = sensor.look()
            found += news
        kept(found)
        steps = [fact.step for fact in found if isinstance(fact, StepDone)]
        assert 3 in steps, "the record after the junk"
        assert 41 in steps, "the line after the junk"
    finally:
        sensor.close()


GOOD_PAGE = (
    b"# HELP vllm:x y\n"
    b'vllm:num_requests_running{engine="0",model_name="a"} 3.0\n'
    b'vllm:num_requests_running{engine="1",model_name="a"} 4.0\n'
    b'vllm:iteration_tokens_total_count{engine="0"} 12\n'
    b"vllm:generation_tokens_total 1.5e6\n"
)


@fuzzed(2)
@given(
    st.lists(
        st.sampled_from(GOOD_PAGE.splitlines())
        | st.builds(
            lambda name, labels, value: name + b"{" + labels + b"} " + value,
            st.sampled_from(sorted(vllm_metrics.NAMES)),
            st.binary(max_size=20) | st.just(b'engine="000000"') | st.just('engine="٣"'.encode()),
            st.sampled_from([str(number).encode() for number in NUMBERS]) | st.binary(max_size=12),
        )
        | st.binary(max_size=40),
        max_size=8,
    )
)
@example([b"vllm:num_requests_running 1e308", b"vllm:num_requests_running 1e308"])
@example([b'vllm:num_requests_running{engine="1"} 1e308'] * 2 + [b'vllm:num_requests_running{engine="2"} 1'])
def test_any_page_of_an_engine_gives_numbers_or_nothing(page: list[bytes]) -> None:
    found = vllm_metrics.parse(b"\n".join(page))
    numbers = [found.generation_tokens, found.iterations, found.running, found.waiting]
    numbers += [value for one in found.engines for value in (one.iterations, one.running, one.waiting)]
    assert all(number is None or math.isfinite(number) for number in numbers)


def test_a_line_that_imitates_a_finish_in_another_roles_file_is_none() -> None:
    line = "12:34:56 SUCCESS RL trainer finished!"
    assert any(isinstance(fact, FinishSeen) for fact in logs.parse_line("trainer", line))
    for role in ROLES:
        if role != "trainer":
            assert not any(isinstance(fact, FinishSeen) for fact in logs.parse_line(role, line))
    assert signatures.any_job().match("job", line) is None
