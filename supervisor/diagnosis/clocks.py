"""When was each line written? The times of an attempt's logs are put on one scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from supervisor.core.launcher import failed_part
from supervisor.diagnosis.kinds import PART_ENDED
from supervisor.diagnosis.lines import DAY_S
from supervisor.diagnosis.seen import GAP_S, Log

SLACK_S: Final = 120.0  # logs of several processes tell of one moment so far apart
APART_S: Final = 3.0  # times of two logs are whole seconds, and the launcher looks each second
ONE_PROCESS: Final = ("orchestrator", "trainer")  # what an engine or an environment started may write on


def align_clocks(logs: Sequence[Log]) -> None:
    """Give each log the shift that makes its times comparable with those of the others."""
    _add_days(logs)
    _put_back_launchers(logs)


def last_time_of(logs: Iterable[Log]) -> float | None:
    """When the last line of all these logs was written."""
    return max((t for log in logs if (t := log.ends_t) is not None), default=None)


def _add_days(logs: Iterable[Log]) -> None:
    """Times without a day are put beside those that have one: an attempt's logs begin within hours of each other."""
    timed = [log for log in logs if log.first_t is not None]
    for log in timed:
        log.shift = log.offset
    begins = [log.begins_t for log in timed if log.dated and not log.kernel]
    anchor = min((t for t in begins if t is not None), default=None)
    # The kernel tells of days before the job: it is read up to the job's end.
    kernels_end = last_time_of(log for log in timed if log.dated and log.kernel)
    if anchor is None and timed and kernels_end is None:
        anchor = timed[0].first_t
    for log in timed:
        if log.dated or log.first_t is None or log.last_t is None:
            continue
        if anchor is not None:
            log.shift = round((anchor - log.first_t) / DAY_S) * DAY_S
        elif kernels_end is not None:
            log.shift = round((kernels_end - log.last_t) / DAY_S) * DAY_S


def _put_back_launchers(logs: Sequence[Log]) -> None:
    """A launcher names a part that ended after its last word: where its clock says before, the clock is wrong."""
    for launcher in logs:
        said = next((event for event in launcher.events if event.name == PART_ENDED), None)
        t = launcher.at(said.first) if said is not None and launcher.merged else None
        if said is None or t is None or (part := failed_part(said.text)) not in ONE_PROCESS:
            continue
        end = last_time_of(log for log in logs if log.role == part)
        if end is not None and APART_S < end - t <= GAP_S:
            launcher.shift += end - t
