"""The job of one run for ``places.slurm``: the script of ``rl-supervisor slurm script``, and what it takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from supervisor.base.errors import ConfigError
from supervisor.config.settings import RunFile
from supervisor.fleet.places.base import Offer, PlaceError
from supervisor.slurm.script import make_script, own_program, problems_of_start, read_wishes


class SlurmJob:
    """Raises ConfigError where the run cannot go to a cluster."""

    def __init__(self, path: Path, file: RunFile, environ: Mapping[str, str]) -> None:
        self._path, self._file, self._environ = path, file, environ
        wishes = read_wishes(path, file, environ)
        self._gpus, self._exclude = wishes.nodes * wishes.gpus_per_node, wishes.exclude

    def fit(self, offer: Offer, per_gpu_hour: float) -> Offer:
        """The cluster's offer, with the GPUs of this run and their price."""
        return replace(offer, gpus=self._gpus, per_hour=self._gpus * per_gpu_hour)

    def make_script(self, offer: Offer) -> str:
        """Raises PlaceError where the daemon would not start: now, and not after hours in the queue."""
        exclude = [name for name in (self._exclude, *offer.without) if name]
        slurm = self._file.slurm.model_copy(update={"exclude": exclude})
        file = self._file.model_copy(update={"slurm": slurm})
        try:
            if problems := problems_of_start(file, self._environ):
                raise PlaceError("refused", " ".join(problems))
            return make_script(self._path, file, self._environ, own_program(sys.executable))
        except ConfigError as error:
            raise PlaceError("refused", str(error)) from None
