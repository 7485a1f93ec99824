"""What a person hands on: the report in Markdown, the page as a file, the post-mortem of an incident."""

from __future__ import annotations

import html
import json
import re
import shutil
import socket
import struct
from pathlib import Path

import pytest

from supervisor.cli import post_mortem, web
from supervisor.cli.document import Bullets, Document, Paragraph, Section, Table, mark_down, to_html, to_markdown
from supervisor.cli.hand_on import HOST, clean_texts, hide_hosts
from supervisor.core import facts as f
from supervisor.evidence.known import MANIFEST
from supervisor.views import run_report
from tests.people.test_report import Kept, a_bad_night, another_pod, asked, leave, run_file  # noqa: F401 (a fixture)

SCRIPT = "<img src=x onerror=alert(1)> | `rm` @octocat #12 [x](http://10.1.2.3/y)"
KEY = "0123456789abcdef0123456789abcdef01234567"


def a_night_with_a_root_cause(folder: Path) -> Kept:
    world = a_bad_night(folder)
    remedy = "Give the engine less memory: gpu_memory_utilization."
    world.see(f.RootSeen(1, 1, "cuda-oom", "inference", f"CUDA out of memory on node-7.lab.internal. {SCRIPT}", remedy))
    return world


# ---------------------------------------------------------------- the report


@pytest.mark.soak
def test_the_markdown_has_the_ledgers_numbers_and_utc_times(run_file: Path, tmp_path: Path) -> None:  # noqa: F811
    world = a_bad_night(tmp_path)
    world.journal.close()
    answer, told = asked(run_file, "--md"), json.loads(asked(run_file, "--json").stdout)
    assert answer.returncode == 0, answer.stderr
    rows = [line.split("|")[1:-1] for line in answer.stdout.splitlines() if line.startswith("|")]
    assert all(len(row) == len(rows[0]) for row in rows[: len(told["categories"]) + 3])
    ledger = {row[0].strip(): row[2].strip() for row in rows if len(row) == 3}
    shares = run_report.percentages(told["categories"])
    assert ledger["training: steps that stayed"] == shares["GOODPUT"]
    assert "2023-11-14 22:30 UTC to 2023-11-14 23:14 UTC" in answer.stdout
    assert f"At $36.00 an hour that is ${told['cost']['dollars']:.2f}" in answer.stdout
    assert "| 1 | 2023-11-14 22:54 UTC | vLLM died silently" in answer.stdout


def test_a_run_on_two_pods_has_a_row_for_each(run_file: Path, tmp_path: Path) -> None:  # noqa: F811
    a_bad_night(tmp_path).journal.close()
    leave(run_file, "00000000000000aa", another_pod(1.7e9))
    told = asked(run_file, "--md").stdout
    assert re.search(r"^\| pod 1 \| 2023-11-14 21:13 UTC \|", told, re.M), told
    assert re.search(r"^\| pod 2, 1 \| 2023-11-14 22:54 UTC \|", told, re.M)


def test_one_shape_at_a_time(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    with pytest.raises(SystemExit):
        asked(run_file, "--md", "--json")


# ---------------------------------------------------------------- what is left out


def test_no_machine_is_named_and_words_that_only_look_like_one_stay() -> None:
    own = socket.gethostname()
    hidden = hide_hosts(
        {
            "a": f"{own} and {own}.lab.internal say: cannot reach 10.1.2.3:29500, [fe80::1:2], https://gpu-7.lab/x",
            "b": ["Pod gpu-9 holds this run (generation 3)", "the claim of pod gpu-9 (generation 3)", 7, None],
            "c": "vLLM 0.11.0.1 at 127.0.0.1:8000, train.py, 22:54:07, torch.distributed, the pod is unfit, pod 2",
        }
    )
    assert hidden == {
        "a": f"{HOST} and {HOST} say: cannot reach {HOST}:29500, {HOST}, https://{HOST}/x",
        "b": [f"Pod {HOST} holds this run (generation 3)", f"the claim of pod {HOST} (generation 3)", 7, None],
        "c": f"vLLM {HOST} at 127.0.0.1:8000, train.py, 22:54:07, torch.distributed, the pod is unfit, pod 2",
    }, "of a version with four parts and an address none can tell which it is"


def test_secrets_go_in_every_case() -> None:
    for clean in (hide_hosts, clean_texts):
        assert clean(f"WANDB_API_KEY={KEY} \x1b[31mred") == "WANDB_API_KEY=*** red"


@pytest.mark.soak
def test_full_keeps_the_machines(run_file: Path, tmp_path: Path) -> None:  # noqa: F811
    a_night_with_a_root_cause(tmp_path).journal.close()
    assert "10.1.2.3" not in asked(run_file, "--incident", "1", "--md").stdout
    assert "10.1.2.3" in asked(run_file, "--incident", "1", "--md", "--full").stdout


@pytest.mark.soak
@pytest.mark.parametrize("full", [False, True])
def test_the_page_as_a_file_is_as_clean(run_file: Path, tmp_path: Path, full: bool) -> None:  # noqa: F811
    pytest.importorskip("starlette")
    pytest.importorskip("plotly")
    a_night_with_a_root_cause(tmp_path).journal.close()
    file = tmp_path / "page.html"
    assert asked(run_file, "--html", str(file), *(["--full"] if full else [])).returncode == 0
    found = re.search(r'id="data">(.*?)</script>', file.read_text(), re.S)
    assert found is not None
    assert ("10.1.2.3" in found[1]) is full
    assert "CUDA out of memory" in found[1]


@pytest.mark.parametrize("words", [("--html",), ("--png",), ("--incident", "1", "--html")])
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    run_file: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setattr("supervisor.cli.web._freeze", None)
    monkeypatch.setattr("supervisor.views.run_report.gather", None)
    told = asked(run_file, *words, str(tmp_path / "none/x.html"))
    assert told.stderr == f"{tmp_path}/none/x.html cannot be written: No such file or directory.\n"
    assert not (tmp_path / "none").exists()


# ---------------------------------------------------------------- text stays text


def test_a_hostile_line_is_no_markup_in_markdown_or_html() -> None:
    document = Document(
        SCRIPT, [Section(SCRIPT, [Paragraph(SCRIPT), Bullets([SCRIPT]), Table([["a", "b"], [SCRIPT, "c"]])])]
    )
    down, page = to_markdown(document), to_html(document)
    assert not re.search(r"(?<!\\)[<`\[]", down)
    assert "@octocat" not in down and "#12" not in down
    row = down.splitlines()[-1]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3, "the text opens no cell"
    assert "<img" not in page
    assert page.count(html.escape(SCRIPT)) == 6
    assert "default-src 'none'" in page
    assert mark_down("step_5 ~ 3 * 4") == r"step\_5 \~ 3 \* 4"


# ---------------------------------------------------------------- one incident


@pytest.mark.soak
def test_a_post_mortem_tells_what_when_why_and_what_it_cost(run_file: Path, tmp_path: Path) -> None:  # noqa: F811
    world = a_night_with_a_root_cause(tmp_path)
    keep_evidence(tmp_path / "state")
    world.journal.close()
    answer = asked(run_file, "--incident", "1")
    assert answer.returncode == 0, answer.stderr
    text = " ".join(answer.stdout.split())
    parts = ["Time line", "Evidence", "Decision", "What it cost", "What would have prevented it"]
    assert [part for part in answer.stdout.splitlines() if part in parts] == parts
    assert "22:54 2 s vLLM died silently" in text
    assert "22:57 3 min 33 s Incident 1 is over" in text
    assert "Seen: GPU 0 holds 0 B." in text
    assert "Root cause: cuda-oom in the inference server" in text
    assert re.search(r"Kept in \S+/incidents/1-attempt-1 \(4 KiB\): logs\.", text)
    assert "Attempt 2 is launched, resuming at step 5." in text
    assert (
        "Time: 3 min 33 s (2 s until it was noticed, 3 s until the job was stopped, 3 min 28 s from the launch" in text
    )
    assert "Steps lost: 2. To do them again took about 6 min 40 s" in text
    assert f"Dollars: ${(213 + 400) / 100:.2f} at $36.00 an hour, lost steps included." in text
    assert "cuda-oom: Give the engine less memory" in text
    (row,) = json.loads(asked(run_file, "--json").stdout)["incidents"]
    assert json.loads(asked(run_file, "--incident", "1", "--json").stdout)["cost"] == row


def keep_evidence(state_dir: Path, collected: float = 1.7e9) -> None:
    folder = state_dir / "incidents/1-attempt-1"
    folder.mkdir(parents=True)
    (folder / "explain.json").write_text(json.dumps({"verdict": {"signals": [{"sentence": "GPU 0 holds 0 B."}]}}))
    part = {"name": "logs", "state": "done", "seconds": 0.1, "files": {"logs/trainer.log": 10}, "notes": []}
    manifest = {
        "incident": 1,
        "attempt": 1,
        "collected": collected,
        "seconds": 0.2,
        "size_bytes": 4096,
        "parts": [part],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_pod_that_is_gone_left_only_its_ledger(run_file: Path) -> None:  # noqa: F811
    leave(run_file, "00000000000000aa", another_pod(1.7e9))
    told = asked(run_file, "--incident", "1").stdout
    assert "vLLM answered and made no progress." in told
    assert "The journal is on the pod." in told
    assert "Steps lost: 1." in told


def test_an_incident_that_does_not_exist_names_those_that_do(run_file: Path, tmp_path: Path) -> None:  # noqa: F811
    a_bad_night(tmp_path).journal.close()
    answer = asked(run_file, "--incident", "7")
    assert answer.returncode == 1
    assert answer.stderr.strip() == "Run bs4 has no incident 7. It has: 1."


def test_an_open_incident_is_told_as_open_and_known_errors_have_their_remedy(run_file: Path, tmp_path: Path) -> None:  # noqa: F811
    world = Kept(tmp_path / "state")
    world.boot()
    world.job_up()
    world.step(1)
    world.see(f.ErrorSeen("trainer", "cuda-oom", "torch.OutOfMemoryError: CUDA out of memory."))
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(20)
    world.journal.close()
    told = " ".join(asked(run_file, "--incident", "1").stdout.split())
    assert re.search(r"in attempt 1 and is open for \d+ s\.", told), told
    assert post_mortem._remedies_of_cause("cuda-oom")[0].split(".")[0] in told


def test_a_long_story_still_fits_a_page() -> None:
    story = [{"wall": 1.7e9 + n, "level": "info", "event": "x", "sentence": f"line {n}"} for n in range(200)]
    told = {"id": 3, "opened": 1.7e9, "story": story}
    (table,) = post_mortem._time_line(told)
    assert isinstance(table, Table)
    assert len(table.rows) == 1 + post_mortem.FIRST_LINES + 1 + post_mortem.LAST_LINES
    assert table.rows[post_mortem.FIRST_LINES + 1][2] == "176 more. All: supervisorctl incidents 3"


# ---------------------------------------------------------------- a picture


def test_a_picture_needs_a_browser_and_says_which(
    run_file: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_bad_night(tmp_path).journal.close()
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = asked(run_file, "--png", str(tmp_path / "page.png"))
    assert answer.returncode == 2
    assert "--png needs chromium: apt-get install --no-install-recommends chromium" in answer.stderr
    assert not (tmp_path / "page.png").exists()


def stand_in_browser(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The chromium that is found; a real one takes ten seconds of a processor for a picture."""
    browser = folder / "bin/chromium"
    browser.parent.mkdir()
    browser.write_text(f"#!/bin/sh\n{script}\n")
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", f"{browser.parent}:/usr/bin:/bin")
    return browser


@pytest.mark.soak
def test_the_picture_is_as_high_as_the_page_is_in_the_browser(
    run_file: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_bad_night(tmp_path).journal.close()
    draws = """
for word; do case $word in
    --dump-dom) echo '<!doctype html><html lang="en" data-height="1234"><body></body></html>' ;;
    --screenshot=*) echo "$@" >"${word#--screenshot=}" ;;
    file://*) grep -q 'id="data"' "${word#file://}" || exit 1 ;;
esac; done"""
    stand_in_browser(tmp_path, draws, monkeypatch)
    picture = tmp_path / "page.png"
    answer = asked(run_file, "--png", str(picture))
    assert answer.returncode == 0, answer.stderr
    assert {"--hide-scrollbars", "--window-size=1200,1254"} <= set(picture.read_text().split())
    assert f"{picture} has 1200 x 1254 points." in answer.stdout


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_the_picture_is_the_whole_page(run_file: Path, tmp_path: Path) -> None:  # noqa: F811
    a_bad_night(tmp_path).journal.close()
    rows = [{"t": 1.7e9 + 60 * n, "step": n, "role": "trainer", "loss": 1 / n, "s": 60.0} for n in range(1, 40)]
    (tmp_path / "state/series").mkdir()
    (tmp_path / "state/series/1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    picture = tmp_path / "page.png"
    answer = asked(run_file, "--png", str(picture))
    assert answer.returncode == 0, answer.stderr
    data = picture.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG")
    assert width == 1200
    assert height > 900, "two charts are on it"
    assert len(data) > 40_000, "and they are drawn"
    assert f"{picture} has {width} x {height} points." in answer.stdout


@pytest.mark.soak
@pytest.mark.parametrize("what", ["exit 0", "sleep 300"])
def test_a_browser_that_draws_nothing_or_hangs_is_told(
    run_file: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    a_bad_night(tmp_path).journal.close()
    browser = stand_in_browser(tmp_path, what, monkeypatch)
    monkeypatch.setattr(web, "BROWSER_S", 1.0)
    answer = asked(run_file, "--png", str(tmp_path / "page.png"))
    assert answer.returncode == 2
    assert f"{browser} {'does not show the page' if what == 'exit 0' else 'was not done within 1 s'}" in answer.stderr
