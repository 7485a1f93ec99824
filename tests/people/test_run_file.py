"""The run file: what is right loads, and each mistake gets one sentence with file, line and key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError
from supervisor.config.settings import RunFile, load

GOOD = """\
[run]
id = "bs4-qwen3"
[job]
dir = "/workspace/prime-rl"
config = "rl.toml"
"""


def mistakes(tmp_path: Path, text: str | bytes) -> list[str]:
    path = tmp_path / "run.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [line.replace(f"{path}", "run.toml") for line in str(caught.value).splitlines()]


def test_a_short_file_loads_and_everything_else_has_a_default(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("\ufeff" + GOOD.replace("\n", "\r\n"))
    loaded = load(path)
    assert isinstance(loaded, RunFile)
    assert (loaded.run.id, loaded.job.config, loaded.store.keep_last) == ("bs4-qwen3", [Path("rl.toml")], 3)


def test_what_a_run_may_be_called_is_told_in_words(tmp_path: Path) -> None:
    [told] = mistakes(tmp_path, GOOD.replace('"bs4-qwen3"', '"-my run"'))
    takes = "takes letters, digits, '.', '_' and '-', up to 100; it begins with a letter or a digit."
    assert told == f"run.toml line 2: [run] id {takes}"


def test_recover_is_another_name_of_recovery_and_its_mistakes_are_told_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for written in ('[recover]\nmode = "observe"\n', '[recovery]\nmode = "observe"\n'):
        path.write_text(GOOD + written)
        assert load(path).recovery.mode == "observe"
    path.write_text('recover.mode = "observe"\n' + GOOD)
    assert load(path).recovery.mode == "observe"
    assert mistakes(tmp_path, GOOD + '[recover]\nmode = "watch"\nmax_restart = 2\n') == [
        'run.toml line 7: [recover] mode must be "act" or "observe", not the text "watch".',
        'run.toml line 8: [recover] has no setting "max_restart"; did you mean "max_restarts"?',
    ]
    assert mistakes(tmp_path, GOOD + '[recovery]\nbackoff = 5\n[recover]\nmode = "observe"\n') == [
        "run.toml line 8: [recover] and [recovery] are two names of one section: keep one of them."
    ]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
max_steps = 3
[run]
state_dir = "/x"
[job]
dir = "/workspace/prime-rl"
cofnig = "rl.toml"   # the word is wrong [not this]
config = "rl.toml"
checkpoint_interval = "10"
prune_above = 0.9
stop_grace_s = true
env.WANDB_API_KEY = "x"
[gpus]
inference = [
  0,
  -1,   # counted from zero
]
[grafics]
[api]
mode = 660
[disks]
[logging]
format = "prety"
[store]
url = "gs://bucket"
stall_s = inf
"""
    assert mistakes(tmp_path, text) == ["run.toml line 25: [store] stall_s must be a finite number, not inf."]
    env = "[job] env: WANDB_API_KEY looks like a secret, and secrets do not belong in the run file: set it in the "
    assert mistakes(tmp_path, text.replace("stall_s = inf", "")) == [
        "run.toml line 1: there is no section or setting max_steps; it belongs in [run].",
        (
            'run.toml line 2: [run] has no "id", which is required: Name of the run, the same on every pod: the folder '
            "in the store, the socket, W&B's run name."
        ),
        'run.toml line 6: [job] has no setting "cofnig"; did you mean "config"?',
        (
            'run.toml line 8: [job] checkpoint_interval must be a whole number, not the text "10"; leave the quotes '
            'away. Or: must be "auto", not the text "10".'
        ),
        'run.toml line 9: [job] has no setting "prune_above"; it belongs in [disk].',
        "run.toml line 10: [job] stop_grace_s must be a number, not true.",
        "run.toml line 11: " + env + "daemon's environment (or as a systemd credential) and name it in pass_env.",
        "run.toml line 15: [gpus] inference[1] must be greater than or equal to 0, not -1.",
        (
            "run.toml line 17: there is no section or setting grafics; the sections are "
            f"{', '.join(RunFile.model_fields)}."
        ),
        "run.toml line 19: [api] mode must be text in quotes, not 660; put it in quotes.",
        'run.toml line 20: there is no section [disks]; did you mean "disk"?',
        (
            'run.toml line 22: [logging] format must be "auto", "journal", "pretty" or "json", not the text "prety"; '
            'did you mean "pretty"?'
        ),
        "run.toml line 24: [store] url: 'gs://bucket' is none of b2://bucket[/prefix], s3://bucket[/prefix] and file:///folder.",
    ]


def test_an_s3_store_takes_an_endpoint_and_a_region_and_no_other_store_does(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    url, endpoint = 'url = "s3://my-bucket/runs"', 'endpoint = "https://minio.example:9000"\nregion = "eu-west-1"'
    path.write_text(f"{GOOD}[store]\n{url}\n{endpoint}\n")
    store = load(path).store
    assert (store.service, store.region) == ("https://minio.example:9000", "eu-west-1")
    path.write_text(f"{GOOD}[store]\n{url}\n")
    assert load(path).store.service is None
    for other in ('url = "b2://my-bucket"', 'url = "file:///data"'):
        [sentence] = mistakes(tmp_path, f"{GOOD}[store]\n{other}\n{endpoint}\n")
        assert sentence.endswith("which works only with s3:// stores.")


@pytest.mark.parametrize("url", ['url = "s3://my-bucket/runs"', 'url = "file:///store"', ""])
def test_a_limit_of_the_rate_is_refused_where_nothing_would_heed_it(tmp_path: Path, url: str) -> None:
    [sentence] = mistakes(tmp_path, f"{GOOD}[store]\n{url}\nlimit_mbit = 100\n")
    assert sentence.endswith("`limit_mbit`, which works only with b2:// stores.")
    path = tmp_path / "b2.toml"
    path.write_text(f'{GOOD}[store]\nurl = "b2://my-bucket/runs"\nlimit_mbit = 100\n')
    assert load(path).store.limit_mbit == 100


def test_what_a_whole_section_lacks_names_the_sections_line(tmp_path: Path) -> None:
    assert mistakes(tmp_path, '[run]\nid = "x"\n\n[job]\nkind = "rl"\n') == [
        'run.toml line 4: [job]: kind = "rl" needs `dir`, the folder of the installed trainer.'
    ]
    assert mistakes(tmp_path, '[run]\nid = "x"\n') == [
        "run.toml: the section [job] is missing, and it is required: The trainer and how it is started."
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("id = bs4-qwen3", 'text needs quotes: id = "bs4-qwen3".'),
        ("id = /x/y # note", 'text needs quotes: id = "/x/y".'),
        ('id: "x"', "TOML separates a key from its value with =, not with a colon."),
        ("id = “x”", 'there are typographic quotes, TOML wants plain ones: "text".'),
        ("id = ", "id has no value."),
        ("max_steps = None", "TOML has no None: leave the line out."),
        ("ok = True", "TOML writes true."),
        ('id = "x', "a quote is missing."),
        ('id = "C:\\path"', 'a backslash in "..." starts an escape: double it, or use single quotes.'),
        ('id = "a"\nid = "b"', "the same key or table is there twice: keep one."),
        ("[job", "the closing bracket is missing."),
        ("id", "id has no value."),
    ],
)
def test_what_is_not_toml_is_told_with_its_place_and_the_usual_cause(tmp_path: Path, line: str, told: str) -> None:
    [sentence] = mistakes(tmp_path, "# a run file\n[run]\n" + line + "\n")
    assert sentence.startswith(("run.toml line 3, column ", "run.toml line 4, column "))
    assert ": this is not TOML: " in sentence
    assert sentence.endswith("; " + told)


def test_files_that_are_no_run_file_at_all(tmp_path: Path) -> None:
    [sentence] = mistakes(tmp_path, b'[run]\nid = "caf\xe9"\n')
    assert sentence == "run.toml line 2: byte 0xe9 is not UTF-8, but TOML is: save the file as UTF-8."
    [sentence] = mistakes(tmp_path, "x" * (1 << 20) + "x")
    assert sentence == "run.toml has more than 1 MiB: that is not a run file."
    assert "run.toml" in mistakes(tmp_path, "a = " + "[" * 100_000)[0]
    assert "run.toml" in mistakes(tmp_path, "a = " + "9" * 100_000)[0]
    assert len(mistakes(tmp_path, "[run]\n" + "".join(f"key{n} = 1\n" for n in range(500)))) == 21


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bs4-qwen3.toml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"bs4-qwen.toml does not exist \(did you mean bs4-qwen3.toml\?\): write one"):
        load(tmp_path / "bs4-qwen.toml")
    with pytest.raises(ConfigError, match="is a folder, and a run file is wanted"):
        load(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="is not a plain file"):
        load(tmp_path / "fifo")
    with pytest.raises(ConfigError, match=r"does not exist|cannot be read"):
        load(tmp_path / "bs4-qwen3.toml" / "below")
    if os.geteuid() != 0:
        (tmp_path / "bs4-qwen3.toml").chmod(0)
        with pytest.raises(ConfigError, match="may not be read by user id"):
            load(tmp_path / "bs4-qwen3.toml")


def test_the_name_of_a_run_is_answered_with_its_run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_SUPERVISOR_ETC", str(tmp_path))
    (tmp_path / "night.toml").write_text(GOOD)
    for named in ("night", "night.toml"):
        with pytest.raises(ConfigError, match=rf"^{named} does not exist \(did you mean {tmp_path}/night.toml\?\)"):
            load(Path(named))


def test_the_trainers_own_file_gets_one_sentence_with_the_command_that_makes_a_run_file(tmp_path: Path) -> None:
    for text in ('max_steps = 10\n[model]\nname = "m"\n[ckpt]\n', '[run]\nname = "n"\n[trainer]\n'):
        [sentence] = mistakes(tmp_path, text)
        assert sentence.startswith("run.toml is no run file: it looks like the trainer's own configuration.")
        assert sentence.endswith("rl-supervisor init --from 'uv run rl @ run.toml' -o my-run.toml")
    # What is meant for us is told of what it lacks.
    for text in ('[run]\nid = "n"\n[model]\n', '[run]\n[jobs]\ndir = "/x"\n', "[store]\n"):
        assert any("[job] is missing" in sentence for sentence in mistakes(tmp_path, text))
    assert mistakes(tmp_path, "\n") == [
        "run.toml is empty: delete it, and write one with `rl-supervisor init -o run.toml`."
    ]


def test_a_date_is_no_setting(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "[run]\nid = 2026-01-06\n") == [
        "run.toml line 2: [run] id is a date or a time, and no setting is one: put it in quotes if it is text."
    ]


def test_an_environment_variable_that_only_sounds_like_a_secret_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(GOOD + '[job.env]\nTOKENIZERS_PARALLELISM = "false"\nVLLM_MAX_TOKENS = "4096"\n')
    assert load(path).job.env["TOKENIZERS_PARALLELISM"] == "false"
