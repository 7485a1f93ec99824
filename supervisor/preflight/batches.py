"""Batches, groups and parallel layouts that do not divide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from supervisor.preflight.finding import Finding, Severity, Where
from supervisor.preflight.reading import (
    TENSOR,
    Number,
    degree,
    elsewhere,
    first,
    has,
    number,
    of_trainer,
    sources,
    switched_on,
)
from supervisor.preflight.subject import Check, Subject
from supervisor.primerl.renames import spellings

DEFAULT_BATCH = 128  # in every era from ceb60c03f to 559b44772
DEFAULT_MICRO_BATCH = 128  # orchestrator/config.py at ceb60c03f to 4b3372824
BENCH_STEPS = 4

_GROUP = ("orchestrator.group_size", "orchestrator.rollouts_per_example")  # 20f6449e1, 2026-05-23
_ROLLOUTS = ("orchestrator.batch_size", "orchestrator.token_batch_size", *_GROUP)
_OTHER_LESSONS = (
    *("advantage", "advantage_type", "algo", "training_mode"),
    *("teacher", "teacher_model", "teacher_rollout_model"),
)
"""Settings of the orchestrator or of an environment by which a rollout may teach something without its group."""
_OF_ONE_SOURCE = ("group_size", "rollouts_per_example")
_EXAMPLES = ("data.batch_size", "data.micro_batch_size", "data.seq_len")
_SHARED_CHECKPOINTS = spellings("ckpt.interval", "ckpt.keep")
"""What stands there is handed to trainer and orchestrator, which refuse it."""
_CHECKPOINTS = tuple(f"{part}.{name}" for part in ("trainer", "orchestrator") for name in _SHARED_CHECKPOINTS)
_NONE_COUNTS = date(2025, 11, 12)  # 385538edb: until then a shared 0 was taken for not set
# prime-rl has no bounds for these (ceb60c03f to 559b44772), and with less than 1 nothing is left to train on.
_LENGTHS = {
    "rl": ("seq_len", "trainer.model.seq_len", "orchestrator.seq_len"),
    "sft": ("model.seq_len",),
}


def _check_groups(subject: Subject) -> Iterator[Finding]:
    """prime-rl refuses a batch that is no whole number of groups, in every era."""
    group = number(subject, *_GROUP)
    batch = number(subject, "orchestrator.batch_size")
    if subject.kind != "rl" or group is None or group.value < 1 or first(subject, "orchestrator.token_batch_size"):
        return
    if batch is None:
        if first(subject, "orchestrator.batch_size"):
            return
        batch = Number("", DEFAULT_BATCH)
    if batch.value % group.value:
        size = f"{batch.path} = {batch.value}" if batch.path else f"orchestrator.batch_size, {batch.value} unless set,"
        told = f"{size} is no multiple of {group.path} = {group.value}."
        below = batch.value - batch.value % group.value
        sizes = [str(size) for size in (below, below + group.value) if size > 0]
        remedy = f"Set orchestrator.batch_size to {' or '.join(sizes)}."
        yield Finding("batch-of-whole-groups", told, subject.where(batch.path or group.path), remedy)


def _group_of_one(subject: Subject) -> Iterator[Finding]:
    """The default is 1 in every era, and the default advantage is the reward less the mean of its group."""
    trained = [one for _, one in sources(subject)]
    lessons = ("trainer.loss", *(f"orchestrator.{name}" for name in _OTHER_LESSONS))
    if subject.kind != "rl" or not trained or any(subject.settings.has(path) for path in lessons):
        return
    group = number(subject, *_GROUP)
    if any(not isinstance(one, dict) or {*_OF_ONE_SOURCE, *_OTHER_LESSONS} & set(one) for one in trained):
        return
    if group.value == 1 if group else first(subject, *_GROUP) is None:
        told = f"{group.path} = 1" if group else "No group size is set, and the default is 1"
        yield Finding("group-of-one", f"{told}: each example is answered once.", subject.where(*_GROUP))


def _greedy(subject: Subject) -> Iterator[Finding]:
    """Every era divides the logits by the temperature of the rollout, and none forbids 0."""
    found = first(subject, "orchestrator.train.sampling.temperature", "orchestrator.sampling.temperature")
    own = [one.get("sampling") if isinstance(one, dict) else None for _, one in sources(subject)]
    if own and all(isinstance(sampling, dict) and "temperature" in sampling for sampling in own):
        return  # which holds in place of the common one
    if subject.kind == "rl" and found and not isinstance(found.value, bool) and found.value in (0, "0", "0.0"):
        yield Finding("greedy-rollouts", f"{found.path} = {found.value}.", subject.where(found.path))


def _micro_batches(subject: Subject) -> Iterator[Finding]:
    part = "data" if subject.kind == "sft" else "orchestrator"
    gone = has(subject, date(2025, 10, 27))  # 9a0070b1b: no such setting of the orchestrator any more
    if part == "orchestrator" and gone is True:
        return
    batch, micro = number(subject, f"{part}.batch_size"), number(subject, f"{part}.micro_batch_size")
    if batch and micro is None and part == "orchestrator" and gone is False and batch.value % DEFAULT_MICRO_BATCH:
        told = (
            f"{batch.path} = {batch.value} is no multiple of {part}.micro_batch_size, {DEFAULT_MICRO_BATCH} unless set."
        )
        remedy = f"Set {part}.micro_batch_size to a divisor of {batch.value}, 1 for example."
        yield Finding("micro-batches-divide", told, subject.where(batch.path), remedy)
    if batch and micro and micro.value > 0 and batch.value % micro.value:
        told = f"{batch.path} = {batch.value} is no multiple of {micro.path} = {micro.value}."
        remedy = f"Set {micro.path} to a divisor of {batch.value}, 1 for example."
        yield Finding("micro-batches-divide", told, subject.where(micro.path), remedy)


def _in_flight(subject: Subject) -> Iterator[Finding]:
    """Fewer rollouts at a time than a group has: no group could ever be complete."""
    group = number(subject, *_GROUP)
    names = ("max_inflight_rollouts", "concurrency.max_inflight", "concurrency.initial_inflight")
    for most in (number(subject, f"orchestrator.{name}") for name in names):
        if group and most and most.value < group.value:
            told = f"{most.path} = {most.value} is less than {group.path} = {group.value}."
            remedy = f"Set {most.path} to {group.value} or more, or take it out."
            yield Finding("in-flight-below-group", told, subject.where(most.path), remedy)


def _check_oversampling(subject: Subject) -> Iterator[Finding]:
    found = first(subject, "orchestrator.oversampling_factor")
    if found is None or isinstance(found.value, bool) or not isinstance(found.value, int | float):
        return
    # 63331ad8b and before take 1 or more; since 1f26eeeb5 a smaller one is a limit on what is in flight.
    if found.value <= 0 or (found.value < 1 and has(subject, date(2026, 5, 20)) is False):
        told = f"{found.path} = {found.value} asks for less than a batch."
        yield Finding("oversampling-below-one", told, subject.where(found.path))


def _below_one(subject: Subject) -> Iterator[Finding]:
    """Numbers that prime-rl wants to be 1 or more, in every era. The supervisor overrules those of checkpoints."""
    own = () if subject.run_file is not None else (*_CHECKPOINTS, *_SHARED_CHECKPOINTS)
    paths = {"rl": (*_ROLLOUTS, *own), "sft": (*_EXAMPLES, *(path.removeprefix("trainer.") for path in own))}
    for path in dict.fromkeys(paths.get(subject.kind, ())):
        found = number(subject, path)
        if found and found.value < 1:
            counts = True if found.value or path not in _SHARED_CHECKPOINTS else has(subject, _NONE_COUNTS)
            severe: Severity | None = None if counts or subject.kind == "sft" else "warning"
            told = f"{path} = {found.value}, and prime-rl wants 1 or more."
            if counts is not False or subject.kind == "sft":
                yield Finding("below-one", told, subject.where(path), severity=severe)
    for path in _LENGTHS.get(subject.kind, ()):
        found = number(subject, path)
        if found and found.value < 1:
            told = f"{path} = {found.value}: no token of an answer would be trained on."
            yield Finding("below-one", told, subject.where(path), f"Set {path} to 1 or more.")


def _no_steps(subject: Subject) -> Iterator[Finding]:
    found = number(subject, "max_steps", "trainer.max_steps", "orchestrator.max_steps")
    overruled = subject.run_file is not None and subject.run_file.run.max_steps is not None
    if found and found.value <= 0 and not overruled:
        told = f"{found.path} = {found.value}: there is nothing to train."
        counts = subject.dialect is not None and subject.dialect.gpus == "counts"  # takes 0 for not set
        severe: Severity = "warning" if counts or subject.dialect is None else "error"
        yield Finding("no-steps", told, subject.where(found.path), severity=severe)


def _check_practice_modes(subject: Subject) -> Iterator[Finding]:
    """Fake data and the benchmark mode, left on after trying something out."""
    fake = of_trainer(subject, "data.fake")
    if subject.kind == "sft" and subject.settings.get("data.type") == "fake":
        yield Finding("fake-data", 'data.type = "fake": random tokens are trained on.', subject.where("data.type"))
    elif subject.kind == "rl" and first(subject, fake):
        told = f"{fake} is set: the trainer takes random tokens and not the rollouts."
        yield Finding("fake-data", told, subject.where(fake))
    bench = switched_on(subject, "bench", "trainer.bench", "orchestrator.bench")
    if not bench and isinstance(subject.settings.get("trainer.bench"), dict):
        bench = "trainer.bench"
    if bench:
        told = f"{bench} is on: the run ends after {BENCH_STEPS} steps and writes no checkpoint."
        yield Finding("benchmark-mode", told, subject.where(bench))


# ---------------------------------------------------------------- GPUs


def _engine_layout(subject: Subject) -> Iterator[Finding]:
    gpus, tensor = len(subject.plan.inference), degree(subject, *TENSOR)
    if not gpus or not subject.settings.has("inference") or subject.serves_apart or elsewhere(subject):
        return
    where = subject.where(*TENSOR) if number(subject, *TENSOR) else _gpus_at(subject, "inference")
    weight = _if_counted(subject, "inference")
    if gpus % tensor:
        told = (
            f"The engine has {_gpus_in_words(gpus)} and tensor parallelism of {tensor}, which does not divide {gpus}."
        )
        remedy = f"Give it a multiple of {tensor} GPUs, or set {_first_path(subject, TENSOR)} to a divisor of {gpus}."
        yield Finding("tensor-parallel-divides", told, where, remedy, weight)
    heads = subject.model.heads if subject.model else 0
    if heads and tensor > 1 and heads % tensor and subject.model:
        told = (
            f"{subject.model.name} has {heads} attention heads, which tensor parallelism of {tensor} does not divide."
        )
        yield Finding("heads-by-tensor-parallel", told, subject.where(*TENSOR))


def _trainer_layout(subject: Subject) -> Iterator[Finding]:
    """The degrees of parallelism multiply to the number of GPUs (trainer/parallel_dims.py, in every era)."""
    world = len(subject.plan.trainer)
    keys = {name: of_trainer(subject, f"model.{name}") for name in ("cp", "tp", "dp_replicate", "ep")}
    cp, tp, replicas, ep = (degree(subject, key) for key in keys.values())
    if not world or subject.kind not in ("rl", "sft") or elsewhere(subject):
        return
    named = [
        f"{keys[name]} = {size}" for name, size in (("dp_replicate", replicas), ("cp", cp), ("tp", tp)) if size > 1
    ]
    weight = _if_counted(subject, "trainer")
    if world % (replicas * cp * tp):
        told = f"The trainer has {_gpus_in_words(world)}, which {' times '.join(named)} does not divide."
        set_anew = " and ".join(part.partition(" ")[0] for part in named)
        remedy = f"Set {set_anew} so that dp_replicate times cp times tp divides {world}."
        where = subject.where(*(keys[name] for name in ("cp", "tp", "dp_replicate")))
        yield Finding("trainer-layout-divides", told, where, remedy, weight)
    elif ep > 1 and (ep % cp or (world // (replicas * tp)) % ep):
        told = f"{keys['ep']} = {ep} does not fit {_gpus_in_words(world)}" + (
            f" with {', '.join(named)}." if named else "."
        )
        remedy = f"Let {keys['ep']} be a multiple of cp = {cp} and a divisor of {world // (replicas * tp)}."
        yield Finding("expert-parallel-fits", told, subject.where(keys["ep"]), remedy, weight)
    sequence = number(subject, "data.seq_len")
    divisor = 2 * cp * tp
    if subject.kind == "sft" and sequence and sequence.value % divisor:
        told = f"data.seq_len = {sequence.value} is no multiple of {divisor}, twice cp times tp."
        below = sequence.value - sequence.value % divisor
        remedy = f"Set data.seq_len to {below or divisor}."
        yield Finding("seq-len-by-parallelism", told, subject.where("data.seq_len"), remedy)


def _gpus_once(subject: Subject) -> Iterator[Finding]:
    for part, asked in (("inference", subject.plan.inference), ("trainer", subject.plan.trainer)):
        if twice := sorted({gpu for gpu in asked if list(asked).count(gpu) > 1}):
            told = f"GPU {', '.join(twice)} stands twice in the list of {part}."
            once = ", ".join(dict.fromkeys(asked))
            yield Finding("gpu-twice", told, _gpus_at(subject, part), f"Name each GPU once: {once}.")


_COUNTS = {
    "inference": ("inference_gpu_ids", "inference_gpus", "deployment.num_infer_gpus"),
    "trainer": ("trainer_gpu_ids", "trainer_gpus", "deployment.num_train_gpus", "deployment.num_gpus"),
}
"""Where a configuration says how many GPUs a part has."""


def _if_counted(subject: Subject, part: str) -> Severity | None:
    """Without a run file, GPUs that no file counts are those of a command line, of which nothing is known."""
    counted = subject.run_file is not None or any(subject.settings.has(path) for path in _COUNTS[part])
    return None if counted else "warning"


def _gpus_at(subject: Subject, part: str) -> Where:
    if subject.run_line("gpus", part):
        return subject.run_where("gpus", part)
    deployed = "num_infer_gpus" if part == "inference" else "num_train_gpus"
    return subject.where(f"{part}_gpu_ids", f"deployment.{deployed}", f"{part}_gpus")


def _first_path(subject: Subject, paths: Sequence[str]) -> str:
    found = first(subject, *paths)
    return found.path if found else paths[-1]


def _gpus_in_words(count: int) -> str:
    return "one GPU" if count == 1 else f"{count} GPUs"


CHECKS: tuple[Check, ...] = (
    _check_groups,
    _group_of_one,
    _greedy,
    _micro_batches,
    _in_flight,
    _check_oversampling,
    _below_one,
    _no_steps,
    _check_practice_modes,
    _engine_layout,
    _trainer_layout,
    _gpus_once,
)
