"""What `init` says of the pod that it runs on, with numbers: GPUs, disks, provider, variables, prime-rl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.base import homes
from supervisor.base.errors import SupervisorError
from supervisor.cli import providers
from supervisor.cli.machine import Machine
from supervisor.core.words import size
from supervisor.jobs.downloads import hub_cache
from supervisor.preflight import look
from supervisor.preflight.site import Site, Volume
from supervisor.primerl.probe import find_roots, probe
from supervisor.primerl.revision import revision
from supervisor.process import transient
from supervisor.process.pod_identity import environment_of_process_one
from supervisor.storage.backends import keys_of

ASKED_FOR = ("WANDB_API_KEY", "HF_TOKEN")
"""Variables without which a run often fails; besides, the store's keys."""


@dataclass(frozen=True)
class Pod:
    """One look. ``process_one``: names of variables that only process 1 has."""

    machine: Machine
    site: Site
    provider: providers.Provider
    environ: Mapping[str, str]
    process_one: Sequence[str] = ()
    systemd: bool = False
    trainer: str = ""
    """Name and revision of the installed prime-rl, or why it is not known."""
    told_by: str = ""
    """The variable that tells the provider."""


def survey(machine: Machine, environ: Mapping[str, str], python: Path | None = None) -> Pod:
    """Look at this pod, the GPUs left out. ``python``: the job's, where it is not the checkout's own."""
    first = environment_of_process_one(Path("/"))
    both = {**first, **environ}
    here = Path.cwd()
    folders = {
        "output": (machine.job_dir or here) / "outputs",
        "state": homes.runs_dir(),
        "hf-cache": hub_cache(environ, here),
    }
    site = look.look(look.Needs(environ, both, here, folders=folders), gpus=False)
    return Pod(
        machine=machine,
        site=site,
        provider=providers.of(site.provider, container=site.container),
        environ=environ,
        process_one=sorted(set(first) - set(environ) - {"_", "PWD", "OLDPWD", "SHLVL"}),
        systemd=transient.BOOTED.is_dir(),
        trainer=_find_trainer(machine.job_dir, python),
        told_by=next((name for name in sorted(both) if site.provider and look.provider({name: "x"})), ""),
    )


def _find_trainer(folder: Path | None, python: Path | None) -> str:
    if folder is None:
        return ""
    roots = find_roots(folder, python or folder / ".venv" / "bin" / "python")
    if not roots:
        return "there is no prime-rl in this folder"
    try:
        name = probe(roots).name
    except SupervisorError as error:
        return f"not known: {str(error).splitlines()[0].rstrip('.')}"
    commit = revision(roots[0])
    return f"{name}, commit {commit[:9]}" if commit else f"{name}; that is no git checkout, so the commit is not known"


# ---------------------------------------------------------------- in words


def describe_pod(pod: Pod) -> list[str]:
    """Comments for the head of the run file: what was found, a line each."""
    lines = [_describe_gpus(pod.machine)]
    if pod.trainer:
        lines.append(f"{pod.machine.job_dir}: {pod.trainer}.")
    by = f" ({pod.told_by} is set)" if pod.told_by else ""
    lines += [f"Pod: {pod.provider.name}{by}.", *(f"  {said}" for said in pod.provider.said)]
    lines.append(
        "systemd: runs here; `rl-supervisor install` makes the unit."
        if pod.systemd
        else "systemd: does not run here; `rl-supervisor run`, or onstart.sh in a container."
    )
    lines += [
        _describe_volume(what, pod.site.volumes[name]) for name, what in _WHAT.items() if name in pod.site.volumes
    ]
    if pod.site.container:
        lines += _is_persistent(pod.site)
    return [*lines, *_describe_variables(pod)]


def _describe_gpus(machine: Machine) -> str:
    gpus = machine.gpus
    if not gpus:
        return "GPUs: none is known."
    kinds: dict[str, int] = {}
    for gpu in gpus:
        kind = f"{gpu.name} with {size(gpu.total_bytes) if gpu.total_bytes else 'unknown memory'}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return "GPUs: " + ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) + "."


_WHAT = {"output": "outputs", "state": "the supervisor's state", "hf-cache": "models (HF cache)"}


def _describe_volume(what: str, volume: Volume) -> str:
    return (
        f"Disk: {what} would lie on {volume.mount} ({volume.kind}): {size(volume.free_bytes)} free of "
        f"{size(volume.total_bytes)}."
    )


def _is_persistent(site: Site) -> list[str]:
    if not site.persistent:
        return ["Disk: no volume was found that outlives this container: without [store] url all is lost with it."]
    shown = ", ".join(
        f"{one.mount} ({size(one.free_bytes)} free of {size(one.total_bytes)})" for one in site.persistent
    )
    return [f"Disk: given to this container from outside, so likely to outlive it: {shown}."]


def _describe_variables(pod: Pod) -> list[str]:
    wanted = [*ASKED_FOR, *keys_of("b2://")]
    there = [name for name in wanted if pod.environ.get(name)]
    missing = [name for name in wanted if name not in there]
    if "WANDB_API_KEY" in missing and pod.site.netrc_wandb:
        missing.remove("WANDB_API_KEY")
        there.append("a login for W&B in .netrc")
    lines = [f"Variables: set: {', '.join(there)}."] if there else []
    if missing:
        lines.append(f"Variables: not set here: {', '.join(missing)}.")
    hidden = [name for name in wanted if name in pod.process_one]
    if hidden:
        lines.append(f"Variables: only process 1 has {', '.join(hidden)}: onstart.sh reads them there, `run` does not.")
    return lines


def better_volume(pod: Pod) -> Volume | None:
    """The largest volume that outlives the container, where outputs would lie on none of them."""
    output = pod.site.volumes.get("output")
    if not pod.site.container or not pod.site.persistent or output is None:
        return None
    if output.mount in {one.mount for one in pod.site.persistent}:
        return None
    return max(pod.site.persistent, key=lambda one: one.free_bytes)
