"""Which machine of an allocation this is, by what Slurm and SkyPilot say in the environment."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MOST_NAMES = 100_000


@dataclass(frozen=True)
class Seat:
    """This machine's name and its number in the allocation, 0 first."""

    name: str
    rank: int


def find_seat(environ: Mapping[str, str]) -> Seat:
    """Slurm's word, then SkyPilot's, else the host's name as the only one."""
    for variable, name in (
        ("SLURM_NODEID", environ.get("SLURMD_NODENAME", "")),
        ("SKYPILOT_NODE_RANK", ""),
    ):
        rank = environ.get(variable, "")
        if rank.isascii() and rank.isdigit():
            names = list(_names(environ))
            known = names[int(rank)] if int(rank) < len(names) else ""
            return Seat(name or known or f"n{int(rank)}", int(rank))
    return Seat(socket.gethostname(), 0)


def _names(environ: Mapping[str, str]) -> Iterator[str]:
    if listed := environ.get("SLURM_JOB_NODELIST"):
        yield from expand_hosts(listed)
    else:
        yield from environ.get("SKYPILOT_NODE_IPS", "").split()


def expand_hosts(text: str) -> list[str]:
    """Slurm's list of hosts, "n[1-3,07-09],m4", as names. ValueError for what is none."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else [one for word in ranges.split(",") for one in _expand_range(word)]
            names = [name + end for name in names for end in ends]
            if len(found) + len(names) > MOST_NAMES:
                raise ValueError(f"{text[:100]!r} names too many hosts")
        found += names
    return found


def _expand_range(word: str) -> list[str]:
    first, dash, last = word.partition("-")
    if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
        raise ValueError(f"{word!r} is no range of hosts")
    if not dash:
        return [first]
    if int(last) - int(first) > MOST_NAMES:
        raise ValueError(f"{word!r} names too many hosts")
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
