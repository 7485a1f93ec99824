"""A look that hangs becomes "unknown" and holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from supervisor.core.facts import DiskLook, Fact
from supervisor.sensors.base import Looker
from tests.sensors.support import Inbox, until


class Volume:
    """A sensor on a volume that a test can freeze."""

    name = "disk"

    def __init__(self) -> None:
        self.alive = threading.Event()
        self.alive.set()
        self.looks = 0
        self.outstanding = 0
        self.most_outstanding = 0
        self.broken = False

    def look(self) -> Sequence[Fact]:
        self.looks += 1
        self.outstanding += 1
        self.most_outstanding = max(self.outstanding, self.most_outstanding)
        self.alive.wait()
        self.outstanding -= 1
        if self.broken:
            raise RuntimeError("no such luck")
        return [DiskLook("/data", 100, self.looks)]

    def unknown(self, reason: str) -> Sequence[Fact]:
        return [DiskLook("/data", reason=reason)]


@pytest.fixture
def volume() -> Iterator[Volume]:
    volume = Volume()
    yield volume
    volume.alive.set()


def test_a_look_that_hangs_is_reported_as_unknown_again_and_again_until_it_returns(volume: Volume) -> None:
    inbox = Inbox()
    looker = Looker(volume, inbox, interval_s=0.02, deadline_s=0.15, heartbeat_s=0.1)
    looker.start()
    until(lambda: len(inbox.of(DiskLook)) >= 2, "two good looks")
    assert all(not look.reason for look in inbox.of(DiskLook))

    volume.alive.clear()
    until(lambda: sum(bool(look.reason) for look in inbox.of(DiskLook)) >= 3, "three times unknown")
    unknown = next(look for look in inbox.of(DiskLook) if look.reason)
    assert unknown == DiskLook("/data", reason="disk did not answer for 0 s")
    looks_while_frozen = volume.looks

    volume.alive.set()
    until(lambda: volume.looks > looks_while_frozen + 1, "looks go on")
    last = inbox.of(DiskLook)[-1]
    assert last.reason == "" and last.free_bytes is not None
    assert volume.most_outstanding == 1, "a second look was started beside the hanging one"
    assert looker.stop()


def test_a_look_that_never_returns_does_not_keep_the_daemon_from_stopping(volume: Volume) -> None:
    volume.alive.clear()
    looker = Looker(volume, Inbox(), interval_s=0.02, deadline_s=0.05)
    looker.start()
    until(lambda: volume.outstanding == 1, "a look hangs")
    begun = time.monotonic()
    assert looker.stop(timeout_s=0.1) is False
    assert time.monotonic() - begun < 2


def test_what_a_look_brings_after_the_end_is_not_posted(volume: Volume) -> None:
    """A log that was slow to read would tell the steps of the attempt before as those of the next one."""
    volume.alive.clear()
    inbox = Inbox()
    looker = Looker(volume, inbox, interval_s=0.02)
    looker.start()
    until(lambda: volume.outstanding == 1, "a look hangs")
    assert looker.stop(timeout_s=0.05) is False
    volume.alive.set()
    assert looker.stop(timeout_s=10)
    assert volume.outstanding == 0
    assert inbox.all() == []


def test_a_mistake_in_a_sensor_becomes_a_fact_and_the_sensor_goes_on(volume: Volume) -> None:
    inbox = Inbox()
    looker = Looker(volume, inbox, interval_s=0.02)
    volume.broken = True
    looker.start()
    until(lambda: len(inbox.of(DiskLook)) >= 2, "two looks")
    assert inbox.of(DiskLook)[0].reason == "looking at disk failed: RuntimeError: no such luck"
    volume.broken = False
    until(lambda: inbox.of(DiskLook)[-1].reason == "", "a good look after the bad ones")
    assert looker.stop()


def test_a_look_can_be_asked_for_between_two_of_them(volume: Volume) -> None:
    inbox = Inbox()
    looker = Looker(volume, inbox, interval_s=3600)
    looker.start()
    until(lambda: len(inbox.all()) == 1, "the first look is at once")
    looker.wake()
    until(lambda: len(inbox.all()) == 2, "the look that was asked for")
    assert looker.stop()


def test_facts_of_a_look_are_confirmed_after_they_were_posted() -> None:
    order: list[str] = []

    class Reader:
        name = "logs"

        def look(self) -> Sequence[Fact]:
            order.append("look")
            return [DiskLook("/data")]

        def unknown(self, reason: str) -> Sequence[Fact]:
            return []

        def note_posted(self) -> None:
            order.append("posted")

    looker = Looker(Reader(), lambda fact: order.append("post"), interval_s=3600)
    looker.start()
    until(lambda: "posted" in order, "the confirmation")
    assert order == ["look", "post", "posted"]
    assert looker.stop()
