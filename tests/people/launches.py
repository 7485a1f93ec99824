"""Takes launch lines as `init --from` does, without looking at this machine: what the tests of it stand on."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.cli.launch_line import find
from supervisor.cli.launch_settings import Draft, draft
from supervisor.cli.machine import Machine
from supervisor.cli.pod import Pod
from supervisor.cli.providers import BARE
from supervisor.cli.run_text import run_file_text
from supervisor.config.settings import RunFile
from supervisor.preflight.site import Site

ENVIRON = {"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin"}


@dataclass(frozen=True)
class Taken:
    """What came of a launch line."""

    draft: Draft
    text: str
    data: dict[str, Any]
    run: RunFile

    @property
    def said(self) -> str:
        return "\n".join((*self.draft.kept, *self.draft.changed, *self.draft.to_do))

    def get(self, path: str) -> Any:
        node: Any = self.data
        for part in path.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        return node


def take(
    line: str,
    folder: Path,
    *,
    environ: Mapping[str, str] = ENVIRON,
    script: Path | None = None,
    job_dir: Path | None = None,
    gpus: int = 0,
) -> Taken:
    """The run file that `init --from LINE` writes in ``folder``; it must load."""
    found = find(line, environ=environ, folder=folder, script=script)
    wanted = draft(found, job_dir=job_dir, installed=None, environ=environ, here=folder, gpus=gpus, script=script)
    text = run_file_text(Pod(Machine(), Site(), BARE, environ), wanted, wanted.name or "demo")
    data = tomllib.loads(text)
    return Taken(wanted, text, data, RunFile.model_validate(data))
