"""What looking at a run costs: `python -m bench sight` does both parts, `python -m bench.sight page` or `live` one.

- page (about a minute; needs Debian's chromium and playwright): the page's program shows a state folder with the
  series of 10,000 steps (eight GPUs, six attempts, a rollback), then of 100,000. A browser with an empty cache opens
  it, stays for one update, and comes again. First paint is the first text; drawing is what the charts' library does,
  and "from the click" is with all that comes before it.
- live (three minutes): two pods with a practice job on eight GPUs and production's deadlines, side by side: one with
  `[web]` and a webhook that is told (`RL_NOTIFY_URLS`), one without. The first one's state folder has the series of
  10,000 steps as well. Both daemons are measured while nobody looks; then ten viewers ask as the page does (every
  2.5 s, with the log followed) and `supervisorctl top` stands open in a terminal of 80 x 24; then the engine is killed,
  and the message awaited. "An hour" is so many seconds of it: a viewer asks the same in each.

Exit code 1 where a figure is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import json
import os
import pty
import random
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from bench.footprint import MIB, Meter
from bench.pod import practice_of, production_pod, times, titled
from supervisor.journal.series import FILE_BYTES, Row, path_of, thin
from tests.e2e.rig import Pod

STEPS, MANY_STEPS = 10_000, 100_000
STEP_S, SAMPLE_S = 60.0, 30.0
ATTEMPTS, AGAIN = 6, 40  # of the history, and so many steps are trained again after each but the first
GPUS, GIB = 8, 1 << 30
MOST_ROWS = 8000
FIRST_NUMBER = 101  # of the planted attempts: a live run begins with 1
VIEWERS, LOOK_S = 10, 2.5  # as EVERY_MS of web/static/page.js
WARM_UP_S, ALONE_S, LOOKED_AT_S = 20.0, 30.0, 30.0
TIMES = 3
PAINT_S, DRAW_S, FIRST_MB, LATER_KB = 1.0, 1.0, 2.0, 200.0
PAGE_MIB, DAEMON_CORE, TOP_CORE, MESSAGE_S = 120.0, 1.0, 1.0, 5.0
SAME_CORE, SAME_MIB = 0.5, 4.0  # two daemons that do the same differ by less
RUN = """
[run]
id = "practice"
state_dir = "{folder}/state"
[job]
kind = "command"
[job.plain]
start = ["a"]
resume = ["b"]
[store]
url = "file://{folder}/store"
[api]
socket = "{folder}/s"
"""
DRAWN = """() => {
  const place = document.querySelector("#charts");
  if (!place || !place.querySelector(".scatterlayer .trace path")) return null;
  return performance.now();
}"""
# How long the charts' library takes to draw; before that the browser compiles its five megabytes, once.
TIMED = """() => Object.defineProperty(window, "Plotly", {configurable: true, get: () => window.library, set: (one) => {
  const react = one.react;
  one.react = (...given) => {
    const begun = performance.now(), made = react(...given);
    Promise.resolve(made).then(() => { window.drawing ||= performance.now() - begun; });
    return made;
  };
  window.library = one;
}})"""
PAINTED = """() => performance.getEntriesByName("first-contentful-paint").map((one) => one.startTime)[0] || null"""


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``most`` None: told beside the others and never missed."""

    what: str
    value: float
    unit: str
    most: float | None = None

    @property
    def is_missed(self) -> bool:
        """A figure that is beyond what is asked for."""
        return self.most is not None and not self.value <= self.most


# ---------------------------------------------------------------- a history


def plant_history(state_dir: Path, steps: int, end: float) -> int:
    """The series of a run's earlier attempts, as their daemons left them: thinned to their size. Returns bytes."""
    luck, each, at, size = random.Random(1), steps // ATTEMPTS, end - (steps + ATTEMPTS * AGAIN) * STEP_S, 0
    (state_dir / "series").mkdir(parents=True, exist_ok=True)
    for number in range(ATTEMPTS):
        first = number * each + 1 - (AGAIN if number else 0)
        path = path_of(state_dir, FIRST_NUMBER + number)
        rows: list[Row] = [{"t": at, "roles": {str(n): [_role_of(n), 80 * GIB] for n in range(GPUS)}}]
        rows.append({"t": at, "event": "launched", "level": "info", "sentence": f"Attempt {number + 1} was started."})
        for step in range(first, (number + 1) * each + 1):
            at += STEP_S
            rows += _rows_of_step(step, at, luck)
        told = f"vLLM died silently at step {(number + 1) * each}: its process has been gone for 2 s."
        rows.append({"t": at, "event": "verdict", "level": "error", "sentence": told})
        while len(rows) > MOST_ROWS:  # so many are more than a file holds
            rows = thin(rows)
        while len(text := _lines_of(rows)) > FILE_BYTES:
            rows = thin(rows)
        path.write_bytes(text)
        size += len(text)
    return size


def _role_of(gpu: int) -> str:
    return "inference" if gpu < GPUS // 2 else "trainer"


def _rows_of_step(step: int, at: float, luck: random.Random) -> Iterator[Row]:
    yield {
        "t": at - 1,
        "step": step,
        "role": "orchestrator",
        "reward": round(luck.random(), 5),
        "s": round(luck.gauss(60, 2), 3),
    }
    values = {
        "loss": round(luck.gauss(0.01, 0.003), 6),
        "s": round(luck.gauss(60, 2), 3),
        "tps": round(luck.gauss(9e3, 500), 1),
    }
    yield {"t": at, "step": step, "role": "trainer", **values}
    for part in range(int(STEP_S / SAMPLE_S)):
        gpu = {
            str(n): [int((39 + 2 * luck.random()) * GIB), int((59 + 2 * luck.random()) * GIB), int(101 * luck.random())]
            for n in range(GPUS)
        }
        more = {"disk": int(9e11 - 1e7 * step), "running": luck.randrange(300), "waiting": luck.randrange(40)}
        yield {"t": at + part * SAMPLE_S, **more, "gpu": gpu}


def _append(path: Path, rows: Sequence[Row]) -> None:
    """What a daemon adds meanwhile."""
    with path.open("ab") as file:
        file.write(_lines_of(rows))


def _lines_of(rows: Sequence[Row]) -> bytes:
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


# ---------------------------------------------------------------- the page in a browser


@dataclass
class Opened:
    """One visit of a browser."""

    painted_s: float
    drawn_s: float
    drawing_s: float
    sent_bytes: int
    update_bytes: int
    again_bytes: int
    """Of the same browser, opening the page once more."""
    work_s: float
    """Processor time of the page's own thread until all was drawn: a crowded machine does not change it."""


def measure_page(folder: Path) -> list[Figure]:
    """First paint, bytes and drawing, for 10,000 and for 100,000 steps."""
    found: list[Figure] = []
    for steps in (STEPS, MANY_STEPS):
        state = folder / str(steps) / "state"
        size = plant_history(state, steps, time.time() - 60.0)
        _say(f"{steps:,} steps: {size / MIB:.1f} MiB of series ...")
        run_file = folder / str(steps) / "run.toml"
        (folder / str(steps) / "store").mkdir()
        run_file.write_text(RUN.format(folder=folder / str(steps)))
        run_file.chmod(0o600)
        with serve_page(run_file) as (address, process):
            visits = [_open(address, state) for _ in range(TIMES)]
            memory = _pss_mib(process.pid)
        first = steps == STEPS
        name = f"{steps:,} steps: "
        found += [
            Figure(name + "first paint", _median(one.painted_s for one in visits), "s", PAINT_S if first else None),
            Figure(name + "drawing all charts", _median(one.drawing_s for one in visits), "s", DRAW_S),
            Figure(name + "all charts drawn, from the click", _median(one.drawn_s for one in visits), "s"),
            Figure(name + "processor time of that in the browser", _median(one.work_s for one in visits), "s"),
            Figure(name + "sent to an empty cache", visits[0].sent_bytes / 1e6, "MB", FIRST_MB),
            Figure(name + "sent for one update", _median(one.update_bytes for one in visits) / 1e3, "KB", LATER_KB),
            Figure(name + "sent to who comes again", _median(one.again_bytes for one in visits) / 1e3, "KB", LATER_KB),
            Figure(name + "memory of the page's program (PSS)", memory, "MiB", PAGE_MIB),
        ]
    return found


@contextlib.contextmanager
def serve_page(run_file: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`rl-supervisor web`, as a person starts it, and its address."""
    command = [sys.executable, "-m", "supervisor.cli.main", "web", str(run_file), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1], process
        finally:
            process.terminate()


def _open(address: str, state: Path) -> Opened:
    from playwright.sync_api import sync_playwright  # of the tests' extra; `live` needs no browser

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
        sent: list[float] = []
        client = page.context.new_cdp_session(page)
        client.send("Network.enable")
        client.send("Performance.enable", {"timeDomain": "threadTicks"})
        client.on("Network.loadingFinished", lambda told: sent.append(told["encodedDataLength"]))
        page.add_init_script(f"({TIMED})()")
        page.goto(address, wait_until="commit")
        drawn = page.wait_for_function(DRAWN, polling="raf").json_value()
        told = client.send("Performance.getMetrics")["metrics"]
        work = next(one["value"] for one in told if one["name"] == "TaskDuration")
        painted, drawing = page.evaluate(PAINTED), page.evaluate("window.drawing")
        page.wait_for_timeout(200)
        first, count = sum(sent), len(sent)
        newest = max((state / "series").glob("*.jsonl"))
        with page.expect_response(lambda one: "charts.json" in one.url and one.status == 200):
            _append(newest, list(_rows_of_step(STEPS, time.time(), random.Random())))
        page.wait_for_timeout(200)
        update, count = sum(sent[count:]), len(sent)
        page.goto(address, wait_until="commit")
        page.wait_for_function(DRAWN, polling="raf")
        page.wait_for_timeout(200)
        again = sum(sent[count:])
        browser.close()
    return Opened(painted / 1e3, drawn / 1e3, drawing / 1e3, int(first), int(update), int(again), work)


# ---------------------------------------------------------------- a live run, looked at


def measure_live(folder: Path) -> list[Figure]:
    """What viewers, `top`, `[web]` and messages cost a daemon, and how fast a message is."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    hook = _Hook()
    seen = _start_pod(folder / "seen", {"web": {"listen": listen}}, {"RL_NOTIFY_URLS": f"http://{hook.place}/"})
    plain = _start_pod(folder / "plain", {}, {})
    found: list[Figure] = []
    try:
        for pod in (seen, plain):
            pod.wait_for(lambda pod=pod: pod.step() >= 1, "the first step", 120)  # type: ignore[misc]
        plant_history(seen.state_dir, STEPS, time.time() - 600.0)
        page = _page_of(seen)
        _say(f"Both train. {WARM_UP_S:.0f} s of warm-up, {ALONE_S:.0f} s with nobody there ...")
        time.sleep(WARM_UP_S)
        found += _compare_alone(seen, plain)
        found += _measure_viewers(seen, listen, page)
        found.append(_measure_message(seen, hook))
    finally:
        hook.close()
        for pod in (seen, plain):
            pod.close()
    return found


def _start_pod(folder: Path, more: dict[str, dict[str, Any]], environ: dict[str, str]) -> Pod:
    practice = practice_of(folder, gpus=GPUS, step_s=10.0, interval=10, pipeline_log_s=10.0)
    return production_pod(folder, practice, interval=10, more=more, environ=environ).start()


def _page_of(pod: Pod) -> psutil.Process:
    """The program of the page beside the daemon."""
    assert pod.daemon is not None
    daemon = psutil.Process(pod.daemon.pid)

    def find() -> list[psutil.Process]:
        return [one for one in daemon.children() if "web" in one.cmdline()]

    return psutil.Process(pod.wait_for(find, "the page's program", 60)[0].pid)


def _compare_alone(seen: Pod, plain: Pod) -> list[Figure]:
    assert seen.daemon is not None and plain.daemon is not None
    meters = [Meter(pod.daemon.pid) for pod in (seen, plain) if pod.daemon is not None]
    time.sleep(ALONE_S)
    ours, theirs = (meter.cost() for meter in meters)
    return [
        Figure("daemon without [web] and a webhook: CPU, of one core", theirs.cpu, "%"),
        Figure("daemon with both, nobody there: CPU, more than without", ours.cpu - theirs.cpu, "%", SAME_CORE),
        Figure("daemon without [web] and a webhook: memory (RSS)", theirs.rss_mib, "MiB"),
        Figure("daemon with both: memory, more than without", ours.rss_mib - theirs.rss_mib, "MiB", SAME_MIB),
        Figure("daemon with both: threads, more than without", ours.threads - theirs.threads, "", 1),
    ]


def _measure_viewers(pod: Pod, listen: str, page: psutil.Process) -> list[Figure]:
    """Ten viewers on the page, then `top` beside nothing else; each against the daemon just before."""
    assert pod.daemon is not None
    _say(f"{VIEWERS} viewers for {LOOKED_AT_S:.0f} s ...")
    before = _cpu_for(pod.daemon.pid, LOOKED_AT_S / 2)
    over = threading.Event()
    viewers = [threading.Thread(target=_look_again_and_again, args=(listen, over), daemon=True) for _ in range(VIEWERS)]
    for viewer in viewers:
        viewer.start()
    time.sleep(2 * LOOK_S)  # the first looks read the whole history
    meters, pids = [Meter(pod.daemon.pid), Meter(page.pid)], [page.pid]
    end, memory = time.monotonic() + LOOKED_AT_S, 0.0
    while time.monotonic() < end:
        memory = max(memory, sum(map(_pss_mib, pids)))
        time.sleep(1)
    daemon, web = (meter.cost() for meter in meters)
    over.set()
    for viewer in viewers:
        viewer.join(20)
    _say(f"`supervisorctl top` for {LOOKED_AT_S:.0f} s ...")
    top, while_top = _measure_top(pod)
    return [
        Figure(f"{VIEWERS} viewers: CPU of the daemon, more than alone", daemon.cpu - before, "%", DAEMON_CORE),
        Figure(f"{VIEWERS} viewers: CPU of the page's program", web.cpu, "%"),
        Figure(f"{VIEWERS} viewers: memory of the page's program, highest (PSS)", memory, "MiB", PAGE_MIB),
        Figure("`top`: its own CPU, of one core", top, "%", TOP_CORE),
        Figure("`top`: CPU of the daemon, more than alone", while_top - before, "%"),
    ]


def _look_again_and_again(listen: str, over: threading.Event) -> None:
    """What page.js asks for, with the log followed."""
    tag, wanted = "", {"accept-encoding": "gzip"}
    name = ""
    while not over.is_set():
        began = time.monotonic()
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(listen, timeout=20)
            connection.request(
                "GET", "/run.json?run=practice", headers=wanted | ({"if-none-match": tag} if tag else {})
            )
            answer = connection.getresponse()
            body, tag = answer.read(), answer.headers.get("etag") or tag
            if not name and answer.status == 200:
                name = json.loads(gzip.decompress(body))["logs"][0]
            connection.request("GET", f"/log.txt?{urlencode({'run': 'practice', 'name': name})}", headers=wanted)
            connection.getresponse().read()
            connection.close()
        over.wait(max(0.0, LOOK_S - (time.monotonic() - began)))


def _measure_top(pod: Pod) -> tuple[float, float]:
    """CPU of `supervisorctl top`, after its start, and of the daemon meanwhile; in percent of a core."""
    assert pod.daemon is not None
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        words = ["-m", "supervisor.cli.ctl", "--socket", str(pod.socket), "top"]
        os.execv(sys.executable, [sys.executable, *words])
    try:
        _drain(terminal, 4.0)
        meters = [Meter(child), Meter(pod.daemon.pid)]
        _drain(terminal, LOOKED_AT_S)
        top, daemon = (meter.cost().cpu for meter in meters)
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        os.close(terminal)
    return top, daemon


def _drain(terminal: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            os.read(terminal, 65536)


def _measure_message(pod: Pod, hook: _Hook) -> Figure:
    """From the verdict to the message that tells it."""
    _say("The engine is killed, and the message awaited ...")
    engine = titled(pod.practice, "VLLM::EngineCore")
    for pid in engine:
        os.kill(pid, signal.SIGKILL)
    pod.wait_for(
        lambda: [one for one in hook.got if one[1].get("thread", "").startswith("practice-incident")], "the message", 60
    )
    came = next(at for at, told in hook.got if str(told.get("thread", "")).startswith("practice-incident"))
    return Figure("message at its receiver, after the verdict", came - times(pod, "verdict")[-1], "s", MESSAGE_S)


class _Hook:
    """A receiver of messages on loopback."""

    def __init__(self) -> None:
        self.got: list[tuple[float, dict[str, Any]]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                got.append((time.time(), json.loads(body)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """It is quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _cpu_for(pid: int, seconds: float) -> float:
    meter = Meter(pid)
    time.sleep(seconds)
    return meter.cost().cpu


def _pss_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_full_info().pss) / MIB


def _median(values: Iterator[float]) -> float:
    return statistics.median(values)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


PARTS = {"page": measure_page, "live": measure_live}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 where a figure is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.sight", description=__doc__)
    parser.add_argument("part", nargs="?", choices=[*PARTS, "both"], default="both")
    part = parser.parse_args(argv).part
    found: list[Figure] = []
    for name in PARTS if part == "both" else [part]:
        with tempfile.TemporaryDirectory(prefix="rl-bench-") as folder:
            found += PARTS[name](Path(folder))
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    for one in found:
        asked = "" if one.most is None else f"at most {one.most:g}{' ' if one.unit else ''}{one.unit}"
        told = f"{one.value:.2f}{' ' if one.unit else ''}{one.unit}"
        print(f"{one.what:70}  {told:>12}  {asked:18}{'  MISSED' if one.is_missed else ''}")
    return int(any(one.is_missed for one in found))


if __name__ == "__main__":
    sys.exit(main())
