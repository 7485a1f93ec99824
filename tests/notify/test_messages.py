"""Which turns of the loop a person hears of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.facts import LocalStep
from supervisor.core.messages import Message, join_messages, list_messages, message_of_end, message_of_lag
from supervisor.core.state import Incident, State
from supervisor.core.wellness import Tolerance
from supervisor.effects.notify import is_asleep, make_digest

INCIDENT = Incident(3, "engine-gone", "vLLM died silently.", 100.0, 1e9, 1, 40)


def with_incidents(*closed: Incident, opened: Incident | None = None) -> State:
    state = State()
    return replace(state, incidents=replace(state.incidents, open=opened, closed=closed))


def test_an_incident_is_told_when_it_opens_and_when_training_goes_on() -> None:
    calm, open_ = with_incidents(), with_incidents(opened=INCIDENT)
    over = with_incidents(replace(INCIDENT, closed=340.0, closed_step=41))
    [told] = list_messages(calm, open_)
    assert (told.thread, told.severity, told.sentence) == ("incident-3", "warning", "vLLM died silently.")
    assert told.command == "supervisorctl incidents 3"
    assert list_messages(open_, open_) == []
    assert (
        list_messages(open_, replace(open_, incidents=replace(open_.incidents, open=replace(INCIDENT, step=9)))) == []
    )
    [back] = list_messages(open_, over)
    assert (back.thread, back.is_over) == ("incident-3", True)
    assert back.sentence == "Trains again after 4 min, at step 41. vLLM died silently."


def test_one_that_follows_another_at_once_is_told_beside_its_end() -> None:
    before = with_incidents(opened=INCIDENT)
    after = with_incidents(replace(INCIDENT, closed=110.0), opened=replace(INCIDENT, id=4))
    assert [(one.thread, one.is_over) for one in list_messages(before, after)] == [
        ("incident-4", False),
        ("incident-3", True),
    ]


@pytest.mark.parametrize(("code", "severity"), [(0, "info"), (93, "error"), (94, "error"), (75, None), (1, None)])
def test_the_end_of_the_daemon_is_told_where_nothing_starts_it_again(code: int, severity: str | None) -> None:
    told = message_of_end(code, "a reason")
    assert (told.severity if told else None) == severity
    assert told is None or "a reason" in told.sentence


def test_a_step_that_waits_too_long_to_be_published_is_told_once_and_its_end() -> None:
    state = State()
    step = LocalStep(40, "complete", "", 1, changed_wall=1000.0)
    late = replace(state, local=replace(state.local, steps=(step,)))
    tolerance = Tolerance(behind_s=600.0)
    assert message_of_lag(late, 1500.0, tolerance, told=False) is None
    told = message_of_lag(late, 1700.0, tolerance, told=False)
    assert told is not None and told.sentence.startswith("Step 40 has waited 11 min 40 s to be published")
    assert message_of_lag(late, 1800.0, tolerance, told=True) is None
    over = message_of_lag(state, 1900.0, tolerance, told=True)
    assert over is not None and over.is_over


def test_what_began_and_ended_before_it_was_told_is_one_message_of_the_greater_severity() -> None:
    joined = join_messages(Message("a", "error", "began"), Message("a", "info", "over", is_over=True))
    assert (joined.severity, joined.sentence, joined.is_over) == ("error", "over", True)


def test_a_digest_names_the_newest_and_counts_the_rest() -> None:
    many = [Message(f"t{n}", "warning", f"number {n}") for n in range(30)]
    assert make_digest(many, 40) == many
    told = make_digest(many, 3)
    assert [one.sentence for one in told[:2]] == ["number 0", "number 1"]
    assert told[2].sentence.splitlines() == ["28 messages:", *(f"number {n}" for n in range(25, 30)), "And 23 more."]


@pytest.mark.parametrize(
    ("hours", "hour", "asleep"),
    [("22-7", 23, True), ("22-7", 6, True), ("22-7", 7, False), ("1-5", 0, False), ("1-5", 4, True), (None, 3, False)],
)
def test_the_hours_of_sleep(hours: str | None, hour: int, *, asleep: bool) -> None:
    assert is_asleep(hours, 86400.0 * 20_000 + 3600 * hour + 59) is asleep
