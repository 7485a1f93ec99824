"""Keys and values that a version of prime-rl does not take: named with the line, the reason and what would be right.

The versions are those of ``eras``, taken here for installed ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.config.settings import RunFile
from supervisor.config.toml_positions import key_positions
from supervisor.preflight import eras, job_args, keys
from supervisor.preflight.finding import Finding
from supervisor.preflight.kinds import beyond, correct_value, describe_field, fits
from supervisor.preflight.renames import find_removal, known_as
from supervisor.preflight.schema import Field, Schema
from supervisor.preflight.subject import ConfigText, Subject
from supervisor.preflight.toml_text import mend_text
from supervisor.primerl.configs import Settings, merge_configs
from supervisor.primerl.renames import renames
from tests.primerl.eras import ERAS

FILE = Path("/run/rl.toml")
JANUARY, JUNE, AUGUST = "be0e3d131", "38494ccb4", "559b44772"


def _schema(commit: str, kind: str = "rl", *, exact: bool = True) -> Schema:
    schema = eras.on(ERAS[commit].day)[-1].schema(kind)
    return replace(schema, exact=True, version="the installed prime-rl", day=None) if exact else schema


def _subject(text: str, commit: str = JANUARY, *, table: str = "", exact: bool = True, args: Sequence[str] = (),
             kind: str = "rl") -> Subject:  # fmt: skip
    data = mend_text(FILE, text).data or {}
    file = ConfigText(FILE, table, text, data, key_positions(text))
    tree = merge_configs([(table, data)], args)
    era = eras.on(ERAS[commit].day)[-1]
    schema = _schema(commit, kind, exact=exact)
    return Subject(kind, Settings(tree, str(FILE)), (file,), tuple(args), dialect=era.dialect, schema=schema)  # type: ignore[arg-type]


def _found(subject: Subject) -> list[Finding]:
    return [
        one for check in keys.CHECKS if check is not keys.missing_keys for one in check(subject)
    ]  # what is missing in these few lines is not asked


UNKNOWN = [
    # version, text, words of the sentence, words of the remedy
    ("8518c157c", "seq_len = 4096", "top level of", "Move it to [orchestrator]"),
    (JANUARY, "[orchestrator.sampling]\ntop_p = 0.9", "stands in [orchestrator.eval.sampling]", "only evals"),
    (JANUARY, '[orchestrator.buffer]\ntype = "online-difficulty"', "bad56a97e", "online_difficulty_filtering = true"),
    (JANUARY, "[trainer.model.experimental.lora]\nrank = 8", "17 Dec 2025", "Write trainer.model.lora instead"),
    ("8518c157c", "[trainer.model.lora]\nrank = 8", "17 Dec 2025", "Write trainer.model.experimental.lora instead"),
    (JANUARY, "[inference.model]\nmax_num_seqs = 64", "max_num_seqs", "argument of vLLM"),
    (JANUARY, "[inference]\nenable_prefix_caching = true", "between 8 Feb 2026 and 8 Aug 2026", "Take it out"),
    (JUNE, "[inference.model]\nmax_num_seqs = 64", "inference.vllm_extra.max_num_seqs", "vllm_extra"),
    (AUGUST, "[inference.model]\nname = 'a'\nmax_model_len = 4096", "inference.vllm", "name is called model"),
    (AUGUST, "[inference]\ngpu_memory_utilization = 0.5", "inference.vllm.gpu_memory_utilization", "Write"),
    (AUGUST, "[orchestrator]\nmax_async_level = 2", "e792f9cf8 of 25 May 2026", "max_off_policy_steps"),
    (AUGUST, "[orchestrator]\nrollouts_per_example = 8", "orchestrator.group_size", "group_size"),
    (JANUARY, "[orchestrator]\ngroup_size = 8", "22 May 2026", "Write orchestrator.rollouts_per_example instead"),
    (AUGUST, "[wandb]\nproject = 'a'", "9975d8868", "Write monitors.wandb instead"),
    (JANUARY, "[monitors.wandb]\nproject = 'a'", "monitors.wandb is wandb", "Write wandb"),
    (AUGUST, "[orchestrator.client]\nbase_url = 'a'", "27 Jun 2026", "Write orchestrator.model.client instead"),
    (AUGUST, "[[orchestrator.env]]\nid = 'a'", "orchestrator.train.source", "taskset"),
    (AUGUST, "[orchestrator.sampling]\nmax_tokens = 10", "orchestrator.train.sampling", "Write"),
    (AUGUST, "[orchestrator.train.sampling]\nmax_tokens = 10", "30 Jul 2026", "max_completion_tokens"),
    (JUNE, "inference_gpu_ids = [0]", "deployment.num_infer_gpus", "became their number"),
    (
        JANUARY,
        "[deployment]\nnum_train_gpus = 1",
        "deployment.num_train_gpus is trainer_gpu_ids",
        "Write trainer_gpu_ids",
    ),
    (JUNE, "clean = true", "82652c739", "Take it out"),
    (JANUARY, "clean_output_dir = true", "knew it from 24 Feb 2026 until e26b50503", "Take it out"),
    (JANUARY, "[ckpt]\nkeep = 3", "ckpt.keep_last", "keep_last"),
    (JANUARY, "max_step = 10", "did you mean max_steps?", "max_steps"),
    (JANUARY, "[orchestrator]\nbatchsize = 10", "did you mean batch_size?", "batch_size"),
    (JANUARY, "[no_such_thing]\nx = 1", "no_such_thing is not known", "Take it out"),
    (JANUARY, "max-steps = 10", "is written with hyphens", "max_steps"),
    (JANUARY, "[trainer.optim]\nlearning_rate = 1e-5", "dropped without a word", "Write it as: lr"),
    (JANUARY, "[trainer.optim]\nweight-decay = 0.0", "hyphens, which only the command line takes", "weight_decay"),
    (JANUARY, "[[orchestrator.env]]\nid = 'a'\n[[orchestrator.env]]\nidd = 'b'", "did you mean id?", "id"),
]


@pytest.mark.parametrize(("commit", "text", "says", "helps"), UNKNOWN, ids=[f"{one[0]}-{one[1]}" for one in UNKNOWN])
def test_an_unknown_key_is_named_with_the_name_or_place_that_is_known(
    commit: str, text: str, says: str, helps: str
) -> None:
    (finding,) = _found(_subject("# a comment\n" + text, commit))
    assert says in finding.sentence
    assert helps in finding.remedy
    # A table that is not known is named at its header, and all else at its own line, which is the last one here.
    name = finding.where.key
    table = any(line.strip("[]").split(".")[: name.count(".") + 1] == name.split(".") for line in text.split("\n"))
    assert finding.where.line == (2 if table else 1 + len(text.split("\n")))
    dropped = "dropped without a word" in finding.sentence
    hyphens = "hyphens" in finding.sentence
    assert finding.id == ("hyphens" if hyphens else "ignored-key" if dropped else "unknown-key")
    assert finding.weight == ("warning" if dropped else "error")


def test_of_a_version_that_is_not_installed_only_what_all_versions_refuse_is_certain() -> None:
    (finding,) = _found(_subject("[orchestrator]\ngroup_size = 8", exact=False))
    assert finding.weight == "warning"
    assert "prime-rl 5ad6f62fc of 5 Jan 2026" in finding.sentence
    for text in ("max_step = 10", "[orchestrator.sampling]\ntop_p = 0.9", "[trainer.model]\nac = 'selective'"):
        (finding,) = _found(_subject(text, exact=False))
        assert finding.weight == "error", text
    # Two versions of December 2025 dropped the first without a word; what is right in one version is certain in none.
    for text in ("[trainer.weight_broadcast]\nno_such_key = 1", "[[orchestrator.environment]]\nid = 'a'"):
        assert [one.weight for one in _found(_subject(text, exact=False))] == ["warning"], text


def test_a_key_with_hyphens_is_a_warning_where_the_version_is_guessed() -> None:
    (finding,) = _found(_subject("[orchestrator]\nbatch-size = 8", exact=False))
    assert (finding.id, finding.weight) == ("hyphens", "warning")


def test_the_line_is_that_of_the_key_also_in_the_second_table_of_a_list() -> None:
    (finding,) = _found(_subject("[[orchestrator.env]]\nid = 'a'\n\n[[orchestrator.env]]\nid = 'b'\nidd = 'c'\n"))
    assert (finding.where.line, finding.where.key) == (6, "orchestrator.env.idd")


def test_a_file_for_one_part_is_read_below_that_part() -> None:
    (finding,) = _found(_subject("batch_size = 1\nmax_step = 3\n", table="orchestrator"))
    assert (finding.where.line, finding.where.key) == (2, "orchestrator.max_step")
    assert finding.edits[0].lines == ("max_steps = 3",)


MOVED = [
    ("8518c157c", "", "[trainer.model.lora]\nrank = 8", ["[trainer.model.experimental.lora]"]),
    (JANUARY, "", "[trainer.model.experimental.lora] # adapters\nrank = 8", ["[trainer.model.lora] # adapters"]),
    (JANUARY, "trainer", "[model.experimental.lora]\nrank = 8", ["[model.lora]"]),
    (JANUARY, "", "[trainer.model.experimental]\nlora = { rank = 8 }", []),
    (JANUARY, "", "[trainer.model.experimental]\nlora.rank = 8", []),
    (JANUARY, "", "[trainer.model.lora]\nalpha = 1\n[trainer.model.experimental.lora]\nrank = 8", []),
    (JANUARY, "", "[trainer.model.experimental.lora]\nrank = 8\n[trainer.model.experimental.lora.a]\nb = 1", []),
]


@pytest.mark.parametrize(("commit", "table", "text", "becomes"), MOVED, ids=[one[2] for one in MOVED])
def test_the_header_of_a_table_that_has_another_name_now(
    commit: str, table: str, text: str, becomes: list[str]
) -> None:
    """It is changed where that is all: what stands elsewhere on the line, or has to be joined, is left to a person."""
    (finding,) = [one for one in _found(_subject(text, commit, table=table)) if one.id == "unknown-key"]
    assert "lora" in finding.remedy
    assert [line for edit in finding.edits for line in edit.lines] == becomes


def _of_two_types(*, ignores: bool) -> Schema:
    number, text = Field(frozenset({"int"})), Field(frozenset({"str"}), choices=("constant", "linear"))
    constant = Field(frozenset({"table"}), {"type": text}, ignores=ignores)
    linear = Field(frozenset({"table"}), {"type": text, "warmup_steps": number}, ignores=ignores)
    both = replace(linear, variants={"constant": constant, "linear": linear})
    return Schema({"scheduler": both})


@pytest.mark.parametrize("ignores", [True, False])
def test_a_key_that_its_table_has_only_with_another_type(ignores: bool) -> None:
    text = 'scheduler.warmup_steps = 3\nscheduler.type = "constant"\n'
    (finding,) = _found(replace(_subject(text), schema=_of_two_types(ignores=ignores)))
    assert (finding.id, finding.where.line) == ("ignored-key" if ignores else "unknown-key", 1)
    assert 'is not for type = "constant" of [scheduler]: it is for "linear"' in finding.sentence
    for sound in (text.replace("constant", "linear"), text.split("\n")[0]):
        assert _found(replace(_subject(sound), schema=_of_two_types(ignores=ignores))) == []


def test_nothing_is_said_of_a_table_that_takes_anything() -> None:
    text = "[[orchestrator.env]]\nid = 'a'\n[orchestrator.env.args]\nanything = { at = 'all' }\n"
    assert _found(_subject(text)) == []
    assert _found(_subject("[inference.vllm]\nmax_num_seqs = 4\nfoo_bar = 1\n", AUGUST)) == []


def test_without_a_schema_nothing_is_said_of_keys() -> None:
    assert _found(replace(_subject("max_step = 3\nac = 4"), schema=None)) == []


VALUES = [
    (JANUARY, "[trainer.model]\nac = 'selective'", "a table", "ac = { freq = 1 }"),
    (JUNE, "[trainer.model]\nac = 'selective'", "a table", 'ac = { mode = "selective" }'),
    (JANUARY, "[trainer.model]\ncompile = true", "a table", "compile = {}"),
    (JANUARY, "[trainer.model]\ncompile = false", "a table", 'compile = "None"'),
    (JANUARY, "[trainer.model]\nseq_len = 'long'", "a whole number", None),
    (JANUARY, "[trainer.model]\nseq_len = 4096.5", "a whole number", None),
    (JANUARY, "[orchestrator]\nbatch_size = [128]", "a whole number", "batch_size = 128"),
    (JANUARY, "[trainer.model.lora]\ntarget_modules = 'q_proj'", "a list", 'target_modules = ["q_proj"]'),
    (JANUARY, "[trainer.model.lora]\ntarget_modules = 'q, k'  # both", "a list", 'target_modules = ["q", "k"]  # both'),
    (JANUARY, "[model]\nname = 8", "text", 'name = "8"'),
    (JANUARY, "inference_gpu_ids = 0", "a list of whole numbers", "inference_gpu_ids = [0]"),
    (JANUARY, "inference_gpu_ids = ['cuda:0']", "a list of whole numbers", None),
    (JANUARY, "inference_gpu_ids = [0.5]", "a list of whole numbers", None),
    (JANUARY, "inference_gpu_ids = [[0]]", "a list of whole numbers", "inference_gpu_ids = [0]"),
    (JANUARY, "[trainer.model.lora]\ntarget_modules = [1, 2]", "a list of texts", 'target_modules = ["1", "2"]'),
    (JANUARY, "[trainer.model]\nseq_len = inf", "a whole number", None),
    (JANUARY, "ckpt = 5", "a table", None),
    (JANUARY, "[orchestrator.env]\nid = 'a'", "a list of tables", "[[orchestrator.env]]"),
    (JANUARY, "trainer = 3", "a table", None),
    (JANUARY, "[trainer.optim]\ntype = 'adam'", '"sgd", "adamw" and "muon"', 'type = "adamw"'),
    (JANUARY, "[trainer.model]\nattn = 'flash-attention-2'", "flash_attention_2", 'attn = "flash_attention_2"'),
    (JANUARY, "[trainer.scheduler]\ntype = 'zigzag'", '"constant"', None),
    (JANUARY, "[trainer.optim]\ntype = 'adam'  # muon didn't help", "adamw", 'type = "adamw"  # muon didn\'t help'),
    (JANUARY, "[trainer.optim]\ntype = 'adam'#\"x", "adamw", 'type = "adamw"#"x'),
    (JANUARY, "[model]\nname = [\"a # b\"] # 'c' # d", "text", "name = \"a # b\" # 'c' # d"),
    (JANUARY, "[trainer.optim]\ntype = ['adam',\n ]", "adamw", None),  # its last bracket would stay
]


@pytest.mark.parametrize(("commit", "text", "says", "becomes"), VALUES, ids=[f"{one[0]}-{one[1]}" for one in VALUES])
def test_a_value_of_another_kind(commit: str, text: str, says: str, becomes: str | None) -> None:
    (finding,) = [one for one in _found(_subject(text, commit)) if one.id.startswith("wrong")]
    assert finding.id == ("wrong-choice" if "is none of" in finding.sentence else "wrong-kind")
    assert says in finding.sentence
    assert finding.weight == "error"
    assert [line for edit in finding.edits for line in edit.lines] == ([] if becomes is None else [becomes])
    assert finding.where.line == (1 if "\n" not in text or says == "a list of tables" else 2)


SOUND_VALUES = [
    "[trainer.optim]\nlr = '1e-5'",  # pydantic reads a number in text
    "[trainer.model]\nseq_len = 4096.0",
    "[trainer.model]\nseq_len = '4096'",
    "[trainer.model]\nac = 'None'",
    "[trainer.model]\nac = {}",
    "inference_gpu_ids = ['0']",  # pydantic reads a number in text there, too
    "inference_gpu_ids = [1.0]",
    "[trainer.optim]\nlr = '0'",
    "[trainer.optim]\nmax_norm = inf",
    "clean = 'no'",
    "clean = 0",
    "[trainer.weight_broadcast]\ntype = 'filesystem'",  # the default transport drops it
    "[inference]\ngpu_memory_utilization = 1",
]


@pytest.mark.parametrize("text", SOUND_VALUES)
def test_what_pydantic_converts_is_no_mistake(text: str) -> None:
    assert _found(_subject(text)) == []


@pytest.mark.parametrize(
    ("kinds", "value", "fitting"),
    [
        ("int", True, True), ("int", 3.0, True), ("int", 3.5, False), ("int", "3", True), ("int", "3.0", True),
        ("int", "three", False), ("int", [], False), ("int", {}, False), ("float", 3, True), ("float", "inf", True),
        ("float", "x", False), ("bool", 1, True), ("bool", 2, False), ("bool", "Yes", True), ("bool", "maybe", False),
        ("str", 3, False), ("str", True, False), ("list", "a", False), ("table", [], False), ("any", {}, True),
        ("int none", "None", True), ("int", "None", False), ("list", [1], True), ("int", float("nan"), False),
    ],
)  # fmt: skip
def test_the_conversions_are_those_of_pydantic(kinds: str, value: object, fitting: bool) -> None:
    """Compared with pydantic 2.14 itself, but for "None", of which each class of prime-rl decides."""
    assert fits(Field(frozenset(kinds.split())), value) is fitting


@pytest.mark.parametrize(
    ("bounds", "value", "told"),
    [
        ({"ge": 1}, 0, "1 or more"), ({"ge": 1}, 1, ""), ({"gt": 0}, 0, "more than 0"), ({"gt": 0}, 0.1, ""),
        ({"ge": 0, "lt": 1}, 1, "0 or more and less than 1"), ({"le": 65535}, 70000, "65535 or less"),
        ({"ge": 1}, "0", "1 or more"), ({"ge": 1}, True, ""), ({"ge": 0}, float("nan"), "0 or more"),
        ({"ge": 0}, float("inf"), ""), ({"ge": 1}, "many", ""), ({"ge": 1}, [0], ""), ({"ge": 1}, "None", ""),
    ],
)  # fmt: skip
def test_the_bounds_are_those_of_pydantic(bounds: dict[str, float], value: object, told: str) -> None:
    """Compared with pydantic 2.14 itself, nan as well, which it refuses as soon as there is a bound."""
    assert beyond(Field(frozenset({"int", "float", "none"}), bounds=tuple(bounds.items())), value) == told


@pytest.mark.parametrize(
    ("commit", "text", "says"),
    [
        (JANUARY, "[orchestrator]\nseq_len = 2048\nnum_train_workers = 0", "1 or more"),
        (JANUARY, "[trainer.optim]\nx = 1\nlr = -1e-5", "0 or more"),
        (JANUARY, "[trainer.optim]\nx = 1\nlr = nan", "0 or more"),
        (AUGUST, "[orchestrator]\nx = 1\nenv_server_base_port = 70000", "65535 or less"),
    ],
)
def test_a_number_beyond_what_is_taken(commit: str, text: str, says: str) -> None:
    (finding,) = [one for one in _found(_subject(text, commit)) if one.id == "out-of-bounds"]
    assert says in finding.sentence
    assert (finding.where.line, finding.weight) == (3, "error")


def test_a_number_that_is_none_where_any_is_taken() -> None:
    (finding,) = _found(_subject("[inference]\ngpu_memory_utilization = nan", JANUARY))
    assert (finding.id, finding.weight, finding.where.line) == ("not-a-number", "warning", 2)


def test_of_a_version_that_is_near_a_bound_is_certain_where_all_versions_have_it() -> None:
    near = replace(_schema(JANUARY), exact=False)
    subject = replace(_subject("[orchestrator]\nbatch_size = 0\noversampling_factor = 0.5"), schema=near)
    weights = {one.where.key: one.weight for one in _found(subject)}
    assert weights == {"orchestrator.batch_size": "error", "orchestrator.oversampling_factor": "warning"}


def test_what_is_wanted_is_said_in_words() -> None:
    assert describe_field(Field(frozenset({"int", "none"}))) == 'a whole number or "None"'
    assert describe_field(Field(frozenset({"int", "float"}))) == "a number"
    assert describe_field(Field(frozenset({"int", "str"}), choices=("auto",))) == 'a whole number or "auto"'
    assert correct_value("x", Field(frozenset({"table"}), {"y": Field(frozenset({"str"}), required=True)})) is None


# ---------------------------------------------------------------- flags, and what is missing


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (["--orchestrator.batch-size", "0"], "out-of-bounds"),
        (["--orchestrator.batch-size", "many"], "wrong-kind"),
        (["--orchestrator.batch-size", "8"], ""),
        (["--orchestrator.batch-size=None"], ""),
        (["--inference-gpu-ids", "0,1"], ""),  # lists are read in several ways
    ],
)
def test_a_number_in_a_flag(args: list[str], rule: str, tmp_path: Path) -> None:
    subject = replace(_subject("[orchestrator]\nbatch_size = 0"), args=args)  # the file's own does not count any more
    found = [one for check in (keys.wrong_values, job_args.wrong_flags) for one in check(subject)]
    assert [one.id for one in found if one.where.key == "job.args"] == ([rule] if rule else [])
    assert [one for one in found if one.where.key != "job.args"] == [
        one for one in found if "--inference-gpu-ids" in args and one.where.key == "orchestrator.batch_size"
    ]


def test_what_the_supervisor_says_itself_is_not_looked_at(tmp_path: Path) -> None:
    run, path, _ = _run_file("", tmp_path)
    subject = _subject("[trainer.ckpt]\ninterval = 0\n[trainer.model.lora]\nrank = 0")
    found = [one.where.key for one in keys.wrong_values(replace(subject, run_file=run, run_path=path))]
    assert found == ["trainer.model.lora.rank"]
    assert [one.where.key for one in keys.wrong_values(subject)] == ["trainer.ckpt.interval", *found]


def _run_file(
    text: str, tmp_path: Path, args: Sequence[str] = (), config: str = "rl.toml"
) -> tuple[RunFile, Path, str]:
    run = f'[run]\nid = "a"\n\n[job]\nkind = "rl"\ndir = "{tmp_path}"\nconfig = {json.dumps(config)}\nargs = [\n'
    run += "".join(f"  {json.dumps(word)},\n" for word in args) + "]\n"
    path = tmp_path / "run.toml"
    path.write_text(run)
    job = {"kind": "rl", "dir": tmp_path, "config": [config], "args": list(args)}
    return RunFile.model_validate({"run": {"id": "a"}, "job": job}), path, run


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--max-steps", "3"], 0),
        (["--no-clean"], 0),
        (["--ckpt"], 0),
        (["--trainer.model.ac.freq", "1"], 0),
        (["--ckpt.keep", "3"], 9),
        (["--max-steps", "3", "--orchestrator.batchsize=4"], 11),
    ],
)
def test_a_flag_that_is_not_known(args: list[str], line: int, tmp_path: Path) -> None:
    run, path, text = _run_file("", tmp_path, args)
    subject = replace(_subject("", args=args), run_file=run, run_path=path, run_positions=key_positions(text))
    found = [one for one in _found(subject) if one.id == "unknown-flag"]
    assert [one.where.line for one in found] == ([line] if line else [])
    assert all(one.where.file == str(path) and one.weight == "error" for one in found)


@pytest.mark.parametrize(
    ("commit", "args", "config", "line"),
    [
        (JANUARY, ["@rl.toml"], "rl.toml", 9),
        (AUGUST, ["@rl.toml"], "rl.toml", 9),
        (JANUARY, ["--trainer", "@t.toml"], "rl.toml", 10),
        (AUGUST, ["--trainer", "@t.toml"], "rl.toml", 0),
        (AUGUST, ["@", "more.toml"], "rl.toml", 0),
        (AUGUST, [], "@rl.toml", 7),
        (AUGUST, [], "@ rl.toml", 7),
    ],
)
def test_an_at_sign_without_its_space(commit: str, args: list[str], config: str, line: int, tmp_path: Path) -> None:
    run, path, text = _run_file("", tmp_path, args, config)
    subject = replace(_subject("", commit, args=args), run_file=run, run_path=path, run_positions=key_positions(text))
    found = [one for one in _found(subject) if one.id == "at-sign"]
    assert [(one.where.file, one.where.line) for one in found] == ([(str(path), line)] if line else [])


def test_what_a_healthy_command_line_has_is_no_secret(tmp_path: Path) -> None:
    words = """--wandb.api-key-file /run/secrets/wandb --hf-token /run/secrets/hf_token_1 --token-dispatcher deepep_v2_a
    --tokenizer.name Qwen/Qwen3-0.6B-Base --max-tokens 8192000000000 --sampling.stop-token 151645151643
    --eos-token <|endoftext_1234|> --client.api-key EMPTY --api-key $VLLM_API_KEY_2025 --prompt-key question_2025_v1
    --client.api-key-var OPENAI_API_KEY_2 --hf-token --max-steps-1234567 --seed 1234567890 --x.password {run_id}
    --secret huggingface-secret --orchestrator.private=true --data.path=/data/token_12345678"""
    run, path, text = _run_file("", tmp_path, words.split())
    subject = replace(_subject(""), run_file=run, run_path=path, run_positions=key_positions(text))
    assert list(job_args.secret_words(subject)) == []


def test_a_key_that_has_no_default_is_wanted_where_its_table_stands() -> None:
    text = "[trainer.heartbeat]\n\n[orchestrator]\nbatch_size = 1\n"
    (finding,) = keys.missing_keys(_subject(text))
    assert (finding.id, finding.where.line, finding.where.key) == ("missing-key", 1, "trainer.heartbeat.url")
    (finding,) = keys.missing_keys(_subject("[trainer]\nmax_steps = 1\n"))
    assert finding.weight == "error"
    assert finding.sentence == "orchestrator is not set, and the installed prime-rl wants it."
    found = list(keys.missing_keys(_subject("max_steps = 1\n")))
    assert {one.weight for one in found} == {"warning"}  # a file that is laid over another one
    assert list(keys.missing_keys(_subject("[trainer]\n", exact=False))) == []
    alone = _subject("enforce_eager = true\n", table="inference")
    assert list(keys.missing_keys(alone)) == []  # the others have files of their own
    run = RunFile.model_validate({"run": {"id": "x"}, "job": {"dir": ".", "config": "infer.toml"}})
    found = list(keys.missing_keys(replace(alone, run_file=run)))
    assert {one.where.key for one in found} == {"trainer", "orchestrator"}  # which the run file does not name
    assert {one.weight for one in found} == {"error"}
    assert list(keys.missing_keys(_subject("[trainer]\n", args=["--orchestrator", "@", "o.toml"]))) == []


@pytest.mark.parametrize(
    ("text", "rule", "key"),
    [
        ("[slurm]\npartition = 'a'", "slurm", "slurm"),
        ("[deployment]\ntype = 'multi_node'", "multi-node", "deployment.type"),
        ("[inference.deployment]\ntype = 'disaggregated'", "multi-node", "inference.deployment.type"),
        ("[trainer]\nmax_concurrent_runs = 4", "multi-run", "trainer.max_concurrent_runs"),
    ],
)
def test_runs_of_more_than_this_pod(text: str, rule: str, key: str) -> None:
    found = list(keys.other_machines(_subject(text, JUNE)))
    assert [(one.id, one.where.key, one.weight) for one in found] == [(rule, key, "error")]
    assert found[0].where.line == (1 if key == "slurm" else 2)


@pytest.mark.parametrize(
    "text", ["[deployment]\ntype = 'single_node'", "[trainer]\nmax_concurrent_runs = 1", "slurm = 'None'"]
)
def test_runs_of_this_pod_alone(text: str) -> None:
    assert list(keys.other_machines(_subject(text, JUNE))) == []


# ---------------------------------------------------------------- the table of names


@pytest.mark.soak
def test_each_change_of_name_is_true_of_the_versions_before_and_after_it() -> None:
    known = eras.load_eras()
    for one in renames():
        old = [era.day for era in known if era.schema("rl").get(one.old)]
        new = [era.day for era in known if one.new and era.schema("rl").get(one.new)]
        assert old, one
        assert min(old) <= one.day, one
        assert not one.new or (new and max(new) >= one.day), one
        if not one.new:
            assert max(old) <= one.day or one.old == "clean", one


def test_names_are_followed_through_several_changes_and_both_ways() -> None:
    january, august = _schema(JANUARY), _schema(AUGUST)
    assert known_as("orchestrator.environment", january).path == "orchestrator.env"  # type: ignore[union-attr]
    assert known_as("orchestrator.environment", august).path == "orchestrator.train.source"  # type: ignore[union-attr]
    assert known_as("orchestrator.train.source", january).path == "orchestrator.env"  # type: ignore[union-attr]
    assert known_as("inference.parallel.tp", august).path == "inference.vllm.tensor_parallel_size"  # type: ignore[union-attr]
    assert known_as("trainer.wandb.project", august).path == "trainer.monitors.wandb.project"  # type: ignore[union-attr]
    assert known_as("wandb.project", _schema(AUGUST, "sft"), "sft").path == "monitors.wandb.project"  # type: ignore[union-attr]
    assert known_as("no.such.thing", august) is None
    assert find_removal("orchestrator.async_level").commit == "e792f9cf8"  # type: ignore[union-attr]
