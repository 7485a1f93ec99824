"""The scanner of key positions: it finds every key of a document that a generator wrote, and no text upsets it."""

from __future__ import annotations

import time
import tomllib
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.toml_positions import Key, Position, key_positions
from tests.fuzz.profiles import tries

TRICKY = (
    '"[no.table]"',
    "'# no comment'",
    '"a = 1"',
    '"\\"quoted\\" ]"',
    '"""\n[no]\nx = 1\n"""',
    "'''\n# no\n'''",
    '""',
)
VALUES = (*TRICKY, "1", "-0.5e3", "true", "1979-05-27 07:32:00", "inf", "[ ]", '[ "]", # x ]\n "b" ]', '"""a""""')
bare = st.text("abz09_-", min_size=1, max_size=6)
quoted = st.text('abc.[]=#"\\ \té', max_size=6)


@dataclass
class Written:
    """A document, and where its writer put each key."""

    text: str = ""
    keys: dict[Key, int] = field(default_factory=dict)

    def line(self) -> int:
        return self.text.count("\n") + 1

    def add(self, path: Key) -> None:
        for length in range(1, len(path) + 1):
            self.keys.setdefault(path[:length], self.line())


def spelled(name: str) -> str:
    if name and all(char in "abz09_-" for char in name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("é", "\\u00e9")
    return f'"{escaped}"'


@st.composite
def documents(draw: st.DrawFn) -> Written:
    """Headers, arrays of tables, dotted keys, inline tables, comments and blank lines in any order."""
    written = Written()
    names = st.one_of(bare, quoted)
    arrays: dict[str, int] = {}
    used = draw(st.lists(names, unique=True, max_size=6))
    for number, name in enumerate(used):
        written.text += draw(st.sampled_from(["", "\n", "# [comment] = 1\n", "  "]))
        kind = draw(st.sampled_from(["table", "array", "sub"])) if number else "root"
        if kind == "array":
            for _ in range(draw(st.integers(1, 3))):
                path: Key = (name, arrays.get(name, 0))
                arrays[name] = arrays.get(name, 0) + 1
                written.add(path)
                written.text += f"[[ {spelled(name)} ]] # more\n"
                keys(draw, written, path)
        elif kind == "table":
            written.add((name,))
            written.text += f"[{spelled(name)}]\n"
            keys(draw, written, (name,))
        elif kind == "sub":
            written.add((name, "sub"))
            written.text += f"[ {spelled(name)} . sub ]\n"
            keys(draw, written, (name, "sub"))
        else:
            keys(draw, written, ())
    return written


def keys(draw: st.DrawFn, written: Written, table: Key) -> None:
    for name in draw(st.lists(bare.map(lambda word: "k" + word), unique=True, max_size=4)):
        style = draw(st.sampled_from(["plain", "dotted", "inline"]))
        written.text += draw(st.sampled_from(["", "\t ", "\n#c\n"]))
        value = draw(st.sampled_from(VALUES))
        if style == "plain":
            written.add((*table, name))
            written.text += f"{name} = {value}"
        elif style == "dotted":
            written.add((*table, name, "d.e", "f"))
            written.text += f'{name} . "d.e".f={value}'
        else:
            written.add((*table, name))
            written.add((*table, name, "x"))
            written.text += f"{name} = {{ x = {value}"
            written.add((*table, name, "y"))
            written.text += ", y.z = 1 }"
            written.keys.setdefault((*table, name, "y", "z"), written.line())
        written.text += draw(st.sampled_from(["\n", " # = [x]\n", "\r\n"]))


def paths(data: object, key: Key = ()) -> set[Key]:
    found = {key} if key else set()
    if isinstance(data, dict):
        for name, value in data.items():
            found |= paths(value, (*key, name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            found |= paths(value, (*key, index))
    return found


@tries(150)
@given(documents())
def test_every_key_of_a_document_is_found_on_its_line(written: Written) -> None:
    found = key_positions(written.text)
    assert {key: found[key].line for key in written.keys} == written.keys
    assert paths(tomllib.loads(written.text)) == set(found)


@tries(300)
@given(st.one_of(st.text(), st.text("[]{}=.,\"'\\#\n\r abu0"), st.binary().map(lambda data: data.decode("latin-1"))))
def test_no_text_upsets_the_scanner(text: str) -> None:
    lines = text.replace("\r\n", "\n").split("\n")
    for place in key_positions(text).values():
        assert 1 <= place.line <= len(lines)
        assert 1 <= place.column <= len(lines[place.line - 1]) + 1


@tries(100)
@given(documents(), st.sampled_from(["= ]{", "[open", 'id = "open', "a b c", "x = [1,, 2]", "k: v", "“x”"]))
def test_a_broken_line_costs_that_line_and_no_other(written: Written, broken: str) -> None:
    whole, behind = key_positions(written.text), key_positions(f"{broken}\n{written.text}")
    moved = {key: Position(place.line + 1, place.column) for key, place in whole.items()}
    assert {key: behind.get(key) for key in moved} == moved


def test_columns_count_from_one() -> None:
    assert key_positions('a = 1\n  b . "c" = 2\n[t]\n') == {
        ("a",): Position(1, 1),
        ("b",): Position(2, 3),
        ("b", "c"): Position(2, 7),
        ("t",): Position(3, 1),
    }


def test_hostile_sizes_take_linear_time() -> None:
    began = time.process_time()
    for text in ('"""' * 30_000, "[" * 90_000, "a.\n" * 30_000, "a={" * 30_000, '"' * 90_001, "'''\n" * 29_999,
                 f"[{'a.' * 30_000}a]\nb = 1"):  # fmt: skip
        key_positions(text)
    assert time.process_time() - began < 4
