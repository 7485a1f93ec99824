"""Which machine of an allocation this is, by what its engine says, and which machine of a job is which."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor.base.errors import ConfigError
from supervisor.base.hosts import expand_hosts
from supervisor.jobs.base import Component

HOLE = re.compile(r"\{(?:name|address)\.(\d{1,4})\}")


@dataclass(frozen=True)
class Seat:
    """This machine's name and its number in the allocation, 0 first."""

    name: str
    rank: int


def find_seat(environ: Mapping[str, str]) -> Seat:
    """Slurm's word, then SkyPilot's, then Kubernetes' (an Indexed Job), else the host's name as the only one."""
    for variable, name in (
        ("SLURM_NODEID", environ.get("SLURMD_NODENAME", "")),
        ("SKYPILOT_NODE_RANK", ""),
        ("JOB_COMPLETION_INDEX", environ.get("RL_SUPERVISOR_LABEL", "")),  # the pod's own name
    ):
        rank = environ.get(variable, "")
        if rank.isascii() and rank.isdigit():
            listed = environ.get("SLURM_JOB_NODELIST", "")
            names = expand_hosts(listed) if listed else environ.get("SKYPILOT_NODE_IPS", "").split()
            known = names[int(rank)] if int(rank) < len(names) else ""
            return Seat(name or known or f"n{int(rank)}", int(rank))
    return Seat(socket.gethostname(), 0)


def seat_of_pod(name: str, environ: Mapping[str, str]) -> str:
    """What a pod of an Indexed Job has in common with the one that is made when it has gone; "" elsewhere.

    Its name is JOB-INDEX-RANDOM: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    seat = name.rpartition("-")[0]
    index = environ.get("JOB_COMPLETION_INDEX", "")
    return seat if index.isdigit() and seat.endswith(f"-{index}") else ""


def count_machines(components: Sequence[Component]) -> int:
    """So many machines the job needs; more are spares."""
    places = [component.place.host for component in components if component.place is not None]
    return 1 + max(int(found[1]) for place in places if (found := HOLE.fullmatch(place)))


def choose_machines(ranks: Mapping[str, int], avoid: Sequence[str], wanted: int) -> list[str]:
    """So many of these machines (name -> rank), in the order of their ranks; those to avoid only where it needs them.

    Of those the first is the least bad.
    """
    worst = {name: place for place, name in enumerate(avoid, 1)}
    ranked = sorted(ranks, key=lambda name: (worst.get(name, 0), ranks[name], name))
    return sorted(ranked[:wanted], key=lambda name: (ranks[name], name))


def fill_machines(component: Component, machines: Sequence[tuple[str, str]]) -> Component:
    """With the name and address of each machine where the job wrote ``{name.N}`` and ``{address.N}``.

    Raises ConfigError where it names a machine on which nothing of it runs.
    """

    def fill(found: re.Match[str]) -> str:
        kind, number = found[0].strip("{}").split(".")
        if int(number) >= len(machines):
            raise ConfigError(f"{component.name} names {found[0]}, and the job has {len(machines)} machines.")
        return machines[int(number)][kind == "address"]

    def fill_text(text: str) -> str:
        return HOLE.sub(fill, text)

    place = component.place
    return replace(
        component,
        argv=[fill_text(word) for word in component.argv],
        env={name: fill_text(value) for name, value in component.env.items()},
        place=None if place is None else replace(place, host=fill_text(place.host)),
    )
