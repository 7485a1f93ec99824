"""Asks W&B's public API for one run. A process of its own: the client starts another one, and may wait for long."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

STEPS = ("step", "trainer/step", "train/global_step", "trainer/global_step", "global_step", "_step")
"""Where trainers log their step; W&B's own counter, ``_step``, is the last to be believed."""
LONGEST = 400


def main() -> int:
    """``{path, timeout_s}`` on standard input; the run, or ``{why}``, as one line of JSON."""
    from wandb import Api
    from wandb.errors import CommError, UsageError

    asked = json.load(sys.stdin)
    try:
        told = describe_run(Api(timeout=asked["timeout_s"]).run(asked["path"]))
    except (CommError, UsageError, ValueError) as error:
        told = {"why": str(error)[:LONGEST]}
    except Exception as error:
        told = {"why": f"its answer makes no sense to W&B's client ({type(error).__name__})"}
    print(json.dumps(told), flush=True)
    return 0


def describe_run(run: Any) -> dict[str, Any]:
    """{id, entity, project, state, heartbeat, step, step_name, url}; None for what is not there or makes no sense."""
    summary = getattr(run, "summary_metrics", None) or run._attrs.get("summaryMetrics")
    name, step = _find_step(summary if isinstance(summary, Mapping) else {})
    texts = {
        key: value if isinstance(value, str) else None
        for key, value in (
            ("id", run.id),
            ("entity", run.entity),
            ("project", run.project),
            ("state", run.state),
            ("heartbeat", run._attrs.get("heartbeatAt")),
            ("url", run.url),
        )
    }
    return {**texts, "step": step, "step_name": name}


def _find_step(summary: Mapping[str, Any]) -> tuple[str | None, int | None]:
    for name in STEPS:
        value = summary.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
            return name, int(value)
    return None, None


if __name__ == "__main__":
    sys.exit(main())
