"""`rl-supervisor check` as people run it, on run files and on prime-rl's own: text, JSON, patch and exit codes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.base import secrets
from supervisor.cli import check, findings, main
from supervisor.cli.render import PLAIN
from supervisor.preflight import Finding, Where, rules
from supervisor.preflight.site import Site
from tests.primerl.eras import ERAS, write_checkout

CONFIG = """\
max_steps = 40

[model]
name = Qwen/Qwen3-0.6B

[trainer]
[orchestrator]
batch_size = 15
rollouts_per_example = 4

[inference]
"""
RUN = """\
[run]
id = "demo"
state_dir = "{here}/state"
[job]
dir = "{here}/prime-rl"
config = "{here}/rl.toml"
"""
GROUPS, QUOTES = "batch-of-whole-groups", "unquoted-text"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with two mistakes, on a pod of which nothing is known."""
    write_checkout(tmp_path / "prime-rl", ERAS["be0e3d131"])
    (tmp_path / "rl.toml").write_text(CONFIG)
    (tmp_path / "run.toml").write_text(RUN.format(here=tmp_path))
    monkeypatch.setattr("supervisor.preflight.look.site", lambda run, job, environ, **given: Site(environ=environ))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["check", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def in_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return dict(json.loads(told(capsys, *words, "--json")[1]))


def errors(report: dict[str, Any]) -> list[tuple[str, int]]:
    return [(one["id"], one["line"]) for one in report["findings"] if one["severity"] == "error"]


def test_a_secret_of_several_lines_that_are_no_toml_is_shown_nowhere(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = "zG7pQ2vN8kLm4RtY"
    text = f"""\
[trainer]
api_key = \"\"\"{core}1
more {core}2
{core}3=
[orchestrator]
batch_size = 3
api_keys = [
  "{core}4"
  "{core}5",
]
eos_token = "<|end_of_text_1|>
stop_token_ids = [12345678901 2]
"""
    (here / "rl.toml").write_text(text)
    run = '[run]\nid = "a"\n[job]\nkind = "command"\n[job.plain]\nstart = ["a"]\nresume = ["a"]\n'
    (here / "run.toml").write_text(f"{run}[job.env]\n{text.partition('[orch')[0].partition('[trainer]')[2]}")
    for words in (["rl.toml"], ["rl.toml", "--json"], ["rl.toml", "--fix"], ["run.toml"]):
        monkeypatch.setattr(secrets, "_known", secrets.NOTHING)  # what is masked once stays so
        secrets._short.cache_clear()
        said = "".join(map(str, told(capsys, *words)))
        assert "toml-syntax" in said and core not in said, said
        if words == ["rl.toml"]:
            assert "<|end_of_text_1|>" in said and "stop_token_ids = " in said, said


def test_each_error_is_said_with_its_place_its_reason_and_what_to_do_and_the_summary_is_below(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = told(capsys, "run.toml")
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("run.toml cannot be started: 2 errors")
    at = lines.index(f"error  {QUOTES}")
    assert lines[at - 1 : at + 5] == [
        "",
        f"error  {QUOTES}",
        "  rl.toml:4 model.name",
        *lines[at + 2 : at + 3],
        f"  Why: {rules()[QUOTES].why}",
        '  Do:  Write it as: name = "Qwen/Qwen3-0.6B"',
    ]
    assert lines.index(f"error  {GROUPS}") > at
    assert lines.index("  run        demo") > lines.index(f"error  {GROUPS}")
    assert lines[-2:] == [
        "Show what would mend it: rl-supervisor check run.toml --fix",
        f"Explain one:             rl-supervisor check --explain {QUOTES}",
    ], "nothing starts from what is no TOML, whatever is overruled"


def test_what_to_type_next_can_be_pasted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rl.toml").write_text(CONFIG.replace("= Qwen/Qwen3-0.6B", '= "Qwen/Qwen3-0.6B"'))
    _, out, _ = told(capsys, "run.toml")
    assert out.splitlines()[-2:] == [
        f"Start anyway:            rl-supervisor run run.toml --overrule {GROUPS}",
        f'  or for good:           overrule = ["{GROUPS}"] in [check] of the run file',
    ]
    (here / "rl.toml").write_text(CONFIG.replace("= Qwen/Qwen3-0.6B", '= "Qwen/Qwen3-0.6B"') + "[slurm]\n")
    assert "Start anyway" not in told(capsys, "run.toml")[1], "the supervisor starts no such run"
    (here / "my rl.toml").write_text(CONFIG)
    _, out, _ = told(capsys, "my rl.toml", "--as-of", "2026-01-06")
    assert "rl-supervisor check 'my rl.toml' --as-of 2026-01-06 --fix\n" in out


def test_why_is_said_once_for_the_same_mistake(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rl.toml").write_text("[model]\nnam = 'x'\nnamme = 'y'\n[ckpt]\ninterval = 5\n")
    _, out, _ = told(capsys, "rl.toml", "--as-of", "2026-01-06")
    assert out.count("error  unknown-key") == 2
    assert out.count(rules()["unknown-key"].why) == 1


def test_as_json_each_finding_has_all_that_is_known_of_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = in_json(capsys, "run.toml")
    assert (report["ok"], report["run"]) == (False, "demo")
    assert errors(report) == [(QUOTES, 4), (GROUPS, 8)]
    one = next(one for one in report["findings"] if one["id"] == GROUPS)
    assert set(one) == {
        *("id", "severity", "file", "line", "key", "sentence", "why", "remedy", "source", "fixable", "overruled"),
    }
    assert (one["file"], one["key"], one["overruled"]) == (f"{here}/rl.toml", "orchestrator.batch_size", False)
    assert report["problems"] == [
        f"{found['file']} line {found['line']}: {found['sentence']}"
        for found in report["findings"]
        if found["severity"] == "error"
    ]


def test_brief_is_one_line_each(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "run.toml", "--brief")
    assert [line.split("  ")[:2] for line in out.splitlines()[1:3]] == [["error", QUOTES], ["error", GROUPS]]
    assert "rl.toml:8 orchestrator.batch_size: " in out
    assert "state      " not in out


def test_the_exit_code_goes_by_the_worst_that_is_not_overruled(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rl.toml").write_text(CONFIG.replace("= Qwen/Qwen3-0.6B", '= "Qwen/Qwen3-0.6B"'))
    assert told(capsys, "run.toml")[0] == 1
    code, out, _ = told(capsys, "run.toml", "--overrule", GROUPS)
    assert code == 0
    assert out.startswith("run.toml can be started")
    assert f"overruled  {GROUPS}\n" in out
    report = in_json(capsys, "run.toml", "--overrule", GROUPS)
    assert (report["ok"], report["problems"]) == (True, [])
    (here / "run.toml").write_text(RUN.format(here=here) + f'[check]\noverrule = ["{GROUPS}"]\n')
    assert told(capsys, "run.toml")[0] == 0


@pytest.mark.parametrize(("severity", "code"), [("note", 0), ("warning", 3)])
def test_strict_minds_warnings_and_no_notes(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, severity: Any, code: int
) -> None:
    monkeypatch.setattr(check, "examine", lambda subject: [Finding("no-gpu", "There is none.", severity=severity)])
    assert told(capsys, "run.toml", "--strict")[0] == code
    assert told(capsys, "run.toml")[0] == 0


def test_what_a_finding_means_is_explained_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "--explain", GROUPS)
    rule = rules()[GROUPS]
    assert (code, out.splitlines()[0]) == (0, f"{GROUPS} (error): {rule.title}.")
    assert rule.why in out and rule.remedy in out and rule.source in out
    code, _, err = told(capsys, "--explain", "batch-of-whole-group")
    assert (code, "did you mean batch-of-whole-groups" in err) == (2, True)


@pytest.mark.parametrize("words", [[], ["run.toml", "--overrule", "zzz"], ["run.toml", "--write"]])
def test_wrong_usage_ends_with_two(here: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert told(capsys, *words)[0] == 2
    assert main.main(["run", "run.toml", "--overrule", "zzz"]) == 2


def test_a_day_that_is_none_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        told(capsys, "run.toml", "--as-of", "January")
    assert ended.value.code == 2
    assert "a day is wanted, such as 2026-01-06" in capsys.readouterr().err


# ---------------------------------------------------------------- prime-rl's own files


def test_a_configuration_of_prime_rl_is_checked_as_such(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "rl.toml", "--job", "prime-rl")
    assert code == 1
    assert out.splitlines()[0].startswith("rl.toml: 2 errors")
    assert "rl.toml:8 orchestrator.batch_size" in out
    assert "  job        prime-rl between 31 Dec 2025 and 24 Feb 2026\n" in out
    assert "overrule" not in out, "there is no run file to write it in"
    _, out, _ = told(capsys, "rl.toml", "--as-of", "2026-08-20")
    assert "  job        prime-rl from 13 Aug 2026 on" in out
    assert ", as of the day that was named" in out


def test_a_folder_without_prime_rl_is_told_in_the_words_of_the_command_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("nowhere", "."):
        _, out, _ = told(capsys, "rl.toml", "--job", folder)
        finding = out[out.index("error  prime-rl-not-found") :]
        assert f"  --job {folder}: there is no " in finding
        assert "  Do:  Name a checkout of prime-rl with --job DIR" in finding


def test_the_three_files_are_checked_together(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "t.toml").write_text("[optim]\nlr = 1e-5\n[ckpt]\ninterval = 5\n")
    (here / "o.toml").write_text("batch_size = 15\nrollouts_per_example = 4\n[ckpt]\ninterval = 5\n")
    (here / "i.toml").write_text("[server]\nport = 8000\n")
    report = in_json(capsys, "i.toml", "o.toml", "t.toml", "--as-of", "2026-01-06")
    assert errors(report) == [(GROUPS, 1)]
    assert report["findings"][0]["file"] == "o.toml"


def test_a_sound_configuration_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rl.toml").write_text(
        CONFIG.replace("= Qwen/Qwen3-0.6B", '= "Qwen/Qwen3-0.6B"').replace("15", "16") + "[ckpt]\ninterval = 5\n"
    )
    code, out, _ = told(capsys, "rl.toml", "--job", "prime-rl")
    assert code == 0
    assert out.startswith(("rl.toml: no errors, ", "rl.toml: nothing wrong was found."))
    assert "\nerror" not in out


# ---------------------------------------------------------------- the patch


def test_fix_prints_a_patch_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "run.toml", "--fix")
    assert code == 1
    assert out.splitlines()[:2] == [f"--- {here}/rl.toml", f"+++ {here}/rl.toml"]
    assert '-name = Qwen/Qwen3-0.6B\n+name = "Qwen/Qwen3-0.6B"\n' in out
    assert f"Mended by this patch: {QUOTES} (line 4)" in err
    assert f"A person has to decide:\n  error  {GROUPS}  rl.toml:8 " in err
    assert err.endswith("Nothing is written yet: rl-supervisor check run.toml --fix --write\n")
    assert (here / "rl.toml").read_text() == CONFIG


def test_fix_and_write_put_it_in_place_keep_the_old_text_and_check_again(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(capsys, "run.toml", "--fix", "--write")
    assert code == 1, "what a person has to decide is still to be decided"
    assert f"{here}/rl.toml is written; its former text is {here}/rl.toml.orig" in err
    assert (here / "rl.toml.orig").read_text() == CONFIG
    assert 'name = "Qwen/Qwen3-0.6B"' in (here / "rl.toml").read_text()
    report = out[out.index("run.toml cannot be started") :]
    assert QUOTES not in report and GROUPS in report


def test_where_nothing_is_certain_the_patch_is_empty(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rl.toml").write_text(CONFIG.replace("= Qwen/Qwen3-0.6B", '= "Qwen/Qwen3-0.6B"') + "[ckpt]\ninterval = 5\n")
    _, out, err = told(capsys, "run.toml", "--fix")
    assert out == ""
    assert "No finding has a remedy that is certain enough to be a patch." in err
    _, _, err = told(capsys, "nowhere.toml", "--fix")
    assert "nowhere.toml does not exist" in err, "what keeps the check from looking is said here, too"


# ---------------------------------------------------------------- for a terminal


def test_on_a_terminal_lines_are_no_longer_than_it_is_wide() -> None:
    sentence = "batch_size = 15 is no multiple of rollouts_per_example = 4, " * 4
    one = Finding(GROUPS, sentence.strip(", ") + ".", Where("rl.toml", 8, "orchestrator.batch_size"))
    lines = findings.lines([one], paint=PLAIN, columns=80)
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("  batch_size") for line in lines) == 1
    assert [line for line in lines if line.startswith(("  Why: ", "       "))]


def test_a_place_is_named_from_here_where_that_is_shorter(here: Path) -> None:
    (here / "configs").mkdir()
    one = Finding(GROUPS, "x.", Where(str(here / "configs" / "rl.toml"), 3, "a"))
    assert findings.lines([one], paint=PLAIN, columns=None)[2] == "  configs/rl.toml:3 a"
    far = Finding(GROUPS, "x.", Where("/etc/rl.toml", 3, "a"))
    assert findings.lines([far], paint=PLAIN, columns=None)[2] == "  /etc/rl.toml:3 a"


def test_secrets_of_the_environment_are_masked_in_what_is_printed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "do-not-show-this")
    monkeypatch.setattr(check, "examine", lambda subject: [Finding("no-gpu", "It is do-not-show-this.")])
    assert "do-not-show-this" not in told(capsys, "run.toml")[1]
    assert "do-not-show-this" not in json.dumps(in_json(capsys, "run.toml"))


@pytest.mark.soak
def test_the_check_takes_no_two_seconds(here: Path) -> None:
    import resource
    import subprocess

    command = [sys.executable, "-m", "supervisor.cli.main", "check", "run.toml"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=here, env=dict(os.environ), capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 2, "seconds of a processor: on a machine that does nothing else it takes no longer"
