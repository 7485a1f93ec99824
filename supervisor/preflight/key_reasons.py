"""Why a key is not known: another name, another place, another time, or a slip of the pen."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date

from supervisor.preflight import eras
from supervisor.preflight.finding import Severity, join_words
from supervisor.preflight.renames import Known, find_removal, known_as
from supervisor.preflight.schema import Field, Schema

MOST_PLACES = 4
"""A name that is known at more places than these is too common to say which of them was meant."""
_NEAR = 0.75
_VERY_NEAR = 0.85
_FEW_HOMES = 2
_CUT = 4
"""Letters that a name and its short form have in common at least."""

_HINTS: Mapping[str, str] = {
    "top_p": "Training samples from the whole distribution (top_p = 1): only evals take it.",
    "top_k": "Training samples from the whole distribution: only evals take it.",
}
"""By name: what people want with a key that is at home elsewhere."""

_FOREIGN: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("learning_rate", "lr_rate"), ("trainer.optim.lr",)),
    **dict.fromkeys(
        ("save_steps", "save_interval", "save_every", "checkpoint_interval", "checkpoint_every", "ckpt_interval"),
        ("ckpt.interval",),
    ),
    **dict.fromkeys(("save_total_limit", "keep_checkpoints", "max_checkpoints"), ("ckpt.keep_last", "ckpt.keep")),
    **dict.fromkeys(("lora_r", "lora_rank"), ("trainer.model.lora.rank", "trainer.model.experimental.lora.rank")),
    "lora_alpha": ("trainer.model.lora.alpha", "trainer.model.experimental.lora.alpha"),
    "lora_dropout": ("trainer.model.lora.dropout", "trainer.model.experimental.lora.dropout"),
    **dict.fromkeys(
        ("num_generations", "n_rollouts", "num_rollouts", "rollouts"),
        ("orchestrator.group_size", "orchestrator.rollouts_per_example"),
    ),
    **dict.fromkeys(
        ("max_new_tokens", "max_completion_length", "max_response_length"),
        (
            "orchestrator.train.sampling.max_completion_tokens",
            "orchestrator.train.sampling.max_tokens",
            "orchestrator.sampling.max_tokens",
        ),
    ),
    **dict.fromkeys(("max_seq_length", "max_length"), ("trainer.model.seq_len", "model.seq_len")),
    **dict.fromkeys(("num_steps", "total_steps", "max_train_steps", "num_train_steps"), ("max_steps",)),
    **dict.fromkeys(("model_name", "model_name_or_path"), ("model.name", "trainer.model.name")),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), ("trainer.model.ac",)),
    **dict.fromkeys(("checkpoint", "checkpoints", "checkpointing"), ("ckpt",)),
    "wandb_project": ("wandb.project", "monitors.wandb.project"),
    **dict.fromkeys(("wandb_name", "run_name"), ("wandb.name", "monitors.wandb.name")),
}
"""What other trainers (TRL, verl, Prime's hosted training) call a setting, and what prime-rl does; the newest first."""


def severity(path: str, schema: Schema, kind: str, value: object = None) -> Severity:
    """Of a key, or a ``value``, that ``schema`` refuses: it is certain for what is installed, and if all refuse it."""
    return "error" if schema.exact or eras.refused_by_all(path, kind, value) else "warning"


def explain_unknown_key(
    path: str, schema: Schema, kind: str, said: str, value: object = None, *, beside: Collection[str] = ()
) -> tuple[str, str, str]:
    """A sentence on why ``path`` is not known, a remedy, and the new name where only that differs.

    ``beside``: what else its table sets. A name that is set there already cannot be the one that was meant.
    """
    version = schema.version
    above, _, name = path.rpartition(".")
    field = schema.get(above) if above else None
    siblings = field.below if field else schema.top if not above else {}
    at = f"in [{above}]" if above else "at the top level"

    known, meant = known_as(path, schema, kind), "it"
    if known is None and (inside := _renamed_below(path, value, schema, kind)):
        meant, known = inside
    if known is not None:
        by = known.by
        told = f"{said} is not known to {version}: {meant} is {known.path} there ({by.commit}, {by.day:%-d %b %Y})."
        same_table = known.path.rpartition(".")[0] == above
        if same_table and known.path.rpartition(".")[2] in beside:
            return told, f"Take it out: {known.path} is set already.", ""
        note = f" {by.note}" if by.note else ""
        remedy = f"Write {known.path} instead.{note}"
        only_the_name = same_table and not note and meant == "it"
        return told, remedy, known.path.rpartition(".")[2] if only_the_name else ""

    meanable = [one for one in siblings if one not in beside]
    if other := next((one for one in _reason_of_other_trainer(name, kind) if schema.get(one) is not None), ""):
        told = f"{said} is not known {at} of {version}: there it is {other}."
        table, _, short = other.rpartition(".")
        if table == above and short not in beside:
            return told, f"Write it as: {short}", short
        return told, f"Write {short} in {f'the table [{table}]' if table else 'the file, above the first table'}.", ""

    near = near_names(name, meanable, _VERY_NEAR)
    if near:
        return f"{said} is not known {at} of {version}: did you mean {near[0]}?", f"Write it as: {near[0]}", near[0]

    if (went := find_removal(path, kind)) is not None and went.day <= _day_of_schema(schema):
        told = f"{said} is not known to {version}: it went with {went.commit} of {went.day:%-d %b %Y}."
        known_in = eras.periods(path, kind)
        if schema.day is None and known_in and known_in[0][0] > eras.load_eras()[0].day:
            # It came later than the oldest version: what is installed may be from before that as well.
            while_known = f"from {known_in[0][0]:%-d %b %Y} until {went.commit} of {went.day:%-d %b %Y}"
            told = f"{said} is not known to {version}: prime-rl knew it {while_known}."
        return told, f"Take it out. {went.note}".strip(), ""

    places = [place for place in schema.places(name) if place != path]
    # A misplaced setting was not meant for the trial's data.
    places = [place for place in places if "fake" not in place.split(".")] or places
    # What is meant for one part is not meant for another.
    places = [place for place in places if above and place.startswith(f"{above.partition('.')[0]}.")] or places
    if places and len(places) <= MOST_PLACES:
        tables = [f"[{place.rpartition('.')[0]}]" if "." in place else "the top level" for place in places]
        told = f"{said} is not known {at} of {version}: {name} stands in {join_words(tables)}."
        return told, f"Move it to {join_words(tables, 'or')}. {_HINTS.get(name, '')}".strip(), ""

    if times := eras.periods(path, kind):
        told = f"{said} is not known to {version}: prime-rl knew it {_period_in_words(times)}."
        return told, "Take it out, or use a version of that time.", ""

    once = [one for one in eras.homes(name, kind) if one != path]
    if once and not places and len({one.rpartition(".")[0] for one in once}) <= _FEW_HOMES:
        told = (
            f"{said} is not known {at} of {version}: prime-rl knew {once[0]} "
            f"{_period_in_words(eras.periods(once[0], kind))}."
        )
        return told, "Take it out, or use a version of that time.", ""

    if near := near_names(name, meanable) or _longer_names(name, meanable):
        return f"{said} is not known {at} of {version}: did you mean {near[0]}?", f"Write it as: {near[0]}", near[0]
    told = f"{said} is not known {at} of {version}."
    if path.startswith("inference.") and path.count(".") < 3:
        # The keys of the engine that people look for are vLLM's own, and not every version hands on all of them.
        table = next((one for one in ("inference.vllm", "inference.vllm_extra") if schema.get(one)), "")
        if table:
            return told, f"If it is an argument of vLLM, put it into [{table}].", ""
        return told, "Take it out; if it is an argument of vLLM, it is one that this version does not hand on.", ""
    few = sorted(siblings) if 0 < len(siblings) <= 8 else []
    return told, f"Take it out; known {at}: {', '.join(few)}." if few else "Take it out, or mend its name.", ""


def of_another_type(path: str, schema: Schema, chosen: Field) -> tuple[str, str, str]:
    """The same of a key that its table has only with another `type` than the one that is ``chosen``."""
    above, _, name = path.rpartition(".")
    table = schema.get(above)
    variants = table.variants if table else {}
    own = next((said for said, one in variants.items() if one is chosen), "")
    others = [f'"{said}"' for said, one in variants.items() if name in one.below]
    told = f'{path} is not for type = "{own}" of [{above}]: it is for {join_words(others, "or") or "another"}.'
    return told, f"Take it out, or set type to {join_words(others, 'or')}." if others else "Take it out.", ""


def near_names(name: str, names: Iterable[str], likeness: float = _NEAR) -> list[str]:
    """The one of ``names`` that is most like ``name``, if any is like it."""
    return difflib.get_close_matches(name, list(names), 1, likeness)


def _reason_of_other_trainer(name: str, kind: str) -> Iterable[str]:
    return (one.removeprefix("trainer.") if kind == "sft" else one for one in _FOREIGN.get(name, ()))


def _longer_names(name: str, names: Iterable[str]) -> list[str]:
    """The one that was written out, or cut short: `optimizer` for `optim`."""
    found = [
        one for one in names if min(len(one), len(name)) >= _CUT and (one.startswith(name) or name.startswith(one))
    ]
    return found if len(found) == 1 else []


def _renamed_below(path: str, value: object, schema: Schema, kind: str) -> tuple[str, Known] | None:
    """A table that is not known may hold what is known elsewhere: the first such key, and what it is called."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, Mapping):
        return None
    paths = [f"{path}.{key}" for key in value]
    return next(((one, found) for one in paths if (found := known_as(one, schema, kind))), None)


def _day_of_schema(schema: Schema) -> date:
    """The day of an era; for the installed version, no change is too late."""
    return schema.day or eras.load_eras()[-1].day


def _period_in_words(times: Sequence[tuple[date, date | None]]) -> str:
    since, before = times[-1]
    first = since == eras.load_eras()[0].day
    if before is None:
        return f"from {since:%-d %b %Y} on"
    return f"before {before:%-d %b %Y}" if first else f"between {since:%-d %b %Y} and {before:%-d %b %Y}"
