"""What fails in a loop is said once, then with a count: in the log, in the journal and in `supervisorctl events`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.repeats import FORGOTTEN_S, REMIND_S

from .world import GIB, World

HOURS = 3


class Failing(World):
    """Effects of some kinds fail each time with the same words."""

    fails: Callable[[a.Action], f.Fact | None] = staticmethod(lambda action: None)

    def _carry_out(self, action: a.Action) -> None:
        if (fact := self.fails(action)) is not None:
            self.see(fact)
        else:
            super()._carry_out(action)


def _restore(action: a.Action) -> f.Fact | None:
    return f.RestoreFailed(action.step, "the store does not answer.") if isinstance(action, a.Restore) else None


def _prune(action: a.Action) -> f.Fact | None:
    if isinstance(action, a.PruneStore):
        return f.PruneFailed(action.step, "store", "the key may not delete")
    return f.PruneFailed(-1, "local", "Permission denied") if isinstance(action, a.PruneStale) else None


EACH_HALF_MINUTE: dict[str, f.Fact] = {
    "effect": f.EffectCrashed("publish", "KeyError: 'x'"),
    "lineage": f.LineageFailed("timed out"),
    "pin": f.PinKept(5, True, "timed out"),
    "remark": f.Remark("logs", "rl.log cannot be compressed: No space left on device.", "warning"),
    "store": f.StoreSteps(reason="timed out"),
    "prune": f.PruneFailed(5, "store", "the key may not delete"),
    "publish": f.PublishFailed(5, "the link is down."),
}


def _most(world: World) -> int:
    return max(Counter((x.event, x.sentence) for x in world.actions if isinstance(x, a.Say)).values())


@pytest.mark.parametrize("name", EACH_HALF_MINUTE)
def test_the_same_failure_each_half_minute_is_said_once_and_then_each_hour_with_a_count(name: str) -> None:
    world = World()
    world.running_at(12)
    world.see(f.Command("stop", "root"))  # else it would be told, too, that no step comes
    world.actions.clear()
    for _ in range(HOURS * 120):
        world.after(30, tick=30)
        world.see(EACH_HALF_MINUTE[name])
    complaints = [x.sentence for x in world.actions if isinstance(x, a.Say) and x.level != "info"]
    assert len(complaints) == 1 if name == "store" else HOURS <= len(complaints) <= HOURS + 1, complaints
    assert name == "store" or complaints[1].endswith("This came 121 times in 60 min."), complaints[1]


def test_a_restore_that_fails_for_an_hour_fills_no_log() -> None:
    world = Failing()
    world.fails = _restore
    world.stored, world.latest = {10: GIB}, 10
    world.boot()
    world.after(3500)
    assert len(world.asked(a.Restore)) > 50, "it is tried all the time"
    assert len(world.said("restore-failed")) == 1, "its next try is another one each time, its words are not"
    assert len(world.said("restoring")) == 1


def test_a_deletion_that_fails_for_hours_fills_no_log() -> None:
    world = Failing()
    world.fails = _prune
    world.running_at(12)
    for number in range(13, 60):
        world.step(number)
        if number % 5 == 0:
            world.checkpoint(number)
    assert _most(world) == 1
    assert len(world.said("prune-failed")) < 25, "each step once, and what goes on each hour"


def test_what_another_attempt_says_is_said_though_it_is_word_for_word_the_same() -> None:
    world = World()
    world.boot()
    for _ in range(3):
        world.job_up()
        world.see(f.ErrorSeen("trainer", "cuda-oom", "CUDA out of memory"))
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(20)
    verdicts = [s for s in world.said("verdict") if "CUDA out of memory" in s]
    assert len(verdicts) == 3, "each attempt's end is an end of its own"


def test_what_a_person_asks_for_twice_is_answered_twice() -> None:
    world = World()
    world.running_at(12)
    for _ in range(2):
        world.see(f.Command("pause", "root"))
        world.see(f.Command("pin", "root", ("77",)))
    assert len([s for s in world.said("command") if s.startswith("pause")]) == 2
    assert len(world.said("pin")) >= 2


def test_what_comes_again_after_a_while_is_news() -> None:
    world = World()
    world.running_at(12)
    for seconds in (10, 10, FORGOTTEN_S + 10):
        world.after(seconds, tick=seconds)
        world.see(EACH_HALF_MINUTE["remark"])
    assert len(world.said("logs")) == 2
    assert FORGOTTEN_S < REMIND_S


def test_another_daemon_says_it_anew_and_the_memory_stays_small_and_survives() -> None:
    world = World()
    world.running_at(12)
    for number in range(500):
        world.see(f.Remark("logs", f"file {number} cannot be compressed", "warning"))
    assert len(world.state.said) <= 50
    assert decode(encode(world.state)) == world.state
    world.see(EACH_HALF_MINUTE["remark"])
    world.see(f.DaemonStarted("test", world.settings, "boot", 1))
    world.see(EACH_HALF_MINUTE["remark"])
    assert len([s for s in world.said("logs") if "rl.log" in s]) == 2
    daemons = world.said("daemon")
    world.see(f.DaemonStarted("test", world.settings, "boot", 1))
    assert len(world.said("daemon")) == len(daemons) + 1


def test_what_is_sent_next_is_said_once_while_the_store_is_away() -> None:
    world = World()
    world.running_at(12)
    world.publish_works = False
    world.answer = False
    world.checkpoint(15)
    world.see(f.PublishFailed(15, "the link is down."))
    world.checkpoint(20)
    for _ in range(20):
        world.after(300, tick=30)
        if world.state.busy.publish is not None:
            world.see(f.PublishFailed(20, "the link is down."))
    assert world.asked(a.Publish)[-1].step == 20
    assert len(world.asked(a.Publish)) > 10, "it is tried all the time"
    sent_next = [s for s in world.said("skipped") if s.startswith("Step 20 is sent next, and 15 is skipped")]
    assert 1 <= len(sent_next) <= 2, sent_next
    assert all("This came" in s for s in sent_next[1:]), sent_next


def test_a_limit_of_the_machine_is_said_at_the_first_attempt_and_then_with_a_count() -> None:
    world = World()
    world.boot()
    note = "Asked for 65536 open files, but this machine's hard limit is 4096."
    for _ in range(5):
        world.see(f.Remark("launch", note))
        world.job_up()
        world.see(f.ComponentExited(world.state.attempt, "launcher", 1))
        world.after(FORGOTTEN_S + 60, tick=30)
    told = world.said("launch")
    assert told[0] == note
    assert len(told) == 2 and "This came" in told[1], told
