"""How much a folder holds, file by file. Costs a ``stat`` a file: only where a quota was given by hand."""

from __future__ import annotations

import os
from pathlib import Path


def held_bytes(folder: Path) -> int:
    """Bytes of the files below ``folder``. Symlinks are not followed; what vanishes meanwhile counts as 0."""
    total, pending = 0, [str(folder)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue
    return total
