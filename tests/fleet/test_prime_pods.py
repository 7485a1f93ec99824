"""A run on Prime Intellect whose pods are real: the fake runs the entrypoint that docs/fleet.md gives for the image."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.fleet import decide, observe
from supervisor.fleet.assemble import Assembly, assemble
from tests.fleet.fake_prime import KEY, TEMPLATE, FakePrime
from tests.fleet.hosts import JOB, kill_pod, processes_of, start_pod
from tests.fleet.test_real_pods import RUN_FILE, STEPS, published, tick_until

FLEET = """
[fleet]
store = "{store}"
[limits]
per_hour = 8
total = 1
[place.market]
provider = "prime"
gpu = "H100_80GB"
gpus = 2
spot = false
most_per_hour = 6.0
image = "{template}"
[run.fled]
file = "fled.toml"
places = ["market"]
"""
DOCS = Path(__file__).parents[2] / "docs/fleet.md"


def read_entrypoint() -> list[str]:
    [line] = re.findall(r"^ENTRYPOINT (.*)$", DOCS.read_text(), re.MULTILINE)
    words: list[str] = json.loads(line)
    return words


class Containers(FakePrime):
    """Each pod has a home of its own in ``folder``."""

    folder: Path

    def home_of(self, pod_id: str) -> Path:
        """A short name: a socket's path below it may have 107 bytes."""
        return self.folder / pod_id[-4:]

    def _answer_create(self, which: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        answer = super()._answer_create(which, query, body)
        rental = self.ledger[-1]
        home = self.home_of(rental.pod)
        home.mkdir(mode=0o700)
        start_pod(home, read_entrypoint(), {k: v for k, v in rental.env.items() if k != "RL_SUPERVISOR_PROMISED"})
        self.pods[rental.pod] |= {"status": "ACTIVE", "installationStatus": "FINISHED"}
        return answer

    def _answer_destroy(self, pod_id: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        kill_pod(self.home_of(pod_id))
        return super()._answer_destroy(pod_id, query, body)

    def lose(self, pod_id: str) -> None:
        """The provider behind Prime takes the machine back."""
        kill_pod(self.home_of(pod_id))
        with self.lock:
            self.rental(pod_id).until_s = self.clock()
            self.pods[pod_id]["status"] = "TERMINATED"


@pytest.fixture
def prime(tmp_path: Path) -> Iterator[Containers]:
    with Containers() as fake:
        fake.folder = tmp_path
        yield fake
        for rental in fake.ledger:
            kill_pod(fake.home_of(rental.pod))


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prime: Containers) -> Assembly:
    monkeypatch.setattr(observe, "SECOND_LOOK_S", 2.0)
    monkeypatch.setattr(decide, "SECOND_LOOK_S", 2.0)
    (tmp_path / "job.py").write_text(JOB)
    store = (tmp_path / "store").as_uri()
    words = {"steps": STEPS, "python": sys.executable, "job": tmp_path / "job.py", "store": store}
    (tmp_path / "fled.toml").write_text(RUN_FILE.format(**words))
    (tmp_path / "fleet.toml").write_text(FLEET.format(store=store, template=TEMPLATE))
    for name in (tmp_path, *tmp_path.iterdir()):
        name.chmod(0o700)
    return assemble(tmp_path / "fleet.toml", {"PRIME_API_KEY": KEY, "PRIME_API_BASE_URL": prime.url})


@pytest.mark.soak
def test_a_machine_that_was_taken_back_and_a_create_whose_answer_is_lost_end_with_one_pod(
    fleet: Assembly, prime: Containers, tmp_path: Path
) -> None:
    for _ in range(3):
        prime.add_offer()
    tick_until(fleet, lambda: published(tmp_path) >= 10)
    prime.lose(prime.ledger[0].pod)
    prime.fail("502", "list", times=2)
    prime.fail("lost", "create")
    tick_until(fleet, lambda: published(tmp_path) == STEPS and not prime.living())
    assert len(prime.ledger) == 2
    trained = (prime.home_of(prime.ledger[1].pod) / "out/steps").read_text().splitlines()
    steps = [int(line.split()[1]) for line in trained]
    assert (steps[0] > 10, steps[-1]) == (True, STEPS)  # it went on, and did not begin again
    assert [one for rental in prime.ledger for one in processes_of(prime.home_of(rental.pod))] == []
