"""configs/alerts.yml on hours of /metrics of simulated runs: promtool says when each rule fires, and that none does."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.prometheus import RULES, alerts, needs_prometheus, pages_of

pytestmark = needs_prometheus
HOUR = 3600.0
Faults = list[tuple[float, str, dict[str, Any]]]
FEW = ["healthy", "world-11"]
OTHERS = ["default", *(f"world-{number}" for number in (3, 7, 15, 19))]


@pytest.mark.parametrize("scenario", FEW)
def test_no_alert_in_the_first_hours_of_a_run_that_is_well(scenario: str, tmp_path: Path) -> None:
    assert alerts(pages_of(scenario, 3), tmp_path) == {}


@pytest.mark.soak
@pytest.mark.parametrize("scenario", [*FEW, *OTHERS])
def test_no_alert_in_half_a_day_of_a_run_that_is_well(scenario: str, tmp_path: Path) -> None:
    """Worlds as different as real runs: steps of seconds, evaluations of hours, logs that say little."""
    assert alerts(pages_of(scenario, 12), tmp_path) == {}


def often(kind: str, times: int, every: float) -> Faults:
    return [(2 * HOUR + number * every, kind, {}) for number in range(times)]


SELF_HEALING: dict[str, Faults] = {
    "an engine that dies": often("engine-crash", 1, 0),
    "three crashes in an hour": often("engine-crash", 3, 1200),
    "a daemon that is back after five minutes": [(2 * HOUR, "daemon-kill", {"seconds": 300.0})],
    "another pod after ten minutes": [(2 * HOUR, "host-vanishes", {})],
    "a pod that is unfit": often("gpu-lost", 1, 0),
    "a checkpoint that always crashes": often("poison-step", 1, 0),
    "no log line for half an hour": [(2 * HOUR, "log-gap", {"seconds": 0.5 * HOUR})],
    "an engine that hangs while the store is away": [
        (2 * HOUR, "store-outage", {"seconds": 1500.0}),
        (2 * HOUR + 600, "engine-hang", {}),
    ],
}


ALWAYS = ("an engine that dies", "another pod after ten minutes", "no log line for half an hour")


@pytest.mark.parametrize(
    "faults",
    [pytest.param(faults, marks=() if name in ALWAYS else pytest.mark.soak) for name, faults in SELF_HEALING.items()],
    ids=SELF_HEALING,
)
def test_no_alert_for_what_the_supervisor_mends_by_itself(faults: Faults, tmp_path: Path) -> None:
    assert alerts(pages_of("healthy", 5, faults), tmp_path) == {}


@pytest.mark.soak
def test_no_alert_for_three_hours_without_a_log_line(tmp_path: Path) -> None:
    assert alerts(pages_of("healthy", 6, [(2 * HOUR, "log-gap", {"seconds": 3 * HOUR})]), tmp_path) == {}


def fired(
    tmp_path: Path,
    faults: Faults,
    sets: Sequence[str] = (),
    orders: Sequence[tuple[float, str]] = (),
    hours: float = 4,
) -> dict[str, int]:
    """Minutes since the first fault, which strikes after two hours, by alert."""
    found = alerts(pages_of("healthy", hours, faults, sets, orders), tmp_path)
    return {name: minute - 120 for name, minute in found.items()}


@pytest.mark.soak
def test_a_hang_while_paused_is_told_when_the_deadline_has_passed(tmp_path: Path) -> None:
    found = fired(tmp_path, often("engine-hang", 1, 0), orders=[(2 * HOUR - 60, "pause")])
    assert list(found) == ["RunMakesNoStep"]
    assert 20 < found["RunMakesNoStep"] < 90


@pytest.mark.soak
def test_a_daemon_that_hangs_is_told_although_it_answers(tmp_path: Path) -> None:
    pages = pages_of("healthy", 2)
    assert list(alerts([*pages, *[pages[-1]] * 240], tmp_path)) == ["RunMakesNoStep"]


def test_a_run_that_a_person_stopped_is_no_alert(tmp_path: Path) -> None:
    assert fired(tmp_path, often("engine-hang", 1, 0), orders=[(2 * HOUR - 60, "stop")]) == {}


@pytest.mark.soak
def test_a_run_that_finished_is_no_alert_although_its_daemon_is_gone(tmp_path: Path) -> None:
    pages = pages_of("healthy", 4, sets=["max_steps=40"])
    assert pages[-1] is None
    assert alerts(pages, tmp_path) == {}


@pytest.mark.soak
def test_starts_that_never_come_to_a_step(tmp_path: Path) -> None:
    faults: Faults = [(2 * HOUR, "job-killed", {}), *often("resume-deadlock", 40, 60)]
    found = fired(tmp_path, faults)
    assert found.pop("RunDoesNotRecover") == pytest.approx(61, abs=2)
    assert found.pop("PersonNeeded", 100) > 20 and not found, "a start that shows no work is ended within minutes"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "parameters"), [("store-outage", {}), ("slow-link", {"speed": 0.005})], ids=["store away", "slow link"]
)
def test_steps_that_are_not_published(kind: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    found = fired(tmp_path, [(2 * HOUR, kind, {"seconds": 4 * HOUR, **parameters})])
    assert list(found) == ["RunPublishesTooLate"]
    assert 45 < found["RunPublishesTooLate"] < 100  # three intervals of five steps of four minutes, and ten more


@pytest.mark.soak
def test_a_store_that_never_took_a_step(tmp_path: Path) -> None:
    """No sample of the published step: unknown is not "all is published"."""
    pages = [page and _without(page, "published_step") for page in pages_of("healthy", 4)]
    assert list(alerts(pages, tmp_path)) == ["RunPublishesTooLate"]


def _without(page: str, name: str) -> str:
    return "\n".join(line for line in page.splitlines() if f"rl_supervisor_{name}{{" not in line)


@pytest.mark.soak
def test_a_disk_without_room_for_the_next_checkpoint(tmp_path: Path) -> None:
    full: Faults = [(2 * HOUR, "disk-fills", {"leaves_gb": 0.0, "growth_gb_s": 0.0, "seconds": 3 * HOUR})]
    found = fired(tmp_path, full, ["disk_gb=330"])
    assert 10 <= found["DiskTooSmallForNextCheckpoint"] < 30
    assert "PersonNeeded" in found, "the supervisor stopped the job and called a person"


@pytest.mark.soak
def test_more_than_three_restarts_in_an_hour(tmp_path: Path) -> None:
    quick = ["interval=1", "step_s=60", "load_s=60", "volume_gb_s=1", "checkpoint_gb=5"]
    found = fired(tmp_path, often("engine-crash", 4, 800), quick, hours=3)
    assert list(found) == ["RunRestartsOften"]
    assert 40 <= found["RunRestartsOften"] < 45, "the fourth crash comes after 40 minutes, and the third was none"


def test_a_daemon_that_is_gone(tmp_path: Path) -> None:
    found = fired(tmp_path, [(2 * HOUR, "daemon-kill", {"seconds": 3 * HOUR})])
    assert found == {"SupervisorAbsent": pytest.approx(15, abs=1)}


def test_a_daemon_that_gave_up_and_ended_needs_a_person(tmp_path: Path) -> None:
    """It ends between two looks of Prometheus: that it gave up was never read, only that an incident was open.

    Where not even that was read, ``SupervisorAbsent`` tells that it is gone.
    """
    found = fired(tmp_path, often("engine-crash", 6, 550))
    assert "SupervisorAbsent" not in found
    assert 25 < found["PersonNeeded"] < 60, "the supervisor gives up at the third or fourth crash without a step"


def test_a_daemon_that_gave_up_and_still_publishes_needs_a_person(tmp_path: Path) -> None:
    run = 'run="r"'
    up = f"rl_supervisor_up{{{run}}} 1\n"
    given_up = [up + f'rl_supervisor_state{{{run},state="gave-up"}} {number}' for number in (0, 1)]
    assert alerts([given_up[0]] * 10 + [given_up[1]] * 10, tmp_path) == {"PersonNeeded": 15}
    back = [given_up[0]] * 10 + [given_up[1]] * 10 + [None] * 5 + [given_up[0]] * 30
    assert alerts(back, tmp_path) == {"PersonNeeded": 15}


def test_the_rules_pass_promtools_own_check() -> None:
    ran = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
