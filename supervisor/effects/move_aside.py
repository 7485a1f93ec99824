"""Moving step folders out of the way, and deleting them, so that no half-done work ever looks like a step.

Both begin with a rename in the same filesystem, refuse whatever lies outside the run's output folder, follow no
symlink, and can be repeated after a crash at any moment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from supervisor.base.durable import lock_folder, sync_folder
from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.checkpoints.verbs import JOURNAL, RESTORING

ASIDE = ".set-aside"
DELETING = ".deleting-"
SEARCH_DEPTH = 6  # outputs/run_default/checkpoints/step_N/trainer is five deep


def move_aside(trees: Sequence[Path], output_dir: Path, label: str) -> list[Path]:
    """Rename each tree to ``<output_dir>/.set-aside/<label>/<its relative path>``; returns the new paths.

    Nothing is merged or deleted: where that place is taken, the label gets a number. A tree that is already gone is
    left out. Where part of ``output_dir`` is another filesystem, ``.set-aside`` is made at the top of that one, since
    a rename cannot leave it. Raises ConfigError on a path outside ``output_dir`` and SupervisorError when the
    filesystem refuses.
    """
    if not label or "/" in label or label.startswith("."):
        raise ValueError(f"{label!r} cannot name a folder")
    moved = []
    for tree in _trees_inside(trees, output_dir):
        top = top_of_tree(tree, output_dir.resolve())
        inner = tree.relative_to(output_dir.resolve())
        target = next(
            place for name in _numbered_names(label) if not os.path.lexists(place := top / ASIDE / name / inner)
        )
        try:
            _make_folders(target.parent, top)
            tree.rename(target)
        except FileNotFoundError:
            continue  # gone meanwhile
        except OSError as error:
            raise SupervisorError(
                f"{tree} could not be moved aside to {target} ({error.strerror}): the job is not started, since it "
                f"could take that folder for its newest checkpoint. Move it away by hand"
            ) from error
        _sync_folder(target.parent)
        _sync_folder(tree.parent)
        moved.append(target)
    return moved


def delete_trees(trees: Sequence[Path], output_dir: Path) -> int:
    """Delete each tree; returns the bytes that this gave back to the disk (hard-linked files give none).

    Each is first renamed to a ``.deleting-`` name beside it, so that a crash in the middle leaves no partial step.
    Raises ConfigError on a path outside ``output_dir``, SupervisorError naming what could not be deleted (after all
    the rest was).
    """
    doomed = []
    for tree in _trees_inside(trees, output_dir):
        if tree.name.startswith(DELETING):
            doomed.append(tree)
            continue
        target = next(
            place
            for name in _numbered_names(f"{DELETING}{tree.name}")
            if not os.path.lexists(place := tree.parent / name)
        )
        try:
            tree.rename(target)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SupervisorError(f"{tree} could not be deleted ({error.strerror}): check who owns it") from error
        _sync_folder(tree.parent)
        doomed.append(target)
    return _delete_doomed(doomed)


def delete_set_aside(output_dir: Path, keep: str) -> int:
    """Delete what was set aside, except under labels that end in ``keep``; returns the bytes freed.

    Torn steps and leftovers of an attempt that was replaced: kept while there is room, in case that a person wants to
    look, and the first to go when there is none.
    """
    folder = output_dir.resolve() / ASIDE
    if folder.is_symlink() or not folder.is_dir():
        return 0
    return _delete_doomed([path for path in sorted(folder.iterdir()) if not path.name.endswith(keep)])


def finish_deletions(output_dir: Path) -> int:
    """Delete what an interrupted :func:`delete_trees` left, as far as it goes; returns the bytes freed. For a start."""
    # What cannot be deleted is no reason to start nothing, and the delete that left it has told of it.
    with contextlib.suppress(OSError, SupervisorError):
        return _delete_doomed(list(_find_leftovers(output_dir.resolve(), SEARCH_DEPTH)))
    return 0


def forget_killed_restores(output_dir: Path, place: Path) -> None:
    """Delete what was fetched of a step that no start needs now. ``place``: of any file of a step.

    What has no journal is a person's own.
    """
    with contextlib.suppress(OSError, SupervisorError), lock_folder(output_dir):  # else a restore is under way
        journals = list((output_dir / place).parents[1].glob(f"{RESTORING}*{JOURNAL}"))
        fetched = [journal.with_name(journal.name.removesuffix(JOURNAL)) for journal in journals]
        delete_trees([*fetched, *journals], output_dir)


# ---------------------------------------------------------------- where things are


def _trees_inside(trees: Sequence[Path], output_dir: Path) -> Iterator[Path]:
    """The trees that exist, with their parents resolved. Raises ConfigError before any of them is touched."""
    root = output_dir.resolve()
    found = []
    for tree in trees:
        # The last name is not resolved: a symlink is moved or deleted itself, never what it points to.
        place = tree.parent.resolve() / tree.name
        if ".." in tree.parts or not tree.name or place == root or not place.is_relative_to(root):
            raise ConfigError(
                f"{tree} lies outside the run's output folder {root} (perhaps behind a symlink), and nothing outside "
                f"it is moved or deleted: set job.output_dir to the folder that really holds the checkpoints"
            )
        if place.is_relative_to(root / ASIDE):
            raise ConfigError(f"{tree} was set aside already, and only a person removes it")
        if os.path.lexists(place):
            found.append(place)
    return iter(found)


def top_of_tree(tree: Path, root: Path) -> Path:
    """Highest folder at or below ``root`` in the same filesystem as ``tree``."""
    top = tree.parent
    device = top.stat().st_dev
    while top != root and top.parent.stat().st_dev == device:
        top = top.parent
    return top


def _numbered_names(label: str) -> Iterator[str]:
    yield label
    number = 2
    while True:
        yield f"{label}-{number}"
        number += 1


def make_for_job(folder: Path) -> None:
    """Make a folder of the job's, and those above it, with the mode that the job would give it. Raises OSError."""
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            path.mkdir(exist_ok=True)
            path.chmod(0o755)  # our own umask is narrower


def nearest_folder(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _make_folders(folder: Path, top: Path) -> None:
    missing = []
    while folder != top and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        make_for_job(path)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Some network filesystems refuse to sync folders; they have nothing better to offer."""
    with contextlib.suppress(OSError):
        sync_folder(folder)


# ---------------------------------------------------------------- deleting


def _find_leftovers(folder: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(DELETING):
                yield Path(entry.path)
            elif depth and entry.name != ASIDE and entry.is_dir(follow_symlinks=False):
                yield from _find_leftovers(Path(entry.path), depth - 1)


def _delete_doomed(doomed: Sequence[Path]) -> int:
    freed = 0
    problems: list[str] = []
    for tree in doomed:
        parent = os.open(tree.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            freed += _remove_below(parent, tree.name, str(tree), problems)
        finally:
            os.close(parent)
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise SupervisorError(f"could not delete {problems[0]}{more}; {freed} bytes were freed. Check who owns them")
    return freed


def _remove_below(parent: int, name: str, shown: str, problems: list[str]) -> int:
    """Remove ``name`` below the open folder ``parent``, following no symlink; returns the bytes freed."""
    freed = 0
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
            return found.st_blocks * 512 if found.st_nlink == 1 else 0
        # Each level is opened relative to the one above: a folder swapped for a symlink meanwhile leads nowhere.
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries]
            for inner in names:
                freed += _remove_below(folder, inner, f"{shown}/{inner}", problems)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENOTEMPTY or not problems:  # else the reason is already told
            problems.append(f"{shown} ({error.strerror})")
    return freed
