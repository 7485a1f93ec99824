"""Which program a list of words starts: prime-rl's entry points in all their forms, what only starts another program,
and what else a launch script holds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from supervisor.base.errors import ConfigError
from supervisor.cli.shell_words import Word, join_words

Kind = Literal["rl", "sft", "vf-rl", "command"]

ENTRIES: dict[str, Kind] = {"rl": "rl", "rl_local": "rl", "sft": "sft", "vf-rl": "vf-rl"}
_MODULES: dict[str, Kind] = {
    **dict.fromkeys(("prime_rl.rl", "prime_rl.entrypoints.rl"), "rl"),
    **dict.fromkeys(("prime_rl.entrypoints.sft", "prime_rl.trainer.sft.train"), "sft"),
    **dict.fromkeys(("verifiers.scripts.rl", "verifiers_rl.scripts.rl"), "vf-rl"),
}
_SCRIPT = re.compile(r"(?:^|/)(prime_rl/(?:rl|entrypoints/rl|entrypoints/sft|trainer/sft/train))\.py$")
_PART = re.compile(
    r"(?:^|/)prime_rl[./](trainer|orchestrator|inference)[./](?:rl[./]train|orchestrator|server)(?:\.py)?$"
)
TRAINS_NOTHING = {"--dry-run", "--dump-config", "--help", "-h", "--version"}
COMPONENTS = ("trainer", "orchestrator", "inference")
ENGINES = ("vf-vllm", "vllm", "trl vllm-serve", "inference")
CLUSTER = {"sbatch", "srun", "salloc", "rl_slurm", "sft_slurm", "qsub", "bsub"}
CONTAINERS = {"docker", "podman", "apptainer", "singularity", "kubectl", "ssh", "enroot", "modal", "sky", "ray"}
_TRAINS = r"\S*(train|grpo|ppo|finetune|rl\b)"
_RANKS = [
    (re.compile(pattern), rank)
    for pattern, rank in (
        (r"(vf-vllm|vllm|inference)( |$)|(trainer|orchestrator) (.* )?@", 2),
        (r"(torchrun|accelerate|deepspeed)( |$)|\S+ -m torch\.distributed\.(run|launch)( |$)", 2),
        (r"(eval|evals|vf-eval|synthesize|env-server|pytest|pre-commit|ruff|hf|jupyter|cmake|ninja)( |$)", 0),
        (r"(kubectl|helm|ssh|scp|rsync|docker|podman|tensorboard|nvitop|htop)( |$)", 0),
        (r"python[\d.]* (-m (pip|venv|ensurepip|http|json)(\.|\s|$)|(-V|--version|setup\.py)( |$))", 0),
        (rf"python[\d.]* (?!-c( |$))(\S+ ){{0,2}}{_TRAINS}", 2),
        (r"python[\d.]* (?!-c( |$))", 1),
        (rf"(?=\S+\.py( |$)){_TRAINS}|(vf-train|trl|axolotl|llamafactory-cli|verl|make)( |$)", 2),
        (r"\S+\.py( |$)", 1),
    )
]
"""How a line begins, and how sure it is that it trains: 2 probably, 1 perhaps, 0 not."""
_PREPARES = re.compile(
    r"(pip3?|apt|apt-get|curl|wget|git|huggingface-cli|hf|vf-install|b2|rclone)( |$)|python\S* -m pip( |$)|"
    r"(uv|prime|aws) (\S+ )?(pip|sync|env|tool|s3|install|lock)( |$)"
)
_HARMLESS = (
    r"(echo|printf|set|shopt|mkdir|true|false|:|wait|exit|trap|tail|tee|sleep|\[\[?|test|cat|ls|date|nvidia-smi|df|free|"
    r"hostname|which|return|break|continue|local|read|umask|clear|pwd|grep|head|watch|declare|typeset|let|alias|disown|"
    r"jobs|popd|type|hash|touch|uname|sed|awk|cut|tr|sort|wc)( |$)"
)
_LEFT_OUT = [
    (bare, re.compile(pattern), why)
    for bare, pattern, why in (
        (False, r"sed (.* )?(-i|--in-place)", "it changes a file: do that once, by hand"),
        (False, _HARMLESS, ""),
        (True, r"-", "a shell takes it for a command of its own, not for a part of the line above"),
        (False, r"rm( |$)|(rmdir|find)( .*)-delete", "it deletes files; nothing of a run may be deleted at a start"),
        (False, r"(rmdir|find)( |$)", ""),
        (False, r"(kill|pkill|killall|fuser)( |$)", "the supervisor ends what is the run's own, and nothing else"),
        (False, r"(wandb|huggingface-cli|hf|prime) login( |$)", "put the key into the .env beside the run file"),
        (
            True,
            r"(b2|rclone|aws|s3cmd|gsutil|vastai|runpodctl)( |$)",
            "the supervisor itself restores and publishes ([store]) and ends a pod ([hooks] finish)",
        ),
        (
            True,
            r"(conda|mamba|micromamba|module|ml|pyenv|nvm)( |$)",
            "say which interpreter the job uses with [job] python",
        ),
    )
]
"""Holds it only for a command that stands alone, how it begins, and what is said of it; the first row that fits."""


class Wrapper(NamedTuple):
    """A program that starts another one: its options that take a value, and how many words stand behind them.

    ``kept``: it belongs to the launcher. ``why``: it is left out, and a person must know.
    """

    values: Collection[str] = ()
    more: int = 0
    kept: bool = False
    why: str = ""


WRAPPERS = {
    **dict.fromkeys(("nohup", "setsid", "command", "unbuffer", "caffeinate", "systemd-inhibit"), Wrapper()),
    "exec": Wrapper({"-a"}),
    "time": Wrapper({"-f", "-o"}),
    "stdbuf": Wrapper({"-i", "-o", "-e"}),
    "env": Wrapper({"-u", "-C"}),
    "flock": Wrapper(more=1),
    "numactl": Wrapper({"-N", "-m", "-C", "-i", "-p"}, kept=True),
    "ionice": Wrapper({"-c", "-n"}, kept=True),
    "nice": Wrapper({"-n"}, kept=True),
    **dict.fromkeys(("taskset", "chrt"), Wrapper(more=1, kept=True)),
    "sudo": Wrapper({"-u", "-g"}, why="the job runs as the daemon's user"),
    "doas": Wrapper(why="the job runs as the daemon's user"),
    "timeout": Wrapper({"-k", "-s"}, 1, why="a run that it ends would be started again; [run] max_steps bounds a run"),
}
_UV_VALUES = {
    *("--project", "--directory", "-p", "--python", "--extra", "--no-extra", "--group", "--no-group", "--only-group"),
    *("--with", "--with-editable", "--with-requirements", "--env-file", "--index", "--default-index", "--index-url"),
    *("--extra-index-url", "--package", "--cache-dir", "--config-file", "--find-links", "-f", "--index-strategy"),
}
TMUX_VALUES = {"-s", "-n", "-c", "-x", "-y", "-t", "-F", "-e", "-f", "-L", "-S"}
SCREEN_VALUES = {"-S", "-dmS", "-DmS", "-t", "-c", "-s", "-T", "-h", "-p", "-Logfile", "-e"}
_TORCHRUN_FLAGS = {"--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "-m", "--module"}


def entry_of(words: Sequence[Word], name: str) -> tuple[int, Kind | Literal[""], str, Word | None, tuple[Word, ...]]:
    """How many words the program is, its kind ("" for any other), its entry; torchrun's processes and options."""
    none: tuple[int, Literal[""], str, None, tuple[Word, ...]] = (1, "", name, None, ())
    if name in ENTRIES:
        return 1, ENTRIES[name], name, None, ()
    at = 1
    processes: Word | None = None
    options: tuple[Word, ...] = ()
    if name == "torchrun":
        at, processes, options = _split_torchrun(words, 1)
    elif re.fullmatch(r"python[\d.]*", name):
        at = 1
        while at < len(words) and words[at].text.startswith("-") and words[at].text != "-m":
            at += 2 if words[at].text in ("-X", "-W") else 1
        launched = [word.text for word in words[at : at + 2]]
        if launched in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
            at, processes, options = _split_torchrun(words, at + 2)
    else:
        return none
    module = at + 1 < len(words) and words[at].text in ("-m", "--module")
    target = words[at + module].text if at + module < len(words) else ""
    script = _SCRIPT.search(target)
    name_of = target if module else script[1].replace("/", ".") if script else ""
    kind = _MODULES.get(name_of)
    return (at + module + 1, kind, name_of, processes, options) if kind else none


def _split_torchrun(words: Sequence[Word], at: int) -> tuple[int, Word | None, tuple[Word, ...]]:
    """Where torchrun's own options end, its --nproc-per-node, and the others."""
    processes: Word | None = None
    options: list[Word] = []
    while at < len(words) and words[at].text.startswith("-") and words[at].text not in ("-m", "--module"):
        name, equals, value = words[at].text.replace("_", "-").partition("=")
        single = bool(equals) or name in _TORCHRUN_FLAGS
        given = Word(value, words[at].unknown) if equals else words[at + 1] if at + 1 < len(words) else Word("")
        if name == "--nproc-per-node":
            processes = given
        else:
            if name == "--nnodes" and given.text not in ("1", "1:1"):
                raise ConfigError(f"--nnodes {given.text}: runs over several machines are not supported, one pod is.")
            options += words[at : at + (1 if single else 2)]
        at += 1 if single else 2
    return at, processes, tuple(options)


def uv_run(words: Sequence[Word]) -> tuple[int, str | None, bool, bool] | None:
    """Of `uv run ...`: where the program begins, its project's folder, is it bare, is it a module; else None."""
    at = options_end(words, 1, _UV_VALUES)
    if at >= len(words) or words[at].text != "run":
        return None
    begin = at + 1
    end = begin
    module = False
    while end < len(words) and words[end].text.startswith("-"):
        if words[end].text == "--":
            end += 1
            break
        module = module or words[end].text in ("-m", "--module")
        end += 2 if words[end].text in _UV_VALUES else 1
    project = None
    for number in range(1, end):
        name, equals, value = words[number].text.partition("=")
        if name in ("--project", "--directory"):
            project = value if equals else words[number + 1].text if number + 1 < end else None
    return end, project, at == 1 and end == begin, module


def options_end(words: Sequence[Word], at: int, values: Collection[str]) -> int:
    """Where the options end that begin at ``at``; those in ``values`` take the word behind them."""
    while at < len(words) and words[at].text.startswith("-") and len(words[at].text) > 1:
        if words[at].text == "--":
            return at + 1
        at += 2 if words[at].text in values else 1
    return min(at, len(words))


def rank_of(name: str, words: Sequence[Word], *, lone: bool) -> int:
    """Could this program be a training of its own? The first row of the table that fits decides."""
    line = _line_of_words(words[0].text if name.endswith(".py") else name, words)
    for pattern, rank in _RANKS:
        if pattern.match(line):
            return rank
    return 1 if lone and not name.endswith(".sh") and not prepares(name, words) else 0


def component_of(name: str, words: Sequence[Word]) -> str:
    """The part of prime-rl, or the server of TRL, that is started alone; "" for anything else."""
    texts = [word.text for word in words]
    if name == "trl" and texts[1:2] == ["vllm-serve"]:
        return "trl vllm-serve"
    if name in COMPONENTS and any(text.startswith("@") for text in texts):
        return name
    found = next((found for text in texts[:20] if (found := _PART.search(text))), None)
    return found[1] if found else ""


def looks_like_training(words: Sequence[Word]) -> bool:
    return bool(re.search(r"\b(rl|sft|torchrun|python3?|vf-rl|uv run)\b", join_words(words[1:]).text))


def prepares(name: str, words: Sequence[Word]) -> bool:
    """Installs or fetches something."""
    return _PREPARES.match(_line_of_words(name, words)) is not None


def left_out_because(name: str, words: Sequence[Word], *, wrapped: bool) -> str | None:
    """Why a command is no part of a launch; "" where nothing need be said of it, None where it may be one.

    ``wrapped``: another program starts it (`uv run hf ...`).
    """
    line = _line_of_words(name, words)
    return next((why for bare, pattern, why in _LEFT_OUT if not (bare and wrapped) and pattern.match(line)), None)


def _line_of_words(name: str, words: Sequence[Word]) -> str:
    return " ".join([name, *(word.text for word in words[1:])])
