"""``rl-supervisor web``, and the page as one file or picture (``report --html``, ``--png``)."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from supervisor.base.errors import ConfigError, SupervisorError, UsageError
from supervisor.base.secrets import remember
from supervisor.cli import where, which
from supervisor.cli.hand_on import clean_texts, hide_hosts, write_file
from supervisor.fleet.assemble import Assembly, assemble
from supervisor.fleet.fleet_file import is_fleet_file
from supervisor.web.sources import PATIENT_S, RunSource

WITH_PARENT = "RL_SUPERVISOR_PAGE_OF_DAEMON"  # set by daemon/side_child.py: the page ends when its standard input does
NEEDED = ("starlette", "uvicorn", "plotly")
TOKEN = "RL_SUPERVISOR_WEB_TOKEN"  # noqa: S105 (the name of a variable)
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
BROWSER_S = 120.0
WIDTH, HIGHEST = 1200, 12_000  # of a picture
DRAWING_MS = 10_000  # of the browser's own, virtual time
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def web(options: argparse.Namespace, *, listen: str) -> int:
    """Serve the page until a person ends it. Raises UsageError."""
    _check_extra()
    host, _, port = listen.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {listen}: it takes an address and a port, such as 127.0.0.1:8400.")
    import uvicorn

    from supervisor.web.app import make_app, pack_library
    from supervisor.web.fleet_source import FleetSource

    fleet = _find_fleet(options)
    if fleet is not None:  # of each run its store is asked, and only when it is looked at
        found = [RunSource(one, os.environ, here=False, price=None) for one in fleet.files.values()]
    else:
        found = _find_sources(options)
    sources = {one.run_file.run.id: one for one in found}
    token = None if host in LOOPBACK else os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # Python adds the address
        raise UsageError(f"The page cannot listen at {listen}: {why}. Take another --listen.") from None
    port = str(listener.getsockname()[1])
    if os.environ.get(WITH_PARENT):
        os.nice(10)
        threading.Thread(target=_end_with_parent, daemon=True).start()
    shown_runs = f"the fleet {fleet.file.fleet.name}" if fleet is not None else ", ".join(sources)
    print(f"The page of {shown_runs}: http://{shown}:{port}/{f'?t={token}' if token else ''}", flush=True)
    if token:
        print(
            f"All who have this link see all that is shown. Keep it with {TOKEN}; use a tunnel (ssh -L) where you can.",
            flush=True,
        )
        remember(token)  # no log that the page shows, nor the page's own, contains it
    threading.Thread(target=_warm_up, args=(pack_library, found), daemon=True).start()
    config = uvicorn.Config(
        make_app(sources, token, FleetSource(fleet) if fleet is not None else None),
        log_level="warning",
        server_header=False,
    )
    uvicorn.Server(config).run([listener])
    return 0


def _warm_up(pack_library: Callable[[], None], sources: Sequence[RunSource]) -> None:
    """What takes a second and is the same for all: the first who looks does not wait for it."""
    pack_library()
    if len(sources) == 1:
        sources[0].look(0.0)


def _end_with_parent() -> None:
    """Nothing is ever written there; it ends when the daemon does, however that happens."""
    sys.stdin.buffer.read()
    os._exit(0)


def write_page(options: argparse.Namespace, path: Path, price: float | None, *, full: bool) -> int:
    """The page with its data in one file; ``full``: with the names of machines."""
    write_file(path, _freeze(options, price, full=full))
    print(f"{path} has {path.stat().st_size / 1e6:.1f} MB and opens in any browser, without a network.")
    return 0


def draw_page(options: argparse.Namespace, path: Path, price: float | None, *, full: bool) -> int:
    """The same as a picture. Raises UsageError where this machine has no chromium, or it draws nothing.

    The page's own renderer draws it: a second one, for pictures alone, would show something else sooner or later.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise UsageError(
            "--png needs chromium: apt-get install --no-install-recommends chromium (or Google Chrome). "
            "--html needs no browser on this machine."
        )
    with tempfile.TemporaryDirectory(prefix="rl-supervisor-") as folder:
        page, picture = Path(folder, "page.html"), Path(folder, "page.png")
        page.write_text(_freeze(options, price, full=full), encoding="utf-8")
        told = _ask_browser(browser, folder, "--dump-dom", f"--window-size={WIDTH},900", page.as_uri())
        found = re.search(r'<html[^>]* data-height="(\d{2,5})"', told)
        if found is None:
            raise UsageError(f"{browser} does not show the page. --html writes it into a file.")
        height = min(int(found[1]) + 20, HIGHEST)
        size = f"--window-size={WIDTH},{height}"
        _ask_browser(browser, folder, f"--screenshot={picture}", "--hide-scrollbars", size, page.as_uri())
        if not picture.exists():
            raise UsageError(f"{browser} draws no picture of the page. --html writes it into a file.")
        write_file(path, picture.read_bytes())
    print(f"{path} has {WIDTH} x {height} points.")
    return 0


def _ask_browser(browser: str, folder: str, *words: str) -> str:
    """What it prints. It may ask nothing of any network, and leaves nothing but in ``folder``."""
    command = [browser, "--headless=new", "--disable-gpu", f"--user-data-dir={folder}/profile", "--no-first-run"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--virtual-time-budget={DRAWING_MS}"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []  # as root it starts in no other way
    environ = {"PATH": os.environ.get("PATH", ""), "HOME": folder, "LC_ALL": "C.UTF-8"}
    with subprocess.Popen(
        [*command, *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        errors="replace",
    ) as child:
        try:
            return child.communicate(timeout=BROWSER_S)[0]
        except subprocess.TimeoutExpired:
            raise UsageError(f"{browser} was not done within {BROWSER_S:g} s. --html needs no browser here.") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # it is many processes


def _freeze(options: argparse.Namespace, price: float | None, *, full: bool) -> str:
    _check_extra()
    from supervisor.web.app import freeze_page
    from supervisor.web.page import page_of_run

    source = RunSource(where.run_file_of(options), os.environ, here=where.has_run_file(options), price=price)
    seen = source.look(PATIENT_S)
    hosts = [str((seen.status or {}).get("host") or "")]
    told = page_of_run(seen, source.price)
    return freeze_page(clean_texts(told) if full else hide_hosts(told, hosts))


def _check_extra() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        told = f"The page needs {', '.join(missing)}. Install it with: pip install 'rl-supervisor[web]'"
        raise UsageError(told)


def _find_sources(options: argparse.Namespace) -> list[RunSource]:
    """The run that is named, or all of this machine that have a run file."""
    if options.run_file is not None or options.store:
        here = where.has_run_file(options)
        return [RunSource(where.run_file_of(options), os.environ, here=here, price=None)]
    from supervisor.config.settings import load

    machine = which.look()
    loaded = []
    for _, run in sorted(machine.runs.items()):
        file = run.file or (_file_of_daemon(run) if run.has_daemon else None)
        if file is None:
            if run.has_daemon:
                told = f"{run.id} is left out: its run file is not known here. Name it: rl-supervisor web RUN.toml"
                print(told, file=sys.stderr)
            continue
        try:
            loaded.append(RunSource(load(file), os.environ, here=True, price=None))
        except ConfigError as error:  # the others are shown
            print(f"A run is left out. {error}", file=sys.stderr)
    if not loaded:
        names = ", ".join(machine.names())
        what = f"run file is known of {names}" if names else "run is known on this machine"
        raise UsageError(f"No {what}.{machine.try_sudo()} Name a RUN.toml, or --store and --run-id.")
    return loaded


def _file_of_daemon(run: which.Here) -> Path | None:
    """The run file that its daemon was started with, which need not be where this machine keeps them."""
    from supervisor.views.without_daemon import find_run_file

    try:
        return find_run_file(run.folder())
    except SupervisorError:  # it gives no answer, and its state folder is not known
        return None


def _find_fleet(options: argparse.Namespace) -> Assembly | None:
    """The fleet whose ``fleet.toml`` is named; None where a run is. Raises ConfigError."""
    if options.run_file is None or not is_fleet_file(options.run_file):
        return None
    if options.store or options.run_id:
        raise UsageError("fleet.toml names its runs and their stores: leave --store and --run-id out.")
    return assemble(options.run_file, os.environ)
