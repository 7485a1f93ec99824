"""Finds the line that starts a training in what a person types or has in a script, and unwraps it. Executes nothing.

tmux, screen, nohup, `uv run`, `bash -c` and their like are taken off; the folder, variables and limits that hold where
the line stands are kept. Forms are those of prime-rl's own pages (README.md and docs/ from ceb60c03f to
559b44772) and of people's launch scripts.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.base.errors import ConfigError
from supervisor.base.secrets import mask_secrets
from supervisor.cli import launch_words as table
from supervisor.cli.launch_found import Found, Launch, remember_secrets, safe
from supervisor.cli.shell_text import Command, read, read_assignment
from supervisor.cli.shell_words import Scope, Word, join_words

DEEPEST = 6  # a script that starts a script that starts tmux ...
LARGEST = 1 << 20

_LOOP = re.compile(r"(?m)(?:^|[;&]) *(?:while|until)\b[^\n;]*[;\n]\s*do\b")
_ASKED = re.compile(r"(?m)^#(SBATCH|PBS|BSUB)[ \t]+(\S.*?)[ \t]*(?:#.*)?$")
"""What a script asks of Slurm, PBS or LSF stands in comments."""
_HERE = r'\$\(\s*dirname\s+(?:--\s+)?"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?\s*\)'


def find(text: str, *, environ: Mapping[str, str], folder: Path, script: Path | None = None) -> Found:
    """All launch lines of ``text``, which runs in ``folder``; ``script``: the file that it stands in.

    Raises ConfigError for a line that leads off this machine: to a cluster, or into a container.
    """
    finder = _Finder(environ, folder, script)
    finder.text(text, script is not None)
    finder.say_others()
    if assumed := finder.scope.assumed:
        values = ", ".join(f"{name} is {mask_secrets(value) or 'nothing'}" for name, value in assumed.items())
        finder.found.told.append(f"The text is taken as called without words: {values}.")
    asked = _ASKED.findall(text)
    if asked:
        shown = mask_secrets(" ".join(words for _, words in asked))
        finder.found.told.append(
            f"#{asked[0][0]} {shown} is left out: rl-supervisor asks no scheduler for time or machines. [run] "
            "max_steps bounds a run; [leaving] says how it hears that the pod is about to go."
        )
    if finder.found.launches and _LOOP.search(text):
        finder.found.told.append("The loop is left out: the supervisor itself starts what ended again.")
    return finder.found


_SETS = {"export", "declare", "typeset", "readonly", "cd", "pushd", "popd", "source", "."}
_FUNCTION = re.compile(
    r"^([ \t]*)(?:function[ \t]+([\w:.-]+)(?:[ \t]*\([ \t]*\))?|([\w:.-]+)[ \t]*\([ \t]*\))\s*[{(]"
    r"(?:[^\n]*[;)][ \t]*\}[ \t]*$|.*?^\1[)}])",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class _Other:
    """A command that is not said to be anything. ``after``: how many launches stand before it."""

    after: int
    line: int
    source: str


class _Finder:
    def __init__(self, environ: Mapping[str, str], folder: Path, script: Path | None) -> None:
        self.found = Found()
        self.folder: Path | None = folder
        self.scope = Scope(environ, known=self._known_answer)
        self.scripts = [script] if script else []
        self.exported: dict[str, Word] = {}
        self.all_exported = False
        self.pushed: list[Path | None] = []
        self.venv: Path | None = None
        self.venv_below = False
        self.depth = 0
        self.others: list[_Other] = []
        self.prepared: list[_Other] = []

    # ---------------------------------------------------------------- commands in their order

    def text(self, text: str, from_script: bool) -> None:
        if self.depth >= DEEPEST:
            return
        self.depth += 1
        parsed = read(text)
        self.found.told += [problem[:1].upper() + problem[1:] for problem in parsed.problems]
        lone = len([one for one in parsed.commands if one.words]) == 1 and not from_script
        for one in _FUNCTION.finditer(text):
            first, last = (1 + text.count("\n", 0, at) for at in one.span())
            self.found.functions[one[2] or one[3]] = range(first, last + 1)
        for command in parsed.commands:
            before = len(self.found.launches)
            self._read_command(command, lone=lone)
            sets = command.words[0] in _SETS if command.words else bool(command.assignments)
            if command.conditional and (sets or len(self.found.launches) > before):
                self.found.conditions.append(command.line)
        self.depth -= 1

    def _read_command(self, command: Command, *, lone: bool) -> None:
        words = [word for one in command.words for word in self.scope.expand(one)]
        before = dict(self.scope.own)
        given = {one.name: self.scope.assign(one) for one in command.assignments}
        remember_secrets([*(f"{name}={value.text}" for name, value in given.items()), *(word.text for word in words)])
        if not words:
            self.found.loops |= {one.name for one in command.assignments if one.loop}
            for name, value in given.items():
                if self.all_exported or name in self.exported or name in self.scope.environ:
                    self.exported[name] = value
            return
        self.scope.own = before  # what stands before a command holds for it alone
        name = words[0].text
        if name in ("export", "declare", "typeset", "readonly", "local"):
            self._read_export(command.words[1:], name == "export" or "-x" in [word.text for word in words])
        elif name == "unset":
            for word in words[1:]:
                self.scope.own.pop(word.text, None)
                self.exported.pop(word.text, None)
        elif name == "set":
            options = " ".join(word.text for word in words[1:])
            self.all_exported = (
                self.all_exported or bool(re.search(r"-\w*a|-o allexport", options))
            ) and not re.search(r"\+\w*a|\+o allexport", options)
        elif name in ("cd", "pushd"):
            self.pushed += [self.folder] * (name == "pushd")
            self._read_cd(words)
        elif name == "popd" and self.pushed:
            self._read_cd((words[0], Word(str(self.pushed.pop() or "-"))))
        elif name in ("source", "."):
            self._read_source(words)
        elif name == "ulimit":
            self._read_ulimit(words)
        elif command.before in ("|", "|&"):
            if name != "tee":
                self._left_out(command, "what it is piped into: the supervisor keeps all output itself")
        else:
            self._read_program(words, {**self.exported, **given}, command, lone=lone)

    def _read_export(self, written: Sequence[str], outward: bool) -> None:
        for name in written:
            one = read_assignment(name)
            if one is not None:
                value = self.scope.assign(one)
                if outward:
                    self.exported[one.name] = value
            elif outward and name in self.scope.own:
                self.exported[name] = join_words(self.scope.own[name])
            elif outward and name.isidentifier() and name not in self.scope.environ:
                self.exported[name] = Word(f"${name}", (f"${name}",))

    def _read_cd(self, words: Sequence[Word]) -> None:
        target = next((word for word in words[1:] if word.text not in ("--", "-P", "-L")), None)
        if target is None:
            home = self.scope.environ.get("HOME")
            self.folder = Path(home) if home else None
        elif target.unknown or target.text == "-":
            self.folder = None
            self.found.told.append(
                f"`cd {mask_secrets(target.text)}`: which folder that is, is not known here. See [job] dir."
            )
        elif self.folder is not None or Path(target.text).is_absolute():
            self.folder = Path(_normalize_path((self.folder or Path("/")) / target.text))
        if self.folder is not None:
            self.scope.own["PWD"] = (Word(str(self.folder)),)

    def _read_source(self, words: Sequence[Word]) -> None:
        if len(words) < 2:
            return
        path = words[1].text
        if path.endswith("bin/activate") and not words[1].unknown:
            self.venv = Path(_normalize_path((self.folder or Path("/")) / path)).parent.parent
            self.venv_below = not Path(path).is_absolute()
        elif not re.search(
            r"(?:^|/)(?:\.bashrc|\.profile|\.bash_profile|\.zshrc|conda\.sh|uv/env|\.local/bin/env)$", path
        ):
            self.found.told.append(
                f"`{mask_secrets(join_words(words).text)}`: that file was not read. Its variables that the job needs "
                "belong into [job.env], secrets into the .env beside the run file."
            )

    def _read_ulimit(self, words: Sequence[Word]) -> None:
        text = " ".join(word.text for word in words[1:])
        if found := re.search(r"-[SH]*n[SH]*\s*(\d+)\b", text):
            self.found.nofile = int(found[1])
        elif not re.search(r"-[SH]*n", text):
            self.found.told.append(f"`ulimit {mask_secrets(text)}` is left out: the job has the limits of the daemon.")

    # ---------------------------------------------------------------- one program

    def _read_program(self, words: list[Word], env: dict[str, Word], command: Command, *, lone: bool) -> None:
        kept: list[Word] = []
        while words:
            name = Path(words[0].text).name
            if name in table.CLUSTER:
                raise ConfigError(f"`{name}` hands the run to a cluster: this supervisor runs one pod only.")
            if name in table.CONTAINERS and len(words) > 1 and table.looks_like_training(words):
                raise ConfigError(
                    f"`{name}` runs it elsewhere than here: call `rl-supervisor init` there, where the training "
                    "runs, with the words that stand behind."
                )
            if wrapper := table.WRAPPERS.get(name):
                end = table.options_end(words, 1, wrapper.values) + wrapper.more
                if wrapper.kept:
                    kept += words[:end]
                else:
                    end = self._leave_wrapper_out(words, end, env, wrapper.why)
                words = words[end:]
            elif name in ("bash", "sh", "zsh", "dash"):
                return self._read_shell(words, command)
            elif name == "eval":
                return self.text(join_words(words[1:]).text, True)
            elif name == "tmux":
                return self._read_tmux(words)
            elif name == "screen":
                return self._read_screen(words)
            else:
                break
        if words:
            self._read_entry(kept, words, env, command, lone=lone)
        return None

    def _leave_wrapper_out(self, words: list[Word], end: int, env: dict[str, Word], why: str) -> int:
        """Where the program begins, behind the variables that a wrapper sets for it."""
        while end < len(words) and (found := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[end].text, re.DOTALL)):
            env[found[1]] = Word(found[2], words[end].unknown)
            end += 1
        if why:
            self.found.told.append(f"`{mask_secrets(join_words(words[:end]).text)}` is left out: {why}.")
        return end

    def _read_shell(self, words: Sequence[Word], command: Command) -> None:
        """`bash -c TEXT`, or a script, which is read."""
        end = 1
        while end < len(words) and words[end].text.startswith(("-", "+")):
            if re.fullmatch(r"-[a-z]*c[a-z]*", words[end].text):
                if end + 1 < len(words):
                    self.text(words[end + 1].text, True)
                return
            end += 1
        if end < len(words):
            self._read_script(words[end:], command)

    def _read_script(self, words: Sequence[Word], command: Command) -> None:
        path = Path(_normalize_path((self.folder or Path("/")) / Path(words[0].text).expanduser()))
        if words[0].unknown or path in self.scripts or path.name == "tmux.sh":
            return  # tmux.sh: prime-rl's own, which only opens panes
        try:
            if path.stat().st_size > LARGEST:
                return
            text = path.read_text("utf-8")
        except (OSError, ValueError):
            self._left_out(command, "that script is not there, or cannot be read")
            return
        self.found.told.append(f"{path} was read for its launch line.")
        before, self.scope.places = self.scope.places, tuple(words[1:])
        self.scripts.append(path)
        self.text(text, True)
        self.scripts.pop()
        self.scope.places = before

    def _read_tmux(self, words: Sequence[Word]) -> None:
        at = table.options_end(words, 1, {"-f", "-L", "-S"})
        verb = words[at].text if at < len(words) else ""
        if verb in ("new", "new-session", "new-window", "neww", "split-window", "respawn-pane"):
            folder = next((words[n + 1].text for n in range(at, len(words) - 1) if words[n].text == "-c"), None)
            if folder and self.folder is not None:
                self.folder = Path(_normalize_path(self.folder / folder))
            rest = words[table.options_end(words, at + 1, table.TMUX_VALUES) :]
            self._read_again(rest)
        elif verb in ("send-keys", "send"):
            rest = list(words[table.options_end(words, at + 1, {"-t", "-N"}) :])
            keys = [word for word in rest if word.text not in ("C-m", "Enter", "KPEnter", "ENTER", "C-c", "C-l")]
            self.text(join_words(keys, "").text, True)

    def _read_screen(self, words: Sequence[Word]) -> None:
        at = table.options_end(words, 1, table.SCREEN_VALUES)
        stuffed = [number for number, word in enumerate(words) if word.text == "stuff"]
        if stuffed:
            self.text(join_words(words[stuffed[0] + 1 :]).text.replace("\\n", "\n").replace("^M", "\n"), True)
        else:
            self._read_again(words[at:])

    def _read_again(self, words: Sequence[Word]) -> None:
        """Words that are a command, or one word that is a text for a shell."""
        if len(words) == 1:
            self.text(words[0].text, True)
        elif words:
            self.text(shlex.join(word.text for word in words), True)

    # ---------------------------------------------------------------- what the program is

    def _read_entry(
        self, kept: list[Word], words: list[Word], env: Mapping[str, Word], command: Command, *, lone: bool
    ) -> None:
        at, project, plain = 0, None, not kept
        before: list[Word] = []
        first = Path(words[0].text).name
        if first in ("uv", "poetry", "pdm", "pixi", "rye", "hatch") and (runs := table.uv_run(words)):
            at, project, bare, module = runs
            before, plain = words[:at], plain and bare and first == "uv"
            words = words[at:]
            if module:
                words = [Word("python"), Word("-m"), *words]
                before = [one for one in before if one.text not in ("-m", "--module")]
        elif first == "conda" and len(words) > 2 and words[1].text == "run":
            at = table.options_end(words, 2, {"-n", "--name", "-p", "--prefix"})
            before, plain, words = words[:at], False, words[at:]
        if not words:
            return
        name = Path(words[0].text).name
        if name in table.CLUSTER:
            raise ConfigError(f"`{name}` hands the run to a cluster: this supervisor runs one pod only.")
        length, kind, entry, processes, options = table.entry_of(words, name)
        seen, launcher = (command.line, command.source), (*kept, *before, *words)
        launch = Launch("command", *seen, launcher, name, (), env, self.folder, self.venv, self.venv_below)
        if not kind:
            self._note_other(launch, words, command, lone=lone, wrapped=bool(before))
            return
        arguments = tuple(words[length:])
        launch = replace(
            launch,
            kind=kind,
            launcher=(*kept, *before, *words[:length]),
            entry=entry,
            arguments=arguments,
            project=(self.folder or Path("/")) / project if project else None,
            plain=plain and length == 1 and "/" not in words[0].text,
            processes=processes,
            torchrun=options,
            rank=2 if any(word.text in table.TRAINS_NOTHING for word in arguments) else 3,
        )
        self.found.launches.append(launch)
        for operator, target in command.redirects:
            if operator.lstrip("0123456789") in ("<", "<<<") and target != "/dev/null":
                shown = mask_secrets(target.strip("'\""))
                self.found.told.append(f"What is read from {shown} is left out: the job's input is empty.")

    def _note_other(self, launch: Launch, words: list[Word], command: Command, *, lone: bool, wrapped: bool) -> None:
        """A program that is none of prime-rl's: part of a training, a training of its own, or what stands beside."""
        name = launch.entry
        written = [target for how, target in command.redirects if how in (">", ">>") and name in ("cat", "echo", "tee")]
        if written and not written[0].startswith("/dev/"):
            self._left_out(command, "it writes a file, which has to be there before a start")
            return
        why = table.left_out_because(name, words, wrapped=wrapped)
        if why:
            self._left_out(command, why)
        elif why == "":
            return
        elif rank := table.rank_of(name, words, lone=lone and self._is_program(words[0])):
            launch = replace(launch, entry=table.component_of(name, words) or name, rank=rank)
            (self.found.parts if launch.entry in table.ENGINES else self.found.launches).append(launch)
        elif table.prepares(name, words) or (wrapped and table.prepares(words[0].text, words)):
            self.prepared.append(self._is_seen(command))
        elif name.endswith(".sh"):
            self._read_script(words, command)
        elif not lone:
            self.others.append(self._is_seen(command))

    def _is_seen(self, command: Command) -> _Other:
        return _Other(len(self.found.launches), command.line, _shorten_text(command.source))

    def _is_program(self, program: Word) -> bool:
        """Is it a program, and not the first word of a sentence?"""
        return "/" in program.text or shutil.which(program.text, path=self.scope.environ.get("PATH")) is not None

    def say_others(self) -> None:
        """Name what is neither the launch nor anything that was said already; what table.prepares it is no such thing.

        What stands behind the launch, or on its line, is shown: its line number alone would not tell what it is.
        """
        chosen, launches = self.found.chosen(), self.found.launches
        at = launches.index(chosen) if chosen is not None else len(launches)
        lesser = [
            _Other(number, one.line, _shorten_text(one.source))
            for number, one in enumerate(launches)
            if chosen is not None and one.rank < chosen.rank
        ]
        others = [one for one in self.others if one.source.split(" ")[0] not in self.found.functions]
        behind = [one for one in (*lesser, *others, *self.prepared) if one.after > at]
        before = [one for one in (*lesser, *others) if one.after <= at]
        self.found.prepared += [safe(one.source) for one in self.prepared if one.after <= at]
        beside = [one for one in before if chosen is not None and one.line == chosen.line]
        if beside:
            self.found.told.append(f"No part of the launch line, and left out: {_quote_words(beside)}.")
        if lines := list(dict.fromkeys(str(one.line) for one in before if one not in beside)):
            more = f" and {len(lines) - 12} more" if len(lines) > 12 else ""
            self.found.told.append(f"No part of the launch line, and left out: line {', '.join(lines[:12])}{more}.")
        if behind:
            self.found.told.append(
                f"Behind the launch line, and left out: {_quote_words(behind)}. What is to be done once the last step "
                "is published belongs into [hooks] finish."
            )

    def _left_out(self, command: Command, why: str) -> None:
        self.found.told.append(f"Line {command.line} is left out: {why}: `{_shorten_text(command.source)}`")

    def _known_answer(self, text: str) -> str | None:
        """The answer of a ``$(...)`` that asks where we are."""
        flat = " ".join(text.split())
        if flat in ("$(pwd)", "`pwd`", "$( pwd )"):
            return str(self.folder) if self.folder is not None else None
        if not self.scripts:
            return None
        here = self.scripts[-1].parent
        if re.fullmatch(_HERE, flat):
            return str(here)
        found = re.fullmatch(
            rf'\$\( ?cd (?:-- )?"?{_HERE}((?:/[\w./-]*)?)"?(?: &> ?/dev/null)? ?(?:&&|;) ?pwd(?: -P)? ?\)', flat
        )
        return _normalize_path(here / found[1].lstrip("/")) if found else None


def _quote_words(others: Sequence[_Other]) -> str:
    texts = [f"`{one.source}`" for one in others]
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "")


def _normalize_path(path: Path) -> str:
    return os.path.normpath(path)  # not resolve(): a folder that is a link keeps its name


def _shorten_text(text: str) -> str:
    flat = safe(text)
    return flat if len(flat) <= 100 else flat[:97] + "..."
