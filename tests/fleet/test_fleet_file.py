"""What ``fleet.toml`` refuses, and what its times mean."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError
from supervisor.fleet.fleet_file import Limits, load, load_run

TEXT = """
[fleet]
store = "b2://bucket/fleet"
[limits]
per_hour = 1
total = 1
[place.own]
provider = "ssh"
host = "{host}"
[run.swe]
file = "swe.toml"
places = ["own"]
[run.swe.env]
{env}
"""


def write(folder: Path, *, host: str = "box1", env: str = "") -> Path:
    path = folder / "fleet.toml"
    path.write_text(TEXT.format(host=host, env=env))
    path.chmod(0o600)
    return path


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    found = load(write(tmp_path, host="me@box-1.lan", env='HF_TOKEN = "$HF_TOKEN"'))
    assert found.place["own"].host == "me@box-1.lan"
    assert found.run["swe"].env == {"HF_TOKEN": "$HF_TOKEN"}


@pytest.mark.parametrize("name", ["VAST_API_KEY", "RUNPOD_API_KEY", "PRIME_API_KEY"])
def test_no_account_key_goes_to_a_pod(tmp_path: Path, name: str) -> None:
    for env in (f'{name} = "abc"', f'KEY = "${name}"'):
        with pytest.raises(ConfigError, match="would put the account's key on a rented host"):
            load(write(tmp_path, env=env))


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "box 1", "a;b"])
def test_a_host_that_ssh_would_take_for_an_option_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="host"):
        load(write(tmp_path, host=host))


def test_a_variable_needs_the_name_of_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a variable"):
        load(write(tmp_path, env='"A; rm" = "x"'))


@pytest.mark.parametrize(
    ("until", "last"),
    [
        ("2026-12-31", (2027, 1, 1, 0)),
        ("2026-12-31T18:00", (2026, 12, 31, 18)),
        ("2026-12-31T18:00+02:00", (2026, 12, 31, 16)),
    ],
)
def test_a_day_counts_whole_and_a_time_is_utc(until: str, last: tuple[int, int, int, int]) -> None:
    assert Limits(per_hour=1, total=1, until=until).until_unix == datetime(*last, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("until", ["9999-12-31", "tomorrow", "2026-13-01", ""])
def test_a_time_that_is_none_is_a_mistake_in_the_file_and_no_traceback(tmp_path: Path, until: str) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("total = ", f'until = "{until}"\ntotal = '))
    with pytest.raises(ConfigError, match="is neither a day nor a time such as"):
        load(path)


@pytest.mark.parametrize("limit", ["per_hour", "total"])
def test_an_infinite_limit_is_none(limit: str) -> None:
    with pytest.raises(ValueError, match="finite"):
        Limits.model_validate({"per_hour": 1, "total": 1, limit: float("inf")})


@pytest.mark.parametrize(
    ("store", "sound"),
    [
        ('url = "b2://another/runs"', True),
        ('url = "b2://another/runs"\nrealm = "http://127.0.0.1:1"', False),
        ('url = "s3://bucket/runs"', False),
    ],
)
def test_memory_and_steps_are_told_by_one_clock(tmp_path: Path, store: str, sound: bool) -> None:
    path = write(tmp_path)
    (tmp_path / "swe.toml").write_text(f'[run]\nid = "swe"\n[job]\ndir = "."\nconfig = "rl.toml"\n[store]\n{store}\n')
    found = load(path)
    if sound:
        assert load_run(path, "swe", found.run["swe"], found.fleet).run.id == "swe"
    else:
        with pytest.raises(ConfigError, match="two services have two clocks"):
            load_run(path, "swe", found.run["swe"], found.fleet)


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ('host = "', 'hots = "x"\nhost = "', r'line 9: \[place.own\] has no setting "hots"; did you mean "host"\?'),
        ('file = "', 'zzzz = 1\nfile = "', r'\[run.swe\] has no setting "zzzz"; its settings are file, places, '),
        ('file = "swe.toml"\n', "", r'\[run.swe\] has no "file", which is required: The run file'),
        ('provider = "ssh"', 'provider = "vast"', "has no `gpu` and no `image` and no `most_per_hour`, which provider"),
        ("b2://bucket", "b2://b", r"names no bucket of b2: such a name has 6 to 63 letters"),
    ],
)
def test_a_mistake_in_a_table_with_a_name_is_told_with_what_is_near(
    tmp_path: Path, right: str, wrong: str, told: str
) -> None:
    path = write(tmp_path)
    assert path.read_text().count(right) == 1
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(ConfigError, match=told):
        load(path)
