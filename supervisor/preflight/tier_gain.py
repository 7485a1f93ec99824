"""What `[checkpoints] tier` would bring on this machine: a save on the volume and one on the tier, by a probe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from supervisor.core.words import size, span
from supervisor.effects import tier_fit
from supervisor.effects.move_aside import nearest_folder
from supervisor.preflight import disk_space
from supervisor.preflight.finding import Finding
from supervisor.preflight.subject import Subject

SHM = Path("/dev/shm")  # noqa: S108 - what "auto" takes


def tier_gain(subject: Subject, shm: Path = SHM) -> Iterator[Finding]:
    """Writes 256 MiB on both and deletes them. Nothing where the trainer cannot save elsewhere."""
    run, known = subject.run_file, disk_space.step_bytes(subject)
    if run is None or known is None or subject.dialect is None or not subject.dialect.checkpoint_folder:
        return
    tier, volume = run.tier_dir.parent if run.tier_dir else shm, nearest_folder(run.output_dir)
    step_bytes, origin = round(known[0].high), known[1]
    where = subject.run_where("checkpoints", "tier")
    try:
        fast, slow = tier_fit.write_rate(tier), tier_fit.write_rate(volume)
        look = os.statvfs(tier)
    except OSError as error:
        told = f"What a tier would bring is not known: {error.filename or tier} cannot be written ({error.strerror})."
        yield Finding("tier-gain", told, where)
        return
    memory, in_memory = subject.site.memory_bytes, tier_fit.lies_in_memory(tier)
    total, free = look.f_blocks * look.f_frsize, look.f_bavail * look.f_frsize
    room = tier_fit.Room(tier, total, free, in_memory, step_bytes, memory)
    told = (
        f"A save of {size(step_bytes)} ({origin}) takes about {span(step_bytes / slow)} on {volume} ({size(slow)}/s) "
        f"and {span(step_bytes / fast)} on {tier} ({size(fast)}/s)"
    )
    if why := tier_fit.why_too_small(room, auto=False):
        told += f", which does not fit: {why}."
    elif fast < tier_fit.FASTER * slow:
        told += f": too little for a tier, which auto takes from {tier_fit.FASTER:g} times as fast on."
    else:
        told += f": as the tier that is {span(step_bytes / slow - step_bytes / fast)} less for each save."
    yield Finding("tier-gain", told, where)
