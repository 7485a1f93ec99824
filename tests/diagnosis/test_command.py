"""``rl-supervisor diagnose``: what it reads, what it prints, and how it ends."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.diagnosis import places
from supervisor.diagnosis.places import identify_log, sources
from supervisor.diagnosis.scan import BLOCK_BYTES, LINE_BYTES, scan

ROOT = Path(__file__).parents[2]
OOM = "[trainer0]:torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.16 GiB.\n"
STEP = "[trainer0]:03:0{n}:00 SUCCESS Step {n} |  45.1s | Loss 0.0010 | Entropy 0.3000\n"


def test_a_folder_is_read_and_the_root_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trainer.log").write_text(STEP.format(n=1) + OOM)
    assert main(["diagnose", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Root cause after step 1: cuda-oom\n")
    assert "trainer.log:2" in said
    assert said.index("Remedy: Lower seq_len") < said.index("A restart may get past it; if it comes back")
    assert "Source: PyTorch" in said


def test_json_holds_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trainer.log").write_text(OOM * 3)
    assert main(["diagnose", "--json", str(tmp_path / "trainer.log")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"] == "failed"
    assert told["root"]["name"] == "cuda-oom"
    assert told["root"]["count"] == 3
    assert told["root"]["first"] == {"file": str(tmp_path / "trainer.log"), "line": 1, "time": None}
    assert told["logs"][0]["lines"] == 3


def test_a_healthy_log_ends_with_3_and_an_unknown_error_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("".join(STEP.format(n=n) for n in range(9)))
    assert main(["diagnose", str(log)]) == 3
    assert capsys.readouterr().out.startswith("Nothing here says that anything failed after step 8")
    log.write_text('Traceback (most recent call last):\n  File "/root/my/env.py", line 3, in f\nmy.OddError: so\n')
    assert main(["diagnose", str(log)]) == 3
    said = capsys.readouterr().out
    assert said.startswith("Root cause: my.OddError (unknown)")
    assert "raised at: /root/my/env.py:3 in f" in said
    assert "docs/diagnosis.md" in said


def test_what_cannot_be_read_ends_with_1_and_odd_usage_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(tmp_path / "nowhere")]) == 1
    assert "cannot be read: No such file or directory." in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path)]) == 1
    assert "holds no logs" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "--colour"])
    assert ended.value.code == 2


def test_of_several_logs_one_that_cannot_be_read_is_told_and_the_others_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trainer.log").write_text(OOM)
    assert main(["diagnose", str(tmp_path / "gone.log"), str(tmp_path / "trainer.log")]) == 0
    said = capsys.readouterr()
    assert said.err == f"{tmp_path}/gone.log cannot be read: No such file or directory.\n"
    assert said.out.startswith("Root cause: cuda-oom")
    assert main(["diagnose", str(tmp_path / "gone.log"), str(tmp_path / "lost.log")]) == 1


def test_where_only_an_end_is_seen_nothing_is_said_of_a_restart_and_the_folder_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rl.log").write_text("02:06:16   ERROR Error: Trainer failed with exit code 1\n")
    assert main(["diagnose", str(tmp_path / "rl.log")]) == 3
    said = capsys.readouterr().out
    assert "give diagnose the whole folder: rl-supervisor diagnose outputs/logs." in " ".join(said.split())
    assert "Whether a restart cures it is not known." in said


def test_a_run_that_never_started_is_sent_to_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(f'[run]\nid = "night"\nstate_dir = "{tmp_path}/state"\n[job]\ndir = "/x"\nconfig = "a.toml"\n')
    for _ in range(2):
        assert main(["diagnose", str(run_file)]) == 1
        assert f"it was never started. What is in its way: rl-supervisor check {run_file}" in capsys.readouterr().err
        (tmp_path / "state").mkdir(exist_ok=True)


def test_standard_input_and_compressed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OOM.encode())))
    assert main(["diagnose", "-"]) == 0
    assert "stdin:1" in capsys.readouterr().out
    (tmp_path / "trainer.stdout.gz").write_bytes(gzip.compress(OOM.encode()))
    assert main(["diagnose", str(tmp_path / "trainer.stdout.gz")]) == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xfd7zXZ\0\0\4", "it is packed with xz: unpack it first."),
        (b"PK\3\4\x14\0", "it is packed with zip: unpack it first."),
        (b"\x28\xb5\x2f\xfd\x04", "it is packed with zstd: unpack it first."),
        (b"\x7fELF\x02\x01\x01\0\0\x03\0>\0\xf0\xff\x90\x81", "it is no text."),
        ("\ufeffx".encode("utf-16-le"), "it is UTF-16: make it UTF-8 first"),
        (b"\x1f", "it is no text."),
        (b"\x1f\x8b\x08\0\0", "There was nothing to read"),
    ],
)
def test_of_what_is_no_text_it_is_not_said_that_nothing_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    (tmp_path / "trainer.log").write_bytes(content)
    assert main(["diagnose", str(tmp_path / "trainer.log")]) == 1
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("before", [b"\0" * 40, "Größe: 5 µm, 重み\n".encode(), b"\x1b[32m ok\x1b[0m\n"])
def test_odd_letters_do_not_make_it_no_text(tmp_path: Path, before: bytes) -> None:
    (tmp_path / "trainer.log").write_bytes(before + b"\n" + OOM.encode())
    assert main(["diagnose", str(tmp_path / "trainer.log")]) == 0


def test_a_pipe_is_read_though_it_cannot_be_gone_back_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (OOM.encode(), gzip.compress(OOM.encode())):
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        assert main(["diagnose", f"/dev/fd/{read}"]) == 0
        assert "cuda-oom" in capsys.readouterr().out
        os.close(read)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("diagnose <&-", 1, "No run is known on this machine. Name its logs"),
        ("diagnose - <&-", 1, "There was nothing to read"),
        ("diagnose trainer.log >&-", 0, ""),
        ("diagnose trainer.log >/dev/full", 1, "Standard output cannot be written: No space left on device."),
        ("version >/dev/full", 1, "Standard output cannot be written: No space left on device."),
    ],
)
def test_what_is_closed_or_full_is_no_crash(tmp_path: Path, words: str, code: int, said: str) -> None:
    (tmp_path / "trainer.log").write_text(OOM)
    program = "import sys; from supervisor.cli.main import main; sys.exit(main())"
    line = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(program)} {words}"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": ""}
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=env, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == code
    assert done.stderr.decode().startswith(said)
    assert not list(tmp_path.glob("*crash*"))


def test_a_compressed_file_that_ends_early_is_read_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gzip.compress(OOM.encode() + os.urandom(200_000))
    (tmp_path / "trainer.log.gz").write_bytes(whole[: len(whole) // 2])
    assert main(["diagnose", str(tmp_path)]) == 0
    assert "Not all of trainer.log.gz could be read" in capsys.readouterr().out

    (tmp_path / "trainer.log.gz").write_bytes(whole[:12])  # not one byte can be unpacked
    assert main(["diagnose", str(tmp_path)]) == 1
    assert "trainer.log.gz cannot be read: it is compressed, and damaged from its start on." in capsys.readouterr().err
    with (tmp_path / "trainer.log.gz").open() as piped:
        monkeypatch.setattr("sys.stdin", piped)
        assert main(["diagnose", "-"]) == 1
    assert "stdin cannot be read: it is compressed, and damaged from its start on." in capsys.readouterr().err


@pytest.mark.parametrize("odd", ["", "[]", '{"reason": 1}'])
def test_of_a_bundle_whose_logs_are_silent_it_is_said_what_was_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], odd: str
) -> None:
    (tmp_path / "launcher.log").write_text("launched\nboom\n")
    (tmp_path / places.BUNDLE).write_text(odd)
    assert main(["diagnose", str(tmp_path)]) == 3
    assert capsys.readouterr().out.startswith("Nothing here says that anything failed.\n")

    (tmp_path / places.BUNDLE).write_text(
        json.dumps({"reason": "The job ended with exit code 1 before its first step."})
    )
    assert main(["diagnose", str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert said.startswith("Nothing here says why it failed.\n")
    assert "seen from outside: The job ended with exit code 1 before its first step." in said

    (tmp_path / "trainer.log").write_text(OOM)
    assert main(["diagnose", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Root cause: cuda-oom")


def test_secrets_are_masked_and_control_characters_are_no_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    (tmp_path / "trainer.log").write_text(
        "OSError: [Errno 28] \x07\x1b]0;title\x07 0123456789abcdef0123456789abcdef01234567\n"
    )
    assert main(["diagnose", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "0123456789abcdef0123456789abcdef01234567" not in said


def test_memory_is_bounded_for_lines_without_an_end_and_for_many_kinds_of_errors() -> None:
    stream = io.BytesIO(b"x" * (3 * BLOCK_BYTES) + b"\n" + OOM.encode())
    (log,) = scan(stream, "a", "trainer")
    assert log.lines == 2
    assert [event.name for event in log.events] == ["cuda-oom"]
    many = "".join(
        f'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOdd{n}Error: x\n' for n in range(2000)
    )
    (log,) = scan(io.BytesIO(many.encode()), "a", "trainer")
    assert len(log.events) <= 400
    assert LINE_BYTES <= BLOCK_BYTES


def test_a_text_that_joins_several_logs_is_several_logs() -> None:
    text = (
        "==> launcher.log <==\n03:00:00    INFO Starting RL run\n\n==> inference.log <==\nINFO x\n"
        + OOM
        + ("==> kernel.txt <==\n2026-01-06 03:00:12 [1.000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n")
    )
    logs = scan(io.BytesIO(text.encode()), "incident-1.txt")
    assert [(log.name, log.role, log.kernel) for log in logs[-3:]] == [
        ("incident-1.txt (launcher.log)", "launcher", False),
        ("incident-1.txt (inference.log)", "inference", False),
        ("incident-1.txt (kernel.txt)", None, True),
    ]
    assert [event.first.line for log in logs for event in log.events] == [6, 8]


@pytest.mark.parametrize(
    ("name", "role", "kernel"),
    [
        ("logs/inference.stdout", "inference", False),
        ("logs/trainer/rank_3.log", "trainer", False),
        ("logs/trainer/torchrun/x_y/attempt_0/3/stderr.log", "trainer", False),
        ("logs/attempt_2/envs/train/wordle.log", "env", False),
        ("run_default/logs/orchestrator.log", "orchestrator", False),
        ("logs/rl.log", "launcher", False),
        ("kept/inference-inference.log.gz", "inference", False),
        ("kernel.txt", None, True),
        ("/var/log/dmesg", None, True),
        ("out.txt", None, False),
    ],
)
def test_whose_log_it_is_by_its_name(name: str, role: str | None, kernel: bool) -> None:
    assert identify_log(name) == (role, kernel)


def test_of_our_own_folders_every_attempt_is_read_with_its_pieces(tmp_path: Path) -> None:
    first, second = tmp_path / "attempts" / "0001", tmp_path / "attempts" / "0002"
    (first / "kept").mkdir(parents=True)
    second.mkdir()
    (first / "rl.log.0001-40.gz").write_bytes(gzip.compress(b"03:00:00    INFO Starting RL run\n"))
    (first / "rl.log").write_text("03:05:00   ERROR Error: Trainer failed with exit code 1\n")
    (first / "kept" / "trainer-trainer.log").write_text(OOM)
    (second / "rl.log").write_text("03:10:00    INFO Starting RL run\n")
    found = {(one.attempt, one.role): len(one.pieces) for one in sources(tmp_path)}
    assert found == {("attempt 1", "launcher"): 2, ("attempt 1", "trainer"): 1, ("attempt 2", "launcher"): 1}
    assert {one.attempt for one in sources(first)} == {"attempt 1"}


def test_what_of_a_folder_is_left_out_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "inference.log")
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    assert main(["diagnose", str(tmp_path)]) == 1
    assert "Left out of" in capsys.readouterr().err
    for number in range(5):
        log = tmp_path / f"attempt_{number}" / "trainer.log"
        log.parent.mkdir()
        log.write_text(STEP.format(n=number) + OOM)
        os.utime(log, (1000 + number, 1000 + number))
    monkeypatch.setattr(places, "MOST_FILES", 2)
    assert main(["diagnose", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Read: 2 logs" in said
    assert (
        f"Left out of {tmp_path}: gone.log (No such file or directory), inference.log (a pipe); 3 older logs, all but "
        "the newest 2. Name a file, or a smaller folder, to have it read." in said
    )
    assert [one.name for one in sources(tmp_path)] == ["attempt_3/trainer.log", "attempt_4/trainer.log"]
    assert main(["diagnose", "--json", str(tmp_path)]) == 0
    assert len(json.loads(capsys.readouterr().out)["left_out"]) == 1
    assert main(["diagnose", str(tmp_path / "attempt_4")]) == 0
    assert "Left out" not in capsys.readouterr().out


def test_folders_without_logs_are_passed_over_and_a_link_is_no_second_log(tmp_path: Path) -> None:
    logs = tmp_path / "logs" / "attempt_1"
    logs.mkdir(parents=True)
    (logs / "trainer.log").write_text(OOM)
    (logs / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "logs" / "latest").symlink_to("attempt_1")
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "x.log").write_text(OOM)
    (found,) = sources(tmp_path)
    assert (found.name, found.attempt) == ("logs/attempt_1/trainer.log", "attempt_1")
