"""Log lines: golden ones of each era, with colours, prefixes and JSON, and lines that only look like them.

Golden lines are made from the format strings at the commits named, with values put in; the colour codes are loguru's.
"""

# ruff: noqa: E501 (golden lines stay whole)

from __future__ import annotations

import glob
import json
import math
import time
from pathlib import Path

import pytest

from supervisor.core.facts import ErrorSeen, Fact, FinishSeen, FreshStartSeen, PhaseSeen, Role, StepDone, WorkSeen
from supervisor.daemon.person_process import first_component
from supervisor.journal.attempt_folders import own_files
from supervisor.primerl.logs import SIGNATURES, duration, parse_line, parse_metrics
from tests.primerl.eras import ERAS
from tests.primerl.helpers import job_of


def coloured(level: str, message: str, at: str = "07:26:12") -> str:
    """A line as loguru writes it, colours forced (utils/logger.py; bytes seen at be0e3d131)."""
    return f"\x1b[2m{at}\x1b[0m \x1b[32m\x1b[1m{level:>7}\x1b[0m \x1b[32m\x1b[1m\x1b[22m{message}\x1b[0m\x1b[0m"


TRAINER_STEPS = [
    (
        "ceb60c03f",
        (
            "Step 12 | Time: 42.17s | Loss: 0.0123 | Entropy: 0.4412 | Importance Ratio: 1.0003 | Grad. Norm: 0.1200 | "
            "LR: 1.00e-06 | Throughput: 8123 tokens/s | MFU: 21.4%"
        ),
        StepDone("trainer", 12, 42.17, loss=0.0123, throughput=8123.0),
    ),
    (
        "be0e3d131",
        (
            "Step 80 | Time: 212.05s | Loss: -0.0021 | Entropy: 0.3871 | Mismatch KL: 0.0007 | Grad. Norm: 0.0912 | "
            "LR: 1.00e-05 | Throughput: 4410 tokens/s | MFU: 12.9% | Peak Mem.: 61.2 GiB | Max Vio: 0.0100"
        ),
        StepDone("trainer", 80, 212.05, loss=-0.0021, throughput=4410.0),
    ),
    (
        "38494ccb4",
        (
            "Step 3 |     45s | Loss 0.0010 | Entropy 0.3000 | Mismatch KL 0.0001 | Grad. Norm 0.1000 | LR 1.00e-06 | "
            "Throughput 9000 tokens/s | MFU 20.0% | Peak Mem. 60.0 GiB"
        ),
        StepDone("trainer", 3, 45.0, loss=0.001, throughput=9000.0),
    ),
    (
        "38494ccb4",
        "Step 4 |   1m 5s | Loss nan | Entropy 0.3 | LR 1.00e-06",
        StepDone("trainer", 4, 65.0, loss=math.nan),
    ),
    (
        "559b44772",
        "Step 5 |      5m | Loss 0.2000 | Entropy 0.3 | LR 1.00e-06",
        StepDone("trainer", 5, 300.0, loss=0.2),
    ),
    ("559b44772", "Step 6 |   850ms | Loss 0.2000 | Entropy 0.3", StepDone("trainer", 6, 0.85, loss=0.2)),
    (
        "be0e3d131 (sft)",
        "Step 7 | Time: 3.10s | Loss: 1.9000 | Grad. Norm: 0.5 | LR: 1.00e-05 | Throughput: 1 tokens/s",
        StepDone("trainer", 7, 3.1, loss=1.9, throughput=1.0),
    ),
]
ORCHESTRATOR_STEPS = [
    (
        "ceb60c03f",
        "Step 12 | Time: 40.00s | Reward: 0.4100 | Throughput: 900.1 tokens/s | Seq. Length: 512.0 tokens/sample",
        StepDone("orchestrator", 12, 40.0, 0.41),
    ),
    (
        "be0e3d131",
        (
            "Step 80 | Time: 212.00s | Reward: 0.4123 | Val. Reward: 0.3000 | Throughput: 900.1 tokens/s | "
            "Seq. Length: 512.0 tokens/sample | Async Level: 2 | Max. Off-Policy Level: 1"
        ),
        StepDone("orchestrator", 80, 212.0, 0.4123),
    ),
    (
        "559b44772",
        (
            "Step 81 |  3m 32s | Reward 0.5000 | Trainable 120/128 (93.8%) | Turns 3.1 | Branches 1.0 | Max Off-Policy 2 | "
            "Error 0.0% | Cancelled 0.0% | Truncation 1.0%"
        ),
        StepDone("orchestrator", 81, 212.0, 0.5, error_rate=0.0, trainable=120 / 128),
    ),
    (
        "38494ccb4",
        (
            "Step 82 |  3m 32s | Reward 0.0000 | Trainable 0/128 (0.0%) | Turns 3.1 | Max Off-Policy 2 | "
            "Error 100.0% | Truncation 1.0%"
        ),
        StepDone("orchestrator", 82, 212.0, 0.0, error_rate=1.0, trainable=0.0),
    ),
    (
        "559b44772 (nothing came in)",
        "Step 83 |  3m 32s | Reward nan | Trainable 0/0 (0.0%) | Turns nan | Error nan% | Cancelled nan%",
        StepDone("orchestrator", 83, 212.0, math.nan),
    ),
]


@pytest.mark.parametrize(("commit", "message", "fact"), TRAINER_STEPS + ORCHESTRATOR_STEPS)
@pytest.mark.parametrize("prefix", ["", "[default0]:", "[trainer0]:"])
def test_step_lines_of_each_era(commit: str, message: str, fact: StepDone, prefix: str) -> None:
    assert parse_line(fact.role, prefix + coloured("SUCCESS", message)) == [fact]
    assert parse_line(fact.role, f"{prefix}07:26:12 SUCCESS {message} [train.py::350]\n") == [fact]


def test_a_step_in_json_mode() -> None:
    line = json.dumps(
        {
            "timestamp": "2026-06-22T07:26:12+00:00",
            "level": "SUCCESS",
            "message": TRAINER_STEPS[2][1],
            "module": "train",
            "function": "train",
            "line": 603,
        }
    )
    assert parse_line("trainer", line) == [StepDone("trainer", 3, 45.0, loss=0.001, throughput=9000.0)]
    assert parse_line("trainer", "[trainer0]:" + line) == [StepDone("trainer", 3, 45.0, loss=0.001, throughput=9000.0)]
    assert parse_line("trainer", line[:-5]) == []


@pytest.mark.parametrize("prefix", ["", "[trainer0]:"])
def test_a_colour_that_json_escapes_in_the_middle_of_a_word_hides_no_error(prefix: str) -> None:
    def parse(role: Role, message: str) -> list[Fact]:
        return parse_line(role, prefix + json.dumps({"timestamp": "now", "level": "ERROR", "message": message}))

    tried = 0
    for signature in SIGNATURES.signatures:
        for role, message in signature.examples[:1]:
            for word in [word for word in signature.words if word in message][:1]:
                plain = message + " CUDA out of memory"  # words of another signature stand there as they are
                hidden = plain.replace(word, f"{word[:2]}\x1b[31m{word[2:]}")
                assert parse(role, hidden) == parse(role, plain), signature.name
                tried += 1
    assert tried > 300


@pytest.mark.parametrize(
    "line",
    [
        "Step 99 | Time: 1.00s | Loss: 0.1",  # no time and level: model output, not a logger's line
        "07:26:12    INFO completion: Step 99 | Time: 1.00s | Loss: 0.1",  # not at the message's beginning
        "07:26:12 SUCCESS step 99 | Time: 1.00s | Loss: 0.1",
        "07:26:12 SUCCESS Step 99 | Time: soon | Loss: 0.1",
        "07:26:12 SUCCESS Step 99999999999999 | Time: 1.00s | Loss: 0.1",
        '{"message": "Step 99 | Time: 1.00s | Loss: 0.1", "level": "SUCCESS"}',  # no timestamp: not the logger's JSON
        '{"text": "07:26:12 SUCCESS Step 99 | Time: 1.00s | Loss: 0.1"}',
        "07:26:12   DEBUG Micro Step 9/16 | Loss: 0.1 | Entropy: 0.2",
        "2026-01-06 07:26:12 SUCCESS Step 99 | Time: 1.00s | Loss: 0.1",
    ],
)
def test_lines_that_only_look_like_a_step_are_none(line: str) -> None:
    assert parse_line("trainer", line) == []


@pytest.mark.parametrize("role", ["launcher", "inference", "env", "orchestrator"])
def test_a_trainers_step_in_another_roles_file_is_none(role: Role) -> None:
    # The launcher's output repeats the trainer's log (`tail -F`), and environments print what models write.
    assert parse_line(role, coloured("SUCCESS", TRAINER_STEPS[1][1])) == []


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("trainer", "RL trainer finished!"),
        ("orchestrator", "Orchestrator finished."),
        ("launcher", "RL training finished!"),
        ("trainer", "SFT trainer finished!"),
        ("launcher", "SFT training finished!"),
    ],
)
def test_the_end_counts_from_the_role_that_says_it_and_in_its_own_words(role: Role, message: str) -> None:
    assert parse_line(role, coloured("SUCCESS", message)) == [FinishSeen(role, message)]
    assert parse_line(role, f"07:26:12 SUCCESS {message} [rl.py::812]")[0].__class__ is FinishSeen
    assert parse_line("env", coloured("SUCCESS", message)) == []
    assert parse_line(role, message) == []
    assert parse_line(role, coloured("INFO", f"The model wrote: {message}")) == []
    assert parse_line(role, coloured("INFO", f"{message} Or not.")) == []


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("orchestrator", "Training from scratch. Resetting weights to base model"),
        ("orchestrator", "Training from scratch"),
        ("launcher", "Training from scratch, cleaning any stale rollouts and broadcasts"),
        ("trainer", "No checkpoints found in outputs/checkpoints. Starting from scratch."),
    ],
)
def test_a_start_from_scratch_raises_the_alarm(role: Role, message: str) -> None:
    assert parse_line(role, coloured("WARNING", message)) == [FreshStartSeen(role, message)]
    assert parse_line("env", coloured("WARNING", message)) == []


@pytest.mark.parametrize(
    ("role", "message", "phase", "step"),
    [
        ("trainer", "Starting RL trainer in World(size=1)", "startup", None),
        ("trainer", "Resuming training from checkpoint step 40", "startup", 40),
        ("orchestrator", "Resuming training from checkpoint step `40`", "startup", 40),  # ceb60c03f
        ("orchestrator", "Resuming orchestrator from checkpoint step 40", "startup", 40),
        ("orchestrator", "Waiting for inference pool to be ready", "engine-wait", None),
        ("orchestrator", "Inference pool ready", "startup", None),
        ("orchestrator", "Waiting for student inference pool to be ready", "engine-wait", None),
        ("orchestrator", "Draining pipeline (cancelled 3 in-flight train rollout(s)", "draining", None),
        ("orchestrator", "Waiting for policy inference pool to be ready", "engine-wait", None),
        ("launcher", "Pre-downloading model Qwen/Qwen3-8B", "download", None),
        ("trainer", "Saving checkpoint at step 40", "checkpoint", 40),
        ("trainer", "Saving weight checkpoint at step 40", "checkpoint", 40),
        ("orchestrator", "Saving checkpoint at step 40", "checkpoint", 40),
        ("trainer", "Writing final checkpoint", "checkpoint", None),
        ("trainer", "Waiting for training batch to arrive", "rollouts", None),
        ("trainer", "Starting training step 41", "training", 41),
        ("orchestrator", "Starting orchestrator step 41", "rollouts", 41),
        ("orchestrator", "Updating weights to weight checkpoint 39", "weight-update", 39),
        ("orchestrator", "Updating policy in-flight to v39", "weight-update", 39),
        ("orchestrator", "Pausing inference engines for weight update", "weight-update", None),
        ("orchestrator", "Updated weights to step 39 in 4.20s", "rollouts", None),
        ("orchestrator", "All inference engines resumed", "rollouts", None),
        (
            "orchestrator",
            "Hit async barrier because we are >2 step(s) async. Waiting for checkpoint 7",
            "barrier",
            7,
        ),
        ("orchestrator", "Waiting for weight checkpoint 6", "barrier", None),
        ("orchestrator", "Orchestrator paused: waiting for trainer to broadcast checkpoint 7.", "barrier", None),
        ("orchestrator", "Orchestrator resumed: checkpoint 7 ready (after 3.10s)", "rollouts", None),
        ("orchestrator", "Holding batch 8 until the trainer publishes policy v7 (currently v6)", "barrier", None),
        ("orchestrator", "Resuming dispatcher", "rollouts", None),
        ("trainer", "Broadcasting startup policy weights (v39) to inference engines", "weight-update", None),
        ("orchestrator", "Running evals for checkpoint step 40 (blocking, subprocess)", "eval", 40),
        ("orchestrator", "Starting evals in gsm8k (64 total rollouts)", "eval", None),
        ("orchestrator", "Shipped the final batch — draining pipeline (cancelled 3 in-flight", "draining", None),
    ],
)
def test_phases_say_what_a_role_is_doing(role: Role, message: str, phase: str, step: int | None) -> None:
    assert parse_line(role, coloured("INFO", message)) == [PhaseSeen(role, phase, step, message)]


def test_the_pipeline_line_says_how_much_work_is_under_way() -> None:
    line = "Train batch 24/128 (18.8%) (+8 buffered) | gsm8k 1/64 (1.6%) | 96 inflight rollouts (train=90, eval=6)"
    assert parse_line("orchestrator", coloured("INFO", line)) == [WorkSeen(96, 24, 128)]
    newer = line.replace("rollouts (", "episodes (")
    assert parse_line("orchestrator", coloured("INFO", newer)) == [WorkSeen(96, 24, 128)]


@pytest.mark.parametrize(
    ("role", "line", "signature", "deterministic"),
    [
        ("inference", "(APIServer pid=12) ERROR 01-06 03:00:12 [async_llm.py:480] AsyncLLM output_handler failed.", "engine-dead", False),
        ("inference", "ERROR 01-06 03:00:12 [core.py:88] EngineCore encountered a fatal error.", "engine-dead", False),
        ("inference", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", "engine-dead", False),
        ("inference", "INFO 01-06 03:00:12 [shm.py:1] No available shared memory broadcast block found in 60 seconds.", "", False),
        ("inference", "WARNING 01-06 03:00:12 [shm.py:1] No available shared memory broadcast block found in 60 seconds.", "engine-stalled", False),
        ("inference", "ValueError: Free memory on device (48.97/79.18 GiB) on startup is less than desired GPU memory utilization", "gpu-memory-taken", False),
        ("trainer", "[default0]:torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "cuda-oom", False),
        ("trainer", "OSError: [Errno 28] No space left on device", "disk-full", False),
        ("launcher", "pydantic_core._pydantic_core.ValidationError: 1 validation error for RLConfig", "config-invalid", True),
        ("launcher", "│ Failed to validate config:                                                   │", "config-invalid", True),
        ("launcher", "│ Value error, orchestrator.renderer.name='auto' but 'x' is not                │", "config-invalid", True),
        ("launcher", "FileExistsError: Run directory 'out/demo' already contains artifacts from a previous run.", "run-folder-used", True),
        ("launcher", "FileExistsError: Directory 'out/checkpoints' already contains checkpoints from a previous run.", "run-folder-used", True),
        ("orchestrator", coloured("WARNING", "Rollout task failed in group 3 (gsm8k): APIConnectionError('Connection error.')"), "connection-error", False),
        ("orchestrator", "ModuleNotFoundError: No module named 'wordle'", "module-missing", True),
        ("trainer", "huggingface_hub.errors.GatedRepoError: 401 Client Error.", "model-gated", True),
        ("trainer", "[default0]:[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "cuda-oom", False),
        ("trainer", "[rank0]:[E1121 03:00:12.408271257 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)", "nccl-timeout", False),
        ("inference", "(APIServer pid=1) ERROR 12-01 05:34:47 [serving_chat.py:264] ValueError: 'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum context length is 4096 tokens and your request has 1297 input tokens (4000 > 4096 - 1297).", "max-tokens-too-large", False),
        ("inference", "ERROR 04-07 12:31:21 serving_completion.py:110] Error in preprocessing prompt inputs", "", False),
        ("orchestrator", coloured("WARNING", "Rollout failed in group 3 (wordle): ValueError('already done')"), "", False),
        ("orchestrator", coloured("WARNING", "Step 5: empty train batch after 128 finalized episodes (consecutive empty batches: 1/10)"), "batch-dropped", False),
        ("orchestrator", "wandb.errors.errors.UsageError: api_key not configured (no-tty)", "key-missing", True),
        ("orchestrator", "KeyError: 'train_source'", "checkpoint-other-version", True),
        ("orchestrator", "FileNotFoundError: No weight directory found for checkpoint step 40", "checkpoint-missing", False),
        ("orchestrator", "zipfile.BadZipFile: File is not a zip file", "checkpoint-damaged", False),
        ("orchestrator", coloured("WARNING", "Rollout failed: APIConnectionError('Connection error.')"), "connection-error", False),
        ("launcher", coloured("ERROR", "Error: Inference failed with exit code 1"), "component-failed", False),
        ("orchestrator", coloured("ERROR", "Fatal error in orchestrate"), "fatal-error", False),
    ],
)  # fmt: skip
def test_known_errors_have_a_name(role: Role, line: str, signature: str, deterministic: bool) -> None:
    facts = [fact for fact in parse_line(role, line) if isinstance(fact, ErrorSeen)]
    assert [(fact.signature, fact.deterministic) for fact in facts] == (
        [(signature, deterministic)] if signature else []
    )


def test_a_known_error_says_what_it_means_and_what_helps() -> None:
    line = "ValueError: 'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum context"
    (error,) = parse_line("inference", line)
    assert isinstance(error, ErrorSeen)
    assert error.text == line
    assert error.sentence == (
        "vLLM refuses requests: the prompt and the asked-for max_tokens together are longer than max_model_len."
    )
    assert error.remedy.startswith("Lower the sampling's max_tokens")


def test_every_signatures_examples_are_found_in_whole_lines() -> None:
    for signature, role, line in ((one, *example) for one in SIGNATURES.signatures for example in one.examples):
        for whole in (line, coloured("ERROR", line), f"[trainer0]:[rank0]: {line}"):
            names = [fact.signature for fact in parse_line(role, whole) if isinstance(fact, ErrorSeen)]
            if signature.diagnosed_only:
                assert signature.name not in names, whole
            else:
                assert names == [signature.name], whole


def test_a_line_of_vllm_that_no_logger_wrote_counts_without_its_process() -> None:
    (error,) = parse_line(
        "inference", "(EngineCore_DP0 pid=4242) ValueError: No available memory for the cache blocks."
    )
    assert isinstance(error, ErrorSeen)
    assert error.signature == "kv-cache-too-small"
    assert error.text.startswith("ValueError: ")


def test_an_environment_that_prints_an_error_condemns_nothing() -> None:
    for line in ("ModuleNotFoundError: No module named 'x'", "KeyError: 'train_source'", "1 validation error for X"):
        assert parse_line("env", line) == []


def test_huge_binary_and_half_written_lines_cost_little_and_say_nothing() -> None:
    lines = [
        "A" * 10_000_000,
        "07:26:12 SUCCESS " + "Step " * 2_000_000,
        "{" + '"a":' * 2_500_000,
        '{"message": "' + "x" * 10_000_000,
        "[" + "a" * 10_000_000,
        "\x1b[" * 5_000_000,
        "\x00\x01\x02\ufffd" * 2_500_000,
        "07:26:12 SUCCESS Train batch 1/" + "9" * 10_000_000,
        " 1%|" * 2_500_000,
        "\r" * 10_000_000,
    ]
    begun = time.process_time()
    for role in ("trainer", "orchestrator", "inference", "launcher", "env"):
        for line in lines:
            assert parse_line(role, line) == []
    assert time.process_time() - begun < 5.0  # a few milliseconds each; a slip into quadratic time takes minutes


@pytest.mark.parametrize("cut", range(0, 90, 7))
def test_a_line_cut_anywhere_never_gives_another_step(cut: int) -> None:
    line = coloured("SUCCESS", TRAINER_STEPS[1][1])
    for fact in parse_line("trainer", line[:cut]) + parse_line("trainer", line[cut:]):
        assert not isinstance(fact, StepDone) or fact.step == 80


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12.34s", 12.34), ("850ms", 0.85), ("45s", 45), ("1m 5s", 65), ("5m", 300), ("2h 3m", 7380), ("1d 2h", 93600)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


def test_the_metrics_file_gives_steps_once_each() -> None:
    records: list[dict[str, object]] = [
        {"step": 7, "time": 1.0, "perf/mfu": 20.0},
        {"step": 7, "time": 1.0, "optim/lr": 1e-6},
        {"step": 7, "time": 1.0, "loss/mean": 0.25},
        {"step": 7, "time": 1.0, "time/step": 42.0, "time/forward_backward": 30.0},
        {"step": "7", "time/forward_backward": 1},
        {"step": 8, "loss/mean": math.nan},
        {"step": 8, "time/step": math.inf, "time/forward_backward": 30.0},
        {"step": True, "time/forward_backward": 1},
        {"time/forward_backward": 1},
    ]
    facts: list[Fact] = [fact for record in records for fact in parse_metrics(record)]
    assert facts == [
        StepDone("trainer", 7, loss=0.25),
        StepDone("trainer", 7, 42.0),
        StepDone("trainer", 8, loss=math.nan),
        StepDone("trainer", 8),
    ]


# ---------------------------------------------------------------- where the logs are


@pytest.mark.parametrize(
    ("commit", "trainer", "metrics"),
    [
        ("ceb60c03f", "logs/trainer.log", None),
        ("be0e3d131", "logs/trainer.stdout", None),
        ("63331ad8b", "logs/trainer.stdout", None),
        ("38494ccb4", "logs/trainer.log", None),
        ("e26b50503", "demo/logs/trainer.log", None),
        ("559b44772", "demo/logs/latest/trainer.log", "demo/metrics.jsonl"),
    ],
)
def test_each_eras_files_are_followed(tmp_path: Path, commit: str, trainer: str, metrics: str | None) -> None:
    job = job_of(tmp_path, commit)
    sources = job.log_sources(tmp_path / "attempt")
    text = {source.role: source.path for source in sources if source.kind == "text"}
    assert text["trainer"] == str(tmp_path / "out" / trainer)
    assert text["launcher"] == str(tmp_path / "attempt" / "rl.log")
    assert set(text) == {
        "launcher",
        "trainer",
        "orchestrator",
        "inference",
        *(["env"] if ERAS[commit].dialect.titles else []),
    }
    assert [source.path for source in sources if source.kind == "jsonl"] == (
        [str(tmp_path / "out" / metrics)] if metrics else []
    )


def test_files_in_a_folder_with_brackets_in_its_name_are_found_as_any_others(tmp_path: Path) -> None:
    """``output_dir = "runs/grpo[lr=1e-6]"`` is no pattern, and what lies in it is not lost for the sensors."""
    job = job_of(tmp_path / "grpo[lr=1e-6]", "559b44772")
    attempt = tmp_path / "state[1]" / "attempts" / "0001"
    run_dir = job.layout.run_dir
    written = [attempt / "rl.log", run_dir / "logs/latest/trainer.log", run_dir / "logs/latest/envs/math/env_0.log"]
    written.append(run_dir / "metrics.jsonl")
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = {name for source in job.log_sources(attempt) for name in glob.glob(source.path)}  # noqa: PTH207
    assert found == set(map(str, written))
    assert first_component(job, attempt) == "rl"
    index = {"sources": [vars(source) for source in job.log_sources(attempt)]}
    assert [path for _, path in own_files(index, attempt, ("stays",))] == written[1:3], "captured is not the job's own"


def test_early_sft_logs_to_its_own_output(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131", kind="sft", config="max_steps = 9\n")
    assert [(source.role, source.path) for source in job.log_sources(tmp_path)] == [("trainer", f"{tmp_path}/sft.log")]
