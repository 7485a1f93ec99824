"""Publishing and pruning by hand where the run may be another pod's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.base.errors import SupervisorError
from supervisor.checkpoints import claims
from supervisor.checkpoints.writers import writer_name
from supervisor.cli import store_commands
from supervisor.config.settings import RunFile, load
from supervisor.effects.transfers import Transfers
from supervisor.journal.journal import Journal
from supervisor.process import pod_identity
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError

RUN = "r1"
OTHER = "pod-b/bbbbbbbbbbbbbbbb/0001"


@pytest.fixture
def run_file(tmp_path: Path) -> RunFile:
    (tmp_path / "run.toml").write_text(
        f'[run]\nid = "{RUN}"\nstate_dir = "{tmp_path}/state"\n[job]\nkind = "command"\noutput_dir = "{tmp_path}/out"\n'
        f'[job.plain]\nstart = ["true"]\nresume = ["true"]\n[store]\nurl = "{(tmp_path / "store").as_uri()}"\n'
    )
    return load(tmp_path / "run.toml")


@pytest.fixture
def store(run_file: RunFile) -> Store:
    return open_store(run_file.store_url, None, {})


def test_a_publish_by_hand_beats_while_it_lasts(
    run_file: RunFile, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_commands, "beat_time", lambda patience_s: 0.05)
    seen: list[claims.Standing] = []
    deadline = time.monotonic() + 60
    with store_commands.hold_run(run_file) as signed:
        while len({standing.mark for standing in seen}) < 3:
            assert time.monotonic() < deadline, f"others take it for dead: {seen}"
            seen.append(claims.look(store, RUN))
            time.sleep(0.02)
    assert {(standing.generation, standing.released) for standing in seen} == {(signed["generation"], False)}
    assert claims.look(store, RUN).released


@pytest.mark.soak
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_another_pod_published_makes_no_step_here_superfluous(
    run_file: RunFile, store: Store, dry_run: bool
) -> None:
    claims.claim(store, RUN, OTHER, 0.0)
    with pytest.raises(SupervisorError, match=r"Pod pod-b holds run r1 \(generation 1\).*nothing was deleted"):
        store_commands.prune(run_file, dry_run=dry_run)
    assert not run_file.state_dir.exists()
    claims.release(store, RUN, 1, OTHER)
    assert "is safe to delete" in store_commands.prune(run_file, dry_run=dry_run)[1][0]


def test_a_pod_that_died_with_the_run_prunes_by_hand(run_file: RunFile, store: Store) -> None:
    journal = Journal(run_file.state_dir)
    place = pod_identity.place_of_pod(os.environ, run_file.state_dir)
    claims.claim(store, RUN, writer_name("pod-a", journal.identity(), "0001", place), 0.0)
    assert "is safe to delete" in store_commands.prune(run_file, dry_run=True)[1][0], (
        "while a daemon has its journal open"
    )
    journal.close()
    assert "is safe to delete" in store_commands.prune(run_file, dry_run=False)[1][0]


@pytest.mark.parametrize(("pinned", "problem", "goes"), [([], "", 5), ([5], "", 10), ([], "pins.json is damaged", 20)])
def test_a_pinned_step_that_the_store_lacks_is_not_pruned_by_hand(
    run_file: RunFile, monkeypatch: pytest.MonkeyPatch, pinned: list[int], problem: str, goes: int
) -> None:
    here, stored = (5, 10, 20, 30, 40), [{"step": step, "committed": True, "size_bytes": 1} for step in (20, 30, 40)]
    found = {"steps": stored, "latest": {"step": 40}, "pinned": pinned, "pins_problem": problem}
    job = SimpleNamespace(
        steps=lambda: here,
        output_dir=run_file.output_dir,
        check_step=lambda step: SimpleNamespace(state="complete", reason="", size_bytes=1, changed_wall=0.0),
    )
    monkeypatch.setattr(store_commands, "open_job", lambda *_: job)
    monkeypatch.setattr(store_commands, "PatientTransfers", lambda *_: SimpleNamespace(run=lambda *_: found))
    monkeypatch.setattr(store_commands, "_not_anothers", lambda _: None)
    assert store_commands.prune(run_file, dry_run=True)[0]["steps"][0] == goes


class Refusing:
    """A store that refuses the first ``times`` releases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, error: StoreError) -> None:
        self.left, self.tries, real = times, 0, Transfers.run

        def run(transfers: Transfers, asked: Mapping[str, Any], *more: Any, **named: Any) -> dict[str, Any]:
            if asked["do"] == "release":
                self.tries += 1
                if self.tries <= self.left:
                    raise error
            return real(transfers, asked, *more, **named)

        monkeypatch.setattr(Transfers, "run", run)


def test_one_503_at_the_end_of_a_publish_by_hand_still_gives_the_run_back(
    run_file: RunFile, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing = Refusing(monkeypatch, 1, StoreError("transient", "503 service_unavailable"))
    with pytest.raises(KeyboardInterrupt), store_commands.hold_run(run_file):
        raise KeyboardInterrupt
    assert refusing.tries == 2
    assert claims.look(store, RUN).released
    assert "It is tried again for up to 10 min" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["transient", "permanent"])
def test_a_run_that_could_not_be_given_back_by_hand_says_what_that_costs(
    run_file: RunFile, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: Any
) -> None:
    short = run_file.store.model_copy(update={"take_over_after": 2.0})
    run_file = run_file.model_copy(update={"store": short})
    Refusing(monkeypatch, 1000, StoreError(kind, "the key was deleted"))
    with store_commands.hold_run(run_file):
        pass
    told = capsys.readouterr().err
    assert "The run could not be given back in the store, so another pod waits 2 s for its heartbeat before it" in told
    assert "the key was deleted" in told
    assert not claims.look(store, RUN).released


def test_a_run_that_another_pod_took_meanwhile_is_given_back_without_a_word(
    run_file: RunFile, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with store_commands.hold_run(run_file) as signed:
        assert claims.claim(store, RUN, OTHER, 0.0, take_over=True).generation == signed["generation"] + 1
    assert "could not be given back" not in capsys.readouterr().err
    assert not claims.look(store, RUN).released


HOLDER = """
import sys, time
from pathlib import Path
from supervisor.cli.store_commands import hold_run
from supervisor.config.settings import load
with hold_run(load(Path(sys.argv[1]))):
    print("holds it", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.soak
@pytest.mark.parametrize(("number", "way"), [(signal.SIGTERM, []), (signal.SIGHUP, []), (signal.SIGHUP, ["nohup"])])
def test_a_command_that_is_told_to_end_gives_the_run_back(
    run_file: RunFile, store: Store, tmp_path: Path, number: signal.Signals, way: list[str]
) -> None:
    words = [*way, sys.executable, "-c", HOLDER, str(tmp_path / "run.toml"), "1" if way else "60"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"holds it\n"
        assert not claims.look(store, RUN).released
        holder.send_signal(number)
        assert holder.wait(60) == (0 if way else 128 + number)
    assert claims.look(store, RUN).released
