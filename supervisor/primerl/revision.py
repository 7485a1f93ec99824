"""The commit of a checkout, read from its .git files: the machine needs no git, and nothing of the checkout is run."""

from __future__ import annotations

import re
from pathlib import Path

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
LARGEST = 8 << 20  # packed-refs of a repository with a tag for every commit


def revision(folder: Path) -> str:
    """The commit that is checked out in ``folder`` (or a folder above it), "" when it is no checkout."""
    for place in (folder.absolute(), *folder.absolute().parents):
        git = place / ".git"
        if git.is_dir():
            return _read_head(git, git)
        if git.is_file():  # a worktree or a submodule: "gitdir: PATH"
            text = _read_text(git)
            if text.startswith("gitdir:"):
                own = (place / text.removeprefix("gitdir:").strip()).resolve()
                common = _read_text(own / "commondir").strip()
                return _read_head(own, (own / common).resolve() if common else own)
            return ""
    return ""


def _read_head(own: Path, common: Path) -> str:
    head = _read_text(own / "HEAD").strip()
    if not head.startswith("ref:"):
        return head if COMMIT.fullmatch(head) else ""
    name = head.removeprefix("ref:").strip()
    if ".." in name.split("/") or name.startswith("/"):
        return ""
    for folder in (own, common):
        found = _read_text(folder / name).strip()
        if COMMIT.fullmatch(found):
            return found
    for line in _read_text(common / "packed-refs").splitlines():
        commit, _, ref = line.partition(" ")
        if ref.strip() == name and COMMIT.fullmatch(commit):
            return commit
    return ""


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode("utf-8", "replace")
    except OSError:
        return ""
