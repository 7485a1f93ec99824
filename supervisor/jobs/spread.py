"""A command over several machines: the components of ``[nodes]``, each placed on one of the machines of this start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from supervisor import signatures
from supervisor.base.errors import ConfigError
from supervisor.base.escapes import plain as without_escapes
from supervisor.config.nodes import NodeComponent, Nodes
from supervisor.config.settings import RunFile
from supervisor.core.facts import Fact, Role
from supervisor.jobs.base import Component, LogSource, Place, StartRequest, literal, visible_gpus
from supervisor.jobs.plain import LONGEST, PlainJob


class SpreadJob(PlainJob):
    """Steps, folders and expressions are those of ``[job.plain]``; the processes are those of ``[nodes]``."""

    def __init__(self, run: RunFile, environ: Mapping[str, str], nodes: Nodes) -> None:
        super().__init__(run, environ)
        self.nodes = nodes

    def problems(self) -> Sequence[str]:
        """Those of the plain command that concern this one, too."""
        words = [word for one in self.nodes.components for word in one.resume]
        found = [problem for problem in super().problems() if "start is empty" not in problem]
        if not any("{step}" in word or "{checkpoint}" in word for word in words):
            found.append("No component of [nodes] has a `resume` with {step} or {checkpoint}: put one of them in.")
        return found

    def _number_components(self) -> Iterator[tuple[NodeComponent, int, str]]:
        """Each component with its number among those of its role, and its name."""
        count: Counter[str] = Counter()
        for one in self.nodes.components:
            yield one, count[one.role], f"{one.role}-{count[one.role]}"
            count[one.role] += 1

    def components(self, request: StartRequest) -> Sequence[Component]:
        """The components, trainer 0 first. Raises ConfigError while there are problems."""
        if problems := self.problems():
            raise ConfigError("\n".join(problems))
        values = {"{attempt}": str(request.attempt), **self._values_of_holes(request)}
        env = self.job_variables(request)
        found = []
        for one, index, name in self._number_components():
            words = one.resume if request.step is not None and one.resume else one.start
            argv = [self._fill_word(word, values, request.configs) for word in words]
            port = one.port if self.engine() is None else None
            place = Place(f"{{name.{one.machine}}}", one.role, index, one.is_writer, visible_gpus(env), port)
            found.append(Component(name, argv, self.folder, env, self.run.job.nofile, place=place))
        return sorted(found, key=lambda component: component.name != "trainer-0")

    def log_sources(self, attempt_dir: Path) -> Sequence[LogSource]:
        """What each component wrote, as it was carried here, and the files that the person named."""
        base, home = literal(attempt_dir), literal(self.output_dir)
        files = [LogSource("trainer", str(home / pattern), fate="shared") for pattern in self.plain.log]
        own = [LogSource(one.role, str(base / f"{name}.log")) for one, _, name in self._number_components()]
        return [*own, *files]

    def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
        """Only trainers tell of steps; all tell of errors."""
        if role == "trainer":
            return super().parse_line(role, line)
        text = without_escapes(line[:LONGEST]).rpartition("\r")[2].strip()
        error = signatures.any_job().error(role, text) if text else None
        return [error] if error else []
