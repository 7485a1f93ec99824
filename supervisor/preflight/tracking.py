"""Weights and Biases, tokens, and how the parts of a run reach each other and their environments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from supervisor.preflight.finding import Finding, Severity
from supervisor.preflight.reading import first, has, number, sources
from supervisor.preflight.subject import Check, Subject

DEFAULT_PORT = 8000  # of the engine's server and of the orchestrator's client, in every era
LOCAL = {"localhost", "127.0.0.1", "0.0.0.0", "::1"}  # noqa: S104 - compared with, never bound

_WANDB = ("monitors.wandb", "wandb", "monitor.wandb")  # 9975d8868, 2026-08-15; f12e2f2ee, 2025-09-11; before it
_WANDB_OFF = {"offline", "disabled", "dryrun"}
_HF_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
_CLIENTS = ("orchestrator.model.client", "orchestrator.student.client", "orchestrator.client")
_TOKENIZERS = ("orchestrator.tokenizer.name", "tokenizer.name")
_MODELS = ("orchestrator.model.name", "orchestrator.student.model.name", "model.name")
_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
_BRINGS_NO_KEYS = re.compile(r"run|(?:.*/)?(?:uv|torchrun|python[\d.]*|rl|sft|\w+\.py)|-(?!-env-file).*|\d+")
"""A launcher's word that gives the job no variable of its own. `uv run --env-file` does, and a shell can."""
_ENV_VARS = ("env_vars", "trainer.env_vars", "orchestrator.env_vars", "inference.env_vars")


# ---------------------------------------------------------------- Weights and Biases


def _wandb_key(subject: Subject) -> Iterator[Finding]:
    """wandb.init without a key and without a terminal to ask at is an error, and ends trainer and orchestrator."""
    site = subject.site
    table = _check_logging(subject)
    if not table or not site.environ or site.netrc_wandb or _given_variable(subject, "WANDB_API_KEY"):
        return
    if _given_variable(subject, "WANDB_MODE").lower() in _WANDB_OFF or any(
        _given_variable(subject, name) for name in ("WANDB_IDENTITY_TOKEN_FILE", "WANDB_API_KEY_FILE", "WANDB_DISABLED")
    ):
        return
    told = f"[{table}] is on, and the job is given neither WANDB_API_KEY nor a login in its ~/.netrc."
    remedy = "Put WANDB_API_KEY into the .env file beside the run file, or run `wandb login` as the job's user."
    run = subject.run_file
    if run is not None and not any(fnmatchcase("WANDB_API_KEY", glob) for glob in run.job.pass_env):
        remedy = (
            'Put "WANDB_*" into [job] pass_env of the run file, and set WANDB_API_KEY in the daemon\'s environment.'
        )
    yield Finding("wandb-key", told, subject.where(table), remedy, _weight_of_missing_key(subject))


def _weight_of_missing_key(subject: Subject) -> Severity | None:
    """A warning where nothing will run on this machine (no GPU, or no run file), or where the launcher may bring it."""
    words = subject.run_file.job.launcher or () if subject.run_file else ()
    plain = all(_BRINGS_NO_KEYS.fullmatch(word) for word in words) and not _given_variable(subject, "UV_ENV_FILE")
    return None if subject.run_file is not None and not subject.site.elsewhere and plain else "warning"


def _check_logging(subject: Subject) -> str:
    """The W&B table of a part that logs to the server, "" where none does."""
    if subject.kind not in ("rl", "sft"):
        return ""
    settings = subject.settings
    parts = ("trainer.", "orchestrator.") if subject.kind == "rl" else ("",)
    for part in parts:
        for name in _WANDB:
            tables = [table for table in (f"{part}{name}", name) if settings.has(table)]
            if tables and not any(settings.is_on(f"{table}.offline") for table in tables):
                return tables[0]
    return ""


def _wandb_offline(subject: Subject) -> Iterator[Finding]:
    """Since 0f236d322 (2026-03-18) both parts log to one run, which needs the server."""
    dialect = subject.dialect
    if subject.kind != "rl" or dialect is None or dialect.wandb not in ("none", "shared-id", "prl-id"):
        return
    table = next((name for name in _WANDB if subject.settings.is_on(f"{name}.offline")), "")
    if table and subject.settings.is_on(f"{table}.shared") is not False:
        told = f"{table}.offline is on, and trainer and orchestrator share one W&B run."
        parts = f"[trainer.{table}] and [orchestrator.{table}]"
        remedy = f"Take it out, and write offline = true in both {parts}."
        if has(subject, date(2026, 5, 20)) is False:
            remedy = f"Write shared = false beside it in [{table}]."
        yield Finding("wandb-offline-shared", told, subject.where(f"{table}.offline"), remedy)


def _given_variable(subject: Subject, name: str) -> str:
    """A variable that the job gets, from its environment or from the configuration's own tables."""
    if value := subject.site.environ.get(name):
        return value
    tables = (subject.settings.get(path) for path in _ENV_VARS)
    return next((str(table[name]) for table in tables if isinstance(table, Mapping) and table.get(name)), "")


# ---------------------------------------------------------------- models and engine


def _check_gated(subject: Subject) -> Iterator[Finding]:
    model, site = subject.model, subject.site
    if model is None or model.gated is not True or not site.environ or site.hf_login is not False:
        return
    if (
        model.name in site.hf_models
        or _given_variable(subject, "HF_ENDPOINT")
        or any(_given_variable(subject, one) for one in _HF_TOKENS)
    ):
        return
    told = f"{model.name} is given only to people that its owner let in, and the job has no HF_TOKEN."
    paths = ("model.name", "trainer.model.name", "orchestrator.model.name", "inference.model.name")
    yield Finding("model-gated", told, subject.where(*paths), severity=_weight_of_missing_key(subject))


def _engine_port(subject: Subject) -> Iterator[Finding]:
    """The orchestrator must ask the port at which the engine (or its router) listens."""
    settings = subject.settings
    if subject.kind != "rl" or not settings.has("inference") or subject.serves_apart:
        return
    server = number(subject, "inference.server.port")
    known = [path for path in _CLIENTS if subject.schema is None or subject.schema.get(path) is not None] or _CLIENTS
    client = next((path for path in (*known, *_CLIENTS) if settings.has(path)), known[-1])
    if settings.has(f"{client}.elastic"):
        return
    said = first(subject, f"{client}.base_url", f"{client}.port")
    if said is None and (server is None or not subject.knows("orchestrator") or _others_answer(subject)):
        return  # the engine's file alone says nothing of what the orchestrator is told
    if server is None and settings.has("inference.port"):
        return  # it is told where that belongs, and is the engine's port then
    listens = server.value if server else DEFAULT_PORT
    asked = _local_port(said.value) if said else DEFAULT_PORT
    if asked is None or asked == listens:
        return
    path = said.path if said else f"{client}.base_url"
    told = f"The engine listens on port {listens}, and {path} {'asks' if said else 'is not set and asks'} port {asked}."
    where = subject.where(said.path) if said else subject.where("inference.server.port")
    if said is None:
        remedy = f"Take inference.server.port out, or set {path} to port {listens}."
    elif path.endswith(".port"):
        remedy = f"Set {path} = {listens}."
    else:
        url = f'"http://localhost:{listens}/v1"'
        field = subject.schema.get(path) if subject.schema is not None else None
        several = isinstance(said.value, list) and (field is None or "list" in field.kinds)
        remedy = f"Set {path} = {f'[{url}]' if several else url}."
    yield Finding("engine-port", told, where, remedy)


def _others_answer(subject: Subject) -> bool:
    """Where no environment asks the trained model itself, newer versions set the address (eaf95997f, 0be5ac452)."""
    said = first(subject, "orchestrator.training_mode", "orchestrator.algo", "orchestrator.use_sft_loss")
    return said is not None or any(isinstance(one, Mapping) and "algo" in one for _, one in sources(subject))


def _local_port(value: object) -> int | None:
    """The port of a local address; None where it is another machine's, or no address at all."""
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    try:
        parts = urlsplit(value)
        return (parts.port or 80) if parts.hostname in LOCAL else None
    except ValueError:
        return None


def _check_renderer(subject: Subject) -> Iterator[Finding]:
    """Since 659194391 (2026-05-19) rollouts are tokenized by a renderer that is looked up by the model's name."""
    if subject.kind != "rl" or has(subject, date(2026, 6, 1)) is not True:
        return
    orchestrator = subject.settings.tree.get("orchestrator")
    renderer = orchestrator.get("renderer") if isinstance(orchestrator, Mapping) else None
    if isinstance(renderer, Mapping) and "name" not in renderer:
        told = "[orchestrator.renderer] does not say its name, by which prime-rl tells the renderers apart."
        yield Finding("missing-key", told, subject.where("orchestrator.renderer"), 'Write name = "auto" in it.')
    chosen = renderer.get("name", "auto") if isinstance(renderer, Mapping) else renderer or "auto"
    if chosen != "auto" or first(subject, "orchestrator.training_mode"):
        return
    named = first(subject, *_TOKENIZERS) or first(subject, *_MODELS)
    if named and isinstance(named.value, str) and not _HUB.fullmatch(named.value):
        told = f'{named.path} = "{named.value}" is not "owner/name", as the Hub has it, and no renderer is known by it.'
        yield Finding("renderer-of-a-folder", told, subject.where(named.path))


# ---------------------------------------------------------------- environments


def _check_executor(subject: Subject) -> Iterator[Finding]:
    """Some environments run their tools in a sandbox far away when told so; each call then takes a second and more."""
    for place, source in sources(subject):
        for path in _find_executors(source, ()):
            key = (*place, *path)
            name = ".".join(part for part in key if isinstance(part, str))
            told = f'{name} = "prime" runs each tool call in a remote sandbox.'
            remedy = f'Set {name} = "local" if the environment\'s tools may run on this pod.'
            yield Finding("remote-executor", told, subject.where_exactly(key), remedy)


def _find_executors(node: Any, path: tuple[str | int, ...], depth: int = 0) -> Iterator[tuple[str | int, ...]]:
    if depth > 20:
        return
    below = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for key, value in below:
        if key == "executor_backend" and value == "prime":
            yield (*path, key)
        else:
            yield from _find_executors(value, (*path, key), depth + 1)


def _check_names(subject: Subject) -> Iterator[Finding]:
    """Since a7db21723 (2026-03-11) metrics are kept by environment, so each needs a name of its own."""
    refused = has(subject, date(2026, 3, 11))
    if subject.dialect is None or refused is False:
        return
    seen: set[str] = set()
    for place, source in sources(subject):
        name = (source.get("name") or _id_of(source)) if isinstance(source, Mapping) else None
        if not isinstance(name, str):
            continue
        shown = name.partition("@")[0]
        if shown in seen:
            told = f"Two environments are called {shown}."
            remedy = "Give each a name of its own: name = ... beside its id."
            where = subject.where_exactly(place)
            yield Finding("environments-same-name", told, where, remedy, None if refused else "warning")
        seen.add(shown)


def _id_of(source: Mapping[str, Any]) -> object:
    """Since d135ed4c9 an environment is named by its task set, in a table of its own."""
    inside = source.get("env")
    for table in (source, inside if isinstance(inside, Mapping) else source):
        tasks = table.get("taskset")
        if found := table.get("id") or (tasks.get("id") if isinstance(tasks, Mapping) else None):
            return found
    return None


CHECKS: tuple[Check, ...] = (
    _wandb_key,
    _wandb_offline,
    _check_gated,
    _engine_port,
    _check_renderer,
    _check_executor,
    _check_names,
)
