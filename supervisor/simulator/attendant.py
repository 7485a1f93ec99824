"""The daemon of the virtual pod: policy, sensors and hands joined, from its start until it is killed or exits."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from supervisor.core import facts as f
from supervisor.simulator.clockwork import NEVER, Owner
from supervisor.simulator.hands import Hands
from supervisor.simulator.pod import NO_WATCHER, WALL, Pod
from supervisor.simulator.policy import Policy
from supervisor.simulator.sensing import Sensing

if TYPE_CHECKING:
    from supervisor.simulator.world import World

VERSION = "simulated"
SOON_S = 1.0
TICK = f.Tick()


class Attendant(Owner):
    """One daemon process on one pod. The policy (its journal) and what was sent already outlive it."""

    def __init__(
        self,
        world: World,
        pod: Pod,
        policy: Policy,
        settings: f.Settings,
        *,
        sensor_random: Random,
        sent_bytes: dict[tuple[int, float], float],
    ) -> None:
        self.world, self.pod, self.policy, self.settings = world, pod, policy, settings
        self.clock = pod.clock
        self.deadline = NEVER
        self.sent_bytes = sent_bytes  # of transfers that were broken off, by step and version
        self.sensing = Sensing(pod, sensor_random, self.see)
        self.hands = Hands(self)

    def begin(self) -> None:
        """Take over what is there, then look."""
        pod, job = self.pod, self.pod.job
        pod.watcher = self.sensing
        adopted = job.attempt if job is not None else None
        self.see(f.DaemonStarted(VERSION, self.settings, f"boot-{pod.number}", adopted, journal=f"pod-{pod.number}"))
        if job is not None:
            if job.exit is None:
                self.see(f.AttemptAdopted(job.attempt, job.resume_step, job.processes[0].pid), "daemon")
            self.sensing.take_over(job)

    def see(self, fact: f.Fact, source: str = "daemon") -> None:
        """Hand one fact to the policy and do what it asks for."""
        if not self.alive:
            return
        world = self.world
        observation = f.Observation(self.clock.now, WALL + self.clock.now, fact, source)
        world.observations += 1
        if world.trace is not None:
            world.trace(observation)
        actions, deadline = self.policy.see(observation)
        self.deadline = deadline if deadline > self.clock.now else self.clock.now + SOON_S
        for action in actions:
            if not self.hands.alive:
                return
            self.hands.do(action)

    def tick(self) -> None:
        """The policy's deadline has come and nothing else happened."""
        self.see(TICK, "clock")

    def close(self) -> None:
        """It ends; the job lives on."""
        self.hands.close()
        self.sensing.alive = False
        self.alive = False
        self.deadline = NEVER
        if self.pod.watcher is self.sensing:
            self.pod.watcher = NO_WATCHER
