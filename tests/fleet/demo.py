"""A run moves from pod to pod in about two minutes: `make demo-fleet`, or `python -m tests.fleet.demo`.

A Vast.ai of our own and a B2 of our own, both over HTTP; three hosts that are folders of this machine, with pretended
GPUs; the real controller, the real start script and daemons, and the practice job. The first pod is outbid and
vanishes, the second host lied about its GPUs, the third pod finishes. Exit code 0 only when all of that happened.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.b2server import B2Server
from tests.demo.demo import print_heading, print_remark
from tests.fleet.fake_vast import KEY, Rental
from tests.fleet.vast_hosts import VastHosts
from tests.practice.command_line import toml_value
from tests.practice.gpus import make_gpus
from tests.practice.nvml.build import NoCompilerError, build
from tests.practice.run import Practice, make_practice

RUN_ID = "practice"
ERA = "2026-08-21"
INTERVAL = 2
LEAVES_AT = 8  # the first pod, when this step is published
VANISHES_AFTER_S = 4.0
SECOND_LOOK_S = 4.0
TICK_S = 2.0
PATIENCE_S = 50
STOP_S = 20.0
INTERRUPTED = 130

CONTROLLER = f"""
import sys
from supervisor.cli import fleet, main
from supervisor.fleet import decide, observe
observe.SECOND_LOOK_S = decide.SECOND_LOOK_S = {SECOND_LOOK_S}
fleet.TICK_S = {TICK_S}
sys.exit(main.main(sys.argv[1:]))
"""
FLEET = """
[fleet]
store = "b2://the-bucket/fleet"
realm = "{b2}"
[limits]
per_hour = 8.0
total = 1.0
until = "2099-12-31"
[place.spot]
provider = "vast"
gpu = "H100 SXM"
gpus = 2
most_per_hour = 4.0
disk_gb = 1
image = "ghcr.io/me/prime-rl:1"
[run.practice]
file = "run.toml"
places = ["spot"]
"""
INTRODUCTION = """\
A practice run ({steps} steps, a checkpoint each {interval}) on pods with two pretended GPUs. Nothing is rented: Vast.ai
and B2 are servers of this machine, and the three hosts are folders here. The controller, the pods' start script and
their daemons are real. The first pod is outbid at step {leaves}, and its host vanishes. The second host has one GPU,
and two were offered. The third has to finish the run.

In fast motion: a tick each {tick:g} s (in earnest 30), a second look after {look:g} s (30), {silence:g} s of silence
beside a second sign convict a pod (180), and a pod starts in seconds (minutes)."""


class Hosts(VastHosts):
    """Three machines at three prices; the second has one GPU in place of two."""

    steps = 24
    step_s = 2.0
    library: Path

    def __post_init__(self) -> None:
        super().__post_init__()
        self.practices: dict[Path, Practice] = {}
        self.let: list[int] = []
        self.machines = [self.offers[self.add_offer(min_bid=bid)]["machine_id"] for bid in (1.5, 1.8, 2.2)]

    def make_host(self, home: Path, machine: int) -> dict[str, str]:
        practice = make_practice(
            home, ERA, max_steps=self.steps, interval=INTERVAL, step_s=self.step_s, checkpoint_bytes=1 << 20
        )
        if machine == self.machines[1]:
            make_gpus(practice.gpus, 1)
        self.practices[home] = practice
        self.let.append(machine)
        return practice.environment | {"LD_LIBRARY_PATH": str(self.library)}


@dataclass
class Seen:
    """What happened at the provider and in the store."""

    outbid_at_step: int = 0  # newest published step then
    trained_at_outbid: int = 0
    vanished: bool = False
    said: list[str] = field(default_factory=list)


class Demo:
    """The two servers, the files that a person would write, and the controller."""

    def __init__(self, folder: Path, b2: B2Server, vast: Hosts) -> None:
        self.folder, self.b2, self.vast = folder, b2, vast
        self.seen = Seen()
        self.controller: subprocess.Popen[str] | None = None
        self.environment = os.environ | b2.environ() | {"VAST_API_KEY": KEY, "VAST_URL": vast.url}

    def write_files(self) -> None:
        """``fleet.toml`` and the run file, as a person would write them, and the settings of the fast motion."""
        tables: dict[str, dict[str, object]] = {
            "run": {"id": RUN_ID, "state_dir": "~/state"},
            "job": {
                "dir": "~/prime-rl",
                "config": "~/prime-rl/configs/practice.toml",
                "checkpoint_interval": INTERVAL,
                "nofile": 1024,
                "pass_env": ["PRACTICE_FILE", "PRACTICE_GPUS"],
            },
            "store": {"url": "b2://the-bucket/runs", "realm": self.b2.url, "take_over_after": PATIENCE_S},
            "check": {"at_start": False},  # which takes the pretended model at its word, and this disk for too small
            "supervision": {"scan": 1.0, "quiet": 1.0, "shim": "fork"},
            "api": {"socket": "~/socket"},
        }
        lines = []
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{name} = {toml_value(value)}" for name, value in values.items()), ""]
        (self.folder / "run.toml").write_text("\n".join(lines), encoding="utf-8")
        (self.folder / "fleet.toml").write_text(FLEET.format(b2=self.b2.url), encoding="utf-8")
        for one in self.folder.iterdir():
            one.chmod(0o700)

    def fleet(self, *words: str) -> list[str]:
        """A command of the fleet, for this file."""
        return [sys.executable, "-c", CONTROLLER, "fleet", *words, "--file", str(self.folder / "fleet.toml")]

    def start(self) -> None:
        """``rl-supervisor fleet run``."""
        self.controller = subprocess.Popen(
            self.fleet("run"),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo, which then ends everything in order
        )
        assert self.controller.stdout is not None
        os.set_blocking(self.controller.stdout.fileno(), False)

    def watch(self, limit_s: float) -> None:
        """Lets happen what is to happen, and tells what the controller says, until the run has ended."""
        assert self.controller is not None
        deadline = time.monotonic() + limit_s
        gone_at: float | None = None
        while time.monotonic() < deadline and self.controller.poll() is None:
            self._tell_news()
            first = self.vast.ledger[0] if self.vast.ledger else None
            if first is not None and not self.seen.outbid_at_step and self.published() >= LEAVES_AT:
                self._outbid(first)
                gone_at = time.monotonic() + VANISHES_AFTER_S
            if first is not None and gone_at is not None and time.monotonic() >= gone_at and not self.seen.vanished:
                self.seen.vanished = True
                if first.instance in self.vast.instances:
                    self.vast.vanish(first.instance)
                print_remark(f"The host of pod {first.instance} has vanished, with the pod's disk.")
            if self.has_said("needs a person") or (self.has_said("The run has ended") and not self.vast.living()):
                break
            time.sleep(0.1)
        self._tell_news()

    def _outbid(self, first: Rental) -> None:
        home = self.vast.home_of(first.instance)
        self.seen.outbid_at_step = self.published()
        self.seen.trained_at_outbid = max(self.vast.practices[home].trained_steps(), default=0)
        self.vast.set_lowest_bid(first.offer, 5.0)
        print_remark(
            f"Another customer bids $5.00 for the machine of pod {first.instance}. It is stopped: it had trained "
            f"step {self.seen.trained_at_outbid}, and step {self.seen.outbid_at_step} is published."
        )

    def _tell_news(self) -> None:
        assert self.controller is not None and self.controller.stdout is not None
        for line in self.controller.stdout:
            text = line.rstrip()
            self.seen.said.append(text)
            if not re.search(r"trains at step \d+\.$", text) or not re.search(r"trains at", self.seen.said[-2]):
                print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    def has_said(self, words: str) -> bool:
        """Did the controller say so? Its lines are wrapped."""
        return words in re.sub(r"\s+", " ", " ".join(self.seen.said))

    def published(self) -> int:
        """Newest published step; 0 before the first."""
        data = self.b2.objects().get(f"runs/{RUN_ID}/latest.json")
        return 0 if data is None else int(json.loads(data)["step_number"])

    def stop(self) -> None:
        """End the controller as systemd does, and then what is left. Safe at any moment."""
        if self.controller is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if self.controller.poll() is None:
                    self.controller.terminate()
                self.controller.wait(STOP_S)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.controller.pid, signal.SIGKILL)
            self.controller.wait()
        for rental in self.vast.ledger:
            self.vast.kill(rental.instance)

    # ------------------------------------------------------------ the end

    def find_shortcomings(self) -> list[str]:
        """What did not happen, or should not have."""
        seen, vast, missing = self.seen, self.vast, []
        if not seen.outbid_at_step:
            missing.append(f"The first pod never published step {LEAVES_AT}, so it was not outbid.")
        if vast.let != vast.machines:
            missing.append(f"Pods were rented on the machines {vast.let}, and not on {vast.machines}, in turn.")
        state = self.read_state()
        hows = [one["how"] for one in state["rented"]]
        if "unfit" not in hows or not any(str(vast.machines[1]) in name for name in state["faults"]):
            missing.append(f"The host with one GPU was not left as unfit and remembered: pods ended as {hows}.")
        resumed = self.find_resumed_step()
        if resumed is None or resumed < seen.outbid_at_step:
            missing.append(f"The last pod went on from step {resumed}, and {seen.outbid_at_step} was published.")
        if self.published() != vast.steps:
            missing.append(f"Step {self.published()} is the newest in the store, and not {vast.steps}.")
        if not self.has_said("The run has ended"):
            missing.append("The controller did not say that the run has ended.")
        if vast.living():
            missing.append(f"{len(vast.living())} pods are still rented.")
        missing += self.find_two_writers()
        return missing

    def find_resumed_step(self) -> int | None:
        """At which step the last pod began; None where it never did, or from the start."""
        practice = self.vast.practices[self.vast.home_of(self.vast.ledger[-1].instance)]
        flag = f"--{practice.era.command_line['resume_key'].replace('_', '-')}"
        for start in practice.starts():
            words = [word.replace("_", "-") for word in start["arguments"]]
            return int(words[words.index(flag) + 1]) if flag in words else None
        return None

    def find_two_writers(self) -> list[str]:
        """Steps that a pod published after a later one held the run."""
        versions = self.b2.state.current(self.b2.bucket, f"runs/{RUN_ID}/")
        claimed = {
            int(found[1]): version.timestamp
            for version in versions
            if (found := re.search(r"/gen_(\d+)\.json$", version.name))
        }
        late = []
        for version in versions:
            if version.name.endswith("/manifest.json"):
                generation = json.loads(version.data)["generation"]
                after = claimed.get(generation + 1)
                if after is not None and version.timestamp > after:
                    late.append(f"{version.name} was written by holder {generation} after the next one had the run.")
        return late

    def read_state(self) -> dict[str, Any]:
        """What the controller remembers of the run."""
        state: dict[str, Any] = json.loads(self.b2.objects()[f"fleet/fleet/state/{RUN_ID}.json"])["state"]
        return state

    def conclude(self) -> int:
        """The table of the pods, and the verdict."""
        print_heading("$ rl-supervisor fleet history")
        told = subprocess.run(
            self.fleet("history"), env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        print((told.stdout + told.stderr).rstrip(), flush=True)
        if missing := self.find_shortcomings():
            print_heading("The demo FAILED:")
            print("\n".join(f"  - {sentence}" for sentence in missing), flush=True)
            return 1
        again, resumed = self.seen.trained_at_outbid - self.seen.outbid_at_step, self.find_resumed_step()
        print(f"\nThe last pod went on from step {resumed}. Trained twice: {again}. No published step was lost.")
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo. Exit code: 0 when it showed all it should, 1 when not, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser("python -m tests.fleet.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--limit", type=float, default=400, metavar="S", help="give up after so long (default 400)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder, and leave it there")
    options = parser.parse_args(argv)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, interrupt)
    try:
        with make_demo(options.keep) as demo:
            print_heading("rl-supervisor: the demo of the fleet")
            silence = 3 * PATIENCE_S / 10
            words = {"leaves": LEAVES_AT, "tick": TICK_S, "look": SECOND_LOOK_S, "silence": silence}
            print(INTRODUCTION.format(steps=demo.vast.steps, interval=INTERVAL, **words))
            print_heading("$ rl-supervisor fleet run")
            demo.start()
            demo.watch(options.limit)
            return demo.conclude()
    except NoCompilerError as error:
        print(f"The demo needs a C compiler for its pretended GPU driver: {error}")
        return 1
    except KeyboardInterrupt:
        print_remark("Interrupted: all that was started is ended.")
        return INTERRUPTED


@contextlib.contextmanager
def make_demo(keep: Path | None) -> Iterator[Demo]:
    """All parts, in a folder that is removed at the end unless it is to be kept. What runs there is ended."""
    with tempfile.TemporaryDirectory(prefix="rl-fleet-") as name, contextlib.ExitStack() as ending:
        folder = keep.absolute() if keep else Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        vast = Hosts(keeps_gaps=True)
        vast.folder, vast.library = folder, build(folder / "driver").parent
        demo = Demo(folder, ending.enter_context(B2Server()), ending.enter_context(vast))
        demo.write_files()
        ending.callback(demo.stop)
        yield demo


if __name__ == "__main__":
    sys.exit(main())
