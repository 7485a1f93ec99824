"""Secrets in every place in which a job can be given or print one are in nothing that the program keeps or says."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import canaries
from tests.canaries import COLOUR, CORE, ESCAPES, KEY, LINES, found_in, leaks

from .rig import Pod
from .test_people import page

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def own(path: Path) -> bool:
    """The job's own files: its output as it wrote it, and the configuration that the next attempt gets."""
    attempt = path.parts[0] in ("attempts", "engines")
    return attempt and (".log" in path.name or "kept" in path.parts or "config" in path.parts)


def line(text: str) -> str:
    """An error in the trainer's own log, as prime-rl writes it on a terminal."""
    return f"\x1b[2m12:00:00\x1b[0m \x1b[31m\x1b[1m  ERROR\x1b[0m {OOM}: {text}{ESCAPES}\x1b[0m\n"


@pytest.mark.soak
def test_no_canary_is_in_anything_that_is_kept_sent_or_printed(tmp_path: Path, pods: list[Pod]) -> None:
    environ = {"HF_VENDOR_SECRET": CORE["value"], "WANDB_API_KEY": CORE["environment"]}
    pod = Pod(
        tmp_path / "pod",
        max_steps=400,
        step_s=0.4,
        interval=10,
        environ=environ,
        settings={"job": {"pass_env": ["HF_VENDOR_SECRET", "WANDB_API_KEY"]}},
    )
    pods.append(pod)
    with pod.practice.config.open("a") as config:
        config.write(f'# api_key = "{CORE["toml"]}"\n')
    pod.start()
    pod.wait_for(lambda: pod.step() >= 2, "the run makes steps")
    words = [
        sys.executable,
        "-c",
        "import time; time.sleep(300)",
        "--api-key",
        CORE["argument"],
        f"hf_{CORE['argument']}",
    ]
    marked = {"RL_SUPERVISOR_RUN": "practice", "RL_SUPERVISOR_ATTEMPT": str(pod.state_dir / "attempts/0001")}
    part_of_the_job = subprocess.Popen(words, env={**os.environ, **marked})
    log = next(path for path in pod.practice.run_dir.rglob("*") if re.fullmatch(r"trainer\.(log|stdout)", path.name))
    for number, text in enumerate(LINES.values()):
        with log.open("a") as file:  # in two writes: the second may come with another read
            whole = line(text)
            at = whole.index(": ", whole.index("allocate")) + 2 + len(text) // 2
            file.write(whole[:at])
            file.flush()
            file.write(whole[at:] if number else whole[at:] + "\n".join(KEY) + "\n")
    journal = pod.state_dir / "journal.db"
    seen = lambda: sum(OOM in text and "***" in text for text in canaries.texts(journal))  # noqa: E731
    pod.wait_for(lambda: any("***" in text for text in canaries.texts(journal)), "the lines came to the core")
    assert seen() or any("***" in text for text in canaries.texts(journal.with_name("journal.db-wal")))

    said: dict[str, str] = {}

    def ctl(*words: str) -> None:
        told = pod.ctl(*words)
        said[f"ctl {' '.join(words)}"] = told.stdout + told.stderr

    for words in (["status"], ["events", "-n", "500"], ["explain"], ["checkpoints"], ["tail", "-n", "2000", "trainer"]):
        ctl(*words)
        ctl(*words, "--json") if words[0] != "tail" else ctl("--json", *words)
    said["metrics"] = page(pod.socket, "/metrics")[1]
    for pid in pod.practice.pids("trainer-rank"):
        os.kill(pid, signal.SIGKILL)
    pod.wait_for(lambda: pod.sentences("incident-closed"), "the incident is over")
    assert pod.stored(), "what is searched below holds a step, its manifest and its records"
    ctl("incidents")
    ctl("incidents", "1", str(pod.run_file))
    ctl("shutdown")
    pod.wait_exit()
    assert part_of_the_job.wait(10) < 0, "it was stopped as a part of the job, so that its words were looked at"

    trace, packed = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.gz"
    for words in (
        ["trace", "-o", str(trace)],
        ["trace", "-o", str(packed)],
        ["trace"],
        ["report"],
        ["report", "--json"],
        ["check"],
        ["logs", "--attempt", "1"],
        ["logs", "--attempt", "1", "--to", str(tmp_path / "fetched")],
    ):
        told = pod.by_hand(*words)
        said[f"by hand {' '.join(words)}"] = told.stdout + told.stderr
    for verb, path in (("replay", trace), ("replay", journal), ("diagnose", log), ("diagnose", pod.state_dir)):
        for more in ([], ["--json"], *([["--all"]] if verb == "replay" else [])):
            said[f"{verb} {path.name} {more}"] = run(pod, verb, str(path), *more)

    assert not [name for name, text in said.items() if re.search(r"(?m)^usage:", text) or not text], "each was said"
    assert {name: found for name, text in said.items() if (found := found_in(text))} == {}
    for name, text in said.items():
        rest = text.replace(COLOUR, "")
        assert not re.search(r"\x1b(?!\[[0-9;]*m)|\x9b|\u202e", rest), (name, rest[-2000:])
    assert OOM in said[f"replay {trace.name} ['--all']"], "what was told of the line is no secret"
    assert leaks(pod.state_dir, own) == {}
    assert leaks(Path(pod.store.removeprefix("file://"))) == {}
    assert leaks(tmp_path, lambda path: path.parts[0] == "pod") == {}, "traces, and what was fetched"
    assert found_in(pod.output.read_text(errors="replace")) == set()
    facts = [json.loads(text) for text in gzip.decompress(packed.read_bytes()).decode().splitlines()]
    assert not [text for text in map(json.dumps, facts) if "\\u001b" in text], "no fact holds an escape"


def run(pod: Pod, verb: str, *words: str) -> str:
    """``rl-supervisor VERB WORDS...`` without the run file."""
    kept, pod.run_file = pod.run_file, Path(words[0])
    try:
        told = pod.by_hand(verb, *words[1:])
    finally:
        pod.run_file = kept
    return told.stdout + told.stderr


def test_the_search_finds_a_canary_wherever_it_lies(tmp_path: Path) -> None:
    """What the test above would overlook proves nothing."""
    import sqlite3
    import zlib
    from base64 import b64encode

    core = CORE["json"]
    hide: list[Callable[[bytes], bytes]] = [lambda data: data, gzip.compress, lambda data: b64encode(data * 4)]
    for number, packed in enumerate(hide):
        (tmp_path / f"{number}.bin").write_bytes(packed(f"a {core} b".encode()))
    (tmp_path / "colour.log").write_text(core[:5] + COLOUR + core[5:])
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("CREATE TABLE t (x BLOB)")
        database.execute("INSERT INTO t VALUES (?)", (zlib.compress(core.encode()),))
    assert len(leaks(tmp_path)) == 5
