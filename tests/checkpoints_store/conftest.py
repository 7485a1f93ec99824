"""A step on a local disk, stores to publish it to, and the transfer process as the daemon starts it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.retry import Retry
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.publish import PublishPlan, Source
from supervisor.checkpoints.read_request import read_request
from supervisor.checkpoints.transfer import serve
from supervisor.effects import transfers as daemons
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server

PART = 20_000
QUICK = Retry(tries=6, base_s=0.01, cap_s=0.05)
RUN = "bs4-rl-7"


def quiet(moved: Moved) -> None:
    """A listener that wants to know nothing."""


@dataclass
class Step:
    """A step as a trainer leaves it: shards of several parts, small files, and a tree beside the primary folder."""

    output: Path
    number: int = 20
    files: dict[str, Path] = field(default_factory=dict)

    def write(self, name: str, data: bytes) -> None:
        path = self.output / (name.removeprefix(".run/") if name.startswith(".run/") else f"{self.primary}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.files[name] = path

    @property
    def primary(self) -> str:
        return f"checkpoints/step_{self.number}"

    def fill(self, seed: int = 0, shard: int = 90_001) -> Step:
        data = random.Random(f"{seed}/{self.number}")
        self.write("trainer/.metadata", data.randbytes(900))
        self.write("trainer/__0_0.distcp", data.randbytes(shard))
        self.write("trainer/__1_0.distcp", data.randbytes(shard // 2))
        self.write("trainer/empty", b"")
        self.write(f".run/run_default/checkpoints/step_{self.number}/orchestrator/progress.pt", data.randbytes(300))
        self.write(f".run/run_default/broadcasts/step_{self.number}/STABLE", b"")
        return self

    def plan(self, state: Path, **more: Any) -> PublishPlan:
        sources = [Source(path, name) for name, path in self.files.items()]
        return PublishPlan(RUN, self.number, sources, state, **{"writer": "pod-a", "wandb_run_id": "w7"} | more)

    def request(self, state: Path) -> dict[str, Any]:
        files = [{"source": str(path), "name": name} for name, path in self.files.items()]
        return {"do": "publish", "run_id": RUN, "step": self.number, "files": files, "state_dir": str(state)}

    def content(self) -> dict[str, bytes]:
        return tree(self.output)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path / "pod-a").fill()


@pytest.fixture
def b2() -> Iterator[B2Server]:
    with B2Server(part_size=PART) as server:
        yield server


def b2_store(server: B2Server, url: str = "b2://the-bucket/team") -> Store:
    return open_store(url, server.url, server.environ(), streams=4, retry=QUICK)


@pytest.fixture(params=["file", "b2"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "file":
        return open_store((tmp_path / "store").as_uri(), None, {}, streams=4, part_size=PART)
    return b2_store(request.getfixturevalue("b2"))


IN_A_FOLDER = pytest.mark.parametrize("store", ["file", pytest.param("b2", marks=pytest.mark.soak)], indirect=True)
"""For long tables of what stands in a store: the same code judges the same bytes wherever they lie. B2 is a soak."""


@dataclass
class Transfer:
    """A running transfer process and its lines."""

    process: subprocess.Popen[str]

    def end(self, timeout_s: float = 120.0) -> tuple[int, dict[str, Any], list[dict[str, Any]], str]:
        """(exit code, last line, lines before, stderr)."""
        out, err = self.process.communicate(timeout=timeout_s)
        lines = [json.loads(line) for line in out.splitlines()]
        return self.process.returncode, lines[-1] if lines else {}, lines[:-1], err

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


class Transfers:
    """Starts transfer processes as the daemon does, and ends what a failed test left."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[str]] = []

    def start(self, request: dict[str, Any], environ: dict[str, str] | None = None) -> Transfer:
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor.checkpoints.transfer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **(environ or {})},
        )
        self.running.append(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        process.stdin = None
        return Transfer(process)

    def ok(self, request: dict[str, Any], environ: dict[str, str] | None = None) -> dict[str, Any]:
        """Run one to its end, which must be a good one."""
        code, last, lines, err = self.start(request, environ).end()
        assert (code, err, list(last)) == (0, "", ["ok"]), (last, err)
        answer: dict[str, Any] = last["ok"]
        for entry in (line["entry"] for line in lines if "entry" in line):
            answer[entry["field"]][entry["name"]] = entry["value"]
        return answer

    def error(self, request: dict[str, Any], environ: dict[str, str] | None = None) -> tuple[str, str]:
        """Run one to its end, which must be an error: (kind, sentence)."""
        code, last, _, err = self.start(request, environ).end()
        assert (code, err, list(last)) == (1, "", ["error"]), (last, err)
        return last["error"]["kind"], last["error"]["sentence"]


@pytest.fixture
def transfers() -> Iterator[Transfers]:
    made = Transfers()
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=10)


class Served:
    """As ``Transfers``, in this process, which has b2sdk already: for what a request does, and not for the process."""

    def ok(self, request: Any, environ: dict[str, str] | None = None) -> dict[str, Any]:
        """Carry one out, which must end well."""
        lines: Any = _Entries()
        answer: dict[str, Any] = serve(read_request(json.loads(json.dumps(request))), environ or {}, lines)
        answer = json.loads(json.dumps(answer))
        for name, values in lines.told:
            answer[name].update(values)
        return answer

    def error(self, request: Any, environ: dict[str, str] | None = None) -> tuple[str, str]:
        """Carry one out, which must be an error: (kind, sentence)."""
        with pytest.raises(StoreError) as caught:
            self.ok(request, environ)
        return caught.value.kind, str(caught.value)


class _Entries:
    """The answer channel of a request that is carried out in this process."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, str]]] = []

    def progress(self, moved: Moved) -> None:
        quiet(moved)

    def entries(self, field: str, values: dict[str, str]) -> None:
        self.told.append((field, values))


@pytest.fixture
def served() -> Served:
    return Served()


class Lasting:
    """As ``Transfers``, with one process for request after request, as the daemon has it; an error ends one."""

    def __init__(self) -> None:
        self._made: dict[str, daemons.Transfers] = {}

    def ok(self, request: dict[str, Any], environ: dict[str, str] | None = None) -> dict[str, Any]:
        """Carry one out, which must end well."""
        key = json.dumps(environ)
        if key not in self._made:
            self._made[key] = daemons.Transfers({**os.environ, **(environ or {})}, 60.0, more_follow=True)
        return self._made[key].run(request)

    def error(self, request: dict[str, Any], environ: dict[str, str] | None = None) -> tuple[str, str]:
        """Carry one out, which must be an error: (kind, sentence)."""
        with pytest.raises(StoreError) as caught:
            self.ok(request, environ)
        return caught.value.kind, str(caught.value)

    def close(self) -> None:
        for made in self._made.values():
            made.close()


@pytest.fixture
def lasting() -> Iterator[Lasting]:
    made = Lasting()
    yield made
    made.close()


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Poll until it is so, with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
