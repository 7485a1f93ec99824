"""A bundle of real processes: what is in it, what is not in any of its bytes, and how long and how large it may get."""

from __future__ import annotations

import csv
import http.server
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from supervisor.evidence.bundle import BUNDLE_BYTES, collect
from supervisor.evidence.collecting import Collector, Sink
from supervisor.journal.replay_trace import replay
from supervisor.journal.trace import load
from supervisor.process.survivors import Process

from .rig import SPINS, WAITS, every_byte, journal_with_an_incident, manifest, part, running, scene

VALUE = "correct-horse-battery-staple"  # known by its variable's name alone
PLANTED = {
    "wandb": "a1b2c3d4e5a1b2c3d4e5a1b2c3d4e5a1b2c3d4e5",
    "hf": "hf_QxWmRtYpLkJhGfDsAzXcVbNm123456",
    "github": "ghp_QxWmRtYpLkJhGfDsAzXcVbNm1234567890",
    "openai": "sk-proj-QxWmRtYpLkJhGfDsAzXcVbNm12",
    "aws": "AKIAQXWMRTYPLKJHGFDS",
    "b2": "K005QxWmRtYpLkJhGfDsAzXcVbNm123",
    "url": "hunter2hunter2",
    "argv": "plain-looking-argument",
    "pem": "MIIEowIBAAKCAQEAx9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9",
    "value": VALUE,
}


@pytest.fixture
def engine() -> Iterator[str]:
    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            key = PLANTED["openai"]
            self.wfile.write(f'vllm:num_requests_running{{model="m",key="{key}"}} 12.0\n'.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_spinning_trainer_beside_a_hung_engine_is_told_apart_and_no_secret_is_in_any_byte(
    tmp_path: Path, engine: str
) -> None:
    said = [
        f"WANDB_API_KEY={PLANTED['wandb']}",
        f"logging in with {PLANTED['hf']} and {PLANTED['github']}",
        f"https://me:{PLANTED['url']}@example.com/x",
        f"the service was told {VALUE}",
        "-----BEGIN PRIVATE KEY-----",
        PLANTED["pem"],
        "-----END PRIVATE KEY-----",
        f"{PLANTED['aws']} {PLANTED['b2']}",
        "Step 12 | Loss 0.3",
    ]
    log = tmp_path / "trainer.log"
    log.write_text("\n".join(said) + "\n")
    state = tmp_path / "state"
    title = f"rl --api-key {PLANTED['argv']} {VALUE}"
    identity = journal_with_an_incident(state, title=title, text=f"refused: {PLANTED['openai']} {VALUE}")
    with running(SPINS, WAITS, argv=["--api-key", PLANTED["argv"]], env={"VENDOR_TOKEN": VALUE}) as living:
        os.kill(living[1].pid, SIGSTOP)
        about = scene(
            state,
            living,
            explain={"sentence": f"It said {VALUE}.", "verdict": {"signals": [{"sentence": said[1]}]}},
            processes=[(living[0].pid, "trainer", title), (living[1].pid, "inference", "VLLM::EngineCore")],
            engine_page=(1.7e9, f'vllm:num_requests_running{{key="{PLANTED["openai"]}"}} 3.0\n'),
            journal=identity,
            logs={"trainer": str(log)},
            engine_url=engine,
            folders=(str(tmp_path),),
        )
        with socket.create_connection(("127.0.0.1", int(engine.rpartition(":")[2]))):
            found = collect(about, tmp_path / "incidents", budget_s=20)
        os.kill(living[1].pid, SIGCONT)
    assert found.folder is not None, found
    texts = every_byte(found.folder)
    for name, data in texts.items():
        for what, secret in PLANTED.items():
            assert secret.encode() not in data, (
                f"{what} is in {name}: {data[max(0, data.find(secret.encode()) - 99) :][:200]!r}"
            )

    tree = texts["processes.txt"].decode()
    (trainer,) = [line for line in tree.splitlines() if " trainer " in line]
    (hung,) = [line for line in tree.splitlines() if " inference " in line]
    assert trainer.split()[2] == "R"
    assert float(trainer.split()[5].rstrip("%")) > 1, "it works at this moment, beside whatever else runs here"
    assert hung.split()[2] == "T", "it stands still"
    assert hung.split()[5] == "0%"
    assert "1 threads (1 T)" in texts["threads.txt"].decode()
    assert "--api-key ***" in texts["commands.txt"].decode()
    row = next(line.split() for line in texts["files.txt"].decode().splitlines() if " trainer " in line)
    assert int(row[2]) >= int(row[1]) > 0, "open files, and how many there may be"

    assert b"Step 12 | Loss 0.3" in texts["trainer.log"]
    assert b"num_requests_running" in texts["engine-metrics.txt"]
    assert b"12.0" in texts["engine-metrics.txt"]
    assert b"3.0" in texts["engine-metrics-before.txt"], "as it was last seen"
    assert b"ESTABLISHED" in texts["sockets.txt"]
    assert b"/dev/shm" in texts["disks.txt"]
    assert b"inodes free" in texts["disks.txt"]
    assert b"MemAvailable" in texts["memory.txt"]
    samples = list(csv.DictReader(texts["gpu-samples.csv"].decode().splitlines()))
    assert samples
    assert int(samples[-1]["used_bytes"]) == 70 << 30
    assert "rl-supervisor trace" in texts["reason.txt"].decode()

    told = manifest(found.folder)
    assert (told["incident"], told["attempt"], told["journal"], told["run"]) == (1, 1, identity, "practice")
    assert {one["name"] for one in told["parts"]} == {
        "reason", "log-trainer", "processes", "commands", "files", "stacks", "gpu", "engine", "kernel", "disk",
        "memory", "sockets", "trace",
    }  # fmt: skip
    assert [one["name"] for one in told["parts"] if one["state"] != "collected"] == []
    assert all(one["seconds"] < 20 for one in told["parts"])
    assert told["size_bytes"] < BUNDLE_BYTES


def test_the_trace_in_a_bundle_replays_to_the_same_decisions(tmp_path: Path) -> None:
    journal_with_an_incident(tmp_path)
    found = collect(scene(tmp_path), tmp_path / "incidents", budget_s=20)
    assert found.folder is not None
    trace = load(found.folder / "trace.jsonl.gz")
    turns = list(replay(trace))
    assert turns
    assert [turn for turn in turns if turn.differs] == []
    assert any("exit code 1" in str(action) for turn in turns for action in turn.actions)


def test_whatever_hangs_the_stop_waits_no_longer_than_the_budget(tmp_path: Path) -> None:
    """An engine that never answers, and a collector that never comes back: each is named, all else is there."""
    let_go = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as deaf, running(WAITS) as living:
        about = scene(tmp_path, living, engine_url=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        began = time.monotonic()
        hangs = Collector("hangs-in-the-driver", lambda sink: let_go.wait(30) and None, 30)
        found = collect(about, tmp_path / "incidents", budget_s=2.0, more=[hangs])
        took = time.monotonic() - began
    let_go.set()
    assert took < 2.5, "what follows is a restart that is worth more"
    assert found.folder is not None
    assert "Left behind, since it took too long:" in found.sentence
    assert part(found.folder, "hangs-in-the-driver")["state"] == "late"
    assert "left behind" in part(found.folder, "hangs-in-the-driver")["notes"][0]
    assert part(found.folder, "processes")["state"] == "collected"
    assert manifest(found.folder)["ended_early"] is False


def test_a_disk_that_hangs_delays_nothing_either(tmp_path: Path) -> None:
    let_go = threading.Event()

    def hangs() -> list[Process]:
        let_go.wait(30)
        return []

    began = time.monotonic()
    os.mkfifo(tmp_path / "a.log")  # opening it for reading waits for a writer
    about = replace(scene(tmp_path, logs={"env-on-a-dead-mount": str(tmp_path / "a.log")}), living=hangs)
    found = collect(about, tmp_path / "incidents", budget_s=1.0)
    assert time.monotonic() - began < 1.6
    let_go.set()
    assert found.folder is not None
    assert part(found.folder, "log-env-on-a-dead-mount")["state"] == "late"


def test_a_person_who_will_not_wait_gets_what_there_is(tmp_path: Path) -> None:
    hurry = threading.Event()
    let_go = threading.Event()
    threading.Timer(0.3, hurry.set).start()
    hangs = Collector("hangs-for-long", lambda sink: let_go.wait(30) and None, 30)
    began = time.monotonic()
    found = collect(scene(tmp_path), tmp_path / "incidents", budget_s=20, hurry=hurry, more=[hangs])
    assert time.monotonic() - began < 3
    let_go.set()
    assert found.folder is not None
    assert manifest(found.folder)["ended_early"] is True


def test_a_second_verdict_in_one_attempt_does_not_replace_the_first_evidence(tmp_path: Path) -> None:
    first = collect(scene(tmp_path), tmp_path / "incidents", budget_s=10)
    second = collect(scene(tmp_path), tmp_path / "incidents", budget_s=10)
    assert first.folder is not None
    assert second.folder is not None
    assert [first.folder.name, second.folder.name] == ["0001-attempt-0001", "0001-attempt-0001-2"]
    assert (first.folder / "bundle.json").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a small volume cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_bundle_takes_an_eighth_of_what_is_free_and_on_a_full_disk_says_so(small_disk: Path, tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("".join(f"line {n} of a long log of the trainer\n" for n in range(20_000)))
    logs = {f"env-{number}": str(log) for number in range(6)}
    found = collect(scene(tmp_path, logs=logs), small_disk / "incidents", budget_s=20)
    assert found.folder is not None
    size = sum(path.stat().st_size for path in found.folder.iterdir())
    assert 64 << 10 < size < (1 << 20) + (64 << 10)
    notes = [note for number in range(6) for note in part(found.folder, f"log-env-{number}")["notes"]]
    assert any("is left out" in note for note in notes)

    (small_disk / "ballast").write_bytes(b"x" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize))
    asked: list[str] = []
    full = collect(
        scene(tmp_path, logs=logs), small_disk / "incidents", budget_s=20, made_room=lambda: asked.append("room")
    )
    assert asked, "old bundles go first"
    assert "could not be kept: " in full.sentence
    assert "No space left on device" in full.sentence


def test_a_state_folder_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "incidents").write_text("a file where the folder should be")
    found = collect(scene(tmp_path), tmp_path / "incidents", budget_s=10)
    assert found.folder is None
    assert "could not be kept: " in found.sentence


def test_nothing_of_the_run_is_alive_any_more(tmp_path: Path) -> None:
    found = collect(scene(tmp_path), tmp_path / "incidents", budget_s=10)
    assert found.folder is not None
    texts = every_byte(found.folder)
    assert texts["processes.txt"] == b"No process of the run is alive.\n"
    assert "cannot be read" in part(found.folder, "trace")["notes"][0], "there is no journal"
    assert json.loads(texts["gpu.json"])


def test_a_driver_that_hangs_is_left_behind(tmp_path: Path) -> None:
    """The collector of GPUs blocks in NVML as it does in a broken driver; all else is collected."""
    let_go = threading.Event()

    def hangs(sink: Sink) -> None:
        sink.put("gpu.json", '{"gpus": [{"index": 0}]}')
        let_go.wait(30)

    found = collect(scene(tmp_path), tmp_path / "incidents", budget_s=3, more=[Collector("driver", hangs, 0.5)])
    let_go.set()
    assert found.folder is not None
    assert part(found.folder, "driver")["state"] == "late"
    assert part(found.folder, "driver")["files"] == {"gpu.json": 24}
