"""The peer: supervisord from PyPI, in an environment of its own, since its import name is ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.pod import ROOT

VENV = ROOT / ".bench" / "supervisord"

CONF = """\
[supervisord]
nodaemon=true
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
childlogdir={folder}
[unix_http_server]
file={folder}/s
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[program:rl]
command={command}
directory={directory}
autorestart=true
stopasgroup=true
killasgroup=true
redirect_stderr=true
"""


def install() -> str:
    """Set up the environment once; returns supervisord's version."""
    python = VENV / "bin" / "python"
    if not (VENV / "bin" / "supervisord").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        # setuptools: supervisord 4.2 imports pkg_resources.
        words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "supervisor>=4.3", "setuptools<81"]
        subprocess.run([str(python), *words], check=True)
    answer = subprocess.run([str(VENV / "bin" / "supervisord"), "-v"], check=True, capture_output=True, text=True)
    return answer.stdout.strip()


class Peer:
    """supervisord with one program."""

    def __init__(self, folder: Path, command: list[str], directory: Path, environ: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        conf = folder / "supervisord.conf"
        conf.write_text(CONF.format(folder=folder, command=" ".join(command), directory=directory))
        with (folder / "out").open("ab") as out:
            self.process = subprocess.Popen(
                [str(VENV / "bin" / "supervisord"), "-c", str(conf)],
                env=environ,
                cwd=folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def said(self) -> str:
        """Its log."""
        path = self.folder / "supervisord.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def spawned(self) -> int:
        """How often it started the program."""
        return self.said().count("spawned: 'rl'")

    def close(self) -> None:
        """End it; it ends its child."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
