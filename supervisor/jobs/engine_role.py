"""The part of a job's protocol that only jobs with an inference server of their own answer; the others share this."""

from __future__ import annotations

from supervisor.base.errors import ConfigError
from supervisor.jobs.base import Component, EngineRole, StartRequest, StopRules, WeightUpdate

REFUSED = (
    'recovery.inference = "own-role" is for [job] kind = "rl" only: this job has no inference server that the '
    "supervisor could start beside it. Take it out of the run file."
)


class EngineWithJob:
    """A job whose inference server, if it has one, is started and stopped with it."""

    def engine_role(self) -> EngineRole:
        """Refused."""
        return EngineRole(problems=(REFUSED,))

    def engine_component(self, request: StartRequest) -> Component:
        """Never there."""
        raise ConfigError(REFUSED)

    def engine_stop_rules(self) -> StopRules:
        """Never there."""
        raise ConfigError(REFUSED)

    def weight_update(self) -> WeightUpdate | None:
        """None is known."""
        return None
