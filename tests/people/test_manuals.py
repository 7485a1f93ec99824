"""Man pages and completion say what the programs' own --help says, and work in a real man, bash and zsh."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli import ctl, main, manuals

PROGRAMS = {
    "rl-supervisor": main.main,
    "supervisorctl": ctl.main,
}
LINE = re.compile(r"(?m)^ {4}([a-z-]+)(?: {2,}|$)")
FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `python -m supervisor.cli.manuals DIR` writes it."""
    folder = tmp_path_factory.mktemp("share")
    subprocess.run([sys.executable, "-m", "supervisor.cli.manuals", str(folder)], check=True, timeout=60)
    return folder


@functools.cache
def told(program: str, *words: str) -> str:
    """The program's own help, from its entry point and not from the parser that the pages are made of."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        patch.setenv("COLUMNS", "500")
        PROGRAMS[program]([*words, "--help"])
    assert ended.value.code == 0
    return out.getvalue()


def commands(program: str) -> list[str]:
    found = LINE.findall(told(program).partition("commands:")[2].partition("exit codes")[0])
    assert len(found) > 15
    return found


def flags(text: str) -> set[str]:
    """The options that stand at the beginning of a line of the help."""
    return {flag for line in text.splitlines() if line.startswith("  -") for flag in FLAG.findall(line.split("   ")[0])}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_option_and_sentence_of_the_help_is_in_the_man_page(share: Path, program: str) -> None:
    page = (share / f"man/man1/{program}.1").read_text()
    if man := shutil.which("man"):
        done = subprocess.run(
            [man, "--warnings", "-l", str(share / f"man/man1/{program}.1")],
            capture_output=True, text=True, timeout=60, env={**os.environ, "MANWIDTH": "500", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        page = re.sub(".\b", "", done.stdout)
    else:
        page = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")
    flat = " ".join(page.split())
    sections = re.split(rf"(?m)^ *({'|'.join(map(re.escape, commands(program)))})$", page)
    of_command = dict(zip(sections[1::2], sections[2::2], strict=True))
    for command in commands(program):
        help_text = told(program, command)
        missing = {flag for flag in flags(help_text) - {"-h", "--help"} if flag not in of_command[command]}
        assert not missing, f"{program} {command}: not in its man page: {missing}"
        about = " ".join(help_text.partition("\n\n")[2].partition("\n\n")[0].split())
        assert about in " ".join(of_command[command].split())
    for line in told(program).partition("exit codes")[2].splitlines():
        assert " ".join(line.split()) in flat


def complete(share: Path, program: str, line: str, extra: str = "") -> set[str]:
    """What a real bash offers behind ``line``."""
    script = f"""
source {share}/bash-completion/completions/{program}
{extra}
COMP_WORDS=({line}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
[[ {line[-1:]!r} == ' ' ]] && COMP_WORDS+=("") && COMP_CWORD=$((COMP_CWORD + 1))
complete -p {program} >/dev/null && function=$(complete -p {program} | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    bash = shutil.which("bash") or pytest.skip("there is no bash")
    done = subprocess.run([bash, "--norc", "-c", script], capture_output=True, text=True, timeout=60, cwd=share)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.soak
@pytest.mark.parametrize("program", PROGRAMS)
def test_bash_offers_every_command_and_each_of_its_options(share: Path, program: str) -> None:
    assert complete(share, program, f"{program} ") == set(commands(program))
    for command in commands(program):
        assert complete(share, program, f"{program} {command} -") == flags(told(program, command))


def test_bash_offers_files_folders_and_the_runs_of_this_machine(share: Path) -> None:
    (share / "my-run.toml").touch()
    assert "my-run.toml" in complete(share, "rl-supervisor", "rl-supervisor check my")
    assert "my-run.toml" in complete(share, "rl-supervisor", "rl-supervisor run my")
    assert complete(share, "rl-supervisor", "rl-supervisor init --job m") == {"man"}
    listed = "supervisorctl() { printf '%-32s in use\\n' bs4-qwen3 other; }"
    for line in ("supervisorctl status ", "supervisorctl -r ", "supervisorctl restart "):
        assert complete(share, "supervisorctl", line, listed) == {"bs4-qwen3", "other"}
    assert complete(share, "supervisorctl", "supervisorctl stop b", listed) == {"bs4-qwen3"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
@pytest.mark.parametrize("program", PROGRAMS)
def test_zsh_offers_every_command(share: Path, program: str, tmp_path: Path) -> None:
    script = f"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PROMPT="" ; fpath=({share}/zsh/site-functions $fpath)'
zpty -w shell 'autoload -Uz compinit; compinit -u -d {tmp_path}/d'
zpty -w shell 'LISTMAX=1000; zstyle ":completion:*" list-prompt ""; stty -echo columns 200'
zpty -w shell 'zle-line-init() {{ print READ""Y }}; zle -N zle-line-init'
zpty -r -m shell line '*READY*'
zpty -w -n shell '{program} '$'\\C-d'
zpty -r -m shell line '*version*'
print -r -- $line
"""
    zsh = shutil.which("zsh") or ""
    done = subprocess.run([zsh, "-f", "-c", script], capture_output=True, text=True, timeout=60)
    shown = set(re.findall(r"[\w-]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", done.stdout)))
    assert set(commands(program)) <= shown, done.stdout + done.stderr


def test_the_second_name_of_supervisorctl_has_both_too(share: Path) -> None:
    assert "stop" in complete(share, "rl-supervisorctl", "rl-supervisorctl ")
    assert "RL-SUPERVISORCTL" in (share / "man/man1/rl-supervisorctl.1").read_text()
    assert sorted(manuals.texts()) == sorted(
        str(path.relative_to(share)) for path in share.rglob("*") if path.is_file() and path.suffix != ".toml"
    )
