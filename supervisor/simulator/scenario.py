"""The numbers of a simulated run: its speeds, sizes and fault rates; how often what strikes is in ``mix.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from supervisor.base.errors import ConfigError
from supervisor.core.settings import OLD_NAMES, Settings
from supervisor.simulator.healthy import healthy_physics, healthy_rates

FILE = Path(__file__).with_name("mix.toml")
GB = 10**9
GIB = 1 << 30
WORLD = "world-"
TIER_HOLDS, TIER_MARGIN = 2, 0.1  # whole steps in the tier at most, and what is left free beside them
LINES = ("debug", "info", "steps")


@dataclass(frozen=True)
class Physics:
    """A job, its pod, link and store. Sizes in GB (10^9 bytes), times in seconds, rates in GB/s, links in Gbit/s."""

    step_s: float = 240.0  # median of a step
    step_sigma: float = 0.4  # of its logarithm
    step_tail: float = 0.0  # part of the steps that are several times as long (Pareto), for heavy tails
    # torch.distributed.checkpoint.save (torch 2.13): one rank wrote 3 GiB into tmpfs at 0.90 to 0.99 GiB/s and onto a
    # local disk with its sync at 0.65 to 0.70, on a quiet machine; `python -m bench.save_rate` measures yours. More
    # ranks write into memory side by side (4 of them assumed at most) and queue at the disk.
    writer_gb_s: float = 1.0  # what one rank of the trainer writes at most, whatever takes it
    volume_gb_s: float = 0.72  # what the volume of the checkpoints takes from all ranks, synced
    tier_gb_s: float = 4.0  # what the memory file system takes from all ranks
    # The share of two GPUs of a machine with eight and 2 TB (assumed); /dev/shm is half of it, as on a virtual machine.
    shm_gb: float = 256.0  # size of /dev/shm
    may_mount: bool = False  # may a memory file system of any size be mounted?
    ram_gb: float = 512.0  # of the machine
    memory_limit_gb: float = 512.0  # of the container
    job_memory_gb: float = 200.0  # the job's own peak
    interval: int = 5  # steps between two checkpoints
    checkpoint_gb: float = 47.0
    load_s: float = 300.0  # launch to first step: model load and compilation
    eval_every: int = 25  # steps between two evaluations, 0: none
    eval_s: float = 120.0
    eval_first: bool = False  # the base model is evaluated before the first step
    overlaps: bool = False  # with steps of asynchrony: the orchestrator evaluates while the trainer still has a batch
    straggling: float = 0.0  # part of a step's rollouts in which none ends, since the last ones are long
    env_s: float = 0.0  # median for which a step's last rollouts, or an evaluation's, wait for their environment
    link_gbit: float = 2.0
    disk_gb: float = 1000.0
    base_gb: float = 150.0  # of the disk: model, environment, caches
    trainer_keep: int = 4  # checkpoints that the trainer itself leaves on the disk, 0: all
    engines: int = 1  # data-parallel engines, a GPU each
    trainer_gpus: int = 1
    liveness: bool = True  # the engine has /liveness
    counters: bool = True  # /metrics can be read
    sockets: bool = True  # connections to the engine can be counted
    keepalive: bool = False  # and stay open while nothing is asked
    nvml: bool = True  # the GPU driver answers
    proc: bool = True  # /proc tells what the job's processes do
    waits_spin: bool = False  # the trainer's ranks wait for a batch in a collective, so their GPUs are "100 % busy"
    env_shows: bool = True  # a slow environment uses CPU here; False: it waits for a service elsewhere
    sync_part: float = 0.2  # of a save in which the trainer writes nothing: the kernel brings it to the volume
    pipeline: bool = True  # the orchestrator tells its count of rollouts
    lines: str = "debug"  # what the logs show: "debug" all, "info" few phases and hardly an end, "steps" no phase
    step_begins: bool = True  # at "info": does the orchestrator say that it begins a step? Its era tells
    flaky: float = 0.0  # part of all looks that fail or time out for no reason
    replacement_s: float = 600.0  # median until another pod is there
    replacement_sigma: float = 0.5
    person_s: float = 3600.0  # median until a person comes after exit 93
    relapse: float = 0.0  # part of a host's faults that are followed by another one within a day, if the run stays
    max_steps: int = 0  # 0: the run does not end
    early_shape: float = 0.5  # Weibull k of failures in the first ten minutes of an attempt, 1: as later
    early_s: float = 600.0
    thinned: bool = True  # while all is calm, sensors look less often than real ones do

    @property
    def save_s(self) -> float:
        """For how long a save into the volume stalls the trainer."""
        return self.checkpoint_gb / min(self.writer_gb_s * self.trainer_gpus, self.volume_gb_s)

    @property
    def tier_save_s(self) -> float:
        """The same into the tier."""
        return self.checkpoint_gb / min(self.writer_gb_s * self.trainer_gpus, self.tier_gb_s)

    @property
    def has_tier(self) -> bool:
        """Do these, one that is being saved, and a margin fit into memory beside the job?"""
        room = max(self.shm_gb, self.ram_gb if self.may_mount else 0.0)
        beside = min(self.ram_gb, self.memory_limit_gb) - self.job_memory_gb
        return (TIER_HOLDS + 1) * self.checkpoint_gb * (1 + TIER_MARGIN) <= min(room, beside)


@dataclass(frozen=True)
class Rate:
    """How often a kind of fault strikes, and with what parameters."""

    kind: str
    per_1000_h: float
    source: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """All numbers of one simulated run."""

    name: str
    physics: Physics
    rates: tuple[Rate, ...]
    settings: Settings


def _own_table(file: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What a scenario has of its own."""
    number = name.removeprefix(WORLD)
    if name.startswith(WORLD) and number.isascii() and number.isdigit() and 0 < len(number) < 7 and int(number):
        physics, odd = healthy_physics(int(number)), file["scenario"]["healthy"]
        return {**odd, "physics": physics, "rates": {**odd["rates"], **healthy_rates(physics)}}
    if name not in file["scenario"]:
        raise ConfigError(f"There is no scenario {name!r}; known are {', '.join(scenario_names())}.")
    own: Mapping[str, Any] = file["scenario"][name]
    return own


@cache
def _read_mix() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


def scenario_names() -> list[str]:
    """Names that ``load_scenario`` knows; besides, each healthy world has its number."""
    return [*sorted(_read_mix()["scenario"]), f"{WORLD}1, {WORLD}2, ..."]


def load_scenario(name: str = "default", sets: Sequence[str] = ()) -> Scenario:
    """The scenario ``name`` of mix.toml with ``key=value`` changes.

    Keys: a field of ``Physics``, ``rate.KIND`` (per 1000 h), or ``settings.FIELD`` of the core's settings. Raises
    ConfigError with what is known instead.
    """
    file = _read_mix()
    own = _own_table(file, name)
    rates = {
        kind: Rate(kind, float(entry["per_1000_h"]), str(entry["source"]), entry.get("with", {}))
        for kind, entry in file["rate"].items()
    }
    for kind, per in own.get("rates", {}).items():
        rates[kind] = replace(rates[kind], per_1000_h=float(per))
    if own.get("only_listed_rates", False):
        listed = own.get("rates", {})
        rates = {kind: rate if kind in listed else replace(rate, per_1000_h=0.0) for kind, rate in rates.items()}
    physics = Physics(**own.get("physics", {}))
    settings = Settings(run_id="simulated", first_step_at=1, stop_below_bytes=2 * GIB, keep_last=3)
    for text in sets:
        physics, rates, settings = _apply_setting(text, physics, rates, settings)
    last = physics.max_steps or 10**9
    return Scenario(name, physics, tuple(rates.values()), replace(settings, max_steps=last))


def _apply_setting(
    text: str, physics: Physics, rates: dict[str, Rate], settings: Settings
) -> tuple[Physics, dict[str, Rate], Settings]:
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key or not value:
        raise ConfigError(f"--set takes key=value, not {text!r}.")
    if key.startswith("rate."):
        kind = key.removeprefix("rate.")
        if kind not in rates:
            raise ConfigError(f"There is no fault {kind!r} in the mix; known are {', '.join(sorted(rates))}.")
        return physics, {**rates, kind: replace(rates[kind], per_1000_h=_parse_number(key, value))}, settings
    if key == "settings.inference":
        raise ConfigError(f"The virtual pod has no inference server of its own, so {key} stays as it is.")
    if key.startswith("settings."):
        name = key.removeprefix("settings.")
        return physics, rates, _with_field(settings, OLD_NAMES.get(name, name), value, "settings.")
    return _with_field(physics, key, value, ""), rates, settings


def _with_field(thing: Any, name: str, value: str, prefix: str) -> Any:
    known = {f.name for f in fields(thing)}
    if name not in known:
        others = "" if prefix else "; besides, rate.KIND and settings.FIELD"
        raise ConfigError(
            f"There is nothing called {prefix}{name} to set; known are {', '.join(sorted(known))}{others}."
        )
    hint = get_type_hints(type(thing))[name]
    parsed: bool | float | str = value
    if hint is bool:
        if value not in ("true", "false"):
            raise ConfigError(f"{prefix}{name} is true or false, not {value!r}.")
        parsed = value == "true"
    elif hint in (int, float, int | None):
        parsed = _parse_number(prefix + name, value)
        if hint is not float:
            if parsed != int(parsed):
                raise ConfigError(f"{prefix}{name} is a whole number, not {value!r}.")
            parsed = int(parsed)
    changed = replace(thing, **{name: parsed})
    if isinstance(changed, Physics):
        _check_possible(changed)
    return changed


def _check_possible(physics: Physics) -> None:
    if physics.lines not in LINES:
        raise ConfigError(f"lines is one of {', '.join(LINES)}, not {physics.lines!r}.")
    for name in (
        "writer_gb_s",
        "volume_gb_s",
        "tier_gb_s",
        "step_s",
        "interval",
        "checkpoint_gb",
        "load_s",
        "link_gbit",
        "disk_gb",
        "engines",
        "trainer_gpus",
    ):
        if getattr(physics, name) <= 0:
            raise ConfigError(f"{name} must be more than 0.")
    if not 0 < physics.early_shape <= 1:
        raise ConfigError("early_shape is more than 0 and at most 1.")


def _parse_number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise ConfigError(f"{key} takes a number, not {value!r}.") from error
    if not 0 <= number < 1e15:
        raise ConfigError(f"{key} takes a number from 0 on, not {value!r}.")
    return number
