"""A person's own faults and settings: what is accepted, and what the errors say."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError
from supervisor.simulator.faults import KINDS
from supervisor.simulator.scenario import load_scenario
from supervisor.simulator.schedule import describe_kinds, load_faults, parse_faults, seconds


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml, as_json = tmp_path / "faults.toml", tmp_path / "faults.json"
    toml.write_text(
        '[[fault]]\nat = "1h30m"\nkind = "engine-hang"\nsays = true\n[[fault]]\nat = 60\nkind = "env-death"\n'
    )
    as_json.write_text('[{"at": 60, "kind": "env-death"}, {"at": "90min", "kind": "engine-hang", "says": true}]')
    assert load_faults(toml) == load_faults(as_json)
    assert [fault.at for fault in load_faults(toml)] == [60, 5400]


@pytest.mark.parametrize(
    ("text", "wanted"), [("90s", 90), ("15min", 900), ("1h 30m", 5400), ("2d", 172800), ("0.5h", 1800), (7, 7)]
)
def test_times_are_read(text: object, wanted: float) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "soon", "-1h", "1h and a bit", -1, True, None, float("nan")])
def test_other_times_are_refused_with_an_example(text: object) -> None:
    with pytest.raises(ConfigError, match="1h30m"):
        seconds(text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([{"at": 1, "kind": "engine-hangs"}], "There is no fault 'engine-hangs'; known are .*engine-hang,"),
        ([{"kind": "engine-hang"}], "at missing"),
        ([{"at": 1, "kind": "store-outage", "second": 1}], "no parameter 'second'; it has seconds"),
        ([{"at": 1, "kind": "trainer-crash", "x": 1}], "it has none"),
        ([{"at": 1, "kind": "store-outage", "seconds": "long"}], "takes a number from 0 on"),
        ([{"at": 1, "kind": "store-outage", "seconds": [9, 1]}], r"\[low, high\]"),
        ([{"at": 1, "kind": "host-oom", "role": 3}], "a word"),
        ([{"at": 1, "kind": "engine-hang", "says": "yes"}], "true, false"),
        ({"faulty": []}, "holds no faults"),
        (["engine-hang"], "holds no faults"),
    ],
)
def test_a_mistake_is_named_with_what_is_known_instead(content: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_faults(content, "faults.toml")


def test_a_file_that_is_neither_or_is_not_there_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[[fault]\n")
    with pytest.raises(ConfigError, match="neither JSON nor TOML"):
        load_faults(broken)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_faults(tmp_path / "none.toml")


def test_the_list_names_all_kinds_and_parameters() -> None:
    text = "\n".join(describe_kinds())
    for kind in KINDS.values():
        assert f"{kind.name}: " in text
        for name in kind.parameters:
            assert f"    {name} = " in text


def test_numbers_of_a_scenario_are_set() -> None:
    scenario = load_scenario("default", ["step_s=100", "rate.spot-loss=0", "settings.hang=30", "liveness=false"])
    assert scenario.physics.step_s == 100
    assert scenario.settings.hang == 30
    assert not scenario.physics.liveness
    assert {rate.kind: rate.per_1000_h for rate in scenario.rates}["spot-loss"] == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step_s", "key=value"),
        ("steps=1", "There is nothing called steps"),
        ("rate.spot=1", "There is no fault 'spot'"),
        ("rate.spot-loss=-1", "from 0 on"),
        ("settings.hangs=1", "There is nothing called settings.hangs"),
        ("engines=1.5", "a whole number"),
        ("engines=0", "more than 0"),
        ("step_s=fast", "takes a number"),
        ("liveness=1", "true or false"),
    ],
)
def test_a_number_that_cannot_be_set_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_scenario("default", [text])


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="default, flaky"):
        load_scenario("quiet")


def test_what_the_virtual_pod_cannot_play_is_refused() -> None:
    with pytest.raises(ConfigError, match="no inference server of its own"):
        load_scenario("default", ["settings.inference=own-role"])
