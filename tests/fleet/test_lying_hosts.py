"""A host that is not what its offer said ends with 94 before it trains, and the next one trains: real daemons."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.fleet import decide, observe
from supervisor.fleet.assemble import Assembly, assemble
from supervisor.fleet.fleet_file import PlaceTable
from supervisor.fleet.places.base import Offer, Want
from supervisor.fleet.places.ssh import FOLDER, Ssh
from tests.fleet.hosts import JOB, kill_pod, write_host
from tests.fleet.test_real_pods import RUN_FILE, published, tick_until
from tests.practice import gpus
from tests.practice.nvml.build import build

FLEET = """
[fleet]
store = "{store}"
[limits]
per_hour = 1
total = 1
[place.first]
provider = "ssh"
host = "first"
gpu = "H100 SXM"
gpus = 2
[place.second]
provider = "ssh"
host = "second"
gpu = "H100 SXM"
gpus = 2
[run.fled]
file = "fled.toml"
places = ["first", "second"]
[run.fled.env]
SAID = "$SAID_TO_PODS"
"""
STEPS = 10


class Let(Ssh):
    """A host that is let like a provider's: its offer names a link, and its disk is what the place asks for."""

    link: tuple[float | None, float | None] = (None, None)

    def find_offers(self, want: Want) -> list[Offer]:
        down, up = self.link
        return [replace(one, down_mbit=down, up_mbit=up) for one in super().find_offers(want)]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Assembly]:
    """Two hosts with two GPUs each, as their offers say."""
    monkeypatch.setattr(observe, "SECOND_LOOK_S", 2.0)
    monkeypatch.setattr(decide, "SECOND_LOOK_S", 2.0)
    (tmp_path / "job.py").write_text(JOB)
    store = (tmp_path / "store").as_uri()
    words = {"steps": STEPS, "python": sys.executable, "job": tmp_path / "job.py", "store": store}
    (tmp_path / "fled.toml").write_text(RUN_FILE.format(**words))
    (tmp_path / "fleet.toml").write_text(FLEET.format(store=store))
    for name in (tmp_path, *tmp_path.iterdir()):
        name.chmod(0o700)
    found = assemble(tmp_path / "fleet.toml", {"SAID_TO_PODS": "hello"})
    library = build(tmp_path / "driver").parent
    for name in ("first", "second"):
        gpus.make_gpus(tmp_path / f"gpus-{name}", 2)
        environ = {"PRACTICE_GPUS": str(tmp_path / f"gpus-{name}"), "LD_LIBRARY_PATH": str(library)}
        found._providers[f"ssh/{name}"] = Let(name, (str(write_host(tmp_path, name, environ)),))
    yield found
    for name in ("first", "second"):
        kill_pod(tmp_path / name)


def run_to_the_end(fleet: Assembly, folder: Path) -> str:
    return "\n".join(
        tick_until(fleet, lambda: published(folder) == STEPS and not list(folder.glob(f"*/{FOLDER}/*")), 120)
    )


@pytest.mark.soak
def test_a_host_with_fewer_gpus_than_offered_never_trains_and_is_left_out(fleet: Assembly, tmp_path: Path) -> None:
    gpus.make_gpus(tmp_path / "gpus-first", 1)
    said = run_to_the_end(fleet, tmp_path)
    reason = "This pod is unfit: The offer promised 2 x H100 SXM, and this machine has 1 (NVIDIA H100 80GB HBM3)."
    assert reason in said
    assert not (tmp_path / "first/out/steps").exists()
    assert (tmp_path / "second/out/steps").exists()
    state = fleet.book().read_page("fled").state
    assert "first" in str(state.faults) and "second" not in str(state.faults), state.faults
    [lied] = [one for one in state.rented if one.pod.provider == "ssh/first"]
    assert lied.how == "unfit"


@pytest.mark.soak
def test_a_disk_that_is_not_there_and_a_driver_that_is_broken_are_two_bad_hosts(
    fleet: Assembly, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpus-first/error").write_text("18")  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    monkeypatch.setattr(PlaceTable, "account", property(lambda table: f"ssh/{table.host}"))
    for place in fleet.file.place.values():
        place.__dict__["provider"] = "let"  # not one's own, so the disk that was asked for is promised
    fleet.file.place["second"].__dict__["disk_gb"] = 10.0**6
    said = tick_until(fleet, lambda: len(fleet.book().read_page("fled").state.faults) == 2, 90)
    text = "\n".join(said)
    assert "The offer promised 2 x H100 SXM, and the driver shows none" in text
    assert "The offer promised a disk of 1000000 GB, and the largest here has" in text
    assert published(tmp_path) == 0
    assert not list(tmp_path.glob("*/out/steps"))


@pytest.mark.soak
def test_odd_hosts_that_keep_their_promise_train(fleet: Assembly, tmp_path: Path) -> None:
    """More GPUs than offered, a link that was promised and is there, and a stop and a new start on the same host."""
    gpus.make_gpus(tmp_path / "gpus-first", 8)
    first = fleet._providers["ssh/first"]
    assert isinstance(first, Let)
    first.link = (100_000.0, 90_000.0)
    said = run_to_the_end(fleet, tmp_path)
    assert "unfit" not in said
    assert not (tmp_path / "second/out").exists()
    assert not list((tmp_path / "store/fled").glob("probe/**/*.*")), "what was sent to measure the link is deleted"
