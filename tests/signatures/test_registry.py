"""The registry of failure signatures: its data keep their own promises, and careless data are refused in a sentence."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import signatures
from supervisor.core.facts import ErrorSeen, Role
from supervisor.signatures import Registry, Signature, SignatureError, parse, read
from supervisor.signatures import registry as reading
from supervisor.signatures.words import reach_of, words_of
from tests.fuzz.profiles import tries

PRIME_RL = Path(signatures.__file__).parents[1] / "primerl" / "signatures.toml"
REGISTRIES = {"prime-rl": read(PRIME_RL, *signatures.SHARED), "any job": signatures.any_job()}
EVERY = REGISTRIES["prime-rl"].signatures
ROLES: tuple[Role, ...] = get_args(Role)

# The core, the tests and people's notes use these names.
NAMES = {
    "engine-dead", "engine-stalled", "gpu-memory-taken", "cuda-oom", "disk-full", "port-in-use", "run-folder-used",
    "config-invalid", "module-missing", "key-missing", "checkpoint-other-version", "checkpoint-missing",
    "checkpoint-damaged", "wandb-unreachable", "nccl-timeout", "connection-error", "component-failed", "fatal-error",
    "batch-empty", "empty-loss-mask", "max-tokens-too-large", "prompt-too-long",
}  # fmt: skip

# A restart cannot cure these, wherever it happens. Every other one is given its restarts.
DETERMINISTIC = {
    "run-folder-used", "config-invalid", "environment-missing", "checkpoint-other-version", "model-length-too-long",
    "model-unknown", "module-missing", "key-missing", "model-not-found", "model-no-causal-lm", "model-type-unknown",
    "model-gated", "hub-not-found", "config-not-toml", "engine-model-unsupported", "engine-layout",
    "checkpoint-other-shape", "engine-batch-too-small",
}  # fmt: skip


def table(**changes: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "kind": "transient",
        "pattern": ["Demo error"],
        "sentence": "It failed.",
        "remedy": "Mend it.",
        "source": "a test",
        "examples": [["trainer", "Demo error: 1"]],
        **changes,
    }


def examples() -> Iterator[tuple[Signature, Role, str]]:
    """One test goes through all: 500 of a millisecond each would take seconds of each process of pytest."""
    return ((one, role, line) for one in EVERY for role, line in one.examples)


def test_each_example_is_found_and_no_counter_example_is() -> None:
    registry = REGISTRIES["prime-rl"]
    for one, role, line in examples():
        assert registry.match(role, line, diagnosing=True, frame=one.frame) is one, (one.name, role, line)
        assert (registry.match(role, line) is one) is not one.diagnosed_only, (one.name, role, line)
    for one in EVERY:
        for role, line in one.others:
            assert registry.match(role, line, diagnosing=True) is not one, (one.name, role, line)


def test_no_other_matches_its_examples_unless_it_is_named_as_a_wider_one() -> None:
    for signature, role, line in examples():
        others = {
            one.name
            for one in EVERY
            if one is not signature
            and not one.frame
            and (not one.roles or role in one.roles)
            and one.pattern.match(line)
        }
        assert others <= signature.before | {"python-error"}, (signature.name, line)


def test_a_narrow_one_is_tried_before_the_wider_ones_that_it_names_in_whatever_file_they_are() -> None:
    for registry in REGISTRIES.values():
        place = {one.name: n for n, one in enumerate(registry.signatures)}
        late = [
            (one.name, wide)
            for one in registry.signatures
            for wide in one.before
            if place.get(wide, 999) < place[one.name]
        ]
        assert late == []


def test_the_chains_name_signatures_that_there_are() -> None:
    names = {signature.name for signature in EVERY} | {"*"}
    for signature in EVERY:
        assert signature.after <= names, signature.name
        assert signature.before <= names, signature.name
        assert signature.name not in signature.after


def test_a_signature_that_is_only_diagnosed_is_no_fact_for_recovery() -> None:
    registry = REGISTRIES["prime-rl"]
    line = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    assert registry.match("trainer", line, diagnosing=True) is registry.get("child-failed")
    assert registry.error("trainer", line) is None


def test_a_frame_must_fit_where_one_is_asked_for() -> None:
    registry = REGISTRIES["prime-rl"]
    auto = "/app/.venv/lib/python3.12/site-packages/transformers/models/auto/configuration_auto.py"
    known = registry.match("trainer", "KeyError: 'qwen9_moe'", diagnosing=True, frame=auto)
    assert known is registry.get("model-type-unknown")
    assert registry.match("trainer", "KeyError: 'reward'", diagnosing=True, frame="/app/env/wordle.py") is None


def test_a_file_that_an_environment_could_not_read_is_no_damaged_checkpoint() -> None:
    registry, line = REGISTRIES["prime-rl"], "EOFError: Ran out of input"
    of_torch = "/app/.venv/lib/python3.12/site-packages/torch/serialization.py"
    assert registry.match("orchestrator", line, diagnosing=True, frame="/app/environments/wordle/wordle.py") is None
    assert registry.match("orchestrator", line, diagnosing=True, frame=of_torch) is registry.get("checkpoint-damaged")
    assert registry.match("orchestrator", line) is registry.get("checkpoint-damaged"), "recovery sees no frames"


def test_there_are_as_many_as_were_promised() -> None:
    assert len(EVERY) >= 320


def test_the_names_that_others_rely_on_are_there_and_few_end_a_run() -> None:
    names = {signature.name for signature in EVERY}
    assert names >= NAMES
    assert {signature.name for signature in EVERY if signature.kind == "deterministic"} == DETERMINISTIC


def test_what_a_model_or_an_environment_prints_ends_no_run() -> None:
    for signature in EVERY:
        if signature.kind == "deterministic":
            assert signature.roles, f"{signature.name} counts from every role"
            assert "env" not in signature.roles, signature.name


def test_a_plain_command_gets_the_general_ones_and_none_of_prime_rls() -> None:
    registry = REGISTRIES["any job"]
    found = registry.match("job", "torch.OutOfMemoryError: CUDA out of memory.")
    assert found is not None
    assert found.name == "cuda-oom"
    assert registry.get("run-folder-used") is None
    last = registry.match("job", "mylib.SomethingError: new")
    assert last is not None
    assert last.name == "python-error"
    assert registry.match("trainer", "mylib.SomethingError: new") is None


def test_an_error_carries_what_it_means_and_at_most_300_characters_of_its_line() -> None:
    error = REGISTRIES["any job"].error("trainer", "OSError: [Errno 28] " + "x" * 1000)
    assert error == ErrorSeen(
        "trainer",
        "disk-full",
        ("OSError: [Errno 28] " + "x" * 1000)[:300],
        sentence="The disk is full, or the folder's quota is used up.",
        remedy=error.remedy if error else "",
    )
    assert error.remedy.startswith("Delete old checkpoints")
    assert REGISTRIES["any job"].error("trainer", "all is well") is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "Disk Full"}, "'Disk Full' is no name"),
        ({"kind": "fatal"}, "has kind 'fatal'"),
        ({"roles": ["Trainer"]}, "names the roles Trainer"),
        ({"roles": "trainer"}, "is no list of texts"),
        ({"sentence": "It failed"}, "sentence does not end with a full stop"),
        ({"remedy": "Mend it"}, "remedy does not end with a full stop"),
        ({"remedy": ""}, "has no remedy"),
        ({"source": ""}, "has no source"),
        ({"pattern": []}, "has no pattern"),
        ({"pattern": ["("]}, "is no regular expression"),
        ({"pattern": ["a.*b"]}, "repeats without a bound"),
        ({"pattern": ["(?:a{1,})b"]}, "repeats without a bound"),
        ({"pattern": [r"[*+]\+ x\w+"]}, "repeats without a bound"),
        ({"pattern": ["a?"]}, "matches an empty line"),
        ({"examples": []}, "has no example"),
        ({"examples": [["someone", "Demo error"]]}, "write each as"),
        ({"examples": [["trainer"]]}, "write each as"),
        ({"exampels": []}, "has exampels, which nothing reads"),
        ({"pattern": ["[A-Z]{1,9}: x"]}, "has no plain word of 4 letters"),
        ({"pattern": ["(?i:demo error)"]}, "has no plain word of 4 letters"),
        ({"link": "root"}, "has link 'root'"),
        ({"mild": False}, "mild and quiet are true"),
        ({"only": "recovery"}, 'only is "diagnose"'),
    ],
)
def test_a_careless_signature_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SignatureError, match=re.escape(sentence)) as refused:
        parse(table(**changes), "x.toml")
    assert "x.toml" in str(refused.value)


def test_literal_stars_and_bounded_repeats_are_allowed() -> None:
    signature = parse(table(pattern=[r"[*+{]\* a{1,3} \{2,} Demo{0,9}"]), "x.toml")
    assert signature.pattern.match("** aa {2,} Demo")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("Demo error", ("Demo error",)),
        (r"\[Errno (?:28|122)\]", ("[Errno 28]", "[Errno 122]")),
        (r"(?:OSError: )?No space", ("No space",)),
        (r"(?:Short|Lengthy) \d{1,3}x", ("Short ", "Lengthy ")),
        (r"(?:First|Second(?:ly)?) \d", ("First ", "Second ", "Secondly ")),
        (
            r"colou?r of(?: the)? thing",
            ("color of thing", "color of the thing", "colour of thing", "colour of the thing"),
        ),
        (r"(?:\w{1,9}Error: )?(?:too|very) late", ("too late", "very late")),
        (r"(?:OSError: )?[Nn]o space", ("No space", "no space")),
        (r"[A-Z]\w{0,9}(?:Error|Exception)(?:: |$)", ("Error: ", "Error\n", "Exception: ", "Exception\n")),
        (r"the \"auto\" tool", (" tool",)),  # JSON writes the quotation marks with something before them
        (r"a<b> is gone", (" is gone",)),
        (r"(?i)Any word", ()),
        (r"one\|two", ("one|two",)),
        (r"alpha|beta gamma", ("alpha", "beta gamma")),
        (r"[a-f(|] word{2} \d", (" wor",)),
        (r"\w{1,9}\d", ()),
        (r"(?i:any)|word", ()),
    ],
)
def test_the_words_that_a_line_cannot_be_without(pattern: str, words: tuple[str, ...]) -> None:
    assert words_of(pattern) == words


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    one = parse(table(), "x.toml")
    with pytest.raises(SignatureError, match="Two signatures are called demo"):
        Registry([one, one])
    (tmp_path / "bad.toml").write_text("[[signature]\n")
    with pytest.raises(SignatureError, match=r"bad\.toml is no TOML"):
        read(tmp_path / "bad.toml")


def test_the_first_that_matches_counts() -> None:
    narrow = parse(table(name="narrow", pattern=["Demo error: 1"]), "x.toml")
    wide = parse(table(name="wide"), "x.toml")
    assert Registry([narrow, wide]).match("trainer", "Demo error: 1") is narrow
    assert Registry([narrow, wide]).match("trainer", "Demo error: 2") is wide
    assert Registry([narrow, wide]).match("trainer", "a Demo error") is None


@pytest.mark.parametrize(
    ("first", "hidden", "line"),
    [("vex ample", "ample", "vex ample"), ("xylo", "xylophone", "xylophone"), ("axis of", "of evil", "axis of evil")],
)
def test_a_word_that_begins_within_another_one_is_found(first: str, hidden: str, line: str) -> None:
    wanted, other = (
        parse(table(name=name, pattern=[f".{{0,40}}{word}"]), "x.toml")
        for name, word in (("wanted", hidden), ("other", first))
    )
    assert Registry([wanted, other]).match("trainer", line) is wanted


PIECES = st.sampled_from(
    [word for one in EVERY for word in one.words] + [line for one in EVERY for _, line in one.examples]
)
CUT = st.tuples(PIECES, st.integers(0, 12), st.integers(0, 12)).map(
    lambda piece: piece[0][piece[1] : len(piece[0]) - piece[2]]
)
SOME_PIECES = st.lists(st.one_of(PIECES, CUT), min_size=1, max_size=4)


@pytest.mark.parametrize("role", ROLES)
@tries(150)
@given(data=st.data())
def test_the_one_pass_passes_nothing_over(role: Role, data: st.DataObject) -> None:
    """A line of the pieces that examples are made of has the signature that trying all in turn gives."""
    line = "".join(data.draw(SOME_PIECES))
    slowly = (s for s in EVERY if (not s.roles or role in s.roles) and not s.frame and s.pattern.match(line))
    assert REGISTRIES["prime-rl"].match(role, line, diagnosing=True) is next(slowly, None)


# ---------------------------------------------------------------- time


def test_what_is_not_known_costs_one_pass_however_many_are_known() -> None:
    """A model or an environment can write such lines by the thousand a second."""
    many = Registry([parse(table(name=f"n{i}", pattern=[f"Quite error {i:06d}"]), "x.toml") for i in range(1000)])
    line = "something else that nobody knows, an error of the kind that comes a thousand times: " * 2
    many.match("trainer", line)  # makes the expression
    began = time.process_time()
    for _ in range(500):
        assert many.match("trainer", line) is None
    assert time.process_time() - began < 0.1


def slow_ones(lines: list[str], limit_s: float) -> list[tuple[float, str, str]]:
    """Where one pattern takes so long on one line, best of three."""
    found = []
    for signature in EVERY:
        for some in (lines[at : at + 50] for at in range(0, len(lines), 50)):
            if _took(signature.pattern, some) >= limit_s:  # of less, no line of them has its part to answer for
                for line in some:
                    took = min(_took(signature.pattern, [line]) for _ in range(3))
                    found += [(took, signature.name, line[:60])] if took >= limit_s else []
    return found


def _took(pattern: re.Pattern[str], lines: Sequence[str]) -> float:
    begun = time.process_time()
    for line in lines:
        pattern.match(line)
    return time.process_time() - begun


@pytest.mark.parametrize(
    ("pattern", "reach"),
    [
        ("abc", 3),
        ("a{0,80}?b", 81),
        ("(?:ab|c{3})?d", 4),
        ("(?!.{0,600}x)ab|c", 2),
        (r"[a-z]{2}\.\(", 4),
        ("(?i:loss|nan)x", 5),
        ("(?P<name>ab){4}", 8),
    ],
)
def test_how_far_a_match_may_reach_is_told_from_the_pattern(pattern: str, reach: int) -> None:
    assert reach_of(pattern) == reach


def test_a_known_error_is_found_wherever_its_pattern_may_reach_and_a_long_line_is_not_read_to_its_end() -> None:
    for signature in EVERY:
        for _, line in signature.examples:
            found = signature.pattern.match(line)
            assert found is not None
            assert found.end() <= reach_of(signature.pattern.pattern), signature.name
    registry = signatures.any_job()
    behind = "x" * 299 + " The model `qwen3-lora` does not exist" + " the rest of an answer" * 100
    found_there = registry.match("inference", behind)
    assert found_there is not None
    assert found_there.name == "lora-not-loaded"
    assert registry.match("inference", "x" + behind) is None  # its pattern allows for no more


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.soak)])
def test_no_pattern_takes_long_on_lines_made_for_it(every: int) -> None:
    pieces = sorted({line for signature in EVERY for _, line in signature.examples})[::every]
    lines = [
        unit * (4096 // len(unit)) for unit in ("a", "A", "a.", "1", " ", "-", "Error", "Error: ", "A_.", "[", "E.a")
    ]
    # The beginnings of real lines, then much that the pattern may take for what comes next.
    lines += [
        (piece[:cut] + filler * 4096)[:4096] for piece in pieces for cut in (len(piece) // 2, -1) for filler in "a. "
    ]
    assert slow_ones(lines, 0.005) == []  # quadratic time would be a second


@tries(150)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(sorted({line[:80] for s in EVERY for _, line in s.examples})),
            st.text(max_size=40),
            st.sampled_from(["Rollout failed", "Error", ".", "a" * 200, " " * 200, "1" * 300, "x." * 100]),
        ),
        max_size=40,
    ).map("".join)
)
def test_any_line_is_judged_within_milliseconds(line: str) -> None:
    begun = time.process_time()
    for role in ROLES:
        for registry in REGISTRIES.values():
            registry.match(role, line)
    assert time.process_time() - begun < 0.25  # 12 times some hundred patterns


def test_what_was_read_is_kept_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, anew = tmp_path / "own.toml", list[Sequence[Path]]()
    path.write_text(signatures.GENERAL[0].read_text())
    read_anew = reading._read_anew

    def count(paths: Sequence[Path]) -> list[Signature]:
        anew.append(paths)
        return read_anew(paths)

    monkeypatch.setattr(reading, "_read_anew", count)
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    monkeypatch.setattr("sys.pycache_prefix", None)

    def read_again() -> Registry:
        read.cache_clear()
        return read(path)

    first = read_again()
    assert read_again().signatures == first.signatures
    assert len(anew) == 1
    (kept,) = (tmp_path / "__pycache__").iterdir()
    for damage in (b"", b"x", kept.read_bytes()[:-9]):
        kept.write_bytes(damage)
        assert read_again().signatures == first.signatures
    assert len(anew) == 4
    path.write_text(path.read_text().replace(first.signatures[0].name, "another-name"))
    assert read_again().get("another-name") is not None
    assert len(anew) == 5
    read.cache_clear()
