"""A host that is not what its offer promised: the run is given back with 94 before anything is started on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f

from .world import GIB, SETTINGS, World

LIE = "The offer promised 2 x H100 SXM, and this machine has 1."


def begun(local: dict[int, str] | None = None, stored: tuple[int, ...] = ()) -> World:
    """A daemon that has looked at the disk and at the store, and waits for its claim."""
    one = World(replace(SETTINGS, fencing=True))
    one.local, one.stored, one.latest = local or {}, dict.fromkeys(stored, GIB), max(stored, default=None)
    one.boot()
    assert one.state.mode == "surveying" and not one.asked(a.Start)
    return one


@pytest.mark.parametrize("stored", [(), (540,)], ids=["a new run", "a run to resume"])
@pytest.mark.parametrize("generation", [1, 7])
def test_nothing_is_restored_or_started_and_the_run_is_given_back(stored: tuple[int, ...], generation: int) -> None:
    one = begun(stored=stored)
    one.see(f.Claimed(generation, unfit=LIE))
    assert not one.asked(a.Start) and not one.asked(a.Restore)
    [given_back] = one.asked(a.Release)
    assert isinstance(given_back, a.Release)
    assert (given_back.code, given_back.reason) == (94, f"This pod is unfit: {LIE}")
    assert [end.code for end in one.asked(a.Exit) if isinstance(end, a.Exit)] == [94]
    assert one.said("unfit") == [f"This pod is unfit: {LIE}"]


def test_a_sound_host_trains() -> None:
    one = begun()
    one.see(f.Claimed(1))
    assert one.asked(a.Start) and not one.asked(a.Exit)


def test_a_step_that_is_only_here_is_published_first() -> None:
    """The disk is one that the run had before: the host is unfit now, and holds what the store lacks."""
    one = begun({540: "complete"})
    one.see(f.Claimed(2, unfit=LIE))
    order = [type(one) for one in one.actions if isinstance(one, a.Publish | a.Release | a.Exit | a.Start)]
    assert order == [a.Publish, a.Release, a.Exit]
    assert one.stored == {540: GIB}


def test_a_pod_that_is_told_to_end_meanwhile_ends_as_it_was_told() -> None:
    one = begun()
    one.see(f.Command("shutdown", "SIGTERM"))
    one.see(f.Claimed(1, unfit=LIE))
    assert [end.code for end in one.asked(a.Exit) if isinstance(end, a.Exit)] == [0]


def test_a_run_that_a_person_stopped_stays_stopped() -> None:
    one = begun()
    one.see(f.Command("stop", "a person"))
    one.see(f.Claimed(1, unfit=LIE))
    assert one.state.mode == "stopped" and not one.asked(a.Exit)
