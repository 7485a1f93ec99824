"""Tokens - sequence, prompt, completion and the engine's context must fit into each other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Literal

from supervisor.preflight.finding import Finding, Severity
from supervisor.preflight.prompts import prompt, refused_before
from supervisor.preflight.reading import Number, first, has, number, sources, switched_on
from supervisor.preflight.subject import Check, Subject

DEFAULT_SEQ_LEN = 2048  # of trainer and orchestrator, in every era from ceb60c03f to 559b44772

LEAST_PROMPT_WITH_TOOLS = 128
"""No chat template with even one tool's definition needs less."""

_TRAINED = (
    "orchestrator.train.sampling.max_completion_tokens",
    "orchestrator.train.sampling.max_tokens",
    "orchestrator.sampling.max_completion_tokens",
    "orchestrator.sampling.max_tokens",
)
_EVALUATED = ("orchestrator.eval.sampling.max_completion_tokens", "orchestrator.eval.sampling.max_tokens")
_CONTEXT = ("inference.vllm.max_model_len", "inference.vllm_extra.max_model_len", "inference.model.max_model_len")
_STRETCHED = (
    *("inference.vllm.rope_scaling", "inference.vllm.hf_overrides", "inference.vllm.rope_parameters"),
    *("inference.model.rope_scaling", "inference.vllm_extra"),
)
_TOOLS = ("inference.model.enable_auto_tool_choice", "inference.vllm.enable_auto_tool_choice")

# prime-rl's engine no longer refuses a request if its prompt and max_tokens together exceed the context (82417b015).
_ENGINE_CUTS = date(2026, 2, 15)
_JUST_BEFORE = "dump_config"  # 258638503, 2026-02-12
_SEQ_LEN_REFUSED = date(2025, 12, 22)  # 67af6779a, which also made the setting for both
# Rollouts ask for tokens by default, where max_tokens alone may exceed it, too (66ff00d11).
_TOKENS_IN = date(2026, 5, 17)


def _max_tokens(subject: Subject) -> Iterator[Finding]:
    """Prompt and answer share the engine's context, and vLLM refuses what does not fit."""
    context = _context_of_engine(subject)
    for paths in (_TRAINED, _EVALUATED):
        asked = number(subject, *paths)
        if asked is not None and asked.value < 1:
            yield _no_answer(subject, asked)
            continue
        if context is None or asked is None:
            continue
        yield from _against_context(subject, asked, context)


def _no_answer(subject: Subject, asked: Number) -> Finding:
    told = f"{asked.path} = {asked.value}, and vLLM refuses a request for less than one token."
    if not asked.value:
        told = f"{asked.path} = 0: some versions of vLLM refuse it, others take it for not set."
    weight: Severity | None = None if asked.value else "warning"
    remedy = f"Set {asked.path} to what an answer may have, or take it out for as many as fit."
    return Finding("below-one", told, subject.where(asked.path), remedy, weight)


def _against_context(subject: Subject, asked: Number, context: Number) -> Iterator[Finding]:
    refuses = _engine_refuses(subject)
    room = context.value - asked.value
    tools = bool(switched_on(subject, *_TOOLS) or first(subject, "inference.model.tool_call_parser"))
    named = f"{asked.path} = {asked.value}"
    limit = f"max_model_len = {context.value}" if context.path else f"the model's context of {context.value} tokens"
    most = context.value if refuses == "no" else _sensible_length(context.value)
    remedy = f"Set {asked.path} to {most} or less" + (f", or raise {context.path}." if context.path else ".")
    where = subject.where(asked.path)
    certain: Severity | None = None if refuses == "yes" else "warning"
    before = refused_before(subject, asked.value, context.value)
    needed = prompt(subject, tools=tools)
    if room <= 0 and refuses != "no":
        told = f"{named} leaves no room for a prompt: prompt and answer must fit into {limit} together."
        yield Finding("max-tokens-fill-context", told, where, remedy, certain)
    elif room < 0:
        refused = has(subject, _ENGINE_CUTS) is True and has(subject, _TOKENS_IN) is False
        told = f"{named} is more than {limit}."
        yield Finding("max-tokens-above-context", told, where, remedy, "error" if refused else None)
    elif refuses != "no" and before is not None:
        told = f"{named} leaves {room} tokens of {limit} for the prompt, and with just these two numbers the engine "
        told += f"refused a prompt of {before.prompt} ({before.log})."
        yield Finding("max-tokens-fill-context", told, where, remedy, certain)
    elif refuses != "no" and tools and room < LEAST_PROMPT_WITH_TOOLS:
        told = f"{named} leaves {room} tokens of {limit} for the prompt, and the tools' definitions alone need more."
        yield Finding("max-tokens-fill-context", told, where, remedy, certain)
    elif refuses != "no" and room < needed.tokens:
        told = f"{named} leaves {room} tokens of {limit} for the prompt, and {needed.told}."
        yield Finding("max-tokens-little-room", told, where, remedy)


def _engine_refuses(subject: Subject) -> Literal["yes", "perhaps", "no"]:
    """What does not fit into the context. Of an unknown version, and of those that end the answer there: no."""
    cuts = has(subject, _ENGINE_CUTS, _JUST_BEFORE)
    if cuts is False:
        return "yes"
    if cuts is None and subject.engine_cuts is not None:
        return "no" if subject.engine_cuts else "yes"
    schema = subject.schema
    late = schema is not None and schema.get(_JUST_BEFORE) is not None
    return "no" if cuts is True or subject.dialect is None or late else "perhaps"


def _sensible_length(context: int) -> int:
    """Half of the context, as the measured run that worked had it (2000 of 4096)."""
    return max(1, context // 2 - context // 2 % 100 if context >= 1000 else context // 2)


def _check_truncation(subject: Subject) -> Iterator[Finding]:
    """An answer that is longer than the training sequence is cut before it is learned from."""
    if subject.kind != "rl":
        return
    sequence, asked = _orchestrator_seq_len(subject), number(subject, *_TRAINED)
    if sequence is not None and asked is not None and asked.value > sequence.value:
        length = (
            f"{sequence.path} = {sequence.value}" if sequence.path else f"seq_len, which is {sequence.value} by default"
        )
        told = f"{asked.path} = {asked.value} lets answers grow beyond {length}."
        remedy = f"Set {asked.path} to less than {sequence.value}, or seq_len of orchestrator and trainer to more."
        yield Finding("max-tokens-above-seq-len", told, subject.where(asked.path), remedy)


def _trainer_shorter(subject: Subject) -> Iterator[Finding]:
    """The trainer refuses to start with a shorter sequence than the orchestrator packs."""
    if subject.kind != "rl" or not (subject.knows("trainer") and subject.knows("orchestrator")):
        return
    dialect = subject.dialect
    known = dialect is not None and (dialect.orchestrator_tree == "run-default" or dialect.router)
    if dialect is not None and not known:
        return  # until b8697b0f0 the trainer had no seq_len of its own
    trainer, orchestrator = _seq_len(subject, "trainer.model.seq_len"), _orchestrator_seq_len(subject)
    if trainer is None or orchestrator is None or (dialect is None and not (trainer.path and orchestrator.path)):
        return
    if trainer.value < orchestrator.value:
        said = (
            f"trainer.model.seq_len {_is_length(trainer)}, less than orchestrator.seq_len, which "
            f"{_is_length(orchestrator)}."
        )
        at = trainer.path or orchestrator.path
        remedy = f"Set trainer.model.seq_len to {orchestrator.value}, or seq_len at the top of the file for both."
        # Before that such samples were cut without a word (trainer/batch.py at b8697b0f0).
        schema = subject.schema
        refused = dialect is None or has(subject, _SEQ_LEN_REFUSED) or (schema is not None and schema.get("seq_len"))
        if not refused:
            said = f"{said.removesuffix('.')}: longer rollouts are cut before they are trained on."
        where = subject.where(at)
        yield Finding("trainer-seq-len-shorter", said, where, remedy, None if refused else "warning")


def _is_length(length: Number) -> str:
    return f"is {length.value}" + ("" if length.path else " (the default)")


def _never_reached(subject: Subject) -> Iterator[Finding]:
    context, sequence = number(subject, *_CONTEXT), _orchestrator_seq_len(subject)
    if subject.kind == "rl" and context and sequence and sequence.path and context.value < sequence.value:
        told = f"{context.path} = {context.value} is less than {sequence.path} = {sequence.value}."
        yield Finding("context-below-seq-len", told, subject.where(context.path))


def _check_positions(subject: Subject) -> Iterator[Finding]:
    """vLLM refuses a context beyond the model's positions, unless the rope is stretched or it is told to."""
    model, context = subject.model, number(subject, *_CONTEXT)
    if model is None or not model.positions or context is None or context.value <= model.positions:
        return
    if first(subject, *_STRETCHED) or subject.site.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("", "0"):
        return
    told = f"{context.path} = {context.value}, and {model.name} has {model.positions} positions ({model.origin})."
    remedy = f"Set {context.path} to {model.positions} or less."
    yield Finding("context-above-positions", told, subject.where(context.path), remedy)


def _check_ignored_length(subject: Subject) -> Iterator[Finding]:
    """`max_model_len` at the top was handed on until 454e2cba4, and is no setting any more since fa191e589."""
    dialect, top = subject.dialect, number(subject, "max_model_len")
    if top is None or dialect is None or dialect.gpus == "counts" or has(subject, date(2026, 5, 20)) is True:
        return
    told = f"max_model_len = {top.value} at the top of the file is read by nothing in {dialect.name}."
    remedy = f"Write it as max_model_len = {top.value} in the table [inference.model]."
    yield Finding("max-model-len-unread", told, subject.where(top.path), remedy)


def _check_environment(subject: Subject) -> Iterator[Finding]:
    """Some environments take a max_tokens of their own, and send it with their requests."""
    context = number(subject, *_CONTEXT)
    if context is None or _engine_refuses(subject) == "no":
        return
    for place, source in sources(subject):
        args = source.get("args") if isinstance(source, dict) else None
        asked = args.get("max_tokens") if isinstance(args, dict) else None
        if isinstance(asked, int) and not isinstance(asked, bool) and asked >= context.value:
            path = (*place, "args", "max_tokens")
            name = ".".join(part for part in path if isinstance(part, str))
            told = f"{name} = {asked} leaves no room for a prompt in {context.path} = {context.value}."
            yield Finding("environment-max-tokens", told, subject.where_exactly(path))


# ---------------------------------------------------------------- what holds


def _context_of_engine(subject: Subject) -> Number | None:
    """The engine's context: what is set, else the model's positions (with an empty path); None where not known."""
    paths = ("max_model_len", *_CONTEXT) if _check_counts(subject) else _CONTEXT
    if found := first(subject, *paths):
        return number(subject, found.path)
    model = subject.model
    if model is None or not model.positions or not subject.settings.has("inference") or first(subject, *_STRETCHED):
        return None
    return Number("", model.positions)


def _orchestrator_seq_len(subject: Subject) -> Number | None:
    return _seq_len(subject, "orchestrator.seq_len")


def _seq_len(subject: Subject, own: str) -> Number | None:
    """Until 2026-02-24 the shared value overrules a part's own, afterwards it is for those that have none."""
    dialect = subject.dialect
    if _check_counts(subject):
        paths = ("max_model_len", own)
    elif dialect is not None and dialect.gpus == "ids":
        paths = ("seq_len", own)
    else:
        paths = (own, "seq_len")
    found = first(subject, *paths)
    return number(subject, found.path) if found else Number("", DEFAULT_SEQ_LEN)


def _check_counts(subject: Subject) -> bool:
    return subject.dialect is not None and subject.dialect.gpus == "counts"


CHECKS: tuple[Check, ...] = (
    _max_tokens,
    _check_truncation,
    _trainer_shorter,
    _never_reached,
    _check_positions,
    _check_ignored_length,
    _check_environment,
)
