"""The newest checkpoint against the installed revision and the configuration now: would it fail, or train another?

What it was made with is told by the snapshot of the attempt that made it, and by the manifest of the published step.
Nothing of a checkpoint is executed: of a pickle only the names in its text are looked at.
"""

from __future__ import annotations

import json
import re
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from supervisor.base.errors import ConfigError
from supervisor.checkpoints.manifest import LATEST, MANIFEST, Manifest, parse_latest, parse_manifest
from supervisor.config.run_file import parse_toml
from supervisor.journal.attempt_folders import attempts, folder_of
from supervisor.preflight import installed
from supervisor.preflight.environments import list_environments
from supervisor.preflight.finding import Finding
from supervisor.preflight.reading import ANY_LORA
from supervisor.preflight.subject import Check, Subject
from supervisor.primerl import configs
from supervisor.primerl.configs import Settings
from supervisor.process.attempts import digest, read_snapshot
from supervisor.storage.base import StoreError

LARGEST_PICKLE = 4 << 20
MOST_TOLD = 6
FRESH_S = 120.0
_PICKLED = re.compile(rb"c(prime_rl(?:\.\w+)*)\n(\w+)\n|\x8c.(prime_rl(?:\.\w+)*)\x94\x8c.(\w+)\x94", re.DOTALL)


@dataclass(frozen=True)
class Before:
    """What a checkpoint was made with, as far as it is known. ``told``: a clause on where that stands."""

    step: int
    settings: Settings | None = None
    told: str = ""
    revision: str = ""
    first_step: int | None = None


def before_of(subject: Subject) -> Before | None:
    """What is told here of the newest checkpoint: by the embedded store's manifest, and the snapshot of its attempt."""
    run = subject.run_file
    if run is None or subject.kind == "command":
        return None
    manifest = local_manifest(run.store_url, run.run.id)
    step = max([*subject.steps, *([manifest.step] if manifest else [])], default=None)
    if step is None:
        return None
    wanted = manifest.config_sha256 if manifest and manifest.step == step else ""
    number, copies = _find_snapshot(run.state_dir, wanted)
    same = manifest if manifest and manifest.step == step else None
    return Before(
        step,
        _settings_of_snapshot(subject, copies) if copies else None,
        f"attempt {number}, with its snapshot in {folder_of(run.state_dir, number)}" if number else "",
        same.revision if same else "",
        same.step_base if same else None,
    )


def local_manifest(url: str, run_id: str) -> Manifest | None:
    """The newest published step of a store that is a folder here; None where it is another or holds none."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    folder = Path(unquote(parts.path)) / run_id
    try:
        latest = parse_latest((folder / LATEST).read_bytes(), run_id)
        return parse_manifest((folder / f"step_{latest.step}" / MANIFEST).read_bytes(), run_id, latest.step)
    except (OSError, StoreError):
        return None


def _find_snapshot(state_dir: Path, wanted: str) -> tuple[int, Mapping[Path, Path]]:
    """The attempt with this digest of its configuration; else the last one that has a snapshot."""
    last: tuple[int, Mapping[Path, Path]] = 0, {}
    for number in reversed(attempts(state_dir)):
        copies = read_snapshot(folder_of(state_dir, number))
        if not copies:
            continue
        if not wanted:
            return number, copies
        try:
            if digest(copies) == wanted:
                return number, copies
        except OSError:
            continue
        last = last if last[0] else (number, copies)
    return last


def _settings_of_snapshot(subject: Subject, copies: Mapping[Path, Path]) -> Settings | None:
    """The snapshot read as the present configuration is; None where that was in other files."""
    run = subject.run_file
    if run is None or not all(source.path in copies for source in configs.sources(run.job)):
        return None
    try:
        return configs.load(configs.sources(run.job), subject.args, copies)
    except ConfigError:
        return None


def of_texts(subject: Subject, texts: Sequence[str]) -> Settings | None:
    """The same of configuration texts in the order of the present files; None where they are others."""
    if len(texts) != len(subject.texts):
        return None
    try:
        trees = [
            (now.table, json.loads(text) if now.path.suffix == ".json" else parse_toml(text))
            for now, text in zip(subject.texts, texts, strict=True)
        ]
    except (ValueError, RecursionError):
        return None
    return Settings(
        configs.merge_configs([one for one in trees if isinstance(one[1], Mapping)], subject.args), "the store"
    )


# ---------------------------------------------------------------- would it fail?


def data_position(subject: Subject) -> Iterator[Finding]:
    """Since e229a286f the orchestrator's part must hold where in the data it was, and older ones do not."""
    step, progress = _read_progress(subject)
    if not progress or subject.settings.get("ckpt.skip_progress", "orchestrator.ckpt.skip_progress"):
        return
    source = installed.first_text(subject.roots, "orchestrator/ckpt.py")
    if 'state["train_source"]' in source and b"train_source" not in progress:
        yield Finding(
            "resume-without-data-position",
            f"The checkpoint of step {step} was made before prime-rl kept its position in the data, and the installed "
            f"one does not resume without it.",
        )
        return
    for found in _PICKLED.finditer(progress):
        module, name = ((part or b"").decode() for part in (found[1] or found[3], found[2] or found[4]))
        if subject.roots and not _has_class(subject.roots, module, name):
            yield Finding(
                "resume-class-moved",
                f"The checkpoint of step {step} holds a {name} of {module}, which is not in the installed prime-rl.",
            )
            return


def _read_progress(subject: Subject) -> tuple[int, bytes]:
    """The pickle in the newest step's progress.pt, which is a zip file; empty where it cannot be read."""
    run = subject.run_file
    if run is None or subject.kind != "rl" or not subject.steps:
        return 0, b""
    step = max(subject.steps)
    for folder in ("", "run_default", run.run.id, f"{run.run.id}/run_default"):
        path = run.output_dir / folder / "checkpoints" / f"step_{step}" / "orchestrator" / "progress.pt"
        try:
            with zipfile.ZipFile(path) as archive:
                name = next((one for one in archive.namelist() if one.endswith("data.pkl")), "")
                with archive.open(name) as file:
                    return step, file.read(LARGEST_PICKLE)
        except (OSError, KeyError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
            continue
    return step, b""


def _has_class(roots: Sequence[Path], module: str, name: str) -> bool:
    """Does a module of that name mention it? A module that is a folder may take it from anywhere."""
    relative = Path(*module.split(".")[1:])
    files = [root / f"{relative}.py" for root in roots] + [root / relative / "__init__.py" for root in roots]
    return any(re.search(rf"\b{re.escape(name)}\b", installed.text_of(file)) for file in files)


def other_layout(subject: Subject) -> Iterator[Finding]:
    """Checkpoints that lie where another version would look for them."""
    run = subject.run_file
    if run is None or subject.dialect is None or subject.steps or subject.site.job_lives:
        return
    found: dict[int, Path] = {}
    for folder in (run.output_dir / "checkpoints", run.output_dir / run.run.id / "checkpoints"):
        for meta in (*folder.glob("step_*/.metadata"), *folder.glob("step_*/trainer/.metadata")):
            place = meta.parent.parent if meta.parent.name == "trainer" else meta.parent
            with suppress(OSError):
                if time.time() - meta.stat().st_mtime < FRESH_S:
                    return  # the other part may still be written
            if (number := place.name.removeprefix("step_")).isdigit():
                found[int(number)] = place
    if found:
        step = max(found)
        yield Finding(
            "resume-other-layout",
            f"{found[step]} holds a checkpoint of the trainer, and none here is complete as {subject.dialect.name} "
            f"writes them.",
        )


# ---------------------------------------------------------------- would it train another thing?

MODEL = ("model.name", "trainer.model.name", "model")
OPTIMIZER = ("trainer.optim.type", "optim.type")
SKIPS_OPTIMIZER = ("ckpt.skip_optimizer", "trainer.ckpt.skip_optimizer")

# Spellings of one setting, what it is called, and what its change means for a resume.
QUIET = (
    (("trainer.optim.lr", "optim.lr"), "the checkpoint holds the optimizer's learning rate, which is taken again"),
    (
        ("trainer.optim.weight_decay", "optim.weight_decay"),
        "the checkpoint holds the optimizer's, which is taken again",
    ),
    (("orchestrator.batch_size", "data.batch_size", "batch_size"), ""),
    (("orchestrator.rollouts_per_example", "orchestrator.group_size"), ""),
    (("seq_len", "trainer.model.seq_len", "model.seq_len", "data.seq_len"), ""),
    (("orchestrator.seq_len",), ""),
    (("orchestrator.sampling.temperature", "orchestrator.train.sampling.temperature"), ""),
    (
        (
            *("orchestrator.sampling.max_tokens", "orchestrator.train.sampling.max_tokens"),
            *("orchestrator.sampling.max_completion_tokens", "orchestrator.train.sampling.max_completion_tokens"),
        ),
        "",
    ),
    (("trainer.loss", "loss"), ""),
    (("orchestrator.advantage", "orchestrator.algo"), ""),
    (("data.name",), ""),
)


def changed_settings(subject: Subject, before: Before | None = None) -> Iterator[Finding]:
    """What the configuration says otherwise than the one that made the newest checkpoint."""
    before = before or before_of(subject)
    if before is None:
        return
    old = before.settings
    if old is not None:
        since = f"the one that made step {before.step}" + (f" ({before.told})" if before.told else "")
        yield from _compare_model(subject, old, since)
        yield from _compare_adapter(subject, old, since)
        yield from _compare_optimizer(subject, old, since)
        yield from _compare_environments(subject, old, since)
        yield from _compare_quietly(subject, old, since)
    if before.revision and subject.revision and before.revision != subject.revision:
        yield Finding(
            "resume-other-revision",
            f"Step {before.step} was made with prime-rl {before.revision[:9]}; installed is {subject.revision[:9]}.",
        )
    if before.first_step is not None and subject.dialect and before.first_step != subject.dialect.first_step:
        yield Finding(
            "resume-other-count",
            f"The prime-rl that made step {before.step} counted steps from {before.first_step}, and the installed one "
            f"counts from {subject.dialect.first_step}.",
        )


def _compare_model(subject: Subject, old: Settings, since: str) -> Iterator[Finding]:
    was, now = old.get(*MODEL), subject.settings.get(*MODEL)
    if not isinstance(was, str) or not isinstance(now, str) or was == now:
        return
    if was.rstrip("/").rpartition("/")[2].lower() == now.rstrip("/").rpartition("/")[2].lower():
        return  # the same model, from another place
    yield Finding("resume-other-model", f"The model is {now}, and of {since} it was {was}.", subject.where(*MODEL))


def _compare_adapter(subject: Subject, old: Settings, since: str) -> Iterator[Finding]:
    was, now = _table_of_settings(old, ANY_LORA), _table_of_settings(subject.settings, ANY_LORA)
    place = subject.where(*ANY_LORA) if subject.texts else subject.file()
    if (was is None) != (now is None):
        verb = "trains a LoRA, and" if was is None else "trains all weights, and"
        other = "trained all weights" if was is None else "trained a LoRA"
        yield Finding("resume-other-adapter", f"The configuration {verb} {since} {other}.", place)
        return
    if was is None or now is None:
        return
    ranks = was.get("rank"), now.get("rank")
    if ranks[0] != ranks[1]:
        known = all(isinstance(rank, int) for rank in ranks)
        told = f"The LoRA's rank is {_show_value(ranks[1])}, and of {since} it was {_show_value(ranks[0])}."
        yield Finding(
            "resume-other-adapter",
            told,
            subject.where(*(f"{one}.rank" for one in ANY_LORA)),
            severity=None if known else "warning",
        )
    targets = was.get("target_modules"), now.get("target_modules")
    if (
        isinstance(targets[0], list)
        and isinstance(targets[1], list)
        and set(map(str, targets[0])) != set(map(str, targets[1]))
    ):
        added = sorted(set(map(str, targets[1])) - set(map(str, targets[0])))
        told = f"adds {', '.join(added)}" if added else "leaves some out"
        yield Finding(
            "resume-other-adapter",
            f"The LoRA's target_modules {told}, compared with {since}.",
            subject.where(*(f"{one}.target_modules" for one in ANY_LORA)),
            severity=None if added else "warning",
        )
    if was.get("alpha") != now.get("alpha"):
        yield Finding(
            "resume-other-scale",
            f"The LoRA's alpha is {_show_value(now.get('alpha'))}, and of {since} it was "
            f"{_show_value(was.get('alpha'))}.",
            subject.where(*(f"{one}.alpha" for one in ANY_LORA)),
        )


def _compare_optimizer(subject: Subject, old: Settings, since: str) -> Iterator[Finding]:
    was, now = old.get(*OPTIMIZER), subject.settings.get(*OPTIMIZER)
    if was == now or subject.settings.get(*SKIPS_OPTIMIZER):
        return
    # Before a2a74cd55, of the same day as the broadcasts folder, the optimizer's state was not loaded at all.
    known = isinstance(was, str) and isinstance(now, str) and (subject.dialect is None or subject.dialect.broadcasts)
    yield Finding(
        "resume-other-optimizer",
        f"The optimizer is {_show_value(now)}, and of {since} it was {_show_value(was)}.",
        subject.where(*OPTIMIZER),
        severity=None if known else "warning",
    )


def _compare_environments(subject: Subject, old: Settings, since: str) -> Iterator[Finding]:
    def names(settings: Settings) -> list[str]:
        found = list_environments(Subject(kind=subject.kind, settings=settings))
        return sorted({one.modules[-1] for one in found if "eval" not in one.key})

    was, now = names(old), names(subject.settings)
    if was == now:
        return
    parts = []
    if gone := sorted(set(was) - set(now)):
        parts.append(f"without {', '.join(gone)}")
    if fresh := sorted(set(now) - set(was)):
        parts.append(f"with {', '.join(fresh)}")
    yield Finding(
        "resume-other-environment",
        f"The run would train {' and '.join(parts)}, otherwise than {since}.",
        subject.file("orchestrator.env"),
    )


def _compare_quietly(subject: Subject, old: Settings, since: str) -> Iterator[Finding]:
    now = subject.settings
    told, first = [], ""
    for paths, meaning in QUIET:
        was, fresh = old.get(*paths), now.get(*paths)
        if was == fresh:
            continue
        path = next((one for where in (now, old) for one in paths if where.get(one) is not None), paths[0])
        first = first or path
        told.append(f"{path} is {_show_value(fresh)} and was {_show_value(was)}" + (f" ({meaning})" if meaning else ""))
    if told:
        more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        yield Finding(
            "resume-other-settings",
            f"Otherwise than in {since}: {'; '.join(told[:MOST_TOLD])}{more}.",
            subject.where(first),
        )


def _table_of_settings(settings: Settings, paths: Sequence[str]) -> Mapping[str, Any] | None:
    value = settings.get(*paths)
    return value if isinstance(value, Mapping) else None


def _show_value(value: object) -> str:
    text = "the default" if value is None else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."


CHECKS: tuple[Check, ...] = (data_position, other_layout, changed_settings)
