"""Man pages, and completion for bash and zsh, made from the parsers: `install` and the image put them in place.

python -m supervisor.cli.manuals DIR    write them below DIR (/usr/local/share, ~/.local/share)
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import shtab

from supervisor import __version__
from supervisor.cli import ctl, main
from supervisor.cli.terminal import run_cli
from supervisor.install.installing import MANUALS_MARK

_RUNS = {
    "bash": '_rl_supervisor_runs() {{ compgen -W "$({prog} avail 2>/dev/null | cut -d" " -f1)" -- "$1"; }}',
    "zsh": '_rl_supervisor_runs() {{ compadd -- ${{(f)"$({prog} avail 2>/dev/null | cut -d" " -f1)"}} }}',
}
"""How a shell lists the runs of this machine."""


@cache
def texts() -> dict[str, str]:
    """Each file by its place below a `share` folder."""
    found = {}
    for parser in (main._build_parser(), ctl._build_parser(), ctl._build_parser("rl-supervisorctl")):
        _say_what_completes(parser)
        name = parser.prog
        found[f"man/man1/{name}.1"] = f'{_page_of_command(parser)}.\\" {MANUALS_MARK}\n'
        for shell, path in (("bash", f"bash-completion/completions/{name}"), ("zsh", f"zsh/site-functions/_{name}")):
            found[path] = (
                f"{shtab.complete(parser, shell, preamble=_RUNS[shell].format(prog=name))}\n# {MANUALS_MARK}\n"
            )
    return found


# ---------------------------------------------------------------- what the parsers say


def _commands_of_parser(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """argparse has no public way to ask for them; shtab asks the same."""
    subs = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
    return dict(subs.choices) if subs is not None else {}


def _words_of_parser(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Options and positional words, without the commands."""
    return [one for one in parser._actions if not isinstance(one, argparse._SubParsersAction)]


def _say_what_completes(parser: argparse.ArgumentParser) -> None:
    """shtab reads an attribute of each word: a file, a folder, or a run of this machine."""
    for sub in (parser, *_commands_of_parser(parser).values()):
        for one in _words_of_parser(sub):
            if one.type is Path or "RUN.toml" in str(one.metavar):
                folder = one.metavar in ("DIR", "ROOT")
                one.complete = shtab.DIRECTORY if folder else shtab.FILE  # type: ignore[attr-defined]
            elif one.metavar == "NAME" and one.dest in ("name", "run"):
                one.complete = dict.fromkeys(_RUNS, "_rl_supervisor_runs")  # type: ignore[attr-defined]


# ---------------------------------------------------------------- man pages


def _page_of_command(parser: argparse.ArgumentParser) -> str:
    about = parser.description or ""
    lines = [
        f'.TH "{parser.prog.upper()}" 1 "" "rl-supervisor {__version__}" "rl-supervisor"',
        *(".SH NAME", f"{_escape_roff(parser.prog)} \\- {_escape_roff(about)}"),
        *(".SH SYNOPSIS", _escape_roff(_usage_of_command(parser))),
        *(".SH OPTIONS", *_describe_words(parser)),
        ".SH COMMANDS",
    ]
    for name, sub in _commands_of_parser(parser).items():
        lines += [
            f".SS {_escape_roff(name)}",
            _escape_roff(_usage_of_command(sub)),
            ".PP",
            _escape_roff(sub.description or ""),
            *_describe_words(sub),
        ]
    lines += [".SH NOTES", ".nf", _escape_roff(parser.epilog or ""), ".fi", ""]
    return "\n".join(lines)


def _usage_of_command(parser: argparse.ArgumentParser) -> str:
    return " ".join(parser.format_usage().removeprefix("usage: ").split())


def _describe_words(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()
    for one in _words_of_parser(parser):
        if one.help is not argparse.SUPPRESS and one.dest != "help":
            yield ".TP"
            yield f"\\fB{_escape_roff(formatter._format_action_invocation(one))}\\fR"
            yield _escape_roff(formatter._expand_help(one)) if one.help else ""


def _escape_roff(text: str) -> str:
    """Plain text: no line of it is a request, and a hyphen stays the one that can be typed."""
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text.replace("\\", "\\e").replace("-", "\\-"))


# ---------------------------------------------------------------- the image's own call


def _write_pages(folder: Path) -> int:
    for name, text in texts().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run_cli(lambda: _write_pages(Path(sys.argv[1])), "manuals"))
