"""One look at the pod as the job will find it: fills a ``Site``. Reads files, and asks the GPU driver in a child."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from supervisor.base.beside import Beside
from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.config.settings import RunFile
from supervisor.core.facts import EMPTY_BYTES, HostLook
from supervisor.jobs.base import Component, Job, StartRequest
from supervisor.jobs.downloads import hub_cache, token_file
from supervisor.jobs.environment import job_environment
from supervisor.journal import attempt_folders
from supervisor.preflight import installed, prompts
from supervisor.preflight import volumes as volumes_of
from supervisor.preflight.site import Gpu, GpuProcess, Refused, Site
from supervisor.primerl import command
from supervisor.process import attached, ports, survivors
from supervisor.process.strangers import on_the_gpus
from supervisor.sensors import gpu_survey
from supervisor.sensors.cgroups import cgroup_of, read_number
from supervisor.sensors.host import HostSensor

GPUS_S = 5.0
"""Patience with the GPU driver; a machine without one answers in a tenth of a second."""
FILES_S = 2.0
"""Patience with volumes and caches, of which one may be a network's that is gone."""
SILENT_S = 5.0
"""After this one that has not even said whether a file is there does hang. Many small files may take longer."""
UNLIMITED = 1 << 62
CAP_SYS_RESOURCE = 24  # linux/capability.h
LATEST_ATTEMPTS = 3

_PROVIDERS = (
    ("vast", ("VAST_CONTAINERLABEL", "VAST_TCP_PORT_22", "VAST_CONTAINER_ID")),
    ("runpod", ("RUNPOD_POD_ID",)),
    ("prime", ("PRIME_POD_ID", "PRIMEINTELLECT_POD_ID")),
    ("lambda", ("LAMBDA_INSTANCE_ID",)),
    ("modal", ("MODAL_TASK_ID",)),
    ("slurm", ("SLURM_JOB_ID",)),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST",)),
)


@dataclass(frozen=True)
class Needs:
    """What of the pod this run would use. ``environ``: what the job is given; ``own``: what we were given."""

    environ: Mapping[str, str]
    own: Mapping[str, str]
    cwd: Path = Path("/")
    python: Path | None = None
    checkout: Path | None = None
    ports: Sequence[int] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    nofile: int = 65536
    folders: Mapping[str, Path] = field(default_factory=dict)
    state_dir: Path | None = None
    run_id: str = ""


def site(
    run_file: RunFile | None,
    job: Job | None,
    environ: Mapping[str, str],
    *,
    checkout: Path | None = None,
    gpus: bool = True,
) -> Site:
    """Look at this pod for the run. Well under a second, but where a driver or a network volume gives no answer."""
    return look(needs(run_file, job, environ, checkout), gpus=gpus)


def needs(run_file: RunFile | None, job: Job | None, environ: Mapping[str, str], checkout: Path | None = None) -> Needs:
    """What the job would be started with. A job that cannot be started yet is looked at as far as it is known.

    ``checkout``: the folder of prime-rl, where no run file names it.
    """
    if run_file is None:
        here = Path.cwd()
        folders = {"hf-cache": hub_cache(environ, here), "tmp": Path(environ.get("TMPDIR") or "/tmp")}  # noqa: S108
        python = checkout / ".venv" / "bin" / "python" if checkout is not None else None
        return Needs(environ, environ, here, python=python, checkout=checkout, folders=folders)
    parts = _components_of_run(run_file, job)
    env = parts[0].env if parts else _environment_of_job(run_file, environ)
    folder = run_file.job.folder
    return Needs(
        environ=env,
        own=environ,
        cwd=folder,
        python=command.interpreter(run_file) if run_file.job.kind != "command" else run_file.job.python,
        checkout=folder,
        ports=sorted({port for part in parts for port in part.ports}),
        hosts={port: host for part in parts for port, host in part.hosts.items()},
        nofile=run_file.job.nofile,
        folders={
            "output": run_file.output_dir,
            "state": run_file.state_dir,
            "hf-cache": hub_cache(env, folder),
            "tmp": Path(env.get("TMPDIR") or "/tmp"),  # noqa: S108 - it is looked at, nothing is written there
        },
        state_dir=run_file.state_dir,
        run_id=run_file.run.id,
    )


def look(needs: Needs, *, gpus: bool = True) -> Site:
    """The pod, as far as it can be known from here. ``gpus`` False: the driver is not asked."""
    mounts = volumes_of.mounts()
    hub = hub_cache(needs.environ, needs.cwd)
    container = in_container(needs.own, mounts)
    until = time.monotonic() + FILES_S
    surveyed = Beside(partial(gpu_survey.survey, GPUS_S, dict(needs.own))) if gpus else None
    volumes = {name: Beside(partial(volumes_of.volume_of, path, mounts)) for name, path in needs.folders.items()}
    models = Beside(partial(volumes_of.cached_models, hub))
    persistent = Beside(partial(volumes_of.list_given_volumes, mounts if container else ()))
    packages = Beside(partial(_look_at_packages, needs))
    there = Beside(needs.python.exists if needs.python is not None else bool)
    wandb_login = Beside(partial(has_wandb_login, needs.environ))
    hf_login = Beside(partial(has_hf_login, needs.environ, needs.cwd))
    host = next((fact for fact in HostSensor().look() if isinstance(fact, HostLook)), HostLook())
    ours = cache(partial(_find_ours, needs))  # looked for only when a process is in the way
    held = find_other_listeners(needs.ports, needs.hosts, ours)
    shm = volumes_of.volume_of(Path("/dev/shm"), mounts)  # noqa: S108
    found = {name: volume for name, one in volumes.items() if (volume := one.result_or_none(until)) is not None}
    cached = models.result_or_none(until)
    versions, (torch, torch_cuda) = packages.result_or_none(until) or ({}, ("", ""))
    told = surveyed.result_or_none(time.monotonic() + GPUS_S + 1) if surveyed else None
    told = told or gpu_survey.GpuSurvey(problem="not asked")
    late = until - FILES_S + SILENT_S
    there.result_or_none(late)
    for one in volumes.values():
        one.result_or_none(late)
    silent = {str(needs.folders[name]): None for name, one in volumes.items() if one.hangs}
    silent |= {str(needs.python): None} if there.hangs else {}
    return Site(
        gpus=_look_at_gpus(told, ours) if not told.problem or told.none else None,
        driver=told.driver,
        driver_cuda=told.cuda,
        torch=torch,
        torch_cuda=torch_cuda,
        versions=versions,
        memory_bytes=host.memory_total_bytes,
        nofile=open_files(needs.nofile),
        nproc=processes(),
        shm=shm,
        ports=held,
        volumes=found,
        persistent=tuple(persistent.result_or_none(until) or ()),
        hf_cache=hub if cached is not None else None,  # of one that gave no answer nothing is known
        hf_models=cached or {},
        environ=needs.environ,
        netrc_wandb=wandb_login.result_or_none(until) is not False,
        hf_login=hf_login.result_or_none(until),
        provider=provider(needs.own),
        container=container,
        silent=tuple(silent),
        job_lives=needs.state_dir is not None and lives(needs.state_dir),
    )


def look_at_refused_prompts(state_dir: Path | None, own: Sequence[Path]) -> tuple[Refused, ...]:
    """What engines of earlier attempts refused; nothing where their logs give no answer in time."""
    return (
        Beside(partial(prompts.find_refused_prompts, state_dir, own)).result_or_none(time.monotonic() + FILES_S) or ()
    )


def _components_of_run(run_file: RunFile, job: Job | None) -> list[Component]:
    """What would be started, as far as the job can say it now."""
    if job is None:
        return []
    request = StartRequest(run_file.run.id, 1, None, {}, run_file.wandb.id or "WANDB_ID", Path("/"))
    try:
        parts = list(job.components(request))
        if job.run.recovery.inference == "own-role":
            parts.append(job.engine_component(request))
    except SupervisorError:
        return []
    return parts


def _environment_of_job(run_file: RunFile, environ: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return job_environment(environ, run_file.job.pass_env, run_file.job.env, {})
    except ConfigError:
        return {**environ, **run_file.job.env}


def _look_at_packages(needs: Needs) -> tuple[dict[str, str], tuple[str, str]]:
    found = installed.packages(needs.python, needs.environ) if needs.python else installed.Packages()
    versions = found.versions() or (installed.read_locked_versions(needs.checkout) if needs.checkout else {})
    return versions, installed.torch(found)


# ---------------------------------------------------------------- GPUs


def _find_ours(needs: Needs) -> frozenset[survivors.Identity]:
    """What is left of this run's last attempts: the start will end it."""
    folders = attempts(needs.state_dir) if needs.state_dir else []
    if not folders:
        return frozenset()
    found = survivors.Belongings(folders[0], (), needs.run_id, also=folders[1:]).list_living()
    return frozenset(process.identity for process in found)


def _look_at_gpus(told: gpu_survey.GpuSurvey, ours: Callable[[], Collection[survivors.Identity]]) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(one.index, one.uuid, one.name, one.total_bytes, one.free_bytes, _tenants_of_gpu(one, ours), one.capability)
        for one in told.gpus
    )


def _tenants_of_gpu(
    gpu: gpu_survey.GpuSurveyed, ours: Callable[[], Collection[survivors.Identity]]
) -> Sequence[GpuProcess] | None:
    """Who holds memory there. The driver's numbers may be the host's, and then name an innocent process here, or none.

    None where they are hidden, or where only what is left of this run is there.
    """
    if gpu.pids is None:
        return None
    if not gpu.pids:
        return () if gpu.used_bytes < EMPTY_BYTES else None
    own = {pid for pid, _ in ours()}
    found = []
    for pid, used in gpu.pids:
        if pid not in own:
            known = on_the_gpus([pid], ())
            found.append(GpuProcess(pid, known[0], used) if known else GpuProcess(0, "", used))
    return tuple(found) or None


# ---------------------------------------------------------------- ports and processes


def find_other_listeners(
    wanted: Iterable[int], hosts: Mapping[int, str], ours: Callable[[], Collection[survivors.Identity]] = frozenset
) -> dict[int, str]:
    """On which of these ports a process that is not ``ours`` listens, and which process, for people."""
    found = ports.listeners(wanted, hosts)
    if not found:
        return {}
    own = {pid for pid, _ in ours()}
    others = [one for one in ports.with_pids(found) if not one.pids or not own.issuperset(one.pids)]
    return {one.port: ports.describe_listener(one).partition(" is held by ")[2] for one in others}


def attempts(state_dir: Path) -> list[Path]:
    """Folders of the last attempts, the newest first."""
    numbers = attempt_folders.attempts(state_dir)[-LATEST_ATTEMPTS:]
    return [attempt_folders.folder_of(state_dir, number) for number in reversed(numbers)]


def lives(state_dir: Path) -> bool:
    """Is an attempt of this run alive, one that was started or one that was attached?"""
    for folder in attempts(state_dir):
        if attached.find_living(folder) is not None:
            return True
        for record in survivors.read_records(folder):
            if record.of_these_pids and (survivors.alive(record.shim) or survivors.alive(record.child)):
                return True
    return False


# ---------------------------------------------------------------- limits


def open_files(asked: int) -> tuple[int, int]:
    """Soft and hard limit of open files as the job will have them: it is raised to ``asked`` where that may be."""
    soft, hard = (_read_limit(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft >= asked:
        return soft, hard
    if hard >= asked or _may_raise(asked):
        return asked, max(hard, asked)
    return hard, hard


def _may_raise(asked: int) -> bool:
    most = read_number(Path("/proc/sys/fs/nr_open"))
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", installed.text_of(Path("/proc/self/status")), re.M)
    return bool(effective and int(effective[1], 16) >> CAP_SYS_RESOURCE & 1) and (most is None or most >= asked)


def processes() -> tuple[int, int] | None:
    """Soft and hard limit of processes and threads: of this user, or of the control group where that is lower."""
    soft, hard = (_read_limit(value) for value in resource.getrlimit(resource.RLIMIT_NPROC))
    if os.geteuid() == 0:
        soft = hard = UNLIMITED  # setrlimit(2): not for processes with CAP_SYS_RESOURCE
    cgroup = cgroup_of(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    if cgroup is None:
        return soft, hard
    mount, folder = cgroup.mount, cgroup.folder
    if cgroup.version == 1:
        mount, folder = mount.with_name("pids"), mount.with_name("pids") / folder.relative_to(mount)
    most = UNLIMITED
    for level in (folder, *(one for one in folder.parents if one.is_relative_to(mount))):
        most = min(most, read_number(level / "pids.max") or UNLIMITED)
    return min(soft, most), min(hard, most)


def _read_limit(value: int) -> int:
    return UNLIMITED if value == resource.RLIM_INFINITY else value


# ---------------------------------------------------------------- files


def has_wandb_login(environ: Mapping[str, str]) -> bool:
    """Has the job's user a login for W&B's server in its netrc file, or a key in W&B's settings?

    `wandb login --host` writes the server into those settings (docs.wandb.ai, wandb login).
    """
    home = environ.get("HOME") or Path.home()
    settings = installed.text_of(Path(environ.get("WANDB_CONFIG_DIR") or f"{home}/.config/wandb", "settings"))
    said = dict(re.findall(r"^(api_key|base_url)\s*[=:]\s*(\S+)", settings, re.M))
    host = re.sub(r"^https?://|[:/].*$", "", environ.get("WANDB_BASE_URL") or said.get("base_url") or "api.wandb.ai")
    places = [environ["NETRC"]] if environ.get("NETRC") else [f"{home}/.netrc", f"{home}/_netrc"]
    text = " ".join(installed.text_of(Path(place)) for place in places)
    return "api_key" in said or bool(re.search(rf"\bmachine\s+{re.escape(host)}(?=\s)", text))


def has_hf_login(environ: Mapping[str, str], cwd: Path) -> bool:
    """Is there a file with a token where the job's huggingface_hub looks for one?"""
    return bool(installed.text_of(token_file(environ, cwd)).strip())


# ---------------------------------------------------------------- where we are


def provider(environ: Mapping[str, str]) -> str:
    """Who rents this pod out, by the variables that they set; "" where nothing tells."""
    return next((name for name, variables in _PROVIDERS if any(environ.get(one) for one in variables)), "")


def in_container(environ: Mapping[str, str], mounts: Sequence[volumes_of.Mount]) -> bool:
    """Does this run in a container? Its own layer goes with it."""
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    root = [one.kind for one in mounts if one.point == Path("/")]
    return bool(
        any(path.exists() for path in marks)
        or environ.get("container")
        or environ.get("KUBERNETES_SERVICE_HOST")
        or root[-1:] == ["overlay"]
    )
