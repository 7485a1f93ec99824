"""A Vast.ai whose pods are real: its start script and all that follows run in a home of this machine, one a pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fleet.fake_vast import FakeVast
from tests.fleet.hosts import kill_pod, start_pod


class VastHosts(FakeVast):
    """``folder`` has a home for each pod, named by its instance."""

    folder: Path

    def make_host(self, home: Path, machine: int) -> dict[str, str]:
        """What the machine has besides: files in the home of the pod, and variables."""
        return {}

    def home_of(self, instance_id: int) -> Path:
        return self.folder / f"pod-{instance_id}"

    def set_state(self, instance_id: int, actual: str | None, scheduled: str = "running") -> None:
        super().set_state(instance_id, actual, scheduled)
        if scheduled == "stopped":
            self.kill(instance_id)
        elif actual == "running":
            self._start(instance_id)

    def _rent(self, which: int, body: dict[str, Any], *, wins: bool) -> object:
        answer = super()._rent(which, body, wins=wins)
        instance_id = self.ledger[-1].instance
        home = self.home_of(instance_id)
        home.mkdir(mode=0o700)
        (home / "onstart").write_text(body["onstart"])
        self.instances[instance_id]["host_env"] = self.make_host(home, self.instances[instance_id]["machine_id"])
        if wins:
            self.set_state(instance_id, "running")
        return answer

    def _start(self, instance_id: int) -> None:
        home, row = self.home_of(instance_id), self.instances[instance_id]
        start_pod(home, ["bash", str(home / "onstart")], row["host_env"] | self._rental(instance_id).env)

    def _answer_destroy(self, which: int, query: dict[str, str], body: dict[str, Any]) -> object:
        answer = super()._answer_destroy(which, query, body)
        self.kill(which)
        return answer

    def vanish(self, instance_id: int) -> None:
        """The machine is gone, and with it the instance."""
        with self.lock:
            rental = self._rental(instance_id)
            rental.count(self.clock(), runs=False)
            rental.until_s = self.clock()
            del self.offers[rental.offer], self.instances[instance_id]
        self.kill(instance_id)

    def kill(self, instance_id: int) -> None:
        kill_pod(self.home_of(instance_id))
