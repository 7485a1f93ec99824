"""``rl-supervisor web``, and the page as one file (``report --html``)."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from supervisor.base.errors import ConfigError, UsageError
from supervisor.cli import where, which
from supervisor.fleet.assemble import Assembly, assemble
from supervisor.fleet.fleet_file import is_fleet_file
from supervisor.web.sources import RunSource

WITH_PARENT = "RL_SUPERVISOR_PAGE_OF_DAEMON"  # set by daemon/page_child.py: the page ends when its standard input does
NEEDED = ("starlette", "uvicorn", "plotly")
TOKEN = "RL_SUPERVISOR_WEB_TOKEN"  # noqa: S105 (the name of a variable)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def web(options: argparse.Namespace, *, listen: str) -> int:
    """Serve the page until a person ends it. Raises UsageError."""
    _check_extra()
    host, _, port = listen.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {listen}: it takes an address and a port, such as 127.0.0.1:8400.")
    import uvicorn

    from supervisor.web.app import make_app
    from supervisor.web.fleet_source import FleetSource

    fleet = _find_fleet(options)
    found = _sources_of_fleet(fleet) if fleet is not None else _find_sources(options)
    sources = {one.run_file.run.id: one for one in found}
    token = None if host in LOOPBACK else os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise UsageError(f"The page cannot listen at {listen}: {error.strerror}. Take another --listen.") from None
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
    config = uvicorn.Config(
        make_app(sources, token, FleetSource(fleet) if fleet is not None else None),
        log_level="warning",
        server_header=False,
    )
    uvicorn.Server(config).run([listener])
    return 0


def _end_with_parent() -> None:
    """Nothing is ever written there; it ends when the daemon does, however that happens."""
    sys.stdin.buffer.read()
    os._exit(0)


def write_page(options: argparse.Namespace, path: Path, price: float | None) -> int:
    """The page with its data in one file."""
    _check_extra()
    from supervisor.web.app import freeze_page
    from supervisor.web.page import page_of_run

    source = RunSource(where.run_file_of(options), os.environ, here=where.has_run_file(options), price=price)
    path.write_text(freeze_page(page_of_run(source.look(), source.price)), encoding="utf-8")
    print(f"{path} has {path.stat().st_size / 1e6:.1f} MB and opens in any browser, without a network.")
    return 0


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
    files = [one.file for _, one in sorted(machine.runs.items()) if one.file is not None]
    if not files:
        raise UsageError(
            f"No run is known on this machine.{machine.try_sudo()} Name a RUN.toml, or --store and --run-id."
        )
    loaded = []
    for file in files:
        try:
            loaded.append(RunSource(load(file), os.environ, here=True, price=None))
        except ConfigError as error:  # the others are shown
            print(f"A run is left out. {error}", file=sys.stderr)
    if not loaded:
        raise UsageError("No run file of this machine can be read.")
    return loaded


def _find_fleet(options: argparse.Namespace) -> Assembly | None:
    """The fleet whose ``fleet.toml`` is named; None where a run is. Raises ConfigError."""
    if options.run_file is None or not is_fleet_file(options.run_file):
        return None
    if options.store or options.run_id:
        raise UsageError("fleet.toml names its runs and their stores: leave --store and --run-id out.")
    return assemble(options.run_file, os.environ)


def _sources_of_fleet(fleet: Assembly) -> list[RunSource]:
    """Of each run its store is asked, and only when it is looked at."""
    return [RunSource(one, os.environ, here=False, price=None) for one in fleet.files.values()]
