"""The child of the daemon that collects a bundle: what hangs, hangs here, and what it takes of memory goes with it.

It reads what is asked (``evidence.known.Asked``) from its standard input and prints two lines of JSON: the bundle's
folder as soon as that is there, and what came of it. SIGTERM asks it to end with what there is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.base.secrets import remember, remember_environment
from supervisor.evidence import keeping, stacks
from supervisor.evidence.bundle import collect
from supervisor.evidence.known import Asked, bundles_dir
from supervisor.evidence.scene import Scene
from supervisor.process.survivors import Belongings

MOST_URGENT_S = 0.1
LATE_S = 20  # so long after its time it still writes what it has, beside what the daemon does next


def main() -> int:
    """Collect one bundle."""
    hurry = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: hurry.set())
    asked = Asked(**json.load(sys.stdin))
    signal.alarm(max(0, int(asked.until - time.monotonic())) + LATE_S)  # its default action ends this process
    remember_environment()
    remember(*asked.secrets)
    parent = bundles_dir(Path(asked.state_dir))
    found = collect(
        _scene_of(asked),
        parent,
        budget_s=max(MOST_URGENT_S, asked.until - time.monotonic()),
        hurry=hurry,
        made_folder=lambda folder: _tell({"folder": str(folder)}),
        made_room=lambda: keeping.forget_bundles(parent, 0, 0, asked.incident, asked.journal),
    )
    _tell({"sentence": found.sentence})
    os._exit(0)  # a thread that hangs in a driver or on a dead mount is not waited for


def _tell(what: Mapping[str, Any]) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - to the daemon


def _scene_of(asked: Asked) -> Scene:
    first, *others = map(Path, asked.trees)

    def belongings() -> Belongings:
        return Belongings(first, (), asked.run, [(pid, ticks) for pid, ticks in asked.seen], also=others)

    def stack_programs() -> list[Path]:
        if asked.py_spy is None:
            return []
        return stacks.programs(os.environ.get("PATH", ""), [*map(Path, asked.py_spy)], Path(sys.executable).parent)

    return Scene(asked, lambda: belongings().list_living(), lambda: belongings().shims, stack_programs)


if __name__ == "__main__":
    sys.exit(main())
