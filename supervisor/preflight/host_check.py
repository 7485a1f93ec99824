"""Is this host what its offer promised? ``python -m supervisor.preflight.host_check``, a child of the daemon.

It is asked once, before the run is claimed here and while nothing of it lives: a host that lied is paid for minutes.
The run's settings come as JSON on standard input, what was promised in the environment; what this host lacks is
printed in sentences, and nothing where it is sound. A verdict needs something that was promised, and a look that shows
plainly less. What cannot be looked at (no NVML, a disk that does not tell its size, a store that is away) gives none.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from supervisor.base.errors import StoreError
from supervisor.base.promised import Promised, read_promised
from supervisor.checkpoints import link_speed
from supervisor.checkpoints.transfer import die_with_parent, light_imports
from supervisor.config.settings import RunFile
from supervisor.effects.claiming import PROMISED
from supervisor.effects.move_aside import nearest_folder
from supervisor.process.attempts import last_attempt
from supervisor.sensors import gpu_survey
from supervisor.storage import open_store

LEAST_SHARE = 0.25
"""Of the link that was promised: providers measure it against a server nearby, and at another hour."""
LEAST_DISK, LEAST_FREE = 0.85, 0.5
"""Of the disk that was promised. A file system keeps 5 to 7 % for itself; the image and ``[setup]`` fill a part."""
SHM = Path("/dev/shm")  # noqa: S108
LEAST_SHM_BYTES = 64 << 20
"""What Docker gives when it is not asked. NCCL and vLLM's workers on several GPUs cannot start with less."""
_NO_MODEL = re.compile(r"\d+G(I?B)?|(SXM|HBM|GDDR|PCIE|GEN)\d.*")
_MODEL = re.compile(r"(?:RTX|GTX)?([A-Z]{0,2})(\d{1,4})(?!\d)")


def find_lies(promised: Promised, run_file: RunFile, environ: Mapping[str, str]) -> str:
    """What this host lacks, in sentences; "" where it keeps what was promised. Takes seconds, at most about 40."""
    found = [
        *_lies_about_gpus(promised, environ),
        *_lies_about_disk(promised, run_file),
        *_lies_about_shared_memory(promised),
    ]
    return " ".join(found or _lies_about_link(promised, run_file, environ))


def _lies_about_gpus(promised: Promised, environ: Mapping[str, str]) -> Iterator[str]:
    if promised.gpus is None:
        return
    told = gpu_survey.survey(environ=environ)
    wanted = f"The offer promised {promised.gpus} x {promised.gpu or 'GPU'}"
    if told.none or told.is_broken:
        yield f"{wanted}, and the driver shows none: {told.problem}"
    elif not told.problem:
        fit = [one for one in told.gpus if not is_another_gpu(one.name, promised.gpu)]
        names = ", ".join(sorted({one.name or "unknown" for one in told.gpus}))
        if len(fit) < promised.gpus:
            yield f"{wanted}, and this machine has {len(told.gpus)}{f' ({names})' if names else ''}."


def is_another_gpu(found: str, promised: str) -> bool:
    """Do the two names plainly mean two models? Each vendor spells them in its own way, with memory and form factor."""
    ours, theirs = _models_in(found), _models_in(promised)
    return bool(ours and theirs) and not any(
        number == other and (letters == others or not letters or not others)
        for letters, number in ours
        for others, other in theirs
    )


def _models_in(name: str) -> list[tuple[str, str]]:
    """The numbers of models, with the letters before them: ("H", "100"), ("", "4090")."""
    words = (word for word in re.split(r"[^A-Z0-9]+", name.upper()) if not _NO_MODEL.fullmatch(word))
    return [(found[1], found[2]) for word in words if (found := _MODEL.match(word))]


def _lies_about_disk(promised: Promised, run_file: RunFile) -> Iterator[str]:
    """The largest of the disks on which the run could be is looked at: the promise may mean any of them."""
    if promised.disk_gb is None:
        return
    looks = [look for path in (Path("/"), run_file.output_dir) if (look := _disk_at(path)) is not None]
    wanted = f"The offer promised a disk of {promised.disk_gb:.0f} GB"
    if not looks:
        return
    total, free = (max(sizes) / 1e9 for sizes in zip(*looks, strict=True))
    if total < LEAST_DISK * promised.disk_gb:
        yield f"{wanted}, and the largest here has {total:.0f} GB."
    elif last_attempt(run_file.state_dir) == 0 and free < LEAST_FREE * promised.disk_gb:
        yield f"{wanted}, and only {free:.0f} GB are free here."  # and nothing of this run fills it


def _disk_at(path: Path) -> tuple[int, int] | None:
    """Bytes in all and free; None where they are not told. A folder that is made later lies where its parent does."""
    try:
        look = shutil.disk_usage(nearest_folder(path))
    except OSError:
        return None
    return (look.total, look.free) if look.total > 0 else None


def _lies_about_shared_memory(promised: Promised) -> Iterator[str]:
    try:
        look = os.statvfs(SHM)
    except OSError:
        return
    size = look.f_blocks * look.f_frsize
    if (promised.gpus or 0) > 1 and 0 < size < LEAST_SHM_BYTES:
        yield f"{SHM} has {size >> 20} MiB, too little for a job on {promised.gpus} GPUs."


def _lies_about_link(promised: Promised, run_file: RunFile, environ: Mapping[str, str]) -> Iterator[str]:
    """A way is enough with a quarter of what was promised, or with what the run needs."""
    store, run_id = run_file.store, run_file.run.id
    if (promised.up_mbit is None and promised.down_mbit is None) or store.limit_mbit is not None:
        return  # a person who holds the transfers back asks nothing of the link
    try:
        with light_imports():
            opened = open_store(run_file.store_url, store.service, environ, store.streams, region=store.region)
        step = link_speed.step_need_mbit(opened, run_id)
        need_up, need_down = (max(step, least or 0.0) for least in (promised.least_up_mbit, promised.least_down_mbit))
        up, down = link_speed.measure_ways(
            opened, run_id, _enough_mbit(promised.up_mbit, need_up), _enough_mbit(promised.down_mbit, need_down)
        )
    except StoreError:
        return  # the claim, which is asked for next, tells that the store is away
    for words, mbit, offered, need in (
        ("to", up, promised.up_mbit, need_up),
        ("from", down, promised.down_mbit, need_down),
    ):
        if mbit is not None:
            yield (
                f"The offer promised a link of {offered:.0f} Mbit/s, and {words} the store it carries {mbit:.1f}; the "
                f"run needs {need:.0f}."
            )


def _enough_mbit(promised: float | None, need: float) -> float:
    return 0.0 if promised is None else min(need, promised * LEAST_SHARE)


def main() -> None:
    """Print what this host lacks."""
    die_with_parent()
    promised = read_promised(os.environ.get(PROMISED, ""))
    sys.stdout.write(find_lies(promised, RunFile.model_validate_json(sys.stdin.read()), os.environ))
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads that may still be sending


if __name__ == "__main__":
    main()
