"""The sensors against a real vLLM server: opt-in, because vLLM is large.

Set RL_SUPERVISOR_VLLM_PYTHON to the interpreter of an environment that has vLLM (the CPU build will do), then
``pytest -n0 -m optin tests/sensors/test_real_vllm.py -s``. Needs no network and no GPU: the model is a tiny Qwen3 with
random weights and a vocabulary of a hundred words, made on the spot. With a CPU build, take torchvision, torchaudio
and torchcodec out of the environment where they do not fit its torch: a text model needs none of them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.core.facts import EngineLook, ProcessGone, ProcessSeen, Role
from supervisor.jobs.base import Engine
from supervisor.sensors.engine import EngineSensor
from supervisor.sensors.processes import identity_of, process_sensors
from tests.sensors.support import FakeClock, until

PYTHON = os.environ.get("RL_SUPERVISOR_VLLM_PYTHON", "")
START_S = 600.0
pytestmark = [
    pytest.mark.optin,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="RL_SUPERVISOR_VLLM_PYTHON names no interpreter with vLLM"),
]

MAKE_MODEL = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config
words = {f"word{n}": n for n in range(97)} | {"<unk>": 97, "<eos>": 98, "<pad>": 99}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<pad>"
).save_pretrained(sys.argv[1])
Qwen3Config(
    architectures=["Qwen3ForCausalLM"], vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=512, eos_token_id=98,
    pad_token_id=99, bos_token_id=None, dtype="bfloat16",
).save_pretrained(sys.argv[1])
"""


def classify(title: str, comm: str) -> tuple[Role, bool] | None:
    return ("inference", True) if title.startswith("VLLM::EngineCore") or comm == "VLLM::EngineCor" else None


class Server:
    def __init__(self, folder: Path) -> None:
        model = folder / "tiny"
        subprocess.run([PYTHON, "-c", MAKE_MODEL, str(model)], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "vllm.log"
        words = ["--model", str(model), "--load-format", "dummy", "--host", "127.0.0.1", "--port", str(self.port)]
        # float32, because some virtual machines claim bfloat16 instructions that they cannot execute.
        words += ["--max-model-len", "256", "--enforce-eager", "--dtype", "float32", "--served-model-name", "tiny"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "vllm.entrypoints.openai.api_server", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "VLLM_CPU_KVCACHE_SPACE": "1",
                    "VLLM_HOST_IP": "127.0.0.1",
                    "VLLM_NO_USAGE_STATS": "1",
                    "HF_HUB_OFFLINE": "1",
                    "HOME": str(folder),
                },
            )

    def complete(self, tokens: int) -> None:
        body = json.dumps({"model": "tiny", "prompt": [1, 2], "max_tokens": tokens, "ignore_eos": True}).encode()
        request = urllib.request.Request(
            f"{self.url}/v1/completions", body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    def end(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.end()


def look(sensor: EngineSensor) -> EngineLook:
    (fact,) = sensor.look()
    assert isinstance(fact, EngineLook)
    return fact


def look_until(
    sensor: EngineSensor, true: Callable[[EngineLook], bool], what: str, patience_s: float = 60
) -> EngineLook:
    looks: list[EngineLook] = []
    begun = time.monotonic()

    def found() -> bool:
        looks.append(look(sensor))
        time.sleep(0.2)
        return true(looks[-1])

    until(found, what, patience_s)
    print(f"{what} after {time.monotonic() - begun:.1f} s: {looks[-1]}")
    return looks[-1]


def test_a_real_vllm_starts_works_hangs_and_dies(server: Server) -> None:
    clock = FakeClock()
    sensor = EngineSensor(
        Engine(server.url, liveness=True),
        canary_after_s=30,
        canary_timeout_s=5,
        work_waits=lambda: True,
        clock=clock,
    )
    assert look(sensor).health == "refused"

    def up(fact: EngineLook) -> bool:
        assert server.process.poll() is None, server.log.read_text()[-3000:]
        return fact.health == "ok"

    look_until(sensor, up, "up", START_S)
    look_until(sensor, lambda fact: fact.liveness == "absent", "plain vLLM has no /liveness")
    before = look(sensor)
    tokens = before.generation_tokens
    assert tokens is not None and before.iterations is not None
    assert (before.running, before.waiting) == (0, 0)
    server.complete(tokens=20)
    moved = look_until(sensor, lambda fact: (fact.generation_tokens or 0) >= tokens + 20, "20 tokens")
    assert moved.iterations is not None and moved.iterations > before.iterations

    clock.now += 31
    well = look_until(sensor, lambda fact: fact.canary != "", "the well engine's canary")
    assert (well.canary, well.health) == ("ok", "ok")

    root = identity_of(server.process.pid)
    assert root is not None
    watcher, scanner = process_sensors(1, [root], classify, list, clock=clock)
    seen = [fact for fact in scanner.look() if isinstance(fact, ProcessSeen)]
    print("engine core:", seen)
    assert len(seen) == 1

    os.kill(seen[0].pid, signal.SIGSTOP)
    still = look(sensor)
    assert still.canary == ""
    clock.now += 31
    hung = look_until(sensor, lambda fact: fact.canary != "", "the stopped engine's canary")
    assert (hung.health, hung.canary) == ("ok", "timeout")
    assert (hung.generation_tokens, hung.running) == (still.generation_tokens, 0), "its own counts show no work"

    os.kill(seen[0].pid, signal.SIGKILL)
    dead = look_until(sensor, lambda fact: fact.health != "ok", "the dead engine's health")
    assert dead.health in ("bad", "refused")
    gone = [fact for fact in watcher.look() if isinstance(fact, ProcessGone)]
    assert [fact.pid for fact in gone] == [seen[0].pid]
    look_until(sensor, lambda fact: fact.health == "refused", "the API server has left, too")
    print("exit code of the API server:", server.process.wait(60))
    watcher.close()
