"""How long a fresh pod takes to its first new step: [setup], the model's download and the restore of a step.

`python -m bench.starts [--setup 60] [--mib 256] [--mbit 125]`: one pod publishes a step of that size and vanishes; the
next has nothing and installs the practice trainer at the end of a setup of so many seconds. Model and step have a link
of `--mbit` each, so 256 MiB at 125 take as long as 2 GiB at 1,000. `--in-order` has the commands fetch the model.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import shlex
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.b2server import B2Server
from tests.e2e.rig import Pod
from tests.e2e.test_pods import b2_settings, first_pod, next_pod

SOONER = 0.30


def measure(folder: Path, setup_s: float, size_bytes: int, mbit: float, *, in_order: bool) -> tuple[float, list[str]]:
    """Seconds from the daemon's start to the first new step, and what the daemon said of the parts."""
    (folder / "model").mkdir(parents=True)
    with (folder / "model" / "weights").open("wb") as file:
        file.truncate(size_bytes)
    handler = functools.partial(Quiet, directory=str(folder / "model"))
    with B2Server() as server, http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        options = _patient(server)
        one = first_pod(
            folder / "one", "v0.6", step_s=3.0, interval=2, max_steps=1000, checkpoint_bytes=size_bytes, **options
        )
        two: Pod | None = None
        try:
            one.start()
            one.wait_for(lambda: one.sentences("published"), "a step is published", 300)
            one.vanish()
            options = _patient(server)
            options["settings"]["store"]["limit_mbit"] = mbit
            two = next_pod(folder / "two", one, **options)
            _write_setup(two, setup_s, f"http://127.0.0.1:{hub.server_address[1]}/weights", mbit, in_order=in_order)
            begun = time.time()
            two.start("onstart")
            two.wait_for(lambda: two is not None and two.sentences("step"), "a new step", 600)
            took = time.time() - begun
            return took, [s for event in ("setup", "restored") for s in two.sentences(event)]
        finally:
            for pod in (one, two):
                if pod is not None:
                    pod.close()


def _patient(server: B2Server) -> dict[str, Any]:
    """The bucket, and deadlines that leave a large save of the practice trainer alone."""
    options = b2_settings(server)
    options["settings"]["deadlines"] = {"checkpoint_save": 600, "step_floor": 300, "step_ceiling": 600, "hang": 300}
    return options


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the model, and says nothing of it."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


def _write_setup(pod: Pod, setup_s: float, url: str, mbit: float, *, in_order: bool) -> None:
    """The run file once more, with a longer setup that ends with the install, and the model's download."""
    target = pod.folder / "weights"
    fetch = f"curl -s --limit-rate {int(mbit * 1e6 / 8)} {url} -o {shlex.quote(str(target))}"
    text = pod.run_file.read_text()
    line = next(line for line in text.splitlines() if line.startswith("commands = ["))
    rest = line.removeprefix("commands = [")
    more = f'"sleep {setup_s}", ' + (f'"{fetch}", ' if in_order else "")
    beside = "" if in_order else f'\nbeside = ["{fetch}"]'
    pod.run_file.write_text(text.replace(line, f"commands = [{more}{rest}{beside}"))


def main(words: list[str] | None = None) -> int:
    """Measure and print; exit code 1 where it is not sooner than all of it one after another by what is asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.starts", description=__doc__)
    parser.add_argument("--setup", type=float, default=60.0)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--mbit", type=float, default=125.0)
    parser.add_argument("--in-order", action="store_true")
    parser.add_argument("--before", type=float, help="seconds that one after another took, to compare with")
    options = parser.parse_args(words)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="rl-starts-", ignore_cleanup_errors=True) as folder:
        size = options.mib << 20
        took, said = measure(Path(folder), options.setup, size, options.mbit, in_order=options.in_order)
    print("\n".join(f"  {sentence}" for sentence in said))
    print(f"first new step after {took:.1f} s", end="")
    if options.before:
        print(f", one after another {options.before:.1f} s: {1 - took / options.before:.0%} sooner", end="")
    print(f"; {os.cpu_count()} cores, load {before:.1f} before and {os.getloadavg()[0]:.1f} after")
    return int(bool(options.before) and took > (1 - SOONER) * options.before)


if __name__ == "__main__":
    sys.exit(main())
