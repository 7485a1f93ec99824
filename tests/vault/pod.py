"""A pod with its disk, and the store it publishes to: what a kill point leaves behind is judged from the outside.

The judge reads the bucket (or the folder) itself, not with the code under test, and knows what every step must hold.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.base.retry import Retry
from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import PublishPlan, Source
from supervisor.checkpoints.restore import restore
from supervisor.storage import open_store
from supervisor.storage.base import Store
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import quiet

PART = 5_000
RUN = "bs4-rl-7"
QUICK = Retry(tries=4, base_s=0.001, cap_s=0.005)
NAMES = ("trainer/.metadata", "trainer/__0_0.distcp", "trainer/__1_0.distcp", "trainer/empty", ".run/rollouts/one.pt")
SIZES = (300, 12_001, 7_000, 0, 100)

Content = dict[str, bytes]


def content(step: int, seed: int = 0) -> Content:
    """A small step: a file of three parts, one of two, small ones and an empty one."""
    dice = random.Random(f"{seed}/{step}")
    return {name: dice.randbytes(size) for name, size in zip(NAMES, SIZES, strict=True)}


@dataclass
class Pod:
    """``home`` is the machine's disk: the run's output, the publish state and, with ``file://``, the store."""

    home: Path
    server: B2Server | None = None
    expected: dict[int, Content] = field(default_factory=dict)
    make: Callable[[int, int], Content] = content
    shared: Path | None = None  # another pod's vault, for two pods and one run

    @property
    def output(self) -> Path:
        return self.home / "output"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def vault(self) -> Path:
        return self.shared or self.home / "vault"

    def open(self, streams: int = 1) -> Store:
        """As a new process does."""
        if self.server is None:
            return open_store(self.vault.as_uri(), None, {}, streams=streams, part_size=PART)
        environ = self.server.environ()
        return open_store("b2://the-bucket/team", self.server.url, environ, streams=streams, retry=QUICK)

    def save(self, step: int, seed: int = 0) -> Content:
        """The trainer saves a step."""
        made = self.make(step, seed)
        for name, data in made.items():
            path = self.local(step, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return made

    def local(self, step: int, name: str) -> Path:
        if name.startswith(".run/"):
            return self.output / "rollouts" / f"step_{step}" / "one.pt"
        return self.output / "checkpoints" / f"step_{step}" / name

    def plan(self, step: int, **more: Any) -> PublishPlan:
        names = {name: name for name in NAMES if not name.startswith(".run/")}
        names[NAMES[-1]] = f".run/rollouts/step_{step}/one.pt"
        sources = [Source(self.local(step, name), stored) for name, stored in names.items()]
        return PublishPlan(RUN, step, sources, self.state, **{"writer": "pod-a", "wandb_run_id": "w7"} | more)

    # ------------------------------------------------------------ the judge

    def objects(self) -> dict[str, bytes]:
        """What a listing of the run would show, by its name below the run's folder."""
        if self.server is not None:
            found = self.server.objects()
        else:
            found = {f"team/{path.relative_to(self.vault)}": path.read_bytes() for path in _files(self.vault)}
        here = f"team/{RUN}/"
        return {name.removeprefix(here): data for name, data in found.items() if name.startswith(here)}

    def garbage(self) -> list[str]:
        """What is billed and serves nobody: unfinished large files, versions that are hidden by newer ones."""
        if self.server is None:
            return [str(path) for path in self.vault.rglob(".incoming-*")]
        versions = self.server.state.versions.values()
        unfinished = [f"unfinished {version.name}" for version in versions if version.action == "start"]
        names = [version.name for version in versions if version.action == "upload"]
        doubled = sorted({name for name in names if names.count(name) > 1})
        return unfinished + [f"{names.count(name)} versions of {name}" for name in doubled]

    def committed(self) -> dict[int, str]:
        """Steps that have a manifest, and what is wrong with them ("" when a fresh pod can restore them)."""
        objects = self.objects()
        found = {}
        for name in objects:
            folder, slash, rest = name.partition("/")
            if rest == "manifest.json" and slash and folder.startswith("step_"):
                found[int(folder.removeprefix("step_"))] = self._damage(json.loads(objects[name]), folder, objects)
        return found

    @staticmethod
    def _damage(manifest: Mapping[str, Any], folder: str, objects: Mapping[str, bytes]) -> str:
        for file in manifest["files"]:
            data = objects.get(f"{folder}/{file['path']}")
            if data is None:
                return f"{file['path']} is missing"
            cuts = range(0, len(data), file["part_size"]) if data else [0]
            hashes = [hashlib.sha1(data[at : at + file["part_size"]]).hexdigest() for at in cuts]
            if len(data) != file["size"] or hashes != file["part_sha1"]:
                return f"{file['path']} has other bytes"
        return ""

    def pointer(self) -> int | None:
        data = self.objects().get("latest.json")
        return None if data is None else int(json.loads(data)["step"].removeprefix("step_"))

    def holds(self, step: int, wanted: Content) -> bool:
        """Is exactly this content in the store under that step?"""
        objects = self.objects()
        names = {name: name for name in NAMES[:-1]} | {f".run/rollouts/step_{step}/one.pt": NAMES[-1]}
        return all(objects.get(f"step_{step}/{stored}") == wanted[name] for stored, name in names.items())

    def survives(self, step: int, wanted: Content) -> str:
        """Can this content be restored, by the manifest of the highest generation and its file ids? "" or why not."""
        if self.server is None:
            damage = self.committed().get(step, "not committed")
            return damage or ("" if self.holds(step, wanted) else "other bytes")
        versions = {v.file_id: v for v in self.server.state.versions.values() if v.action == "upload"}
        folder = f"team/{RUN}/step_{step}/"
        manifests = [json.loads(v.data) for v in versions.values() if v.name == f"{folder}manifest.json"]
        if not manifests:
            return "not committed"
        best = max(manifests, key=lambda one: one["generation"])
        there = {file["path"]: versions.get(file["file_id"]) for file in best["files"]}
        gone = [path for path, version in there.items() if version is None]
        if gone:
            return f"{gone[0]} is missing"
        stored = {name: name for name in NAMES[:-1]} | {NAMES[-1]: f".run/rollouts/step_{step}/one.pt"}
        other = [name for name, path in stored.items() if (v := there.get(path)) is None or v.data != wanted[name]]
        return f"{other[0]} has other bytes" if other else ""

    def restored(self, step: int, output: Path) -> Content:
        """The step as a fresh pod gets it, by the code under test."""
        restore(self.open(), RUN, step, Place(f"checkpoints/step_{step}"), output, quiet)
        there = Pod(output.parent)
        assert there.output == output
        return {name: there.local(step, name).read_bytes() for name in NAMES}

    def listed(self) -> dict[int, bool]:
        """What the code under test says of the store."""
        return {info.step: info.committed for info in list_steps(self.open(), RUN).steps.values()}


@dataclass(frozen=True)
class Saved:
    """A pod and its store at one moment, to go back to."""

    home: Path
    versions: Mapping[str, Any]


def save(pod: Pod) -> Saved:
    to = pod.home.with_name("saved")
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(pod.home, to, symlinks=True)
    versions = {} if pod.server is None else {i: copy.copy(v) for i, v in pod.server.state.versions.items()}
    return Saved(to, versions)


def go_back(pod: Pod, saved: Saved) -> None:
    shutil.rmtree(pod.home, ignore_errors=True)
    shutil.copytree(saved.home, pod.home, symlinks=True)
    if pod.server is not None:
        pod.server.wait_idle()
        with pod.server.state.lock:
            pod.server.state.versions = {i: copy.copy(v) for i, v in saved.versions.items()}
            for version in pod.server.state.versions.values():
                version.parts = dict(version.parts)
            pod.server.state.upload_tokens.clear()
            pod.server.state.journal.clear()


def _files(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return [path for path in found if not path.name.startswith(".incoming-")]
