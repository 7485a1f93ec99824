"""Steps of a trainer that puts each checkpoint into a folder with the step's number in its path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from supervisor.base.errors import ConfigError
from supervisor.base.records import dataclass
from supervisor.checkpoints.completeness import Result, check_markers
from supervisor.jobs.base import Grows, StepCheck, StepFile
from supervisor.jobs.steps import NUMBER, files_below, judge_step, safe_name

OTHER_TREES = ".run"
"""First part of the stored name of a file that does not lie in the step's own folder."""
HOLE = "{step}"


@dataclass(frozen=True)
class StepPath:
    """A path below the output folder with ``{step}`` in one of its parts, such as ``checkpoints/step_{step}``."""

    parent: PurePosixPath
    part: str
    rest: PurePosixPath

    @classmethod
    def parse(cls, text: str, setting: str) -> StepPath:
        """Raises ConfigError, naming ``setting``, on anything but one ``{step}`` in a relative path."""
        path = PurePosixPath(text)
        holes = [index for index, part in enumerate(path.parts) if HOLE in part]
        if len(holes) != 1 or path.parts[holes[0]].count(HOLE) != 1:
            raise ConfigError(f'{setting} = "{text}" must hold {HOLE} exactly once, such as "checkpoints/step_{HOLE}".')
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f'{setting} = "{text}" must be a path below [job] output_dir, without "..".')
        at = holes[0]
        return cls(PurePosixPath(*path.parts[:at]), path.parts[at], PurePosixPath(*path.parts[at + 1 :]))

    def whole(self, step: int) -> PurePosixPath:
        """The path of ``step``."""
        return self.parent / self.part.replace(HOLE, str(step)) / self.rest

    def tree(self, step: int) -> PurePosixPath:
        """The uppermost path that belongs to ``step`` alone."""
        return self.parent / self.part.replace(HOLE, str(step))

    def folders_by_step(self, output_dir: Path) -> dict[int, Path]:
        """What there is on disk, by step. Raises OSError when the folder cannot be listed."""
        before, _, after = self.part.partition(HOLE)
        number = re.compile(f"{re.escape(before)}({NUMBER.pattern}){re.escape(after)}")
        parent = output_dir / self.parent
        try:
            names = [path.name for path in parent.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {int(match[1]): parent / name for name in names if (match := number.fullmatch(name))}


@dataclass(frozen=True)
class StepFolders:
    """All steps of such a trainer. ``markers``: for each, one of its globs must match a file that is not empty."""

    output_dir: Path
    main: StepPath
    also: tuple[StepPath, ...]
    markers: tuple[tuple[str, ...], ...]
    quiet_s: float

    def _parts(self, step: int) -> list[Path]:
        return [self.output_dir / path.whole(step) for path in (self.main, *self.also)]

    def folder(self, step: int) -> Path:
        """The step's own folder."""
        return self.output_dir / self.main.whole(step)

    def steps(self) -> list[int]:
        """Every step with a folder."""
        return sorted(self.main.folders_by_step(self.output_dir))

    def growing_trees(self) -> Grows | None:
        """The newest step's folders."""
        newest = max(self.steps(), default=None)
        return None if newest is None else Grows(self._parts(newest), newest)

    def check_step(self, step: int, *, settled: bool = False) -> StepCheck:
        """Do all markers match, and is nothing still being written?"""
        trees = self._parts(step)
        return judge_step(step, self._results(step), trees, self.output_dir, self.quiet_s, settled=settled)

    def _results(self, step: int) -> Iterator[Result]:
        main, *also = self._parts(step)
        for globs in self.markers:
            results = [check_markers(main, [glob]) for glob in globs]
            yield next((result for result in results if result.ok), results[0])
        for path in also:
            if path.is_dir():
                yield Result(True)
            elif not path.is_file():
                yield Result(False, f"{path} is not there yet", writing=True)
            elif path.stat().st_size == 0:
                yield Result(False, f"{path} is empty so far", writing=True)

    def step_files(self, step: int) -> list[StepFile]:
        """The step's own folder under its own names, the rest below ``.run/``."""
        main, *also = self._parts(step)
        files = [StepFile(path, path.relative_to(main).as_posix()) for path in files_below(main)]
        for tree in also:
            files += [
                StepFile(path, f"{OTHER_TREES}/{path.relative_to(self.output_dir).as_posix()}")
                for path in files_below(tree)
            ]
        return files

    def place(self, step: int, name: str) -> Path:
        """Where the stored file ``name`` goes, relative to ``output_dir``. ValueError when that is not in the step."""
        path = safe_name(name)
        if path.parts[0] != OTHER_TREES:
            return Path(self.main.whole(step) / path)
        inner = PurePosixPath(*path.parts[1:])
        if not any(inner == other.whole(step) or inner.is_relative_to(other.whole(step)) for other in self.also):
            raise ValueError(f"{name!r} is no part of a step as [job.plain] describes it")
        return Path(inner)

    def step_trees(self, step: int) -> list[Path]:
        """What prune deletes."""
        trees = [self.output_dir / path.tree(step) for path in (self.main, *self.also)]
        return [tree for tree in dict.fromkeys(trees) if tree.is_symlink() or tree.exists()]

    def above_trees(self, step: int | None) -> list[Path]:
        """Folders of steps above ``step``, all when None."""
        lowest = -1 if step is None else step
        trees = [
            tree
            for path in (self.main, *self.also)
            for number, tree in sorted(path.folders_by_step(self.output_dir).items())
            if number > lowest
        ]
        return list(dict.fromkeys(trees))
