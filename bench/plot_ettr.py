"""ETTR against fault rate for all policies: `python -m bench.plot_ettr` writes docs/ettr.json and docs/ettr.svg.

The figures are computed without matplotlib (5 rates x 7 policies x hours x seeds simulated hours); only the drawing
needs it: `pip install -e '.[plot]'`. `--draw` draws the figures that are already in docs/ettr.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.simulator.baselines import ALL
from supervisor.simulator.compare import run_all
from supervisor.simulator.ledger import score
from supervisor.simulator.scenario import load_scenario
from supervisor.simulator.sensitivity import RATES, at_rates

DOCS = Path(__file__).parents[1] / "docs"
# Colours that people with any colour vision tell apart (Okabe and Ito), and a mark for each.
LOOKS = {
    "oracle": ("#000000", "*", "oracle (told of each fault)"),
    "core": ("#0072B2", "o", "rl-supervisor"),
    "seed-scripts-ideal": ("#009E73", "^", "the seeds' scripts, W&B never late"),
    "seed-scripts": ("#56B4E9", "v", "the seeds' scripts"),
    "fixed-timeouts": ("#E69F00", "s", "fixed time-outs (NVRx's old defaults)"),
    "torchrun": ("#CC79A7", "x", "torchrun"),
    "systemd": ("#D55E00", "+", "systemd Restart=on-failure"),
}


def compute(hours: float, seeds: list[int], scenario_name: str = "default") -> dict[str, Any]:
    """ETTR by policy at each multiple of the scenario's fault rates, the same seeds everywhere."""
    scenario = load_scenario(scenario_name)
    places = [(times, name) for times in RATES for name in ALL]
    accounts = run_all([(at_rates(scenario, times), hours, seed, name) for times, name in places for seed in seeds])
    points = []
    for i, (times, name) in enumerate(places):
        figures = score(name, accounts[i * len(seeds) : (i + 1) * len(seeds)])
        points.append(
            {
                "policy": name,
                "fault_rates_times": times,
                "faults_per_1000_h": round(times * sum(r.per_1000_h for r in scenario.rates), 2),
                "ettr": round(figures.ettr, 5),
                "ettr_without_pods_and_saves": round(figures.ettr_apart, 5),
                "false_restarts": figures.false_restarts,
            }
        )
    return {
        "about": "ETTR against fault rate, drawn in ettr.svg; made by python -m bench.plot_ettr",
        "version": __version__,
        "scenario": scenario_name,
        "hours_of_each_seed": hours,
        "seeds": seeds,
        "points": points,
    }


def draw(data: dict[str, Any], file: Path) -> None:
    """The figure as SVG; raises ImportError without matplotlib."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ettr"  # the same figures give the same bytes
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for policy, (colour, mark, label) in LOOKS.items():
        mine = [p for p in data["points"] if p["policy"] == policy]
        x, y = [p["faults_per_1000_h"] for p in mine], [100 * p["ettr"] for p in mine]
        dashes = "--" if policy == "oracle" else "-"
        axes.plot(x, y, dashes, color=colour, marker=mark, label=label, linewidth=1.5)
    axes.set_xscale("log")
    axes.set_xticks(sorted({p["faults_per_1000_h"] for p in data["points"]}))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.minorticks_off()
    axes.set_ylim(10 * (min(100 * p["ettr"] for p in data["points"]) // 10), 100)
    axes.set_xlabel("faults in 1000 hours (the default mix, times 0.5 to 8)")
    axes.set_ylabel("effective training time ratio, %")
    total = data["hours_of_each_seed"] * len(data["seeds"])
    axes.set_title(f"Time on steps that stayed, {total:.0f} simulated hours at each point")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower left", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> int:
    """Compute, write, draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.plot_ettr", description=__doc__)
    parser.add_argument("--hours", type=float, default=500, help="simulated hours of each seed (default 500)")
    parser.add_argument("--seeds", type=int, default=2, help="how many seeds (default 2)")
    parser.add_argument("--draw", action="store_true", help="only draw what docs/ettr.json holds")
    options = parser.parse_args()
    file = DOCS / "ettr.json"
    if not options.draw:
        data = compute(options.hours, list(range(1, options.seeds + 1)))
        file.write_text(json.dumps(data, indent=1) + "\n")
        print(f"Wrote {file}.", file=sys.stderr)
    try:
        draw(json.loads(file.read_text()), DOCS / "ettr.svg")
    except ImportError as error:
        print(f"Cannot draw ({error}): pip install -e '.[plot]', then --draw.", file=sys.stderr)
        return 1
    print(f"Wrote {DOCS / 'ettr.svg'}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
