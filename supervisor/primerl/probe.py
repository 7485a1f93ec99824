"""Finds out how an installed prime-rl speaks by searching its text. Nothing of it is imported or run.

The version in its metadata says nothing (it stayed 0.1.0 for seven months), and `rl --help` imports torch in half of
the history; the text of a dozen files decides. Each rule was tried on every commit from September 2025 to August 2026.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlparse

from supervisor.base.errors import UnknownDialectError
from supervisor.base.own_child import OwnChild
from supervisor.primerl.dialect import Dialect
from supervisor.primerl.renames import renames

LARGEST = 2 << 20  # bytes of a source file that are searched; the launcher has some 40,000
FIND_TIMEOUT_S = 30.0

Read = Callable[[str], str]
"""Text of a file below ``prime_rl``, "" when it is not there."""


def probe(roots: Sequence[Path]) -> Dialect:
    """The dialect of the prime-rl with the package folders (``prime_rl``) ``roots``.

    Raises UnknownDialectError when there is no launcher, or when the features contradict each other.
    """
    return dialect_of(lambda name: _read_source(roots, name), ", ".join(str(root) for root in roots) or "nowhere")


def dialect_of(read: Read, where: str) -> Dialect:
    """The dialect of the source text that ``read`` gives; ``where`` is for error messages."""
    launcher = read("entrypoints/rl.py") or read("rl.py")
    if not launcher:
        raise UnknownDialectError(
            f"There is no launcher of prime-rl in {where} (neither rl.py nor entrypoints/rl.py): set [job] dir to a "
            "prime-rl checkout, or [job] python to the interpreter that has it."
        )
    shared, rl_config, trainer_config = read("configs/shared.py"), read("configs/rl.py"), read("configs/trainer.py")
    # Until 2026-02-24 the launcher's configuration stood in the launcher, and for some days in rl_config.py.
    settings = rl_config + read("rl_config.py") + (read("rl.py") if not rl_config else "")
    checkpoints = trainer_config + read("trainer/config.py")
    train, orchestrator = read("trainer/rl/train.py"), read("orchestrator/orchestrator.py")
    inference = read("entrypoints/inference.py")
    process, pathing, utils = read("utils/process.py"), read("utils/pathing.py"), read("utils/utils.py")
    buffer, sft_config = read("orchestrator/buffer.py"), read("configs/sft.py")

    run_dirs = "class ResumeConfig" in shared
    gpus: Literal["counts", "ids", "deployment"]
    if "num_train_gpus" in settings:
        gpus = "deployment"
    elif "inference_gpu_ids: " in settings:
        gpus = "ids"
    elif "inference_gpus: " in settings:
        gpus = "counts"
    else:
        raise UnknownDialectError(
            f"The prime-rl in {where} has no setting for GPUs that this supervisor knows: it is older than September "
            "2025 or newer than this supervisor. Use a known version, or update the supervisor."
        )
    dialect = Dialect(
        sft_launcher=bool(read("entrypoints/sft.py")),
        parser="pydantic-settings" if read("utils/pydantic_config.py") else "pydantic-config",
        resume="resume.step" if run_dirs else "ckpt.resume-step",
        gpus=gpus,
        sft_gpus=_sft_gpus(sft_config),
        keep_default_one=bool(re.search(r"\bkeep: Annotated\[(?:(?!\n    \] =).)*\n    \] = 1\n", checkpoints, re.S)),
        clean=_clean_words(run_dirs, settings + launcher, launcher),
        orchestrator_tree="run-default"
        if any(re.search(r'/\s*"?run_default"', text) for text in (launcher, settings, read("utils/validation.py")))
        else "shared",
        trainer_dir="trainer" if '"trainer"' in read("trainer/ckpt.py") else "flat",
        buffer="jsonl" if "rollout_buffer.jsonl" in buffer else "folder" if "def save(" in buffer else "none",
        broadcasts="def get_broadcast_dir" in pathing + utils,
        startup_broadcast=_startup_broadcast(train),
        nccl_default="Defaults to NCCL broadcast" in settings or "SharedNCCLWeightBroadcastConfig()" in settings,
        nccl_resume=_nccl_resume(train, orchestrator, read("orchestrator/utils.py")),
        logs="attempts"
        if "def create_attempt_log_dir" in pathing
        else "log"
        if '"trainer.log"' in launcher
        else "stdout",
        wandb=_wandb_of_launcher(launcher, settings),
        metrics_file="FileMonitorConfig | None = FileMonitorConfig()" in read("configs/monitors.py"),
        router="def start_router" in inference,
        liveness='"/liveness"' in read("inference/vllm/server.py"),
        titles="PRIME_RL_PROC_PREFIX" in process,
        notices_parts="def _raise_if_component_stopped" in orchestrator,
        sigterm="sigterm_handler" in launcher,
        first_step=1
        if any(re.search(r"\bstep: int = 1\b", text) for text in (read("trainer/ckpt.py"), read("trainer/runs.py")))
        else 0,
        checkpoint_folder="ckpt_output_dir" in launcher,
        renamed=tuple(
            one.old for one in renames() if one.sign and re.search(one.sign, shared + settings + checkpoints)
        ),
    )
    dialect.check()
    return dialect


def _sft_gpus(config: str) -> Literal["", "num-gpus", "num-train-gpus"]:
    if "num_train_gpus" in config:
        return "num-train-gpus"
    return "num-gpus" if re.search(r"\bnum_gpus:", config) else ""


def _clean_words(
    run_dirs: bool, settings: str, launcher: str
) -> Literal["wipes-checkpoints", "wipes-outputs", "output-dir", "run-dir"]:
    if run_dirs:
        return "run-dir"
    if "clean_output_dir" in settings:
        return "output-dir"
    return "wipes-checkpoints" if "shutil.rmtree(ckpt_dir" in launcher else "wipes-outputs"


def _startup_broadcast(train: str) -> bool:
    """Does the trainer send its weights at start whatever the transport is?

    d334ea529 did, c012c45cf (2026-07-14) restricted it to NCCL, 289562d2e (2026-08-08) does again: the condition tells.
    """
    place = train.find("Broadcasting startup policy weights")
    if place < 0:
        return False
    start = train.rfind("if ", 0, train.rfind("start_step", 0, place))
    return "weight_broadcast.type" not in train[start:place]


def _nccl_resume(train: str, orchestrator: str, utils: str) -> bool:
    """Can a run with NCCL broadcast resume? Not before d83dce699 (2026-01-26), nor 16f5c7222 to 2fdffa7d3 (July)."""
    if "Broadcasting startup policy weights" in train:
        return True
    if "check_exists" not in utils:
        return False
    return "self.progress.step = self.resume_step + 1" not in orchestrator


def _wandb_of_launcher(launcher: str, settings: str) -> Literal["monitor-id", "id", "none", "shared-id", "prl-id"]:
    if "PRL_RUN_ID" in launcher:
        return "prl-id"
    if 'environ.get("WANDB_SHARED_RUN_ID"' in launcher:
        return "shared-id"
    if "WANDB_SHARED_RUN_ID" in launcher:
        return "none"
    return "monitor-id" if "trainer.monitor.wandb" in settings else "id"


def _read_source(roots: Sequence[Path], name: str) -> str:
    for root in roots:
        try:
            with (root / name).open("rb") as file:
                return file.read(LARGEST).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except OSError as error:
            raise UnknownDialectError(f"{root / name} cannot be read ({error.strerror}): make it readable.") from error
    return ""


# ---------------------------------------------------------------- where it is installed


def find_roots(folder: Path, python: Path | None) -> list[Path]:
    """Package folders of the prime-rl in checkout ``folder``, else of the one that ``python`` would import.

    Looks into the interpreter's site-packages and the .pth and direct_url.json files there; asks the interpreter
    itself only when none of that says anything. Empty when there is none.
    """
    for source in (folder / "src", folder):
        if (source / "prime_rl").is_dir() and _has_launcher(source / "prime_rl"):
            return [source / "prime_rl", *_find_configs(folder)]
    if python is None or not python.exists():
        return []
    found = list(dict.fromkeys(_is_installed(python)))
    if any(_has_launcher(root) for root in found):
        return found
    return _ask_interpreter(python)


def _has_launcher(root: Path) -> bool:
    return (root / "rl.py").is_file() or (root / "entrypoints" / "rl.py").is_file()


def _find_configs(folder: Path) -> list[Path]:
    configs = folder / "packages" / "prime-rl-configs" / "src" / "prime_rl"
    return [configs] if configs.is_dir() else []


def _is_installed(python: Path) -> Iterator[Path]:
    # A virtual environment's python is a symlink out of it: its folder is the one that counts, not its target.
    prefix = python.absolute().parent.parent
    for site in sorted(prefix.glob("lib*/python3*/site-packages")):
        if (site / "prime_rl").is_dir():
            yield site / "prime_rl"
        for pth in sorted(site.glob("*.pth")):
            for line in _read_lines(pth):
                # A line of code is not run; one that names a folder is what an editable install writes.
                target = site / line.strip()
                if (
                    line.strip()
                    and not line.startswith(("import ", "import\t", "#"))
                    and (target / "prime_rl").is_dir()
                ):
                    yield target / "prime_rl"
        for record in sorted(site.glob("prime_rl*.dist-info/direct_url.json")):
            yield from _from_url("".join(_read_lines(record)))


def _from_url(text: str) -> Iterator[Path]:
    try:
        url = json.loads(text)["url"]
    except (ValueError, KeyError, TypeError):
        return
    if isinstance(url, str) and url.startswith("file://"):
        folder = Path(unquote(urlparse(url).path))
        if (folder / "src" / "prime_rl").is_dir():
            yield folder / "src" / "prime_rl"


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _ask_interpreter(python: Path) -> list[Path]:
    """What the interpreter's import system says, without importing the package."""
    code = (
        "import importlib.util, json\n"
        "spec = importlib.util.find_spec('prime_rl')\n"
        "print(json.dumps(list(spec.submodule_search_locations or []) if spec else []))"
    )
    environ = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        with OwnChild([str(python), "-c", code], environ=environ, cwd=Path("/")) as child:
            child.wait(time.monotonic() + FIND_TIMEOUT_S)
            child.kill()
            found = json.loads(child.answer().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return []
    return [Path(name) for name in found if isinstance(name, str) and Path(name).is_dir()]
