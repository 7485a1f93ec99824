"""Known failures by their log lines: what each means and what people did about it. The data is in TOML files.

To add one, append a ``[[signature]]`` table to the file of its subject: one of ``GENERAL`` (any trainer), ``vllm.toml``
(the engine, vLLM or SGLang, whatever starts it), ``services.toml`` (W&B, Hugging Face, Ray, clients, containers) or
``primerl/signatures.toml`` (only prime-rl and verifiers say it)::

    [[signature]]
    name = "disk-full"                  # short and stable: it is shown, counted, and may be asked for by name
    kind = "transient"                  # or "deterministic": no restart can ever cure it
    roles = ["trainer", "job"]          # it counts in the files of these; left out: of all
    pattern = ['OSError: \\[Errno 28\\]'] # alternatives, each matched from the beginning of the message
    sentence = "The disk is full."      # what it means
    remedy = "Delete old checkpoints."  # what people did about it
    source = "errno 28 (ENOSPC)"        # where the text was seen
    examples = [["trainer", "OSError: [Errno 28] No space left on device"]]
    others = [["trainer", "a line that looks like it and is none"]]  # if any
    before = ["host-memory-full"]       # wider ones that match its lines, too, if any: it is tried before them

and, only for ``rl-supervisor diagnose`` (docs/diagnosis.md), if they are wanted::

    link = "failure"                    # cause (the default), failure, consequence or end: where in a chain it stands
    after = ["cuda-oom"]                # names of what may have caused it; "*": anything that came before
    mild = true                         # a healthy run may say it: it explains nothing while the run goes on
    quiet = true                        # some programs say it at the level INFO
    only = "diagnose"                   # recovery is not told: it says that something failed, and not what
    frame = "transformers/models/auto/" # part of the path where it is raised (recovery does not know where)

A message is a logger's line without its time and level, or a raw line (the end of a traceback). The first signature
that matches counts: a narrow one names the wider ones in ``before``, in whatever file they are. "deterministic" ends
the run with exit 93 where the job ended before its first step: a wrong one costs the run, so anything that a restart,
another pod or waiting could cure is "transient".
Each pattern holds a plain word that its lines cannot be without (four letters or more): lines are told apart by those.
Xid codes have a table of their own, ``xids.toml``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from supervisor.signatures.registry import LONGEST, SHOWN, Registry, Signature, SignatureError, parse, read

__all__ = [
    "GENERAL",
    "LONGEST",
    "SERVICES",
    "SHARED",
    "SHOWN",
    "VLLM",
    "Registry",
    "Signature",
    "SignatureError",
    "any_job",
    "parse",
    "read",
]

_FOLDER: Final = Path(__file__).parent
SERVICES: Final = _FOLDER / "services.toml"
_SUBJECTS: Final = ("gpu", "collectives", "machine", "containers", "packages", "libraries", "training", "general")
GENERAL: Final = tuple(_FOLDER / f"{subject}.toml" for subject in _SUBJECTS)  # the widest words stand in the last
VLLM: Final = _FOLDER / "vllm.toml"
SHARED: Final = (VLLM, SERVICES, *GENERAL)
"""The files of what any job can say, the narrow ones first."""


def any_job() -> Registry:
    """What any trainer on NVIDIA GPUs can say, with vLLM beside it or in it."""
    return read(*SHARED)
