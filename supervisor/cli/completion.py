"""Completion for bash and zsh, made from the parsers by shtab: `install` and the image put it in place.

python -m supervisor.cli.completion DIR    write it below DIR (/usr/local/share)
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path

import shtab

from supervisor.cli import ctl, main
from supervisor.install.installing import COMPLETION_MARK, write_file

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
        for shell, path in (("bash", f"bash-completion/completions/{name}"), ("zsh", f"zsh/site-functions/_{name}")):
            script = shtab.complete(parser, shell, preamble=_RUNS[shell].format(prog=name))
            found[path] = f"{script}\n# {COMPLETION_MARK}\n"
    return found


def _say_what_completes(parser: argparse.ArgumentParser) -> None:
    """shtab reads an attribute of each word: a file, a folder, or a run of this machine."""
    for one in parser._actions:  # argparse has no public way to ask for them; shtab asks the same
        if isinstance(one, argparse._SubParsersAction):
            for sub in one.choices.values():
                _say_what_completes(sub)
        elif one.type is Path or "RUN.toml" in str(one.metavar):
            folder = one.metavar in ("DIR", "ROOT")
            one.complete = shtab.DIRECTORY if folder else shtab.FILE  # type: ignore[attr-defined]
        elif one.metavar == "NAME" and one.dest in ("name", "run"):
            one.complete = dict.fromkeys(_RUNS, "_rl_supervisor_runs")  # type: ignore[attr-defined]


if __name__ == "__main__":
    for name, text in texts().items():
        write_file(Path(sys.argv[1]) / name, text, 0o644, replace=True)
