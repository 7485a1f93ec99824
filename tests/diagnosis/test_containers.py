"""Text inside of something else: docker's stream, binary junk, and what was cut off."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.diagnosis.lines import parse
from supervisor.diagnosis.scan import BLOCK_BYTES
from supervisor.primerl.logs import parse_line
from tests.practice.logs import loguru_line

ROOT = Path(__file__).parents[2]
FRAME = '  File "/me/env.py", line 12, in extract'
SAID = [
    *(loguru_line("SUCCESS", f"Step {n} |  45.1s | Loss 0.0010 | Entropy 0.3000", f"03:0{n}:00") for n in range(4)),
    "Traceback (most recent call last):",
    FRAME,
    "    raise RuntimeError",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.16 GiB.",
]
HEALTHY = SAID[:4]


def docker(lines: list[str]) -> bytes:
    """Docker's stream of a container without a terminal: eight bytes before each line."""
    return b"".join(b"\x02\0\0\0" + (len(line) + 1).to_bytes(4, "big") + line.encode() + b"\n" for line in lines)


def junk(lines: list[str]) -> bytes:
    return os.urandom(9000) + b"\n" + "\n".join(lines).encode() + b"\n" + os.urandom(9000)


WRAPPED = {
    "docker": docker,
    "junk": junk,
    "zeros": lambda lines: b"\0" * 9000 + "\n".join(lines).encode(),
    "gzip": lambda lines: gzip.compress("\n".join(lines).encode()),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=list(WRAPPED))
@pytest.mark.parametrize("name", ["journal.log", "trainer.log"])
def test_an_error_is_named_through_what_it_is_wrapped_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrap: object, name: str
) -> None:
    (tmp_path / name).write_bytes(wrap(SAID))  # type: ignore[operator]
    assert main(["diagnose", str(tmp_path / name)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Root cause after step 3: cuda-oom\n"), said
    assert "CUDA out of memory. Tried to allocate 2.16 GiB." in said
    (tmp_path / name).write_bytes(wrap(HEALTHY))  # type: ignore[operator]
    assert main(["diagnose", str(tmp_path / name)]) == 3
    assert capsys.readouterr().out.startswith("Nothing here says that anything failed after step 3")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    "first",
    [
        "__CURSOR=s=1\n",
        '{"MESSAGE": "x", "__REALTIME_TIMESTAMP": "1"}\n',
        '{"MESSAGE": "{\'loss\': 1} } {", "__REALTIME_TIMESTAMP": "1"}\n',
        '{\n\t"__CURSOR" : "s"',
        '{\n\t"MESSAGE" : "}{",\n\t"__CURSOR" : "s"',
    ],
)
def test_an_export_of_the_journal_is_refused_with_the_command_that_gives_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "unit.export").write_bytes(pack(first.encode()))
    assert main(["diagnose", str(tmp_path / "unit.export")]) == 1
    assert "journalctl -o short-iso" in capsys.readouterr().err


@pytest.mark.soak
def test_junk_after_megabytes_of_junk_is_still_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trainer.log").write_bytes(bytes(range(256)) * (3 * BLOCK_BYTES // 256))
    assert main(["diagnose", str(tmp_path / "trainer.log")]) == 1
    assert "it is no text." in capsys.readouterr().err


@pytest.mark.parametrize(
    "end",
    [
        ["Traceback (most recent call last):"],
        ["Traceback (most recent call last):", FRAME],
        ["Traceback (most recent call last):", FRAME, "    raise Run"],
        [f"[trainer0]:[rank0]: {one}" for one in ("Traceback (most recent call last):", FRAME)],
    ],
)
def test_a_log_that_is_cut_inside_its_last_error_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: list[str]
) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("\n".join([*HEALTHY, *end]))
    assert main(["diagnose", str(log)]) == 3
    said = capsys.readouterr().out
    assert said.startswith(f"{log} was cut inside its last error"), said
    assert ("/me/env.py:12 in extract" in said) is (len(end) > 1)
    assert "Nothing here" not in said
    assert main(["diagnose", "--json", str(log)]) == 3
    assert "was cut inside its last error" in json.loads(capsys.readouterr().out)["logs"][0]["cut"]


def test_the_beginning_of_an_exceptions_name_is_not_told_as_its_name_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("\n".join(SAID)[: -len("Error: CUDA out of memory. Tried to allocate 2.16 GiB.")])
    main(["diagnose", str(log)])
    assert f"{log} was cut inside its last error" in capsys.readouterr().out


def test_an_unknown_error_in_a_last_line_without_an_end_may_have_been_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(
        [*HEALTHY, "Traceback (most recent call last):", FRAME, "torch.AcceleratorError: CUDA error: an ill"]
    )
    (tmp_path / "trainer.log").write_text(text)
    main(["diagnose", str(tmp_path / "trainer.log")])
    assert "it may be cut" in capsys.readouterr().out
    (tmp_path / "trainer.log").write_text(f"{text}\n")
    main(["diagnose", str(tmp_path / "trainer.log")])
    assert "it may be cut" not in capsys.readouterr().out


def test_a_cut_inside_the_name_of_the_exception_is_a_cut_inside_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = "03:00:09   ERROR Fatal error in train"
    text = "\n".join([*HEALTHY, error, "Traceback (most recent call last):", FRAME, "    raise it", "tor"])
    (tmp_path / "trainer.log").write_text(text)
    main(["diagnose", str(tmp_path / "trainer.log")])
    said = capsys.readouterr().out
    assert "was cut inside its last error" in said and "/me/env.py:12 in extract" in said


def test_a_whole_error_without_a_newline_after_it_is_not_called_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trainer.log").write_text("\n".join(SAID))
    main(["diagnose", str(tmp_path / "trainer.log")])
    assert "was cut" not in capsys.readouterr().out
    handled = [*SAID[4:6], "ValueError: x", *HEALTHY, "Traceback (most recent call last):", *["a line"] * 30]
    (tmp_path / "trainer.log").write_text("\n".join(handled))
    main(["diagnose", str(tmp_path / "trainer.log")])
    assert "was cut" not in capsys.readouterr().out


@pytest.mark.soak
def test_without_words_the_rest_of_a_script_is_left_to_the_script(tmp_path: Path) -> None:
    program = "import sys; from supervisor.cli.main import main; sys.exit(main())"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} diagnose"
    script = f"{command}\necho code $?\necho 'torch.OutOfMemoryError: CUDA out of memory.'\n"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh"], input=script, text=True, cwd=tmp_path, env=env, capture_output=True, check=False, timeout=60
    )
    assert done.stdout == "code 1\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    assert "No run is known on this machine" in done.stderr
    assert "rl-supervisor diagnose -" in done.stderr


@pytest.mark.parametrize(
    "before",
    [
        "ERROR: (Worker_TP1 pid=42) ERROR 01-06 03:00:12 [multiproc_executor.py:487] ",
        "(EngineCore_DP0 pid=7) ERROR:    (Worker_TP1 pid=42) ERROR 01-06 03:00:12 [multiproc_executor.py:487] ",
        "(EngineCore_DP0 pid=7) (Worker_TP1 pid=42) ERROR 01-06 03:00:12 [multiproc_executor.py:487] ",
        "INFO:    (Worker_TP1 pid=42) ERROR 01-06 03:00:12 [multiproc_executor.py:487] ",
    ],
)
def test_what_a_server_says_again_of_its_worker_counts_as_the_workers(before: str) -> None:
    dead = "EngineCore encountered a fatal error."
    line = parse(f"{before}{dead}".encode())
    assert (line.level, line.text, line.role) == ("ERROR", dead, "inference")
    assert [getattr(fact, "signature", "") for fact in parse_line("inference", before + dead)] == ["engine-dead"]


def test_what_a_server_says_again_of_its_worker_is_found_in_a_log(tmp_path: Path) -> None:
    begun = "(APIServer pid=1) INFO 01-06 02:05:01 [api_server.py:1839] vLLM API server version 0.14.0\n"
    for first in ("ERROR", "INFO"):
        said = f"{first}: (Worker_TP1 pid=42) ERROR 01-06 03:00:12 [core.py:7] EngineCore encountered a fatal error.\n"
        (tmp_path / "inference.log").write_text(begun + said)
        assert main(["diagnose", str(tmp_path / "inference.log")]) == 0


def test_ray_says_its_own_things_with_heads_of_its_own() -> None:
    line = parse(b"(raylet) [2025-12-07 09:57:19,206 E 39 39] (raylet) node_manager.cc:3277: 2 Workers killed")
    assert line.text.endswith("2 Workers killed")
    line = parse(b"2025-12-07 09:57:19,206\tWARNING worker.py:1986 -- A worker died or was killed while executing")
    assert (line.level, line.text[:14]) == ("WARNING", "worker.py:1986")


def test_of_several_logs_in_one_text_the_bytes_and_the_cut_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(["==> logs/trainer.log <==", *HEALTHY, "", "==> logs/orchestrator.log <==", *HEALTHY, *SAID[4:6]])
    (tmp_path / "all.txt").write_text(text)
    main(["diagnose", str(tmp_path / "all.txt")])
    said = capsys.readouterr().out
    assert "0 B" not in said and "was cut inside its last error" in said
    (tmp_path / "all.gz").write_bytes(gzip.compress(text.encode() + b"\n" + os.urandom(9000).hex().encode())[:-3000])
    main(["diagnose", str(tmp_path / "all.gz")])
    assert "its compressed end is missing" in capsys.readouterr().out


EVENTS = """\
12m  Warning  FailedScheduling  pod/rl-0  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.
7m   Warning  Failed            pod/rl-0  Failed to pull image "ghcr.io/x/rl:0.5": rpc error: context canceled
"""


@pytest.mark.parametrize(("pod", "said"), [("rl-0", "The log ends near"), ("other-1", "Root cause")])
def test_a_pod_that_started_after_all_is_not_accused_and_another_ones_start_is_no_excuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pod: str, said: str
) -> None:
    log = tmp_path / "events.txt"
    log.write_text(f"{EVENTS}6m   Normal   Started           pod/{pod}  Started container trainer\n")
    main(["diagnose", str(log)])
    assert capsys.readouterr().out.startswith(said)
