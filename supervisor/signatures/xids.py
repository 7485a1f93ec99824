"""What the Xid codes of NVIDIA's driver mean and ask for; the table is ``xids.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, get_args

from supervisor.base.records import dataclass

Action = Literal["none", "restart", "follow", "reset", "reboot", "nvlink", "replace", "support"]

TABLE: Final = Path(__file__).with_name("xids.toml")
SOURCE: Final = "NVIDIA, Xid Errors, catalogue: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

# "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus." (NVIDIA, XID Errors)
# Of a GPU that is divided (MIG), the instance stands behind its address: "(PCI:0000:01:00 GPU-I:05)", also with
# "GPU-CI:02" (NVIDIA/open-gpu-kernel-modules src/nvidia/src/kernel/gpu/rc/kernel_rc.c).
LINE: Final = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9])?"
    r"(?: GPU-I:[0-9]{1,3}(?: GPU-CI:[0-9]{1,3})?)?\): ([0-9]{1,6})(?:, )?(.*)",
    re.IGNORECASE,
)

WHAT_TO_DO: Final[Mapping[Action, str]] = MappingProxyType(
    {
        "none": "Nothing needs to be done now; tell the provider if it comes often.",
        "restart": "If it comes back with another program, take another pod.",
        "follow": "Look at what came just before it: another Xid, or what ended the program.",
        "reset": "The GPU needs a reset (nvidia-smi -r, no process on it); on a rented pod take another pod.",
        "reboot": "Reboot the machine; rented: take another machine. If it comes back, have the card or slot replaced.",
        "nvlink": "The GPU mostly needs a reset; where the link fails again, take another pod and tell the provider.",
        "replace": "Take another pod, and tell the provider the line.",
        "support": "If it comes back after a restart, take another pod and tell the provider the line.",
    }
)


@dataclass(frozen=True)
class Xid:
    """One code. ``text`` is NVIDIA's own; ``note`` a sentence of ours, or ""."""

    code: int
    text: str
    action: Action
    note: str = ""

    @property
    def sentence(self) -> str:
        """For people."""
        return f"Xid {self.code}: {self.text}.{f' {self.note}' if self.note else ''}"

    @property
    def remedy(self) -> str:
        """What to do."""
        return WHAT_TO_DO[self.action]


@cache
def xids() -> Mapping[int, Xid]:
    """All codes that the table has. Raises ValueError for a careless table."""
    found: dict[int, Xid] = {}
    for table in tomllib.loads(TABLE.read_text(encoding="utf-8"))["xid"]:
        xid = Xid(**table)
        if xid.code in found or xid.action not in get_args(Action):
            raise ValueError(f"{TABLE.name}: Xid {xid.code} stands twice, or its action {xid.action!r} is none.")
        found[xid.code] = xid
    return MappingProxyType(found)


def seen_in(line: str) -> tuple[int, Xid | None] | None:
    """The code in a line of the kernel's, and what it means where the table has it; None where the line has none."""
    found = LINE.search(line)
    return (int(found[4]), xids().get(int(found[4]))) if found else None
