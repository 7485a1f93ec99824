"""Mistakes in the text of a configuration: found all at once, at their line, with the line that was meant."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.preflight import toml_text
from supervisor.preflight.toml_text import mend_text
from tests.fuzz.profiles import tries

FILE = Path("/run/rl.toml")

ONE_LINE = [
    ("name = Qwen/Qwen3-8B", "unquoted-text", 'name = "Qwen/Qwen3-8B"'),
    ("name = Qwen/Qwen3-8B  # the small one", "unquoted-text", 'name = "Qwen/Qwen3-8B"  # the small one'),
    ("name = my first run", "unquoted-text", 'name = "my first run"'),
    ("output_dir = /workspace/outputs", "unquoted-text", 'output_dir = "/workspace/outputs"'),
    ("modules = [q_proj, k_proj]", "unquoted-text", 'modules = ["q_proj", "k_proj"]'),
    ('modules = ["q_proj", k_proj]', "unquoted-text", 'modules = ["q_proj", "k_proj"]'),
    ("ac = { mode = full, freq = 1 }", "unquoted-text", 'ac = { mode = "full", freq = 1 }'),
    ("level = debug", "unquoted-text", 'level = "debug"'),
    ("offline = True", "python-word", "offline = true"),
    ("offline = FALSE", "python-word", "offline = false"),
    ("interval = None", "python-word", 'interval = "None"'),
    ("interval = null", "python-word", 'interval = "None"'),
    ("both = [True, False]", "python-word", "both = [true, false]"),
    ("name = “Qwen/Qwen3-8B”", "typographic-quotes", 'name = "Qwen/Qwen3-8B"'),
    ('name = "Qwen/Qwen3-8B”', "typographic-quotes", 'name = "Qwen/Qwen3-8B"'),
    ("name = `a`", "typographic-quotes", 'name = "a"'),
    ('name\u00a0= "a"', "stray-character", 'name = "a"'),
    ('name = "Qwen/Qwen3-8B', "unclosed", 'name = "Qwen/Qwen3-8B"'),
    ('name = Qwen/Qwen3-8B"', "unclosed", 'name = "Qwen/Qwen3-8B"'),
    ("name = \"Qwen/Qwen3-8B'", "unclosed", 'name = "Qwen/Qwen3-8B"'),
    ("ids = [0, 1", "unclosed", "ids = [0, 1]"),
    ('ids = ["a", "b]', "unclosed", 'ids = ["a", "b"]'),
    ("ac = { freq = 1", "unclosed", "ac = { freq = 1}"),
    ("[orchestrator.sampling", "unclosed", "[orchestrator.sampling]"),
    ("[[orchestrator.env]", "unclosed", "[[orchestrator.env]]"),
    ('path = "C:\\models\\qwen"', "backslashes", "path = 'C:\\models\\qwen'"),
    ('path = "D:\\models\\"', "backslashes", "path = 'D:\\models\\'"),
    ('modules = [".*\\.q_proj"]', "backslashes", "modules = ['.*\\.q_proj']"),
    ('modules = ["q_proj" "k_proj"]', "missing-comma", 'modules = ["q_proj", "k_proj"]'),
    ("ids = 0, 1", "missing-brackets", "ids = [0, 1]"),
    ("betas = (0.9, 0.95)", "missing-brackets", "betas = [0.9, 0.95]"),
    ('envs = "a", "b"', "missing-brackets", 'envs = ["a", "b"]'),
    ("top_p = .95", "odd-number", "top_p = 0.95"),
    ("temperature = 1.", "odd-number", "temperature = 1.0"),
    ("max_steps = 1,000", "odd-number", "max_steps = 1000"),
    ("seed = 007", "odd-number", "seed = 7"),
    ("ac = { freq = 1, }", "inline-table", "ac = { freq = 1 }"),
    ("max_steps = 10,", "stray-character", "max_steps = 10"),
    ("max_steps = 10;", "stray-character", "max_steps = 10"),
    ('name = "a";', "stray-character", 'name = "a"'),
    ("max_steps = 10 // and then stop", "stray-character", "max_steps = 10 # and then stop"),
    ("max_steps = 10 ; and then stop", "stray-character", "max_steps = 10 # and then stop"),
    ('name = "a" // the model', "stray-character", 'name = "a" # the model'),
    ("lr = 1e\u22125", "odd-number", "lr = 1e-5"),
    ("name = ${MODEL}/final", "unquoted-text", 'name = "${MODEL}/final"'),
    ("max_steps: 10", "wrong-separator", "max_steps = 10"),
    ("max_steps == 10", "wrong-separator", "max_steps = 10"),
    ("max_steps 10", "wrong-separator", "max_steps = 10"),
    ('name: "a"', "wrong-separator", 'name = "a"'),
    ('ac = {"freq": 1}', "wrong-separator", 'ac = {"freq" = 1}'),
    ("[orchestrator.eval]:", "stray-character", "[orchestrator.eval]"),
    ("[orchestrator.env ratios]", "unquoted-text", '[orchestrator."env ratios"]'),
]


@pytest.mark.parametrize(("line", "rule", "meant"), ONE_LINE, ids=[line for line, _, _ in ONE_LINE])
def test_a_mistake_is_named_at_its_line_with_the_line_that_was_meant(line: str, rule: str, meant: str) -> None:
    above = '# a comment\n[trainer.model]\nseq_len = 4096\nnote = """\nx = nothing\n"""\n'
    below = "\n[trainer.optim]\nlr = 1e-5\n"
    found = mend_text(FILE, above + line + below)

    assert [(one.id, one.where.line) for one in found.findings] == [(rule, 7)]
    finding = found.findings[0]
    assert line.split("#")[0].strip()[:20] in finding.sentence
    assert meant in finding.remedy
    (edit,) = finding.edits
    assert (edit.file, edit.first, edit.last, edit.lines) == (FILE, 7, 7, (meant,))
    assert found.text == above + meant + below
    assert found.data == tomllib.loads(above + meant + below)


def test_all_mistakes_of_a_file_are_found_in_one_go() -> None:
    text = """max_steps = 1,000
[model]
name = Qwen/Qwen3-8B

[orchestrator]
batch_size = 128
batch_size = 64
clean = True
[orchestrator.buffer]
type = online-difficulty
"""
    found = mend_text(FILE, text)
    assert [(one.where.line, one.id) for one in found.findings] == [
        (1, "odd-number"),
        (3, "unquoted-text"),
        (7, "duplicate-key"),
        (8, "python-word"),
        (10, "unquoted-text"),
    ]
    assert found.findings[2].sentence == (
        "batch_size is set in line 6 and again in line 7, to different values: 128 and 64."
    )
    assert found.findings[2].where.key == "orchestrator.batch_size"
    assert found.findings[2].edits == ()  # which of the two is meant, nobody knows
    assert found.data is not None
    assert found.data["orchestrator"] == {"batch_size": 64, "clean": True, "buffer": {"type": "online-difficulty"}}


def test_in_a_list_of_several_lines_only_the_wrong_ones_are_named() -> None:
    text = 'modules = [\n  "q_proj",\n  k_proj,\n  "v_proj",\n]\nx = 1\n'
    (finding,) = mend_text(FILE, text).findings
    assert (finding.where.line, finding.edits[0].first, finding.edits[0].last) == (3, 3, 3)
    assert finding.edits[0].lines == ('  "k_proj",',)


def test_an_unclosed_list_does_not_swallow_what_follows() -> None:
    found = mend_text(FILE, 'modules = [\n  "q_proj",\n  "k_proj",  # and that is all\n\n[trainer.optim]\nlr = 1\n')
    (finding,) = found.findings
    assert (finding.id, finding.where.line) == ("unclosed", 3)
    assert found.data == {"modules": ["q_proj", "k_proj"], "trainer": {"optim": {"lr": 1}}}


def test_where_it_is_not_known_what_belongs_to_an_unclosed_table_nothing_is_written() -> None:
    for text, certain in (
        ("a = {x = 1,\n b = 2\nc = 3\n", False),
        ("a = {x = 1,\n[t]\n", False),
        ("a = {\n x = 1\n b = 2\n[t]\nc = 1\n", False),
        ("a = {\n[t]\n", False),
        ("a = {x = 1\nb = 2\n", False),
        ('env = [\n {id = "a",\n {id = "b"},\n]\nx = 1\n', False),
        ("a = {x = 1\n\n# and\n", True),
        ("a = {x = 1\n\n[t]\nb = 2\n", True),
    ):
        found = mend_text(FILE, text)
        assert found.findings[0].where.line == 1, text
        assert [bool(one.edits) for one in found.findings[:1]] == [certain] == [bool(found.findings[0].remedy)], text
        assert not any(one.edits for one in found.findings[1:]), text


def test_a_text_that_nothing_closes_costs_its_own_line_and_no_other() -> None:
    keys = {f"key_number_{number}": number for number in range(3000)}
    rows = "".join(f"{name} = {number}\n" for name, number in keys.items())
    for begins in ('a = """\n', "a = '''\n", 'z = """\n[b]\nc = 1\n"""\na = """\n'):
        started = time.process_time()
        found = mend_text(FILE, begins + rows)
        assert time.process_time() - started < 1
        assert [(one.id, one.where.line) for one in found.findings] == [("toml-syntax", begins.count("\n"))]
        assert found.data is not None
        assert keys.items() <= found.data.items()
        assert found.data.keys() - keys.keys() == ({"z"} if begins[0] == "z" else set())


def test_once_enough_was_read_the_first_mistake_is_told_as_ever_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toml_text, "MOST_READ", 1)
    found = mend_text(FILE, 'x = 1\nmodules = [\n  "a",\n  b,\n]\nc = d\n')
    assert [(one.id, one.where.line, one.edits[0].lines) for one in found.findings] == [
        ("unquoted-text", 4, ('  "b",',))
    ]
    assert found.data is None  # c is not looked at


def test_an_inline_table_over_several_lines_becomes_one_line() -> None:
    text = "[trainer.model]\nlora = {\n  rank = 8,\n  alpha = 32,\n}\nseq_len = 1\n"
    found = mend_text(FILE, text)
    (finding,) = found.findings
    assert (finding.id, finding.where.line) == ("inline-table", 2)
    assert finding.edits[0].lines == ("lora = { rank = 8, alpha = 32 }",)
    assert (finding.edits[0].first, finding.edits[0].last) == (2, 5)
    assert found.text.count("\n") == text.count("\n")
    assert found.data == {"trainer": {"model": {"lora": {"rank": 8, "alpha": 32}, "seq_len": 1}}}


def test_a_section_that_stands_twice_is_moved_to_the_first() -> None:
    text = "[trainer]\na = 1\n\n[orchestrator]\nb = 2\n\n[trainer]\nc = 3\n"
    found = mend_text(FILE, text)
    (finding,) = found.findings
    assert (finding.id, finding.where.line) == ("duplicate-table", 7)
    assert finding.sentence == "[trainer] stands in line 1 and again in line 7, which TOML forbids."
    lines = text.split("\n")
    for edit in sorted(finding.edits, key=lambda one: -one.first):
        lines[edit.first - 1 : edit.last] = edit.lines
    assert tomllib.loads("\n".join(lines)) == {"trainer": {"a": 1, "c": 3}, "orchestrator": {"b": 2}} == found.data


def test_one_table_and_a_list_of_tables_of_the_same_name() -> None:
    found = mend_text(FILE, '[orchestrator.env]\nid = "a"\n[[orchestrator.env]]\nid = "b"\n')
    (finding,) = found.findings
    assert (finding.id, finding.where.line) == ("duplicate-table", 1)
    assert finding.edits[0].lines == ("[[orchestrator.env]]",)
    assert found.data == {"orchestrator": {"env": [{"id": "a"}, {"id": "b"}]}}


def test_the_same_key_with_the_same_value_can_go() -> None:
    (finding,) = mend_text(FILE, "a = 1\nb = 2\na = 1\n").findings
    assert (finding.id, finding.where.line) == ("duplicate-key", 3)
    assert (finding.edits[0].first, finding.edits[0].last, finding.edits[0].lines) == (3, 3, ())


def test_what_else_stands_twice_is_told_and_the_rest_is_read() -> None:
    for text, told, data in (
        ("a = 1\n[a]\nb = 2\n", [(2, "duplicate-key", "line 1 has already set (a = 1)")], {"a": {"b": 2}}),
        (
            "[t]\na = 1\n[u]\n[t]\na = 3\nc = 4\n",
            [(4, "duplicate-table", "line 1 and again in line 4"), (5, "duplicate-key", "values: 1 and 3")],
            {"t": {"a": 3, "c": 4}, "u": {}},
        ),
        (
            '[[e]]\nid = "a"\nid = "b"\n[[e]]\nid = "b"\n',
            [(3, "duplicate-key", 'values: "a" and "b"')],
            {"e": [{"id": "b"}, {"id": "b"}]},
        ),
        ("[[e]]\n[e.s]\na = 1\n[e.s]\nb = 2\n", [(4, "duplicate-table", "[e.s]")], {"e": [{"s": {"a": 1, "b": 2}}]}),
        (
            "[t]\na.b = 1\na.d.e = 2\n[t.a]\nc = 3\nd.f = 4\n",
            [(4, "duplicate-key", "line 2 has already set (a.b = 1)")],
            {"t": {"a": {"b": 1, "c": 3, "d": {"e": 2, "f": 4}}}},
        ),
        (
            'password = "hunter2hunter"\npassword = ["other-hunter", "9"]\n',
            [(2, "duplicate-key", 'values: "***" and [')],
            {"password": ["other-hunter", "9"]},
        ),
        (
            'api_key = "hunter2hunter"\n[api_key]\n',
            [(2, "duplicate-key", '(api_key = "***")')],
            {"api_key": {}},
        ),
        ("[a.b]\nx = 1\n[a]\nb = 2\n", [(4, "toml-syntax", "Cannot overwrite a value")], {"a": {"b": {"x": 1}}}),
    ):
        found = mend_text(FILE, text)
        assert [(one.where.line, one.id) for one in found.findings] == [one[:2] for one in told], text
        assert all(words in one.sentence for one, (_, _, words) in zip(found.findings, told, strict=True)), text
        assert found.data == data, text
        assert "hunter" not in "".join(one.sentence + one.remedy for one in found.findings)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb =\n", 2),
        ("a = 1\nkey with blanks = 3\n", 2),
        ("a = 1 b = 2\n", 1),
        ('a = 1\nb = "x" "y"\n', 2),
        ("a = 1\n[a..b]\n", 2),
        ('a = 1\ns = """never closed\nb = 2\n', 2),
        ("a = 1\nexport FOO\n", 2),
        ("a = 1\nb = 8 * 16\n", 2),
        ("a = 1\n<<<<<<< HEAD\n", 2),
        ("a = 1\nb = it's mine\n", 2),
    ],
)
def test_what_nobody_can_mend_is_said_with_its_line_and_without_a_guess(text: str, line: int) -> None:
    found = mend_text(FILE, text)
    assert [(one.id, one.where.line, one.edits) for one in found.findings] == [("toml-syntax", line, ())]
    assert found.data is not None
    assert found.text.count("\n") == text.count("\n")


def test_keys_below_a_header_that_is_not_understood_are_left_out() -> None:
    found = mend_text(FILE, "[a]\nx = 1\n[b]] c\nx = 2\n[d]\ny = 3\n")
    assert found.data == {"a": {"x": 1}, "d": {"y": 3}}
    assert [one.where.line for one in found.findings] == [3]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("trainer:\n  model:\n    name: a\n  optim:\n    lr: 1\norchestrator:\n  x: 1\n", "YAML"),
        ('{\n  "trainer": {\n    "model": {}\n  }\n}\n', "JSON"),
        ("import os\n\ndef main():\n    pass\n\nif x:\n    main()\n", "TOML"),
    ],
)
def test_a_file_of_another_kind_gets_one_finding(text: str, word: str) -> None:
    found = mend_text(FILE, text)
    assert [one.id for one in found.findings] == ["not-toml"]
    assert word in found.findings[0].sentence
    assert found.data is None


def test_json_is_read_as_json() -> None:
    assert mend_text(Path("/c/rl.json"), '{"max_steps": 3}').data == {"max_steps": 3}
    found = mend_text(Path("/c/rl.json"), '{\n"max_steps": 3,\n}')
    assert [(one.id, one.where.line) for one in found.findings] == [("json-syntax", 3)]
    assert mend_text(Path("/c/rl.json"), "[1]").findings[0].id == "json-syntax"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\ufeffa = 1\n",
        "a = 1\r\nb = 2\r\n",
        "\ta = 1\n",
        'a = "“quoted”"\n',
        "# only a comment",
        "a = [\n1,\n2,\n]\n",
    ],
)
def test_sound_text_has_no_findings(text: str) -> None:
    found = mend_text(FILE, text)
    assert found.findings == ()
    assert found.text == text
    assert found.data == tomllib.loads(text.removeprefix("\ufeff"))


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_line_ends_do_not_matter(ends: str) -> None:
    text = ends.join(["a = 1", "b = Qwen", "c = 3", ""])
    (finding,) = mend_text(FILE, text).findings
    assert (finding.where.line, finding.edits[0].lines) == (2, ('b = "Qwen"',))


@pytest.mark.soak
@pytest.mark.parametrize(
    "text",
    [
        "a = [\n" * 5_000,
        "a = {\n" * 5_000,
        'a = """\n' * 5_000,
        "[" * 20_000,
        "a = " + "[" * 10_000,
        "a" + ".a" * 20_000 + " = 1 x",
        "x = y\n" * 10_000,
        "a = " + "“" * 20_000,
        "a = b, " * 10_000,
        "\x00\x01\ud800" * 1000,
        "a = (" * 5_000,
        "[a]\nx = 1\n" * 5_000,
    ],
    ids=lambda text: text[:8],
)
def test_no_text_takes_long_or_raises(text: str) -> None:
    started = time.process_time()  # how busy the machine is does not count
    found = mend_text(FILE, text)
    assert time.process_time() - started < 5
    assert found.findings
    assert len(found.findings) <= toml_text.MOST_MISTAKES + 1
    for one in found.findings:
        assert len(one.sentence) < 1000
        assert one.rule


@tries(100)
@given(st.text(alphabet="ab =\"'[]{},.#\n\\“:1tT-", max_size=60))
def test_any_text_gives_findings_or_data(text: str) -> None:
    found = mend_text(FILE, text)
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert found.findings
        return
    assert found.findings == ()
    assert found.data == expected


json_values = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text("ab c", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@tries(50)
@given(st.dictionaries(st.sampled_from("abcd"), st.dictionaries(st.sampled_from("abc"), json_values, max_size=3)))
def test_what_a_mended_file_says_is_what_the_mended_text_says(tree: dict[str, dict[str, object]]) -> None:
    lines = ["spoiled = so it is"]
    for table, content in tree.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {_toml(value)}" for key, value in content.items()]
    found = mend_text(FILE, "\n".join(lines))
    assert [one.where.line for one in found.findings] == [1]
    assert found.data == tomllib.loads(found.text)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return json.dumps(value)
