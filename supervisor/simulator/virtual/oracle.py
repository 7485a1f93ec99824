"""The bound: a policy that is told of each fault at the moment it strikes. No policy that has to look can beat it."""

from __future__ import annotations

from supervisor.simulator.virtual.given import Given


class Oracle(Given):
    """Stops the job at the moment of the fault and starts it at the last good step, without delay and without limit.

    It knows that something broke and not how to avoid it: a pod that is lost is lost, a replacement takes as long, the
    job loads as slowly. So what is between it and 100 % is what detection and policy cannot change.
    """

    name = "oracle"
    omniscient = True

    def __init__(self) -> None:
        super().__init__()
        self._struck = ""

    def told(self, t: float, fault: str) -> None:
        self._struck = fault

    def failed(self) -> str:
        struck, self._struck = self._struck, ""
        if struck:
            return f"It is known that this job is broken: {struck}."
        return "The job has ended." if self.ended is not None else ""
