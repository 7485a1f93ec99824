"""What W&B's own client in the job is told by its environment: the run's health, limits to its patience, rollbacks.

The client reads them in ``Settings.update_from_env_vars`` (wandb/wandb 0.31.0, ``sdk/wandb_settings.py``); a version
that does not know one ignores it. Nothing of W&B runs in the daemon.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from supervisor.config.settings import RunFile
from supervisor.core.records import Happened

PATIENCE = {
    # A start that cannot reach W&B fails after this and ten seconds more. It is the client's own default, made certain.
    "WANDB_INIT_TIMEOUT": "90",
    # Without it the client tries to upload for ever at the end of each process, also of one that crashed.
    "WANDB_FINISH_TIMEOUT": "300",
}
"""Seconds. ``Run.log`` never waits for the network, and single requests are repeated within these two."""

HEALTH = (
    *("step", "step_seconds", "last_good_step", "published_step", "restarts_total", "rollbacks_total"),
    *("incident_open", "paused", "disk_free_bytes", "gpu_memory_used_bytes"),
    *("engine_requests_running", "engine_requests_waiting"),
)
"""Metrics of ``supervisor.api.metrics`` that are shown in the run's own page."""
HEALTH_EVERY_S = 15
NEWEST_NOTES = 10


def wandb_variables(run: RunFile, environ: Mapping[str, str], notes: str = "") -> dict[str, str]:
    """NAME to value, but for what the person said in ``environ`` (where the job may see it) or in [job] env."""
    said = {name for name in environ if any(fnmatchcase(name, glob) for glob in run.job.pass_env)} | set(run.job.env)
    wanted = {**PATIENCE, **({"WANDB_NOTES": notes} if notes else {})}
    # A filter of ours would drop what endpoints of the person's own give.
    if run.api.tcp and not any("STATS_OPEN_METRICS" in name for name in said):
        wanted |= {
            "WANDB_X_STATS_OPEN_METRICS_ENDPOINTS": json.dumps({"supervisor": _metrics_url(run.api.tcp)}),
            "WANDB_X_STATS_OPEN_METRICS_FILTERS": json.dumps([f"supervisor.rl_supervisor_({'|'.join(HEALTH)})$"]),
            "WANDB_X_STATS_SAMPLING_INTERVAL": str(HEALTH_EVERY_S),
        }
    return {name: value for name, value in wanted.items() if name not in said}


def _metrics_url(tcp: str) -> str:
    """Where the job finds what [api] tcp serves. An address that means all is asked on loopback."""
    host, _, port = tcp.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
    return f"http://{host}:{port}/metrics"


def notes_of_rollbacks(lineage: Sequence[Happened]) -> str:
    """The run's notes in W&B, which does not go back itself: points of steps that were left stay. "" without any."""
    lines = []
    for one in [one for one in lineage if one.kind == "rollback"][-NEWEST_NOTES:]:
        day = datetime.fromtimestamp(one.wall, UTC).strftime("%Y-%m-%d %H:%M UTC")
        where = "the beginning" if one.step < 0 else f"step {one.step}"
        lines.append(
            f"{day}: rolled back to {where}. Older points above it belong to steps left behind. {one.why}".strip()
        )
    return "\n".join(lines)
