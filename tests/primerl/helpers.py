"""Jobs of any era in a temporary folder, and checkpoints that torch itself could load."""

from __future__ import annotations

import os
import pickle
import sys
import time
import types
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.config.settings import RunFile
from supervisor.jobs.base import StartRequest
from supervisor.primerl import open_job
from supervisor.primerl.job import PrimeRlJob
from tests.primerl.eras import ERAS, write_checkout

CONFIG = 'max_steps = 100\n[model]\nname = "Qwen/Qwen3-0.6B"\n[trainer]\n[orchestrator]\n[inference]\n'
QUIET_S = 20.0


def job_of(
    tmp_path: Path,
    commit: str,
    *,
    config: str = CONFIG,
    kind: str = "rl",
    job: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    **sections: Any,
) -> PrimeRlJob:
    """A job of the era of ``commit``: its checkout is ``tmp_path/prime-rl``, its configuration ``tmp_path/rl.toml``."""
    checkout = tmp_path / "prime-rl"
    if not checkout.exists():
        write_checkout(checkout, ERAS[commit])
    (tmp_path / "rl.toml").write_text(config)
    settings = {
        "kind": kind,
        "dir": str(checkout),
        "config": [str(tmp_path / "rl.toml")],
        "output_dir": str(tmp_path / "out"),
        "checkpoint_interval": 5,
        **(job or {}),
    }
    sections.setdefault("supervision", {"quiet": QUIET_S})
    run = {"id": "demo", **sections.pop("run", {})}
    run_file = RunFile.model_validate({"run": run, "job": settings, **sections})
    opened = open_job(run_file, environ if environ is not None else {"PATH": "/usr/bin:/bin"})
    assert isinstance(opened, PrimeRlJob)
    return opened


def request(step: int | None, configs: Mapping[Path, Path] | None = None) -> StartRequest:
    """A start request as the daemon makes it."""
    return StartRequest("demo", 3, step, configs or {}, "w4nd8", Path("/attempt"))


def words(job: PrimeRlJob, step: int | None) -> list[str]:
    """The command line after the launcher's words and the configuration file."""
    argv = list(job.components(request(step))[0].argv)
    return argv[argv.index("@") + 2 :]


# ---------------------------------------------------------------- checkpoints


def write_dcp(folder: Path, shards: Sequence[int] = (64, 48)) -> None:
    """A torch distributed checkpoint with shards of these sizes; its metadata is pickled under torch's own names."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, size in enumerate(shards):
        (folder / f"__{rank}_0.distcp").write_bytes(os.urandom(size))
    names = ("torch", "torch.distributed", "torch.distributed.checkpoint", "torch.distributed.checkpoint.metadata")
    storage = "torch.distributed.checkpoint.filesystem"
    saved = {name: sys.modules.get(name) for name in (*names, storage)}
    modules = {name: types.ModuleType(name) for name in (*names, storage)}

    def define(module: str, name: str) -> type:
        kind = type(name, (), {"__module__": module, "__qualname__": name})
        setattr(modules[module], name, kind)
        return kind

    metadata_type, index_type = define(names[3], "Metadata"), define(names[3], "MetadataIndex")
    info_type = define(storage, "_StorageInfo")
    metadata = metadata_type()
    metadata.state_dict_metadata, metadata.planner_data = {}, None
    metadata.storage_data = {}
    for rank, size in enumerate(shards):
        index, info = index_type(), info_type()
        index.fqn, index.offset, index.index = f"app.model.layer{rank}", None, None
        info.relative_path, info.offset, info.length = f"__{rank}_0.distcp", 0, size
        metadata.storage_data[index] = info
    sys.modules.update(modules)
    try:
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    finally:
        for name, module in saved.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def write_progress(folder: Path) -> None:
    """``progress.pt`` as torch.save writes it: a zip file."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "progress.pt", "w") as archive:
        archive.writestr("progress/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("progress/version", b"3\n")


def write_step(job: PrimeRlJob, step: int, *, age_s: float = 3600.0) -> Path:
    """A whole step in the layout of the era's source (written out here, not asked of the code under test)."""
    dialect, root = job.dialect, job.output_dir
    run = root / "demo" if dialect.resume == "resume.step" else root
    primary = run / "checkpoints" / f"step_{step}"
    side = run / "run_default" if dialect.orchestrator_tree == "run-default" else run
    if job.sft:
        side = run
    if not job.sft:
        folder = side / "checkpoints" / f"step_{step}" / "orchestrator"
        write_progress(folder)
        if dialect.buffer == "jsonl":
            (folder / "buffer").mkdir()
            for name in ("easy_examples", "hard_examples", "rollout_buffer"):
                (folder / "buffer" / f"{name}.jsonl").write_text('{"example_id": 1}\n')
        elif dialect.buffer == "folder":
            (folder / "buffer" / "metadata").mkdir(parents=True)
            (folder / "buffer" / "metadata" / "state.json").write_text("{}")
        if not dialect.broadcasts:
            for number in range(max(step - 2, 1), step + 1):
                _weights(run / "weights" / f"step_{number}", "pytorch_model.bin")
        elif not dialect.startup_broadcast:
            _weights(side / "broadcasts" / f"step_{step}", "model.safetensors", "STABLE")
    write_dcp(primary / "trainer" if dialect.trainer_dir == "trainer" else primary)
    make_old(root, age_s)
    return primary


def _weights(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("weights" if name != "STABLE" else "")


def make_old(root: Path, age_s: float) -> None:
    """Give every file below ``root`` the same time, ``age_s`` ago."""
    then = time.time() - age_s
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (then, then))
