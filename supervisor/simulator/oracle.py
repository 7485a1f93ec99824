"""The reference for all that have to look: a policy that is told of each fault at the moment it strikes."""

from __future__ import annotations

from supervisor.simulator.faults import KINDS
from supervisor.simulator.given import Given


class Oracle(Given):
    """Stops the job at the moment of the fault and starts it at the last good step, without delay and without limit.

    It knows what a fault takes: a poisoned step is not resumed from a second time, a pod that lost a GPU is left at
    once. Its disk is never full, and it knows when the store is back. It cannot undo anything: a pod that is lost is
    lost, a replacement takes as long, the job loads as slowly. So what is between it and 100 % is what detection and
    policy cannot change. It saves at the scenario's interval, so it is no measure for a policy that chooses another.
    Nor is it a strict bound: what follows a fault at another moment may fall better.
    """

    name = "oracle"
    omniscient = True
    retry_s, publish_retry_cap_s = 1.0, 5.0

    def __init__(self) -> None:
        super().__init__()
        self._struck = ""

    def learn_fault(self, t: float, fault: str) -> None:
        needs = KINDS[fault].needs
        if fault == "poison-step":
            self.one_step_back()
        if needs == "pod":
            self.another_pod()
        if needs in ("restart", "pod") and self.stage == "live":
            self._struck = fault

    def reason_to_restart(self) -> str:
        struck, self._struck = self._struck, ""
        if struck:
            return f"It is known that this job is broken: {struck}."
        return "The job has ended." if self.ended is not None else ""


class TierOracle(Oracle):
    """The same where the trainer saves into memory: the reference of policies with a tier."""

    name = "oracle-tier"
    tier = True
