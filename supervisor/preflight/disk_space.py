"""Will the checkpoints fit onto their disk, and the model into the Hub's cache?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from supervisor.preflight import disk_estimate, estimate_inputs
from supervisor.preflight.finding import Finding, Severity, Where
from supervisor.preflight.memory_estimate import Interval, lora_parameters, trained_parameters
from supervisor.preflight.models import ModelFacts
from supervisor.preflight.reading import has, of_trainer
from supervisor.preflight.subject import Check, Subject
from supervisor.primerl import configs

_WEIGHTS_GONE = date(2026, 8, 20)  # 29e422276
_BROADCASTS = date(2025, 11, 18)  # 8518c157c
_KEEP = ("ckpt.keep_last", "trainer.ckpt.keep_last", "ckpt.keep", "trainer.ckpt.keep")


def step_bytes(subject: Subject) -> tuple[Interval, str] | None:
    """What one checkpoint takes with the copies that are written beside it, and where the figure is from."""
    facts = subject.model
    copies = _bytes_of_copies(subject, facts)
    if subject.steps:
        newest = max(subject.steps)
        size = float(subject.steps[newest])
        return Interval(size, size) + copies, f"as step {newest} on this disk"
    width, moments = estimate_inputs.trained_width(subject), estimate_inputs.moments_kept(subject)
    if (
        facts is None
        or not facts.parameters
        or width is None
        or moments is None
        or not estimate_inputs.trains(subject, facts)
    ):
        return None
    adapter = estimate_inputs.adapter(subject)
    count = lora_parameters(facts, adapter) if adapter else 0
    trained = trained_parameters(facts, adapter)
    size_of_it = disk_estimate.checkpoint(facts, adapters=count, trained=trained, width=width, moments=moments)
    kind = f"LoRA with {trained / 1e6:.0f} M trained parameters" if adapter else "all parameters trained"
    return size_of_it + copies, f"estimated from {facts.parameters / 1e9:.2f} B parameters, {kind}"


def _bytes_of_copies(subject: Subject, facts: ModelFacts | None) -> Interval:
    """HF copies in weights/ and what was broadcast at a checkpoint's step, each kept as long as the checkpoint."""
    if facts is None or not facts.parameters:
        return Interval(0, 0)
    copy = disk_estimate.hf_copy(facts)
    total = Interval(0, 0)
    if not _weights_off(subject) and not _weights_unknown(subject):
        gone = has(subject, _WEIGHTS_GONE)
        total += Interval(0 if gone is not False else copy.low, 0 if gone else copy.high)
    if subject.kind == "rl" and estimate_inputs.adapter(subject) is None and has(subject, _BROADCASTS) is not False:
        by_files = subject.dialect is None or configs.broadcast_type(subject.settings, subject.dialect) == "filesystem"
        total += Interval(0, copy.high if by_files else 0)
    return total


def _weights_off(subject: Subject) -> bool:
    return any(
        estimate_inputs.read_switch(subject, path, True) is False for path in ("ckpt.weights", "trainer.ckpt.weights")
    )


def _weights_unknown(subject: Subject) -> bool:
    """Does the very version that is installed not know that key?"""
    schema = subject.schema
    return schema is not None and schema.exact and schema.get(of_trainer(subject, "ckpt.weights")) is None


def disk_space(subject: Subject) -> Iterator[Finding]:
    """Two checkpoints at least, those that are kept and one that is written, and the run as a whole."""
    volume = subject.site.volumes.get("output")
    known = step_bytes(subject)
    if volume is None or known is None or not estimate_inputs.one_machine(subject) or not _saves_checkpoints(subject):
        return
    size, source = known
    if size.low <= 0:
        return
    here = sum(subject.steps.values()) + len(subject.steps) * _bytes_of_copies(subject, subject.model).high
    room = float(volume.free_bytes) + here
    place = f"The output's volume {volume.mount} has {_gb_in_words(volume.free_bytes)} free"
    if subject.run_file is not None and (quota_gb := subject.run_file.disk.capacity_gb) is not None:
        if quota_gb * 1e9 < room:
            place = f"The output's volume {volume.mount} counts for {_gb_in_words(quota_gb * 1e9)} ([disk] capacity_gb)"
        room = min(room, quota_gb * 1e9)
    room -= _download_there(subject, volume.mount)
    count = _count_checkpoints(subject)
    where = subject.run_where("job", "output_dir") if subject.run_file is not None else Where()
    each = f"a checkpoint takes {_check_between(size)} ({source})"
    least = 2 if count is None or count + len(subject.steps) > 1 else 1
    if room < least * size.low:
        two = f"{place}, {each}, and two must fit: one that is whole and one that is being written."
        # A job that lives may be writing the very step that is asked for.
        severity: Severity | None = "warning" if subject.site.job_lives or subject.site.elsewhere else None
        yield Finding("disk-too-small", two if least == 2 else f"{place}, and {each}.", where, severity=severity)
        return
    kept, why = _kept_checkpoints(subject)
    wanted = (kept + 1 if kept is not None else None, count)
    most = min((one for one in wanted if one is not None), default=None)
    if most is not None and room < most * size.high:
        told = f"{place}, {each}, and {most} of them are there at once ({why})."
        yield Finding("disk-tight" if kept is not None else "disk-full-before-end", told, where, _disk_remedy(subject))
    elif count is not None and count > 1 and (kept is None or room < count * size.low):
        told = (
            f"{place}, {each}, and the run writes {count}: "
            f"{_check_between(Interval(size.low * count, size.high * count))} if none were deleted"
        )
        if room < count * size.low:
            told += f", so it would be full after {int(room // size.high)}; {why}"
        yield Finding("disk-forecast", f"{told}.", where)


def _saves_checkpoints(subject: Subject) -> bool:
    """Are checkpoints written? With a run file always: the supervisor asks for them."""
    return subject.run_file is not None or subject.settings.has("ckpt") or subject.settings.has("trainer.ckpt")


def _count_checkpoints(subject: Subject) -> int | None:
    """How many checkpoints the run will still write, None where it is open."""
    if subject.max_steps is None or subject.max_steps > estimate_inputs.SANE:
        return None
    left = subject.max_steps - max(subject.steps, default=0)
    if subject.interval is None or subject.interval <= 0:
        return 1
    return max(-(-left // subject.interval), 1)


def _kept_checkpoints(subject: Subject) -> tuple[int | None, str]:
    """How many whole ones stay, None for all, and why."""
    own = next(
        (one for path in _KEEP if (one := subject.settings.number(path)) and 0 < one <= estimate_inputs.SANE), None
    )
    run = subject.run_file
    if run is not None and run.store.url:
        local = run.disk.keep_local
        if own is not None and own > local:
            return local, f"[disk] keep_local = {local}, and one that is being written; prime-rl would keep {own}"
        return local, f"[disk] keep_local = {local}, and one that is being written"
    if own is not None:
        return own, f"keep_last = {own}, and one that is being written"
    if run is not None:
        return None, "without a store none is deleted"
    return None, "none is deleted without keep_last"


def _disk_remedy(subject: Subject) -> str:
    run = subject.run_file
    if run is not None and not run.store.url:
        return "Set [store] url, so that published checkpoints may be deleted here, or give the run a larger volume."
    return ""


def _gb_in_words(size: float) -> str:
    return f"{size / 1e9:.0f} GB" if size >= 10e9 else f"{size / 1e9:.1f} GB"


def _check_between(size: Interval) -> str:
    low, high = _gb_in_words(size.low), _gb_in_words(size.high)
    return low if low == high else f"{low.removesuffix(' GB')} to {high}"


# ---------------------------------------------------------------- the download


def _bytes_of_download(subject: Subject) -> Interval | None:
    """What the hub will send; None where the model is here, or its size is not known."""
    facts = subject.model
    if facts is None or facts.local or not facts.parameters or facts.name in subject.site.hf_models:
        return None
    return disk_estimate.download(facts)


def _download_there(subject: Subject, mount: str) -> float:
    cache, size = subject.site.volumes.get("hf-cache"), _bytes_of_download(subject)
    return size.low if size is not None and cache is not None and cache.mount == mount else 0.0


def model_download(subject: Subject) -> Iterator[Finding]:
    """Is there room for the model itself?"""
    volume, size = subject.site.volumes.get("hf-cache"), _bytes_of_download(subject)
    if volume is None or size is None or subject.model is None or volume.free_bytes >= size.low:
        return
    told = (
        f"{subject.model.name} is not in the Hub's cache, its download takes {_gb_in_words(size.low)} at least, and "
        f"{volume.mount} has {_gb_in_words(volume.free_bytes)} free."
    )
    # Part of it may be there already, unless the volume is too small for it altogether.
    never = volume.total_bytes < size.low and not subject.site.elsewhere
    severity: Severity | None = "error" if never else None
    yield Finding("model-download-space", told, subject.where("model.name", "trainer.model.name"), severity=severity)


CHECKS: tuple[Check, ...] = (disk_space, model_download)
