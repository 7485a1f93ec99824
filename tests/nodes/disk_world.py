"""Machines with disks of their own in one process: the head's side and the agents' side, without a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.config.nodes import NodeComponent, Nodes
from supervisor.config.settings import Job as JobTable
from supervisor.config.settings import Plain, Run, RunFile, Store
from supervisor.core import facts as f
from supervisor.effects.transfers import Transfers, request
from supervisor.jobs.base import Job
from supervisor.nodes.disk import Disk
from supervisor.nodes.steps import Disks
from supervisor.nodes.wire import Message
from supervisor.primerl import open_job
from tests.checkpoints_store.conftest import Served
from tests.nodes.disk_job import plan_of, save
from tests.practice import dcp

ENVIRON = {"PATH": "/usr/bin:/bin"}


class TransfersHere:
    """As ``Transfers``, without a process for each request: one takes 0.3 s to start, a publish by three machines 5."""

    def __init__(self, environ: Mapping[str, str], stall_s: float, *, more_follow: bool = False) -> None:
        self._environ = environ

    def run(self, asked: Mapping[str, Any], what: str = "", stall_s: float | None = None) -> dict[str, Any]:
        return Served().ok(asked, dict(self._environ))

    def close(self) -> None:
        """None is under way."""


@dataclass
class Asked:
    """An order, as ``nodes.head.Request``."""

    host: str
    message: Message
    answer: Message | None = None


@dataclass
class World:
    """``names`` in the order of their numbers. It is the head that ``Disks`` is given."""

    folder: Path
    names: Sequence[str]
    used: list[str] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    before: Callable[[str, Message], None] = lambda host, order: None
    is_ended: bool = False

    def __post_init__(self) -> None:
        components = [NodeComponent(role="trainer", machine=number, start=["x"]) for number in range(len(self.names))]
        self.nodes = Nodes(folder=self.folder / "shared", wait=5, disks="local", components=components)
        plain = Plain(start=[], resume=["{step}"], markers=["trainer/.metadata"])
        self.run_file = RunFile(
            run=Run(id="several", state_dir=self.folder / "state"),
            job=JobTable(kind="command", dir=self.folder, output_dir=self.folder / "head", plain=plain),
            store=Store(url=(self.folder / "store").as_uri()),
            nodes=self.nodes,
        )
        self.disks = Disks(self, self.folder / "state" / "disks")  # type: ignore[arg-type]
        self.machines = {
            name: Disk(self.disk(name), self.folder / f"state-{name}", ENVIRON, self._hear_from(name))
            for name in self.names
        }
        self.lanes = {name: threading.Lock() for name in self.names}
        self.job: Job = self.disks.see(open_job(self.run_file, ENVIRON), self.run_file, ENVIRON)
        self.transfers = Transfers(ENVIRON, 60.0)

    # ------------------------------------------------------------ what a head is

    machines_wanted = 1

    def list_used(self) -> list[str]:
        return self.used

    def list_speaking(self) -> list[str]:
        return [name for name in self.names if name not in self.silent]

    def rank_of(self, host: str) -> int:
        return list(self.names).index(host)

    def is_silent(self, host: str) -> bool:
        return host in self.silent

    def post(self, fact: f.Fact) -> None:
        assert isinstance(fact, f.Remark)
        self.told.append(fact.sentence)

    def wait(self, limit_s: float) -> None:
        time.sleep(min(limit_s, 0.02))

    def withdraw(self, requests: Sequence[Asked]) -> None:
        """No network, so nothing is on its way."""

    def await_answers(self, requests: Sequence[Asked], is_over: Callable[[Sequence[Asked]], bool]) -> None:
        while (late := [one for one in requests if one.answer is None]) and not is_over(late):
            self.wait(0.25)

    def ask(self, host: str, order: Message) -> Asked:
        asked = Asked(host, order)

        def work() -> None:
            try:
                self.before(host, order)
                if host not in self.silent:
                    with self.lanes[host]:
                        asked.answer = self.machines[host].carry_out(order)
            except Exception as error:  # as the agent's lane does
                asked.answer = {"error": str(error), "kind": "try-again"}

        threading.Thread(target=work, daemon=True).start()
        return asked

    def _hear_from(self, name: str) -> Callable[[Message], None]:
        def hear(message: Message) -> None:
            if name not in self.silent:
                self.disks.hear(name, message)

        return hear

    # ------------------------------------------------------------ what a test does

    def disk(self, name: str) -> Path:
        return self.folder / f"disk-{name}"

    def look(self) -> None:
        for name in self.list_speaking():
            self.machines[name].look()

    def save(self, step: int, ranks: Sequence[int] | None = None, *, metadata: bool = True) -> None:
        """Each machine writes the shard of its number, the first one ``.metadata`` last."""
        world = len(self.names)
        for rank in range(world) if ranks is None else ranks:
            save(self.disk(self.names[rank]), step, rank, world)
        if metadata:
            trainer = self.disk(self.names[0]) / "checkpoints" / f"step_{step}" / "trainer"
            dcp.write_file(trainer / ".metadata", dcp.metadata(plan_of(world), dcp.Progress(step, step, step)))

    def publish(self, step: int) -> dict[str, Any]:
        files = [{"source": str(file.source), "name": file.name} for file in self.job.step_files(step)]
        state_dir = str(self.folder / "state" / "publish")
        asked = request(self.run_file, "publish", step=step, files=files, state_dir=state_dir, writer="head")
        return self.disks.run(self.transfers, asked, "publish")

    def ask_to_restore(self, step: int) -> dict[str, Any]:
        place = {"primary": f"checkpoints/step_{step}"}
        return request(self.run_file, "restore", step=step, output_dir=str(self.folder / "head"), place=place)

    def restore(self, step: int) -> dict[str, Any]:
        return self.disks.run(self.transfers, self.ask_to_restore(step), "restore")
