"""The words behind a person's own `rl`, `sft` or `vf-rl`, as settings of a run file that mean the same.

What the supervisor decides in each start (`command.py`) has a setting of its own or is left out, with a sentence that
says so; every other word stays as it is, in its order. What the trainer's own files say and would be overruled is taken
over for the same reason (``of_files``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.base.errors import ConfigError
from supervisor.base.secrets import mask_secrets
from supervisor.config.run_place import RUN_ID
from supervisor.primerl.configs import Settings
from supervisor.primerl.launch_gpus import chosen, gpu_part, names_gpus, numbers, whole
from supervisor.primerl.renames import oldest_name, spellings

PARTS = ("trainer", "orchestrator", "inference")
TO_DO = "TODO-"
"""Begins the name of a file that a person still has to name: none is called so, and `check` says that it is missing."""

MOST_GPUS = 64  # of one pod
_CKPT = ("ckpt", "trainer.ckpt", "orchestrator.ckpt")
_SECRET = re.compile(
    r"(?:^|[-_])(?:api-?key|application-?key|access-key|secret|passw(?:or)?d|passphrase|credentials?|private-key"
    r"|(?:hf|hub|auth|access|api|bearer)-token)$|^token$"
)
_WANDB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SAID_ELSEWHERE = {
    "clean": "would delete checkpoints at a start",
    "clean-output-dir": "would delete checkpoints at a start",
    "no-clean": "the supervisor says it where this version of prime-rl needs it",
    "no-clean-output-dir": "the supervisor says it where this version of prime-rl needs it",
    "dry-run": "nothing would be trained",
    "dump-config": "nothing would be trained",
}


@dataclass
class Translation:
    """What a command line came to. Keys of ``settings`` are dotted keys of the run file."""

    settings: dict[str, Any] = field(default_factory=dict)
    config: list[str] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)
    """Files for one part: "trainer", "orchestrator" or "inference"."""
    args: list[str] = field(default_factory=list)
    name: str = ""
    """What the line calls the run."""
    kept: list[str] = field(default_factory=list)
    """Clauses: which word became which setting of the same meaning."""
    changed: list[str] = field(default_factory=list)
    """Sentences: what is not, or no longer, as the line said it."""
    to_do: list[str] = field(default_factory=list)
    """Sentences: what a person must fill in before the run can start."""
    step: int | None = None
    """The step at which the line resumed."""


@dataclass(frozen=True)
class _Flag:
    words: tuple[str, ...]
    """As they stood there."""
    name: str
    """Without dashes before it, in kebab case."""
    values: tuple[str, ...]
    unknown: str = ""

    @property
    def masked_text(self) -> str:
        return mask_secrets(" ".join(self.words))

    @property
    def value(self) -> str:
        return self.values[0] if self.values else ""


def translate(
    words: Sequence[str],
    unknown: Mapping[int, str],
    *,
    kind: str,
    visible: Sequence[int] | None,
    shown: str = "",
    engine: bool = True,
) -> Translation:
    """``words`` behind the entry point; ``unknown``: for each word of which a part is not known, that part.

    ``visible``: the line's CUDA_VISIBLE_DEVICES as numbers, None where it sets none; ``shown``: the program's name;
    ``engine`` False: the configuration has no inference server.
    Raises ConfigError for a line that a supervisor of one pod cannot take over.
    """
    return _Translator(kind, visible, shown or kind, engine).run(list(words), unknown)


class _Translator:
    def __init__(self, kind: str, visible: Sequence[int] | None, shown: str, engine: bool) -> None:
        self.kind, self.visible, self.shown, self.engine = kind, visible, shown, engine
        self.out = Translation()
        self.resumes: list[_Flag] = []
        self.intervals: list[_Flag] = []
        self.gpus: dict[str, tuple[str, list[int], _Flag]] = {}
        self.wandb: dict[str, _Flag] = {}
        self.mixed: list[str] = []

    def run(self, words: list[str], unknown: Mapping[int, str]) -> Translation:
        at = 0
        while at < len(words):
            at = self._next_word(words, unknown, at)
        self._say_resumes()
        self._set_interval()
        self._set_gpus()
        self._set_wandb()
        self._set_files()
        settle(self.out)
        return self.out

    # ---------------------------------------------------------------- words

    def _next_word(self, words: list[str], unknown: Mapping[int, str], at: int) -> int:
        word = words[at]
        if word == "@" or (word.startswith("@") and len(word) > 1):
            return self._read_file_word("", words, unknown, at)
        if word.startswith("--") and len(word) > 2:
            if at + 1 < len(words) and words[at + 1].startswith("@") and "=" not in word:
                return self._read_file_word(_as_kebab(word[2:]), words, unknown, at + 1)
            end = at + 1
            if "=" not in word:
                while end < len(words) and not words[end].startswith(("--", "@")):
                    if end > at + 1 and unknown.get(end) == words[end]:
                        break  # `--seed 3 $ARGS`: what may be more flags is no value of this one
                    end += 1
            name, equals, value = word[2:].partition("=")
            values = (value,) if equals else tuple(words[at + 1 : end])
            what = next((unknown[number] for number in range(at, end) if number in unknown), "")
            self._read_flag(_Flag(tuple(words[at:end]), _as_kebab(name), values, what))
            return end
        if word in ("-h", "--help"):
            self._read_flag(_Flag((word,), "help", ()))
        elif word.endswith((".toml", ".json")):
            self.out.changed.append(f"{mask_secrets(word)} stood there without `@ ` before it: it is taken as one.")
            self.out.config.append(self._read_path(word, unknown.get(at, "")))
        elif at in unknown:
            self.out.changed.append(f"{mask_secrets(word)} is left out: what it stands for is not known here.")
        else:
            self.out.changed.append(f"{mask_secrets(word)!r} is left out: {self.shown} takes no such word.")
        return at + 1

    def _read_file_word(self, table: str, words: list[str], unknown: Mapping[int, str], at: int) -> int:
        """The file after ``@`` at ``at``, and more of the same table."""
        while at < len(words) and words[at].startswith("@"):
            if words[at] != "@":
                path, where, after = words[at][1:], at, at + 1
                self.out.changed.append(
                    f"`{mask_secrets(words[at])}` has no blank behind the @, so that {self.shown} would not have read "
                    f"it (prime-rl: mind the space). It is taken as `@ {mask_secrets(path)}`."
                )
            elif at + 1 < len(words) and not words[at + 1].startswith("--"):
                path, where, after = words[at + 1], at + 1, at + 2
            else:
                self.out.changed.append("An @ without a file behind it is left out.")
                return at + 1
            at = after
            name = self._read_path(path, unknown.get(where, ""))
            if not table:
                self.out.config.append(name)
            elif table in PARTS and table not in self.out.parts:
                self.out.parts[table] = name
            else:
                self.mixed.append(f"--{table} @ {path}")
            if table:
                break
        return at

    def _read_path(self, path: str, unknown: str) -> str:
        if not unknown:
            return path
        name = f"{TO_DO}{re.sub(r'[^A-Za-z0-9._-]+', '-', unknown).strip('-._') or 'file'}.toml"
        self.out.to_do.append(
            f"{mask_secrets(path)}: what {mask_secrets(unknown)} stands for is not known here. Write it for {name}."
        )
        return name

    # ---------------------------------------------------------------- flags

    def _read_flag(self, flag: _Flag) -> None:
        name = oldest_name(flag.name.replace("-", "_")).replace("_", "-")
        parents, _, last = name.rpartition(".")
        out = self.out
        if name in ("help", "version"):
            raise ConfigError(f"{flag.masked_text} only prints a text: give the line that starts the training.")
        if name.partition(".")[0] == "slurm":
            raise ConfigError(f"{flag.masked_text} hands the run to a cluster: this supervisor runs one pod only.")
        if last == "type" and parents.endswith("deployment") and flag.value in ("multi_node", "disaggregated"):
            raise ConfigError(f"{flag.masked_text}: runs over several machines are not supported, one pod is.")
        if last == "max-concurrent-runs":
            if flag.value != "1":
                raise ConfigError(f"{flag.masked_text}: several runs in one trainer are not supported.")
            out.changed.append(f"{flag.masked_text} is left out: there is one run in a trainer anyway.")
        elif last == "resume-step" or name.partition(".")[0] == "resume" or name in _RESUME_PARTS:
            self.resumes.append(flag)
        elif name in _SAID_ELSEWHERE:
            out.changed.append(f"{flag.masked_text} is left out: {_SAID_ELSEWHERE[name]}.")
        elif last in ("ckpt", "no-ckpt"):
            self._read_checkpoint_flag(flag)
        elif last == "interval" and parents.rpartition(".")[2] == "ckpt":
            self.intervals.append(flag)
        elif last in ("keep", "keep-last", "keep-interval") and (
            parents.rpartition(".")[2] == "ckpt" or last != "keep"
        ):
            self._read_keep_flag(flag, last, flag.name)
        elif last == "weights-only":
            if flag.value.lower() != "false":
                out.changed.append(
                    f"{flag.masked_text} is left out: checkpoints of weights only cannot be resumed from."
                )
        elif name == "output-dir":
            self._add_setting(flag, "job.output_dir", flag.value)
        elif last == "output-dir":
            out.changed.append(
                f"{flag.masked_text} is left out: all of a run lies in one folder, [job] output_dir, which each part "
                "is told."
            )
        elif name in ("run.name", "run.dir"):
            self._run_name(flag)
        elif flag.unknown:
            weighty = name == "max-steps" or gpu_part(name) is not None
            (out.to_do if weighty else out.changed).append(
                f"{flag.masked_text} is left out: what {mask_secrets(flag.unknown)} stands for is not known here."
            )
        elif _SECRET.search(last) or any(mask_secrets(value) != value for value in flag.values):
            out.changed.append(
                f"--{name} is left out, with its value: on a command line each user of the pod sees a secret, and it "
                "never stands in a run file. Put it into the .env, and name the variable in the configuration."
            )
        elif name == "max-steps" and whole(flag.value, 1) is not None:
            self._add_setting(flag, "run.max_steps", int(flag.value))
        elif part := gpu_part(name):
            self._read_gpu_flag(flag, part)
        elif last == "id" and parents.rpartition(".")[2] == "wandb":
            self.wandb[parents.partition(".")[0] if parents.partition(".")[0] in PARTS else ""] = flag
        else:
            out.args += flag.words

    def _add_setting(self, flag: _Flag, key: str, value: object) -> None:
        """A setting of the run file in the flag's place; of two the later one counts, as it does for the parsers."""
        section, _, name = key.partition(".")
        if flag.unknown or value == "":
            what = (
                f"what {mask_secrets(flag.unknown)} stands for is not known here" if flag.unknown else "it has no value"
            )
            told = self.out.to_do if flag.unknown else self.out.changed
            told.append(f"{flag.masked_text} is left out: {what}. It belongs in [{section}] {name}.")
            return
        self.out.settings[key] = value
        self.out.kept.append(f"{flag.masked_text} is [{section}] {name} = {json.dumps(value)}")

    def _read_checkpoint_flag(self, flag: _Flag) -> None:
        off = flag.name.startswith("no-") or flag.name.endswith("no-ckpt") or flag.value.lower() in ("none", "false")
        if off:
            self.out.changed.append(
                f"{flag.masked_text} is left out: without checkpoints there is nothing to go on from, so they are "
                "always on, every [job] checkpoint_interval steps."
            )
        else:
            self.out.kept.append(f"{flag.masked_text} is always on, every [job] checkpoint_interval steps")

    def _read_keep_flag(self, flag: _Flag, last: str, name: str) -> None:
        number = whole(flag.value, 1) if not flag.unknown else None
        if number is None:
            self.out.changed.append(
                f"{flag.masked_text} is left out: only the supervisor deletes steps ([store], [disk])."
            )
        else:
            keep(self.out, f"--{name} {number}", number, every=last == "keep-interval")

    def _run_name(self, flag: _Flag) -> None:
        value = flag.value.rstrip("/")
        folder, slash, value = value.rpartition("/") if flag.name == "run.dir" else ("", "", value)
        if flag.unknown or not re.fullmatch(RUN_ID, value):
            self.out.changed.append(f"{flag.masked_text} is left out: the run's name and folder are [run] id here.")
            return
        if slash:
            before = self.out.settings.get("job.output_dir", "outputs")
            self.out.settings["job.output_dir"] = folder if folder.startswith("/") else f"{before}/{folder}"
            self.out.changed.append(
                f"{flag.masked_text} is [job] output_dir = {json.dumps(folder)} and [run] id = {json.dumps(value)}."
            )
        if flag.name == "run.name" and self.out.name and self.out.name != value:
            self.out.changed.append(
                f"{flag.masked_text} is left out: the run's folder, {self.out.name}, is its name as well."
            )
            return
        self.out.name = value
        self.out.kept.append(f"{flag.masked_text} is [run] id = {json.dumps(value)}")

    # ---------------------------------------------------------------- what several flags say together

    def _say_resumes(self) -> None:
        if not self.resumes:
            return
        shown = " ".join(flag.masked_text for flag in self.resumes)
        steps = [whole(flag.value, 0) for flag in self.resumes if not flag.name.endswith("dir")]
        self.out.step = next((step for step in steps if step is not None), None)
        tail = "The supervisor names the step in each start: the newest whole one, here or in the store."
        if self.out.step is not None:
            tail += f" To begin at that one: rl-supervisor run RUN.toml --step {self.out.step}"
        self.out.changed.append(f"{shown} is left out. {tail}")
        for flag in self.resumes:
            if flag.name == "resume.dir":
                self.out.to_do.append(
                    f"{flag.masked_text} began this run from another run's checkpoint, and the supervisor resumes only "
                    "from the run's own: before the first start copy that step, trainer/ and orchestrator/, to "
                    "checkpoints/ of the run's folder."
                )

    def _set_interval(self) -> None:
        told = {flag.name: whole(flag.value, 1) for flag in self.intervals if not flag.unknown}
        known = {name: number for name, number in told.items() if number is not None}
        for flag in self.intervals:
            if flag.name not in known:
                self.out.changed.append(
                    f"{flag.masked_text} is left out: no whole number is known for it. See [job] checkpoint_interval."
                )
        if not known:
            return
        named = (known.get(f"{table}.interval") for table in _CKPT)
        taken = next((number for number in named if number is not None), min(known.values()))
        self.out.settings["job.checkpoint_interval"] = taken
        shown = " ".join(flag.masked_text for flag in self.intervals)
        if len(set(known.values())) > 1:
            self.out.changed.append(
                f"{shown} say different things, and prime-rl takes one interval for all: {taken} is taken."
            )
        else:
            self.out.kept.append(f"{shown} is [job] checkpoint_interval = {taken}")

    def _read_gpu_flag(self, flag: _Flag, part: tuple[str, str]) -> None:
        style, which = part
        said: list[int] | None
        if style == "ids":
            said = numbers(flag.values)
        else:
            count = whole(flag.value, 1)
            said = [count] if count is not None and count <= MOST_GPUS else None
        if said is None or (self.kind == "sft" and which != "trainer"):
            self.out.args += flag.words
        else:
            self.gpus[which] = (style, said, flag)

    def _set_gpus(self) -> None:
        if not self.gpus:
            return
        flags = [flag for _, _, flag in self.gpus.values()]
        found = chosen(
            {which: (style, said) for which, (style, said, _) in self.gpus.items()},
            sft=self.kind == "sft",
            engine=self.engine,
            teacher=any("teacher" in word for word in self.out.args),
            visible=self.visible,
        )
        if found is None:
            for flag in flags:
                self.out.args += flag.words
            return
        inference, trainer = found
        if inference:
            self.out.settings["gpus.inference"] = inference
        self.out.settings["gpus.trainer"] = trainer
        shown = " ".join(flag.masked_text for flag in flags)
        names = f"inference = {inference}, trainer = {trainer}" if inference else f"trainer = {trainer}"
        self.out.kept.append(f"{shown} is [gpus] {names}")

    def _set_wandb(self) -> None:
        known = {
            part: flag.value
            for part, flag in self.wandb.items()
            if _WANDB_ID.fullmatch(flag.value) and not flag.unknown
        }
        stems = {value.removesuffix(f"-{part}") if part else value for part, value in known.items()}
        two = {"trainer", "orchestrator"} & set(known)
        fits = all(known[part].endswith(f"-{part}") for part in two)
        shown = " ".join(flag.masked_text for flag in self.wandb.values())
        if len(stems) == 1 and fits and len(known) == len(self.wandb):
            self.out.settings["wandb.id"] = stems.pop()
            self.out.kept.append(f"{shown} is [wandb] id")
        elif self.wandb:
            self.out.changed.append(
                f"{shown} is left out: W&B's run id is [wandb] id here, and where prime-rl logs to two runs, they are "
                "called by it with -trainer and -orchestrator behind. These runs begin anew in W&B."
            )

    def _set_files(self) -> None:
        out = self.out
        if self.kind == "vf-rl" and out.args:
            out.changed.append(
                f"{mask_secrets(' '.join(out.args))} is left out: vf-rl reads its configuration and no further words."
            )
            out.args = []
        if out.config and out.parts:
            self.mixed += [f"--{part} @ {path}" for part, path in out.parts.items()]
            out.parts = {}
        for text in self.mixed:
            name = f"{TO_DO}{re.sub(r'[^A-Za-z0-9.-]+', '-', text).strip('-').removesuffix('.toml')}.toml"
            out.config.append(name)
            table = text.partition(" ")[0].removeprefix("--")
            out.to_do.append(
                f"`{mask_secrets(text)}` beside other files has no setting of its own: copy that file, put [{table}] "
                f"above its first line and `{table}.` into each of its [tables], and name the copy for {name}."
            )
        if out.parts and not out.config and self.kind == "rl":
            for part in ("trainer", "orchestrator"):
                if part not in out.parts:
                    out.parts[part] = f"{TO_DO}{part}.toml"
                    out.to_do.append(
                        f"The line names no file for --{part}, and the run file needs one: an empty one does."
                    )
        if not out.config and not out.parts:
            out.config.append(f"{TO_DO}{self.kind}.toml")
            out.to_do.append("The line names no configuration file, and the run file needs one: an empty one does.")


_RESUME_PARTS = {f"{part}.resume{rest}" for part in ("trainer", "orchestrator") for rest in ("", ".step", ".dir")}


def keep(out: Translation, shown: str, number: int, *, every: bool) -> None:
    """A keep policy of prime-rl's as ours. prime-rl itself is told to keep all: only we know what is published."""
    if every:
        out.settings["store.keep_every"] = number
        said = f"{shown} is [store] keep_every = {number}: such steps stay in the store, not on this disk."
    else:
        stored = max(2, number)
        out.settings["store.keep_last"], out.settings["disk.keep_local"] = stored, number
        least = " (two is the least)" if stored > number else ""
        said = f"{shown} is [store] keep_last = {stored}{least} and [disk] keep_local = {number}; prime-rl keeps all."
    if said not in out.changed:
        out.changed.append(said)


def settle(out: Translation) -> None:
    """Take out of the words what a setting says now, since the supervisor would refuse to be told it twice."""
    words, out.args = out.args, []
    while words:
        end = next((at for at in range(1, len(words)) if words[at].startswith("--")), len(words))
        name = _as_kebab(words[0].removeprefix("--").partition("=")[0])
        setting = ""
        if name.rpartition(".")[2] == "max-steps" and "run.max_steps" in out.settings:
            setting = "[run] max_steps"
        elif names_gpus(name) and ("gpus.trainer" in out.settings or "gpus.inference" in out.settings):
            setting = "[gpus]"
        if setting:
            out.changed.append(f"{mask_secrets(' '.join(words[:end]))} is left out: {setting} says it.")
        else:
            out.args += words[:end]
        words = words[end:]


def of_files(out: Translation, settings: Settings, *, sft: bool) -> None:
    """What the files themselves say, and the supervisor's own words would overrule, where the line did not say it.

    The flags that are always given are those of `command.arguments`: the interval, the folder, the run's name, and a
    keep policy that keeps all.
    """
    tables = ("ckpt",) if sft else _CKPT
    if "job.checkpoint_interval" not in out.settings:
        number = settings.number(*spellings(*(f"{table}.interval" for table in tables)))
        if number is not None and number > 0:
            out.settings["job.checkpoint_interval"] = number
            out.kept.append(f"ckpt.interval = {number} of the configuration is [job] checkpoint_interval")
    folder = settings.get("output_dir")
    if "job.output_dir" not in out.settings and isinstance(folder, str) and folder:
        out.settings["job.output_dir"] = folder
        out.kept.append(f"output_dir of the configuration is [job] output_dir = {json.dumps(folder)}")
    name = settings.get("run.dir", "run.name")
    if not out.name and isinstance(name, str) and re.fullmatch(RUN_ID, name):
        out.name = name
        out.kept.append(f"the configuration's name for the run is [run] id = {json.dumps(name)}")
    for word, every in (("keep", False), ("keep_interval", True)):
        key = "store.keep_every" if every else "store.keep_last"
        number = settings.number(*spellings(*(f"{table}.{word}" for table in tables)))
        if key not in out.settings and number is not None and number > 0:
            keep(out, f"{spellings(f'ckpt.{word}')[0]} = {number} of the configuration", number, every=every)


def _as_kebab(name: str) -> str:
    return name.replace("_", "-").lower()
