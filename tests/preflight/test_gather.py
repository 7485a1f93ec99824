"""What is gathered for the checks: also of a run file or a configuration that is half wrong."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from supervisor.jobs.base import StepCheck
from supervisor.preflight.examine import examine
from supervisor.preflight.finding import Finding
from supervisor.preflight.gather import gather, looks_like_run_file
from supervisor.preflight.site import Site
from supervisor.preflight.subject import Subject
from supervisor.preflight.telling_apart import part_of
from supervisor.primerl.layout import Layout
from supervisor.process import attached
from tests.primerl.eras import ERAS, write_checkout

CONFIG = """\
max_steps = 40
[model]
name = "Qwen/Qwen3-0.6B"
[trainer]
[orchestrator]
batch_size = 16
[inference]
"""
RUN = """\
[run]
id = "demo"
state_dir = "{here}/state"
[job]
dir = "{here}/prime-rl"
config = "{here}/rl.toml"
checkpoint_interval = 7
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_checkout(tmp_path / "prime-rl", ERAS["be0e3d131"])
    (tmp_path / "rl.toml").write_text(CONFIG)
    (tmp_path / "run.toml").write_text(RUN.format(here=tmp_path))
    return tmp_path


def looked(path: Path | list[Path], **more: Any) -> Subject:
    return gather(path, environ=more.pop("environ", {"PATH": "/usr/bin"}), site=Site(), **more)


def found(subject: Subject) -> list[tuple[str, int, str]]:
    return [(one.id, one.where.line, one.where.key) for one in subject.found]


def test_a_run_file_brings_its_configuration_its_trainer_and_what_the_start_will_be(here: Path) -> None:
    subject = looked(here / "run.toml")
    assert found(subject) == []
    assert (subject.kind, subject.dialect_from, subject.interval, subject.max_steps) == ("rl", "installed", 7, 40)
    assert subject.dialect == ERAS["be0e3d131"].dialect
    assert subject.roots == [here / "prime-rl" / "src" / "prime_rl"]
    assert (subject.plan.inference, subject.plan.trainer) == (["0"], ["1"])
    where = subject.where("orchestrator.batch_size")
    assert (where.file, where.line) == (str(here / "rl.toml"), 6)
    assert str(subject.run_where("job", "dir")) == f"{here}/run.toml:5 job.dir"
    assert subject.model is not None and subject.model.layers == 28


def test_each_mistake_of_the_run_file_is_a_finding_and_the_rest_is_looked_at(here: Path) -> None:
    text = RUN.replace('id = "demo"', 'id = "demo"\nmax_step = 3').replace("= 7", '= "7"') + "[disks]\nkeep = 1\n"
    (here / "run.toml").write_text(text.format(here=here))
    subject = looked(here / "run.toml")
    assert found(subject) == [("run-file", 3, "run.max_step"), ("run-file", 8, "job.checkpoint_interval"),
                              ("run-file", 9, "disks")]  # fmt: skip
    assert subject.found[0].sentence == '[run] has no setting "max_step"; did you mean "max_steps"?'
    assert subject.settings.number("orchestrator.batch_size") == 16


def test_a_run_file_that_is_no_toml_is_mended_for_the_look_and_says_what_else_is_wrong(here: Path) -> None:
    text = RUN.replace('id = "demo"', "id = demo\nmax_step = 3")
    (here / "run.toml").write_text(text.format(here=here))
    subject = looked(here / "run.toml")
    assert [(one, line) for one, line, _ in found(subject)] == [("unquoted-text", 2), ("run-file", 3)]
    assert subject.found[0].edits
    assert subject.run_file is not None
    assert (subject.run_file.run.id, subject.settings.number("max_steps")) == ("demo", 40)


def test_a_second_name_of_a_section_is_no_mistake_beside_another_one(here: Path) -> None:
    text = RUN.replace('id = "demo"', 'id = "demo"\nmax_step = 3') + '[recover]\nmode = "observe"\n'
    (here / "run.toml").write_text(text.format(here=here))
    subject = looked(here / "run.toml")
    assert subject.run_file is not None and subject.run_file.recovery.mode == "observe"


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"\xff\xfe", "is not UTF-8"), (b"", "is empty"), (None, "does not exist")],
)
def test_a_run_file_that_cannot_be_read_is_one_finding(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    subject = looked(path)
    assert {one.id for one in subject.found} == {"run-file"}
    assert told in subject.found[0].sentence
    assert examine(subject), "and the checks bear it"


def test_a_trainer_that_is_not_there_is_an_error_and_its_version_is_guessed_from_the_keys(here: Path) -> None:
    (here / "run.toml").write_text(RUN.replace("{here}/prime-rl", "{here}/nowhere").format(here=here))
    config = CONFIG.replace("[trainer]", "inference_gpu_ids = [0]\ntrainer_gpu_ids = [1]\n[trainer]")
    (here / "rl.toml").write_text(config.replace("[model]", "", 1).replace('name = "Qwen/Qwen3-0.6B"', "", 1))
    subject = looked(here / "run.toml")
    assert [one for one, _, _ in found(subject)] == ["prime-rl-not-found", "prime-rl-guessed"]
    assert found(subject)[0][1:] == (5, "job.dir")
    assert subject.dialect_from == "guessed"
    assert subject.dialect is not None and subject.dialect.gpus == "ids"
    assert subject.plan.trainer == ["1"]


def test_a_day_that_is_named_has_the_last_word_on_the_version(here: Path) -> None:
    subject = looked(here / "run.toml", as_of=date(2026, 8, 20))
    assert (subject.dialect_from, subject.dialect and subject.dialect.resume) == ("as-of", "resume.step")
    assert subject.schema is not None and subject.schema.exact and subject.schema.day == date(2026, 8, 20)


def test_a_configuration_that_is_missing_or_broken_is_told_once_with_its_place(here: Path) -> None:
    (here / "rl.toml").write_text(CONFIG.replace("batch_size = 16", "batch_size = sixteen"))
    subject = looked(here / "run.toml")
    assert [(one, line) for one, line, _ in found(subject)] == [("unquoted-text", 6)]
    assert subject.max_steps == 40
    (here / "rl.toml").unlink()
    subject = looked(here / "run.toml")
    assert [one for one, _, _ in found(subject)] == ["config-missing"]
    assert str(here / "rl.toml") in subject.found[0].sentence


def test_what_setup_may_still_install_is_no_error(here: Path) -> None:
    text = RUN.replace("{here}/prime-rl", "{here}/not-yet").replace("{here}/rl.toml", "{here}/not-yet.toml")
    (here / "run.toml").write_text(text.format(here=here) + '[setup]\ncommands = ["git clone ..."]\n')
    subject = looked(here / "run.toml")
    told = {one.id: one.weight for one in subject.found}
    assert told == {"config-missing": "warning", "prime-rl-not-found": "warning"}
    assert "checkpointing-off" not in [one.id for one in examine(subject)], "nobody knows what is in that file"


def test_what_the_job_itself_refuses_has_the_place_of_its_key(here: Path) -> None:
    (here / "rl.toml").write_text(CONFIG + "[deployment]\ntype = 'multi_node'\n")
    text = RUN.replace("checkpoint_interval", 'args = ["--clean"]\ncheckpoint_interval')
    (here / "run.toml").write_text(text.format(here=here) + "[gpus]\ninference = [0]\ntrainer = ['GPU-0a']\n")
    refused = [one for one in looked(here / "run.toml").found if one.id == "refused"]
    assert [str(one.where) for one in refused] == [
        f"{here}/rl.toml:9 deployment.type",
        f"{here}/run.toml:7 job.args",
        f"{here}/run.toml:9 gpus",
    ]
    assert refused[0].sentence.startswith('It sets deployment.type = "multi_node", a run over several machines')


def test_a_refusal_of_a_setting_of_the_run_file_has_its_line(here: Path) -> None:
    (here / "run.toml").write_text(RUN.format(here=here) + '[recovery]\ninference = "own-role"\n')
    places = {str(one.where) for one in looked(here / "run.toml").found if one.id == "refused"}
    assert f"{here}/run.toml:9 recovery.inference" in places


def test_the_same_configuration_without_a_run_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    subject = looked(Path("rl.toml"), job_dir=here / "prime-rl")
    assert (subject.run_file, subject.run_path, subject.interval, subject.max_steps) == (None, None, None, 40)
    assert subject.dialect_from == "installed"
    assert str(subject.where("orchestrator.batch_size")) == "rl.toml:6 orchestrator.batch_size"
    nothing = looked(Path("rl.toml"))
    assert (nothing.dialect, nothing.dialect_from) == (None, ""), "each version knows these keys"
    assert [one for one, _, _ in found(nothing)] == ["prime-rl-guessed"]


THREE: Mapping[str, str] = {
    "a.toml": "max_steps = 20\n[model.lora]\nrank = 8\n[optim]\nlr = 1e-5\n[ckpt]\ninterval = 4\n",
    "b.toml": "batch_size = 128\nrollouts_per_example = 16\n[sampling]\nmax_tokens = 128\n",
    "c.toml": "enable_lora = true\n[model]\nmax_model_len = 2048\n",
}


def test_the_three_files_are_told_apart_by_their_keys(tmp_path: Path) -> None:
    for name, text in THREE.items():
        (tmp_path / name).write_text(text)
    subject = looked([tmp_path / name for name in ("c.toml", "a.toml", "b.toml")])
    assert [text.table for text in subject.texts] == ["inference", "trainer", "orchestrator"]
    get = subject.settings.get
    assert (get("inference.model.max_model_len"), get("orchestrator.sampling.max_tokens")) == (2048, 128)
    assert (subject.kind, subject.interval, subject.max_steps) == ("rl", 4, 20)
    assert str(subject.where("trainer.model.lora.rank")) == f"{tmp_path}/a.toml:3 trainer.model.lora.rank"


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("x.toml", CONFIG, ""),
        ("sft.toml", 'max_steps = 5\n[data]\nname = "a/b"\nbatch_size = 4\n[ckpt]\n', "sft"),
        ("train.toml", "max_steps = 5\n[data.fake]\nbatch_size = 2\n[model]\nseq_len = 1024\n", "trainer"),
        ("orch.toml", 'max_steps = 5\n[model]\nname = "m"\n', "orchestrator"),
        ("infer.toml", '[model]\nname = "m"\n', "inference"),
        ("rl.toml", 'max_steps = 5\n[model]\nname = "m"\n', ""),
        ("odd.toml", "model = 3\nsampling = [1]\n", "orchestrator"),
    ],
)
def test_what_a_file_is_stands_in_its_keys_and_else_in_its_name(
    tmp_path: Path, name: str, text: str, part: str
) -> None:
    (tmp_path / name).write_text(text)
    assert not looks_like_run_file(tmp_path / name)
    subject = looked(tmp_path / name)
    assert part_of(tmp_path / name, subject.texts[0].data) == part
    assert subject.kind == ("sft" if part == "sft" else "rl")


@pytest.mark.parametrize(
    "text",
    [
        'num_examples = 5\nrollouts_per_example = 3\n[[env]]\nid = "a"\n',
        '[model]\nname = "m"\n[[env]]\nid = "a"\nrollouts_per_example = 3\n[[env]]\nid = "b"\n',
    ],
)
def test_a_configuration_of_eval_is_told_and_not_complained_of(tmp_path: Path, text: str) -> None:
    path = tmp_path / "eval.toml"
    path.write_text(text)
    assert [one.id for one in examine(looked(path))] == ["no-training"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('model = "m"\n[env]\nid = "e"\n[inference]\ngpus = 1\n[trainer]\ngpus = 1\n', "vf-rl"),
        ('model = "m"\n[eval.client]\nbase_url = "u"\n[[eval.source]]\nname = "s"\n', "command"),
    ],
)
def test_the_configurations_of_other_commands_are_not_taken_for_those_of_rl(
    tmp_path: Path, text: str, kind: str
) -> None:
    (tmp_path / "x.toml").write_text(text)
    subject = looked(tmp_path / "x.toml")
    assert subject.kind == kind
    assert [one.id for one in examine(subject) if one.weight == "error"] == []


@pytest.mark.parametrize("table", ["logging", "store", "gpus", "notify"])
def test_one_table_of_ours_does_not_make_a_run_file_of_the_trainers_configuration(tmp_path: Path, table: str) -> None:
    path = tmp_path / "rl.toml"
    path.write_text(f'max_steps = 5\n[model]\nname = "Qwen/Qwen3-0.6B"\n[trainer]\n[orchestrator]\n[{table}]\nx = 1\n')
    found = examine(looked(path, as_of=date(2026, 8, 14)))
    assert [(one.id, one.where.line) for one in found if one.weight == "error"] == [("unknown-key", 6)]


def test_of_one_file_of_three_the_others_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("[optim]\nlr = 1e-5\n[model]\nseq_len = 1024\n")
    subject = looked(path, as_of=date(2026, 1, 6))
    assert (subject.knows("trainer"), subject.knows("orchestrator")) == (True, False)
    assert [one.id for one in examine(subject) if one.weight == "error"] == []


def test_one_file_of_three_is_looked_at_and_the_others_are_named(here: Path) -> None:
    (here / "infer.toml").write_text("[model]\nenforce_eager = true\n")
    (here / "orch.toml").write_text("max_steps = 5\nbatch_size = 16\n[sampling]\nmax_tokens = 16\n")
    (here / "train.toml").write_text("max_steps = 5\n[optim]\nlr = 1e-5\n")

    def told(*names: str) -> list[tuple[str, str]]:
        seen = examine(looked([here / f"{name}.toml" for name in names], job_dir=here / "prime-rl"))
        return [(one.id, one.sentence) for one in seen if one.weight == "error" or one.id == "part-alone"]

    ((name, sentence),) = told("infer")
    assert name == "part-alone"
    assert sentence.startswith("What the run is given for the trainer and the orchestrator is not looked at")
    assert [one for one, _ in told("orch", "infer")] == ["part-alone"]
    assert told("train", "orch", "infer") == told("train", "orch") == []


def test_a_configuration_with_a_run_name_of_its_own_is_no_run_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[run]\nname = "x"\n[trainer]\n[wandb]\nproject = "p"\n')
    assert not looks_like_run_file(path)
    path.write_text('[run]\nid = "x"\n')
    assert looks_like_run_file(path)
    path.write_text('[run]\nid = "x\n[job]\n')  # a quote is missing
    assert looks_like_run_file(path)


def test_a_json_configuration(tmp_path: Path) -> None:
    (tmp_path / "rl.json").write_text(json.dumps({"max_steps": 9, "trainer": {}, "orchestrator": {}}))
    assert looked(tmp_path / "rl.json").max_steps == 9
    (tmp_path / "rl.json").write_text("[1, 2]")
    subject = looked(tmp_path / "rl.json")
    assert [one.weight for one in subject.found if one.id != "prime-rl-guessed"] == ["error"]


def test_the_steps_on_this_disk_and_whether_the_job_lives(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [10, 20, 30, 40, 50, 60, 70, 80]
    monkeypatch.setattr(Layout, "steps", lambda self: steps)
    asked: list[int] = []

    def check(self: Layout, step: int, *, settled: bool = False, on_tier: bool = False) -> StepCheck:
        asked.append(step)
        return StepCheck("complete" if step != 80 else "incomplete", size_bytes=step * 1000)

    monkeypatch.setattr(Layout, "check_step", check)
    subject = gather(here / "run.toml", environ={"PATH": "/usr/bin"})
    assert subject.steps == {step: step * 1000 for step in (30, 40, 50, 60, 70)}
    assert asked == [30, 40, 50, 60, 70, 80]
    assert not subject.site.job_lives
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    me = (os.getpid(), ticks)
    attached.write_record(here / "state" / "attempts" / "0003", "launcher", me, "a job")
    assert gather(here / "run.toml", environ={"PATH": "/usr/bin"}).site.job_lives


def test_a_linked_checkpoint_folder_is_an_error_before_any_step_is_lost_behind_it(here: Path) -> None:
    """Each of its steps would count as incomplete, and none would be published."""
    (here / "run.toml").write_text(RUN.format(here=here) + f'output_dir = "{here}/out"\n')
    (here / "big").mkdir()
    (here / "data").mkdir()
    (here / "out").symlink_to(here / "data")  # the output folder itself may be one
    assert "linked-checkpoints" not in {one.id for one in looked(here / "run.toml").found}
    (here / "out" / "checkpoints").symlink_to(here / "big")
    (one,) = (one for one in looked(here / "run.toml").found if one.id == "linked-checkpoints")
    assert one.weight == "error" and one.where.key == "job.output_dir"
    assert one.sentence.startswith(f"{here}/out/checkpoints is a symlink to {here}/big, and the steps")


@pytest.mark.parametrize(
    "text",
    [
        "trainer = 5\norchestrator = [1]\ninference = 'x'\nmodel = [[]]\nmax_steps = 'x'\n",
        "[[trainer]]\n[[orchestrator.sampling]]\nmax_tokens = 2026-01-06\n[ckpt]\ninterval = inf\n",
        "model.name = nan\ninference_gpu_ids = {}\ntrainer_gpu_ids = 'a,b'\n",
        "[job]\n",
        "= = =",
        "[",
    ],
)
def test_odd_values_never_raise(here: Path, text: str) -> None:
    (here / "rl.toml").write_text(text)
    for path in (here / "run.toml", here / "rl.toml"):
        for one in examine(looked(path)):
            assert isinstance(one, Finding) and str(one.where) is not None and one.as_json()


def test_a_byte_order_mark_is_an_error_in_prime_rls_file_and_none_in_our_own(here: Path) -> None:
    """tomllib refuses it, and no editor shows it."""
    for name in ("rl.toml", "run.toml"):
        (here / name).write_text("\ufeff" + (here / name).read_text())
    subject = looked(here / "run.toml")
    assert found(subject) == [("toml-syntax", 1, "")]
    (one,) = subject.found
    assert one.where.file == str(here / "rl.toml")
    assert "byte order mark" in one.sentence
    assert one.weight == "error", "exit 1"
    command = one.sentence.partition("Remove it: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert (here / "rl.toml").read_text() == CONFIG
    assert found(looked(here / "run.toml")) == []


@pytest.mark.parametrize("day", [date(2026, 8, 14), date(2026, 8, 21)])
@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("[orchestrator]\nbatch_size = 8\n[[orchestrator.train.source]]\nenv = { id = 'a/b' }\n", ["trainer"]),
        ("[trainer]\n[orchestrator]\n", []),
    ],
)
def test_a_part_that_is_missing_is_an_error_without_a_run_file_too(
    here: Path, day: date, text: str, missing: list[str]
) -> None:
    path = here / "whole.toml"
    path.write_text(f"max_steps = 5\n{text}")
    found = [one for one in examine(looked(path, as_of=day)) if one.id == "missing-key"]
    assert [(one.where.key, one.weight) for one in found] == [(part, "error") for part in missing]
