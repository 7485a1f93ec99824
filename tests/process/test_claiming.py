"""The clockwork of a claim: what is signed, what is told, what giving it back may cost."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.writers import FencedError
from supervisor.core import facts as f
from supervisor.effects import store_work
from supervisor.effects.claiming import Claiming, claim_once
from supervisor.effects.lanes import Lanes
from supervisor.effects.transfers import Transfers
from supervisor.storage.base import StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import Step, until

US = "0123456789abcdef"


class Desk:
    """A claim whose store answers what a test says, at once and in the same thread."""

    def __init__(self, *, needed: bool = True, lost: Callable[[StoreError], None] = lambda error: None) -> None:
        self.told: list[f.Fact] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.problem: StoreError | None = None
        self.now = 1000.0
        self.claiming = Claiming(
            self.run,
            self.told.append,
            self.queue,
            600.0,
            needed=needed,
            lost=lost,
            clock=lambda: self.now,
        )
        self.claiming.journal = US

        self.other: dict[str, Any] | None = None  # another pod holds the run

    def run(self, do: str, more: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((do, more))
        if self.problem is not None:
            raise self.problem
        if self.other is not None and not self.other.get("released") and more.get("over") != self.other:
            return self.other
        return {"writer": more["writer"], "generation": 3, "released": False, "mark": "m", "leaving": False}

    def until(self, kind: type[f.Fact], within_s: float) -> float:
        """Seconds until such a fact is told."""
        began = self.now
        while not any(isinstance(fact, kind) for fact in self.told):
            assert self.now - began <= within_s, self.told
            self.now += 0.5
            self.claiming.tick()
        return self.now - began

    @staticmethod
    def queue(lane: str, work: Callable[[], None]) -> None:
        work()


def test_nothing_is_signed_before_the_run_is_held_and_after_it_was_given_back() -> None:
    desk = Desk()
    with pytest.raises(StoreError, match="does not hold the run now") as caught:
        desk.claiming.sign_request()
    assert caught.value.kind == "transient", "what was asked for is asked for again"
    desk.claiming.want(take_over=False)
    assert desk.told == [f.Claimed(3)]
    assert desk.claiming.sign_request()["generation"] == 3
    desk.claiming.give_back()
    sent: list[dict[str, Any]] = []
    with pytest.raises(StoreError):
        desk.claiming.write(lambda signed: sent.append(signed) or {})
    assert not sent


def test_the_store_of_one_machine_needs_no_claim() -> None:
    assert Desk(needed=False).claiming.sign_request()["generation"] is None


def test_the_core_is_told_by_whichever_request_is_refused() -> None:
    desk = Desk()
    desk.claiming.want(take_over=False)

    def refused(signed: dict[str, Any]) -> dict[str, Any]:
        raise FencedError("pod-b holds the run", "pod-b", 4)

    with pytest.raises(FencedError):
        desk.claiming.write(refused)
    assert desk.told[-1] == f.Fenced("pod-b", 4)
    asked = len(desk.asked)
    desk.now += 3600
    desk.claiming.tick()
    assert len(desk.asked) == asked, "no heartbeat, and no claim, until a person wants one"


def test_a_late_answer_to_a_request_of_before_the_run_was_taken_back_ends_nothing() -> None:
    ended: list[StoreError] = []
    desk = Desk(lost=ended.append)
    desk.claiming.want(take_over=False)
    held = list(desk.told)

    def slow(signed: dict[str, Any]) -> dict[str, Any]:
        desk.claiming.generation = 5  # meanwhile a person took the run back
        raise FencedError("vm holds the run now (generation 5, this pod had 3)", "vm", 5)

    with pytest.raises(FencedError):
        desk.claiming.write(slow)
    assert desk.told == held and not ended
    desk.claiming.generation = 5
    with pytest.raises(FencedError):
        desk.claiming.write(lambda signed: raised(FencedError("pod-b holds the run now", "pod-b", 6)))
    assert desk.told[-1] == f.Fenced("pod-b", 6) and ended


def raised(error: StoreError) -> dict[str, Any]:
    raise error


def test_a_run_that_cannot_be_given_back_says_what_that_costs() -> None:
    desk = Desk()
    desk.claiming.want(take_over=False)
    desk.problem = StoreError("transient", "time-out.")
    desk.claiming.ended.set()
    desk.claiming.give_back()
    assert desk.claiming.unreturned == (
        "The run could not be given back in the store, so another pod waits 600 s for its heartbeat before it goes on "
        "with the run: time-out."
    )


def test_one_503_at_a_stop_costs_the_next_pod_no_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.claiming.want(take_over=False)
    desk.problem, waited = StoreError("transient", "503 service_unavailable"), []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        assert "another pod waits 600 s" in desk.claiming.unreturned, "should the daemon end meanwhile"
        desk.problem = None if len(waited) == 3 else desk.problem
        return False

    monkeypatch.setattr(desk.claiming.ended, "wait", wait)
    desk.claiming.give_back()
    assert [do for do, _ in desk.asked] == ["claim", *["release"] * 4]
    assert not desk.claiming.unreturned and max(waited) <= 5.0
    assert desk.claiming.generation is None, "and nothing is signed meanwhile"


def test_what_waiting_cannot_cure_is_not_asked_again_for_a_release() -> None:
    desk = Desk()
    desk.claiming.want(take_over=False)
    desk.problem = StoreError("permanent", "the key was deleted.")
    desk.claiming.give_back()
    assert [do for do, _ in desk.asked] == ["claim", "release"] and "the key was deleted" in desk.claiming.unreturned


def test_a_run_that_another_pod_has_meanwhile_needs_no_giving_back() -> None:
    desk = Desk()
    desk.claiming.want(take_over=False)
    desk.problem = FencedError("pod-b holds the run", "pod-b", 4)
    desk.claiming.give_back()
    assert not desk.claiming.unreturned


def test_a_beat_that_does_not_get_through_is_no_reason_to_stop() -> None:
    desk = Desk()
    desk.claiming.want(take_over=False)
    desk.problem = StoreError("transient", "time-out.")
    desk.now += 61
    desk.claiming.tick()
    desk.problem = None
    desk.now += 61
    desk.claiming.tick()
    beats = [more["count"] for do, more in desk.asked if do == "beat"]
    assert beats == [1, 2]
    assert desk.told == [f.Claimed(3)]


def test_a_pod_that_is_about_to_go_says_so_at_once_and_beats_each_three_seconds_until_it_is_gone() -> None:
    desk = Desk()
    desk.claiming.leave()
    assert not desk.asked, "it holds nothing"
    desk.claiming.want(take_over=False)
    desk.claiming.leave()
    desk.claiming.leave()
    assert [do for do, _ in desk.asked] == ["claim", "leave"]
    assert isinstance(desk.told[-1], f.Remark)
    assert "about to go" not in desk.told[-1].sentence, "a plain stop says nothing of the pod"
    for _ in range(60):
        desk.now += 0.5
        desk.claiming.tick()
    assert [do for do, _ in desk.asked[2:]] == ["beat"] * 10
    desk.claiming.give_back()
    assert desk.asked[-1][0] == "release"


def test_a_head_of_several_machines_leaves_no_mark_since_what_it_began_there_may_write_on() -> None:
    desk = Desk()
    desk.claiming.marks_leaving = False
    desk.claiming.want(take_over=False)
    desk.claiming.leave()
    assert [do for do, _ in desk.asked] == ["claim", "beat"]
    desk.claiming.give_back()
    assert desk.asked[-1][0] == "release"


def test_a_mark_that_does_not_get_through_is_tried_again_and_one_that_did_shortens_what_a_lost_release_costs() -> None:
    desk = Desk()
    desk.claiming.want(take_over=False)
    desk.problem = StoreError("transient", "time-out.")
    desk.claiming.leave()
    desk.problem = None
    assert desk.until(f.Remark, 3.0) <= 3.0
    assert [do for do, _ in desk.asked] == ["claim", "leave", "leave"]
    desk.problem = StoreError("transient", "time-out.")
    desk.claiming.ended.set()
    desk.claiming.give_back()
    assert "so another pod waits 30 s for its heartbeat" in desk.claiming.unreturned


def test_whoever_waits_for_a_pod_that_is_about_to_go_waits_half_a_minute_and_not_ten_minutes() -> None:
    desk = Desk()
    desk.other = {"writer": "pod-b/" + "b" * 16 + "/0001", "generation": 2, "released": False, "mark": "m1"}
    desk.claiming.want(take_over=False)
    desk.now += 300.0
    desk.claiming.tick()
    assert not [fact for fact in desk.told if isinstance(fact, f.Claimed)]
    desk.other = {**desk.other, "leaving": True}
    desk.until(f.ClaimHeld, 0.0)
    for beat in range(2, 8):
        for _ in range(6):
            desk.now += 0.5
            desk.claiming.tick()
        desk.other = {**desk.other, "mark": f"m{beat}"}
    assert not [fact for fact in desk.told if isinstance(fact, f.Claimed)], "its heartbeat moves"
    assert 28.0 <= desk.until(f.Claimed, 45.0) <= 34.0
    waits = [fact.patience_s for fact in desk.told if isinstance(fact, f.ClaimHeld)]
    assert (waits[0], waits[-1]) == (600.0, 30.0)


def copied(desk: Desk, beat: int = 0) -> None:
    """The holder has this very journal, at a place that proves nothing; so many of its heartbeats came."""
    writer = f"vm/{US}/{'1' * 32}0001"
    desk.other = {"writer": writer, "generation": 2, "released": False, "mark": f"m{beat}", "leaving": False}


def test_a_copied_disk_never_steals_from_an_original_that_beats() -> None:
    desk = Desk()
    copied(desk)
    desk.claiming.want(take_over=False)
    for beat in range(1, 30):
        for _ in range(4):
            desk.now += 15.0
            desk.claiming.tick()
        copied(desk, beat)
    assert not [fact for fact in desk.told if isinstance(fact, f.Claimed)]
    held = [fact for fact in desk.told if isinstance(fact, f.ClaimHeld)]
    assert all(fact.copied and fact.patience_s == 180.0 for fact in held)


def test_a_machine_that_was_started_anew_waits_three_beats_and_not_ten_minutes() -> None:
    desk = Desk()
    copied(desk)
    desk.claiming.want(take_over=False)
    assert 180.0 <= desk.until(f.Claimed, 200.0) <= 196.0
    assert desk.told[-1] == f.Claimed(3, watched=True), "what the original published since is not in this journal"


def test_another_pods_journal_is_still_waited_for_ten_minutes() -> None:
    desk = Desk()
    desk.other = {"writer": "pod-b/" + "b" * 16 + "/0001", "generation": 2, "released": False, "mark": "m1"}
    desk.claiming.want(take_over=False)
    assert 600.0 <= desk.until(f.Claimed, 620.0) <= 616.0


def test_a_command_watches_what_its_own_state_folder_claimed_and_waits_for_nobody_else() -> None:
    desk = Desk()
    slept: list[float] = []
    copied(desk)
    us = f"vm/{US}/{'2' * 32}0002"

    def run(do: str, more: dict[str, Any]) -> dict[str, Any]:
        return desk.run(do, more) if do == "claim" else {**(desk.other or {})}

    told: list[str] = []
    assert claim_once(run, us, 600.0, told.append, sleep=slept.append)["writer"] == us
    assert sum(slept) == 180.0
    (sentence,) = told
    assert sentence == (
        "Pod vm claimed this run with this very state folder (generation 2), and nothing proves that it was this "
        "machine: its disk may be a copy. Waiting until its heartbeat has stood still for 3 min."
    ), "three minutes of silence look like a command that hangs"
    slept.clear()

    def beats(seconds: float) -> None:
        slept.append(seconds)
        copied(desk, len(slept))

    assert claim_once(run, us, 600.0, told.append, sleep=beats)["generation"] == 2
    assert len(slept) == 1

    def ends(seconds: float) -> None:
        desk.other = {**(desk.other or {}), "released": True}

    copied(desk)
    assert claim_once(run, us, 600.0, told.append, sleep=ends)["writer"] == us, "a run that was given back is free"
    desk.other = {"writer": "pod-b/" + "b" * 16 + "/0001", "generation": 2, "released": False, "mark": "m1"}
    assert claim_once(run, us, 600.0, told.append, sleep=slept.append)["writer"].startswith("pod-b/")
    assert len(slept) == 1


class Hanging:
    """A claim on a lane of its own, whose heartbeats hang until they are cancelled."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.hangs = {"beat", "leave"}
        self.now = 1000.0
        self._cancelled = threading.Semaphore(0)
        self._lanes = Lanes(lambda lane, error: None)
        self.claiming = Claiming(
            self.run, lambda fact: None, self._lanes.put, 600.0, cancel=self._cancelled.release, clock=lambda: self.now
        )
        self.claiming.want(take_over=False)
        until(lambda: self.claiming.generation == 3, "the run is held")

    def run(self, do: str, more: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((do, more))
        if do in self.hangs:
            assert self._cancelled.acquire(timeout=30.0), "nobody cancelled it"
            raise StoreError("transient", "cancelled")
        return {"writer": more["writer"], "generation": 3, "released": False, "mark": "m", "leaving": False}

    def dos(self) -> list[str]:
        return [do for do, _ in self.asked]

    def give_back(self) -> None:
        self.claiming.rest()
        self._lanes.put("claims", self.claiming.give_back)


def test_a_pod_that_goes_waits_for_no_heartbeat_that_hangs_neither_for_its_mark_nor_for_its_release() -> None:
    one = Hanging()
    one.now += 61.0
    one.claiming.tick()
    until(lambda: one.dos() == ["claim", "beat"], "a heartbeat hangs")
    one.claiming.leave()

    def marks() -> bool:
        one.claiming.tick()  # at the very same time: it is due at once
        return one.dos()[2:] == ["leave"]

    until(marks, "the mark is on its way")
    assert one.asked[-1][1]["urgent"] is True
    one.give_back()
    until(lambda: one.dos() == ["claim", "beat", "leave", "release"], "and hangs, and the run is given back")
    one.now += 10.0
    one.claiming.tick()
    assert one.dos()[-1] == "release"


def test_a_publish_under_way_ends_as_soon_as_a_heartbeat_learns_that_the_run_is_another_pods(tmp_path: Path) -> None:
    """B2 keeps what it sends apart, but a large file would be sent, and billed, to its end."""
    step = Step(tmp_path / "pod-a").fill()
    with B2Server(part_size=20_000) as b2:
        b2.fail("b2_upload_part", times=1000, delay_s=60.0)
        transfers = Transfers(os.environ | b2.environ(), 60.0)
        store = {"url": "b2://the-bucket/team", "realm": b2.url}
        ended: list[StoreError] = []

        def publish() -> None:
            with pytest.raises(StoreError) as caught:
                transfers.run(step.request(tmp_path / "state") | {"store": store}, what="publish")
            ended.append(caught.value)

        desk = Desk(lost=lambda error: transfers.cancel("publish", str(error)))
        desk.claiming.want(take_over=False)
        thread = threading.Thread(target=publish)
        thread.start()
        until(lambda: bool(b2.journal("b2_start_large_file")), "a large file is under way")
        desk.problem = FencedError("pod-b holds the run now", "pod-b", 4)
        desk.now += 61.0
        desk.claiming.tick()
        thread.join(10.0)
        assert not thread.is_alive()
        assert (ended[0].kind, str(ended[0])) == ("transient", "pod-b holds the run now")
        assert desk.told[-1] == f.Fenced("pod-b", 4)
        transfers.cancel("publish", "nothing is under way any more")


# ---------------------------------------------------------------- a standing that a fleet's controller convicted


HELD = {
    "writer": "old/" + "f" * 16 + "/" + "0" * 12,
    "generation": 7,
    "released": False,
    "mark": "b7",
    "leaving": False,
}


def convicted_desk(standing: str, held: dict[str, Any] = HELD) -> Desk:
    desk = Desk()
    desk.claiming = Claiming(desk.run, desk.told.append, desk.queue, 600.0, convicted=standing, clock=lambda: desk.now)
    desk.claiming.journal = US
    desk.other = dict(held)
    return desk


def test_a_convicted_standing_is_claimed_over_at_once() -> None:
    desk = convicted_desk("7:b7")
    desk.claiming.want(take_over=False)
    assert desk.until(f.Claimed, 0.0) == 0.0
    assert desk.asked[-1][1]["over"] == HELD
    [remark] = [fact for fact in desk.told if isinstance(fact, f.Remark)]
    assert "found pod old gone" in remark.sentence
    claimed = next(fact for fact in desk.told if isinstance(fact, f.Claimed))
    assert claimed.watched, "the store is listed anew: the other pod may have published"


@pytest.mark.parametrize(
    "changed",
    [{"mark": "b8"}, {"generation": 8}, {"writer": f"copy/{US}/" + "1" * 12}],
    ids=["it beats again", "another pod has it", "a copy of this very disk"],
)
def test_any_other_standing_is_waited_for_as_ever(changed: dict[str, Any]) -> None:
    desk = convicted_desk("7:b7", {**HELD, **changed})
    desk.claiming.want(take_over=False)
    waited = desk.until(f.Claimed, 700.0)
    assert waited >= (600.0 if "writer" not in changed else 180.0)


def test_a_conviction_is_good_for_one_look() -> None:
    desk = convicted_desk("7:b7", {**HELD, "mark": "b6"})
    desk.claiming.want(take_over=False)
    assert desk.other is not None
    desk.other["mark"] = "b7"
    assert desk.until(f.Claimed, 700.0) >= 600.0


@pytest.mark.parametrize("bad", ["7", "7:", ":b7", "-7:b7", "seven:b7", "7" * 99 + ":b7"])
def test_a_conviction_that_is_none_costs_no_run(bad: str) -> None:
    desk = convicted_desk(bad)
    desk.claiming.want(take_over=False)
    assert any(isinstance(fact, f.Remark) and "no GENERATION:MARK" in fact.sentence for fact in desk.told)
    assert desk.until(f.Claimed, 700.0) >= 600.0


def test_a_heartbeat_says_what_is_known_of_its_pod_and_the_release_how_it_ended() -> None:
    desk = Desk()
    about = {"label": "rls-x-g00001-0a1b2c", "step": 12, "unpublished": [10]}
    desk.claiming = Claiming(desk.run, desk.told.append, desk.queue, 600.0, about=lambda: about, clock=lambda: desk.now)
    desk.claiming.journal = US
    desk.claiming.want(take_over=False)
    desk.now += 61
    desk.claiming.tick()
    assert desk.asked[-1] == ("beat", {"generation": 3, "writer": desk.claiming.writer, "count": 1, "about": about})
    desk.claiming.give_back(94, "the host has 1 GPU")
    assert desk.asked[-1][1]["code"] == 94
    assert desk.asked[-1][1]["reason"] == "the host has 1 GPU"


@pytest.mark.parametrize(
    ("script", "limit_s", "found"),
    [
        ('cat >/dev/null; sleep 60 & echo $! >"$0.pid"; echo The host has 1 GPU.', 40.0, "The host has 1 GPU."),
        ("echo The host has 1 GPU.; exec sleep 60", 1.0, ""),
        ("echo The host has 1 GPU.; exit 1", 40.0, ""),
    ],
    ids=["what it started lives on", "it hangs", "it fails"],
)
def test_the_claim_waits_no_longer_for_a_look_at_the_host_than_that_may_take(
    script: str, limit_s: float, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that a driver holds, or whose children keep its output open, was waited for without an end."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    began = time.monotonic()
    assert store_work.look_at_host(b"{}", {"PATH": os.environ["PATH"]}, limit_s) == found
    assert time.monotonic() - began < 40
    if (started := program.with_name("python.pid")).exists():
        os.kill(int(started.read_text()), signal.SIGKILL)
