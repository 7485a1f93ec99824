"""Where every practice process begins: finds its role, era and install, and runs it with nothing else imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.practice.era import load_era
from tests.practice.processes import register


def main(role: str | None = None, era_name: str | None = None, home_name: str | None = None) -> None:
    """Without arguments, they come from the command line (`ROLE ERA HOME`), which is then cut off."""
    if role is None or era_name is None or home_name is None:
        role, era_name, home_name = sys.argv[1:4]
        del sys.argv[1:4]
    era, home = load_era(era_name), Path(home_name)
    arguments = sys.argv[1:]
    register(home, os.getpid(), role)
    try:
        code = run(role, arguments, home, era_name=era.name)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def run(role: str, arguments: list[str], home: Path, *, era_name: str) -> int:
    """Raises ValueError for an unknown role."""
    era = load_era(era_name)
    if role == "rl":
        from tests.practice import launcher

        return launcher.main(era, home, arguments)
    if role == "uv":
        from tests.practice import uv

        return uv.main(home, arguments)
    if role == "torchrun":
        from tests.practice import torchrun

        return torchrun.main(arguments)
    if role in ("trainer", "trainer-rank"):
        from tests.practice import trainer

        return trainer.main(era, home, arguments)
    if role == "orchestrator":
        from tests.practice import orchestrator

        return orchestrator.main(era, home, arguments)
    if role == "inference":
        from tests.practice import engine

        return engine.serve(era, home, arguments)
    if role == "engine-core":
        from tests.practice import engine_core

        return engine_core.core(era, home)
    if role == "vllm-router":
        from tests.practice import router

        return router.route(arguments)
    if role in ("env-server", "env-server-child", "env-worker"):
        from tests.practice import environments

        if role == "env-worker":
            return environments.work(era, home)
        return environments.serve(era, home, "PRIME-RL::EnvServer" if role == "env-server" else "Verifiers::EnvServer")
    raise ValueError(f"No practice process is called {role!r}")
