"""What one `rl-supervisor fleet tick` costs for a hundred runs in three places: `python -m bench fleet_tick`.

The tick is a process of its own: the real command and the real places, over HTTP to the tests' Vast.ai, RunPod, Prime
Intellect and B2 on loopback. The first tick of a fleet fills the controller's memory; the next one is measured:

- well: all runs train, each pod made a step since;
- slow store: the same, and each request to the store takes 50 ms, as over an ocean;
- gone: all pods vanished five minutes ago (no beat, and no place lists one), so a second look 30 s later is waited for;
- empty: no run has a pod. As in the case before, six are rented (`creates_per_hour`).

Beside them the floor: `bench.fleet_floor` lists the places and reads three objects of each run, and that is all.

Asked for: 64 MiB, each provider's rate limits, one listing a place where nothing is rented, and 10 s: of the case well
as a whole, of those that rent without their idle time (the second look, the gaps between two requests to a provider).
Exit code 1 where a figure is missed. Lists are printed as lists/all requests: Vast and RunPod need two requests for one
list (pages of 25; two interfaces).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

from bench.footprint import read_highest_kib
from bench.pod import ROOT
from supervisor.checkpoints.manifest import Latest
from supervisor.fleet.keys import name_key
from supervisor.fleet.places.base import label_of
from supervisor.storage.keys import NEEDED
from tests.b2server import B2Server, Key
from tests.fleet import fake_prime, fake_runpod, fake_vast
from tests.fleet.fake_service import FakeService, Fault

RUNS = 100
CREATES = 6
ASKED_S, ASKED_MIB = 10.0, 64.0
PAUSE_S = 0.9  # from so long on a pause is idle time; the shortest gap that is kept is 1 s
QUOTA = 60  # requests a minute, RunPod's documented example
LIST_ROUTES = ("list", "pods")  # RunPod is listed by v2 and by GraphQL
WRITER = "pod-of-the-bench/0123456789abcdef/01234567"
FLEET = """
[fleet]
store = "b2://the-bucket/fleet"
realm = "{realm}"
[limits]
per_hour = 10000
total = 1000000
creates_per_hour = {creates}
[place.vast]
provider = "vast"
gpu = "H100 SXM"
gpus = 2
most_per_hour = 6.0
image = "ghcr.io/me/prime-rl:1"
[place.runpod]
provider = "runpod"
gpu = "{gpu}"
gpus = 2
most_per_hour = 6.0
image = "ghcr.io/me/prime-rl:1"
[place.prime]
provider = "prime"
gpu = "H100_80GB"
gpus = 2
spot = false
most_per_hour = 6.0
image = "{template}"
"""
RUN = """
[run]
id = "{run}"
state_dir = "~/state"
[job]
kind = "command"
dir = "~"
output_dir = "~/out"
checkpoint_interval = 10
[job.plain]
start = ["train"]
resume = ["train", "--from", "{{checkpoint}}"]
markers = ["state.json"]
step_line = 'step (?P<step>\\d+) loss'
[store]
url = "b2://the-bucket/runs"
realm = "{realm}"
"""


class _Timed(FakeService):
    """A fake provider that notes when it is asked for what."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.came: list[tuple[float, str]] = []

    def take_fault(self, route: str) -> Fault | None:
        self.came.append((time.time(), route))
        return super().take_fault(route)


class _Vast(_Timed, fake_vast.FakeVast):
    pass


class _Runpod(_Timed, fake_runpod.FakeRunpod):
    pass


class _Prime(_Timed, fake_prime.FakePrime):
    pass


@dataclass(frozen=True)
class Rate:
    """How fast a provider was asked, and how fast it may be."""

    told: str
    is_kept: bool


@dataclass
class Cost:
    """Of one process: wall and processor seconds, the highest resident memory, what it asked for."""

    seconds: float
    cpu_s: float
    mib: float
    said: str
    waited_s: float = 0.0
    store: Counter[str] = field(default_factory=Counter)
    places: dict[str, Counter[str]] = field(default_factory=dict)
    rates: list[Rate] = field(default_factory=list)

    @property
    def worked_s(self) -> float:
        """Without the pauses."""
        return self.seconds - self.waited_s


class Fleet:
    """Runs, three places and a store. Use as a context manager."""

    def __init__(self, folder: Path, runs: int = RUNS) -> None:
        self.folder = folder
        self.labels = [label_of(f"run-{number:03d}", 1, f"{number:06x}") for number in range(runs)]
        self.step = 100

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self.store = self._stack.enter_context(B2Server())
        self.vast = self._stack.enter_context(_Vast(runs_at_once=True))
        self.runpod = self._stack.enter_context(_Runpod(runs_at_once=True, quota=QUOTA))
        self.prime = self._stack.enter_context(_Prime())
        self.places: dict[str, _Timed] = {"vast": self.vast, "runpod": self.runpod, "prime": self.prime}
        self._write_files()
        for _ in range(CREATES):
            self.vast.add_offer()
            self.runpod.add_machine(2.0, 1.0)
            self.prime.add_offer()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _write_files(self) -> None:
        words = {"creates": CREATES, "gpu": fake_runpod.GPU, "template": fake_prime.TEMPLATE, "realm": self.store.url}
        text = FLEET.format(**words)
        names = list(self.places)
        for number in range(len(self.labels)):
            run, at = f"run-{number:03d}", number % 3
            text += f'[run.{run}]\nfile = "{run}.toml"\nplaces = {json.dumps(names[at:] + names[:at])}\n'
            (self.folder / f"{run}.toml").write_text(RUN.format(run=run, realm=self.store.url))
        (self.folder / "fleet.toml").write_text(text)
        for path in (self.folder, *self.folder.iterdir()):
            path.chmod(0o700)

    def environ(self) -> dict[str, str]:
        """Of a controller."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "VAST_API_KEY": fake_vast.KEY,
            "VAST_URL": self.vast.url,
            "RUNPOD_API_KEY": fake_runpod.KEY,
            "RUNPOD_API_BASE_URL": self.runpod.url,
            "PRIME_API_KEY": fake_prime.KEY,
            "PRIME_API_BASE_URL": self.prime.url,
            "B2_REALM": self.store.url,
            **self.store.environ(),
        }

    # ------------------------------------------------------------ what happens

    def rent_all(self) -> None:
        """Each run has a pod in the first of its places, with a key of its own, and the pod trains."""
        for number, label in enumerate(self.labels):
            run = f"run-{number:03d}"
            if number % 3 == 0:
                body = {"label": label, "image": "x", "price": 2.0}
                self.vast.answer("create", self.vast.add_offer(), {}, body)
            elif number % 3 == 1:
                self.runpod.add_pod(self.runpod.add_machine(2.0, 1.0), name=label, bid=1.0)
            else:
                self.prime.add_pod(label, status="ACTIVE", installationStatus="FINISHED")
            self.store.add_key(
                Key(f"0000pod{number:05d}", "secret", NEEDED, ("the-bucket",), f"runs/{run}/", name_key(label))
            )
            claim = {"format": 1, "generation": 1, "writer": WRITER, "label": label}
            self._put(f"runs/{run}/writers/gen_00001.json", json.dumps(claim).encode())
        self.vast.keeps_gaps = True
        self.train()

    def train(self) -> None:
        """Each pod makes a step, beats and publishes."""
        self.step += 1
        for number, label in enumerate(self.labels):
            run = f"run-{number:03d}"
            beat = {"format": 1, "generation": 1, "writer": WRITER, "label": label, "step": self.step}
            beat |= {"unpublished": [], "beat": self.step}
            self._put(f"runs/{run}/writers/gen_00001.beat.json", json.dumps(beat).encode())
            latest = Latest(self.step, run, generation=1, writer=WRITER, manifest_sha256="0" * 64, manifest_file_id="f")
            self._put(f"runs/{run}/latest.json", latest.to_bytes())

    def lose_all(self) -> None:
        """Each pod vanished five minutes ago."""
        self.vast.instances.clear()
        self.runpod.pods.clear()
        self.prime.pods.clear()
        self.store.state.let_pass(300)

    def _put(self, name: str, data: bytes) -> None:
        """In the place of what was there."""
        state = self.store.state
        for old in [one.file_id for one in state.versions.values() if one.name == name]:
            del state.versions[old]
        self.store.put(name, data)

    # ------------------------------------------------------------ measuring

    def measure(self, words: Sequence[str]) -> Cost:
        """Run a program to its end."""
        self.store.state.journal.clear()
        for place in self.places.values():
            place.came.clear()
        out = self.folder / "out"
        cost = _run(words, self.environ(), out)
        asked = [entry["t"] for entry in self.store.journal()]
        cost.store = Counter(str(entry["op"]).removeprefix("b2_") for entry in self.store.journal())
        for name, place in self.places.items():
            asked += [at for at, _ in place.came]
            cost.places[name] = Counter(route for _, route in place.came)
        asked.sort()
        pauses = [after - before for before, after in pairwise(asked)]
        cost.waited_s = sum(pause for pause in pauses if pause >= PAUSE_S)
        cost.rates = _find_rates(self.places)
        return cost

    def tick(self) -> Cost:
        """One tick by the real command."""
        file = str(self.folder / "fleet.toml")
        return self.measure([sys.executable, "-m", "supervisor.cli.main", "fleet", "tick", "--file", file])


def _run(words: Sequence[str], environ: dict[str, str], out: Path) -> Cost:
    began, highest = time.monotonic(), 0
    with out.open("wb") as file:
        actions = [(os.POSIX_SPAWN_DUP2, file.fileno(), 1), (os.POSIX_SPAWN_DUP2, file.fileno(), 2)]
        pid = os.posix_spawn(words[0], words, environ | {"PYTHONPATH": str(ROOT)}, file_actions=actions)
    while True:
        highest = max(highest, read_highest_kib(pid))
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    seconds, said = time.monotonic() - began, out.read_text()
    if os.waitstatus_to_exitcode(status) not in (0, 93):
        raise RuntimeError(f"{' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}:\n{said[-3000:]}")
    return Cost(seconds, used.ru_utime + used.ru_stime, highest / 1024, said)


def _find_rates(places: dict[str, _Timed]) -> list[Rate]:
    """Vast wants a gap between two requests of a kind, RunPod has a quota of a minute, Prime publishes no limit."""
    found = []
    for name, place in places.items():
        for route in dict.fromkeys(route for _, route in place.came):
            gaps = [after - before for before, after in pairwise(at for at, one in place.came if one == route)]
            least_s = fake_vast.GAPS_S[route] if name == "vast" else 0.0
            if gaps:
                least = f" (least {least_s:g})" if least_s else ""
                found.append(Rate(f"{name} {route} {min(gaps):.2f} s{least}", min(gaps) >= least_s))
    times = [at for at, _ in places["runpod"].came]
    most = max((sum(at <= one < at + 60 for one in times) for at in times), default=0)
    return [*found, Rate(f"runpod {most} a minute (most {QUOTA})", most <= QUOTA)]


# ---------------------------------------------------------------- the cases


def _measure_well(fleet: Fleet) -> Cost:
    fleet.rent_all()
    fleet.tick()
    fleet.train()
    return _expect(fleet.tick(), f"trains at step {fleet.step}", RUNS)


def _measure_slow_store(fleet: Fleet) -> Cost:
    fleet.rent_all()
    fleet.tick()
    fleet.train()
    fleet.store.fail(".*", delay_s=0.05, times=10**9)
    return _expect(fleet.tick(), f"trains at step {fleet.step}", RUNS)


def _measure_gone(fleet: Fleet) -> Cost:
    fleet.rent_all()
    fleet.tick()
    fleet.lose_all()
    return _expect(fleet.tick(), "Renting", CREATES)


def _measure_empty(fleet: Fleet) -> Cost:
    fleet.vast.keeps_gaps = True
    return _expect(fleet.tick(), "Renting", CREATES)


def _measure_floor(fleet: Fleet) -> Cost:
    fleet.rent_all()
    return _expect(fleet.measure([sys.executable, "-m", "bench.fleet_floor", str(RUNS)]), f"{RUNS} pods", 1)


def _expect(cost: Cost, words: str, times: int) -> Cost:
    """Did it happen? Else the figures are of something else."""
    found = " ".join(cost.said.split()).count(words)
    if found != times:
        raise RuntimeError(f"{words!r} was said {found} times and not {times}:\n{cost.said[-3000:]}")
    return cost


CASES: dict[str, Callable[[Fleet], Cost]] = {
    "floor": _measure_floor,
    "well": _measure_well,
    "slow store": _measure_slow_store,
    "gone": _measure_gone,
    "empty": _measure_empty,
}


def _print_case(name: str, costs: Sequence[Cost], floor: Sequence[Cost]) -> None:
    def median(value: Callable[[Cost], float]) -> float:
        return statistics.median(value(cost) for cost in costs)

    cpu_s, least = median(lambda cost: cost.cpu_s), statistics.median(cost.cpu_s for cost in floor)
    requests = median(lambda cost: cost.store.total())
    print(
        f"{name:11}{median(lambda cost: cost.seconds):8.1f}{median(lambda cost: cost.waited_s):10.1f}{cpu_s:7.1f}"
        f"{cpu_s / least:7.1f}{max(cost.mib for cost in costs):8.1f}{requests:9.0f}{requests / RUNS:7.1f}",
        end="",
    )
    for asked in costs[-1].places.values():
        print(f"{sum(asked[route] for route in LIST_ROUTES):6}/{asked.total()}", end="")
    print()


def _find_missed(name: str, costs: Sequence[Cost]) -> list[str]:
    found = []
    seconds = statistics.median(cost.seconds if name == "well" else cost.worked_s for cost in costs)
    if seconds > ASKED_S and name != "slow store":
        found.append(f"{name}: {seconds:.1f} s, {ASKED_S:g} s are asked for")
    if name == "well" and any(asked[route] > 2 for cost in costs for asked in cost.places.values() for route in asked):
        found.append(f"{name}: a place was listed more than once")
    if (mib := max(cost.mib for cost in costs)) > ASKED_MIB:
        found.append(f"{name}: {mib:.1f} MiB, {ASKED_MIB:g} MiB are asked for")
    return found + [f"{name}: {rate.told}" for cost in costs for rate in cost.rates if not rate.is_kept]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_tick", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", action="append", choices=[name for name in CASES if name != "floor"])
    options = parser.parse_args(arguments)
    measured: dict[str, list[Cost]] = {}
    for _ in range(options.rounds):
        for name in ["floor", *(options.case or list(CASES)[1:])]:
            with tempfile.TemporaryDirectory(prefix="rl-bench-") as folder, Fleet(Path(folder)) as fleet:
                measured.setdefault(name, []).append(CASES[name](fleet))
    print(f"One tick, {RUNS} runs in 3 places; the median of {options.rounds}, of memory the highest.\n")
    head = f"{'case':11}{'wall s':>8}{'idle':>10}{'CPU s':>7}{'floors':>7}{'MiB':>8}{'store':>9}{'a run':>7}"
    print(f"{head}  lists/all: vast, runpod, prime")
    for name, costs in measured.items():
        _print_case(name, costs, measured["floor"])
    for name, costs in measured.items():
        print(f"{name}, store: {', '.join(f'{count} {op}' for op, count in costs[-1].store.most_common())}")
        print(f"{name}, shortest gaps: {', '.join(rate.told for rate in costs[-1].rates)}")
    missed = [one for name, costs in measured.items() if name != "floor" for one in _find_missed(name, costs)]
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", *missed, sep="\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
