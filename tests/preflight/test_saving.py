"""Checkpoints: whether, when, how many, and what would delete or forget them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import date

import pytest

from supervisor.config.settings import RunFile
from supervisor.config.toml_positions import key_positions
from supervisor.preflight import batches, lengths, saving, sharing, tracking
from supervisor.preflight.subject import Subject
from supervisor.primerl import renames as known_names
from supervisor.primerl.configs import Settings
from supervisor.primerl.launch_flags import Translation, of_files
from supervisor.primerl.renames import Rename, renames, spellings
from tests.preflight.eras_by_day import (
    EVERY,
    IDS,
    JANUARY,
    MARCH,
    NEWEST,
    RUN,
    SEPTEMBER,
    found,
    odd_trees,
    of,
    weights,
)
from tests.preflight.subjects import site, volume
from tests.primerl.eras import ERAS

SAVES = "[ckpt]\ninterval = 10\n"


def run(**tables: object) -> RunFile:
    return RunFile.model_validate({**RUN.model_dump(exclude_unset=True), **tables})


@pytest.mark.parametrize("era", [SEPTEMBER, IDS, JANUARY, MARCH, NEWEST])
def test_no_checkpoints_are_a_note_under_the_supervisor_and_a_warning_by_hand(era: str) -> None:
    assert weights(saving.CHECKS, of(era, interval=10)) == {"checkpointing-off": "note"}
    by_hand = weights(saving.CHECKS, of(era, run_file=None))
    assert by_hand.pop("checkpointing-off") == "warning"
    assert set(by_hand) <= {"run-name-not-pinned"}
    assert weights(saving.CHECKS, of(era, SAVES, interval=10)) == {}
    for odd in (
        "'10'",
        "10.0",
        "'ten'",
    ):  # pydantic takes the first two; and of the last, it is not said that none is set
        assert weights(saving.CHECKS, of(era, f"[ckpt]\ninterval = {odd}\n", interval=10)) == {}


@pytest.mark.parametrize(("era", "missing"), [(SEPTEMBER, False), (IDS, False), (JANUARY, True), (NEWEST, True)])
def test_since_when_a_bare_table_saves_the_end_alone(era: str, missing: bool) -> None:
    told = weights(saving.CHECKS, of(era, "[ckpt]\n", interval=10))
    assert ("checkpoint-interval-missing" in told) == missing


def test_an_interval_beyond_the_end_is_worth_a_warning_if_the_run_is_worth_something() -> None:
    for last, expected in ((10, {}), (9, {"checkpoint-after-the-end": "note"})):
        assert weights(saving.CHECKS, of(JANUARY, SAVES, interval=10, max_steps=last)) == expected
    long = of(JANUARY, "[ckpt]\ninterval = 500\n", interval=500, max_steps=400)
    assert weights(saving.CHECKS, long) == {"checkpoint-after-the-end": "warning"}


def test_an_interval_that_prime_rl_renames_is_found_by_its_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line a table in ``renames.toml`` is all that it takes."""
    tables = ("ckpt", "trainer.ckpt", "orchestrator.ckpt")
    more = [
        Rename(f"{one}.interval", "0" * 9, date(2026, 11, 1), f"{one}.save_every", sign="save_every") for one in tables
    ]
    monkeypatch.setattr(known_names, "renames", lambda: [*renames(), *more])
    for table in tables:
        config = f"[{table}]\nsave_every = 25\n"
        assert weights(saving.CHECKS, of(NEWEST, config, interval=10)) == {"checkpoint-interval-overruled": "note"}, (
            table
        )
        out = Translation()
        of_files(out, Settings({table.partition(".")[0]: {}} | tomllib.loads(config), "rl.toml"), sft=False)
        assert out.settings["job.checkpoint_interval"] == 25, table
    assert spellings("ckpt.interval") == ("ckpt.save_every", "ckpt.interval")


def test_two_kept_checkpoints_are_sound() -> None:
    for name, kept, expected in (("keep", 1, {"keep-one": "note"}), ("keep_last", 2, {}), ("keep", 5, {})):
        text = f"{SAVES}{name} = {kept}\n"
        assert weights(saving.CHECKS, of(JANUARY, text, interval=10)) == expected


@pytest.mark.parametrize(("newest", "nothing"), [(499, False), (500, True), (510, True)])
def test_max_steps_counts_from_the_beginning(newest: int, nothing: bool) -> None:
    told = weights(saving.CHECKS, of(JANUARY, SAVES, interval=10, max_steps=500, steps={newest: 1, 10: 1}))
    assert ("nothing-left-to-train" in told) == nothing


def test_what_the_supervisor_refuses_has_a_name_and_stands_where_the_refusal_stands() -> None:
    from supervisor.primerl.configs import refusals

    text = (
        'clean_output_dir = true\ndry_run = true\ntoml_files = ["a.toml"]\n'
        '[trainer.ckpt]\nweights_only = true\noutput_dir = "/x"\nresume_step = 5\n[orchestrator.ckpt]\ninterval = 10\n'
    )
    one = of(MARCH, text, interval=10)
    assert one.dialect is not None
    refused = {one.where(each.key) for each in refusals(one.settings, one.dialect)}
    named = {each.where: each.id for each in saving._check_refused(one)}
    assert set(named) == refused  # so that it takes the place of the plain refusal
    assert sorted(named.values()) == [
        *(
            "checkpoints-elsewhere",
            "clean-at-start",
            "nothing-trained",
            "other-files",
            "resume-by-hand",
            "weights-only",
        ),
    ]


def test_a_default_that_cleans_is_overruled_where_the_version_knows_how() -> None:
    assert weights(saving.CHECKS, of(JANUARY, "clean = true\n" + SAVES, interval=10)) == {}
    assert "clean-at-start" in weights(saving.CHECKS, of(NEWEST, "clean = true\n" + SAVES, interval=10))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),  # a machine of one's own
        ({"provider": "vast", "container": True}, {"no-store": "warning"}),
        ({"container": True}, {"no-store": "note"}),
    ],
)
def test_a_pod_that_can_be_taken_away_wants_a_store(given: dict[str, object], expected: dict[str, str]) -> None:
    assert weights(saving.CHECKS, of(JANUARY, SAVES, interval=10, site=site(**given))) == expected
    stored = run(store={"url": "b2://a-bucket/prefix"})
    assert weights(saving.CHECKS, of(JANUARY, SAVES, interval=10, site=site(**given), run_file=stored)) == {}
    # An url that is not understood is told by its own finding, and not that there is none.
    text = key_positions("[store]\nurl = '/mnt/store'\n")
    assert (
        weights(saving.CHECKS, replace(of(JANUARY, SAVES, interval=10, site=site(**given)), run_positions=text)) == {}
    )


def test_a_state_folder_on_a_volume_that_stays_is_worth_a_note_only() -> None:
    data = volume("/workspace", "ext4")
    kept = site(provider="runpod", container=True, volumes={"state": data}, persistent=[data])
    assert weights(saving.CHECKS, of(JANUARY, SAVES, interval=10, site=kept)) == {"no-store": "note"}


def test_names_and_folders_that_the_supervisor_overrules() -> None:
    text = SAVES + '[run]\nname = "other"\n'
    assert weights(saving.CHECKS, of(NEWEST, text, interval=10)) == {"run-name-overruled": "note"}
    same = SAVES + '[run]\nname = "case"\n'
    assert weights(saving.CHECKS, of(NEWEST, same, interval=10)) == {}
    assert weights(saving.CHECKS, of(NEWEST, 'output_dir = "outputs"\n' + SAVES, interval=10)) == {}
    elsewhere = weights(saving.CHECKS, of(NEWEST, 'output_dir = "runs/7"\n' + SAVES, interval=10))
    assert elsewhere == {"output-dir-overruled": "note"}


@pytest.mark.parametrize("tree", list(odd_trees()))
def test_odd_values_are_no_reason_to_fall_over(tree: dict[str, object]) -> None:
    """Whatever stands there: each check looks away from what it does not understand, and every sentence can be read."""
    modules = (saving, lengths, batches, sharing, tracking)
    for era in EVERY:
        dialect = ERAS[era].dialect if era else None
        for kind in ("rl", "sft"):
            subject = Subject(kind, Settings(tree, "odd.toml"), run_file=RUN, dialect=dialect, interval=10, max_steps=5)
            for module in modules:
                for one in found(module.CHECKS, subject):
                    assert one.as_json()["sentence"], one
