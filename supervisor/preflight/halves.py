"""What trainer, orchestrator and engine must be told alike, for prime-rl compares it before it starts them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from supervisor.preflight.finding import Finding
from supervisor.preflight.reading import Number, Set, first, has, number, overlay
from supervisor.preflight.subject import Check, Subject

_SHARED_ONCE = date(2026, 5, 20)  # fa191e589; until then one of the two won without a word
_RUN_DIRS = date(2026, 8, 13)  # e26b50503: the parts have no output_dir of their own any more
_ENGINE_DECIDES = date(2026, 3, 24)  # ecd080928: with an engine only its model is compared, with the orchestrator's
_EXEMPT = "Jackmin108/"  # models that prime-rl itself compares no names of

_ORCHESTRATORS_MODEL = ("orchestrator.model.name", "orchestrator.student.model.name")
_ENGINES_MODEL = ("inference.vllm.model", "inference.model.name")
_BROADCAST = "weight_broadcast.type"

# What prime-rl compares: the setting for all, the trainer's and the orchestrator's.
_COMPARED = (
    ("max_steps", "trainer.max_steps", "orchestrator.max_steps"),
    ("max_async_level", "trainer.max_async_level", "orchestrator.max_async_level"),
    ("wandb.project", "trainer.wandb.project", "orchestrator.wandb.project"),
    (_BROADCAST, f"trainer.{_BROADCAST}", f"orchestrator.{_BROADCAST}"),
)
# What may stand at the top or in the parts, but not with different values in both.
_SHARED = (
    ("model.name", ("trainer.model.name", *_ENGINES_MODEL, *_ORCHESTRATORS_MODEL)),
    ("max_steps", ("trainer.max_steps", "orchestrator.max_steps")),
    ("max_async_level", ("trainer.max_async_level", "orchestrator.max_async_level")),
    ("seq_len", ("trainer.model.seq_len", "orchestrator.seq_len")),
    ("output_dir", ("trainer.output_dir", "orchestrator.output_dir")),
    *(
        (f"log.{name}", tuple(f"{part}.log.{name}" for part in ("trainer", "orchestrator", "inference")))
        for name in ("level", "json_logging")
    ),
    (
        "tokenizer.chat_template",
        (
            *("trainer.tokenizer.chat_template", "orchestrator.tokenizer.chat_template"),
            *("inference.vllm.chat_template", "inference.model.chat_template"),
        ),
    ),
    *(
        (f"{table}.{name}", (f"trainer.{table}.{name}", f"orchestrator.{table}.{name}"))
        for table, names in (
            *(
                (table, ("project", "entity", "name", "group", "tags", "offline"))
                for table in ("wandb", "monitors.wandb")
            ),
            ("tokenizer", ("name", "trust_remote_code")),
            ("monitors.file", ("path",)),
        )
        for name in names
    ),
    ("monitors.prime.name", ("orchestrator.monitors.prime.name",)),
)


def settings_of_both(subject: Subject) -> Iterator[Finding]:
    """Settings of which trainer and orchestrator must have the same."""
    whole = subject.knows("trainer") and subject.knows("orchestrator")
    if subject.kind != "rl" or not whole or _trains_several_runs(subject):
        return
    for shared, *paths in _COMPARED:
        trainer, orchestrator = (first(subject, path) for path in paths)
        if first(subject, shared) or _by_the_run_file(subject, shared):
            continue
        if trainer and orchestrator:
            if trainer.value != orchestrator.value:
                yield _find_differences(subject, trainer, orchestrator, shared)
        elif shared == "max_steps" and (one := trainer or orchestrator):
            other = paths[1] if one is trainer else paths[0]
            told = f"{one.path} = {_show_value(one.value)}, and {other} is not set."
            remedy = f"Set max_steps = {_show_value(one.value)} at the top, or {other} as well."
            yield Finding("halves-differ", told, subject.where(one.path), remedy)


def models(subject: Subject) -> Iterator[Finding]:
    """The model that is trained, asked for and served."""
    if subject.kind != "rl" or first(subject, "model.name") or _trains_several_runs(subject):
        return
    trainer, engine = first(subject, "trainer.model.name"), first(subject, *_ENGINES_MODEL)
    orchestrator = first(subject, *_ORCHESTRATORS_MODEL)
    if trainer and str(trainer.value).startswith(_EXEMPT):
        return
    if orchestrator and engine and engine.value != orchestrator.value:
        yield _find_differences(subject, orchestrator, engine, "model.name")
    decides = has(subject, _ENGINE_DECIDES) if subject.settings.has("inference") else False
    if decides is False and trainer and orchestrator and trainer.value != orchestrator.value:
        yield _find_differences(subject, trainer, orchestrator, "model.name")


def _find_differences(subject: Subject, one: Set, other: Set, shared: str) -> Finding:
    told = f"{one.path} = {_show_value(one.value)}, and {other.path} = {_show_value(other.value)}."
    table, _, name = shared.rpartition(".")
    place = f"in a table [{table}]" if table else "at the top of the file"
    return Finding(
        "halves-differ", told, subject.where(other.path), f"Set {name} once, {place}, or in both parts alike."
    )


def twice(subject: Subject) -> Iterator[Finding]:
    """Since fa191e589 what is set for all parts may not be set otherwise for one."""
    if subject.kind != "rl" or has(subject, _SHARED_ONCE) is not True:
        return
    for shared, paths in _SHARED:
        top = _set_for_all(subject, shared)
        for one in (first(subject, path) for path in paths):
            # <shared>/run_default is what prime-rl itself writes for the orchestrator's folder
            if top and one and one.value not in (top.value, f"{top.value}/run_default"):
                told = f"{top.path} = {_show_value(top.value)}, and {one.path} = {_show_value(one.value)}."
                other = "" if top.path.startswith("[") else f", or {top.path} and set it in each part"
                yield Finding("shared-setting-twice", told, subject.where(one.path), f"Take out {one.path}{other}.")


def _set_for_all(subject: Subject, shared: str) -> Set | None:
    """What the files, or the supervisor's own words, set for all parts."""
    if _by_the_run_file(subject, shared) or (shared == "output_dir" and has(subject, _RUN_DIRS) is not False):
        return None
    if shared == "output_dir" and subject.run_file is not None:
        return Set("[job] output_dir", str(subject.run_file.output_dir))
    return first(subject, shared)


def parts_there(subject: Subject) -> Iterator[Finding]:
    """All 49 versions that were tried refuse a run without [trainer] or [orchestrator], empty ones suffice."""
    schema = subject.schema if subject.schema is not None and subject.schema.exact else None
    alone = subject.run_file is None  # then more files may come beside it, as of an overlay or of one part
    if subject.kind != "rl" or (alone and (schema is None or overlay(subject))):
        return
    if not subject.texts or any(text.data is None for text in subject.texts):
        return
    if any(word.startswith("@") for word in subject.args):
        return
    for name in ("trainer", "orchestrator"):
        field = schema.get(name) if schema is not None else None
        if subject.settings.has(name) or (alone and not subject.knows(name)):
            continue
        if field is not None and field.required:  # what is required, ``keys`` says
            continue
        told = f"{name} is not set, and every prime-rl wants it."
        yield Finding("missing-key", told, subject.file(name), f"Write a table [{name}]; it may be empty.")


def _trains_several_runs(subject: Subject) -> bool:
    """A trainer of several runs is started by itself, and is refused for that."""
    return (number(subject, "max_concurrent_runs", "trainer.max_concurrent_runs") or Number("", 0)).value > 1


def _by_the_run_file(subject: Subject, shared: str) -> bool:
    """The supervisor names the last step itself where the run file does."""
    return shared == "max_steps" and subject.run_file is not None and subject.run_file.run.max_steps is not None


def _show_value(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


CHECKS: tuple[Check, ...] = (settings_of_both, models, twice, parts_there)
