"""The part of `report --md` that people kept by hand in a log of their runs: changes, rewards, and the link."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any

from supervisor.base.errors import SupervisorError
from supervisor.base.secrets import mask_value
from supervisor.cli.wandb_place import find_id, find_place
from supervisor.config.run_file import parse_toml
from supervisor.config.settings import RunFile
from supervisor.jobs.environment import with_own
from supervisor.journal import series
from supervisor.process.attempts import read_snapshot

WANDB = "https://wandb.ai"
WINDOW = 10  # steps of which a mean is taken: one step's reward is noise
MOST_CHANGES = 12  # told of one start


def gather_log(run_file: RunFile, environ: Mapping[str, str]) -> dict[str, Any]:
    """JSON values, as far as this machine knows: ``wandb``, ``changes`` by attempt, ``baseline`` and ``final`` reward.

    A reward is ``[mean, first step, last step]``; None where there are too few.
    """
    rewards = _read_rewards(run_file.state_dir)
    window = min(WINDOW, len(rewards) // 2)
    ends = (rewards[:window], rewards[-window:]) if window else ()
    baseline, final = ([mean(r for _, r in end), end[0][0], end[-1][0]] for end in ends) if ends else (None, None)
    run_id = find_id(run_file, None)
    place = find_place(run_file, environ, run_id)
    is_own = "WANDB_BASE_URL" in with_own(environ, run_file.job.env)  # a server of their own
    return {
        "wandb": {"ids": list(place.ids) if run_id else [], "project": place.project, "entity": place.entity},
        "wandb_ai": not is_own,
        "changes": list(_list_changes(run_file.state_dir)),
        "baseline": baseline,
        "final": final,
    }


def tell_log(log: Mapping[str, Any]) -> list[str]:
    """The lines of the log."""
    lines, page = [], log["wandb"]
    for one in page["ids"]:
        path = f"{page['entity']}/{page['project']}/runs/{one}"
        is_known = page["entity"] and page["project"] and log["wandb_ai"]
        lines.append(
            f"W&B: {WANDB}/{path}" if is_known else f"W&B: run {one} of project {page['project'] or 'unknown'}"
        )
    for name in ("baseline", "final"):
        if log[name] is not None:
            reward, first, last = log[name]
            lines.append(f"{name.capitalize()} reward: {reward:.4g} (mean of steps {first} to {last})")
    if log["final"] is not None:
        lines.append(f"Improvement: {log['final'][0] - log['baseline'][0]:+.4g}")
    for change in log["changes"]:
        told = "; ".join(change["changed"][:MOST_CHANGES])
        more = len(change["changed"]) - MOST_CHANGES
        lines.append(
            f"Configuration, from attempt {change['attempt']} on: {told}{f'; {more} more' if more > 0 else ''}"
        )
    return lines if log["changes"] else [*lines, "Configuration: not changed"]


def _read_rewards(state_dir: Path) -> list[tuple[int, float]]:
    """Step and reward, ascending; what an attempt did again counts as it went then."""
    known: dict[int, float] = {}
    for path in sorted((state_dir / series.FOLDER).glob("*.jsonl")):
        with suppress(OSError):
            rows = [row for row in series.parse_series(path.read_bytes()) if "reward" in row and "step" in row]
            # Of two steps that were made one, a row holds the lowest and the highest value.
            means = {int(_ends(row["step"])[-1]): mean(_ends(row["reward"])) for row in rows}
            own = {step: reward for step, reward in means.items() if isfinite(reward)}
            known = {step: reward for step, reward in known.items() if step < min(own, default=step + 1)} | own
    return sorted(known.items())


def _ends(value: Any) -> list[float]:
    return value if isinstance(value, list) else [value]


def _list_changes(state_dir: Path) -> Iterator[dict[str, Any]]:
    """What each attempt's snapshot has otherwise than the one before it."""
    before: dict[str, Any] | None = None
    for folder in sorted(path for path in (state_dir / "attempts").glob("[0-9]*") if path.name.isdigit()):
        now: dict[str, Any] = {}
        for copy in read_snapshot(folder).values():
            with suppress(OSError, ValueError, SupervisorError):
                text = copy.read_text()
                now |= _flatten(json.loads(text) if copy.suffix == ".json" else parse_toml(text))
        if before is not None and now and now != before:
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            changed = [f"{name} {_say(before, name)} → {_say(now, name)}" for name in names]
            yield {"attempt": int(folder.name), "changed": changed}
        before = now or before


def _flatten(tree: Any, above: str = "") -> dict[str, Any]:
    if isinstance(tree, list) and any(isinstance(one, dict) for one in tree):
        tree = {str(number): one for number, one in enumerate(tree)}
    if not isinstance(tree, dict):
        return {above: tree}
    return {
        key: value for name, one in tree.items() for key, value in _flatten(one, f"{above}.{name}".lstrip(".")).items()
    }


def _say(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "(none)"
    return json.dumps(mask_value(settings[name], name.rpartition(".")[2]), ensure_ascii=False, default=str)
