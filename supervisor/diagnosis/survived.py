"""What did the run live with? Clocks are put beside each other: steps that came later show that it went on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from supervisor.core.facts import Role
from supervisor.core.launcher import failed_part
from supervisor.diagnosis.kinds import FROM_OUTSIDE, PART_ENDED, Kind
from supervisor.diagnosis.lines import DAY_S
from supervisor.diagnosis.seen import GAP_S, LAST_LINES, Event, Log, Place, Sighting, last_time_of
from supervisor.diagnosis.standstill import who_waits

APART_S: Final = 3.0  # times of two logs are whole seconds, and the launcher looks each second
ENOUGH: Final[dict[Role, int]] = {"orchestrator": 2, "trainer": 4, "job": 2, "launcher": 4, "env": 4, "inference": 4}
"""Steps after an error that show that the run went on: the trainer may do a few with what it has already."""
AFTER_S: Final = 3600.0  # that the kernel may tell of something after the last line of a log
_ONE_PROCESS: Final = ("orchestrator", "trainer")  # what an engine or an environment started may write on
_IGNORED: Final = ("CancelledError", "GeneratorExit", "SystemExit", "BrokenPipeError", "StopAsyncIteration")
_OF_MODELS: Final = ("<string>", "<stdin>", "<python>", "<code>")  # files of code that a model wrote


def align_clocks(logs: Sequence[Log]) -> None:
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
    _put_back_launchers(logs)


def _put_back_launchers(logs: Sequence[Log]) -> None:
    """A launcher names a part that ended after its last word: where its clock says before, the clock is wrong."""
    for launcher in logs:
        said = next((event for event in launcher.events if event.name == PART_ENDED), None)
        t = launcher.at(said.first) if said is not None and launcher.merged else None
        if said is None or t is None or (part := failed_part(said.text)) not in _ONE_PROCESS:
            continue
        end = last_time_of(log for log in logs if log.role == part)
        if end is not None and APART_S < end - t <= GAP_S:
            launcher.shift += end - t


def sort_events(logs: Sequence[Log]) -> tuple[list[Sighting], list[Sighting]]:
    """Tell the events of an attempt that may have ended it from those that the run lived with."""
    present: list[Sighting] = []
    over: list[Sighting] = []
    stops = [event.text.lower() for log in logs for event in log.events if event.name == PART_ENDED]
    for log in logs:
        if _went_on_in_another(log, logs):
            continue
        for event in log.events:
            if event.start < log.starts or is_ignored(event) or (log.kernel and _is_of_another_time(log, event, logs)):
                continue  # of a start before the last one in the same file, or of another time
            if event.closing or _is_only_a_name(event):
                continue  # an engine that is ended loses its own parts
            if _is_usual(log, event, logs):
                event.weak = True
            else:
                event.anew = None
            survived = is_survived(log, event, logs) and not _ended_its_part(log, event, stops)
            (over if survived else present).append((log, event))
    _weaken_familiar_events(present, over)
    return present, over


def _weaken_familiar_events(present: Iterable[Sighting], over: Iterable[Sighting]) -> None:
    """What the run lived with is no end of it where it comes once more, and the log goes on."""
    times = Counter((id(log), event.name, event.role) for log, event in over)
    places = {_place_of(event) for _, event in over if event.signature is None}
    for log, event in present:
        fails_then = any(
            one.first.line > event.last.line and one.signature is not None and one.signature.link != "cause"
            for one in log.events
        )
        if times[id(log), event.name, event.role] > 1 and event.raised is None and not fails_then:
            event.weak = True
        is_known_here = event.signature is None and _place_of(event) in places
        if is_known_here and log.before + log.lines - event.last.line > LAST_LINES:
            event.weak = True


def _place_of(event: Event) -> tuple[str, str]:
    """An exception and the line that raised it."""
    return event.name, str(event.raised and (event.raised.place or event.raised.last))


def is_ignored(event: Event) -> bool:
    """Does it come of an end, or of code that a model wrote and an environment ran?"""
    if event.raised is not None and event.raised.last is not None and event.raised.last.path in _OF_MODELS:
        return True
    return event.signature is None and event.name.rpartition(".")[2] in _IGNORED


def _is_only_a_name(event: Event) -> bool:
    """Has an exception no words of its own, and was a known one made of it?"""
    made = event.became
    bare = event.raised is not None and not event.raised.message and event.signature is None
    return bare and made is not None and made.signature is not None


def _is_of_another_time(log: Log, event: Event, logs: Iterable[Log]) -> bool:
    """Does the kernel tell of a time when this attempt did not live?"""
    t = log.at(event.last)
    begins = [one.begins_t for one in logs if not one.kernel and one.begins_t is not None]
    end = last_time_of(one for one in logs if not one.kernel)
    return t is not None and end is not None and _is_day_told(logs) and not min(begins) - GAP_S <= t <= end + AFTER_S


def _is_day_told(logs: Iterable[Log]) -> bool:
    """Does a log of the job tell the day? Else all were put beside the kernel's last line, which may be days later."""
    return any(one.dated and not one.kernel and one.first_t is not None for one in logs)


def _went_on_in_another(log: Log, logs: Iterable[Log]) -> bool:
    """Is it of an earlier attempt? A later log of the same part resumed at one of its steps, and came further."""
    for role, mine in log.steps.items():
        for other in logs:
            theirs = other.steps.get(role)
            if other is log or theirs is None or log.ends_t is None or other.begins_t is None:
                continue
            resumed = mine.numbers[0] < theirs.numbers[0] <= mine.numbers[-1] + 1 <= theirs.numbers[-1]
            if resumed and log.ends_t <= other.begins_t:
                return True
    return False


def is_survived(log: Log, event: Event, logs: Sequence[Log]) -> bool:
    """Does the same file show that it passed, or do enough steps that came after it?"""
    # A scheduler's last word has no time of its own, so that of the line before it: other logs go on from there.
    others = logs if event.name not in FROM_OUTSIDE else ()
    return event.over or any(count >= enough for count, enough in _steps_after(log, event.last, others))


def _is_usual(log: Log, event: Event, logs: Sequence[Log]) -> bool:
    """Did it come again and again between steps? Then the run lives with it, though the last one is not over yet."""
    of_first, of_last = (_steps_after(log, place, logs) for place in (event.first, event.last))
    # Where only one of the two places has a time, the steps of its own log are known of both, and those come first.
    return any(
        event.count > enough and since - left >= enough
        for (since, enough), (left, _) in zip(of_first, of_last, strict=False)
    )


def _steps_after(log: Log, place: Place, logs: Sequence[Log]) -> list[tuple[int, int]]:
    """For each role's steps: how many came after a place of ``log``, and how many show that the run went on."""
    found = [(steps.after_line(place.line), ENOUGH[role]) for role, steps in log.steps.items()]
    t = log.at(place)
    if t is None or (log.kernel and not _is_day_told(logs)):
        return found
    others = [one for one in logs if one is not log and one.begins_t is not None]
    if log.kernel:
        # Its clock may be minutes off, and parts go on for long without the one that it ended: each has to, or be done.
        after: dict[Role, int] = {}
        for one in others:
            for role in one.steps.keys() - dict(one.finishes):
                after[role] = after.get(role, 0) + one.steps[role].after_time(t + GAP_S, one.shift)
        return [*found, (min(after.values()), 1)] if after else found
    return found + [
        (steps.after_time(t, one.shift), ENOUGH[role] + 1)
        for one in others
        # Both were written at the same time, else their clocks differ, or they are of two runs.
        if log.ends_t is None or (one.begins_t or 0.0) <= log.ends_t + GAP_S
        for role, steps in one.steps.items()
    ]


def _ended_its_part(log: Log, event: Event, stops: Iterable[str]) -> bool:
    """Is it the last that a part of the job did before the launcher named it as ended? Others go on for a few steps.

    A traceback has no time, and an environment server says little: the time of the line before may be long before it.
    """
    if event.raised is None or event.over or event.lives:
        return False
    if event.role == "env":
        name = log.name.rpartition("/")[2].partition(".log")[0].lower()
        return any(f"env server {name} failed" in text for text in stops)
    if event.role not in _ONE_PROCESS or event.weak or not any(failed_part(text) == event.role for text in stops):
        return False
    return not any(steps.after_line(event.last.line) for steps in log.steps.values())


def find_finish(logs: Sequence[Log], failed: Sequence[Kind], ends: Iterable[Kind]) -> Place | None:
    """Where the run said that it is done.

    The launcher alone is not believed where its parts ``failed`` (prime-rl be0e3d131), nor the orchestrator, which is
    done before the trainer. What a job does after it, its last save, may fail.
    """
    wanted: tuple[Role, ...] = ("trainer", "job") if failed else ("launcher", "trainer", "job")
    # Ray's workers that end behind the job's last word were ended with it.
    events = [one for kind in failed if kind.name != "ray-worker-died" for one in kind.events]
    said = {
        role: place
        for log in logs
        for role, place in log.finishes
        if role != "job" or not any(one is log and event.last.line > place.line for one, event in events)
    }
    place = next((said[role] for role in wanted if role in said), None)
    return None if place is not None and _hung_after(place, ends, logs) else place


def _hung_after(finish: Place, ends: Iterable[Kind], logs: Sequence[Log]) -> bool:
    """Was the job that had said so still there much later, waiting, when it was ended from outside?"""
    t = next((log.at(finish) for log in logs if log.name == finish.file), None)
    late = [kind.first_t for kind in ends if kind.name in FROM_OUTSIDE and kind.first_t is not None]
    return t is not None and max(late, default=t) - t > GAP_S and bool(who_waits(logs))
