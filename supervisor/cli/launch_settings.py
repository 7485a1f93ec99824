"""From a launch line that was found to the settings of a run file that mean the same, and what a person must know."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

from supervisor.base.errors import ConfigError
from supervisor.base.secret_shapes import SECRET_NAME
from supervisor.base.secrets import mask_secrets, remember
from supervisor.cli.launch_found import Found, Launch, safe
from supervisor.cli.launch_words import COMPONENTS, ENGINES
from supervisor.cli.machine import is_prime_rl
from supervisor.cli.shell_words import Word
from supervisor.config.settings import Job
from supervisor.jobs.environment import NEVER
from supervisor.primerl.command import FIXED_ENVIRONMENT
from supervisor.primerl.configs import Settings, Source, load
from supervisor.primerl.launch_flags import MOST_GPUS, PARTS, TO_DO, Translation, of_files, settle, translate

NOFILE: int = Job.model_fields["nofile"].default
PASSED: Sequence[str] = Job.model_fields["pass_env"].default

_POINTER = re.compile(r"(?i)_(path|file|dir|sock)$")  # HF_TOKEN_PATH names a place
_WANDB_NAMES = ("WANDB_RUN_ID", "PRL_RUN_ID", "WANDB_SHARED_RUN_ID")
_SHELLS_OWN = {"PWD", "OLDPWD", "SHLVL", "_", "IFS", "PS1", "TMUX", "STY", "WANDB_RESUME"}
# torchrun's options that say nothing else than what the launcher's own start of it says, or only where logs go.
_TORCHRUN_USUAL = re.compile(
    r"--(standalone|nnodes|node-rank|local-ranks?-filter|log-dir|redirects|tee|rdzv-[a-z]+|master-(?:addr|port)|max-restarts)$"
)
_OUTPUT = re.compile(r"(?:--|\+{0,2})(?:training_args\.)?output[_-]dir(?:=(.+))?$")


@dataclass
class Draft:
    """What a run file is written from. Keys of ``settings`` are dotted keys of the run file."""

    settings: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    source: str = ""
    """The launch line, without secrets."""
    kept: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    """Names of secrets that the line sets: their place is the .env."""


def draft(
    found: Found,
    *,
    job_dir: Path | None,
    installed: Path | None,
    environ: Mapping[str, str],
    here: Path,
    gpus: int,
    script: Path | None,
) -> Draft:
    """The settings for the launch line of ``found``.

    ``job_dir``: the checkout that a person named, ``installed``: one that was found on this machine, ``gpus``: how many
    there are (0: not known), ``script``: the file that was read. Raises ConfigError when there is no such line.
    """
    launch = found.chosen()
    if launch is None or launch.entry in COMPONENTS:
        raise ConfigError(_no_launch(found, launch))
    drawer = _Drawer(found, launch, environ, here, gpus)
    if launch.kind == "command":
        drawer.command(script)
    else:
        drawer.prime_rl(job_dir, installed)
    return drawer.out


def _no_launch(found: Found, launch: Launch | None) -> str:
    parts = [one for one in (*found.launches, *found.parts) if one.entry in COMPONENTS]
    if launch is not None or any(one.entry in ("trainer", "orchestrator") for one in parts):
        files = {one.entry: _word_behind("@", one) for one in parts}
        line = " ".join(f"--{part} @ {files.get(part) or f'{part}.toml'}" for part in PARTS)
        return (
            "Only parts of prime-rl are started there, one by one, and a supervisor that restarts one of them would "
            f"leave the others behind. One line starts them all: `uv run rl {line}`. Give that to init --from."
        )
    if found.parts:
        return "Only an inference server is started there: give the line that starts the training."
    told = " ".join(found.told[:3])
    return (
        "No launch line was found there: no rl, sft, vf-rl, torchrun, accelerate, deepspeed or python. Give the line "
        f"itself: rl-supervisor init --from 'uv run rl @ rl.toml'. {told}"
    ).rstrip()


def _word_behind(flag: str, launch: Launch) -> str:
    words = [word.text for word in launch.launcher]
    return next((value for word, value in pairwise(words) if word == flag), "")


class _Drawer:
    def __init__(self, found: Found, launch: Launch, environ: Mapping[str, str], here: Path, gpus: int) -> None:
        self.found, self.launch, self.environ, self.here, self.gpus = found, launch, environ, here, gpus
        self.out = Draft(source=safe(launch.source), prepared=list(found.prepared))
        self.folder = launch.folder or here
        self.out.changed += found.told
        others = [one for one in found.launches if one is not launch and one.rank == launch.rank]
        if others and any(one.arguments != launch.arguments for one in others):
            lines = ", ".join(str(one.line) for one in others)
            self.out.changed.append(
                f"The text has several launch lines: that of line {launch.line} was taken, not that of line {lines}."
            )
        self._settings_of_limits()
        self._settings_of_environment()
        self.visible = self._visible_gpus()
        self._ask_for_reading(launch.line)

    # ---------------------------------------------------------------- what holds around the line

    def _ask_for_reading(self, launch: int) -> None:
        """What a shell decides only when the script runs, a person has to look at."""
        if lines := list(dict.fromkeys(str(line) for line in self.found.conditions if line <= launch)):
            self.out.to_do.append(
                f"What stands under a condition (line {', '.join(lines)}) was read as if that held, one arm after the "
                "other: compare this file with what holds for your run."
            )
        for name, body in self.found.functions.items():
            if launch in body:
                self.out.to_do.append(
                    f"The line stands in the function {name}, which was read where it is written: compare the words, "
                    "the folder and the variables of its call with this file."
                )

    def _settings_of_limits(self) -> None:
        asked = self.found.nofile
        if asked is None:
            return
        if asked > NOFILE:
            self.out.settings["job.nofile"] = asked
            self.out.kept.append(f"ulimit -n {asked} is [job] nofile")
        else:
            self.out.kept.append(f"ulimit -n {asked}: the job gets {NOFILE} here, [job] nofile")

    def _settings_of_environment(self) -> None:
        out = self.out
        for name, given in self.launch.env.items():
            value = _beside_the_pods(name, given, self.environ.get(name))
            if name in _SHELLS_OWN or (name not in _WANDB_NAMES and FIXED_ENVIRONMENT.get(name) == value.text):
                continue
            if (SECRET_NAME.search(name) and not _POINTER.search(name)) or (
                not value.unknown and mask_secrets(value.text) != value.text
            ):
                remember(value.text)
                out.secrets.append(name)
            elif any(fnmatchcase(name, glob) for glob in NEVER):
                out.changed.append(f"{name} is left out: the job runs code that models wrote, and never sees it.")
            elif value.unknown:
                out.changed.append(
                    f"{name}={mask_secrets(value.text)} is left out: what {mask_secrets(value.unknown[0])} is, "
                    "is not known."
                )
            elif name in _WANDB_NAMES:
                self._settings_of_wandb(name, value.text)
            elif name in FIXED_ENVIRONMENT:
                out.changed.append(
                    f"{name}={value.text} is left out: the supervisor needs {FIXED_ENVIRONMENT[name]} there."
                )
            elif "\0" not in value.text and (name != "PATH" or value.text != self.environ.get("PATH")):
                out.env[name] = value.text
                if f"${name}" in value.text:
                    out.kept.append(
                        f"{name}={mask_secrets(value.text)} is in [job.env]: ${name} there is what the daemon has "
                        "on each pod"
                    )
        unasked = [name for name in out.secrets if not any(fnmatchcase(name, glob) for glob in (*PASSED, *NEVER))]
        if unasked:
            out.settings["job.pass_env"] = [*PASSED, *unasked]
        for name in out.secrets:
            never = any(fnmatchcase(name, glob) for glob in NEVER)
            told = "which only the supervisor sees" if never else "from where the job gets it by [job] pass_env"
            out.changed.append(f"{name} is a secret: it is not written here. Put it into the .env, {told}.")

    def _settings_of_wandb(self, name: str, value: str) -> None:
        if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value):
            self.out.settings["wandb.id"] = value
            self.out.kept.append(f"{name} is [wandb] id")
        else:
            self.out.changed.append(f"{name} is left out: {mask_secrets(value)!r} is no id of W&B.")

    def _visible_gpus(self) -> list[int] | None:
        text = self.out.env.get("CUDA_VISIBLE_DEVICES")
        parts = [part.strip() for part in (text or "").split(",")]
        return [int(part) for part in parts] if text and all(re.fullmatch(r"\d{1,4}", part) for part in parts) else None

    # ---------------------------------------------------------------- prime-rl, and verifiers' small trainer

    def prime_rl(self, job_dir: Path | None, installed: Path | None) -> None:
        out, launch = self.out, self.launch
        self._settle_checkout(job_dir or installed)
        checkout = job_dir.absolute() if job_dir is not None else self.folder
        out.settings["job.kind"] = launch.kind
        out.settings["job.dir"] = str(checkout)
        venv = self._find_venv()
        if (
            venv is None
            and launch.kind != "vf-rl"
            and not is_prime_rl(checkout)
            and (elsewhere := self._find_checkout())
        ):
            venv = elsewhere / ".venv"
        if venv is not None and venv != checkout / ".venv":
            out.settings["job.python"] = str(venv / "bin" / "python")
            out.kept.append(f"the environment {venv} is [job] python")
        words = [word.text for word in launch.arguments]
        unknown = {number: word.unknown[0] for number, word in enumerate(launch.arguments) if word.unknown}
        told = translate(words, unknown, kind=launch.kind, visible=self.visible, shown=launch.entry)
        files = self._configuration_files(told)
        if files is not None and launch.kind == "rl" and not files.has("inference"):
            told = translate(words, unknown, kind=launch.kind, visible=self.visible, shown=launch.entry, engine=False)
        if any(f"${name}" in unknown.values() for name in self.found.loops):
            told.to_do.append("The line stands in a loop: each round is a run of its own, with a run file of its own.")
        if files is not None:
            of_files(told, files, sft=launch.kind == "sft")
        self._settings_of_launcher(told, checkout, venv)
        self._engine_beside(told)
        settle(told)
        self._take_flags(told, checkout)

    def _settle_checkout(self, checkout: Path | None) -> None:
        """A line that was not typed where it runs: its files are not below this folder, and prime-rl is elsewhere."""
        program = self.launch.launcher[-1].text
        if checkout is None or self.launch.kind == "vf-rl" or is_prime_rl(self.folder) or program.startswith("/"):
            return
        named = [path.text for word, path in pairwise(self.launch.arguments) if word.text == "@"]
        relative = [path for path in named if not path.startswith(("/", "~"))]
        if self.launch.folder == self.here and not any((self.folder / path).exists() for path in relative):
            self.folder = checkout.absolute()
            self.out.changed.append(f"The line is taken to run in {self.folder}, where prime-rl is.")

    def _find_checkout(self) -> Path | None:
        """The prime-rl that the line means, where it does not run in its folder."""
        launch, program = self.launch, self.launch.launcher[-1].text
        places = [launch.project] if launch.project else []
        if "/" in program:
            places += [one.parent for one in Path(os.path.normpath(self.folder / program)).parents if one.name == "src"]
        places += self.folder.parents  # as uv itself looks for a project
        return next((Path(os.path.normpath(place)) for place in places if is_prime_rl(place)), None)

    def _find_venv(self) -> Path | None:
        program = self.launch.launcher[-1].text if not self.launch.torchrun else self.launch.launcher[0].text
        if re.search(r"/bin/(rl|sft|vf-rl|rl_local|torchrun)$", program):
            return Path(os.path.normpath(self.folder / program)).parent.parent
        venv, ran = self.launch.venv, self.launch.folder
        if venv is not None and ran is not None and self.launch.venv_below and ran != self.folder and not venv.exists():
            return Path(os.path.normpath(self.folder / os.path.relpath(venv, ran)))  # as its files: see _settle
        return venv

    def _configuration_files(self, told: Translation) -> Settings | None:
        """The configuration as the line names it, where all of it is here."""
        named = [*(("", path) for path in told.config), *((part, path) for part, path in told.parts.items())]
        files = [
            Source(Path(os.path.normpath(self.folder / Path(self._resolve_path(path, self.folder)).expanduser())), part)
            for part, path in named
        ]
        try:
            return load(files, told.args)
        except ConfigError:
            return None  # the check says what is wrong with it

    def _settings_of_launcher(self, told: Translation, checkout: Path, venv: Path | None) -> None:
        launch = self.launch
        words = launch.launcher
        if launch.processes is not None or launch.torchrun or "torchrun" in [Path(word.text).name for word in words]:
            if self._settings_of_torchrun(told):
                return
        elif launch.plain and launch.entry != "rl_local":
            return
        elif len(words) == 1 and venv is not None and words[0].text.endswith(f"/bin/{launch.entry}"):
            return  # [job] python says it, or the checkout's own is the default
        if any(word.unknown for word in words):
            shown = mask_secrets(" ".join(word.text for word in words))
            told.to_do.append(
                f"{shown}: not all of that is known here. Write the words before the @ into [job] launcher."
            )
            return
        texts = [word.text for word in words]
        if checkout != self.folder and "/" in texts[-1] and not texts[-1].startswith("/"):
            texts[-1] = os.path.normpath(self.folder / texts[-1])
        if any(mask_secrets(text) != text for text in texts):
            told.changed.append("The words before the @ hold a secret: they are left out. See [job] launcher.")
            return
        self.out.settings["job.launcher"] = texts
        self.out.kept.append(f"`{' '.join(texts)}` is [job] launcher")

    def _engine_beside(self, told: Translation) -> None:
        """An inference server that the text starts by itself."""
        engines = [one for one in self.found.parts if one.entry in ENGINES]
        if not engines or self.launch.kind != "rl":
            return
        file = _word_behind("@", engines[-1]) or "FILE.toml"
        told.to_do.append(
            f"Line {engines[-1].line} starts an inference server of its own, which this run file does not. To have it "
            f'started and watched beside the job: [job] inference_config = "{mask_secrets(file)}" and [recovery] '
            'inference = "own-role". Where it runs elsewhere: [job] engine_url.'
        )

    def _settings_of_torchrun(self, told: Translation) -> bool:
        """[gpus] says as much as this torchrun line does; if it does not, the words stay as they are."""
        visible = self.visible
        processes = self.launch.processes.text if self.launch.processes else "1"
        count = int(processes) if re.fullmatch(r"\d{1,3}", processes) else 0
        if processes in ("gpu", "auto"):
            count = len(visible) if visible else self.gpus
        numbers = list(visible) if visible is not None else list(range(count))
        names = [
            word.text.replace("_", "-").partition("=")[0] for word in self.launch.torchrun if word.text.startswith("-")
        ]
        usual = all(_TORCHRUN_USUAL.match(name) for name in names)
        if not 0 < count <= MOST_GPUS or len(numbers) < count or "gpus.trainer" in told.settings:
            return False
        told.settings["gpus.trainer"] = numbers[:count]
        told.kept.append(f"--nproc-per-node {processes} is [gpus] trainer = {numbers[:count]}")
        if usual and names:
            shown = mask_secrets(" ".join(word.text for word in self.launch.torchrun))
            told.changed.append(
                f"{shown} of torchrun is left out: sft starts torchrun with its own words, on these GPUs."
            )
        return usual

    def _take_flags(self, told: Translation, checkout: Path) -> None:
        out = self.out
        out.name = told.name
        out.settings |= told.settings
        if "gpus.trainer" in told.settings and self.visible is not None:
            chosen = [*told.settings.get("gpus.inference", []), *told.settings["gpus.trainer"]]
            if set(chosen) <= set(self.visible):
                del out.env["CUDA_VISIBLE_DEVICES"]
                out.kept.append("CUDA_VISIBLE_DEVICES is in [gpus]")
        if told.config:
            out.settings["job.config"] = [self._resolve_path(path, checkout) for path in told.config]
        for part, path in told.parts.items():
            out.settings[f"job.{part}_config"] = self._resolve_path(path, checkout)
        if checkout != self.folder:
            folder = told.settings.get("job.output_dir", "outputs")
            out.settings["job.output_dir"] = self._resolve_path(folder, checkout)
            out.changed.append(
                f"The job runs in {checkout}, the line ran in {self.folder}: its files and output folder are written "
                "as full paths. Relative paths in other words, or in the configuration, are below the former now."
            )
        elif "job.output_dir" in out.settings:
            out.settings["job.output_dir"] = self._resolve_path(out.settings["job.output_dir"], checkout)
        if told.args:
            out.settings["job.args"] = told.args
        out.kept += told.kept
        out.changed += told.changed
        out.to_do += told.to_do

    def _resolve_path(self, path: str, checkout: Path) -> str:
        if path.startswith("~") and path != "~" and not path.startswith("~/"):
            return str(self.folder / path)  # no user's home: the shell left it, and it is a name like others
        if path.startswith((TO_DO, "/", "~")) or checkout == self.folder:
            return path
        return os.path.normpath(self.folder / path)

    # ---------------------------------------------------------------- any other command

    def command(self, script: Path | None) -> None:
        out, launch = self.out, self.launch
        out.settings["job.kind"] = "command"
        out.settings["job.dir"] = str(self.folder)
        if self.visible is not None:
            out.settings["gpus.trainer"] = self.visible
            del out.env["CUDA_VISIBLE_DEVICES"]
            out.kept.append(f"CUDA_VISIBLE_DEVICES is [gpus] trainer = {self.visible}")
        engines = [one for one in self.found.parts if one.entry in ENGINES]
        if engines:
            self._engine_of_a_command(engines[-1])
        words = launch.launcher
        if engines or any(word.unknown for word in words):
            words = self._whole_script(script, engines) or words
        out.plain["start"] = self._safe_words(words)
        out.plain["resume"] = list(out.plain["start"])
        self._output_folder(launch.launcher)
        out.to_do.append(
            "[job.plain] resume: these are the words of a fresh start. Add those that make your trainer go on from a "
            "step: {checkpoint} is the step's folder, {step} its number (with Hugging Face's Trainer often "
            "--resume_from_checkpoint {checkpoint}). `check` refuses the file until one of them is there."
        )
        out.to_do.append(
            "[job.plain] checkpoint, markers and step_line: see configs/other-trainer.toml for what they mean, and set "
            "them to what your trainer writes."
        )

    def _engine_of_a_command(self, engine: Launch) -> None:
        """Where the engine that the same text starts answers, and on which GPUs."""
        port = _word_behind("--port", engine) or "8000"  # vLLM's default
        if re.fullmatch(r"\d{1,5}", port):
            self.out.plain["engine_url"] = f"http://127.0.0.1:{port}"
        seen = engine.env.get("CUDA_VISIBLE_DEVICES", Word("")).text
        if "gpus.trainer" in self.out.settings and re.fullmatch(r"\d{1,4}(,\d{1,4})*", seen):
            self.out.settings["gpus.inference"] = [int(part) for part in seen.split(",")]
            self.out.kept.append(f"CUDA_VISIBLE_DEVICES of {engine.entry} is [gpus] inference = [{seen}]")

    def _whole_script(self, script: Path | None, engines: Sequence[Launch]) -> tuple[Word, ...] | None:
        """The script itself as the command, where its line alone would not be the same."""
        out, launch = self.out, self.launch
        if engines:
            told = " and ".join(f"line {one.line} ({one.entry})" for one in (*engines, launch))
            out.to_do.append(
                f'The text starts two programs: {told}. A run of kind = "command" is one that ends with the training: '
                "put both into a script that stops the first when the second ends, and the second when the first dies, "
                'and ends with the second\'s exit code. For the small trainer of verifiers there is kind = "vf-rl".'
            )
        elif launch.launcher:
            unknown = next(word.unknown[0] for word in launch.launcher if word.unknown)
            out.changed.append(f"What {mask_secrets(unknown)} stands for is not known here.")
        if script is None:
            return None
        out.changed.append(f"{script} itself is the command: its launch line alone would not be the same.")
        return Word("bash"), Word(str(script))

    def _safe_words(self, words: Sequence[Word]) -> list[str]:
        """The words without secrets, and without those of unknown value."""
        kept: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            following = words[at + 1] if at + 1 < len(words) else Word("")
            pair = word.text.startswith("-") and "=" not in word.text and not following.text.startswith("-")
            group = (
                words[at : at + 2]
                if pair and (following.unknown or mask_secrets(following.text) != following.text)
                else [word]
            )
            if any(one.unknown or mask_secrets(one.text) != one.text for one in group):
                shown = mask_secrets(" ".join(one.text for one in group))
                self.out.to_do.append(
                    f"{shown} is left out of [job.plain] start: it is a secret, or not known here. See there."
                )
            else:
                kept += [one.text for one in group]
            at += len(group)
        return kept

    def _output_folder(self, words: Sequence[Word]) -> None:
        for number, word in enumerate(words):
            found = _OUTPUT.fullmatch(word.text)
            if found is None or word.unknown:
                continue
            value = found[1] or (words[number + 1].text if number + 1 < len(words) else "")
            if value and not value.startswith("-"):
                self.out.settings["job.output_dir"] = self._resolve_path(value, self.folder)
                self.out.kept.append(f"the output folder {value} is [job] output_dir, too")


def _beside_the_pods(name: str, given: Word, here: str | None) -> Word:
    """``PATH=/x:$PATH`` as it was written: what this machine has there is no other pod's."""
    if given.unknown:
        own = set(given.unknown) == {f"${name}"} and given.text != f"${name}"
        return Word(given.text) if own else given
    if not here or given.text == here:
        return given
    return Word(f":{given.text}:".replace(f":{here}:", f":${name}:")[1:-1])
