"""What may have ended an attempt? The root is one of these candidates, or is known to cause one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from supervisor.core.launcher import failed_part
from supervisor.diagnosis.kinds import ENDED, FROM_OUTSIDE, LAST_WORDS, OFTEN, PART_ENDED, Kind, group_by_name
from supervisor.diagnosis.seen import GAP_S, SLACK_S, Event, Log, Sighting, last_time_of
from supervisor.diagnosis.step_worth import LEAST, takes_longer
from supervisor.diagnosis.survived import APART_S, is_ignored, is_survived

SELDOM: Final = 10  # ordinary lines for each such error: then most requests, or rollouts, end well
MOST_PERCENT: Final = 50.0  # of the rollouts: with fewer that fail a run learns
VERY_OFTEN: Final = 20  # times that it comes, where no clock tells since when nothing moves
_WAITING: Final = ("Inference server was not reached", "Inference server is not ready")


@dataclass
class Signs:
    """What came before the launcher ended the job's parts, by what it says of the end."""

    kinds: list[Kind]  # all of it
    hard: list[Kind]  # something failed
    ends: list[Kind]  # only that something ended
    suspects: list[Kind] = field(default_factory=list)  # what a healthy run has, too, and which weighs more here

    @property
    def names_no_cause(self) -> bool:
        """Does what failed say only that something did?"""
        return bool(self.hard) and all(kind.names_no_cause for kind in self.hard)


def read_signs(kinds: Iterable[Kind], logs: Sequence[Log]) -> Signs:
    """Sort what came in time by what it says of the end."""
    stop = next((kind.events[0] for kind in kinds if kind.name == PART_ENDED), None)
    in_time = [kind for kind in kinds if stop is None or not _came_with_the_stop(kind, *stop)]
    ends = [kind for kind in in_time if not kind.is_mild and kind.link == "end"]
    signs = Signs(in_time, [kind for kind in in_time if kind.is_hard], ends)
    signs.suspects = [
        kind
        for kind in in_time
        if kind.is_mild
        and (_stands_still(kind, logs) or _fails_most_rollouts(kind, logs) or _ended_a_part(kind, signs, stop))
    ]
    return signs


def choose_candidates(signs: Signs, logs: Sequence[Log], lived: Iterable[Kind]) -> list[Kind]:
    """The first of these that finds anything. ``lived``: also what came while steps were still made."""
    return (
        _what_failed(signs, logs)
        or _what_logs_end_with(signs, logs)
        or [kind for kind in signs.kinds if _ended_what_others_ask(kind, logs)]
        or _what_makes_steps_worthless(logs, lived)
    )


def choose_in_a_wait(signs: Signs, waits: Sequence[Sighting]) -> list[Kind]:
    """What explains that parts wait: an environment's error, else what one said in its wait, else the wait itself."""
    log, wait = waits[0]
    return (
        [kind for kind in signs.kinds if kind.is_of_environment]
        or [
            kind
            for kind in signs.kinds
            if kind.is_mild
            and kind.signature is not None
            and any(where is log and said.first.line > wait.first.line for where, said in kind.events)
        ]
        or group_by_name(waits[:1])
    )


def _came_with_the_stop(kind: Kind, stop_log: Log, stop: Event) -> bool:
    """Did it come only after the launcher had said that one of its parts ended? It ends the others from then on."""
    if kind.name == PART_ENDED:
        return False
    part, t = failed_part(stop.text), stop_log.at(stop.first)
    if kind.name == ENDED:  # such a line has no time of its own; then only the launcher sends others a signal
        return all(event.role not in ("launcher", part) for _, event in kind.events)
    if any(event.role == part for _, event in kind.events):
        return False  # of the part that failed; its clock may go wrong
    if t is not None and kind.first_t is not None:
        return kind.first_t > t + APART_S
    return all(log is stop_log and event.first.line > stop.first.line for log, event in kind.events)


def _stands_still(kind: Kind, logs: Sequence[Log]) -> bool:
    """Does it come again and again while no step is done?"""
    if kind.link == "end" or _is_loading(kind, logs):
        return False
    if sum(event.beside for _, event in kind.events) > SELDOM * kind.count + 50:
        return False
    if not any(steps.count for log in logs for steps in log.steps.values()):
        lasts = any(log.before + log.lines - event.last.line <= LAST_WORDS for log, event in kind.events)
        return kind.count >= OFTEN and kind.signature is not None and lasts
    timed = [log for log in logs if log.first_t is not None]
    steps_t = [steps.times[-1] + log.shift for log in timed for steps in log.steps.values() if steps.times]
    if kind.last_t is None or not steps_t:
        return kind.count >= VERY_OFTEN
    return kind.count >= OFTEN and kind.last_t - max(steps_t) >= GAP_S


def _is_loading(kind: Kind, logs: Iterable[Log]) -> bool:
    """Does the orchestrator wait for an engine that is being started? A first download takes its time."""
    if not kind.event.text.startswith(_WAITING) or kind.first_t is None or kind.last_t is None:
        return False
    heard_t = last_time_of(log for log in logs if log.role == "inference")
    return kind.last_t - max(kind.first_t, heard_t or kind.first_t) < GAP_S


def _fails_most_rollouts(kind: Kind, logs: Iterable[Log]) -> bool:
    """Does the orchestrator say that most rollouts fail, and this again and again?"""
    failing = any(log.failed_percent > MOST_PERCENT for log in logs)
    return failing and kind.count >= VERY_OFTEN and all(event.role == "orchestrator" for _, event in kind.events)


def _ended_a_part(kind: Kind, signs: Signs, stop: Sighting | None) -> bool:
    """Did its part do nothing more after it, and nothing that is worse says why? Once is enough for a known exception.

    Environments raise what they like and live on: there the launcher must have said that the server ended.
    """
    env_ended = stop is not None and failed_part(stop[1].text) == "env"
    ended = [
        log
        for log, event in kind.events
        if (event.signature is not None or (env_ended and event.role == "env"))
        and event.raised is not None
        and event.lives < LAST_WORDS
    ]
    if signs.names_no_cause:  # what failed after it has to stand in the same log
        return any(log is beside for log in ended for other in signs.hard for beside, _ in other.events)
    broken = not signs.hard and any(end.name not in FROM_OUTSIDE for end in signs.ends)
    return broken and (kind.count > 1 or bool(ended))


def _what_failed(signs: Signs, logs: Sequence[Log]) -> list[Kind]:
    """What came in time and says that something failed or ended, or what is behind that in another log."""
    found = [*signs.hard, *signs.suspects, *signs.ends]
    if signs.hard and all(kind.signature is None or kind.names_no_cause for kind in signs.hard):
        # An exception without an entry may be of the one who waited in vain for an environment server.
        found = [kind for kind in signs.kinds if kind.ended_environment] or found
    if signs.names_no_cause and all(kind.names_no_cause for kind in signs.suspects):
        # Another log may end with the error that made it fail.
        heard = [log for kind in (*signs.hard, *signs.suspects) for log, _ in kind.events]
        found = [*_last_errors([log for log in logs if log not in heard], late=False), *found]
    return found


def _what_logs_end_with(signs: Signs, logs: Sequence[Log]) -> list[Kind]:
    """An error of no known kind behind which no log goes on."""
    errors = _last_errors(logs)
    # Others give up where an environment server has ended.
    return errors and ([kind for kind in signs.kinds if kind.ended_environment] or errors)


def _last_errors(logs: Sequence[Log], *, late: bool = True) -> list[Kind]:
    """Errors of no known kind with which a log ends, while no other log goes on (``late``)."""
    end = last_time_of(log for log in logs if not log.kernel)
    return group_by_name(
        (log, log.final)
        for log in logs
        if log.final is not None
        and (not late or end is None or log.ends_t is None or end - log.ends_t <= SLACK_S)
        and not is_ignored(log.final)
        and not is_survived(log, log.final, logs)
    )


def _ended_what_others_ask(kind: Kind, logs: Iterable[Log]) -> bool:
    """Is it the last that an environment's server knew to tell, while another program complains and makes no step?"""
    complaining = any(
        log.complaint is not None and not any(steps.after_line(log.complaint[1].line) for steps in log.steps.values())
        for log in logs
        if log.role != "env"
    )
    return complaining and any(
        event.role == "env" and event.signature is not None and not event.signature.mild and event.lives < LAST_WORDS
        for _, event in kind.events
    )


def _what_makes_steps_worthless(logs: Sequence[Log], lived: Iterable[Kind]) -> list[Kind]:
    """A loss that is no number, or the most frequent error beside rewards of zero or ever slower steps."""
    broken = [(log, log.nan) for log in logs if log.nan is not None and log.nan.count >= LEAST]
    if broken:
        return group_by_name(broken)
    zero = [(log, log.unrewarded[1]) for log in logs if log.unrewarded and log.unrewarded[0] >= LEAST]
    often = [
        kind
        for kind in lived
        if kind.comes_often
        and any(log is not one or event.last.line > since.line for log, event in kind.events for one, since in zero)
    ]
    often += [
        kind
        for kind in lived
        if kind.count >= LEAST
        and kind.link == "cause"
        and kind.signature is not None
        and any(
            takes_longer(steps) and steps.after_line(event.last.line) <= 1
            for log, event in kind.events
            for steps in log.steps.values()
        )
    ]
    return sorted(often, key=lambda kind: -kind.count)[:1]
