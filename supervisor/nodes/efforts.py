"""What the job's processes do on all machines, put together for the core: it asks whether anything moves anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.core.facts import Effort, EffortLook, Role
from supervisor.core.pictures import GAP_S
from supervisor.nodes.wire import now
from supervisor.sensors.effort import HEARTBEAT_S, is_news

SHORTEST_S = 10.0  # between two looks, as on one machine


class Efforts:
    """For the thread that hears."""

    def __init__(self, post: Callable[[EffortLook], None]) -> None:
        self._post = post
        self._looks: dict[str, tuple[int, float, EffortLook]] = {}
        self._said: EffortLook | None = None
        self._said_at = 0.0

    def hear(self, host: str, attempt: int, look: EffortLook, age_s: float) -> None:
        """A look of one machine's agent."""
        self._looks[host] = attempt, now() - age_s, look

    def tick(self, attempt: int, hosts: Sequence[str], unseen: str = "") -> None:
        """Tell what all ``hosts`` of the attempt show together, or that it is unknown where one does not say.

        ``unseen``: why it is unknown whatever they say.
        """
        looks = {host: self._looks[host] for host in hosts if host in self._looks and self._looks[host][0] == attempt}
        late = [host for host in hosts if host not in looks or now() - looks[host][1] > GAP_S or looks[host][2].reason]
        why = unseen or (f"{', '.join(sorted(late))} does not tell what its processes do" if late else "")
        if why or not hosts:
            if self._said is not None and hosts:
                self._post(EffortLook(reason=why))
            self._said = None
            return
        merged = merge({host: look for host, (_, _, look) in looks.items()})
        since = now() - self._said_at
        if since >= HEARTBEAT_S or self._said is None or (since >= SHORTEST_S and is_news(self._said, merged)):
            self._said, self._said_at = merged, now()
            self._post(merged)


def merge(looks: dict[str, EffortLook]) -> EffortLook:
    """By machine. Of each figure the largest counts: many that move a little, as all do, are not one that works."""
    roles: dict[Role, Effort] = {}
    for host, look in looks.items():
        for one in look.efforts:
            waits = f"{one.waits} on {host}" if one.waits else ""
            known = roles.get(one.role, Effort(one.role, 0.0, one.least_cores))
            least = min(known.least_cores, one.least_cores)
            roles[one.role] = Effort(one.role, max(known.cores, one.cores), least, known.waits or waits)
    return EffortLook(
        tuple(roles[role] for role in sorted(roles)),
        helper_cores=_most([look.helper_cores for look in looks.values()]),
        file_bytes_s=_most([look.file_bytes_s for look in looks.values()]),
        net_bytes_s=_most([look.net_bytes_s for look in looks.values()]),
        flushed_bytes_s=_most([look.flushed_bytes_s for look in looks.values()]),
    )


def _most(values: Sequence[float | None]) -> float | None:
    """None where one is unknown."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
