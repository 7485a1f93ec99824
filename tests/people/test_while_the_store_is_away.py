"""A command by hand waits while the store is away, says so, and ends; what waiting cannot cure is told at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.effects import patient_transfers
from tests.b2server import B2Server
from tests.b2server.state import Fault, Key

RUN = "r1"
Told = pytest.CaptureFixture[str]


@pytest.fixture
def b2(monkeypatch: pytest.MonkeyPatch) -> Iterator[B2Server]:
    with B2Server(part_size=20_000) as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def words(b2: B2Server, tmp_path: Path) -> str:
    """A run with one complete step, and its run file."""
    for number in (10, 20):
        primary = tmp_path / f"out/checkpoints/step_{number}"
        primary.mkdir(parents=True)
        for name in ("optimizer.pt", "model.pt"):
            (primary / name).write_bytes(name.encode() * 4000)
    path = tmp_path / "run.toml"
    path.write_text(f"""
run = {{ id = "{RUN}", state_dir = "{tmp_path}/state" }}
supervision = {{ quiet = 0 }}
[job]
kind = "command"
dir = "{tmp_path}"
output_dir = "out"
plain = {{ start = ["true"], resume = ["true"] }}
[store]
url = "b2://the-bucket/team"
realm = "{b2.url}"
take_over_after = 10
""")
    return str(path)


def send_away(server: B2Server) -> Fault:
    """Every answer is 503 from now on."""
    fault = Fault(".*", times=1 << 30, status=503, retry_after=0)
    server.state.faults.append(fault)
    return fault


@pytest.fixture
def away_until_told(b2: B2Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Every answer is 503, until a person has heard of it."""
    tell = patient_transfers.on_stderr

    def begin() -> None:
        fault = send_away(b2)

        def told(sentence: str) -> None:
            tell(sentence)
            fault.times = 0

        monkeypatch.setattr(patient_transfers, "on_stderr", told)

    return begin


SLOW = pytest.mark.soak


@pytest.mark.soak
@pytest.mark.parametrize(
    "command", ["publish", *(pytest.param(other, marks=SLOW) for other in ("restore", "verify", "logs"))]
)
def test_a_store_that_is_away_for_a_while_ends_no_command(
    words: str, tmp_path: Path, capsys: Told, away_until_told: Callable[[], None], command: str
) -> None:
    if command != "publish":
        assert main(["publish", words]) == 0, capsys.readouterr().err
    more = ["--to", str(tmp_path / "to")] if command == "restore" else []
    away_until_told()
    assert main([command, words, *more]) == 0, capsys.readouterr().err
    told = capsys.readouterr().err
    assert "503" in told and "It is tried again for up to 30 min (Ctrl-C ends that; nothing is lost)." in told
    assert "The store answers again after " in told


@pytest.mark.soak
def test_a_report_waits_too_where_this_machine_has_published_by_hand_and_knows_nothing_of_the_run(
    words: str, tmp_path: Path, capsys: Told, away_until_told: Callable[[], None]
) -> None:
    """Publishing by hand leaves a journal that holds no attempt."""
    assert main(["publish", words]) == 0, capsys.readouterr().err
    away_until_told()
    assert main(["report", words]) == 1
    told = capsys.readouterr().err
    assert "It is tried again for up to 30 min" in told and "The store answers again after " in told
    assert told.endswith(
        f"Nothing is known of run {RUN}: neither in {tmp_path}/state/journal.db nor in b2://the-bucket/team.\n"
    )


@pytest.mark.soak
def test_the_patience_has_an_end_and_an_exit_code_of_its_own(
    b2: B2Server, words: str, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient_transfers, "PATIENCE_S", 3.0)
    send_away(b2)
    assert main(["verify", words]) == 75, "1 is a store that is damaged"
    told = capsys.readouterr().err
    assert "The store was away for " in told and "Run the same command again later" in told


@pytest.mark.soak
def test_what_waiting_cannot_cure_is_told_at_once(b2: B2Server, words: str, tmp_path: Path, capsys: Told) -> None:
    assert main(["publish", words]) == 0

    def refused(told: str, verb: str, *more: str) -> None:
        began = time.monotonic()
        assert main([verb, words, *more]) == 1
        error = capsys.readouterr().err
        assert told in error and "tried again" not in error, error
        assert time.monotonic() - began < 20

    refused("There is no step 77", "verify", "--step", "77")
    refused("Step 77 is not in", "restore", "--step", "77", "--to", str(tmp_path / "to"))
    b2.state.buckets.clear()
    refused("the bucket the-bucket does not exist", "verify")
    b2.state.keys.clear()
    b2.state.tokens.clear()
    refused("refuses the application key", "verify")


def test_a_transfer_that_crashes_is_not_the_store_and_is_not_tried_again(
    words: str, capsys: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/b2sdk.py").write_text("raise RuntimeError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    assert main(["verify", words]) == 1
    error = capsys.readouterr().err
    assert "a broken installation" in error and "tried again" not in error


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_one_in_five_answers_that_the_authorization_expired_ends_no_command(
    b2: B2Server, words: str, tmp_path: Path, capsys: Told, seed: int
) -> None:
    import random

    dice = random.Random(seed)

    class Sometimes(Fault):
        def matches(self, op: str, name: str) -> bool:
            return op != "b2_authorize_account" and dice.random() < 0.2

    b2.state.faults.append(Sometimes(".*", times=1 << 30, status=401, code="expired_auth_token"))
    for verb in (["publish"], ["publish", "--step", "10"], ["verify", "--deep", "100"]):
        assert main([verb[0], words, *verb[1:]]) == 0, capsys.readouterr().err
    assert main(["restore", words, "--to", str(tmp_path / "to")]) == 0
    assert "tried again" not in capsys.readouterr().err, "each request signs in anew and goes on"
    assert len(b2.journal("b2_authorize_account")) > 10


@pytest.mark.soak
def test_a_key_that_was_deleted_meanwhile_is_told_at_once(b2: B2Server, words: str, capsys: Told) -> None:
    """B2 says 401 of the token, and refuses to give another."""
    key = b2.add_key(Key("0000short01", "K000short"))
    assert main(["publish", words]) == 0

    class Deleted(Fault):
        def matches(self, op: str, name: str) -> bool:
            return op != "b2_authorize_account"

    b2.state.keys.pop(key.key_id)
    b2.state.faults.append(Deleted(".*", times=1 << 30, status=401, code="unauthorized"))
    began = time.monotonic()
    assert main(["verify", words]) == 1
    assert "refuses the application key" in capsys.readouterr().err
    assert time.monotonic() - began < 20
