"""Runs on Vast.ai whose pods are real: two faults at once, and the promises that hold whatever comes.

Written down before the controller was asked: one writer at a time, no step lost that only a pod has, one pod at the end
of each story that finishes, none left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.fleet import decide, observe
from supervisor.fleet.assemble import Assembly, assemble
from tests.fleet.fake_vast import KEY
from tests.fleet.hosts import JOB, processes_of, signal_pod
from tests.fleet.test_real_pods import RUN_FILE, STEPS, published, tick_until
from tests.fleet.vast_hosts import VastHosts

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

FLEET = """
[fleet]
store = "{store}"
[limits]
per_hour = 8
total = 1
[place.spot]
provider = "vast"
gpu = "H100 SXM"
gpus = 2
most_per_hour = 4.0
disk_gb = 1
image = "ghcr.io/me/prime-rl:1"
[run.fled]
file = "fled.toml"
places = ["spot"]
"""


class Homes(VastHosts):
    """Hosts without GPUs; nothing was promised of them."""

    def _start(self, instance_id: int) -> None:
        self._rental(instance_id).env.pop("RL_SUPERVISOR_PROMISED", None)
        super()._start(instance_id)


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Homes]:
    with Homes() as fake:
        fake.folder = tmp_path
        for bid in (1.5, 1.8, 2.2):
            fake.add_offer(min_bid=bid)
        yield fake
        for rental in fake.ledger:
            fake.kill(rental.instance)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vast: Homes) -> Assembly:
    monkeypatch.setattr(observe, "SECOND_LOOK_S", 2.0)
    monkeypatch.setattr(decide, "SECOND_LOOK_S", 2.0)
    monkeypatch.setattr(decide, "DESTROY_AGAIN_S", 5.0)
    (tmp_path / "job.py").write_text(JOB)
    store = (tmp_path / "store").as_uri()
    words = {"steps": STEPS, "python": sys.executable, "job": tmp_path / "job.py", "store": store}
    (tmp_path / "fled.toml").write_text(RUN_FILE.format(**words))
    (tmp_path / "fleet.toml").write_text(FLEET.format(store=store))
    for name in (tmp_path, *tmp_path.iterdir()):
        name.chmod(0o700)
    return assemble(tmp_path / "fleet.toml", {"VAST_API_KEY": KEY, "VAST_URL": vast.url})


def finish(fleet: Assembly, vast: Homes, within_s: float = 150.0) -> list[str]:
    """To the end, and what must be so then; returns what was said."""
    folder = vast.folder
    said = tick_until(fleet, lambda: published(folder) == STEPS and not vast.living(), within_s)
    claimed: dict[int, float] = {}
    for claim in (folder / "store/fled/writers").glob("gen_*.json"):
        if found := re.fullmatch(r"gen_(\d+)\.json", claim.name):
            claimed[int(found[1])] = claim.stat().st_mtime
    for manifest in (folder / "store/fled").glob("step_*/manifest.json"):
        generation = json.loads(manifest.read_text())["generation"]
        after = claimed.get(generation + 1, time.time())
        assert manifest.stat().st_mtime <= after, f"{manifest} was written after the next pod held the run"
    assert [one for rental in vast.ledger for one in processes_of(vast.home_of(rental.instance))] == []
    state = fleet.book().read_page("fled").state
    assert sum(one.dollars for one in state.rented) < fleet.file.limits.total
    return said


def steps_of(vast: Homes, number: int) -> list[int]:
    """What the pod trained, in its order."""
    file = vast.home_of(vast.ledger[number].instance) / "out/steps"
    return [int(line.split()[1]) for line in file.read_text().splitlines()] if file.exists() else []


def until(is_so: Callable[[], object], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def freeze(home: Path) -> list[int]:
    """Stop all that runs with this home, with what it starts meanwhile; returns what stands still."""
    frozen: list[int] = []
    while running := [pid for pid in signal_pod(home, signal.SIGSTOP) if pid not in frozen]:
        frozen += running
    return [pid for pid in processes_of(home) if pid in frozen]


def trained(vast: Homes, number: int) -> Callable[[], bool]:
    return lambda: len(vast.ledger) > number and bool(steps_of(vast, number))


def test_a_pod_that_is_outbid_before_it_published_wakes_by_a_higher_bid_and_goes_on(
    fleet: Assembly, vast: Homes, tmp_path: Path
) -> None:
    """And the first answer to the bid is lost, though it was taken."""
    tick_until(fleet, lambda: published(tmp_path) >= 5)
    (tmp_path / "store/fled").rename(tmp_path / "away")  # nothing is published while this is away
    (tmp_path / "store/fled").touch()
    before = steps_of(vast, 0)[-1]
    until(lambda: steps_of(vast, 0)[-1] >= before + 8)
    vast.set_lowest_bid(vast.ledger[0].offer, 3.0)
    (tmp_path / "store/fled").unlink()
    (tmp_path / "away").rename(tmp_path / "store/fled")
    vast.fail("lost", "bid")
    said = finish(fleet, vast)
    assert any("It is unknown if Vast did change the bid" in one for one in said), said
    explained = [one.sentence for one in fleet.book().read_page("fled").said]
    assert any("was outbid. Bidding $3.60 an hour for it: the lowest is $3.00." in one for one in explained), explained
    assert len(vast.ledger) == 1
    again = [step for step in set(steps_of(vast, 0)) if steps_of(vast, 0).count(step) > 1]
    assert len(again) <= 5  # since its own last checkpoint, and not since the last published one


def test_an_outbid_pod_that_wakes_while_the_next_one_trains_never_writes_again(
    fleet: Assembly, vast: Homes, tmp_path: Path
) -> None:
    tick_until(fleet, lambda: published(tmp_path) >= 5)
    vast.set_lowest_bid(vast.ledger[0].offer, 5.0)
    tick_until(fleet, trained(vast, 1))
    vast.set_lowest_bid(vast.ledger[0].offer, 1.5)
    first = steps_of(vast, 0)
    vast.fail("500", "destroy", times=2)  # so the sleeper lives for a while
    finish(fleet, vast)
    assert steps_of(vast, 0) == first
    assert len(vast.ledger) == 2


def test_a_host_that_froze_wakes_after_the_next_pod_claimed_and_the_provider_was_away(
    fleet: Assembly, vast: Homes, tmp_path: Path
) -> None:
    tick_until(fleet, lambda: published(tmp_path) >= 5)
    home = vast.home_of(vast.ledger[0].instance)
    frozen = freeze(home)
    at = published(tmp_path)  # before the next pod publishes
    vast.fail("502", "list", times=6)
    vast.fail("500", "destroy", times=1000)  # the sleeper must live until it wakes
    said = tick_until(fleet, trained(vast, 1))
    assert any("It is convicted after 20 s" in one for one in said), said
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    until(lambda: "has taken this run over" in (home / "log").read_text())
    vast.faults.clear()
    finish(fleet, vast)
    assert steps_of(vast, 1)[0] == at + 1
    assert len(vast.ledger) == 2


def test_a_create_whose_answer_was_lost_and_a_list_that_fails_end_with_one_pod(
    fleet: Assembly, vast: Homes, tmp_path: Path
) -> None:
    vast.fail("lost", "create")
    vast.fail("502", "list", times=3)
    said = tick_until(fleet, lambda: published(tmp_path) >= 5)
    assert len(vast.ledger) == 1, said
    finish(fleet, vast)
    assert len(vast.ledger) == 1
    assert steps_of(vast, 0) == list(range(1, STEPS + 1))


def test_no_credit_and_then_a_machine_that_another_took_delay_the_next_pod_and_no_more(
    fleet: Assembly, vast: Homes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "AGAIN_S", {**decide.AGAIN_S, "credit": 3.0})
    tick_until(fleet, lambda: published(tmp_path) >= 5)
    vast.vanish(vast.ledger[0].instance)
    vast.fail("402", "create")
    vast.fail("410", "create")
    said = finish(fleet, vast)
    assert any("insufficient_credit" in one for one in said), said
    assert len(vast.ledger) == 2
    assert steps_of(vast, 1)[0] >= 6
