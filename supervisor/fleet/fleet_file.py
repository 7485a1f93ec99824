"""``fleet.toml``: the runs of a fleet, where their pods may be, and what they may cost. Checked as a run file."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from supervisor.base.errors import ConfigError
from supervisor.base.secrets import remember_environment
from supervisor.config import run_file
from supervisor.config.reporting import Notify
from supervisor.config.run_place import LARGEST
from supervisor.config.section import Section
from supervisor.config.settings import GpuName, RunFile
from supervisor.core.settings import Positive
from supervisor.fleet.places.base import Want
from supervisor.storage.backends import keys_of, url_problem

BOOT = r"""#!/bin/bash
# Find or install rl-supervisor, and hand over to its own start script.
V=${RL_SUPERVISOR_VENV:-/opt/rl-supervisor} P=
if [ ! -x "$V/bin/rl-supervisor" ] && B=$(command -v rl-supervisor); then
  P=$(dirname "$(readlink -f "$B")")/python
elif [ ! -x "$V/bin/rl-supervisor" ] && command -v uv >/dev/null; then
  uv venv -q --python 3.11 "$V" && uv pip install -q --python "$V/bin/python" "$RL_SUPERVISOR_PACKAGE"
elif [ ! -x "$V/bin/rl-supervisor" ]; then
  python3 -m venv "$V" && "$V/bin/pip" install -q "$RL_SUPERVISOR_PACKAGE"
fi
D=$("${P:-$V/bin/python}" -c 'from supervisor.install import __path__ as p; print(p[0])')
exec bash "$D/units/onstart.sh" "$@"
"""
RUN_FILE = "RL_SUPERVISOR_RUN_FILE_B64"
"""The variable in which a pod's start script finds the run file."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
ACCOUNT_KEYS = {"vast": "VAST_API_KEY", "runpod": "RUNPOD_API_KEY", "prime": "PRIME_API_KEY"}
"""The controller's own variable for each provider's account. None of them ever goes to a pod."""
Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Fleet(Section):
    """The fleet itself."""

    name: Name = "fleet"
    """Folder of the controller's memory in the store. Two fleets in one bucket need two names."""
    store: str
    """`b2://bucket/prefix`, `s3://bucket/prefix` or `file:///folder`: controller's memory. Pods get no key for it."""
    realm: str | None = None
    """B2 realm, or the URL of another B2 or S3 server."""

    @field_validator("store")
    @classmethod
    def check_url(cls, value: str) -> str:
        if problem := url_problem(value):
            raise ValueError(problem)
        return value


class Limits(Section):
    """What the fleet may cost. At a limit no pod is rented; one that trains is not stopped."""

    per_hour: Dollars
    """Dollars an hour for all pods that run at once."""
    total: Dollars
    """Dollars for all pods that this fleet ever rented."""
    creates_per_hour: Positive = 6
    """Pods made within an hour, all runs together."""
    until: str | None = None
    """No pod is rented after this day or time, UTC: `2026-12-31` or `2026-12-31T18:00`."""

    @field_validator("until")
    @classmethod
    def is_time(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                _read_time(value)
            except (ValueError, OverflowError):
                raise ValueError(f"{value!r} is neither a day nor a time such as 2026-12-31T18:00") from None
        return value

    @property
    def until_unix(self) -> float | None:
        """``until`` in seconds since 1970."""
        return None if self.until is None else _read_time(self.until)


def _read_time(text: str) -> float:
    """Seconds since 1970; of a day, those at its end. Raises ValueError and OverflowError."""
    at = datetime.fromisoformat(text)
    if len(text) <= len("2026-12-31"):
        at += timedelta(days=1)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


class PlaceTable(Section):
    """A place where pods may be rented."""

    provider: Literal["vast", "runpod", "prime", "ssh", "slurm"]
    """Who lets machines there. `ssh`: a machine of your own, one a place. `slurm`: the cluster that
    `sbatch` on this machine reaches; what its jobs ask for stands in `[slurm]` of the run file."""
    host: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9@._-]*)?$")] = ""
    """For `ssh`: the host, as `~/.ssh/config` knows it."""
    gpu: str = ""
    """The GPU, as the provider spells it: `H100 SXM`."""
    gpus: Positive = 1
    """How many of them."""
    inference: list[GpuName] = Field(default=[])
    """GPUs of the engine there, in place of `[gpus]` of the run file. With `trainer`."""
    trainer: list[GpuName] = Field(default=[])
    """GPUs of the trainer there."""
    args: list[str] = Field(default=[])
    """Further words for the launcher's command line there, after `[job] args` of the run file."""
    spot: bool = True
    """Interruptible, at a bid? Else on demand."""
    most_per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """Dollars an hour for one machine."""
    per_gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """For `slurm`: dollars for one GPU and hour. 0: its jobs have no price, and the limits do not count them."""
    bid_factor: Annotated[float, Field(ge=1, le=10)] = 1.2
    """A bid is the lowest possible one times this, and never above `most_per_hour`."""
    disk_gb: Annotated[float, Field(gt=0)] = 400
    """Disk of the pod."""
    image: str = ""
    """Docker image of the pod. For `prime`: the id of a custom template of your account."""
    region: str = ""
    """Where, as the provider spells it. Default: anywhere."""
    least_down_mbit: Annotated[float, Field(ge=0)] = 0
    """The host's link, into the pod, is at least so fast."""
    least_up_mbit: Annotated[float, Field(ge=0)] = 0
    """The same out of the pod: checkpoints are sent this way."""

    @model_validator(mode="after")
    def check_needs(self) -> PlaceTable:
        """What each provider must be told."""
        needs = {"ssh": ("host",), "slurm": ()}.get(self.provider, ("gpu", "image", "most_per_hour"))
        if lacking := [f"`{name}`" for name in needs if not getattr(self, name)]:
            raise ValueError(f"has no {' and no '.join(lacking)}, which provider {self.provider!r} needs")
        if self.provider == "runpod" and not self.spot and (self.least_down_mbit or self.least_up_mbit):
            raise ValueError("has `least_down_mbit` or `least_up_mbit`: RunPod takes these for spot pods only")
        if self.provider == "slurm" and (self.args or self.inference or self.trainer):
            raise ValueError("has `args`, `inference` or `trainer`: a job of Slurm reads the run file itself")
        return self

    @property
    def is_own(self) -> bool:
        """Machines that are not rented: little is known of them here."""
        return self.provider in ("ssh", "slurm")

    @property
    def account(self) -> str:
        """The provider's name in what the controller remembers: each host of ours is one."""
        return f"ssh/{self.host}" if self.provider == "ssh" else self.provider

    @property
    def want(self) -> Want:
        """It, as a provider is asked."""
        return Want(
            gpu=self.gpu,
            gpus=self.gpus,
            spot=self.spot and not self.is_own,
            disk_gb=self.disk_gb,
            most_per_hour=self.most_per_hour or (math.inf if self.provider == "slurm" else 0.0),
            region=self.region,
            least_down_mbit=self.least_down_mbit,
            least_up_mbit=self.least_up_mbit,
        )


class RunTable(Section):
    """A run of the fleet. Its name in `fleet.toml` is for people; its id is the run file's."""

    file: Path
    """The run file, from the folder of `fleet.toml`."""
    places: Annotated[list[Name], Field(min_length=1)]
    """Names of `[place.NAME]` tables, in the order of preference."""
    package: str | None = None
    """What pip installs on the pod: a git URL, a wheel's URL. Default: the image has rl-supervisor."""
    env: Mapping[str, str] = Field(default={})
    """The pod's environment. A value that begins with `$` is taken from the controller's own. Where it has a
    `B2_APPLICATION_KEY`, none is made for each pod: give one for the run's folder, never the account's."""
    boot_s: Annotated[float, Field(ge=60)] = 1800
    """A pod that has not claimed the run after so many seconds is destroyed."""

    @field_validator("env")
    @classmethod
    def check_env(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} cannot be the name of a variable")
            if not {name, text.removeprefix("$")}.isdisjoint(ACCOUNT_KEYS.values()):
                raise ValueError(f"{name} would put the account's key on a rented host: take it out")
        return value


class FleetFile(Section):
    """All of `fleet.toml`."""

    fleet: Fleet
    limits: Limits
    notify: Notify = Notify()
    place: dict[Name, PlaceTable]
    run: dict[Name, RunTable]

    @model_validator(mode="after")
    def check_places(self) -> FleetFile:
        for name, run in self.run.items():
            for place in run.places:
                if place not in self.place:
                    raise ValueError(f"run.{name}.places names {place!r}, and there is no [place.{place}]")
        return self


def load(path: Path) -> FleetFile:
    """Read ``fleet.toml``. Raises ConfigError: one line for each mistake."""
    if not path.exists():
        raise ConfigError(
            f"{path} does not exist. Write it: rl-supervisor fleet init RUN.toml, or name it with --file."
        )
    return run_file.read(path, FleetFile)


def is_fleet_file(path: Path) -> bool:
    """Is it a ``fleet.toml``, and no run file? One that cannot be read is none."""
    try:
        return re.search(rb"(?m)^[ \t]*\[[ \t]*fleet[ \t]*\]", path.read_bytes()[:LARGEST]) is not None
    except OSError:
        return False


def load_run(path: Path, name: str, table: RunTable, fleet: Fleet) -> RunFile:
    """The run file of a run. Raises ConfigError when it does not fit a fleet."""
    found = run_file.load(path.parent / table.file)
    local = found.store.url is None or found.store.url.startswith("file:")
    if local and not fleet.store.startswith("file:"):
        raise ConfigError(f"{path}: run.{name} keeps its steps on one machine ([store] url): no other pod has them.")
    scheme, _, _ = (found.store.url or "").partition(":")
    if scheme != fleet.store.partition(":")[0] or found.store.service != fleet.realm:
        raise ConfigError(
            f"{path}: run.{name} has its steps in another store service than the fleet has its memory ([fleet] store "
            f"and realm): ages are told by the upload times of both, and two services have two clocks. Keep the "
            f"memory at the service of the run; another bucket, or another folder, will do."
        )
    if found.run.id == fleet.name:
        raise ConfigError(f"{path}: run.{name} has the id of the fleet's own folder, {fleet.name}: rename one of them.")
    return found


def environment_of_export(
    path: Path, file: RunFile, package: str | None, secrets: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """What a pod gets that another engine starts: variables, and the names of the secret ones."""
    values = {"RL_SUPERVISOR_RUN": file.run.id, RUN_FILE: base64.b64encode(path.read_bytes()).decode()}
    if package is not None:
        values["RL_SUPERVISOR_PACKAGE"] = package
    return values, list(dict.fromkeys([*keys_of(file.store.url or ""), *secrets]))


def count_machines(path: Path, file: RunFile, asked: int | None) -> int:
    """Of a run that another engine starts; ``asked``: by a person. Raises ConfigError."""
    if file.nodes is None:
        if asked is not None:
            raise ConfigError(f"{path} is a run on one machine: leave --machines out, or give it [nodes].")
        return 1
    wanted = file.nodes.machines_wanted if file.nodes.components else 0
    if not (asked or wanted):
        raise ConfigError(f"{path} does not say how many machines it needs: --machines COUNT, spares included.")
    if asked and asked < wanted:
        raise ConfigError(f"{path} has components for {wanted} machines, and --machines names {asked}.")
    return asked or wanted


def pod_environment(path: Path, table: RunTable, run_id: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What each pod of the run gets. Raises ConfigError when the controller's own environment lacks a key."""
    env = {"RL_SUPERVISOR_RUN": run_id}
    if table.package is not None:
        env["RL_SUPERVISOR_PACKAGE"] = table.package
    for name, value in table.env.items():
        if not value.startswith("$"):
            env[name] = value
        elif (found := environ.get(value[1:])) is None:
            raise ConfigError(f"{path}: {name} of the pod is taken from {value}, which is not set here.")
        else:
            env[name] = found
    remember_environment(env)  # a pod may print what it is given
    return env


def read_template(name: str) -> str:
    """A text that ``str.format`` fills in."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
