"""The text of a run file that `init` writes: settings in the order in which a person reads them, and why."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from supervisor import __version__
from supervisor.base.secrets import mask_secrets
from supervisor.cli import pod as pods
from supervisor.cli.launch_settings import Draft
from supervisor.cli.pod import Pod
from supervisor.config.run_file import about_key
from supervisor.config.settings import RunFile
from supervisor.config.toml_text import COLUMNS, key_text, value_text
from supervisor.core.words import size

_STORE = """\
[store]
# Where complete steps are published. Without it they stay in a folder on this machine, which a lost pod
# takes with it. The key needs listFiles, readFiles, writeFiles and deleteFiles on this one bucket.
# url = "b2://my-bucket/prefix\""""
_DISK = """\
[disk]
# Used part of the checkpoint volume above which published steps are deleted here, oldest first.
# prune_above = 0.85"""
_HEARTBEAT = """\
[heartbeat]
# {provider} may take a pod without a word: a page that calls people when this stops
# (Healthchecks.io and the like). The address is a secret: RL_HEARTBEAT_URL in the .env does as well.
# url = "https://hc-ping.com/your-key\""""
_SETUP = """\
[setup]
# Lines of the script that a fresh pod may need. `onstart` runs such commands first, `run` does not.
# What fetches the model belongs into `beside`: it runs beside the commands and the restore.
# beside = ["uvx --from huggingface_hub hf download ORG/MODEL"]
# commands = ["""
_HOOKS = """\
[hooks]
# A shell command after the last step is published: end the pod's billing here."""


def run_file_text(pod: Pod, draft: Draft, run_id: str) -> str:
    """The whole file. Every value is written with TOML's own quoting, whatever a folder's name is."""
    settings, provider = draft.settings, pod.provider
    sections: list[Iterable[str]] = [
        _head_of_file(pod, draft),
        ["[run]", *_setting_lines(draft, "run.id", run_id), *_setting_lines(draft, "run.max_steps", None, "1000")],
        _job_table(pod, draft, run_id),
        ["[job.env]", *(f"{key_text(name)} = {value_text(value)}" for name, value in draft.env.items())]
        if draft.env
        else [],
        ["[job.plain]", *_plain_job_table(draft)] if draft.plain else [],
        ["[gpus]", *_gpus_table(pod, draft)],
        ["[wandb]", *_setting_lines(draft, "wandb.id")] if "wandb.id" in settings else [],
        [
            _STORE,
            *_setting_lines(draft, "store.keep_last", None, "3"),
            *_setting_lines(draft, "store.keep_every", None, "100"),
        ],
        [_DISK, *_setting_lines(draft, "disk.keep_local", None, "2")],
        _leaving_table(pod) if provider.grace_s is not None else [],
        [_HEARTBEAT.format(provider=provider.name)] if not provider.notice else [],
        [_SETUP, *(f"#   {value_text(_printable_text(line))}," for line in draft.prepared), "# ]"]
        if draft.prepared
        else [],
        [_HOOKS, f"# finish = {value_text(provider.finish or '...')}"],
    ]
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def _head_of_file(pod: Pod, draft: Draft) -> Iterator[str]:
    yield "# A run of rl-supervisor. All settings and their defaults are in docs/settings.md of its repository."
    yield "# Secrets (B2_APPLICATION_KEY_ID, B2_APPLICATION_KEY, WANDB_API_KEY, ...) never stand here: put them into"
    yield "# the daemon's environment, into the .env beside this file, or into systemd credentials."
    yield "#"
    yield f"# Found by `rl-supervisor init` ({__version__}):"
    for line in pods.describe_pod(pod):
        yield from comment(line, "    " if line.startswith(" ") else "  ")
    if draft.source:
        yield "#"
        yield "# Taken from this launch line:"
        yield from comment(draft.source, "  ")
    for title, sentences in (
        ("What of it stands where:" if draft.source else "Taken from the configuration:", draft.kept),
        ("What is not as the line said it:", draft.changed),
        ("TO DO before the first start:", draft.to_do),
    ):
        if sentences:
            yield "#"
            yield f"# {title}"
            for sentence in sentences:
                yield from comment(sentence, "  - ")


def _job_table(pod: Pod, draft: Draft, run_id: str) -> Iterator[str]:
    settings = draft.settings
    yield "[job]"
    yield f"kind = {value_text(settings.get('job.kind', 'rl'))}"
    if settings.get("job.kind") == "command":
        yield "# Where the command runs."
        yield f"dir = {value_text(settings['job.dir'])}"
    elif "job.dir" in settings:
        yield from _setting_lines(draft, "job.dir")
    else:
        yield "# The installed prime-rl. None was found on this machine: set this."
        yield 'dir = "/workspace/prime-rl"'
    for key in ("python", "launcher"):
        yield from _setting_lines(draft, f"job.{key}")
    yield from _config_lines(pod, draft)
    yield from _output_lines(pod, draft, run_id)
    if settings.get("job.kind") != "command":  # which saves as often as its own words say
        yield from _setting_lines(draft, "job.checkpoint_interval", "auto")
    for key in ("args", "pass_env", "nofile"):
        yield from _setting_lines(draft, f"job.{key}")


def _config_lines(pod: Pod, draft: Draft) -> Iterator[str]:
    settings = draft.settings
    if settings.get("job.kind") == "command":
        return
    if "job.config" in settings or "job.trainer_config" in settings:
        others = [] if draft.source else [one for one in pod.machine.configs[1:] if not one.split][:8]
        value = settings.get("job.config")
        if value is not None:
            yield "# The file after `rl @`." + (" Found besides:" if others else "")
            for other in others:
                yield from comment(str(other.path), "  ")
            yield f"config = {value_text(value[0] if isinstance(value, list) and len(value) == 1 else value)}"
        if "job.trainer_config" in settings or "job.orchestrator_config" in settings:
            yield "# prime-rl's three files."
        for part in ("trainer", "orchestrator", "inference"):
            if f"job.{part}_config" in settings:
                yield f"{part}_config = {value_text(settings[f'job.{part}_config'])}"
    else:
        yield "# The file after `rl @`. None was found on this machine: set this."
        yield 'config = "rl.toml"'


def _output_lines(pod: Pod, draft: Draft, run_id: str) -> Iterator[str]:
    better = pods.better_volume(pod)
    place = f"{better.mount.rstrip('/')}/outputs/{run_id}" if better else ""
    yield from comment(_about("job.output_dir"))
    if better:
        yield from comment(
            f"{better.mount} has {size(better.free_bytes)} free and is likely to outlive this container and its own "
            "disk."
        )
    if "job.output_dir" in draft.settings:
        if better:
            yield f"# output_dir = {value_text(place)}"
        yield f"output_dir = {value_text(draft.settings['job.output_dir'])}"
    elif better and not draft.source:
        yield f"output_dir = {value_text(place)}"
    else:
        yield f"# output_dir = {value_text(place or 'outputs')}"


def _plain_job_table(draft: Draft) -> Iterator[str]:
    yield "# The command of a fresh start. {run_id}, {output_dir} and {wandb_id} are filled in."
    yield f"start = {value_text(draft.plain['start'])}"
    yield "# TO DO: the command that resumes. {checkpoint} is the folder of the step, {step} its number: one of them"
    yield "# must stand here, or `check` refuses this file."
    yield f"resume = {value_text(draft.plain['resume'])}"
    if "engine_url" in draft.plain:
        yield "# Where the engine answers that the command starts."
        yield f"engine_url = {value_text(draft.plain['engine_url'])}"
    yield "# TO DO: the folder of a step below output_dir, and files in it without which it is not whole (these are an"
    yield "# example: Hugging Face's Trainer)."
    yield '# checkpoint = "checkpoint-{step}"'
    yield '# markers = ["trainer_state.json", "optimizer.pt"]'
    yield "# How a line looks that says that a step is done; without it a job that hangs is noticed late."
    yield "# step_line = 'step (?P<step>\\d+)'"


def _gpus_table(pod: Pod, draft: Draft) -> Iterator[str]:
    yield "# The GPUs of the run, as nvidia-smi numbers them. Without it, what the trainer's configuration says."
    for gpu in pod.machine.gpus:
        memory = size(gpu.total_bytes) if gpu.total_bytes else "unknown memory"
        yield from comment(f"{gpu.index}: {gpu.name}, {memory}, {gpu.uuid}", "  ")
    if "gpus.trainer" in draft.settings or "gpus.inference" in draft.settings:
        for part in ("inference", "trainer"):
            if f"gpus.{part}" in draft.settings:
                yield f"{part} = {value_text(draft.settings[f'gpus.{part}'])}"
    else:
        count = len(pod.machine.gpus)
        half = max(1, count // 2)
        inference, trainer = list(range(half)), list(range(half, count)) or [0 if count == 1 else 1]
        yield f"# inference = {inference}"
        yield f"# trainer = {trainer}"


def _leaving_table(pod: Pod) -> Iterator[str]:
    provider = pod.provider
    yield "[leaving]"
    yield f"# Seconds from SIGTERM to the kill, on {provider.name}."
    yield f"{'' if pod.site.provider == 'runpod' else '# '}grace_s = {provider.grace_s}"


# ---------------------------------------------------------------- TOML


def _setting_lines(draft: Draft, key: str, default: object = None, shown: str = "") -> Iterator[str]:
    """A setting with what it is about; one without a value as a comment with ``shown``, or not at all."""
    name = key.partition(".")[2]
    value = draft.settings.get(key, default)
    if value is None and not shown:
        return
    yield from comment(_about(key))
    yield f"{name} = {value_text(value)}" if value is not None else f"# {name} = {shown}"


def _about(key: str) -> str:
    """What docs/settings.md says of a setting."""
    return about_key(RunFile, tuple(key.split(".")))


def comment(text: str, indent: str = "") -> list[str]:
    """``text`` as comment lines, with no character that a comment may not hold, and no secret."""
    first = f"# {indent}"
    rest = "# " + " " * len(indent)
    plain = _printable_text(mask_secrets(text))
    return textwrap.wrap(
        plain, COLUMNS, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    ) or [first.rstrip()]


def _printable_text(text: str) -> str:
    flat = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in flat)
