"""A snapshot from before the state had parts: read field by field, and followed to the same decisions.

``data/flat_state.json.gz`` was made by the last code without parts: a state in which every field is filled, and the
facts around an incident with what was decided on them.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.actions import Action, KeepRecords, Stop
from supervisor.core.codec import CLASSES, decode, encode
from supervisor.core.decide import decide
from supervisor.core.facts import Observation
from supervisor.core.flat_state import PARTS, is_flat, with_parts
from supervisor.core.goodput import Ledger
from supervisor.core.phases import ENGINE_UPDATE, STEP
from supervisor.core.records import Learned
from supervisor.core.settings import OLD_NAMES
from supervisor.core.state import State
from supervisor.journal import trace
from supervisor.journal.replay_trace import replay

GONE = {"setup_reason", "local_t"}  # nothing read them
SEVERAL_MACHINES = {"host", "index", "how"}  # of a process: they came later


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    path = Path(__file__).parent / "data" / "flat_state.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def test_every_old_field_has_its_place(kept: dict[str, Any]) -> None:
    old = kept["full"]
    assert len(old) == 127, "126 fields and the name"
    new = encode(decode(old))
    assert not is_flat(new)
    place = {field: (part, name) for part, moved in PARTS.items() for field, name in moved.items()}
    for field, value in old.items():
        if field in GONE or field == "@":
            continue
        part, name = place.get(field, ("", field))
        now = (new[part] if part else new)[name]
        if field == "progress":
            now.pop("done_wall")  # came later
        if field == "busy":
            assert now.pop("waits") == ""
        if field == "host":
            assert (now.pop("host"), now.pop("age_s")) == ("", 0.0)
        if field == "engine":
            assert (now["look"].pop("host"), now["look"].pop("index")) == ("", 0)
            value.pop("ok_t")  # nothing read it
            assert now.pop("ours") == 0.0  # came later
        if field == "gpus":
            for one in now.values():
                one.pop("slowed_since"), one.pop("power_low_w"), one["gpu"].pop("host")
        if field == "settings":
            assert (now["hang"], now["checkpoint_save"]) == (value["hang_s"], value["writing_s"])
            assert OLD_NAMES.keys() <= value.keys()
            value = {OLD_NAMES.get(name, name): one for name, one in value.items() if name != "has_store"}
            now = {name: now[name] for name in value}  # others came later
        if field == "left":
            assert now.pop("update") is None  # came later
        phases = now if field == "phases" else now["phases"] if field == "left" else {}
        assert [one.pop("until") for one in phases.values()] == [None] * len(phases)  # came later
        for one in now.values() if field == "processes" else now if field in ("gone", "trouble") else ():
            for later in SEVERAL_MACHINES & one.keys():
                assert one.pop(later) in ("", 0)
        assert now == value, field


def test_every_part_takes_exactly_the_fields_of_its_class() -> None:
    for part, moved in PARTS.items():
        name = part.capitalize()
        assert type(getattr(State(), part)) is CLASSES[name]
        later = {
            "attempt": {"interval", "stop_at_once"},
            "disk": {"host", "part"},
            "host": {"peak_bytes"},
            "job": {"activity", "pictures", "update"},
            "local": {"left", "restored", "writing"},
            "recovery": {"full_since", "left_step"},
            "store": {"unlisted_since"},
        }.get(part, set())
        assert set(moved.values()) == {field.name for field in fields(CLASSES[name])} - later, part


def test_a_field_that_an_older_snapshot_lacks_takes_its_default(kept: dict[str, Any]) -> None:
    old = {key: value for key, value in kept["full"].items() if key not in ("barren", "leave", "journal")}
    state = decode(old)
    assert (state.recovery.barren, state.leave, state.journal) == (0, State().leave, "")
    assert state.recovery.restarts == kept["full"]["restarts"]


def test_a_state_with_parts_is_read_as_it_is(kept: dict[str, Any]) -> None:
    state = decode(kept["full"])
    assert decode(json.loads(json.dumps(encode(state)))) == state
    assert with_parts(kept["full"]) != encode(state), "nested values are still to be decoded"


def test_the_facts_that_follow_lead_to_the_same_decisions(kept: dict[str, Any]) -> None:
    story = kept["incident"]
    state = decode(story["state"])
    for seen, (actions, deadline) in zip(story["observations"], story["decisions"], strict=True):
        decision = decide(state, Observation(seen["t"], seen["wall"], decode(seen["fact"]), seen["source"]))
        state = decision.state
        then = decode(actions)
        # How a failed job is stopped was not decided then, and a save was counted for longer than it took.
        then = tuple(replace(one, at_once=True) if isinstance(one, Stop) else one for one in then)
        assert [_as_then(one) for one in decision.actions] == [_as_then(one) for one in then]
        # It may look sooner: what an update of weights explains ended at another time then.
        assert decision.deadline is not None and decision.deadline <= deadline, seen
    assert any(action["@"] == "Stop" for actions, _ in story["decisions"] for action in actions)
    # What came later is not in what was kept.
    gpus = {uuid: replace(memory, power_low_w=None) for uuid, memory in state.gpus.by_uuid.items()}
    state = replace(state, gpus=replace(state.gpus, by_uuid=gpus))
    state = replace(state, attempt=replace(state.attempt, stop_at_once=False))
    progress, host = replace(state.progress, done_wall=None), replace(state.host, peak_bytes=None)
    after = decode(story["after"])
    after = replace(after, books=replace(after.books, learned=learned_then(after.books.learned)))
    books = replace(state.books, ledger=after.books.ledger, learned=learned_then(state.books.learned))
    job = replace(state.job, update=None, explained=after.job.explained)
    calm_until = after.calm_until
    assert replace(state, progress=progress, host=host, books=books, job=job, calm_until=calm_until) == after


def _as_then(action: Action) -> Action:
    if not isinstance(action, KeepRecords):
        return action
    return replace(action, ledger=Ledger(), learned=learned_then(action.learned))


def learned_then(learned: Learned) -> Learned:
    """Without the times that updates of weights take, and those of steps, of which they are no part."""
    return replace(learned, phases={n: times for n, times in learned.phases.items() if n not in (ENGINE_UPDATE, STEP)})


def test_a_trace_with_such_a_state_replays_without_a_difference(kept: dict[str, Any], tmp_path: Path) -> None:
    story = kept["incident"]
    lines: list[Any] = [{"format": "rl-supervisor-trace", "version": 1, "state": story["state"]}]
    for seen, (actions, _) in zip(story["observations"], story["decisions"], strict=True):
        lines += [seen, {"decision": actions}]
    path = tmp_path / "old.trace"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    turns = list(replay(trace.load(path)))
    assert len(turns) == len(story["observations"])
    for turn in turns:
        if turn.differs:  # in what is learned alone
            then = [decode(json.loads(text)) for text in turn.recorded or ()]
            assert [_as_then(one) for one in turn.actions] == [_as_then(one) for one in then], turn
