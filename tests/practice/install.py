"""Makes an "installed prime-rl" of one era: `python -m tests.practice.install DIR --era ERA`.

DIR/src (and packages/...) hold small files of our own text with exactly the names by which an era is told from another;
DIR/.venv has a real virtual environment's shape, and its `bin` scripts run the practice job; DIR/configs/practice.toml
is an example in the era's schema.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.practice.era import Era, era_names, load_era

SCRIPTS = ("rl", "inference", "orchestrator", "trainer", "torchrun", "uv", "vllm-router")
TRAINER_MODULE = "src/prime_rl/trainer/rl/train.py"
SHEBANG_LIMIT = 120

BODIES = {
    "inference_gpu_ids: ": "inference_gpu_ids: list = [0]",
    "keep: ": "keep: object = None",
    "keep_last": "keep_last = None",
    "shutil.rmtree(ckpt_dir": "def forget(shutil, ckpt_dir):\n    shutil.rmtree(ckpt_dir, ignore_errors=True)",
    '"trainer"': 'PART = "trainer"',
    "trainer.stdout": 'OUTPUT = "trainer.stdout"',
    '/ "run_default"': 'def below(folder):\n    return folder / "run_default"',
    "/run_default": 'BELOW = "{output_dir}/run_default"',
    '"trainer.log"': 'OUTPUT = "trainer.log"',
    "num_train_gpus": "num_train_gpus = 1",
    "clean_output_dir": "clean_output_dir = False",
    "WANDB_SHARED_RUN_ID": 'RUN = "WANDB_SHARED_RUN_ID"',
    "PRL_RUN_ID": 'RUN = "PRL_RUN_ID"',
    "sigterm_handler": "def sigterm_handler(number, frame):\n    raise SystemExit(1)",
    "ckpt_output_dir": "def place(config):\n    ckpt_output_dir = config.ckpt.output_dir\n    return ckpt_output_dir",
    "NEVER_CLEAN": 'NEVER = "NEVER_CLEAN"',
    "create_attempt_log_dir": "def create_attempt_log_dir(run_dir):\n    return run_dir",
    "PRIME_RL_PROC_PREFIX": 'PRIME_RL_PROC_PREFIX = "PRIME-RL"',
    "def start_router": "def start_router(config):\n    return config",
    "def _raise_if_component_stopped": "def _raise_if_component_stopped(self):\n    return self",
    "class ResumeConfig": "class ResumeConfig:\n    step = None",
    "step: int = 0": "class Progress:\n    step: int = 0",
    "def get_broadcast_dir": "def get_broadcast_dir(folder):\n    return folder",
    "check_exists": "check_exists = None",
    "rollout_buffer.jsonl": 'ROLLOUTS = "rollout_buffer.jsonl"',
    "def save(": "def save(folder):\n    return folder",
    '"/liveness"': 'ENDPOINT = "/liveness"',
    "startup broadcast": (
        "def announce(step, start_step, say):\n    if step == start_step:\n"
        '        say("Broadcasting startup policy weights")'
    ),
    "one more step": "def go_on(self):\n    self.progress.step = self.resume_step + 1",
    "metrics by default": (
        "class FileMonitorConfig:\n    pass\n\n\nfile: FileMonitorConfig | None = FileMonitorConfig()"
    ),
    "NCCL by default": (
        "class SharedNCCLWeightBroadcastConfig:\n    pass\n\n\nbroadcast = SharedNCCLWeightBroadcastConfig()"
    ),
    "uv children": 'trainer_cmd = ["uv", "run", "trainer"]',
    "environ.get": 'import os\n\nRUN = os.environ.get("WANDB_SHARED_RUN_ID")',
    "step: int = 1": "class Progress:\n    step: int = 1",
}


ENVIRONMENT = '''"""The environment of the example, as far as one asks whether it can be imported."""


def load_environment(**settings):
    return settings
'''


def install(folder: Path, era_name: str) -> Path:
    """Makes the install and returns its folder, absolute. Raises ValueError for an unknown era."""
    era = load_era(era_name)
    home = folder.resolve()
    for entry in era.install:
        _write_file(home / entry["path"], _module_text(era, entry["path"], entry.get("names", [])))
    names = [name for entry in era.install if entry["path"] == TRAINER_MODULE for name in entry.get("names", [])]
    _write_file(home / TRAINER_MODULE, _trainer_text(era, home, names))
    _write_progress_class(home, era)
    _write_file(home / "pyproject.toml", f'# Stands in for prime-rl at {era.commit}.\n[project]\nname = "prime-rl"\n')
    _make_venv(home)
    names = [*SCRIPTS, *(["env-server"] if era.titles else [])]
    for name in names:
        _write_script(home, era, name)
    (home / "bin").mkdir(exist_ok=True)
    uv = home / "bin" / "uv"
    uv.unlink(missing_ok=True)
    uv.symlink_to(home / ".venv" / "bin" / "uv")
    _write_file(home / "configs" / "practice.toml", example(era))
    return home


def example(
    era: Era,
    *,
    output_dir: str = "outputs",
    port: int = 8000,
    max_steps: int = 20,
    interval: int = 5,
    run_name: str = "practice",
    model: str = "Qwen/Qwen3-0.6B",
    inference_gpus: tuple[int, ...] = (0,),
    trainer_gpus: tuple[int, ...] = (1,),
) -> str:
    """The text of an rl configuration in the era's own schema."""
    return era.example["rl"].format(
        output_dir=output_dir,
        port=port,
        max_steps=max_steps,
        interval=interval,
        run_name=run_name,
        model=model,
        inference_gpus=", ".join(map(str, inference_gpus)),
        trainer_gpus=", ".join(map(str, trainer_gpus)),
        inference_count=len(inference_gpus),
        trainer_count=len(trainer_gpus),
    )


def without_inference(era: Era, text: str, port: int) -> tuple[str, str]:
    """An example without its [inference], and that table as the `inference` entry point's own file.

    A person has to say what `rl` then no longer sets up: the model, and past a router the engine's own address.
    """
    text, _, table = text.partition("\n[inference.server]\n")
    if era.engine["router"]:
        # The client's table is the last one left.
        text += f'admin_base_url = ["http://localhost:{port + int(era.engine["port_offset"])}/v1"]\n'
    model = next(line for line in text.split("[model]\n")[1].splitlines() if line.startswith("name ="))
    new = "vllm*" in era.keys["inference"] or "vllm" in era.keys["inference"]
    named = f"[vllm]\n{model.replace('name', 'model', 1)}" if new else f"[model]\n{model}"
    return text, f"[server]\n{table}\n{named}\n"


def _module_text(era: Era, path: str, names: list[str]) -> str:
    bodies = "\n\n\n".join(BODIES[name] for name in names)
    title = f"Stands in for {path} of prime-rl at {era.commit}: the names that tell this era from others, no more."
    return f'"""{title}"""\n\n{bodies}\n'


def _trainer_text(era: Era, home: Path, names: list[str]) -> str:
    return (
        f'"""Stands in for {TRAINER_MODULE} of prime-rl at {era.commit}."""\n\n'
        + "".join(f"{BODIES[name]}\n\n\n" for name in names)
        + 'if __name__ == "__main__":\n'
        "    from tests.practice.entry import main\n\n"
        f"    main('trainer-rank', {era.name!r}, {str(home)!r})\n"
    )


def _make_venv(home: Path) -> None:
    binaries = home / ".venv" / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for name in ("python", "python3"):
        link = binaries / name
        link.unlink(missing_ok=True)
        link.symlink_to(base)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    _write_file(home / ".venv" / "pyvenv.cfg", f"home = {base.parent}\ninclude-system-site-packages = false\n")
    ours = Path(__file__).resolve().parents[2]
    roots = [home / "src", home / "packages" / "prime-rl-configs" / "src", ours]
    packages = home / ".venv" / "lib" / version / "site-packages"
    _write_file(packages / "reverse_text.py", ENVIRONMENT)
    _write_file(
        packages / "prime_rl.pth",
        "".join(f"{root}\n" for root in roots if root.exists()),
    )


def _write_script(home: Path, era: Era, name: str) -> None:
    python = home / ".venv" / "bin" / "python3"
    first = (
        f"#!{python}" if len(str(python)) < SHEBANG_LIMIT else f"#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''"
    )
    text = f"{first}\nfrom tests.practice.entry import main\n\nmain({name!r}, {era.name!r}, {str(home)!r})\n"
    path = home / ".venv" / "bin" / name
    _write_file(path, text)
    path.chmod(0o755)


def _write_progress_class(home: Path, era: Era) -> None:
    """The class that the orchestrator's part of a checkpoint is pickled as."""
    module, _, name = era.layout["progress_class"].rpartition(".")
    path = home / "src" / f"{module.replace('.', '/')}.py"
    text = path.read_text(encoding="utf-8") if path.exists() else f'"""Stands in for {module} of prime-rl."""\n'
    if f"class {name}" not in text:
        _write_file(path, f"{text}\n\nclass {name}:\n    step = 0\n")


def _write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.practice.install", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--era", required=True, choices=era_names())
    arguments = parser.parse_args()
    home = install(arguments.folder, arguments.era)
    path = f"{home / '.venv' / 'bin'}{os.pathsep}$PATH"
    print(f"prime-rl of {arguments.era} stands in {home}; try: cd {home} && PATH={path} rl @ configs/practice.toml")


if __name__ == "__main__":
    main()
