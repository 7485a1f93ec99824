"""/metrics, configs/grafana.json and configs/alerts.yml before a real Prometheus that scrapes a real page."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.api import metrics
from supervisor.core import actions as a
from supervisor.core.state import State
from supervisor.daemon.inbox import Waits
from supervisor.views import status
from tests.core.world import World
from tests.monitoring.prometheus import Prometheus, needs_prometheus, scraping
from tests.people.desk import FakeDesk, serving, until

BOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "configs" / "grafana.json").read_text())
TARGETS = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]


def desk() -> FakeDesk:
    """A run that trains, publishes a step, and has an incident open, so that no figure is missing."""
    world = World()
    world.running_at(12)
    waits = Waits()
    waits.note(0.01)
    told: dict[str, Any] = {name: value for name, value in status.status(world.state).items() if value is not None}
    publishing = {"what": "publishing", "bytes": 10.0, "total_bytes": 20.0}
    host = {"host": "pod-1", "mode": "act", "checkpoint_interval": 5, "loop_waits": waits.as_dict()}
    disk = {"path": "/workspace", "total_bytes": 200 << 30, "free_bytes": 80 << 30}
    return FakeDesk(**{**told, **host, "disk": disk, "publishing": publishing, "incident": {"seconds": 12.5}})


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with serving(folder) as serve:
        api = serve(desk(), tcp="127.0.0.1:0")
        until(lambda: api.tcp_address)
        assert api.tcp_address is not None
        with scraping(api.tcp_address, folder) as server:
            yield server


@pytest.mark.soak
@needs_prometheus
@pytest.mark.parametrize(("title", "expression"), TARGETS)
def test_each_query_of_the_board_finds_something(title: str, expression: str, prometheus: Prometheus) -> None:
    asked = expression.replace("$run", "bs4").replace("$__rate_interval", "1m")
    assert prometheus.query(asked), f"{title}: {asked}"


@needs_prometheus
def test_the_boards_variable_lists_the_runs(prometheus: Prometheus) -> None:
    variable = BOARD["templating"]["list"][1]["query"]["query"]
    name, label = variable.removeprefix("label_values(").removesuffix(")").split(", ")
    assert [sample["metric"][label] for sample in prometheus.query(name)] == ["bs4"]


@needs_prometheus
def test_prometheus_evaluates_each_rule_and_none_of_a_healthy_run_waits_to_fire(prometheus: Prometheus) -> None:
    rules: list[dict[str, Any]] = []

    def evaluated() -> bool:
        rules[:] = prometheus.rules()
        return all(rule["health"] == "ok" for rule in rules)

    until(evaluated, 30)
    assert {rule["name"] for rule in rules} >= {"RunMakesNoStep", "PersonNeeded", "SupervisorAbsent"}


@needs_prometheus
def test_the_page_passes_promtools_own_check() -> None:
    page = metrics.render(desk().now)
    ran = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_each_counter_ends_in_total_and_nothing_else_does() -> None:
    for line in metrics.render(desk().now).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name.endswith("_total") == (kind == "counter"), line


def test_the_board_can_be_imported_and_provisioned() -> None:
    """An import replaces the input; a provisioned board has no inputs, and takes the variable of the same name."""
    assert BOARD["schemaVersion"] >= 39
    assert BOARD["uid"] == "rl-supervisor"
    assert [one["name"] for one in BOARD["__inputs"]] == ["DS_PROMETHEUS"]
    assert BOARD["templating"]["list"][0]["name"] == "DS_PROMETHEUS"
    sources = {one["datasource"]["uid"] for panel in BOARD["panels"] for one in (panel, *panel["targets"])}
    assert sources == {"${DS_PROMETHEUS}"}
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert [panel["title"] for panel in BOARD["panels"]][:3] == ["State", "Step", "Since the last step"]


def test_no_deadline_and_no_step_are_no_samples() -> None:
    page = metrics.render(status.status(State()))
    assert "deadline_timestamp" not in page
    assert "last_step_timestamp" not in page


def test_the_deadline_on_the_page_is_the_moment_at_which_the_supervisor_acts() -> None:
    world = World()
    world.running_at(12)
    told = status.status(world.state)
    assert told["last_step_at"] == world.state.wall
    assert told["deadline"]["waits_for"] == "step"
    while not world.asked(a.Stop):
        world.after(5)
    assert world.log[-1].wall == pytest.approx(told["deadline"]["at"], abs=10)
    world.job_up()
    assert world.state.mode == "starting"
    told, explained = status.status(world.state), status.explain(world.state)["deadline"]
    assert told["deadline"]["waits_for"] == "start"
    assert told["deadline"]["at"] - world.state.wall == pytest.approx(explained["seconds_left"], abs=1)
