"""The batch script of a run: what it asks of Slurm, and the one ``srun`` line that starts the daemon.

Why it is as it is, tried on Slurm 22.05:

- Before the wall time only the script gets SIGTERM (``B:``), and it tells the daemon (``supervisor.slurm.step``).
  ``scancel --signal`` would tell each process of the step, the trainer as well, and srun that gets SIGTERM kills the
  step.
- Nothing here ends a process by its name: other jobs of this user may be on the machine.
- What follows from an exit code is not written in bash: ``supervisor.slurm.ended`` knows it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.config.settings import RunFile
from supervisor.primerl import configs, open_job
from supervisor.primerl.configs import Settings

SCRIPT = Path(__file__).with_name("job.sh.in").read_text(encoding="utf-8")


# The daemon, on the first machine, with all that the job has there. It and all that it starts descend from this task:
# Slurm ends what a task leaves behind. In a run over several machines an agent is on the first one, too.
SRUN = "srun --nodes=1 --ntasks=1 --kill-on-bad-exit=1"
BESIDE_AGENTS = " --relative=0 --overlap"
REQUEUE = """scontrol requeue "$SLURM_JOB_ID"; [[ $code -ne 94 ]] || scontrol release "$SLURM_JOB_ID\""""
"""With 94 the job may be held already, for what was cut off to change its exclusions."""
# An agent on each machine, each by an srun of its own: one that is lost takes neither the others nor the job along, and
# one whose nanny was killed is started again and adopts what runs.
AGENTS = Path(__file__).with_name("agents.sh").read_text(encoding="utf-8")


PRIME_RLS_GPUS = 8  # of each machine, where its [deployment] does not say (MultiNodeDeploymentConfig, 559b44772)


@dataclass(frozen=True)
class Wishes:
    """What is asked of the cluster: the run file's words, then the trainer's."""

    account: str | None
    partition: str | None
    time: str | None
    nodes: int
    gpus_per_node: int
    exclude: str


def make_script(path: Path, file: RunFile, environ: Mapping[str, str], program: list[str]) -> str:
    """The script for sbatch. ``program``: the words that start rl-supervisor on the machines. Raises ConfigError."""
    wishes, about, path = read_wishes(path, file, environ), file.slurm, path.absolute()
    if any("\n" in part for part in (str(path), *program)):
        raise ConfigError(f"{path!s} has a line break in its name: no script can name it.")
    asked = {
        "job-name": file.run.id,
        "account": wishes.account,
        "partition": wishes.partition,
        "time": wishes.time,
        "nodes": str(wishes.nodes),
        "ntasks-per-node": "1",
        "gres": f"gpu:{wishes.gpus_per_node}" if wishes.gpus_per_node else None,
        "exclude": wishes.exclude or None,
        "output": log_of(path, "%j"),
        "open-mode": "append",
        "signal": f"B:TERM@{about.notice}",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in asked.items() if value]
    if file.nodes is not None:
        # Nothing else runs there, as with prime-rl's own script; and a machine that is lost is the daemon's business.
        lines += ["#SBATCH --exclusive", "#SBATCH --no-kill"]
    lines.append("#SBATCH --requeue" if about.requeue else "#SBATCH --no-requeue")
    lines += [f"#SBATCH {option}" for option in about.options]
    return SCRIPT.format(
        shown=shlex.quote(path.name),
        options="\n".join(lines),
        program=shlex.join(program),
        run=shlex.quote(str(path)),
        setup="".join(f"{line}\n" for line in about.setup),
        agents=AGENTS if file.nodes is not None else "",
        srun=SRUN + BESIDE_AGENTS * (file.nodes is not None),
        requeue=REQUEUE if about.requeue else ":",
    )


def log_of(path: Path, job: str) -> str:
    """Where the job's output goes: beside the run file, which all machines of the cluster see."""
    return str(path.absolute().with_name(f"{path.stem}.slurm-{job}.log"))


def read_wishes(path: Path, file: RunFile, environ: Mapping[str, str]) -> Wishes:
    """Raises ConfigError where the run cannot go to a cluster so."""
    about = file.slurm
    trainers = (
        configs.load(configs.sources(file.job), file.job.args) if file.job.kind in ("rl", "sft") else Settings({}, "")
    )
    if about.nodes + about.spares > 1 and file.nodes is None:
        raise ConfigError(
            f"{path} asks for {about.nodes + about.spares} machines ([slurm] nodes, spares), and has no [nodes], which "
            "says what runs on which (docs/many-machines.md). Set nodes to 1 and spares to 0, or write it."
        )
    if file.nodes is not None and about.nodes < (wanted := _machines_wanted(file, trainers)):
        raise ConfigError(f"The run of {path} needs {wanted} machines at least, and [slurm] nodes is {about.nodes}.")
    if file.store.url is None:
        raise ConfigError(
            f"{path} has no [store] url. A job may go on at another machine while the first copy still lives, and the "
            "store tells which one writes: name a bucket, or a folder that all machines see (file:///shared/folder)."
        )
    theirs = _trainers_own(trainers)
    exclude = ",".join(about.exclude) or theirs.get("exclude", "")
    return Wishes(
        about.account or theirs.get("account"),
        about.partition or theirs.get("partition"),
        about.time or theirs.get("time"),
        about.nodes + about.spares,
        _count_gpus(path, file, trainers, environ),
        exclude,
    )


def _machines_wanted(file: RunFile, settings: Settings) -> int:
    """At least so many: how many engines' machines there are prime-rl may derive itself."""
    if file.nodes is not None and file.nodes.components:
        return file.nodes.machines_wanted
    engines = 1 if settings.has("inference") and file.job.kind == "rl" else 0
    told = settings.number("deployment.num_infer_nodes")
    replicas = settings.number("deployment.num_infer_replicas") or 1
    return (settings.number("deployment.num_train_nodes") or 1) + (engines if told is None else told) * replicas


def _trainers_own(settings: Settings) -> dict[str, str]:
    """``[slurm]`` of prime-rl's configuration (account, partition, time, exclude since 1826b1892, 2026-02-24)."""
    found = {name: settings.get(f"slurm.{name}") for name in ("account", "partition", "time", "exclude")}
    return {name: value for name, value in found.items() if isinstance(value, str) and value}


def _count_gpus(path: Path, file: RunFile, trainers: Settings, environ: Mapping[str, str]) -> int:
    if file.slurm.gpus_per_node is not None:
        return file.slurm.gpus_per_node
    if named := len({*file.gpus.inference, *file.gpus.trainer}):
        return named
    if file.job.kind == "command":
        return 0
    if file.nodes is not None:
        each = trainers.number("deployment.gpus_per_node")
        return PRIME_RLS_GPUS if each is None else each
    without_gpus = {name: value for name, value in environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        plan = open_job(file, without_gpus).gpus()
    except SupervisorError as error:
        raise ConfigError(
            f"How many GPUs this run needs is not known here: {error} Set [slurm] gpus_per_node in {path}."
        ) from None
    return len({*plan.inference, *plan.trainer})


def problems_of_start(file: RunFile, environ: Mapping[str, str]) -> Sequence[str]:
    """What the daemon would end with 93 for, as far as it can be known here: the trainer may be on the nodes alone."""
    try:
        return open_job(file, environ).problems()
    except SupervisorError:
        return ()


def own_program(executable: str) -> list[str]:
    """The words that start this very program: its interpreter, as it is reached from here, and the command's module.

    ``executable`` is ``sys.executable``: an environment on a shared file system is the same on all machines.
    """
    # -P: a folder that happens to be named as ours, where the job was submitted, is not imported.
    return [os.path.abspath(executable), "-P", "-m", "supervisor.cli.main"]  # noqa: PTH100 (the environment's own link)
