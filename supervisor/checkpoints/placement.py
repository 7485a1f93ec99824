"""Where the files of a restored step go, and which folders appear as a whole.

Names come from the store, so none is trusted: a name decides where below the output folder its file goes, never that
it goes elsewhere, and never that it lands in a step above the one that is restored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from supervisor.checkpoints.manifest import check_paths
from supervisor.storage.base import StoreError
from supervisor.storage.names import name_problem

RUN_TREE = ".run/"
"""Names that start so are relative to the output folder, all others to the step's primary folder."""
RESTORING = ".restoring-"  # what is fetched, beside its place
REPLACED = ".replaced-"  # what stood in the way
_STEP_NAME = re.compile(r"(?:.*[._-])?step[_-]?(\d{1,9})")


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

    @property
    def staging(self) -> Path:
        """Where it is filled: the same file system, and a name that no trainer takes for a step."""
        return self.target.with_name(f"{RESTORING}{self.target.name}")


@dataclass(frozen=True)
class Spot:
    """One file: its tree and its path in it ('.' when the tree is the file)."""

    tree: Tree
    inside: PurePosixPath

    @property
    def staged(self) -> Path:
        """Where the file is while it is fetched."""
        return self.tree.staging / self.inside

    @property
    def target(self) -> Path:
        """Where it is in the end."""
        return self.tree.target / self.inside


def place_files(names: Iterable[str], step: int, place: Place, output_dir: Path) -> Mapping[str, Spot]:
    """A spot for each name. Raises kind "damaged" when a name is refused, "permanent" when the place itself is."""
    problem = name_problem(place.primary)
    if problem:
        raise StoreError("permanent", f"the step's folder {place.primary!r} cannot be used: {problem}")
    where = f"step {step} in the store"
    relative = {name: place(name) for name in names}
    check_paths(list(relative.values()), where)
    primary = PurePosixPath(place.primary)
    roots = {name: _tree_of(PurePosixPath(path), primary, step, where) for name, path in relative.items()}
    outermost = _outermost(set(roots.values()))
    trees = {root: Tree(output_dir / root, primary=root == primary) for root in outermost.values()}
    for tree in trees.values():
        _refuse_links_out(tree, output_dir)
    spots = {}
    for name, path in relative.items():
        root = outermost[roots[name]]
        spots[name] = Spot(trees[root], PurePosixPath(path).relative_to(root))
    return spots


def _tree_of(path: PurePosixPath, primary: PurePosixPath, step: int, where: str) -> PurePosixPath:
    """The folder that is replaced as a whole for the sake of this file: the step's, else only the file itself."""
    if path.is_relative_to(primary):
        return primary
    for depth, part in enumerate(path.parts, 1):
        if part.casefold().startswith((RESTORING, REPLACED)):
            raise StoreError("damaged", f"{where} is refused: {str(path)!r} would write among a restore's own files")
        match = _STEP_NAME.fullmatch(part)
        if match:
            if int(match[1]) > step:
                raise StoreError("damaged", f"{where} is refused: {str(path)!r} would write into a higher step")
            return PurePosixPath(*path.parts[:depth])
    return path


def _outermost(roots: set[PurePosixPath]) -> dict[PurePosixPath, PurePosixPath]:
    """Each root's outermost root: a tree inside another is part of it."""
    found = {}
    for root in roots:
        above = [other for other in roots if root.is_relative_to(other)]
        found[root] = min(above, key=lambda other: len(other.parts))
    return found


def _refuse_links_out(tree: Tree, output_dir: Path) -> None:
    """A link on the way would carry files out of the run's folder. A person may have linked the primary's parent."""
    parent = tree.target.parent.resolve()
    if not tree.primary and not parent.is_relative_to(output_dir.resolve()):
        raise StoreError(
            "permanent",
            f"{tree.target} is not restored: a symbolic link leads from it to {parent}, outside {output_dir}. Make it "
            f"a real folder, or set the output folder to where it leads",
        )
