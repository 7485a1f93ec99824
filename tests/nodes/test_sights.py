"""What agents see of GPUs and engines, put together: unknown stays unknown, and one engine's trouble stays its own."""

from __future__ import annotations

from supervisor.core import facts as f
from supervisor.jobs.base import Place
from supervisor.nodes.engines import OLD_S, Engines
from supervisor.nodes.sights import OomSights, find_role

HOSTS = ("n1", "n2", "n3")


class Seen:
    """Three engines, each looked at every five seconds by the agent of its machine, at moments of its own."""

    def __init__(self) -> None:
        self.engines, self.t, self.counts = Engines(), 0.0, dict.fromkeys(HOSTS, 0.0)
        self.turn()
        assert self.turn() is not None

    def turn(self, *, speak: bool = True, still: str = "", **looks: f.EngineLook | None) -> f.EngineLook | None:
        """Some five seconds. ``looks``: what is told in place of an answer that is well; None: nothing is."""
        for index, host in enumerate(HOSTS):
            self.t += 1.75
            self.counts[host] += 0 if host == still else 100
            well = f.EngineLook("", "ok", "unknown", iterations=self.counts[host], running=2, waiting=0, connections=3)
            if (look := looks.get(host, well)) is not None:
                self.engines.hear(4, (host, index), look, self.t)
        return self.engines.merge(4, HOSTS, self.t + 0.01, all_speak=speak)


def told(seen: Seen, **words: object) -> f.EngineLook:
    look = seen.turn(**words)  # type: ignore[arg-type]
    assert look is not None
    return look


def gone(health: str = "refused", **more: object) -> f.EngineLook:
    return f.EngineLook("", health, **more)  # type: ignore[arg-type]


def test_all_that_are_well_are_one_engine_with_the_sum_of_their_counters() -> None:
    seen = Seen()
    look = told(seen)
    assert (look.health, look.index, look.iterations, look.running, look.connections) == ("ok", None, 900, 6, 9)
    assert look.engines == ()
    assert seen.engines.merge(4, HOSTS, seen.t + 1, all_speak=True) is None, "not more often than each few seconds"
    assert seen.engines.merge(5, HOSTS, seen.t + 9, all_speak=True) is None, "of another attempt"


def test_one_that_refuses_is_named_until_it_is_well_and_costs_no_sum() -> None:
    seen = Seen()
    for turn in range(3):
        look = told(seen, n2=gone(), n3=gone("timeout") if turn else gone("bad"))
        assert (look.host, look.index, look.health) == ("n2", 1, "refused") if turn else (look.health != "ok")
    assert told(seen, n2=gone()).iterations == 600 + 200 + 600, "what it made is not lost, and it makes no more"
    assert told(seen).index is None


def test_sums_are_unknown_while_a_machine_is_silent_or_counters_cannot_be_read() -> None:
    seen = Seen()
    assert told(seen, speak=False).iterations is None
    without = gone("ok", liveness="unknown", running=None)
    for _ in range(int(OLD_S / 5) + 1):
        look = told(seen, n1=without)
    assert (look.health, look.iterations, look.running) == ("ok", None, None)
    for _ in range(int(OLD_S / 5) + 1):
        look = told(seen, n3=None)
    assert (look.health, look.host, look.iterations) == ("unknown", "n3", None), "nothing is heard of it"


def test_an_answer_that_comes_between_two_looks_at_all_is_not_lost() -> None:
    seen = Seen()
    late = gone("ok", liveness="bad", iterations=1.0, running=1, waiting=0, connections=1)
    seen.engines.hear(4, ("n1", 0), late, seen.t + 0.1)
    look = told(seen, n1=gone("ok", liveness="unknown", iterations=1.0, running=1, waiting=0, connections=1))
    assert (look.host, look.liveness) == ("n1", "bad")
    look = told(seen, n1=gone("ok", liveness="unknown", iterations=1.0, running=1, waiting=0, connections=1))
    assert (look.host, look.liveness) == ("n1", "unknown"), "the next answer is waited for"
    well = gone("ok", liveness="ok", iterations=1.0, running=0, waiting=0, connections=1)
    assert told(seen, n1=well).index is None


def test_only_those_with_requests_whose_counter_stands_are_listed() -> None:
    seen = Seen()
    look = told(seen, still="n2")
    assert [(one.index, one.host) for one in look.engines] == [(1, "n2")]
    idle = gone("ok", liveness="ok", iterations=seen.counts["n2"], running=0, waiting=0, connections=0)
    assert told(seen, still="n2", n2=idle).engines == ()


def test_whose_a_gpu_is_where_that_can_be_told() -> None:
    first, second = (f.Gpu(f"GPU-{word}-1", n, 0, 1) for n, word in enumerate(("ab", "cd")))
    trainer = Place("n1", "trainer", 0, True, ("0",))
    engine = Place("n1", "inference", 0, False, ("GPU-CD",))
    router = Place("n1", "inference", 1, False, ())
    for places, roles in (
        ([], ("other", "other")),
        ([Place("n1", "orchestrator")], ("other", "other")),
        ([Place("n1", "trainer")], ("trainer", "trainer")),
        ([trainer, engine, router], ("trainer", "inference")),
        ([trainer, Place("n1", "inference", 0, False, ("0", "1"))], ("shared", "inference")),
        ([Place("n1", "trainer"), Place("n1", "inference")], ("other", "other")),
    ):
        assert (find_role(first, places), find_role(second, places)) == roles, places


def test_a_kill_for_want_of_memory_is_told_once_and_never_one_of_before() -> None:
    told: list[object] = []
    sights = OomSights(told.append, list)
    for kills, count in ((None, 0), (3, 0), (3, 0), (None, 0), (4, 1), (4, 1), (0, 1), (1, 2)):
        sights.take(f.HostLook(oom_kills=kills))
        assert len(told) == count, kills
