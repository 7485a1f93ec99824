"""Logs of plain programs, which say no steps known here: what they lived with, and where an error came from."""

from __future__ import annotations

import io

from supervisor.diagnosis.causes import Diagnosis, diagnose
from supervisor.diagnosis.scan import scan


def told(*lines: str) -> Diagnosis:
    return diagnose(scan(io.BytesIO("\n".join(lines).encode()), "eval.log"))[-1]


def timed_out() -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "/venv/lib/python3.11/site-packages/openai/_base_client.py", line 1013, in request',
        "    raise APITimeoutError(request=request) from err",
        "openai.APITimeoutError: Request timed out.",
    ]


def test_requests_that_time_out_over_pages_of_other_work_are_lived_with() -> None:
    lines: list[str] = []
    for sample in range(6):
        lines += [f"sample {sample} score 0.5"] * 150 + timed_out()
    found = told(*lines, *["sample 7 score 0.5"] * 40)
    assert found.root is None
    assert [one.name for one in found.survived] == ["connection-refused"]


def test_the_same_exception_one_after_another_is_not_lived_with() -> None:
    found = told("start", *(timed_out() * 30))
    assert found.root is not None
    assert found.root.name == "connection-refused"


def test_what_a_program_prints_in_the_middle_of_a_traceback_is_no_exception() -> None:
    ray = [
        '(Worker pid=57714)   File "/me/env.py", line 282, in extract [repeated 2x across cluster] (Ray deduplicates.)',
        "(Worker pid=57714) Error: <answer> tag not found.",
        "(Worker pid=57714) TypeError: cannot unpack non-iterable NoneType object",
    ]
    found = told("(Worker pid=57714) Traceback (most recent call last):", *ray)
    assert found.root is not None
    assert found.root.text == "TypeError: cannot unpack non-iterable NoneType object"
    assert str(found.root.own) == "/me/env.py:282 in extract"


def test_an_exception_of_a_library_is_shown_with_the_line_that_called_it() -> None:
    found = told(
        "Traceback (most recent call last):",
        '  File "/venv/lib/python3.10/site-packages/google/api_core/grpc_helpers.py", line 75, in call',
        '  File "/venv/lib/python3.10/site-packages/urllib3/connection.py", line 990, in _end_unary_response_blocking',
        "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/workspace/judge/backend.py", line 141, in _call',
        '  File "/venv/lib/python3.10/site-packages/urllib3/util/retry.py", line 77, in error_remapped_callable',
        "google.api_core.exceptions.NotFound: 404 models/judge-preview is not found",
    )
    assert found.root is not None
    assert found.root.text.startswith("grpc._channel._InactiveRpcError")
    assert str(found.root.own) == "/workspace/judge/backend.py:141 in _call"


def test_an_exception_that_was_survived_and_comes_again_in_the_middle_of_a_log_names_no_end() -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "/me/env.py", line 12, in extract',
        "ValueError: no answer",
    ]
    step = ["{'loss': 0.5, 'epoch': 0.1}"]
    found = told(*step, *raised, *step * 5, *raised, *["a long answer"] * 30)
    assert found.root is None


def test_where_it_is_the_last_thing_that_is_said_it_is_named_all_the_same() -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "/me/env.py", line 12, in extract',
        "ValueError: no answer",
    ]
    step = ["{'loss': 0.5, 'epoch': 0.1}"]
    found = told(*step, *raised, *step * 5, *raised)
    assert found.root is not None
    assert found.root.text == "ValueError: no answer"


def test_what_an_earlier_start_in_the_same_log_complained_of_is_not_told_of_the_last_one() -> None:
    lines = [
        "(APIServer pid=1) INFO 01-06 02:05:01 [api_server.py:1839] vLLM API server version 0.28.0",
        "(EngineCore pid=2) ERROR 01-06 02:05:03 [core.py:718] no Segmentation fault, but something else",
        "(APIServer pid=3) INFO 01-06 02:06:01 [api_server.py:1839] vLLM API server version 0.28.0",
    ]
    again = ["(EngineCore pid=4) ERROR 01-06 02:06:02 [core.py:718] Traceback (most recent call last):"]
    first, second, headed = (
        scan(io.BytesIO("\n".join(some).encode()), "inference.log", "inference")[0].complaint
        for some in (lines[:2], lines, lines + again)
    )
    assert first is not None
    assert first[0] == "no Segmentation fault, but something else"
    assert second is None
    assert headed is None


def test_an_exception_of_a_module_in_small_letters_ends_its_traceback() -> None:
    found = told(
        "Traceback (most recent call last):",
        '  File "/venv/lib/python3.12/socket.py", line 974, in getaddrinfo',
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    )
    assert found.root is not None
    assert found.root.name == "name-not-resolved"


def caught() -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "/venv/lib/python3.11/site-packages/math_verify/grader.py", line 801, in compare',
        "    return compare_single_extraction(g, t)",
        "TypeError: Invalid comparison of non-real I",
    ]


def test_an_exception_after_which_a_step_came_and_nothing_ended_was_caught() -> None:
    step = "{'loss': 0.0213, 'grad_norm': 0.41, 'reward': 0.44}"
    assert told(step, *caught(), step).root is None
    ended = told(step, *caught(), step, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    assert ended.root is not None
    assert "TypeError" in ended.root.text


def test_a_closed_terminal_comes_before_what_torchrun_does_about_it_where_no_times_are_told() -> None:
    for number, name in ((1, "HUP"), (15, "TERM")):
        found = told(
            f"WARNING:torch.distributed.elastic.agent.server.api:Received {number} death signal, shutting down workers",
            f"WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 4200 closing signal SIG{name}",
        )
        assert found.root is not None
        assert found.root.name == "ended-from-outside"


def test_ray_shows_where_its_worker_raised_without_the_word_traceback() -> None:
    found = told(
        "(main_task pid=17) Unhandled error: ray::WorkerDict.generate() (pid=20, ip=10.0.0.5, actor_id=d2, repr=<W>)",
        '(main_task pid=17)   File "/job/workers.py", line 79, in __enter__',
        "(main_task pid=17)     self.engine.wake_up()",
        "(main_task pid=17) KeyError: 'weights'",
    )
    assert found.root is not None
    assert found.root.text == "KeyError: 'weights'"
    assert str(found.root.own) == "/job/workers.py:79 in __enter__"


def lost_on_the_way(label: str, after: tuple[str, ...]) -> Diagnosis:
    failed = (
        "Traceback (most recent call last):",
        '  File "/workspace/tools.py", line 142, in read_section',
        '    raise ValueError("no such section")',
        "ValueError: no such section",
    )
    return told(f"{label}:  11%|█         | 7/60 [00:07<01:40, 1.9s/it]", *failed, *after)


def test_what_was_under_way_at_an_exception_and_is_done_after_it_shows_that_it_passed() -> None:
    done = "{}: 100%|██████████| 60/60 [01:50<00:20, 1.8s/it]"
    more = ("reward: avg - 0.783", "r1: [1.0, 0.0]", "Saved to outputs/evals/wiki")
    passed = lost_on_the_way("Running", (done.format("Running"), *more))
    assert passed.root is None
    assert [one.name for one in passed.survived] == ["unknown"]
    for others in (
        (done.format("[rank1]: Running"), *more),  # another process
        ("Running:  11%|█         | 7/60 [00:09<01:40, 1.9s/it]", *more),  # a bar that is only closed
        (done.format("Running"), "Traceback (most recent call last):"),  # nothing that went on
        (done.format("Running"), *more, "RuntimeError: the last one"),
    ):
        assert lost_on_the_way("Running", others).root is not None
    names = ["Running", "Loading"]
    never_begun = (done.format(names[1]), *more)
    assert lost_on_the_way(names[0], never_begun).root is not None


def test_the_sentence_names_the_module_that_is_missing() -> None:
    at = ("Traceback (most recent call last):", '  File "/workspace/a.py", line 1, in main')
    root, other = (
        told(*at, line).root for line in ("ModuleNotFoundError: No module named 'wordle'", "ImportError: no x")
    )
    assert root is not None
    assert other is not None
    assert root.name == other.name == "module-missing"
    assert root.sentence.startswith("The Python package wordle is missing")
    assert other.sentence.startswith("A Python package is missing")


def test_a_program_that_a_service_refuses_for_its_last_time_ended_of_it_beside_the_services_own_log() -> None:
    refused = "maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the messages)."
    ends = ("turn 14", "Traceback (most recent call last):", '  File "/workspace/a.py", line 1, in main')
    served = (
        f"ERROR 07-03 03:16:55 [serving_chat.py:200] ValueError: {refused}",
        "INFO 07-03 03:17:00 [loggers.py:1] x",
    )
    engine = scan(io.BytesIO("\n".join(served).encode()), "vllm.log", "inference")
    for after, failed in ((), True), (("turn 15", "turn 16", "turn 17", "turn 18"), False):
        lines = (*ends, f"openai.BadRequestError: Error code: 400 - {refused}", *after)
        root = diagnose([*engine, *scan(io.BytesIO("\n".join(lines).encode()), "agent.log")])[-1].root
        assert (root is not None) is failed
