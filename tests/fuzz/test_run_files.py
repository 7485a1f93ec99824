"""Any text as a run file: settings, or sentences that name it; never anything else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.base.errors import ConfigError
from supervisor.config.settings import RunFile, load
from supervisor.primerl import configs
from tests.fuzz.given import NUMBERS, TEXTS, damaged
from tests.fuzz.profiles import fuzzed

EXAMPLES = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
WHOLE = [path.read_bytes() for path in EXAMPLES]
SECTIONS = sorted(RunFile.model_fields)
SETTINGS = [
    (section, name)
    for section, field in RunFile.model_fields.items()
    for name in getattr(field.annotation, "model_fields", {})
]
ODD = (
    "1", "-1", "0", "0.5", "1e400", "inf", "nan", "true", "[]", "[[]]", "{}", '{ a = 1 }', '""', "''", '"\\u0000"',
    "1979-05-27", "07:32:00", '"../.."', '"/"', '"~nobody/x"', '"file:///"', '"b2://"', '"b2://a/../b"', '"s3://[::1"',
    '"http://["', '"127.0.0.1:99999999999"', '":"', '"[::1]:1"', '"(?P<step>"', '["{step"]', '["\\u0000"]', '["{x}"]',
    '"**/../{step}"', "[" * 80 + "]" * 80, "9" * 5000, '"' + "a" * 5000 + '"', '"é\\U0001F600"', '"\\u202e"',
)  # fmt: skip


def read(folder: Path, data: bytes) -> None:
    """The property: settings whose folders can be asked for, or sentences that begin with the file's name."""
    path = folder / "run.toml"
    path.write_bytes(data)
    begun = time.thread_time()
    try:
        found = load(path)
    except ConfigError as error:
        told = str(error).splitlines()
        assert told
        assert str(path) in told[0]
        assert told[-1].endswith((".", "?")) or ": rl-supervisor " in told[-1], told[-1]
        assert "Traceback" not in str(error)
    else:
        assert found.output_dir.is_absolute()
        assert found.state_dir.is_absolute()
    assert time.thread_time() - begun < 20


@fuzzed()
@given(data=damaged(WHOLE) | st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode()))
@example(data=b"a" + b".a" * 2000 + b" = 1\n")
@example(data=b"a = " + b"{a = " * 200 + b"1" + b"}" * 200 + b"\n")
@example(data=b"a = " + b"[" * 200 + b"]" * 200 + b"\n")
@example(data=b"a" + b".a" * 400_000 + b" = 1\n")
@example(data=b"[" + b"a." * 400_000 + b"a]\n")
@example(data=b"run.id = 'x'\n" + b'""' + b'.""' * 300_000 + b" = 1\n")
@example(data=b'"\\u0000" = 1\n"a\\nb" = 2\n["\\ud7ff"]\n')
@example(data=b'[run]\nid = "x"\n' * 2)
@example(data=b"[recover]\nmode = 1\n[[recover]]\n")
@example(data=b"recover = 1\n")
def test_any_text_is_a_run_file_or_gives_sentences(tmp_path: Path, data: bytes) -> None:
    read(tmp_path, data)


@fuzzed(3)
@given(
    whole=st.sampled_from(WHOLE),
    more=st.lists(st.tuples(st.sampled_from(SETTINGS), st.sampled_from(ODD)), min_size=1, max_size=4),
)
def test_any_value_in_any_setting_is_taken_or_gives_a_sentence(
    tmp_path: Path, whole: bytes, more: list[tuple[tuple[str, str], str]]
) -> None:
    """Above the first table, as dotted keys; those of [run] and [job] within, in place of what stands there."""
    tables = {section for (section, _), _ in more}
    kept, section = [], ""
    for line in whole.decode().splitlines():
        section = line.strip("[] ") if line.startswith("[") else section
        if section.partition(".")[0] not in tables or section.partition(".")[0] in ("run", "job"):
            kept.append(line)
    given_once = {f"{section}.{name}": value for (section, name), value in more}
    added = [f"{name} = {value}" for name, value in given_once.items() if not name.startswith(("run.", "job."))]
    inside = {head: [f"{n.removeprefix(head + '.')} = {v}" for n, v in given_once.items() if n.startswith(head + ".")]
              for head in ("run", "job")}  # fmt: skip
    text = "\n".join(added + kept)
    for head, new in inside.items():
        names = {line.split(" = ")[0] for line in new}
        body = [line for line in text.splitlines() if line.split("=")[0].strip() not in names]
        text = "\n".join(body).replace(f"[{head}]", "\n".join([f"[{head}]", *new]), 1)
    read(tmp_path, text.encode())


@fuzzed()
@given(st.sampled_from(SETTINGS), st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.none() | st.lists(st.none()))
def test_any_value_from_the_store_in_any_setting_is_taken_or_refused(at: tuple[str, str], value: Any) -> None:
    """The settings that the store keeps come as JSON, not as TOML."""
    from pydantic import ValidationError

    section, name = at
    table: dict[str, Any] = {"run": {"id": "x"}, "job": {}}
    table[section] = {**table.get(section, {}), name: value}
    try:
        RunFile.model_validate(table)
    except ValidationError as error:
        assert error.error_count()


@fuzzed(0.5)
@given(data=damaged(WHOLE) | st.binary(max_size=200))
@example(data=b"a" + b".a" * 400_000 + b" = 1\n")
@example(data=b"a" + b".a" * 3000 + b" = 1\n")
@example(data=b"a = " + b"9" * 5000)
@example(data=b"a = {b = '''c'''', a" + b".a" * 400_000 + b" = 1}\n")
@example(data=b"a = " + b'""' * 400_000 + b".a" * 3000)
def test_any_text_as_the_trainers_configuration_is_read_or_gives_a_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rl.toml"
    path.write_bytes(data)
    try:
        configs.load([configs.Source(path)])
    except ConfigError as error:
        assert str(error).endswith(".")


def test_the_examples_are_run_files() -> None:
    for path in EXAMPLES:
        load(path)
    with pytest.raises(ConfigError):
        load(EXAMPLES[0].parent)


@pytest.mark.parametrize(
    "value",
    [
        '"' + "." * 5000 + '"',
        "'" + "." * 5000 + "'",
        '"""\n' + "." * 5000 + '\n \\".."""',
        "'''" + "." * 5000 + "'''''",
        "[" + "0.1, " * 5000 + "]",
        "1 # " + "." * 5000,
    ],
)
def test_dots_that_part_no_key_are_free(tmp_path: Path, value: str) -> None:
    path = tmp_path / "trainer.toml"
    path.write_text(f"prompt = {value}\n")
    assert configs.load([configs.Source(path)]).has("prompt")
