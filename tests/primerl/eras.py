"""The eras of prime-rl that the tests go through: what was read at each commit, and small trees that look like it.

The table is checked against the real history by ``test_real_history.py``. The trees hold identifiers only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from supervisor.primerl.dialect import Dialect

KEEP = ("ckpt.keep", "trainer.ckpt.keep", "orchestrator.ckpt.keep")
OLDEST = Dialect(
    sft_launcher=False,
    parser="pydantic-settings",
    resume="ckpt.resume-step",
    gpus="counts",
    sft_gpus="",
    keep_default_one=True,
    clean="wipes-checkpoints",
    orchestrator_tree="shared",
    trainer_dir="flat",
    buffer="folder",
    broadcasts=False,
    startup_broadcast=False,
    nccl_default=False,
    nccl_resume=False,
    logs="log",
    wandb="monitor-id",
    metrics_file=False,
    router=False,
    liveness=False,
    titles=False,
    notices_parts=False,
    sigterm=False,
    first_step=0,
)

# Commit, its day on main, its tag, and what it changed since the row before.
_HISTORY: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("ceb60c03f", "2025-09-01", "", {}),
    ("f12e2f2ee", "2025-09-11", "", {"wandb": "id"}),
    ("454e2cba4", "2025-09-20", "", {"gpus": "ids"}),
    ("12ef60cf5", "2025-09-22", "", {"logs": "stdout"}),
    ("443c657b8", "2025-09-23", "", {"trainer_dir": "trainer"}),
    ("acfeb861b", "2025-09-28", "", {"keep_default_one": False}),
    ("af5073208", "2025-09-30", "", {}),
    ("4b3372824", "2025-10-09", "", {}),
    ("8518c157c", "2025-11-18", "", {"clean": "wipes-outputs", "broadcasts": True}),
    ("34ac60439", "2025-11-30", "", {}),
    ("1a28ff3d9", "2025-12-03", "", {}),
    ("b8697b0f0", "2025-12-15", "", {"orchestrator_tree": "run-default"}),
    ("534c27ab5", "2025-12-18", "", {"buffer": "jsonl"}),
    ("017b3fe71", "2025-12-30", "v0.2", {}),
    ("e3dbf2ad8", "2025-12-31", "", {"renamed": KEEP}),
    ("be0e3d131", "2026-01-06", "", {}),
    ("32adbba80", "2026-01-15", "v0.3.0", {}),
    ("d83dce699", "2026-01-26", "", {"nccl_resume": True}),
    ("f870f3cbd", "2026-02-06", "v0.4.0", {}),
    (
        "1826b1892",
        "2026-02-24",
        "",
        {"sft_launcher": True, "gpus": "deployment"},
    ),
    ("82652c739", "2026-02-24", "", {"clean": "output-dir"}),
    ("cae5532f5", "2026-02-24", "", {"sft_gpus": "num-gpus"}),
    ("3d9aa90a2", "2026-02-26", "", {}),
    ("09a6875f1", "2026-03-02", "", {"parser": "pydantic-config"}),
    ("9b2fb9afb", "2026-03-11", "", {"checkpoint_folder": True}),
    ("0f236d322", "2026-03-18", "", {"wandb": "none"}),
    ("63331ad8b", "2026-03-30", "v0.5.0", {}),
    ("1692a67d9", "2026-03-31", "", {"logs": "log"}),
    ("06c54dde7", "2026-04-01", "", {"titles": True}),
    ("a12f5d5af", "2026-04-01", "", {"sigterm": True}),
    ("625e05fa6", "2026-04-07", "", {"wandb": "shared-id"}),
    ("a87badd65", "2026-04-29", "", {"liveness": True}),
    ("d62c7539e", "2026-05-05", "", {}),
    ("d3e478d73", "2026-05-19", "", {}),
    ("f6563ff0e", "2026-06-01", "", {"buffer": "none"}),
    ("38494ccb4", "2026-06-22", "v0.6.0", {}),
    ("16f5c7222", "2026-07-03", "", {"first_step": 1, "nccl_resume": False}),
    ("77766bb59", "2026-07-09", "", {"nccl_default": True}),
    ("d334ea529", "2026-07-13", "v0.7.0", {"startup_broadcast": True, "nccl_resume": True}),
    ("c012c45cf", "2026-07-14", "", {"startup_broadcast": False}),
    ("9551e20fa", "2026-07-29", "", {"router": True}),
    ("60bc29547", "2026-08-06", "v0.8.0", {}),
    ("d1046b876", "2026-08-08", "", {}),
    ("289562d2e", "2026-08-08", "", {"orchestrator_tree": "shared", "startup_broadcast": True}),
    ("e26b50503", "2026-08-13", "", {"resume": "resume.step", "clean": "run-dir", "wandb": "prl-id"}),
    ("68e0c50f6", "2026-08-13", "", {"logs": "attempts"}),
    ("9975d8868", "2026-08-15", "", {"metrics_file": True}),
    ("15d6c8197", "2026-08-17", "", {"sft_gpus": "num-train-gpus"}),
    ("29e422276", "2026-08-20", "", {"notices_parts": True}),
    ("559b44772", "2026-08-21", "", {}),
)


@dataclass(frozen=True)
class Era:
    """One commit and the dialect that was read there."""

    commit: str
    day: date
    tag: str
    dialect: Dialect


def _eras() -> dict[str, Era]:
    dialect, eras = OLDEST, {}
    for commit, day, tag, changes in _HISTORY:
        dialect = replace(dialect, **changes)
        eras[commit] = Era(commit, date.fromisoformat(day), tag, dialect)
    return eras


ERAS = _eras()
MODULE_SPLIT = date(2026, 5, 5)  # from then on the configuration is a package of its own (d62c7539e)


def write_checkout(folder: Path, era: Era) -> Path:
    """A checkout in ``folder`` with the identifiers of ``era``'s source text, and nothing else of it."""
    dialect = era.dialect
    source = folder / "src" / "prime_rl"
    configs = source
    if era.day >= MODULE_SPLIT:
        configs = folder / "packages" / "prime-rl-configs" / "src" / "prime_rl"
    new = dialect.sft_launcher
    settings = {
        "counts": "trainer_gpus: int\ninference_gpus: int\n",
        "ids": "inference_gpu_ids: list\ntrainer_gpu_ids: list\n",
        "deployment": "num_train_gpus: int\nnum_infer_gpus: int\n",
    }[dialect.gpus]
    settings += "self.trainer.monitor.wandb\n" if dialect.wandb == "monitor-id" else ""
    settings += "clean_output_dir: bool\n" if dialect.clean == "output-dir" else ""
    settings += 'orchestrator / "run_default"\n' if dialect.orchestrator_tree == "run-default" else ""
    settings += "SharedNCCLWeightBroadcastConfig()\n" if dialect.nccl_default else ""
    launcher = '"trainer.stdout"\n' if dialect.logs == "stdout" else '"trainer.log"\n'
    launcher += {
        "wipes-checkpoints": "shutil.rmtree(ckpt_dir)\n",
        "wipes-outputs": "shutil.rmtree(log_dir)\n",
    }.get(dialect.clean, "")
    launcher += {
        "none": 'env["WANDB_SHARED_RUN_ID"] = new()\n',
        "shared-id": 'os.environ.get("WANDB_SHARED_RUN_ID", new())\n',
        "prl-id": 'os.environ["PRL_RUN_ID"]\n',
    }.get(dialect.wandb, "")
    launcher += "def sigterm_handler\n" if dialect.sigterm else ""
    launcher += "ckpt_output_dir = config.ckpt.output_dir\n" if dialect.checkpoint_folder else ""
    keep = "keep_last: int" if "ckpt.keep" in dialect.renamed else "keep: Annotated[\n        x\n    ] = None"
    if dialect.keep_default_one:
        keep = "    keep: Annotated[\n        x\n    ] = 1"
    broadcast = ""
    if dialect.startup_broadcast:
        broadcast = "if start_step:\n    Broadcasting startup policy weights\n"
    elif dialect.nccl_resume and dialect.first_step == 1:
        broadcast = 'if start_step and weight_broadcast.type == "nccl":\n    Broadcasting startup policy weights\n'
    buffer = {"folder": "def save(): metadata", "jsonl": "def save(): rollout_buffer.jsonl", "none": ""}[dialect.buffer]

    files = {
        source / ("entrypoints/rl.py" if new else "rl.py"): launcher + ("" if new else settings),
        source / "trainer/ckpt.py": '/ "trainer"\n' if dialect.trainer_dir == "trainer" else "flat\n",
        source / "trainer/runs.py": f"step: int = {dialect.first_step}\n",
        source / "trainer/rl/train.py": broadcast,
        source / "orchestrator/orchestrator.py": "self.progress.step = self.resume_step + 1\n" * dialect.first_step
        + "def _raise_if_component_stopped" * dialect.notices_parts,
        source / "orchestrator/utils.py": "check_exists" if era.day >= date(2026, 1, 26) else "",
        source / "inference/vllm/server.py": '"/liveness"' if dialect.liveness else "",
        source / "utils/utils.py": "def get_broadcast_dir" if dialect.broadcasts else "",
        source / "utils/pathing.py": "def create_attempt_log_dir" if dialect.logs == "attempts" else "",
        source / "utils/process.py": "PRIME_RL_PROC_PREFIX" if dialect.titles else "",
    }
    if buffer:
        files[source / "orchestrator/buffer.py"] = buffer
    if new:
        files[configs / "configs/rl.py"] = settings
        files[configs / "configs/trainer.py"] = keep
        files[configs / "configs/shared.py"] = "class ResumeConfig" if dialect.resume == "resume.step" else ""
        files[source / "entrypoints/inference.py"] = "def start_router" if dialect.router else ""
        files[source / "entrypoints/sft.py"] = ""
        sft = {"": "", "num-gpus": "num_gpus: int", "num-train-gpus": "num_train_gpus: int"}
        files[configs / "configs/sft.py"] = sft[dialect.sft_gpus]
        if dialect.sft_launcher:
            files[source / "entrypoints/sft.py"] = "sft"
    else:
        files[source / "trainer/config.py"] = f"class CheckpointConfig:\n{keep}\n"
    if dialect.parser == "pydantic-settings":
        files[source / "utils/pydantic_config.py"] = "parse_argv"
    if dialect.metrics_file:
        files[configs / "configs/monitors.py"] = "file: FileMonitorConfig | None = FileMonitorConfig()"
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
