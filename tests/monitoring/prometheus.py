"""Debian's Prometheus for tests: its rules on pages of a virtual pod, and a server that scrapes a real page."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from supervisor.api import metrics
from supervisor.core import facts as f
from supervisor.simulator.faults import with_defaults
from supervisor.simulator.policy import CorePolicy
from supervisor.simulator.run import Planned
from supervisor.simulator.scenario import Scenario, load_scenario
from supervisor.simulator.sensing import WALL
from supervisor.simulator.world import START_T, World
from supervisor.views import status

RULES = Path(__file__).parents[2] / "configs" / "alerts.yml"
MINUTE = 60.0
_SAMPLE = re.compile(r"(?P<series>\w+\{.*\}) (?P<value>\S+)")

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")),
    reason="no Prometheus here: apt-get install -y --no-install-recommends prometheus",
)


def pages_of(
    scenario: str,
    hours: float,
    faults: Sequence[tuple[float, str, dict[str, Any]]] = (),
    sets: Sequence[str] = (),
    orders: Sequence[tuple[float, str]] = (),
) -> list[str | None]:
    """/metrics of a simulated run once a minute, as Prometheus would read it; None where no daemon answers.

    ``faults``: (seconds after the beginning, kind, parameters); ``orders`` of a person: (seconds, verb). Time begins at
    0, as in promtool's tests.
    """
    known = load_scenario(scenario, sets)
    planned = [Planned(at, kind, with_defaults(kind, parameters)) for at, kind, parameters in faults]
    world = World(known, 1, CorePolicy, planned=planned)
    found: list[str | None] = []

    def look() -> None:
        answers = world.attendant is not None and world.pod is not None and not world.pod.paused
        found.append(metrics.render(_status(world, known)) if answers else None)

    def order(verb: str) -> None:
        assert world.attendant is not None
        world.attendant.see(f.Command(verb, "a test"), "api")

    for at, verb in orders:
        world.clock.at(START_T + at, partial(order, verb))
    for minute in range(int(hours * 60)):
        world.clock.at(START_T + minute * MINUTE, look)
    world.run_until(hours * 3600)
    missing = int(hours * 60) - len(found)  # the run is over, and its daemon has ended
    return [*found, *[None] * missing]


def _status(world: World, scenario: Scenario) -> dict[str, Any]:
    state = world.policy.state  # type: ignore[attr-defined]
    done = state.progress.done_wall
    progress = replace(state.progress, done_wall=None if done is None else done - WALL - START_T)
    told = status.status(replace(state, wall=state.now - START_T, progress=progress))
    disk = {"path": "/workspace", "free_bytes": state.disk.free, "total_bytes": state.disk.total}
    return {**told, "disk": disk, "checkpoint_interval": scenario.physics.interval}


def alerts(pages: Sequence[str | None], folder: Path, rules: Path = RULES) -> dict[str, int]:
    """Each alert that fires on these pages, and the first minute in which it does. Asks promtool."""
    series: dict[str, list[str]] = {}
    for minute, page in enumerate(pages):
        for line in (page or "").splitlines():
            if sample := _SAMPLE.fullmatch(line):
                values = series.setdefault(sample["series"], [])
                values += ["_"] * (minute - len(values))
                # A sample that is missing from the next page is stale at once, as when Prometheus scrapes.
                values.append(sample["value"].replace("Inf", "inf"))
    for values in series.values():
        values += ["stale"] if len(values) < len(pages) else []
        for at, value in enumerate(values[:-1]):
            if value != "_" and values[at + 1] == "_":
                values[at + 1] = "stale"
    names = re.findall(r"alert: (\w+)", rules.read_text())
    fired: dict[str, int] = {}
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": " ".join(values)} for name, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": f"{minute}m", "alertname": name} for minute in range(len(pages)) for name in names
                ],
            }
        ],
    }
    file = folder / "test.json"  # JSON is YAML
    file.write_text(json.dumps(test))
    ran = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=200)
    told = ran.stdout + ran.stderr
    assert ran.returncode == 0 or "alertname: " in told, told
    for name, minute in re.findall(r"alertname: (\w+), time: (\S+?),", told):
        fired[name] = min(fired.get(name, 10**9), _minutes(minute))
    return fired


def _minutes(duration: str) -> int:
    parts = {unit: int(number) for number, unit in re.findall(r"(\d+)([dhms])", duration)}
    return parts.get("d", 0) * 1440 + parts.get("h", 0) * 60 + parts.get("m", 0)


class Prometheus:
    """A running server; ``query`` evaluates an expression now."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that it gives. Raises HTTPError on one that Prometheus refuses."""
        found: list[dict[str, Any]] = self._get(f"/query?query={urllib.parse.quote(expression)}")["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Each rule with its health: "ok" once it was evaluated."""
        return [rule for group in self._get("/rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self._url + path, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
            return found


@contextmanager
def scraping(target: tuple[str, int], folder: Path) -> Iterator[Prometheus]:
    """A Prometheus with the shipped rules that scrapes ``target`` each second, ready when it has seen it twice."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "rl-supervisor", "static_configs": [{"targets": [f"{target[0]}:{target[1]}"]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    words = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        prometheus = Prometheus(port)
        deadline = time.monotonic() + 60
        while True:
            try:
                if prometheus.query("count_over_time(rl_supervisor_up[1m]) >= 3"):
                    break
            except OSError:
                pass  # it starts
            assert time.monotonic() < deadline, (folder / "prometheus.log").read_text()
            time.sleep(0.2)
        yield prometheus
    finally:
        server.terminate()
        server.wait(10)
