"""The views on an 80-column terminal: whole words, nothing twice, and what to type."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base import proc_stat
from supervisor.cli import render
from supervisor.cli.incidents import describe_incidents
from supervisor.cli.main import main
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.state import State
from supervisor.journal.journal import Journal
from supervisor.primerl.logs import SIGNATURES
from supervisor.process import run_lock
from supervisor.signatures.xids import WHAT_TO_DO
from supervisor.views import incidents, status, without_daemon
from tests.core.world import SETTINGS, NeverAgain, World

WORDS = "vLLM died silently: its process 4711 has been gone for 2 s while the launcher and the trainer live on. " * 3
COMMANDS = {"start": "bash /x/onstart.sh practice", "log": "tail -n 50 /x/daemon.jsonl"}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def recorded(folder: Path, world: World) -> None:
    """A journal of what the world has seen."""
    journal = Journal(folder)
    state = State()
    for observation in world.log:
        decision = decide(state, observation)
        journal.record(observation, state, decision.state, decision.actions)
        state = decision.state
    journal.close()


def failed(*, starts: bool = True) -> World:
    world = World() if starts else NeverAgain()
    world.running_at(12)
    world.see(f.ErrorSeen("launcher", "component-failed", "Error: Trainer failed with exit code 1"))
    world.see(f.ComponentExited(1, "launcher", 1))
    return world


@pytest.mark.usefixtures("narrow")
def test_each_view_breaks_between_words_on_a_narrow_terminal() -> None:
    status = {"state": "running", "sentence": WORDS, "notes": [WORDS], "disk": {"reason": WORDS}}
    lines = [
        *render.fold(render.headline(status, "practice"), "  "),
        *render.status_block(status),
        *render.explanation({"sentence": WORDS, "history": [WORDS]}),
        *describe_incidents(
            [{"id": 1, "opened": 0, "open": True, "down_s": 3, "cause": "x", "sentence": WORDS}], only_open=False
        ),
    ]
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count("its process 4711 has been gone") == 3 * 6


def test_a_pipe_gets_whole_lines_for_grep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", f"from supervisor.cli import render; print(len(render.fold({WORDS!r}, '')))"],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )
    assert done.stdout == "1\n"


def test_what_was_done_repeats_neither_the_incident_nor_a_long_command(tmp_path: Path) -> None:
    world = failed()
    world.see(f.RootSeen(1, 1, "cuda-oom", "trainer", "torch.OutOfMemoryError: CUDA out of memory.", "Smaller."))
    recorded(tmp_path, world)
    (one,) = incidents.read_incidents(tmp_path)
    assert one["roots"] == [
        {
            "attempt": 1,
            "name": "cuda-oom",
            "role": "trainer",
            "text": "torch.OutOfMemoryError: CUDA out of memory.",
            "remedy": "Smaller.",
        }
    ]
    assert "Attempt 2 is launched, resuming at step 10." in one["done"]
    text = " ".join(" ".join(describe_incidents([one], only_open=False)).split())
    assert 'Root cause: cuda-oom in the trainer: "torch.OutOfMemoryError' in text
    assert "Remedy: Smaller." in text
    assert text.count("Trainer failed with exit code 1") == 1, text


def test_diagnose_of_a_run_knows_that_the_supervisor_ended_an_attempt_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hang leaves no line but those of its end, and that was no person's and no provider's."""
    world = World()
    world.running_at(12)
    world.engine_process_dies()
    world.after(60)
    (verdict,) = world.said("verdict")
    recorded(tmp_path, world)
    ending = "03:12:00 INFO Step 12 | 45.1s\nReceived SIGTERM, terminating all processes...\n"
    write_attempt(tmp_path, 1, ending)
    for after in ("", ending):  # it is the newest attempt, and then one of those before
        if after:
            write_attempt(tmp_path, 2, "03:20:00 INFO Step 13 | 45.1s\n")
        main(["diagnose", str(tmp_path)])
        said = " ".join(capsys.readouterr().out.split())
        assert verdict in said
        assert "ended-from-outside" not in said, said
        assert f"{verdict} Either the run goes on" not in said, said
        main(["diagnose", "--json", str(tmp_path)])
        first = json.loads(capsys.readouterr().out)["attempts"][0]
        assert (first["root"], first["seen"]) == (None, verdict)


def test_diagnose_still_names_an_end_from_outside_where_nothing_went_wrong_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()
    world.running_at(12)
    recorded(tmp_path, world)
    write_attempt(tmp_path, 1, "Received SIGTERM, terminating all processes...\n")
    main(["diagnose", str(tmp_path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "The job was told to stop (ended-from-outside). Nothing in its logs failed before that." in said, said
    assert "The logs do not say who sent it" in said and "If you stopped it, nothing is wrong" in said, said
    assert "Root cause" not in said, "a stop is no failure"


def test_diagnose_of_a_run_tells_who_stopped_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.running_at(12)
    world.see(f.Command("stop", "alice (pid 7)"))
    world.after(10)
    recorded(tmp_path, world)
    write_attempt(tmp_path, 1, "Received SIGTERM, terminating all processes...\n")
    main(["diagnose", str(tmp_path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "attempt 1: The job was stopped on purpose. Nothing in its logs failed before that." in said, said
    assert "Stop was asked for by alice (pid 7). The run can go on from its last good step." in said, said
    main(["diagnose", "--json", str(tmp_path)])
    told = json.loads(capsys.readouterr().out)
    assert (told["root"]["name"], told["order"]) == ("ended-from-outside", "stop was asked for by alice (pid 7).")


@pytest.mark.usefixtures("narrow")
def test_diagnose_breaks_between_words_on_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. " + "Tried to allocate 2.00 GiB. " * 5
    write_attempt(tmp_path, 1, f"Traceback (most recent call last):\n{line}\n")
    main(["diagnose", str(tmp_path / "attempts/0001/rl.log")])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= max(80, len(str(tmp_path)) + 40), shown
    assert line.strip() in " ".join(shown.split())
    monkeypatch.delenv("COLUMNS")
    main(["diagnose", str(tmp_path / "attempts/0001/rl.log")])
    assert line.strip() in capsys.readouterr().out, "in a pipe the job's own line stays whole, for grep"


def write_attempt(state_dir: Path, number: int, text: str) -> None:
    folder = state_dir / "attempts" / f"{number:04d}"
    folder.mkdir(parents=True)
    (folder / "rl.log").write_text(text)


def test_what_helps_against_an_incident_that_is_over_is_told_as_help_for_its_return() -> None:
    """A bare "remedy" in the status of a run that is well again reads as an order: restart it, delete checkpoints."""
    root = {"name": "engine-dead", "role": "inference", "text": "EngineDeadError", "remedy": "Read the first error."}
    one = {"id": 1, "opened": 0, "down_s": 3, "cause": "x", "sentence": "vLLM died.", "roots": [root]}
    of_open = [
        "\n".join(render.status_block({"incident": one})),
        "\n".join(describe_incidents([{**one, "open": True}], only_open=False)),
    ]
    assert "  remedy        Read the first error." in of_open[0] and "Remedy: Read the first error." in of_open[1]
    over = [
        *(
            "\n".join(render.status_block({"last_incident": one})),
            "\n".join(describe_incidents([{**one, "open": False}], only_open=False)),
        ),
        "\n".join(render.unwatched_block({"incident": {**one, "open": False}})),
    ]
    for said in over:
        assert "emedy" not in said, said
        assert re.search(r"[Ii]f it returns:? +Read the first error\.", said), said


def test_no_remedy_of_the_catalogue_asks_for_the_restart_that_was_made_already() -> None:
    """Whether a restart helps is the kind of an error; a supervised run was restarted before a person reads this."""
    told = {one.name: one.remedy for one in SIGNATURES.signatures} | {
        str(key): text for key, text in WHAT_TO_DO.items()
    }
    assert [name for name, remedy in told.items() if re.match(r"Restart( the job| the engine)?( from|;)", remedy)] == []


def test_a_reason_to_give_up_is_told_without_what_the_incident_says_already(tmp_path: Path) -> None:
    world = World()
    world.boot()
    world.job_up()
    world.see(f.ErrorSeen("launcher", "config-invalid", "ValidationError: 1 error for RLConfig", deterministic=True))
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(60)
    assert world.said("gave-up")
    recorded(tmp_path, world)
    (one,) = incidents.read_incidents(tmp_path)
    assert any(sentence.startswith("A restart cannot cure this: mend it") for sentence in one["done"]), one["done"]


def test_the_newest_reason_leads_where_the_last_attempts_ended_otherwise(tmp_path: Path) -> None:
    """A port that a stranger held was told below the root cause of the attempt before, and its remedy."""
    port = "port 8000 is held by process 77 (python3, user bob)"
    for way in ("never launched", "refused at once", "same again"):
        world = failed(starts=way == "same again")
        world.see(f.RootSeen(1, 1, "cuda-oom", "trainer", "CUDA out of memory.", "Take a smaller micro batch."))
        while world.state.mode != "gave-up":
            world.after(1)
            number = world.state.attempt.number
            if world.state.mode == "starting" and way == "same again":
                world.see(f.ErrorSeen("launcher", "component-failed", "Error: Trainer failed with exit code 1"))
                world.see(f.ComponentExited(number, "launcher", 1))
            elif world.state.mode == "starting":
                world.see(f.StartFailed(number, port, permanent=way == "refused at once"))
        folder = tmp_path / way
        recorded(folder, world)
        found = without_daemon.look(folder, "r1")
        assert found["ended"] == 93
        said = render.headline_without_daemon(found, COMMANDS)
        first = render.unwatched_block({**found, "sentence": said})[:2]
        if way == "same again":
            assert first[0].startswith("  root cause    cuda-oom") and first[1].startswith("  remedy "), first
        else:
            assert first[0].startswith("  last words ") and port in first[0], first
            assert "remedy" not in "\n".join(render.unwatched_block(found)), "that of another trouble is no order"


def test_training_that_is_worth_nothing_is_told_though_the_run_is_finished(tmp_path: Path) -> None:
    """ "Finished", and nothing else, would be the opposite of what happened."""
    world = World()
    world.running_at(12)
    for number in (13, 14, 15):
        world.step(number, loss=float("nan"))
    (said,) = world.said("worth")
    recorded(tmp_path, world)
    assert without_daemon.look(tmp_path, "r1")["worthless"] == said
    block = render.unwatched_block({"worthless": said, "finished": True, "sentence": "The run is finished."})
    assert block == [f"  note          {said}"]


def test_a_daemon_that_ended_says_with_which_code_and_why(tmp_path: Path) -> None:
    world = World()
    world.boot()
    world.job_up()
    world.see(f.ErrorSeen("launcher", "config-invalid", "ValidationError: 1 error for RLConfig", deterministic=True))
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(60)
    recorded(tmp_path, world)
    found = without_daemon.look(tmp_path, "r1")
    assert (found["ended"], found["job"]) == (93, None)
    assert "A restart cannot cure this" in found["last_words"]["sentence"]
    said = render.headline_without_daemon(found, COMMANDS)
    assert said.endswith("it ended with exit code 93. Mend the cause, then start it: bash /x/onstart.sh practice")


def test_a_daemon_that_was_killed_is_told_by_the_last_line_of_its_log(tmp_path: Path) -> None:
    """Its journal's disk was full, so the newest sentence is in the log alone; or its parent's script wrote it."""
    world = World()
    world.running_at(12)
    recorded(tmp_path, world)
    assert without_daemon.look(tmp_path, "r1")["last_words"]["sentence"].startswith("step 12 of 1000")
    log = tmp_path / "practice.log"
    log.write_text(json.dumps({"sentence": "vLLM's process 7 is gone."}) + "\nSegmentation fault (core dumped)\n\n")
    found = without_daemon.look(tmp_path, "r1", (log,))
    assert found["last_words"]["sentence"] == "Segmentation fault (core dumped)"
    assert found["ended"] is None
    said = render.headline_without_daemon(found, COMMANDS)
    assert "it was killed, or it crashed. Start it: bash /x/onstart.sh practice" in said
    assert "Segmentation fault" in "\n".join(render.unwatched_block({**found, "sentence": said}))


def test_a_parent_that_starts_the_daemon_again_is_waited_for(tmp_path: Path) -> None:
    world = World()
    world.running_at(12)
    recorded(tmp_path, world)
    me = f"{os.getpid()}-{proc_stat.start_ticks(os.getpid())}"
    (tmp_path / "lock").write_text(f"1-1 {me}\n")
    assert run_lock.read_holder(tmp_path / "lock")[1] == (os.getpid(), proc_stat.start_ticks(os.getpid()))
    said = render.headline_without_daemon(without_daemon.look(tmp_path, "r1"), COMMANDS)
    assert f"Its parent (process {os.getpid()}) starts it again: nothing to type." in said
    (tmp_path / "lock").write_text(f"{me}\n")
    said = render.headline_without_daemon(without_daemon.look(tmp_path, "r1"), COMMANDS)
    assert f"Its daemon (process {os.getpid()}) lives, and does not answer" in said


def test_a_folder_that_no_daemon_ever_wrote_to_or_that_is_damaged_is_no_crash(tmp_path: Path) -> None:
    assert without_daemon.look(tmp_path, "r1")["last_words"] is None
    (tmp_path / "journal.db").write_bytes(b"no database" * 1000)
    assert without_daemon.look(tmp_path, "r1")["incident"] is None
    (tmp_path / "journal.db").unlink()
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        db.execute("CREATE TABLE meta (key TEXT)")
    found = without_daemon.look(tmp_path, "r1")
    assert render.headline_without_daemon(found, COMMANDS).endswith(
        f"Start it: {shlex.join(shlex.split(COMMANDS['start']))}"
    )


def test_a_run_that_a_person_stopped_names_the_command_that_starts_it_again() -> None:
    world = World()
    world.running_at(12)
    world.see(f.Command("stop", "alice (pid 7)"))
    world.after(10)
    assert world.state.mode == "stopped"
    said = status.headline(world.state)
    assert said.startswith("Stopped by alice (pid 7); start it again with: supervisorctl start bs4; step 12"), said
    told = status.explain(world.state)
    assert told["sentence"] == "Stopped by alice (pid 7); start it again with: supervisorctl start bs4"
    assert told["evidence"] == [], "no job is there that a signal could be about"
    world.see(f.DaemonStarted("test", world.settings, "boot"))
    assert status.headline(world.state).count("supervisorctl start") == 1


def test_a_run_that_is_restarted_says_from_where() -> None:
    world = World()
    world.running_at(12)
    world.answer = False
    world.engine_process_dies()
    world.after(5)
    assert world.state.mode == "stopping"
    assert "; the job is being stopped, and starts again from step 10; step 12" in status.headline(world.state)


def test_a_run_that_goes_back_says_to_where() -> None:
    world = World()
    world.running_at(12)
    world.answer = False
    world.see(f.Command("rollback", "root", ("5",)))
    assert world.state.mode == "stopping"
    assert "; the job is being stopped, and starts again from step 5; step 12" in status.headline(world.state)


def test_training_that_is_worth_nothing_stands_at_the_beginning_of_the_headline() -> None:
    """The note at the block's end was all that said so, below a headline that read as a healthy run's."""
    world = World()
    world.running_at(12)
    for number in (13, 14, 15):
        world.step(number, loss=float("nan"))
    assert status.headline(world.state).startswith("The loss is nan for 2 steps"), status.headline(world.state)
    told = " ".join(" ".join(render.explanation(status.explain(world.state))).split())
    assert (
        "Healthy: step 15" in told and "But: The loss is nan for 2 steps" in told and "supervisorctl rollback" in told
    )


def test_a_store_that_takes_nothing_is_told_in_the_headline() -> None:
    world = World()
    world.running_at(12)
    assert "store" not in status.headline(world.state)
    world.see(f.PublishFailed(10, "the key was refused.", permanent=True))
    assert status.headline(world.state).endswith("the store takes no step now")


def test_a_step_back_of_which_the_store_does_not_know_is_told() -> None:
    world = World()
    world.running_at(12)
    world.see(f.Published(10, 1000, 1.0))
    world.see(f.Command("rollback", "ana", ("5",)))
    world.after(5)
    assert "does not know" not in status.headline(world.state), "it is being told"
    world.see(f.LineageFailed("time-out."))
    lacks = "the store does not know yet that the run went back"
    assert lacks in status.headline(world.state)
    world.see(f.LineageKept(1, pointer=5))
    assert "does not know" not in status.headline(world.state)
    world.see(f.Command("rollback", "ana", ("5",)))
    world.after(5)
    assert world.state.lineage.unwritten
    assert "does not know" not in status.headline(world.state), "what failed once is being told now"


def test_a_step_back_is_told_of_that_a_pod_without_the_claim_cannot_write_down() -> None:
    world = World(replace(SETTINGS, fencing=True))
    world.running_at(12)
    world.see(f.ClaimFailed("403: the cap is reached.", permanent=True))
    world.see(f.Command("rollback", "ana", ("5",)))
    world.after(5)
    assert not world.asked(a.KeepLineage)
    assert "the store does not know yet that the run went back" in status.headline(world.state)


def test_a_start_that_waits_for_long_is_not_late_and_what_it_waits_for_is_said_once() -> None:
    world = NeverAgain()
    world.running_at(12)
    world.see(f.Command("restart", "ana"))
    world.after(10)
    for there in range(1, 40):
        world.see(f.StartWaits(f"The start waits for machines: {there} of 64 are there."))
        world.after(100)
    assert world.said("start-waits") == ["The start waits for machines: 1 of 64 are there."]
    assert "39 of 64" in status.headline(world.state)
    assert not world.asked(a.Stop)[1:]
    assert world.state.incidents.open is None
    world.see(f.StartWaits(""))
    world.after(10)
    assert world.state.incidents.open is not None, "and without a reason it is late"


def test_a_start_says_what_it_waits_for_until_it_goes_on() -> None:
    world = NeverAgain()
    world.running_at(12)
    world.see(f.StartWaits("a word that comes late."))
    world.see(f.Command("restart", "ana"))
    world.after(10)
    (start,) = world.asked(a.Start)
    assert "late" not in status.headline(world.state), "no start was under way then"
    waits = "The start waits for machines: 1 of 2 are there."
    world.see(f.StartWaits(waits))
    assert world.said("start-waits")[-1] == waits
    assert waits.rstrip(".") in status.headline(world.state)
    assert waits in status.explain(world.state)["sentence"]
    world.see(f.StartWaits(""))
    assert waits.rstrip(".") not in status.headline(world.state)
    assert world.said("start-waits")[-1] == waits, "no empty sentence is said"
    world.see(f.StartWaits(waits))
    world.see(f.AttemptStarted(start.attempt, start.step, 4711, "rl @ rl.toml"))
    assert waits.rstrip(".") not in status.headline(world.state)


def test_a_daemon_that_was_told_to_end_is_no_failure_and_its_last_step_is_told(tmp_path: Path) -> None:
    world = World()
    world.running_at(12)
    world.see(f.Command("shutdown", "SIGTERM"))
    world.after(30)
    recorded(tmp_path, world)
    found = without_daemon.look(tmp_path, "r1")
    said = render.headline_without_daemon({**found, "run": "r1"}, COMMANDS)
    assert "it was told to end, by SIGTERM, as `systemctl stop` or the end of a pod sends it." in said, said
    assert said.endswith("Start it: bash /x/onstart.sh practice"), said
    block = " ".join(" ".join(render.unwatched_block({**found, "sentence": said})).split())
    assert "progress step 12 of 1000" in block and "; published step 10" in block, block
    assert "last words" not in block, block


def test_a_run_that_a_person_stopped_needs_two_commands_once_its_daemon_has_ended(tmp_path: Path) -> None:
    """A new daemon keeps it stopped: to start that alone starts no job."""
    world = World()
    world.running_at(12)
    recorded(tmp_path, world)
    (tmp_path / "witness.json").write_text(json.dumps({"orders": {"wanted": False}}))
    found = without_daemon.look(tmp_path, "r1")
    said = render.headline_without_daemon({**found, "run": "r1"}, COMMANDS)
    assert said.endswith(
        "Start it: bash /x/onstart.sh practice. A person had stopped the run, so then type: supervisorctl start r1"
    ), said


def test_what_helps_stands_once_in_the_view_of_a_run_that_was_given_up(tmp_path: Path) -> None:
    world = World()
    world.boot()
    world.job_up()
    line = "ValidationError: 1 error for RLConfig"
    world.see(f.ErrorSeen("launcher", "config-invalid", line, deterministic=True, remedy="Mend the named setting."))
    world.see(f.ComponentExited(1, "launcher", 1))
    world.see(f.RootSeen(1, 1, "config-invalid", "launcher", line, "Mend the named setting."))
    world.after(60)
    recorded(tmp_path, world)
    found = without_daemon.look(tmp_path, "r1")
    block = "\n".join(render.unwatched_block({**found, "sentence": render.headline_without_daemon(found, COMMANDS)}))
    assert block.count("Mend the named setting.") == 1, block
