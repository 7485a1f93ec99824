"""Runs a trace through the core: what would be decided, when, and whether it is what was decided then.

The observations of a journal give its decisions again, byte for byte. Under other settings the world after the first
different action is another one, of which the trace knows nothing: all that follows is marked counterfactual.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from supervisor import __version__
from supervisor.base.records import dataclass
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.decide import decide
from supervisor.core.evolve import replace as evolve
from supervisor.core.observe_only import held_back
from supervisor.core.state import State
from supervisor.journal.journal import dump
from supervisor.journal.trace import Line, Trace
from supervisor.journal.trace_lines import TraceError

SOURCE = "replay"  # of observations that are in no trace
AFTERWARDS_S = 60.0  # for so long ticks and answers go on after the last line of a trace
AT_LEAST_S = 0.01  # between two ticks, should a deadline have passed
OBSERVED = "the run is only observed."
SAME_S = 1.0  # an action so much earlier or later is the same one
PID = 4000
Change = Callable[[f.Settings], f.Settings]


@dataclass(frozen=True)
class Turn:
    """One observation and what the core decided on it."""

    observation: f.Observation
    actions: tuple[a.Action, ...]
    mode: str  # of the run, after it
    recorded: tuple[str, ...] | None = None  # what was decided then, as JSON; None where it was not recorded
    counterfactual: bool = False
    instead: str = ""  # at the first counterfactual turn: what was done under the settings of the recording

    @property
    def differs(self) -> bool:
        """Was something else decided then?"""
        if self.recorded is None or self.recorded == tuple(dump(action) for action in self.actions):
            return False
        if len(self.recorded) != len(self.actions):
            return True
        # An action may have got fields since then: nothing was decided about those, nor on how time is counted.
        then, now = [json.loads(text) for text in self.recorded], [encode(action) for action in self.actions]
        known = [encode(decode(one)) for one in then]
        return any(
            old["@"] != new["@"] or any(old[name] != new[name] for name in (old.keys() & one.keys()) - {"ledger"})
            for one, old, new in zip(then, known, now, strict=True)
        )


def replay(trace: Trace, change: Change | None = None) -> Iterator[Turn]:
    """The turns of ``trace``, in order; with ``change`` under other settings, and what follows from them marked.

    Raises TraceError where the trace lacks what a replay needs to begin.
    """
    if change is None:
        yield from _Run(trace).turns()
        return
    # The ticks that did nothing are not in a journal; under other settings one of them might have done something.
    live = replace(trace, named_ticks=True, until=trace.until if trace.named_ticks else float("-inf"))
    known = [action for turn in _Run(live).turns() for action in _effects_of_turn(turn)]
    place, apart, began = 0, False, None
    for turn in _Run(live, change).turns():
        was, began = apart, turn.observation.t if began is None else began
        for t, key in [] if apart else _effects_of_turn(turn):
            known_t, known_key = known[place] if place < len(known) else (float("inf"), ())
            apart = apart or key != known_key or abs(t - known_t) > SAME_S
            place += not apart
        # An action that was due then and did not come is a difference, too, as soon as its time is over.
        apart = apart or (place < len(known) and turn.observation.t > known[place][0] + SAME_S)
        instead = "" if was or not apart else _state_instead(known[place:], began)
        yield replace(turn, recorded=None, counterfactual=apart, instead=instead)


def _state_instead(known: list[tuple[float, tuple[object, ...]]], began: float) -> str:
    if not known:
        return "nothing more was done"
    t, (name, *values) = known[0]
    return f"{name}({', '.join(map(str, values))}) came next, at {t - began:+.1f} s"


def _effects_of_turn(turn: Turn) -> list[tuple[float, tuple[object, ...]]]:
    """What a turn asked of the world: kind and number, not the reasons, which quote the settings.

    When the run is claimed is none of it: an observer asks only once it has something to publish.
    """
    found: list[tuple[float, tuple[object, ...]]] = []
    for action in turn.actions:
        if not isinstance(action, a.Say | a.CollectEvidence | a.KeepRecords | a.Claim):
            values = tuple(value for value in vars(action).values() if isinstance(value, int | None))
            found.append((turn.observation.t, (type(action).__name__, *values)))
    return found


class _Run:
    """One pass over a trace: its lines, ticks where the core wants them, and answers of effects, in order of time."""

    def __init__(self, trace: Trace, change: Change | None = None) -> None:
        self._trace = trace
        self._change = change or (lambda settings: settings)
        self._state = trace.state or State()
        self._state = evolve(self._state, settings=self._change(self._state.settings))
        self._waiting: list[tuple[float, int, Line]] = []
        self._number = count()
        self._answers = Answers(trace.unanswered, trace.bytes_per_s) if trace.answered else None
        self._wall = 0.0  # wall time of t = 0
        self._deadline = float("inf")
        self._gone: set[int] = set()  # attempts that cannot be looked at any more
        self._over = False
        self._last_line = 0.0  # t of the last observation that came from the trace

    def turns(self) -> Iterator[Turn]:
        self._begin_replay()
        while True:
            end = self._trace.until if self._trace.until is not None else self._last_line + AFTERWARDS_S
            while self._waiting and self._is_unseen(self._waiting[0][2]):
                heapq.heappop(self._waiting)
            until = self._waiting[0][0] if self._waiting else end
            if until > max(end, self._last_line) and self._only_answers():
                return
            if self._trace.named_ticks and self._deadline < until and not self._over:
                t = max(self._deadline, self._state.now + AT_LEAST_S)
                yield from self._see_line(Line(f.Observation(t, self._wall + t, f.Tick(), SOURCE)))
            elif self._waiting:
                t, _, line = heapq.heappop(self._waiting)
                if line.observation.source != SOURCE:
                    self._last_line = t
                yield from self._see_line(line)
            else:
                return

    def _only_answers(self) -> bool:
        return all(line.observation.source == SOURCE for _, _, line in self._waiting)

    def _is_unseen(self, line: Line) -> bool:
        """Did no daemon see it? The attempt had been stopped, or no daemon looked."""
        return line.attempt is not None and (line.attempt in self._gone or self._over)

    def _begin_replay(self) -> None:
        trace = self._trace
        timed = [line for line in trace.lines if line.after_s is None]
        first = f.Observation(0.0, trace.wall or 0.0, f.Tick())
        if timed and (len(timed) == len(trace.lines) or timed[0].observation.t < 0):
            first = timed[0].observation
        self._wall = trace.wall if trace.wall is not None else first.wall - first.t
        kinds = {type(line.observation.fact) for line in trace.lines}
        if trace.settings is not None:
            started = f.DaemonStarted(__version__, trace.settings)
            self._push_line(first.t, Line(f.Observation(first.t, first.wall, started, SOURCE)))
        elif trace.state is None and f.DaemonStarted not in kinds:
            raise TraceError(
                f'{trace.name} begins nowhere: it needs "settings" or "state" in its first line, or a DaemonStarted '
                "among its observations."
            )
        if trace.answered:
            for line in timed:
                self._push_line(line.observation.t, line)
        else:
            # In the order in which they were consumed, whatever their times say.
            t = first.t
            for line in timed:
                t = max(t, line.observation.t)
                self._push_line(t, line)

    def _push_line(self, t: float, line: Line) -> None:
        heapq.heappush(self._waiting, (t, next(self._number), line))

    def _see_line(self, line: Line) -> Iterator[Turn]:
        observation = line.observation
        if line.state is not None:
            self._state = evolve(line.state, settings=self._change(line.state.settings))
        match observation.fact:
            case f.DaemonStarted() as begun:
                observation = replace(observation, fact=replace(begun, settings=self._change(begun.settings)))
                self._over = False
            case f.SettingsChanged() as told:
                observation = replace(observation, fact=f.SettingsChanged(self._change(told.settings)))
            case f.AttemptStarted() as launched if self._answers is not None:
                self._attempt_begins(launched.attempt, observation.t)
        if self._over:
            return  # between two daemons nothing is seen
        if self._answers is not None:
            observation = replace(
                observation, fact=self._answers.correct_fact(self._answers.answer_survey(observation.fact))
            )
            self._answers.note(observation.fact)
        decision = decide(self._state, observation)
        self._state, self._deadline = decision.state, decision.deadline
        for action in decision.actions:
            if isinstance(action, a.Exit):
                self._over = True
            if self._answers is not None:
                held = held_back(action, OBSERVED) if self._state.settings.mode == "observe" else None
                if isinstance(action, a.Stop) and held is None:
                    self._gone.add(action.attempt)
                for after_s, fact in self._answers.to(action) if held is None else [(AT_LEAST_S, held)]:
                    t = observation.t + after_s
                    self._push_line(t, Line(f.Observation(t, self._wall + t, fact, SOURCE)))
        yield Turn(observation, decision.actions, self._state.mode, line.decided)

    def _attempt_begins(self, attempt: int, t: float) -> None:
        for line in self._trace.lines:
            if line.after_s is None or line.attempt not in (attempt, "each"):
                continue
            seen = t + line.after_s
            fact: Any = line.observation.fact
            if line.attempt == "each" and hasattr(fact, "attempt"):
                fact = replace(fact, attempt=attempt)
            observed = f.Observation(seen, self._wall + seen, fact, line.observation.source)
            self._push_line(seen, Line(observed, attempt=attempt))


@dataclass(frozen=True)
class Listing(f.Fact):
    """Stands for the answer to a survey until it is given."""

    where: str


class Answers:
    """What effects report in a world where they work, in a simple and unhurried way.

    The steps on the disk and in the store are those that the trace listed last, changed by what was done since.
    """

    STOP_S, SURVEY_S, START_S, PRUNE_S, HOOK_S = 3.0, 0.5, 0.5, 2.0, 1.0

    def __init__(self, unanswered: frozenset[str], bytes_per_s: float) -> None:
        self._unanswered = unanswered
        self._bytes_per_s = bytes_per_s  # of the link to the store
        self._deleted: set[int] = set()
        self._freed_bytes = 0
        self._gpus: tuple[f.Gpu, ...] = ()
        self._local: dict[int, f.LocalStep] = {}
        self._store: dict[int, f.StoredStep] = {}
        self._latest: int | None = None
        self._store_reason = ""
        self._generation = 0

    def answer_survey(self, fact: f.Fact) -> f.Fact:
        """The answer to a survey, made when it comes: what the trace lists meanwhile is in it."""
        if not isinstance(fact, Listing):
            return fact
        return self._local_steps() if fact.where == "local" else self._store_steps()

    def correct_fact(self, fact: f.Fact) -> f.Fact:
        """``fact`` in a world in which the answered effects did something: what was deleted is gone."""
        match fact:
            case f.DiskLook() if fact.free_bytes is not None:
                return replace(fact, free_bytes=min(fact.free_bytes + self._freed_bytes, fact.total_bytes or 1 << 60))
            case f.LocalSteps():
                return replace(fact, steps=tuple(step for step in fact.steps if step.step not in self._deleted))
        return fact

    def note(self, fact: f.Fact) -> None:
        """Remember what the trace says of the world."""
        match fact:
            case f.GpuLook() if not fact.reason:
                self._gpus = fact.gpus
            case f.LocalSteps() if not fact.reason:
                self._local = {step.step: step for step in fact.steps}
            case f.StoreSteps():
                self._store_reason = fact.reason
                if not fact.reason:
                    self._store, self._latest = {step.step: step for step in fact.steps}, fact.latest
            case f.Published():
                self._store[fact.step] = f.StoredStep(fact.step, True, fact.size_bytes)
                self._latest = fact.step
            case f.Pruned():
                (self._local if fact.where == "local" else self._store).pop(fact.step, None)
                if fact.where == "local":
                    self._deleted.add(fact.step)
                    self._freed_bytes += fact.freed_bytes
            case f.Restored():
                self._local[fact.step] = f.LocalStep(fact.step, "complete", "", fact.size_bytes)

    def to(self, action: a.Action) -> list[tuple[float, f.Fact]]:
        """Answers to ``action`` and after how many seconds they come."""
        if type(action).__name__ in self._unanswered:
            return []
        match action:
            case a.Survey():
                return [(self.SURVEY_S, Listing("local")), (self.SURVEY_S, Listing("store"))]
            case a.Setup():
                return [(self.HOOK_S, f.SetupDone())]
            case a.Start():
                # What lies above the step was moved aside.
                self._local = {s: v for s, v in self._local.items() if action.step is not None and s <= action.step}
                pid = PID + action.attempt
                return [(self.START_S, f.AttemptStarted(action.attempt, action.step, pid, "(answered by the replay)"))]
            case a.Stop():
                host = self._gpus[0].host if self._gpus else ""
                empty = f.GpuLook(tuple(replace(gpu, used_bytes=0) for gpu in self._gpus), host=host)
                stopped = f.AttemptStopped(action.attempt, self.STOP_S, gpu_free=True)
                looks: list[tuple[float, f.Fact]] = [(self.STOP_S - 0.5, empty)] if self._gpus else []
                return [*looks, (self.STOP_S, stopped)]
            case a.Publish():
                size = self._local[action.step].size_bytes if action.step in self._local else 0
                seconds = size / self._bytes_per_s
                return [(seconds, f.Published(action.step, size, seconds, size))]
            case a.PruneLocal():
                size = self._local[action.step].size_bytes if action.step in self._local else 0
                return [(self.PRUNE_S, f.Pruned(action.step, "local", size))]
            case a.PruneStale():
                return [(self.PRUNE_S, f.Pruned(-1, "local", 0))]
            case a.PruneStore():
                size = self._store[action.step].size_bytes if action.step in self._store else 0
                return [(self.PRUNE_S, f.Pruned(action.step, "store", size))]
            case a.Claim():
                self._generation += 1  # in such a world no other pod holds the run
                return [(self.HOOK_S, f.Claimed(self._generation))]
            case a.Sweep():
                return [(self.HOOK_S, f.Swept(0))]
            case a.KeepLineage():
                return [(self.HOOK_S, f.LineageKept(len(action.happened)))]
            case a.Pin():
                return [(self.PRUNE_S, f.PinKept(action.step, action.pinned))]
            case a.KeepHolds():
                return [(self.PRUNE_S, f.HoldsKept(action.steps, action.holds))]
            case a.Restore():
                size = self._store[action.step].size_bytes if action.step in self._store else 0
                seconds = size / self._bytes_per_s
                return [(seconds, f.Restored(action.step, size, seconds))]
            case a.RunHook():
                return [(self.HOOK_S, f.HookDone(action.hook))]
            case a.StartEngine():
                return [(self.START_S, f.EngineStarted(action.engine, PID - action.engine))]
            case a.StopEngine():
                return [(self.STOP_S, f.EngineStopped(action.engine, self.STOP_S, gpu_free=True))]
        return []

    def _local_steps(self) -> f.LocalSteps:
        # No process writes any more: what was being written stays torn.
        steps = tuple(
            replace(step, state="incomplete", reason="it was being written when the job ended")
            if step.state == "writing"
            else step
            for _, step in sorted(self._local.items())
        )
        return f.LocalSteps(steps, settled=True)

    def _store_steps(self) -> f.StoreSteps:
        if self._store_reason:
            return f.StoreSteps(reason=self._store_reason)
        return f.StoreSteps(tuple(step for _, step in sorted(self._store.items())), self._latest)
