"""An error that a healthy run may have, too, ends a program all the same when it is the last thing that it wrote."""

# ruff: noqa: E501, ISC004 (lines of logs stay whole)

from __future__ import annotations

import io

import pytest

from supervisor.core.facts import Role
from supervisor.diagnosis.causes import Diagnosis, diagnose
from supervisor.diagnosis.scan import LINE_BYTES, scan
from supervisor.diagnosis.telling import text
from supervisor.primerl.logs import SIGNATURES
from supervisor.signatures.registry import Signature

OF_WANDB = [
    "Traceback (most recent call last):",
    '  File "/app/.venv/lib/python3.12/site-packages/wandb/sdk/wandb_init.py", line 1002, in init',
    "    result = wait_with_progress(",
    '  File "/app/.venv/lib/python3.12/site-packages/wandb/sdk/mailbox/mailbox_handle.py", line 122, in wait_async',
    "    raise TimeoutError",
    "TimeoutError",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    '  File "/app/src/prime_rl/utils/monitor/wandb.py", line 61, in __init__',
    "    self.wandb = wandb.init(",
    '  File "/app/.venv/lib/python3.12/site-packages/wandb/sdk/wandb_init.py", line 1030, in init',
    "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.",
]
LAST = {
    "wandb-unreachable": "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.",
    "tool-parser-off": "openai.BadRequestError: Error code: 400 - {'error': {'message': '\"auto\" tool choice requires "
    "--enable-auto-tool-choice and --tool-call-parser to be set', 'type': 'BadRequestError', 'code': 400}}",
    "prompt-too-long": "openai.BadRequestError: Error code: 400 - {'object': 'error', 'message': \"This model's maximum "
    'context length is 4096 tokens. However, your request has 5000 input tokens."}',
    "connection-refused": "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end "
    "closed connection without response'))",
    "hub-rate-limited": "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
    "https://huggingface.co/owner/model/resolve/main/config.json",
    "name-not-resolved": "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    "loss-not-finite": "AssertionError: loss is NaN at step 12",
    "connection-refused, too": "http.client.RemoteDisconnected: Remote end closed connection without response",
    "judge-refused": "openai.RateLimitError: Error code: 429 - {'error': {'message': 'Rate limit reached'}}",
}
OF_ENGINE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
AFTER = {
    "nothing": [],
    "what W&B says at an exit": [
        "wandb: You can sync this run to the cloud by running:",
        "wandb: wandb sync /app/wandb/offline-run-20260106_030000-x1",
        "wandb: Find logs at: ./wandb/offline-run-20260106_030000-x1/logs",
    ],
    "Python's own at an exit": [
        "Exception ignored in: <function Connection.__del__ at 0x7f>",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.12/multiprocessing/connection.py", line 133, in __del__',
        "TypeError: 'NoneType' object is not callable",
        "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be "
        "1 leaked semaphore objects to clean up at shutdown",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ],
    "torch's warning": [
        "[rank0]:[W106 03:00:12.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called",
    ],
}


def read(name: str, role: Role | None, *lines: str) -> Diagnosis:
    return diagnose(scan(io.BytesIO("\n".join(lines).encode()), name, role))[-1]


def raised(last: str, function: str = "main") -> list[str]:
    return ["Traceback (most recent call last):", f'  File "/app/run.py", line 12, in {function}', last]


@pytest.mark.parametrize(
    ("name", "role"),
    [("out.txt", None), ("trainer.log", "trainer"), ("orchestrator.log", "orchestrator"), ("job.log", "launcher"),
     ("job.log", "job")],
)  # fmt: skip
def test_fourteen_lines_that_end_with_a_time_out_of_wandb_are_no_healthy_log(name: str, role: Role | None) -> None:
    found = read(name, role, *OF_WANDB)
    assert found.root is not None
    assert found.root.name == "wandb-unreachable"
    assert found.outcome == "failed"


@pytest.mark.parametrize("after", AFTER.values(), ids=list(AFTER))
@pytest.mark.parametrize(("name", "last"), LAST.items(), ids=list(LAST))
def test_the_last_thing_that_a_program_wrote_ended_it(name: str, last: str, after: list[str]) -> None:
    for role in (None, "trainer"):
        found = read("train.log", role, "loading the data", *raised(last), *after)  # type: ignore[arg-type]
        assert found.root is not None, (role, last)
        assert found.root.name == name.partition(",")[0]


@pytest.mark.parametrize("signature", [one for one in SIGNATURES.signatures if one.mild], ids=lambda one: one.name)
def test_each_mild_error_that_can_be_an_exception_ends_a_program_with_its_last_line(signature: Signature) -> None:
    for role, example in signature.examples:
        kind = example.partition(":")[0]
        if not kind.endswith(("Error", "Exception")) or " " in kind or role == "inference":
            continue
        found = read(f"{role}.log", role, *raised(example))
        assert found.root is not None, example
        assert found.root.name == signature.name


@pytest.mark.parametrize(("name", "last"), LAST.items(), ids=list(LAST))
def test_the_same_is_silent_where_the_program_goes_on(name: str, last: str) -> None:
    lines = ["start", *raised(last), *(f"sample {n} score 0.5" for n in range(10))]
    assert read("out.txt", None, *lines).root is None
    lines = ["start", *raised(last), "03:00:12    INFO Waiting for training batch to arrive"]
    assert read("trainer.log", "trainer", *lines).root is None


def test_a_line_of_a_logger_at_the_end_of_a_living_orchestrator_is_no_end() -> None:
    line = "03:00:12   ERROR Rollout failed: APIConnectionError('Connection error.')"
    assert read("orchestrator.log", "orchestrator", line).root is None


def test_a_server_that_refused_a_request_lives_on_though_it_said_nothing_since() -> None:
    begun = [
        "(APIServer pid=1) INFO 01-06 02:05:01 [api_server.py:1839] vLLM API server version 0.14.0",
        "(APIServer pid=1) INFO:     Application startup complete.",
    ]
    refused = [
        "(APIServer pid=1) ERROR:    Exception in ASGI application",
        *(f"(APIServer pid=1) {line}" for line in raised(f"ValueError: {LAST['prompt-too-long'][60:]}")),
    ]
    assert read("inference.log", "inference", *begun, *refused).root is None
    assert read("out.txt", None, *begun, *refused).root is None


def test_a_server_that_never_came_up_ended_with_what_it_said_last() -> None:
    begun = "(APIServer pid=1) INFO 01-06 02:05:01 [api_server.py:1839] vLLM API server version 0.14.0"
    found = read("inference.log", "inference", begun, *(f"(APIServer pid=1) {one}" for one in raised(
        LAST["hub-rate-limited"])))  # fmt: skip
    assert found.root is not None
    assert found.root.name == "hub-rate-limited"


def test_what_torchrun_only_noticed_is_not_the_root_of_a_rank_that_ended_with_a_mild_error() -> None:
    found = read(
        "trainer.log",
        "trainer",
        *(f"[trainer{rank}]:{line}" for rank in range(2) for line in raised(LAST["wandb-unreachable"])),
        "E0106 03:00:12.123000 4200 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
        "local_rank: 0 (pid: 4242) of binary: /app/.venv/bin/python3",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    )
    assert found.root is not None
    assert found.root.name == "wandb-unreachable"
    assert [one.name for one in found.cascade] == ["child-failed"]


def test_an_engine_that_could_not_load_its_model_names_the_hub_and_not_the_engine() -> None:
    lines = [
        "(EngineCore_DP0 pid=2) ERROR 01-06 02:05:01 [core.py:842] EngineCore failed to start.",
        *(
            f"(EngineCore_DP0 pid=2) ERROR 01-06 02:05:01 [core.py:842] {one}"
            for one in raised(LAST["hub-rate-limited"])
        ),
        *(f"(APIServer pid=1) {one}" for one in raised(OF_ENGINE)),
    ]
    found = read("inference.log", "inference", *lines)
    assert found.root is not None
    assert found.root.name == "hub-rate-limited"


def test_the_terminal_of_a_launcher_alone_names_what_its_part_ended_with() -> None:
    found = read(
        "job.log",
        "launcher",
        "02:00:00    INFO Starting RL run",
        *(f"[trainer0]:{line}" for line in OF_WANDB),
        "02:02:00   ERROR Error: Trainer failed with exit code 1",
        "02:02:00   ERROR Terminating all processes...",
    )
    assert found.root is not None
    assert found.root.name == "wandb-unreachable"


def test_of_logs_that_stand_in_one_file_each_has_last_words_of_its_own() -> None:
    whole = ["==> trainer.log <==", *OF_WANDB, "", "==> orchestrator.log <==", "03:00:12    INFO Waiting"]
    found = read("all.txt", None, *whole, *["03:00:12    INFO Waiting"] * 200)
    assert found.root is not None
    assert (found.root.name, found.root.first.line) == ("wandb-unreachable", 15)
    handled = [*OF_WANDB, *["working"] * 10]
    assert read("all.txt", None, "==> a.txt <==", *handled, "==> b.txt <==", *["working"] * 10).root is None


def test_last_words_are_found_across_the_pieces_that_a_log_is_read_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.diagnosis.scan.BLOCK_BYTES", LINE_BYTES)  # the least that it may be
    for shift in range(-200, 200, 7):
        lines = ["x" * 99] * ((LINE_BYTES + shift) // 100)
        found = read("out.txt", None, *lines, *OF_WANDB, *AFTER["what W&B says at an exit"])
        assert found.root is not None, shift
        assert found.root.first.line == len(lines) + len(OF_WANDB)


def test_an_exception_whose_traceback_is_not_there_is_no_silence() -> None:
    found = read("out.txt", None, "loading", "my.lib.OddError: no answer", "wandb: Find logs at: ./wandb")
    assert found.root is not None
    assert (found.root.text, found.root.first.line) == ("my.lib.OddError: no answer", 2)
    for lines in (
        ["OddError: no answer", *["sample 1"] * 5],
        ["OddError: no", "03:00:12    INFO Waiting"],
        ["Error: x", "the next sample"],
        ["0 errors, 12 passed"],
        ["fetch failed: retrying in 5 s"],
        ["assistant: I cannot do that"],
        ["Finished with exit code 0"],
    ):
        assert read("out.txt", None, *lines).root is None


@pytest.mark.parametrize(
    "line",
    [
        "cp: cannot stat '/data/x': No such file or directory",
        "Job 4242 on cluster h100 FAILED",
        "Training failed.",
        "Error: x",
        "State: OUT_OF_MEMORY (exit code 0)",
        "trainer ended with return code 3",
        "curl: (6) Could not resolve host: github.com",
        "srun: error: gpu-12: tasks 0-7: Exited with exit code 1",
        "E: Sub-process /usr/bin/dpkg returned an error code (1)",
    ],
)
def test_a_last_line_that_says_in_any_words_that_something_failed_is_no_silence(line: str) -> None:
    for before in ("loading", "{'loss': 0.1, 'epoch': 1}"):
        found = read("out.txt", None, before, line)
        assert found.root is not None
        assert found.root.text.endswith(line[-20:])


def test_an_error_that_is_often_survived_is_told_with_its_remedy_where_the_log_ends_near_it() -> None:
    lines = [
        "10:00:00    INFO Starting",
        "10:00:05   ERROR socket.gaierror: [Errno -3] Temporary failure in name resolution",
    ]
    logs = scan(
        io.BytesIO("\n".join([*lines, "10:00:06    INFO Waiting"]).encode()), "orchestrator.log", "orchestrator"
    )
    found = diagnose(logs)
    assert found[-1].root is None
    said = text(found, logs)
    assert said.startswith("The log ends near an error that runs often survive: name-not-resolved\n")
    assert "If the run ended there: getent hosts NAME" in said
    logs = scan(io.BytesIO("\n".join([*lines, *["10:00:06    INFO Waiting"] * 20]).encode()), "o.log", "orchestrator")
    assert text(diagnose(logs), logs).startswith("Nothing here says that anything failed.")


def test_an_environment_server_that_logs_seldom_did_not_survive_what_ended_it() -> None:
    steps = [f"03:10:{n:02d} SUCCESS Step {n} | Time: 1.00s | Reward: 0.3" for n in range(1, 30)]
    own = [
        "2026-08-18 03:00:01,123 - verifiers.serve.server - INFO - started",
        *raised("OSError: [Errno 24] Too many open files"),
    ]
    stop = ["03:10:40   ERROR Error: Train env server math (hard) failed with exit code 1"]
    logs: list[tuple[str, Role, list[str]]] = [
        ("rl.log", "launcher", stop),
        ("orchestrator.log", "orchestrator", steps),
        ("envs/train/Math (hard).log", "env", own),
        ("envs/train/other.log", "env", [own[0], *raised("ValueError: it is handled")]),
    ]
    found = diagnose([log for name, role, lines in logs for log in scan(_stream(lines), name, role)])[-1]
    assert found.root is not None
    assert (found.root.name, found.root.first.file) == ("too-many-files", "envs/train/Math (hard).log")


def test_the_death_of_the_router_before_the_engine_is_no_silence() -> None:
    found = read(
        "inference.log",
        "inference",
        "03:00:01    INFO Starting router on http://0.0.0.0:8000/v1 (engine on port 8100)",
        "(APIServer pid=1) INFO 08-18 03:02:01 [loggers.py:236] Engine 000: Avg generation throughput: 9.0 tokens/s",
        "03:10:30   ERROR Router exited with code -11 - shutting down",
        "(APIServer pid=1) INFO 08-18 03:10:31 [launcher.py:110] Shutting down FastAPI HTTP server.",
        "(APIServer pid=1) INFO 08-18 03:10:32 [launcher.py:111] Application shutdown complete.",
    )
    assert found.root is not None
    assert found.root.name == "router-gone"


def _stream(lines: list[str]) -> io.BytesIO:
    return io.BytesIO("\n".join(lines).encode())


def test_two_parts_that_wait_for_each_other_are_said_as_a_hint_and_accuse_nothing() -> None:
    trainer = [
        "18:20:29    INFO Starting training loop (max_steps=500)",
        "18:20:30    INFO Waiting for training batch to arrive",
    ]
    orchestrator = ["18:20:31    INFO Starting orchestrator", "18:22:00    INFO Waiting for weight checkpoint 1"]
    logs = scan(io.BytesIO("\n".join(trainer).encode()), "trainer.log", "trainer")
    logs += scan(io.BytesIO("\n".join(orchestrator).encode()), "orchestrator.log", "orchestrator")
    found = diagnose(logs)
    assert found[-1].root is None
    assert "neither can go on. Compare the folders that they share" in " ".join(text(found, logs).split())


@pytest.mark.parametrize(("level", "steps", "root"), [("DEBUG", 2, "stands-still"), ("INFO", 2, ""), ("DEBUG", 1, "")])
def test_a_trainer_that_would_tell_of_a_batch_and_waits_for_what_is_made_waits_in_vain(
    level: str, steps: int, root: str
) -> None:
    """At INFO it may have taken the batch: nothing of it is said then. One step may be on its way."""
    orchestrator = ["23:51:51    INFO Starting orchestrator loop (max_steps=20)"]
    orchestrator += [f"23:52:0{step} SUCCESS Step {step} | Time: 9.31s | Reward: 0.14" for step in range(steps)]
    orchestrator += ["23:52:08    INFO Orchestrator paused: waiting for trainer process to complete checkpoint 1."]
    trainer = f"23:51:37 {level:>7} Waiting for training batch to arrive"
    logs = scan(_stream([trainer]), "trainer.log", "trainer")
    logs += scan(_stream(orchestrator), "orchestrator.log", "orchestrator")
    found = diagnose(logs)[-1].root
    assert (found.name if found else "") == root


@pytest.mark.parametrize(("minutes", "root"), [((4, 6, 9), "event-loop-busy"), ((4, 6, 5), ""), ((4, 5, 6), "")])
def test_what_is_said_at_each_step_while_each_takes_much_longer_is_the_reason(
    minutes: tuple[int, ...], root: str
) -> None:
    lines, at = [], 0
    for step, took in enumerate((1, *minutes)):
        at += took
        clock = f"11:{at:02}:00"
        lines.append(f"{clock} WARNING Detected busy event loop. Measured 188.2s (max=431.9s) event loop lag")
        lines.append(f"{clock} SUCCESS Step {step} | Time: {took * 60}.31s | Reward: 0.21{step}")
    found = diagnose(scan(_stream(lines), "orchestrator.log", "orchestrator"))[-1].root
    assert (found.name if found else "") == root


def test_the_line_of_code_that_raised_is_shown() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/workspace/train.py", line 276, in train',
        "    trainer.create_model_card(**kwargs)",
        '  File "/opt/venv/lib/python3.12/site-packages/transformers/modelcard.py", line 700, in from_trainer',
        "    metadata = one_dataset[0]",
        "               ~~~~~~~~~~~^^^",
        "IndexError: list index out of range",
    ]
    logs = scan(io.BytesIO("\n".join(lines).encode()), "train.log")
    said = text(diagnose(logs), logs)
    assert "raised at: /workspace/train.py:276 in train\n    trainer.create_model_card(**kwargs)" in said


def test_what_a_part_that_stands_still_said_of_it_goes_before_the_line_that_it_repeats() -> None:
    """Ray's word comes from healthy jobs, too: only the wait that it was said in makes it the reason."""
    waits = [
        f"2026-01-27 20:{minute}:00 - INFO - Waiting for placement group to be scheduled" for minute in range(10, 50)
    ]
    ray = "(autoscaler +5m12s) Warning: The following resource request cannot be scheduled right now: {'CPU': 60.0}."
    said, silent = read("job.out", None, *waits[:9], ray, *waits[9:]), read("job.out", None, *waits)
    assert said.root is not None
    assert silent.root is not None
    assert (said.root.name, silent.root.name) == ("ray-waits-for-resources", "stands-still")
    assert not said.survived
    steps = [f"2026-01-27 20:{minute}:30 - INFO - step {minute} reward 0.5 loss 0.1" for minute in range(50, 60)]
    assert read("job.out", None, *waits[:9], ray, *waits[9:], *steps).root is None
