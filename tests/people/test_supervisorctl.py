"""``supervisorctl`` as people run it: its words and its exit code, against daemons on real sockets."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor import __version__
from supervisor.api.client import Client, NotThereError
from supervisor.api.protocol import Api
from supervisor.cli import ctl as supervisorctl
from supervisor.cli import render, said, which
from tests.people.desk import GIB, FakeDesk
from tests.people.in_process import call

Serve = Callable[..., Api]
CTL = [sys.executable, "-m", "supervisor.cli.ctl"]
WAITS = "No daemon answers at present. Waiting for one; `supervisorctl status bs4-qwen3` says more.\n"


def process(*words: str) -> subprocess.CompletedProcess[str]:
    # The environment by name: readline, which pytest imports, writes COLUMNS into that of the C library.
    return subprocess.run([*CTL, *words], capture_output=True, text=True, timeout=30, env={**os.environ})


def ctl(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The same here, which is much quicker."""
    return call(supervisorctl.main, words, env)


def follow(*words: str) -> subprocess.Popen[str]:
    # Where the tests themselves run in the background, SIGINT is ignored, and a child would inherit that.
    return subprocess.Popen(
        [*CTL, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    return out, err


# ---------------------------------------------------------------- status


def test_the_first_line_tells_the_morning_what_the_night_was(serve: Serve) -> None:
    desk = FakeDesk()
    serve(desk)
    answer = ctl("status")
    at = datetime.fromtimestamp(desk.now["last_incident"]["opened"]).astimezone().strftime("%H:%M")
    lines = answer.stdout.splitlines()
    assert lines[0] == (
        "bs4-qwen3  RUNNING  step 412 of 1000, 212 s a step, reward 0.41; published step 410; "
        f"last incident at {at}: vLLM died silently: process 4711 is gone and GPU 0 fell to 0 MiB; "
        "back after 3 min 41 s"
    )
    us = "rl-supervisor 0.1.0 (process 4000, up 2 h)"
    back = datetime.fromtimestamp(desk.now["since"]).astimezone().strftime("%H:%M")
    assert lines[1:] == [
        "  progress      step 412 of 1000, 212 s a step, reward 0.41; about 34 h 37 min to go",
        f"  attempt       2, 1 restart, process 5001, running since {back}",
        "  checkpoints   here steps 400, 410, 420 writing, last good step 410",
        "  store         b2://bucket/prefix holds step 410",
        "  disk          /workspace 60% used, 80.0 GiB of 200 GiB free",
        "  gpu 0         inference 70.0 GiB of 80.0 GiB used",
        "  engine        /health ok, 12 running, 0 waiting",
        f"  last incident #1 at {at}, over after 3 min 41 s with step 401 (supervisorctl incidents 1 bs4-qwen3)",
        f"  job           prime-rl, as of 2026-06-22 (v0.6); W&B run abcd1234; {us}",
    ]
    assert (answer.returncode, answer.stderr) == (0, "")
    real = process()
    assert (real.returncode, real.stdout, real.stderr) == (0, answer.stdout, ""), "as a process of its own"


def test_a_step_that_was_left_is_no_step_that_the_store_holds() -> None:
    went = "the run went back to step 10"
    stored = [
        {"step": step, "committed": True, "size_bytes": GIB, "left": went if step > 10 else ""} for step in (10, 20)
    ]
    now = FakeDesk(stored_steps=stored).now
    assert any(line.startswith("  store ") and line.endswith(" holds step 10") for line in render.status_block(now))
    assert any(re.match(rf"20 .* published .*left: {went}", line) for line in render.checkpoints(now))


def test_a_step_that_is_not_whole_in_the_store_says_why() -> None:
    stored = [{"step": 92, "committed": False, "size_bytes": GIB, "left": "", "problem": "step 92 lacks model.pt"}]
    now = FakeDesk(stored_steps=stored).now
    assert any(re.match(r"92 .* incomplete .*in the store: step 92 lacks model.pt", x) for x in render.checkpoints(now))
    damaged = {**now, "damaged": {"92": "one byte differs"}}
    assert any(line.endswith("damaged in the store: one byte differs") for line in render.checkpoints(damaged))


def test_a_step_that_comes_from_the_store_is_shown_as_one() -> None:
    moving = {"what": "restoring", "phase": "fetching", "step": 7, "bytes": 1 << 20, "total_bytes": 4 << 20}
    block = render.status_block(FakeDesk(publishing={**moving, "rate": 0, "remaining_s": None}).now)
    assert "  restoring     step 7, fetching 1.0 MiB of 4.0 MiB (25 %)" in block
    assert render.transfer({"step": 7, "phase": "", "bytes": 0, "total_bytes": 0}) == "step 7, about to begin"


def test_trouble_is_shown_where_it_is() -> None:
    desk = FakeDesk(
        paused=True, state="recovering", sentence="the job is starting", store_reason="the key is not valid",
        gpus=[], gpu_reason="the driver hangs", disk={"path": "/w", "reason": "statvfs hangs"}, exit_code=93,
        incident={"id": 2, "opened": 0.0, "cause": "engine-gone", "sentence": "vLLM is gone.", "seconds": 12.0},
        config_changed=["/w/rl.toml"], notes=["no W&B id in this era"], engine=None, last_incident=None,
        publishing={"what": "publishing", "phase": "sending", "step": 420, "bytes": 12 * GIB,
                    "total_bytes": 31 * GIB, "rate": 240 << 20, "remaining_s": 81.0},
    )  # fmt: skip
    block = "\n".join(render.status_block(desk.now, now=1e9))
    for told in (
        "cannot be used: the key is not valid",
        "unknown: the driver hangs",
        "/w unknown: statvfs hangs",
        ", open for 12 s: vLLM is gone (supervisorctl incidents 2 bs4-qwen3)",
        "/w/rl.toml differs from what runs; take it with: supervisorctl restart --new-config",
        "no W&B id in this era",
        "publishing    step 420, sending 12.0 GiB of 31.0 GiB (38 %) at 240 MiB/s, about 81 s to go",
        "exit code     93",
    ):
        assert told in block
    assert render.headline(desk.now, "r").startswith("r  RECOVERING (PAUSED)  the job is starting")


@pytest.mark.parametrize(
    ("state", "code"),
    [
        *[(state, 0) for state in ("running", "recovering", "publishing")],
        *[(state, 3) for state in ("stopped", "finished", "gave-up", "unfit")],
        ("odd", 4),
    ],
)
def test_status_ends_as_the_linux_standard_base_says(serve: Serve, state: str, code: int) -> None:
    serve(FakeDesk(state=state))
    answer = ctl("status", "bs4-qwen3")
    assert answer.returncode == code
    assert state.upper().replace("-", " ") in answer.stdout.splitlines()[0]


def test_several_runs_are_listed_and_have_to_be_named(serve: Serve, sockets: Path) -> None:
    first, second = FakeDesk("a"), FakeDesk("long-name", state="finished", sentence="all 1000 steps are done")
    serve(first)
    serve(second)
    listed = ctl()
    assert [line[:20] for line in listed.stdout.splitlines()] == ["a          RUNNING  ", "long-name  FINISHED "]
    assert listed.returncode == 3
    assert ctl("status", "a").returncode == 0
    refused = ctl("stop")
    assert (refused.returncode, refused.stderr) == (2, "There are 2 runs on this machine, name one: a, long-name.\n")
    no_run = f"nosuch is no run's name. {refused.stderr}"
    assert (ctl("tail", "nosuch").returncode, ctl("tail", "nosuch").stderr) == (2, no_run)
    assert ctl("stop", "--run", "a").stdout == "a: The order to stop is taken.\n"
    assert ctl("--socket", str(sockets / "a.sock"), "pause").returncode == 0
    assert ctl("-r", "a", "resume", "b").returncode == 2
    assert ctl("restart", "all").stdout.count("is taken") == 2
    assert [verb for verb, _, _ in first.orders] == ["stop", "pause", "restart"]
    assert [verb for verb, _, _ in second.orders] == ["restart"]
    statuses = json.loads(ctl("--json").stdout)
    assert [status["run"] for status in statuses] == ["a", "long-name"]
    assert json.loads(ctl("status", "a", "--json").stdout)["step"] == 412


def test_a_run_is_found_by_its_id_where_its_socket_is_called_otherwise(serve: Serve, sockets: Path) -> None:
    serve(FakeDesk())
    (sockets / "bs4-qwen3.sock").rename(sockets / "mine.sock")
    assert ctl("status", "bs4-qwen3").returncode == 0
    assert ctl("pause", "bs4-qwen3").returncode == 0
    assert "there are bs4-qwen3" in ctl("status", "nobody").stdout


def test_no_daemon_here_says_what_to_do(sockets: Path, tmp_path: Path) -> None:
    nothing = ctl()
    assert nothing.returncode == 3
    assert "No daemon runs on this machine. Start one with `rl-supervisor run RUN.toml`" in nothing.stdout
    unknown = ctl("status", "nobody", XDG_STATE_HOME=str(tmp_path))
    assert unknown.returncode == 4
    assert "There is no run named nobody on this machine" in unknown.stdout
    for name, text in (("none", ""), ("bad", "run = 1")):
        file = tmp_path / f"{name}.toml"
        if text:
            file.write_text(text)
        unknown = ctl("status", str(file), XDG_STATE_HOME=str(tmp_path))
        assert (unknown.returncode, unknown.stderr) == (4, ""), "as the Linux Standard Base says, and README"
        assert unknown.stdout.startswith(f"{file}  UNKNOWN  {file}"), unknown.stdout
    (tmp_path / "rl-supervisor" / "known").mkdir(parents=True)
    gone = ctl("status", "known", XDG_STATE_HOME=str(tmp_path))
    assert gone.returncode == 3
    start = which.Here("known", state_dir=tmp_path).start_command()
    assert start.endswith("known")
    assert f"NOT RUNNING  No daemon watches known now. Start it with `{start}`" in gone.stdout
    order = ctl("stop", "known", XDG_STATE_HOME=str(tmp_path))
    assert order.returncode == 1
    assert order.stderr.startswith("known: No daemon watches known now.")


def test_the_socket_of_a_dead_daemon_is_a_run_that_is_not_there(sockets: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(sockets / "dead.sock"))
    answer = ctl()
    assert answer.returncode == 3
    assert answer.stdout.startswith("dead  NOT RUNNING  No daemon answers for dead (")
    assert ctl("start").stderr.startswith("dead: No daemon answers for dead (")


def test_an_order_that_is_refused_ends_with_one(serve: Serve) -> None:
    desk = FakeDesk()
    desk.refuses = "The run is finished: start it with --fresh."
    serve(desk)
    answer = ctl("start")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "bs4-qwen3: The run is finished: start it with --fresh.\n"
    told = json.loads(ctl("start", "--json").stdout)
    assert told == {"run": "bs4-qwen3", "ok": False, "sentence": desk.refuses}


def test_an_order_without_an_answer_may_still_be_obeyed(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a daemon does that was stopped with SIGSTOP, or waits for a disk."""
    monkeypatch.setattr(Client.__init__, "__defaults__", (0.2,))
    monkeypatch.setattr(which, "LOOK_S", 0.2)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(sockets / "gamma.sock"))
        deaf.listen()
        order = ctl("rollback", "240", "gamma")
        assert (order.returncode, order.stderr) == (
            1,
            "gamma gave no answer in 0.2 s. It may still obey this order: look at `supervisorctl status gamma`.\n",
        )
        question = ctl("explain", "gamma").stderr
        assert question == f"gamma gave no answer in 0.2 s ({sockets}/gamma.sock).\n"


def test_restart_takes_the_new_configuration_only_when_told(serve: Serve) -> None:
    desk = FakeDesk()
    serve(desk)
    assert ctl("restart").returncode == 0
    assert ctl("restart", "bs4-qwen3", "--new-config").returncode == 0
    assert [args for _, args, _ in desk.orders] == [[], ["--new-config"]]


def test_a_terminal_gets_colour_and_no_color_takes_it_away(serve: Serve) -> None:
    serve(FakeDesk())
    for no_color in ("", "1"):
        master, slave = pty.openpty()
        env = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm"}
        subprocess.run([*CTL, "status"], stdout=slave, timeout=30, check=True, env=env)
        os.close(slave)
        text = os.read(master, 10_000).decode()
        os.close(master)
        assert ("\x1b[32mRUNNING\x1b[0m" in text) is (no_color == "")


def test_what_comes_from_a_job_cannot_play_with_the_terminal(serve: Serve) -> None:
    serve(FakeDesk(sentence="step\x1b]0;owned\x07 1\n2", notes=["a\x1b[2Jb"]))
    out = ctl("status").stdout
    assert "\x1b" not in out
    assert "\x07" not in out
    assert render.log_text("\x1b[31mred\x1b[0m \x1b]0;owned\x07\x1b[2J\n") == "\x1b[31mred\x1b[0m ?]0;owned??[2J\n"


# ---------------------------------------------------------------- logs, events and the rest


def test_tail_finds_the_run_and_the_role(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    desk = FakeDesk()
    desk.files = {"trainer": log, "launcher": log}
    serve(desk)
    assert ctl("tail", "-n", "2", "trainer").stdout == "line 98\nline 99\n"
    assert ctl("tail", "-n", "1", "bs4-qwen3").stdout == "line 99\n"
    assert ctl("tail", "-n", "1", "bs4-qwen3", "trainer").stdout == "line 99\n"
    assert len(ctl("tail", "launcher").stdout.splitlines()) == 20
    assert ctl("tail", "-n", "3").stdout == "line 97\nline 98\nline 99\n"
    unknown = ctl("tail", "engine")
    assert (unknown.returncode, unknown.stderr) == (1, "There is no log of 'engine'; there are launcher, trainer.\n")
    assert ctl("tail", "-n", "many").returncode == 2
    assert ctl("tail", "a", "b", "c").returncode == 2


def test_tail_follows_into_the_log_of_the_next_attempt(serve: Serve, tmp_path: Path) -> None:
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_text("old\n")
    desk = FakeDesk()
    desk.files = {"trainer": first}
    serve(desk)
    process = follow("tail", "-f", "trainer")
    assert process.stdout
    assert process.stdout.readline() == "old\n"
    with first.open("a") as file:
        file.write("more\n")
    assert process.stdout.readline() == "more\n"
    second.write_text("new attempt\n")
    desk.files = {"trainer": second}
    assert process.stdout.readline() == "new attempt\n"
    out, err = interrupt(process)
    assert (out, err) == ("", f"==> {second} <==\n")


def test_events_are_told_with_their_time_and_followed(serve: Serve) -> None:
    desk = FakeDesk()
    for number in range(1, 31):
        desk.say(f"step {number} of 1000", "info" if number < 30 else "error")
    serve(desk)
    lines = ctl("events", "-n", "3").stdout.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        "step 28 of 1000",
        "step 29 of 1000",
        "ERROR  step 30 of 1000",
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in lines)
    process = follow("events", "-f", "-n", "1", "--json")
    assert process.stdout
    assert json.loads(process.stdout.readline())["id"] == 30
    desk.say("step 31 of 1000")
    assert json.loads(process.stdout.readline())["sentence"] == "step 31 of 1000"
    interrupt(process)


@pytest.mark.soak
def test_a_follower_of_events_waits_while_no_daemon_answers_and_goes_on_where_it_was(serve: Serve) -> None:
    desk = FakeDesk()
    desk.say("step 1 of 1000")
    api = serve(desk)
    process = follow("events", "-f", "--json")
    assert process.stdout
    assert json.loads(process.stdout.readline())["id"] == 1
    api.close()
    assert process.stderr
    assert process.stderr.readline() == WAITS
    desk.say("The program was replaced.")
    serve(desk)
    assert json.loads(process.stdout.readline())["sentence"] == "The program was replaced."
    assert interrupt(process) == ("", ""), "it says once that it waits"


def test_a_follower_of_a_log_waits_while_no_daemon_answers_and_goes_on_where_it_was(
    serve: Serve, tmp_path: Path
) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("old\n")
    desk = FakeDesk()
    desk.files = {"trainer": log}
    api = serve(desk)
    process = follow("tail", "-f", "trainer")
    assert process.stdout
    assert process.stdout.readline() == "old\n"
    api.close()
    assert process.stderr
    assert process.stderr.readline() == WAITS
    with log.open("a") as file:
        file.write("more\n")
    serve(desk)
    assert process.stdout.readline() == "more\n"
    assert interrupt(process) == ("", "")


def test_a_follower_ends_some_minutes_after_its_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that follows a run to its end would wait for ever."""

    class Gone:
        named = "bs4"

        def get(self, page: str, **query: object) -> dict[str, Any]:
            raise NotThereError("No daemon answers for bs4.")

    monkeypatch.setattr(said, "AWAY_S", 0.3)
    monkeypatch.setattr(said, "FOLLOW_S", 0.1)
    with pytest.raises(NotThereError):
        said._ask_patiently(Gone(), "/v1/events")  # type: ignore[arg-type]


def test_checkpoints_explain_and_version(serve: Serve) -> None:
    serve(FakeDesk())
    assert ctl("checkpoints").stdout.splitlines() == [
        "STEP  HERE      STORE       SIZE",
        "400   complete  -           31.0 GiB",
        "410   complete  published   31.0 GiB  last good step; latest published",
        "415   -         incomplete  1.0 GiB",
        "420   writing   -           1.0 GiB   its files still change",
    ]
    assert ctl("explain").stdout.splitlines() == [
        "Healthy: step 412 of 1000.",
        "  waits for: A new step: three times the median of 212 s (8 min 20 s left)",
        "Before:",
        "  vLLM died silently.",
        "Evidence:",
        "  engine  3 s ago  /health ok",
    ]
    assert ctl("version").stdout == f"supervisorctl {__version__}\nbs4-qwen3 0.1.0\n"
    assert json.loads(ctl("explain", "--json").stdout)["deadline"]["seconds_left"] == 500


def test_wrong_words_are_usage_and_a_closed_pipe_is_no_error(serve: Serve) -> None:
    serve(FakeDesk())
    wrong = ctl("explode")
    assert wrong.returncode == 2
    assert "explode" in wrong.stderr
    piped = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -m supervisor.cli.ctl checkpoints | true', sys.executable],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (piped.returncode, piped.stderr) == (0, "")


def test_a_closed_pipe_does_not_hide_that_a_run_is_stopped(serve: Serve) -> None:
    desk = FakeDesk()
    desk.now["state"] = "stopped"
    serve(desk)
    alone = ctl("status", "bs4-qwen3").returncode
    piped = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -m supervisor.cli.ctl status bs4-qwen3 | true', sys.executable],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (piped.returncode, piped.stderr) == (alone, "")
    assert alone == 3


# ---------------------------------------------------------------- the words of supervisord's users


def test_help_names_the_commands_and_explains_one(serve: Serve) -> None:
    answer = ctl("help")
    assert (answer.returncode, answer.stdout) == (0, ctl("--help").stdout)
    answer = ctl("help", "restart")
    assert (answer.returncode, answer.stdout) == (0, ctl("restart", "--help").stdout)
    assert "kill -s SIGNAL" in ctl("help", "signal").stderr
    wrong = ctl("help", "explode")
    assert wrong.returncode == 2
    assert "explode" in wrong.stderr


def test_pid_is_the_daemons_and_with_a_name_the_jobs(serve: Serve, sockets: Path) -> None:
    serve(FakeDesk())
    assert (ctl("pid").stdout, ctl("pid", "bs4-qwen3").stdout) == ("4000\n", "5001\n")
    assert json.loads(ctl("pid", "--json").stdout) == [{"run": "bs4-qwen3", "daemon_pid": 4000, "pid": 5001}]
    serve(FakeDesk("second", pid=None, daemon_pid=4001))
    several = ctl("pid")
    assert (several.returncode, several.stdout) == (0, "4000\n4001\n"), "one a line, as the runs are listed"
    every = ctl("pid", "all")
    assert (every.returncode, every.stdout) == (0, "5001\n0\n")
    stopped = ctl("pid", "second")
    assert (stopped.returncode, stopped.stdout) == (1, "0\n"), "no job runs"
    assert ctl("pid", "nowhere").returncode != 0


def test_avail_lists_the_runs_of_this_machine_also_those_without_a_daemon(serve: Serve, sockets: Path) -> None:
    left = sockets / "state" / "rl-supervisor" / "last-week"
    left.mkdir(parents=True)
    serve(FakeDesk())
    answer = ctl("avail")
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in answer.stdout.splitlines()}
    assert answer.returncode == 0
    assert lines["bs4-qwen3"].startswith("in use")
    assert lines["last-week"].split() == ["avail", str(left)]


@pytest.mark.parametrize("word", ["reread", "update"])
def test_changed_configuration_is_named_and_never_taken_by_a_word_of_habit(serve: Serve, word: str) -> None:
    desk = FakeDesk()
    serve(desk)
    answer = ctl(word)
    assert (answer.returncode, answer.stdout) == (0, "bs4-qwen3: no configuration file has changed\n")
    desk.now["config_changed"] = ["/w/rl.toml"]
    answer = ctl(word, "bs4-qwen3")
    assert answer.stdout == (
        "bs4-qwen3: changed: /w/rl.toml; the job runs on without the change. Stop it and start it with the change: "
        "supervisorctl restart bs4-qwen3 --new-config\n"
    )
    assert answer.returncode == (1 if word == "update" else 0), "an update was asked for, and none was done"
    assert desk.orders == []


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["signal", "HUP", "bs4-qwen3"], "kill -s SIGNAL $(supervisorctl pid NAME)"),
        (["add", "x"], "rl-supervisor install --run RUN.toml"),
        (["remove", "x"], "supervisorctl shutdown NAME"),
        (["reload"], "supervisorctl upgrade NAME"),
        (["maintail", "-f"], "supervisorctl events -f"),
        (["-c", "/etc/supervisor/supervisord.conf", "status"], "supervisorctl -r RUN.toml COMMAND"),
        (["--serverurl=unix:///run/supervisor.sock", "status"], "supervisorctl --socket PATH COMMAND"),
        (["fg", "x"], "supervisorctl tail -f NAME ROLE"),
        (["clear", "all"], "[logs] max_mb"),
        (["open", "unix:///x"], "supervisorctl --socket PATH"),
        (["quit"], "supervisorctl status"),
        (["exit"], "supervisorctl status"),
    ],
)
def test_a_word_that_does_nothing_here_says_in_one_line_what_to_type(
    serve: Serve, words: list[str], instead: str
) -> None:
    desk = FakeDesk()
    serve(desk)
    answer = ctl(*words)
    assert answer.returncode == 2
    assert instead in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert desk.orders == []
