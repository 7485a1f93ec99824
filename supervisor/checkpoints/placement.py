"""Where the files of a restored step go, and which folders appear as a whole.

Names come from the store, so none is trusted: a name decides where below the output folder its file goes, never that
it goes elsewhere, and never that it lands in a step above the one that is restored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from supervisor.checkpoints.manifest import check_paths
from supervisor.checkpoints.verbs import RESTORING
from supervisor.storage.base import StoreError
from supervisor.storage.names import name_problem

RUN_TREE = ".run/"
"""Names that start so are relative to the output folder, all others to the step's primary folder."""
REPLACED = ".replaced-"  # what stood in the way
STEP_NAME = re.compile(r"(?:.*[._-])?step[_-]?(\d{1,9})")


@dataclass(frozen=True)
class Place:
    """The step's primary folder relative to the output folder, such as ``checkpoints/step_20``."""

    primary: str

    def __call__(self, name: str) -> str:
        return name.removeprefix(RUN_TREE) if name.startswith(RUN_TREE) else f"{self.primary}/{name}"


@dataclass(frozen=True)
class Tree:
    """A folder (or a single file) that is filled beside its place and then renamed into it."""

    target: Path
    primary: bool

    @cached_property
    def staging_folder(self) -> Path:
        """Where it is filled: the same file system, and a name that no trainer takes for a step."""
        return self.target.with_name(f"{RESTORING}{self.target.name}")


@dataclass(frozen=True)
class Spot:
    """One file: its tree and its path in it ('.' when the tree is the file)."""

    tree: Tree
    inside: PurePosixPath

    @cached_property
    def staging_path(self) -> Path:
        """Where the file is while it is fetched."""
        return self.tree.staging_folder / self.inside

    @cached_property
    def target(self) -> Path:
        """Where it is in the end."""
        return self.tree.target / self.inside


def place_files(
    names: Iterable[str], step: int, place: Place, output_dir: Path, told: Callable[[], None] = lambda: None
) -> Mapping[str, Spot]:
    """A spot for each name, each ``told``. Raises kind "damaged" when a name is refused, "permanent" when the place is.

    A step may have 200,000 names: each is looked at for itself, never beside all others.
    """
    problem = name_problem(place.primary)
    if problem:
        raise StoreError("permanent", f"the step's folder {place.primary!r} cannot be used: {problem}")
    where = f"step {step} in the store"
    relative = {name: place(name) for name in names}
    check_paths(list(relative.values()), where)
    roots = {name: _root_of(path, place.primary, step, where) for name, path in relative.items()}
    outermost = _find_outermost_roots(set(roots.values()))
    trees = {root: Tree(output_dir / root, primary=root == place.primary) for root in set(outermost.values())}
    _refuse_links_out(trees.values(), output_dir)
    spots = {}
    for name, path in relative.items():
        root = outermost[roots[name]]
        spots[name] = Spot(trees[root], PurePosixPath(path[len(root) + 1 :]))
        told()
    return spots


def _root_of(path: str, primary: str, step: int, where: str) -> str:
    """The folder that is replaced as a whole for the sake of this file: the step's, else only the file itself."""
    if path.startswith(f"{primary}/") or path == primary:
        return primary
    end = 0
    for part in path.split("/"):
        end += len(part) + 1
        if part.casefold().startswith((RESTORING, REPLACED)):
            raise StoreError("damaged", f"{where} is refused: {path!r} would write among a restore's own files")
        match = STEP_NAME.fullmatch(part)
        if match:
            if int(match[1]) > step:
                raise StoreError("damaged", f"{where} is refused: {path!r} would write into a higher step")
            return path[: end - 1]
    return path


def _find_outermost_roots(roots: Iterable[str]) -> dict[str, str]:
    """Each root's outermost root: a tree inside another is part of it. What lies in a folder sorts right after it."""
    found = {}
    above = ""
    for root in sorted(roots, key=lambda root: root.split("/")):
        if not above or not root.startswith(f"{above}/"):
            above = root
        found[root] = above
    return found


def _refuse_links_out(trees: Iterable[Tree], output_dir: Path) -> None:
    """A link on the way would carry files out of the run's folder. A person may have linked the primary's parent."""
    output = output_dir.resolve()
    for folder in {tree.target.parent for tree in trees if not tree.primary}:
        parent = folder.resolve()
        if not parent.is_relative_to(output):
            raise StoreError(
                "permanent",
                f"{folder} is not restored: a symbolic link leads from it to {parent}, outside {output_dir}. Make it "
                f"a real folder, or set the output folder to where it leads",
            )
