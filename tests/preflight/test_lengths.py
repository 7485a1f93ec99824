"""Prompt and answer, training sequence and context: what fits, in which version."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from supervisor.preflight import lengths, prompts
from supervisor.preflight.models import ModelFacts
from supervisor.preflight.schema import Field, Schema
from supervisor.preflight.site import Refused
from tests.preflight.eras_by_day import (
    EVERY,
    FEBRUARY,
    IDS,
    JANUARY,
    JUNE,
    MARCH,
    NEWEST,
    SEPTEMBER,
    found,
    of,
    weights,
)
from tests.preflight.subjects import site

TOOLS = 'enable_auto_tool_choice = true\ntool_call_parser = "hermes"\n'
NO_TOOLS = ""


EARLY = Schema({"max_steps": Field(frozenset({"int"}))})
"""Of a version that has no --dump-config yet: before 12 February 2026."""


def config(max_tokens: int, context: int, tools: str = NO_TOOLS, seq_len: int = 8192) -> str:
    parts = (
        f"seq_len = {seq_len}",
        f"[orchestrator]\nseq_len = {seq_len}",
        f"[orchestrator.sampling]\nmax_tokens = {max_tokens}",
        f"[trainer.model]\nseq_len = {seq_len}",
        f"[inference.model]\nmax_model_len = {context}\n{tools}",
    )
    return "\n".join(parts)


def about_tokens(era: str | None, text: str, **given: object) -> dict[str, str]:
    return {
        name: weight
        for name, weight in weights(lengths.CHECKS, of(era, text, **{"schema": EARLY, **given})).items()
        if "tokens" in name
    }


@pytest.mark.parametrize(
    ("max_tokens", "tools", "expected"),
    [
        (4097, NO_TOOLS, {"max-tokens-fill-context": "error"}),
        (4096, NO_TOOLS, {"max-tokens-fill-context": "error"}),
        (4095, NO_TOOLS, {"max-tokens-little-room": "warning"}),
        (4096 - 255, NO_TOOLS, {"max-tokens-little-room": "warning"}),
        (4096 - 256, NO_TOOLS, {}),
        (4000, TOOLS, {"max-tokens-fill-context": "error"}),  # the fourth attempt of the measured run
        (4096 - 127, TOOLS, {"max-tokens-fill-context": "error"}),
        (4096 - 128, TOOLS, {"max-tokens-little-room": "warning"}),
        (4096 - 1299, TOOLS, {"max-tokens-little-room": "warning"}),
        (4096 - 1300, TOOLS, {}),
        (2000, TOOLS, {}),  # the fifth, which trained
    ],
)
def test_what_is_left_for_the_prompt_while_vllm_refuses(max_tokens: int, tools: str, expected: dict[str, str]) -> None:
    assert about_tokens(JANUARY, config(max_tokens, 4096, tools)) == expected


@pytest.mark.parametrize(
    ("era", "max_tokens", "expected"),
    [
        (FEBRUARY, 4096, {"max-tokens-fill-context": "error"}),
        (MARCH, 4096, {}),  # the engine ends the answer
        (MARCH, 4097, {"max-tokens-above-context": "error"}),
        (JUNE, 4097, {"max-tokens-above-context": "warning"}),
        (NEWEST, 4096, {}),
        (NEWEST, 4097, {"max-tokens-above-context": "warning"}),
        (None, 4096, {}),  # wrong in some versions only
        (None, 4097, {"max-tokens-above-context": "warning"}),
    ],
)
def test_from_when_the_engine_ends_an_answer_where_its_context_ends(
    era: str | None, max_tokens: int, expected: dict[str, str]
) -> None:
    assert about_tokens(era, config(max_tokens, 4096)) == expected


def test_a_version_of_which_the_day_is_not_certain_is_warned_of_only() -> None:
    """Between 31 Dec 2025 and 24 Feb 2026 a key tells whether 12 February has passed, if the keys are its own."""
    late = Schema({"dump_config": Field(frozenset({"str"}))})
    assert about_tokens(FEBRUARY, config(4096, 4096), schema=late) == {}
    perhaps = {"max-tokens-fill-context": "warning"}
    assert about_tokens(FEBRUARY, config(4096, 4096), schema=Schema(EARLY.top, exact=False)) == perhaps
    assert about_tokens(FEBRUARY, config(4096, 4096), schema=None) == perhaps


@pytest.mark.parametrize(
    ("day", "expected"), [("2026-02-14", {"max-tokens-fill-context": "error"}), ("2026-02-15", {})]
)
def test_a_day_that_a_person_named_is_certain(day: str, expected: dict[str, str]) -> None:
    named = {"schema": None, "as_of": date.fromisoformat(day)}
    assert about_tokens(FEBRUARY, config(4096, 4096), **named) == expected


def test_the_models_context_counts_where_none_is_set() -> None:
    text = "[orchestrator]\nseq_len = 65536\n[orchestrator.sampling]\nmax_tokens = 32768\n[inference]\n"
    model = ModelFacts("a-model", positions=32768)
    [fill] = [one for one in found(lengths.CHECKS, of(JANUARY, text, model=model, schema=EARLY)) if "fill" in one.id]
    assert "the model's context of 32768 tokens" in fill.sentence
    elsewhere = text.replace("[inference]\n", "")  # somebody else's engine may stretch it
    assert about_tokens(JANUARY, elsewhere, model=model) == {}
    assert about_tokens(JANUARY, text) == {}


@pytest.mark.parametrize(
    ("era", "text", "shorter"),
    [
        (SEPTEMBER, "[orchestrator]\nseq_len = 8192\n", False),  # the trainer had none of its own
        (IDS, "[orchestrator]\nseq_len = 8192\n", False),
        (JANUARY, "[orchestrator]\nseq_len = 8192\n", True),
        (JANUARY, "[orchestrator]\nseq_len = 2048\n", False),
        (JANUARY, "seq_len = 4096\n[orchestrator]\nseq_len = 8192\n", False),  # the shared one overruled both
        (MARCH, "seq_len = 4096\n[orchestrator]\nseq_len = 8192\n", True),
        (NEWEST, "seq_len = 8192\n", False),
        (NEWEST, "[trainer.model]\nseq_len = 16384\n[orchestrator]\nseq_len = 8192\n", False),
        (None, "[orchestrator]\nseq_len = 8192\n", False),
        (None, "[trainer.model]\nseq_len = 4096\n[orchestrator]\nseq_len = 8192\n", True),
    ],
)
def test_whose_sequence_is_shorter_and_since_when_that_matters(era: str | None, text: str, shorter: bool) -> None:
    assert ("trainer-seq-len-shorter" in weights(lengths.CHECKS, of(era, text))) == shorter


def test_a_context_beyond_the_positions_is_left_alone_where_it_was_stretched() -> None:
    model = ModelFacts("a-model", positions=32768, origin="its config.json")
    text = "[inference.model]\nmax_model_len = 65536\n"
    assert "context-above-positions" in weights(lengths.CHECKS, of(JANUARY, text, model=model))
    stretched = text + 'rope_scaling = { rope_type = "yarn", factor = 4.0 }\n'
    assert "context-above-positions" not in weights(lengths.CHECKS, of(JANUARY, stretched, model=model))
    told = site(environ={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert "context-above-positions" not in weights(lengths.CHECKS, of(JANUARY, text, model=model, site=told))


@pytest.mark.parametrize(
    ("era", "unread"), [(SEPTEMBER, False), (IDS, True), (MARCH, True), (JUNE, False), (None, False)]
)
def test_when_nothing_read_max_model_len_at_the_top(era: str | None, unread: bool) -> None:
    assert ("max-model-len-unread" in weights(lengths.CHECKS, of(era, "max_model_len = 4096\n"))) == unread


@pytest.mark.parametrize("era", EVERY)
def test_an_empty_configuration_is_left_alone(era: str | None) -> None:
    assert weights(lengths.CHECKS, of(era)) == {}


@pytest.mark.parametrize(("asked", "weight"), [(-1, "error"), (0, "warning")])
def test_an_answer_of_no_tokens(asked: int, weight: str) -> None:
    for era in (JANUARY, NEWEST, None):
        (one,) = [one for one in found(lengths.CHECKS, of(era, config(asked, 4096))) if one.id == "below-one"]
        assert (one.weight, one.where.key) == (weight, "orchestrator.sampling.max_tokens")


# ---------------------------------------------------------------- how long a prompt is


def room_for(tools: str = NO_TOOLS, environment: str = "", max_tokens: int = 3840, **given: object) -> dict[str, str]:
    text = f"{config(max_tokens, 4096, tools)}\n[[orchestrator.env]]\nid = 'an-env'\n{environment}"
    checked = found(lengths.CHECKS, of(JANUARY, text, schema=EARLY, **given))
    return {one.id: one.sentence for one in checked if "tokens" in one.id}


def test_an_assumed_prompt_is_said_to_be_assumed() -> None:
    assert room_for() == {}  # 256 are left
    (told,) = room_for(max_tokens=3841).values()
    assert told.endswith("leaves 255 tokens of max_model_len = 4096 for the prompt, and 256 are assumed to be needed; "
                         "how long these are is not known here.")  # fmt: skip
    (told,) = room_for(TOOLS, max_tokens=3000).values()
    assert "one with tools had 1297 in a measured run; how long these are is not known here" in told


def test_a_system_prompt_in_the_configuration_is_reckoned_with() -> None:
    assert room_for(environment=f"args = {{ system_prompt = '{'be brief ' * 50}' }}") == {}
    told = room_for(environment=f"args = {{ system_prompt = '{'be brief ' * 100}' }}")
    assert list(told) == ["max-tokens-little-room"]
    assert "its system prompt of 900 characters alone has an estimated 225" in told["max-tokens-little-room"]


def test_a_limit_of_the_environment_goes_before_an_assumption() -> None:
    assert room_for(TOOLS, "args = { max_prompt_tokens = 256 }") == {}
    told = room_for(NO_TOOLS, "[orchestrator.env.args.data]\nmax_prompt_tokens = 512")
    assert "orchestrator.env.args.data.max_prompt_tokens allows prompts of 512 tokens" in told["max-tokens-little-room"]


def test_what_an_engine_refused_with_these_very_numbers_it_refuses_again() -> None:
    again = site(refused=[Refused(600, 3840, 4096, "attempts/0003/inference.log")])
    told = room_for(site=again)
    assert list(told) == ["max-tokens-fill-context"]
    assert "refused a prompt of 600 (attempts/0003/inference.log)" in told["max-tokens-fill-context"]
    told = room_for(site=site(refused=[Refused(600, 4000, 4096, "inference.log"), Refused(300, 4000, 4096, "a.log")]))
    assert "counted 600 tokens in a prompt of an earlier attempt (inference.log)" in told["max-tokens-little-room"]
    assert room_for(max_tokens=3400, site=again) == {}  # it is mended: 696 are left


def test_the_installed_source_says_whether_an_answer_is_ended_where_the_day_does_not() -> None:
    given = {"schema": None, "engine_cuts": True}
    assert about_tokens(FEBRUARY, config(4096, 4096), **given) == {}
    given["engine_cuts"] = False
    assert about_tokens(FEBRUARY, config(4096, 4096), **given) == {"max-tokens-fill-context": "error"}


def test_prompts_are_counted_in_the_logs_of_earlier_attempts(tmp_path: Path) -> None:
    most = "This model's maximum context length is"
    lines = [
        f"'max_tokens' is too large: 4000. {most} 4096 tokens and your request has 1297 input tokens (4000 > 4096 - 12",
        f"{most} 2048 tokens. However, you requested 2054 tokens (1030 in the messages, 1024 in the completion). ",
        "INFO: nothing of the kind",
    ]
    for attempt, text in ((1, lines[0]), (2, lines[2])):
        folder = tmp_path / "attempts" / f"{attempt:04d}"
        folder.mkdir(parents=True)
        (folder / "rl.log").write_text(f"{text}\n{text}\n")
    own = tmp_path / "inference.log"
    own.write_text("\n".join(lines))
    seen = prompts.find_refused_prompts(tmp_path, [own])
    assert [(one.prompt, one.asked, one.context, one.log.endswith("0001/rl.log")) for one in seen] == [
        (1297, 4000, 4096, True)
    ]
    assert [
        (one.prompt, one.asked, one.context) for one in prompts.find_refused_prompts(None, [tmp_path / "none.log", own])
    ] == [
        (1297, 4000, 4096),
        (1030, 1024, 2048),
    ]
