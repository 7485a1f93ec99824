"""``rl-supervisor simulate``: the real decision code against a virtual pod, and what each minute of it was worth."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.core.time_kinds import CATEGORIES
from supervisor.simulator import baselines, compare, sensitivity
from supervisor.simulator.ledger import Score, quantile
from supervisor.simulator.run import Outcome, simulate
from supervisor.simulator.scenario import Scenario, load_scenario
from supervisor.simulator.schedule import describe_kinds, load_faults
from supervisor.simulator.world import Planned, World

SHOWN_FALSE = 10


def run(options: argparse.Namespace) -> int:
    """Simulate once and print. Raises ConfigError for what cannot be simulated."""
    if options.list_faults:
        print("\n".join(describe_kinds()))
        return 0
    if options.policy not in baselines.NAMED:
        raise ConfigError(f"There is no policy {options.policy!r}; known are {', '.join(baselines.NAMED)}.")
    if not 0 < options.hours <= 1e6:
        raise ConfigError(f"--hours takes a number above 0 and up to a million, not {options.hours:g}.")
    scenario = load_scenario(options.scenario, options.sets)
    if options.compare or options.sensitivity:
        return _simulate_several(options, scenario)
    if options.seeds != 1:
        raise ConfigError("--seeds is for --compare and --sensitivity; one run has one seed: --seed N.")
    if options.story and options.as_json:
        raise ConfigError("--story is for people and --json for programs: leave one of them out.")
    faults = load_faults(options.faults) if options.faults is not None else None
    with contextlib.ExitStack() as stack:
        outcome = simulate(
            scenario,
            options.hours,
            options.seed,
            baselines.NAMED[options.policy],
            faults=faults,
            trace=_open_writer(options.trace, stack) if options.trace is not None else None,
        )
    if options.as_json:
        print(json.dumps(outcome.as_json(options.price), indent=1))
        return 0
    if options.story:
        print("\n".join(story(outcome.world)) + "\n")
    print("\n".join(sentences(outcome, options.price, faults)))
    return 0


def _simulate_several(options: argparse.Namespace, scenario: Scenario) -> int:
    """Many runs, in as many processes as there are cores."""
    one = {"--faults": options.faults, "--trace": options.trace, "--story": options.story}
    one["--policy"] = options.policy != "core"
    for name, given in one.items():
        if given:
            raise ConfigError(f"{name} is for one run: leave it, or --compare and --sensitivity, out.")
    if not 1 <= options.seeds <= 1000:
        raise ConfigError(f"--seeds takes a number from 1 to 1000, not {options.seeds}.")
    seeds = range(options.seed, options.seed + options.seeds)
    found: dict[str, object] = {"scenario": scenario.name, "hours": options.hours, "seeds": list(seeds)}
    told = []
    if options.compare:
        scores = compare.compare(scenario, options.hours, seeds)
        found["policies"] = [score.as_json(options.price) for score in scores]
        told.append(compare.table(scores, options.price))
    if options.sensitivity:
        cells = sensitivity.sensitivity(scenario, options.hours, seeds)
        found["sensitivity"] = [dataclasses.asdict(cell) for cell in cells]
        told.append(sensitivity.table(cells))
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    many = f"{options.hours:,g} virtual hours of scenario {scenario.name}, {which}"
    print(json.dumps(found, indent=1) if options.as_json else "\n\n".join([f"{many}:", *told]))
    return 0


def _open_writer(path: Path, stack: contextlib.ExitStack) -> Callable[[str], None]:
    try:
        file = stack.enter_context(path.open("w", encoding="utf-8"))
    except OSError as error:
        raise SupervisorError(f"The trace cannot be written to {path}: {error.strerror}") from error
    return lambda line: print(line, file=file)


QUIET = frozenset(("step", "published", "pruned", "skipped"))


def story(world: World) -> list[str]:
    """What the policy said besides steps and transfers, each with its time."""
    return [f"{_clock_in_words(said.t)}  {said.sentence}" for said in world.said_sentences if said.event not in QUIET]


def sentences(outcome: Outcome, price: float | None, planned: Sequence[Planned] | None = None) -> list[str]:
    """The report for people. ``planned``: a person's own faults."""
    report = outcome.score
    hours = report.hours
    ended = "the run finished" if outcome.world.finished else "the run goes on"
    which = f"scenario {outcome.scenario}, seed {outcome.seed} ({ended})"
    lines = [
        f"{outcome.policy} for {hours:,.1f} virtual hours of {which}:",
        "",
        f"ETTR {100 * report.ettr:.2f} %: time on steps that stayed, of all time",
        f"     {100 * report.ettr_apart:.2f} % apart from checkpoint saves and from waiting for a pod",
        "",
        "Where the time went:",
    ]
    for name in CATEGORIES:
        seconds = report.seconds[name]
        lines.append(f"  {name:42} {seconds / 36 / hours:8.3f} %  {seconds / 3600:10.2f} h")
    lines.append(f"  {'all':42} {100:8.3f} %  {hours:10.2f} h")
    lines += ["", *_detection_lines(report), "", *_count_lines(outcome, planned)]
    if price is not None:
        paid, lost = hours * price, report.dollars_lost(price)
        lines.append(
            f"At {price:.2f} dollars an hour: {paid:,.2f} dollars, {lost:,.2f} of them not on steps that stayed."
        )
    return lines


def _detection_lines(report: Score) -> list[str]:
    if not report.needing:
        return ["No fault struck that needs an answer."]
    lines = [f"{'From fault to act, seconds':28} {'count':>6} {'acted':>6} {'median':>9} {'95th':>9} {'longest':>9}"]
    for kind, seconds in report.detection_s.items():
        values = [quantile(seconds, part) for part in (0.5, 0.95, 1.0)]
        times = " ".join(f"{value:9.1f}" if value is not None else f"{'-':>9}" for value in values)
        lines.append(f"  {kind:26} {report.needing[kind]:6} {len(seconds):6} {times}")
    return lines


def _count_lines(outcome: Outcome, planned: Sequence[Planned] | None) -> list[str]:
    report, world = outcome.account, outcome.world
    struck = ", ".join(f"{kind} {count}" for kind, count in report.struck_by_kind().items()) or "none"
    lines = [
        f"Faults that struck: {struck}.",
        f"Restarts {report.restarts}, pods {report.pods}, given up {report.gave_up}.",
        f"Steps done {report.steps_done:,}, lost {report.steps_lost:,}.",
        f"False restarts: {len(report.false_restarts)}.",
    ]
    for one in report.false_restarts[:SHOWN_FALSE]:
        lines.append(
            f"  at {_clock_in_words(one.t)}{f' (odd at that time: {one.odd})' if one.odd else ''}: {one.reason}"
        )
    late = [(fault, "the run was over by then") for fault in planned or () if fault.at > report.now - report.begun]
    for fault, why in [*world.not_struck, *late][:SHOWN_FALSE]:
        lines.append(f"Not struck: {fault.kind} at {_clock_in_words(fault.at)}, since {why}.")
    return lines


def _clock_in_words(t: float) -> str:
    hours, rest = divmod(max(0.0, t), 3600)
    return f"{hours:.0f}:{int(rest // 60):02d}:{rest % 60:04.1f}"
